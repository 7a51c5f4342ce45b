//! Records, torn ends, damage, and times of another run.

use std::time::Duration;

use sip::{Mono, Now};
use sip_server::location::{Change, ChangeError, Found, Location};
use sip_server::log::{Journal, Log, OpenError, Settings};

use crate::world::{
    START, Tape, aor, binding, change, key, later, load, model, open, persistent, recovered,
};

/// A log with so many users, each with a binding.
fn log_of(users: u32) -> Vec<u8> {
    let mut location = persistent();
    for user in 0..users {
        let changes = vec![Change::Add(binding("sip:a@h", START, 3600))];
        change(&mut location, START, &format!("user{user}"), changes).unwrap();
    }
    let (mut log, _) = open(Tape::default(), Settings::default());
    log.write(START.mono, &location.journal.take_all()).unwrap();
    log.storage().log.clone()
}

fn image_of(bytes: Vec<u8>) -> (Log<Tape>, sip_server::log::Image) {
    open(Tape::holding(bytes), Settings::default())
}

#[test]
fn a_binding_comes_back_as_it_was_whatever_the_number_of_workers() {
    let bytes = log_of(50);
    let (_, image) = image_of(bytes);
    assert_eq!((image.report().records, image.report().cut), (50, 0));
    for workers in [1, 2, 7] {
        let mut workers = load(&image, START, workers);
        assert_eq!(workers.iter().map(|worker| worker.len()).sum::<usize>(), 50);
        let found = workers
            .iter_mut()
            .find_map(|worker| match worker.find(&aor("user7")) {
                Found::Bindings(_, [binding]) => Some(binding.clone()),
                _ => None,
            });
        assert_eq!(found, Some(binding("sip:a@h", START, 3600)));
    }
}

#[test]
fn times_are_those_of_the_clock_on_the_wall() {
    let bytes = log_of(1);
    let (_, image) = image_of(bytes.clone());
    // The host was started anew a quarter of an hour after the registration: its monotonic clock has just begun.
    let now = Now {
        mono: Mono(5_000_000_000),
        unix_s: START.unix_s + 900,
    };
    let mut workers = load(&image, now, 1);
    let Found::Bindings(_, [found]) = workers[0].find(&aor("user0")) else {
        panic!("one binding")
    };
    assert_eq!(found.expires(), now.mono.plus_secs(2700));
    assert_eq!(found.updated(), Mono(0));
    assert!(workers[0].next_deadline().is_some());
    while workers[0].expire(now.mono.plus_secs(2701)).is_some() {}
    assert!(workers[0].is_empty());
    // What has ended in the meantime does not come back.
    assert!(recovered(bytes, later(3600)).is_empty());
}

#[test]
fn the_order_of_refreshes_survives_a_new_clock() {
    let mut location = persistent();
    for (second, uri) in ["sip:1@h", "sip:2@h", "sip:3@h"].into_iter().enumerate() {
        let now = later(second as u64);
        change(
            &mut location,
            now,
            "a",
            vec![Change::Add(binding(uri, now, 3600))],
        )
        .unwrap();
    }
    let now = later(10);
    change(
        &mut location,
        now,
        "a",
        vec![Change::Replace(0, binding("sip:1@h", now, 3600))],
    )
    .unwrap();
    let (mut log, _) = open(Tape::default(), Settings::default());
    log.write(now.mono, &location.journal.take_all()).unwrap();
    let (_, image) = image_of(log.storage().log.clone());
    let boot = Now {
        mono: Mono(0),
        unix_s: START.unix_s + 60,
    };
    let mut workers = load(&image, boot, 1);
    let Found::Bindings(_, bindings) = workers[0].find(&aor("a")) else {
        panic!("memory never asks")
    };
    let mut order: Vec<_> = bindings
        .iter()
        .map(|one| (one.updated(), one.uri()))
        .collect();
    order.sort_unstable();
    let uris: Vec<&[u8]> = order.iter().map(|(_, uri)| *uri).collect();
    assert_eq!(uris, [b"sip:2@h", b"sip:3@h", b"sip:1@h"]);
    assert!(order.windows(2).all(|pair| pair[0].0 < pair[1].0));
}

#[test]
fn a_torn_end_is_cut_and_reported() {
    let whole = log_of(3);
    let two = log_of(2).len();
    for len in two..whole.len() {
        let (log, image) = image_of(whole[..len].to_vec());
        assert_eq!(image.report().records, 2, "{len}");
        assert_eq!(image.report().cut, (len - two) as u64);
        assert_eq!(log.len(), two as u64);
        assert_eq!(log.storage().log.len(), two);
        assert_eq!(model(&load(&image, START, 1)).len(), 2);
    }
    // Zeros, as some file systems leave them, and noise.
    for noise in [vec![0; 100], vec![0xFF; 100]] {
        let (_, image) = image_of([&whole[..], &noise].concat());
        assert_eq!((image.report().records, image.report().cut), (3, 100));
    }
}

#[test]
fn a_damaged_record_is_left_out_and_those_behind_it_count() {
    let whole = log_of(3);
    let (first, second) = (log_of(1).len(), log_of(2).len());
    for at in first + 8..second {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        let (_, image) = image_of(damaged);
        let report = image.report();
        assert_eq!(
            (report.records, report.damaged, report.cut),
            (2, 1, 0),
            "{at}"
        );
        let users: Vec<String> = model(&load(&image, START, 1)).into_keys().collect();
        assert_eq!(users, ["user0@example.com", "user2@example.com"]);
    }
}

/// Bytes of a log of version 1 with one record, written by its format: no byte before the address, no User-Agent.
fn old_log() -> Vec<u8> {
    let number = |number: u16| number.to_le_bytes();
    let mut state = vec![17];
    state.extend_from_slice(b"user0@example.com");
    state.extend_from_slice(&number(1));
    let texts: [&[u8]; 5] = [
        b"sip:a@h",
        b";+sip.instance=\"<urn:x:1>\"",
        b"call@h",
        b"",
        b"",
    ];
    for text in texts {
        state.extend_from_slice(&number(text.len() as u16));
    }
    for part in [17, 7, 1000] {
        state.extend_from_slice(&number(part));
    }
    state.extend_from_slice(&77_u32.to_le_bytes());
    state.extend_from_slice(&0_u32.to_le_bytes());
    for part in [12345, START.unix_s + 60, START.unix_s] {
        state.extend_from_slice(&part.to_le_bytes());
    }
    state.extend_from_slice(&texts.concat());
    let mut header = b"hairpin location\x01\0\0\0".to_vec();
    let crc = crc32fast::hash(&header).to_le_bytes();
    header.extend_from_slice(&crc);
    let len = (state.len() as u32).to_le_bytes();
    let crc = crc32fast::hash(&[&len[..], &state].concat()).to_le_bytes();
    [&header[..], &len, &crc, &state].concat()
}

#[test]
fn a_log_of_the_version_without_user_agents_is_read_and_continued() {
    let (mut log, image) = image_of(old_log());
    let report = image.report();
    assert_eq!((report.records, report.damaged, report.cut), (1, 0, 0));
    let mut workers = load(&image, START, 1);
    let Found::Bindings(_, [found]) = workers[0].find(&aor("user0")) else {
        panic!("one binding")
    };
    assert_eq!((found.uri(), found.agent()), (&b"sip:a@h"[..], &b""[..]));
    assert_eq!((found.instance(), found.cseq()), (&b"urn:x:1"[..], 77));
    assert_eq!((found.q(), found.gruu()), (Some(1000), 12345));
    let mut location = persistent();
    let changes = vec![Change::Add(binding("sip:b@h", START, 3600))];
    change(&mut location, START, "user1", changes).unwrap();
    log.write(START.mono, &location.journal.take_all()).unwrap();
    let (_, image) = image_of(log.storage().log.clone());
    assert_eq!((image.report().records, image.report().damaged), (2, 0));
    let mut workers = load(&image, START, 1);
    let Found::Bindings(_, [found]) = workers[0].find(&aor("user1")) else {
        panic!("one binding")
    };
    assert_eq!(found.agent(), b"phone/1.0");
}

#[test]
fn a_file_that_is_no_log_is_not_changed() {
    let open = |log: &[u8]| {
        let tape = Tape::holding(log.to_vec());
        Log::open(tape, Settings::default(), key())
    };
    for other in [
        &b"# a configuration file of somebody"[..],
        b"x",
        b"hairpin location but no log",
    ] {
        assert!(matches!(open(other), Err(OpenError::Other)));
    }
    let mut newer = log_of(0);
    newer[16] = 3;
    let crc = crc32fast::hash(&newer[..20]);
    newer[20..24].copy_from_slice(&crc.to_le_bytes());
    assert!(matches!(open(&newer), Err(OpenError::Version(3))));
    // A log whose header was being written is an empty one.
    for len in 0..24 {
        let (log, image) = open(&log_of(0)[..len]).unwrap();
        assert!(log.is_empty() && image.is_empty());
        assert_eq!(log.storage().log, log_of(0));
    }
}

#[test]
fn batches_wait_for_their_time_or_until_they_are_large() {
    let mut journal = Journal::new(Duration::from_millis(500));
    assert_eq!(
        (journal.next_deadline(), journal.take(Mono::NEVER)),
        (None, None)
    );
    let one = [binding("sip:a@h", START, 60)];
    journal.record(START, &aor("a"), &one).unwrap();
    let due = START.mono.plus(Duration::from_millis(500));
    journal.record(later(0), &aor("b"), &one).unwrap();
    assert_eq!(journal.next_deadline(), Some(due));
    assert_eq!(journal.take(Mono(due.0 - 1)), None);
    assert!(journal.take(due).is_some_and(|batch| !batch.is_empty()));
    assert_eq!(journal.next_deadline(), None);
    while journal.next_deadline() != Some(START.mono) {
        journal.record(START, &aor("a"), &one).unwrap();
    }
    assert!(
        journal
            .take(START.mono)
            .is_some_and(|batch| batch.len() >= 256 << 10)
    );
}

#[test]
fn changes_are_refused_if_nobody_takes_the_batches() {
    let mut location = persistent();
    let many = vec![binding("sip:a@h", START, 60); 30_000];
    while !location.journal.is_full() {
        location.journal.record(START, &aor("a"), &many).unwrap();
    }
    let add = || vec![Change::Add(binding("sip:a@h", START, 60))];
    assert_eq!(
        change(&mut location, START, "b", add()),
        Err(ChangeError::Failed)
    );
    assert!(location.memory.is_empty());
    location.journal.take_all();
    change(&mut location, START, "b", add()).unwrap();
}

#[test]
fn bindings_too_large_for_a_record_are_not_changed() {
    let mut location = persistent();
    location.memory.set_limits(sip_server::location::Limits {
        per_user: usize::MAX,
        total: usize::MAX,
    });
    let uri = format!("sip:{}@h", "x".repeat(60_000));
    let large = binding(&uri, START, 60);
    let add = |count| vec![Change::Add(large.clone()); count];
    change(&mut location, START, "a", add(200)).unwrap();
    assert_eq!(
        change(&mut location, START, "a", add(100)),
        Err(ChangeError::UserFull)
    );
    assert_eq!(location.memory.len(), 200);
}

#[test]
fn no_bytes_panic_whatever_their_checksum() {
    let mut chance = crate::world::Chance(1);
    let whole = log_of(1);
    let (head, record) = whole.split_at(24);
    for _ in 0..20_000 {
        let mut state = record[8..].to_vec();
        for _ in 0..=chance.below(3) {
            let at = chance.below(state.len() as u64) as usize;
            match chance.below(4) {
                0 => state.truncate(at + 1),
                1 => state.insert(at, 0xFF),
                _ => state[at] = chance.next() as u8,
            }
        }
        let len = (state.len() as u32).to_le_bytes();
        let crc = crc32fast::hash(&[&len[..], &state].concat()).to_le_bytes();
        let (_, image) = image_of([head, &len, &crc, &state].concat());
        let report = image.report();
        assert_eq!((report.records, report.cut), (1, 0));
        let mut memory = crate::world::memory();
        let hash = sip_server::AorHash::new(key());
        let failures = image.load(START, &hash, (0, 1), &mut memory);
        assert!(memory.addresses() as u64 + failures + report.damaged <= 1);
    }
}
