//! An engine, the time, and who talks to it: whole transactions and calls without a socket. Timed by the example
//! `engine`, and counted by the example `cost` of the server and by the test that nothing allocates.

use core::hint::black_box;
use core::time::Duration;
use std::io::Write as _;

use sip::congestion::{Backlog, Class};
use sip::engine::{Config, Engine, Outgoing, Output, Received, Reply, SentBy};
use sip::flow::{ConnectionKey, Destination, Flow, ListenerKey, Transport};
use sip::{HashKey, Mono, Now, Spans};

/// What an operation may fail with.
type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// What is done again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Nothing but making the request up.
    Compose,
    /// OPTIONS, answered with 200 and forgotten.
    Options,
    /// REGISTER over UDP, answered with 200.
    Register,
    /// The same, if a source has a limit that it does not reach.
    RegisterWithLimit,
    /// The same over a connection, where nothing is kept.
    RegisterOverTcp,
    /// INVITE, 200, ACK, BYE, 200: the answering side.
    Call,
    /// The same: the calling side.
    ClientCall,
    /// A request of ours and its answer.
    Request,
    /// New work in an overload, with time for a 503.
    Refuse,
    /// Without.
    Drop,
    /// A request of a source that is at its limit, without an overload.
    RefuseAtLimit,
    /// The admission filter's look at new work before it is handled, where the kernel does not do that.
    Filter,
}

impl Operation {
    /// All but [`Operation::Compose`], with their names.
    pub(crate) const ALL: [(&str, Operation); 11] = [
        ("OPTIONS, stateless", Operation::Options),
        ("REGISTER", Operation::Register),
        ("REGISTER of a limited source", Operation::RegisterWithLimit),
        ("REGISTER over TCP", Operation::RegisterOverTcp),
        ("call", Operation::Call),
        ("call, calling side", Operation::ClientCall),
        ("request of ours", Operation::Request),
        ("503", Operation::Refuse),
        ("drop", Operation::Drop),
        ("503 at the limit of a source", Operation::RefuseAtLimit),
        ("admission filter", Operation::Filter),
    ];
}

/// What the engine is given.
#[derive(Clone, Copy)]
enum Given<'a> {
    /// The message, to be answered so if it is a request.
    Message(Option<&'a Reply<'a>>),
    /// The same, answered without a transaction.
    Stateless(&'a Reply<'a>),
    /// The message, as a request of ours.
    Request,
    /// The message, as the ACK for a 2xx.
    Ack,
    /// Time.
    Timeout,
    /// The message, for the admission filter.
    Look,
}

/// An engine, and what is needed to talk to it.
pub(crate) struct TestBed {
    operation: Operation,
    engine: Engine,
    now: Now,
    spans: Spans,
    message: Vec<u8>,
    sent: Vec<u8>,
    tag: String,
    count: u64,
    /// The time from one operation to the next, in nanoseconds.
    gap_ns: u64,
    flow: Flow,
}

/// One input and everything that follows from it. Not inlined: the tools find it by its name.
#[inline(never)]
fn engine_turn(bed: &mut TestBed, given: Given<'_>) -> Outcome<()> {
    let TestBed {
        engine,
        now,
        spans,
        message,
        flow,
        ..
    } = bed;
    let to = Destination::new(Transport::Udp, flow.remote, ListenerKey(0));
    let out = Outgoing {
        to,
        connection: None,
        pieces: &[message],
        class: Class::New,
        mark: None,
        loop_check: None,
    };
    match given {
        Given::Message(reply) => {
            let received = engine.handle_message(*now, flow, message, spans);
            if let (Received::Request(request), Some(reply)) = (received, reply) {
                engine.answer(now.mono, request, reply)?;
            }
        }
        Given::Stateless(reply) => {
            let received = engine.handle_message(*now, flow, message, spans);
            if let Received::Request(request) = received {
                engine.answer_statelessly(request, reply)?;
            }
        }
        Given::Request => drop(engine.request(now.mono, &out)?),
        Given::Ack => engine.send_stateless(now.mono, &out, u128::from(bed.count))?,
        Given::Timeout => engine.handle_timeout(*now),
        Given::Look => drop(black_box(engine.filters_out(flow.remote.ip(), message))),
    }
    while let Some(output) = bed.engine.poll_output() {
        if let Output::Send { bytes, .. } = output {
            bed.sent.clear();
            bed.sent.extend_from_slice(black_box(bytes));
        }
    }
    Ok(())
}

impl TestBed {
    /// For this operation, done so often per second of the engine's time. A transaction over UDP lives for 32 seconds,
    /// so after that time as many end as begin.
    pub(crate) fn new(operation: Operation, per_second: u64) -> Outcome<TestBed> {
        let mut config = Config::new(0, HashKey::new([1; 16]));
        config.congestion.refusal_permille = match operation {
            Operation::Refuse => 1000,
            Operation::Drop | Operation::Filter => 0,
            _ => config.congestion.refusal_permille,
        };
        config.congestion.per_source = match operation {
            Operation::RegisterWithLimit => 1_000_000,
            Operation::RefuseAtLimit => 1,
            _ => 0,
        };
        config.sent_by.push(SentBy::new(
            ListenerKey(0),
            Transport::Udp,
            "192.0.2.1",
            5060,
        ));
        let mut bed = TestBed {
            operation,
            engine: Engine::new(config, 1),
            now: Now {
                mono: Mono(1_000_000_000),
                unix_s: 1_700_000_000,
            },
            spans: Spans::new(),
            message: Vec::new(),
            sent: Vec::new(),
            tag: String::new(),
            count: 0,
            gap_ns: 1_000_000_000 / per_second,
            flow: Flow {
                transport: Transport::Udp,
                listener: ListenerKey(0),
                connection: None,
                local: "192.0.2.1:5060".parse()?,
                remote: "192.0.2.2:5060".parse()?,
            },
        };
        match operation {
            Operation::RegisterOverTcp => {
                bed.flow.transport = Transport::Tcp;
                bed.flow.connection = Some(ConnectionKey(1));
                bed.engine.accepted(bed.now.mono, &bed.flow);
            }
            Operation::Refuse | Operation::Drop => bed.begin_congestion(),
            Operation::Filter => bed.activate_filter()?,
            Operation::RefuseAtLimit => bed.reach_limit()?,
            _ => {}
        }
        Ok(bed)
    }

    fn begin_congestion(&mut self) {
        // In batches, as workers report it: one long sample would be a stall of the processor.
        for _ in 0..500 {
            let took = Duration::from_micros(16 * 50);
            self.engine.observe_service(16, took);
        }
        self.congest();
    }

    fn congest(&mut self) {
        let backlog = Backlog {
            // The engine halves its estimate for a message again and again while it accepts nothing. With so many, the
            // wait is above the tolerance even if a message takes a nanosecond.
            messages: 1_000_000_000_000,
            ..Backlog::default()
        };
        self.engine.observe_backlog(self.now, backlog);
    }

    /// An overload, until the filter drops something.
    fn activate_filter(&mut self) -> Outcome<()> {
        self.begin_congestion();
        for _ in 0..100 {
            self.compose("REGISTER", "s", "")?;
            self.count += 1;
            engine_turn(self, Given::Message(None))?;
        }
        self.pass()?;
        self.congest();
        match self.engine.filter().is_active() {
            true => Ok(()),
            false => Err("the filter stays inactive".into()),
        }
    }

    /// The source is at its limit, and the clock of the test stands still. The saved time for 503s is enough for 5,000.
    fn reach_limit(&mut self) -> Outcome<()> {
        self.gap_ns = 0;
        self.engine.observe_backlog(self.now, Backlog::default());
        self.once()
    }

    /// Does it once.
    pub(crate) fn once(&mut self) -> Outcome<()> {
        match self.operation {
            Operation::Compose => return self.compose("REGISTER", "o", ""),
            Operation::Options => self.options()?,
            Operation::Call => self.call()?,
            Operation::ClientCall => self.client_call()?,
            Operation::Request => {
                self.ask("OPTIONS", "")?;
                self.is_answered("200 OK", "")?;
            }
            Operation::Filter => {
                self.count += 1;
                self.compose("REGISTER", "r", "")?;
                return engine_turn(self, Given::Look);
            }
            Operation::Register
            | Operation::RegisterWithLimit
            | Operation::RegisterOverTcp
            | Operation::Refuse
            | Operation::Drop
            | Operation::RefuseAtLimit => {
                self.compose("REGISTER", "r", "")?;
                let contact = b"Contact: <sip:alice@192.0.2.2:5060>;expires=3600\r\n";
                self.receive(&Reply::new(200).headers(contact))?;
            }
        }
        self.pass()?;
        if matches!(self.operation, Operation::Refuse | Operation::Drop) {
            self.congest();
        }
        Ok(())
    }

    /// The request with this method, branch and To tag.
    fn compose(&mut self, method: &str, branch: &str, to_tag: &str) -> Outcome<()> {
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

    fn receive(&mut self, reply: &Reply<'_>) -> Outcome<()> {
        engine_turn(self, Given::Message(Some(reply)))
    }

    /// The time of the next operation comes, and timers fire.
    fn pass(&mut self) -> Outcome<()> {
        self.count += 1;
        self.now.mono.0 += self.gap_ns;
        match self.engine.poll_timeout() {
            Some(at) if at <= self.now.mono => engine_turn(self, Given::Timeout),
            _ => Ok(()),
        }
    }

    fn options(&mut self) -> Outcome<()> {
        self.compose("OPTIONS", "o", "")?;
        let allow = b"Allow: INVITE, ACK, BYE, CANCEL, OPTIONS\r\nAccept: application/sdp\r\n";
        engine_turn(self, Given::Stateless(&Reply::new(200).headers(allow)))
    }

    fn call(&mut self) -> Outcome<()> {
        self.compose("INVITE", "i", "")?;
        let reply = Reply::new(200)
            .headers(b"Contact: <sip:bob@192.0.2.1>\r\n")
            .until_ack();
        self.receive(&reply)?;
        let mut tag = core::mem::take(&mut self.tag);
        tag.clear();
        tag.push_str(to_tag(&self.sent).ok_or("no To tag")?);
        self.compose("ACK", "a", &tag)?;
        engine_turn(self, Given::Message(None))?;
        self.compose("BYE", "b", &tag)?;
        self.tag = tag;
        self.receive(&Reply::new(200))
    }

    fn client_call(&mut self) -> Outcome<()> {
        self.ask("INVITE", "")?;
        self.is_answered("200 OK", ";tag=bob")?;
        self.compose_own("ACK", ";tag=bob")?;
        engine_turn(self, Given::Ack)?;
        self.ask("BYE", ";tag=bob")?;
        self.is_answered("200 OK", "")
    }

    /// A request of ours.
    fn ask(&mut self, method: &str, to_tag: &str) -> Outcome<()> {
        self.compose_own(method, to_tag)?;
        engine_turn(self, Given::Request)
    }

    /// A request of ours, still without a Via.
    fn compose_own(&mut self, method: &str, to_tag: &str) -> Outcome<()> {
        let number = self.count;
        self.message.clear();
        write!(
            self.message,
            "{method} sip:bob@192.0.2.2 SIP/2.0\r\nMax-Forwards: 70\r\n\
             From: <sip:alice@192.0.2.1>;tag={number:08x}\r\nTo: <sip:bob@192.0.2.2>{to_tag}\r\n\
             Call-ID: {number:016x}@192.0.2.1\r\nCSeq: 1 {method}\r\n\
             Contact: <sip:alice@192.0.2.1>\r\nContent-Length: 0\r\n\r\n"
        )?;
        Ok(())
    }

    /// What was sent last comes back as a response.
    fn is_answered(&mut self, status: &str, to_tag: &str) -> Outcome<()> {
        let sent = core::str::from_utf8(&self.sent)?;
        let (_, fields) = sent.split_once("\r\n").ok_or("nothing was sent")?;
        self.message.clear();
        write!(self.message, "SIP/2.0 {status}\r\n")?;
        for line in fields.split_inclusive("\r\n") {
            match line.strip_suffix("\r\n").filter(|l| l.starts_with("To:")) {
                Some(to) => write!(self.message, "{to}{to_tag}\r\n")?,
                None => self.message.extend_from_slice(line.as_bytes()),
            }
        }
        engine_turn(self, Given::Message(None))
    }
}

/// `;tag=..` of To, as it stands.
fn to_tag(message: &[u8]) -> Option<&str> {
    let text = core::str::from_utf8(message).ok()?;
    let line = text.lines().find(|line| line.starts_with("To:"))?;
    line.get(line.find(";tag=")?..)
}
