//! What the filter drops, and how its shares move.

use std::net::IpAddr;

use super::{AFTERMATH, Filter, PLACES, TICK, Tick, WeightedSources};
use crate::congestion::WeightedSource;
use crate::{HashKey, Mono};

/// What the worker can accept and refuse in a tick.
const ACCEPTS: u32 = 500;
const REFUSES: u32 = 250;

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
    let to = "To: <sip:b@192.0.2.2>";
    request("REGISTER sip:b@192.0.2.2", number, to, "")
}

/// A worker under a load, tick by tick. 192.0.2.9 is a peer of weight 3.
struct World {
    /// What the worker can accept in a tick.
    accepts: u32,
    /// The part of its time that other requests use.
    busy_percent: u32,
    filter: Filter,
    peers: WeightedSources,
    now: Mono,
    number: u32,
}

impl World {
    fn new() -> World {
        let peer = WeightedSource {
            address: source(9),
            prefix: 32,
            weight: 3,
        };
        World {
            accepts: ACCEPTS,
            busy_percent: 0,
            filter: Filter::new(HashKey::new([7; 16])),
            peers: WeightedSources::new(&[peer]),
            now: Mono(0),
            number: 0,
        }
    }

    fn drops(&mut self, last: u8, message: &[u8]) -> bool {
        self.filter.drops(&self.peers, source(last), message)
    }

    /// Whether a request passes the filter, and admission control may accept it, as in a worker with the filter.
    fn passes(&mut self, last: u8, message: &[u8]) -> bool {
        !self.drops(last, message) && self.filter.may_accept(&self.peers, source(last), message)
    }

    /// Those of 2,000 requests that the filter drops.
    fn dropped(&mut self) -> Vec<Vec<u8>> {
        let requests = (0..2000).map(|number| register(1_000_000 + number));
        requests.filter(|request| self.drops(1, request)).collect()
    }

    /// New requests come from these sources; returns how many of each passed.
    fn step(&mut self, load: &[(u8, u32)]) -> Vec<u32> {
        let mut passed = Vec::new();
        for &(last, count) in load {
            let begin = self.number;
            self.number += count;
            let numbers = begin..self.number;
            let passes = numbers.filter(|number| !self.drops(last, &register(*number)));
            passed.push(passes.count() as u32);
        }
        let all: u32 = passed.iter().sum();
        let accepts = self.accepts;
        let accepted = all.min(accepts);
        self.now = self.now.plus(TICK);
        let tick = Tick {
            accepted,
            dropped: all.saturating_sub(accepts + REFUSES),
            spare: (TICK * (accepts - accepted) / accepts)
                .saturating_sub(TICK * self.busy_percent / 100),
            refusals: f64::from(REFUSES) / TICK.as_secs_f64(),
            refusal_part: 0.08,
            refuses: all > accepts,
        };
        self.filter.tick(self.now, &self.peers, tick);
        passed
    }

    fn steps(&mut self, count: u32, load: &[(u8, u32)]) -> Vec<u32> {
        (0..count).fold(Vec::new(), |_, _| self.step(load))
    }
}

#[test]
fn inactive_it_lets_everything_pass() {
    let mut world = World::new();
    assert_eq!(world.steps(20, &[(1, 700)]), [700]);
    assert!(!world.filter.is_active());
}

#[test]
fn ten_times_the_load_is_thinned_to_what_can_be_accepted_and_refused() {
    let mut world = World::new();
    for _ in 0..40 {
        let passed = world.steps(10, &[(1, 5000)])[0];
        assert!(passed < ACCEPTS + REFUSES + 60, "{passed}");
    }
    let passed = world.step(&[(1, 5000)])[0];
    assert!((ACCEPTS..ACCEPTS + REFUSES).contains(&passed), "{passed}");
}

#[test]
fn a_retransmission_has_the_fate_of_the_first_try() {
    let mut world = World::new();
    world.steps(20, &[(1, 5000)]);
    let messages: Vec<Vec<u8>> = (0..2000).map(|number| register(900_000 + number)).collect();
    let mut fates = || -> Vec<bool> {
        let drops = messages.iter().map(|message| world.drops(1, message));
        drops.collect()
    };
    let first = fates();
    assert_eq!(first, fates());
    assert!(first.contains(&true) && first.contains(&false));
}

#[test]
fn the_key_is_fresh_each_time_and_the_source_is_part_of_the_hash() {
    let mut world = World::new();
    let fates = |world: &mut World, last| -> Vec<bool> {
        world.steps(20, &[(1, 5000), (2, 5000)]);
        let drops = (0..500).map(|number| world.drops(last, &register(2_000_000 + number)));
        drops.collect()
    };
    let (one, two) = (fates(&mut world, 1), fates(&mut world, 2));
    assert_ne!(one, two);
    let keys = world.filter.keys();
    world.filter.end();
    assert_ne!(fates(&mut world, 1), one);
    assert_ne!(world.filter.keys(), keys);
}

#[test]
fn sources_that_ask_for_little_pass_whole_and_peers_by_weight() {
    let mut world = World::new();
    let load = [(2, 40), (1, 1000), (9, 1000)];
    let passed = world.steps(80, &load);
    assert_eq!(passed[0], 40);
    let ratio = f64::from(passed[2]) / f64::from(passed[0] + passed[1]);
    assert!((2.0..4.5).contains(&ratio), "{passed:?}");
}

#[test]
fn dropped_requests_stay_dropped_until_the_worker_is_calm() {
    let mut world = World::new();
    world.steps(40, &[(1, 5000)]);
    let dropped = world.dropped();
    assert!(dropped.len() > 1000);
    let mut steps = 0;
    while world.step(&[(1, 250)]) != [250] {
        steps += 1;
        assert!(steps < 20, "new requests pass within a second");
    }
    assert!(dropped.iter().all(|message| world.drops(1, message)));
    world.steps(20, &[(1, 250)]);
    // A second later, a quarter of the unused capacity, an eighth of all, goes into them.
    let mut passed = Vec::new();
    for _ in 0..20 {
        let passes = dropped.iter().filter(|message| world.passes(1, message));
        passed.push(passes.count());
        world.step(&[(1, 250)]);
    }
    assert!(passed.iter().all(|passed| *passed <= 65), "{passed:?}");
    assert!(passed.iter().sum::<usize>() > 1000, "{passed:?}");
    assert!(world.filter.is_active(), "and are known");
    let until = world.now.plus(AFTERMATH);
    while world.now < until {
        world.step(&[(1, 250)]);
    }
    assert!(!world.filter.is_active());
}

#[test]
fn a_rise_below_the_capacity_drops_nothing_after_an_overload() {
    let mut world = World::new();
    world.steps(40, &[(1, 5000)]);
    // The worker is busy with requests that do not concern the filter, too.
    for (new, busy_percent) in [(1, 0), (1, 10), (20, 10)] {
        world.busy_percent = busy_percent;
        world.steps(150, &[(1, new)]);
        for _ in 0..4 {
            assert_eq!(world.step(&[(1, 400)]), [400]);
        }
        assert!(world.filter.is_active());
    }
}

#[test]
fn retransmissions_pass_although_the_worker_can_serve_few_requests() {
    let mut world = World::new();
    world.accepts = 2;
    world.steps(40, &[(1, 5000)]);
    let mut number = 3_000_000;
    let dropped = loop {
        number += 1;
        if world.drops(1, &register(number)) {
            break register(number);
        }
    };
    let passed = (0..100).find(|_| {
        world.step(&[(1, 0)]);
        world.passes(1, &dropped)
    });
    assert!(passed.is_some(), "within 5 s");
}

/// Requests for another worker do not come to the admission control of this one.
#[test]
fn the_filter_counts_the_retransmissions_that_it_lets_pass() {
    let mut world = World::new();
    world.steps(40, &[(1, 5000)]);
    let dropped = world.dropped();
    world.steps(100, &[(1, 250)]);
    let left = world.filter.retransmissions_left() as usize;
    assert!(left > 40, "{left}");
    let passed = dropped.iter().filter(|message| !world.drops(1, message));
    assert_eq!(passed.count(), left);
    assert_eq!(world.filter.retransmissions_left(), 0);
}

#[test]
fn what_was_dropped_does_not_pass_while_requests_are_refused() {
    let mut world = World::new();
    world.steps(40, &[(1, 5000)]);
    assert_eq!(world.filter.retransmissions_left(), 0);
    world.steps(100, &[(1, 250)]);
    assert!((50..65).contains(&world.filter.retransmissions_left()));
    world.now = world.now.plus(TICK);
    let tick = Tick {
        accepted: ACCEPTS,
        refuses: true,
        ..Tick::default()
    };
    world.filter.tick(world.now, &world.peers, tick);
    assert_eq!(world.filter.retransmissions_left(), 0);
    assert_eq!(world.step(&[(1, 250)]), [250], "new ones do");
}

#[test]
fn counts_of_the_kernel_set_shares_like_its_own() {
    let mut world = World::new();
    let (place, _) = world.peers.place(source(1), [0, 1]);
    let tick = Tick {
        accepted: ACCEPTS,
        dropped: 100,
        ..Tick::default()
    };
    for _ in 0..20 {
        let counts = (0..PLACES).map(|at| if at == place { 5000 } else { 0 });
        world.filter.report(counts, 4000);
        world.now = world.now.plus(TICK);
        world.filter.tick(world.now, &world.peers, tick);
    }
    let share = (u32::from(world.filter.thresholds()[place]) * 5000) >> 16;
    assert!(share.abs_diff(ACCEPTS) < 20, "{share}");
}

#[test]
fn a_full_generation_gives_way_before_its_time() {
    let mut world = World::new();
    world.steps(2, &[(1, 5000)]);
    let generation = world.filter.generation();
    world.filter.report(std::iter::empty(), super::memory::ROOM);
    world.step(&[(1, 5000)]);
    assert_ne!(world.filter.generation(), generation);
}

#[test]
fn only_what_certainly_begins_something_is_dropped() {
    let mut world = World::new();
    world.steps(60, &[(1, 50_000)]);
    let to = "To: <sip:b@192.0.2.2>";
    let mut dropped = |first: &str, to: &str, more: &str| {
        let all = (0..100).filter(|number| {
            let message = request(first, 9_000_000 + number, to, more);
            world.drops(1, &message)
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
        let first = format!("{method} sip:b@192.0.2.2");
        assert!(dropped(&first, to, ""), "{method}");
    }
    for method in ["ACK", "BYE", "CANCEL", "PRACK", "UPDATE", "INFO", "INVITES"] {
        let first = format!("{method} sip:b@192.0.2.2");
        assert!(!dropped(&first, to, ""), "{method}");
    }
    let invite = "INVITE sip:b@192.0.2.2";
    assert!(dropped(invite, "t: <sip:b@192.0.2.2>", ""));
    for to in [
        "To: <sip:b@192.0.2.2>;tag=1",
        "t : sip:b@192.0.2.2 ;TAG=1",
        "To: <sip:b@192.0.2.2>\r\n ;tag=1",
        "Subject: no To;tag=1",
    ] {
        assert!(!dropped(invite, to, ""), "{to}");
    }
    for more in [
        "Authorization: Digest a\r\n",
        "proxy-authorization: Digest a\r\n",
    ] {
        assert!(!dropped(invite, to, more), "{more}");
    }
    // Anybody can write them.
    for more in ["Priority: emergency\r\n", "Resource-Priority: esnet.0\r\n"] {
        assert!(dropped(invite, to, more), "{more}");
    }
    assert!(!dropped("INVITE urn:service:sos", to, ""));
}

#[test]
fn a_gap_of_one_tick_does_not_open_the_filter() {
    let mut world = World::new();
    world.steps(40, &[(1, 5000)]);
    for _ in 0..20 {
        world.step(&[(1, 0)]);
        let passed = world.step(&[(1, 5000)])[0];
        assert!(passed < 2 * (ACCEPTS + REFUSES), "{passed}");
    }
    // Two ticks without requests are a change.
    world.steps(2, &[(1, 0)]);
    assert_eq!(world.step(&[(1, 250)]), [250]);
}
