//! `docs/rfc-keywords.tsv`: every sentence of some RFCs that has a keyword of RFC 2119, each with what becomes of it.
//!
//! The table has five columns separated by tabs: RFC, section, digest of the sentence, some of its words, verdict. A
//! verdict is the names of tests (`CRATE::FUNCTION`), or the reason why no test of the server shows it: see
//! [`REASONS`]. It may be tests and a reason. Each RFC begins with a line that has the number of its sentences and a
//! digest of them all. So a row that somebody removes is noticed without the texts of the RFCs, which the repository
//! does not have.
//!
//! `cargo xtask rfc --texts FOLDER` makes the table from `FOLDER/rfc8489.txt` and the like. It keeps verdicts; a new
//! sentence gets `?`, which the check refuses. With the variable `HAIRPIN_RFC_TEXTS`, the check compares the table with
//! the texts as well.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, anyhow, ensure};

use super::keywords;

/// Where the table is.
pub(super) const TABLE: &str = "docs/rfc-keywords.tsv";

/// The folder with the texts of the RFCs, if there is one.
const TEXTS: &str = "HAIRPIN_RFC_TEXTS";

/// Which page lists the sentences of an RFC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Subject {
    /// STUN and TURN: `docs/rfc-coverage.md`.
    Turn,
    /// The registrar and the proxy: `docs/sip-conformance.md`.
    Sip,
}

/// An RFC of the table.
#[derive(Debug, Clone, Copy)]
struct Rfc {
    number: u32,
    subject: Subject,
    /// These sections with all below them, or the whole text if there are none.
    sections: &'static [&'static str],
}

const fn turn(number: u32) -> Rfc {
    Rfc {
        number,
        subject: Subject::Turn,
        sections: &[],
    }
}

const fn sip(number: u32, sections: &'static [&'static str]) -> Rfc {
    Rfc {
        number,
        subject: Subject::Sip,
        sections,
    }
}

/// The RFCs of the table.
const RFCS: [Rfc; 20] = [
    sip(3261, &["10", "16"]),
    sip(3325, &[]),
    sip(3327, &[]),
    sip(3680, &[]),
    sip(4028, &[]),
    sip(5393, &[]),
    sip(5626, &[]),
    sip(5627, &[]),
    sip(5658, &[]),
    turn(5780),
    turn(6062),
    sip(7118, &[]),
    sip(7339, &[]),
    turn(7350),
    turn(7443),
    turn(7635),
    turn(7983),
    turn(8016),
    turn(8489),
    turn(8656),
];

impl Rfc {
    fn has(&self, section: &str) -> bool {
        let is_below = |above: &&str| {
            let rest = section.strip_prefix(above);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        self.sections.is_empty() || self.sections.iter().any(is_below)
    }
}

/// Why a sentence has no test of the server. The last four need a text behind the colon.
const REASONS: [(&str, &str); 7] = [
    ("client", "asks something of clients"),
    ("operator", "asks something of operators"),
    ("authors", "asks something of authors of other documents"),
    ("explains:", "explains another sentence"),
    ("library:", "the kernel or a library does it"),
    ("absent:", "is about something that hairpin does not have"),
    ("deviation:", "hairpin does something else"),
];

const UNDECIDED: &str = "?";

/// A line of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Row {
    rfc: u32,
    section: String,
    digest: String,
    words: String,
    verdict: String,
}

/// The table: rows, and the lines that sum up each RFC.
#[derive(Debug, Default)]
pub(super) struct Table {
    rows: Vec<Row>,
    sums: BTreeMap<u32, String>,
}

impl Table {
    pub(super) fn read(root: &Path) -> Result<Table> {
        let text = std::fs::read_to_string(root.join(TABLE));
        Table::parse(&text.with_context(|| format!("cannot read {TABLE}"))?)
    }

    fn parse(text: &str) -> Result<Table> {
        let mut table = Table::default();
        for (index, line) in text.lines().enumerate() {
            if let Some(sum) = line.strip_prefix("# RFC ") {
                let (rfc, _) = sum.split_once(':').context("no colon behind the RFC")?;
                table.sums.insert(rfc.parse()?, sum.to_owned());
            } else if !line.is_empty() && !line.starts_with('#') {
                let row = row(line).with_context(|| format!("{TABLE}:{}: `{line}`", index + 1))?;
                table.rows.push(row);
            }
        }
        Ok(table)
    }

    /// The table of the texts in `folder`, with the verdicts that this one has.
    fn of_texts(&self, folder: &Path) -> Result<Table> {
        let mut table = Table::default();
        for rfc in RFCS {
            let number = rfc.number;
            let path = folder.join(format!("rfc{number}.txt"));
            let text = std::fs::read_to_string(&path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            let mut rows: Vec<Row> = Vec::new();
            let sentences = keywords::sentences(&text);
            for sentence in sentences.into_iter().filter(|it| rfc.has(&it.section)) {
                let mut row = Row {
                    rfc: number,
                    digest: sentence.digest(),
                    words: sentence.excerpt(),
                    section: sentence.section,
                    verdict: UNDECIDED.to_owned(),
                };
                if let Some(known) = self.rows.iter().find(|known| known.is_of(&row)) {
                    row.verdict.clone_from(&known.verdict);
                }
                // The same sentence may stand in a section twice, once for each case.
                if !rows.iter().any(|other| other.is_of(&row)) {
                    rows.push(row);
                }
            }
            table.sums.insert(number, sum(number, &rows));
            table.rows.append(&mut rows);
        }
        Ok(table)
    }

    /// What is wrong with the table. `exists` says whether there is a test of this name.
    pub(super) fn complaints(&self, exists: impl Fn(&str) -> bool) -> Vec<String> {
        let mut complaints = Vec::new();
        for Rfc { number: rfc, .. } in RFCS {
            let rows: Vec<Row> = self.of(rfc).cloned().collect();
            if self.sums.get(&rfc) != Some(&sum(rfc, &rows)) {
                complaints.push(format!(
                    "RFC {rfc}: the rows are not those of the line `# RFC {rfc}: ...`; run `cargo xtask rfc --texts FOLDER`"
                ));
            }
        }
        for row in &self.rows {
            if let Err(reason) = verdict(&row.verdict, &exists) {
                let Row {
                    rfc,
                    section,
                    words,
                    ..
                } = row;
                complaints.push(format!("RFC {rfc} §{section} `{words}`: {reason}"));
            }
        }
        complaints
    }

    fn of(&self, rfc: u32) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(move |row| row.rfc == rfc)
    }

    fn text(&self) -> String {
        let mut text = String::from(
            "# Every sentence with MUST, SHALL, REQUIRED, SHOULD or RECOMMENDED, and what shows that the server obeys it or why nothing does.\n\
             # Five columns separated by tabs: RFC, section, digest, some of the words, verdict. A verdict is tests (CRATE::FUNCTION) or a reason:\n",
        );
        for (word, meaning) in REASONS {
            let _ = writeln!(text, "#   {word:<11} {meaning}");
        }
        text.push_str("# `cargo xtask rfc --texts FOLDER` makes this table from the texts of the RFCs and keeps the verdicts.\n");
        for Rfc { number: rfc, .. } in RFCS {
            let sum = self.sums.get(&rfc).map_or("", String::as_str);
            let _ = writeln!(text, "# RFC {sum}");
            for Row {
                section,
                digest,
                words,
                verdict,
                ..
            } in self.of(rfc)
            {
                let _ = writeln!(text, "{rfc}\t{section}\t{digest}\t{words}\t{verdict}");
            }
        }
        text
    }

    /// A section of a page: how many sentences of each RFC have which verdict, and which of them hairpin does not obey.
    pub(super) fn render(&self, subject: Subject) -> String {
        let mut page = String::from(
            "\n## Sentences with keywords\n\n\
             [rfc-keywords.tsv](rfc-keywords.tsv) lists each sentence with MUST, SHALL, REQUIRED, SHOULD or RECOMMENDED. Each\n\
             sentence has the tests that show it, or the reason why no test of the server does. The test command refuses a\n\
             sentence without either.\n\n\
             | RFC | sentences | tests | client | operator | authors | explains | library | absent | deviation |\n|---|---|---|---|---|---|---|---|---|---|\n",
        );
        let rfcs = RFCS.into_iter().filter(|rfc| rfc.subject == subject);
        let numbers: Vec<u32> = rfcs.map(|rfc| rfc.number).collect();
        for &rfc in &numbers {
            let _ = write!(page, "| {} | {} ", name(rfc), self.of(rfc).count());
            let tests = self.of(rfc).filter(|row| row.has_tests()).count();
            let _ = write!(page, "| {tests} ");
            for (word, _) in REASONS {
                let count = self
                    .of(rfc)
                    .filter(|row| row.reason().is_some_and(|reason| reason.starts_with(word)));
                let _ = write!(page, "| {} ", count.count());
            }
            page.push_str("|\n");
        }
        page.push_str("\nA sentence that has tests and a deviation counts twice.\n\n| RFC | section | sentence | |\n|---|---|---|---|\n");
        for row in self.rows.iter().filter(|row| numbers.contains(&row.rfc)) {
            let reason = row.reason().filter(|reason| {
                ["library", "absent", "deviation"]
                    .iter()
                    .any(|word| reason.starts_with(word))
            });
            if let Some(reason) = reason {
                let _ = writeln!(page, "{} {reason} |", row.cells());
            }
        }
        page
    }

    /// A section of a page: each sentence that tests show, with the tests.
    pub(super) fn render_tests(&self, subject: Subject) -> String {
        let mut page = String::from(
            "\n## Sentences that tests show\n\n\
             `sip::name` is the test function `name` of `crates/sip`.\n\n| RFC | section | sentence | shown by |\n|---|---|---|---|\n",
        );
        let rfcs = RFCS.into_iter().filter(|rfc| rfc.subject == subject);
        for row in rfcs.flat_map(|rfc| self.of(rfc.number)) {
            let tests = row
                .verdict
                .split(' ')
                .take_while(|word| word.contains("::"));
            let tests: Vec<String> = tests.map(|test| format!("`{test}`")).collect();
            if !tests.is_empty() {
                let _ = writeln!(page, "{} {} |", row.cells(), tests.join("<br>"));
            }
        }
        page
    }
}

/// An RFC, with the sections that the table has of it.
fn name(number: u32) -> String {
    let rfc = RFCS.into_iter().find(|rfc| rfc.number == number);
    let sections = rfc.map_or(&[][..], |rfc| rfc.sections);
    let sections: Vec<String> = sections.iter().map(|it| format!(" §{it}")).collect();
    format!("{number}{}", sections.join(","))
}

impl Row {
    fn is_of(&self, other: &Row) -> bool {
        (self.rfc, &self.section, &self.digest) == (other.rfc, &other.section, &other.digest)
    }

    /// The first cells of its line in a table of a page.
    fn cells(&self) -> String {
        format!(
            "| {} | {} | ... {} ... |",
            self.rfc,
            self.section,
            self.words.replace('|', "\\|").replace('<', "&lt;")
        )
    }

    fn has_tests(&self) -> bool {
        self.verdict
            .split(' ')
            .next()
            .is_some_and(|word| word.contains("::"))
    }

    /// The verdict behind its tests.
    fn reason(&self) -> Option<&str> {
        reason_of(&self.verdict)
    }
}

/// Makes the table from the texts in `folder`.
pub(super) fn write(root: &Path, folder: &Path) -> Result<()> {
    let known = match root.join(TABLE).exists() {
        true => Table::read(root)?,
        false => Table::default(),
    };
    std::fs::write(root.join(TABLE), known.of_texts(folder)?.text())?;
    Ok(())
}

/// Compares the table with the texts, where the environment says where they are.
pub(super) fn compare_with_texts(table: &Table) -> Result<Option<String>> {
    let Some(folder) = std::env::var_os(TEXTS) else {
        return Ok(None);
    };
    let expected = table.of_texts(Path::new(&folder))?;
    ensure!(
        expected.text() == table.text(),
        "the table is not that of the texts in {TEXTS}: run `cargo xtask rfc --texts FOLDER`"
    );
    Ok(Some(format!(
        "{} sentences, as in the texts",
        table.rows.len()
    )))
}

fn row(line: &str) -> Result<Row> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [rfc, section, digest, words, verdict] = columns[..] else {
        return Err(anyhow!(
            "five columns are needed, separated by tabs: RFC, section, digest, words, verdict"
        ));
    };
    Ok(Row {
        rfc: rfc.parse().context("not the number of an RFC")?,
        section: section.to_owned(),
        digest: digest.to_owned(),
        words: words.to_owned(),
        verdict: verdict.to_owned(),
    })
}

fn sum(rfc: u32, rows: &[Row]) -> String {
    let bytes = rows
        .iter()
        .flat_map(|row| row.section.bytes().chain(row.digest.bytes()));
    format!(
        "{rfc}: {} sentences, {:016x}",
        rows.len(),
        keywords::fnv1a(bytes)
    )
}

fn reason_of(verdict: &str) -> Option<&str> {
    let mut at = 0;
    for word in verdict.split(' ') {
        if !word.contains("::") {
            return Some(&verdict[at..]).filter(|reason| !reason.is_empty());
        }
        at = (at + word.len() + 1).min(verdict.len());
    }
    None
}

fn verdict(verdict: &str, exists: impl Fn(&str) -> bool) -> Result<()> {
    ensure!(
        verdict != UNDECIDED && !verdict.trim().is_empty(),
        "no test and no reason"
    );
    for word in verdict
        .split([' ', '(', ')', ',', ';'])
        .filter(|word| word.contains("::"))
    {
        ensure!(exists(word), "no such test: {word}");
    }
    let Some(reason) = reason_of(verdict) else {
        return Ok(());
    };
    let is_known = REASONS.iter().any(|(word, _)| match word.ends_with(':') {
        true => reason
            .strip_prefix(word)
            .is_some_and(|text| text.trim().len() > 10),
        false => reason == *word,
    });
    ensure!(
        is_known,
        "`{reason}` is no reason that the head of the table names"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "1.  Introduction\n\n   A server MUST answer.  A client may\n   ask.  Clients SHOULD\n\n\nAuthor          Standards Track     [Page 3]\n\u{c}\nRFC 1       Title     May 2020\n\n   wait (a while).\n\n1.1.  More\n\n   Nothing.  It is RECOMMENDED to rest.\n";

    fn table(verdicts: [&str; 3]) -> Table {
        let mut rows: Vec<Row> = Vec::new();
        for (sentence, verdict) in keywords::sentences(TEXT).into_iter().zip(verdicts) {
            rows.push(Row {
                rfc: 8489,
                digest: sentence.digest(),
                words: sentence.excerpt(),
                section: sentence.section,
                verdict: verdict.to_owned(),
            });
        }
        let mut table = Table::default();
        for Rfc { number: rfc, .. } in RFCS {
            table
                .sums
                .insert(rfc, sum(rfc, if rfc == 8489 { &rows } else { &[] }));
        }
        table.rows = rows;
        table
    }

    #[test]
    fn sentences_with_keywords_are_found_across_pages() {
        let found = keywords::sentences(TEXT);
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|s| (s.section.as_str(), s.text.as_str()))
            .collect();
        assert_eq!(
            found,
            [
                ("1", "A server MUST answer."),
                ("1", "Clients SHOULD wait (a while)."),
                ("1.1", "It is RECOMMENDED to rest.")
            ]
        );
    }

    #[test]
    fn a_table_is_read_as_it_was_written() {
        let written = table(["a::b", "client", "absent: for a good reason"]);
        let read = Table::parse(&written.text()).unwrap();
        assert_eq!((&read.rows, &read.sums), (&written.rows, &written.sums));
        assert!(read.complaints(|test| test == "a::b").is_empty());
    }

    #[test]
    fn a_sentence_without_a_verdict_or_without_its_row_is_an_orphan() {
        let exists = |test: &str| test == "a::b";
        for bad in [
            "?",
            "",
            "a::c",
            "nobody",
            "absent:",
            "absent: ",
            "a::b nobody",
            "absent: see a::c and so on",
        ] {
            let complaints = table(["client", bad, "operator"]).complaints(exists);
            assert_eq!(complaints.len(), 1, "{bad}: {complaints:?}");
        }
        let mut removed = table(["client", "a::b", "a::b deviation: for a good reason"]);
        assert!(removed.complaints(exists).is_empty());
        removed.rows.remove(1);
        assert_eq!(removed.complaints(exists).len(), 1);
        let mut changed = table(["client"; 3]);
        changed.rows[0].digest = "00000000".to_owned();
        assert_eq!(changed.complaints(exists).len(), 1);
        assert_eq!(Table::default().complaints(exists).len(), RFCS.len());
    }

    #[test]
    fn sentences_belong_to_sections_that_are_above_them() {
        let rfc = sip(3261, &["10", "16"]);
        for (section, is_there) in [
            ("10", true),
            ("10.3", true),
            ("16.12.1", true),
            ("1", false),
            ("100", false),
            ("8.2", false),
        ] {
            assert_eq!(rfc.has(section), is_there, "{section}");
        }
        assert!(turn(8656).has("1") && turn(8656).has("A.1"));
        assert_eq!(name(3261), "3261 §10, §16");
        assert_eq!(name(8656), "8656");
    }

    #[test]
    fn the_page_of_sip_has_the_tests_of_its_sentences() {
        let mut table = table(["a::b", "client", "operator"]);
        for row in &mut table.rows {
            row.rfc = 3327;
        }
        let page = table.render_tests(Subject::Sip);
        assert!(
            page.ends_with("| 3327 | 1 | ... A server MUST answer. ... | `a::b` |\n"),
            "{page}"
        );
        let page = table.render_tests(Subject::Turn);
        assert!(!page.contains("a::b"));
    }

    #[test]
    fn the_page_counts_verdicts_and_lists_what_is_not_obeyed() {
        let page = table(["a::b", "client", "absent: for a good reason"]).render(Subject::Turn);
        assert!(
            page.contains("| 8489 | 3 | 1 | 1 | 0 | 0 | 0 | 0 | 1 | 0 |"),
            "{page}"
        );
        assert!(
            page.contains(
                "| 8489 | 1.1 | ... It is RECOMMENDED to rest. ... | absent: for a good reason |"
            ),
            "{page}"
        );
    }
}
