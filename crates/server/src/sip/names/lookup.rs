//! What hickory-resolver is asked, and what its answers mean to SIP.

use super::{Families, NoAnswer, RecordsWithTtl};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{
    ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts, ServerOrderingStrategy,
};
use hickory_resolver::lookup::Lookup;
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use sip::routing::{DnsName, DnsRecords, Naptr, Query, Srv};
use std::cell::RefCell;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

/// How long a name server has to answer, and how often it is asked again.
const EACH: Duration = Duration::from_secs(2);
const ATTEMPTS: usize = 2;

/// The timeout of one query with all its servers. Three queries in a row (NAPTR, SRV, addresses) leave half the time of
/// a transaction.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Datagrams up to this length arrive whole over every path (DNS flag day 2020); longer answers come by TCP.
const LONGEST_DATAGRAM: u16 = 1232;

/// Where the system says whom to ask, and what needs no asking. They change while the server runs: a lease is renewed,
/// a host is added.
const FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// When each of them was changed last.
type Changed = [Option<SystemTime>; FILES.len()];

/// Asks name servers.
pub(super) struct Lookups {
    servers: Vec<SocketAddr>,
    current: RefCell<Current>,
}

/// The result of reading the files.
struct Current {
    changed: Changed,
    /// Nothing where the system's configuration cannot be read.
    resolver: Option<Rc<TokioResolver>>,
}

impl Current {
    fn read(servers: &[SocketAddr]) -> Current {
        let resolver = make(servers)
            .inspect_err(|error| {
                tracing::warn!(%error, "cannot look up names for SIP: set name servers in sip.resolvers");
            })
            .ok();
        Current {
            changed: changed(),
            resolver: resolver.map(Rc::new),
        }
    }
}

fn changed() -> Changed {
    FILES.map(|file| {
        std::fs::metadata(file)
            .and_then(|file| file.modified())
            .ok()
    })
}

impl Lookups {
    pub(super) fn new(servers: &[SocketAddr]) -> Lookups {
        Lookups {
            servers: servers.to_vec(),
            current: RefCell::new(Current::read(servers)),
        }
    }

    pub(super) async fn ask(
        &self,
        query: &Query,
        families: Families,
    ) -> Result<RecordsWithTtl, NoAnswer> {
        let resolver = self.resolver().ok_or(NoAnswer::Failed)?;
        let asked = tokio::time::timeout(QUERY_TIMEOUT, ask(&resolver, query, families));
        asked.await.unwrap_or(Err(NoAnswer::TimedOut))
    }

    /// The resolver by the files as they are now.
    fn resolver(&self) -> Option<Rc<TokioResolver>> {
        let mut current = self.current.borrow_mut();
        if current.changed != changed() {
            *current = Current::read(&self.servers);
        }
        current.resolver.clone()
    }
}

fn make(servers: &[SocketAddr]) -> Result<TokioResolver, NetError> {
    let provider = TokioRuntimeProvider::default();
    let mut builder = match servers {
        [] => TokioResolver::builder_tokio()?,
        servers => {
            let servers = servers.iter().map(|server| name_server(*server)).collect();
            let config = ResolverConfig::from_name_servers(servers);
            TokioResolver::builder_with_config(config, provider)
        }
    };
    let options: &mut ResolverOpts = builder.options_mut();
    options.timeout = EACH;
    options.attempts = ATTEMPTS;
    options.edns_payload_len = LONGEST_DATAGRAM;
    // Those who ask have caches of their own, with the limits of SIP.
    options.cache_size = 0;
    // Two servers at a time, the faster ones first: a failed server costs no time.
    options.server_ordering_strategy = ServerOrderingStrategy::QueryStatistics;
    options.num_concurrent_reqs = 2;
    // A forged answer must guess the case of the letters as well.
    options.case_randomization = true;
    builder.build()
}

fn name_server(address: SocketAddr) -> NameServerConfig {
    let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()].map(|mut connection| {
        connection.port = address.port();
        connection
    });
    NameServerConfig::new(address.ip(), true, connections.to_vec())
}

async fn ask(
    resolver: &TokioResolver,
    query: &Query,
    families: Families,
) -> Result<RecordsWithTtl, NoAnswer> {
    match query {
        Query::Naptr(name) => {
            let found = records(resolver, name, RecordType::NAPTR).await?;
            Ok(found.known(|data| DnsRecords::Naptr(data.filter_map(naptr).collect())))
        }
        Query::Srv(name) => {
            let found = records(resolver, name, RecordType::SRV).await?;
            Ok(found.known(|data| DnsRecords::Srv(data.filter_map(srv).collect())))
        }
        Query::Addresses(name) => addresses(resolver, name, families).await,
    }
}

/// The addresses of the families that are of use, IPv6 first (RFC 6724 §2.1 has it so for addresses of equal scope).
async fn addresses(
    resolver: &TokioResolver,
    name: &DnsName,
    families: Families,
) -> Result<RecordsWithTtl, NoAnswer> {
    let v6 = async {
        match families.v6 {
            true => Some(records(resolver, name, RecordType::AAAA).await),
            false => None,
        }
    };
    let v4 = async {
        match families.v4 {
            true => Some(records(resolver, name, RecordType::A).await),
            false => None,
        }
    };
    let results = both(v6, v4).await;
    let mut all: Vec<IpAddr> = Vec::new();
    let (mut ttl, mut failure) = (Duration::MAX, None);
    for result in results.into_iter().flatten() {
        match result {
            Ok(found) => {
                ttl = ttl.min(found.ttl);
                all.extend(found.data().filter_map(RData::ip_addr));
            }
            Err(error) => failure = Some(error),
        }
    }
    match failure {
        // One family is better than nothing; that there is nothing was not said.
        Some(error) if all.is_empty() => Err(error),
        _ => Ok(RecordsWithTtl {
            answer: DnsRecords::Addresses(all),
            ttl,
        }),
    }
}

/// Runs both at the same time.
async fn both<T>(first: impl Future<Output = T>, second: impl Future<Output = T>) -> [T; 2] {
    use std::pin::pin;
    use std::task::Poll;
    let (mut first, mut second) = (pin!(first), pin!(second));
    let (mut one, mut other) = (None, None);
    std::future::poll_fn(move |context| {
        if one.is_none()
            && let Poll::Ready(done) = first.as_mut().poll(context)
        {
            one = Some(done);
        }
        if other.is_none()
            && let Poll::Ready(done) = second.as_mut().poll(context)
        {
            other = Some(done);
        }
        match (one.take(), other.take()) {
            (Some(one), Some(other)) => Poll::Ready([one, other]),
            (first, second) => {
                (one, other) = (first, second);
                Poll::Pending
            }
        }
    })
    .await
}

/// Records as they came; none if there are none.
struct Found {
    lookup: Option<Lookup>,
    ttl: Duration,
}

impl Found {
    fn data(&self) -> impl Iterator<Item = &RData> {
        let records = self.lookup.as_ref().map_or(&[][..], Lookup::answers);
        records.iter().map(|record| &record.data)
    }

    fn known<'a>(
        &'a self,
        make: impl FnOnce(&mut dyn Iterator<Item = &'a RData>) -> DnsRecords,
    ) -> RecordsWithTtl {
        RecordsWithTtl {
            answer: make(&mut self.data()),
            ttl: self.ttl,
        }
    }
}

async fn records(
    resolver: &TokioResolver,
    name: &DnsName,
    kind: RecordType,
) -> Result<Found, NoAnswer> {
    // Whole names only: what a search list makes of them depends on the machine.
    let mut name = Name::from_ascii(name.as_str()).map_err(|_| NoAnswer::Failed)?;
    name.set_fqdn(true);
    match resolver.lookup(name, kind).await {
        Ok(lookup) => {
            // Those of the aliases on the way are among them.
            let ttl = lookup.answers().iter().map(|record| record.ttl).min();
            Ok(Found {
                ttl: Duration::from_secs(ttl.unwrap_or(0).into()),
                lookup: Some(lookup),
            })
        }
        Err(error) => none_of(&error).map(|ttl| Found { lookup: None, ttl }),
    }
}

/// For how long it may be believed that there is nothing, if that is what was said (RFC 2308 §5).
fn none_of(error: &NetError) -> Result<Duration, NoAnswer> {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(nothing))
            if matches!(
                nothing.response_code,
                ResponseCode::NoError | ResponseCode::NXDomain
            ) =>
        {
            // Without an SOA it is not to be kept: the cache has a shortest time for that.
            let seconds = nothing.negative_ttl.unwrap_or(0);
            Ok(Duration::from_secs(seconds.into()))
        }
        NetError::Timeout => Err(NoAnswer::TimedOut),
        NetError::Busy => Err(NoAnswer::TooMany),
        _ => Err(NoAnswer::Failed),
    }
}

/// RFC 3263 §4.1: of use is what leads to SRV records.
fn naptr(data: &RData) -> Option<Naptr> {
    let RData::NAPTR(record) = data else {
        return None;
    };
    if !record.flags.eq_ignore_ascii_case(b"s") || !record.regexp.is_empty() {
        return None;
    }
    Some(Naptr {
        order: record.order,
        preference: record.preference,
        service: std::str::from_utf8(&record.services).ok()?.into(),
        replacement: name_of(&record.replacement)?,
    })
}

fn srv(data: &RData) -> Option<Srv> {
    let RData::SRV(record) = data else {
        return None;
    };
    let target = if record.target.is_root() {
        DnsName::root()
    } else {
        name_of(&record.target)?
    };
    Some(Srv {
        priority: record.priority,
        weight: record.weight,
        port: record.port,
        target,
    })
}

fn name_of(name: &Name) -> Option<DnsName> {
    DnsName::new(name.to_ascii().as_bytes())
}
