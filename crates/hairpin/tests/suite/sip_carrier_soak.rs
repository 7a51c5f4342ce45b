//! Calls of a PBX to two carriers that restart in turns, between floods from many sources. Each call that is accepted is
//! ended with a BYE that gets its 200, each other one gets its response, and the server keeps nothing.
//!
//! `HAIRPIN_SOAK=30m cargo test -p hairpin --test suite -- --ignored --nocapture sip_carrier_soak::` runs for that time,
//! which is its default.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::controlled::free_port;
use crate::common::{Serve, hairpin};
use crate::sip_client::phone::{value, values};
use crate::sip_client::status;
use crate::sip_soak::{GAUGES, duration, eventually, files, left, metrics, resident, thirds};

/// The address of the PBX, which is a trunk, and its calls at a time.
const PBX: [u8; 4] = [127, 0, 0, 5];
const LINES: usize = 4;
/// The addresses of the carriers.
const CARRIERS: [[u8; 4]; 2] = [[127, 0, 0, 7], [127, 0, 0, 8]];
/// A flood comes from so many addresses.
const SOURCES: u8 = 100;
/// Each call, and each BYE, ends within this time. Otherwise it is lost.
const TEST_TIMEOUT: Duration = Duration::from_secs(100);
/// A carrier that restarts is away for so long.
const AWAY: Duration = Duration::from_millis(300);
/// Resident memory that may stay at the end, and how much more the last third of a long run may use than the middle
/// one. Pools grow to what a flood needs.
const SPARE: u64 = 64 << 20;
const GROWTH: u64 = 2 << 20;

/// What a run is like.
struct Plan {
    time: Duration,
    /// From the beginning of a flood to that of the next one.
    cycle: Duration,
    flood: Duration,
}

#[test]
fn calls_outlast_floods_and_restarts_of_carriers() {
    Lab::start().run(&Plan {
        time: Duration::from_secs(4),
        cycle: Duration::from_secs(2),
        flood: Duration::from_millis(500),
    });
}

#[test]
#[ignore = "it takes half an hour"]
fn calls_outlast_half_an_hour_of_floods_and_restarts_of_carriers() {
    let samples = Lab::start().run(&Plan {
        time: duration(),
        cycle: Duration::from_secs(15),
        flood: Duration::from_secs(3),
    });
    let (middle, last) = thirds(&samples);
    println!("resident memory: {middle} bytes in the middle third, {last} in the last one");
    assert!(last < middle + GROWTH, "memory grows: {samples:?}");
}

/// What has happened.
#[derive(Default)]
struct Counts {
    completed: AtomicU64,
    refused: AtomicU64,
    /// INVITEs that each carrier has accepted, repeated ones too.
    accepted: [AtomicU64; 2],
    restarts: AtomicU64,
    flooded: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

struct Lab {
    serve: Serve,
    server: SocketAddr,
    carriers: [SocketAddr; 2],
    counts: Counts,
    is_over: AtomicBool,
    _folder: tempfile::TempDir,
}

impl Lab {
    fn start() -> Lab {
        let server = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let carriers = CARRIERS.map(|ip| SocketAddr::from((ip, free_port())));
        let [first, second] = carriers;
        let text = format!(
            "[listen]\nudp = [\"127.0.0.1:0\"]\n[relay]\naddresses = [\"127.0.0.1\"]\n[peers]\nallow_local = true\n\
             [auth]\nusers = [{{ name = \"ann\", password = \"secret\" }}]\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[offload]\nmode = \"off\"\n[log]\nlevel = \"error\"\n\
             [server]\nworkers = 2\ncontrol_socket = \"off\"\nstate_dir = \"off\"\n\
             [sip]\nlisten = [\"{server}\"]\nt1 = \"100ms\"\n[[sip.domain]]\nname = \"example.com\"\n\
             [[sip.trunk]]\nname = \"pbx\"\naddresses = [\"{}\"]\nweight = 10\n\
             [[sip.trunk]]\nname = \"first\"\nto = [\"sip:{first}\"]\nprobe_interval = \"1s\"\n\
             [[sip.trunk]]\nname = \"second\"\nto = [\"sip:{second}\"]\nprobe_interval = \"1s\"\n\
             [[sip.route]]\nprefixes = [\"+\"]\nfrom_trunks = [\"pbx\"]\ntrunks = [\"first\", \"second\"]\n",
            IpAddr::from(PBX),
        );
        let folder = tempfile::tempdir().expect("a folder");
        let config = folder.path().join("hairpin.toml");
        std::fs::write(&config, text).expect("a configuration");
        let mut command = hairpin(&["serve", "--config"]);
        command.arg(&config);
        Lab {
            serve: Serve::start_command(command),
            server,
            carriers,
            counts: Counts::default(),
            is_over: AtomicBool::new(false),
            _folder: folder,
        }
    }

    /// Runs the plan. Returns the resident memory before each flood.
    fn run(self, plan: &Plan) -> Vec<u64> {
        let serve = &self.serve;
        let (held, open, memory) = (metrics(serve, &GAUGES), files(serve), resident(serve));
        let end = Instant::now() + plan.time;
        let samples = std::thread::scope(|scope| {
            let lab = &self;
            let carriers = [0, 1].map(|number| scope.spawn(move || lab.carrier(number, plan)));
            let lines: Vec<_> = (0..LINES)
                .map(|number| scope.spawn(move || lab.line(number, end)))
                .collect();
            let mut samples = Vec::new();
            while Instant::now() < end {
                let next = Instant::now() + plan.cycle;
                samples.push(resident(serve));
                lab.flood(plan.flood);
                std::thread::sleep(next.saturating_duration_since(Instant::now()));
            }
            for line in lines {
                line.join().expect("no call is lost");
            }
            // The carriers answer what the server still sends.
            let limit = Duration::from_secs(120);
            eventually(limit, || left(&GAUGES, &metrics(serve, &GAUGES), &held));
            eventually(limit, || left(&["descriptors"], &[files(serve)], &[open]));
            self.is_over.store(true, Ordering::Relaxed);
            for carrier in carriers {
                carrier.join().expect("a carrier answers");
            }
            samples
        });
        let after = resident(serve);
        self.report([memory, after]);
        assert!(
            after < memory + SPARE,
            "{memory} bytes before, {after} after"
        );
        self.serve.signal("TERM");
        let (status, log) = self.serve.wait();
        assert!(status.success(), "{status}: {log}");
        samples
    }

    fn report(&self, [before, after]: [u64; 2]) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        let [first, second] = &counts.accepted;
        let done = [
            &counts.completed,
            first,
            second,
            &counts.restarts,
            &counts.flooded,
        ]
        .map(get);
        println!(
            "{} calls, {} of them by the first carrier and {} by the second, {} refused; {} restarts, a flood of {}; \
             {before} bytes before, {after} after; shed: {:?}",
            done[0],
            done[1],
            done[2],
            get(&counts.refused),
            done[3],
            done[4],
            self.shed(),
        );
        assert!(done.iter().all(|count| *count > 0), "{done:?}");
    }

    /// What the server has refused and dropped.
    fn shed(&self) -> Vec<String> {
        let page = self.serve.get("/metrics");
        let lines = page
            .lines()
            .filter_map(|line| line.strip_prefix("hairpin_sip_shed_total"));
        lines.map(str::to_owned).collect()
    }

    /// A line of the PBX: one call after the other.
    fn line(&self, line: usize, end: Instant) {
        let socket = UdpSocket::bind((IpAddr::from(PBX), 0)).expect("a socket");
        socket.connect(self.server).expect("a route");
        let wait = Some(Duration::from_millis(20));
        socket.set_read_timeout(wait).expect("a timeout");
        let mut number = 0;
        while Instant::now() < end {
            number += 1;
            let call = Call {
                socket: &socket,
                id: format!("{line}x{number}@pbx"),
            };
            match call.invite() {
                Ok(ok) => {
                    std::thread::sleep(Duration::from_millis(50));
                    call.hang_up(&ok);
                    count(&self.counts.completed);
                }
                Err(_code) => count(&self.counts.refused),
            }
        }
    }

    /// A carrier accepts all calls. It restarts once in each cycle, the second one half a cycle later.
    fn carrier(&self, number: u32, plan: &Plan) {
        let address = self.carriers[number as usize];
        let mut restart = Instant::now() + plan.cycle / 4 + plan.cycle / 2 * number;
        let mut socket = None;
        let mut buffer = [0; 65_536];
        while !self.is_over.load(Ordering::Relaxed) {
            let open = socket.get_or_insert_with(|| carrier_socket(address));
            // An error is that of a message sent before, or there is none yet.
            if let Ok((length, from)) = open.recv_from(&mut buffer) {
                let request = String::from_utf8_lossy(&buffer[..length]);
                if let Some(answer) = answer(&request, address) {
                    let _ = open.send_to(answer.as_bytes(), from);
                    let is_new = request.starts_with("INVITE ");
                    self.counts.accepted[number as usize]
                        .fetch_add(is_new.into(), Ordering::Relaxed);
                }
            }
            if Instant::now() >= restart {
                restart += plan.cycle;
                socket = None;
                std::thread::sleep(AWAY);
                count(&self.counts.restarts);
            }
        }
    }

    /// As many requests as this thread can send, of which none proves anything.
    fn flood(&self, time: Duration) {
        let socket = |last| {
            let socket = UdpSocket::bind(([127, 66, 0, last], 0)).expect("an address of loopback");
            socket.connect(self.server).expect("a route");
            socket.set_nonblocking(true).expect("a flag");
            socket
        };
        let sockets: Vec<UdpSocket> = (1..=SOURCES).map(socket).collect();
        let end = Instant::now() + time;
        while Instant::now() < end {
            for socket in &sockets {
                let number = self.counts.flooded.fetch_add(1, Ordering::Relaxed);
                // A full buffer of our own is no matter.
                let _ = socket.send(forged(number).as_bytes());
            }
        }
    }
}

/// Another program may have the port for a moment while the carrier is away.
fn carrier_socket(address: SocketAddr) -> UdpSocket {
    let end = Instant::now() + TEST_TIMEOUT;
    loop {
        match UdpSocket::bind(address) {
            Ok(socket) => {
                let wait = Some(Duration::from_millis(20));
                socket.set_read_timeout(wait).expect("a timeout");
                return socket;
            }
            Err(error) => assert!(Instant::now() < end, "{address}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A request of a flood.
fn forged(number: u64) -> String {
    let (method, uri, tag, field) = match number % 5 {
        0 => ("REGISTER", "sip:example.com", "", ""),
        1 => ("INVITE", "sip:+49@example.com", "", ""),
        2 => ("BYE", "sip:+49@example.com", ";tag=made-up", ""),
        3 => ("INVITE", "urn:service:sos", "", ""),
        _ => (
            "REGISTER",
            "sip:example.com",
            "",
            "Authorization: Digest username=\"x\", realm=\"example.com\", nonce=\"0\", uri=\"sip:example.com\", \
             response=\"0\"\r\n",
        ),
    };
    format!(
        "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKf{number};rport\r\n\
         From: <sip:x@example.net>;tag=1\r\nTo: <sip:+49@example.com>{tag}\r\nCall-ID: f{number}\r\n\
         CSeq: 1 {method}\r\nMax-Forwards: 70\r\nContact: <sip:x@192.0.2.1>\r\n{field}Content-Length: 0\r\n\r\n"
    )
}

/// The 200 of a carrier. A repeated request gets the same one.
fn answer(request: &str, carrier: SocketAddr) -> Option<String> {
    if request.starts_with("ACK ") || request.starts_with("SIP/2.0 ") {
        return None;
    }
    let copied = ["Via:", "From:", "To:", "Call-ID:", "CSeq:", "Record-Route:"];
    let mut answer = format!("SIP/2.0 200 OK\r\nContact: <sip:{carrier}>\r\n");
    for line in request.split("\r\n") {
        if copied.iter().any(|name| line.starts_with(name)) {
            answer.push_str(line);
            if line.starts_with("To:") && !line.contains(";tag=") {
                answer.push_str(";tag=carrier");
            }
            answer.push_str("\r\n");
        }
    }
    Some(answer + "Content-Length: 0\r\n\r\n")
}

struct Call<'a> {
    socket: &'a UdpSocket,
    id: String,
}

impl Call<'_> {
    /// A request of the call, along the route of its 200.
    fn request(&self, method: &str, cseq: u32, ok: Option<&str>) -> String {
        let (mut uri, mut to, mut route) = (
            "sip:+49301@example.com".to_owned(),
            "<sip:+49301@example.com>".to_owned(),
            String::new(),
        );
        if let Some(ok) = ok {
            let contact = value(ok, "Contact").trim_matches(['<', '>']);
            (uri, to) = (contact.to_owned(), value(ok, "To").to_owned());
            for value in values(ok, "Record-Route").into_iter().rev() {
                route += &format!("Route: {value}\r\n");
            }
        }
        let here = self.socket.local_addr().expect("bound");
        format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {here};branch=z9hG4bK{}{cseq}{method};rport\r\n{route}\
             From: <sip:pbx@{here}>;tag=1\r\nTo: {to}\r\nCall-ID: {}\r\nCSeq: {cseq} {method}\r\n\
             Max-Forwards: 70\r\nContact: <sip:pbx@{here}>\r\nContent-Length: 0\r\n\r\n",
            self.id.replace('@', "."),
            self.id,
        )
    }

    /// Sends until the final response comes.
    fn ask(&self, method: &str, cseq: u32, ok: Option<&str>) -> String {
        let request = self.request(method, cseq, ok);
        let (begun, mut wait) = (Instant::now(), Duration::from_millis(100));
        let mut next = begun;
        let mut buffer = [0; 65_536];
        while begun.elapsed() < TEST_TIMEOUT {
            if Instant::now() >= next {
                self.send(&request);
                next = Instant::now() + wait;
                wait = (wait * 2).min(Duration::from_secs(4));
            }
            let Ok(length) = self.socket.recv(&mut buffer) else {
                continue;
            };
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            let is_of_call = value(&text, "Call-ID") == self.id;
            if is_of_call
                && value(&text, "CSeq") == format!("{cseq} {method}")
                && status(&text) >= 200
            {
                return text;
            }
        }
        panic!("no final response: {request}");
    }

    fn send(&self, text: &str) {
        // A full buffer of our own is no matter.
        let _ = self.socket.send(text.as_bytes());
    }

    /// The 200, which is acknowledged. Or the code of a refusal, whose ACK has the branch of the INVITE.
    fn invite(&self) -> Result<String, u16> {
        let response = self.ask("INVITE", 1, None);
        if status(&response) == 200 {
            self.send(&self.request("ACK", 1, Some(&response)));
            return Ok(response);
        }
        let ack = self.request("ACK", 1, None);
        let to = format!("To: {}\r\n", value(&response, "To"));
        let ack = ack.replacen("To: <sip:+49301@example.com>\r\n", &to, 1);
        self.send(&ack.replacen("1ACK;rport", "1INVITE;rport", 1));
        Err(status(&response))
    }

    /// Sends a BYE until it gets 200: the carrier may be away, and the server may refuse it in an overload.
    fn hang_up(&self, ok: &str) {
        let begun = Instant::now();
        for cseq in 2.. {
            if status(&self.ask("BYE", cseq, Some(ok))) == 200 {
                return;
            }
            assert!(
                begun.elapsed() < TEST_TIMEOUT,
                "{}: no 200 to its BYE",
                self.id
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}
