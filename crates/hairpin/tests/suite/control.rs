//! The control socket, and the commands that use it: `status`, `reload`, `drain`.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use crate::common::controlled::eventually;
use crate::common::{Background, Serve, fails, hairpin, json, run, stderr, stdout};

/// Longer than anything here takes, also on a busy machine.
const MAX_WAIT: Duration = Duration::from_secs(60);

const SECRET: &str = "0123456789abcdef";

/// A server with a configuration file and a control socket in a directory of its own.
struct Controlled {
    serve: Serve,
    folder: tempfile::TempDir,
}

impl Controlled {
    fn start(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("hairpin.toml");
        std::fs::write(&config, text(folder.path(), more)).unwrap();
        let mut command = hairpin(&["serve", "--config"]);
        command.arg(&config);
        let serve = Serve::start_command(command);
        Self { serve, folder }
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// Replaces what the file has besides the basics.
    fn configure(&self, more: &str) {
        let config = self.folder.path().join("hairpin.toml");
        std::fs::write(config, text(self.folder.path(), more)).unwrap();
    }

    fn run(&self, args: &[&str]) -> Output {
        let socket = self.socket();
        let (command, rest) = args.split_first().unwrap();
        let path = ["--socket", socket.to_str().unwrap()];
        run(&[&[*command], &path[..], rest].concat())
    }

    fn status(&self) -> serde_json::Value {
        json(&self.run(&["status", "--json"]))
    }

    /// Clients that relay until they get SIGINT, or for so long.
    fn load(&self, duration: &str) -> Background {
        let address = self.serve.address().to_string();
        let limit = ["--clients", "3", "--rate", "50/s", "--duration", duration];
        Background::start(&[&["load", "turn", &address, "--secret", SECRET], &limit[..]].concat())
    }
}

fn text(folder: &Path, more: &str) -> String {
    format!(
        "{more}\n[listen]\nudp = [\"127.0.0.1:0\"]\n[relay]\naddresses = [\"127.0.0.1\"]\n[auth]\nsecrets = [\"{SECRET}\"]\n[peers]\nallow_local = true\n[admin]\nlisten = \"off\"\n[server]\ncontrol_socket = {:?}\n",
        folder.join("control.sock")
    )
}

/// Sends bytes and returns all that comes back.
fn raw(socket: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(socket).unwrap();
    stream.set_read_timeout(Some(MAX_WAIT)).unwrap();
    // A server that refuses may have ended the connection before all has been written.
    let _ = stream.write_all(bytes);
    let mut reply = Vec::new();
    let _ = stream.read_to_end(&mut reply);
    String::from_utf8(reply).unwrap()
}

#[test]
fn status_says_what_the_server_does() {
    let server = Controlled::start("");
    let shown = server.serve.value("control").to_owned();
    assert_eq!(shown, server.socket().display().to_string());
    let status = server.status();
    assert_eq!(status["state"], "serving");
    assert_eq!(status["pid"], server.serve.id());
    assert_eq!(status["healthy"], true);
    assert_eq!(status["last_reload_successful"], true);
    assert_eq!(
        status["listeners"]["udp"][0],
        server.serve.address().to_string()
    );
    let config = server.folder.path().join("hairpin.toml");
    assert_eq!(status["config_file"], config.display().to_string());

    let load = server.load("600s");
    eventually("its clients are counted", || {
        server.status()["allocations"] == 3 && server.status()["relayed_addresses"] == 3
    });
    let output = server.run(&["status"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stdout(&output);
    for expected in [
        "state        serving, process ",
        "health       ok\n",
        "allocations  3, with 3 of ",
        "listening    udp 127.0.0.1:",
    ] {
        assert!(text.contains(expected), "`{expected}` is not in {text}");
    }
    load.signal("INT");
    assert!(load.wait().0.success());
}

#[test]
fn a_reload_waits_for_its_outcome_and_shows_every_mistake() {
    let server = Controlled::start("[limits]\nallocations_per_user = 100\n");
    let reload = || server.run(&["reload"]);
    assert_eq!(stdout(&reload()), "configuration reloaded\n");

    server.configure("[limits]\nallocations_per_user = 0\nno_such_key = 1\n");
    let refused = reload();
    fails(&refused, 1, "reload refused, the old configuration stays");
    let text = stderr(&refused);
    for part in ["hairpin.toml:2:", "hairpin.toml:3:", "no_such_key"] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    assert_eq!(server.status()["last_reload_successful"], false);
    let shown = server.run(&["status"]);
    assert!(stdout(&shown).contains("the last reload was refused"));

    server.configure("[sip]\nheaders = 99\n");
    let applied = reload();
    assert!(applied.status.success(), "{}", stderr(&applied));
    assert!(stderr(&applied).contains("needs a restart to take effect: sip.headers"));
    assert_eq!(server.status()["last_reload_successful"], true);

    std::fs::remove_file(server.folder.path().join("hairpin.toml")).unwrap();
    fails(&reload(), 1, "hairpin.toml");
}

#[test]
fn a_drain_admits_nobody_new_and_waits_for_those_that_are_there() {
    let server = Controlled::start("");
    let load = server.load("600s");
    eventually("clients are there", || server.status()["allocations"] == 3);
    let output = server.run(&["drain"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output), "draining: 3 allocations left\n");
    assert_eq!(server.status()["state"], "draining");

    let late = server.run(&["drain", "--wait", "--timeout", "0s"]);
    fails(&late, 1, "not drained within");
    let (status, _, log) = server.load("1s").wait();
    assert!(!status.success(), "no new allocation: {log}");
    let socket = server.socket();
    let wait = ["drain", "--wait", "--socket", socket.to_str().unwrap()];
    let waiting = Background::start(&wait);
    load.signal("INT");
    assert!(load.wait().0.success(), "clients that were there go on");
    let (status, said, log) = waiting.wait();
    assert!(
        status.success() && said.starts_with("drained"),
        "{said}{log}"
    );

    // It serves until it is stopped, also after a reload.
    assert!(server.run(&["reload"]).status.success());
    assert_eq!(server.status()["state"], "draining");
    server.serve.signal("TERM");
    assert!(server.serve.wait().0.success());
    let gone = server.folder.path().join("control.sock");
    assert!(!gone.exists(), "an orderly end removes the socket");
}

#[test]
fn a_cancelled_drain_admits_new_clients_again() {
    let server = Controlled::start("");
    assert!(server.run(&["drain"]).status.success());
    assert!(!server.load("1s").wait().0.success(), "no new allocation");
    let cancelled = server.run(&["drain", "--cancel"]);
    assert!(cancelled.status.success(), "{}", stderr(&cancelled));
    assert_eq!(server.status()["state"], "serving");
    assert!(server.load("1s").wait().0.success());
    fails(&server.run(&["drain", "--cancel", "--wait"]), 2, "--wait");
}

#[test]
fn a_server_that_stops_says_so_until_the_end() {
    let server = Controlled::start("[log]\nlevel = \"info\"\n");
    server.configure("");
    let config = server.folder.path().join("hairpin.toml");
    let with_drain = std::fs::read_to_string(&config).unwrap() + "drain = \"1h\"\n";
    std::fs::write(&config, with_drain).unwrap();
    assert!(server.run(&["reload"]).status.success());
    let load = server.load("600s");
    eventually("clients are there", || server.status()["allocations"] == 3);
    server.serve.signal("TERM");
    eventually("it stops", || server.status()["state"] == "stopping");
    fails(&server.run(&["reload"]), 1, "about to stop");
    fails(&server.run(&["drain", "--cancel"]), 1, "about to stop");
    assert!(server.run(&["drain"]).status.success());
    load.signal("INT");
    assert!(load.wait().0.success());
    assert!(server.serve.wait().0.success());
}

#[test]
fn commands_without_a_server_say_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("control.sock");
    let ask = |path: &Path| run(&["status", "--socket", path.to_str().unwrap()]);
    fails(&ask(&path), 1, "there is no such socket");
    drop(UnixListener::bind(&path).unwrap());
    fails(&ask(&path), 1, "the server has ended");
    fails(
        &run(&["status", "--socket", "off"]),
        1,
        "the control socket is off",
    );
    fails(&run(&["drain", "--socket", "here"]), 2, "the whole path");
    fails(&run(&["drain", "--timeout", "1s"]), 2, "--wait");

    // Something else listens.
    let other = folder.path().join("other.sock");
    let listener = UnixListener::bind(&other).unwrap();
    let thread = std::thread::spawn(move || {
        for reply in ["HTTP/1.1 400 Bad Request\n", "{\"protocol\":9}\n", ""] {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0]).unwrap();
            stream.write_all(reply.as_bytes()).unwrap();
        }
    });
    fails(&ask(&other), 1, "not a line with one JSON object");
    fails(&ask(&other), 1, "version 9");
    fails(&ask(&other), 1, "does not reply");
    thread.join().unwrap();
}

#[test]
fn malformed_requests_get_the_reason_and_end_nothing() {
    let server = Controlled::start("");
    let long = [b'x'; 10_000];
    let cases: [(&[u8], &str); 5] = [
        (b"GET / HTTP/1.1\r\n", "one JSON object"),
        (
            b"{\"protocol\":1,\"command\":\"stop\"}\n",
            "unknown command",
        ),
        (b"{\"protocol\":7,\"command\":\"status\"}\n", "version 7"),
        (&[0xff, b'\n'], "one JSON object"),
        (&long, "at most 4096 bytes"),
    ];
    for (bytes, reason) in cases {
        let reply = raw(&server.socket(), bytes);
        assert!(reply.contains("\"ok\":false"), "{reply}");
        assert!(reply.contains(reason), "`{reason}` is not in {reply}");
    }
    // Connections that say nothing keep nobody out.
    let silent = (0..40).map(|_| UnixStream::connect(server.socket()).unwrap());
    let silent: Vec<_> = silent.collect();
    assert_eq!(server.status()["state"], "serving");
    drop(silent);
}

#[test]
fn a_second_server_with_the_same_socket_starts_nothing_and_a_killed_one_leaves_no_obstacle() {
    let first = Controlled::start("");
    let config = first.folder.path().join("hairpin.toml");
    let args = ["serve", "--config", config.to_str().unwrap()];
    let second = run(&args);
    let by = format!("another server, process {}, uses it", first.serve.id());
    fails(&second, 1, &by);
    assert!(stderr(&second).contains("server.control_socket"));
    assert_eq!(first.status()["state"], "serving", "it is unharmed");

    first.serve.signal("KILL");
    let folder = first.folder;
    let _ = first.serve.wait();
    assert!(folder.path().join("control.sock").exists());
    let again = Serve::start_command(hairpin(&args));
    let socket = folder.path().join("control.sock");
    let status = run(&["status", "--json", "--socket", socket.to_str().unwrap()]);
    assert_eq!(json(&status)["pid"], again.id());
}

/// The binary as another user, from a place that this user can read.
fn as_nobody(folder: &Path, args: &[&str]) -> Command {
    let copy = folder.join("hairpin");
    if !copy.exists() {
        crate::common::copy_program(&copy);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
    command.arg(copy).args(args);
    command
}

#[test]
fn other_users_are_refused_by_the_file_and_by_the_server_needs_root() {
    let server = Controlled::start("");
    let socket = server.socket();
    let open = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    open(server.folder.path(), 0o755);
    let args = ["status", "--socket", socket.to_str().unwrap()];
    let ask = || as_nobody(server.folder.path(), &args).output().unwrap();
    fails(&ask(), 1, "as the user of the server, or as root");
    // Somebody has opened the file to everybody: the server looks at the peer itself.
    open(&socket, 0o666);
    fails(&ask(), 1, "error: permission denied");
    assert_eq!(
        server.status()["state"],
        "serving",
        "its own user is served"
    );
}

#[test]
fn the_usual_socket_is_that_of_the_service() {
    let folder = tempfile::tempdir().unwrap();
    let directory = folder.path().join("run");
    let start = || {
        let mut command = hairpin(&["serve", "--listen", "127.0.0.1:0", "--admin", "off"]);
        command.env("RUNTIME_DIRECTORY", &directory);
        Serve::start_command(command)
    };
    let first = start();
    let mut status = hairpin(&["status", "--json"]);
    status.env("RUNTIME_DIRECTORY", &directory);
    let shown = json(&status.output().unwrap());
    assert_eq!(shown["pid"], first.id());
    // Nobody asked for one, so a second server runs without.
    let second = start();
    assert!(!second.banner.contains("control"), "{}", second.banner);
    second.signal("TERM");
    let (ended, log) = second.wait();
    assert!(
        ended.success() && log.contains("no control socket"),
        "{log}"
    );
}
