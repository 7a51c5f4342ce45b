//! Times what keeps bindings costs: a REGISTER with and without the log, and the load of a log at the start.
//!
//! ```text
//! cargo run --release -p hairpin-sip-server --example location -- DIRECTORY [BINDINGS]
//! ```
//!
//! Both kinds of REGISTER refresh a binding, in alternating rounds; the figures are medians in nanoseconds a request,
//! from the parser to the header lines of the answer. The log is written to a file in the directory, by the same
//! thread.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program reads its arguments and the clock"
)]

extern crate hairpin_sip_server as sip_server;

use std::fmt::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use sip::flow::{Flow, ListenerKey, Transport};
use sip::{HashKey, Message, Mono, Now, Spans};
use sip_server::AorHash;
use sip_server::flow::FlowId;
use sip_server::location::{Limits, Location, MemoryLocation};
use sip_server::log::{Disk, Journal, Log, Persistent, Settings};
use sip_server::registrar::{
    Access, Config, Domain, Domains, Examined, Outcome, Registrar, Request,
};

/// Requests of a round.
const ROUND: u64 = 10_000;
/// Rounds of each kind.
const ROUNDS: u64 = 21;

/// Any of what can go wrong here.
type Failed = Box<dyn std::error::Error>;

struct Phones {
    registrar: Registrar,
    spans: Spans,
    buffer: Vec<u8>,
    text: String,
    began: Instant,
}

impl Phones {
    fn new() -> Result<Phones, Failed> {
        let domain = Domain {
            name: "example.com".to_owned(),
            ..Domain::default()
        };
        let domains = Domains::new(vec![domain])?;
        Ok(Phones {
            registrar: Registrar::new(Config::default(), domains, key(), 1)?,
            spans: Spans::new(),
            buffer: vec![0; 64 << 10],
            text: String::new(),
            began: Instant::now(),
        })
    }

    fn now(&self) -> Now {
        let passed = self.began.elapsed();
        Now {
            mono: Mono(1).plus(passed),
            unix_s: 1_794_571_200 + passed.as_secs(),
        }
    }

    /// A REGISTER of this user with this CSeq.
    fn register(
        &mut self,
        user: u64,
        cseq: u64,
        location: &mut impl Location,
    ) -> Result<(), Failed> {
        self.text.clear();
        write!(
            self.text,
            "REGISTER sip:example.com SIP/2.0\r\n\
             Via: SIP/2.0/UDP 198.51.100.1:5060;branch=z9hG4bK{user}x{cseq};rport\r\n\
             From: <sip:user{user}@example.com>;tag=1\r\nTo: <sip:user{user}@example.com>\r\n\
             Call-ID: {user:08x}-7dec-11d0-a765-00a0c91e6bf6\r\nCSeq: {cseq} REGISTER\r\n\
             Max-Forwards: 70\r\nContact: <sip:user{user}@198.51.100.1:5060;ob>;reg-id=1;\
             +sip.instance=\"<urn:uuid:{user:08x}-0000-1000-8000-000a95a0e128>\"\r\n\
             Supported: outbound, path\r\nContent-Length: 0\r\n\r\n"
        )?;
        let now = self.now();
        let message = Message::parse(self.text.as_bytes(), &mut self.spans)?;
        let Examined::Aor(aor) = self.registrar.examine(&message, &mut self.buffer) else {
            return Err("the domain is not ours".into());
        };
        let request = Request {
            message: &message,
            aor,
            flow: flow()?,
            access: Access::Granted,
        };
        let outcome = self
            .registrar
            .register(now, &request, location, &mut self.buffer);
        match outcome {
            Outcome::Response(answer) if answer.code == 200 => Ok(()),
            other => Err(format!("{other:?}").into()),
        }
    }
}

fn flow() -> Result<FlowId, Failed> {
    Ok(FlowId {
        worker: 0,
        run: 1,
        flow: Flow {
            transport: Transport::Udp,
            listener: ListenerKey(0),
            connection: None,
            local: "192.0.2.1:5060".parse()?,
            remote: "198.51.100.1:5060".parse()?,
        },
    })
}

fn key() -> HashKey {
    HashKey::new([7; 16])
}

fn limits(bindings: u64) -> Limits {
    Limits {
        per_user: 10,
        total: bindings as usize,
    }
}

fn open(path: &Path) -> Result<(Log<Disk>, sip_server::log::Image), Failed> {
    Ok(Log::open(Disk::open(path)?, Settings::default(), key())?)
}

/// Median, least and most.
fn spread(mut times: Vec<u64>) -> String {
    times.sort_unstable();
    let (least, median, most) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    format!("{median} ns ({least} to {most})")
}

fn main() -> Result<(), Failed> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or("name a directory for the log")?;
    let bindings = arguments
        .next()
        .map_or(Ok(1_000_000), |text| text.parse())?;
    let path = Path::new(&directory).join("location-example.log");
    let _ = std::fs::remove_file(&path);
    measure(&path, bindings)?;
    load(&path, bindings)?;
    std::fs::remove_file(&path)?;
    Ok(())
}

fn measure(path: &Path, bindings: u64) -> Result<(), Failed> {
    let mut phones = Phones::new()?;
    let mut memory = MemoryLocation::new(key(), limits(bindings));
    let mut persistent = Persistent {
        memory: MemoryLocation::new(key(), limits(bindings)),
        journal: Journal::new(Duration::from_millis(500)),
    };
    let (mut log, _) = open(path)?;
    for user in 0..bindings {
        phones.register(user, 1, &mut memory)?;
        phones.register(user, 1, &mut persistent)?;
        flush(&mut persistent, &mut log, phones.now())?;
    }
    let (mut without, mut with) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        let first = round * ROUND;
        let begun = Instant::now();
        for user in first..first + ROUND {
            phones.register(user % bindings, 2 + round, &mut memory)?;
        }
        without.push(begun.elapsed().as_nanos() as u64 / ROUND);
        let begun = Instant::now();
        for user in first..first + ROUND {
            phones.register(user % bindings, 2 + round, &mut persistent)?;
            flush(&mut persistent, &mut log, phones.now())?;
        }
        with.push(begun.elapsed().as_nanos() as u64 / ROUND);
    }
    let batch = persistent.journal.take_all();
    log.write(phones.now().mono, &batch)?;
    log.sync()?;
    println!("REGISTER in memory         {}", spread(without));
    println!("REGISTER with the log      {}", spread(with));
    println!("log                        {} MB", log.len() >> 20);
    Ok(())
}

fn flush(location: &mut Persistent, log: &mut Log<Disk>, now: Now) -> Result<(), Failed> {
    if let Some(batch) = location.journal.take(now.mono) {
        log.write(now.mono, &batch)?;
    }
    Ok(())
}

fn load(path: &Path, bindings: u64) -> Result<(), Failed> {
    let now = Phones::new()?.now();
    let begun = Instant::now();
    let (_log, image) = open(path)?;
    let read = begun.elapsed();
    let mut loaded = 0;
    let workers = 2;
    for worker in 0..workers {
        let mut memory = MemoryLocation::new(key(), limits(bindings));
        image.load(now, &AorHash::new(key()), (worker, workers), &mut memory);
        loaded += memory.len();
    }
    println!(
        "load of {loaded} bindings   {} ms, of which reading {} ms; {workers} workers one after the other",
        begun.elapsed().as_millis(),
        read.as_millis()
    );
    Ok(())
}
