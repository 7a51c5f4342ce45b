//! Several realms on one server: each with its users, peers and limits.

use crate::common::dtls::DtlsLink;
use crate::common::stream::StreamLink;
use crate::common::{Client, at, dtls, loopback, private_loopback, socket, start, stream};
use hairpin_server::policy::PeerRule;
use hairpin_server::realms::RealmSettings;
use hairpin_server::{Builder, Settings};
use std::net::SocketAddr;
use stun::{Lifetime, Method, Realm};

const SHOP: &str = "shop.example";
const CAROL: (&str, &str) = ("carol", "carol's password");

fn shop() -> RealmSettings {
    let mut realm = RealmSettings::new(SHOP);
    realm.server_names = vec![stream::NAME.to_owned()];
    realm.users.push((CAROL.0.to_owned(), CAROL.1.to_owned()));
    realm
}

/// A listener for the default realm, and one for the shop at an address that no other test has.
fn two_listeners(last: u8, change: impl FnOnce(&mut RealmSettings)) -> (Builder, SocketAddr) {
    let listener = SocketAddr::new(private_loopback(last), 3479);
    let mut realm = shop();
    realm.listeners = vec![at("0.0.0.0:3479")];
    change(&mut realm);
    let builder = loopback(2).listen(listener);
    (builder.further_realm(realm), listener)
}

fn carol(server: SocketAddr) -> Client {
    Client::new(server).with_user(CAROL.0, CAROL.1)
}

fn realm_at(client: &mut Client) -> String {
    let answer = client.try_allocate();
    let message = answer.message();
    let realm = message.get::<Realm<'_>>().expect("well formed");
    realm.map_or_else(String::new, |realm| realm.0.to_owned())
}

#[test]
fn a_listener_chooses_the_realm_and_users_of_others_get_401() {
    let (builder, shop) = two_listeners(1, |_| {});
    let server = start(builder);
    let default = server.listeners()[0];
    carol(shop).allocate();
    Client::new(default).allocate();
    assert_eq!(realm_at(&mut carol(default)), "hairpin");
    assert_eq!(realm_at(&mut Client::new(shop)), SHOP);
    server.shutdown().expect("it ends");
}

#[test]
fn the_server_name_of_tls_and_dtls_chooses_the_realm() {
    let (tls, tls_client) = stream::configs();
    let (certificates, dtls_client) = dtls::configs();
    let builder = loopback(1)
        .listen_tls(at("127.0.0.1:0"))
        .tls(tls)
        .listen_dtls(at("127.0.0.1:0"))
        .certificates(certificates)
        .further_realm(shop());
    let server = start(builder);
    let at_tls = server.tls_listeners()[0];
    let at_dtls = server.dtls_listeners()[0];
    for _ in 0..2 {
        let tls = Client::stream(StreamLink::tls(at_tls, &tls_client));
        tls.with_user(CAROL.0, CAROL.1).allocate();
        let link = DtlsLink::new(socket("127.0.0.1:0"), at_dtls, &dtls_client);
        Client::dtls(link).with_user(CAROL.0, CAROL.1).allocate();
    }
    assert_eq!(realm_at(&mut carol(server.listeners()[0])), "hairpin");
    server.shutdown().expect("it ends");
}

#[test]
fn each_realm_has_its_limits_and_peers() {
    let denied = at("127.0.0.77:9");
    let (builder, shop) = two_listeners(2, |realm| {
        realm.allocations = 3;
        realm.allocations_per_user = 2;
        realm.users.push(("dave".to_owned(), "x".to_owned()));
        let network = "127.0.0.77/32".parse().expect("a network");
        realm.peers.deny.push(PeerRule::all_ports(network));
    });
    let server = start(builder);
    let default = server.listeners()[0];
    let mut carols = [carol(shop), carol(shop)];
    carols.iter_mut().for_each(|carol| {
        carol.allocate();
    });
    assert_eq!(carol(shop).try_allocate().code(), 486, "two for each user");
    let dave = || Client::new(shop).with_user("dave", "x");
    let mut first = dave();
    first.allocate();
    assert_eq!(dave().try_allocate().code(), 486, "three for the realm");
    assert_eq!(carols[0].permit(denied), 403);
    assert_eq!(carols[0].permit(at("127.0.0.78:9")), 0);
    let mut ann = Client::new(default);
    ann.allocate();
    assert_eq!(ann.permit(denied), 0);
    // What a realm's clients have released is free again.
    let released = first.request(Method::REFRESH, &|request| {
        request.push(&Lifetime(0)).map(drop)
    });
    assert_eq!(released.code(), 0);
    dave().allocate();
    server.shutdown().expect("it ends");
}

#[test]
fn a_reload_adds_and_removes_realms() {
    let (builder, shop) = two_listeners(3, |_| {});
    let server = start(builder);
    let mut settings = Settings::default();
    settings.users.push(("ann".to_owned(), "secret".to_owned()));
    let mut other = RealmSettings::new("other.example");
    other.listeners = vec![shop];
    settings.realms = vec![other];
    server.reload(settings).expect("it is in order");
    crate::common::eventually("the realm is another one", || {
        realm_at(&mut carol(shop)) == "other.example"
    });
    let mut twice = Settings::default();
    twice.realms = vec![RealmSettings::new("a"), RealmSettings::new("a")];
    let error = server.reload(twice).expect_err("two of one name");
    assert!(error.to_string().contains("same name"), "{error}");
    assert_eq!(realm_at(&mut carol(shop)), "other.example");
    server.shutdown().expect("it ends");
}
