//! Whole Allocate requests from very many forged source addresses, at the default limits. They arrive over a link, so
//! the server treats them as those of strangers; on loopback, the limit of responses to unverified sources does not
//! apply.
//!
//! ```text
//!  clients 10.99.0.1, newcomers 100.96.0.0/16,                       server
//!  forged sources 100.64.0.0/12 ------------ veth ------------ 10.99.0.2
//! ```
//! The addresses of clients and forged sources are local there (AnyIP), and each datagram says by ancillary data which
//! is its source. The responses arrive at the sockets of the flood, and are read until their buffers are full.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use io::{RecvBatch, SendOptions, SendQueue, SendTo, UdpOptions, UdpSocket};
use load::generator::{Path, RelayOptions, Run, Stopper, Target, TurnClients, relay};
use load::measure::{Rate, Schedule};
use load::probe::Credentials;
use load::report::LoadReport;
use server::stun::{
    Builder, Class, HmacKey, Method, Nonce, Realm, RequestedTransport, TransactionId, Username,
};

use crate::common::places::{Place, with_places};
use crate::common::turn::{Client, PASSWORD, USER};
use crate::common::{Serve, resident_kib};

/// Forged sources at most: the addresses of 100.64.0.0/12.
const SOURCES: u32 = 1 << 20;
const PORT: u16 = 3478;
/// Most that the server's memory may grow. An allocation has 600 bytes.
const GROWTH_KIB: u64 = 4 * 1024;
/// Datagrams between two looks at the clock.
const BURST: u32 = 32;
/// Honest allocations that need no retransmission, of 100.
const AT_ONCE: usize = 95;

/// What a flood did, and what clients noticed.
#[derive(Debug, Default)]
struct Report {
    sent: u64,
    not_sent: u64,
    answers_read: u64,
    /// Error responses of the server, by its metrics.
    refused: u64,
    /// Datagrams that found the server's receive buffers full.
    kernel_drops: u64,
    elapsed: Duration,
    /// Processor time of the server.
    cpu: Duration,
    memory_kib: [u64; 2],
    newcomers: usize,
    at_once: usize,
    slowest: Duration,
    client: LoadReport,
}

impl Report {
    /// A machine that is busy with something else takes the processor from server and clients alike.
    fn is_disturbed(&self) -> bool {
        self.client.total.loss() >= 0.01 || self.at_once * 100 < self.newcomers * AT_ONCE
    }
}

#[test]
fn allocate_requests_from_twenty_thousand_forged_sources_cost_clients_nothing() {
    with_places(|[place]: [Place; 1]| forged_sources(&place, 20_000, 10_000.0));
}

#[test]
#[ignore = "takes a minute"]
fn allocate_requests_from_a_million_forged_sources_cost_clients_nothing() {
    let rate = std::env::var("HAIRPIN_TEST_RATE").ok();
    let rate = rate.map_or(25_000.0, |rate| rate.parse().expect("requests per second"));
    with_places(move |[place]: [Place; 1]| forged_sources(&place, SOURCES, rate));
}

fn forged_sources(place: &Place, sources: u32, rate: f64) {
    make_addresses(place);
    let address = place.address;
    let serve = place.within(|| {
        Serve::start(&[
            "--dev",
            "--listen",
            &format!("{address}:{PORT}"),
            "--relay-address",
            &address.to_string(),
            "--offload",
            "off",
            "--user",
            &format!("{USER}:{PASSWORD}"),
        ])
    });
    let server = serve.address();
    let mut held = Client::of(server, IpAddr::V4(place.clients), USER, PASSWORD);
    assert_eq!(held.allocate().code, 0);
    let requests = requests(held.nonce());
    // Once, what a burst costs in any case: buffers, and the table of the limits.
    flood(server, &requests, 64, 20_000, None);
    let mut report = beside_clients(place, &serve, &requests, sources, rate);
    for _ in 0..2 {
        if report.is_disturbed() {
            report = beside_clients(place, &serve, &requests, sources, rate);
        }
    }
    check(&report, sources);
    assert_eq!(held.refresh(600).code, 0, "the allocation is kept");
    let allocations = || place.within(|| sum(&serve, "hairpin_turn_allocations{", |_| true));
    assert_eq!(settled(&allocations), 1, "only the client's own one");
}

fn check(report: &Report, sources: u32) {
    let [before, after] = report.memory_kib;
    println!(
        "{} requests from as many sources in {:.1} s ({:.0}/s): {} refused, {} dropped by the kernel, {} answers read; the server used {:.2} s of processor time, {before} KiB before, {after} KiB after; {} of {} new clients allocated without a retransmission, the slowest in {:?}; the other client lost {} of {}, p99 {:.0} us",
        report.sent,
        report.elapsed.as_secs_f64(),
        report.sent as f64 / report.elapsed.as_secs_f64(),
        report.refused,
        report.kernel_drops,
        report.answers_read,
        report.cpu.as_secs_f64(),
        report.at_once,
        report.newcomers,
        report.slowest,
        report.client.total.lost,
        report.client.total.sent,
        report
            .client
            .latency
            .p99_us
            .unwrap_or(report.client.latency.max_us),
    );
    assert_eq!(report.sent + report.not_sent, u64::from(sources));
    assert!(report.not_sent < u64::from(sources) / 100, "{report:?}");
    // Every request that reaches the server is refused, and a link may lose a few.
    let accounted = report.refused + report.kernel_drops;
    assert!(accounted >= report.sent / 100 * 99, "{report:?}");
    assert!(report.kernel_drops < report.sent / 2, "{report:?}");
    assert!(after.saturating_sub(before) <= GROWTH_KIB, "{report:?}");
    assert!(report.newcomers >= 10, "{report:?}");
    assert!(!report.is_disturbed(), "{report:?}");
    assert!(report.client.total.sent > 100, "{report:?}");
}

/// The sources of the flood and of newcomers are addresses of the clients' side, and the server answers there.
fn make_addresses(place: &Place) {
    let here = "ip route add local 100.64.0.0/12 dev lo; ip route add local 100.96.0.0/16 dev lo";
    let status = std::process::Command::new("sh")
        .args(["-ec", here])
        .status()
        .expect("sh runs");
    assert!(status.success(), "{here}: {status}");
    place.shell(&format!("ip route add default via {}", place.clients));
}

fn beside_clients(
    place: &Place,
    serve: &Serve,
    requests: &[Vec<u8>],
    sources: u32,
    rate: f64,
) -> Report {
    let server = serve.address();
    let duration = Duration::from_secs_f64(f64::from(sources) / rate);
    let run = client(place, server, duration);
    let counted = || place.within(|| refused(serve));
    let before = [counted(), kernel_drops(serve.id())];
    let (memory, cpu) = (resident_kib(serve.id()), processor_time(serve.id()));
    let (stop, pause) = (AtomicBool::new(false), duration / 100);
    let (report, newcomers) = std::thread::scope(|scope| {
        let newcomers = scope.spawn(|| newcomers(server, pause, &stop));
        let report = flood(server, requests, sources, sources, Some(rate));
        stop.store(true, Ordering::Relaxed);
        (report, newcomers.join().expect("newcomers allocate"))
    });
    let client = run.finish();
    Report {
        refused: settled(&counted) - before[0],
        kernel_drops: kernel_drops(serve.id()) - before[1],
        cpu: processor_time(serve.id()) - cpu,
        memory_kib: [memory, resident_kib(serve.id())],
        newcomers: newcomers.len(),
        at_once: newcomers.iter().filter(|it| it.repeats == 0).count(),
        slowest: newcomers.iter().map(|it| it.took).max().unwrap_or_default(),
        client,
        ..report
    }
}

/// The value when it no longer changes: workers publish their counters with a delay.
fn settled(value: &impl Fn() -> u64) -> u64 {
    let mut last = value();
    loop {
        std::thread::sleep(Duration::from_millis(300));
        let now = value();
        if now == last {
            return now;
        }
        last = now;
    }
}

/// An allocation that somebody has made meanwhile, from an address of its own.
struct Newcomer {
    /// Requests that were sent again.
    repeats: u32,
    took: Duration,
}

fn newcomers(server: SocketAddr, pause: Duration, stop: &AtomicBool) -> Vec<Newcomer> {
    let mut all = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let own = Ipv4Addr::from(u32::from(Ipv4Addr::new(100, 96, 1, 1)) + all.len() as u32);
        let mut client = Client::of(server, IpAddr::V4(own), USER, PASSWORD);
        let begun = Instant::now();
        assert_eq!(client.allocate().code, 0);
        all.push(Newcomer {
            repeats: client.repeats,
            took: begun.elapsed(),
        });
        assert_eq!(client.refresh(0).code, 0);
        std::thread::sleep(pause);
    }
    all
}

/// A client whose data goes through the server and back meanwhile.
fn client(place: &Place, server: SocketAddr, duration: Duration) -> Run {
    let mut turn = TurnClients::new(Target::admit(server, false).expect("a private address"));
    turn.credentials = Some(Credentials::new(USER, PASSWORD));
    let mut options = RelayOptions::new(turn);
    options.clients = 1;
    options.path = Path::Reflector {
        ip: Some(IpAddr::V4(place.clients)),
        threads: 1,
        ports: 1,
    };
    let mut plan = relay(&options, &Stopper::new()).expect("an allocation");
    plan.set_schedule(&Schedule::constant(Rate(200.0)));
    plan.warm_up = Duration::from_millis(200);
    plan.duration = duration;
    Run::start(plan).expect("a run")
}

/// Allocate requests of all kinds, each with its own transaction ID: without credentials; of a user, with a nonce that
/// is made up; and with the nonce of another client. The last two are signed with a wrong password.
fn requests(stolen: &[u8]) -> Vec<Vec<u8>> {
    const EACH: u64 = 1024;
    let made_up = format!("{:032x}", 0x9e37_79b9_7f4a_7c15_u64);
    let nonces = [None, Some(made_up.as_bytes()), Some(stolen)];
    let all = (0..EACH).flat_map(|number| {
        let nonces = nonces.iter().enumerate();
        nonces.map(move |(kind, nonce)| request(number * 3 + kind as u64, *nonce))
    });
    all.collect()
}

fn request(number: u64, nonce: Option<&[u8]>) -> Vec<u8> {
    let mut id = [0xf1; 12];
    id[4..].copy_from_slice(&number.to_be_bytes());
    let mut buffer = [0; 512];
    let id = TransactionId(id);
    let made = Builder::new(&mut buffer, Class::Request, Method::ALLOCATE, &id);
    let mut request = made.expect("room");
    request.push(&RequestedTransport::UDP).expect("room");
    if let Some(nonce) = nonce {
        let signed = request
            .push(&Username(USER))
            .and_then(|request| request.push(&Realm("hairpin")))
            .and_then(|request| request.push(&Nonce(nonce)))
            .and_then(|request| request.integrity(&HmacKey::sha1(b"a wrong password")));
        signed.expect("room");
    }
    request.finish().to_vec()
}

/// Source number `n`: all differ, and neighbours in time are far from each other.
fn source(n: u32, sources: u32) -> IpAddr {
    let spread = match sources {
        SOURCES => n.wrapping_mul(0x9e37_79b1) % SOURCES,
        _ => n % sources,
    };
    Ipv4Addr::from(u32::from(Ipv4Addr::new(100, 64, 0, 0)) | spread).into()
}

fn flood(
    server: SocketAddr,
    requests: &[Vec<u8>],
    sources: u32,
    count: u32,
    rate: Option<f64>,
) -> Report {
    let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
    let options = UdpOptions {
        recv_buffer: Some(64 * 1024),
        ..UdpOptions::default()
    };
    let socket = UdpSocket::bind(any, &options).expect("a port");
    let mut queue = SendQueue::new(&SendOptions {
        gso: false,
        ..SendOptions::default()
    });
    let mut answers = RecvBatch::new(64, RecvBatch::SMALL);
    let mut report = Report::default();
    let begun = Instant::now();
    for first in (0..count).step_by(BURST as usize) {
        let due = rate.map_or(0.0, |rate| f64::from(first) / rate);
        let due = begun + Duration::from_secs_f64(due);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        let mut out = queue.start();
        for n in first..count.min(first + BURST) {
            let mut to = SendTo::new(&socket, server);
            to.from_ip = Some(source(n, sources));
            out.push(&to, &requests[n as usize % requests.len()]);
        }
        let flushed = out.flush();
        drop(out);
        report.sent += flushed.sent;
        report.not_sent += flushed.dropped();
        answers.clear();
        report.answers_read += socket.recv(0, &mut answers).unwrap_or(0) as u64;
    }
    report.elapsed = begun.elapsed();
    report
}

/// Error responses to requests without valid credentials.
fn refused(serve: &Serve) -> u64 {
    let codes = ["code=\"401\"", "code=\"438\""];
    sum(serve, "hairpin_stun_errors_total{", |line| {
        codes.iter().any(|code| line.contains(code))
    })
}

/// The sum of the samples whose lines begin like this.
fn sum(serve: &Serve, start: &str, is_wanted: impl Fn(&str) -> bool) -> u64 {
    let page = serve.get("/metrics");
    let lines = page
        .lines()
        .filter(|line| line.starts_with(start) && is_wanted(line));
    let values = lines.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
    values.sum::<f64>() as u64
}

/// Datagrams that found a receive buffer of the server full.
fn kernel_drops(pid: u32) -> u64 {
    let table = std::fs::read_to_string(format!("/proc/{pid}/net/udp")).expect("it runs");
    let listener = format!(":{PORT:04X}");
    table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| {
            fields
                .get(1)
                .is_some_and(|local| local.ends_with(&listener))
        })
        .filter_map(|fields| fields.last()?.parse::<u64>().ok())
        .sum()
}

/// User and system time of all threads, in ticks of 10 ms (proc(5)).
fn processor_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("it runs");
    // The name of the program, in parentheses, may contain spaces.
    let (_, fields) = stat.rsplit_once(") ").expect("a name");
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: u64 = ticks
        .map(|field| field.parse::<u64>().expect("a number"))
        .sum();
    Duration::from_millis(ticks * 10)
}
