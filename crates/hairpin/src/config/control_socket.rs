//! Where the control socket is.

use std::path::{Path, PathBuf};

use super::setting::{FromText, Mistake};

/// The path of the control socket, if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ControlSocket {
    /// None.
    Off,
    /// [`ControlSocket::default_path`], or none if it cannot be used.
    Auto,
    /// The control socket has this path.
    At(PathBuf),
}

/// The name of the socket in a directory of the service.
const NAME: &str = "control.sock";
/// What systemd makes for `RuntimeDirectory=hairpin`.
const DIRECTORY: &str = "/run/hairpin";
/// Set by systemd for a unit with `RuntimeDirectory=`: absolute paths, separated by colons.
const VARIABLE: &str = "RUNTIME_DIRECTORY";

impl ControlSocket {
    /// Where a service usually has it: in the directory that systemd made for it, else in /run/hairpin.
    pub(crate) fn default_path() -> PathBuf {
        let given = std::env::var(VARIABLE).unwrap_or_default();
        let first = given.split(':').next().filter(|path| path.starts_with('/'));
        Path::new(first.unwrap_or(DIRECTORY)).join(NAME)
    }

    /// Whether systemd made a directory for this process.
    pub(crate) fn has_runtime_directory() -> bool {
        std::env::var_os(VARIABLE).is_some()
    }
}

impl FromText for ControlSocket {
    const EXPECTED: &'static str = "\"auto\", \"off\" or a path like \"/run/hairpin/control.sock\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text {
            "off" => Ok(Self::Off),
            "auto" => Ok(Self::Auto),
            path if path.starts_with('/') => Ok(Self::At(path.into())),
            other => Err(
                Mistake::new(format!("`{other}` is not the whole path of a socket")).help(format!(
                    "expected {}: other programs have other working directories",
                    Self::EXPECTED
                )),
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
