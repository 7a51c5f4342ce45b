//! Connections over TLS that the server opens, whom it verifies there (RFC 5922), and which connections it uses again
//! (RFC 5923).

use crate::dns_server::{DnsServer, Zone};
use crate::sip_client::{Client, status, test_uas};
use crate::tls_peer::{Authority, Link, Pair, Peer, TEST_TIMEOUT};
use hairpin_server::certificates::Certificates;
use hairpin_server::sip::{SipCounters, client_verifier};
use hairpin_server::{Running, Server};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

const NAME: &str = "sip.example.org";

/// What a server of SIP over UDP, TCP and TLS is to be.
struct Setup<'a> {
    authority: &'a Authority,
    zone: Zone,
    own: Option<Certificates>,
    /// Clients must have a certificate, or may.
    clients: Option<bool>,
}

impl Setup<'_> {
    fn new(authority: &Authority, zone: Zone) -> Setup<'_> {
        Setup {
            authority,
            zone,
            own: None,
            clients: None,
        }
    }

    fn start(self) -> (Running, DnsServer) {
        let dns = DnsServer::new(self.zone);
        let mut settings = test_uas();
        // 64*T1 are 640 ms: then a call without an ACK is ended.
        settings.t1 = Duration::from_millis(10);
        settings.resolvers = vec![dns.address()];
        let certificates = self.authority.issue(&[NAME]).certificates();
        let any: SocketAddr = "127.0.0.1:0".parse().expect("an address");
        let mut builder = Server::builder()
            .listen(any)
            .relay_address(any.ip())
            .user("ann", "secret")
            .sip_listen(any)
            .sip_listen_tls(any)
            .sip_next_hops(self.authority.roots(), self.own)
            .sip(settings)
            .workers(1);
        if let Some(is_required) = self.clients {
            let verifier = client_verifier(self.authority.roots(), is_required).expect("roots");
            builder = builder.sip_tls(certificates.server_config_for_clients(false, verifier));
        }
        let server = builder.certificates(certificates).start();
        (server.expect("the server starts"), dns)
    }
}

/// Domains that all are served on this port of this machine.
fn zone(domains: &[&str], port: u16) -> Zone {
    let zone = Zone::new().host("server.example.net", "127.0.0.1");
    domains.iter().fold(zone, |zone, domain| {
        zone.srv(
            &format!("_sips._tcp.{domain}"),
            [1, 0, port],
            "server.example.net",
        )
    })
}

fn invite(id: &str, transport: &str, via: &str, contact: &str) -> String {
    format!(
        "INVITE sip:uas@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/{transport} {via};branch=z9hG4bK{id}\r\n\
         From: <sip:a@example.org>;tag=1\r\nTo: <sip:uas@127.0.0.1>\r\nCall-ID: {id}@test\r\nCSeq: 7 INVITE\r\n\
         Max-Forwards: 70\r\nContact: <{contact}>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// Calls over UDP, never acknowledges, and names this Contact.
fn call(server: &Running, id: &str, contact: &str) {
    let client = Client::new(server.sip_listeners()[0]);
    let via = format!("{};rport", client.local());
    client.send(invite(id, "UDP", &via, contact).as_bytes());
    while status(&String::from_utf8_lossy(&client.receive())) < 200 {}
}

fn wait(server: &Running, what: &str, is: impl Fn(&SipCounters) -> bool) {
    let begun = Instant::now();
    while !is(&server.stats().sip()) {
        let counters = server.stats().sip();
        assert!(begun.elapsed() < TEST_TIMEOUT, "{what}: {counters:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The Call-ID of a request.
fn call_id(request: &str) -> &str {
    let line = request
        .lines()
        .find_map(|line| line.strip_prefix("Call-ID: "));
    line.expect("a Call-ID")
}

#[test]
fn a_request_for_a_sips_uri_goes_to_whom_the_uri_names_over_tls_rfc5922_7_3() {
    let authority = Authority::new();
    // The domain is in the certificate; the server that the DNS leads to is not.
    let peer = Peer::new(&authority.issue(&["sip:caller.example"]), None);
    let zone = zone(&["caller.example"], peer.port());
    let (server, _dns) = Setup::new(&authority, zone).start();
    // A caller over TLS whose connection ends before the BYE.
    let mut caller = connect(&server, &authority, None).expect("TLS");
    let invite = invite("one", "TLS", "caller.example", "sips:a@caller.example");
    caller.send(&invite.replace("INVITE sip:", "INVITE sips:"));
    while status(&caller.next().expect("an answer")) < 200 {}
    drop(caller);
    let mut link = peer.accept().expect("TLS");
    assert_eq!(link.asked_for().as_deref(), Some("caller.example"));
    let bye = link.request();
    assert!(
        bye.starts_with("BYE sips:a@caller.example SIP/2.0\r\n"),
        "{bye}"
    );
    let via = format!("\r\nVia: SIP/2.0/TLS {};", server.sip_tls_listeners()[0]);
    assert!(bye.contains(&via), "{bye}");
    link.answer(&bye);
    wait(&server, "a connection", |sip| {
        (sip.connections_made, sip.tls_handshakes) == (1, 2)
    });
    // The next call for the same domain goes by the same connection.
    call(&server, "two", "sip:b@Caller.Example;transport=tls");
    let bye = link.request();
    assert_eq!(call_id(&bye), "two@test");
    assert!(!peer.is_called());
}

#[test]
fn a_server_that_cannot_prove_the_domain_gets_nothing_rfc5922_7_2() {
    let authority = Authority::new();
    let stranger = Authority::new();
    for (pair, what) in [
        (
            authority.issue(&["server.example.net"]),
            "the name of the server",
        ),
        (authority.issue(&["*.caller.example"]), "a wildcard"),
        (
            authority.issue(&["sip:caller.example", "a.caller.example"]),
            "a URI for another",
        ),
        (stranger.issue(&["a.caller.example"]), "another issuer"),
    ] {
        let peer = Peer::new(&pair, None);
        let zone = zone(&["a.caller.example"], peer.port());
        let (server, _dns) = Setup::new(&authority, zone).start();
        call(&server, "one", "sip:a@a.caller.example;transport=tls");
        // A client of TLS 1.3 says no after the server's part.
        let heard = peer.accept().ok().and_then(|mut link| link.next());
        assert_eq!(heard, None, "{what}");
        wait(&server, what, |sip| {
            (sip.own_failed, sip.tls_failed) == (1, 1)
        });
    }
}

#[test]
fn a_connection_for_one_domain_is_none_for_another_at_the_same_address_rfc5923_9_3() {
    let authority = Authority::new();
    let peer = Peer::new(&authority.issue(&["one.example", "two.example"]), None);
    let zone = zone(&["one.example", "two.example"], peer.port());
    let (server, _dns) = Setup::new(&authority, zone).start();
    call(&server, "one", "sip:a@one.example;transport=tls");
    let mut one = peer.accept().expect("TLS");
    let bye = one.request();
    one.answer(&bye);
    call(&server, "two", "sip:a@two.example;transport=tls");
    let mut two = peer.accept().expect("TLS");
    assert_eq!(two.asked_for().as_deref(), Some("two.example"));
    assert_eq!(call_id(&two.request()), "two@test");
}

#[test]
fn the_server_proves_who_it_is_to_next_hops_that_ask() {
    let authority = Authority::new();
    let own = authority.issue(&[NAME]);
    let peer = Peer::new(
        &authority.issue(&["caller.example"]),
        Some(authority.roots()),
    );
    let with = |own: Option<&Pair>| {
        let zone = zone(&["caller.example"], peer.port());
        let mut setup = Setup::new(&authority, zone);
        setup.own = own.map(Pair::certificates);
        let (server, dns) = setup.start();
        call(&server, "one", "sip:a@caller.example;transport=tls");
        let link = peer.accept();
        (link, server, dns)
    };
    let (link, ..) = with(Some(&own));
    let mut link = link.expect("TLS");
    assert!(link.is_from(&own));
    assert!(link.request().starts_with("BYE "));
    let (link, server, _) = with(None);
    assert!(link.is_err(), "nobody comes in without a certificate");
    wait(&server, "it failed", |sip| sip.own_failed == 1);
}

fn connect(server: &Running, authority: &Authority, own: Option<&Pair>) -> std::io::Result<Link> {
    let at = server.sip_tls_listeners()[0];
    Link::connect(at, NAME, authority.roots(), own)
}

#[test]
fn a_listener_may_require_a_certificate_of_its_clients_or_ask_for_one() {
    let authority = Authority::new();
    let known = authority.issue(&["client.example"]);
    let unknown = Authority::new().issue(&["client.example"]);
    for is_required in [true, false] {
        let mut setup = Setup::new(&authority, Zone::new());
        setup.clients = Some(is_required);
        let (server, _dns) = setup.start();
        let answers = |id: &str, own: Option<&Pair>| {
            let Ok(mut link) = connect(&server, &authority, own) else {
                return false;
            };
            let invite = invite(id, "TLS", "client.example", "sip:a@client.example");
            link.send(&invite.replace("INVITE", "OPTIONS"));
            link.next().is_some()
        };
        assert!(answers("known", Some(&known)));
        assert!(
            !answers("unknown", Some(&unknown)),
            "nobody has issued that"
        );
        assert_eq!(answers("none", None), !is_required);
    }
}

/// Whether a request for the domain of a client goes by the client's own connection, which its Via has asked for.
fn by_alias(own: bool, via: &str) -> bool {
    let authority = Authority::new();
    let pair = authority.issue(&["client.example"]);
    let peer = Peer::new(&pair, None);
    let mut setup = Setup::new(&authority, zone(&["client.example"], peer.port()));
    setup.clients = Some(false);
    let (server, _dns) = setup.start();
    let mut link = connect(&server, &authority, own.then_some(&pair)).expect("TLS");
    let via = via.replace("PORT", &peer.port().to_string());
    let options = invite("first", "TLS", &via, "sip:a@client.example").replace("INVITE", "OPTIONS");
    link.send(&options);
    assert!(link.next().expect("an answer").starts_with("SIP/2.0 200 "));
    // Somebody else calls, and never acknowledges.
    call(&server, "second", "sip:a@client.example;transport=tls");
    let begun = Instant::now();
    loop {
        let sip = server.stats().sip();
        if sip.connections_made > 0 {
            let mut link = peer.accept().expect("TLS");
            assert_eq!(call_id(&link.request()), "second@test");
            return false;
        }
        if sip.own_requests > 0 && sip.dns_open == 0 && sip.connections_made == 0 {
            assert_eq!(call_id(&link.request()), "second@test");
            return true;
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "no BYE: {sip:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_client_with_a_certificate_may_ask_for_requests_by_its_connection_rfc5923_8_2() {
    let address: IpAddr = [127, 0, 0, 1].into();
    let alias = format!("{address}:PORT;alias");
    assert!(by_alias(true, &alias));
    assert!(
        !by_alias(false, &alias),
        "RFC 5923 §9.2: without a certificate"
    );
    assert!(!by_alias(true, &format!("{address}:PORT")), "nobody asked");
}
