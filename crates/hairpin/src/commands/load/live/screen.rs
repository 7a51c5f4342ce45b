//! The picture: what is drawn, from figures alone.

use std::collections::VecDeque;

use load::report::{Second, Step, shown};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Style, Stylize};
use ratatui::symbols::Marker;
use ratatui::text::{Line, Span};
use ratatui::widgets::{Axis, Block, Chart, Dataset, Gauge, GraphType, Paragraph};

use super::{Title, lines};

/// Seconds that the charts show.
const CHART_SECONDS: usize = 120;

/// The contents of the picture.
#[derive(Debug, Default)]
pub(super) struct Screen {
    title: Title,
    seconds: VecDeque<Second>,
    note: String,
    /// The steps of a search that are complete; empty if there is none.
    steps: Vec<Step>,
}

impl Screen {
    /// A picture with nothing on it yet.
    pub(super) fn new(title: Title) -> Screen {
        Screen {
            title,
            ..Screen::default()
        }
    }

    /// Adds a second; a time that goes back means that another run has begun.
    pub(super) fn push(&mut self, second: &Second) {
        if self
            .seconds
            .back()
            .is_some_and(|last| last.at_s > second.at_s)
        {
            self.seconds.clear();
        }
        if self.seconds.len() == CHART_SECONDS {
            self.seconds.pop_front();
        }
        self.seconds.push_back(*second);
    }

    /// Changes the line at the bottom.
    pub(super) fn note(&mut self, text: &str) {
        text.clone_into(&mut self.note);
    }

    /// Adds a step of a search to the table.
    pub(super) fn step(&mut self, step: Step) {
        self.steps.push(step);
    }

    /// Draws all of it.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        // With its borders and header; a search takes some twenty steps, of which the last are the ones to look at.
        let table = match self.steps.len() {
            0 => 0,
            steps => (steps as u16)
                .saturating_add(3)
                .min(frame.area().height / 3),
        };
        let [head, progress, figures, rates, times, steps, foot] = Layout::vertical([
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Fill(1),
            Constraint::Length(table),
            Constraint::Length(1),
        ])
        .areas(frame.area());
        frame.render_widget(Line::from(self.title.what.as_str()).bold(), head);
        self.progress(frame, progress);
        frame.render_widget(self.figures(), figures);
        self.rates(frame, rates);
        self.times(frame, times);
        self.table(frame, steps);
        let foot_text = format!("q stops and still reports   {}", self.note);
        frame.render_widget(Line::from(foot_text).dim(), foot);
    }

    fn progress(&self, frame: &mut Frame<'_>, area: Rect) {
        let length = self.title.length_s;
        let at = self.seconds.back().map_or(0.0, |last| last.at_s);
        let gauge = Gauge::default()
            .ratio((at / length.max(1e-9)).clamp(0.0, 1.0))
            .label(format!("{at:.0} s of {length:.0} s"))
            .gauge_style(Style::new().fg(Color::Blue));
        frame.render_widget(gauge, area);
    }

    fn figures(&self) -> Paragraph<'_> {
        let Some(last) = self.seconds.back() else {
            return Paragraph::new("setting up");
        };
        let loss = match lines::loss(last, &self.title) {
            Some(loss) if loss > 0.001 => Span::from(format!("loss {:.2} %", loss * 100.0)).red(),
            Some(loss) => Span::from(format!("loss {:.2} %", loss * 100.0)).green(),
            None => Span::from("answers are not expected").dim(),
        };
        let mut spans = vec![
            Span::from(format!(
                "send {}/s   recv {}/s   ",
                short(last.send_pps),
                short(last.recv_pps)
            )),
            loss,
            Span::from(format!(
                "   p50 {} us   p99 {} us",
                shown(last.p50_us),
                shown(last.p99_us)
            )),
        ];
        if last.warm_up {
            spans.push(Span::from("   warming up").yellow());
        }
        Paragraph::new(Line::from(spans))
    }

    fn rates(&self, frame: &mut Frame<'_>, area: Rect) {
        let curves = [
            self.curve("sent", Color::Blue, |second| Some(second.send_pps)),
            self.curve("received", Color::Green, |second| Some(second.recv_pps)),
        ];
        self.chart(frame, area, "datagrams/s", &curves);
    }

    fn times(&self, frame: &mut Frame<'_>, area: Rect) {
        let curves = [
            self.curve("p50", Color::Green, |second| second.p50_us),
            self.curve("p99", Color::Red, |second| second.p99_us),
        ];
        self.chart(frame, area, "us", &curves);
    }

    /// As many of the last steps as there is room for.
    fn table(&self, frame: &mut Frame<'_>, area: Rect) {
        let room = usize::from(area.height.saturating_sub(3));
        let last = &self.steps[self.steps.len().saturating_sub(room)..];
        let row = |step: &Step| {
            let line = Line::from(step.to_string());
            match step.failure {
                None => line.green(),
                Some(_) => line.red(),
            }
        };
        let lines: Vec<Line<'_>> = std::iter::once(Line::from(Step::HEADER).dim())
            .chain(last.iter().map(row))
            .collect();
        let table = Paragraph::new(lines).block(Block::bordered().title("steps"));
        frame.render_widget(table, area);
    }

    fn curve(&self, name: &'static str, colour: Color, read: fn(&Second) -> Option<f64>) -> Curve {
        let point = |second: &Second| Some((second.at_s, read(second)?));
        Curve {
            name,
            colour,
            points: self.seconds.iter().filter_map(point).collect(),
        }
    }

    fn chart(&self, frame: &mut Frame<'_>, area: Rect, title: &str, curves: &[Curve]) {
        let ends = (self.seconds.front(), self.seconds.back());
        let from = ends.0.map_or(0.0, |first| first.at_s);
        let to = ends.1.map_or(1.0, |last| last.at_s).max(from + 1.0);
        let values = curves.iter().flat_map(|curve| &curve.points);
        let top = values.map(|point| point.1).fold(1.0, f64::max) * 1.1;
        let half = Constraint::Ratio(1, 2);
        let chart = Chart::new(curves.iter().map(Curve::dataset).collect())
            .block(Block::bordered().title(title.to_owned()))
            .hidden_legend_constraints((half, half))
            .x_axis(
                Axis::default()
                    .bounds([from, to])
                    .labels([format!("{from:.0} s"), format!("{to:.0} s")]),
            )
            .y_axis(Axis::default().bounds([0.0, top]).labels([
                "0".to_owned(),
                short(top / 2.0),
                short(top),
            ]));
        frame.render_widget(chart, area);
    }
}

/// A line of a chart.
struct Curve {
    name: &'static str,
    colour: Color,
    points: Vec<(f64, f64)>,
}

impl Curve {
    fn dataset(&self) -> Dataset<'_> {
        Dataset::default()
            .name(self.name)
            .marker(Marker::Braille)
            .graph_type(GraphType::Line)
            .style(Style::new().fg(self.colour))
            .data(&self.points)
    }
}

/// A number that fits beside an axis.
fn short(value: f64) -> String {
    match value {
        v if v >= 1e6 => format!("{:.2}M", v / 1e6),
        v if v >= 1e4 => format!("{:.1}k", v / 1e3),
        v if v >= 10.0 => format!("{v:.0}"),
        v => format!("{v:.1}"),
    }
}

#[cfg(test)]
mod tests {
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    use super::*;
    use crate::commands::load::live::lines::sample;

    fn text(screen: &Screen, width: u16, height: u16) -> String {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| screen.draw(frame)).unwrap();
        terminal.backend().to_string()
    }

    fn screen() -> Screen {
        Screen::new(Title {
            what: "relay against turn:127.0.0.1:3478".to_owned(),
            length_s: 11.0,
            one_sided: false,
        })
    }

    #[test]
    fn the_picture_shows_the_figures_of_the_last_second() {
        let mut screen = screen();
        assert!(text(&screen, 100, 30).contains("setting up"));
        screen.push(&sample(900.0, 100, false));
        screen.note("step 3: 50k/s");
        let shown = text(&screen, 100, 30);
        for part in [
            "relay against turn:127.0.0.1:3478",
            "3 s of 11 s",
            "recv 900/s",
            "loss 10.00 %",
            "p99 97.0 us",
            "q stops",
            "step 3",
            "received",
        ] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
    }

    #[test]
    fn the_steps_of_a_search_are_a_table_of_which_the_last_are_shown() {
        let step = |number: u32| -> Step {
            let text = format!(
                r#"{{"rate":{number}000.0,"achieved":999.0,"loss":0.25,"p99_us":12.5,"failure":"loss of 25 %"}}"#
            );
            serde_json::from_str(&text).unwrap()
        };
        let mut screen = screen();
        assert!(!text(&screen, 100, 30).contains("verdict"));
        screen.step(step(1));
        let shown = text(&screen, 100, 30);
        for part in ["verdict", "1000", "25.000%", "12.5", "loss of 25 %"] {
            assert!(shown.contains(part), "{part} is not in\n{shown}");
        }
        (2..40).for_each(|number| screen.step(step(number)));
        let shown = text(&screen, 100, 30);
        assert!(
            shown.contains(" 39000") && !shown.contains(" 1000 "),
            "{shown}"
        );
    }

    #[test]
    fn it_draws_into_any_terminal_and_forgets_what_has_scrolled_away() {
        let mut screen = screen();
        for _ in 0..3 * CHART_SECONDS {
            screen.push(&sample(1000.0, 0, false));
        }
        assert_eq!(screen.seconds.len(), CHART_SECONDS);
        screen.step(Step::default());
        for (width, height) in [(1, 1), (10, 3), (80, 5), (300, 100)] {
            text(&screen, width, height);
        }
    }
}
