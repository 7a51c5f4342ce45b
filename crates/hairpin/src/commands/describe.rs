//! `hairpin completions` and `hairpin man`: made from the command line itself, so they cannot differ from it.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};

use super::output;
use crate::cli::Cli;
use crate::cli::describe::{Completions, Man};

/// Runs `hairpin completions`.
pub(crate) fn completions(args: &Completions) -> Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "hairpin", &mut text);
    output::print(&String::from_utf8_lossy(&text))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `hairpin man`.
pub(crate) fn man(args: &Man) -> Result<ExitCode> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    pages(&command, "hairpin", &args.folder)?;
    Ok(ExitCode::SUCCESS)
}

/// Writes the page of a command, and those of its subcommands.
fn pages(command: &Command, name: &str, folder: &Path) -> Result<()> {
    // clap keeps names for as long as the program runs.
    let page = command.clone().name(name.to_owned().leak() as &str);
    let page = page.version(env!("CARGO_PKG_VERSION"));
    let path = folder.join(format!("{name}.1"));
    let mut text = Vec::new();
    // The date would make two builds differ.
    let man = clap_mangen::Man::new(page).date("");
    man.render(&mut text)
        .context("the page does not fit in memory")?;
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    for subcommand in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
        pages(
            subcommand,
            &format!("{name}-{}", subcommand.get_name()),
            folder,
        )?;
    }
    Ok(())
}
