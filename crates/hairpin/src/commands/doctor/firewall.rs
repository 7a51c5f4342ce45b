//! The rules of nftables (and of iptables, which uses them): whether clients and peers get through.

use std::ops::RangeInclusive;

use super::limits::{covers, dashed, listening_ports, ranges};
use super::system::Said;
use super::{Finding, Patient};

/// A chain that packets to this machine pass, and that drops what no rule accepts.
#[derive(Debug, Default, PartialEq, Eq)]
struct Closed {
    /// `inet filter`.
    table: String,
    chain: String,
}

/// What matters of a ruleset.
#[derive(Debug, Default)]
struct Rules {
    closed: Vec<Closed>,
    /// UDP ports that some rule accepts.
    open: Vec<RangeInclusive<u16>>,
}

pub(super) fn check(patient: &Patient<'_>) -> Vec<Finding> {
    let text = match patient.system.run("nft list ruleset") {
        Said::Text(text) => text,
        Said::Missing => {
            return vec![Finding::skipped(
                "nft is not installed, so there is nothing to ask for the rules of a firewall (apt-get install nftables)",
            )];
        }
        Said::Failed(why) => {
            return vec![Finding::skipped(format!(
                "nft does not show its rules: {why}; run it as root"
            ))];
        }
    };
    let rules = Rules::of(&text);
    let Some(closed) = rules.closed.first() else {
        return vec![Finding::good(
            "no chain of nftables drops what comes in by default",
        )];
    };
    let relays = patient.config.relay_ports.clone();
    let mut wanted: Vec<RangeInclusive<u16>> = Vec::new();
    wanted.extend(listening_ports(patient).into_iter().map(|port| port..=port));
    wanted.push(relays);
    let missing: Vec<String> = wanted
        .iter()
        .filter(|range| !covers(&rules.open, range))
        .map(dashed)
        .collect();
    let Closed { table, chain } = closed;
    vec![match missing.is_empty() {
        true => Finding::good(format!(
            "the chain {chain} of {table} drops by default, and accepts the UDP ports of the server"
        )),
        false => {
            let list = missing.join(", ");
            Finding::wrong(format!(
                "the chain {chain} of {table} drops by default, and no rule accepts the UDP ports {list}"
            ))
            .mend(format!("nft insert rule {table} {chain} udp dport '{{ {list} }}' accept"))
        }
    }]
}

impl Rules {
    /// Reads `nft list ruleset`: a table, in it chains, in them rules, one per line.
    fn of(text: &str) -> Rules {
        let mut rules = Rules::default();
        let (mut table, mut chain) = (String::new(), String::new());
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("table ") {
                table = name.trim_end_matches('{').trim().to_owned();
            } else if let Some(name) = line.strip_prefix("chain ") {
                chain = name.trim_end_matches('{').trim().to_owned();
            } else if line.contains("hook input") && line.contains("policy drop") {
                let (table, chain) = (table.clone(), chain.clone());
                rules.closed.push(Closed { table, chain });
            } else if line
                .split_whitespace()
                .any(|word| word == "accept" || word == "ACCEPT")
            {
                rules.open.extend(accepted(line));
            }
        }
        rules
    }
}

/// The UDP ports that a rule with `accept` accepts.
fn accepted(line: &str) -> Vec<RangeInclusive<u16>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // "iifname lo accept" and "ct state established accept" open nothing to strangers.
    let restricts = ["iif", "iifname", "ct", "saddr", "daddr"];
    if words.iter().any(|word| restricts.contains(word)) {
        return Vec::new();
    }
    if let Some((_, after)) = line.split_once("dport ") {
        let is_udp =
            line.contains("udp dport") || line.contains("th dport") || line.contains("udp");
        let list = match after.strip_prefix('{') {
            Some(rest) => rest.split('}').next().unwrap_or_default(),
            None => after.split_whitespace().next().unwrap_or_default(),
        };
        return match is_udp {
            true => ranges(&list.replace(", ", ",").replace(' ', "")),
            false => Vec::new(),
        };
    }
    let is_all = words.first() == Some(&"accept") || words.first() == Some(&"counter");
    let is_all_udp = line.contains("l4proto udp") || line.contains("protocol udp");
    match is_all || is_all_udp {
        true => vec![0..=u16::MAX],
        false => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::made_up::{MadeUp, is};

    const CONFIG: &str = "[listen]\nudp = [\"0.0.0.0:3478\"]\n[relay]\nports = \"49152-65535\"\n";

    fn ruleset(rule: &str) -> String {
        format!(
            "table inet filter {{\n\tchain input {{\n\t\ttype filter hook input priority filter; policy drop;\n\t\tct state established,related accept\n\t\tiifname \"lo\" accept\n\t\ttcp dport 22 accept\n\t\t{rule}\n\t}}\n}}\n"
        )
    }

    #[test]
    fn a_chain_that_drops_by_default_must_accept_the_ports() {
        let made = MadeUp::new(CONFIG);
        is(
            &made.one("firewall"),
            Level::Skipped,
            "nft is not installed",
            &[],
        );
        made.says("nft list ruleset", "");
        is(&made.one("firewall"), Level::Good, "no chain", &[]);
        let closed = |rule: &str| {
            made.says("nft list ruleset", &ruleset(rule));
            made.one("firewall")
        };
        is(
            &closed(""),
            Level::Wrong,
            "no rule accepts the UDP ports 3478, 49152-65535",
            &["nft insert rule inet filter input udp dport '{ 3478, 49152-65535 }' accept"],
        );
        is(
            &closed("udp dport { 3478, 50000-65535 } accept"),
            Level::Wrong,
            "the UDP ports 49152-65535",
            &["nft insert rule inet filter input udp dport '{ 49152-65535 }' accept"],
        );
        for open in [
            "udp dport { 3478, 49152-65535 } accept",
            "udp dport { 53, 3478, 5349, 49152-65535 } counter packets 0 bytes 0 accept",
            "udp dport 1024-65535 accept",
            "meta l4proto udp accept",
            "counter packets 1 bytes 2 accept",
        ] {
            is(
                &closed(open),
                Level::Good,
                "drops by default, and accepts",
                &[],
            );
        }
        for shut in [
            "ip saddr 10.0.0.0/8 udp dport 1-65535 accept",
            "udp dport 1-65535 drop",
            "tcp dport 1-65535 accept",
        ] {
            assert_eq!(closed(shut).level, Level::Wrong, "{shut}");
        }
    }
}
