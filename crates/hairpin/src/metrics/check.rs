//! A strict reader of the text format, so that tests see what Prometheus would complain about, and what a linter would.

use std::collections::{BTreeMap, BTreeSet};

/// A family as it was read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Family {
    /// `counter`, `gauge`, `histogram` or `summary`.
    pub(crate) kind: String,
    /// The text after HELP.
    pub(crate) help: String,
    /// Its samples, in order.
    pub(crate) samples: Vec<Sample>,
}

/// A sample: name, labels in order, value.
pub(crate) type Sample = (String, Labels, f64);

/// Names and values of labels.
pub(crate) type Labels = Vec<(String, String)>;

impl Family {
    /// The names of the labels, each once; `le` is part of a histogram.
    pub(crate) fn labels(&self) -> BTreeSet<&str> {
        let labels = self.samples.iter().flat_map(|(_, labels, _)| labels);
        labels
            .map(|(name, _)| name.as_str())
            .filter(|name| *name != "le")
            .collect()
    }

    /// The sum of the samples that have all of these labels.
    pub(crate) fn sum(&self, with: &[(&str, &str)]) -> f64 {
        let fits = |labels: &[(String, String)]| {
            with.iter()
                .all(|(name, value)| labels.iter().any(|(n, v)| n == name && v == value))
        };
        self.samples
            .iter()
            .filter(|(_, labels, _)| fits(labels))
            .map(|(_, _, value)| value)
            .sum()
    }
}

/// Reads a page, or panics with what is wrong with it.
pub(crate) fn read(text: &str) -> BTreeMap<String, Family> {
    assert!(text.ends_with('\n'), "the last line must end");
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            let (name, help) = rest.split_once(' ').expect("HELP has a text");
            current = name.to_owned();
            let family = Family {
                help: help.to_owned(),
                ..Family::default()
            };
            assert!(
                families.insert(current.clone(), family).is_none(),
                "{name} stands twice"
            );
            continue;
        }
        let family = families.get_mut(&current).expect("HELP comes first");
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').expect("TYPE has a kind");
            assert_eq!(name, current);
            assert!(
                family.kind.is_empty() && family.samples.is_empty(),
                "{line}"
            );
            family.kind = kind.to_owned();
        } else {
            let sample = sample(line);
            check_name(&current, &family.kind, &sample.0);
            let same = |other: &&Sample| (&other.0, &other.1) == (&sample.0, &sample.1);
            assert_eq!(
                family.samples.iter().find(same),
                None,
                "{line} stands twice"
            );
            family.samples.push(sample);
        }
    }
    families
        .iter()
        .for_each(|(name, family)| lint(name, family));
    families
}

/// `name{label="value",..} number`
fn sample(line: &str) -> Sample {
    let end = line.find(['{', ' ']).expect("a sample has a value");
    let (name, mut rest) = line.split_at(end);
    assert!(is_name(name), "{line}");
    let mut labels = Vec::new();
    if let Some(mut inner) = rest.strip_prefix('{') {
        while !inner.starts_with('}') {
            let (label, tail) = inner.split_once("=\"").expect("a label has a value");
            assert!(is_name(label) && !label.contains(':'), "{line}");
            let (value, tail) = quoted(tail);
            labels.push((label.to_owned(), value));
            inner = tail.strip_prefix(',').unwrap_or(tail);
        }
        rest = &inner[1..];
    }
    let number = rest.strip_prefix(' ').expect("a blank before the value");
    let number = number.replace("+Inf", "inf");
    (
        name.to_owned(),
        labels,
        number.parse().unwrap_or_else(|_| panic!("{line}")),
    )
}

/// The text up to the closing quote, and what follows it.
fn quoted(text: &str) -> (String, &str) {
    let mut value = String::new();
    let mut escaped = false;
    for (at, c) in text.char_indices() {
        match (escaped, c) {
            (true, 'n') => value.push('\n'),
            (true, '"' | '\\') => value.push(c),
            (true, _) => panic!("unknown escape in {text}"),
            (false, '\\') => {
                escaped = true;
                continue;
            }
            (false, '"') => return (value, &text[at + 1..]),
            (false, _) => value.push(c),
        }
        escaped = false;
    }
    panic!("no closing quote in {text}")
}

fn is_name(text: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    text.chars().all(good) && !text.starts_with(|c: char| c.is_ascii_digit()) && !text.is_empty()
}

/// Samples of histograms and summaries have endings of their own; all others are called like their family.
fn check_name(family: &str, kind: &str, sample: &str) {
    let ending = sample.strip_prefix(family);
    let allowed: &[&str] = match kind {
        "histogram" => &["_bucket", "_sum", "_count"],
        "summary" => &["_sum", "_count"],
        "counter" | "gauge" => &[""],
        _ => panic!("{family} is a {kind}"),
    };
    assert!(
        ending.is_some_and(|ending| allowed.contains(&ending)),
        "{sample} in {family}"
    );
}

/// What `promtool check metrics` would say.
fn lint(name: &str, family: &Family) {
    assert!(!family.samples.is_empty(), "{name} has no samples");
    assert!(!family.kind.is_empty(), "{name} has no TYPE");
    assert!(
        family.help.ends_with('.') && !family.help.contains(['\\', '\n']),
        "{name}: {}",
        family.help
    );
    assert!(
        name.starts_with("hairpin_") || name.starts_with("process_"),
        "{name} has another prefix"
    );
    assert_eq!(
        name.ends_with("_total"),
        family.kind == "counter",
        "{name} is a {}",
        family.kind
    );
    for ending in ["_count", "_sum", "_bucket", "_milliseconds", "_kilobytes"] {
        assert!(!name.ends_with(ending), "{name} ends with {ending}");
    }
    if family.kind == "histogram" {
        buckets_grow(name, family);
    }
    for (_, labels, value) in &family.samples {
        assert!(
            *value >= 0.0 && value.is_finite(),
            "{name} {labels:?} {value}"
        );
    }
}

fn buckets_grow(name: &str, family: &Family) {
    let of = |ending: &str| {
        let whole = format!("{name}{ending}");
        family
            .samples
            .iter()
            .filter(move |(sample, ..)| *sample == whole)
            .map(|(_, labels, value)| (labels.last().map(|(_, le)| le.clone()), *value))
            .collect::<Vec<_>>()
    };
    let buckets = of("_bucket");
    assert!(
        buckets.windows(2).all(|pair| pair[0].1 <= pair[1].1),
        "{name}"
    );
    let (last, count) = (buckets.last(), of("_count"));
    let last = last.expect("buckets");
    assert_eq!((last.0.as_deref(), last.1), (Some("+Inf"), count[0].1));
}
