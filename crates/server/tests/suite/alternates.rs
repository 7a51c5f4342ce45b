//! Clients that are sent to another server: 300 (RFC 8489 §10), and the checks whether it answers.

use crate::common::{Client, loopback, start};
use hairpin_server::alternates::{AlternateServer, AlternateSettings};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::{Duration, Instant};
use stun::AlternateServer as Attribute;

/// Waits until a condition holds.
fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn settings(servers: Vec<Arc<AlternateServer>>) -> AlternateSettings {
    let mut settings = AlternateSettings::default();
    settings.servers = servers;
    settings.check_interval = Duration::from_millis(50);
    settings
}

/// The code of the response to a new client's Allocate request, and the server in it.
fn allocate_at(server: SocketAddr) -> (u16, Option<SocketAddr>) {
    let mut client = Client::new(server);
    let answer = client.try_allocate();
    let alternate = answer.message().get::<Attribute>().expect("well formed");
    let alternate = alternate.map(|attribute| attribute.0);
    (answer.code(), alternate)
}

#[test]
fn a_draining_server_sends_new_clients_to_one_that_answers() {
    let other = start(loopback(1));
    let other_address = other.listeners()[0];
    let alternate = Arc::new(AlternateServer::new(&[other_address]));
    let server = start(loopback(2).alternates(settings(vec![Arc::clone(&alternate)])));
    let address = server.listeners()[0];
    assert_eq!(allocate_at(address), (0, None));
    let waited = server.drain(Duration::from_millis(1));
    assert!(
        !waited.expect("it drains"),
        "the first client is still there"
    );
    wait_for("the drain reaches the workers", || {
        allocate_at(address) == (300, Some(other_address))
    });
    assert_eq!(allocate_at(other_address), (0, None));
    // Once the other server is gone, nobody is sent there.
    other.shutdown().expect("it ends");
    wait_for("the check notices", || alternate.is_down());
    wait_for("clients stay", || allocate_at(address).0 == 508);
}

#[test]
fn a_server_that_comes_back_gets_clients_again_also_over_tcp() {
    // Below the ports that the kernel gives to clients: a check of such a port could connect to itself.
    let mut ports = (20_000..30_000)
        .rev()
        .skip(std::process::id() as usize % 5_000);
    let free = ports.find_map(|port| TcpListener::bind(("127.0.0.1", port)).ok());
    let address = free.expect("a free port").local_addr().expect("an address");
    let server = AlternateServer::new(&[address]).transport(hairpin_server::turn::Transport::Tcp);
    let alternate = Arc::new(server);
    let server = start(loopback(1).alternates(settings(vec![Arc::clone(&alternate)])));
    wait_for("nobody listens", || alternate.is_down());
    let listener = TcpListener::bind(address).expect("bound again");
    wait_for("somebody listens", || !alternate.is_down());
    drop(listener);
    let (answered, unanswered) = alternate.checks();
    assert!(answered >= 1 && unanswered >= 1);
    // A reload keeps what the checks have found of the same server, and an observer sees the new list.
    let mut reloaded = hairpin_server::Settings::default();
    let again = AlternateServer::new(&[address]).transport(hairpin_server::turn::Transport::Tcp);
    let mut unchecked = settings(vec![Arc::new(again)]);
    unchecked.check_interval = Duration::ZERO;
    reloaded.alternates = unchecked;
    reloaded.users.push((
        crate::common::USER.to_owned(),
        crate::common::PASSWORD.to_owned(),
    ));
    server.reload(reloaded).expect("it reloads");
    let seen = server.observer().alternates();
    let (answered_now, unanswered_now) = seen.servers[0].checks();
    assert!(answered_now >= answered && unanswered_now >= unanswered);
}
