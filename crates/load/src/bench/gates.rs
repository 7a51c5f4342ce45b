//! The gates of the quick mode: what each scenario requires of a server under development.
//!
//! A gate is about three quarters of the share of the bare relay's goodput that hairpin reached when the gate was set.
//! So a gate fails if a mechanism no longer works. This mechanism is UDP_SEGMENT in the scenarios of one flow and of
//! trains, and growing batches in those of interleaved flows. The gain of batches in goodput varies with the machine.
//! So the gates of these scenarios limit the system calls for each datagram. Their gates of goodput only detect a
//! server that has become slow. docs/benchmarking.md lists the gates, and the option that makes each of them fail.

use std::fmt;

use serde::Serialize;

use super::scenario::Scenario;

/// The requirements of the gates.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// For each scenario a value close to its measured result.
    Measured,
    /// In every scenario with a goodput, this share of the bare relay's goodput.
    Share(f64),
}

/// What a gate looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum GateKind {
    /// The best goodput.
    Goodput,
    /// System calls of the server per datagram.
    SystemCalls,
    /// Datagrams or messages that arrive changed, in the wrong place or twice.
    Damage,
    /// Cycles that fail.
    Cycles,
    /// Processor time of a cycle.
    CycleCost,
    /// The difference between the allocations of two workers.
    Spread,
    /// User memory of an allocation.
    UserMemory,
}

impl fmt::Display for GateKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            GateKind::Goodput => "goodput",
            GateKind::SystemCalls => "system-calls",
            GateKind::Damage => "damage",
            GateKind::Cycles => "cycles",
            GateKind::CycleCost => "cycle-cost",
            GateKind::Spread => "spread",
            GateKind::UserMemory => "user-memory",
        })
    }
}

/// The most processor time of a churn cycle, in datagrams that the bare relay forwards in that time: 14 were measured.
const CYCLE_IN_DATAGRAMS: f64 = 28.0;
/// The limit of user memory in bytes of an allocation with a channel, with 1,000 allocations. They share the cost of
/// the first pages of many tables.
const USER_BYTES: f64 = 3_000.0;

/// The limit of system calls per datagram of up to 64 interleaved flows. The measured value is 0.07. With batches of at
/// most 64 it is 1.03 from clients. Without batches it is 2.0 from peers.
const CALLS_OF_FEW_FLOWS: f64 = 0.3;
/// The same with more flows: 0.27 to 0.38 were measured, and 1.03 with batches of 64.
const CALLS_OF_MANY_FLOWS: f64 = 0.8;
/// The same for Binding requests of many clients: 0.05 were measured, and 3.0 without batches.
const CALLS_OF_BINDING: f64 = 0.3;

/// The greatest difference between the allocations of two workers while 128 are made. Without steering the difference
/// is a random walk: its greatest value is 14 on average, and at most this value in one of sixty runs.
const MAX_SPREAD: u32 = 5;

impl Gate {
    /// Each gate of a scenario, with what it demands in words.
    pub fn rules(self, scenario: &Scenario) -> Vec<(GateKind, String)> {
        let share = self.share(scenario).map(|share| {
            let text = format!("at least {:.0} % of the floor's goodput", share * 100.0);
            (GateKind::Goodput, text)
        });
        let calls = self.system_calls(scenario).map(|most| {
            (
                GateKind::SystemCalls,
                format!("at most {most} per datagram"),
            )
        });
        let mut rules: Vec<_> = share.into_iter().chain(calls).collect();
        let of_kind = |kind, limit: Option<String>| limit.map(|text| (kind, text));
        match scenario {
            Scenario::Relay { .. } | Scenario::Binding { .. } => {
                rules.push((GateKind::Damage, "none".to_owned()));
            }
            Scenario::Churn { .. } => {
                rules.push((GateKind::Damage, "none".to_owned()));
                rules.push((GateKind::Cycles, "none fails".to_owned()));
                let most = self.cycle_in_datagrams();
                let text =
                    most.map(|most| format!("at most that of {most:.0} datagrams of the floor"));
                rules.extend(of_kind(GateKind::CycleCost, text));
            }
            Scenario::Spread { .. } => {
                let text = self
                    .apart()
                    .map(|most| format!("at most {most} allocations"));
                rules.extend(of_kind(GateKind::Spread, text));
            }
            Scenario::Memory { .. } => {
                let text = self
                    .user_bytes()
                    .map(|most| format!("at most {most:.0} bytes each"));
                rules.extend(of_kind(GateKind::UserMemory, text));
            }
            _ => {}
        }
        rules
    }

    /// The share of the bare relay's goodput that a scenario demands; `None` if it has none.
    pub(crate) fn share(self, scenario: &Scenario) -> Option<f64> {
        match (self, scenario) {
            (
                _,
                Scenario::Churn { .. }
                | Scenario::Spread { .. }
                | Scenario::SipMemory { .. }
                | Scenario::SipOverload { .. }
                | Scenario::Memory { .. }
                | Scenario::Handshakes { .. },
            ) => None,
            (Gate::Share(share), _) => Some(share),
            (Gate::Measured, scenario) => Some(measured(scenario)),
        }
    }

    /// The most system calls of the server for each datagram that it delivers in overload; `None` if no mechanism of
    /// the scenario saves any.
    pub(crate) fn system_calls(self, scenario: &Scenario) -> Option<f64> {
        if self != Gate::Measured {
            return None;
        }
        match *scenario {
            Scenario::Relay {
                flows: 2..=64,
                train: 1,
                ..
            } => Some(CALLS_OF_FEW_FLOWS),
            Scenario::Relay {
                flows: 65..,
                train: 1,
                ..
            } => Some(CALLS_OF_MANY_FLOWS),
            Scenario::Binding { clients: 2.., .. } => Some(CALLS_OF_BINDING),
            _ => None,
        }
    }

    /// The limit of CPU time per allocation cycle. The unit is the CPU time of the bare relay per datagram.
    pub(crate) fn cycle_in_datagrams(self) -> Option<f64> {
        matches!(self, Gate::Measured).then_some(CYCLE_IN_DATAGRAMS)
    }

    /// The most that two workers may differ by.
    pub(crate) fn apart(self) -> Option<u32> {
        matches!(self, Gate::Measured).then_some(MAX_SPREAD)
    }

    /// The most user memory that an allocation may take, in bytes.
    pub(crate) fn user_bytes(self) -> Option<f64> {
        matches!(self, Gate::Measured).then_some(USER_BYTES)
    }
}

/// Three quarters of the measured share; more if a lost mechanism could otherwise not be distinguished from noise.
fn measured(scenario: &Scenario) -> f64 {
    match *scenario {
        // One flow: runs of 64 leave in one call. With 1,200 bytes, 1.68 to 2.20 times were measured, and 0.92 to 1.39
        // times without GSO.
        Scenario::Relay {
            flows: 1, payload, ..
        } => by_size(payload, 1.7, 1.4),
        // Trains leave in one call, too.
        Scenario::Relay {
            train: 2..,
            payload,
            ..
        } => by_size(payload, 1.5, 1.3),
        // Interleaved flows meet in batches that have grown. Up to 64 flows: 0.88 to 1.40 times were measured, and 0.71
        // to 1.00 without batches. 1,000 flows: 0.74 to 0.95. So the gate of system calls shows whether there are
        // batches, and these gates show that the server became slow.
        Scenario::Relay { flows: ..=64, .. } => 0.65,
        Scenario::Relay { .. } => 0.55,
        Scenario::Binding { clients: 1, .. } => 1.8,
        Scenario::Binding { .. } => 0.7,
        _ => 0.5,
    }
}

/// Large payloads take every server longer to copy, so the ratios are smaller.
fn by_size(payload: u16, small: f64, large: f64) -> f64 {
    if payload < 500 { small } else { large }
}
