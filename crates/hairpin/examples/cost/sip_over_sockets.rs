//! The whole worker with SIP: epoll, receiving, the engine, the user agent server for tests, sending; over loopback.

use crate::over_sockets::{TEST_TIMEOUT, receive, receiver, turn};
use crate::{Outcome, measure};
use io::{RecvBatch, UdpSocket};
use server::sip::SipSettings;
use server::{Local, Server};
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

/// Requests that wait for the worker when it looks, from one trunk: twice as many as it takes in at once.
const ROUND: usize = 32;
/// The pause before each round over UDP. So a fast machine, too, sends fewer than 8,000 datagrams per second, and the
/// worker does not coalesce them (docs/sip.md). Coalescing would add system calls, depending on the machine.
const PAUSE: Duration = Duration::from_millis(12);

struct TestBed {
    server: Local,
    listener: SocketAddr,
    socket: UdpSocket,
    stream: TcpStream,
    batch: RecvBatch,
    /// What came over the stream.
    heard: Vec<u8>,
    number: u64,
}

/// Measures everything.
pub(crate) fn run() -> Outcome<()> {
    let mut bed = TestBed::new()?;
    measure("SIP OPTIONS", &mut || bed.requests("OPTIONS"))?;
    measure("SIP REGISTER", &mut || bed.requests("REGISTER"))?;
    measure("SIP call", &mut || bed.calls())?;
    measure("SIP REGISTER over TCP", &mut || bed.over_stream("REGISTER"))
}

impl TestBed {
    fn new() -> Outcome<TestBed> {
        let any: SocketAddr = "127.0.0.1:0".parse()?;
        let mut settings = SipSettings::default();
        settings.test_uas = true;
        // Under the tools everything takes long, which is no overload.
        settings.tolerance = Duration::from_secs(600);
        let server = Server::builder()
            .listen(any)
            .relay_address(any.ip())
            .user("ann", "secret")
            .sip_listen(any)
            .sip(settings)
            .start_local()?;
        let listener = server.sip_listeners()[0];
        let stream = TcpStream::connect(listener)?;
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(TestBed {
            server,
            listener,
            socket: UdpSocket::bind(any, &receiver())?,
            stream,
            batch: RecvBatch::new(3 * ROUND, RecvBatch::SMALL),
            heard: Vec::new(),
            number: 0,
        })
    }

    /// A request of the transaction with this number.
    fn request(number: u64, method: &str, transport: &str, to_tag: &str) -> String {
        format!(
            "{method} sip:bob@192.0.2.1 SIP/2.0\r\n\
             Via: SIP/2.0/{transport} 192.0.2.2:5060;branch=z9hG4bK{method}{number:012x};rport\r\n\
             Max-Forwards: 70\r\nFrom: <sip:alice@192.0.2.2>;tag={number:08x}\r\n\
             To: <sip:bob@192.0.2.1>{to_tag}\r\nCall-ID: {number:016x}@192.0.2.2\r\n\
             CSeq: 1 {method}\r\nContact: <sip:alice@192.0.2.2:5060>\r\nContent-Length: 0\r\n\r\n"
        )
    }

    /// Sends a request of each of the transactions that began at `first`, and takes all answers, so many for each.
    fn ask(&mut self, first: u64, method: &str, tags: &[String], answers: usize) -> Outcome<()> {
        thread::sleep(PAUSE);
        let none = String::new();
        for (place, number) in (0..ROUND).zip(first..) {
            let tag = tags.get(place).unwrap_or(&none);
            let request = TestBed::request(number, method, "UDP", tag);
            self.socket
                .send_to(request.as_bytes(), self.listener, None)?;
        }
        self.batch.clear();
        let begun = Instant::now();
        while self.batch.len() < answers * ROUND {
            turn(&mut self.server)?;
            receive(&self.socket, &mut self.batch)?;
            if begun.elapsed() > TEST_TIMEOUT {
                return Err(format!("{} answers to {method}", self.batch.len()).into());
            }
        }
        Ok(())
    }

    /// The next numbers.
    fn begin(&mut self) -> u64 {
        self.number += ROUND as u64;
        self.number
    }

    fn requests(&mut self, method: &str) -> Outcome<usize> {
        let first = self.begin();
        self.ask(first, method, &[], 1)?;
        for answer in self.batch.iter() {
            is_success(answer.bytes)?;
        }
        Ok(ROUND)
    }

    /// INVITE, 180, 200, ACK, BYE, 200.
    fn calls(&mut self) -> Outcome<usize> {
        let first = self.begin();
        self.ask(first, "INVITE", &[], 2)?;
        let answers = self.batch.iter().map(|answer| answer.bytes);
        let answers = answers.filter(|answer| is_success(answer).is_ok());
        let tags: Vec<String> = answers.filter_map(to_tag).collect();
        if tags.len() < ROUND {
            return Err("not all calls are answered".into());
        }
        self.ask(first, "ACK", &tags, 0)?;
        self.ask(first, "BYE", &tags, 1)?;
        for answer in self.batch.iter() {
            is_success(answer.bytes)?;
        }
        Ok(ROUND)
    }

    fn over_stream(&mut self, method: &str) -> Outcome<usize> {
        let first = self.begin();
        let requests = (0..ROUND as u64).map(|place| first + place);
        let requests: String = requests
            .map(|number| TestBed::request(number, method, "TCP", ""))
            .collect();
        self.stream.write_all(requests.as_bytes())?;
        self.heard.clear();
        let begun = Instant::now();
        let mut buffer = [0; 64 << 10];
        while successes(&self.heard) < ROUND {
            turn(&mut self.server)?;
            match self.stream.read(&mut buffer) {
                Ok(read) => self.heard.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
            if begun.elapsed() > TEST_TIMEOUT {
                return Err("no answers over TCP".into());
            }
        }
        Ok(ROUND)
    }
}

/// Whole responses with 200 in it: none has a body.
fn successes(heard: &[u8]) -> usize {
    let text = String::from_utf8_lossy(heard);
    let whole = text.split_inclusive("\r\n\r\n");
    whole
        .filter(|answer| answer.ends_with("\r\n\r\n") && answer.starts_with("SIP/2.0 200 "))
        .count()
}

fn is_success(answer: &[u8]) -> Outcome<()> {
    match answer.starts_with(b"SIP/2.0 200 ") {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(answer).into()),
    }
}

/// `;tag=..` of To.
fn to_tag(answer: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(answer).ok()?;
    let line = text.lines().find(|line| line.starts_with("To:"))?;
    Some(line[line.find(";tag=")?..].to_owned())
}
