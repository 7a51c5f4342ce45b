//! TCP allocations (RFC 6062) of the client: peers over TCP, through our server, over TCP and TLS.

mod certificate;
mod coturn;

use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use certificate::Certificate;
use client::turn::client::RequestError;
use client::{
    AcceptError, AllocateError, Client, ConnectPeerError, DataConnectionError, Ended, PeerStream,
    Server, TcpAllocation, Tls, rustls,
};
use coturn::{PASSWORD, USER};
use hairpin_client as client;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const NAME: &str = "turn.example.org";
/// More than sockets and pipes on the way hold.
const BULK: usize = 16 * 1024 * 1024;

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, what).await.expect("in time")
}

/// Our server over UDP, TCP and TLS, with two workers: a data connection arrives at either.
fn ours(certificate: &Certificate) -> server::Running {
    let chain = CertificateDer::from_pem_file(certificate.path("cert.pem")).expect("a certificate");
    let key = PrivateKeyDer::from_pem_file(certificate.path("key.pem")).expect("a key");
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let config = rustls::ServerConfig::builder_with_provider(provider.into())
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .expect("a key for the certificate");
    server::Server::builder()
        .listen(([127, 0, 0, 1], 0).into())
        .listen_tcp(([127, 0, 0, 1], 0).into())
        .listen_tls(([127, 0, 0, 1], 0).into())
        .tls(config.into())
        .relay_address([127, 0, 0, 1].into())
        .realm("example.org")
        .user(USER, PASSWORD)
        .workers(2)
        .allow_development_peers()
        .start()
        .expect("a server")
}

/// How to reach it, over TCP and over TLS.
fn both(running: &server::Running, certificate: &Certificate) -> [Server; 2] {
    let tls = Tls::with_root_file(NAME, &certificate.path("cert.pem")).expect("a configuration");
    [
        Server::new(running.tcp_listeners()[0]).tcp(),
        Server::new(running.tls_listeners()[0]).tls(tls),
    ]
    .map(|server| server.credentials(USER, PASSWORD))
}

async fn allocated(server: &Server) -> (Client, TcpAllocation) {
    let client = Client::connect(server.clone()).await.expect("a connection");
    let allocation = client.allocate_tcp().await.expect("an allocation");
    (client, allocation)
}

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("bound");
    (listener, address)
}

fn bulk() -> Vec<u8> {
    (0..BULK as u32)
        .map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8)
        .collect()
}

/// Both send all of it at the same time, then say that they are done, and read the other's.
async fn exchange(ours: PeerStream, theirs: TcpStream) {
    let data = bulk();
    let (mut our_read, mut our_write) = tokio::io::split(ours);
    let (mut their_read, mut their_write) = tokio::io::split(theirs);
    let (mut at_peer, mut at_client) = (Vec::new(), Vec::new());
    let sent = async {
        our_write.write_all(&data).await?;
        our_write.shutdown().await
    };
    let answered = async {
        their_write.write_all(&data).await?;
        their_write.shutdown().await
    };
    let outcome = tokio::try_join!(
        sent,
        answered,
        their_read.read_to_end(&mut at_peer),
        our_read.read_to_end(&mut at_client)
    );
    outcome.expect("every byte");
    assert!(at_peer == data && at_client == data);
    let late = our_write
        .write_all(b"x")
        .await
        .expect_err("it is shut down");
    assert_eq!(late.kind(), ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn a_client_connects_to_peers_over_tcp_and_tls_rfc6062_4_3() {
    let certificate = Certificate::new("connects", &[NAME]);
    let running = ours(&certificate);
    for server in both(&running, &certificate) {
        in_time(async {
            let (client, allocation) = allocated(&server).await;
            let (listener, peer) = listener().await;
            // One after the other, so that both workers get data connections.
            for _ in 0..6 {
                let (stream, accepted) = tokio::join!(allocation.connect(peer), listener.accept());
                let (mut stream, (mut socket, from)) =
                    (stream.expect("a stream"), accepted.expect("a connection"));
                assert_eq!((stream.peer(), from), (peer, allocation.relayed()));
                assert_eq!(stream.relayed(), from);
                assert_ne!(stream.local_addr().ok(), client.local_addr().ok());
                stream.write_all(b"ping").await.expect("written");
                stream.flush().await.expect("flushed");
                let mut four = [0; 4];
                socket.read_exact(&mut four).await.expect("read");
                socket.write_all(&four).await.expect("written");
                stream.read_exact(&mut four).await.expect("read");
                assert_eq!(&four, b"ping");
                drop(socket);
                assert_eq!(stream.read(&mut four).await.expect("the end"), 0);
                drop(stream);
                // RFC 6062 §5.2: as long as the server has the connection, another one is 446.
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            let (stream, accepted) = tokio::join!(allocation.connect(peer), listener.accept());
            exchange(stream.expect("a stream"), accepted.expect("a connection").0).await;
            allocation.close().await.expect("closed");
        })
        .await;
    }
    assert_eq!(running.stats().allocations(), 0);
    running.shutdown().expect("no panic");
}

#[tokio::test]
async fn a_client_accepts_the_connections_of_peers_rfc6062_4_4() {
    let certificate = Certificate::new("accepts", &[NAME]);
    let running = ours(&certificate);
    for server in both(&running, &certificate) {
        in_time(async {
            let (_client, allocation) = allocated(&server).await;
            allocation
                .permit(&[[127, 0, 0, 1].into()])
                .await
                .expect("a permission");
            let relayed = allocation.relayed();
            // Three at once: each is told by itself, and what they send before they are accepted is kept.
            let mut peers = Vec::new();
            for number in 0..3u8 {
                let mut peer = TcpStream::connect(relayed).await.expect("a connection");
                peer.write_all(&[number; 5]).await.expect("written");
                peers.push(peer);
            }
            for peer in &peers {
                let mut stream = allocation.accept().await.expect("a stream");
                let mut first = [9; 5];
                stream.read_exact(&mut first).await.expect("read");
                let number = usize::from(first[0]);
                assert_eq!(stream.peer(), peers[number].local_addr().expect("bound"));
                let _ = peer;
            }
            let (peer, attempt) = tokio::join!(TcpStream::connect(relayed), allocation.attempt());
            let (peer, attempt) = (peer.expect("a connection"), attempt.expect("an attempt"));
            assert_eq!(attempt.peer(), peer.local_addr().expect("bound"));
            exchange(attempt.accept().await.expect("a stream"), peer).await;
            allocation.close().await.expect("closed");
        })
        .await;
    }
    assert_eq!(running.stats().allocations(), 0);
    running.shutdown().expect("no panic");
}

#[tokio::test]
async fn two_clients_of_one_server_connect_to_each_other_and_streams_end_with_their_allocation() {
    let certificate = Certificate::new("each-other", &[NAME]);
    let running = ours(&certificate);
    let [tcp, tls] = both(&running, &certificate);
    in_time(async {
        let ((_near, ours), (_far, theirs)) = (allocated(&tcp).await, allocated(&tls).await);
        theirs
            .permit(&[ours.relayed().ip()])
            .await
            .expect("a permission");
        let (near, far) = tokio::join!(ours.connect(theirs.relayed()), theirs.accept());
        let (mut near, mut far) = (near.expect("a stream"), far.expect("a stream"));
        near.write_all(b"across").await.expect("written");
        let mut six = [0; 6];
        far.read_exact(&mut six).await.expect("read");
        assert_eq!(&six, b"across");
        let waiting = {
            let theirs = theirs.clone();
            tokio::spawn(async move { theirs.accept().await })
        };
        tokio::task::yield_now().await;
        theirs.close().await.expect("closed");
        let refused = waiting.await.expect("no panic").expect_err("it is closed");
        assert!(
            matches!(refused, AcceptError::Ended(Ended::Closed)),
            "{refused}"
        );
        assert_eq!(far.read(&mut six).await.map_or(0, |count| count), 0);
        assert_eq!(near.read(&mut six).await.map_or(0, |count| count), 0);
        // A stream keeps its allocation.
        drop(ours);
        assert_eq!(running.stats().allocations(), 1);
        drop(near);
        while running.stats().allocations() > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    running.shutdown().expect("no panic");
}

#[tokio::test]
async fn a_failed_connect_returns_its_error() {
    let certificate = Certificate::new("errors", &[NAME]);
    let running = ours(&certificate);
    let [tcp, _] = both(&running, &certificate);
    in_time(async {
        let udp = Server::new(running.listeners()[0]).credentials(USER, PASSWORD);
        let client = Client::connect(udp).await.expect("a socket");
        let error = client.allocate_tcp().await.expect_err("it is UDP");
        assert!(matches!(error, AllocateError::NotStream), "{error}");

        let (_client, allocation) = allocated(&tcp).await;
        let (closed, nobody) = listener().await;
        drop(closed);
        let code = |error: &ConnectPeerError| match error {
            ConnectPeerError::Request(RequestError::Refused(refusal)) => refusal.code,
            _ => 0,
        };
        let error = allocation.connect(nobody).await.expect_err("nobody listens");
        assert_eq!(code(&error), 447, "{error}");
        let own = running.tcp_listeners()[0];
        let error = allocation.connect(own).await.expect_err("it is denied");
        assert_eq!(code(&error), 403, "{error}");
        let v6 = "[::1]:9".parse().expect("an address");
        let error = allocation.connect(v6).await.expect_err("another family");
        assert!(matches!(error, ConnectPeerError::PeerFamily), "{error}");

        let (listener, peer) = listener().await;
        let (first, second) = tokio::join!(allocation.connect(peer), allocation.connect(peer));
        let error = second.expect_err("one at a time");
        assert!(matches!(error, ConnectPeerError::Connecting), "{error}");
        let stream = first.expect("a stream");
        let error = allocation.connect(peer).await.expect_err("it is connected");
        assert_eq!(code(&error), 446, "{error}");
        let (socket, _) = listener.accept().await.expect("a connection");

        // A peer that has gone away before it is accepted.
        allocation.permit(&[[127, 0, 0, 1].into()]).await.expect("a permission");
        let gone = TcpStream::connect(allocation.relayed()).await.expect("a connection");
        let attempt = allocation.attempt().await.expect("an attempt");
        gone.set_zero_linger().expect("set");
        drop(gone);
        tokio::time::sleep(Duration::from_millis(200)).await;
        let error = attempt.accept().await.expect_err("it is gone");
        assert!(
            matches!(&error, DataConnectionError::Request(RequestError::Refused(refusal)) if refusal.code == 400),
            "{error}"
        );
        drop((stream, socket));
        running.shutdown().expect("no panic");
        let error = allocation.connect(peer).await.expect_err("no server");
        assert!(matches!(error, ConnectPeerError::Ended(_)), "{error}");
    })
    .await;
}

#[tokio::test]
async fn peers_are_reached_through_coturn_over_tcp_and_tls() {
    let certificate = Certificate::new("coturn-tcp", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    let tls = Tls::with_root_file(NAME, &certificate.path("cert.pem")).expect("a configuration");
    for server in [
        Server::new(coturn.address).tcp(),
        Server::new(coturn.tls).tls(tls),
    ] {
        in_time(async {
            let (_client, allocation) = allocated(&server.credentials(USER, PASSWORD)).await;
            let (listener, peer) = listener().await;
            let (stream, accepted) = tokio::join!(allocation.connect(peer), listener.accept());
            let (mut stream, mut socket) = (stream.expect("a stream"), accepted.expect("one").0);
            let mut four = [0; 4];
            stream.write_all(b"ping").await.expect("written");
            socket.read_exact(&mut four).await.expect("read");
            socket.write_all(b"pong").await.expect("written");
            stream.read_exact(&mut four).await.expect("read");
            assert_eq!(&four, b"pong");
            allocation
                .permit(&[[127, 0, 0, 1].into()])
                .await
                .expect("a permission");
            let (peer, accepted) = tokio::join!(
                TcpStream::connect(allocation.relayed()),
                allocation.accept()
            );
            let (mut peer, mut stream) = (peer.expect("a connection"), accepted.expect("a stream"));
            peer.write_all(b"ping").await.expect("written");
            stream.read_exact(&mut four).await.expect("read");
            assert_eq!(&four, b"ping");
            allocation.close().await.expect("closed");
        })
        .await;
    }
}

/// Runs the example; cargo builds all of them before the tests of a package.
#[tokio::test]
async fn the_example_reaches_a_peer_over_tcp() {
    let certificate = Certificate::new("example", &[NAME]);
    let running = ours(&certificate);
    let (listener, peer) = listener().await;
    let echo = tokio::spawn(async move {
        let (mut socket, _) = listener.accept().await.expect("a connection");
        let mut text = String::new();
        socket.read_to_string(&mut text).await.expect("text");
        socket
            .write_all(text.to_uppercase().as_bytes())
            .await
            .expect("written");
    });
    let tests = std::env::current_exe().expect("a path");
    let examples = tests
        .ancestors()
        .nth(2)
        .expect("target/PROFILE")
        .join("examples");
    let arguments = [
        running.tcp_listeners()[0].to_string(),
        USER.to_owned(),
        PASSWORD.to_owned(),
        peer.to_string(),
    ];
    let run = tokio::task::spawn_blocking(move || {
        Command::new(examples.join("tcp_peer"))
            .args(arguments)
            .output()
    });
    let output = in_time(run).await.expect("no panic").expect("an example");
    let (text, mistakes) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(
        text.contains("came back: HELLO OVER TWO CONNECTIONS"),
        "{text}{mistakes}"
    );
    in_time(echo).await.expect("no panic");
    running.shutdown().expect("no panic");
}
