//! Listeners and relay addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::{Draft, File, Line, Row, Rule, Verdict, list, tls, unnecessary, unsupported, value};
use super::{flag, replaced};

const DEFAULT_PORT: u16 = 3478;
const DEFAULT_TLS_PORT: u16 = 5349;

const DEVICE: Rule = unsupported(
    "hairpin listens on addresses, not on network devices: write the addresses of the device",
);

pub(super) const ROWS: &[Row] = &[
    value("listening-device", DEVICE),
    value("relay-device", DEVICE),
    list("listening-ip", Rule::Decide(listening_ip)),
    value(
        "listening-port",
        Rule::Decide(|line, _, _| port(line, "listen.udp and listen.tcp")),
    ),
    value("tls-listening-port", Rule::Decide(tls_port)),
    value("alt-listening-port", Rule::Decide(alt_port)),
    value(
        "alt-tls-listening-port",
        unsupported(
            "hairpin has NAT behaviour discovery over UDP, as coturn has: for TLS, see nat_discovery.tls",
        ),
    ),
    flag("rfc5780", Rule::Decide(rfc5780)),
    flag(
        "no-rfc5780",
        unnecessary("NAT behaviour discovery is off unless nat_discovery.udp is set"),
    ),
    value("tcp-proxy-port", Rule::Decide(proxy_port)),
    list("aux-server", Rule::Decide(aux_server)),
    flag(
        "no-udp",
        Rule::Decide(|_, _, _| {
            Verdict::replaced(
                "listen.udp with loopback addresses only, because one UDP listener is required",
            )
        }),
    ),
    flag(
        "no-tcp",
        Rule::Decide(|_, _, _| Verdict::carried("listen.tcp")),
    ),
    flag(
        "no-tls",
        Rule::Decide(|_, _, _| Verdict::carried("listen.tls")),
    ),
    list("relay-ip", Rule::Decide(relay_ip)),
    list("external-ip", Rule::Decide(external_ip)),
    flag(
        "udp-self-balance",
        unnecessary("hairpin spreads clients over its workers (server.steering)"),
    ),
    value(
        "acme-redirect",
        replaced("acme.domains: hairpin orders certificates and responds to validations itself"),
    ),
];

/// An address as coturn writes it: brackets are allowed.
fn ip(text: &str) -> Option<IpAddr> {
    text.trim_start_matches('[')
        .trim_end_matches(']')
        .parse()
        .ok()
}

/// An address with an optional port, `127.0.0.1:3478` or `[::1]:3478`.
pub(super) fn address(text: &str, default_port: u16) -> Option<SocketAddr> {
    let with_default = || ip(text).map(|ip| SocketAddr::new(ip, default_port));
    text.parse().ok().or_else(with_default)
}

fn listening_ip(line: &Line, _: &File, _: &mut Draft) -> Verdict {
    match ip(line.word()) {
        Some(_) => Verdict::carried("the addresses of [listen]"),
        None => Verdict::wrong("write an IP address"),
    }
}

/// The verdict of an option with a port, whose value `finish` or another option writes into the keys `to`.
fn port(line: &Line, to: &str) -> Verdict {
    match line.port() {
        Some(_) => Verdict::carried(to),
        None => Verdict::wrong("write a port from 1 to 65535"),
    }
}

fn tls_port(line: &Line, file: &File, _: &mut Draft) -> Verdict {
    match tls::pair(file) {
        Some(_) => port(line, "listen.tls"),
        None => Verdict::unnecessary("coturn does not use it without cert and pkey"),
    }
}

fn alt_port(line: &Line, file: &File, _: &mut Draft) -> Verdict {
    match file.flag("rfc5780") {
        true => port(line, "nat_discovery.udp"),
        false => Verdict::unnecessary("only rfc5780 uses it"),
    }
}

fn rfc5780(_: &Line, file: &File, draft: &mut Draft) -> Verdict {
    let others = second_addresses(file);
    if others.is_empty() {
        return Verdict::unsupported("it requires two listening-ip of one family");
    }
    for other in others {
        draft.push("nat_discovery.udp", other.to_string());
    }
    Verdict::carried("nat_discovery.udp")
}

/// The second listening address of each family, with the alternative port: coturn's OTHER-ADDRESS (RFC 5780 §7.4).
fn second_addresses(file: &File) -> Vec<SocketAddr> {
    let listening_port = file.port("listening-port", DEFAULT_PORT);
    let port = file.port("alt-listening-port", listening_port.saturating_add(1));
    let ips = specific(file);
    let of_family = |is_v4| ips.iter().filter(move |ip| ip.is_ipv4() == is_v4);
    [true, false]
        .into_iter()
        .filter_map(|is_v4| of_family(is_v4).nth(1))
        .map(|ip| SocketAddr::new(*ip, port))
        .collect()
}

fn proxy_port(line: &Line, file: &File, draft: &mut Draft) -> Verdict {
    let Some(port) = line.port() else {
        return Verdict::wrong("write a port from 1 to 65535");
    };
    for ip in listening(file) {
        draft.push("listen.tcp", SocketAddr::new(ip, port).to_string());
    }
    Verdict::replaced(
        "listen.tcp, and listen.proxy_protocol_from: write the networks of the load balancer there",
    )
}

fn aux_server(line: &Line, file: &File, draft: &mut Draft) -> Verdict {
    let Some(address) = address(line.word(), DEFAULT_PORT) else {
        return Verdict::wrong("write ADDRESS:PORT");
    };
    draft.push("listen.udp", address.to_string());
    if !file.flag("no-tcp") {
        draft.push("listen.tcp", address.to_string());
    }
    Verdict::carried("listen.udp and listen.tcp")
}

fn relay_ip(line: &Line, _: &File, _: &mut Draft) -> Verdict {
    match ip(line.word()) {
        Some(ip) if ip.is_unspecified() => Verdict::unsupported(
            "clients cannot use this relay address: write an address of this host",
        ),
        Some(_) => Verdict::carried("relay.addresses"),
        None => Verdict::wrong("write an IP address"),
    }
}

/// The listening addresses: those of the file, or all.
fn listening(file: &File) -> Vec<IpAddr> {
    let mut ips = Vec::new();
    for ip in file.all("listening-ip").filter_map(|line| ip(line.word())) {
        if !ips.contains(&ip) {
            ips.push(ip);
        }
    }
    for wildcard in [
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    ] {
        if ips.contains(&wildcard) {
            ips.retain(|ip| *ip == wildcard || ip.is_ipv4() != wildcard.is_ipv4());
        }
    }
    if ips.is_empty() {
        ips = vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    }
    ips
}

/// The listening addresses without the wildcard addresses.
fn specific(file: &File) -> Vec<IpAddr> {
    let ips = listening(file).into_iter();
    ips.filter(|ip| !ip.is_unspecified()).collect()
}

/// The relay addresses; empty if hairpin chooses them at startup.
fn relays(file: &File) -> Vec<IpAddr> {
    let named = file.all("relay-ip").filter_map(|line| ip(line.word()));
    let mut relays: Vec<_> = named.filter(|ip| !ip.is_unspecified()).collect();
    if relays.is_empty() {
        // coturn relays from the address that the client talks to.
        relays = specific(file);
        if relays.iter().any(|ip| !ip.is_loopback()) {
            relays.retain(|ip| !ip.is_loopback());
        }
    }
    let mut seen = Vec::new();
    relays.retain(|ip| {
        !seen.contains(ip) && {
            seen.push(*ip);
            true
        }
    });
    relays
}

/// The value of `external-ip`.
enum External {
    /// PUBLIC/PRIVATE: the public address of one relay address.
    Mapped(IpAddr, IpAddr),
    /// PUBLIC: the public address of all relay addresses of its family.
    All(IpAddr),
    /// A host name, whose addresses are public addresses.
    Name(String),
}

impl External {
    /// Reads the value of a line; `None` if it is malformed.
    fn read(line: &Line) -> Option<External> {
        let (public, private) = match line.word().split_once('/') {
            Some((public, private)) => (public, Some(private)),
            None => (line.word(), None),
        };
        match (ip(public), private.map(ip)) {
            (Some(public), None) => Some(External::All(public)),
            (Some(public), Some(Some(private))) => Some(External::Mapped(public, private)),
            (None, None | Some(Some(_))) if is_name(public) => {
                Some(External::Name(public.to_owned()))
            }
            _ => None,
        }
    }
}

fn is_name(text: &str) -> bool {
    text.contains(|c: char| c.is_ascii_alphabetic())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

fn external_ip(line: &Line, file: &File, draft: &mut Draft) -> Verdict {
    const KEY: &str = "relay.external_ip";
    let Some(external) = External::read(line) else {
        return Verdict::wrong("write PUBLIC or PUBLIC/PRIVATE");
    };
    if let Some(later) = replaced_by(line, &external, file) {
        return Verdict::unnecessary(format!("line {later} replaces it"));
    }
    let relays = relays(file);
    match external {
        External::Mapped(public, private) if public.is_ipv4() != private.is_ipv4() => {
            Verdict::unsupported("both addresses must be of one family")
        }
        External::Mapped(_, private) if !relays.is_empty() && !relays.contains(&private) => {
            Verdict::unnecessary(format!("{private} is not a relay address of this file"))
        }
        External::Mapped(public, private) => {
            draft.push(KEY, format!("{public}/{private}"));
            Verdict::carried(KEY)
        }
        External::All(public)
            if !relays.is_empty() && !relays.iter().any(|ip| ip.is_ipv4() == public.is_ipv4()) =>
        {
            Verdict::unnecessary("no relay address is of its family")
        }
        External::All(public) => {
            draft.push(KEY, public.to_string());
            Verdict::carried(KEY)
        }
        External::Name(name) => {
            draft.push(KEY, name);
            Verdict::carried(KEY)
        }
    }
}

/// The number of a later line for the same relay address or family.
fn replaced_by(line: &Line, external: &External, file: &File) -> Option<usize> {
    let same = |other: &External| match (external, other) {
        (External::Mapped(_, a), External::Mapped(_, b)) => a == b,
        (External::All(a), External::All(b)) => a.is_ipv4() == b.is_ipv4(),
        (External::Name(_), External::Name(_)) => true,
        _ => false,
    };
    file.all("external-ip")
        .filter(|other| other.number > line.number)
        .find(|other| External::read(other).is_some_and(|other| same(&other)))
        .map(|other| other.number)
}

/// The ports of UDP and DTLS listeners, which no relay may use.
pub(super) fn udp_ports(file: &File) -> Vec<u16> {
    let mut ports = vec![file.port("listening-port", DEFAULT_PORT)];
    if tls::pair(file).is_some() && file.flag("dtls") {
        ports.push(file.port("tls-listening-port", DEFAULT_TLS_PORT));
    }
    let auxiliary = file.all("aux-server");
    let auxiliary = auxiliary.filter_map(|line| address(line.word(), DEFAULT_PORT));
    ports.extend(auxiliary.map(|address| address.port()));
    ports.extend(second_addresses(file).iter().map(SocketAddr::port));
    ports
}

/// Writes the listeners and the relay addresses.
pub(super) fn finish(file: &File, draft: &mut Draft) {
    let plain = file.port("listening-port", DEFAULT_PORT);
    let ips = listening(file);
    let at = |ips: &[IpAddr], port| -> Vec<String> {
        ips.iter()
            .map(|ip| SocketAddr::new(*ip, port).to_string())
            .collect()
    };
    // With nat_discovery.udp, hairpin opens the second addresses itself.
    let seconds: Vec<_> = second_addresses(file).iter().map(SocketAddr::ip).collect();
    let mut first = ips.clone();
    first.retain(|ip| !seconds.contains(ip));
    if file.flag("no-udp") {
        first = vec![Ipv4Addr::LOCALHOST.into()];
    }
    at(&first, plain)
        .into_iter()
        .for_each(|address| draft.push("listen.udp", address));
    let (has_tcp, has_tls) = (!file.flag("no-tcp"), !file.flag("no-tls"));
    if has_tcp {
        at(&ips, plain)
            .into_iter()
            .for_each(|address| draft.push("listen.tcp", address));
    } else if !draft.has("listen.tcp") {
        draft.set("listen.tcp", toml::Value::Array(Vec::new()));
    }
    if tls::pair(file).is_none() {
        return relays_of(file, draft);
    }
    let secure = file.port("tls-listening-port", DEFAULT_TLS_PORT);
    // coturn distinguishes TLS from TCP, and DTLS from UDP, by the first bytes.
    let both = [at(&ips, plain), at(&ips, secure)].concat();
    match has_tls {
        true if has_tcp => both
            .iter()
            .for_each(|address| draft.push("listen.tls", &**address)),
        true => at(&ips, secure)
            .into_iter()
            .for_each(|address| draft.push("listen.tls", address)),
        false => draft.set("listen.tls", toml::Value::Array(Vec::new())),
    }
    if file.flag("dtls") && !file.flag("no-udp") {
        both.iter()
            .for_each(|address| draft.push("listen.dtls", &**address));
    } else {
        draft.set("listen.dtls", toml::Value::Array(Vec::new()));
    }
    relays_of(file, draft);
}

fn relays_of(file: &File, draft: &mut Draft) {
    for relay in relays(file) {
        draft.push("relay.addresses", relay.to_string());
    }
}
