//! `cargo xtask budgets`: what each operation may cost, in user-space instructions, in heap allocations and in system
//! calls.
//!
//! Times differ from run to run; these three numbers do not. The example `cost` of the crate hairpin repeats the same
//! operations in one thread, once under callgrind and once under strace. `crates/hairpin/budgets.toml` has the limit of
//! each operation. A higher cost fails the test command, so that a change either avoids the cost or states it.

mod counting;
mod file;

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::tally::Tally;
use crate::{cargo, scratch, tools, workspace};
use counting::Cost;
use file::{Budgets, Judgement};

const BUDGETS: &str = "crates/hairpin/budgets.toml";

/// Counts, and compares with the budgets; with `write`, makes what was counted the new budgets.
pub(crate) fn run(root: &Path, write: bool) -> Result<Tally> {
    tools::ensure(&[tools::COUNTING])?;
    let driver = build(root)?;
    let logs = scratch(root, "budgets")?;
    let file = root.join(BUDGETS);
    let text = std::fs::read_to_string(&file)
        .with_context(|| format!("cannot read {}", file.display()))?;
    let (instructions, allocations) = counting::instructions_and_allocations(&driver, &logs)?;
    let sections = [
        ("instructions", instructions),
        (file::ALLOCATIONS, allocations),
        ("system-calls", counting::system_calls(&driver, &logs)?),
    ];
    if write {
        let measured = sections
            .iter()
            .map(|(section, costs)| (*section, costs.as_slice()));
        std::fs::write(&file, file::rewritten(&text, measured))?;
        println!(
            "  wrote {BUDGETS}; say in the commit why it costs more, or what made it cost less"
        );
        return Ok(Tally::ONE);
    }
    let budgets = Budgets::parse(&text)?;
    let mut tally = Tally::default();
    for (section, costs) in &sections {
        println!("  {section}");
        for cost in costs {
            tally.record(&cost.name, &judge(&budgets, section, cost));
        }
        for name in budgets.without_cost(section, costs) {
            let outcome = Err(anyhow::anyhow!(
                "it has a budget, but nothing measures it: remove its line from {BUDGETS}"
            ));
            tally.record(name, &outcome);
        }
    }
    Ok(tally)
}

fn judge(budgets: &Budgets, section: &str, cost: &Cost) -> Result<String> {
    let value = cost.value;
    match budgets.judge(section, &cost.name, value) {
        Judgement::Kept { budget } => Ok(format!("{value:.1} of {budget:.1}")),
        Judgement::Lax { budget } => Ok(format!(
            "{value:.1} of {budget:.1}; the budget is far too large by now: `cargo xtask budgets --write` lowers it"
        )),
        Judgement::Exceeded { budget } => bail!(
            "{value:.1}, but the budget is {budget:.1}.{}\n        Make it cost less; or, if it is worth it, raise the budget \
             with `cargo xtask budgets --write` and say in the commit what it buys",
            cost.hot_spots()
        ),
        Judgement::Unknown => {
            bail!("{value:.1}, and it has no budget: `cargo xtask budgets --write` gives it one")
        }
    }
}

/// Builds the program that counts, and returns its path. It is an example of the crate `hairpin`, so its dependencies
/// have the features of the release build. They are compiled once for both.
pub(crate) fn build(root: &Path) -> Result<PathBuf> {
    let arguments = [
        "build",
        "--locked",
        "--release",
        "--package",
        "hairpin",
        "--example",
        "cost",
    ];
    let _: Tally = cargo::check(root, &arguments, &[])?;
    Ok(workspace::target_dir(root).join("release/examples/cost"))
}
