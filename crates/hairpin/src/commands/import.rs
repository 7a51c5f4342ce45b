//! `hairpin import`: the report goes to stderr, the configuration to stdout or into a file.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::{directory, input, output};
use crate::cli::import::Args;
use crate::config::{self, Inputs, plural};
use crate::import::{self, Format, Imported, Verdict};

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let name = args.file.display().to_string();
    let text = input::read(&args.file)?;
    let Some(format) = args.from.or_else(|| Format::detect(&text)) else {
        bail!("{name}: the format of this configuration is unknown: name the server with --from");
    };
    let imported = import::read(format, &text, args.database.as_deref());
    let made = imported
        .draft
        .to_toml(&format!("{name} ({})", format.name()));
    eprint!("{}", report(&name, &imported));
    let loaded = config::load(&Inputs {
        file: Some((shown(args.output.as_deref()), made.clone())),
        environment: Vec::new(),
        flags: Vec::new(),
    });
    eprint!("{}", loaded.diagnostics(input::colour()));
    if let (Some(url), Some(config)) = (&args.database, &loaded.config) {
        directory::put_accounts(url, &config.realm, &imported)?;
    }
    match &args.output {
        Some(path) => write_new(path, &made)?,
        None => output::print(&made)?,
    }
    eprintln!("{}", summary(&name, &imported));
    if loaded.config.is_none() {
        let what = shown(args.output.as_deref());
        bail!(
            "hairpin check does not accept {what} ({}): correct it as shown above",
            loaded.count()
        );
    }
    let is_understood = !imported
        .lines
        .iter()
        .any(|line| matches!(line.verdict, Verdict::NotUnderstood(_)));
    Ok(match is_understood {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn shown(output: Option<&Path>) -> String {
    output.map_or_else(
        || "hairpin.toml".to_owned(),
        |path| path.display().to_string(),
    )
}

/// The report: one line for each line of the file, then the notes.
fn report(name: &str, imported: &Imported) -> String {
    let mut text = String::new();
    for judged in &imported.lines {
        let option = output::printable(&judged.name);
        text.push_str(&format!(
            "{name}:{}: {option}: {}\n",
            judged.line, judged.verdict
        ));
    }
    for note in &imported.notes {
        text.push_str(&format!("note: {note}\n"));
    }
    text
}

fn summary(name: &str, imported: &Imported) -> String {
    let lines = &imported.lines;
    let counts = Verdict::KINDS.map(|kind| {
        let count = lines
            .iter()
            .filter(|line| line.verdict.kind() == kind)
            .count();
        format!("{count} {kind}")
    });
    let all = plural(lines.len(), "line");
    format!("{name}: {all}: {}", counts.join(", "))
}

/// Writes a file that only its owner can read, because it contains passwords.
fn write_new(path: &Path, text: &str) -> Result<()> {
    let name = path.display();
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("cannot create {name}: --output never replaces a file"))?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("cannot write {name}"))
}
