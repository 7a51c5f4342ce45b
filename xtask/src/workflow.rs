//! The workflow of the hosted CI. actionlint checks its format.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::built;
use crate::tally::Tally;

const WORKFLOW: &str = ".github/workflows/ci.yml";

pub(crate) fn check(root: &Path) -> Result<Tally> {
    let status = Command::new(built::ACTIONLINT.ensure(root)?)
        // Its other checkers (shellcheck, pyflakes) run where somebody has installed them: the result must not depend
        // on that.
        .args(["-shellcheck=", "-pyflakes=", WORKFLOW])
        .current_dir(root)
        .status()
        .context("cannot run actionlint")?;
    ensure!(status.success(), "actionlint complains of {WORKFLOW}");
    let mut tally = Tally::default();
    tally.record("workflow", &Ok(format!("actionlint accepts {WORKFLOW}")));
    Ok(tally)
}
