//! The checks, and the expected results of each kernel.

use std::collections::BTreeMap;

use super::kernels::{Linux, SUITES};
use super::results::CheckResult;
use crate::tally::Tally;

/// A check that runs in each machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) run: CheckKind,
    /// The oldest kernel that it is run on.
    pub(crate) since: Linux,
    /// Its timeout in seconds. Without KVM, a machine is 10 to 20 times slower than this one.
    pub(crate) seconds: u32,
}

impl Check {
    /// Whether it takes a minute and more without KVM. The other checks load every program and relay by every path.
    fn is_slow(&self) -> bool {
        SLOW_CHECKS.contains(&self.name)
    }
}

const SLOW_CHECKS: &[&str] = &[
    "many_processors",
    "relay_programs",
    "offload",
    "interfaces",
    "data_paths",
    "devices",
];

/// This check takes a minute, too. No other check of the test command uses a bond, so the test command runs it on the
/// newest kernel only.
const NEWEST_KERNEL_CHECK: &str = "bond";

/// The checks that the test command runs.
pub(super) fn quick(checks: &mut Vec<Check>) {
    checks.retain(|check| !check.is_slow());
    for check in checks {
        if check.name == NEWEST_KERNEL_CHECK {
            check.since = SUITES[SUITES.len() - 1].linux;
        }
    }
}

/// The program of a check.
#[derive(Debug, Clone, Copy)]
pub(crate) enum CheckKind {
    /// `guest/checks/NAME.sh`.
    Script,
    /// The test binary of this name of a crate, with arguments that select tests.
    Tests {
        package: &'static str,
        binary: &'static str,
        arguments: &'static [&'static str],
    },
}

const ANY_LINUX: Linux = Linux(5, 10);
/// The first kernel that loads the programs of the relay and of the SIP admission filter.
const LINUX_WITH_RELAY: Linux = Linux(5, 12);
/// The first kernel on which tc attaches by TCX.
const LINUX_WITH_TCX: Linux = Linux(6, 6);
/// The first kernel on which drivers report whether frames can be redirected to them. Before, XDP relays only to the
/// interface from which a packet came.
const DRIVERS_REPORT_XDP: Linux = Linux(6, 3);
/// The failure of a test in which XDP redirects packets to another interface while the server is stopped.
const NOT_REDIRECTED: &str = "did not arrive";
/// All checks, in the order in which they run.
pub(crate) const CHECKS: &[Check] = &[
    tests("programs", "bpf", "programs", &[], ANY_LINUX, 60),
    tests("floor", "bpf", "floor", &[], ANY_LINUX, 60),
    tests("steer", "bpf", "steer", &[], ANY_LINUX, 60),
    tests(
        "sip_admission_filter",
        "bpf",
        "admission_filter",
        &[],
        LINUX_WITH_RELAY,
        60,
    ),
    tests("relay_programs", "bpf", "relay", &[], LINUX_WITH_RELAY, 120),
    tests("sockets", "io", "send", &[], ANY_LINUX, 60),
    script("features", 20),
    script("probe_offload", 20),
    script("memlock", 60),
    script("pinning", 60),
    script("relay", 120),
    script_since("killed", LINUX_WITH_RELAY, 60),
    script_since("redirects", LINUX_WITH_RELAY, 60),
    // What the relay needs: see the expectations of "relay".
    script_since("bond", Linux(6, 1), 120),
    script_since("many_processors", LINUX_WITH_RELAY, 300),
    // What depends on the kernel: that flows find their worker, over both families. All of these tests take two minutes
    // here.
    tests(
        "steering",
        "server",
        "steering",
        &["few_clients", "over_ipv6"],
        ANY_LINUX,
        120,
    ),
    tests("offload", "server", "offload", &[], LINUX_WITH_RELAY, 120),
    tests(
        "interfaces",
        "server",
        "interfaces",
        &[],
        LINUX_WITH_RELAY,
        120,
    ),
    tests(
        "data_paths",
        "server",
        "data_paths",
        &["every_byte", "partial_checksums"],
        LINUX_WITH_RELAY,
        300,
    ),
    // Devices that few kernels of developers have. Between two interfaces XDP needs Linux 6.3, which tells where frames
    // can go.
    tests(
        "devices",
        "server",
        "data_paths",
        &["a_bond", "a_vlan", "on_dummies"],
        Linux(6, 12),
        300,
    ),
];

const fn script(name: &'static str, seconds: u32) -> Check {
    script_since(name, ANY_LINUX, seconds)
}

const fn script_since(name: &'static str, since: Linux, seconds: u32) -> Check {
    Check {
        name,
        run: CheckKind::Script,
        since,
        seconds,
    }
}

const fn tests(
    name: &'static str,
    package: &'static str,
    binary: &'static str,
    arguments: &'static [&'static str],
    since: Linux,
    seconds: u32,
) -> Check {
    let run = CheckKind::Tests {
        package,
        binary,
        arguments,
    };
    Check {
        name,
        run,
        since,
        seconds,
    }
}

/// A check that older kernels refuse, and the text that the reason must contain. All other checks pass on every kernel.
struct ExpectedRefusal {
    check: &'static str,
    outcome: &'static str,
    before: Linux,
    text: &'static str,
}

const EXPECTED_REFUSALS: &[ExpectedRefusal] = &[
    refused("programs", "count_tc", Linux(5, 18), "Linux 5.18"),
    refused("programs", "count_xdp", Linux(5, 18), "Linux 5.18"),
    refused("programs", "relay_tc", LINUX_WITH_RELAY, "Linux 5.12"),
    refused("programs", "relay_xdp", LINUX_WITH_RELAY, "Linux 5.12"),
    refused(
        "programs",
        "sip_admission_filter",
        LINUX_WITH_RELAY,
        "Linux 5.12",
    ),
    refused("programs", "relay_gate", LINUX_WITH_RELAY, "Linux 5.12"),
    refused(
        "relay_programs",
        "partial::a_partial_checksum_is_complete_and_right_at_the_far_end",
        LINUX_WITH_TCX,
        "Linux 6.6",
    ),
    refused(
        "relay_programs",
        "partial::several_datagrams_in_one_packet_go_to_user_space_in_one_piece_each",
        LINUX_WITH_TCX,
        "Linux 6.6",
    ),
    refused(
        "data_paths",
        "xdp_relays_every_byte_and_nothing_afterwards",
        DRIVERS_REPORT_XDP,
        NOT_REDIRECTED,
    ),
    refused(
        "data_paths",
        "a_bond_relays_in_xdp_and_at_tc",
        DRIVERS_REPORT_XDP,
        NOT_REDIRECTED,
    ),
    refused(
        "data_paths",
        "addresses_on_dummies_are_relayed_where_their_packets_arrive",
        DRIVERS_REPORT_XDP,
        NOT_REDIRECTED,
    ),
    refused(
        "data_paths",
        "addresses_on_loopback_are_relayed_where_their_packets_arrive",
        DRIVERS_REPORT_XDP,
        NOT_REDIRECTED,
    ),
    refused("memlock", "user, 64 KiB", Linux(5, 11), "locked memory"),
    refused("relay", "auto", LINUX_WITH_RELAY, "Linux 5.12"),
    refused("relay", "xdp", LINUX_WITH_RELAY, "Linux 5.12"),
    refused("relay", "tc", LINUX_WITH_RELAY, "Linux 5.12"),
];

const fn refused(
    check: &'static str,
    outcome: &'static str,
    before: Linux,
    text: &'static str,
) -> ExpectedRefusal {
    ExpectedRefusal {
        check,
        outcome,
        before,
        text,
    }
}

/// The maximum length of a reason, which must be readable on one line.
const MAX_REASON_BYTES: usize = 400;

/// Compares the results of a machine with those that its kernel must have.
pub(crate) fn judge(
    checks: &[Check],
    linux: Linux,
    sections: &BTreeMap<String, CheckResult>,
    tally: &mut Tally,
) {
    for check in checks.iter().filter(|check| linux >= check.since) {
        let Some(section) = sections.get(check.name) else {
            let error = anyhow::anyhow!("it was not run");
            tally.record(&format!("{linux} {}", check.name), &Err(error));
            continue;
        };
        for (outcome, result) in &section.outcomes {
            let name = match outcome.as_str() {
                "" => format!("{linux} {}", check.name),
                outcome => format!("{linux} {}: {outcome}", check.name),
            };
            let expected = refusal(check.name, outcome, linux);
            tally.record(&name, &verdict(expected, result));
        }
    }
}

fn refusal(check: &str, outcome: &str, linux: Linux) -> Option<&'static str> {
    EXPECTED_REFUSALS
        .iter()
        .find(|one| one.check == check && one.outcome == outcome && linux < one.before)
        .map(|one| one.text)
}

fn verdict(expected: Option<&str>, found: &Result<String, String>) -> anyhow::Result<String> {
    match (expected, found) {
        (None, Ok(detail)) => Ok(detail.clone()),
        (None, Err(reason)) => anyhow::bail!("{reason}"),
        (Some(_), Ok(_)) => anyhow::bail!("it works, and this kernel was expected to refuse it"),
        (Some(text), Err(reason)) if !reason.contains(text) => {
            anyhow::bail!("refused as expected, but the reason does not say {text:?}: {reason}")
        }
        (Some(_), Err(reason)) if reason.len() > MAX_REASON_BYTES => {
            anyhow::bail!(
                "refused as expected, but with {} characters: {reason}",
                reason.len()
            )
        }
        (Some(_), Err(reason)) => Ok(format!("refused as expected: {reason}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_must_be_expected_and_have_the_right_reason() {
        let refused = || Err("needs Linux 5.12".to_owned());
        assert!(verdict(None, &refused()).is_err());
        assert!(verdict(Some("5.12"), &refused()).is_ok());
        assert!(verdict(Some("5.18"), &refused()).is_err());
        assert!(verdict(Some("5.12"), &Ok(String::new())).is_err());
        let long = Err("5.12 ".repeat(100));
        assert!(verdict(Some("5.12"), &long).is_err());
    }

    #[test]
    fn a_check_that_a_machine_left_out_has_failed() {
        let mut tally = Tally::default();
        judge(CHECKS, Linux(6, 12), &BTreeMap::new(), &mut tally);
        assert_eq!(tally.failed as usize, CHECKS.len());
    }

    #[test]
    fn every_check_has_a_name_of_its_own() {
        let mut names: Vec<&str> = CHECKS.iter().map(|check| check.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), CHECKS.len());
        for refused in EXPECTED_REFUSALS {
            assert!(names.contains(&refused.check), "{}", refused.check);
        }
    }
}
