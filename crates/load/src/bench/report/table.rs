//! The report as a table for a terminal.

use std::fmt::Write;

use super::{Delivery, Report, Row};
use crate::bench::scenario::Scenario;
use crate::bench::stats::Summary;

impl Report {
    /// The summaries as aligned text: median, spread, and the ratios to the first server with their
    /// range.
    pub fn to_table(&self) -> String {
        let mut text = format!(
            "hairpin {} bench, Linux {}, {}{}; {} rounds in {:.0} s; x: times better than {}\n",
            self.hairpin,
            self.kernel,
            self.processor,
            if self.ipv6 { "; over IPv6" } else { "" },
            self.rounds,
            self.elapsed_s,
            self.sides.first().map_or("the first", |side| &side.name)
        );
        let _ = writeln!(text, "set by the harness: {}", self.fairness_line());
        let rows = self.rows();
        for scenario in &self.scenarios {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "\n{scenario}  ({})", scenario.describe());
            for row in rows.iter().filter(|row| row.scenario == *scenario) {
                text.push_str(&self.table_line(row));
            }
        }
        text
    }

    fn table_line(&self, row: &Row) -> String {
        let name = &self.sides[row.side].name;
        let (main, cost) = units(&row.scenario);
        let cells = [
            row.main
                .map_or_else(String::new, |main_value| main(&main_value)),
            ratio(row.main_ratio),
            row.cost
                .map_or_else(String::new, |cost_value| cost(&cost_value)),
            ratio(row.cost_ratio),
        ];
        let mut line = format!(
            "  {name:<24}{:>22}{:>22}{:>22}{:>22}\n",
            cells[0], cells[1], cells[2], cells[3]
        );
        if let Some(overload) = &row.overload {
            line += &overload.to_text(&" ".repeat(28));
        }
        if let Some(all) = &row.delivery {
            let _ = writeln!(line, "  {:<24}  {}", "", delivery(all, row.cost));
        }
        for failure in row.failures.iter().chain(&row.notes) {
            let _ = writeln!(line, "  {name:<24}  {failure}");
        }
        line
    }
}

/// What became of the datagrams, and what they cost at other loads.
fn delivery(all: &Delivery, cost: Option<Summary>) -> String {
    let twice = match all.held_twice {
        Some(rate) => format!("held in two rounds: {:.0}k/s", rate / 1e3),
        None => "held in one round only".to_owned(),
    };
    format!(
        "lost {:.2} % (at 60 %: {:.2} %), duplicated {}, reordered {}, damaged {}; {twice}; {:.0} % of it at {:.1}x the load; \
         {:.0}/{:.0}/{:.0}/{:.0} ns at 30/60/90/100 %",
        all.loss.median * 100.0,
        all.loss_at_60.median * 100.0,
        all.duplicated,
        all.reordered,
        all.wrong,
        all.at_double.median * 100.0,
        all.offered_at_double.median,
        all.cost_at_30.median,
        cost.map_or(0.0, |cost| cost.median),
        all.cost_at_90.median,
        all.cost_at_best.median,
    )
}

type Show = fn(&Summary) -> String;

/// How the two numbers of a scenario are written.
fn units(scenario: &Scenario) -> (Show, Show) {
    match scenario {
        Scenario::Relay { .. } | Scenario::Connections { .. } | Scenario::Binding { .. } => (
            |rate| format!("{:.0}k/s ±{:.0}%", rate.median / 1e3, rate.spread() * 50.0),
            |cost| format!("{:.0} ns", cost.median),
        ),
        Scenario::Handshakes { .. } | Scenario::Churn { .. } | Scenario::Sip { .. } => (
            |rate| format!("{:.1}k/s ±{:.0}%", rate.median / 1e3, rate.spread() * 50.0),
            |cost| format!("{:.1} us", cost.median / 1e3),
        ),
        Scenario::SipOverload { .. } => (
            |kept| format!("{:.0} % kept", kept.median * 100.0),
            |p99| format!("p99 {:.0} ms", p99.median / 1e6),
        ),
        Scenario::Spread { .. } => (
            |apart| format!("{:.0} apart at most", apart.median),
            |share| format!("busier one {:.3}", share.median),
        ),
        Scenario::Memory { .. } | Scenario::SipMemory { .. } => (
            |both| format!("{:.2} kB with kernel", both.median / 1e3),
            |user| format!("user {:.2} kB", user.median / 1e3),
        ),
    }
}

fn ratio(ratio: Option<Summary>) -> String {
    ratio.map_or_else(String::new, |ratio| {
        format!("x{:.2} [{:.2}-{:.2}]", ratio.median, ratio.min, ratio.max)
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;

    #[test]
    fn every_server_has_a_line_in_every_scenario_it_ran() {
        let table = report().to_table();
        let line = |name: &str| {
            table
                .lines()
                .find(|line| line.trim_start().starts_with(name))
                .unwrap()
                .to_owned()
        };
        assert!(
            line("hairpin ").contains("310k/s") || table.contains("310k/s"),
            "{table}"
        );
        assert!(line("floor").contains("325k/s ±2%"), "{table}");
        assert!(line("floor").contains("x1.05 [1.00-1.10]"), "{table}");
        assert!(table.contains("burst 32 < 33"), "{table}");
        assert!(table.contains("round 1: it <died>"), "{table}");
        assert!(
            table.contains("duplicated 0, reordered 0, damaged 0; held in two rounds: 320k/s; 50 % of it at 2.0x"),
            "{table}"
        );
    }
}
