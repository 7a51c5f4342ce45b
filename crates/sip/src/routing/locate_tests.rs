use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::HashKey;

/// A small world of names.
#[derive(Default)]
struct Zone {
    naptr: BTreeMap<&'static str, Vec<Naptr>>,
    srv: BTreeMap<&'static str, Vec<Srv>>,
    hosts: BTreeMap<&'static str, Vec<IpAddr>>,
    dead: bool,
    asked: Vec<String>,
}

fn name(text: &str) -> DnsName {
    DnsName::new(text.as_bytes()).unwrap()
}

impl Zone {
    fn naptr(mut self, host: &'static str, order: u16, service: &str, replacement: &str) -> Zone {
        let records = self.naptr.entry(host).or_default();
        records.push(Naptr {
            order,
            preference: records.len() as u16,
            service: service.into(),
            replacement: name(replacement),
        });
        self
    }

    fn srv(mut self, host: &'static str, priority: u16, port: u16, target: &str) -> Zone {
        self.srv.entry(host).or_default().push(Srv {
            priority,
            weight: 1,
            port,
            target: name(target),
        });
        self
    }

    fn host(mut self, host: &'static str, last: u8) -> Zone {
        self.hosts
            .entry(host)
            .or_default()
            .push([192, 0, 2, last].into());
        self
    }

    fn answer(&mut self, query: &Query) -> DnsRecords {
        match query {
            Query::Naptr(host) => {
                self.asked.push(format!("NAPTR {}", host.as_str()));
                DnsRecords::Naptr(self.naptr.get(host.as_str()).cloned().unwrap_or_default())
            }
            Query::Srv(host) => {
                self.asked.push(format!("SRV {}", host.as_str()));
                DnsRecords::Srv(self.srv.get(host.as_str()).cloned().unwrap_or_default())
            }
            Query::Addresses(host) => {
                self.asked.push(format!("A {}", host.as_str()));
                DnsRecords::Addresses(self.hosts.get(host.as_str()).cloned().unwrap_or_default())
            }
        }
    }

    /// Asks until there is nothing to ask.
    fn locate(&mut self, what: &Locate) -> Located {
        let mut locator = Locator::new(&[Transport::Tls, Transport::Tcp, Transport::Udp], 5);
        let mut cache = DnsCache::new(HashKey::new([1; 16]));
        let penalties = Penalties::new(HashKey::new([1; 16]));
        for _ in 0..10 {
            match locator.locate(Mono(0), what, &cache, &penalties) {
                Located::Ask(queries) => {
                    for query in queries {
                        let answer = self.answer(&query);
                        if self.dead {
                            cache.insert_failure(Mono(0), query);
                        } else {
                            cache.insert(Mono(0), query, answer, Duration::from_secs(60));
                        }
                    }
                }
                done => return done,
            }
        }
        panic!("it asks for ever: {:?}", self.asked);
    }
}

fn uri(host: &str) -> Locate {
    Locate::Name {
        host: name(host),
        port: None,
        transport: None,
        scheme: Scheme::Sip,
    }
}

fn servers(list: &[(Transport, u8, u16)]) -> Located {
    Located::Servers(
        list.iter()
            .map(|(transport, last, port)| Candidate {
                transport: *transport,
                remote: ([192, 0, 2, *last], *port).into(),
            })
            .collect(),
    )
}

#[test]
fn an_address_needs_no_question() {
    let at = |port, transport, scheme| {
        let what = Locate::Address {
            ip: [192, 0, 2, 9].into(),
            port,
            transport,
            scheme,
        };
        let mut zone = Zone::default();
        let located = zone.locate(&what);
        assert!(zone.asked.is_empty());
        located
    };
    assert_eq!(
        at(None, None, Scheme::Sip),
        servers(&[(Transport::Udp, 9, 5060)])
    );
    assert_eq!(
        at(None, None, Scheme::Sips),
        servers(&[(Transport::Tls, 9, 5061)])
    );
    assert_eq!(
        at(Some(7), Some(Transport::Tcp), Scheme::Sip),
        servers(&[(Transport::Tcp, 9, 7)])
    );
    assert_eq!(
        at(None, Some(Transport::Tcp), Scheme::Sips),
        servers(&[(Transport::Tls, 9, 5061)])
    );
    assert_eq!(
        at(None, Some(Transport::Udp), Scheme::Sips),
        Located::Nowhere
    );
    assert_eq!(at(None, Some(Transport::Ws), Scheme::Sip), Located::Nowhere);
}

#[test]
fn a_name_with_a_port_is_asked_for_its_addresses_only() {
    let mut zone = Zone::default()
        .host("example.org", 1)
        .host("example.org", 2);
    let what = Locate::Name {
        host: name("example.org"),
        port: Some(5080),
        transport: None,
        scheme: Scheme::Sip,
    };
    let expected = servers(&[(Transport::Udp, 1, 5080), (Transport::Udp, 2, 5080)]);
    assert_eq!(zone.locate(&what), expected);
    assert_eq!(zone.asked, ["A example.org"]);
}

#[test]
fn naptr_chooses_the_transport_and_srv_the_servers() {
    // The example of RFC 3263 §4.1, with a second server.
    let mut zone = Zone::default()
        .naptr("example.com", 50, "SIP+D2T", "_sip._tcp.example.com")
        .naptr("example.com", 90, "SIP+D2U", "_sip._udp.example.com")
        .naptr("example.com", 40, "SIP+D2X", "_sip._x.example.com")
        .srv("_sip._tcp.example.com", 2, 5060, "server2.example.com")
        .srv("_sip._tcp.example.com", 0, 5062, "server1.example.com")
        .host("server1.example.com", 1)
        .host("server2.example.com", 2);
    let expected = servers(&[(Transport::Tcp, 1, 5062), (Transport::Tcp, 2, 5060)]);
    assert_eq!(zone.locate(&uri("example.com")), expected);
    assert!(!zone.asked.iter().any(|query| query.contains("_udp")));
}

#[test]
fn a_sips_uri_goes_over_tls_only() {
    let zone = || {
        Zone::default()
            .naptr("example.com", 10, "SIP+D2U", "_sip._udp.example.com")
            .naptr("example.com", 20, "SIPS+D2T", "_sips._tcp.example.com")
            .srv("_sips._tcp.example.com", 0, 5061, "s.example.com")
            .host("s.example.com", 3)
    };
    let sips = Locate::Name {
        host: name("example.com"),
        port: None,
        transport: None,
        scheme: Scheme::Sips,
    };
    assert_eq!(zone().locate(&sips), servers(&[(Transport::Tls, 3, 5061)]));
}

#[test]
fn without_naptr_every_transport_has_its_srv_query() {
    let mut zone = Zone::default()
        .srv("_sip._udp.example.org", 0, 5070, "a.example.org")
        .srv("_sip._tcp.example.org", 0, 5071, "a.example.org")
        .host("a.example.org", 4);
    // Ours are preferred in the order TLS, TCP, UDP.
    let expected = servers(&[(Transport::Tcp, 4, 5071), (Transport::Udp, 4, 5070)]);
    assert_eq!(zone.locate(&uri("example.org")), expected);
}

#[test]
fn without_any_record_the_host_itself_is_tried() {
    let mut zone = Zone::default().host("example.org", 5);
    let expected = servers(&[(Transport::Udp, 5, 5060)]);
    assert_eq!(zone.locate(&uri("example.org")), expected);
    let tcp = Locate::Name {
        host: name("example.org"),
        port: None,
        transport: Some(Transport::Tcp),
        scheme: Scheme::Sip,
    };
    assert_eq!(zone.locate(&tcp), servers(&[(Transport::Tcp, 5, 5060)]));
}

#[test]
fn no_records_differ_from_an_unreachable_dns() {
    assert_eq!(
        Zone::default().locate(&uri("example.org")),
        Located::Nowhere
    );
    let mut dead = Zone {
        dead: true,
        ..Zone::default()
    };
    assert_eq!(dead.locate(&uri("example.org")), Located::Failed);
}

#[test]
fn srv_records_whose_hosts_are_missing_do_not_lead_to_the_host_itself() {
    let mut zone = Zone::default()
        .srv("_sip._udp.example.org", 0, 5070, "gone.example.org")
        .host("example.org", 5);
    assert_eq!(zone.locate(&uri("example.org")), Located::Nowhere);
}

#[test]
fn penalised_servers_come_last_and_are_not_lost() {
    let mut locator = Locator::new(&[Transport::Udp], 5);
    let mut cache = DnsCache::new(HashKey::new([1; 16]));
    let mut penalties = Penalties::new(HashKey::new([1; 16]));
    let addresses = (1..=3).map(|last| [192, 0, 2, last].into()).collect();
    let query = Query::Addresses(name("example.org"));
    cache.insert(
        Mono(0),
        query,
        DnsRecords::Addresses(addresses),
        Duration::from_secs(60),
    );
    penalties.silent(Mono(0), Transport::Udp, ([192, 0, 2, 1], 5060).into());
    let what = Locate::Name {
        host: name("example.org"),
        port: Some(5060),
        transport: None,
        scheme: Scheme::Sip,
    };
    let located = locator.locate(Mono(0), &what, &cache, &penalties);
    let udp = |last| (Transport::Udp, last, 5060);
    assert_eq!(located, servers(&[udp(2), udp(3), udp(1)]));
}

#[test]
fn a_zone_of_many_records_is_cut() {
    let mut locator = Locator::new(&[Transport::Udp], 5);
    let mut cache = DnsCache::new(HashKey::new([1; 16]));
    let penalties = Penalties::new(HashKey::new([1; 16]));
    let addresses = (0..200).map(|last| [192, 0, 2, last].into()).collect();
    let query = Query::Addresses(name("example.org"));
    let answer = DnsRecords::Addresses(addresses);
    cache.insert(Mono(0), query, answer, Duration::from_secs(60));
    let what = Locate::Name {
        host: name("example.org"),
        port: Some(5060),
        transport: None,
        scheme: Scheme::Sip,
    };
    match locator.locate(Mono(0), &what, &cache, &penalties) {
        Located::Servers(servers) => assert_eq!(servers.len(), MAX_SERVERS),
        other => panic!("{other:?}"),
    }
}
