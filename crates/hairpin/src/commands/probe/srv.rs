//! Finds a server by the SRV records of a domain (RFC 2782), as RFC 5780 §5.1 asks of clients of NAT behaviour
//! discovery.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use hickory_resolver::TokioResolver;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig};
use hickory_resolver::net::runtime::TokioRuntimeProvider;
use hickory_resolver::net::{DnsError, NetError};
use hickory_resolver::proto::op::ResponseCode;
use hickory_resolver::proto::rr::{Name, RData, RecordType};
use load::Via;

/// More records than anybody publishes for one service.
const MAX_RECORDS: usize = 32;

/// Where a service of a domain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Service {
    /// The first two labels of the name that is asked for.
    labels: &'static str,
    /// The port if there are no SRV records.
    port: u16,
}

/// RFC 5780 §9.2: these three are all that there are. DTLS has none.
fn service(via: &Via) -> Result<Service> {
    let (labels, port) = match via {
        Via::Udp => ("_stun-behavior._udp", 3478),
        Via::Tcp => ("_stun-behavior._tcp", 3478),
        Via::Tls(_) => ("_stun-behaviors._tcp", 5349),
        _ => bail!("RFC 5780 has no NAT behaviour discovery over DTLS"),
    };
    Ok(Service { labels, port })
}

/// A record.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    priority: u16,
    weight: u16,
    port: u16,
    /// `None` for the root, which says that there is no such service (RFC 2782).
    target: Option<String>,
}

/// The addresses of the servers for NAT behaviour discovery of `domain`, in the order in which they are to be tried.
/// Without SRV records: the addresses of the domain itself with the default port (RFC 5389 §9).
///
/// `name_server` is asked in place of those that the system is configured with.
///
/// # Errors
/// The name servers do not respond, or there is no address.
pub(super) fn find(
    domain: &str,
    via: &Via,
    name_server: Option<SocketAddr>,
    timeout: Duration,
) -> Result<Vec<SocketAddr>> {
    let service = service(via)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot look up names")?;
    runtime.block_on(async {
        let resolver = resolver(name_server, timeout).context("cannot look up names")?;
        let name = format!("{}.{domain}", service.labels);
        let records = records(&resolver, &name).await?;
        if records.is_empty() {
            let addresses = addresses(&resolver, domain).await?;
            return Ok(with_port(addresses, service.port));
        }
        let mut found = Vec::new();
        let mut missing = None;
        for Record { port, target, .. } in order(records, random) {
            let Some(target) = target else {
                missing = Some(anyhow!("{name} says that {domain} has no such service"));
                continue;
            };
            match addresses(&resolver, &target).await {
                Ok(addresses) => found.extend(with_port(addresses, port)),
                Err(error) => missing = Some(error),
            }
        }
        match (found.is_empty(), missing) {
            (true, Some(error)) => Err(error),
            _ => Ok(found),
        }
    })
}

fn with_port(addresses: Vec<IpAddr>, port: u16) -> Vec<SocketAddr> {
    let addresses = addresses.into_iter();
    addresses.map(|ip| SocketAddr::new(ip, port)).collect()
}

fn resolver(name_server: Option<SocketAddr>, timeout: Duration) -> Result<TokioResolver, NetError> {
    let mut builder = match name_server {
        None => TokioResolver::builder_tokio()?,
        Some(address) => {
            let connections = [ConnectionConfig::udp(), ConnectionConfig::tcp()];
            let connections = connections.map(|mut connection| {
                connection.port = address.port();
                connection
            });
            let server = NameServerConfig::new(address.ip(), true, connections.to_vec());
            let config = ResolverConfig::from_name_servers(vec![server]);
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        }
    };
    builder.options_mut().timeout = timeout;
    builder.build()
}

/// The SRV records of `name`; none if the name servers say that there are none.
async fn records(resolver: &TokioResolver, name: &str) -> Result<Vec<Record>> {
    let lookup = match resolver.lookup(absolute_name(name)?, RecordType::SRV).await {
        Ok(lookup) => lookup,
        Err(error) if has_no_records(&error) => return Ok(Vec::new()),
        Err(error) => return Err(error).with_context(|| format!("cannot look up {name}")),
    };
    let records = lookup.answers().iter();
    let records = records.filter_map(|record| match &record.data {
        RData::SRV(srv) => Some(Record {
            priority: srv.priority,
            weight: srv.weight,
            port: srv.port,
            target: (!srv.target.is_root()).then(|| srv.target.to_ascii()),
        }),
        _ => None,
    });
    Ok(records.take(MAX_RECORDS).collect())
}

async fn addresses(resolver: &TokioResolver, name: &str) -> Result<Vec<IpAddr>> {
    let mut found = Vec::new();
    let mut failed = None;
    for kind in [RecordType::AAAA, RecordType::A] {
        match resolver.lookup(absolute_name(name)?, kind).await {
            Ok(lookup) => found.extend(
                lookup
                    .answers()
                    .iter()
                    .filter_map(|record| record.data.ip_addr()),
            ),
            Err(error) if has_no_records(&error) => {}
            Err(error) => failed = Some(error),
        }
    }
    match (found.is_empty(), failed) {
        (false, _) => Ok(found),
        (true, Some(error)) => Err(error).with_context(|| format!("cannot look up {name}")),
        (true, None) => bail!("{name} has no address: check the name"),
    }
}

/// A whole name: search lists are for people, and SRV records name whole names.
fn absolute_name(name: &str) -> Result<Name> {
    let mut whole = Name::from_ascii(name).with_context(|| format!("`{name}` is not a name"))?;
    whole.set_fqdn(true);
    Ok(whole)
}

fn has_no_records(error: &NetError) -> bool {
    matches!(
        error,
        NetError::Dns(DnsError::NoRecordsFound(nothing))
            if matches!(nothing.response_code, ResponseCode::NoError | ResponseCode::NXDomain)
    )
}

/// RFC 2782: the lowest priority first; among equals at random, in proportion to the weights.
fn order(mut records: Vec<Record>, mut next_random: impl FnMut() -> u64) -> Vec<Record> {
    // Records of weight 0 come first in the list, so that they have a small chance.
    records.sort_by_key(|record| (record.priority, record.weight));
    let mut ordered = Vec::with_capacity(records.len());
    while let Some(first) = records.first() {
        let priority = first.priority;
        let equals = records
            .iter()
            .take_while(|record| record.priority == priority);
        let total: u64 = equals.map(|record| u64::from(record.weight)).sum();
        let chosen = next_random() % (total + 1);
        let mut sum = 0;
        let at = records.iter().position(|record| {
            sum += u64::from(record.weight);
            sum >= chosen
        });
        ordered.push(records.remove(at.unwrap_or(0)));
    }
    ordered
}

fn random() -> u64 {
    let mut bytes = [0; 8];
    // Without random numbers, servers are tried in the order of their weights.
    let _ = getrandom::fill(&mut bytes);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(priority: u16, weight: u16, port: u16) -> Record {
        Record {
            priority,
            weight,
            port,
            target: None,
        }
    }

    #[test]
    fn the_lowest_priority_comes_first_and_weights_decide_among_equals_rfc2782() {
        let records = [
            record(2, 0, 1),
            record(1, 30, 2),
            record(1, 10, 3),
            record(1, 0, 4),
        ];
        let mut first = [0; 5];
        for drawn in 0..=40 {
            let ordered = order(records.to_vec(), || drawn);
            assert_eq!(ordered.len(), 4);
            assert_eq!(
                ordered[3].port, 1,
                "the higher number is the lower priority"
            );
            first[usize::from(ordered[0].port)] += 1;
        }
        assert_eq!(first, [0, 0, 30, 10, 1]);
    }

    #[test]
    fn the_services_are_those_of_rfc5780_9_2() {
        assert_eq!(service(&Via::Udp).unwrap().labels, "_stun-behavior._udp");
        assert_eq!(service(&Via::Tcp).unwrap().labels, "_stun-behavior._tcp");
    }
}
