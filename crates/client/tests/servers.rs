//! The client and its examples over UDP sockets: against this project's server, and against coturn's where it is
//! installed.

mod coturn;

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;
use std::time::Duration;

use client::turn::client::{RequestError, Security};
use client::{BindingError, Client, Server};
use coturn::{PASSWORD, USER};
use hairpin_client as client;

/// Our server on a free port of loopback.
fn ours() -> (server::Running, SocketAddr) {
    let running = server::Server::builder()
        .listen(([127, 0, 0, 1], 0).into())
        .relay_address([127, 0, 0, 1].into())
        .realm("example.org")
        .user(USER, PASSWORD)
        .workers(2)
        .allow_development_peers()
        .start()
        .expect("a server");
    let address = running.listeners()[0];
    (running, address)
}

/// Waits until the server answers Binding requests.
async fn ready(server: SocketAddr) {
    for _ in 0..100 {
        let client = Client::connect(server).await.expect("a socket");
        let asked = tokio::time::timeout(Duration::from_millis(200), client.binding()).await;
        if matches!(asked, Ok(Ok(_))) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("the server does not answer");
}

/// Relay to relay through one server, by channels and by indications, in both directions.
async fn relay_to_relay(server: Server) {
    let near = Client::connect(server.clone()).await.expect("a socket");
    let far = Client::connect(server).await.expect("a socket");
    let (ours, theirs) = (
        near.allocate().await.expect("one"),
        far.allocate().await.expect("another"),
    );
    theirs
        .permit(&[ours.relayed().ip()])
        .await
        .expect("a permission");
    let peer = ours.peer(theirs.relayed()).await.expect("a channel");
    let mut buffer = [0; 1500];
    for size in [0usize, 1, 2, 3, 1200] {
        let data = vec![size as u8; size];
        peer.send(&data).await.expect("sent");
        let (len, from) = theirs.recv_from(&mut buffer).await.expect("received");
        assert_eq!((&buffer[..len], from), (&data[..], ours.relayed()));
        theirs.send_to(&data, from).await.expect("sent");
        let len = peer.recv(&mut buffer).await.expect("received");
        assert_eq!(buffer[..len], data[..]);
    }
    ours.refresh(Some(Duration::from_secs(900)))
        .await
        .expect("refreshed");
    drop(peer);
    ours.close().await.expect("closed");
    theirs.close().await.expect("closed");
}

async fn in_time(what: impl Future<Output = ()>) {
    tokio::time::timeout(Duration::from_secs(30), what)
        .await
        .expect("in time");
}

#[tokio::test]
async fn data_passes_through_our_server() {
    let (running, address) = ours();
    let server = Server::new(address).credentials(USER, PASSWORD);
    in_time(relay_to_relay(server.clone())).await;
    in_time(relay_to_relay(server.security(Security::Classic))).await;
    assert_eq!(running.stats().allocations(), 0);
    running.shutdown().expect("no panic");
}

#[tokio::test]
async fn data_passes_through_coturn() {
    let Some(coturn) = coturn::start(&["--no-tls".to_owned()]) else {
        coturn::skipped("servers", "coturn is not installed");
        return;
    };
    ready(coturn.address).await;
    in_time(relay_to_relay(
        Server::new(coturn.address).credentials(USER, PASSWORD),
    ))
    .await;
}

#[tokio::test]
async fn the_first_request_leaves_at_once() {
    let (running, address) = ours();
    let client = Client::connect(address).await.expect("a socket");
    let mapped = client.binding().await.expect("an answer");
    assert_eq!(mapped.timing.transmissions, 1);
    assert_eq!(client.stats().unsent, 0);
    running.shutdown().expect("no panic");
}

#[tokio::test]
async fn a_port_where_nothing_listens_fails_at_once() {
    let free = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let client = Client::connect(address).await.expect("a socket");
    let asked = tokio::time::timeout(Duration::from_secs(5), client.binding()).await;
    let error = asked
        .expect("not after 39.5 seconds")
        .expect_err("nothing listens");
    assert!(
        matches!(error, BindingError::Request(RequestError::Unreachable)),
        "{error}"
    );
}

/// Runs an example; cargo builds all of them before the tests of a package.
fn example(name: &str, server: SocketAddr) -> String {
    let tests = std::env::current_exe().expect("a path");
    let path = tests
        .ancestors()
        .nth(2)
        .expect("target/PROFILE")
        .join("examples")
        .join(name);
    let mut command = Command::new(path);
    command.args([&server.to_string(), USER, PASSWORD]);
    let output = command.output().expect("an example");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn the_example_over_tcp_does_what_it_says() {
    let running = server::Server::builder()
        .listen_tcp(([127, 0, 0, 1], 0).into())
        .relay_address([127, 0, 0, 1].into())
        .user(USER, PASSWORD)
        .workers(1)
        .allow_development_peers()
        .start()
        .expect("a server");
    let text = example("tcp", running.tcp_listeners()[0]);
    assert!(text.contains("came back: hello over TCP"), "{text}");
    running.shutdown().expect("no panic");
}

#[test]
fn the_examples_do_what_they_say() {
    let (running, address) = ours();
    let said = example("client", address);
    assert!(said.contains("sent: hello from the client"), "{said}");
    let said = example("chat", address);
    assert!(
        said.contains("three -> THREE") && said.contains("answered 3 datagrams"),
        "{said}"
    );
    running.shutdown().expect("no panic");
}
