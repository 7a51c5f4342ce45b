//! The schedule of sends, and how late the generator sent.

use serde::{Deserialize, Serialize};

use super::Percentiles;
use crate::measure::Latency;

/// What decides when the next send is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Pace {
    /// A schedule that does not depend on the server (open loop).
    #[default]
    Open,
    /// The responses: after each one, the next request leaves (closed loop).
    Closed,
    /// The generator's own speed.
    FlatOut,
}

impl Pace {
    /// From when latencies count.
    #[must_use]
    pub fn latency_from(self) -> &'static str {
        match self {
            Pace::Open => "from the intended time",
            Pace::Closed | Pace::FlatOut => "from when it left",
        }
    }

    /// What the latencies leave out; `None` if nothing.
    #[must_use]
    pub fn excluded_latencies(self) -> Option<&'static str> {
        match self {
            Pace::Open => None,
            Pace::Closed => Some(
                "closed loop: while the server stalls nothing more is sent, and what would have been is in no latency",
            ),
            Pace::FlatOut => Some(
                "flat out: these are the latencies of full buffers, and what could not leave is in none of them",
            ),
        }
    }
}

/// Upper ends of the parts of the histogram, microseconds.
const EDGES_US: [u64; 9] = [10, 20, 50, 100, 200, 500, 1_000, 5_000, 20_000];

/// How long after the intended times the generator sent: its own part of the latencies.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OwnDelay {
    /// Over all sends of the measured part.
    pub percentiles: Percentiles,
    /// Sends up to this many microseconds late (`None` is any), and not in the part before.
    pub histogram: Vec<(Option<u64>, u64)>,
}

impl OwnDelay {
    pub(crate) fn of(delay: &Latency) -> OwnDelay {
        let mut before = 0;
        let mut histogram = Vec::new();
        for edge in EDGES_US {
            let below = delay.count_up_to(edge * 1000);
            histogram.push((Some(edge), below - before));
            before = below;
        }
        let percentiles: Percentiles = delay.report().into();
        histogram.push((None, percentiles.count - before));
        OwnDelay {
            percentiles,
            histogram,
        }
    }

    /// The parts that are not empty: `<=10us 98.1 %, <=20us 1.9 %`.
    #[must_use]
    pub fn parts(&self) -> String {
        let all = self.percentiles.count.max(1) as f64;
        let parts: Vec<String> = self
            .histogram
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(edge, count)| {
                let share = 100.0 * *count as f64 / all;
                match edge {
                    Some(edge) => format!("<={edge}us {share:.2} %"),
                    None => format!("later {share:.2} %"),
                }
            })
            .collect();
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_send_is_in_one_part_of_the_histogram() {
        let mut delay = Latency::new();
        for us in [1, 9, 15, 400, 999, 30_000_000] {
            delay.record_ns(us * 1000);
        }
        let own = OwnDelay::of(&delay);
        let counts: Vec<u64> = own.histogram.iter().map(|(_, count)| *count).collect();
        assert_eq!(counts, [2, 1, 0, 0, 0, 1, 1, 0, 0, 1]);
        assert!(own.parts().starts_with("<=10us 33.33 %"), "{}", own.parts());
        assert!(own.parts().ends_with("later 16.67 %"));
        assert_eq!(Pace::Open.excluded_latencies(), None);
    }

    #[test]
    fn only_an_open_loop_counts_from_the_intended_time_and_the_others_say_what_is_missing() {
        let text = |pace| {
            let mut report = crate::report::sample(100.0);
            report.run.pace = pace;
            report.to_string()
        };
        let open = text(Pace::Open);
        assert!(open.contains("from the intended time"), "{open}");
        assert!(
            !open.contains("closed loop:") && !open.contains("flat out:"),
            "{open}"
        );
        for (pace, missing) in [
            (Pace::Closed, "closed loop: while the server stalls"),
            (
                Pace::FlatOut,
                "flat out: these are the latencies of full buffers",
            ),
        ] {
            let text = text(pace);
            assert!(!text.contains("intended"), "{text}");
            assert!(
                text.contains("from when it left") && text.contains(missing),
                "{text}"
            );
        }
    }
}
