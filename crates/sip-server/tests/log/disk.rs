//! A log in a file.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;

use sip_server::location::Change;
use sip_server::log::{Disk, Log, Settings};

use crate::world::{binding, change, key, later, load, model, persistent};

#[test]
fn a_log_survives_restarts_and_compactions() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("location.log");
    let settings = Settings {
        min_len: 3000,
        ..Settings::default()
    };
    let mut location = persistent();
    let mut lengths = Vec::new();
    for round in 0..20_u64 {
        let now = later(round);
        let disk = Disk::open(&path).unwrap();
        let (mut log, image) = Log::open(disk, settings, key()).unwrap();
        let state = model(std::slice::from_ref(&location.memory));
        assert_eq!(model(&load(&image, now, 2)), state, "{round}");
        for user in 0..10 {
            let new = binding(&format!("sip:{round}@h"), now, 3600);
            let changes = match round {
                0 => vec![Change::Add(new)],
                _ => vec![Change::Replace(0, new)],
            };
            change(&mut location, now, &format!("user{user}"), changes).unwrap();
        }
        log.write(now.mono, &location.journal.take_all()).unwrap();
        while log.next_deadline().is_some_and(|due| due <= now.mono) {
            log.run(now).unwrap();
        }
        // Whether the end is a clean one or not.
        if round % 2 == 0 {
            log.sync().unwrap();
        }
        lengths.push(log.len());
    }
    assert!(
        lengths.windows(2).any(|pair| pair[1] < pair[0]),
        "{lengths:?}"
    );
    let mode = path.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(path.metadata().unwrap().len(), *lengths.last().unwrap());
}

#[test]
fn one_process_has_the_log_at_a_time_also_behind_a_compaction() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("location.log");
    let settings = Settings {
        min_len: 0,
        ..Settings::default()
    };
    let (mut log, _) = Log::open(Disk::open(&path).unwrap(), settings, key()).unwrap();
    let in_use = || Disk::open(&path).err().map(|error| error.kind());
    assert_eq!(in_use(), Some(ErrorKind::WouldBlock));
    let mut location = persistent();
    let add = vec![Change::Add(binding("sip:a@h", later(0), 3600))];
    change(&mut location, later(0), "a", add).unwrap();
    let batch = location.journal.take_all();
    for _ in 0..3 {
        log.write(later(0).mono, &batch).unwrap();
    }
    let before = log.len();
    while log.next_deadline().is_some_and(|due| due <= later(0).mono) {
        log.run(later(0)).unwrap();
    }
    assert!(log.len() < before);
    assert_eq!(in_use(), Some(ErrorKind::WouldBlock));
    drop(log);
    assert_eq!(in_use(), None);
}

#[test]
fn a_log_where_no_file_can_be_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let error = Disk::open(&directory.path().join("none/location.log")).err();
    assert_eq!(error.map(|error| error.kind()), Some(ErrorKind::NotFound));
}
