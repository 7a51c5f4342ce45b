//! What concerns all workers at once: a reload while one of them is stuck, and a panic of one of them.

use crate::common::{Client, eventually, loopback, start, worker_that};
use hairpin_server::credentials::{Claim, Credentials, KeyLookup, KeyQuery};
use hairpin_server::{ReloadError, Running, Settings, Steering, WorkerFailure};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use stun::{Method, Software};

/// Credentials of nobody. A worker that looks for the user `stuck` waits as long as the test holds the gate; one that
/// looks for `panic` panics.
#[derive(Debug, Default)]
struct Trap {
    gate: Mutex<()>,
    entered: AtomicBool,
}

impl Credentials for Trap {
    fn find(&self, query: &KeyQuery<'_>) -> KeyLookup {
        match query.claim {
            Claim::Username("stuck") => {
                self.entered.store(true, Ordering::SeqCst);
                drop(self.gate.lock().unwrap_or_else(PoisonError::into_inner));
            }
            Claim::Username("panic") => panic!("the trap has sprung"),
            _ => {}
        }
        KeyLookup::Unknown
    }
}

fn settings(trap: &Arc<Trap>, software: &str) -> Settings {
    let mut settings = Settings::default();
    settings.users.push((
        crate::common::USER.to_owned(),
        crate::common::PASSWORD.to_owned(),
    ));
    settings
        .credentials
        .push(Arc::clone(trap) as Arc<dyn Credentials>);
    settings.software = Some(software.to_owned());
    settings
}

fn server(trap: &Arc<Trap>) -> Running {
    let builder = loopback(2).settings(settings(trap, "first"));
    start(builder.steering(Steering::Hash))
}

/// A client of this worker.
fn client_of(server: &Running, worker: usize) -> Client {
    loop {
        let mut client = Client::new(server.listeners()[0]);
        let found = worker_that(server, || {
            client.allocate();
        });
        client.release();
        if found == worker {
            return client;
        }
    }
}

/// Has the client's worker look for `user`. Nothing waits for the answer.
fn ask_for(client: Client, user: &str) -> Client {
    let mut client = client.with_user(user, "wrong");
    let request = client.signed(Method::REFRESH, &|_| Ok(()));
    client.transmit(&request);
    client
}

fn software(client: &mut Client) -> String {
    let answer = client.request(Method::BINDING, &|_| Ok(()));
    let software: Option<Software<'_>> = answer.message().get().expect("well formed");
    software.expect("the settings name one").0.to_owned()
}

#[test]
fn a_reload_reaches_all_workers_or_none_also_if_one_is_stuck() {
    let trap = Arc::new(Trap::default());
    let server = server(&trap);
    let mut of_first = client_of(&server, 0);
    let of_second = client_of(&server, 1);
    let gate = trap.gate.lock().expect("nobody panicked");
    let mut of_second = ask_for(of_second, "stuck");
    eventually("the worker is stuck", || {
        trap.entered.load(Ordering::SeqCst)
    });
    // More than anything that a worker could be told by mail while it does not read any.
    let mut last = "first".to_owned();
    for number in 0..5_000 {
        let next = format!("v{number}");
        if server.reload(settings(&trap, &next)).is_err() {
            break;
        }
        last = next;
    }
    assert_eq!(software(&mut of_first), last);
    drop(gate);
    let _refused = of_second.next_answer();
    assert_eq!(software(&mut of_second), last);
    // The drain's limit is the same for all, too.
    assert_eq!(server.drain(Duration::ZERO), Ok(true));
    assert_eq!(of_first.try_allocate().code(), 508);
}

#[test]
fn a_worker_that_panics_is_named_with_what_it_said_and_nothing_changes_any_more() {
    let trap = Arc::new(Trap::default());
    let server = server(&trap);
    let mut of_first = client_of(&server, 0);
    of_first.allocate();
    let _gone = ask_for(client_of(&server, 1), "panic");
    eventually("the worker has ended", || server.failed_worker() == Some(1));
    let refused = server.reload(settings(&trap, "second"));
    assert_eq!(refused, Err(ReloadError::WorkerGone(1)));
    assert_eq!(software(&mut of_first), "first");
    // Nobody waits for allocations of a worker that is gone.
    let drained = server.drain(Duration::from_secs(60));
    assert_eq!(drained, Err(ReloadError::WorkerGone(1)));
    let failure = server.shutdown().expect_err("a worker failed");
    assert!(matches!(failure, WorkerFailure::Panicked { worker: 1, .. }));
    let text = failure.to_string();
    assert!(
        text.contains("worker 1") && text.contains("the trap has sprung"),
        "{text}"
    );
    assert_eq!(text.lines().count(), 1);
}
