//! `hairpin completions`, `hairpin man` and `hairpin --version`.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap_complete::Shell;

const COMPLETIONS: &str = "\
Examples:
  hairpin completions bash > /usr/share/bash-completion/completions/hairpin
  hairpin completions zsh > /usr/share/zsh/vendor-completions/_hairpin

Packages install these files.";

const MAN: &str = "\
Examples:
  hairpin man /usr/share/man/man1
        hairpin.1, hairpin-serve.1, hairpin-load-turn.1 and so on
  hairpin man . && man ./hairpin-serve.1

Packages install these files.";

/// Arguments of `hairpin completions`.
#[derive(Debug, clap::Args)]
#[command(after_help = COMPLETIONS)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: Shell,
}

/// Arguments of `hairpin man`.
#[derive(Debug, clap::Args)]
#[command(after_help = MAN)]
pub(crate) struct Man {
    /// The folder that the pages are written to
    #[arg(value_name = "FOLDER")]
    pub(crate) folder: PathBuf,
}

/// Version, commit, target and features. Only the build of a package or of a container image knows its commit
/// (`HAIRPIN_COMMIT`): otherwise each commit would build the program again.
pub(crate) fn version() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        let commit = option_env!("HAIRPIN_COMMIT").filter(|commit| !commit.is_empty());
        let commit = commit.map(|commit| format!("{commit}, "));
        format!(
            "{} ({}{}-{}-{ENVIRONMENT}, features: {FEATURES})",
            env!("CARGO_PKG_VERSION"),
            commit.unwrap_or_default(),
            std::env::consts::ARCH,
            std::env::consts::OS,
        )
    });
    &TEXT
}

const FEATURES: &str = if cfg!(feature = "tui") { "tui" } else { "none" };

/// The C library that the program is linked with.
const ENVIRONMENT: &str = if cfg!(target_env = "gnu") {
    "gnu"
} else if cfg!(target_env = "musl") {
    "musl"
} else {
    "other"
};
