//! The licence of everything that hairpin is built from, tests and tools included.

use std::path::Path;

use anyhow::Result;

use crate::tally::Tally;
use crate::workspace;

/// Licences that ask for no more than a notice. No copyleft: hairpin is MIT or Apache-2.0, and so is what embeds it.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "MIT-0",
    "Unicode-3.0",
    "Unicode-DFS-2016",
    "Unlicense",
    "Zlib",
];

pub(crate) fn run(root: &Path) -> Result<Tally> {
    let packages = workspace::packages(root)?;
    let refused: Vec<String> = packages
        .iter()
        .filter(|package| !package.licence.as_deref().is_some_and(is_allowed))
        .map(|package| {
            let licence = package.licence.as_deref().unwrap_or("no licence named");
            format!("{} {}: {licence}", package.name, package.version)
        })
        .collect();
    let mut tally = Tally::default();
    let outcome = if refused.is_empty() {
        Ok(format!("{} packages, no copyleft", packages.len()))
    } else {
        Err(anyhow::anyhow!(
            "not on the list of allowed licences: {}",
            refused.join("; ")
        ))
    };
    tally.record("licences", &outcome);
    Ok(tally)
}

/// Whether an SPDX expression leaves a choice of allowed licences only.
fn is_allowed(expression: &str) -> bool {
    // "MIT/Apache-2.0" is how old manifests say OR.
    let spaced = expression
        .replace('/', " OR ")
        .replace('(', " ( ")
        .replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let allowed = either(&mut words);
    allowed && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn either(words: &mut Words<'_>) -> bool {
    let mut allowed = both(words);
    while words.next_if_eq(&"OR").is_some() {
        // Not `||`: the words of the right side must be read in any case.
        allowed |= both(words);
    }
    allowed
}

fn both(words: &mut Words<'_>) -> bool {
    let mut allowed = single(words);
    while words.next_if_eq(&"AND").is_some() {
        allowed &= single(words);
    }
    allowed
}

fn single(words: &mut Words<'_>) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let allowed = either(words);
        return words.next_if_eq(&")").is_some() && allowed;
    }
    let allowed = words.next().is_some_and(|name| ALLOWED.contains(&name));
    // An exception only ever adds permissions.
    if words.next_if_eq(&"WITH").is_some() {
        words.next();
    }
    allowed
}

#[cfg(test)]
mod tests {
    use super::is_allowed;

    #[test]
    fn a_choice_needs_one_allowed_side_and_a_conjunction_both() {
        assert!(is_allowed("MIT"));
        assert!(is_allowed("MIT/Apache-2.0"));
        assert!(is_allowed("GPL-2.0-only OR MIT"));
        assert!(is_allowed("Apache-2.0 WITH LLVM-exception"));
        assert!(is_allowed("(MIT OR GPL-3.0-only) AND Unicode-3.0"));
        assert!(!is_allowed("GPL-3.0-only"));
        assert!(!is_allowed("MIT AND LGPL-2.1-only"));
        assert!(!is_allowed("(MIT AND GPL-3.0-only) OR MPL-2.0"));
        assert!(!is_allowed(""));
        assert!(!is_allowed("(MIT"));
    }
}
