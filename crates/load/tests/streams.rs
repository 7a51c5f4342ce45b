//! The probe over TCP and TLS, against coturn's server where it is installed.

#[path = "../../client/tests/certificate/mod.rs"]
mod certificate;
#[path = "../../client/tests/coturn/mod.rs"]
mod coturn;

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use certificate::Certificate;
use coturn::{PASSWORD, USER};
use hairpin_load as load;
use load::probe::{self, Credentials, ProbeErrorKind};
use load::{ServerAddress, Tls, Via};

const NAME: &str = "turn.example.org";
const TIMEOUT: Duration = Duration::from_secs(5);

fn over(address: SocketAddr, via: Via) -> ServerAddress {
    ServerAddress { address, via }
}

fn tls(certificate: &Certificate, name: &str) -> Via {
    let roots = certificate.path("cert.pem");
    Via::Tls(Tls::with_root_file(name, &roots).expect("a configuration"))
}

/// Waits until the server accepts connections.
fn ready(server: SocketAddr) {
    for _ in 0..200 {
        if TcpStream::connect(server).is_ok() {
            return;
        }
        std::thread::sleep(Duration::from_millis(25));
    }
    panic!("nothing listens on {server}");
}

#[test]
fn a_turn_server_is_tried_out_over_tcp_and_tls() {
    let certificate = Certificate::new("probe", &[NAME]);
    let Some(coturn) = certificate.coturn(&[]) else {
        return;
    };
    ready(coturn.tls);
    let user = Credentials::new(USER, PASSWORD);
    for server in [
        over(coturn.address, Via::Tcp),
        over(coturn.tls, tls(&certificate, NAME)),
    ] {
        let is_tls = server.via != Via::Tcp;
        let stun = probe::stun(server.clone(), TIMEOUT).expect("it is there");
        assert_eq!(stun.mapped, stun.local);
        let report = probe::turn(server, Some(&user), TIMEOUT).expect("it works");
        let connected = report.connected.expect("a connection");
        assert_eq!(connected.tls.is_some(), is_tls);
        if let Some((_, handshake)) = connected.tls {
            assert_eq!(handshake.version, "TLS 1.2");
            assert_eq!(handshake.alpn.as_deref(), Some("stun.turn"));
        }
        let trip = report.relayed_round_trip.expect("data flows");
        assert_eq!((trip.sent, trip.returned), (5, 5));
    }
    let wrong = over(coturn.tls, tls(&certificate, "other.example.org"));
    let error = probe::stun(wrong, TIMEOUT).expect_err("another name");
    assert_eq!(error.kind(), ProbeErrorKind::Connection);
    assert!(error.to_string().contains("not valid for name"), "{error}");
    let wrong = over(coturn.address, Via::Tcp);
    let error = probe::turn(wrong, None, TIMEOUT).expect_err("it wants credentials");
    assert_eq!(error.kind(), ProbeErrorKind::CredentialsNeeded);
}

/// A listener that reads once, sends `answer`, and closes unless it is to stay.
fn listener(answer: &'static [u8], stay: bool) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        while let Ok((mut socket, _)) = listener.accept() {
            let mut request = [0; 2048];
            let _ = socket.read(&mut request);
            let _ = socket.write_all(answer);
            while stay && socket.read(&mut request).is_ok_and(|count| count > 0) {}
        }
    });
    address
}

#[test]
fn what_goes_wrong_over_streams_is_told_apart() {
    let any = || Via::Tls(Tls::insecure(NAME).expect("a configuration"));
    let closed = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr());
    let closed = closed.expect("loopback");
    let short = Duration::from_millis(300);
    let (sip, hang_up, mute) = (
        listener(b"SIP/2.0 400 No\r\n\r\n", true),
        listener(b"", false),
        listener(b"", true),
    );
    for (address, via, kind, part) in [
        (
            closed,
            Via::Tcp,
            ProbeErrorKind::NothingListens,
            "refused the connection",
        ),
        (
            closed,
            any(),
            ProbeErrorKind::NothingListens,
            "its port for TLS",
        ),
        (
            sip,
            Via::Tcp,
            ProbeErrorKind::Connection,
            "does not speak STUN",
        ),
        (sip, any(), ProbeErrorKind::Connection, "does not speak TLS"),
        (
            hang_up,
            Via::Tcp,
            ProbeErrorKind::Connection,
            "it closed the connection. Is this its port for TCP?",
        ),
        (
            hang_up,
            any(),
            ProbeErrorKind::Connection,
            "during the TLS handshake",
        ),
        (
            mute,
            Via::Tcp,
            ProbeErrorKind::NoAnswer,
            "did not answer the Binding request",
        ),
        (
            mute,
            any(),
            ProbeErrorKind::NoAnswer,
            "handshake did not end in time",
        ),
    ] {
        let error = probe::stun(over(address, via), short).expect_err(part);
        assert!(error.to_string().contains(part), "{part}: {error}");
        assert_eq!(error.kind(), kind, "{error}");
    }
}
