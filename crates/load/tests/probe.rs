//! What the probe says about servers of every kind.

mod common;

use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use hairpin_load as load;
use load::probe::{self, Credentials, ProbeErrorKind};
use turn::server::{ClientIdentity, PeerClass, Quota, QuotaExceeded};

use common::{PASSWORD, REALM, RunRequest, TestServer, USER};

const TIMEOUT: Duration = Duration::from_secs(5);

fn credentials() -> Credentials {
    Credentials::new(USER, PASSWORD)
}

#[test]
fn a_stun_server_returns_the_mapped_address() {
    let server = TestServer::start(&RunRequest::default());
    let report = probe::stun(server.address, TIMEOUT).expect("it is there");
    assert_eq!(report.mapped, report.local);
    assert_eq!(report.server, server.address);
    assert_eq!(report.transmissions, 1);
    assert!(report.round_trip < Duration::from_secs(1));
}

#[test]
fn a_turn_server_is_tried_out_in_full() {
    let server = TestServer::start(&RunRequest::default());
    let report = probe::turn(server.address, Some(&credentials()), TIMEOUT).expect("it works");
    assert_eq!(report.mapped, report.local);
    assert_eq!(report.lifetime, Duration::from_secs(600));
    assert_eq!(report.software.as_deref(), Some("test server"));
    let offer = report.offer.expect("it wants credentials");
    assert_eq!(offer.realm, REALM);
    assert_eq!(offer.algorithms, ["SHA-256", "MD5"]);
    assert_eq!(offer.algorithm, "SHA-256");
    assert_eq!(offer.integrity, "HMAC-SHA256");
    assert!(offer.anonymous);
    assert!(report.dual.expect("both families").is_ipv6());
    assert!(report.dont_fragment);
    let trip = report.relayed_round_trip.expect("data flows");
    assert_eq!((trip.sent, trip.returned), (5, 5));
    assert!(trip.round_trip < Duration::from_secs(1));
}

#[test]
fn a_server_on_ipv6_is_tried_out_too() {
    let run_request = RunRequest {
        ip: Ipv6Addr::LOCALHOST.into(),
        ..RunRequest::default()
    };
    let server = TestServer::start(&run_request);
    let report = probe::turn(server.address, Some(&credentials()), TIMEOUT).expect("it works");
    assert!(report.local.is_ipv6());
    assert!(report.relayed_round_trip.is_ok());
}

#[test]
fn missing_features_of_a_server_are_reported() {
    let server = TestServer::start(&RunRequest {
        change: |config| {
            config.relay_v6 = false;
            config.dont_fragment = false;
            config.announce_password_algorithms = false;
        },
        ..RunRequest::default()
    });
    let report = probe::turn(server.address, Some(&credentials()), TIMEOUT).expect("it works");
    assert_eq!(
        report.dual.expect_err("no IPv6").kind(),
        ProbeErrorKind::Refused(440)
    );
    assert!(!report.dont_fragment);
    let offer = report.offer.expect("it wants credentials");
    assert_eq!(offer.algorithms, Vec::<String>::new());
    assert_eq!(
        (offer.algorithm.as_str(), offer.integrity.as_str()),
        ("MD5", "HMAC-SHA1")
    );
    assert!(report.relayed_round_trip.is_ok());
}

#[test]
fn a_closed_port_differs_from_no_response() {
    let closed = UdpSocket::bind("127.0.0.1:0")
        .and_then(|socket| socket.local_addr())
        .expect("loopback");
    let error = probe::stun(closed, TIMEOUT).expect_err("nobody listens");
    assert_eq!(error.kind(), ProbeErrorKind::NothingListens);
    assert!(error.to_string().contains(&closed.to_string()), "{error}");

    let mute = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let address = mute.local_addr().expect("bound");
    let error = probe::stun(address, Duration::from_millis(700)).expect_err("nobody answers");
    assert_eq!(error.kind(), ProbeErrorKind::NoAnswer);
    assert!(
        error.to_string().contains("2 Binding requests in 0.7 s"),
        "{error}"
    );
}

#[test]
fn another_service_on_the_port_is_recognised() {
    let other = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let address = other.local_addr().expect("bound");
    let service = std::thread::spawn(move || {
        let mut buffer = [0; 1500];
        let (_, from) = other.recv_from(&mut buffer).expect("the probe asks");
        other.send_to(b"\xffwhat is this?", from).expect("loopback");
    });
    let error = probe::stun(address, Duration::from_millis(300)).expect_err("not STUN");
    assert_eq!(error.kind(), ProbeErrorKind::NotStun);
    service.join().expect("it answered");
}

#[test]
fn missing_and_wrong_credentials_differ() {
    let server = TestServer::start(&RunRequest::default());
    let error = probe::turn(server.address, None, TIMEOUT).expect_err("it wants some");
    assert_eq!(error.kind(), ProbeErrorKind::CredentialsNeeded);
    assert!(error.to_string().contains(REALM), "{error}");
    let wrong = Credentials::new(USER, "wrong");
    let error = probe::turn(server.address, Some(&wrong), TIMEOUT).expect_err("it wants others");
    assert_eq!(error.kind(), ProbeErrorKind::WrongCredentials);
}

#[test]
fn refused_peers_leave_the_allocation_standing() {
    let run_request = RunRequest {
        peers: PeerClass::Denied,
        ..RunRequest::default()
    };
    let server = TestServer::start(&run_request);
    let report = probe::turn(server.address, Some(&credentials()), TIMEOUT).expect("it allocates");
    let error = report.relayed_round_trip.expect_err("no peers");
    assert_eq!(error.kind(), ProbeErrorKind::Refused(403));
    assert!(
        error.to_string().contains("CreatePermission request: 403"),
        "{error}"
    );
}

#[derive(Debug)]
struct Full;

impl Quota for Full {
    fn try_acquire(&self, _: &ClientIdentity<'_>) -> Result<(), QuotaExceeded> {
        Err(QuotaExceeded::User)
    }

    fn release(&self, _: &ClientIdentity<'_>) {}

    fn transfer(
        &self,
        _: &ClientIdentity<'_>,
        _: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded> {
        Err(QuotaExceeded::User)
    }
}

#[test]
fn a_reached_quota_is_explained() {
    let server = TestServer::start(&RunRequest {
        change: |config| config.quota = Arc::new(Full),
        ..RunRequest::default()
    });
    let error = probe::turn(server.address, Some(&credentials()), TIMEOUT).expect_err("full");
    assert_eq!(error.kind(), ProbeErrorKind::Refused(486));
    assert!(
        error.to_string().contains("as many allocations as allowed"),
        "{error}"
    );
}

#[test]
fn an_address_that_cannot_be_reached_is_a_local_failure() {
    let nowhere: SocketAddr = "[100::1]:3478".parse().expect("an address");
    let error = probe::stun(nowhere, Duration::from_millis(300)).expect_err("a discard prefix");
    let kind = error.kind();
    // With an IPv6 default route the datagrams leave and nothing comes back.
    assert!(
        matches!(kind, ProbeErrorKind::LocalSocket | ProbeErrorKind::NoAnswer),
        "{error}"
    );
}
