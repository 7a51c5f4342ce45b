//! Line and bar charts as inline SVG: no script, no font, no network.

use std::fmt::Write;

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
const COLOURS: [&str; 6] = [
    "#2563eb", "#dc2626", "#059669", "#d97706", "#7c3aed", "#475569",
];

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
    let mut svg = open(title);
    for step in 0..=4 {
        let value = scale.y1 * f64::from(step) / 4.0;
        grid(&mut svg, scale.y(value), &number(value));
    }
    for step in 0..=6 {
        let value = scale.x0 + (scale.x1 - scale.x0) * f64::from(step) / 6.0;
        text(
            &mut svg,
            scale.x(value),
            HEIGHT - BOTTOM + 14.0,
            "middle",
            &number(value),
        );
    }
    text(&mut svg, WIDTH / 2.0, HEIGHT - 4.0, "middle", x_label);
    text(&mut svg, 4.0, TOP - 10.0, "start", y_label);
    for (line, colour) in series.iter().zip(COLOURS.iter().cycle()) {
        let path: Vec<_> = line
            .points
            .iter()
            .map(|&(x, y)| format!("{:.1},{:.1}", scale.x(x), scale.y(y)))
            .collect();
        let _ = write!(
            svg,
            r#"<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{}"/>"#,
            path.join(" ")
        );
    }
    legend(&mut svg, series.iter().map(|line| line.name.as_str()));
    svg.push_str("</svg>\n");
    svg
}

/// Groups of bars: one group for each label, one bar in it for each name. `values[label][name]`.
#[must_use]
pub fn bars(
    title: &str,
    y_label: &str,
    labels: &[String],
    names: &[String],
    values: &[Vec<f64>],
) -> String {
    let top = nice(values.iter().flatten().copied().fold(0.0, f64::max));
    let scale = Scale {
        x0: 0.0,
        x1: labels.len().max(1) as f64,
        y1: top,
    };
    let mut svg = open(title);
    for step in 0..=4 {
        let value = top * f64::from(step) / 4.0;
        grid(&mut svg, scale.y(value), &number(value));
    }
    text(&mut svg, 4.0, TOP - 10.0, "start", y_label);
    let width = 0.8 / names.len().max(1) as f64;
    for (group, (label, row)) in labels.iter().zip(values).enumerate() {
        let left = group as f64 + 0.1;
        for (index, (&value, colour)) in row.iter().zip(COLOURS.iter().cycle()).enumerate() {
            let x = scale.x(left + width * index as f64);
            let w = scale.x(left + width) - scale.x(left) - 1.0;
            let y = scale.y(value);
            let h = scale.y(0.0) - y;
            let _ = write!(
                svg,
                r#"<rect x="{x:.1}" y="{y:.1}" width="{w:.1}" height="{h:.1}" fill="{colour}"/>"#
            );
        }
        text(
            &mut svg,
            scale.x(group as f64 + 0.5),
            HEIGHT - BOTTOM + 14.0,
            "middle",
            label,
        );
    }
    legend(&mut svg, names.iter().map(String::as_str));
    svg.push_str("</svg>\n");
    svg
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

fn open(title: &str) -> String {
    format!(
        r#"<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" xmlns="http://www.w3.org/2000/svg" font-family="system-ui,sans-serif" font-size="11"><title>{}</title>"#,
        escape(title)
    )
}

fn grid(svg: &mut String, y: f64, label: &str) {
    let right = WIDTH - RIGHT;
    let _ = write!(
        svg,
        r##"<line x1="{LEFT}" x2="{right}" y1="{y:.1}" y2="{y:.1}" stroke="#ddd"/>"##
    );
    text(svg, LEFT - 6.0, y + 4.0, "end", label);
}

fn text(svg: &mut String, x: f64, y: f64, anchor: &str, content: &str) {
    let _ = write!(
        svg,
        r##"<text x="{x:.1}" y="{y:.1}" text-anchor="{anchor}" fill="#444">{}</text>"##,
        escape(content)
    );
}

fn legend<'a>(svg: &mut String, names: impl Iterator<Item = &'a str>) {
    let mut x = LEFT + 90.0;
    for (name, colour) in names.zip(COLOURS.iter().cycle()) {
        let _ = write!(
            svg,
            r#"<rect x="{x:.1}" y="6" width="10" height="10" fill="{colour}"/>"#
        );
        text(svg, x + 14.0, 15.0, "start", name);
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
        assert!(!bars("t", "y", &[], &[], &[]).contains("NaN"));
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
