//! Requests that cost little, many more than can be served, in virtual time: a queue, a sieve in front of it, and clients that repeat
//! what is not answered (RFC 3261 §17.1.2: T1 = 500 ms, T2 = 4 s).
//!
//! Costs are those of a processor ten times slower than ours, so that the test is ten times faster.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use super::*;
use crate::{HashKey, Mono};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// What reading a message costs, serving it in all, refusing it in all, and holding it back.
const RECEIVE: u64 = 6 * US;
const SERVE: u64 = 30 * US;
const REFUSE: u64 = 15 * US;
const SIEVE: u64 = 3 * US;
const BUFFER: usize = 20_000;
const BATCH: usize = 16;
/// The load lasts so long; the first second is not counted.
const LOAD: u64 = 4 * SECOND;
const CALM: u64 = 3 * SECOND;

/// Who pays for what is held back.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Payer {
    /// The kernel, on another processor.
    Other,
    /// The kernel, on the worker's processor.
    Same,
}

struct Crowd {
    controller: Controller,
    payer: Payer,
    now: u64,
    queue: VecDeque<usize>,
    lost: u64,
    /// When each request was begun, and whether it is over.
    begun: Vec<(u64, bool)>,
    /// When which request comes next, for which time.
    next: BinaryHeap<Reverse<(u64, usize, u32)>>,
    served: u64,
    /// Of what was begun after the load has fallen: all, and those that were served within 200 ms.
    calm: (u64, u64),
    held_back: u64,
    source: IpAddr,
}

impl Crowd {
    fn new(payer: Payer) -> Crowd {
        let config = Config {
            rejection_cost: Duration::from_nanos(REFUSE),
            ..Config::default()
        };
        Crowd {
            controller: Controller::new(config, HashKey::new([4; 16])),
            payer,
            now: SECOND,
            queue: VecDeque::new(),
            lost: 0,
            begun: Vec::new(),
            next: BinaryHeap::new(),
            served: 0,
            calm: (0, 0),
            held_back: 0,
            source: [192, 0, 2, 1].into(),
        }
    }

    fn message(number: usize) -> Vec<u8> {
        format!(
            "OPTIONS sip:b@192.0.2.2 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK{number};rport\r\n\
             From: <sip:a@192.0.2.1>;tag=f{number}\r\nTo: <sip:b@192.0.2.2>\r\nCall-ID: {number}@192.0.2.1\r\nCSeq: 1 X\r\n\r\n"
        )
        .into_bytes()
    }

    fn is_over(&self, number: usize) -> bool {
        self.begun[number].1
    }

    /// A request is sent for the `tries`th time.
    fn send(&mut self, at: u64, number: usize, tries: u32) {
        if self.is_over(number) {
            return;
        }
        if tries < 10 {
            let interval = (SECOND / 2) << tries.min(3);
            self.next.push(Reverse((at + interval, number, tries + 1)));
        }
        let message = Crowd::message(number);
        if self.controller.holds_back(self.source, &message) {
            let measured = 2 * SECOND..SECOND + LOAD;
            self.held_back += u64::from(measured.contains(&at));
            self.now += if self.payer == Payer::Same { SIEVE } else { 0 };
        } else if self.queue.len() < BUFFER {
            self.queue.push_back(number);
        } else {
            self.lost += 1;
        }
    }

    fn turn(&mut self) {
        let backlog = Backlog {
            messages: self.queue.len() as u64,
            fill_percent: (self.queue.len() * 100 / BUFFER) as u8,
            lost: std::mem::take(&mut self.lost),
        };
        let controller = &mut self.controller;
        controller.observe_backlog(Mono(self.now), backlog);
        let (mut served, mut busy, mut shed) = (0, 0, 0);
        for _ in 0..BATCH {
            let Some(number) = self.queue.pop_front() else {
                break;
            };
            let now = Mono(self.now);
            let admission = controller.admit(now, Class::New, self.source);
            controller.note_datagram(self.source, admission);
            let (cost, is_over) = match admission {
                Admission::Accept => (SERVE, true),
                Admission::Refuse { .. } => (REFUSE, true),
                Admission::Drop => (RECEIVE, false),
            };
            self.now += cost;
            shed += if cost == SERVE { 0 } else { cost };
            let (begun, was_over) = self.begun[number];
            if admission == Admission::Accept {
                served += 1;
                busy += cost;
                if !was_over {
                    let measured = 2 * SECOND..SECOND + LOAD;
                    self.served += u64::from(measured.contains(&self.now));
                    let is_calm =
                        (2 * SECOND + LOAD..SECOND + LOAD + CALM - SECOND / 5).contains(&begun);
                    self.calm.1 += u64::from(is_calm && self.now - begun < SECOND / 5);
                }
            }
            self.begun[number].1 |= is_over;
        }
        controller.observe_service(served, Duration::from_nanos(busy));
        controller.observe_spare(Duration::from_nanos(shed));
    }

    /// So many times what can be served, then half of it.
    fn run(&mut self, factor: f64) {
        let mut next = SECOND as f64;
        let (end, calm) = (SECOND + LOAD, SECOND + LOAD + CALM);
        while self.now < calm {
            while next as u64 <= self.now {
                let at = next as u64;
                self.begun.push((at, false));
                self.calm.0 += u64::from(at >= 2 * SECOND + LOAD && at < calm - SECOND / 5);
                self.send(at, self.begun.len() - 1, 0);
                let rate = if at < end { factor } else { 0.5 };
                next += SERVE as f64 / rate;
            }
            while let Some(&Reverse((at, number, tries))) = self.next.peek() {
                if at > self.now {
                    break;
                }
                self.next.pop();
                self.send(at, number, tries);
            }
            if self.queue.is_empty() {
                let first = self.next.peek().map_or(u64::MAX, |Reverse((at, ..))| *at);
                let until = first.min(next as u64).max(self.now);
                let until = self
                    .controller
                    .poll_timeout()
                    .map_or(until, |at| at.0.clamp(self.now, until));
                self.controller
                    .observe_spare(Duration::from_nanos(until - self.now));
                self.now = until;
                self.controller.pass_time(Mono(self.now));
            } else {
                self.turn();
            }
        }
    }

    fn goodput(&self) -> f64 {
        self.served as f64 * SERVE as f64 / (LOAD - SECOND) as f64
    }

    /// What is left of the time when the sieve has been paid for.
    fn left(&self) -> f64 {
        match self.payer {
            Payer::Other => 1.0,
            Payer::Same => 1.0 - (self.held_back * SIEVE) as f64 / (LOAD - SECOND) as f64,
        }
    }
}

#[test]
fn cheap_requests_are_served_whatever_comes() {
    for (payer, factor) in [
        (Payer::Other, 1.1),
        (Payer::Other, 1.5),
        (Payer::Other, 2.0),
        (Payer::Other, 4.0),
        (Payer::Same, 1.5),
        (Payer::Same, 2.0),
    ] {
        let mut crowd = Crowd::new(payer);
        crowd.run(factor);
        let (goodput, left) = (crowd.goodput(), crowd.left());
        let soon = crowd.calm.1 as f64 / crowd.calm.0 as f64;
        let what = format!(
            "{factor}x, {payer:?}: goodput {goodput:.3} of {left:.3}, recovered {soon:.4}, {:?}",
            crowd.controller.counts()
        );
        println!("{what}");
        assert!(goodput >= 0.9 * left, "{what}");
        assert!(soon >= 0.98, "{what}");
    }
}
