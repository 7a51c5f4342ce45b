//! The programs that commands of pages call.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

/// Programs that must be installed. `cargo xtask tools` installs them.
const NEEDED: &[&str] = &[
    "bash",
    "createuser",
    "curl",
    "ip",
    "jq",
    "nft",
    "openssl",
    "pg_ctlcluster",
    "psql",
    "redis-cli",
    "redis-server",
    "setpriv",
    "sqlite3",
    "ss",
    "systemctl",
    "systemd-sysusers",
    "taskset",
    "timeout",
    "turnserver",
    "turnutils_uclient",
    "unshare",
];

/// The names of programs that are not there.
pub(super) fn missing() -> Vec<&'static str> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<_> = std::env::split_paths(&path).collect();
    let is_there = |name: &&str| folders.iter().any(|folder| folder.join(name).is_file());
    NEEDED
        .iter()
        .copied()
        .filter(|name| !is_there(name))
        .collect()
}

/// Puts `hairpin` into a folder, and a `sudo` for root, who may do all of this.
pub(super) fn make(folder: &Path) {
    let hairpin = env!("CARGO_BIN_EXE_hairpin");
    std::os::unix::fs::symlink(hairpin, folder.join("hairpin")).expect("a link");
    let sudo = folder.join("sudo");
    let text = "#!/bin/sh\n\
        if [ \"$1\" != -u ]; then exec \"$@\"; fi\n\
        user=$2; shift 2\n\
        exec setpriv --reuid=\"$user\" --regid=\"$user\" --init-groups -- \"$@\"\n";
    std::fs::write(&sudo, text).expect("a file");
    std::fs::set_permissions(&sudo, std::fs::Permissions::from_mode(0o755)).expect("its mode");
}
