//! Counting system calls, where the kernel and the user's rights allow it.

use std::io::ErrorKind;
use std::sync::mpsc;
use std::thread;

use hairpin_io::{SystemCallCounter, tasks};

/// `None` without the rights, as in `cargo xtask quick`.
fn start(threads: &[u32]) -> Option<SystemCallCounter> {
    match SystemCallCounter::start(threads) {
        Ok(counter) => Some(counter),
        Err(error) => {
            assert_ne!(tasks::effective_user(), 0, "root can count: {error}");
            assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{error}");
            None
        }
    }
}

#[test]
fn the_calls_of_another_thread_and_of_its_children_are_counted() {
    let (tell, told) = mpsc::channel();
    let (go, wait) = mpsc::channel::<()>();
    let yields = || (0..1000).for_each(|_| thread::yield_now());
    let other = thread::spawn(move || {
        tell.send(tasks::current()).unwrap();
        wait.recv().unwrap();
        yields();
        thread::spawn(yields).join().unwrap();
    });
    let threads = [told.recv().unwrap()];
    let counter = start(&threads);
    go.send(()).unwrap();
    other.join().unwrap();
    if let Some(counter) = counter {
        let total = counter.total().unwrap();
        assert!((2000..2200).contains(&total), "{total}");
    }
}

#[test]
fn a_thread_that_has_ended_is_left_out() {
    if let Some(counter) = start(&[i32::MAX.unsigned_abs()]) {
        assert_eq!(counter.total().unwrap(), 0);
    }
}
