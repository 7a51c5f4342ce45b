//! Signals, in a process of their own.

use std::io;
use std::time::{Duration, Instant};

use hairpin_io::{Events, Interest, Poller, Signal, Signals};

fn raise(signal: i32) {
    // SAFETY: takes an integer; the handlers installed are async-signal-safe.
    assert_eq!(unsafe { libc::raise(signal) }, 0);
}

/// One test, since handlers belong to the whole process.
#[test]
fn signals_are_read_in_order_polled_for_and_let_go() {
    let mut signals = Signals::install().unwrap();
    assert_eq!(
        Signals::install().unwrap_err().kind(),
        io::ErrorKind::AlreadyExists
    );
    assert_eq!(signals.try_next(), None);

    raise(libc::SIGHUP);
    raise(libc::SIGTERM);
    raise(libc::SIGINT);
    assert_eq!(signals.try_next(), Some(Signal::Hangup));
    assert_eq!(signals.wait(None).unwrap(), Some(Signal::Terminate));
    assert_eq!(
        signals.wait(Some(Duration::ZERO)).unwrap(),
        Some(Signal::Interrupt)
    );

    let start = Instant::now();
    assert_eq!(signals.wait(Some(Duration::from_millis(30))).unwrap(), None);
    assert!(start.elapsed() >= Duration::from_millis(30));

    let poller = Poller::new().unwrap();
    poller.add(&signals, 9, Interest::Read).unwrap();
    std::thread::spawn(|| raise(libc::SIGHUP)).join().unwrap();
    let mut events = Events::with_capacity(1);
    assert_eq!(
        poller
            .wait(&mut events, Some(Duration::from_secs(2)))
            .unwrap(),
        1
    );
    assert_eq!(events.iter().next().unwrap().token, 9);
    assert_eq!(signals.try_next(), Some(Signal::Hangup));

    // Another thread ends a wait that would last for ever, and no signal is lost by it.
    let waker = signals.waker().unwrap();
    std::thread::spawn(move || waker.wake()).join().unwrap();
    raise(libc::SIGHUP);
    assert_eq!(signals.wait(None).unwrap(), None);
    assert_eq!(signals.wait(None).unwrap(), Some(Signal::Hangup));
    let waker = signals.waker().unwrap();
    waker.wake();
    raise(libc::SIGTERM);
    assert_eq!(signals.try_next(), Some(Signal::Terminate));

    raise(libc::SIGHUP);
    drop(signals);

    // What came before is not what the next one asked for, and it works again.
    let mut again = Signals::install().unwrap();
    assert_eq!(again.try_next(), None);
    raise(libc::SIGINT);
    assert_eq!(
        again.wait(Some(Duration::from_secs(2))).unwrap(),
        Some(Signal::Interrupt)
    );
}
