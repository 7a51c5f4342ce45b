//! Files with networks that clients may not relay to: one rule per line.
//!
//! Another program writes these files while the server runs. A file with a mistake is refused as a whole, because half
//! of a list leaves networks unprotected.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::diagnostics::Report;
use super::network::PeerRule;
use super::schema::Settings;
use super::setting::{FromText, Mistake};

/// 64 bytes for each of the rules that are admitted, with its comment. A larger file is hardly a list of networks.
const MAX_FILE_BYTES: u64 = 4 << 20;
/// Bounds the memory of the policy, and the time that a reload uses.
const MAX_RULES: usize = 65_536;
/// Mistakes of one file that are reported: a file of another kind has one on each line.
const MAX_MISTAKES: usize = 10;

/// The name of a file with denied networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DenyFile(pub(crate) PathBuf);

impl FromText for DenyFile {
    const EXPECTED: &'static str = "a file like \"/etc/hairpin/denied-peers.txt\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.starts_with('/') {
            true => Ok(Self(text.into())),
            false => Err(
                Mistake::new(format!("`{text}` is not the whole path of a file"))
                    .help("give the path from the root, because the file is read again later"),
            ),
        }
    }

    fn to_text(&self) -> String {
        self.0.display().to_string()
    }
}

/// Reports files that cannot be used, at the place of their names.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let Some(list) = &settings.peers_deny_files else {
        return;
    };
    let mut paths = Vec::new();
    for file in &list.value {
        paths.push(file.value.0.clone());
        // All files up to this one, because the limit of rules is on their sum.
        if let Err(mistakes) = read(&paths) {
            for mistake in mistakes {
                report.push(mistake.at(&file.at));
            }
            paths.pop();
        }
    }
}

/// The rules of all these files, sorted and each once.
///
/// # Errors
/// All mistakes, each with file, line, reason and advice.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<PeerRule>, Vec<Mistake>> {
    let (mut rules, mut mistakes) = (Vec::new(), Vec::new());
    for file in files {
        match contents(file) {
            Ok(text) => parse(file, &text, &mut rules, &mut mistakes),
            Err(error) => {
                let message = format!("cannot read {}: {error}", file.display());
                let help = "the file must exist, and the server's user must be able to read it";
                mistakes.push(Mistake::new(message).help(help));
            }
        }
    }
    // In order, so that the policy's tables grow at their ends.
    rules.sort_unstable_by_key(|rule| (rule.net, *rule.ports.start(), *rule.ports.end()));
    rules.dedup();
    if rules.len() > MAX_RULES {
        let message = format!("the deny files have {} rules", rules.len());
        let help = format!("join neighbouring networks: at most {MAX_RULES} rules are admitted");
        mistakes.push(Mistake::new(message).help(help));
    }
    match mistakes.is_empty() {
        true => Ok(rules),
        false => Err(mistakes),
    }
}

fn contents(path: &Path) -> io::Result<String> {
    // To open a FIFO would wait for its writer.
    if !path.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    let file = File::open(path)?;
    let length = file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text)?;
    if length as u64 > MAX_FILE_BYTES {
        let message = format!("it has more than {MAX_FILE_BYTES} bytes");
        return Err(io::Error::other(message));
    }
    Ok(text)
}

fn parse(file: &Path, text: &str, rules: &mut Vec<PeerRule>, mistakes: &mut Vec<Mistake>) {
    let mut wrong = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let rule = line.split('#').next().unwrap_or_default().trim();
        if rule.is_empty() {
            continue;
        }
        match PeerRule::from_text(rule) {
            Ok(rule) => rules.push(rule),
            Err(mistake) => {
                wrong += 1;
                if wrong <= MAX_MISTAKES {
                    mistakes.push(mistake.within(&format!("{}:{number}", file.display())));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// What reading one file with this text gives.
    fn read_text(text: &str) -> Result<Vec<String>, Vec<String>> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("denied");
        fs::write(&path, text).expect("a file can be written");
        let name = format!("{}:", path.display());
        read(&[path])
            .map(|rules| rules.iter().map(PeerRule::to_text).collect())
            .map_err(|all| {
                let lines = all.iter().map(Mistake::one_line);
                lines.map(|line| line.replace(&name, "denied:")).collect()
            })
    }

    #[test]
    fn a_line_is_a_rule_and_comments_and_repetitions_are_skipped() {
        let text = "# a list\n\n203.0.113.7:25 # mail\r\n2001:db8::/32\n 198.51.100.0/24\t\n203.0.113.7:25\n";
        let rules = ["198.51.100.0/24", "203.0.113.7:25", "2001:db8::/32"];
        assert_eq!(read_text(text), Ok(rules.map(String::from).to_vec()));
        assert_eq!(read_text(""), Ok(Vec::new()));
    }

    #[test]
    fn every_mistake_has_its_line_and_refuses_the_file() {
        let mistakes = read_text("198.51.100.0/24\n\n10.0.0.1/8\nnonsense\n").unwrap_err();
        assert_eq!(
            mistakes[0],
            "denied:3: `10.0.0.1/8` has bits set beyond its prefix of 8 (the network is \"10.0.0.0/8\", the single address \"10.0.0.1\")"
        );
        assert!(mistakes[1].starts_with("denied:4: "), "{mistakes:?}");
        assert_eq!(mistakes.len(), 2);
        let garbage = "?\n".repeat(1_000);
        assert_eq!(read_text(&garbage).unwrap_err().len(), MAX_MISTAKES);
    }

    #[test]
    fn there_are_limits_on_rules_and_bytes() {
        let line = |n: u32| format!("{}\n", std::net::Ipv4Addr::from(0x0800_0000 + n));
        let most: String = (0..65_536).map(line).collect();
        assert_eq!(read_text(&most).map(|rules| rules.len()), Ok(MAX_RULES));
        let more = read_text(&(most + "9.9.9.9\n")).unwrap_err();
        assert!(more[0].contains("have 65537 rules"), "{more:?}");
        let large = read_text(&"#".repeat((4 << 20) + 1)).unwrap_err();
        assert!(large[0].contains("more than 4194304 bytes"), "{large:?}");
    }

    #[test]
    fn irregular_files_are_refused_with_advice() {
        let refused = read(&["/dev/zero".into()]).unwrap_err();
        let text = refused[0].one_line();
        assert!(text.contains("/dev/zero: it is not a regular"), "{text}");
        let missing = read(&["/nonexistent/denied".into()]).unwrap_err();
        assert!(missing[0].one_line().contains("must exist"));
        assert!(DenyFile::from_text("denied.txt").is_err());
    }
}
