//! Starting, reloading, draining and ending.

use crate::common::{Client, at, ip, loopback, socket, start};
use hairpin_server::policy::PeerRule;
use hairpin_server::{ReloadError, Server, Settings, SettingsError, StartError};
use std::time::Duration;

#[test]
fn a_port_in_use_is_an_error_also_if_another_server_of_ours_has_it() {
    let plain = socket("127.0.0.1:0");
    let first = start(loopback(2));
    for taken in [plain.local_addr().expect("bound"), first.listeners()[0]] {
        let error = loopback(1)
            .listen(taken)
            .start()
            .expect_err("the port is in use");
        assert!(
            matches!(&error, StartError::Bind { address, .. } if *address == taken),
            "{error}"
        );
        assert!(error.to_string().contains("choose another port"), "{error}");
    }
}

#[test]
fn wrong_wishes_are_named() {
    let listening = || Server::builder().listen(at("127.0.0.1:0"));
    let error = |builder: hairpin_server::Builder| builder.start().expect_err("it must not start");
    assert!(matches!(error(Server::builder()), StartError::NoListener));
    assert!(matches!(
        error(listening().workers(0)),
        StartError::Workers(0)
    ));
    assert!(matches!(
        error(listening().workers(256)),
        StartError::Workers(256)
    ));
    assert!(matches!(
        error(listening().relay_ports(2000, 1999)),
        StartError::Ports(_)
    ));
    assert!(matches!(
        error(listening().relay_ports(80, 1999)),
        StartError::Ports(_)
    ));
    assert!(matches!(
        error(Server::builder().listen(at("203.0.113.1:3478"))),
        StartError::Bind { .. }
    ));
    assert!(matches!(
        error(listening().relay_address(ip("203.0.113.1"))),
        StartError::RelayAddress { .. }
    ));
    assert!(matches!(
        error(listening().relay_address(ip("0.0.0.0"))),
        StartError::UnusableRelayAddress(_)
    ));
    let twice = listening()
        .relay_address(ip("127.0.0.1"))
        .relay_address(ip("127.0.0.1"));
    assert!(matches!(error(twice), StartError::DuplicateRelayAddress(_)));
    let twice = Server::builder()
        .listen(at("127.0.0.1:40123"))
        .listen(at("127.0.0.1:40123"));
    assert!(matches!(error(twice), StartError::DuplicateListener(_)));
    let only_v4 = || listening().relay_address(ip("127.0.0.1"));
    let external = only_v4().external_address(ip("2001:db8::1"), None);
    assert!(matches!(
        error(external),
        StartError::ExternalAddress { .. }
    ));
    let mixed = only_v4().external_address(ip("2001:db8::1"), Some(ip("127.0.0.1")));
    assert!(matches!(error(mixed), StartError::MixedFamilies { .. }));
    assert!(matches!(
        error(only_v4().realm("")),
        StartError::Settings(SettingsError::Value(_))
    ));
    assert!(matches!(
        error(only_v4().secret(b"")),
        StartError::Settings(SettingsError::EmptySecret)
    ));
    assert!(matches!(
        error(only_v4().user("", "x")),
        StartError::Settings(SettingsError::User { .. })
    ));
}

#[test]
fn external_addresses_never_cross_families() {
    let builder = loopback(1)
        .relay_address(ip("::1"))
        .external_address(ip("203.0.113.1"), None);
    let server = start(builder);
    let told: Vec<_> = server
        .relay_addresses()
        .iter()
        .map(|relay| relay.advertised)
        .collect();
    assert_eq!(told, [ip("203.0.113.1"), ip("::1")]);
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.users.push((
        crate::common::USER.to_owned(),
        crate::common::PASSWORD.to_owned(),
    ));
    settings
}

#[test]
fn settings_change_under_way() {
    let server = start(loopback(2).settings(settings()));
    let mut client = Client::new(server.listeners()[0]);
    client.allocate();
    let peer = at("10.1.2.3:4000");
    assert_eq!(client.permit(peer), 403);
    let mut bob = Client::new(server.listeners()[0]).with_user("bob", "hunter2");
    assert_eq!(bob.try_allocate().code(), 401);

    let mut changed = settings();
    changed.users.push(("bob".to_owned(), "hunter2".to_owned()));
    changed.peers.allow.push(PeerRule::all_ports(
        "10.0.0.0/8".parse().expect("a network"),
    ));
    server.reload(changed).expect("the settings are fine");
    // Workers take the message before the next datagram only if it came first.
    crate::common::eventually("the peer is admitted", || client.permit(peer) == 0);
    assert_eq!(bob.try_allocate().code(), 0);

    let mut realm = settings();
    realm.realm = "elsewhere".to_owned();
    assert_eq!(server.reload(realm), Err(ReloadError::Realm));
    let mut wrong = settings();
    wrong.max_channels = 0;
    assert!(matches!(
        server.reload(wrong),
        Err(ReloadError::Settings(_))
    ));
    assert_eq!(client.permit(peer), 0, "refused settings change nothing");
}

#[test]
fn nonces_survive_one_rotation_of_their_key() {
    let server = start(loopback(2));
    let mut client = Client::new(server.listeners()[0]);
    client.allocate();
    server.rotate_nonce_key().expect("workers take it");
    client.release();
    let stats = server.stats();
    assert_eq!((stats.errors_with(438), stats.errors_with(401)), (0, 1));
}

#[test]
fn draining_refuses_the_new_and_waits_for_the_old() {
    let server = start(loopback(2));
    let mut old = Client::new(server.listeners()[0]);
    old.allocate();
    assert_eq!(server.drain(Duration::from_millis(50)), Ok(false));
    assert_eq!(
        Client::new(server.listeners()[0]).try_allocate().code(),
        508
    );
    assert_eq!(
        old.permit(at("127.0.0.1:9")),
        0,
        "the old one is still served"
    );
    old.release();
    assert_eq!(server.drain(Duration::from_secs(5)), Ok(true));
    assert!(server.observer().is_draining());
    server.end_drain().expect("every worker runs");
    assert!(!server.observer().is_draining());
    Client::new(server.listeners()[0]).allocate();
}

#[test]
fn shutdown_closes_everything_and_counts() {
    let server = start(loopback(3));
    let listener = server.listeners()[0];
    let relayed: Vec<_> = (0..5).map(|_| Client::new(listener).allocate()).collect();
    assert_eq!(server.failed_worker(), None);
    let stats = server.shutdown().expect("no worker failed");
    assert_eq!(stats.workers.len(), 3);
    assert_eq!(
        (
            stats.allocations(),
            stats.sum(|worker| worker.engine.allocations_opened)
        ),
        (0, 5)
    );
    assert_eq!(
        stats.counters().relays_opened,
        stats.counters().relays_closed
    );
    for address in relayed.into_iter().chain([listener]) {
        std::net::UdpSocket::bind(address).expect("the address is free again");
    }
}
