//! The client over TCP and TLS: against coturn's server where it is installed, and against listeners that misbehave.

mod certificate;
mod coturn;

use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use certificate::Certificate;
use client::{
    AllocateError, Allocation, BindingError, Client, ConnectError, Ended, Server, Tls, rustls,
};
use coturn::{PASSWORD, USER};
use hairpin_client as client;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const NAME: &str = "turn.example.org";

fn tls(certificate: &Certificate, name: &str) -> Tls {
    Tls::with_root_file(name, &certificate.path("cert.pem")).expect("a configuration")
}

async fn in_time<T>(what: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(30);
    tokio::time::timeout(limit, what).await.expect("in time")
}

async fn allocated(server: &Server) -> (Client, Allocation) {
    let client = Client::connect(server.clone()).await.expect("a connection");
    let allocation = client.allocate().await.expect("an allocation");
    (client, allocation)
}

/// Relay to relay: every length of padding by channels and by indications, and a burst that does not fit into one read.
async fn relay_to_relay(server: Server) {
    let server = server.credentials(USER, PASSWORD).queue(2000);
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
    // The relays carry UDP, so that some may be lost; what comes is whole and in order.
    for number in 0..200u32 {
        peer.send(&[number.to_be_bytes(); 250].concat())
            .await
            .expect("sent");
    }
    let mut last = None;
    while let Ok(received) =
        tokio::time::timeout(Duration::from_millis(500), theirs.recv_from(&mut buffer)).await
    {
        assert_eq!(received.expect("received").0, 1000);
        let number = u32::from_be_bytes(buffer[..4].try_into().expect("four bytes"));
        assert_eq!(buffer[..1000], [number.to_be_bytes(); 250].concat());
        assert!(last < Some(number));
        last = Some(number);
    }
    assert!(last.is_some());
    drop(peer);
    ours.close().await.expect("closed");
    theirs.close().await.expect("closed");
}

#[tokio::test]
async fn data_passes_through_coturn_over_tcp() {
    let Some(coturn) = coturn::start(&["--no-tls".to_owned()]) else {
        coturn::skipped("streams", "coturn is not installed");
        return;
    };
    in_time(relay_to_relay(Server::new(coturn.address).tcp())).await;
}

#[tokio::test]
async fn data_passes_through_coturn_over_tls() {
    let certificate = Certificate::new("tls", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    // coturn 4.6 has no TLS 1.3; the library's own tests have both versions.
    let own = only(&rustls::version::TLS12, &certificate);
    for tls in [tls(&certificate, NAME), own] {
        in_time(relay_to_relay(Server::new(coturn.tls).tls(tls))).await;
    }
}

/// Our server over TCP and TLS, with TLS 1.3 as it prefers it.
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

#[tokio::test]
async fn data_passes_through_our_server_over_tcp_and_both_versions_of_tls() {
    let certificate = Certificate::new("ours", &[NAME]);
    let running = ours(&certificate);
    let (tcp, secure) = (running.tcp_listeners()[0], running.tls_listeners()[0]);
    in_time(relay_to_relay(Server::new(tcp).tcp())).await;
    for tls in [
        tls(&certificate, NAME),
        only(&rustls::version::TLS12, &certificate),
        only(&rustls::version::TLS13, &certificate),
    ] {
        in_time(relay_to_relay(Server::new(secure).tls(tls))).await;
    }
    assert_eq!(running.stats().allocations(), 0);
    running.shutdown().expect("no panic");
}

/// A configuration of the program's own: one version of TLS, without ALPN.
fn only(version: &'static rustls::SupportedProtocolVersion, certificate: &Certificate) -> Tls {
    let mut roots = rustls::RootCertStore::empty();
    let root = CertificateDer::from_pem_file(certificate.path("cert.pem")).expect("a certificate");
    roots.add(root).expect("a root");
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let builder = rustls::ClientConfig::builder_with_provider(provider.into());
    let config = builder
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_root_certificates(roots)
        .with_no_client_auth();
    Tls::with_config(NAME, config).expect("a configuration")
}

#[tokio::test]
async fn an_untrusted_certificate_and_a_wrong_name_are_named() {
    let certificate = Certificate::new("names", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    let other = Certificate::new("names-other", &[NAME]);
    for (tls, part) in [
        (tls(&certificate, "other.example.org"), "not valid for name"),
        (tls(&other, NAME), "none of the root certificates"),
    ] {
        let failed = Client::connect(Server::new(coturn.tls).tls(tls)).await;
        let error = failed.expect_err("not trusted").to_string();
        assert!(
            error.contains("certificate is rejected") && error.contains(part),
            "{error}"
        );
    }
    let tls = Tls::insecure("whoever.example.org").expect("a configuration");
    in_time(relay_to_relay(Server::new(coturn.tls).tls(tls))).await;
}

#[tokio::test]
async fn a_server_that_stops_ends_the_allocation_with_the_reason() {
    let certificate = Certificate::new("stops", &[NAME]);
    let Some(mut coturn) = certificate.coturn(&[]) else {
        return;
    };
    let server = Server::new(coturn.tls).tls(tls(&certificate, NAME));
    let (client, allocation) = allocated(&server.credentials(USER, PASSWORD)).await;
    coturn.stop();
    let mut buffer = [0; 16];
    let received = in_time(allocation.recv_from(&mut buffer)).await;
    let text = received.expect_err("it is over").to_string();
    assert!(
        text.contains("the connection to the server is lost"),
        "{text}"
    );
    assert!(matches!(allocation.ended(), Some(Ended::Disconnected(_))));
    let again = client.allocate().await;
    assert!(matches!(again, Err(AllocateError::Disconnected(_))));
}

/// A listener that does the same to every connection.
async fn listener<F>(serve: fn(TcpStream) -> F) -> SocketAddr
where
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(serve(socket));
        }
    });
    address
}

async fn bad_http(mut socket: TcpStream) {
    let mut request = [0; 2048];
    let _ = socket.read(&mut request).await;
    let _ = socket.write_all(b"SIP/2.0 400 Bad Request\r\n\r\n").await;
    let _ = socket.read(&mut request).await;
}

async fn hang_up(mut socket: TcpStream) {
    let _ = socket.read(&mut [0; 2048]).await;
}

async fn silence(mut socket: TcpStream) {
    while socket
        .read(&mut [0; 2048])
        .await
        .is_ok_and(|count| count > 0)
    {}
}

#[tokio::test]
async fn bytes_without_stun_or_tls_are_named() {
    let address = listener(bad_http).await;
    let client = Client::connect(Server::new(address).tcp())
        .await
        .expect("a connection");
    let error = in_time(client.binding()).await.expect_err("no STUN");
    assert!(
        matches!(&error, BindingError::Disconnected(why) if why.kind() == ErrorKind::InvalidData)
    );
    assert!(
        error.to_string().contains("does not support STUN"),
        "{error}"
    );
    let tls = Tls::insecure(NAME).expect("a configuration");
    let failed = in_time(Client::connect(Server::new(address).tls(tls))).await;
    let error = failed.expect_err("no TLS").to_string();
    assert!(error.contains("does not support TLS"), "{error}");
}

#[tokio::test]
async fn a_server_that_hangs_up_is_named() {
    let address = listener(hang_up).await;
    let client = Client::connect(Server::new(address).tcp())
        .await
        .expect("a connection");
    let error = in_time(client.binding()).await.expect_err("no answer");
    assert!(
        error
            .to_string()
            .contains("the server closed the connection"),
        "{error}"
    );
    let tls = Tls::insecure(NAME).expect("a configuration");
    let failed = in_time(Client::connect(Server::new(address).tls(tls))).await;
    let error = failed.expect_err("no TLS").to_string();
    assert!(error.contains("during the TLS handshake"), "{error}");
}

#[tokio::test]
async fn a_handshake_without_an_end_times_out() {
    let address = listener(silence).await;
    let tls = Tls::insecure(NAME).expect("a configuration");
    let server = Server::new(address)
        .tls(tls)
        .connect_timeout(Duration::from_millis(100));
    let failed = in_time(Client::connect(server)).await;
    assert!(matches!(failed, Err(ConnectError::TimedOut { .. })));
}

#[tokio::test]
async fn nothing_that_listens_is_refused_at_once() {
    let free = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = free.local_addr().expect("an address");
    drop(free);
    let failed = in_time(Client::connect(Server::new(address).tcp())).await;
    let error = failed.expect_err("nothing listens");
    assert!(
        matches!(&error, ConnectError::Tcp { source, .. } if source.kind() == ErrorKind::ConnectionRefused)
    );
}

/// A server that does not read: what does not fit waits, `send` with it, and nothing is lost when it reads again.
#[tokio::test]
async fn data_waits_for_a_server_that_does_not_read() {
    let certificate = Certificate::new("slow", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    let proxy = proxy(coturn.tls).await;
    let server = Server::new(proxy).tls(tls(&certificate, NAME));
    let (client, allocation) = allocated(&server.credentials(USER, PASSWORD)).await;
    let peer = allocation
        .peer(allocation.relayed())
        .await
        .expect("a channel");
    let data = vec![7; 1200];
    let mut refused = 0;
    // 12 MB, ten times what socket buffers and the link hold while the proxy sleeps.
    for _ in 0..10_000 {
        if allocation.try_send_to(&data, peer.address()).is_err() {
            refused += 1;
            in_time(peer.send(&data)).await.expect("sent");
        }
    }
    assert!(refused > 0);
    assert_eq!(client.stats().sent, 10_000);
    // The stream is still in step.
    allocation.refresh(None).await.expect("refreshed");
}

/// Forwards to `server`; from client to server it makes pauses.
async fn proxy(server: SocketAddr) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        let (near, _) = listener.accept().await.expect("a connection");
        let far = TcpStream::connect(server).await.expect("a connection");
        let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
            (near.into_split(), far.into_split());
        tokio::spawn(async move {
            let _ = tokio::io::copy(&mut from_server, &mut to_client).await;
        });
        let mut buffer = vec![0; 1 << 20];
        while let Ok(count @ 1..) = from_client.read(&mut buffer).await {
            if to_server.write_all(&buffer[..count]).await.is_err() {
                break;
            }
            if count > 100_000 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    });
    address
}

#[test]
fn the_example_talks_over_tls() {
    let certificate = Certificate::new("example", &["localhost"]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    for _ in 0..200 {
        if std::net::TcpStream::connect(coturn.tls).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    let tests = std::env::current_exe().expect("a path");
    let profile = tests.ancestors().nth(2).expect("target/PROFILE");
    let mut command = Command::new(profile.join("examples/tls"));
    command.args([&format!("localhost:{}", coturn.tls.port()), USER, PASSWORD]);
    let output = command
        .arg(certificate.path("cert.pem"))
        .output()
        .expect("an example");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        said.contains("came back: hello over TLS"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
