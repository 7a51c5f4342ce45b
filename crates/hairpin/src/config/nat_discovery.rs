//! NAT behaviour discovery (RFC 5780): `[nat_discovery]`.

use std::net::{IpAddr, SocketAddr};

use server::{NatDiscovery, NatDiscoveryError};

use super::diagnostics::{Diagnostic, Report};
use super::key::Entry;
use super::network::{ExternalAddress, ExternalIp};
use super::schema::Settings;
use super::setting::List;
use super::source::Located;

/// The values of `[nat_discovery]`; `None` only if `defaults.toml` lacks one.
pub(super) fn resolve(settings: &Settings) -> Option<NatDiscovery> {
    let s = settings.clone();
    let mut wanted = NatDiscovery::default();
    wanted.udp = super::values(s.nat_discovery_udp?.value);
    wanted.tcp = super::values(s.nat_discovery_tcp?.value);
    wanted.tls = super::values(s.nat_discovery_tls?.value);
    let own = super::values(s.nat_discovery_external_ip?.value);
    // What relays are mapped by is true of listeners as well, unless said otherwise here.
    let mapped = super::values(s.external_ip?.value);
    let mapped = mapped.iter().filter_map(ExternalAddress::fixed);
    let all = own.into_iter().chain(mapped);
    let pair = |external: ExternalIp| Some((external.public, external.private?));
    wanted.external = all.filter_map(pair).collect();
    wanted.padding = s.nat_discovery_padding?.value;
    Some(wanted)
}

fn items<T>(entry: &Entry<List<T>>) -> &[Located<T>] {
    entry.as_ref().map_or(&[], |list| &list.value)
}

/// Checks that there are two addresses and two ports of each.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    external_addresses_name_both_sides(settings, report);
    ports_are_outside_relay_range(settings, report);
    let Some(wanted) = resolve(settings).filter(|wanted| !wanted.is_empty()) else {
        return;
    };
    let listeners = |list: &[Located<SocketAddr>]| -> Vec<SocketAddr> {
        list.iter().map(|item| item.value).collect()
    };
    let udp = settings.listen_udp.as_ref();
    let udp = udp.map_or(Vec::new(), |list| listeners(&list.value.0));
    // Without listen.tcp, TCP is listened on where UDP is.
    let tcp = settings.listen_tcp.as_ref();
    let tcp = tcp.map_or(udp.clone(), |list| listeners(&list.value));
    let tls = listeners(items(&settings.listen_tls));
    let Err(error) = wanted.check(&udp, &tcp, &tls) else {
        return;
    };
    let all = [
        &settings.nat_discovery_udp,
        &settings.nat_discovery_tcp,
        &settings.nat_discovery_tls,
    ];
    let all: Vec<&Located<SocketAddr>> = all.into_iter().flat_map(items).collect();
    let is_named = |item: &&&Located<SocketAddr>| Some(item.value) == named(&error);
    if let Some(item) = all.iter().find(is_named).or_else(|| all.first()) {
        report.push(Diagnostic::error(&item.at, error.to_string()).help(help(&error)));
    }
}

/// Which entry a mistake is about.
fn named(error: &NatDiscoveryError) -> Option<SocketAddr> {
    match *error {
        NatDiscoveryError::NoListener(address)
        | NatDiscoveryError::TwoOfOneFamily(address)
        | NatDiscoveryError::Unspecific(address)
        | NatDiscoveryError::NotOther { other: address, .. } => Some(address),
        _ => None,
    }
}

fn help(error: &NatDiscoveryError) -> &'static str {
    match error {
        NatDiscoveryError::NoListener(_) => {
            "name the first address and port in listen.udp, listen.tcp or listen.tls, like \"192.0.2.1:3478\""
        }
        NatDiscoveryError::Unspecific(_) => {
            "list one address of this host first in listen.udp, listen.tcp or listen.tls, and another one here"
        }
        NatDiscoveryError::SharedPort(_) => {
            "give TLS ports of its own in listen.tls and nat_discovery.tls, like 5349 and 5350"
        }
        _ => "with the listener 192.0.2.1:3478, write for example \"192.0.2.2:3479\"",
    }
}

fn external_addresses_name_both_sides(settings: &Settings, report: &mut Report) {
    for external in items(&settings.nat_discovery_external_ip) {
        if external.value.private.is_none() {
            let public: IpAddr = external.value.public;
            let message = format!("{public} does not say which of the two addresses it stands for");
            report.push(
                Diagnostic::error(&external.at, message)
                    .help(format!("write \"{public}/PRIVATE\", once for each address")),
            );
        }
    }
}

/// The added listeners are not in `listen.udp`, whose ports are checked by themselves.
fn ports_are_outside_relay_range(settings: &Settings, report: &mut Report) {
    let Some(ports) = &settings.relay_ports else {
        return;
    };
    for other in items(&settings.nat_discovery_udp) {
        let port = other.value.port();
        if ports.value.0.contains(&port) {
            let message = format!("port {port} lies in the relay range");
            report.push(
                Diagnostic::error(&other.at, message)
                    .see(&ports.at, "these ports are relayed from")
                    .help("choose a port outside of relay.ports, like 3479"),
            );
        }
    }
}
