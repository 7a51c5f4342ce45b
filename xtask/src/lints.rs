//! Rules that the compiler and clippy enforce, and proof that they are switched on.
#![cfg(test)]

use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::workspace;

/// The only crates with unsafe code: system calls, and BPF.
const MAY_BE_UNSAFE: &[&str] = &["io", "bpf"];

/// Crates without clock, socket, thread or ambient randomness.
const SANS_IO: &[&str] = &["stun", "turn", "sip", "sip-server"];

/// One line for each thing a sans-IO crate must not reach for. Each must be refused by its `clippy.toml`.
const AMBIENT: &[(&str, &str)] = &[
    ("the monotonic clock", "let _ = std::time::Instant::now();"),
    ("the wall clock", "let _ = std::time::SystemTime::now();"),
    (
        "a UDP socket",
        "let _ = std::net::UdpSocket::bind(\"127.0.0.1:0\");",
    ),
    (
        "a TCP socket",
        "let _ = std::net::TcpStream::connect(\"127.0.0.1:1\");",
    ),
    (
        "a TCP listener",
        "let _ = std::net::TcpListener::bind(\"127.0.0.1:0\");",
    ),
    ("a thread", "let _ = std::thread::spawn(|| ());"),
    ("sleep", "std::thread::sleep(std::time::Duration::ZERO);"),
    (
        "ambient randomness",
        "let _ = std::collections::hash_map::RandomState::new();",
    ),
];

#[test]
fn unsafe_code_is_forbidden_in_every_crate_but_two() {
    let root = workspace::root();
    for (path, text) in workspace::rust_files(&root).unwrap() {
        let is_root = path.ends_with("src/lib.rs") || path.ends_with("src/main.rs");
        let is_exception = MAY_BE_UNSAFE
            .iter()
            .any(|name| path.starts_with(format!("crates/{name}")));
        if path.starts_with("fuzz") {
            continue;
        }
        if (is_root || path.iter().any(|part| part == "bin")) && !is_exception {
            let forbids = text
                .lines()
                .any(|line| line.trim() == "#![forbid(unsafe_code)]");
            assert!(forbids, "{} lacks #![forbid(unsafe_code)]", path.display());
        }
    }
}

#[test]
fn every_crate_takes_part_in_the_workspace_lints() {
    let root = workspace::root();
    for path in workspace::files(&root).unwrap() {
        if path.file_name().is_some_and(|name| name == "Cargo.toml")
            && path.parent() != Some(Path::new(""))
        {
            let text = std::fs::read_to_string(root.join(&path)).unwrap();
            let inherits = text.contains("[lints]\nworkspace = true")
                || text.contains("\nlints.workspace = true");
            // These two are no members of the workspace, so there is nothing to inherit.
            let apart = path.starts_with("fuzz") || path.starts_with("interop");
            assert!(
                inherits || apart,
                "{} does not inherit the workspace's lints",
                path.display()
            );
        }
    }
}

#[test]
fn clippy_keeps_clocks_sockets_and_randomness_out_of_the_engines() {
    for name in SANS_IO {
        let folder = workspace::root().join("crates").join(name);
        assert!(
            folder.join("clippy.toml").is_file(),
            "crates/{name} has no clippy.toml"
        );
        for (what, line) in AMBIENT {
            assert!(
                is_refused(&folder, line),
                "crates/{name}/clippy.toml does not ban {what}: `{line}`"
            );
        }
        assert!(
            !is_refused(&folder, "let _ = 1 + 1;"),
            "clippy refuses harmless code: this test proves nothing"
        );
    }
}

#[test]
fn clippy_refuses_functions_over_70_lines_everywhere() {
    let root = workspace::root();
    let own = workspace::packages(&root).unwrap();
    let with_file = own.iter().map(|package| package.folder.as_path());
    for folder in with_file.chain([root.as_path()]) {
        if folder.join("clippy.toml").is_file() {
            let lines = |count| "let _ = 1;\n".repeat(count);
            assert!(is_refused(folder, &lines(71)), "{}", folder.display());
            assert!(!is_refused(folder, &lines(70)), "{}", folder.display());
        }
    }
}

/// Whether clippy, with the `clippy.toml` in `folder`, refuses a function of these lines as too long or for a banned
/// method.
fn is_refused(folder: &Path, lines: &str) -> bool {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let scratch = std::env::temp_dir().join(format!("xtask-lints-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&scratch).unwrap();
    let sample = scratch.join("sample.rs");
    std::fs::write(&sample, format!("pub fn sample() {{\n{lines}\n}}\n")).unwrap();
    let output = Command::new("clippy-driver")
        .args([
            "--edition",
            "2024",
            "--crate-type",
            "lib",
            "--emit",
            "metadata",
        ])
        .args([
            "-D",
            "clippy::disallowed_methods",
            "-D",
            "clippy::too_many_lines",
        ])
        .arg("--out-dir")
        .args([&scratch, &sample])
        .env("CLIPPY_CONF_DIR", folder)
        .output()
        .unwrap();
    std::fs::remove_dir_all(&scratch).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() || said.contains("disallowed") || said.contains("too many lines"),
        "clippy-driver failed: {said}"
    );
    !output.status.success()
}
