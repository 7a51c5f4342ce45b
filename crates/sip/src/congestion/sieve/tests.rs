//! What the sieve holds back, and how its thresholds move.

use std::net::IpAddr;
use std::time::Duration;

use super::{PLACES, Pressure, Sieve};
use crate::congestion::Admission;
use crate::{HashKey, Mono};

const MS: u64 = 1_000_000;
/// 503s per second that there is time for.
const REFUSALS: f64 = 10_000.0;

fn source(last: u8) -> IpAddr {
    [192, 0, 2, last].into()
}

fn request(first: &str, number: u32, to: &str, more: &str) -> Vec<u8> {
    format!(
        "{first} SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK{number};rport\r\n\
         From: <sip:a@192.0.2.1>;tag=f{number}\r\n{to}\r\nCall-ID: {number}@192.0.2.1\r\nCSeq: 1 X\r\n{more}Content-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

fn register(number: u32) -> Vec<u8> {
    request(
        "REGISTER sip:b@192.0.2.2",
        number,
        "To: <sip:b@192.0.2.2>",
        "",
    )
}

/// A worker under a load, in steps of 25 ms.
struct World {
    sieve: Sieve,
    now: Mono,
    number: u32,
}

impl World {
    fn new() -> World {
        let mut sieve = Sieve::new(HashKey::new([7; 16]));
        sieve.turn(Mono(0), Pressure::default());
        World {
            sieve,
            now: Mono(0),
            number: 0,
        }
    }

    /// New requests come from these sources, of which the worker can accept so many in all, and refuse 250; returns how many of
    /// each source were let through.
    fn step(&mut self, load: &[(u8, u32)], capacity: u32) -> Vec<u32> {
        let mut through = Vec::new();
        let mut all = 0;
        for &(last, count) in load {
            let before = all;
            for _ in 0..count {
                self.number += 1;
                if self.sieve.holds_back(source(last), &register(self.number)) {
                    continue;
                }
                let admission = if all < capacity {
                    Admission::Accept
                } else if all < capacity + 250 {
                    Admission::Refuse { retry_after_s: 1 }
                } else {
                    Admission::Drop
                };
                self.sieve.note(source(last), admission);
                all += 1;
            }
            through.push(all - before);
        }
        self.now = self.now.plus(Duration::from_millis(25));
        let busy = u64::from(all.min(capacity)) * 25 * MS / u64::from(capacity);
        self.sieve.note_spare(Duration::from_nanos(25 * MS - busy));
        let pressure = Pressure {
            percent: if all > capacity { 25 } else { 0 },
            wait: Duration::ZERO,
            refusals: REFUSALS,
            share: 0.05,
            capacity: 20_000.0,
        };
        self.sieve.turn(self.now, pressure);
        through
    }
}

#[test]
fn open_it_lets_everything_through() {
    let mut world = World::new();
    for _ in 0..20 {
        assert_eq!(world.step(&[(1, 400)], 500), [400]);
    }
    assert!(!world.sieve.is_closed());
}

#[test]
fn ten_times_the_load_is_thinned_to_what_can_be_accepted_and_refused() {
    let mut world = World::new();
    for _ in 0..40 {
        world.step(&[(1, 5000)], 500);
    }
    let through = world.step(&[(1, 5000)], 500)[0];
    assert!((500..=750).contains(&through), "{through}");
    // It does not move as long as that is so: retransmissions meet the fate of the first try.
    let thresholds = *world.sieve.thresholds();
    for _ in 0..40 {
        world.step(&[(1, 5000)], 500);
    }
    assert!(thresholds == *world.sieve.thresholds());
}

#[test]
fn who_asks_for_little_is_not_held_back() {
    let mut world = World::new();
    for _ in 0..80 {
        world.step(&[(2, 40), (1, 5000)], 500);
    }
    assert_eq!(world.step(&[(2, 40), (1, 5000)], 500)[0], 40);
}

#[test]
fn it_opens_when_the_load_is_gone_first_for_what_is_new() {
    let mut world = World::new();
    for _ in 0..40 {
        world.step(&[(1, 5000)], 500);
    }
    let held: Vec<Vec<u8>> = (0..2000u32)
        .map(|number| register(1_000_000 + number))
        .filter(|message| world.sieve.holds_back(source(1), message))
        .collect();
    assert!(held.len() > 1000);
    let mut steps = 0;
    while world.step(&[(1, 250)], 500) != [250] {
        steps += 1;
        assert!(steps < 20);
    }
    // What was held back stays so, whatever the threshold of what is new.
    let still = held
        .iter()
        .filter(|message| world.sieve.holds_back(source(1), message));
    assert!(still.count() * 100 > held.len() * 95);
    while world.sieve.is_closed() {
        world.step(&[(1, 250)], 500);
        steps += 1;
        assert!(steps < 2000);
    }
    assert!(
        !held
            .iter()
            .any(|message| world.sieve.holds_back(source(1), message))
    );
}

/// A closed sieve that lets nothing new through.
fn shut() -> World {
    let mut world = World::new();
    for _ in 0..60 {
        world.step(&[(1, 5000)], 1);
    }
    world
}

#[test]
fn only_what_surely_begins_something_is_held_back() {
    let mut world = shut();
    let to = "To: <sip:b@192.0.2.2>";
    let mut held = |first: &str, to: &str, more: &str| {
        let all = (0..100).filter(|number| {
            let message = request(first, 2_000_000 + number, to, more);
            world.sieve.holds_back(source(1), &message)
        });
        all.count() > 50
    };
    for method in [
        "INVITE",
        "REGISTER",
        "OPTIONS",
        "SUBSCRIBE",
        "MESSAGE",
        "PUBLISH",
    ] {
        assert!(
            held(&format!("{method} sip:b@192.0.2.2"), to, ""),
            "{method}"
        );
    }
    for method in ["ACK", "BYE", "CANCEL", "PRACK", "UPDATE", "INFO", "INVITES"] {
        assert!(
            !held(&format!("{method} sip:b@192.0.2.2"), to, ""),
            "{method}"
        );
    }
    let invite = "INVITE sip:b@192.0.2.2";
    assert!(held(invite, "t: <sip:b@192.0.2.2>", ""));
    for to in [
        "To: <sip:b@192.0.2.2>;tag=1",
        "t : sip:b@192.0.2.2 ;TAG=1",
        "To: <sip:b@192.0.2.2>\r\n ;tag=1",
        "Subject: no To;tag=1",
    ] {
        assert!(!held(invite, to, ""), "{to}");
    }
    for more in [
        "Authorization: Digest a\r\n",
        "proxy-authorization: Digest a\r\n",
        "Priority: emergency\r\n",
        "Resource-Priority: esnet.0\r\n",
    ] {
        assert!(!held(invite, to, more), "{more}");
    }
    assert!(!held("INVITE urn:service:sos", to, ""));
    assert_eq!(PLACES, 1024);
}
