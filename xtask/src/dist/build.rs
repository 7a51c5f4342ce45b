//! The program of the packages: without debug information, and for an old C library.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use super::{Options, Source, output};

/// The C library that the packages require, unless the caller brings the program.
const OLDEST: Glibc = Glibc(2, 31);

/// A version of the C library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Glibc(u32, u32);

impl fmt::Display for Glibc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.0, self.1)
    }
}

/// Builds the binary of the package with this name, and returns its file. Without `--native`, it is an error if the
/// program requires a later C library than [`OLDEST`].
pub(super) fn program(source: &Source, options: &Options, binary: &str) -> Result<PathBuf> {
    let root = &source.root;
    let target = format!("{}-unknown-linux-gnu", options.architecture);
    let (verb, built_for) = match options.native {
        true => ("build", target.clone()),
        false => ("zigbuild", format!("{target}.{OLDEST}")),
    };
    let mut command = Command::new("cargo");
    command
        .args([verb, "--locked", "--package", binary, "--bin", binary])
        .args(["--profile", &options.profile, "--target", &built_for])
        .current_dir(root)
        .env("HAIRPIN_COMMIT", &source.commit)
        .env("SOURCE_DATE_EPOCH", &source.time)
        .env("CARGO_PROFILE_RELEASE_STRIP", "symbols")
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_TARGET_DIR", &source.target)
        .env_remove("RUSTFLAGS")
        .env("CARGO_ENCODED_RUSTFLAGS", remapped(root, &source.target));
    let status = command.status().context("cargo does not start")?;
    ensure!(
        status.success(),
        "cargo {verb} failed. It requires cargo-zigbuild and zig (pip install cargo-zigbuild ziglang), or use --native"
    );
    // The folder of the profile `dev` has the name of an older profile.
    let profile = match &options.profile[..] {
        "dev" => "debug",
        profile => profile,
    };
    let built = source.target.join(target).join(profile).join(binary);
    let required = glibc(&built)?;
    ensure!(
        options.native || required <= OLDEST,
        "{} requires glibc {required}, and the packages promise {OLDEST}: objdump -T shows the symbols",
        built.display()
    );
    Ok(built)
}

/// The flags that take the folders of this machine out of the program: they would make the programs of two machines
/// differ. The last one that fits counts.
fn remapped(root: &Path, target: &Path) -> String {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    let cargo = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(home?.join(".cargo")));
    let folders = [
        (cargo, "/cargo"),
        (Some(root.to_owned()), "/hairpin"),
        (Some(target.to_owned()), "/hairpin/target"),
    ];
    let flags = folders.iter().filter_map(|(from, to)| {
        let from = from.as_ref()?.display();
        Some(format!("--remap-path-prefix={from}={to}"))
    });
    // Flags have this character between them (cargo's documentation of CARGO_ENCODED_RUSTFLAGS).
    flags.collect::<Vec<_>>().join("\x1f")
}

/// The newest version of the C library that a symbol of the program requires.
pub(super) fn glibc(program: &Path) -> Result<Glibc> {
    let text = output(Command::new("objdump").arg("-T").arg(program))?;
    newest(&text).with_context(|| format!("{} uses no symbol of glibc", program.display()))
}

/// The newest GLIBC_x.y in what objdump prints.
fn newest(symbols: &str) -> Option<Glibc> {
    let number = |version: &str| -> Option<Glibc> {
        let (major, minor) = version.split_once('.')?;
        let minor = minor.split('.').next()?;
        Some(Glibc(major.parse().ok()?, minor.parse().ok()?))
    };
    let versions = symbols.split("GLIBC_").skip(1);
    let versions = versions.filter_map(|rest| {
        let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit());
        number(&rest[..end.unwrap_or(rest.len())])
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_of_all_symbols_counts_by_number() {
        let symbols = "\
            0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.2.5) write\n\
            0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.28) fcntl64\n\
            0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.9) pipe2\n\
            0000000000000000      DF *UND*\t0000000000000000 (GCC_3.3) _Unwind_Backtrace\n\
            0000000000000000  w   D  *UND*\t0000000000000000  Base        __gmon_start__\n";
        assert_eq!(newest(symbols), Some(Glibc(2, 28)));
        assert!(newest(symbols) <= Some(OLDEST));
        let later = symbols.replace("2.28", "2.34");
        assert!(newest(&later) > Some(OLDEST));
        assert_eq!(newest("no symbols"), None);
        assert_eq!(OLDEST.to_string(), "2.31");
    }

    #[test]
    fn what_this_machine_runs_requires_a_version_of_glibc() {
        let own = std::env::current_exe().expect("this program");
        assert!(glibc(&own).expect("objdump") >= Glibc(2, 2));
    }

    #[test]
    fn folders_of_this_machine_are_replaced() {
        let flags = remapped(Path::new("/srv/a folder"), Path::new("/tmp/target"));
        let flags: Vec<&str> = flags.split('\x1f').collect();
        let [.., root, target] = flags[..] else {
            panic!("{flags:?}");
        };
        assert_eq!(root, "--remap-path-prefix=/srv/a folder=/hairpin");
        assert_eq!(target, "--remap-path-prefix=/tmp/target=/hairpin/target");
    }
}
