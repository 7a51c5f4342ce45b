//! The network card: its queues, how it spreads packets over them, who handles their interrupts, and how long its rings
//! are.

use super::limits::some;
use super::system::ProgramOutcome;
use super::{CheckedHost, Finding};
use crate::config::PinWorkers;

/// A ring that is shorter loses packets while the processor does something else for a millisecond.
const MIN_RING_ENTRIES: u32 = 1_024;

/// Runs a check for each interface that is a device. A bridge or a tunnel has no queues of its own.
fn each(host: &CheckedHost<'_>, check: impl Fn(&str) -> Vec<Finding>) -> Vec<Finding> {
    let is_device = |name: &&String| host.system.exists(&format!("/sys/class/net/{name}/device"));
    let devices = host.interfaces.iter().filter(is_device);
    let found = devices.flat_map(|name| check(name)).collect();
    some(
        found,
        "no interface of a default route is a network card (choose one with --interface)",
    )
}

/// Receive queues of an interface.
fn queues_of(host: &CheckedHost<'_>, name: &str) -> Vec<String> {
    let mut queues = host.system.list(&format!("/sys/class/net/{name}/queues"));
    queues.retain(|queue| queue.starts_with("rx-"));
    queues
}

/// The number behind a name in a part of the output of ethtool: `RX: 4096` below `Pre-set maximums:`.
fn value(text: &str, part: &str, name: &str) -> Option<u32> {
    let (_, rest) = text.split_once(part)?;
    let lines = rest
        .lines()
        .skip(1)
        .take_while(|line| !line.ends_with("settings:") && !line.ends_with("maximums:"));
    let mut values = lines.filter_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    values.next()?.trim().parse().ok()
}

const MAXIMUMS: &str = "Pre-set maximums:";
const CURRENT: &str = "Current hardware settings:";

/// Whether there is a queue for each worker.
pub(super) fn queues(host: &CheckedHost<'_>) -> Vec<Finding> {
    let workers = host.workers();
    each(host, |name| {
        let queues = queues_of(host, name).len();
        if queues >= workers {
            return vec![Finding::good(format!(
                "{name} has {queues} receive queues for {workers} workers"
            ))];
        }
        let most = match host.system.run(&format!("ethtool -l {name}")) {
            ProgramOutcome::Text(text) => {
                value(&text, MAXIMUMS, "Combined").or(value(&text, MAXIMUMS, "RX"))
            }
            _ => None,
        };
        let most = most.and_then(|most| usize::try_from(most).ok());
        match most {
            Some(most) if most <= queues => vec![Finding::good(format!(
                "{name} has {queues} receive queues for {workers} workers, and its driver allows no more"
            ))],
            _ => {
                let more = workers.min(most.unwrap_or(workers));
                vec![
                    Finding::warning(format!(
                        "{name} has {queues} receive queues for {workers} workers, so {queues} of the processors take all packets"
                    ))
                    .fix(format!("ethtool -L {name} combined {more}")),
                ]
            }
        }
    })
}

/// Whether the card spreads UDP over its queues by ports, too.
pub(super) fn rss(host: &CheckedHost<'_>) -> Vec<Finding> {
    each(host, |name| {
        if queues_of(host, name).len() < 2 {
            return vec![Finding::good(format!(
                "{name} has one receive queue: there is nothing to spread"
            ))];
        }
        let family = |flow: &str| {
            match host.system.run(&format!("ethtool -n {name} rx-flow-hash {flow}")) {
            ProgramOutcome::Text(text) if text.contains("L4 bytes 0 & 1") && text.contains("L4 bytes 2 & 3") => {
                Finding::good(format!("{name} spreads {flow} over its queues by addresses and ports"))
            }
            ProgramOutcome::Text(_) => Finding::warning(format!(
                "{name} spreads {flow} over its queues by addresses only: all clients behind one NAT share a queue"
            ))
            .fix(format!("ethtool -N {name} rx-flow-hash {flow} sdfn")),
            ProgramOutcome::Missing => Finding::skipped("ethtool is not installed, so nobody can ask for the hash (apt-get install ethtool)"),
            ProgramOutcome::Failed(why) => Finding::skipped(format!("{name} does not tell how it spreads {flow}: {why}")),
        }
        };
        let mut found = vec![family("udp4"), family("udp6")];
        found.dedup();
        found
    })
}

/// Whether the interrupts of the queues go to different processors, and stay there.
pub(super) fn interrupts(host: &CheckedHost<'_>) -> Vec<Finding> {
    let processors = host.system.processors();
    let mut found = each(host, |name| {
        let all = host.system.interrupts(name);
        let mut taken: Vec<usize> = all.iter().filter_map(|one| one.processor).collect();
        let queues = taken.len();
        if queues == 0 {
            return vec![Finding::skipped(format!(
                "{name}: /proc/interrupts names no receive queue of it"
            ))];
        }
        taken.sort_unstable();
        taken.dedup();
        let possible = queues.min(processors.len().max(1));
        if taken.len() >= possible {
            return vec![Finding::good(format!(
                "the {queues} queues of {name} have {} processors",
                taken.len()
            ))];
        }
        let text = format!(
            "the {queues} queues of {name} have {} of {} processors",
            taken.len(),
            processors.len()
        );
        let spread = all.iter().zip(processors.iter().cycle());
        vec![
            spread.fold(Finding::warning(text), |finding, (one, processor)| {
                finding.fix(format!(
                    "echo {processor} > /proc/irq/{}/smp_affinity_list",
                    one.irq
                ))
            }),
        ]
    });
    if host.config.pin_workers == PinWorkers::Queues && runs(host, "irqbalance") {
        found.push(
            Finding::warning("irqbalance moves interrupts, and server.pin_workers = \"queues\" has read them at the start")
                .fix("systemctl disable --now irqbalance"),
        );
    }
    found
}

/// Whether a program of this name runs.
fn runs(host: &CheckedHost<'_>, program: &str) -> bool {
    let processes = host.system.list("/proc");
    let mut processes = processes
        .iter()
        .filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    processes.any(|pid| {
        let name = host.system.read(&format!("/proc/{pid}/comm"));
        name.is_some_and(|name| name.trim_end() == program)
    })
}

/// RPS moves packets to other processors in software: of use with one queue, and in the way with many.
pub(super) fn rps(host: &CheckedHost<'_>) -> Vec<Finding> {
    let processors = host.system.processors();
    each(host, |name| {
        let queues = queues_of(host, name);
        let file = |queue: &str| format!("/sys/class/net/{name}/queues/{queue}/rps_cpus");
        let is_on = |queue: &&String| {
            let mask = host.system.read(&file(queue)).unwrap_or_default();
            mask.bytes()
                .any(|byte| byte.is_ascii_hexdigit() && byte != b'0')
        };
        let on: Vec<&String> = queues.iter().filter(is_on).collect();
        let workers = host.workers();
        vec![match (queues.len(), on.len()) {
            (1, 0) if workers > 1 && processors.len() > 1 => {
                let mask = mask(&processors);
                let text = format!(
                    "{name} has one queue, and RPS is off: one processor takes the packets of {workers} workers"
                );
                Finding::warning(text).fix(format!("echo {mask} > {}", file("rx-0")))
            }
            (2.., 1..) => {
                let text = format!(
                    "{name} has {} queues, and RPS moves each packet once more",
                    queues.len()
                );
                let off = |finding: Finding, queue: &&String| {
                    finding.fix(format!("echo 0 > {}", file(queue)))
                };
                on.iter().fold(Finding::warning(text), off)
            }
            (count, on) => Finding::good(format!("{name}: {count} queues, RPS on {on} of them")),
        }]
    })
}

/// A mask of processors as the kernel reads it: groups of 32 bits, the highest in front.
fn mask(processors: &[usize]) -> String {
    let groups = processors.iter().max().map_or(1, |last| last / 32 + 1);
    let group = |number: usize| {
        let own = processors.iter().filter(|it| **it / 32 == number);
        own.fold(0u32, |bits, it| bits | 1 << (it % 32))
    };
    let mut parts: Vec<String> = (0..groups)
        .rev()
        .map(|number| format!("{:08x}", group(number)))
        .collect();
    if let Some(first) = parts.first_mut() {
        *first = first.trim_start_matches('0').to_owned();
    }
    parts.join(",")
}

/// Warns if the receive ring could be longer, and is below `MIN_RING_ENTRIES` or has lost packets.
pub(super) fn rings(host: &CheckedHost<'_>) -> Vec<Finding> {
    each(host, |name| {
        let missed = host.system.number(&format!(
            "/sys/class/net/{name}/statistics/rx_missed_errors"
        ));
        let missed = missed.filter(|count| *count > 0);
        let lost = missed
            .map(|count| format!("; it has lost {count} packets"))
            .unwrap_or_default();
        let text = match host.system.run(&format!("ethtool -g {name}")) {
            ProgramOutcome::Text(text) => text,
            ProgramOutcome::Missing => {
                return vec![Finding::skipped(
                    "ethtool is not installed, so nobody can ask for the rings (apt-get install ethtool)",
                )];
            }
            ProgramOutcome::Failed(why) => {
                return vec![Finding::skipped(format!(
                    "{name} does not tell its rings: {why}"
                ))];
            }
        };
        let (most, now) = (value(&text, MAXIMUMS, "RX"), value(&text, CURRENT, "RX"));
        let (Some(most), Some(now)) = (most, now) else {
            return vec![Finding::skipped(format!("{name} does not tell its rings"))];
        };
        let is_short = now < most && (now < MIN_RING_ENTRIES || missed.is_some());
        vec![match is_short {
            true => Finding::warning(format!(
                "the receive ring of {name} has {now} of {most} places{lost}"
            ))
            .fix(format!("ethtool -G {name} rx {most}")),
            false => Finding::good(format!(
                "the receive ring of {name} has {now} of {most} places{lost}"
            )),
        }]
    })
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::super::system::numbers;
    use super::super::test_host::{TestHost, is};
    use super::*;

    /// A card with this many queues.
    fn card(queues: usize, config: &str) -> TestHost {
        let made = TestHost::new(config);
        for queue in 0..queues {
            made.file(
                &format!("/sys/class/net/eth0/queues/rx-{queue}/rps_cpus"),
                "0\n",
            );
            made.file(
                &format!("/sys/class/net/eth0/queues/tx-{queue}/xps_cpus"),
                "0\n",
            );
            made.file(
                &format!("/sys/class/net/eth0/device/msi_irqs/{}", 40 + queue),
                "",
            );
        }
        made
    }

    const CHANNELS: &str = "Channel parameters for eth0:\nPre-set maximums:\nRX:\t\t0\nTX:\t\t0\nOther:\t\t1\nCombined:\t8\nCurrent hardware settings:\nRX:\t\t0\nTX:\t\t0\nOther:\t\t1\nCombined:\t2\n";

    #[test]
    fn a_bridge_is_no_card() {
        let made = TestHost::new("");
        for check in ["queues", "rss", "interrupts", "rps", "rings"] {
            is(&made.one(check), Level::Skipped, "is a network card", &[]);
        }
    }

    #[test]
    fn each_worker_needs_a_queue() {
        let made = card(2, "");
        is(
            &made.one("queues"),
            Level::Warning,
            "2 receive queues for 4 workers",
            &["ethtool -L eth0 combined 4"],
        );
        made.says(
            "ethtool -l eth0",
            &CHANNELS.replace("Combined:\t8", "Combined:\t3"),
        );
        is(
            &made.one("queues"),
            Level::Warning,
            "",
            &["ethtool -L eth0 combined 3"],
        );
        made.says(
            "ethtool -l eth0",
            &CHANNELS.replace("Combined:\t8", "Combined:\t2"),
        );
        is(&made.one("queues"), Level::Good, "allows no more", &[]);
        is(
            &card(2, "[server]\nworkers = 2\n").one("queues"),
            Level::Good,
            "2 receive queues for 2 workers",
            &[],
        );
    }

    #[test]
    fn the_hash_must_have_the_ports() {
        is(
            &card(1, "").one("rss"),
            Level::Good,
            "nothing to spread",
            &[],
        );
        let made = card(2, "");
        is(
            &made.one("rss"),
            Level::Skipped,
            "ethtool is not installed",
            &[],
        );
        let hash =
            "UDP over IPV4 flows use these fields for computing Hash flow key:\nIP SA\nIP DA\n";
        made.says("ethtool -n eth0 rx-flow-hash udp4", hash);
        made.says(
            "ethtool -n eth0 rx-flow-hash udp6",
            &format!(
                "{hash}L4 bytes 0 & 1 [TCP/UDP src port]\nL4 bytes 2 & 3 [TCP/UDP dst port]\n"
            ),
        );
        let found = made.run("rss");
        is(
            &found[0],
            Level::Warning,
            "udp4 over its queues by addresses only",
            &["ethtool -N eth0 rx-flow-hash udp4 sdfn"],
        );
        is(
            &found[1],
            Level::Good,
            "udp6 over its queues by addresses and ports",
            &[],
        );
    }

    #[test]
    fn interrupts_belong_on_different_processors() {
        let made = card(2, "[server]\npin_workers = \"queues\"\n");
        is(
            &made.one("interrupts"),
            Level::Skipped,
            "names no receive queue",
            &[],
        );
        made.file("/proc/interrupts", "           CPU0\n 40:  1  PCI-MSI 1-edge  eth0-TxRx-0\n 41:  1  PCI-MSI 2-edge  eth0-TxRx-1\n");
        made.file("/proc/irq/40/effective_affinity_list", "2\n");
        made.file("/proc/irq/41/effective_affinity_list", "2\n");
        is(
            &made.one("interrupts"),
            Level::Warning,
            "the 2 queues of eth0 have 1 of 4 processors",
            &[
                "echo 0 > /proc/irq/40/smp_affinity_list",
                "echo 1 > /proc/irq/41/smp_affinity_list",
            ],
        );
        made.file("/proc/irq/41/effective_affinity_list", "3\n");
        is(
            &made.one("interrupts"),
            Level::Good,
            "have 2 processors",
            &[],
        );
        made.file("/proc/9/comm", "irqbalance\n");
        is(
            &made.run("interrupts")[1],
            Level::Warning,
            "irqbalance moves",
            &["systemctl disable --now irqbalance"],
        );
    }

    #[test]
    fn rps_helps_with_one_queue_and_costs_with_many() {
        let one = card(1, "");
        is(
            &one.one("rps"),
            Level::Warning,
            "one queue, and RPS is off",
            &["echo f > /sys/class/net/eth0/queues/rx-0/rps_cpus"],
        );
        one.file("/sys/class/net/eth0/queues/rx-0/rps_cpus", "f\n");
        is(&one.one("rps"), Level::Good, "", &[]);
        let two = card(2, "");
        assert_eq!(two.one("rps").level, Level::Good);
        two.file(
            "/sys/class/net/eth0/queues/rx-1/rps_cpus",
            "00000000,0000000f\n",
        );
        is(
            &two.one("rps"),
            Level::Warning,
            "RPS moves each packet",
            &["echo 0 > /sys/class/net/eth0/queues/rx-1/rps_cpus"],
        );
        assert_eq!(mask(&[0, 1, 33]), "2,00000003");
        assert_eq!(mask(&numbers("0-31")), "ffffffff");
    }

    #[test]
    fn a_short_ring_is_to_be_as_long_as_the_card_can() {
        let made = card(2, "");
        is(
            &made.one("rings"),
            Level::Skipped,
            "ethtool is not installed",
            &[],
        );
        let rings = "Ring parameters for eth0:\nPre-set maximums:\nRX:\t\t4096\nRX Mini:\tn/a\nTX:\t\t4096\nCurrent hardware settings:\nRX:\t\t256\nTX:\t\t256\n";
        made.says("ethtool -g eth0", rings);
        is(
            &made.one("rings"),
            Level::Warning,
            "256 of 4096 places",
            &["ethtool -G eth0 rx 4096"],
        );
        made.says(
            "ethtool -g eth0",
            &rings.replace("RX:\t\t256", "RX:\t\t2048"),
        );
        is(&made.one("rings"), Level::Good, "2048 of 4096", &[]);
        made.file("/sys/class/net/eth0/statistics/rx_missed_errors", "17\n");
        is(
            &made.one("rings"),
            Level::Warning,
            "it has lost 17 packets",
            &["ethtool -G eth0 rx 4096"],
        );
        made.says("ethtool -g eth0", "Ring parameters for eth0:\n");
        assert_eq!(made.one("rings").level, Level::Skipped);
    }
}
