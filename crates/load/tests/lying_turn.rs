//! A TURN server that refuses, repeats, cuts and withholds responses. The report of a churn must equal the account of
//! the server.
#![allow(clippy::unwrap_used)] // helpers of tests

#[path = "liars/udp.rs"]
mod liar;

use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;
use std::time::Duration;

use hairpin_load::generator::{ChurnOptions, Run, Stopper, Target, TurnClients, allocate};
use hairpin_load::measure::{Rate, Schedule};
use liar::{Liar, Sends};

const ALLOCATE: u8 = 3;
const REFRESH: u8 = 4;
/// Allocate requests that are lied to. Those after them end the run without a lie in transit.
const LIES: u64 = 400;

/// What the server did.
#[derive(Default)]
struct Account {
    /// Cycles that ended with a deleted allocation.
    completed: u64,
    refused: u64,
    /// Responses without a request that is open.
    unasked: u64,
    cut: u64,
    unbound: u64,
    /// Requests answered at their second attempt.
    again: u64,
    /// Requests without a response.
    ignored: u64,
    /// By transaction ID, the number of the request.
    numbers: HashMap<[u8; 12], u64>,
    /// Transactions whose retransmissions get no response. A client that stalls sends its request again, although the
    /// response waits in its socket.
    finished: HashSet<[u8; 12]>,
}

/// A STUN message.
fn message(kind: [u8; 2], id: &[u8; 12], attributes: &[u8]) -> Vec<u8> {
    let head = [
        kind[0],
        kind[1],
        0,
        attributes.len() as u8,
        0x21,
        0x12,
        0xA4,
        0x42,
    ];
    [&head[..], id, attributes].concat()
}

/// XOR-MAPPED-ADDRESS or XOR-RELAYED-ADDRESS.
fn address(kind: u8, of: SocketAddr) -> Vec<u8> {
    let SocketAddr::V4(of) = of else {
        panic!("IPv4 only")
    };
    let port = (of.port() ^ 0x2112).to_be_bytes();
    let ip = (of.ip().to_bits() ^ 0x2112_A442).to_be_bytes();
    [&[0, kind, 0, 8, 0, 1][..], &port, &ip].concat()
}

fn lifetime(seconds: u32) -> Vec<u8> {
    [&[0, 0x0D, 0, 4][..], &seconds.to_be_bytes()].concat()
}

fn respond(bytes: &[u8], from: SocketAddr, account: &mut Account, sends: &mut Sends) {
    let id: [u8; 12] = bytes[8..20].try_into().unwrap();
    if account.finished.contains(&id) {
        return;
    }
    let next = account.numbers.len() as u64;
    let is_new = !account.numbers.contains_key(&id);
    let is_deletion = bytes.windows(8).any(|part| part == lifetime(0));
    match bytes[1] {
        ALLOCATE => {
            let number = *account.numbers.entry(id).or_insert(next);
            if number < LIES && number % 8 == 5 && is_new {
                return;
            }
            account.finished.insert(id);
            let relayed = address(0x16, "127.0.0.1:20000".parse().unwrap());
            let attributes = [relayed, lifetime(600), address(0x20, from)].concat();
            let granted = message([1, ALLOCATE], &id, &attributes);
            if number < LIES {
                return lie(number, &id, &granted, from, account, sends);
            }
            sends.now(from, &granted);
        }
        REFRESH => {
            account.finished.insert(id);
            account.completed += u64::from(is_deletion);
            let left = if is_deletion { 0 } else { 600 };
            sends.now(from, &message([1, REFRESH], &id, &lifetime(left)));
        }
        _ => {}
    }
}

/// Answers an Allocate request. Of each eight, one is answered as it should be, and one only when it comes again.
fn lie(
    number: u64,
    id: &[u8; 12],
    granted: &[u8],
    from: SocketAddr,
    account: &mut Account,
    sends: &mut Sends,
) {
    match number % 8 {
        0 => {
            account.refused += 1;
            // RFC 8656 §19: 508, Insufficient Capacity.
            let code = [0, 9, 0, 4, 0, 0, 5, 8];
            return sends.now(from, &message([1, 0x10 | ALLOCATE], id, &code));
        }
        1 => {
            account.unasked += 1;
            sends.now(from, granted);
        }
        2 => {
            account.unasked += 1;
            let other = message([1, ALLOCATE], &[7; 12], &lifetime(600));
            sends.now(from, &other);
        }
        3 => {
            account.cut += 1;
            sends.now(from, &granted[..granted.len() - 6]);
        }
        4 => {
            account.unbound += 1;
            sends.now(from, &[0x40, 0, 0, 4, 1, 2, 3, 4]);
        }
        5 => account.again += 1,
        6 => {
            account.ignored += 1;
            return;
        }
        _ => {}
    }
    sends.now(from, granted);
}

#[test]
fn a_churn_counts_what_a_faulty_turn_server_does() {
    let server = Liar::<Account>::start(|_, bytes, from, account, sends| {
        respond(bytes, from, account, sends);
    });
    let turn = TurnClients::new(Target::admit(server.address, false).unwrap());
    let mut plan = allocate(&ChurnOptions::new(turn), &Stopper::new()).unwrap();
    plan.set_schedule(&Schedule::constant(Rate(500.0)));
    plan.warm_up = Duration::ZERO;
    plan.duration = Duration::from_secs(2);
    let report = Run::start(plan).unwrap().finish();
    let (total, account) = (&report.total, server.account());
    assert_eq!(account.refused, LIES / 8);
    assert_eq!(total.received, account.completed, "{report}");
    assert_eq!(total.sent, total.received + total.lost, "{report}");
    assert_eq!(total.lost, account.refused + account.ignored, "{report}");
    assert_eq!(report.errors[&508], account.refused, "{report}");
    assert_eq!(total.unknown_ids, account.unasked, "{report}");
    assert_eq!(total.truncated, account.cut, "{report}");
    assert_eq!(total.unbound, account.unbound, "{report}");
    // RFC 8489 §6.2.1: the first retransmission follows after 500 ms.
    assert_eq!(account.again, LIES / 8);
    assert!(report.latency.max_us >= 490_000.0, "{report}");
}
