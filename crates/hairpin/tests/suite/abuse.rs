//! Millions of datagrams of garbage from a million sources: what they cost in memory, and what a client notices.
//!
//! The server's capacity for garbage is measured first; the flood then comes at half of it, while a client with an
//! allocation has its data relayed.

use std::net::SocketAddr;
use std::time::Duration;

use crate::common::{Serve, resident_kib};
use load::garbage::{FloodOptions, FloodReport, flood};
use load::generator::{Path, RelayOptions, Run, Stopper, Target, TurnClients, relay};
use load::measure::{Rate, Schedule};
use load::probe::Credentials;
use load::report::LoadReport;

/// 1,000 addresses with 1,000 ports each.
const ADDRESSES: u32 = 1_000;
const PORTS: u16 = 1_000;
/// Most that the server's memory may grow.
const GROWTH_KIB: u64 = 4 * 1024;

fn options(server: SocketAddr, count: u64, rate: Option<f64>) -> FloodOptions {
    FloodOptions {
        target: server,
        addresses: ADDRESSES,
        ports: PORTS,
        count,
        rate,
        seed: 20_261_121,
    }
}

/// Datagrams that found the receive buffers of this port full.
fn kernel_drops(port: u16) -> u64 {
    let table = std::fs::read_to_string("/proc/net/udp").expect("Linux");
    let local = format!(":{port:04X}");
    table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| {
            fields
                .get(1)
                .is_some_and(|address| address.ends_with(&local))
        })
        .filter_map(|fields| fields.last()?.parse::<u64>().ok())
        .sum()
}

/// Garbage that the server can read in a second when it gets more than it can.
fn capacity(server: SocketAddr) -> f64 {
    let before = kernel_drops(server.port());
    let report = flood(&options(server, 1_500_000, None)).expect("a flood");
    let dropped = kernel_drops(server.port()) - before;
    report.sent.saturating_sub(dropped) as f64 / report.elapsed.as_secs_f64()
}

/// A client whose data goes through the server and back for as long as the flood lasts.
fn client(server: SocketAddr, duration: Duration) -> Run {
    let mut turn = TurnClients::new(Target::admit(server, false).expect("loopback"));
    turn.credentials = Some(Credentials::new("alice", "secret"));
    let mut options = RelayOptions::new(turn);
    options.clients = 4;
    options.path = Path::Reflector {
        ip: None,
        threads: 1,
        ports: 1,
    };
    let mut plan = relay(&options, &Stopper::new()).expect("four allocations");
    plan.set_schedule(&Schedule::constant(Rate(400.0)));
    plan.warm_up = Duration::from_millis(200);
    plan.duration = duration;
    Run::start(plan).expect("a run")
}

fn flood_beside(server: SocketAddr, datagrams: u64, rate: f64) -> (FloodReport, LoadReport) {
    let duration = Duration::from_secs_f64(datagrams as f64 / rate);
    let run = client(server, duration);
    let report = flood(&options(server, datagrams, Some(rate))).expect("a flood");
    (report, run.finish())
}

/// Measures the capacity, then floods at half of it. The last two are the server's memory before the flood and after
/// it.
fn abuse(server: SocketAddr, pid: u32, datagrams: u64) -> (FloodReport, LoadReport, u64, u64) {
    let capacity = capacity(server);
    let before = resident_kib(pid);
    let (flood, client) = flood_beside(server, datagrams, capacity / 2.0);
    let after = resident_kib(pid);
    println!(
        "capacity {capacity:.0}/s; {} datagrams at {:.0}/s from {} sources; {} answers read; memory {before} KiB, then {after} KiB; the client lost {} of {}, p99 {:.0} us",
        flood.sent,
        flood.sent as f64 / flood.elapsed.as_secs_f64(),
        u64::from(ADDRESSES) * u64::from(PORTS),
        flood.answers,
        client.total.lost,
        client.total.sent,
        client.latency.p99_us.unwrap_or(client.latency.max_us),
    );
    (flood, client, before, after)
}

#[test]
fn two_million_datagrams_of_garbage_cost_no_memory_and_no_client_its_data() {
    garbage_costs_no_memory_and_no_client_its_data(2_000_000);
}

#[test]
#[ignore = "takes three minutes"]
fn ten_million_datagrams_of_garbage_cost_no_memory_and_no_client_its_data() {
    garbage_costs_no_memory_and_no_client_its_data(10_000_000);
}

fn garbage_costs_no_memory_and_no_client_its_data(datagrams: u64) {
    let serve = Serve::start(&[
        "--dev",
        "--listen",
        "127.0.0.1:0",
        "--relay-address",
        "127.0.0.1",
        "--user",
        "alice:secret",
    ]);
    let server = serve.address();
    let pid = serve.id();
    let (mut flood, mut client, before, mut after) = abuse(server, pid, datagrams);
    // A machine that is busy with something else takes the processor from server and client alike: that is no capacity.
    for _ in 0..2 {
        if client.total.loss() >= 0.01 {
            (flood, client, _, after) = abuse(server, pid, datagrams);
        }
    }
    assert_eq!(flood.sent + flood.not_sent, datagrams);
    assert!(flood.not_sent < datagrams / 100, "the flood did not leave");
    assert!(flood.answers > 0, "nothing was answered at all");
    assert!(
        after.saturating_sub(before) <= GROWTH_KIB,
        "memory grew from {before} to {after} KiB"
    );
    assert!(client.total.sent > 1000, "{client}");
    assert!(client.total.loss() < 0.01, "{client}");
}
