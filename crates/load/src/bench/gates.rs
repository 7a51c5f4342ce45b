//! What a server under development must reach, scenario by scenario.
//!
//! A gate is near what was measured: about three quarters of the share of the bare relay's goodput that hairpin reached. So the loss
//! of one part of it shows in the scenarios that live by that part: runs sent by UDP_SEGMENT in those of one flow and of trains,
//! batches that grow in those of interleaved flows. docs/benchmarking.md has the table of the gates, and which switch turns which of
//! them red.

use serde::Serialize;

use super::scenario::Scenario;

/// What the gates demand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// Of each scenario, what is near its measured result.
    Measured,
    /// In every scenario of datagrams this share of the bare relay's goodput.
    Share(f64),
}

/// Processor time of a churn cycle, in datagrams that the bare relay passes on in that time: 14 were measured.
const CYCLE_IN_DATAGRAMS: f64 = 28.0;
/// User memory of an allocation with a channel, in bytes, among 1,000 of them: the first pages of many tables weigh on few.
const USER_BYTES: f64 = 3_000.0;

/// Allocations that two workers may differ by while 128 are made. Without steering they differ as a random walk does: by 14 in the mean, and in
/// one of sixty times by no more than this.
const APART: u32 = 5;

impl Gate {
    /// The share of the bare relay's goodput that a scenario demands; `None` if it has none.
    pub(crate) fn share(self, scenario: &Scenario) -> Option<f64> {
        match (self, scenario) {
            (
                _,
                Scenario::Churn { .. }
                | Scenario::Spread { .. }
                | Scenario::SipMemory { .. }
                | Scenario::Memory { .. }
                | Scenario::Handshakes { .. },
            ) => None,
            (Gate::Share(share), _) => Some(share),
            (Gate::Measured, scenario) => Some(measured(scenario)),
        }
    }

    /// The most processor time that a churn cycle may take, in datagrams of the bare relay.
    pub(crate) fn cycle_in_datagrams(self) -> Option<f64> {
        matches!(self, Gate::Measured).then_some(CYCLE_IN_DATAGRAMS)
    }

    /// The most that two workers may differ by.
    pub(crate) fn apart(self) -> Option<u32> {
        matches!(self, Gate::Measured).then_some(APART)
    }

    /// The most user memory that an allocation may take, in bytes.
    pub(crate) fn user_bytes(self) -> Option<f64> {
        matches!(self, Gate::Measured).then_some(USER_BYTES)
    }
}

/// Three quarters of what was measured, or what tells a lost part from the weather if that is more.
fn measured(scenario: &Scenario) -> f64 {
    match *scenario {
        // One flow: runs of 64 leave in one call.
        Scenario::Relay {
            flows: 1, payload, ..
        } => by_size(payload, 1.7, 1.4),
        // Trains: so do they.
        Scenario::Relay {
            train: 2..,
            payload,
            ..
        } => by_size(payload, 1.5, 1.3),
        // Interleaved flows meet in batches that have grown.
        Scenario::Relay {
            flows: ..=64,
            payload,
            ..
        } => by_size(payload, 1.12, 1.05),
        Scenario::Relay { .. } => 0.75,
        Scenario::Binding { clients: 1, .. } => 1.8,
        Scenario::Binding { .. } => 0.7,
        _ => 0.5,
    }
}

/// Large payloads are copied for longer, by everybody.
fn by_size(payload: u16, small: f64, large: f64) -> f64 {
    if payload < 500 { small } else { large }
}
