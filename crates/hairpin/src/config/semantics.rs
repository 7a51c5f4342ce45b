//! Checks of several values: each is valid alone, but they contradict each other.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use super::admin::AdminListen;
use super::credentials::Secret;
use super::diagnostics::{Diagnostic, Report};
use super::key::Entry;
use super::network::{DEFAULT_PORT, ExternalAddress};
use super::schema::Settings;
use super::setting::{AtLeastOne, List, Workers, write_seconds};
use super::sip;
use super::sip_binding_database;
use super::source::{Layer, Located, Location, Sources};
use super::{
    acme, alternate, cluster, deny_files, events, nat_discovery, realms, stores, telemetry, tls,
    tokens,
};

/// Under 16 characters a secret that was typed by a person can be found by trying.
const SHORT_SECRET: usize = 16;

/// The maximum number of shared relay ports, as in `hairpin-server`.
const MAX_SHARED_PORTS: usize = 256;

/// Runs every check; each reports on its own, and none presumes that another one passed.
pub(crate) fn check(settings: &Settings, sources: &Sources, report: &mut Report) {
    list_items_are_unique(settings, report);
    peers_are_allowed_or_denied(settings, report);
    deny_files::check(settings, report);
    relay_addresses_can_be_reached(settings, report);
    external_addresses_match(settings, report);
    listeners_are_outside_relay_range(settings, report);
    shared_ports_fit(settings, report);
    lifetimes_fit(settings, report);
    limits_fit(settings, sources, report);
    secrets_are_long(settings, report);
    tokens::check(settings, report);
    realms::check(settings, report);
    stores::check(settings, report);
    events::check(settings, report);
    telemetry::check(settings, report);
    alternate::check(settings, report);
    cluster::check(settings, report);
    remote_admin_is_confirmed(settings, report);
    sip::check(settings, report);
    sip_binding_database::check(settings, report);
    tls::check(settings, report);
    acme::check(settings, report);
    nat_discovery::check(settings, report);
}

/// The elements of a list that may not have been set.
fn items<T>(entry: &Entry<List<T>>) -> &[Located<T>] {
    entry.as_ref().map_or(&[], |list| &list.value)
}

/// The same, of a list that is decided at start if it is not set.
fn chosen<T>(entry: &Entry<AtLeastOne<T>>) -> &[Located<T>] {
    entry.as_ref().map_or(&[], |list| &list.value.0)
}

fn list_items_are_unique(settings: &Settings, report: &mut Report) {
    // Any number of listeners may ask for any free port.
    let listener = |address: &SocketAddr| (address.port() != 0).then_some(*address);
    report_duplicates(chosen(&settings.listen_udp), report, listener, |address| {
        format!("{address} is listed twice")
    });
    report_duplicates(items(&settings.listen_tcp), report, listener, |address| {
        format!("{address} is listed twice")
    });
    report_duplicates(items(&settings.listen_tls), report, listener, |address| {
        format!("{address} is listed twice")
    });
    report_duplicates(items(&settings.listen_dtls), report, listener, |address| {
        format!("{address} is listed twice")
    });
    report_duplicates(items(&settings.sip_listen), report, listener, |address| {
        format!("{address} is listed twice")
    });
    report_duplicates(
        settings
            .sip_digest_algorithms
            .as_ref()
            .map_or(&[], |list| &list.value.0),
        report,
        |algorithm| Some(*algorithm),
        |algorithm| format!("{} is listed twice", algorithm.name()),
    );
    report_duplicates(
        items(&settings.sip_resolvers),
        report,
        |server| Some(*server),
        |server| format!("{} is listed twice", server.0),
    );
    report_duplicates(
        chosen(&settings.relay_addresses),
        report,
        |ip| Some(*ip),
        |ip| format!("{ip} is listed twice"),
    );
    let users = items(&settings.users);
    report_duplicates(
        users,
        report,
        |user| Some(user.name.clone()),
        |user| format!("two users are called `{}`", user.name),
    );
    let secret = |secret: &Secret| Some(secret.0.clone());
    report_duplicates(items(&settings.secrets), report, secret, |_| {
        "the same secret is listed twice".to_owned()
    });
    // One key for each relay address or family, and one for what is asked for.
    let mapped = |external: &ExternalAddress| {
        let fixed = external.fixed();
        Some((
            fixed.is_some(),
            fixed.and_then(|fixed| fixed.private),
            fixed.is_some_and(|fixed| fixed.private.is_none() && fixed.public.is_ipv4()),
        ))
    };
    report_duplicates(
        items(&settings.external_ip),
        report,
        mapped,
        |external| match external.fixed().map(|fixed| (fixed.private, fixed.public)) {
            Some((Some(private), _)) => format!("{private} has two external addresses"),
            Some((None, public)) => format!("{} has two external addresses", family(public)),
            None => "only one of `auto` and a DNS name is possible".to_owned(),
        },
    );
}

fn peers_are_allowed_or_denied(settings: &Settings, report: &mut Report) {
    let denied: HashMap<_, _> = items(&settings.peers_deny)
        .iter()
        .map(|rule| (&rule.value, &rule.at))
        .collect();
    for rule in items(&settings.peers_allow) {
        if let Some(other) = denied.get(&rule.value) {
            report.push(
                Diagnostic::error(&rule.at, "the same peers are both allowed and denied")
                    .see(other, "denied here")
                    .help("deny wins; take it out of one of the two lists"),
            );
        }
    }
}

/// Reports each element whose key an earlier one has; those without a key may repeat.
fn report_duplicates<T, K: Hash + Eq>(
    list: &[Located<T>],
    report: &mut Report,
    key: impl Fn(&T) -> Option<K>,
    message: impl Fn(&T) -> String,
) {
    let mut first = HashMap::new();
    for item in list {
        let Some(key) = key(&item.value) else {
            continue;
        };
        if let Some(before) = first.get(&key) {
            report.push(
                Diagnostic::error(&item.at, message(&item.value))
                    .see(before, "first here")
                    .help("keep one of them"),
            );
        } else {
            first.insert(key, item.at.clone());
        }
    }
}

fn relay_addresses_can_be_reached(settings: &Settings, report: &mut Report) {
    for relay in chosen(&settings.relay_addresses) {
        let ip = relay.value;
        if ip.is_unspecified() || ip.is_multicast() {
            report.push(
                Diagnostic::error(
                    &relay.at,
                    format!("{ip} cannot be a relay address: clients are told to use it"),
                )
                .help("write one address of this host; several entries are allowed"),
            );
        } else if is_private(ip) && external_of(settings, ip).is_none() {
            report.push(
                Diagnostic::warning(
                    &relay.at,
                    format!("{ip} is private and no external address is mapped to it"),
                )
                .label("only clients in the same network can use it")
                .help(format!(
                    "behind a NAT, set relay.external_ip = [\"PUBLIC/{ip}\"]"
                )),
            );
        }
    }
}

/// Whether clients elsewhere on the Internet cannot reach the address.
pub(crate) fn is_private(ip: IpAddr) -> bool {
    server::policy::special_network(ip).is_some()
}

/// The mapping that holds for a relay address.
fn external_of(settings: &Settings, relay: IpAddr) -> Option<&ExternalAddress> {
    let holds = |external: &ExternalAddress| match external.fixed() {
        Some(fixed) => match fixed.private {
            Some(private) => private == relay,
            None => fixed.public.is_ipv4() == relay.is_ipv4(),
        },
        None => true,
    };
    items(&settings.external_ip)
        .iter()
        .map(|entry| &entry.value)
        .find(|external| holds(external))
}

/// `auto` requires servers, and servers are for `auto` only.
fn external_servers_match(settings: &Settings, report: &mut Report) {
    let list = items(&settings.external_ip);
    let auto = list
        .iter()
        .find(|entry| entry.value == ExternalAddress::Auto);
    let server = items(&settings.external_ip_servers).first();
    match (auto, server) {
        (Some(auto), None) => report.push(
            Diagnostic::error(&auto.at, "no STUN server is known that could be asked").help(
                "set relay.external_ip_servers = [\"stun.example.org\"], or write the address",
            ),
        ),
        (None, Some(server)) => report.push(
            Diagnostic::warning(&server.at, "this server is never asked")
                .help("set relay.external_ip = [\"auto\"]"),
        ),
        _ => {}
    }
}

fn external_addresses_match(settings: &Settings, report: &mut Report) {
    external_servers_match(settings, report);
    let Some(relays) = &settings.relay_addresses else {
        return;
    };
    let known: Vec<_> = relays.value.0.iter().map(|relay| relay.value).collect();
    for external in items(&settings.external_ip) {
        let Some(fixed) = external.value.fixed() else {
            continue;
        };
        let (public, at) = (fixed.public, &external.at);
        match fixed.private {
            Some(private) if !known.contains(&private) => report.push(
                Diagnostic::error(at, format!("{private} is none of the relay addresses"))
                    .see(&relays.at, "these are")
                    .help("add it to relay.addresses, or map one of those"),
            ),
            None if !known.iter().any(|ip| ip.is_ipv4() == public.is_ipv4()) => report.push(
                Diagnostic::error(
                    at,
                    format!(
                        "{public} stands for no relay address: none is {}",
                        family(public)
                    ),
                )
                .see(&relays.at, "the relay addresses")
                .help(format!(
                    "add an {} address to relay.addresses",
                    family(public)
                )),
            ),
            _ => {}
        }
    }
}

fn family(ip: IpAddr) -> &'static str {
    if ip.is_ipv4() { "IPv4" } else { "IPv6" }
}

fn listeners_are_outside_relay_range(settings: &Settings, report: &mut Report) {
    let Some(ports) = &settings.relay_ports else {
        return;
    };
    let range = &ports.value.0;
    let help =
        "a relayed port could take the listener's place: choose a range like \"49152-65535\"";
    if settings.listen_udp.is_none() && range.contains(&DEFAULT_PORT) {
        let message = format!("the listening port {DEFAULT_PORT} lies in the relay range");
        report.push(Diagnostic::error(&ports.at, message).help(help));
    }
    let udp = chosen(&settings.listen_udp).iter();
    for listener in udp.chain(items(&settings.listen_dtls)) {
        let address = listener.value;
        if range.contains(&address.port()) && shares_an_address(settings, address) {
            let message = format!("the listener {address} lies in the relay range");
            let range = format!(
                "ports {} to {} are relayed from",
                range.start(),
                range.end()
            );
            report.push(
                Diagnostic::error(&listener.at, message)
                    .see(&ports.at, range)
                    .help(help),
            );
        }
    }
}

/// Shared relay ports are at most 256, and each worker requires one. If `server.workers` is not set, this does not
/// check it: the file may be for a machine with another number of cores.
fn shared_ports_fit(settings: &Settings, report: &mut Report) {
    let (Some(shared), Some(range)) = (&settings.relay_shared_ports, &settings.relay_ports) else {
        return;
    };
    let ports = range.value.0.clone().count();
    if !shared.value {
        return;
    }
    if ports > MAX_SHARED_PORTS {
        let message =
            format!("{ports} relay ports cannot be shared: {MAX_SHARED_PORTS} are the most");
        let help = format!(
            "choose at most {MAX_SHARED_PORTS} ports, such as \"60000-60003\", or remove relay.shared_ports"
        );
        report.push(Diagnostic::error(&range.at, message).help(help));
    }
    if let Some(workers) = &settings.workers
        && let Workers::Count(count) = workers.value
        && ports < usize::try_from(count).unwrap_or(usize::MAX)
    {
        let message = format!("{count} workers cannot share {ports} relay ports");
        let help = "each worker requires a relay port: choose more ports, or fewer workers";
        report.push(
            Diagnostic::error(&workers.at, message)
                .see(&range.at, "the range of relay ports")
                .help(help),
        );
    }
}

fn shares_an_address(settings: &Settings, listener: SocketAddr) -> bool {
    let ip = listener.ip();
    match &settings.relay_addresses {
        None => !ip.is_loopback(),
        Some(relays) if ip.is_unspecified() => relays
            .value
            .0
            .iter()
            .any(|relay| relay.value.is_ipv4() == ip.is_ipv4()),
        Some(relays) => relays.value.0.iter().any(|relay| relay.value == ip),
    }
}

fn lifetimes_fit(settings: &Settings, report: &mut Report) {
    let (Some(default), Some(max)) = (&settings.lifetime_default, &settings.lifetime_max) else {
        return;
    };
    if default.value.0 > max.value.0 {
        let (default_s, max_s) = (default.value.0.as_secs(), max.value.0.as_secs());
        let message = format!(
            "the default lifetime {} is above the longest, {}",
            write_seconds(default_s),
            write_seconds(max_s)
        );
        report.push(
            Diagnostic::error(&default.at, message)
                .see(&max.at, "the longest")
                .help("RFC 8656 suggests a default of \"10m\" and a maximum of \"1h\""),
        );
    }
}

fn limits_fit(settings: &Settings, sources: &Sources, report: &mut Report) {
    let Some(total) = &settings.allocations else {
        return;
    };
    let by_user = |at: &Location| sources.get(at.source).layer != Layer::Default;
    for part in [
        &settings.allocations_per_user,
        &settings.allocations_per_source,
    ] {
        let Some(part) = part
            .as_ref()
            .filter(|part| by_user(&part.at) && by_user(&total.at))
        else {
            continue;
        };
        if part.value.0 > total.value.0 {
            report.push(
                Diagnostic::warning(&part.at, format!("{} never takes effect", part.value.0))
                    .see(&total.at, "all together may have fewer"),
            );
        }
    }
}

fn secrets_are_long(settings: &Settings, report: &mut Report) {
    for secret in items(&settings.secrets) {
        if secret.value.0.len() < SHORT_SECRET {
            report.push(
                Diagnostic::warning(
                    &secret.at,
                    format!("the secret is shorter than {SHORT_SECRET} characters"),
                )
                .label("one captured message is enough to try guesses offline")
                .help("make a good one with: openssl rand -base64 24"),
            );
        }
    }
}

/// Metrics require no token, so `admin.allow_remote` must confirm an address that other hosts can reach.
fn remote_admin_is_confirmed(settings: &Settings, report: &mut Report) {
    let (Some(listen), Some(allowed)) = (&settings.admin_listen, &settings.admin_allow_remote)
    else {
        return;
    };
    let AdminListen::At(address) = listen.value else {
        return;
    };
    if !address.ip().is_loopback() && !allowed.value {
        report.push(
            Diagnostic::error(
                &listen.at,
                format!("other hosts can reach {address}, and metrics require no token"),
            )
            .help("listen on 127.0.0.1, or set admin.allow_remote = true and restrict access with a firewall"),
        );
    }
}
