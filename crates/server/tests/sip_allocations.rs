//! Not one heap allocation per SIP message, over UDP and over TCP, once buffers are warm and as many transactions end
//! as begin.
//!
//! The allocator counts for the whole process, so this file has one test, and the test itself allocates nothing while
//! it counts.

mod sip_client;

use sip_client::{serve, test_uas};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Transactions live for 64 times that.
const T1: Duration = Duration::from_millis(10);
/// Rounds until everything has its size, and how many are counted at a time.
const WARM_UP: usize = 600;
const ROUNDS: usize = 50;
/// The pools of transactions grow a little when more are alive than ever before, and shrink later: no two machines have
/// that at the same time, so that some of so many counts must find nothing at all, not every one.
const COUNTS: usize = 40;

struct Talker {
    socket: UdpSocket,
    stream: TcpStream,
    message: Vec<u8>,
    answer: Vec<u8>,
    tag: Vec<u8>,
    number: u64,
}

impl Talker {
    fn new(server: SocketAddr) -> Talker {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(server).expect("a route");
        let timeout = Some(Duration::from_secs(10));
        socket.set_read_timeout(timeout).expect("a timeout");
        let stream = TcpStream::connect(server).expect("a connection");
        stream.set_read_timeout(timeout).expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        Talker {
            socket,
            stream,
            message: Vec::with_capacity(4096),
            answer: vec![0; 4096],
            tag: Vec::with_capacity(64),
            number: 0,
        }
    }

    fn compose(&mut self, method: &str, transport: &str) {
        let number = self.number;
        self.message.clear();
        write!(
            self.message,
            "{method} sip:bob@127.0.0.1 SIP/2.0\r\n\
             Via: SIP/2.0/{transport} 192.0.2.1:5060;rport;branch=z9hG4bK{transport}{method}{number}\r\n\
             From: <sip:a@example.org>;tag=1\r\nTo: <sip:bob@127.0.0.1>"
        )
        .expect("room");
        self.message.extend_from_slice(&self.tag);
        write!(
            self.message,
            "\r\nCall-ID: {number}@{transport}\r\nCSeq: 1 {method}\r\nMax-Forwards: 70\r\n\
             Contact: <sip:a@192.0.2.1>\r\nContent-Length: 0\r\n\r\n"
        )
        .expect("room");
    }

    /// A request over UDP, and its 200.
    fn ask(&mut self, method: &str) {
        self.compose(method, "UDP");
        self.socket.send(&self.message).expect("sent");
        if method == "ACK" {
            return;
        }
        let mut length = 0;
        // On a busy machine, a 200 may have been sent again: it belongs to another branch, or comes before this
        // method's.
        while !self.is_final(&self.answer[..length], method) {
            length = self.socket.recv(&mut self.answer).expect("an answer");
        }
        let answer = &self.answer[..length];
        assert!(answer.starts_with(b"SIP/2.0 200 "));
        if method == "INVITE" {
            let text = std::str::from_utf8(answer).expect("text");
            let to = text.lines().find(|line| line.starts_with("To:"));
            let to = to.expect("a To");
            self.tag
                .extend_from_slice(&to.as_bytes()[to.find(";tag=").expect("a tag")..]);
        }
    }

    /// Whether this is a final response to the request of this round.
    fn is_final(&self, answer: &[u8], method: &str) -> bool {
        let number = self.number;
        let mut branch = [0; 64];
        let mut rest = &mut branch[..];
        write!(rest, "z9hG4bKUDP{method}{number}").expect("room");
        let left = rest.len();
        let branch = &branch[..branch.len() - left];
        answer.len() > 12
            && answer[8] >= b'2'
            && answer.windows(branch.len()).any(|part| part == branch)
    }

    /// The same over TCP, in two pieces or in one.
    fn ask_over_stream(&mut self, method: &str, cut: usize) {
        self.compose(method, "TCP");
        let (one, two) = self.message.split_at(cut);
        self.stream.write_all(one).expect("written");
        if cut > 0 {
            // Time for it to be read before the rest comes; if it is not, nothing is wrong.
            std::thread::sleep(Duration::from_millis(1));
        }
        self.stream.write_all(two).expect("written");
        let mut length = 0;
        while !self.answer[..length].ends_with(b"\r\n\r\n") {
            let room = &mut self.answer[length..];
            length += self.stream.read(room).expect("an answer");
        }
        assert!(self.answer.starts_with(b"SIP/2.0 200 "));
    }

    fn round(&mut self) {
        self.number += 1;
        self.ask("OPTIONS");
        self.ask("REGISTER");
        self.ask_over_stream("REGISTER", 0);
        self.ask_over_stream("OPTIONS", 100);
        self.ask("INVITE");
        self.ask("ACK");
        self.ask("BYE");
        self.tag.clear();
        // Nothing is faster than this, wherever it runs, so that about as many are alive at any time.
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn serving_allocates_nothing() {
    let mut settings = test_uas();
    settings.t1 = T1;
    // A machine that is busy with other things is no overload.
    settings.tolerance = Duration::from_secs(600);
    let server = serve(settings, 1);
    let mut talker = Talker::new(server.sip_listeners()[0]);
    (0..WARM_UP).for_each(|_| talker.round());
    let mut changes = Vec::with_capacity(COUNTS);
    for _ in 0..COUNTS {
        let region = Region::new(ALLOCATOR);
        (0..ROUNDS).for_each(|_| talker.round());
        let change = region.change();
        if (change.allocations, change.reallocations) == (0, 0) {
            return;
        }
        changes.push((change.allocations, change.reallocations));
    }
    panic!("allocations and reallocations in {ROUNDS} rounds: {changes:?}");
}
