//! Peer rules. In coturn an allowed peer takes precedence over a denied one; in hairpin the longest prefix decides.

use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Subnets, Ipv6Subnets};

use super::{Draft, File, Line, Row, Rule, Verdict, flag, list, unnecessary};

const ALLOW: &str = "peers.allow";
const DENY: &str = "peers.deny";

pub(super) const ROWS: &[Row] = &[
    list(
        "allowed-peer-ip",
        Rule::Decide(|line, _, draft| match networks(line) {
            Some(networks) => {
                networks
                    .iter()
                    .for_each(|network| draft.push(ALLOW, network.to_string()));
                Verdict::carried(ALLOW)
            }
            None => Verdict::wrong("write an address or FIRST-LAST"),
        }),
    ),
    list("denied-peer-ip", Rule::Decide(denied)),
    flag(
        "no-multicast-peers",
        unnecessary("hairpin always denies multicast"),
    ),
    flag(
        "allow-loopback-peers",
        Rule::Decide(|_, _, draft| {
            draft.push(ALLOW, "127.0.0.0/8");
            draft.push(ALLOW, "::1/128");
            Verdict::carried(ALLOW)
        }),
    ),
];

/// The networks that cover exactly an address, a range `FIRST-LAST` or a network. `None` if the value is none of these.
fn networks(line: &Line) -> Option<Vec<IpNet>> {
    let text = line.word();
    if let Ok(network) = text.parse::<IpNet>() {
        return Some(vec![network.trunc()]);
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    match (first.parse().ok()?, last.parse().ok()?) {
        (IpAddr::V4(first), IpAddr::V4(last)) if first <= last => {
            Some(Ipv4Subnets::new(first, last, 0).map(IpNet::V4).collect())
        }
        (IpAddr::V6(first), IpAddr::V6(last)) if first <= last => {
            Some(Ipv6Subnets::new(first, last, 0).map(IpNet::V6).collect())
        }
        _ => None,
    }
}

/// Adds the networks of a `denied-peer-ip` line to `peers.deny`, except those within an `allowed-peer-ip`. coturn
/// allows these, but in hairpin their longer prefix would deny them.
fn denied(line: &Line, file: &File, draft: &mut Draft) -> Verdict {
    let Some(networks) = networks(line) else {
        return Verdict::wrong("write an address or FIRST-LAST");
    };
    let allowed: Vec<IpNet> = file
        .all("allowed-peer-ip")
        .filter_map(self::networks)
        .flatten()
        .collect();
    let is_allowed = |network: &&IpNet| allowed.iter().any(|wider| wider.contains(*network));
    let overruled = networks.iter().filter(is_allowed).count();
    let kept = networks.iter().filter(|network| !is_allowed(network));
    kept.for_each(|network| draft.push(DENY, network.to_string()));
    match overruled {
        0 => Verdict::carried(DENY),
        all if all == networks.len() => {
            Verdict::unnecessary("in coturn, an allowed-peer-ip takes precedence over it")
        }
        _ => Verdict::carried(format!("{DENY}, without the addresses of allowed-peer-ip")),
    }
}
