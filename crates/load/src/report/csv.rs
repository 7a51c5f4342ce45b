//! The seconds of a run as CSV, for a spreadsheet.

use std::fmt::Write;

use super::LoadReport;

/// The seconds of a report as CSV: a header line, then a line for each second.
#[must_use]
pub fn to_csv(report: &LoadReport) -> String {
    let mut text = String::from("at_s,send_pps,recv_pps,missing,p50_us,p99_us,warm_up\n");
    for second in &report.seconds {
        // Writing to a string cannot fail.
        let _ = writeln!(
            text,
            "{:.3},{:.0},{:.0},{},{},{},{}",
            second.at_s,
            second.send_pps,
            second.recv_pps,
            second.missing,
            cell(second.p50_us),
            cell(second.p99_us),
            u8::from(second.warm_up),
        );
    }
    text
}

/// The text of a percentile, with one decimal; empty if there is none.
fn cell(value: Option<f64>) -> String {
    value.map(|value| format!("{value:.1}")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::sample;

    #[test]
    fn a_line_a_second() {
        let text = to_csv(&sample(90.0));
        let mut lines = text.lines();
        let columns = lines.next().unwrap().split(',').count();
        assert_eq!(lines.clone().count(), 10);
        assert!(lines.all(|line| line.split(',').count() == columns));
    }
}
