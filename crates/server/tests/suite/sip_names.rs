//! Names are looked up as RFC 3263 has it, by a name server on loopback.

use crate::dns_server::{DnsServer, Manner, Zone};
use hairpin_server::sip::{LocateError, NameResolver};
use sip::flow::Transport;
use sip::routing::{Candidate, Locate, Locator};
use std::collections::BTreeMap;

fn locate(server: &DnsServer, uri: &str) -> Result<Vec<Candidate>, LocateError> {
    locate_with(&NameResolver::new(&[server.address()]), uri, 1)
}

fn locate_with(
    resolver: &NameResolver,
    uri: &str,
    seed: u64,
) -> Result<Vec<Candidate>, LocateError> {
    let target = Locate::of(uri.as_bytes()).expect("a URI");
    let mut locator = Locator::new(&[Transport::Udp, Transport::Tcp], seed);
    resolver.locate(&mut locator, &target)
}

fn candidate(transport: Transport, remote: &str) -> Candidate {
    Candidate {
        transport,
        remote: remote.parse().expect("an address"),
    }
}

#[test]
fn naptr_leads_to_srv_and_srv_to_addresses_rfc3263_4() {
    let server = DnsServer::new(
        Zone::new()
            .naptr("example.org", 20, "SIP+D2U", "_sip._udp.example.org")
            .naptr("example.org", 10, "SIP+D2T", "_sip._tcp.example.org")
            .naptr("example.org", 5, "SIPS+D2T", "_sips._tcp.example.org")
            .naptr("example.org", 1, "E2U+sip", "nowhere.example.org")
            .srv("_sip._tcp.example.org", [20, 0, 5070], "second.example.org")
            .srv("_sip._tcp.example.org", [10, 0, 5080], "first.example.org")
            .host("first.example.org", "192.0.2.1")
            .host("first.example.org", "2001:db8::1")
            .host("second.example.org", "192.0.2.2"),
    );
    let found = locate(&server, "sip:bob@Example.Org").expect("servers");
    assert_eq!(
        found,
        [
            candidate(Transport::Tcp, "[2001:db8::1]:5080"),
            candidate(Transport::Tcp, "192.0.2.1:5080"),
            candidate(Transport::Tcp, "192.0.2.2:5070"),
        ]
    );
    let asked = server.asked();
    assert_eq!(
        asked[..2],
        ["udp NAPTR example.org", "udp SRV _sip._tcp.example.org"]
    );
    assert_eq!(asked.len(), 6, "A and AAAA of two hosts: {asked:?}");
}

#[test]
fn without_naptr_srv_is_asked_of_every_transport() {
    let server = DnsServer::new(
        Zone::new()
            .srv("_sip._tcp.example.org", [1, 0, 5090], "a.example.org")
            .host("a.example.org", "192.0.2.3"),
    );
    let found = locate(&server, "sip:example.org").expect("a server");
    assert_eq!(found, [candidate(Transport::Tcp, "192.0.2.3:5090")]);
}

#[test]
fn without_srv_the_host_itself_is_it_and_a_port_spares_the_queries() {
    let server = DnsServer::new(Zone::new().host("a.example", "192.0.2.4"));
    let found = locate(&server, "sip:a.example").expect("a server");
    assert_eq!(found, [candidate(Transport::Udp, "192.0.2.4:5060")]);
    let before = server.asked().len();
    let found = locate(&server, "sip:a.example:5099;transport=tcp").expect("a server");
    assert_eq!(found, [candidate(Transport::Tcp, "192.0.2.4:5099")]);
    let mut asked = server.asked().split_off(before);
    asked.sort();
    assert_eq!(asked, ["udp A a.example", "udp AAAA a.example"]);
}

#[test]
fn weights_are_shares_and_a_dot_is_no_service_rfc2782() {
    let server = DnsServer::new(
        Zone::new()
            .srv("_sip._udp.w.example", [1, 90, 1], "h.w.example")
            .srv("_sip._udp.w.example", [1, 10, 2], "h.w.example")
            .host("h.w.example", "192.0.2.5")
            .srv("_sip._udp.none.example", [0, 0, 0], ".")
            .srv("_sip._tcp.none.example", [0, 0, 0], ".")
            .host("none.example", "192.0.2.6"),
    );
    let resolver = NameResolver::new(&[server.address()]);
    let mut first = BTreeMap::new();
    for seed in 0..60u64 {
        let found = locate_with(&resolver, "sip:w.example;transport=udp", seed * 7919 + 3);
        let port = found.expect("servers")[0].remote.port();
        *first.entry(port).or_insert(0) += 1;
    }
    assert!(
        first[&1] > 40 && first.get(&2).is_some_and(|n| *n > 0),
        "{first:?}"
    );
    let none = locate_with(&resolver, "sip:none.example", 1);
    assert_eq!(none, Err(LocateError::Nowhere));
}

#[test]
fn missing_names_and_failing_name_servers_are_distinguished() {
    let server = DnsServer::new(
        Zone::new()
            .manner("fails.example", Manner::Failing)
            .manner("silent.example", Manner::Silent),
    );
    assert_eq!(locate(&server, "sip:no.example"), Err(LocateError::Nowhere));
    assert_eq!(
        locate(&server, "sip:fails.example:5060"),
        Err(LocateError::Failed)
    );
    assert_eq!(
        locate(&server, "sip:silent.example:5060"),
        Err(LocateError::TimedOut)
    );
}

#[test]
fn answers_too_long_for_a_datagram_come_by_tcp() {
    let mut zone = Zone::new().manner("long.example", Manner::Truncated);
    for number in 1..=100 {
        zone = zone.host("long.example", &format!("192.0.2.{number}"));
    }
    let server = DnsServer::new(zone);
    let found = locate(&server, "sip:long.example:5060").expect("servers");
    assert_eq!(found.len(), 16, "no more than are of use");
    assert!(server.asked().contains(&"tcp A long.example".to_owned()));
}

#[test]
fn aliases_are_followed_and_loops_end() {
    let server = DnsServer::new(
        Zone::new()
            .alias("alias.example", "other.example")
            .host("other.example", "192.0.2.8")
            .alias("loop.example", "pool.example")
            .alias("pool.example", "loop.example"),
    );
    let found = locate(&server, "sip:alias.example:5060").expect("a server");
    assert_eq!(found, [candidate(Transport::Udp, "192.0.2.8:5060")]);
    assert!(locate(&server, "sip:loop.example:5060").is_err());
}

#[test]
fn the_hosts_of_this_machine_need_no_name_server() {
    let server = DnsServer::new(Zone::new());
    let found = locate(&server, "sip:localhost:5060").expect("a server");
    assert!(found.iter().all(|server| server.remote.ip().is_loopback()));
    assert_eq!(server.asked(), [""; 0]);
}

#[test]
fn the_second_name_server_is_asked_when_the_first_is_gone() {
    let gone = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let nobody = gone.local_addr().expect("an address");
    drop(gone);
    let server = DnsServer::new(Zone::new().host("a.example", "192.0.2.9"));
    let resolver = NameResolver::new(&[nobody, server.address()]);
    let found = locate_with(&resolver, "sip:a.example:5060", 1).expect("a server");
    assert_eq!(found, [candidate(Transport::Udp, "192.0.2.9:5060")]);
}
