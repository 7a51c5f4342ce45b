//! The text format of Prometheus, version 0.0.4: families with HELP and TYPE, samples with labels.
//!
//! ```text
//! # HELP hairpin_turn_allocations Allocations that exist.
//! # TYPE hairpin_turn_allocations gauge
//! hairpin_turn_allocations{worker="0"} 12
//! ```

use std::fmt::{Display, Write};

use server::counters::BatchSizes;
use server::stats::{Stats, WorkerStats};

/// What a family's numbers mean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Only ever grows, until the process ends.
    Counter,
    /// Goes up and down.
    Gauge,
    /// How many observations were at most so large.
    Histogram,
    /// How many observations there were, and their sum.
    Summary,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Summary => "summary",
        }
    }
}

/// Names and values of labels.
pub(super) type Labels<'a> = &'a [(&'a str, &'a dyn Display)];

/// A page of metrics in the making.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
}

impl Page {
    /// Begins a family; its samples follow. Each family is begun once.
    pub(super) fn family(&mut self, name: &'static str, kind: Kind, help: &str) -> Family<'_> {
        let kind = kind.name();
        // Writing to a text cannot fail.
        let _ = write!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
        Family {
            text: &mut self.text,
            name,
        }
    }

    /// A family of one counter without labels.
    pub(super) fn counter(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(name, Kind::Counter, help).put(&[], value);
    }

    /// A family of one gauge without labels.
    pub(super) fn gauge(&mut self, name: &'static str, help: &str, value: impl Display) {
        self.family(name, Kind::Gauge, help).put(&[], value);
    }

    /// A family with a number of each worker.
    pub(super) fn per_worker<N: Display>(
        &mut self,
        name: &'static str,
        kind: Kind,
        help: &str,
        stats: &Stats,
        number: impl Fn(&WorkerStats) -> N,
    ) {
        let mut family = self.family(name, kind, help);
        for (worker, of) in stats.workers.iter().enumerate() {
            family.put(&[("worker", &worker)], number(of));
        }
    }

    /// A family of counters that one label distinguishes.
    pub(super) fn counters<W: Display>(
        &mut self,
        name: &'static str,
        help: &str,
        label: &'static str,
        counts: impl IntoIterator<Item = (W, u64)>,
    ) {
        let mut family = self.family(name, Kind::Counter, help);
        for (word, count) in counts {
            family.put(&[(label, &word)], count);
        }
    }

    /// A family of gauges that one label distinguishes.
    pub(super) fn gauges<W: Display>(
        &mut self,
        name: &'static str,
        help: &str,
        label: &'static str,
        counts: impl IntoIterator<Item = (W, u64)>,
    ) {
        let mut family = self.family(name, Kind::Gauge, help);
        for (word, count) in counts {
            family.put(&[(label, &word)], count);
        }
    }

    /// A family of one histogram without labels.
    pub(super) fn sizes(&mut self, name: &'static str, help: &str, sizes: &BatchSizes) {
        self.family(name, Kind::Histogram, help).sizes(sizes);
    }

    /// The page.
    pub(super) fn finish(self) -> String {
        self.text
    }
}

/// A family in the making.
#[derive(Debug)]
pub(super) struct Family<'a> {
    text: &'a mut String,
    name: &'static str,
}

impl Family<'_> {
    /// Adds a sample.
    pub(super) fn put(&mut self, labels: Labels<'_>, value: impl Display) {
        self.sample("", labels, value);
    }

    /// Adds a count and a sum of seconds.
    pub(super) fn seconds(&mut self, labels: Labels<'_>, count: u64, sum_ns: u64) {
        self.sample("_sum", labels, nanoseconds(sum_ns));
        self.sample("_count", labels, count);
    }

    fn sizes(&mut self, sizes: &BatchSizes) {
        let mut so_far = 0;
        for (class, count) in sizes.buckets.iter().enumerate() {
            so_far += count;
            match BatchSizes::largest(class) {
                Some(largest) => self.sample("_bucket", &[("le", &largest)], so_far),
                None => self.sample("_bucket", &[("le", &"+Inf")], so_far),
            }
        }
        self.sample("_sum", &[], sizes.sum);
        self.sample("_count", &[], so_far);
    }

    fn sample(&mut self, suffix: &str, labels: Labels<'_>, value: impl Display) {
        let text = &mut *self.text;
        text.push_str(self.name);
        text.push_str(suffix);
        for (at, (name, content)) in labels.iter().enumerate() {
            text.push(if at == 0 { '{' } else { ',' });
            let content = escaped(&content.to_string());
            let _ = write!(text, "{name}=\"{content}\"");
        }
        if !labels.is_empty() {
            text.push('}');
        }
        let _ = writeln!(text, " {value}");
    }
}

/// Seconds, without losing a nanosecond.
pub(super) fn nanoseconds(count: u64) -> String {
    format!("{}.{:09}", count / 1_000_000_000, count % 1_000_000_000)
}

/// A label's value as it stands between quotes.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_family_is_written_as_prometheus_reads_it() {
        let mut page = Page::default();
        let mut family = page.family("x_total", Kind::Counter, "Things.");
        family.put(&[("kind", &"a\"b\\c\nd"), ("worker", &0)], 7);
        family.put(&[], 0.5);
        let expected = "# HELP x_total Things.\n# TYPE x_total counter\n\
                        x_total{kind=\"a\\\"b\\\\c\\nd\",worker=\"0\"} 7\nx_total 0.5\n";
        assert_eq!(page.finish(), expected);
    }

    #[test]
    fn buckets_add_up() {
        let mut sizes = BatchSizes::default();
        for size in [1, 1, 3, 500] {
            sizes.count(size);
        }
        let mut page = Page::default();
        page.sizes("sizes", "Sizes.", &sizes);
        let text = page.finish();
        for line in [
            "sizes_bucket{le=\"1\"} 2\n",
            "sizes_bucket{le=\"3\"} 3\n",
            "sizes_bucket{le=\"127\"} 3\n",
            "sizes_bucket{le=\"+Inf\"} 4\n",
            "sizes_sum 505\n",
            "sizes_count 4\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    }

    #[test]
    fn seconds_keep_their_nanoseconds() {
        assert_eq!(nanoseconds(1_000_000_001), "1.000000001");
        assert_eq!(nanoseconds(0), "0.000000000");
    }
}
