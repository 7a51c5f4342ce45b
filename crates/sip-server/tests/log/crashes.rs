//! Kills and power cuts at any moment.

use std::time::Duration;

use sip::Now;
use sip_server::location::{Change, Found, Location};
use sip_server::log::{Journal, Settings};

use crate::world::{
    Chance, Model, START, Tape, aor, binding, change, later, model, open, persistent, recovered,
};

/// Registers, removes, writes, synchronizes, compacts, fails and loses power, all by chance. What is there afterwards
/// is what was there after some change: not before the last synchronization, nor behind what was written.
#[test]
fn a_crash_leaves_an_earlier_state() {
    for seed in 0..60 {
        crash(seed);
    }
}

fn crash(seed: u64) {
    let mut chance = Chance(seed);
    let settings = Settings {
        min_len: 2000,
        ..Settings::default()
    };
    let (mut log, _) = open(Tape::default(), settings);
    let mut location = persistent();
    // The state after each change, and how many of them are in the log or survive a power cut.
    let mut states: Vec<Model> = vec![Model::new()];
    let (mut taken, mut written, mut synced) = (0, 0, 0);
    let mut batch = Vec::new();
    let mut shortest = u64::MAX;
    for step in 0..400 {
        let now = later(step / 10);
        match chance.below(10) {
            0..6 => {
                let user = format!("user{}", chance.below(12));
                let Found::Bindings(_, before) = location.find(&aor(&user)) else {
                    panic!("memory never asks")
                };
                let new = || binding(&format!("sip:{step}@h"), now, 10_000);
                let changes = match (before.len(), chance.below(3)) {
                    (0, _) | (1..5, 0) => vec![Change::Add(new())],
                    (_, 1) => vec![Change::Replace(0, new())],
                    _ => vec![Change::Remove(0)],
                };
                change(&mut location, now, &user, changes).unwrap();
                states.push(model(std::slice::from_ref(&location.memory)));
            }
            6 => {
                batch.extend(location.journal.take_all());
                taken = states.len() - 1;
            }
            7 => {
                // Sometimes the disk is full in the middle of a batch, and has room again later.
                let room = (chance.below(3) == 0).then(|| chance.below(300) as usize);
                set_room(&mut log, room);
                if log.write(now.mono, &batch).is_ok() {
                    batch.clear();
                    written = taken;
                }
                set_room(&mut log, None);
            }
            8 => {
                log.sync().unwrap();
                synced = written;
            }
            _ => {
                let before = log.len();
                log.run(now).unwrap();
                // What a compaction has copied is synchronized.
                if log.len() < before {
                    synced = written;
                    shortest = shortest.min(log.len());
                }
            }
        }
        let killed = recovered(log.storage().log.clone(), START);
        assert_eq!(
            killed, states[written],
            "seed {seed}, step {step}: after a kill"
        );
        let cut = recovered(log.storage().after_power_cut(chance.next()), START);
        let possible = &states[synced..=written];
        assert!(
            possible.contains(&cut),
            "seed {seed}, step {step}: after a power cut"
        );
    }
    assert!(shortest < u64::MAX, "no compaction in seed {seed}");
}

fn set_room(log: &mut sip_server::log::Log<Tape>, room: Option<usize>) {
    log.storage_mut().room = room;
}

/// A power cut may leave any part of what was not synchronized. Whatever it leaves, at most the changes of the last
/// five seconds are lost.
#[test]
fn a_power_cut_at_any_byte_loses_five_seconds_at_most() {
    let at = |ms: u64| Now {
        mono: START.mono.plus(Duration::from_millis(ms)),
        unix_s: START.unix_s + ms / 1000,
    };
    let (mut log, _) = open(Tape::default(), Settings::default());
    let mut location = persistent();
    location.journal = Journal::new(Duration::from_millis(200));
    // The state after each change, and when it was made.
    let mut states = vec![(0, Model::new())];
    let mut chance = Chance(1);
    let mut cuts = 0;
    for ms in (0..16_000).step_by(100) {
        let now = at(ms);
        // Bursts, and times without a change.
        if (ms / 2000) % 3 != 2 {
            let user = format!("user{}", chance.below(5));
            let new = || binding(&format!("sip:{ms}@h"), now, 10_000);
            let Found::Bindings(_, before) = location.find(&aor(&user)) else {
                panic!("memory never asks")
            };
            let changes = match before.len() {
                0 => vec![Change::Add(new())],
                _ => vec![Change::Replace(0, new())],
            };
            change(&mut location, now, &user, changes).unwrap();
            states.push((ms, model(std::slice::from_ref(&location.memory))));
        }
        if let Some(batch) = location.journal.take(now.mono) {
            log.write(now.mono, &batch).unwrap();
        }
        if log.next_deadline().is_some_and(|due| due <= now.mono) {
            log.run(now).unwrap();
        }
        let tape = log.storage();
        let is_old = |(made, _): &(u64, Model)| made + 5_000 <= ms;
        let oldest = states.iter().rposition(is_old).unwrap_or(0);
        // A prime distance between the cuts finds every kind of place; the ends are always there.
        let between = (tape.synced..tape.log.len()).step_by(499);
        for len in between.chain([tape.log.len()]) {
            let left = recovered(tape.log[..len].to_vec(), now);
            let known = states[oldest..].iter().any(|(_, state)| *state == left);
            assert!(known, "after {ms} ms, cut at {len} of {}", tape.log.len());
            cuts += 1;
        }
    }
    assert!(cuts > 500, "only {cuts} cuts");
}
