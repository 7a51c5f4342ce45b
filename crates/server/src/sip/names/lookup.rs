//! Sends queries with hickory-resolver, and converts its records for SIP.

use super::{AddressFamilies, DnsFailure, RecordsWithTtl};
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

/// The timeout of one attempt, and the number of attempts.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_ATTEMPTS: usize = 2;

/// The timeout of one query with all its servers. Three queries in a row (NAPTR, SRV, addresses) leave half the time of
/// a transaction.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);

/// Datagrams up to this length are not fragmented on any path (DNS flag day 2020). Longer responses use TCP.
const MAX_DATAGRAM_BYTES: u16 = 1232;

/// The name servers and hosts of the system. They may change while the server runs, for example with a DHCP lease.
const SYSTEM_FILES: [&str; 2] = ["/etc/resolv.conf", "/etc/hosts"];

/// When each of [`SYSTEM_FILES`] was changed last.
type ModificationTimes = [Option<SystemTime>; SYSTEM_FILES.len()];

/// Sends queries to name servers.
pub(super) struct DnsLookups {
    servers: Vec<SocketAddr>,
    current: RefCell<LoadedResolver>,
}

/// The resolver that the system files have configured.
struct LoadedResolver {
    changed: ModificationTimes,
    /// `None` if the configuration of the system cannot be read.
    resolver: Option<Rc<TokioResolver>>,
}

impl LoadedResolver {
    fn read(servers: &[SocketAddr]) -> LoadedResolver {
        let resolver = make_resolver(servers)
            .inspect_err(|error| {
                tracing::warn!(%error, "cannot look up names for SIP: set name servers in sip.resolvers");
            })
            .ok();
        LoadedResolver {
            changed: modification_times(),
            resolver: resolver.map(Rc::new),
        }
    }
}

fn modification_times() -> ModificationTimes {
    SYSTEM_FILES.map(|file| {
        std::fs::metadata(file)
            .and_then(|file| file.modified())
            .ok()
    })
}

impl DnsLookups {
    pub(super) fn new(servers: &[SocketAddr]) -> DnsLookups {
        DnsLookups {
            servers: servers.to_vec(),
            current: RefCell::new(LoadedResolver::read(servers)),
        }
    }

    pub(super) async fn ask(
        &self,
        query: &Query,
        families: AddressFamilies,
    ) -> Result<RecordsWithTtl, DnsFailure> {
        let resolver = self.resolver().ok_or(DnsFailure::Failed)?;
        let asked = tokio::time::timeout(QUERY_TIMEOUT, ask(&resolver, query, families));
        asked.await.unwrap_or(Err(DnsFailure::TimedOut))
    }

    /// The resolver of the current system files.
    fn resolver(&self) -> Option<Rc<TokioResolver>> {
        let mut current = self.current.borrow_mut();
        if current.changed != modification_times() {
            *current = LoadedResolver::read(&self.servers);
        }
        current.resolver.clone()
    }
}

fn make_resolver(servers: &[SocketAddr]) -> Result<TokioResolver, NetError> {
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
    options.timeout = ATTEMPT_TIMEOUT;
    options.attempts = MAX_ATTEMPTS;
    options.edns_payload_len = MAX_DATAGRAM_BYTES;
    // Each worker has its own cache, with the limits of SIP.
    options.cache_size = 0;
    // The resolver queries two servers at a time, the fastest ones first. So a failed server causes no delay.
    options.server_ordering_strategy = ServerOrderingStrategy::QueryStatistics;
    options.num_concurrent_reqs = 2;
    // A forged response must guess the case of the letters, too.
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
    families: AddressFamilies,
) -> Result<RecordsWithTtl, DnsFailure> {
    match query {
        Query::Naptr(name) => {
            let found = records(resolver, name, RecordType::NAPTR).await?;
            Ok(found.to_records(|data| DnsRecords::Naptr(data.filter_map(naptr).collect())))
        }
        Query::Srv(name) => {
            let found = records(resolver, name, RecordType::SRV).await?;
            Ok(found.to_records(|data| DnsRecords::Srv(data.filter_map(srv).collect())))
        }
        Query::Addresses(name) => addresses(resolver, name, families).await,
    }
}

/// The addresses of the usable families, IPv6 first. That is the order of RFC 6724 §2.1 for equal scopes.
async fn addresses(
    resolver: &TokioResolver,
    name: &DnsName,
    families: AddressFamilies,
) -> Result<RecordsWithTtl, DnsFailure> {
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
    let results = join_both(v6, v4).await;
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
        // The addresses of one family are sufficient. Without any, the error of the other one counts.
        Some(error) if all.is_empty() => Err(error),
        _ => Ok(RecordsWithTtl {
            answer: DnsRecords::Addresses(all),
            ttl,
        }),
    }
}

/// Runs both at the same time.
async fn join_both<T>(first: impl Future<Output = T>, second: impl Future<Output = T>) -> [T; 2] {
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

/// The records in a response; none if the name has none.
struct FoundRecords {
    lookup: Option<Lookup>,
    ttl: Duration,
}

impl FoundRecords {
    fn data(&self) -> impl Iterator<Item = &RData> {
        let records = self.lookup.as_ref().map_or(&[][..], Lookup::answers);
        records.iter().map(|record| &record.data)
    }

    fn to_records<'a>(
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
) -> Result<FoundRecords, DnsFailure> {
    // Fully qualified names only. A search list depends on the machine.
    let mut name = Name::from_ascii(name.as_str()).map_err(|_| DnsFailure::Failed)?;
    name.set_fqdn(true);
    match resolver.lookup(name, kind).await {
        Ok(lookup) => {
            // The CNAME records are among them.
            let ttl = lookup.answers().iter().map(|record| record.ttl).min();
            Ok(FoundRecords {
                ttl: Duration::from_secs(ttl.unwrap_or(0).into()),
                lookup: Some(lookup),
            })
        }
        Err(error) => negative_ttl(&error).map(|ttl| FoundRecords { lookup: None, ttl }),
    }
}

/// How long the absence of records may be cached (RFC 2308 §5). An error if the response does not say it.
fn negative_ttl(error: &NetError) -> Result<Duration, DnsFailure> {
    match error {
        NetError::Dns(DnsError::NoRecordsFound(nothing))
            if matches!(
                nothing.response_code,
                ResponseCode::NoError | ResponseCode::NXDomain
            ) =>
        {
            // Without an SOA, it must not be cached. The cache has a minimum time for that.
            let seconds = nothing.negative_ttl.unwrap_or(0);
            Ok(Duration::from_secs(seconds.into()))
        }
        NetError::Timeout => Err(DnsFailure::TimedOut),
        NetError::Busy => Err(DnsFailure::TooMany),
        _ => Err(DnsFailure::Failed),
    }
}

/// RFC 3263 §4.1: only records that lead to SRV records are usable.
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
