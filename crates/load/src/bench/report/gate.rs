//! The gates: what a server under development must reach, held against the floor of the same round.
//!
//! The gates are for a test command that runs on any machine. Other work of the machine may disturb one of the two
//! measurements. So a result below the gate is measured again, together with the floor, and the second pair counts.
//! What arrived damaged is never measured away.

use std::fmt;

use super::{Cell, Measure, Outcome, Report};
use crate::bench::gates::{Gate, GateKind};
use crate::bench::packets::Packets;
use crate::bench::scenario::Scenario;
use crate::bench::side::Role;
use crate::bench::stats::Summary;
use crate::bench::upkeep::Churn;

/// A fault of a result.
struct Violation {
    /// The gate that the result breaks; `None` if something could not be measured.
    kind: Option<GateKind>,
    text: String,
}

impl Violation {
    fn of(kind: GateKind, text: String) -> Self {
        Violation {
            kind: Some(kind),
            text,
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            Some(kind) => write!(f, "{kind}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

impl Report {
    /// The faults of all results: a gated server could not be measured, or broke a gate; the floor could not be
    /// measured; or the benchmark was stopped before its end. A broken gate is named by its kind. Empty if all gates
    /// hold, or if no gate was asked for.
    pub fn violations(&self) -> Vec<String> {
        let Some(gate) = self.gate else {
            return Vec::new();
        };
        let told = |cell: &Cell| {
            let name = &self.sides[cell.side].name;
            let place = format!("{name} in round {}, {}", cell.round + 1, cell.scenario);
            self.violations_of(cell, gate)
                .into_iter()
                .map(move |what| format!("{place}: {what}"))
        };
        let stopped = self
            .stopped
            .then(|| "stopped before everything was measured".to_owned());
        self.cells.iter().flat_map(told).chain(stopped).collect()
    }

    /// Removes the measurements of a round that may depend on the machine more than on the server. These are a
    /// gated server's goodput below its share, and the floor's goodput of the same round. Returns whom to
    /// measure again, in order.
    pub(crate) fn remove_doubtful(&mut self, scenario: &Scenario, round: u32) -> Vec<usize> {
        let Some(gate) = self.gate else {
            return Vec::new();
        };
        let here = |cell: &&Cell| cell.scenario == *scenario && cell.round == round;
        let damaged = |cell: &Cell| matches!(&cell.outcome, Outcome::Packets(packets) if packets.wrong + packets.duplicated > 0);
        let low: Vec<usize> = self
            .cells
            .iter()
            .filter(here)
            .filter(|cell| self.shortfall(cell, gate).is_some() && !damaged(cell))
            .map(|cell| cell.side)
            .collect();
        let again = |cell: &Cell| {
            low.contains(&cell.side)
                || (!low.is_empty() && self.sides[cell.side].role == Role::Floor)
        };
        let doubtful: Vec<usize> = self
            .cells
            .iter()
            .filter(here)
            .filter(|cell| again(cell))
            .map(|cell| cell.side)
            .collect();
        self.cells
            .retain(|cell| !(here(&cell) && doubtful.contains(&cell.side)));
        doubtful
    }

    /// Marks what was measured in place of what [`Report::remove_doubtful`] took out.
    pub(crate) fn mark_repeated(&mut self, scenario: &Scenario, round: u32, sides: &[usize]) {
        for cell in &mut self.cells {
            cell.repeated |=
                cell.scenario == *scenario && cell.round == round && sides.contains(&cell.side);
        }
    }

    fn violations_of(&self, cell: &Cell, gate: Gate) -> Vec<Violation> {
        let role = self.sides[cell.side].role;
        match &cell.outcome {
            // Without the floor's figure there is nothing to compare with.
            Outcome::Failed { reason, .. } if role != Role::Other => vec![Violation {
                kind: None,
                text: reason.clone(),
            }],
            _ if role != Role::Gated => Vec::new(),
            Outcome::Packets(packets) => self.violations_of_packets(cell, packets, gate),
            Outcome::Churn(churn) => self.violations_of_churn(cell, churn, gate),
            Outcome::Spread(spread) => {
                let apart = spread.apart;
                let most = gate.apart().unwrap_or(u32::MAX);
                let text =
                    format!("the two workers differed by {apart} allocations, more than {most}");
                let violation = Violation::of(GateKind::Spread, text);
                (apart > most).then_some(violation).into_iter().collect()
            }
            Outcome::Memory(memory) => {
                let user = memory.user;
                let most = gate.user_bytes().unwrap_or(f64::MAX);
                let text =
                    format!("{user:.0} bytes of user memory for each are more than {most:.0}");
                let violation = Violation::of(GateKind::UserMemory, text);
                (user > most).then_some(violation).into_iter().collect()
            }
            _ => Vec::new(),
        }
    }

    fn violations_of_packets(&self, cell: &Cell, packets: &Packets, gate: Gate) -> Vec<Violation> {
        let mut found = Vec::new();
        if packets.wrong + packets.duplicated > 0 {
            let (wrong, duplicated) = (packets.wrong, packets.duplicated);
            let text = format!(
                "{wrong} datagrams arrived changed or in the wrong place, {duplicated} arrived again"
            );
            found.push(Violation::of(GateKind::Damage, text));
        }
        if let (Some(most), Some(calls)) = (gate.system_calls(&cell.scenario), packets.system_calls)
            && calls > most
        {
            let text = format!("{calls:.3} system calls for each datagram are more than {most}");
            found.push(Violation::of(GateKind::SystemCalls, text));
        }
        if let Some((floor, share)) = self.shortfall(cell, gate) {
            let own = packets.best.delivered;
            let again = if cell.repeated { ", twice" } else { "" };
            let text = format!(
                "{own:.0}/s is less than {:.0} % of the floor's {floor:.0}/s{again}",
                share * 100.0
            );
            found.push(Violation::of(GateKind::Goodput, text));
        }
        found
    }

    fn violations_of_churn(&self, cell: &Cell, churn: &Churn, gate: Gate) -> Vec<Violation> {
        let mut found = Vec::new();
        if churn.rate <= 0.0 {
            let text = "no cycle succeeded".to_owned();
            found.push(Violation::of(GateKind::Cycles, text));
        }
        if churn.errors > 0 {
            let text = format!("{} cycles failed", churn.errors);
            found.push(Violation::of(GateKind::Cycles, text));
        }
        if churn.wrong > 0 {
            let text = format!("{} messages to clients were unusable", churn.wrong);
            found.push(Violation::of(GateKind::Damage, text));
        }
        let is_turn = matches!(cell.scenario, Scenario::Churn { .. });
        let most = gate.cycle_in_datagrams().filter(|_| is_turn);
        if let (Some(most), Some(datagram)) = (most, self.floor_cost(cell.round))
            && churn.cost_ns > most * datagram
        {
            let text = format!(
                "a cycle takes {:.1} us: as long as {:.0} datagrams of the floor, which may be {most:.0}",
                churn.cost_ns / 1e3,
                churn.cost_ns / datagram
            );
            found.push(Violation::of(GateKind::CycleCost, text));
        }
        found
    }

    /// The floor's goodput and the share of it that a gated server owes, if it delivered less.
    fn shortfall(&self, cell: &Cell, gate: Gate) -> Option<(f64, f64)> {
        let Outcome::Packets(packets) = &cell.outcome else {
            return None;
        };
        let gated = self.sides[cell.side].role == Role::Gated;
        let share = gate.share(&cell.scenario)?;
        let floor = self.floor(&cell.scenario, cell.round)?;
        (gated && packets.best.delivered < share * floor).then_some((floor, share))
    }

    /// What a datagram costs the floor in a round: the median over the relay scenarios.
    fn floor_cost(&self, round: u32) -> Option<f64> {
        let costs = self.cells.iter().filter_map(|cell| match &cell.outcome {
            Outcome::Packets(packets)
                if cell.round == round
                    && self.sides[cell.side].role == Role::Floor
                    && matches!(cell.scenario, Scenario::Relay { .. }) =>
            {
                Some(packets.at_60.cost_ns)
            }
            _ => None,
        });
        Summary::of(costs).map(|costs| costs.median)
    }

    /// The best goodput of the floor in a round.
    fn floor(&self, scenario: &Scenario, round: u32) -> Option<f64> {
        let floors = (0..self.sides.len()).filter(|side| self.sides[*side].role == Role::Floor);
        floors
            .flat_map(|side| self.series(scenario, side, Measure::Main))
            .filter(|(other, _)| *other == round)
            .map(|(_, rate)| rate)
            .reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{RELAY, report};
    use super::*;

    fn set(report: &mut Report, cell: usize, change: impl Fn(&mut Packets)) {
        match &mut report.cells[cell].outcome {
            Outcome::Packets(packets) => change(packets),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_server_near_the_floor_passes_and_others_failures_are_not_its_own() {
        assert_eq!(report().violations(), [""; 0]);
    }

    #[test]
    fn less_than_half_of_the_floor_of_the_same_round_is_reported() {
        let mut report = report();
        set(&mut report, 5, |packets| packets.best.delivered = 155e3);
        let found = report.violations();
        assert_eq!(found.len(), 1);
        assert!(
            found[0].contains("round 2") && found[0].contains(&format!(" {RELAY}: goodput: ")),
            "{found:?}"
        );
        set(&mut report, 5, |packets| packets.best.delivered = 161e3);
        assert!(report.violations().is_empty());
    }

    #[test]
    fn results_below_the_gate_are_measured_again_with_the_floor() {
        let mut report = report();
        assert!(report.remove_doubtful(&RELAY, 1).is_empty());
        set(&mut report, 5, |packets| packets.best.delivered = 155e3);
        let cells = report.cells.clone();
        assert_eq!(
            report.remove_doubtful(&RELAY, 1),
            [1, 0],
            "in the order of the round; the other server stays"
        );
        assert_eq!(report.cells.len(), 4);
        assert!(report.violations().is_empty());
        report.cells.extend_from_slice(&cells[4..]);
        report.mark_repeated(&RELAY, 1, &[1, 0]);
        let found = report.violations();
        assert!(found.len() == 1 && found[0].ends_with("twice"), "{found:?}");
    }

    #[test]
    fn damaged_payload_is_not_measured_away() {
        let mut report = report();
        set(&mut report, 0, |packets| {
            packets.wrong = 1;
            packets.best.delivered = 1.0;
        });
        assert!(report.remove_doubtful(&RELAY, 0).is_empty());
        assert_eq!(report.violations().len(), 2);
    }

    #[test]
    fn a_floor_that_failed_or_an_early_end_passes_no_gate() {
        let mut report = report();
        report.cells[1].outcome = Outcome::Failed {
            reason: "gone".to_owned(),
            damaged: false,
        };
        report.stopped = true;
        let found = report.violations();
        assert!(
            found.len() == 2 && found[0].ends_with("gone") && found[1].contains("stopped"),
            "{found:?}"
        );
        report.gate = None;
        assert!(report.violations().is_empty());
    }

    #[test]
    fn a_cycle_that_failed_or_costs_too_much_is_reported() {
        let mut report = report();
        report.gate = Some(Gate::Measured);
        let churn = |cost_ns, errors| {
            Outcome::Churn(Churn {
                rate: 40e3,
                cost_ns,
                busy: 1.0,
                foreign: 0.0,
                errors,
                wrong: 0,
            })
        };
        set(&mut report, 0, |packets| packets.best.delivered = 100e3);
        report.cells[5].scenario = Scenario::Churn { in_flight: 64 };
        report.cells[5].outcome = churn(40e3, 0);
        assert_eq!(report.violations().len(), 1, "only the relay's goodput");
        report.cells[5].outcome = churn(40e3, 1);
        assert!(report.violations()[1].ends_with(": cycles: 1 cycles failed"));
        // The floor spends 2,800 ns for a datagram.
        report.cells[5].outcome = churn(90e3, 0);
        let found = report.violations();
        assert!(
            found[1].contains(": cycle-cost: ") && found[1].contains("as long as 32 datagrams"),
            "{found:?}"
        );
    }

    #[test]
    fn more_system_calls_than_batches_need_are_reported() {
        let mut report = report();
        report.gate = Some(Gate::Measured);
        report.cells[5].scenario = Scenario::Binding {
            clients: 1000,
            sources: crate::bench::scenario::Sources::OwnPrefixes,
        };
        let told = |report: &Report| {
            let found = report.violations();
            found.iter().any(|what| what.contains(": system-calls: "))
        };
        set(&mut report, 5, |packets| packets.system_calls = Some(0.05));
        assert!(!told(&report));
        set(&mut report, 5, |packets| packets.system_calls = Some(3.0));
        assert!(told(&report));
    }

    #[test]
    fn repeated_datagrams_pass_no_gate() {
        let mut report = report();
        set(&mut report, 0, |packets| packets.duplicated = 1);
        let found = report.violations();
        assert!(
            found.len() == 1 && found[0].contains("1 arrived again"),
            "{found:?}"
        );
    }

    #[test]
    fn damaged_payload_and_and_failures_are_told() {
        let mut report = report();
        set(&mut report, 0, |packets| packets.wrong = 2);
        report.cells[5].outcome = Outcome::Failed {
            reason: "gone".to_owned(),
            damaged: false,
        };
        let found = report.violations();
        assert!(
            found[0].contains(": damage: 2 datagrams") && found[1].ends_with("gone"),
            "{found:?}"
        );
    }
}
