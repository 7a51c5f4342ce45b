//! The gates of the quick mode.
//!
//! They are for a test command on whatever machine it runs: wide enough that no weather trips them,
//! narrow enough that a server that lost its batching, or its payload, does.

use super::{Cell, Measure, Outcome, Report};
use crate::bench::scenario::Scenario;
use crate::bench::side::Role;

/// Share of the floor's goodput, in the same round, that must be reached.
const SHARE: f64 = 0.5;

impl Report {
    /// What is not as it must be: a gated server that could not be measured, delivered anything
    /// changed or misdirected, or reached less than half of the floor's goodput of the same round.
    /// Empty when all is well.
    pub fn violations(&self) -> Vec<String> {
        let gated = |cell: &&Cell| self.sides[cell.side].role == Role::Gated;
        let told = |cell: &Cell| {
            let name = &self.sides[cell.side].name;
            let place = format!("{name} in round {}, {}", cell.round + 1, cell.scenario);
            self.violations_of(cell)
                .into_iter()
                .map(move |what| format!("{place}: {what}"))
        };
        self.cells.iter().filter(gated).flat_map(told).collect()
    }

    fn violations_of(&self, cell: &Cell) -> Vec<String> {
        let mut found = Vec::new();
        match &cell.outcome {
            Outcome::Failed { reason } => found.push(reason.clone()),
            Outcome::Packets(packets) => {
                if packets.wrong > 0 {
                    let wrong = packets.wrong;
                    found.push(format!(
                        "{wrong} datagrams arrived changed or in the wrong place"
                    ));
                }
                let own = packets.best.delivered;
                match self.floor(&cell.scenario, cell.round) {
                    Some(floor) if own < SHARE * floor => found.push(format!(
                        "{own:.0}/s is less than half of the floor's {floor:.0}/s"
                    )),
                    _ => {}
                }
            }
            Outcome::Churn(churn) if churn.rate <= 0.0 => {
                found.push("no allocation succeeded".to_owned());
            }
            _ => {}
        }
        found
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

    fn set(report: &mut Report, cell: usize, change: impl Fn(&mut crate::bench::packets::Packets)) {
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
    fn less_than_half_of_the_floor_of_the_same_round_is_told() {
        let mut report = report();
        set(&mut report, 5, |packets| packets.best.delivered = 155e3);
        let found = report.violations();
        assert_eq!(found.len(), 1);
        assert!(
            found[0].contains("round 2") && found[0].contains(&RELAY.to_string()),
            "{found:?}"
        );
        set(&mut report, 5, |packets| packets.best.delivered = 161e3);
        assert!(report.violations().is_empty());
    }

    #[test]
    fn damaged_payload_and_failures_are_told() {
        let mut report = report();
        set(&mut report, 0, |packets| packets.wrong = 2);
        report.cells[5].outcome = Outcome::Failed {
            reason: "gone".to_owned(),
        };
        let found = report.violations();
        assert!(
            found[0].contains("2 datagrams") && found[1].ends_with("gone"),
            "{found:?}"
        );
    }
}
