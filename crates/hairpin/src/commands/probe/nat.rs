//! What was found out about a NAT, and what it means for calls.

use load::probe::{Behaviour, Hairpinning, Lifetime, NatReport};
use serde_json::{Value, json};

use crate::commands::output::Lines;

/// For people: a line for each finding, then what to do about it.
pub(super) fn text(nat: &NatReport) -> String {
    let mut lines = Lines::default();
    lines.line("server", format!("{}, also at {}", nat.server, nat.other));
    nat.origin.iter().for_each(|origin| {
        lines.line(
            "origin",
            format!("the server calls its address {origin}: it is behind a NAT itself"),
        );
    });
    lines.line("mapped", super::report::mapped(nat.mapped, nat.local));
    if nat.has_nat() {
        lines.line("port", port(nat));
        lines.line("mapping", mapping(nat));
    }
    if let Some(behaviour) = nat.filtering {
        lines.line("filtering", filtering(nat, behaviour));
    }
    if matches!(nat.hairpinning, Hairpinning::Works | Hairpinning::Fails) {
        lines.line("hairpinning", hairpinning(nat.hairpinning));
    }
    nat.lifetime
        .iter()
        .for_each(|time| lines.line("lifetime", lifetime(*time)));
    nat.software
        .iter()
        .for_each(|software| lines.line("software", software));
    lines.line("result", conclusion(nat));
    lines.finish()
}

/// For programs: terms of RFC 4787, times in seconds.
pub(super) fn json(nat: &NatReport) -> Value {
    let mappings = nat.mappings.iter().map(
        |(towards, mapped)| json!({ "towards": towards.to_string(), "mapped": mapped.to_string() }),
    );
    json!({
        "ok": true,
        "server": nat.server.to_string(),
        "other": nat.other.to_string(),
        "origin": nat.origin.map(|origin| origin.to_string()),
        "local": nat.local.to_string(),
        "mapped": nat.mapped.to_string(),
        "nat": nat.has_nat(),
        "port_preserved": nat.preserves_port(),
        "mapping": nat.mapping.name(),
        "mappings": mappings.collect::<Vec<_>>(),
        "filtering": nat.filtering.map(Behaviour::name),
        "hairpinning": match nat.hairpinning {
            Hairpinning::Works => Some(true),
            Hairpinning::Fails => Some(false),
            _ => None,
        },
        "binding_lifetime": nat.lifetime.map(lifetime_json),
        "software": nat.software,
        "result": conclusion(nat),
    })
}

fn lifetime_json(lifetime: Lifetime) -> Value {
    match lifetime {
        Lifetime::AtLeast(idle) => {
            json!({ "supported": true, "at_least_s": idle.as_secs_f64(), "below_s": null })
        }
        Lifetime::Between(alive, gone) => {
            json!({ "supported": true, "at_least_s": alive.as_secs_f64(), "below_s": gone.as_secs_f64() })
        }
        _ => json!({ "supported": false, "at_least_s": null, "below_s": null }),
    }
}

fn port(nat: &NatReport) -> String {
    if nat.preserves_port() {
        format!("{} is kept", nat.local.port())
    } else {
        format!("{} becomes {}", nat.local.port(), nat.mapped.port())
    }
}

fn mapping(nat: &NatReport) -> String {
    let name = nat.mapping.name();
    match nat.mapping {
        Behaviour::EndpointIndependent => {
            format!("{name}: every peer sees the socket at {}", nat.mapped)
        }
        Behaviour::AddressDependent => {
            format!("{name}: each peer address sees the socket at another mapped address")
        }
        _ => {
            format!("{name}: each peer address and port sees the socket at another mapped address")
        }
    }
}

fn filtering(nat: &NatReport, behaviour: Behaviour) -> String {
    let name = behaviour.name();
    let who = match behaviour {
        Behaviour::EndpointIndependent => "every address may send to the socket",
        Behaviour::AddressDependent => {
            "only addresses that the socket has sent to may send to it, from any port"
        }
        _ => "only an address and port that the socket has sent to may send to it",
    };
    let firewall = match (nat.has_nat(), behaviour) {
        (true, _) | (_, Behaviour::EndpointIndependent) => "",
        _ => " (a firewall)",
    };
    format!("{name}{firewall}: {who}")
}

fn hairpinning(hairpinning: Hairpinning) -> &'static str {
    match hairpinning {
        Hairpinning::Works => {
            "works: two clients behind this NAT reach each other at mapped addresses"
        }
        _ => "does not work: two clients behind this NAT need their local addresses or a relay",
    }
}

fn lifetime(lifetime: Lifetime) -> String {
    match lifetime {
        Lifetime::AtLeast(idle) => {
            format!(
                "at least {:.1} s without traffic, the longest time tested",
                idle.as_secs_f64()
            )
        }
        Lifetime::Between(alive, gone) => format!(
            "a binding was there after {:.1} s without traffic and gone after {:.1} s",
            alive.as_secs_f64(),
            gone.as_secs_f64()
        ),
        _ => "unknown: the server does not know RESPONSE-PORT".to_owned(),
    }
}

/// What it means for two peers that want to talk without a relay. RFC 4787 §4.1: only endpoint-independent mapping
/// makes the address that a server has seen useful to others.
fn conclusion(nat: &NatReport) -> &'static str {
    let Some(filtering) = nat.filtering else {
        return conclusion_over_connections(nat);
    };
    match (nat.has_nat(), nat.mapping, filtering) {
        (false, Behaviour::EndpointIndependent, Behaviour::EndpointIndependent) => {
            "no NAT and no filter: peers reach this machine directly"
        }
        (false, Behaviour::EndpointIndependent, _) => {
            "no NAT, but a firewall: peers reach this machine directly once it has sent to them, as ICE does"
        }
        (_, Behaviour::EndpointIndependent, Behaviour::EndpointIndependent) => {
            "direct connections work with nearly all peers; no relay is needed for most calls"
        }
        (_, Behaviour::EndpointIndependent, _) => {
            "direct connections work if both sides send, as ICE does; a peer behind a NAT with dependent mapping needs a relay (TURN)"
        }
        _ => {
            "direct connections work only with peers that let every address in; all others need a relay (TURN)"
        }
    }
}

/// Over TCP and TLS only the mapping is known.
fn conclusion_over_connections(nat: &NatReport) -> &'static str {
    match (nat.has_nat(), nat.mapping) {
        (false, _) => {
            "no NAT for TCP; whether a firewall lets peers connect can only be tested over UDP"
        }
        (true, Behaviour::EndpointIndependent) => {
            "the NAT gives a TCP port one mapped address for all peers; what it lets in can only be tested over UDP"
        }
        _ => {
            "each peer sees another mapped address over TCP: peers that want to connect need a relay (TURN)"
        }
    }
}
