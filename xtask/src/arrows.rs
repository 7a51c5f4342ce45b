//! The arrows between our crates: what may depend on what, and the picture of it in ARCHITECTURE.md.
//!
//! `cargo test` is what holds the crates apart; `cargo xtask arrows` prints the block for the page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Result;

use crate::workspace;

type Arrows = BTreeMap<String, BTreeSet<String>>;

/// `hairpin-stun` is `stun` in the dependency tables, and in this project's talk.
fn short(name: &str) -> String {
    name.strip_prefix("hairpin-").unwrap_or(name).to_owned()
}

/// Who depends on whom, in tests and build scripts too.
fn graph(root: &Path) -> Result<Arrows> {
    let packages = workspace::packages(root)?;
    let ours: BTreeSet<&str> = packages.iter().map(|p| p.name.as_str()).collect();
    let arrows = |package: &workspace::Package| {
        package
            .dependencies
            .iter()
            .filter(|name| ours.contains(name.as_str()))
            .map(|name| short(name))
            .collect()
    };
    Ok(packages
        .iter()
        .map(|package| (short(&package.name), arrows(package)))
        .collect())
}

/// Prints the graph as ARCHITECTURE.md draws it.
pub(crate) fn print(root: &Path) -> Result<()> {
    println!("```arrows");
    for (from, targets) in graph(root)?
        .iter()
        .filter(|(_, targets)| !targets.is_empty())
    {
        println!(
            "{from} -> {}",
            targets
                .iter()
                .map(String::as_str)
                .collect::<Vec<_>>()
                .join(", ")
        );
    }
    println!("```");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From each crate to every crate of ours that it may use, in its tests and build scripts too.
    /// A new arrow is a change of design: change ARCHITECTURE.md in the same commit.
    const ALLOWED: &[(&str, &[&str])] = &[
        // All but the first three in tests only, for phones, and in the example `cost`, which `cargo xtask budgets`
        // runs.
        (
            "hairpin",
            &[
                "server",
                "load",
                "stores",
                "sip",
                "streams",
                "sip-server",
                "turn",
                "stun",
                "io",
            ],
        ),
        ("stores", &["turn", "stun"]),
        (
            "server",
            &[
                "turn",
                "stun",
                "sip",
                "sip-server",
                "streams",
                "dtls",
                "timers",
                "io",
                "bpf",
            ],
        ),
        (
            "load",
            &[
                "client", "turn", "stun", "sip", "streams", "timers", "io", "bpf",
            ],
        ),
        ("client", &["turn", "stun", "streams", "dtls", "server"]),
        ("dtls", &["timers"]),
        ("streams", &["stun", "timers"]),
        ("turn", &["stun", "timers"]),
        ("sip", &["timers"]),
        ("sip-server", &["sip", "timers"]),
        ("stun", &[]),
        ("timers", &[]),
        ("io", &[]),
        ("bpf", &[]),
        ("xtask", &[]),
    ];

    /// The block of ARCHITECTURE.md that is fenced as `arrows`: lines such as `server -> turn, stun, io`.
    fn picture(page: &str) -> Arrows {
        let block = page
            .lines()
            .skip_while(|line| line.trim() != "```arrows")
            .skip(1);
        block
            .take_while(|line| line.trim() != "```")
            .filter_map(|line| line.split_once("->"))
            .map(|(from, to)| {
                (
                    from.trim().to_owned(),
                    to.split(',').map(|name| name.trim().to_owned()).collect(),
                )
            })
            .collect()
    }

    #[test]
    fn every_crate_depends_only_on_what_the_design_allows() {
        let allowed: BTreeMap<&str, &[&str]> = ALLOWED.iter().copied().collect();
        for (from, targets) in graph(&workspace::root()).unwrap() {
            let permitted = allowed
                .get(from.as_str())
                .unwrap_or_else(|| panic!("`{from}` has no line in ALLOWED"));
            for to in targets {
                assert!(
                    permitted.contains(&to.as_str()),
                    "`{from}` must not depend on `{to}`"
                );
            }
        }
    }

    #[test]
    fn the_picture_in_the_architecture_page_is_the_graph() {
        let page = std::fs::read_to_string(workspace::root().join("ARCHITECTURE.md")).unwrap();
        let mut drawn = graph(&workspace::root()).unwrap();
        drawn.retain(|_, targets| !targets.is_empty());
        assert_eq!(
            picture(&page),
            drawn,
            "left: ARCHITECTURE.md, right: the dependency tables"
        );
    }

    #[test]
    fn a_picture_is_read_line_by_line() {
        let page = "text\n```arrows\na -> b, c\nb -> c\n```\nd -> e\n";
        let expected: Arrows = [("a", vec!["b", "c"]), ("b", vec!["c"])]
            .into_iter()
            .map(|(from, to)| (from.to_owned(), to.into_iter().map(str::to_owned).collect()))
            .collect();
        assert_eq!(picture(page), expected);
    }
}
