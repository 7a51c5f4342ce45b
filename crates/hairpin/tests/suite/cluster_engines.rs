//! The kinds of engines: a Redis Cluster, Sentinels, and one server with TLS and an ACL user.
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use crate::cluster_calls::{call, keys, registered, sip_of};
use crate::common::nodes::{Node, SECRET, three_serving, wait_until_serving};
use crate::common::turn::Client;
use crate::engines::{Engines, wait_until};
use crate::sip_client::phone::Phone;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, Issuer, KeyPair,
};

const MAX_ALLOCATIONS: usize = 16;
const BLOCK: usize = 8;

fn up(node: &Node) -> f64 {
    node.metric("hairpin_cluster_engine_up")
}

/// Three nodes that know each other, on this engine.
fn nodes(engine: &str) -> [Node; 3] {
    let cluster = format!("secret = \"{SECRET}\"\n{engine}");
    let limits = format!(
        "{}\n[limits]\nallocations_per_user = {MAX_ALLOCATIONS}",
        keys()
    );
    three_serving(&cluster, &limits)
}

/// Uses up the quota of the user at A. B gives at most one block more, and refuses.
fn use_up(nodes: &[Node; 3]) -> Vec<Client> {
    let [a, b, _] = nodes;
    let mut held = Vec::new();
    for _ in 0..MAX_ALLOCATIONS {
        wait_until("an allocation", || a.fill(1, &mut held) == 1);
    }
    assert_eq!(a.fill(1, &mut held), 0);
    let before = held.len();
    wait_until("B refuses", || b.fill(1, &mut held) == 0);
    assert!(held.len() <= before + BLOCK, "{}", held.len());
    held
}

/// What nodes share works, then the master that has what all read is killed, and another one takes its place.
fn survives(mut engines: Engines, name: &str, master: impl FnOnce(&Engines) -> usize) {
    let nodes = nodes(&format!("engine = \"{}\"", engines.url()));
    let [a, b, c] = &nodes;
    let mut held = use_up(&nodes);
    let mut bob = registered(Phone::udp_at(sip_of(a), "bob"), a);
    let mut ann = registered(Phone::udp_at(sip_of(b), "ann"), b);
    call(&mut ann, &mut bob, "before");
    let master = master(&engines);
    engines.servers[master].kill();
    let killed = Instant::now();
    wait_until("the nodes notice it", || up(a) == 0.0);
    for client in &mut held {
        assert_eq!(client.refresh(600).code, 0, "what runs goes on");
    }
    assert_eq!(a.fill(1, &mut held), 0, "the limit last known");
    wait_until("the engine responds to all nodes", || {
        nodes.iter().all(|node| up(node) == 1.0)
    });
    eprintln!(
        "{name}: another master responds {:?} after the end of one",
        killed.elapsed()
    );
    wait_until_serving(&nodes);
    wait_until("all refuse", || {
        let mut all = nodes.iter();
        all.all(|node| node.fill(1, &mut held) == 0)
    });
    eprintln!(
        "{name}: the user is refused on all nodes {:?} after it, with {} allocations",
        killed.elapsed(),
        held.len()
    );
    // Leases that the new master does not know may let each node give as much as one server gives, but no more.
    assert!(
        (MAX_ALLOCATIONS..=3 * MAX_ALLOCATIONS).contains(&held.len()),
        "{}",
        held.len()
    );
    call(&mut ann, &mut bob, "after");
    for user in ["bob", "ann"] {
        let key = format!("hairpin:sip:{user}@example.com");
        wait_until("one phone, one binding", || {
            let at = engines.servers[engines.master_of(&key)].port;
            crate::engines::ask(at, &["hlen", &key]) == "1"
        });
    }
    // Who registers now is written to the new master, too.
    let mut eve = registered(Phone::udp_at(sip_of(c), "eve"), c);
    call(&mut ann, &mut eve, "new");
    for client in &mut held {
        assert_eq!(client.refresh(600).code, 0);
    }
    // The new master counts what ends. Nothing of the old leases is left, and the limit is exact again.
    for client in &mut held {
        assert_eq!(client.refresh(0).code, 0);
    }
    drop(use_up(&nodes));
}

#[test]
fn quotas_and_calls_survive_the_master_of_a_redis_cluster() {
    let of_nodes = |engines: &Engines| engines.master_of("{hairpin}:nodes");
    survives(Engines::cluster(1), "Redis Cluster", of_nodes);
}

#[test]
fn quotas_and_calls_survive_the_master_of_sentinels() {
    survives(Engines::sentinel(), "Sentinel", |_| 0);
}

#[test]
fn sentinels_that_require_a_password_get_it() {
    let engines = Engines::sentinel();
    // They do not ask each other any more.
    for sentinel in &engines.sentinels {
        let command = ["acl", "setuser", "default", "resetpass", ">s3ntinel"];
        assert_eq!(crate::engines::ask(sentinel.port, &command), "OK");
    }
    let cluster = |password: &str| {
        let url = engines.url();
        format!("secret = \"{SECRET}\"\nengine = \"{url}\"\nsentinel_password = \"{password}\"")
    };
    let good = Node::start("a", &cluster("s3ntinel"), "", None);
    wait_until("the master responds", || up(&good) == 1.0);
    for password in ["", "another"] {
        let bad = Node::start("b", &cluster(password), "", None);
        // It knows no master. Its first attempt ends at once, and the node serves.
        wait_until("it has tried", || {
            bad.metric("hairpin_cluster_engine_requests_total{result=\"failed\"}") >= 1.0
        });
        assert_eq!(up(&bad), 0.0);
        assert_eq!(bad.client().allocate().code, 0);
    }
    assert_eq!(good.names("serving"), ["a"]);
}

/// A Redis server with TLS, and no other user than `hairpin`.
struct TlsRedis {
    process: Child,
    port: u16,
    folder: tempfile::TempDir,
}

/// An authority of its own, and a certificate for 127.0.0.1.
fn certificates(folder: &Path) {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    // With one name for both, OpenSSL would take the certificate for one that has signed itself.
    params.distinguished_name = DistinguishedName::new();
    let name = &mut params.distinguished_name;
    name.push(DnType::CommonName, "authority of a test");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    std::fs::write(
        folder.join("ca.crt"),
        params.self_signed(&key).unwrap().pem(),
    )
    .unwrap();
    let issuer = Issuer::new(params, key);
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    std::fs::write(folder.join("redis.crt"), certificate.pem()).unwrap();
    std::fs::write(folder.join("redis.key"), key.serialize_pem()).unwrap();
}

impl TlsRedis {
    /// With the permissions of docs/cluster.md for this prefix.
    fn start(prefix: &str) -> TlsRedis {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cluster.md");
        let page = std::fs::read_to_string(page).unwrap();
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix("ACL SETUSER "));
        let user = line.unwrap().replace("~hairpin:", &format!("~{prefix}:"));
        let user = user.replace("~{hairpin}:", &format!("~{{{prefix}}}:"));
        let folder = tempfile::tempdir().unwrap();
        certificates(folder.path());
        let acl = format!("user default off\nuser {user}\n");
        std::fs::write(folder.path().join("users.acl"), acl).unwrap();
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr();
        let port = port.unwrap().port();
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--", "redis-server"]);
        command.args(["--bind", "127.0.0.1", "--port", "0", "--save", ""]);
        command.args(["--tls-auth-clients", "no", "--tls-port", &port.to_string()]);
        for (option, file) in [
            ("--tls-cert-file", "redis.crt"),
            ("--tls-key-file", "redis.key"),
            ("--tls-ca-cert-file", "ca.crt"),
            ("--aclfile", "users.acl"),
        ] {
            command.arg(option).arg(folder.path().join(file));
        }
        let process = command.stdout(Stdio::null()).spawn();
        let redis = TlsRedis {
            process: process.expect("cargo xtask tools installs redis-server"),
            port,
            folder,
        };
        wait_until("redis", || redis.ask(&["time"]).lines().count() == 2);
        redis
    }

    fn ask(&self, words: &[&str]) -> String {
        let mut command = Command::new("redis-cli");
        command.args([
            "--tls",
            "--user",
            "hairpin",
            "--pass",
            "PASSWORD",
            "--no-auth-warning",
        ]);
        command.args(["-p", &self.port.to_string(), "--cacert"]);
        command.arg(self.folder.path().join("ca.crt")).args(words);
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    fn engine(&self, password: &str, prefix: &str, ca: &Path) -> String {
        format!(
            "engine = \"rediss://hairpin:{password}@127.0.0.1:{}/0\"\nprefix = \"{prefix}\"\nengine_ca = [{ca:?}]",
            self.port
        )
    }
}

impl Drop for TlsRedis {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn an_engine_with_tls_an_acl_user_and_a_prefix() {
    let prefix = "voice/eu-1";
    let redis = TlsRedis::start(prefix);
    let ca = redis.folder.path().join("ca.crt");
    let nodes = nodes(&redis.engine("PASSWORD", prefix, &ca));
    let [a, b, _] = &nodes;
    use_up(&nodes);
    let mut bob = registered(Phone::udp_at(sip_of(a), "bob"), a);
    let mut ann = registered(Phone::udp_at(sip_of(b), "ann"), b);
    call(&mut ann, &mut bob, "one");
    let nodes_key = format!("{{{prefix}}}:nodes");
    let stored = redis.ask(&["hgetall", &nodes_key]);
    assert_eq!(stored.lines().count(), 2 * nodes.len(), "{stored}");
    // Another authority, another password, and a prefix that the user must not use: the engine is away, and the node
    // serves.
    let other = tempfile::tempdir().unwrap();
    certificates(other.path());
    for engine in [
        redis.engine("PASSWORD", prefix, &other.path().join("ca.crt")),
        redis.engine("wrong", prefix, &ca),
        redis.engine("PASSWORD", "voice/eu-2", &ca),
    ] {
        let cluster = format!("secret = \"{SECRET}\"\n{engine}");
        let node = Node::start("d", &cluster, "", None);
        wait_until("it says so", || up(&node) == 0.0);
        assert_eq!(node.client().allocate().code, 0);
    }
    assert_eq!(a.names("serving"), ["a", "b", "c"]);
}
