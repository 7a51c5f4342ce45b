//! Licences, banned crates and sources of everything that hairpin is built from, by cargo-deny; and known
//! vulnerabilities, where its database can be reached. `deny.toml` says what is allowed.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};

use crate::built;
use crate::tally::Tally;
use crate::workspace;

pub(crate) fn run(root: &Path) -> Result<Tally> {
    let program = built::CARGO_DENY.ensure(root)?;
    let cargo_deny = || {
        let mut command = Command::new(&program);
        command
            .arg("--locked")
            .env("CARGO", workspace::cargo().get_program())
            .current_dir(root)
            .stdin(Stdio::null());
        command
    };
    let mut tally = Tally::default();
    for (name, fine) in [
        ("licenses", "no copyleft"),
        ("bans", "no banned crate"),
        ("sources", "only the registry"),
    ] {
        let outcome = check(cargo_deny().args(["check", name])).map(|()| fine.to_owned());
        tally.record(name, &outcome);
    }
    let database = cargo_deny().args(["fetch", "db"]).output();
    if database.context("cannot run cargo-deny")?.status.success() {
        let outcome = check(cargo_deny().args(["check", "--disable-fetch", "advisories"]));
        tally.record(
            "advisories",
            &outcome.map(|()| "no known vulnerability".to_owned()),
        );
    } else {
        tally.skip("advisories", "the database of RustSec cannot be reached");
    }
    Ok(tally)
}

fn check(command: &mut Command) -> Result<()> {
    let status = command.status().context("cannot run cargo-deny")?;
    ensure!(status.success(), "what cargo-deny complains of is above");
    Ok(())
}
