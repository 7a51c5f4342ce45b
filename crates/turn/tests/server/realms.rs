//! Several realms on one server.

use std::sync::Arc;

use hairpin_turn::server::credentials::StaticCredentials;
use hairpin_turn::server::{AuthFailure, ConfigError, Credentials, RealmConfig};
use hairpin_turn::{ClientPath, Transport};
use stun::{
    Builder, Class, EvenPort, Lifetime, Method, Nonce, Origin, PasswordAlgorithm,
    PasswordAlgorithms, Realm, RequestedTransport, ReservationToken, TransactionId, long_term_key,
};

use crate::world::{Client, REALM, Reply, World, path, path_on};

const REMOTE: &str = "198.51.100.1:4000";
const SHOP: &str = "shop.example";
const BANK: &str = "bank.example";
const SHOP_ORIGIN: &str = "https://www.shop.example";

fn users(realm: &str, names: &[&str]) -> Arc<dyn Credentials> {
    let mut users = StaticCredentials::new(realm);
    for name in names {
        let password = format!("{name}'s password in {realm}");
        users.add_password(name, &password).unwrap();
    }
    Arc::new(users)
}

fn shop() -> RealmConfig {
    let mut realm = RealmConfig::new(SHOP, users(SHOP, &["alice", "carol"]));
    realm.origins = vec![SHOP_ORIGIN.to_owned()];
    realm.server_names = vec!["turn.shop.example".to_owned()];
    realm.listeners = vec!["0.0.0.0:4444".parse().unwrap()];
    realm
}

fn bank() -> RealmConfig {
    let mut realm = RealmConfig::new(BANK, users(BANK, &["alice"]));
    realm.listeners = vec!["192.0.2.1:5555".parse().unwrap()];
    realm
}

fn world() -> World {
    World::with(|config| config.realms = vec![shop(), bank()])
}

/// The answer to an Allocate request without credentials.
fn challenge(world: &mut World, path: &ClientPath, origin: Option<&str>) -> Reply {
    let mut buffer = [0; 256];
    let id = TransactionId([0xcc; 12]);
    let mut request = Builder::new(&mut buffer, Class::Request, Method::ALLOCATE, &id).unwrap();
    request.push(&RequestedTransport::UDP).unwrap();
    if let Some(origin) = origin {
        request.push(&Origin(origin)).unwrap();
    }
    let reply = world.ask(path, request.finish());
    assert_eq!(reply.code(), 401);
    reply
}

fn realm_of(reply: &Reply) -> String {
    reply.get::<Realm<'_>>().unwrap().0.to_owned()
}

fn to_port(transport: Transport, remote: &str, port: u16) -> ClientPath {
    let mut path = path_on(transport, remote);
    path.five_tuple.local.set_port(port);
    path
}

/// A client that answers the challenge of this realm.
fn client(world: &mut World, path: ClientPath, name: &str, realm: &str) -> Client {
    let mut client = Client::on(world, "alice", path);
    let password = format!("{name}'s password in {realm}");
    let key = long_term_key(PasswordAlgorithm::Md5, name, realm, &password).unwrap();
    client.signing.username = Some(name.to_owned());
    client.signing.realm = Some(realm.to_owned());
    client.signing.keys = vec![key.hmac_sha1()];
    client
}

#[test]
fn origin_comes_before_the_server_name_and_that_before_the_listener() {
    let mut world = world();
    let plain = path(REMOTE);
    assert_eq!(realm_of(&challenge(&mut world, &plain, None)), REALM);
    let at_shop = challenge(&mut world, &plain, Some("HTTPS://www.Shop.example"));
    assert_eq!(realm_of(&at_shop), SHOP);
    let with_port = challenge(&mut world, &plain, Some("https://www.shop.example:443"));
    assert_eq!(realm_of(&with_port), SHOP);
    let other_port = challenge(&mut world, &plain, Some("https://www.shop.example:80"));
    assert_eq!(realm_of(&other_port), REALM);
    let unknown = challenge(&mut world, &plain, Some("https://elsewhere.example"));
    assert_eq!(realm_of(&unknown), REALM);

    let any_address = to_port(Transport::Udp, REMOTE, 4444);
    assert_eq!(realm_of(&challenge(&mut world, &any_address, None)), SHOP);
    let mut bank = to_port(Transport::Tls, REMOTE, 5555);
    bank.five_tuple.local.set_ip("192.0.2.1".parse().unwrap());
    assert_eq!(realm_of(&challenge(&mut world, &bank, None)), BANK);
    world
        .server
        .set_server_name(&bank.five_tuple, Some("Turn.SHOP.example."));
    assert_eq!(realm_of(&challenge(&mut world, &bank, None)), SHOP);
    world.server.client_closed(world.now, &bank.five_tuple);
    assert_eq!(realm_of(&challenge(&mut world, &bank, None)), BANK);
    let with_origin = challenge(&mut world, &bank, Some(SHOP_ORIGIN));
    assert_eq!(realm_of(&with_origin), SHOP);
    bank.five_tuple.local.set_ip("192.0.2.2".parse().unwrap());
    assert_eq!(realm_of(&challenge(&mut world, &bank, None)), REALM);
    world.finish();
}

#[test]
fn the_first_known_of_several_origins_counts() {
    let mut world = world();
    let mut buffer = [0; 1024];
    let mut ask = |known_at: usize| {
        let id = TransactionId([0xcd; 12]);
        let mut request = Builder::new(&mut buffer, Class::Request, Method::ALLOCATE, &id).unwrap();
        request.push(&RequestedTransport::UDP).unwrap();
        for _ in 0..known_at {
            request.push(&Origin("https://elsewhere.example")).unwrap();
        }
        request.push(&Origin(SHOP_ORIGIN)).unwrap();
        realm_of(&world.ask(&path(REMOTE), request.finish()))
    };
    assert_eq!(ask(1), SHOP);
    assert_eq!(ask(7), SHOP);
    assert_eq!(ask(8), REALM, "more than eight are not looked at");
    world.finish();
}

#[test]
fn users_are_valid_in_their_realm_only() {
    let mut world = world();
    let at_shop = to_port(Transport::Udp, REMOTE, 4444);
    let mut carol = client(&mut world, at_shop, "carol", SHOP);
    carol.allocate(&mut world);

    // The right credentials of another realm: 401 with the realm that was chosen.
    let elsewhere = path("198.51.100.2:4000");
    let mut lost = client(&mut world, elsewhere, "carol", SHOP);
    let refused = lost.try_allocate(&mut world, |_| {});
    assert_eq!(
        (refused.code(), realm_of(&refused)),
        (401, REALM.to_owned())
    );

    // The same name, and the password of the default realm.
    let mut alice = client(&mut world, path("198.51.100.3:4000"), "alice", SHOP);
    alice.path = to_port(Transport::Udp, "198.51.100.3:4000", 4444);
    let own = Client::new(&mut world, "alice", "198.51.100.3:4000");
    alice.signing.keys = own.signing.keys;
    assert_eq!(alice.try_allocate(&mut world, |_| {}).code(), 401);
    let failures: Vec<_> = world.failures.drain(..).map(|(_, why, _)| why).collect();
    assert_eq!(
        failures,
        [AuthFailure::WrongRealm, AuthFailure::WrongPassword]
    );
    world.finish();
}

#[test]
fn keys_of_one_name_in_two_realms_are_kept_apart() {
    let mut world = world();
    for (remote, port, realm) in [
        ("198.51.100.1:1", 4444, SHOP),
        ("198.51.100.1:2", 5555, BANK),
        ("198.51.100.1:3", 4444, SHOP),
    ] {
        let mut path = to_port(Transport::Udp, remote, port);
        path.five_tuple.local.set_ip("192.0.2.1".parse().unwrap());
        let mut alice = client(&mut world, path, "alice", realm);
        alice.allocate(&mut world);
        assert_eq!(alice.refresh(&mut world, 600).code(), 0);
    }
    assert_eq!(world.server.stats().keys_derived, 2);
    world.finish();
}

#[test]
fn an_allocation_keeps_its_realm_whatever_later_requests_say() {
    let mut world = world();
    let mut carol = client(&mut world, path(REMOTE), "carol", SHOP);
    let made = carol.try_allocate(&mut world, |request| {
        request.push(&Origin(SHOP_ORIGIN)).unwrap();
    });
    assert_eq!(made.code(), 0);
    world.expect_opened();
    // Without ORIGIN, and with that of nobody.
    assert_eq!(carol.refresh(&mut world, 700).granted(), 700);
    let again = carol.ask(&mut world, Method::REFRESH, |request| {
        request.push(&Origin("https://elsewhere.example")).unwrap();
        request.push(&Lifetime(800)).unwrap();
    });
    assert_eq!(again.granted(), 800);
    // Alice of the default realm has the right password, for another realm.
    let mut alice = Client::new(&mut world, "bob", "198.51.100.9:1");
    alice.path = path(REMOTE);
    alice.signing.nonce = carol.signing.nonce.clone();
    let refused = alice.refresh(&mut world, 0);
    assert_eq!((refused.code(), realm_of(&refused)), (401, SHOP.to_owned()));
    world.finish();
}

#[test]
fn each_realm_announces_the_algorithms_of_its_users() {
    #[derive(Debug)]
    struct Md5Only;
    impl Credentials for Md5Only {
        fn find(
            &self,
            _: &hairpin_turn::server::credentials::KeyQuery<'_>,
        ) -> hairpin_turn::server::credentials::KeyLookup {
            hairpin_turn::server::credentials::KeyLookup::Unknown
        }
        fn supports(&self, algorithm: PasswordAlgorithm) -> bool {
            algorithm == PasswordAlgorithm::Md5
        }
    }
    let mut world = World::with(|config| {
        let mut old = RealmConfig::new("old", Arc::new(Md5Only));
        old.listeners = vec!["0.0.0.0:4444".parse().unwrap()];
        config.realms = vec![old];
    });
    let old = to_port(Transport::Tcp, REMOTE, 4444);
    let challenged = challenge(&mut world, &old, None);
    assert_eq!(challenged.get(), Some(PasswordAlgorithms::MD5));
    // A nonce of the default realm, which offers SHA-256, is not one of this realm.
    let nonce = Client::nonce(&mut world, &path(REMOTE));
    let mut alice = client(&mut world, old, "alice", "old");
    alice.signing.nonce = Some(nonce);
    let refused = alice.try_allocate(&mut world, |_| {});
    assert_eq!(refused.code(), 438);
    assert_eq!(refused.get(), Some(PasswordAlgorithms::MD5));
    assert!(refused.get::<Nonce<'_>>().is_some());
    world.finish();
}

#[test]
fn realms_come_and_go_while_the_server_runs() {
    let mut world = World::new();
    let at_shop = to_port(Transport::Udp, REMOTE, 4444);
    assert_eq!(realm_of(&challenge(&mut world, &at_shop, None)), REALM);
    world.reconfigure(|config| config.realms = vec![bank(), shop()]);
    let mut carol = client(&mut world, at_shop, "carol", SHOP);
    carol.allocate(&mut world);
    world.reconfigure(|config| config.realms = vec![shop()]);
    assert_eq!(carol.refresh(&mut world, 700).granted(), 700);
    world.reconfigure(|config| config.realms.clear());
    let refused = carol.refresh(&mut world, 700);
    assert_eq!(
        (refused.code(), realm_of(&refused)),
        (401, REALM.to_owned())
    );
    world.failures.clear();
    world.finish();
}

#[test]
fn each_realm_has_its_rate() {
    let mut world = World::with(|config| {
        let mut slow = shop();
        slow.allocation_rate = 1000;
        config.realms = vec![slow];
    });
    let mut carol = client(
        &mut world,
        to_port(Transport::Udp, REMOTE, 4444),
        "carol",
        SHOP,
    );
    carol.allocate(&mut world);
    let mut alice = Client::new(&mut world, "alice", "198.51.100.2:1");
    alice.allocate(&mut world);
    let peer = "198.51.100.200:700";
    let passed = |world: &mut World, client: &mut Client| {
        assert_eq!(client.bind(world, 0x4000, peer), 0);
        let sent = (0..20).map(|_| client.channel_data(world, 0x4000, &[0; 1000]));
        sent.filter(|verdict| matches!(verdict, hairpin_turn::server::ClientVerdict::ToPeer { .. }))
            .count()
    };
    assert_eq!(passed(&mut world, &mut carol), 2);
    assert_eq!(passed(&mut world, &mut alice), 20);
    world.reconfigure(|config| config.realms[0].allocation_rate = 5000);
    assert_eq!(passed(&mut world, &mut carol), 6);
    world.finish();
}

#[test]
fn realms_that_cannot_be_distinguished_are_refused() {
    let world = World::new();
    let with = |realms: Vec<RealmConfig>| {
        let mut config = world.config.clone();
        config.realms = realms;
        config.validate().map(drop)
    };
    assert_eq!(with(vec![shop(), bank()]), Ok(()));
    assert_eq!(with(vec![shop(), shop()]), Err(ConfigError::SameRealm));
    let default = RealmConfig::new(REALM, users(REALM, &[]));
    assert_eq!(with(vec![default]), Err(ConfigError::SameRealm));
    let long = "r".repeat(45);
    let long = RealmConfig::new(&long, users("r", &[]));
    assert_eq!(with(vec![long]), Err(ConfigError::LongRealm(45)));
    let mut fast = shop();
    fast.allocation_rate = 1;
    assert_eq!(with(vec![fast]), Err(ConfigError::AllocationRate));
    world.finish();
}

#[test]
fn a_reserved_port_is_not_for_the_same_name_in_another_realm() {
    let mut world = world();
    let mut shop = to_port(Transport::Udp, REMOTE, 4444);
    shop.five_tuple.local.set_ip("192.0.2.1".parse().unwrap());
    let mut alice = client(&mut world, shop, "alice", SHOP);
    let made = alice.try_allocate(&mut world, |request| {
        request.push(&EvenPort { reserve: true }).unwrap();
    });
    assert_eq!(made.code(), 0);
    world.expect_opened();
    let token: ReservationToken = made.get().unwrap();
    let mut claim = |remote: &str, port: u16, realm: &str| {
        let mut path = to_port(Transport::Udp, remote, port);
        path.five_tuple.local.set_ip("192.0.2.1".parse().unwrap());
        let mut alice = client(&mut world, path, "alice", realm);
        let reply = alice.try_allocate(&mut world, |request| {
            request.push(&token).unwrap();
        });
        reply.code()
    };
    assert_eq!(claim("198.51.100.9:1", 5555, BANK), 508);
    assert_eq!(claim("198.51.100.9:2", 4444, SHOP), 0);
    world.expect_opened();
    world.finish();
}
