//! The checks, and what each kernel is expected to say.

use std::collections::BTreeMap;

use super::kernels::{Linux, SUITES};
use super::results::Section;
use crate::tally::Tally;

/// Something to run in each machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) run: Run,
    /// The oldest kernel that it is run on.
    pub(crate) since: Linux,
    /// Seconds after which it is killed. Without KVM, a machine is 10 to 20 times slower than this one.
    pub(crate) seconds: u32,
}

impl Check {
    /// Whether it takes a minute and more without KVM. The other checks load every program and relay by every path.
    fn is_slow(&self) -> bool {
        SLOW.contains(&self.name)
    }
}

const SLOW: &[&str] = &[
    "many_processors",
    "relay_programs",
    "offload",
    "interfaces",
    "data_paths",
    "devices",
];

/// Takes a minute too, but nothing else in the test command tries a bond: the test command runs it on the newest kernel
/// alone.
const ON_THE_NEWEST: &str = "bond";

/// The checks that the test command runs.
pub(super) fn quick(checks: &mut Vec<Check>) {
    checks.retain(|check| !check.is_slow());
    for check in checks {
        if check.name == ON_THE_NEWEST {
            check.since = SUITES[SUITES.len() - 1].linux;
        }
    }
}

/// What a check runs.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Run {
    /// `guest/checks/NAME.sh`.
    Script,
    /// The test binary of this name of a crate, with arguments that select tests.
    Tests {
        package: &'static str,
        binary: &'static str,
        arguments: &'static [&'static str],
    },
}

const ANY: Linux = Linux(5, 10);
/// The programs of the relay and of the SIP admission filter load.
const RELAY: Linux = Linux(5, 12);
/// tc attaches by TCX.
const TCX: Linux = Linux(6, 6);
/// Drivers tell whether frames can be redirected to them. Before, XDP relays only out of the interface that a packet
/// came by.
const DRIVERS_REPORT_XDP: Linux = Linux(6, 3);
/// What the tests say whose packets XDP should redirect to another interface, while the server's process is stopped.
const NOT_ACROSS: &str = "did not arrive";
/// All of them, in the order that they run in.
pub(crate) const CHECKS: &[Check] = &[
    tests("programs", "bpf", "programs", &[], ANY, 60),
    tests("floor", "bpf", "floor", &[], ANY, 60),
    tests("steer", "bpf", "steer", &[], ANY, 60),
    tests(
        "sip_admission_filter",
        "bpf",
        "admission_filter",
        &[],
        RELAY,
        60,
    ),
    tests("relay_programs", "bpf", "relay", &[], RELAY, 120),
    tests("sockets", "io", "send", &[], ANY, 60),
    script("features", 20),
    script("probe_offload", 20),
    script("memlock", 60),
    script("pinning", 60),
    script("relay", 120),
    script_since("killed", RELAY, 60),
    script_since("redirects", RELAY, 60),
    // What the relay needs: see the expectations of "relay".
    script_since("bond", Linux(6, 1), 120),
    script_since("many_processors", RELAY, 300),
    // What depends on the kernel: that flows find their worker, over both families. All of these tests take two minutes
    // here.
    tests(
        "steering",
        "server",
        "steering",
        &["few_clients", "over_ipv6"],
        ANY,
        120,
    ),
    tests("offload", "server", "offload", &[], RELAY, 120),
    tests("interfaces", "server", "interfaces", &[], RELAY, 120),
    tests(
        "data_paths",
        "server",
        "data_paths",
        &["every_byte", "partial_checksums"],
        RELAY,
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
    script_since(name, ANY, seconds)
}

const fn script_since(name: &'static str, since: Linux, seconds: u32) -> Check {
    Check {
        name,
        run: Run::Script,
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
    let run = Run::Tests {
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

/// What older kernels refuse, and the text that the reason must contain. All else works on every kernel that it is run
/// on.
struct Refused {
    check: &'static str,
    outcome: &'static str,
    before: Linux,
    text: &'static str,
}

const REFUSED: &[Refused] = &[
    refused("programs", "count_tc", Linux(5, 18), "Linux 5.18"),
    refused("programs", "count_xdp", Linux(5, 18), "Linux 5.18"),
    refused("programs", "relay_tc", RELAY, "Linux 5.12"),
    refused("programs", "relay_xdp", RELAY, "Linux 5.12"),
    refused("programs", "sip_admission_filter", RELAY, "Linux 5.12"),
    refused("programs", "relay_gate", RELAY, "Linux 5.12"),
    refused(
        "relay_programs",
        "partial::a_partial_checksum_is_complete_and_right_at_the_far_end",
        TCX,
        "Linux 6.6",
    ),
    refused(
        "relay_programs",
        "partial::several_datagrams_in_one_packet_go_to_user_space_in_one_piece_each",
        TCX,
        "Linux 6.6",
    ),
    refused(
        "data_paths",
        "xdp_relays_every_byte_and_nothing_afterwards",
        DRIVERS_REPORT_XDP,
        NOT_ACROSS,
    ),
    refused(
        "data_paths",
        "a_bond_relays_in_xdp_and_at_tc",
        DRIVERS_REPORT_XDP,
        NOT_ACROSS,
    ),
    refused(
        "data_paths",
        "addresses_on_dummies_are_relayed_where_their_packets_arrive",
        DRIVERS_REPORT_XDP,
        NOT_ACROSS,
    ),
    refused(
        "data_paths",
        "addresses_on_loopback_are_relayed_where_their_packets_arrive",
        DRIVERS_REPORT_XDP,
        NOT_ACROSS,
    ),
    refused("memlock", "user, 64 KiB", Linux(5, 11), "locked memory"),
    refused("relay", "auto", RELAY, "Linux 5.12"),
    refused("relay", "xdp", RELAY, "Linux 5.12"),
    refused("relay", "tc", RELAY, "Linux 5.12"),
];

const fn refused(
    check: &'static str,
    outcome: &'static str,
    before: Linux,
    text: &'static str,
) -> Refused {
    Refused {
        check,
        outcome,
        before,
        text,
    }
}

/// A reason is for a person who reads it on one line.
const LONGEST_REASON: usize = 400;

/// Compares what a machine has shown with what is expected of its kernel.
pub(crate) fn judge(
    checks: &[Check],
    linux: Linux,
    sections: &BTreeMap<String, Section>,
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
    REFUSED
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
        (Some(_), Err(reason)) if reason.len() > LONGEST_REASON => {
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
        for refused in REFUSED {
            assert!(names.contains(&refused.check), "{}", refused.check);
        }
    }
}
