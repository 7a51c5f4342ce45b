//! The report as one HTML file that needs nothing else: charts, tables, and all the data as JSON
//! inside.

use std::fmt::Write;

use super::{Measure, Outcome, Report, Row};
use crate::bench::scenario::Scenario;
use crate::bench::stats::Summary;
use crate::report::chart::{Side, bars, colour, dots, escape, percent, points, thousands};

const STYLE: &str = "\
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;margin:.5em 0}td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #8884}
td:first-child,th:first-child{text-align:left}svg{margin:.4em 1.5em .4em 0;max-width:100%;height:auto}
svg text{font:12px system-ui,sans-serif;fill:currentColor}code{font-size:.9em}h2{margin-top:2em}
.swatch{display:inline-block;width:.8em;height:.8em;margin-right:.4em}.failure{color:#d55e00}";

const METHOD: &str = "\
The servers take turns within each round, in an order that changes from round to round, and are started afresh for each; \
the first run after a start is thrown away. The best goodput is the highest load that a server held: \
at most 1 % was lost, and the goodput was at least 90 % of the load. Cost is \
measured at 30, 60 and 90 % of it. Goodput counts datagrams that arrived once and unharmed at the far end; cost is the processor time of the server's processes \
and of the receive softirq of its interfaces, per delivered datagram. Ratios are taken within a round; more is better. \
Absolute numbers move with the machine's other work; trust the ratios.";

impl Report {
    /// The report as a self-contained HTML page.
    pub fn to_html(&self) -> String {
        let mut page = format!(
            "<!doctype html><html lang='en'><meta charset='utf-8'><title>hairpin bench</title><style>{STYLE}</style>\
             <h1>hairpin bench</h1>{}<p>{METHOD}</p>",
            self.describe_conditions()
        );
        let rows = self.rows();
        for scenario in &self.scenarios {
            let own: Vec<&Row> = rows
                .iter()
                .filter(|row| row.scenario == *scenario)
                .collect();
            if !own.is_empty() {
                page.push_str(&self.section(scenario, &own));
            }
        }
        // `</` would end the element early.
        let json = self.to_json().replace("</", "<\\/");
        let _ = write!(
            page,
            "<script type='application/json' id='report'>{json}</script></html>"
        );
        page
    }

    /// Under which conditions the benchmark ran, and a table of the servers.
    fn describe_conditions(&self) -> String {
        let load = match self.load {
            super::LoadKind::Frames => "individual frames, injected below the sockets",
            super::LoadKind::Sockets => "datagrams sent by sockets",
        };
        let family = if self.ipv6 { ", over IPv6" } else { "" };
        let mut text = format!(
            "<p><code>{}</code><br>hairpin {}, Linux {}, {}; generator on processor {}, servers on processor {}; load: {load}{family}; \
             {} rounds, steps of {} ms, rates held for {} ms, {:.0} s in all. Set by the harness: {}.</p><table><tr><th>server<th>version<th>counted by<th>command</tr>",
            escape(&self.argv.join(" ")),
            escape(&self.hairpin),
            escape(&self.kernel),
            escape(&self.processor),
            self.generator_cpu,
            self.server_cpu,
            self.rounds,
            self.step_ms,
            self.hold_ms,
            self.elapsed_s,
            escape(&self.fairness_line()),
        );
        for (number, side) in self.sides.iter().enumerate() {
            let _ = write!(
                text,
                "<tr><td><span class='swatch' style='background:{}'></span>{}<td>{}<td>{}<td><code>{}</code></tr>",
                colour(number),
                escape(&side.name),
                escape(&side.version),
                side.sink,
                escape(&side.command.join(" ")),
            );
        }
        text + "</table>"
    }

    /// The part of the page about one scenario: charts, tables, and what went wrong.
    fn section(&self, scenario: &Scenario, rows: &[&Row]) -> String {
        let names = match scenario {
            Scenario::Sip { .. } => ["goodput per second", "processor time per unit at 60 %, ns"],
            Scenario::SipOverload { .. } => [
                "least share of the best goodput that was left, %",
                "longest p99 of what succeeded in an overload, us",
            ],
            Scenario::SipMemory { .. } => [
                "user and kernel memory for each, bytes",
                "user memory among it, bytes",
            ],
            Scenario::Memory { .. } => [
                "user and kernel memory per allocation, bytes",
                "user memory among it, bytes",
            ],
            Scenario::Spread { .. } => [
                "allocations that two workers differed by, at most",
                "share of the busier worker at the end",
            ],
            Scenario::Handshakes { .. } => [
                "connections per second",
                "processor time per connection, ns",
            ],
            Scenario::Churn { .. } => ["cycles per second", "processor time per cycle, ns"],
            _ => [
                "goodput per second",
                "processor time per datagram at 60 %, ns",
            ],
        };
        let mut text = format!(
            "<h2 id='{scenario}'>{}</h2><p><code>{scenario}</code></p>",
            escape(&scenario.describe())
        );
        let of = |pick: fn(&Row) -> Option<Summary>| -> Vec<_> {
            rows.iter()
                .filter_map(|row| Some((self.labelled(row.side), pick(row)?)))
                .collect()
        };
        let show: [fn(f64) -> String; 2] = match scenario {
            Scenario::SipOverload { .. } => [percent, |ns| thousands(ns / 1e3)],
            _ => [thousands, thousands],
        };
        text += &bars(names[0], &of(|row| row.main), show[0]);
        text += &bars(names[1], &of(|row| row.cost), show[1]);
        if rows.len() > 1 {
            text += &self.ratio_dots(scenario, rows, Measure::Main);
            text += &self.ratio_dots(scenario, rows, Measure::Cost);
        }
        text += &self.overload_html(rows);
        text += &self.ramp(scenario, rows);
        text += &self.deliveries(rows);
        for row in rows {
            for failure in row.failures.iter().chain(&row.notes) {
                let name = escape(&self.sides[row.side].name);
                let _ = write!(text, "<p class='failure'>{name}: {}</p>", escape(failure));
            }
        }
        text + &self.rounds_table(scenario, rows)
    }

    /// A table of lost, duplicated, reordered and damaged datagrams, and of the cost, with one row per server.
    fn deliveries(&self, rows: &[&Row]) -> String {
        let lines: Vec<String> = rows
            .iter()
            .filter_map(|row| {
                let all = row.delivery.as_ref()?;
                let twice = all.held_twice.map_or_else(|| "-".to_owned(), thousands);
                Some(format!(
                    "<tr><td>{}<td>{:.2} %<td>{:.2} %<td>{}<td>{}<td>{}<td>{twice}<td>{:.0} % (at {:.1}x)<td>{:.0}<td>{:.0}<td>{:.0}<td>{:.0}</tr>",
                    escape(&self.sides[row.side].name),
                    all.loss.median * 100.0,
                    all.loss_at_60.median * 100.0,
                    all.duplicated,
                    all.reordered,
                    all.wrong,
                    all.at_double.median * 100.0,
                    all.offered_at_double.median,
                    all.cost_at_30.median,
                    row.cost.map_or(0.0, |cost| cost.median),
                    all.cost_at_90.median,
                    all.cost_at_best.median,
                ))
            })
            .collect();
        if lines.is_empty() {
            return String::new();
        }
        format!(
            "<table><tr><th>server<th>lost at best<th>lost at 60 %<th>duplicated<th>reordered<th>damaged<th>held in two rounds\
             <th>goodput at twice the load<th>ns at 30 %<th>at 60 %<th>at 90 %<th>at the best</tr>{}</table>",
            lines.concat()
        )
    }

    /// The server with this index, as a chart shows it.
    fn labelled(&self, side: usize) -> Side<'_> {
        Side {
            side,
            label: &self.sides[side].name,
        }
    }

    /// A chart of the ratio of each server to the first one, with a dot per round.
    fn ratio_dots(&self, scenario: &Scenario, rows: &[&Row], measure: Measure) -> String {
        let first = &self.sides[0].name;
        let what = if measure == Measure::Main {
            "main number"
        } else {
            "cost"
        };
        let series: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    self.labelled(row.side),
                    self.ratios(scenario, row.side, measure),
                )
            })
            .collect();
        dots(
            &format!("{what}: times better than {first}, by round"),
            &series,
        )
    }

    /// A chart of offered and delivered load: one point for each step of each search. Empty if there was no search.
    fn ramp(&self, scenario: &Scenario, rows: &[&Row]) -> String {
        let steps = |side| -> Vec<(f64, f64)> {
            let packets = self
                .cells(scenario, side)
                .filter_map(|cell| match &cell.outcome {
                    Outcome::Packets(packets) => Some(&packets.ramp),
                    _ => None,
                });
            packets.flatten().copied().collect()
        };
        let series: Vec<_> = rows
            .iter()
            .map(|row| (self.labelled(row.side), steps(row.side)))
            .collect();
        match series.iter().any(|(_, points)| !points.is_empty()) {
            true => points(
                "every step of the search",
                ["offered per second", "delivered per second"],
                &series,
            ),
            false => String::new(),
        }
    }

    /// A table with both measures of each round and server, which the reader can unfold.
    fn rounds_table(&self, scenario: &Scenario, rows: &[&Row]) -> String {
        let mut text =
            "<details><summary>rounds</summary><table><tr><th>server<th>round<th>main<th>cost</tr>"
                .to_owned();
        for cell in rows.iter().flat_map(|row| self.cells(scenario, row.side)) {
            let value = |measure| {
                cell.outcome
                    .value(measure)
                    .map_or_else(|| "-".to_owned(), |value| format!("{value:.0}"))
            };
            let _ = write!(
                text,
                "<tr><td>{}<td>{}<td>{}<td>{}</tr>",
                escape(&self.sides[cell.side].name),
                cell.round + 1,
                value(Measure::Main),
                value(Measure::Cost)
            );
        }
        text + "</table></details>"
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;

    #[test]
    fn the_page_needs_nothing_else_and_escapes_what_servers_say() {
        let mut report = report();
        report.sides[2].name = "</script><b>".to_owned();
        let page = report.to_html();
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</html>"));
        assert!(!page.contains("http://") && !page.contains("https://") && !page.contains(" src="));
        assert!(
            !page.contains("<b>")
                || page.matches("<b>").count() == page.matches("<\\/script><b>").count()
        );
        assert_eq!(page.matches("</script>").count(), 1);
        assert!(page.contains("burst 32 &lt; 33"));
        assert!(page.contains("it &lt;died&gt;") && page.contains("&lt;serve&gt;"));
        assert_eq!(
            page.matches("<svg").count(),
            5,
            "goodput, cost, two ratios, ramp"
        );
    }

    #[test]
    fn the_data_inside_is_the_json_report() {
        let page = report().to_html();
        let start = page.find("id='report'>").unwrap() + "id='report'>".len();
        let json = &page[start..page.rfind("</script>").unwrap()];
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(value["schema_version"], 2);
    }
}
