//! `hairpin probe nat` through NATs of netfilter, to a `hairpin serve` with two addresses:
//!
//! ```text
//!  client: 10.0.0.2 ---- 10.0.0.1 NAT 203.0.113.1 ---- 203.0.113.10 and .11 server
//! ```
//! Each is a network namespace that a sleeping process holds, so nothing is left when a test ends.

use std::io::Write as _;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{Serve, TEST_TIMEOUT, file, hairpin, json, stderr, stdout};
use serde_json::Value;

const CONFIG: &str = "[listen]\nudp = [\"203.0.113.10:3478\"]\n[relay]\naddresses = [\"203.0.113.10\"]\n[nat_discovery]\nudp = [\"203.0.113.11:3479\"]\n\
    [admin]\nlisten = \"off\"\n[offload]\nmode = \"off\"\n[auth]\nsecrets = [\"0123456789abcdef\"]\n";

/// Endpoint-independent mapping, as ports are kept; only answers come in.
const MASQUERADE: &str = "
add table ip nat
add chain ip nat post { type nat hook postrouting priority 100; }
add rule ip nat post oif outside masquerade
";

/// Another port for each peer address and port.
const SYMMETRIC: &str = "
add table ip nat
add chain ip nat post { type nat hook postrouting priority 100; }
add rule ip nat post oif outside masquerade fully-random
";

/// Every port of the outer address belongs to the client, also from inside.
const FULL_CONE: &str = "
add table ip nat
add chain ip nat pre { type nat hook prerouting priority -100; }
add chain ip nat post { type nat hook postrouting priority 100; }
add rule ip nat pre ip daddr 203.0.113.1 meta l4proto udp dnat to 10.0.0.2
add rule ip nat post ip saddr 10.0.0.2 meta l4proto udp snat to 203.0.113.1
";

/// The same, but only peers come in that the port has sent to.
const RESTRICTED: &str = "
add table ip filter
add set ip filter seen { type ipv4_addr . inet_service; flags dynamic; timeout 10m; }
add chain ip filter forward { type filter hook forward priority 0; }
add rule ip filter forward iif inside meta l4proto udp add @seen { ip daddr . udp sport }
add rule ip filter forward iif outside meta l4proto udp ip saddr . udp dport != @seen drop
";

/// A namespace, as long as this lives.
struct Namespace(Child);

impl Namespace {
    fn new() -> Result<Namespace, String> {
        let mut command = Command::new("unshare");
        command
            .args(["--net", "sleep", "600"])
            .stderr(Stdio::null());
        let mut made = Namespace(command.spawn().map_err(|error| error.to_string())?);
        let own = std::fs::read_link("/proc/self/ns/net").expect("/proc");
        let start = Instant::now();
        // unshare has become sleep when the namespace is another one.
        while std::fs::read_link(made.path()).map_or(true, |other| other == own) {
            if let Ok(Some(status)) = made.0.try_wait() {
                return Err(format!("unshare --net: {status}"));
            }
            assert!(start.elapsed() < TEST_TIMEOUT, "no namespace");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(made)
    }

    fn path(&self) -> String {
        format!("/proc/{}/ns/net", self.0.id())
    }

    /// The same command inside.
    fn within(&self, command: &Command) -> Command {
        let mut inside = Command::new("nsenter");
        inside
            .arg(format!("--net={}", self.path()))
            .arg(command.get_program());
        inside.args(command.get_args()).stdin(Stdio::null());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => inside.env(name, value),
                None => inside.env_remove(name),
            };
        }
        inside
    }

    /// Runs lines of a shell inside.
    fn shell(&self, script: &str) -> Result<(), String> {
        let mut command = Command::new("sh");
        command.args(["-ec", script]);
        finished(&self.within(&command).output().expect("nsenter runs"))
    }

    fn nft(&self, rules: &str) -> Result<(), String> {
        let mut command = self.within(Command::new("nft").args(["-f", "-"]));
        command.stdin(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("nsenter runs");
        let mut stdin = child.stdin.take().expect("piped");
        stdin.write_all(rules.as_bytes()).expect("nft reads");
        drop(stdin);
        finished(&child.wait_with_output().expect("nft ends"))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn finished(output: &Output) -> Result<(), String> {
    match output.status.success() {
        true => Ok(()),
        false => Err(stderr(output)),
    }
}

/// Client, NAT and server.
struct Network {
    client: Namespace,
    nat: Namespace,
    server: Namespace,
}

impl Network {
    fn build(rules: &[&str]) -> Result<Network, String> {
        let network = Network {
            client: Namespace::new()?,
            nat: Namespace::new()?,
            server: Namespace::new()?,
        };
        let (client, server) = (network.client.0.id(), network.server.0.id());
        network.nat.shell(&format!(
            "ip link add inside type veth peer name eth0 netns {client}
             ip link add outside type veth peer name eth0 netns {server}
             ip address add 10.0.0.1/24 dev inside
             ip address add 203.0.113.1/24 dev outside
             ip link set lo up; ip link set inside up; ip link set outside up
             echo 1 > /proc/sys/net/ipv4/ip_forward"
        ))?;
        network.client.shell(
            "ip address add 10.0.0.2/24 dev eth0; ip link set lo up; ip link set eth0 up; ip route add default via 10.0.0.1",
        )?;
        network.server.shell(
            "ip address add 203.0.113.10/24 dev eth0; ip address add 203.0.113.11/24 dev eth0; ip link set lo up; ip link set eth0 up",
        )?;
        rules.iter().try_for_each(|rules| network.nat.nft(rules))?;
        Ok(network)
    }

    /// Starts a server, and asks it with these arguments.
    fn probe(&self, arguments: &[&str]) -> Output {
        let (_directory, path) = file(CONFIG);
        let path = path.to_str().expect("UTF-8");
        let serve = hairpin(&["serve", "--config", path, "--workers", "2"]);
        let _server = Serve::start_command(self.server.within(&serve));
        let mut all = vec!["probe", "nat", "203.0.113.10:3478"];
        all.extend(arguments);
        self.client
            .within(&hairpin(&all))
            .output()
            .expect("nsenter runs")
    }

    /// The same, in JSON.
    fn found(&self, arguments: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(arguments);
        let output = self.probe(&all);
        assert!(output.status.success(), "{}", stderr(&output));
        json(&output)
    }
}

/// Builds the network, or says why it cannot.
fn with_nat(rules: &[&str], test: impl FnOnce(&Network)) {
    match Network::build(rules) {
        Ok(network) => test(&network),
        Err(reason) => skipped(&reason),
    }
}

/// Says that a test does nothing, and why: also to `cargo xtask test`, which counts them.
fn skipped(reason: &str) {
    eprintln!("skipped: {reason}");
    if let Some(list) = std::env::var_os("HAIRPIN_TESTS_SKIPPED") {
        let mut options = std::fs::OpenOptions::new();
        if let Ok(mut file) = options.append(true).create(true).open(list) {
            let _ = writeln!(file, "nat: {}", reason.replace('\n', " "));
        }
    }
}

/// Mapping, filtering and hairpinning.
fn behaviour(found: &Value) -> (&str, &str, Option<bool>) {
    let text = |name: &str| found[name].as_str().expect("text");
    (
        text("mapping"),
        text("filtering"),
        found["hairpinning"].as_bool(),
    )
}

const ENDPOINT: &str = "endpoint-independent";
const ADDRESS: &str = "address-dependent";
const PORT: &str = "address-and-port-dependent";
const TIMEOUT: [&str; 2] = ["--timeout", "3s"];

#[test]
fn masquerading_that_keeps_ports_is_restricted_by_address_and_port() {
    with_nat(&[MASQUERADE], |network| {
        let found = network.found(&TIMEOUT);
        assert_eq!(behaviour(&found), (ENDPOINT, PORT, Some(false)), "{found}");
        assert_eq!(
            (&found["nat"], &found["port_preserved"]),
            (&true.into(), &true.into())
        );
        assert!(
            found["mapped"]
                .as_str()
                .is_some_and(|mapped| mapped.starts_with("203.0.113.1:"))
        );
        assert_eq!(found["other"], "203.0.113.11:3479");
    });
}

#[test]
fn masquerading_with_random_ports_is_symmetric() {
    with_nat(&[SYMMETRIC], |network| {
        let output = network.probe(&TIMEOUT);
        let text = stdout(&output);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(
            text.contains("mapping      address-and-port-dependent"),
            "{text}"
        );
        assert!(
            text.contains("filtering    address-and-port-dependent"),
            "{text}"
        );
        assert!(text.contains("all others need a relay (TURN)"), "{text}");
    });
}

#[test]
fn a_full_cone_lets_everybody_in_and_hairpins() {
    with_nat(&[FULL_CONE], |network| {
        let found = network.found(&TIMEOUT);
        assert_eq!(
            behaviour(&found),
            (ENDPOINT, ENDPOINT, Some(true)),
            "{found}"
        );
    });
}

#[test]
fn a_filter_by_address_differs_from_one_by_port() {
    with_nat(&[FULL_CONE, RESTRICTED], |network| {
        let found = network.found(&TIMEOUT);
        let (mapping, filtering, _) = behaviour(&found);
        assert_eq!((mapping, filtering), (ENDPOINT, ADDRESS), "{found}");
    });
}

#[test]
fn without_a_nat_it_says_so() {
    let Ok(network) = Network::build(&[]) else {
        return skipped("no network namespaces");
    };
    let route = network
        .server
        .shell("ip route add 10.0.0.0/24 via 203.0.113.1");
    route.expect("a route");
    let found = network.found(&TIMEOUT);
    assert_eq!(found["nat"], false, "{found}");
    assert_eq!(behaviour(&found), (ENDPOINT, ENDPOINT, None), "{found}");
}

#[test]
fn the_lifetime_of_a_binding_is_bounded_from_both_sides() {
    with_nat(&[MASQUERADE], |network| {
        let folder = "/proc/sys/net/netfilter/nf_conntrack_udp_timeout";
        let short = format!("echo 4 > {folder}; echo 4 > {folder}_stream");
        if let Err(reason) = network.nat.shell(&short) {
            return skipped(&reason);
        }
        let found = network.found(&["--timeout", "1s", "--lifetime", "12s"]);
        let lifetime = &found["binding_lifetime"];
        // A busy machine delays the tests, but no binding outlives its four seconds by much, and the first tests come
        // long before.
        let below = lifetime["below_s"].as_f64().expect("it ends");
        let at_least = lifetime["at_least_s"].as_f64().expect("a number");
        assert!(
            (4.0..12.0).contains(&below) && at_least < below,
            "{lifetime}"
        );
    });
}

#[test]
fn a_server_with_one_address_is_no_use() {
    let server = Serve::start(&[
        "--listen",
        "127.0.0.1:0",
        "--relay-address",
        "127.0.0.1",
        "--secret",
        "0123456789abcdef",
    ]);
    let address = server.address().to_string();
    let output = crate::common::run(&["probe", "nat", &address]);
    crate::common::fails(&output, 1, "it does not serve NAT behaviour discovery");
    let failed = json(&crate::common::run(&["probe", "nat", &address, "--json"]));
    assert_eq!(failed["ok"], false);
    let short = crate::common::run(&["probe", "nat", &address, "--lifetime", "1s"]);
    crate::common::fails(&short, 2, "from 5s to 1h");
}
