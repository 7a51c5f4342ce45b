//! The report as one file with charts, readable without a network.

use std::fmt::Write;

use super::chart::{Series, escape, lines};
use super::{LoadReport, Second, SipReport, SweepStep, shown};

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;padding:0 1em;color:#222}\
h1{font-size:1.4em}h2{font-size:1.1em;margin-top:2em}table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #ddd}\
td:first-child,th:first-child{text-align:left}pre{background:#f5f5f5;padding:.8em;overflow:auto}.warning{background:#fef3c7;padding:.4em .8em}svg{width:100%;height:auto}";

/// The whole page. Nothing in it is loaded from elsewhere.
#[must_use]
pub fn to_html(report: &LoadReport) -> String {
    let title = format!("{} against {}", report.run.workload, report.run.target);
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style></head><body>\n<h1>{0}</h1>\n",
        escape(&title)
    );
    for warning in report.warnings.iter().chain(&report.ended_early) {
        let _ = writeln!(page, "<p class=\"warning\">{}</p>", escape(warning));
    }
    let _ = writeln!(page, "<pre>{}</pre>", escape(&report.to_string()));
    if let Some(sip) = &report.sip {
        sip_charts(&mut page, sip);
    }
    charts(&mut page, report);
    percentiles(&mut page, report);
    provenance(&mut page, report);
    page.push_str("</body></html>\n");
    page
}

fn charts(page: &mut String, report: &LoadReport) {
    let series = |name: &str, read: fn(&Second) -> Option<f64>| Series {
        name: name.to_owned(),
        points: report
            .seconds
            .iter()
            .filter_map(|second| Some((second.at_s, read(second)?)))
            .collect(),
    };
    page.push_str("<h2>Rate</h2>\n");
    page.push_str(&lines(
        "Rate",
        "seconds since the start",
        "datagrams/s",
        &[
            series("sent", |second| Some(second.send_pps)),
            series("received", |second| Some(second.recv_pps)),
        ],
    ));
    page.push_str("<h2>Latency</h2>\n");
    page.push_str(&lines(
        "Latency",
        "seconds since the start",
        "us",
        &[
            series("p50", |second| second.p50_us),
            series("p99", |second| second.p99_us),
        ],
    ));
}

/// The goodput curve of a sweep.
fn sip_charts(page: &mut String, sip: &SipReport) {
    let Some(sweep) = &sip.sweep else {
        return;
    };
    // A percentile that is not known is no point of a line.
    let series = |name: &str, read: fn(&SweepStep) -> Option<f64>| Series {
        name: name.to_owned(),
        points: sweep
            .steps
            .iter()
            .filter_map(|step| Some((step.multiple, read(step)?)))
            .collect(),
    };
    let x_label = "offered load, multiples of the peak";
    page.push_str("<h2>Overload</h2>\n");
    page.push_str(&lines(
        "Overload",
        x_label,
        "per second",
        &[
            series("goodput", |step| Some(step.goodput)),
            series("offered, up to twice the peak", |step| {
                let twice = 2.0 * step.offered / step.multiple.max(1e-9);
                Some(step.begun.min(twice))
            }),
            series("503", |step| Some(step.unavailable)),
        ],
    ));
    page.push_str(&lines(
        "Latency of what succeeded",
        x_label,
        "ms",
        &[
            series("p50", |step| step.latency.p50_us.map(|us| us / 1e3)),
            series("p99", |step| step.latency.p99_us.map(|us| us / 1e3)),
        ],
    ));
    let _ = writeln!(page, "<pre>{}</pre>", escape(&sweep.to_string()));
}

fn percentiles(page: &mut String, report: &LoadReport) {
    let times = &report.latency;
    let _ = write!(
        page,
        "<h2>Percentiles ({})</h2>\n<table><tr><th>percentile</th><th>us</th></tr>",
        escape(&report.run.latency_is)
    );
    for (name, value) in [
        ("min", Some(times.min_us)),
        ("p50", times.p50_us),
        ("p90", times.p90_us),
        ("p99", times.p99_us),
        ("p99.9", times.p999_us),
        ("p99.99", times.p9999_us),
        ("max", Some(times.max_us)),
    ] {
        let _ = write!(page, "<tr><td>{name}</td><td>{}</td></tr>", shown(value));
    }
    page.push_str("</table>\n");
    let Some(own) = &report.own_delay else {
        return;
    };
    page.push_str(
        "<h2>How late the generator itself sent</h2>\n<table><tr><th>up to</th><th>sends</th></tr>",
    );
    for (edge, count) in &own.histogram {
        let edge = edge.map_or_else(|| "later".to_owned(), |edge| format!("{edge} us"));
        let _ = write!(page, "<tr><td>{edge}</td><td>{count}</td></tr>");
    }
    page.push_str("</table>\n");
}

fn provenance(page: &mut String, report: &LoadReport) {
    let run = &report.run;
    let _ = writeln!(
        page,
        "<h2>How it was measured</h2>\n<p>hairpin {}, Linux {}, {} processors. Latencies count {}. {}</p>\n<pre>{}</pre>",
        escape(&run.version),
        escape(&run.kernel),
        run.cpus,
        run.pace.latency_from(),
        escape(run.pace.excluded_latencies().unwrap_or_default()),
        escape(&run.argv.join(" "))
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Percentiles, Sweep, sample};

    #[test]
    fn the_page_stands_alone_and_escapes_what_it_shows() {
        let mut report = sample(80.0);
        report.run.argv = vec!["hairpin".into(), "<script>".into()];
        let page = to_html(&report);
        assert_eq!(page.matches("<svg").count(), 2);
        assert!(!page.contains("<script") && !page.contains("src=") && !page.contains("href="));
    }
    #[test]
    fn a_percentile_that_is_not_known_is_not_drawn() {
        let step = |multiple: f64, p99_us| SweepStep {
            multiple,
            latency: Percentiles {
                p99_us,
                ..Percentiles::default()
            },
            ..SweepStep::default()
        };
        let mut report = sample(80.0);
        report.sip = Some(Box::new(SipReport {
            sweep: Some(Sweep {
                steps: vec![step(1.0, Some(2e3)), step(2.0, Some(3e3)), step(5.0, None)],
                ..Sweep::default()
            }),
            ..SipReport::default()
        }));
        let page = to_html(&report);
        let chart = page
            .split("<svg")
            .find(|svg| svg.contains("Latency of what succeeded"));
        let lines = chart.unwrap().split("points='").skip(1);
        let counts: Vec<usize> = lines
            .map(|line| line[..line.find('\'').unwrap()].split_whitespace().count())
            .collect();
        assert_eq!(counts, [0, 2], "p50 and p99");
    }
}
