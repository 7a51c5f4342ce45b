//! `hairpin load compare`: two reports side by side.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use load::report::{self, LoadReport, SCHEMA_VERSION};

use crate::cli::load::compare::Args;
use crate::commands::output;

/// Runs the command.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let side = |files: &[PathBuf]| {
        files
            .iter()
            .map(|path| read(path))
            .collect::<Result<Vec<_>>>()
    };
    let (a, b) = (side(&args.a.0)?, side(&args.b.0)?);
    let comparison = report::compare(&a, &b);
    let text: String = comparison
        .to_string()
        .lines()
        .map(|line| output::printable(line) + "\n")
        .collect();
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Reads a report, or says in which line it stops being one.
fn read(path: &Path) -> Result<LoadReport> {
    let name = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
    let report = LoadReport::from_json(&text).map_err(|error| {
        anyhow::anyhow!("{name} is not a report of `hairpin load --json`: {error}")
    })?;
    if report.schema_version != SCHEMA_VERSION {
        bail!(
            "{name} was written by another version of hairpin: schema {}, and this one reads {SCHEMA_VERSION}",
            report.schema_version
        );
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_report_is_named_with_the_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.json");
        std::fs::write(&path, "{\n  \"schema_version\": 1,\n  oops\n}").unwrap();
        let error = read(&path).unwrap_err().to_string();
        assert!(
            error.contains("a.json") && error.contains("line 3"),
            "{error}"
        );
        let mut report = LoadReport::empty();
        report.schema_version = 99;
        std::fs::write(&path, report.to_json().unwrap()).unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("schema 99"));
        let missing = read(Path::new("/nonexistent/b.json")).unwrap_err();
        assert!(format!("{missing:#}").contains("/nonexistent/b.json"));
    }
}
