//! Where reports go: files, or stdout for `-`.
//!
//! They are checked before a measurement starts, so that no result of a long measurement is lost.

use std::fs::OpenOptions;
use std::path::Path;

use anyhow::{Context, Result, bail};

use super::output;

/// A report and the flag that asked for it.
#[derive(Debug)]
pub(super) struct Destination<'a> {
    flag: &'static str,
    path: &'a Path,
}

/// The destinations of a command.
#[derive(Debug, Default)]
pub(super) struct Destinations<'a>(Vec<Destination<'a>>);

impl<'a> Destinations<'a> {
    /// Takes what was asked for, and tries whether it can be written.
    pub(super) fn new(wanted: &[(&'static str, Option<&'a Path>)]) -> Result<Destinations<'a>> {
        let all: Vec<_> = wanted
            .iter()
            .filter_map(|&(flag, path)| Some(Destination { flag, path: path? }))
            .collect();
        if all.iter().filter(|one| one.is_stdout()).count() > 1 {
            bail!("only one report can go to stdout: give the others a file");
        }
        for one in all.iter().filter(|one| !one.is_stdout()) {
            one.check()?;
        }
        Ok(Destinations(all))
    }

    /// A report takes stdout for itself, so the summary has to go elsewhere.
    pub(super) fn take_stdout(&self) -> bool {
        self.0.iter().any(Destination::is_stdout)
    }

    /// Prints the summary for people: on stdout, unless a report goes there.
    pub(super) fn summary(&self, text: &str) -> Result<()> {
        if self.take_stdout() {
            eprint!("{text}");
            return Ok(());
        }
        output::print(text)
    }

    /// Writes the report that `flag` asked for, if it did.
    pub(super) fn write(&self, flag: &str, report: impl FnOnce() -> Result<String>) -> Result<()> {
        let Some(one) = self.0.iter().find(|one| one.flag == flag) else {
            return Ok(());
        };
        let mut text = report()?;
        if !text.ends_with('\n') {
            text.push('\n');
        }
        if one.is_stdout() {
            return output::print(&text);
        }
        std::fs::write(one.path, text)
            .with_context(|| format!("{flag}: cannot write {}", one.path.display()))
    }
}

impl Destination<'_> {
    fn is_stdout(&self) -> bool {
        self.path.as_os_str() == "-"
    }

    /// Opens it without touching what is in it; a file that was not there before is taken away again.
    fn check(&self) -> Result<()> {
        let new = !self.path.exists();
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(self.path)
            .with_context(|| format!("{}: cannot write {}", self.flag, self.path.display()))?;
        if new {
            // Should that fail, an empty file stays until the report replaces it.
            let _ = std::fs::remove_file(self.path);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stdout_is_for_one_report() {
        let dash = Some(Path::new("-"));
        assert!(Destinations::new(&[("--json", dash), ("--csv", None)]).is_ok());
        assert!(Destinations::new(&[("--json", dash), ("--csv", dash)]).is_err());
    }

    #[test]
    fn an_unwritable_path_is_an_error_before_the_measurement() {
        let directory = tempfile::tempdir().unwrap();
        let good = directory.path().join("report.json");
        let bad = directory.path().join("no/such/report.json");
        let error = Destinations::new(&[("--json", Some(&bad))]).unwrap_err();
        assert!(error.to_string().contains("--json"), "{error}");
        let places = Destinations::new(&[("--json", Some(&good))]).unwrap();
        assert!(!good.exists());
        places.write("--json", || Ok("{}".to_owned())).unwrap();
        assert_eq!(std::fs::read_to_string(&good).unwrap(), "{}\n");
        assert!(Destinations::new(&[("--json", Some(&good))]).is_ok());
        assert_eq!(std::fs::read_to_string(&good).unwrap(), "{}\n");
    }
}
