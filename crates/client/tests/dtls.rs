//! The client over DTLS: against our server, against coturn's where it is installed, and against sockets that
//! misbehave.

mod certificate;
mod coturn;

use std::future::Future;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use certificate::Certificate;
use client::{Allocation, Client, ConnectError, Ended, Server, Tls};
use coturn::{PASSWORD, USER};
use hairpin_client as client;
use server::certificates::{CertificateFiles, Certificates};
use tokio::net::UdpSocket;

const NAME: &str = "turn.example.org";

fn tls(certificate: &Certificate, name: &str) -> Tls {
    Tls::with_root_file(name, &certificate.path("cert.pem")).expect("a configuration")
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, what).await.expect("in time")
}

fn ours(certificate: &Certificate) -> server::Running {
    let files = CertificateFiles {
        certificate: certificate.path("cert.pem"),
        key: certificate.path("key.pem"),
        ..CertificateFiles::default()
    };
    server::Server::builder()
        .listen_dtls(([127, 0, 0, 1], 0).into())
        .certificates(Certificates::from_files(vec![files]).expect("a certificate"))
        .relay_address([127, 0, 0, 1].into())
        .realm("example.org")
        .user(USER, PASSWORD)
        .workers(2)
        .allow_development_peers()
        .start()
        .expect("a server")
}

async fn allocated(server: &Server) -> (Client, Allocation) {
    let client = Client::connect(server.clone()).await.expect("a connection");
    let allocation = client.allocate().await.expect("an allocation");
    (client, allocation)
}

/// Relay to relay: every length of padding, by channels and by indications.
async fn relay_to_relay(server: Server) {
    let server = server.credentials(USER, PASSWORD);
    let ((near, ours), (_far, theirs)) = (allocated(&server).await, allocated(&server).await);
    let mapped = near.binding().await.expect("a mapped address");
    assert_eq!(mapped.address, near.local_addr().expect("an address"));
    theirs
        .permit(&[ours.relayed().ip()])
        .await
        .expect("a permission");
    let peer = ours.peer(theirs.relayed()).await.expect("a channel");
    let mut buffer = [0; 1500];
    for size in [0usize, 1, 2, 3, 4, 1200] {
        let data = vec![size as u8; size];
        peer.send(&data).await.expect("sent");
        let (len, from) = theirs.recv_from(&mut buffer).await.expect("received");
        assert_eq!((&buffer[..len], from), (&data[..], ours.relayed()));
        theirs.send_to(&data, from).await.expect("sent");
        let len = peer.recv(&mut buffer).await.expect("received");
        assert_eq!(buffer[..len], data[..]);
    }
    drop(peer);
    ours.close().await.expect("closed");
    theirs.close().await.expect("closed");
}

#[tokio::test]
async fn data_passes_through_our_server_over_dtls() {
    let certificate = Certificate::new("dtls-ours", &[NAME]);
    let running = ours(&certificate);
    let server = Server::new(running.dtls_listeners()[0]);
    in_time(relay_to_relay(server.clone().dtls(tls(&certificate, NAME)))).await;
    let any = Tls::insecure("whoever.example.org").expect("a configuration");
    in_time(relay_to_relay(server.dtls(any))).await;
    assert_eq!(running.stats().allocations(), 0);
    // Clients say when they end: nothing waits for the idle timeout.
    in_time(async {
        while running.stats().dtls().connections_now > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    running.shutdown().expect("no panic");
}

#[tokio::test]
async fn data_passes_through_coturn_over_dtls() {
    let certificate = Certificate::new("dtls-coturn", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    let server = Server::new(coturn.tls).dtls(tls(&certificate, NAME));
    in_time(async {
        // Until coturn listens, the system refuses the first datagram.
        while Client::connect(server.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(25)).await;
        }
    })
    .await;
    in_time(relay_to_relay(server)).await;
}

#[tokio::test]
async fn an_untrusted_certificate_and_a_wrong_name_are_named() {
    let certificate = Certificate::new("dtls-names", &[NAME]);
    let other = Certificate::new("dtls-other", &[NAME]);
    let running = ours(&certificate);
    let address = running.dtls_listeners()[0];
    for (tls, part) in [
        (tls(&certificate, "other.example.org"), "not valid for name"),
        (tls(&other, NAME), "none of the root certificates"),
    ] {
        let failed = in_time(Client::connect(Server::new(address).dtls(tls))).await;
        let error = failed.expect_err("not trusted").to_string();
        assert!(
            error.contains("certificate is rejected") && error.contains(part),
            "{error}"
        );
    }
    running.shutdown().expect("no panic");
}

#[tokio::test]
async fn a_configuration_without_a_verifier_is_refused() {
    let certificate = Certificate::new("dtls-verifier", &[NAME]);
    let made = tls(&certificate, NAME);
    let own = Tls::with_config(NAME, made.config().clone()).expect("a configuration");
    let address = SocketAddr::from(([127, 0, 0, 1], 9));
    let failed = Client::connect(Server::new(address).dtls(own)).await;
    let error = failed.expect_err("no verifier").to_string();
    assert!(error.contains("Tls::dtls_verifier"), "{error}");
}

#[tokio::test]
async fn a_port_where_nothing_listens_fails_at_once() {
    let free = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let tls = Tls::insecure(NAME).expect("a configuration");
    let failed = in_time(Client::connect(Server::new(address).dtls(tls))).await;
    let error = failed.expect_err("nothing listens");
    assert!(
        matches!(&error, ConnectError::Dtls { why, .. } if why.kind() == std::io::ErrorKind::ConnectionRefused),
        "{error}"
    );
}

#[tokio::test]
async fn a_handshake_without_an_end_times_out() {
    let silent = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    let tls = Tls::insecure(NAME).expect("a configuration");
    let server = Server::new(silent.local_addr().expect("an address"))
        .dtls(tls)
        .connect_timeout(Duration::from_millis(100));
    let failed = in_time(Client::connect(server)).await;
    assert!(matches!(failed, Err(ConnectError::TimedOut { .. })));
}

#[tokio::test]
async fn the_handshake_survives_the_loss_of_a_datagram() {
    let certificate = Certificate::new("dtls-loss", &[NAME]);
    let running = ours(&certificate);
    let proxy = lossy(running.dtls_listeners()[0]).await;
    let server = Server::new(proxy)
        .credentials(USER, PASSWORD)
        .dtls(tls(&certificate, NAME));
    let (_client, allocation) = in_time(allocated(&server)).await;
    allocation.close().await.expect("closed");
    running.shutdown().expect("no panic");
}

/// A proxy for one client that drops the second datagram of each direction: a ClientHello with its cookie, and a flight
/// of the server.
async fn lossy(server: SocketAddr) -> SocketAddr {
    let front = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    let back = UdpSocket::bind("127.0.0.1:0").await.expect("a port");
    back.connect(server).await.expect("a route");
    let address = front.local_addr().expect("an address");
    tokio::spawn(async move {
        let (mut there, mut here) = ([0; 4096], [0; 4096]);
        let (mut client, mut counts) = (None, [0; 2]);
        loop {
            tokio::select! {
                Ok((length, from)) = front.recv_from(&mut there) => {
                    client = Some(from);
                    counts[0] += 1;
                    if counts[0] != 2 {
                        back.send(&there[..length]).await.expect("sent");
                    }
                }
                Ok(length) = back.recv(&mut here) => {
                    counts[1] += 1;
                    if let (Some(client), true) = (client, counts[1] != 2) {
                        front.send_to(&here[..length], client).await.expect("sent");
                    }
                }
            }
        }
    });
    address
}

#[tokio::test]
async fn a_server_that_stops_ends_the_allocation_with_the_reason() {
    let certificate = Certificate::new("dtls-stops", &[NAME]);
    let running = ours(&certificate);
    let server = Server::new(running.dtls_listeners()[0]).dtls(tls(&certificate, NAME));
    let (_client, allocation) = in_time(allocated(&server.credentials(USER, PASSWORD))).await;
    running.shutdown().expect("no panic");
    let mut buffer = [0; 16];
    let received = in_time(allocation.recv_from(&mut buffer)).await;
    let text = received.expect_err("it is over").to_string();
    assert!(
        text.contains("the connection to the server is lost"),
        "{text}"
    );
    let Some(Ended::Disconnected(why)) = allocation.ended() else {
        panic!("it has a reason");
    };
    assert_eq!(why.to_string(), "the server closed the DTLS session");
}

#[test]
fn the_example_does_what_it_says() {
    let certificate = Certificate::new("dtls-example", &["localhost"]);
    let running = ours(&certificate);
    let tests = std::env::current_exe().expect("a path");
    let profile = tests.ancestors().nth(2).expect("target/PROFILE");
    let mut command = Command::new(profile.join("examples/dtls"));
    let server = format!("localhost:{}", running.dtls_listeners()[0].port());
    command.args([&server, USER, PASSWORD]);
    let output = command.arg(certificate.path("cert.pem")).output();
    let output = output.expect("an example");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("came back: hello over DTLS"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    running.shutdown().expect("no panic");
}
