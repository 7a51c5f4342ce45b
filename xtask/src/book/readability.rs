//! How hard the pages are to read: long sentences, and lines that are wider than a window.
//!
//! `cargo xtask readability` prints the counts of every page. The pages of [`PLAIN`] may have none.

use std::path::Path;

use anyhow::{Result, bail};

use super::SUMMARY;
use super::markdown::prose;
use super::tree::{chapters, read};

/// Words of a sentence that a reader of English as a second language can still hold.
const WORDS_MAX: usize = 25;
/// Columns of a line outside of tables and code.
const COLUMNS_MAX: usize = 120;

/// Pages, and folders of pages, that must have no long sentence and no wide line.
const PLAIN: &[&str] = &[
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "README.md",
    "SECURITY.md",
    "crates",
    "docs/api.md",
    "docs/benchmarking.md",
    "docs/benchmarks",
    "docs/cli.md",
    "docs/cluster.md",
    "docs/configuration.md",
    "docs/costs.md",
    "docs/credentials.md",
    "docs/data-path.md",
    "docs/doctor.md",
    "docs/error-codes.md",
    "docs/events.md",
    "docs/from-coturn.md",
    "docs/from-eturnal.md",
    "docs/from-kamailio.md",
    "docs/from-opensips.md",
    "docs/from-pion.md",
    "docs/from-repro.md",
    "docs/glossary.md",
    "docs/how-to",
    "docs/ip-header.md",
    "docs/kernels.md",
    "docs/library.md",
    "docs/live-page.md",
    "docs/load-from-uclient.md",
    "docs/load-sip.md",
    "docs/load.md",
    "docs/log-events.md",
    "docs/metrics.md",
    "docs/mobility.md",
    "docs/nat-discovery.md",
    "docs/not-supported.md",
    "docs/operation.md",
    "docs/packages.md",
    "docs/rfc-coverage.md",
    "docs/runbook.md",
    "docs/shared-ports.md",
    "docs/sip-compared.md",
    "docs/sip-conformance.md",
    "docs/sip-insight.md",
    "docs/sip-library.md",
    "docs/sip-overload.md",
    "docs/sip-push.md",
    "docs/sip-routing.md",
    "docs/sip.md",
    "docs/steering.md",
    "docs/stores.md",
    "docs/tcp-allocations.md",
    "docs/telemetry.md",
    "docs/tls.md",
    "docs/tutorials",
];

/// What is hard to read in a page.
#[derive(Debug, Default)]
struct Hard {
    /// The line and the first words of each long sentence.
    sentences: Vec<(usize, String)>,
    wide_lines: Vec<usize>,
}

/// Prints the counts of all pages.
pub(crate) fn report(root: &Path) -> Result<()> {
    println!("long sentences (> {WORDS_MAX} words), wide lines (> {COLUMNS_MAX} columns), page");
    for page in chapters(&read(root, Path::new(SUMMARY))?) {
        let hard = judge(&read(root, &page)?);
        let (sentences, lines) = (hard.sentences.len(), hard.wide_lines.len());
        println!("{sentences:5} {lines:5}  {}", page.display());
    }
    Ok(())
}

/// Refuses long sentences and wide lines in the pages of [`PLAIN`].
pub(crate) fn check(root: &Path) -> Result<String> {
    let (mut faults, mut count) = (Vec::new(), 0);
    for page in chapters(&read(root, Path::new(SUMMARY))?) {
        if !PLAIN.iter().any(|plain| page.starts_with(plain)) {
            continue;
        }
        count += 1;
        let hard = judge(&read(root, &page)?);
        let page = page.display();
        for (line, start) in hard.sentences {
            faults.push(format!(
                "{page}:{line}: over {WORDS_MAX} words: {start} ..."
            ));
        }
        for line in hard.wide_lines {
            faults.push(format!("{page}:{line}: over {COLUMNS_MAX} columns"));
        }
    }
    if !faults.is_empty() {
        bail!("\n        {}", faults.join("\n        "));
    }
    Ok(format!(
        "{count} pages without long sentences and wide lines"
    ))
}

fn judge(page: &str) -> Hard {
    let mut hard = Hard::default();
    let (mut block, mut start) = (String::new(), 1);
    let mut last = 0;
    for (line, text) in prose(page) {
        let trimmed = text.trim();
        let is_table = trimmed.starts_with('|');
        if !is_table && text.chars().count() > COLUMNS_MAX {
            hard.wide_lines.push(line);
        }
        let begins = trimmed.is_empty() || is_table || starts_block(trimmed) || line != last + 1;
        last = line;
        if begins {
            hard.read(&block, start);
            block.clear();
            start = line;
        }
        if is_table {
            // `<br>` begins a new line in a cell.
            let texts = trimmed.split('|').flat_map(|cell| cell.split("<br>"));
            texts.for_each(|text| hard.read(text, line));
        } else if !trimmed.starts_with('#') && !trimmed.starts_with("<!--") {
            block.push_str(trimmed);
            block.push(' ');
        }
    }
    hard.read(&block, start);
    hard
}

/// Whether a line is an item of a list or a heading.
fn starts_block(line: &str) -> bool {
    let number = line.trim_start_matches(|c: char| c.is_ascii_digit());
    line.starts_with(['#', '>'])
        || line.starts_with("- ")
        || line.starts_with("* ")
        || (number.len() < line.len() && number.starts_with(". "))
}

impl Hard {
    fn read(&mut self, block: &str, line: usize) {
        let words: Vec<&str> = block.split_whitespace().collect();
        let mut sentence: Vec<&str> = Vec::new();
        let mut in_code = false;
        for word in words
            .iter()
            .filter(|word| !matches!(**word, "-" | "*" | "→"))
        {
            // Code, with all its blanks, is one word.
            if !in_code {
                sentence.push(word);
            }
            if word.matches('`').count() % 2 == 1 {
                in_code = !in_code;
            }
            if !in_code && ends_sentence(word) {
                self.judge(&sentence, line);
                sentence.clear();
            }
        }
        self.judge(&sentence, line);
    }

    fn judge(&mut self, sentence: &[&str], line: usize) {
        if sentence.len() > WORDS_MAX {
            let first = sentence.iter().take(8).copied().collect::<Vec<_>>();
            self.sentences.push((line, first.join(" ")));
        }
    }
}

fn ends_sentence(word: &str) -> bool {
    let word = word.trim_end_matches([')', '*', '"', '`']);
    word.ends_with(['.', '?', '!']) && !matches!(word, "e.g." | "i.e.")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sentences_are_found_in_text_and_tables() {
        let long = "word ".repeat(26);
        assert_eq!(judge(&format!("{long}\n")).sentences.len(), 1);
        assert_eq!(judge(&format!("| a | {long}|\n")).sentences.len(), 1);
        let half = "word ".repeat(13);
        assert_eq!(judge(&format!("{half}end.\n{half}\n")).sentences.len(), 0);
        assert_eq!(judge(&format!("{half}\n{half}\n")).sentences.len(), 1);
        assert_eq!(judge(&format!("- {half}\n- {half}\n")).sentences.len(), 0);
        let cell = format!("| {half}<br>{half} |\n");
        assert_eq!(judge(&cell).sentences.len(), 0);
        let code = format!("{half}`{half}` end.\n");
        assert_eq!(judge(&code).sentences.len(), 0);
    }

    #[test]
    fn wide_lines_count_outside_of_tables_and_code() {
        let wide = "x".repeat(121);
        let page = format!("{wide}\n| {wide} |\n```\n{wide}\n```\n");
        assert_eq!(judge(&page).wide_lines, [1]);
    }
}
