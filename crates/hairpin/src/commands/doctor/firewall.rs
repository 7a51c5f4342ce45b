//! The rules of nftables (and of iptables, which uses them): whether clients and peers get through.

use std::ops::RangeInclusive;

use super::limits::{covers, dashed, listening_ports, ranges};
use super::system::ProgramOutcome;
use super::{CheckedHost, Finding};

/// A chain.
#[derive(Debug, Default, PartialEq, Eq)]
struct Chain {
    /// `inet filter`.
    table: String,
    name: String,
    /// Packets to this machine pass it, and it drops what no rule accepts.
    is_closed: bool,
    /// UDP ports that its own rules accept.
    open: Vec<RangeInclusive<u16>>,
    /// Chains of the same table that it asks.
    jumps: Vec<String>,
}

/// The chains of a ruleset.
#[derive(Debug, Default)]
struct Rules(Vec<Chain>);

pub(super) fn check(host: &CheckedHost<'_>) -> Vec<Finding> {
    let text = match host.system.run("nft list ruleset") {
        ProgramOutcome::Text(text) => text,
        ProgramOutcome::Missing => {
            return vec![Finding::skipped(
                "nft is not installed, so there is nothing to ask for the rules of a firewall (apt-get install nftables)",
            )];
        }
        ProgramOutcome::Failed(why) => {
            return vec![Finding::skipped(format!(
                "nft does not show its rules: {why}; run it as root"
            ))];
        }
    };
    let rules = Rules::of(&text);
    let mut wanted: Vec<RangeInclusive<u16>> = Vec::new();
    wanted.extend(listening_ports(host).into_iter().map(|port| port..=port));
    wanted.push(host.config.relay_ports.clone());
    // A packet must pass all of them: to accept in one chain does not skip the others.
    let closed = rules.0.iter().filter(|chain| chain.is_closed);
    let closed = closed.filter(|chain| has_family(host, &chain.table));
    let found: Vec<_> = closed
        .map(|chain| one(chain, &rules.open(chain), &wanted))
        .collect();
    match found.is_empty() {
        true => vec![Finding::good(
            "no chain of nftables drops what comes in by default",
        )],
        false => found,
    }
}

/// Whether packets for this server pass the table: `ip6 filter` sees IPv6 only.
fn has_family(host: &CheckedHost<'_>, table: &str) -> bool {
    let config = host.config;
    let Some(listeners) = &config.listen_udp else {
        return true;
    };
    let mut all = listeners
        .iter()
        .chain(config.listen_dtls.iter().flatten())
        .chain(&config.sip.listen);
    match table.split_whitespace().next() {
        // An IPv6 socket for all addresses has IPv4, too.
        Some("ip") => all.any(|at| at.is_ipv4() || at.ip().is_unspecified()),
        Some("ip6") => all.any(std::net::SocketAddr::is_ipv6),
        Some("inet") | None => true,
        // Frames of a bridge, and ARP.
        Some(_) => false,
    }
}

fn one(chain: &Chain, open: &[RangeInclusive<u16>], wanted: &[RangeInclusive<u16>]) -> Finding {
    let Chain { table, name, .. } = chain;
    let missing: Vec<String> = wanted
        .iter()
        .filter(|range| !covers(open, range))
        .map(dashed)
        .collect();
    if missing.is_empty() {
        return Finding::good(format!(
            "the chain {name} of {table} drops by default, and accepts the UDP ports of the server"
        ));
    }
    let list = missing.join(", ");
    Finding::wrong(format!(
        "the chain {name} of {table} drops by default, and no rule accepts the UDP ports {list}"
    ))
    .fix(format!(
        "nft insert rule {table} {name} udp dport '{{ {list} }}' accept"
    ))
}

impl Rules {
    /// Reads `nft list ruleset`: a table, in it chains, in them rules, one per line.
    fn of(text: &str) -> Rules {
        let mut rules = Rules::default();
        let mut table = String::new();
        for line in text.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix("table ") {
                table = name.trim_end_matches('{').trim().to_owned();
                continue;
            }
            if let Some(name) = line.strip_prefix("chain ") {
                rules.0.push(Chain {
                    table: table.clone(),
                    name: name.trim_end_matches('{').trim().to_owned(),
                    ..Chain::default()
                });
                continue;
            }
            let Some(chain) = rules.0.last_mut() else {
                continue;
            };
            if line.contains("hook input") {
                chain.is_closed = line.contains("policy drop");
                continue;
            }
            let words: Vec<_> = line.split_whitespace().collect();
            if words
                .iter()
                .any(|word| *word == "accept" || *word == "ACCEPT")
            {
                chain.open.extend(accepted(line));
            }
            chain.jumps.extend(jumps(&words));
        }
        rules
    }

    /// The UDP ports that a chain accepts, or one that it asks.
    fn open(&self, of: &Chain) -> Vec<RangeInclusive<u16>> {
        let mut asked = vec![of.name.as_str()];
        let mut open = Vec::new();
        let mut next = 0;
        while let Some(name) = asked.get(next).copied() {
            next += 1;
            let is_it = |chain: &&Chain| chain.table == of.table && chain.name == name;
            for chain in self.0.iter().filter(is_it) {
                open.extend_from_slice(&chain.open);
                for jump in &chain.jumps {
                    if !asked.contains(&jump.as_str()) {
                        asked.push(jump);
                    }
                }
            }
        }
        open
    }
}

/// The chains that a rule asks for packets of strangers. A rule for one interface counts: it may be that of the server.
fn jumps(words: &[&str]) -> Vec<String> {
    let restricts = ["saddr", "daddr", "sport", "oif", "oifname"];
    if words.iter().any(|word| restricts.contains(word)) {
        return Vec::new();
    }
    let pairs = words.windows(2);
    pairs
        .filter(|pair| ["jump", "goto"].contains(&pair[0]))
        .map(|pair| pair[1].trim_end_matches(',').to_owned())
        .collect()
}

/// The UDP ports that a rule with `accept` accepts.
fn accepted(line: &str) -> Vec<RangeInclusive<u16>> {
    let words: Vec<&str> = line.split_whitespace().collect();
    // "iifname lo accept" and "ct state established accept" open nothing to strangers.
    let restricts = [
        "iif", "iifname", "oif", "oifname", "ct", "saddr", "daddr", "sport",
    ];
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
    use super::super::test_host::{TestHost, is};

    const CONFIG: &str = "[listen]\nudp = [\"0.0.0.0:3478\"]\n[relay]\nports = \"49152-65535\"\n";

    fn ruleset(rule: &str) -> String {
        format!(
            "table inet filter {{\n\tchain input {{\n\t\ttype filter hook input priority filter; policy drop;\n\t\tct state established,related accept\n\t\tiifname \"lo\" accept\n\t\ttcp dport 22 accept\n\t\t{rule}\n\t}}\n}}\n"
        )
    }

    #[test]
    fn a_chain_that_drops_by_default_must_accept_the_ports() {
        let made = TestHost::new(CONFIG);
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

    #[test]
    fn rules_of_other_chains_open_only_those_that_ask_them() {
        let made = TestHost::new(CONFIG);
        let says = |text: &str| {
            made.says("nft list ruleset", text);
            made.one("firewall")
        };
        let accept = "udp dport 1-65535 accept";
        for hook in ["output", "forward"] {
            let other = format!(
                "table inet filter {{\n\tchain {hook} {{\n\t\ttype filter hook {hook} priority filter; policy drop;\n\t\t{accept}\n\t}}\n}}\n"
            );
            assert_eq!(says(&(ruleset("") + &other)).level, Level::Wrong, "{hook}");
            assert_eq!(says(&other).level, Level::Good, "{hook}");
        }
        let own = format!("table inet filter {{\n\tchain own {{\n\t\t{accept}\n\t}}\n}}\n");
        for (rule, level) in [
            ("counter packets 1 bytes 2 jump own", Level::Good),
            ("iifname \"eth0\" goto own", Level::Good),
            (
                "iifname vmap { \"lo\" : accept, \"eth0\" : jump own }",
                Level::Good,
            ),
            ("jump other", Level::Wrong),
            ("ip saddr 10.0.0.0/8 jump own", Level::Wrong),
            ("", Level::Wrong),
        ] {
            assert_eq!(says(&(ruleset(rule) + &own)).level, level, "{rule}");
        }
        let of_another_table = own.replace("inet", "ip");
        let text = ruleset("jump own") + &of_another_table;
        assert_eq!(says(&text).level, Level::Wrong);
    }

    #[test]
    fn each_closed_chain_must_accept_the_ports() {
        let made = TestHost::new(CONFIG);
        let open = ruleset("udp dport 1-65535 accept");
        let second = ruleset("").replace("inet", "ip");
        made.says("nft list ruleset", &(open + &second));
        let found = made.run("firewall");
        let levels: Vec<_> = found.iter().map(|finding| finding.level).collect();
        assert_eq!(levels, [Level::Good, Level::Wrong]);
        // The server has no IPv6.
        let sixth = ruleset("").replace("inet", "ip6");
        made.says("nft list ruleset", &sixth);
        assert_eq!(made.one("firewall").level, Level::Good);
    }

    #[test]
    fn a_rule_for_some_packets_opens_nothing() {
        let made = TestHost::new(CONFIG);
        for some in [
            "oifname \"eth1\" accept",
            "oif \"eth1\" udp dport 1-65535 accept",
            "udp sport 53 udp dport 1-65535 accept",
            "meta l4proto udp udp sport 53 accept",
        ] {
            made.says("nft list ruleset", &ruleset(some));
            assert_eq!(made.one("firewall").level, Level::Wrong, "{some}");
        }
    }
}
