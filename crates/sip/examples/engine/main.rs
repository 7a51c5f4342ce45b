//! Times the engine on whole transactions, sockets left out:
//!
//! ```text
//! cargo run --release -p hairpin-sip --example engine
//! ```
//!
//! The figures are medians of many short runs, in nanoseconds a transaction or call. `engine OPERATION COUNT` repeats one
//! operation, for a profiler.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program reads its arguments and the clock"
)]

use core::hint::black_box;
use std::io::Write as _;
use std::time::{Duration, Instant};

use hairpin_sip as sip;
use sip::congestion::{Backlog, Class};
use sip::engine::{Config, Engine, Outgoing, Output, Received, Reply, SentBy};
use sip::flow::{Carrier, ConnectionKey, Destination, Flow, ListenerKey};
use sip::{HashKey, Mono, Now, Spans};

/// Transactions a run.
const RUN: u64 = 2_000;
/// Runs of each operation.
const RUNS: usize = 101;

/// Any of what can go wrong here.
type Failed = Box<dyn std::error::Error>;

/// An engine, the time, and what is needed to talk to it.
struct Bench {
    engine: Engine,
    now: Now,
    spans: Spans,
    message: Vec<u8>,
    sent: Vec<u8>,
    count: u64,
    flow: Flow,
}

impl Bench {
    fn new(congested: bool, rejecting_permille: u16) -> Result<Bench, Failed> {
        let mut config = Config::new(0, HashKey::new([1; 16]));
        config.congestion.rejecting_permille = rejecting_permille;
        config.sent_by.push(SentBy {
            listener: ListenerKey(0),
            carrier: Carrier::Udp,
            host: "192.0.2.1".into(),
            port: 5060,
        });
        let mut bench = Bench {
            engine: Engine::new(config, 1),
            now: Now {
                mono: Mono(1_000_000_000),
                unix_s: 1_700_000_000,
            },
            spans: Spans::new(),
            message: Vec::new(),
            sent: Vec::new(),
            count: 0,
            flow: Flow {
                carrier: Carrier::Udp,
                listener: ListenerKey(0),
                connection: None,
                local: "192.0.2.1:5060".parse()?,
                remote: "192.0.2.2:5060".parse()?,
            },
        };
        if congested {
            bench
                .engine
                .observe_service(1000, Duration::from_millis(50));
            bench.congest();
        }
        Ok(bench)
    }

    fn congest(&mut self) {
        let backlog = Backlog {
            messages: 1_000_000,
            ..Backlog::default()
        };
        self.engine.observe_backlog(self.now, backlog);
    }

    /// The request with this method, branch and To tag.
    fn compose(&mut self, method: &str, branch: &str, to_tag: &str) -> Result<(), Failed> {
        let number = self.count;
        self.message.clear();
        write!(
            self.message,
            "{method} sip:bob@192.0.2.1 SIP/2.0\r\n\
             Via: SIP/2.0/UDP 192.0.2.2:5060;branch=z9hG4bK{branch}{number:012x};rport\r\n\
             Max-Forwards: 70\r\nFrom: <sip:alice@192.0.2.2>;tag={number:08x}\r\n\
             To: <sip:bob@192.0.2.1>{to_tag}\r\nCall-ID: {number:016x}@192.0.2.2\r\n\
             CSeq: 1 {method}\r\nContact: <sip:alice@192.0.2.2:5060>\r\nContent-Length: 0\r\n\r\n"
        )?;
        Ok(())
    }

    /// Hands the message in and answers it with this, or not.
    fn receive(&mut self, reply: Option<&Reply<'_>>, stateless: bool) -> Result<(), Failed> {
        let received =
            self.engine
                .handle_message(self.now, &self.flow, &self.message, &mut self.spans);
        if let (Received::Request(request), Some(reply)) = (received, reply) {
            if stateless {
                self.engine.answer_statelessly(&request, reply)?;
            } else {
                self.engine.answer(self.now.mono, &request, reply)?;
            }
        }
        while let Some(output) = self.engine.poll_output() {
            if let Output::Send { bytes, .. } = output {
                self.sent.clear();
                self.sent.extend_from_slice(black_box(bytes));
            }
        }
        Ok(())
    }

    /// Ten thousand transactions a second, so that timers fire as they would.
    fn pass(&mut self) {
        self.count += 1;
        self.now.mono.0 += 100_000;
        if self
            .engine
            .poll_timeout()
            .is_some_and(|at| at <= self.now.mono)
        {
            self.engine.handle_timeout(self.now);
            while self.engine.poll_output().is_some() {}
        }
    }

    fn answer(&mut self, stateless: bool) -> Result<(), Failed> {
        self.compose("OPTIONS", "o", "")?;
        let allow = b"Allow: INVITE, ACK, BYE, CANCEL, OPTIONS\r\nAccept: application/sdp\r\n";
        self.receive(Some(&Reply::new(200).headers(allow)), stateless)
    }

    /// INVITE, 200, ACK, BYE, 200.
    fn call(&mut self) -> Result<(), Failed> {
        self.compose("INVITE", "i", "")?;
        let reply = Reply::new(200)
            .headers(b"Contact: <sip:bob@192.0.2.1>\r\n")
            .until_ack();
        self.receive(Some(&reply), false)?;
        let tag = to_tag(&self.sent).ok_or("no To tag")?;
        self.compose("ACK", "a", &tag)?;
        self.receive(None, false)?;
        self.compose("BYE", "b", &tag)?;
        self.receive(Some(&Reply::new(200)), false)
    }

    /// A request of ours and its answer.
    fn client(&mut self) -> Result<(), Failed> {
        let number = self.count;
        self.message.clear();
        write!(
            self.message,
            "OPTIONS sip:bob@192.0.2.2 SIP/2.0\r\nMax-Forwards: 70\r\n\
             From: <sip:alice@192.0.2.1>;tag={number:08x}\r\nTo: <sip:bob@192.0.2.2>\r\n\
             Call-ID: {number:016x}@192.0.2.1\r\nCSeq: 1 OPTIONS\r\nContent-Length: 0\r\n\r\n"
        )?;
        let out = Outgoing {
            to: Destination {
                carrier: Carrier::Udp,
                remote: self.flow.remote,
                listener: ListenerKey(0),
            },
            connection: None,
            pieces: &[&self.message],
            class: Class::New,
            mark: None,
        };
        self.engine.request(self.now.mono, &out)?;
        while let Some(output) = self.engine.poll_output() {
            if let Output::Send { bytes, .. } = output {
                self.sent.clear();
                self.sent.extend_from_slice(bytes);
            }
        }
        self.message.clear();
        let headers = self
            .sent
            .iter()
            .position(|byte| *byte == b'\n')
            .unwrap_or(0);
        self.message.extend_from_slice(b"SIP/2.0 200 OK\r\n");
        self.message
            .extend_from_slice(self.sent.get(headers + 1..).unwrap_or_default());
        self.receive(None, false)
    }
}

/// `;tag=..` of To, as it stands.
fn to_tag(message: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(message).ok()?;
    let line = text.lines().find(|line| line.starts_with("To:"))?;
    Some(line[line.find(";tag=")?..].to_owned())
}

const OPERATIONS: [&str; 7] = [
    "stateless",
    "udp",
    "tcp",
    "call",
    "client",
    "refuse",
    "drop",
];

fn bench(operation: &str) -> Result<Bench, Failed> {
    let mut bench = match operation {
        "refuse" => Bench::new(true, 1000)?,
        "drop" => Bench::new(true, 0)?,
        _ => Bench::new(false, 50)?,
    };
    if operation == "tcp" {
        bench.flow.carrier = Carrier::Tcp;
        bench.flow.connection = Some(ConnectionKey(1));
        bench.engine.accepted(bench.now.mono, &bench.flow);
    }
    Ok(bench)
}

fn once(bench: &mut Bench, operation: &str) -> Result<(), Failed> {
    match operation {
        "stateless" => bench.answer(true)?,
        "call" => bench.call()?,
        "client" => bench.client()?,
        "compose" => bench.compose("OPTIONS", "o", "")?,
        _ => bench.answer(false)?,
    }
    bench.pass();
    if matches!(operation, "refuse" | "drop") {
        bench.congest();
    }
    Ok(())
}

/// The median time of one operation, in nanoseconds.
fn time(operation: &str) -> Result<u64, Failed> {
    let mut bench = bench(operation)?;
    let mut runs = Vec::new();
    for _ in 0..RUNS {
        let begun = Instant::now();
        for _ in 0..RUN {
            once(&mut bench, operation)?;
        }
        runs.push(begun.elapsed().as_nanos() as u64 / RUN);
    }
    runs.sort_unstable();
    Ok(runs[RUNS / 2])
}

fn main() -> Result<(), Failed> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [operation, count] = &arguments[..] {
        let mut bench = bench(operation)?;
        for _ in 0..count.parse::<u64>()? {
            once(&mut bench, operation)?;
        }
        return Ok(());
    }
    let compose = time("compose")?;
    println!("{:>10} {compose:>6} ns, taken off the others", "compose");
    for operation in OPERATIONS {
        println!(
            "{operation:>10} {:>6} ns",
            time(operation)?.saturating_sub(compose)
        );
    }
    Ok(())
}
