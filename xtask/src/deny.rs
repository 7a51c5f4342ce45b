//! Licences, banned crates and sources of everything that hairpin is built from. `deny.toml` says what is allowed: the
//! file of cargo-deny, of which this reads a part. To build cargo-deny takes five minutes of a processor, so only
//! `--advisories` does it, to look for known vulnerabilities.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, bail, ensure};
use serde::Deserialize;
use serde_json::Value;
use spdx::{Expression, ParseMode};

use crate::built;
use crate::tally::Tally;
use crate::workspace;

/// What is allowed.
#[derive(Deserialize)]
struct Rules {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
}

#[derive(Deserialize)]
struct Graph {
    targets: Vec<String>,
}

#[derive(Deserialize)]
struct Licenses {
    allow: BTreeSet<String>,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Ban>,
}

#[derive(Deserialize)]
struct Ban {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

pub(crate) fn run(root: &Path, advisories: bool) -> Result<Tally> {
    let rules = std::fs::read_to_string(root.join("deny.toml")).context("deny.toml")?;
    let rules: Rules = toml::from_str(&rules).context("deny.toml")?;
    let packages = packages(root, &rules.graph)?;
    let mut tally = Tally::default();
    let each = |check: &dyn Fn(&Value) -> Result<()>| {
        let faults = packages.iter().filter_map(|package| {
            let error = check(package).err()?;
            let text = |key: &str| package[key].as_str().unwrap_or_default();
            Some(format!("{} {}: {error:#}", text("name"), text("version")))
        });
        let faults: Vec<String> = faults.collect();
        ensure!(faults.is_empty(), "{}", faults.join("\n"));
        Ok(format!("{} crates", packages.len()))
    };
    let licence = |package: &Value| check_licence(package, &rules.licenses);
    tally.record("licences are in the list of deny.toml", &each(&licence));
    tally.record("no crate is banned", &check_bans(root, &rules));
    tally.record("each crate is from the registry", &each(&check_source));
    if advisories {
        tally.record("no known vulnerability", &check_advisories(root));
    }
    Ok(tally)
}

/// The crates that a build for one of the targets uses, with all features, as `cargo metadata` describes them.
fn packages(root: &Path, graph: &Graph) -> Result<Vec<Value>> {
    let mut command = workspace::cargo();
    command.args([
        "metadata",
        "--format-version=1",
        "--locked",
        "--all-features",
    ]);
    for target in &graph.targets {
        command.args(["--filter-platform", target]);
    }
    let output = workspace::output_of(command.current_dir(root))?;
    let mut metadata: Value = serde_json::from_str(&output)?;
    let Value::Array(packages) = metadata["packages"].take() else {
        bail!("cargo metadata has no packages");
    };
    ensure!(packages.len() > 100, "{} crates", packages.len());
    Ok(packages)
}

fn check_licence(package: &Value, licenses: &Licenses) -> Result<()> {
    let text = package["license"].as_str().context("it names no licence")?;
    let expression = Expression::parse_mode(text, ParseMode::LAX);
    let expression = expression.map_err(|error| anyhow::anyhow!("`{text}`: {error}"))?;
    let is_allowed = expression.evaluate(|licence| licenses.allow.contains(&licence.to_string()));
    ensure!(is_allowed, "`{text}` is not in `licenses.allow`");
    Ok(())
}

/// `cargo metadata` also lists crates that no enabled feature uses, so this asks `cargo tree`.
fn check_bans(root: &Path, rules: &Rules) -> Result<String> {
    let mut command = workspace::cargo();
    command.args(["tree", "--workspace", "--locked", "--all-features"]);
    command.args(["--edges=all", "--prefix=none", "--format={p}"]);
    for target in &rules.graph.targets {
        command.args(["--target", target]);
    }
    let output = workspace::output_of(command.current_dir(root))?;
    let names = output.lines().filter_map(|line| line.split(' ').next());
    let names: BTreeSet<&str> = names.collect();
    ensure!(names.len() > 100, "{} crates", names.len());
    check_names(&names, &rules.bans)?;
    Ok(format!("{} crates", names.len()))
}

fn check_names(names: &BTreeSet<&str>, bans: &Bans) -> Result<()> {
    match bans.deny.iter().find(|ban| names.contains(&ban.name[..])) {
        Some(ban) => bail!("{}: {}", ban.name, ban.reason),
        None => Ok(()),
    }
}

/// Crates of the workspace have no source.
fn check_source(package: &Value) -> Result<()> {
    const REGISTRY: &str = "registry+https://github.com/rust-lang/";
    let source = package["source"].as_str().unwrap_or(REGISTRY);
    ensure!(source.starts_with(REGISTRY), "it is from {source}");
    Ok(())
}

fn check_advisories(root: &Path) -> Result<String> {
    let program = built::CARGO_DENY.ensure(root)?;
    let mut command = Command::new(&program);
    command
        .args(["--locked", "check", "advisories"])
        .env("CARGO", workspace::cargo().get_program())
        .current_dir(root)
        .stdin(Stdio::null());
    let status = command.status().context("cannot run cargo-deny")?;
    ensure!(status.success(), "what cargo-deny complains of is above");
    Ok("the database of RustSec has none".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_is_not_allowed_is_named() {
        let allow = ["MIT", "Apache-2.0 WITH LLVM-exception"].map(str::to_owned);
        let licenses = Licenses {
            allow: BTreeSet::from(allow),
        };
        let is_fine = |licence: Value| check_licence(&json!({ "license": licence }), &licenses);
        for fine in [
            "MIT",
            "MIT/Apache-2.0",
            "GPL-3.0 OR MIT",
            "Apache-2.0 WITH LLVM-exception",
        ] {
            is_fine(fine.into()).unwrap();
        }
        for wrong in [
            "GPL-3.0-only",
            "MIT AND GPL-2.0",
            "Apache-2.0",
            "of its own",
            "",
        ] {
            assert!(is_fine(wrong.into()).is_err(), "{wrong}");
        }
        assert!(is_fine(Value::Null).is_err());
        let (name, reason) = ("ring".to_owned(), "one implementation".to_owned());
        let bans = Bans {
            deny: vec![Ban { name, reason }],
        };
        assert!(check_names(&BTreeSet::from(["a", "ring"]), &bans).is_err());
        check_names(&BTreeSet::from(["a", "string"]), &bans).unwrap();
        check_source(&json!({ "source": null })).unwrap();
        let git = json!({ "source": "git+https://example.org/a#0123" });
        assert!(check_source(&git).is_err());
    }
}
