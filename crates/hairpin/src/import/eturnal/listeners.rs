//! The list `listen`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::super::{Draft, Imported, Verdict};
use super::push;
use super::yaml::{self, Entry, Node};

/// Adds the listeners of a file without `listen`: UDP and TCP on port 3478 of all addresses.
pub(super) fn default(draft: &mut Draft) {
    for address in addresses(Ipv6Addr::UNSPECIFIED.into(), 3478) {
        draft.push("listen.udp", &*address);
        draft.push("listen.tcp", address);
    }
}

/// The listening addresses for `ip`, as text. In eturnal, `::` includes IPv4, so it becomes `0.0.0.0` and `::`.
fn addresses(ip: IpAddr, port: u16) -> Vec<String> {
    let ips = match ip {
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => vec![Ipv4Addr::UNSPECIFIED.into(), ip],
        ip => vec![ip],
    };
    let ips = ips.into_iter();
    ips.map(|ip: IpAddr| SocketAddr::new(ip, port).to_string())
        .collect()
}

/// Imports the elements of `listen`: adds their addresses to the draft, and a verdict for each element to `imported`.
pub(super) fn read(entry: &Entry<'_>, imported: &mut Imported) {
    for node in yaml::elements(&entry.value) {
        let line = node.span.start.line();
        let verdict = import_listener(node, &mut imported.draft);
        push(imported, line, "listen", verdict);
    }
    let draft = &mut imported.draft;
    if !draft.has("listen.udp") {
        draft.push("listen.udp", "127.0.0.1:3478");
        imported.notes.push(
            "the file has no UDP listener, but hairpin requires one: listen.udp has loopback addresses only"
                .to_owned(),
        );
    }
    // If a key is missing, hairpin chooses addresses at startup. An empty list prevents this.
    for key in ["listen.tcp", "listen.tls"] {
        if !draft.has(key) {
            draft.set(key, toml::Value::Array(Vec::new()));
        }
    }
    draft.set("listen.dtls", toml::Value::Array(Vec::new()));
}

/// Adds the addresses of one listener to the draft. Returns the verdict: the keys that have the addresses now, or why
/// the listener was not understood.
fn import_listener(node: &Node<'_>, draft: &mut Draft) -> Verdict {
    let fields = yaml::children(node.clone());
    let known = ["ip", "port", "transport", "proxy_protocol", "enable_turn"];
    if let Some(unknown) = fields.iter().find(|field| !known.contains(&&*field.name)) {
        return Verdict::wrong(format!("`{}` is not an option of a listener", unknown.name));
    }
    let field = |name: &str| {
        fields
            .iter()
            .find(|field| field.name == name)
            .map(|field| &field.value)
    };
    let transport = field("transport").and_then(yaml::text);
    let transport = transport.as_deref().unwrap_or("udp");
    let ip = match field("ip").map(yaml::text) {
        None => Some(Ipv6Addr::UNSPECIFIED.into()),
        Some(text) => text.and_then(|text| text.parse().ok()),
    };
    let port = match field("port") {
        None if transport == "tls" => Some(5349),
        None => Some(3478),
        Some(node) => yaml::number(node).and_then(|port| port.try_into().ok()),
    };
    let (Some(ip), Some(port)) = (ip, port) else {
        return Verdict::wrong("ip must be an IP address, and port a number up to 65535");
    };
    let keys: &[&'static str] = match transport {
        "udp" => &["listen.udp"],
        "tcp" => &["listen.tcp"],
        "tls" => &["listen.tls"],
        "auto" => &["listen.tcp", "listen.tls"],
        _ => return Verdict::wrong("transport is udp, tcp, tls or auto"),
    };
    for &key in keys {
        for address in addresses(ip, port) {
            draft.push(key, address);
        }
    }
    let to = keys.join(" and ");
    match (
        field("proxy_protocol").and_then(yaml::boolean),
        field("enable_turn").and_then(yaml::boolean),
    ) {
        (Some(true), _) => Verdict::carried(format!(
            "{to}; write the networks of the load balancer into listen.proxy_protocol_from"
        )),
        (_, Some(false)) => Verdict::carried(format!(
            "{to}, but it also serves TURN, to users with credentials only"
        )),
        _ => Verdict::carried(to),
    }
}
