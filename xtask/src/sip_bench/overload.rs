//! The overload report: every server at multiples of its own peak, then a fall of the load; curves as one page that loads nothing.

use std::fmt::Write as _;

use anyhow::Result;
use serde_json::Value;

use super::report::Results;
use super::servers::Server;
use super::{Bench, GENERATOR_CPU};

/// What is offered to servers that have something to do for each request, and to those that have not: a generator on one processor
/// cannot send many times as much as they answer, and hands trains to the kernel to send more. The peak comes again before each
/// load: how fast a processor is changes within a minute.
const BUSY: &[&str] = &["1,2,1,5,1,10"];
const IDLE: &[&str] = &["1,1.25,1,1.5,1,2", "--gso"];

impl Bench<'_> {
    /// Calls and registrations that cost something, then bare ones; tells of each that is done.
    pub(super) fn overload(
        &self,
        results: &mut Results,
        mut write: impl FnMut(&Results) -> Result<()>,
    ) -> Result<()> {
        let busy = self.options.service_time_us;
        for (workload, service_time_us, multiples) in [
            ("call", busy, BUSY),
            ("register", busy, BUSY),
            ("register", 0, IDLE),
            ("options", 0, IDLE),
        ] {
            for server in Server::for_overload(&self.binary, service_time_us) {
                let running = server.start(&self.folder)?;
                let arguments = ["--workload", workload, "--sweep-step", "3s", "--sweep"];
                let arguments = [&arguments[..], multiples].concat();
                let report = self.load(&server, &running, GENERATOR_CPU, &arguments)?;
                eprintln!(
                    "sweep of {} is done: {workload}, {service_time_us} us each",
                    server.name
                );
                let what = match service_time_us {
                    0 => workload.to_owned(),
                    us => format!("{workload}, {us} us each"),
                };
                results.add_sweep(server.name, &what, &report["sip"]["sweep"]);
                write(results)?;
            }
        }
        Ok(())
    }
}

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:820px;margin:2em auto;padding:0 1em;color:#222}\
h2{font-size:1.1em;margin-top:2em}pre{background:#f5f5f5;padding:.8em;overflow:auto}svg{width:100%;height:auto}";
const COLOURS: [&str; 3] = ["#2563eb", "#dc2626", "#059669"];
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 260.0;
const MARGIN: f64 = 60.0;

/// The page.
pub(super) fn page(sweeps: &[(String, String, Value)], tables: &str, machine: &Value) -> String {
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>SIP servers in an overload</title>\
         <style>{STYLE}</style></head><body>\n<h1>SIP servers in an overload</h1>\n<p>Goodput at multiples of each server's own peak. \
         One worker on one processor, the generator on another; everything that is not answered is sent again.</p>\n"
    );
    let mut workloads: Vec<&str> = sweeps
        .iter()
        .map(|(_, workload, _)| workload.as_str())
        .collect();
    workloads.dedup();
    for workload in workloads {
        let lines: Vec<_> = sweeps.iter().filter(|one| one.1 == workload).collect();
        let of_peak = |sweep: &Value, step: &Value| {
            100.0 * number(&step["goodput"]) / number(&sweep["peak"]).max(1.0)
        };
        let p99 = |_: &Value, step: &Value| number(&step["latency"]["p99_us"]) / 1e3;
        // Writing to a string cannot fail.
        let _ = writeln!(page, "<h2>{workload}</h2>");
        chart(&mut page, "goodput, % of the peak", &lines, of_peak);
        chart(&mut page, "p99 since the first try, ms", &lines, p99);
    }
    let machine = serde_json::to_string_pretty(machine).unwrap_or_default();
    let _ = writeln!(
        page,
        "<h2>Figures</h2>\n<pre>{tables}</pre>\n<h2>Machine</h2>\n<pre>{machine}</pre>\n</body></html>"
    );
    page
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or(0.0)
}

/// The points that go on to the right: what was repeated in between is in the table.
fn rising(points: impl Iterator<Item = (f64, f64)>) -> Vec<(f64, f64)> {
    let mut rising: Vec<(f64, f64)> = Vec::new();
    for point in points {
        if rising.last().is_none_or(|last| point.0 > last.0) {
            rising.push(point);
        }
    }
    rising
}

/// A line for each server.
fn chart(
    page: &mut String,
    title: &str,
    lines: &[&(String, String, Value)],
    read: impl Fn(&Value, &Value) -> f64,
) {
    let points: Vec<Vec<(f64, f64)>> = lines
        .iter()
        .map(|(_, _, sweep)| {
            let steps = sweep["steps"].as_array().into_iter().flatten();
            rising(steps.map(|step| (number(&step["multiple"]), read(sweep, step))))
        })
        .collect();
    let all = || points.iter().flatten();
    let most_x = all().map(|point| point.0).fold(1.0, f64::max);
    let most_y = all().map(|point| point.1).fold(1.0, f64::max) * 1.1;
    let x = |value: f64| MARGIN + value / most_x * (WIDTH - 2.0 * MARGIN);
    let y = |value: f64| HEIGHT - MARGIN / 2.0 - value / most_y * (HEIGHT - MARGIN);
    let _ = writeln!(
        page,
        "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-size=\"12\"><text x=\"{MARGIN}\" y=\"14\">{title}</text>"
    );
    for part in 0..=4 {
        let value = most_y * f64::from(part) / 4.0;
        let at = y(value);
        let _ = writeln!(
            page,
            "<path d=\"M{MARGIN} {at:.1}H{:.1}\" stroke=\"#ddd\"/><text x=\"4\" y=\"{at:.1}\">{value:.0}</text>",
            WIDTH - MARGIN
        );
    }
    for (multiple, _) in points.first().into_iter().flatten() {
        let _ = writeln!(
            page,
            "<text x=\"{:.1}\" y=\"{:.1}\">{multiple}x</text>",
            x(*multiple),
            HEIGHT - 8.0
        );
    }
    for (index, (line, colour)) in points.iter().zip(COLOURS).enumerate() {
        let path: Vec<String> = line
            .iter()
            .map(|(a, b)| format!("{:.1},{:.1}", x(*a), y(*b)))
            .collect();
        let _ = writeln!(
            page,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/><text x=\"{:.1}\" y=\"{}\" fill=\"{colour}\">{}</text>",
            path.join(" "),
            WIDTH - 220.0,
            14 + 15 * index,
            lines.get(index).map_or("", |line| line.0.as_str())
        );
    }
    page.push_str("</svg>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_server_has_a_line_and_nothing_is_loaded() {
        let sweep = json!({ "peak": 10.0, "steps": [{ "multiple": 1.0, "goodput": 10.0 }, { "multiple": 2.0, "goodput": 9.0 }] });
        let of = |server: &str| (server.to_owned(), "call".to_owned(), sweep.clone());
        let page = page(&[of("a"), of("b")], "table", &json!({}));
        assert_eq!(page.matches("<polyline").count(), 4);
        assert!(!page.contains("src=") && !page.contains("href="));
    }
}
