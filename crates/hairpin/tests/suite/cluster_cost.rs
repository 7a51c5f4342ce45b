//! What the cluster costs a node: processor time per REGISTER, and allocations per second, with an engine and without,
//! in rounds that alternate. This command prints the figures of docs/cluster.md:
//! `cargo test --release -p hairpin --test suite -- --ignored --nocapture cluster_cost::`

use crate::cluster_calls::{call_over, registered, sip_of};
use crate::common::nodes::{Node, Redis, SECRET, soon, wait_until_serving, with_engine};
use crate::common::turn::{PASSWORD, USER};
use crate::common::{json, run, stderr};
use crate::sip_client::phone::{PASSWORD as SIP_PASSWORD, Phone};
use serde_json::Value;
use std::time::Instant;

const USERS: usize = 5_000;
/// Pairs of rounds.
const ROUNDS: usize = 5;
/// Proof: processor time of registrations and calls with the cluster over that without.
const MAX_RATIO: f64 = 1.5;
/// Rounds of allocations. See [`compare_rates`].
const RATE_ROUNDS: usize = 7;

/// Each round has other contacts, so a user needs room for several.
fn config() -> String {
    let user = |number| format!("{{ name = \"u{number:04}\", password = \"p{number:04}\" }}");
    let phones = ["ann", "bob"]
        .map(|name| format!("{{ name = \"{name}\", password = \"{SIP_PASSWORD}\" }}"));
    let users: Vec<String> = (0..USERS).map(user).chain(phones).collect();
    format!(
        "[peers]\nallow_local = true\n[limits]\nallocations_per_user = 100000\nallocations_per_source = 100000\n\
         [sip]\nlisten = [\"127.0.0.1:0\"]\ntolerance = \"0s\"\nbindings_per_user = 30\n\
         [[sip.domain]]\nname = \"example.com\"\nusers = [{}]\n",
        users.join(", ")
    )
}

/// Nanoseconds of processor time of all threads of the process.
fn processor_ns(node: &Node) -> u64 {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", node.serve.id())).unwrap();
    let of_task = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).unwrap();
        text.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    tasks.map(|task| of_task(task.unwrap().path())).sum()
}

fn load(arguments: &[&str]) -> Value {
    let common = [
        "--no-tui",
        "--warm-up",
        "0s",
        "--linger",
        "15s",
        "--json",
        "-",
    ];
    let output = run(&[&["load"], arguments, &common[..]].concat());
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(0), "{arguments:?}: {errors}");
    json(&output)
}

/// Units that succeed per second, and microseconds of processor time for each.
fn measure(node: &Node, arguments: &[&str]) -> (f64, f64) {
    let before = processor_ns(node);
    let report = load(arguments);
    let used = processor_ns(node) - before;
    let count = report["total"]["received"].as_f64().unwrap();
    assert!(count > 1_000.0, "{report}");
    let seconds = report["run"]["measured_s"].as_f64().unwrap();
    (count / seconds, used as f64 / 1_000.0 / count)
}

fn median(mut all: Vec<f64>) -> f64 {
    all.sort_unstable_by(f64::total_cmp);
    all[all.len() / 2]
}

/// Runs rounds, prints them, and returns the median ratio of processor time.
fn compare(
    what: &str,
    alone: &Node,
    clustered: &Node,
    arguments: &dyn Fn(&Node) -> Vec<String>,
) -> f64 {
    let go = |node: &Node| {
        let arguments = arguments(node);
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        measure(node, &arguments)
    };
    println!("| {what} | alone: per second, us each | cluster: per second, us each | ratio |");
    let mut ratios = Vec::new();
    for round in 0..ROUNDS {
        // The order alternates, so that a change of the machine's speed affects both.
        let (without, with) = match round % 2 {
            0 => {
                let without = go(alone);
                (without, go(clustered))
            }
            _ => {
                let with = go(clustered);
                (go(alone), with)
            }
        };
        let ratio = with.1 / without.1;
        println!(
            "| round {} | {:.0}, {:.1} | {:.0}, {:.1} | {ratio:.2} |",
            round + 1,
            without.0,
            without.1,
            with.0,
            with.1
        );
        ratios.push(ratio);
    }
    let ratio = median(ratios);
    println!("| median of {what} | | | {ratio:.2} |");
    ratio
}

/// Compares the allocations per second of a node with an engine with those of two nodes without one, in rounds that
/// alternate. It fails if the median with the engine is below every round without it. If the engine costs nothing, one
/// run in 170 fails by chance. Then four of the seven rounds with the engine are the four slowest of all 21.
fn compare_rates(alone: [&Node; 2], clustered: &Node) {
    let nodes = [alone[0], alone[1], clustered];
    let mut rates = [const { Vec::new() }; 3];
    println!("| allocations per second | alone | alone, too | cluster |");
    for round in 0..RATE_ROUNDS {
        // Each node has its turn to be the first one.
        for place in (0..3).map(|place| (round + place) % 3) {
            let arguments = allocate(nodes[place]);
            let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
            rates[place].push(measure(nodes[place], &arguments).0);
        }
        let [one, two, with] = [0, 1, 2].map(|place: usize| rates[place][round]);
        println!("| round {} | {one:.0} | {two:.0} | {with:.0} |", round + 1);
    }
    let [one, two, with] = rates;
    let without = [one, two].concat();
    let least = without.iter().copied().fold(f64::INFINITY, f64::min);
    let (with, without) = (median(with), median(without));
    println!("| median | {without:.0} of all rounds without, {least:.0} at least | | {with:.0} |");
    assert!(
        with >= least,
        "{with:.0} with the engine, {least:.0} without"
    );
}

fn register(node: &Node, course: &[&str]) -> Vec<String> {
    let aors = USERS.to_string();
    let uri = format!("sip:{}", sip_of(node));
    let fixed = [
        "sip",
        &uri,
        "--workload",
        "register",
        "--domain",
        "example.com",
        "--aors",
        &aors,
    ];
    let phones = ["--user", "u{n}:p{n}", "--reuse-nonce", "--clients", "50"];
    let all = [&fixed[..], &phones, course].concat();
    all.into_iter().map(str::to_owned).collect()
}

fn allocate(node: &Node) -> Vec<String> {
    let uri = format!("turn:{}", node.serve.address());
    let user = format!("{USER}:{PASSWORD}");
    let fixed = ["turn", &uri, "--user", &user, "--workload", "allocate"];
    let course = ["--closed", "16", "--duration", "5s"];
    let all = [&fixed[..], &course].concat();
    all.into_iter().map(str::to_owned).collect()
}

/// Two nodes that have no engine.
fn without_engine() -> [Node; 2] {
    let cluster = format!("secret = \"{SECRET}\"");
    ["alone", "other"].map(|name| Node::start(name, &cluster, &config(), None))
}

/// Two nodes that know each other, with TLS between them or without. Bob has a phone at the first one, Ann at the
/// second one.
struct Pair {
    nodes: [Node; 2],
    bob: Phone,
    ann: Phone,
    has_tls: bool,
    calls: u32,
}

impl Pair {
    fn start(redis: &Redis, transport: &str) -> Pair {
        let engine = with_engine(redis.port);
        let cluster =
            format!("{engine}\nsip_transport = \"{transport}\"\nprefix = \"{transport}\"");
        let nodes = ["a", "b"].map(|name| Node::start(name, &cluster, &config(), None));
        wait_until_serving(&nodes);
        let mut pair = Pair {
            bob: registered(Phone::udp_at(sip_of(&nodes[0]), "bob"), &nodes[0]),
            ann: registered(Phone::udp_at(sip_of(&nodes[1]), "ann"), &nodes[1]),
            nodes,
            has_tls: transport != "plain",
            calls: 0,
        };
        pair.call(1);
        let completed = "hairpin_sip_node_tls_total{result=\"completed\"}";
        assert_eq!(pair.nodes[0].metric(completed) > 0.0, pair.has_tls);
        pair
    }

    fn used_ns(&self) -> u64 {
        self.nodes.iter().map(processor_ns).sum()
    }

    /// Microseconds of processor time of both nodes for each of so many calls over both of them.
    fn call(&mut self, count: u32) -> f64 {
        let before = self.used_ns();
        for _ in 0..count {
            self.calls += 1;
            let id = format!("cost{}", self.calls);
            call_over(self.has_tls, &mut self.ann, &mut self.bob, &id);
        }
        (self.used_ns() - before) as f64 / 1_000.0 / f64::from(count)
    }
}

#[test]
#[ignore = "it measures, on a machine that does nothing else"]
fn tls_between_nodes_costs_little() {
    const CALLS: u32 = 200;
    let redis = Redis::start();
    let [alone, other] = without_engine();
    let [mut plain, mut tls] = ["plain", "tls"].map(|transport| Pair::start(&redis, transport));
    let paced = |node: &Node| register(node, &["--rate", "2000/s", "--duration", "5s"]);
    let one = &tls.nodes[0];
    let register = compare("REGISTER, TLS between nodes", &alone, one, &paced);
    compare_rates([&alone, &other], one);
    println!("| a call over two nodes | plain: us of both nodes | TLS: us of both nodes | ratio |");
    let mut ratios = Vec::new();
    for round in 1..=ROUNDS {
        let (without, with) = (plain.call(CALLS), tls.call(CALLS));
        let ratio = with / without;
        println!("| round {round} | {without:.0} | {with:.0} | {ratio:.2} |");
        ratios.push(ratio);
    }
    let calls = median(ratios);
    println!("| median of a call over two nodes | | | {calls:.2} |");
    for ratio in [register, calls] {
        assert!(ratio <= MAX_RATIO, "{ratio}");
    }
}

#[test]
#[ignore = "it measures, on a machine that does nothing else"]
fn a_register_costs_little_more_with_an_engine_and_allocations_are_as_many_per_second() {
    let redis = Redis::start();
    let [alone, other] = without_engine();
    let clustered = Node::start("a", &with_engine(redis.port), &config(), None);
    soon("the node is there", || clustered.names("serving") == ["a"]);
    let written = "hairpin_cluster_sip_writes_total{result=\"written\"}";
    let before = clustered.metric(written);
    // Slow enough for the engine to get each one.
    let paced = |node: &Node| register(node, &["--rate", "2000/s", "--duration", "10s"]);
    let slow = compare("REGISTER, 2000 per second", &alone, &clustered, &paced);
    let each = (clustered.metric(written) - before) / (ROUNDS as f64 * 20_000.0);
    println!("the engine was written {each:.2} times per REGISTER");
    assert!(each > 0.9, "{each}");
    let closed = |node: &Node| register(node, &["--closed", "64", "--runs", "50000"]);
    let fast = compare("REGISTER, 64 at a time", &alone, &clustered, &closed);
    compare_rates([&alone, &other], &clustered);
    let _ = compare("allocations, 16 at a time", &alone, &clustered, &allocate);
    for ratio in [slow, fast] {
        assert!(ratio <= MAX_RATIO, "{ratio}");
    }
}

#[test]
fn the_engine_gets_no_more_requests_however_many_allocations_there_are() {
    let redis = Redis::start();
    let node = Node::start("a", &with_engine(redis.port), &config(), None);
    soon("the node is there", || node.names("serving") == ["a"]);
    let requests = || {
        let name = "hairpin_cluster_engine_requests_total";
        let all = ["answered", "failed"].map(|of| format!("{name}{{result=\"{of}\"}}"));
        all.iter().map(|name| node.metric(name)).sum::<f64>()
    };
    let (before, started) = (requests(), Instant::now());
    let arguments = allocate(&node);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let report = load(&arguments);
    let allocations = report["total"]["received"].as_f64().unwrap();
    let (asked, seconds) = (requests() - before, started.elapsed().as_secs_f64());
    println!("{allocations} allocations in {seconds:.1} s, {asked} requests to the engine");
    // Each second has an exchange. If all allocations of the user have ended when the node looks, it returns the lease,
    // and leases again. It looks every 200 ms.
    let most = 12.0 * (seconds + 2.0);
    assert!(asked <= most, "{asked} requests in {seconds:.1} s");
    assert!(allocations > 2.0 * most, "too few to show it: {report}");
    // Otherwise there was no limit to ask about.
    let leased = node.metric("hairpin_cluster_quota_attempts_total{outcome=\"leased\"}");
    assert!(leased >= allocations / 2.0, "{leased} of {allocations}");
}
