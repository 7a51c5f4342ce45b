//! A log that is kept short.

use sip_server::location::Change;
use sip_server::log::Settings;

use crate::world::{Tape, binding, change, later, model, open, persistent, recovered};

#[test]
fn a_log_is_compacted_when_half_of_it_no_longer_counts() {
    let settings = Settings {
        min_len: 10_000,
        ..Settings::default()
    };
    let (mut log, _) = open(Tape::default(), settings);
    let mut location = persistent();
    let mut longest = 0;
    // 40 phones refresh their bindings 100 times.
    for second in 0..4000_u64 {
        let now = later(second);
        let user = format!("user{}", second % 40);
        let new = binding("sip:a@h", now, 3600);
        let changes = match second < 40 {
            true => vec![Change::Add(new)],
            false => vec![Change::Replace(0, new)],
        };
        change(&mut location, now, &user, changes).unwrap();
        if let Some(batch) = location.journal.take(now.mono.plus_secs(1)) {
            log.write(now.mono, &batch).unwrap();
        }
        while log.next_deadline().is_some_and(|due| due <= now.mono) {
            log.run(now).unwrap();
        }
        longest = longest.max(log.len());
    }
    let state = model(std::slice::from_ref(&location.memory));
    assert_eq!(state.len(), 40);
    assert_eq!(recovered(log.storage().log.clone(), later(4000)), state);
    // Twice what counts, and a record.
    assert!(longest < 25_000, "{longest}");
}

#[test]
fn a_compaction_leaves_out_what_has_ended_or_was_removed() {
    let settings = Settings {
        min_len: 0,
        ..Settings::default()
    };
    let mut location = persistent();
    for user in 0..10 {
        let seconds = if user < 5 { 100 } else { 1000 };
        let changes = vec![Change::Add(binding("sip:a@h", later(0), seconds))];
        change(&mut location, later(0), &format!("user{user}"), changes).unwrap();
    }
    change(&mut location, later(1), "user9", vec![Change::Remove(0)]).unwrap();
    let (mut log, _) = open(Tape::default(), settings);
    log.write(later(1).mono, &location.journal.take_all())
        .unwrap();
    let before = log.len();
    // It is done in steps, and what is written in between is kept.
    log.run(later(200)).unwrap();
    let new = vec![Change::Add(binding("sip:b@h", later(200), 1000))];
    change(&mut location, later(200), "new", new).unwrap();
    let batch = location.journal.take_all();
    log.write(later(200).mono, &batch).unwrap();
    while log
        .next_deadline()
        .is_some_and(|due| due <= later(200).mono)
    {
        log.run(later(200)).unwrap();
    }
    let record = batch.len() as u64;
    assert!(log.len() < before - 4 * record, "{} of {before}", log.len());
    let users: Vec<String> = recovered(log.storage().log.clone(), later(200))
        .into_keys()
        .collect();
    let expected =
        ["new", "user5", "user6", "user7", "user8"].map(|user| format!("{user}@example.com"));
    assert_eq!(users, expected);
}

#[test]
fn a_compaction_that_fails_leaves_the_log_as_it_was_and_is_not_tried_at_once() {
    let settings = Settings {
        min_len: 0,
        ..Settings::default()
    };
    let (mut log, _) = open(Tape::default(), settings);
    let mut location = persistent();
    let add = vec![Change::Add(binding("sip:a@h", later(0), 3600))];
    change(&mut location, later(0), "a", add).unwrap();
    log.write(later(0).mono, &location.journal.take_all())
        .unwrap();
    log.storage_mut().room = Some(40);
    let mut failures = 0;
    for _ in 0..100 {
        failures += u32::from(log.run(later(0)).is_err());
    }
    assert_eq!(failures, 1);
    log.storage_mut().room = None;
    assert_eq!(recovered(log.storage().log.clone(), later(0)).len(), 1);
    let before = log.len();
    let again = vec![Change::Replace(0, binding("sip:b@h", later(0), 3600))];
    change(&mut location, later(0), "a", again).unwrap();
    let batch = location.journal.take_all();
    for _ in 0..3 {
        log.write(later(0).mono, &batch).unwrap();
    }
    while log.next_deadline().is_some_and(|due| due <= later(0).mono) {
        log.run(later(0)).unwrap();
    }
    assert_eq!(log.len(), before, "one record is left");
}

#[test]
fn a_record_longer_than_a_step_is_copied() {
    let settings = Settings {
        min_len: 0,
        ..Settings::default()
    };
    let (mut log, _) = open(Tape::default(), settings);
    let mut location = persistent();
    location.memory.set_limits(sip_server::location::Limits {
        per_user: 1000,
        total: 1000,
    });
    let uri = format!("sip:{}@h", "x".repeat(60_000));
    for user in ["a", "b"] {
        let add = vec![Change::Add(binding(&uri, later(0), 3600)); 100];
        change(&mut location, later(0), user, add).unwrap();
    }
    change(&mut location, later(0), "b", vec![Change::Remove(0)]).unwrap();
    log.write(later(0).mono, &location.journal.take_all())
        .unwrap();
    let before = log.len();
    while log.next_deadline().is_some_and(|due| due <= later(0).mono) {
        log.run(later(0)).unwrap();
    }
    assert!(log.len() < before * 3 / 4);
    let state = model(std::slice::from_ref(&location.memory));
    assert_eq!(recovered(log.storage().log.clone(), later(0)), state);
}
