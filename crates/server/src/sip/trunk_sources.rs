//! Which trunk a message comes from: by its source address, or by the certificate of its TLS connection (RFC 5922).

use super::settings::SipSettings;
use ipnet::IpNet;
use sip::engine::Engine;
use sip::flow::{ConnectionKey, Flow, PeerName};
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

/// How the trunks of the settings are recognized, in the order of their numbers.
#[derive(Debug, Clone, Default)]
pub(super) struct TrunkSources(Vec<TrunkSource>);

#[derive(Debug, Clone)]
struct TrunkSource {
    networks: Vec<IpNet>,
    /// If there are any, the trunk must prove one of these domains.
    names: Vec<PeerName>,
}

impl TrunkSources {
    pub(super) fn new(settings: &SipSettings) -> TrunkSources {
        let trunks = settings.trunks.iter();
        let of = |trunk: &super::Trunk| TrunkSource {
            networks: trunk.addresses.clone(),
            names: trunk
                .certificates
                .iter()
                .map(|name| PeerName::new(name))
                .collect(),
        };
        TrunkSources(trunks.map(of).collect())
    }

    /// The number of the trunk that sends from this address over a connection that has proved these names. A name
    /// counts more than an address, because several trunks may send from one address.
    pub(super) fn find(&self, ip: IpAddr, proven: &[PeerName]) -> Option<u16> {
        let ip = ip.to_canonical();
        let by_name = |it: &TrunkSource| it.names.iter().any(|name| proven.contains(name));
        let by_address = |it: &TrunkSource| it.names.is_empty() && it.has_address(ip);
        let place = self.0.iter().position(by_name);
        let place = place.or_else(|| self.0.iter().position(by_address));
        place.and_then(|place| u16::try_from(place).ok())
    }

    /// Whether some trunk has this address, however it is recognized.
    pub(super) fn has_address(&self, ip: IpAddr) -> bool {
        let ip = ip.to_canonical();
        self.0.iter().any(|trunk| trunk.has_address(ip))
    }

    /// Whether a trunk is recognized by one of these names.
    fn has_name(&self, proven: &[PeerName]) -> bool {
        let mut names = self.0.iter().flat_map(|trunk| &trunk.names);
        names.any(|name| proven.contains(name))
    }
}

impl TrunkSource {
    fn has_address(&self, ip: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&ip))
    }
}

/// The connections of trunks that are recognized by their certificates, with the names that these have. A worker needs
/// them for requests that it has kept, too, and cannot ask the engine while the proxy uses it.
#[derive(Debug, Default)]
pub(super) struct TrunkConnections(HashMap<ConnectionKey, Arc<[PeerName]>>);

impl TrunkConnections {
    /// A message has come by this flow.
    pub(super) fn note(&mut self, flow: &Flow, engine: &Engine, trunks: &TrunkSources) {
        let Some(key) = flow.connection.filter(|_| flow.transport.is_secure()) else {
            return;
        };
        let names = engine.proven_names(key);
        if trunks.has_name(names) && !self.0.contains_key(&key) {
            self.0.insert(key, names.into());
        }
    }

    /// A connection is closed.
    pub(super) fn remove(&mut self, key: ConnectionKey) {
        self.0.remove(&key);
    }

    /// What the other end of a flow has proved.
    pub(super) fn names(&self, flow: &Flow) -> &[PeerName] {
        let names = flow.connection.and_then(|key| self.0.get(&key));
        names.map_or(&[], |names| names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sip::Trunk;

    #[test]
    fn a_trunk_with_certificates_is_known_by_a_name_and_another_one_by_its_address() {
        let by_address = Trunk {
            addresses: vec!["192.0.2.0/24".parse().unwrap()],
            ..Trunk::default()
        };
        let by_name = Trunk {
            addresses: vec!["192.0.2.7/32".parse().unwrap()],
            certificates: vec!["Carrier.Example".to_owned()],
            ..Trunk::default()
        };
        let settings = SipSettings {
            trunks: vec![by_address, by_name],
            ..SipSettings::default()
        };
        let trunks = TrunkSources::new(&settings);
        let find = |ip: &str, names: &[&str]| {
            let names: Vec<PeerName> = names.iter().map(|name| PeerName::new(name)).collect();
            trunks.find(ip.parse().unwrap(), &names)
        };
        assert_eq!(find("203.0.113.1", &["carrier.example"]), Some(1));
        assert_eq!(
            find("192.0.2.7", &["other.example", "carrier.example"]),
            Some(1)
        );
        assert_eq!(find("192.0.2.7", &[]), Some(0));
        assert_eq!(find("::ffff:192.0.2.9", &["sub.carrier.example"]), Some(0));
        assert_eq!(find("203.0.113.1", &["sub.carrier.example"]), None);
        assert_eq!(find("203.0.113.1", &[]), None);
        assert!(trunks.has_address("192.0.2.7".parse().unwrap()));
    }

    #[test]
    fn the_address_of_a_trunk_with_certificates_is_not_enough() {
        let settings = SipSettings {
            trunks: vec![Trunk {
                addresses: vec!["192.0.2.7/32".parse().unwrap()],
                certificates: vec!["carrier.example".to_owned()],
                ..Trunk::default()
            }],
            ..SipSettings::default()
        };
        let trunks = TrunkSources::new(&settings);
        assert_eq!(trunks.find("192.0.2.7".parse().unwrap(), &[]), None);
    }
}
