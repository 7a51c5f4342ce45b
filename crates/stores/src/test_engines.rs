//! Engines of tests with several real servers: Sentinels with a master and a replica, and Redis Clusters. The tests of
//! the program use it, too.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// On a busy machine, the servers start slowly.
const TEST_TIMEOUT: Duration = Duration::from_secs(90);

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < TEST_TIMEOUT, "{what}: not in time");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it has an address").port()
}

/// One redis-server.
pub(crate) struct Server {
    process: Child,
    pub(crate) port: u16,
    arguments: Vec<String>,
    folder: PathBuf,
}

impl Server {
    /// In a folder of its own below this one, with these arguments too. Ports may be taken meanwhile: then another one
    /// is tried.
    fn start(above: &Path, arguments: &[String]) -> Server {
        for _ in 0..10 {
            let port = free_port();
            let folder = above.join(port.to_string());
            std::fs::create_dir_all(&folder).expect("a folder");
            let more = ["--cluster-port".to_owned(), free_port().to_string()];
            let is_of_cluster = arguments.iter().any(|text| text == "--cluster-enabled");
            let more = more.into_iter().filter(|_| is_of_cluster);
            let arguments = arguments.iter().cloned().chain(more).collect();
            let mut server = Server {
                process: Server::spawn(port, &folder, &arguments),
                port,
                arguments,
                folder,
            };
            if server.is_ready() {
                return server;
            }
        }
        panic!("no redis-server starts");
    }

    fn spawn(port: u16, folder: &Path, arguments: &Vec<String>) -> Child {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "redis-server"]);
        // Sentinels keep their state in their configuration.
        let configuration = folder.join("sentinel.conf");
        if arguments.iter().any(|text| text == "--sentinel") {
            std::fs::write(&configuration, "").expect("a file");
            command.arg(&configuration);
        }
        command.args(["--bind", "127.0.0.1", "--save", "", "--dir"]);
        command.arg(folder).args(["--port", &port.to_string()]);
        command.args(arguments).stdout(Stdio::null());
        let process = command.spawn();
        process.expect("cargo xtask tools installs redis-server")
    }

    fn is_ready(&mut self) -> bool {
        let started = Instant::now();
        while ask(self.port, &["ping"]) != "PONG" {
            let has_ended = self.process.try_wait().is_ok_and(|status| status.is_some());
            if has_ended || started.elapsed() > TEST_TIMEOUT {
                return false;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        true
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    /// Starts it again after it was killed. It has no data, but it is still in its Redis Cluster.
    pub(crate) fn restart(&mut self) {
        self.process = Server::spawn(self.port, &self.folder, &self.arguments);
        assert!(self.is_ready(), "redis-server does not start again");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What a server answers.
pub(crate) fn ask(port: u16, words: &[&str]) -> String {
    let mut command = Command::new("redis-cli");
    let command = command.args(["-p", &port.to_string()]).args(words);
    let output = command
        .output()
        .expect("cargo xtask tools installs redis-cli");
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

/// An engine with several servers. Drop it before its folder.
pub(crate) struct Engines {
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Server>,
    /// The address at which others reach them.
    host: String,
    _folder: tempfile::TempDir,
}

fn words(text: &str) -> Vec<String> {
    text.split(' ').map(str::to_owned).collect()
}

/// Arguments of a server that others reach at this address, and [`ask`] at 127.0.0.1.
fn bind(host: &str) -> String {
    match host {
        "127.0.0.1" => "--protected-mode no".to_owned(),
        _ => format!("--protected-mode no --bind 127.0.0.1 {host}"),
    }
}

impl Engines {
    /// A master and a replica, and three Sentinels that call it `main`.
    pub(crate) fn sentinel() -> Engines {
        Engines::sentinel_at("127.0.0.1")
    }

    /// The same, and nodes reach them at this address.
    pub(crate) fn sentinel_at(host: &str) -> Engines {
        let folder = tempfile::tempdir().expect("a folder");
        let above = folder.path();
        let bind = bind(host);
        let fast = format!("{bind} --repl-diskless-sync-delay 0");
        let master = Server::start(above, &words(&fast));
        let port = master.port;
        let replica = Server::start(above, &words(&format!("{fast} --replicaof {host} {port}")));
        let link = "master_link_status:up";
        wait_until("the replica", || {
            ask(replica.port, &["info", "replication"]).contains(link)
        });
        let sentinel = || {
            let sentinel = Server::start(above, &words(&format!("--sentinel {bind}")));
            let port = port.to_string();
            for command in [
                &["monitor", "main", host, &port, "2"][..],
                &["set", "main", "down-after-milliseconds", "3000"],
                &["set", "main", "failover-timeout", "10000"],
            ] {
                let command = [&["sentinel"], command].concat();
                assert_eq!(ask(sentinel.port, &command), "OK");
            }
            sentinel
        };
        let sentinels: Vec<Server> = (0..3).map(|_| sentinel()).collect();
        for sentinel in &sentinels {
            wait_until("all Sentinels know all", || {
                let said = ask(sentinel.port, &["info", "sentinel"]);
                said.contains("slaves=1,sentinels=3")
            });
        }
        Engines {
            servers: vec![master, replica],
            sentinels,
            host: host.to_owned(),
            _folder: folder,
        }
    }

    /// Three masters, each with `replicas` replicas.
    pub(crate) fn cluster(replicas: usize) -> Engines {
        Engines::cluster_at("127.0.0.1", replicas)
    }

    /// The same, and nodes reach them at this address.
    pub(crate) fn cluster_at(host: &str, replicas: usize) -> Engines {
        let folder = tempfile::tempdir().expect("a folder");
        let arguments = format!(
            "{} --cluster-enabled yes --cluster-announce-ip {host} --cluster-node-timeout 4000 \
             --cluster-replica-validity-factor 0 --cluster-require-full-coverage no --repl-diskless-sync-delay 0",
            bind(host)
        );
        let server = |_| Server::start(folder.path(), &words(&arguments));
        let servers: Vec<Server> = (0..3 * (replicas + 1)).map(server).collect();
        let mut command = Command::new("redis-cli");
        command.args(["--cluster", "create"]);
        command.args(
            servers
                .iter()
                .map(|server| format!("{host}:{}", server.port)),
        );
        command.args(["--cluster-replicas", &replicas.to_string(), "--cluster-yes"]);
        let output = command
            .output()
            .expect("cargo xtask tools installs redis-cli");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{said}");
        let count = servers.len();
        for server in &servers {
            wait_until("all servers of the Redis Cluster know all", || {
                let info = ask(server.port, &["cluster", "info"]);
                let all = format!("cluster_known_nodes:{count}");
                let rows = ask(server.port, &["cluster", "nodes"]);
                let of_replicas = rows.lines().filter(|row| row.contains("slave")).count();
                info.contains("cluster_state:ok")
                    && info.contains(&all)
                    && of_replicas == 3 * replicas
            });
        }
        for server in &servers {
            wait_until("all replicas have the data", || {
                let said = ask(server.port, &["info", "replication"]);
                !said.contains("role:slave") || said.contains("master_link_status:up")
            });
        }
        Engines {
            servers,
            sentinels: Vec::new(),
            host: host.to_owned(),
            _folder: folder,
        }
    }

    /// For `cluster.engine`.
    pub(crate) fn url(&self) -> String {
        let hosts = |servers: &[Server]| {
            let hosts = servers.iter();
            let hosts = hosts.map(|server| format!("{}:{}", self.host, server.port));
            hosts.collect::<Vec<_>>().join(",")
        };
        match self.sentinels.is_empty() {
            true => format!("redis-cluster://{}", hosts(&self.servers[..2])),
            false => format!("redis-sentinel://{}/main", hosts(&self.sentinels)),
        }
    }

    /// The server that has this key.
    pub(crate) fn master_of(&self, key: &str) -> usize {
        let is_master = |server: &Server| {
            let role = ask(server.port, &["role"]);
            // Another master would answer MOVED.
            role.starts_with("master") && !ask(server.port, &["exists", key]).contains("MOVED")
        };
        let found = self.servers.iter().position(is_master);
        found.expect("one server has the key")
    }
}
