//! Limits of the kernel: files, buffers, ports, and the table of connections.

use std::ops::RangeInclusive;

use super::{CheckedHost, Finding};
use crate::config::write_bytes;

/// What a server opens besides: listeners of all workers, epoll, databases, the log.
const OTHER_FILES: u64 = 1_000;

/// The hard limit of files of a running server, or else of this process, and whose it is.
fn limit_of_files(host: &CheckedHost<'_>) -> Option<(u64, &'static str)> {
    let system = host.system;
    let is_server = |pid: &String| {
        let command = system.read(&format!("/proc/{pid}/cmdline"));
        command.is_some_and(|command| {
            let words: Vec<&str> = command.split('\0').collect();
            words
                .first()
                .is_some_and(|it| it.rsplit('/').next() == Some("hairpin"))
                && words.contains(&"serve")
        })
    };
    let processes = system.list("/proc").into_iter();
    let mut processes = processes.filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let server = processes.find(is_server);
    let whose = if server.is_some() {
        "the server"
    } else {
        "this shell"
    };
    let of = server.unwrap_or_else(|| "self".to_owned());
    let text = system.read(&format!("/proc/{of}/limits"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    let hard = line.split_whitespace().nth(1)?;
    // "unlimited" is more than anybody needs.
    Some((hard.parse().unwrap_or(u64::MAX), whose))
}

/// Whether the server may open a file for each allocation and connection.
pub(super) fn files(host: &CheckedHost<'_>) -> Vec<Finding> {
    let config = host.config;
    let limits = &config.limits;
    let relays = match config.relay_shared_ports {
        true => 0,
        false => u64::from(limits.allocations),
    };
    let sip = match config.sip.listen.is_empty() {
        true => 0,
        false => u64::from(config.sip.connections),
    };
    let wanted = relays + u64::from(limits.connections) + sip + OTHER_FILES;
    let Some((limit, whose)) = limit_of_files(host) else {
        return vec![Finding::skipped(
            "/proc does not tell the limit of open files",
        )];
    };
    let mut found = vec![match limit >= wanted {
        true => Finding::good(format!("{whose} may open {limit} files; the limits of the configuration need {wanted}")),
        false => Finding::warning(format!(
            "{whose} may open {limit} files; limits.allocations and limits.connections need {wanted}. Beyond, clients get 508"
        ))
        .fix("mkdir -p /etc/systemd/system/hairpin.service.d")
        .fix(format!(
            "printf '[Service]\\nLimitNOFILE={wanted}\\n' > /etc/systemd/system/hairpin.service.d/files.conf"
        ))
        .fix("systemctl daemon-reload && systemctl restart hairpin"),
    }];
    for (name, path) in [
        ("fs.file-max", "/proc/sys/fs/file-max"),
        ("fs.nr_open", "/proc/sys/fs/nr_open"),
    ] {
        if let Some(limit) = host.system.number(path).filter(|limit| *limit < wanted) {
            let text = format!("{name} is {limit}; the server needs {wanted} files");
            found.push(Finding::warning(text).fix(format!("sysctl -w {name}={wanted}")));
        }
    }
    found
}

/// Whether sockets get the buffers that the configuration wants.
pub(super) fn buffers(host: &CheckedHost<'_>) -> Vec<Finding> {
    let config = host.config;
    let check = |(name, path, wanted, key): (&str, &str, u32, &str)| {
        let limit = host.system.number(path)?;
        let shown = write_bytes(u32::try_from(limit).unwrap_or(u32::MAX));
        Some(match limit >= u64::from(wanted) {
            true => Finding::good(format!("{name} is {shown}; {key} wants {}", write_bytes(wanted))),
            false => Finding::warning(format!(
                "{name} is {shown}, and {key} wants {}: bursts are lost, unless the server has CAP_NET_ADMIN",
                write_bytes(wanted)
            ))
            .fix(format!("sysctl -w {name}={wanted}")),
        })
    };
    let all = [
        (
            "net.core.rmem_max",
            "/proc/sys/net/core/rmem_max",
            config.receive_buffer,
            "server.receive_buffer",
        ),
        (
            "net.core.wmem_max",
            "/proc/sys/net/core/wmem_max",
            config.send_buffer,
            "server.send_buffer",
        ),
    ];
    some(
        all.into_iter().filter_map(check).collect(),
        "/proc/sys/net/core has no limits of buffers",
    )
}

/// Whether the kernel gives ports of relays to other programs.
pub(super) fn ports(host: &CheckedHost<'_>) -> Vec<Finding> {
    let wanted = &host.config.relay_ports;
    let range = "/proc/sys/net/ipv4/ip_local_port_range";
    let text = host.system.read(range).unwrap_or_default();
    let mut numbers = text
        .split_whitespace()
        .filter_map(|word| word.parse::<u16>().ok());
    let (Some(first), Some(last)) = (numbers.next(), numbers.next()) else {
        return vec![Finding::skipped(format!("{range} cannot be read"))];
    };
    let common = (*wanted.start()).max(first)..=(*wanted.end()).min(last);
    if common.is_empty() {
        return vec![Finding::good(format!(
            "relay.ports {} are apart from the ports {first}-{last} that the kernel gives to programs",
            dashed(wanted)
        ))];
    }
    let reserved = host
        .system
        .read("/proc/sys/net/ipv4/ip_local_reserved_ports");
    let reserved = ranges(&reserved.unwrap_or_default());
    if covers(&reserved, &common) {
        return vec![Finding::good(format!(
            "relay.ports {} are reserved",
            dashed(wanted)
        ))];
    }
    let mut list: Vec<String> = reserved.iter().map(dashed).collect();
    list.push(dashed(&common));
    vec![
        Finding::warning(format!(
            "the kernel gives the ports {} of relay.ports to other programs, too; allocations then find them taken",
            dashed(&common)
        ))
        .fix(format!("sysctl -w net.ipv4.ip_local_reserved_ports={}", list.join(","))),
    ]
}

/// Whether the kernel's table of connections has room for all flows.
pub(super) fn conntrack(host: &CheckedHost<'_>) -> Vec<Finding> {
    let of = |name: &str| {
        let path = format!("/proc/sys/net/netfilter/nf_conntrack_{name}");
        host.system.number(&path)
    };
    let (Some(most), Some(count)) = (of("max"), of("count")) else {
        return vec![Finding::good("the kernel tracks no connections")];
    };
    // A flow with the client, and one with a peer at least.
    let wanted = u64::from(host.config.limits.allocations).saturating_mul(2);
    let listeners = listening_ports(host);
    let ports: Vec<String> = listeners.iter().map(ToString::to_string).collect();
    let ports = format!(
        "{{ {}, {} }}",
        ports.join(", "),
        dashed(&host.config.relay_ports)
    );
    let untracked = |finding: Finding| {
        finding
            .fix("nft add table inet hairpin")
            .fix("nft add chain inet hairpin untracked '{ type filter hook prerouting priority raw; }'")
            .fix(format!("nft add rule inet hairpin untracked udp dport '{ports}' notrack"))
    };
    if count.saturating_mul(10) > most.saturating_mul(9) {
        let text = format!(
            "the table of connections (conntrack) is nearly full: {count} of {most}; then the kernel drops packets of new flows"
        );
        let finding = Finding::wrong(text).fix(format!(
            "sysctl -w net.netfilter.nf_conntrack_max={}",
            most.saturating_mul(2).max(wanted)
        ));
        return vec![untracked(finding)];
    }
    vec![match most >= wanted {
        true => Finding::good(format!("conntrack has {count} of {most} connections")),
        false => untracked(
            Finding::warning(format!(
                "conntrack has room for {most} connections, and limits.allocations needs {wanted}; raise it, or do not track these packets"
            ))
            .fix(format!("sysctl -w net.netfilter.nf_conntrack_max={wanted}")),
        ),
    }]
}

/// Ports of UDP listeners.
pub(super) fn listening_ports(host: &CheckedHost<'_>) -> Vec<u16> {
    let config = host.config;
    let list = config
        .listen_udp
        .iter()
        .chain(&config.listen_dtls)
        .flatten();
    let sip = config.sip.listen.iter();
    let mut ports: Vec<u16> = list.chain(sip).map(std::net::SocketAddr::port).collect();
    if config.listen_udp.is_none() {
        ports.push(crate::config::DEFAULT_PORT);
    }
    ports.retain(|port| *port != 0);
    ports.sort_unstable();
    ports.dedup();
    ports
}

pub(super) fn dashed(range: &RangeInclusive<u16>) -> String {
    match range.start() == range.end() {
        true => range.start().to_string(),
        false => format!("{}-{}", range.start(), range.end()),
    }
}

/// The ranges of a list such as `3478,49152-65535`.
pub(super) fn ranges(list: &str) -> Vec<RangeInclusive<u16>> {
    let parts = list.split([',', ' ', '\n']).filter(|part| !part.is_empty());
    parts
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
        })
        .collect()
}

/// Whether each port of `wanted` is in one of the ranges.
pub(super) fn covers(ranges: &[RangeInclusive<u16>], wanted: &RangeInclusive<u16>) -> bool {
    wanted
        .clone()
        .all(|port| ranges.iter().any(|range| range.contains(&port)))
}

/// The findings, or one that says that there is nothing to look at.
pub(super) fn some(found: Vec<Finding>, none: &str) -> Vec<Finding> {
    match found.is_empty() {
        true => vec![Finding::skipped(none)],
        false => found,
    }
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::test_host::{TestHost, is};

    const LIMITS: &str = "Limit                     Soft Limit           Hard Limit           Units     \nMax processes             1                    1                    processes \nMax open files            1024                 HARD                 files     \n";

    #[test]
    fn files_are_those_of_the_server_that_runs() {
        let made = TestHost::new("[limits]\nallocations = 5000\nconnections = 1000\n");
        made.file("/proc/self/limits", &LIMITS.replace("HARD", "4096"));
        let found = made.one("files");
        assert_eq!((found.level, found.fix.len()), (Level::Warning, 3));
        assert!(
            found.text.starts_with("this shell may open 4096 files")
                && found.fix[1].contains("LimitNOFILE=7000"),
            "{found:?}"
        );
        made.file("/proc/77/cmdline", "/usr/bin/hairpin\0serve\0");
        made.file("/proc/77/limits", &LIMITS.replace("HARD", "1048576"));
        is(
            &made.one("files"),
            Level::Good,
            "the server may open 1048576 files",
            &[],
        );
        made.file("/proc/sys/fs/file-max", "1000\n");
        is(
            &made.run("files")[1],
            Level::Warning,
            "fs.file-max is 1000",
            &["sysctl -w fs.file-max=7000"],
        );
    }

    #[test]
    fn buffers_below_the_wish_are_named() {
        let made = TestHost::new("[server]\nreceive_buffer = \"8MiB\"\n");
        assert_eq!(made.one("buffers").level, Level::Skipped);
        made.file("/proc/sys/net/core/rmem_max", "212992\n");
        is(
            &made.one("buffers"),
            Level::Warning,
            "net.core.rmem_max is 208KiB",
            &["sysctl -w net.core.rmem_max=8388608"],
        );
        made.file("/proc/sys/net/core/rmem_max", "8388608\n");
        assert_eq!(made.one("buffers").level, Level::Good);
    }

    #[test]
    fn ports_that_the_kernel_gives_to_others_are_to_be_reserved() {
        let made = TestHost::new("[relay]\nports = \"49152-65535\"\n");
        assert_eq!(made.one("ports").level, Level::Skipped);
        made.file("/proc/sys/net/ipv4/ip_local_port_range", "32768\t60999\n");
        made.file(
            "/proc/sys/net/ipv4/ip_local_reserved_ports",
            "8080,9000-9010\n",
        );
        is(
            &made.one("ports"),
            Level::Warning,
            "the ports 49152-60999 of relay.ports",
            &["sysctl -w net.ipv4.ip_local_reserved_ports=8080,9000-9010,49152-60999"],
        );
        made.file(
            "/proc/sys/net/ipv4/ip_local_reserved_ports",
            "49000-61000\n",
        );
        is(&made.one("ports"), Level::Good, "are reserved", &[]);
        made.file("/proc/sys/net/ipv4/ip_local_port_range", "32768\t49151\n");
        is(&made.one("ports"), Level::Good, "are apart", &[]);
    }

    #[test]
    fn a_table_of_connections_that_fills_up_is_an_error() {
        let made =
            TestHost::new("[limits]\nallocations = 100000\n[listen]\nudp = [\"0.0.0.0:3478\"]\n");
        is(
            &made.one("conntrack"),
            Level::Good,
            "tracks no connections",
            &[],
        );
        made.file("/proc/sys/net/netfilter/nf_conntrack_max", "65536\n");
        made.file("/proc/sys/net/netfilter/nf_conntrack_count", "64000\n");
        let full = made.one("conntrack");
        assert_eq!(
            (full.level, &*full.fix[0]),
            (
                Level::Wrong,
                "sysctl -w net.netfilter.nf_conntrack_max=200000"
            )
        );
        assert!(
            full.fix[3].ends_with("udp dport '{ 3478, 49152-65535 }' notrack"),
            "{full:?}"
        );
        made.file("/proc/sys/net/netfilter/nf_conntrack_count", "10\n");
        assert_eq!(made.one("conntrack").level, Level::Warning);
        made.file("/proc/sys/net/netfilter/nf_conntrack_max", "262144\n");
        assert_eq!(made.one("conntrack").level, Level::Good);
    }
}
