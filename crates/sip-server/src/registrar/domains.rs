//! The domains that bindings are kept for.

use std::collections::BTreeMap;
use std::net::IpAddr;

use sip::Host;

use crate::proxy::Inbound;

/// Bytes of the longest domain name (RFC 1035 §2.3.4).
const MAX_NAME: usize = 255;

/// One domain, under one name or several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Domain {
    /// The name in addresses of record, or an IP address without brackets.
    pub name: String,
    /// Further names and addresses that mean the same.
    pub aliases: Vec<String>,
    /// The values of Service-Route (RFC 3608) in answers: `<sip:proxy.example.com;lr>`.
    pub service_route: Vec<String>,
    /// Who may send requests to its users.
    pub inbound: Inbound,
}

/// Why a set of domains cannot be served.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DomainError {
    /// A name is no host.
    #[error("`{0}` is not a domain name or an IP address")]
    NotAHost(String),
    /// Two domains have a name in common.
    #[error("`{0}` is the name of two domains")]
    Duplicate(String),
    /// A value of Service-Route is not what RFC 3608 §6.3 demands.
    #[error("`{0}` is not a route such as `<sip:proxy.example.com;lr>`")]
    Route(String),
}

/// All domains, found by host.
#[derive(Clone, Debug, Default)]
pub struct Domains {
    domains: Vec<Domain>,
    /// In lower case, without a final dot.
    names: BTreeMap<Vec<u8>, usize>,
    addresses: BTreeMap<IpAddr, usize>,
}

impl Domains {
    /// Of these domains. The names in lower case are those of addresses of record.
    ///
    /// # Errors
    /// [`DomainError`] if one cannot be served.
    pub fn new(domains: Vec<Domain>) -> Result<Domains, DomainError> {
        let mut all = Domains::default();
        for (place, mut domain) in domains.into_iter().enumerate() {
            for name in std::iter::once(&domain.name).chain(&domain.aliases) {
                all.add(name, place)?;
            }
            let mut routes = domain.service_route.iter();
            if let Some(wrong) = routes.find(|route| !is_loose_route(route)) {
                return Err(DomainError::Route(wrong.clone()));
            }
            domain.name = canonical(&domain.name);
            all.domains.push(domain);
        }
        Ok(all)
    }

    fn add(&mut self, name: &str, place: usize) -> Result<(), DomainError> {
        let not_a_host = || DomainError::NotAHost(name.to_owned());
        let host = Host::new(name.as_bytes()).ok_or_else(not_a_host)?;
        if name.len() > MAX_NAME {
            return Err(not_a_host());
        }
        let earlier = match host.ip() {
            Some(ip) => self.addresses.insert(ip.to_canonical(), place),
            None => self.names.insert(canonical(name).into_bytes(), place),
        };
        match earlier {
            Some(_) => Err(DomainError::Duplicate(name.to_owned())),
            None => Ok(()),
        }
    }

    /// The domain of a host.
    #[must_use]
    pub fn of(&self, host: Host<'_>) -> Option<&Domain> {
        let place = match host.ip() {
            Some(ip) => self.addresses.get(&ip.to_canonical()),
            None => {
                let name = host.as_bytes();
                let name = name.strip_suffix(b".").unwrap_or(name);
                let mut lower = [0; MAX_NAME];
                let lower = lower.get_mut(..name.len())?;
                lower.copy_from_slice(name);
                lower.make_ascii_lowercase();
                self.names.get(&lower[..])
            }
        };
        self.domains.get(*place?)
    }
}

/// The name as addresses of record have it.
fn canonical(name: &str) -> String {
    match Host::new(name.as_bytes()).and_then(|host| host.ip()) {
        Some(IpAddr::V6(v6)) => format!("[{v6}]"),
        Some(ip) => ip.to_string(),
        None => name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase(),
    }
}

/// `<sip:host;lr>`: RFC 3608 §6.3 has routes conform to those of RFC 3261, with `lr`.
fn is_loose_route(route: &str) -> bool {
    let uri = route
        .strip_prefix('<')
        .and_then(|route| route.strip_suffix('>'));
    let uri = uri.map(|uri| sip::Uri::parse(uri.as_bytes()));
    matches!(uri, Some(Ok(sip::Uri::Sip(uri))) if uri.is_loose())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(name: &str, aliases: &[&str]) -> Domain {
        Domain {
            name: name.to_owned(),
            aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
            service_route: Vec::new(),
            inbound: Inbound::default(),
        }
    }

    #[test]
    fn a_domain_is_found_by_each_of_its_names() {
        let domains = Domains::new(vec![
            domain("Example.com.", &["example.org", "192.0.2.1", "2001:DB8::1"]),
            domain("192.0.2.2", &[]),
        ])
        .unwrap();
        for (host, name) in [
            ("example.com", Some("example.com")),
            ("EXAMPLE.ORG.", Some("example.com")),
            ("192.0.2.1", Some("example.com")),
            ("[::ffff:192.0.2.1]", Some("example.com")),
            ("[2001:db8:0::1]", Some("example.com")),
            ("192.0.2.2", Some("192.0.2.2")),
            ("sub.example.com", None),
            ("192.0.2.3", None),
        ] {
            let found = domains.of(Host::new(host.as_bytes()).unwrap());
            assert_eq!(found.map(|domain| &domain.name[..]), name, "{host}");
        }
    }

    #[test]
    fn invalid_domains_are_refused() {
        let twice = Domains::new(vec![domain("a", &[]), domain("b", &["A"])]);
        assert_eq!(twice.err(), Some(DomainError::Duplicate("A".to_owned())));
        let no_host = Domains::new(vec![domain("a b", &[])]);
        assert_eq!(no_host.err(), Some(DomainError::NotAHost("a b".to_owned())));
        for route in ["sip:a;lr", "<sip:a>", "<tel:1;lr>", ""] {
            let mut domain = domain("a", &[]);
            domain.service_route.push(route.to_owned());
            let refused = Domains::new(vec![domain]).err();
            assert_eq!(refused, Some(DomainError::Route(route.to_owned())));
        }
    }
}
