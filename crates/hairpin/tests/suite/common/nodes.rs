//! Nodes of a cluster, and their engine.

use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::places::Place;
use super::turn::{Client, PASSWORD, USER};
use super::{Serve, hairpin, json, run};

pub(crate) const SECRET: &str = "the secret of the cluster of this test";

/// A Redis server without a disk.
pub(crate) struct Redis {
    pub(crate) process: Child,
    pub(crate) port: u16,
    place: Place,
}

impl Redis {
    pub(crate) fn start() -> Self {
        // Free again at the end of the statement.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        Self::at(port.unwrap().port())
    }

    /// On a port that was used before.
    pub(crate) fn at(port: u16) -> Self {
        Self::there(&Place::LOOPBACK, port)
    }

    pub(crate) fn there(place: &Place, port: u16) -> Self {
        // It ends with the thread that starts it. The thread within a namespace ends at once.
        let mut command = if place.is_namespace() {
            Command::new("redis-server")
        } else {
            let mut command = Command::new("setpriv");
            command.args(["--pdeathsig", "KILL", "--", "redis-server"]);
            command
        };
        command
            .args([
                "--bind",
                &place.address.to_string(),
                "--protected-mode",
                "no",
                "--save",
                "",
                "--port",
                &port.to_string(),
            ])
            .stdout(Stdio::null());
        let process = place.within(|| command.spawn());
        let redis = Self {
            process: process.expect("cargo xtask tools installs redis-server"),
            port,
            place: place.clone(),
        };
        soon("redis", || redis.ask(&["ping"]).trim() == "PONG");
        redis
    }

    pub(crate) fn ask(&self, words: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        let (host, port) = (self.place.address.to_string(), self.port.to_string());
        let command = command.args(["-h", &host, "-p", &port]).args(words);
        let output = self.place.within(|| command.output());
        String::from_utf8(output.unwrap().stdout).unwrap()
    }

    pub(crate) fn signal(&self, name: &str) {
        signal(self.process.id(), name);
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

pub(crate) fn signal(pid: u32, name: &str) {
    let status = Command::new("kill")
        .args(["-s", name, &pid.to_string()])
        .status();
    assert!(status.unwrap().success());
}

pub(crate) fn soon(what: &str, mut condition: impl FnMut() -> bool) -> Duration {
    let started = Instant::now();
    while !condition() {
        let waited = started.elapsed();
        assert!(waited < Duration::from_secs(90), "{what}: not within 90 s");
        std::thread::sleep(Duration::from_millis(50));
    }
    started.elapsed()
}

/// One node.
pub(crate) struct Node {
    pub(crate) serve: Serve,
    folder: tempfile::TempDir,
    admin: u16,
    place: Place,
}

/// Where libfaketime is, which changes the clock of a process.
pub(crate) fn libfaketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap();
    let mut paths = folders.map(|entry| entry.unwrap().path().join("faketime/libfaketime.so.1"));
    paths
        .find(|path| path.exists())
        .expect("cargo xtask tools installs faketime")
}

impl Node {
    pub(crate) fn start(name: &str, cluster: &str, more: &str, clock: Option<&str>) -> Self {
        Self::start_in(
            tempfile::tempdir().unwrap(),
            "off",
            (name, cluster, more),
            (&Place::LOOPBACK, clock),
        )
    }

    /// Its bindings survive a restart.
    pub(crate) fn start_there(
        place: &Place,
        (name, cluster, more): (&str, &str, &str),
        clock: Option<&str>,
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state").display().to_string();
        Self::start_in(folder, &state, (name, cluster, more), (place, clock))
    }

    /// Its bindings survive a restart.
    pub(crate) fn start_with_state(name: &str, cluster: &str, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let state = folder.path().join("state").display().to_string();
        let place = (&Place::LOOPBACK, None);
        Self::start_in(folder, &state, (name, cluster, more), place)
    }

    /// Ends the process, and starts another one with the same configuration.
    pub(crate) fn restart(&mut self, meanwhile: impl FnOnce()) {
        self.serve.signal("TERM");
        let (status, log) = self.serve.ended();
        assert!(status.success(), "{log}");
        meanwhile();
        self.start_again();
    }

    /// Kills the process. [`Node::start_again`] starts another one.
    pub(crate) fn kill(&mut self) {
        self.serve.signal("KILL");
        self.serve.ended();
    }

    /// Starts another process with the same configuration. The one before has ended.
    pub(crate) fn start_again(&mut self) {
        let mut command = hairpin(&["serve", "--config"]);
        command.arg(self.folder.path().join("hairpin.toml"));
        self.serve = self.place.within(|| Serve::start_command(command));
    }

    fn start_in(
        folder: tempfile::TempDir,
        state: &str,
        (name, cluster, more): (&str, &str, &str),
        (place, clock): (&Place, Option<&str>),
    ) -> Self {
        let admin = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let path = folder.path().join("hairpin.toml");
        let text = format!(
            "[server]\nworkers = 1\ncontrol_socket = \"{socket}\"\nstate_dir = \"{state}\"\n[listen]\nudp = [\"{address}:{turn}\"]\n\
             [relay]\naddresses = [\"{address}\"]\n[offload]\nmode = \"off\"\n[admin]\nlisten = \"127.0.0.1:{admin}\"\n\
             [auth]\nusers = [{{ name = \"{USER}\", password = \"{PASSWORD}\" }}]\n\
             [cluster]\nnode = \"{name}\"\n{cluster}\n{more}\n",
            socket = folder.path().join("control.sock").display(),
            address = place.address,
            turn = place.port(3478),
        );
        std::fs::write(&path, text).unwrap();
        let mut command = hairpin(&["serve", "--config"]);
        command.arg(&path);
        if let Some(clock) = clock {
            command
                .env("LD_PRELOAD", libfaketime())
                .env("FAKETIME", clock)
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let serve = place.within(|| Serve::start_command(command));
        Self {
            serve,
            folder,
            admin,
            place: place.clone(),
        }
    }

    pub(crate) fn run(&self, args: &[&str]) -> std::process::Output {
        let socket = self.folder.path().join("control.sock");
        let socket = ["--socket", socket.to_str().unwrap()];
        run(&[args, &socket].concat())
    }

    pub(crate) fn client(&self) -> Client {
        let local = self.place.clients.into();
        Client::of(self.serve.address(), local, USER, PASSWORD)
    }

    pub(crate) fn nodes(&self) -> Value {
        json(&self.run(&["nodes", "--json"]))
    }

    /// The names of the nodes in this state.
    pub(crate) fn names(&self, state: &str) -> Vec<String> {
        let all = self.nodes();
        let all = all["nodes"].as_array().unwrap().iter();
        let some = all.filter(|node| node["state"] == state);
        some.map(|node| node["name"].as_str().unwrap().to_owned())
            .collect()
    }

    /// The body of a page of the admin listener.
    pub(crate) fn page(&self, path: &str) -> String {
        use std::io::{Read as _, Write as _};
        let at = (Ipv4Addr::LOCALHOST, self.admin);
        let stream = self.place.within(|| std::net::TcpStream::connect(at));
        let mut stream = stream.unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        .unwrap();
        let mut page = String::new();
        stream.read_to_string(&mut page).unwrap();
        page.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    pub(crate) fn metric(&self, name: &str) -> f64 {
        let page = self.page("/metrics");
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        let value = line.unwrap_or_else(|| panic!("no {name} in {page}"));
        value.trim().parse().unwrap()
    }

    /// Allocates for so many new clients, as fast as leases come.
    pub(crate) fn fill_slowly(&self, count: usize, held: &mut Vec<Client>) {
        for _ in 0..count {
            soon("an allocation", || self.fill(1, held) == 1);
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Allocates with new clients until one is refused, or `most` have been served.
    pub(crate) fn fill(&self, most: usize, held: &mut Vec<Client>) -> usize {
        for got in 0..most {
            let mut client = self.client();
            match client.allocate().code {
                0 => held.push(client),
                486 => return got,
                other => panic!("{other}"),
            }
        }
        most
    }
}

pub(crate) fn with_engine(port: u16) -> String {
    format!(
        "secret = \"{SECRET}\"
engine = \"redis://127.0.0.1:{port}/1\""
    )
}

pub(crate) fn three(redis: &Redis, more: &str) -> [Node; 3] {
    ["a", "b", "c"].map(|name| Node::start(name, &with_engine(redis.port), more, None))
}

/// Three nodes that know each other, with these keys of `[cluster]`.
pub(crate) fn three_serving(cluster: &str, more: &str) -> [Node; 3] {
    let nodes = ["a", "b", "c"].map(|name| Node::start(name, cluster, more, None));
    wait_until_serving(&nodes);
    nodes
}

/// Waits until each of these nodes knows all of them.
pub(crate) fn wait_until_serving(nodes: &[Node]) {
    for node in nodes {
        soon("all nodes", || node.names("serving").len() == nodes.len());
    }
}
