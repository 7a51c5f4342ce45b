//! Three small charts of several servers: bars with whiskers, points over two axes, dots on a line.

use std::fmt::Write;

use super::{colour, escape, text_at};
use crate::bench::stats::Summary;

const WIDTH: f64 = 460.0;
const LABEL_WIDTH: f64 = 120.0;
const VALUE_WIDTH: f64 = 90.0;
const BAR_HEIGHT: f64 = 22.0;

/// A server in a chart.
pub(crate) struct Side<'a> {
    pub(crate) side: usize,
    pub(crate) label: &'a str,
}

/// Horizontal bars as long as the medians, with whiskers from the smallest to the largest value.
pub(crate) fn bars(
    title: &str,
    lines: &[(Side<'_>, Summary)],
    show: impl Fn(f64) -> String,
) -> String {
    let longest = lines
        .iter()
        .map(|(_, summary)| summary.max)
        .fold(f64::MIN_POSITIVE, f64::max);
    let scale = (WIDTH - LABEL_WIDTH - VALUE_WIDTH) / longest;
    let mut body = String::new();
    for (row, (line, summary)) in (0u32..).zip(lines) {
        let top = 24.0 + f64::from(row) * BAR_HEIGHT;
        let middle = top + BAR_HEIGHT / 2.0 - 2.0;
        let [start, end] = [summary.min, summary.max].map(|value| LABEL_WIDTH + value * scale);
        // Writing to a string cannot fail, here and below.
        let _ = write!(
            body,
            "{label}<rect x='{LABEL_WIDTH}' y='{top:.1}' width='{width:.1}' height='{height:.1}' fill='{colour}'/>\
             <path d='M{start:.1} {middle:.1}H{end:.1}' stroke='currentColor' stroke-width='1.5'/>\
             <text x='{value_at:.1}' y='{baseline:.1}'>{value}</text>",
            label = text_at(LABEL_WIDTH - 6.0, middle + 4.0, "end", line.label),
            width = summary.median * scale,
            height = BAR_HEIGHT - 4.0,
            colour = colour(line.side),
            value_at = end + 6.0,
            baseline = middle + 4.0,
            value = escape(&show(summary.median)),
        );
    }
    frame(title, 24.0 + BAR_HEIGHT * lines.len() as f64, &body)
}

/// Points of several servers over two axes that begin at zero, with the diagonal.
pub(crate) fn points(
    title: &str,
    axes: [&str; 2],
    series: &[(Side<'_>, Vec<(f64, f64)>)],
) -> String {
    const HEIGHT: f64 = 230.0;
    const LEFT: f64 = 52.0;
    const BOTTOM: f64 = 30.0;
    let all = || series.iter().flat_map(|(_, points)| points);
    let right = all().map(|(x, _)| *x).fold(f64::MIN_POSITIVE, f64::max);
    let top = all().map(|(_, y)| *y).fold(f64::MIN_POSITIVE, f64::max);
    let x_of = |x: f64| LEFT + x / right * (WIDTH - LEFT - 12.0);
    let y_of = |y: f64| HEIGHT - BOTTOM - y / top * (HEIGHT - BOTTOM - 28.0);
    let diagonal = right.min(top);
    let mut body = format!(
        "<path d='M{LEFT} 28V{base:.1}H{end:.1}' fill='none' stroke='currentColor'/>\
         <path d='M{LEFT} {base:.1}L{dx:.1} {dy:.1}' stroke='currentColor' stroke-dasharray='2 4' opacity='.5'/>",
        base = HEIGHT - BOTTOM,
        end = WIDTH - 12.0,
        dx = x_of(diagonal),
        dy = y_of(diagonal),
    );
    for (line, points) in series {
        for (x, y) in points {
            body.push_str(&circle(x_of(*x), y_of(*y), 3, line.side));
        }
    }
    for (x, y, anchor, text) in [
        (
            WIDTH - 12.0,
            HEIGHT - 4.0,
            "end",
            format!("{} (to {})", axes[0], thousands(right)),
        ),
        (LEFT - 6.0, 34.0, "end", thousands(top)),
        (LEFT + 4.0, 26.0, "start", axes[1].to_owned()),
    ] {
        body.push_str(&text_at(x, y, anchor, &text));
    }
    frame(title, HEIGHT, &body)
}

/// One row of dots per server, with a line at 1.
pub(crate) fn dots(title: &str, rows: &[(Side<'_>, Vec<f64>)]) -> String {
    let largest = rows
        .iter()
        .flat_map(|(_, values)| values)
        .copied()
        .fold(1.0, f64::max);
    let x_of = |value: f64| LABEL_WIDTH + value / largest * (WIDTH - LABEL_WIDTH - VALUE_WIDTH);
    let height = 24.0 + BAR_HEIGHT * rows.len() as f64;
    let one = x_of(1.0);
    let mut body = format!(
        "<path d='M{one:.1} 22V{height:.1}' stroke='currentColor' stroke-dasharray='2 3'/>"
    );
    for (row, (line, values)) in (0u32..).zip(rows) {
        let middle = 24.0 + (f64::from(row) + 0.5) * BAR_HEIGHT - 2.0;
        body.push_str(&text_at(LABEL_WIDTH - 6.0, middle + 4.0, "end", line.label));
        for value in values {
            body.push_str(&circle(x_of(*value), middle, 4, line.side));
        }
        if let Some(summary) = Summary::of(values.iter().copied()) {
            let text = format!("x{:.2}", summary.median);
            body.push_str(&text_at(
                WIDTH - VALUE_WIDTH + 12.0,
                middle + 4.0,
                "start",
                &text,
            ));
        }
    }
    frame(title, height, &body)
}

/// A number with its thousands as `k` or `M`.
pub(crate) fn thousands(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.2}M", value / 1e6),
        value if value >= 1e4 => format!("{:.0}k", value / 1e3),
        value if value >= 1e3 => format!("{:.1}k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

/// A share as a number of percent.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn circle(x: f64, y: f64, radius: u8, side: usize) -> String {
    let colour = colour(side);
    format!("<circle cx='{x:.1}' cy='{y:.1}' r='{radius}' fill='{colour}' fill-opacity='.7'/>")
}

/// A picture with its title on top.
fn frame(title: &str, height: f64, body: &str) -> String {
    let body = format!(
        "<text x='0' y='14' font-weight='600'>{}</text>{body}",
        escape(title)
    );
    super::frame(title, WIDTH, height, &body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(side: usize, label: &str) -> Side<'_> {
        Side { side, label }
    }

    #[test]
    fn charts_are_well_formed_and_escape_their_labels() {
        let summary = Summary {
            median: 2.0,
            min: 1.0,
            max: 4.0,
            rounds: 3,
        };
        let charts = [
            bars(
                "goodput",
                &[(line(0, "<a&b>"), summary), (line(7, "c"), summary)],
                |value| format!("{value} 'x'"),
            ),
            points(
                "ramp",
                ["offered", "delivered"],
                &[(line(0, "a"), vec![(1.0, 1.0), (2.0, 1.5)])],
            ),
            dots("ratio", &[(line(1, "b"), vec![0.5, 1.5])]),
            bars("nothing", &[], |value| value.to_string()),
            points("nothing", ["x", "y"], &[]),
        ];
        for chart in charts {
            assert!(
                chart.starts_with("<svg ") && chart.ends_with("</svg>\n"),
                "{chart}"
            );
            assert!(
                !chart.contains("NaN") && !chart.contains("inf") && !chart.contains("<a&b>"),
                "{chart}"
            );
        }
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            ["850", "8.5k", "328k", "2.67M"],
            [850.0, 8_500.0, 328_123.0, 2_674_000.0].map(thousands)
        );
    }
}
