//! Where what survives a restart is kept.

use std::path::PathBuf;

use super::setting::{FromText, Mistake};

/// The state directory, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StateDir {
    /// None.
    Off,
    /// What systemd made for the service, or none.
    Auto,
    /// The state directory has this path.
    At(PathBuf),
}

/// Set by systemd for a unit with `StateDirectory=`: absolute paths, separated by colons.
const VARIABLE: &str = "STATE_DIRECTORY";

impl StateDir {
    /// The path that holds in this process, if there is one.
    pub(crate) fn path(&self) -> Option<PathBuf> {
        match self {
            Self::Off => None,
            Self::Auto => first(&std::env::var(VARIABLE).unwrap_or_default()),
            Self::At(path) => Some(path.clone()),
        }
    }
}

fn first(paths: &str) -> Option<PathBuf> {
    let first = paths.split(':').next();
    first
        .filter(|path| path.starts_with('/'))
        .map(PathBuf::from)
}

impl FromText for StateDir {
    const EXPECTED: &'static str = "\"auto\", \"off\" or a path like \"/var/lib/hairpin\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            path if path.starts_with('/') => Ok(Self::At(path.into())),
            other => Err(
                Mistake::new(format!("`{other}` is not the whole path of a directory")).help(
                    format!(
                        "expected {}: after a start elsewhere, what was kept would not be found",
                        Self::EXPECTED
                    ),
                ),
            ),
        }
    }

    fn to_text(&self) -> String {
        match self {
            Self::Off => "off".to_owned(),
            Self::Auto => "auto".to_owned(),
            Self::At(path) => path.display().to_string(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_directory_of_systemd_counts_and_nothing_else() {
        let path = Some(PathBuf::from("/var/lib/a"));
        assert_eq!(first("/var/lib/a"), path);
        assert_eq!(first("/var/lib/a:/var/lib/b"), path);
        assert_eq!((first(""), first("state")), (None, None));
        assert!(StateDir::from_text("state").is_err());
        let Ok(at) = StateDir::from_text("/var/lib/a") else {
            panic!("it is a path");
        };
        assert_eq!((at.path(), at.to_text().as_str()), (path, "/var/lib/a"));
        assert_eq!(StateDir::Off.path(), None);
    }
}
