//! `docs/rfc-coverage.md` (and `docs/sip-conformance.md`, see [`conformance`]): for each requirement of an RFC the
//! tests that show it, and for each section the files that cite it.
//!
//! The requirements are kept by hand in `docs/rfc-requirements.tsv`, one a line: RFC, section, requirement, tests. A
//! test is named `CRATE::FUNCTION` (several are separated by spaces) and must exist. The citations are the comments of
//! the form `RFC 8656 §7.2` in the sources. The page has no line numbers, because it would change with every edit.
//! [`sentences`] has each MUST and SHOULD of the RFCs of STUN, TURN, and SIP's registrar and proxy. It says which test
//! shows it, or why none does.

mod keywords;
mod sentences;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, anyhow, ensure};

use crate::conformance;
use crate::tally::Tally;
use crate::workspace;
use sentences::Subject;

const TABLE: &str = "docs/rfc-requirements.tsv";
const PAGE: &str = "docs/rfc-coverage.md";

/// Which RFCs the page is about; others may be cited too.
const TITLES: &[(u32, &str)] = &[
    (3261, "SIP: Session Initiation Protocol"),
    (
        3262,
        "Reliability of Provisional Responses in the Session Initiation Protocol (SIP)",
    ),
    (3263, "Locating SIP Servers"),
    (
        3325,
        "Private Extensions to SIP for Asserted Identity within Trusted Networks",
    ),
    (3327, "Path Extension Header Field for SIP"),
    (3581, "Symmetric Response Routing"),
    (3608, "Service-Route Extension Header Field for SIP"),
    (3680, "A SIP Event Package for Registrations"),
    (4028, "Session Timers in SIP"),
    (
        4320,
        "Actions Addressing Issues with SIP's Non-INVITE Transaction",
    ),
    (5389, "STUN: the edition before RFC 8489"),
    (
        5393,
        "Addressing an Amplification Vulnerability in SIP Forking Proxies",
    ),
    (
        5626,
        "Managing Client-Initiated Connections in SIP (Outbound)",
    ),
    (
        5627,
        "Obtaining and Using Globally Routable User Agent URIs (GRUU)",
    ),
    (5630, "The Use of the SIPS URI Scheme in SIP"),
    (
        5780,
        "NAT Behavior Discovery Using Session Traversal Utilities for NAT (STUN)",
    ),
    (5922, "Domain Certificates in SIP"),
    (5923, "Connection Reuse in SIP"),
    (
        6026,
        "Correct Transaction Handling for 2xx Responses to SIP INVITE Requests",
    ),
    (
        6062,
        "Traversal Using Relays around NAT (TURN) Extensions for TCP Allocations",
    ),
    (6347, "Datagram Transport Layer Security Version 1.2"),
    (6455, "The WebSocket Protocol"),
    (7118, "The WebSocket Protocol as a Transport for SIP"),
    (7339, "SIP Overload Control"),
    (
        7350,
        "Datagram Transport Layer Security (DTLS) as Transport for STUN",
    ),
    (7415, "SIP Rate Control"),
    (
        7443,
        "Application-Layer Protocol Negotiation (ALPN) Labels for STUN Usages",
    ),
    (7616, "HTTP Digest Access Authentication"),
    (7635, "STUN Extension for Third-Party Authorization"),
    (
        7983,
        "Multiplexing Scheme Updates for Secure RTP Extension for DTLS",
    ),
    (8016, "Mobility with TURN"),
    (8760, "The SIP Digest Access Authentication Scheme"),
    (8489, "Session Traversal Utilities for NAT (STUN)"),
    (8656, "Traversal Using Relays around NAT (TURN)"),
];

/// `8656 §7.2`, sorted as a person would sort it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Section {
    rfc: u32,
    numbers: Vec<u32>,
}

/// One line of the table.
#[derive(Debug)]
struct Requirement {
    section: Section,
    text: String,
    tests: Vec<String>,
}

/// Writes the page.
///
/// `texts` is the folder with the texts of the RFCs, if the table of their sentences is to be made anew.
pub(crate) fn write(root: &Path, texts: Option<&Path>) -> Result<Tally> {
    if let Some(texts) = texts {
        sentences::write(root, texts)?;
    }
    let (page, complaints) = page(root)?;
    std::fs::write(root.join(PAGE), page)?;
    std::fs::write(root.join(conformance::PAGE), sip_page(root)?)?;
    let mut tally = Tally::default();
    tally.record(TABLE, &all_exist(&complaints));
    record_sentences(root, &mut tally)?;
    Ok(tally)
}

/// Says whether the page is what [`write()`] would write.
pub(crate) fn check(root: &Path) -> Result<Tally> {
    let (expected, complaints) = page(root)?;
    let mut tally = Tally::default();
    tally.record(TABLE, &all_exist(&complaints));
    record_sentences(root, &mut tally)?;
    tally.record(PAGE, &is_current(root, PAGE, &expected));
    let expected = sip_page(root)?;
    tally.record(
        conformance::PAGE,
        &is_current(root, conformance::PAGE, &expected),
    );
    Ok(tally)
}

/// The page of SIP: the messages of RFC 4475, then the sentences about the registrar and the proxy.
fn sip_page(root: &Path) -> Result<String> {
    let sentences = sentences::Table::read(root)?;
    let mut page = conformance::page(root)?;
    page.push_str(&sentences.render(Subject::Sip));
    page.push_str(&sentences.render_tests(Subject::Sip));
    Ok(page)
}

fn is_current(root: &Path, page: &str, expected: &str) -> Result<String> {
    let found = std::fs::read_to_string(root.join(page));
    ensure!(
        found.is_ok_and(|found| found == expected),
        "run `cargo xtask rfc`"
    );
    Ok("up to date".to_owned())
}

fn all_exist(complaints: &[String]) -> Result<String> {
    ensure!(
        complaints.is_empty(),
        "no such test: {}",
        complaints.join(", ")
    );
    Ok("every test named exists".to_owned())
}

/// Whether each sentence with a keyword has a test or a reason.
fn record_sentences(root: &Path, tally: &mut Tally) -> Result<()> {
    let table = sentences::Table::read(root)?;
    let tests = tests(&workspace::rust_files(root)?);
    let complaints = table.complaints(|test| tests.contains_key(test));
    let outcome = match complaints.is_empty() {
        true => sentences::compare_with_texts(&table)
            .map(|told| told.unwrap_or_else(|| "each sentence has a test or a reason".to_owned())),
        false => Err(anyhow!("{}", complaints.join("\n"))),
    };
    tally.record(sentences::TABLE, &outcome);
    Ok(())
}

/// The text of the page, and the tests named in the table that do not exist.
fn page(root: &Path) -> Result<(String, Vec<String>)> {
    let sources = workspace::rust_files(root)?;
    let tests = tests(&sources);
    let table = std::fs::read_to_string(root.join(TABLE))
        .with_context(|| format!("cannot read {TABLE}"))?;
    let requirements = requirements(&table)?;
    let missing = requirements
        .iter()
        .flat_map(|requirement| &requirement.tests)
        .filter(|test| !tests.contains_key(*test))
        .cloned()
        .collect();
    for requirement in &requirements {
        let rfc = requirement.section.rfc;
        let has_title = TITLES.iter().any(|(number, _)| *number == rfc);
        ensure!(
            has_title,
            "RFC {rfc} has no title in xtask/src/rfc/mod.rs, so the page would not list it"
        );
    }
    let sentences = sentences::Table::read(root)?.render(Subject::Turn);
    Ok((
        render(&requirements, &sentences, &citations(&sources)),
        missing,
    ))
}

/// `CRATE::FUNCTION` of every test, and the file it is in.
fn tests(sources: &[(PathBuf, String)]) -> BTreeMap<String, PathBuf> {
    let mut found = BTreeMap::new();
    for (path, text) in sources {
        for name in test_functions(text) {
            found.insert(format!("{}::{name}", crate_of(path)), path.clone());
        }
    }
    found
}

/// The names of the functions below a `#[test]` or a `#[tokio::test]`, inside macros too. rustfmt puts the attribute
/// and the `fn` on lines of their own.
pub(crate) fn test_functions(text: &str) -> impl Iterator<Item = &str> {
    let mut is_test = false;
    text.lines().map(str::trim).filter_map(move |line| {
        is_test |= line == "#[test]" || line.starts_with("#[tokio::test");
        let line = line.strip_prefix("async ").unwrap_or(line);
        let name = line.strip_prefix("fn ")?.split(['(', '<']).next()?;
        std::mem::take(&mut is_test).then_some(name)
    })
}

/// The folder of the crate that a file belongs to: `turn` for `crates/turn/src/lib.rs`, `xtask` for
/// `xtask/src/main.rs`.
fn crate_of(path: &Path) -> String {
    let mut parts = path.iter().map(|part| part.to_string_lossy().into_owned());
    let first = parts.next().unwrap_or_default();
    if first == "crates" {
        parts.next().unwrap_or_default()
    } else {
        first
    }
}

fn requirements(table: &str) -> Result<Vec<Requirement>> {
    let lines = table
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
    lines
        .map(|(index, line)| {
            requirement(line).with_context(|| format!("{TABLE}:{}: `{line}`", index + 1))
        })
        .collect()
}

fn requirement(line: &str) -> Result<Requirement> {
    let columns: Vec<&str> = line.split('\t').collect();
    let [rfc, section, text, tests] = columns[..] else {
        return Err(anyhow!(
            "four columns are needed, separated by tabs: RFC, section, requirement, tests"
        ));
    };
    let numbers = section
        .split('.')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .context("not a section")?;
    ensure!(!tests.trim().is_empty(), "no test shows it");
    Ok(Requirement {
        section: Section {
            rfc: rfc.parse().context("not the number of an RFC")?,
            numbers,
        },
        text: text.to_owned(),
        tests: tests.split_whitespace().map(str::to_owned).collect(),
    })
}

/// Which files cite which section.
fn citations(sources: &[(PathBuf, String)]) -> BTreeMap<Section, BTreeSet<PathBuf>> {
    let mut cited: BTreeMap<Section, BTreeSet<PathBuf>> = BTreeMap::new();
    for (path, text) in sources
        .iter()
        .filter(|(path, _)| path.starts_with("crates"))
    {
        for section in text.lines().flat_map(sections_in) {
            cited.entry(section).or_default().insert(path.clone());
        }
    }
    cited
}

/// The sections in a line such as `// RFC 8656 §7.2, §8.2 and RFC 8489 §6.3.1: ...`.
fn sections_in(line: &str) -> Vec<Section> {
    let mut found = Vec::new();
    for after in line.split("RFC ").skip(1) {
        let Some((number, places)) = after.split_once(' ') else {
            continue;
        };
        let Ok(rfc) = number.parse() else { continue };
        if !places.starts_with('§') {
            continue;
        }
        for place in places.split('§').skip(1) {
            let digits = &place[..place
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(place.len())];
            let numbers: Option<Vec<u32>> = digits
                .trim_end_matches('.')
                .split('.')
                .map(|part| part.parse().ok())
                .collect();
            found.extend(numbers.map(|numbers| Section { rfc, numbers }));
        }
    }
    found
}

fn render(
    requirements: &[Requirement],
    sentences: &str,
    cited: &BTreeMap<Section, BTreeSet<PathBuf>>,
) -> String {
    let mut page = String::from(
        "# RFC coverage\n\n\
         For readers who check hairpin against the RFCs. `cargo xtask rfc` writes this page; do not edit it. Edit\n\
         [rfc-requirements.tsv](rfc-requirements.tsv) instead. It has, in short, what an RFC requires of a server or of the\n\
         codec, and the tests that show it. `turn::name` is the test function `name` of `crates/turn`. The page does not\n\
         list what hairpin does not support: see [that page](not-supported.md).\n",
    );
    for (rfc, title) in TITLES {
        let of_rfc: Vec<&Requirement> = requirements
            .iter()
            .filter(|r| r.section.rfc == *rfc)
            .collect();
        let _ = write!(
            page,
            "\n## RFC {rfc}: {title}\n\n| section | requirement | shown by |\n|---|---|---|\n"
        );
        for Requirement {
            section,
            text,
            tests,
        } in of_rfc
        {
            let tests: Vec<String> = tests.iter().map(|test| format!("`{test}`")).collect();
            let _ = writeln!(
                page,
                "| {} | {text} | {} |",
                section.number(),
                tests.join("<br>")
            );
        }
    }
    page.push_str(sentences);
    page.push_str(
        "\n## Which file cites which section\n\n| RFC | section | files |\n|---|---|---|\n",
    );
    for (section, files) in cited {
        let files: Vec<String> = files
            .iter()
            .map(|file| format!("`{}`", file.display()))
            .collect();
        let _ = writeln!(
            page,
            "| {} | {} | {} |",
            section.rfc,
            section.number(),
            files.join("<br>")
        );
    }
    page
}

impl Section {
    fn number(&self) -> String {
        self.numbers
            .iter()
            .map(u32::to_string)
            .collect::<Vec<_>>()
            .join(".")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(rfc: u32, numbers: &[u32]) -> Section {
        Section {
            rfc,
            numbers: numbers.to_vec(),
        }
    }

    #[test]
    fn citations_are_found_one_or_many_to_a_line() {
        assert_eq!(
            sections_in("// RFC 8656 §7.2: refused"),
            [section(8656, &[7, 2])]
        );
        assert_eq!(
            sections_in("//! RFC 8489 §6.3.1, §14.5 and RFC 8656 §5."),
            [
                section(8489, &[6, 3, 1]),
                section(8489, &[14, 5]),
                section(8656, &[5])
            ]
        );
        assert!(sections_in("RFC 5769 has vectors, RFC 8656 too").is_empty());
    }

    #[test]
    fn a_requirement_has_four_columns_and_a_test() {
        let good = requirement("8656\t7.2\trefuses\tturn::a turn::b").unwrap();
        assert_eq!(good.tests, ["turn::a", "turn::b"]);
        assert!(requirement("8656\t7.2\trefuses").is_err());
        assert!(requirement("8656\t7.2\trefuses\t ").is_err());
        assert!(requirement("8656\tx\trefuses\ta").is_err());
    }

    #[test]
    fn tests_are_named_by_crate_and_function() {
        let sources = vec![(
            PathBuf::from("crates/turn/tests/a.rs"),
            "#[test]\n#[should_panic]\nfn b() {}\nfn c() {}\nmac! {\n    #[test]\n    fn d(x in 0..9) {}\n}\n#[tokio::test]\nasync fn e() {}\nasync fn f() {}\n".to_owned(),
        )];
        assert_eq!(
            tests(&sources).into_keys().collect::<Vec<_>>(),
            ["turn::b", "turn::d", "turn::e"]
        );
    }

    #[test]
    fn sections_sort_by_number() {
        assert!(section(8489, &[9, 2]) < section(8489, &[14]));
    }
}
