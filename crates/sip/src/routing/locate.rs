//! Locating a SIP server (RFC 3263 §4): NAPTR, then SRV, then addresses, as far as the URI leaves open.
//!
//! The procedure runs over the cache and asks for what it misses. It keeps no state between queries. When a result has
//! arrived, the procedure starts again and gets further, because the cache has the earlier results. The answers it
//! waits for cannot be many: one NAPTR, at most one SRV per transport, at most 16 hosts.

use std::net::{IpAddr, SocketAddr};

use super::cache::{DnsCache, DnsFailed, DnsRecords, Naptr, Query, Srv};
use super::name::DnsName;
use super::penalties::Penalties;
use super::weigh;
use crate::Mono;
use crate::flow::Transport;

/// The scheme of the URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scheme {
    /// Any transport.
    Sip,
    /// Secure transports only.
    Sips,
}

/// What the Request-URI, or the topmost Route, says of the next hop (RFC 3263 §4: TARGET is maddr or else the host).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Locate {
    /// A numeric address.
    Address {
        /// The address.
        ip: IpAddr,
        /// The port, if named.
        port: Option<u16>,
        /// The transport, if named.
        transport: Option<Transport>,
        /// The scheme.
        scheme: Scheme,
    },
    /// A name.
    Name {
        /// The name.
        host: DnsName,
        /// The port, if named.
        port: Option<u16>,
        /// The transport, if named.
        transport: Option<Transport>,
        /// The scheme.
        scheme: Scheme,
    },
}

/// A server to try.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Candidate {
    /// The transport.
    pub transport: Transport,
    /// The address and port.
    pub remote: SocketAddr,
}

/// The result of [`Locator::locate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Located {
    /// Servers to try in this order; never empty.
    Servers(Vec<Candidate>),
    /// All of these queries must be answered first.
    Ask(Vec<Query>),
    /// There is no such server.
    Nowhere,
    /// The DNS did not respond.
    Failed,
}

/// Servers in one result.
const MAX_SERVERS: usize = 16;

/// Finds servers, with the transports of this host.
#[derive(Clone, Debug)]
pub struct Locator {
    /// Our transports, the preferred first.
    transports: Vec<Transport>,
    /// Transports that lead to numeric addresses only.
    of_addresses: Vec<Transport>,
    random: u64,
}

impl Locator {
    /// With these transports, the preferred first. The seed decides among SRV records of equal priority.
    #[must_use]
    pub fn new(transports: &[Transport], seed: u64) -> Locator {
        Locator {
            transports: transports.to_vec(),
            of_addresses: Vec::new(),
            random: seed | 1,
        }
    }

    /// Adds transports that apply only if the host of the URI is an IP address and the URI has a transport parameter.
    #[must_use]
    pub fn with_addresses(mut self, transports: &[Transport]) -> Locator {
        self.of_addresses = transports.to_vec();
        self
    }

    /// The servers for `what`. Those with a penalty come last.
    pub fn locate(
        &mut self,
        now: Mono,
        what: &Locate,
        cache: &DnsCache,
        penalties: &Penalties,
    ) -> Located {
        let mut found = match what {
            Locate::Address {
                ip,
                port,
                transport,
                scheme,
            } => {
                let of_address = transport.filter(|it| self.of_addresses.contains(it));
                let transport = self.transport_of(*transport, *scheme).or(of_address);
                Found::server(transport, |transport| {
                    SocketAddr::new(*ip, port.unwrap_or(transport.default_port()))
                })
            }
            Locate::Name {
                host,
                port: Some(port),
                transport,
                scheme,
            } => {
                let transport = self.transport_of(*transport, *scheme);
                let mut found = Found::default();
                if let Some(transport) = transport {
                    found.add_host(now, cache, transport, host, *port);
                }
                found
            }
            Locate::Name {
                host,
                port: None,
                transport,
                scheme,
            } => self.by_records(now, cache, host, *transport, *scheme),
        };
        // A stable sort: the order within each half stays.
        found
            .servers
            .sort_by_key(|server| penalties.is_listed(now, server.transport, server.remote));
        found.servers.truncate(MAX_SERVERS);
        found.result()
    }

    /// RFC 3263 §4.1: the named transport; else, for an address or a port, UDP, or TLS for SIPS.
    fn transport_of(&self, named: Option<Transport>, scheme: Scheme) -> Option<Transport> {
        let transport = match (named, scheme) {
            (None, Scheme::Sip) => Transport::Udp,
            (None, Scheme::Sips) | (Some(Transport::Tcp), Scheme::Sips) => Transport::Tls,
            (Some(Transport::Ws), Scheme::Sips) => Transport::Wss,
            (Some(named), _) => named,
        };
        let fits = scheme == Scheme::Sip || transport.is_secure();
        (fits && self.transports.contains(&transport)).then_some(transport)
    }

    /// Finds servers by NAPTR and SRV records (RFC 3263 §4.1, §4.2). `named` is the transport in the URI.
    fn by_records(
        &mut self,
        now: Mono,
        cache: &DnsCache,
        host: &DnsName,
        named: Option<Transport>,
        scheme: Scheme,
    ) -> Found {
        if named.is_some() {
            // RFC 3263 §4.2: the transport was named, so the SRV name follows.
            let transports: Vec<_> = self.transport_of(named, scheme).into_iter().collect();
            return self.by_srv(now, cache, host, &transports, scheme);
        }
        match cache.get(now, &Query::Naptr(host.clone())) {
            None => Found::asking(Query::Naptr(host.clone())),
            Some(Ok(DnsRecords::Naptr(records))) => {
                let chosen = self.choose(records, scheme);
                if chosen.is_empty() {
                    // RFC 3263 §4.1: no NAPTR records: SRV queries for each transport we have.
                    let transports = self.fitting(scheme);
                    return self.by_srv(now, cache, host, &transports, scheme);
                }
                let mut found = Found::default();
                for (transport, replacement) in chosen {
                    self.add_srv(now, cache, &mut found, transport, &replacement);
                }
                found
            }
            // A name server that fails for NAPTR may have the other records.
            Some(Ok(_) | Err(DnsFailed)) => {
                let transports = self.fitting(scheme);
                self.by_srv(now, cache, host, &transports, scheme)
            }
        }
    }

    /// The records we can use, of the lowest order that has any, in order of preference.
    fn choose(&self, records: &[Naptr], scheme: Scheme) -> Vec<(Transport, DnsName)> {
        let mut usable: Vec<(&Naptr, Transport)> = records
            .iter()
            .filter_map(|record| Some((record, service(&record.service)?)))
            .filter(|(_, transport)| {
                self.transports.contains(transport)
                    && (scheme == Scheme::Sip || transport.is_secure())
            })
            .collect();
        usable.sort_by_key(|(record, _)| (record.order, record.preference));
        let order = usable.first().map(|(record, _)| record.order);
        usable
            .into_iter()
            .filter(|(record, _)| Some(record.order) == order)
            .map(|(record, transport)| (transport, record.replacement.clone()))
            .collect()
    }

    fn fitting(&self, scheme: Scheme) -> Vec<Transport> {
        let fits = |transport: &Transport| {
            let has_srv = !matches!(transport, Transport::Ws | Transport::Wss);
            // RFC 3263 §4.1: the service of the SRV name is the scheme of the URI.
            has_srv && transport.is_secure() == (scheme == Scheme::Sips)
        };
        self.transports.iter().copied().filter(fits).collect()
    }

    /// SRV records of each transport; where none has any, the addresses of the host itself.
    fn by_srv(
        &mut self,
        now: Mono,
        cache: &DnsCache,
        host: &DnsName,
        transports: &[Transport],
        scheme: Scheme,
    ) -> Found {
        let mut found = Found::default();
        for &transport in transports {
            if let Some(name) = host.under(srv_labels(transport)) {
                self.add_srv(now, cache, &mut found, transport, &name);
            }
        }
        if found.servers.is_empty() && found.ask.is_empty() && !found.has_records {
            // RFC 3263 §4.2: no SRV records: A and AAAA of the host, default port.
            let transport = match transports {
                [only] => Some(*only),
                _ => self
                    .transport_of(None, scheme)
                    .or(transports.first().copied()),
            };
            if let Some(transport) = transport {
                found.add_host(now, cache, transport, host, transport.default_port());
            }
        }
        found
    }

    fn add_srv(
        &mut self,
        now: Mono,
        cache: &DnsCache,
        found: &mut Found,
        transport: Transport,
        name: &DnsName,
    ) {
        let query = Query::Srv(name.clone());
        match cache.get(now, &query) {
            None => found.ask.push(query),
            Some(Ok(DnsRecords::Srv(records))) => {
                for record in weigh::order(records, || self.next_random()) {
                    let Srv { port, target, .. } = record;
                    found.add_host(now, cache, transport, target, *port);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(DnsFailed)) => found.failed = true,
        }
    }

    fn next_random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 20
    }
}

/// RFC 3263 §4.1, RFC 7118 §7.
fn service(name: &str) -> Option<Transport> {
    let known = [
        ("SIP+D2U", Transport::Udp),
        ("SIP+D2T", Transport::Tcp),
        ("SIPS+D2T", Transport::Tls),
        ("SIP+D2W", Transport::Ws),
        ("SIPS+D2W", Transport::Wss),
    ];
    let mut known = known.into_iter();
    known
        .find(|(service, _)| name.eq_ignore_ascii_case(service))
        .map(|(_, transport)| transport)
}

fn srv_labels(transport: Transport) -> &'static str {
    match transport {
        Transport::Udp => "_sip._udp",
        Transport::Tcp => "_sip._tcp",
        Transport::Tls => "_sips._tcp",
        Transport::Ws => "_sip._ws",
        Transport::Wss => "_sips._wss",
    }
}

#[derive(Debug, Default)]
struct Found {
    servers: Vec<Candidate>,
    ask: Vec<Query>,
    failed: bool,
    /// SRV records exist: the host's own addresses are not asked for (RFC 2782).
    has_records: bool,
}

impl Found {
    fn server(transport: Option<Transport>, address: impl Fn(Transport) -> SocketAddr) -> Found {
        let servers = transport.map(|transport| Candidate {
            transport,
            remote: address(transport),
        });
        Found {
            servers: servers.into_iter().collect(),
            ..Found::default()
        }
    }

    fn asking(query: Query) -> Found {
        Found {
            ask: vec![query],
            ..Found::default()
        }
    }

    /// Adds the addresses of a host as servers, or the query for them.
    fn add_host(
        &mut self,
        now: Mono,
        cache: &DnsCache,
        transport: Transport,
        host: &DnsName,
        port: u16,
    ) {
        self.has_records = true;
        // RFC 2782: the service is decidedly not available there.
        if host.is_root() {
            return;
        }
        if self.servers.len() + self.ask.len() >= 2 * MAX_SERVERS {
            return;
        }
        let query = Query::Addresses(host.clone());
        match cache.get(now, &query) {
            None if self.ask.contains(&query) => {}
            None => self.ask.push(query),
            Some(Ok(DnsRecords::Addresses(addresses))) => {
                let server = |ip: &IpAddr| Candidate {
                    transport,
                    remote: SocketAddr::new(*ip, port),
                };
                self.servers.extend(addresses.iter().map(server));
            }
            Some(Ok(_)) => {}
            Some(Err(DnsFailed)) => self.failed = true,
        }
    }

    fn result(self) -> Located {
        if !self.ask.is_empty() {
            Located::Ask(self.ask)
        } else if !self.servers.is_empty() {
            Located::Servers(self.servers)
        } else if self.failed {
            Located::Failed
        } else {
            Located::Nowhere
        }
    }
}

#[cfg(test)]
#[path = "locate_tests.rs"]
mod tests;
