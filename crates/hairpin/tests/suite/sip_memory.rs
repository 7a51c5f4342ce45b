//! Resident memory of the process per SIP transaction, and that the process releases all of it.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::common::{Serve, TEST_TIMEOUT};

/// Bytes of resident memory that a finished REGISTER may take, and a call that was answered: what the engine keeps, and
/// a margin for the allocator's whole pages and tables that have just doubled.
const REGISTER: u64 = 1024 + 256;
const CALL: u64 = 2048 + 512;

/// Resident memory that may stay when all is over, of six megabytes.
const SPARE: u64 = 2 << 20;

/// T1 of the server: transactions stay for 64 times that, 12.8 s; a call that nobody acknowledges is ended with a BYE
/// that nobody answers, which takes as long again.
const T1_MS: &str = "sip.t1=200ms";

struct World {
    serve: Serve,
    socket: UdpSocket,
}

impl World {
    fn new() -> World {
        let mut args = vec!["--dev", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
        args.extend(["--relay-address", "127.0.0.1", "--user", "alice:s3cret"]);
        for setting in [
            "server.workers=1",
            "sip.listen=127.0.0.1:0",
            "sip.test_uas=true",
            // However busy this machine is.
            "sip.tolerance=0s",
            T1_MS,
        ] {
            args.extend(["--set", setting]);
        }
        let serve = Serve::start(&args);
        let (_, uri) = serve.value("sip").split_once("sip:").expect("a URI");
        let target = uri.split_whitespace().next().expect("an address");
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket.connect(target).expect("a route");
        let again = Some(Duration::from_millis(200));
        socket.set_read_timeout(again).expect("a timeout");
        World { serve, socket }
    }

    /// Sends a request, again and again if need be, until its 200 has come.
    fn ask(&self, method: &str, number: u32) {
        let request = request(method, number);
        let (call, begun) = (format!("Call-ID: {number:032x}@"), Instant::now());
        let mut buffer = [0; 2048];
        loop {
            self.socket.send(request.as_bytes()).expect("sent");
            while let Ok(length) = self.socket.recv(&mut buffer) {
                let answer = String::from_utf8_lossy(&buffer[..length]);
                // Those of others come again, too.
                if answer.starts_with("SIP/2.0 200") && answer.contains(&call) {
                    return;
                }
                if begun.elapsed() > TEST_TIMEOUT {
                    break;
                }
            }
            assert!(
                begun.elapsed() < TEST_TIMEOUT,
                "{method} {number} is not answered"
            );
        }
    }

    /// The gauge of the metrics page.
    fn gauge(&self, name: &str) -> u64 {
        let url = self.serve.value("admin").split('/').nth(2).expect("a URL");
        let mut stream = TcpStream::connect(url).expect("it listens");
        stream
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        write!(stream, "GET /metrics HTTP/1.1\r\nHost: {url}\r\n\r\n").expect("sent");
        let mut page = String::new();
        stream.read_to_string(&mut page).expect("an answer");
        let mut samples = page
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = samples.next().expect(name);
        value.parse::<f64>().expect("a number") as u64
    }

    /// Resident bytes of the server, without those of its program file: they depend on the code that has run.
    fn resident(&self) -> u64 {
        let path = format!("/proc/{}/status", self.serve.id());
        let status = std::fs::read_to_string(path).expect("it runs");
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("RssAnon:"));
        let kib = line.expect("RssAnon").trim().trim_end_matches("kB").trim();
        kib.parse::<u64>().expect("a number") * 1024
    }

    /// How much resident memory grows for each of so many transactions.
    fn bytes_each(&self, method: &str, numbers: std::ops::Range<u32>) -> u64 {
        let alive = self.gauge("hairpin_sip_transactions");
        let before = self.resident();
        let count = u64::from(numbers.end - numbers.start);
        numbers.for_each(|number| self.ask(method, number));
        let grown = self.resident().saturating_sub(before);
        // What the worker has counted is on the page a moment later. On a very slow machine the first have ended by
        // now, and their memory was used again.
        self.eventually("transactions are counted", || {
            self.gauge("hairpin_sip_transactions") > alive + count / 2
        });
        self.eventually("each has one timer", || {
            self.gauge("hairpin_sip_timers") == self.gauge("hairpin_sip_transactions")
        });
        let alive = (self.gauge("hairpin_sip_transactions") - alive).min(count);
        println!("{alive} of {count} {method}: {grown} bytes more");
        grown / alive
    }

    fn eventually(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < 3 * TEST_TIMEOUT, "still waiting: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// As a phone sends it.
fn request(method: &str, number: u32) -> String {
    let mut text = format!(
        "{method} sip:test@127.0.0.1 SIP/2.0\r\n\
         Via: SIP/2.0/UDP 127.0.0.1:5060;branch=z9hG4bK-524287-1---{number:016x};rport\r\n\
         Max-Forwards: 70\r\nContact: <sip:alice{number}@127.0.0.1:5060;transport=udp>\r\n\
         To: \"Alice\" <sip:alice{number}@example.org>\r\n\
         From: \"Alice\" <sip:alice{number}@example.org>;tag={number:08x}\r\n\
         Call-ID: {number:032x}@127.0.0.1\r\nCSeq: 1 {method}\r\nExpires: 3600\r\n\
         Allow: INVITE, ACK, CANCEL, BYE, NOTIFY, REFER, MESSAGE, OPTIONS, INFO, SUBSCRIBE\r\n\
         Supported: replaces, norefersub, extended-refer, timer, outbound, path, X-cisco-serviceuri\r\n"
    );
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "User-Agent: A telephone 1.2.3\r\nContent-Length: 0\r\n\r\n"
    );
    text
}

#[test]
fn a_finished_request_takes_a_kilobyte_and_a_call_two_until_their_timers_have_run_out() {
    let world = World::new();
    // What is touched once.
    (0..200).for_each(|number| world.ask("REGISTER", number));
    let calm = world.resident();
    let register = world.bytes_each("REGISTER", 1_000..7_000);
    assert!(register <= REGISTER, "{register} bytes for each REGISTER");
    (0..50).for_each(|number| world.ask("INVITE", 10_000 + number));
    let call = world.bytes_each("INVITE", 20_000..22_000);
    assert!(call <= CALL, "{call} bytes for each call");
    for gauge in [
        "hairpin_sip_transactions",
        "hairpin_sip_timers",
        "hairpin_sip_state_bytes",
    ] {
        world.eventually(gauge, || world.gauge(gauge) == 0);
    }
    // The pages of eight thousand transactions go back to the system, but for less than a megabyte that is not worth
    // it, and what is kept for those that come.
    world.eventually("memory is given back", || world.resident() < calm + SPARE);
    println!("{calm} bytes before, {} in the end", world.resident());
}
