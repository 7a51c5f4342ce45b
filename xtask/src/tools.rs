//! What the tests need beyond Rust, and installing it from Debian.

use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

/// A program, and the Debian package that brings it.
pub(crate) struct Tool {
    program: &'static str,
    package: &'static str,
}

const fn tool(program: &'static str, package: &'static str) -> Tool {
    Tool { program, package }
}

/// What integration tests run.
pub(crate) const UNIT: &[Tool] = &[
    tool("ip", "iproute2"),
    tool("kill", "procps"),
    tool("nft", "nftables"),
    tool("redis-server", "redis-server"),
    tool("redis-cli", "redis-tools"),
    tool("faketime", "faketime"),
    // For commands of the pages.
    tool("curl", "curl"),
    tool("jq", "jq"),
    tool("openssl", "openssl"),
    tool("pg_ctlcluster", "postgresql"),
    tool("psql", "postgresql-client"),
    tool("setpriv", "util-linux"),
    tool("sqlite3", "sqlite3"),
    tool("systemctl", "systemd"),
    tool("turnserver", "coturn"),
];

/// What builds actionlint, which checks the workflow of the hosted CI.
pub(crate) const WORKFLOW: &[Tool] = &[tool("go", "golang-go")];

/// A module, which is no program: an absolute path is found without PATH.
#[cfg(target_arch = "aarch64")]
const KAMAILIO_TLS: &str = "/usr/lib/aarch64-linux-gnu/kamailio/modules/tls.so";
#[cfg(not(target_arch = "aarch64"))]
const KAMAILIO_TLS: &str = "/usr/lib/x86_64-linux-gnu/kamailio/modules/tls.so";

/// A module of Perl.
const NET_SIP: &str = "/usr/share/perl5/Net/SIP.pm";

/// Every program that `cargo xtask interop` runs.
pub(crate) const INTEROP: &[Tool] = &[
    tool("turnutils_uclient", "coturn"),
    tool("turnutils_peer", "coturn"),
    tool("turnutils_stunclient", "coturn"),
    tool("turnutils_natdiscovery", "coturn"),
    tool("turnutils_oauth", "coturn"),
    tool("turnserver", "coturn"),
    tool("turnadmin", "coturn"),
    tool("sqlite3", "sqlite3"),
    tool("sipp", "sip-tester"),
    tool("sipsak", "sipsak"),
    tool("sngrep", "sngrep"),
    tool("tshark", "tshark"),
    tool("kamailio", "kamailio"),
    tool(KAMAILIO_TLS, "kamailio-tls-modules"),
    tool("baresip", "baresip-core"),
    tool("linphone-daemon", "linphone-cli"),
    tool("rtpengine", "rtpengine-daemon"),
    tool(NET_SIP, "libnet-sip-perl"),
    tool("chromium", "chromium"),
    tool("chromedriver", "chromium-driver"),
    tool("go", "golang-go"),
    tool("ip", "iproute2"),
    tool("nft", "nftables"),
    tool("openssl", "openssl"),
    tool("certutil", "libnss3-tools"),
    tool("pip3", "python3-pip"),
    tool("node", "nodejs"),
    tool("npm", "npm"),
];

/// Databases, and what fills them.
pub(crate) const STORES: &[Tool] = &[
    tool("turnadmin", "coturn"),
    tool("turnserver", "coturn"),
    tool("turnutils_uclient", "coturn"),
    tool("pg_ctlcluster", "postgresql"),
    tool("psql", "postgresql-client"),
    tool("mariadbd", "mariadb-server"),
    tool("mariadb", "mariadb-client"),
    tool("redis-server", "redis-server"),
    tool("redis-cli", "redis-tools"),
    tool("nats-server", "nats-server"),
    tool("sqlite3", "sqlite3"),
];

/// What compiles libFuzzer, of which the fuzz targets are made.
pub(crate) const FUZZ: &[Tool] = &[tool("c++", "g++")];

/// What compiles the BPF programs, to compare the objects with the committed ones. Nobody needs it to build hairpin.
pub(crate) const BPF: &[Tool] = &[tool("clang", "clang"), tool("llvm-strip", "llvm")];

/// What counts instructions and system calls.
pub(crate) const COUNTING: &[Tool] = &[tool("valgrind", "valgrind"), tool("strace", "strace")];

/// What boots other kernels, and makes the file system that they boot into.
pub(crate) const VM: &[Tool] = &[
    tool("qemu-system-x86_64", "qemu-system-x86"),
    tool("busybox", "busybox-static"),
    tool("cpio", "cpio"),
    tool("ip", "iproute2"),
    tool("tc", "iproute2"),
    tool("strip", "binutils"),
    tool("xz", "xz-utils"),
    tool("setpriv", "util-linux"),
    tool("mkfs.ext4", "e2fsprogs"),
];

/// What makes and checks packages, and boots a system with them.
pub(crate) const PACKAGES: &[Tool] = &[
    tool("dpkg-deb", "dpkg"),
    tool("lintian", "lintian"),
    tool("rpmbuild", "rpm"),
    tool("promtool", "prometheus"),
    tool("debootstrap", "debootstrap"),
    tool("systemd-nspawn", "systemd-container"),
    tool("podman", "podman"),
    tool("runc", "runc"),
    tool("setcap", "libcap2-bin"),
    tool("strip", "binutils"),
    tool("go", "golang-go"),
];

/// Every program of the lists above.
pub(crate) const ALL: &[&[Tool]] = &[
    UNIT, WORKFLOW, INTEROP, STORES, FUZZ, BPF, COUNTING, VM, PACKAGES,
];

/// Makes sure that every tool is there: installs what is missing as root, else says what to install.
pub(crate) fn ensure(lists: &[&[Tool]]) -> Result<()> {
    let packages = missing(lists);
    if packages.is_empty() {
        return Ok(());
    }
    let wanted = packages.join(" ");
    if !is_root() || find("apt-get").is_none() {
        bail!(
            "these Debian packages are missing: {wanted}; install them, or run `cargo xtask tools` as root"
        );
    }
    println!("  installing {wanted}");
    apt(&["update", "-qq"])?;
    let mut arguments = vec!["install", "-y", "-qq", "--no-install-recommends"];
    arguments.extend(&packages);
    apt(&arguments)?;
    let still = missing(lists);
    ensure!(
        still.is_empty(),
        "apt-get installed {wanted}, but the programs of these are not in PATH: {}",
        still.join(" ")
    );
    Ok(())
}

/// The Debian packages that [`ensure()`] would install.
pub(crate) fn missing(lists: &[&[Tool]]) -> Vec<&'static str> {
    let mut packages: Vec<_> = lists
        .iter()
        .copied()
        .flatten()
        .filter(|tool| find(tool.program).is_none())
        .map(|tool| tool.package)
        .collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

fn apt(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        // Without a runlevel, invoke-rc.d starts nothing: coturn's own server would take port 3478.
        .env("RUNLEVEL", "1")
        .status()
        .context("cannot run apt-get")?;
    ensure!(
        status.success(),
        "apt-get {} failed: {status}",
        arguments.join(" ")
    );
    Ok(())
}

/// Where a program is in PATH.
pub(crate) fn find(program: &str) -> Option<std::path::PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Whether this process may install packages.
pub(crate) fn is_root() -> bool {
    std::fs::metadata(Path::new("/proc/self")).is_ok_and(|process| process.uid() == 0)
}
