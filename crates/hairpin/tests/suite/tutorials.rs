//! The commands of the tutorials work, and print what the pages say.
//!
//! A page becomes one shell script. Blocks of code are marked after the three backticks:
//!
//! - `sh test`: runs to its end, with status 0.
//! - `sh test background`: runs until the page ends. The next block waits until it is ready.
//! - `text test`: each line is a part of the output of the block before it.
//! - `toml file=NAME`: the text of a file.
//!
//! `SECRET` is replaced with the secret that the server has printed, `SERVER` with the address of the machine, and
//! `cargo run --release --` with the program of this build. Other blocks are not run.

use std::fmt::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

const FIRST_CALL: &str = include_str!("../../../../docs/tutorials/first-call.md");
const SIP_PHONE: &str = include_str!("../../../../docs/tutorials/sip-phone.md");
const MEASURE: &str = include_str!("../../../../docs/tutorials/measure.md");

/// Time of one page, in seconds; a page takes 5 to 10, unless others use the processors.
const PAGE_TIMEOUT_S: &str = "120";

/// The address of the machine in its own network namespace.
const SERVER: &str = "192.0.2.10";

/// A network and a folder for sockets of its own: the pages use the standard ports.
const BEGIN: &str = r#"
set -euo pipefail
mount -t tmpfs none /run
ip link set lo up
ip link add eth0 type veth peer name cable
ip address add 192.0.2.10/24 dev eth0
ip link set eth0 up
ip link set cable up
ip route add default dev eth0
# KILL, because a phone would wait 32 s for the response of a server that has ended.
trap 'kill -KILL $(jobs -p) 2>/dev/null || true; wait' EXIT

# The lines that say that a program in the background is ready.
until_ready() {
    for _ in $(seq 400); do
        if grep -qE 'Stop with Ctrl-C|200 OK' "$1"; then return; fi
        kill -0 "$2" || break
        sleep 0.05
    done
    echo "not ready:"; cat "$1"; exit 1
}
ended() {
    set -e
    if [ "$1" != 0 ]; then echo "status $1:"; cat "$2"; exit 1; fi
}
expect() {
    if ! grep -qF -- "$2" "$1"; then echo "not printed: $2"; echo "the output:"; cat "$1"; exit 1; fi
}
"#;

/// A block of code with what is behind its backticks.
struct Block<'a> {
    info: Vec<&'a str>,
    text: &'a str,
}

fn blocks(page: &str) -> impl Iterator<Item = Block<'_>> {
    page.split("```").skip(1).step_by(2).map(|block| {
        let (info, text) = block.split_once('\n').unwrap_or((block, ""));
        Block {
            info: info.split(' ').collect(),
            text,
        }
    })
}

/// The script of a page, and how many commands it runs.
fn script(page: &str) -> (String, usize) {
    let (mut script, mut count) = (BEGIN.to_owned(), 0);
    for (number, block) in blocks(page).enumerate() {
        let text = block
            .text
            .replace("SECRET", "$SECRET")
            .replace("SERVER", SERVER);
        match block.info[..] {
            ["sh", "test"] => {
                writeln!(
                    script,
                    "out={number}.out; set +e\n(set -e\n{text}) > $out 2>&1\nended $? $out"
                )
                .expect("a text takes all");
                count += 1;
            }
            ["sh", "test", "background"] => {
                writeln!(
                    script,
                    "out={number}.out\n{} > $out 2>&1 < /dev/null &\nuntil_ready $out $!",
                    text.trim()
                )
                .expect("a text takes all");
                script.push_str("secret=$(sed -n 's/^secret *\\([^ ]*\\).*/\\1/p' $out); SECRET=${secret:-${SECRET:-}}\n");
                count += 1;
            }
            ["text", "test"] => {
                for line in text.lines().filter(|line| !line.is_empty()) {
                    writeln!(script, "expect $out {}", quoted(line)).expect("a text takes all");
                }
            }
            ["toml", file] => {
                let name = file.strip_prefix("file=").expect("the name of a file");
                writeln!(script, "cat > {name} <<'END_OF_FILE'\n{text}END_OF_FILE")
                    .expect("a text takes all");
            }
            ["sh" | "js" | "text"] => {}
            _ => panic!("unknown kind of block: {:?}", block.info),
        }
    }
    (script, count)
}

fn quoted(text: &str) -> String {
    shlex::try_quote(text).expect("no NUL").into_owned()
}

/// A folder with `hairpin`, and a `cargo` that runs it.
fn programs(folder: &Path) {
    let hairpin = env!("CARGO_BIN_EXE_hairpin");
    std::os::unix::fs::symlink(hairpin, folder.join("hairpin")).expect("a link");
    let cargo = folder.join("cargo");
    let text = "#!/bin/sh\n[ \"$1 $2 $3\" = 'run --release --' ] || exit 1\nshift 3\nexec hairpin \"$@\"\n";
    std::fs::write(&cargo, text).expect("a file");
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755)).expect("its mode");
}

fn follow(name: &str, page: &str, least: usize) {
    let folder = tempfile::tempdir().expect("a folder");
    let own = folder.path().join("bin");
    std::fs::create_dir(&own).expect("a folder");
    programs(&own);
    let (script, count) = script(page);
    assert!(count >= least, "{name}: only {count} commands");
    let file = folder.path().join("page.sh");
    std::fs::write(&file, script).expect("a file");
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("timeout");
    command
        .args([
            "--kill-after=1",
            PAGE_TIMEOUT_S,
            "unshare",
            "--net",
            "--mount",
            "bash",
        ])
        .arg(&file)
        .current_dir(folder.path())
        .stdin(Stdio::null())
        .env("PATH", format!("{}:{path}", own.display()));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("HAIRPIN_") {
            command.env_remove(name);
        }
    }
    let output = command.output().expect("timeout runs");
    let said = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {}: {said}", output.status);
}

/// Why the pages cannot be followed here, if so.
pub(crate) fn hindrance() -> Option<&'static str> {
    let mut unshare = Command::new("unshare");
    let status = unshare
        .args(["--net", "--mount", "true"])
        .stderr(Stdio::null())
        .status();
    (!status.is_ok_and(|status| status.success())).then_some("no network namespaces")
}

/// Whether the test can run; if not, it says why, also to `cargo xtask test`, which counts skipped tests.
pub(crate) fn can_run(name: &str, hindrance: Option<&str>) -> bool {
    let Some(reason) = hindrance else {
        return true;
    };
    eprintln!("skipped: {reason}");
    if let Some(list) = std::env::var_os("HAIRPIN_TESTS_SKIPPED") {
        let mut options = std::fs::OpenOptions::new();
        if let Ok(mut file) = options.append(true).create(true).open(list) {
            let _ = std::io::Write::write_all(&mut file, format!("{name}: {reason}\n").as_bytes());
        }
    }
    false
}

#[test]
fn the_first_call_works() {
    if can_run("first-call", hindrance()) {
        follow("first-call.md", FIRST_CALL, 4);
    }
}

#[test]
fn two_sip_phones_call_each_other() {
    let modules = Path::new("/usr/lib/baresip/modules");
    let baresip = (!modules.is_dir()).then_some("no baresip");
    if can_run("sip-phone", hindrance().or(baresip)) {
        follow("sip-phone.md", SIP_PHONE, 6);
    }
}

#[test]
fn a_server_is_measured() {
    if can_run("measure", hindrance()) {
        follow("measure.md", MEASURE, 4);
    }
}
