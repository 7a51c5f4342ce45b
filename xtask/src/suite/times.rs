//! How long each stage took when it last passed: a line per stage in `target/stages/times.tsv`.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::scratch;

/// Seconds by name of a stage.
#[derive(Debug, Default)]
pub(super) struct Times {
    file: Option<PathBuf>,
    seconds: BTreeMap<String, f32>,
}

impl Times {
    /// Reads the times of earlier runs. Without a readable file there are none.
    pub(super) fn read(root: &Path) -> Times {
        let file = scratch(root, "stages")
            .ok()
            .map(|folder| folder.join("times.tsv"));
        let text = file
            .as_ref()
            .and_then(|file| std::fs::read_to_string(file).ok())
            .unwrap_or_default();
        Times {
            file,
            seconds: parse(&text),
        }
    }

    pub(super) fn last(&self, name: &str) -> Option<f32> {
        self.seconds.get(name).copied()
    }

    pub(super) fn note(&mut self, name: &str, seconds: f32) {
        self.seconds.insert(name.to_owned(), seconds);
    }

    /// Writes the times for the next run. A failure costs that run its forecast, nothing else.
    pub(super) fn write(&self) {
        if let Some(file) = &self.file {
            let _ = std::fs::write(file, self.render());
        }
    }

    fn render(&self) -> String {
        let mut text = String::new();
        for (name, seconds) in &self.seconds {
            let _ = writeln!(text, "{name}\t{seconds:.1}");
        }
        text
    }
}

fn parse(text: &str) -> BTreeMap<String, f32> {
    text.lines()
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(name, seconds)| Some((name.to_owned(), seconds.parse().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_survive_the_file() {
        let mut times = Times::default();
        times.note("unit", 421.25);
        times.note("fmt", 0.5);
        times.note("unit", 400.0);
        let read = parse(&times.render());
        assert_eq!(
            read.into_iter().collect::<Vec<_>>(),
            [("fmt".to_owned(), 0.5), ("unit".to_owned(), 400.0)]
        );
        assert!(parse("no tab\nfmt\tsoon\n").is_empty());
    }
}
