//! The charts of all reports, as inline SVG: no script, no font, no network. Text takes the page's colour, so that
//! charts work on light and dark pages.

mod sides;

use std::fmt::Write;

pub(crate) use sides::{Side, bars, dots, percent, points, thousands};

/// A line of a chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// What the legend calls it.
    pub name: String,
    /// Points from left to right.
    pub points: Vec<(f64, f64)>,
}

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 260.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 34.0;
const TOP: f64 = 26.0;
const RIGHT: f64 = 12.0;
/// Distinguishable with any colour vision (Okabe and Ito).
const COLOURS: [&str; 6] = [
    "#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9",
];

/// The colour of a line or a server.
pub(crate) fn colour(index: usize) -> &'static str {
    COLOURS[index % COLOURS.len()]
}

/// Where data lands on the picture.
struct Scale {
    x0: f64,
    x1: f64,
    y1: f64,
}

impl Scale {
    fn of(series: &[Series]) -> Scale {
        let points = || series.iter().flat_map(|line| &line.points);
        let x0 = points().map(|p| p.0).fold(f64::INFINITY, f64::min);
        let x1 = points().map(|p| p.0).fold(f64::NEG_INFINITY, f64::max);
        let y1 = points().map(|p| p.1).fold(0.0, f64::max);
        let x0 = if x0.is_finite() { x0 } else { 0.0 };
        Scale {
            x0,
            x1: if x1 > x0 { x1 } else { x0 + 1.0 },
            y1: nice(y1),
        }
    }

    fn x(&self, value: f64) -> f64 {
        LEFT + (value - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, value: f64) -> f64 {
        HEIGHT - BOTTOM - value / self.y1 * (HEIGHT - BOTTOM - TOP)
    }
}

/// The next of 1, 2, 2.5 and 5 times a power of ten.
fn nice(value: f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return 1.0;
    }
    let power = 10f64.powf(value.log10().floor());
    [1.0, 2.0, 2.5, 5.0, 10.0]
        .into_iter()
        .map(|step| step * power)
        .find(|&top| top >= value * 0.999_999)
        .unwrap_or(10.0 * power)
}

/// A chart of lines over a common axis, the vertical one starting at zero.
#[must_use]
pub fn lines(title: &str, x_label: &str, y_label: &str, series: &[Series]) -> String {
    let scale = Scale::of(series);
    let mut svg = String::new();
    for step in 0..=4 {
        let value = scale.y1 * f64::from(step) / 4.0;
        grid(&mut svg, scale.y(value), &number(value));
    }
    for step in 0..=6 {
        let value = scale.x0 + (scale.x1 - scale.x0) * f64::from(step) / 6.0;
        let below = HEIGHT - BOTTOM + 14.0;
        svg += &text_at(scale.x(value), below, "middle", &number(value));
    }
    svg += &text_at(WIDTH / 2.0, HEIGHT - 4.0, "middle", x_label);
    svg += &text_at(4.0, TOP - 10.0, "start", y_label);
    for (index, line) in series.iter().enumerate() {
        let path: Vec<_> = line
            .points
            .iter()
            .map(|&(x, y)| format!("{:.1},{:.1}", scale.x(x), scale.y(y)))
            .collect();
        let _ = write!(
            svg,
            "<polyline fill='none' stroke='{}' stroke-width='1.6' points='{}'/>",
            colour(index),
            path.join(" ")
        );
    }
    legend(&mut svg, series.iter().map(|line| line.name.as_str()));
    frame(title, WIDTH, HEIGHT, &svg)
}

/// Text made safe inside HTML and SVG.
#[must_use]
pub fn escape(raw: &str) -> String {
    let mut safe = String::with_capacity(raw.len());
    for character in raw.chars() {
        match character {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            other => safe.push(other),
        }
    }
    safe
}

// Writing to a string cannot fail; the results below are dropped for that reason.

/// A picture for readers who see it and for those who do not.
fn frame(title: &str, width: f64, height: f64, body: &str) -> String {
    let title = escape(title);
    format!(
        "<svg viewBox='0 0 {width} {height:.0}' width='{width}' role='img' aria-label='{title}' fill='currentColor' \
         font-family='system-ui,sans-serif' font-size='12'>{body}</svg>\n"
    )
}

fn grid(svg: &mut String, y: f64, label: &str) {
    let right = WIDTH - RIGHT;
    let _ = write!(
        svg,
        "<path d='M{LEFT} {y:.1}H{right}' stroke='currentColor' opacity='.2'/>"
    );
    *svg += &text_at(LEFT - 6.0, y + 4.0, "end", label);
}

fn text_at(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!(
        "<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{}</text>",
        escape(text)
    )
}

fn legend<'a>(svg: &mut String, names: impl Iterator<Item = &'a str>) {
    let mut x = LEFT + 90.0;
    for (index, name) in names.enumerate() {
        let _ = write!(
            svg,
            "<rect x='{x:.1}' y='6' width='10' height='10' fill='{}'/>",
            colour(index)
        );
        *svg += &text_at(x + 14.0, 15.0, "start", name);
        x += 30.0 + 6.5 * name.chars().count() as f64;
    }
}

fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => format!("{:.4}M", value / 1e6).replace("0000M", "0M"),
        v if v >= 1e4 => format!("{:.1}k", value / 1e3),
        v if v >= 100.0 || v == 0.0 => format!("{value:.0}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_ends_where_its_last_point_is() {
        let series = [Series {
            name: "a <b>".into(),
            points: vec![(0.0, 0.0), (10.0, 100.0)],
        }];
        let svg = lines("t", "s", "pps", &series);
        let corner = format!("{:.1},{TOP:.1}", WIDTH - RIGHT);
        assert!(svg.contains(&corner), "{svg}");
        assert!(svg.contains("a &lt;b&gt;") && !svg.contains("<b>"));
    }

    #[test]
    fn empty_and_flat_data_draw_without_a_fault() {
        for points in [vec![], vec![(1.0, 0.0)], vec![(1.0, 5.0), (1.0, 5.0)]] {
            let svg = lines(
                "t",
                "x",
                "y",
                &[Series {
                    name: "n".into(),
                    points,
                }],
            );
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn tops_are_round() {
        for (value, top) in [
            (0.0, 1.0),
            (7.0, 10.0),
            (21.0, 25.0),
            (100.0, 100.0),
            (1.3e6, 2e6),
        ] {
            assert!((nice(value) - top).abs() < 1e-6 * top, "{value}");
        }
    }
}
