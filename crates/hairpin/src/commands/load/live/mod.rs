//! What the user sees while a run goes on: a picture on a terminal, else a line a second.
//!
//! Both go to stderr, so that a report can go to stdout.

mod lines;
#[cfg(feature = "tui")]
mod screen;
#[cfg(feature = "tui")]
mod terminal;

use std::io::IsTerminal;

use load::generator::Stopper;
use load::measure::Rate;
use load::report::{Second, Step};

/// What is known about a run before it starts.
#[derive(Clone, Debug, Default)]
// Lines need less of it than the picture.
#[cfg_attr(not(feature = "tui"), allow(dead_code))]
pub(super) struct Title {
    /// `relay against turn:127.0.0.1:3478`.
    pub(super) what: String,
    /// Warm-up and measured part together, in seconds.
    pub(super) length_s: f64,
    /// What is not answered is not lost, as with garbage.
    pub(super) one_sided: bool,
}

/// Makes a terminal usable again, if it was taken.
pub(super) fn restore_terminal() {
    #[cfg(feature = "tui")]
    terminal::restore_terminal();
}

/// A view of a run.
#[derive(Debug)]
pub(super) enum LiveDisplay {
    /// A line a second.
    Lines(Title),
    /// The whole terminal.
    #[cfg(feature = "tui")]
    Terminal(Box<terminal::Terminal>),
}

impl LiveDisplay {
    /// The picture if stderr is a terminal, unless `plain`; otherwise lines.
    pub(super) fn start(title: Title, plain: bool, stopper: &Stopper) -> LiveDisplay {
        let watched = std::io::stderr().is_terminal() && std::io::stdin().is_terminal();
        #[cfg(feature = "tui")]
        if watched && !plain {
            // A terminal that cannot do it still gets lines.
            if let Ok(terminal) = terminal::Terminal::start(title.clone(), stopper.clone()) {
                return LiveDisplay::Terminal(Box::new(terminal));
            }
        }
        #[cfg(not(feature = "tui"))]
        let _ = (watched, plain, stopper);
        LiveDisplay::Lines(title)
    }

    /// Shows one more second.
    pub(super) fn second(&mut self, second: &Second) {
        match self {
            LiveDisplay::Lines(title) => eprintln!("{}", lines::line(second, title)),
            #[cfg(feature = "tui")]
            LiveDisplay::Terminal(terminal) => terminal.second(second),
        }
    }

    /// Shows one more second of a step of a search. Lines have the step as a whole instead: its seconds would tear the
    /// table apart.
    pub(super) fn second_of_step(&mut self, second: &Second) {
        match self {
            LiveDisplay::Lines(_) => {
                let _ = second;
            }
            #[cfg(feature = "tui")]
            LiveDisplay::Terminal(terminal) => terminal.second(second),
        }
    }

    /// Says that a search tries a rate, from now on. As lines, this is where the table begins.
    pub(super) fn begin_step(&mut self, number: u32, rate: Rate) {
        match self {
            LiveDisplay::Lines(_) if number == 1 => eprintln!("{}", Step::HEADER),
            LiveDisplay::Lines(_) => {}
            #[cfg(feature = "tui")]
            LiveDisplay::Terminal(terminal) => {
                terminal.note(&format!("step {number}: {:.0}/s", rate.0));
            }
        }
        #[cfg(not(feature = "tui"))]
        let _ = rate;
    }

    /// Says something about the course of a run: a line, or the foot of the picture.
    pub(super) fn say(&mut self, text: &str) {
        match self {
            LiveDisplay::Lines(_) => eprintln!("{text}"),
            #[cfg(feature = "tui")]
            LiveDisplay::Terminal(terminal) => terminal.note(text),
        }
    }

    /// Adds a finished step of a search to the table.
    pub(super) fn step(&mut self, step: &Step) {
        match self {
            LiveDisplay::Lines(_) => eprintln!("{step}"),
            #[cfg(feature = "tui")]
            LiveDisplay::Terminal(terminal) => terminal.step(step),
        }
    }
}
