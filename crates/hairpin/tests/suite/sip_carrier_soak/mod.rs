//! Calls of a PBX to two carriers that restart in turns, and to a registered phone, between floods from many sources.
//! Each call that is accepted is ended with a BYE that gets its 200. Each other one gets a 503 with Retry-After, or a 500
//! if a carrier is away. The binding of the phone stays. At the end the server keeps nothing, and has not grown.
//!
//! `HAIRPIN_SOAK=30m cargo test -p hairpin --test suite -- --nocapture sip_carrier_soak::` runs for that time.

mod clients;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::ScopedJoinHandle;
use std::time::{Duration, Instant};

use crate::common::controlled::free_port;
use crate::common::{Serve, hairpin};
use crate::sip_client::phone::{PASSWORD, values};
use crate::sip_client::status;
use clients::{Answered, Call, Line, Registration};

use crate::sip_soak::{GAUGES, duration, eventually, files, left, metrics, resident};

/// The address of the PBX, which is a trunk, and its calls at a time.
const PBX: [u8; 4] = [127, 0, 0, 5];
const LINES: usize = 4;
/// Every call whose number is a multiple of this goes to the phone, the others to the carriers.
const TO_PHONE: u64 = 4;
/// The addresses of the carriers and of the phone.
const CARRIERS: [[u8; 4]; 2] = [[127, 0, 0, 7], [127, 0, 0, 8]];
const PHONE: [u8; 4] = [127, 0, 0, 9];
/// The number of source addresses of a flood.
const SOURCES: u8 = 100;
/// Each call, BYE and registration ends within this time. Otherwise it is lost.
const TEST_TIMEOUT: Duration = Duration::from_secs(100);
/// What probes may hold: transactions, timers and bytes. There is one probe per second for each carrier, and its
/// transaction lasts for 5 s (timer K).
const PROBES: [u64; 3] = [14, 14, 14 << 10];
/// A carrier that restarts is away for so long.
const AWAY: Duration = Duration::from_millis(300);
/// Resident memory that may stay at the end: pools grow to what a flood needs.
const SPARE: u64 = 64 << 20;
/// In a run of at least [`LONG`], so much more memory may be used in the last quarter than in the first one. The time
/// until pools have grown (1/[`WARM_UP`] of the run: 2 of 30 minutes) does not count.
const GROWTH: u64 = 2 << 20;
const LONG: Duration = Duration::from_secs(5 * 60);
const WARM_UP: usize = 15;

/// What a run is like.
struct Plan {
    time: Duration,
    /// From the beginning of a flood to that of the next one.
    cycle: Duration,
    flood: Duration,
}

#[test]
fn nothing_accepted_is_lost_in_floods_and_restarts_of_carriers() {
    let asked = duration();
    let time = asked.unwrap_or(Duration::from_secs(4));
    let cycle = (time / 60).clamp(Duration::from_secs(2), Duration::from_secs(15));
    let plan = Plan {
        time,
        cycle,
        flood: cycle / 5,
    };
    let samples = Lab::start().run(&plan);
    if time >= LONG {
        let (first, last) = quarters(&samples[samples.len() / WARM_UP..]);
        println!("resident memory: {first} bytes in the first quarter, {last} in the last one");
        assert!(last < first + GROWTH, "memory grows: {samples:?}");
    }
}

/// The means of the first and of the last quarter.
fn quarters(samples: &[u64]) -> (u64, u64) {
    let quarter = (samples.len() / 4).max(1);
    let mean = |part: &[u64]| part.iter().sum::<u64>() / part.len().max(1) as u64;
    (
        mean(&samples[..quarter]),
        mean(&samples[samples.len() - quarter..]),
    )
}

/// What has happened.
#[derive(Default)]
struct Counts {
    completed: AtomicU64,
    /// INVITEs that each carrier and the phone have accepted, repeated ones too.
    accepted: [AtomicU64; 3],
    registered: AtomicU64,
    restarts: AtomicU64,
    flooded: AtomicU64,
    /// Final responses that were not 200, by method and code.
    refused: Mutex<BTreeMap<(String, u16), u64>>,
    /// Late calls that the PBX has ended.
    late: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

struct Lab {
    serve: Serve,
    server: SocketAddr,
    carriers: [SocketAddr; 2],
    counts: Counts,
    /// No more calls are made: the phone removes its binding.
    has_no_calls: AtomicBool,
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
             [auth]\nrealm = \"example.com\"\nusers = [{{ name = \"ann\", password = \"{PASSWORD}\" }}]\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[offload]\nmode = \"off\"\n[log]\nlevel = \"error\"\n\
             [server]\nworkers = 2\ncontrol_socket = \"off\"\nstate_dir = \"off\"\n\
             [sip]\nlisten = [\"{server}\"]\nt1 = \"100ms\"\n[[sip.domain]]\nname = \"example.com\"\n\
             [[sip.trunk]]\nname = \"pbx\"\naddresses = [\"{}\"]\nweight = 10\nmax_calls_from = 1000\n\
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
            has_no_calls: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            _folder: folder,
        }
    }

    /// Runs the plan. Returns the resident memory before each flood.
    fn run(self, plan: &Plan) -> Vec<u64> {
        let serve = &self.serve;
        let (held, open, memory) = (metrics(serve, &GAUGES), files(serve), resident(serve));
        let samples = std::thread::scope(|scope| {
            let lab = &self;
            let _end = End(lab);
            let carriers = [0, 1].map(|number| scope.spawn(move || lab.carrier(number, plan)));
            let phone = scope.spawn(move || lab.phone());
            eventually(TEST_TIMEOUT, || {
                let registered = lab.counts.registered.load(Ordering::Relaxed);
                (registered == 0).then(|| "the phone is not registered".to_owned())
            });
            let end = Instant::now() + plan.time;
            let lines: Vec<_> = (0..LINES)
                .map(|number| scope.spawn(move || lab.line(number, end)))
                .collect();
            let samples = lab.floods(plan, end, &lines);
            let pbx: Vec<_> = lines
                .into_iter()
                .map(|line| line.join().expect("no call is lost"))
                .collect();
            self.end_late_calls(&pbx);
            self.has_no_calls.store(true, Ordering::Relaxed);
            phone.join().expect("no binding is lost");
            // The carriers answer what the server still sends.
            self.wait_until_quiet(&held, open);
            assert!(carriers.iter().all(|carrier| !carrier.is_finished()));
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

    /// One flood in each cycle. Returns the resident memory before each of them. Ends early if a line has failed.
    fn floods(&self, plan: &Plan, end: Instant, lines: &[ScopedJoinHandle<'_, Line>]) -> Vec<u64> {
        let mut samples = Vec::new();
        while Instant::now() < end && !lines.iter().any(ScopedJoinHandle::is_finished) {
            let next = Instant::now() + plan.cycle;
            samples.push(resident(&self.serve));
            self.flood(plan.flood);
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        samples
    }

    /// Ends late calls until the server has no call. A call is late if the PBX gets a 200 after a 503: the server has
    /// refused a copy of the INVITE before it read an earlier copy.
    fn end_late_calls(&self, pbx: &[Line]) {
        eventually(TEST_TIMEOUT, || {
            for line in pbx {
                let ended = line.end_late_calls();
                self.counts.late.fetch_add(ended, Ordering::Relaxed);
            }
            let calls = metrics(&self.serve, &["hairpin_sip_calls "]);
            left(&["hairpin_sip_calls "], &calls, &[0])
        });
    }

    /// Waits until the server holds what it held at the beginning, and probes.
    fn wait_until_quiet(&self, held: &[u64], open: u64) {
        let limit = Duration::from_secs(120);
        eventually(limit, || {
            let now = metrics(&self.serve, &GAUGES);
            let are_of_probes = now.iter().zip(PROBES).all(|(now, most)| *now <= most);
            let is_quiet = are_of_probes && now[PROBES.len()..] == held[PROBES.len()..];
            left(&GAUGES, &now, held).filter(|_| !is_quiet)
        });
        eventually(limit, || {
            // At the beginning, the server may still have had a connection of the request for its metrics.
            let now = files(&self.serve);
            (now > open).then(|| format!("{now} descriptors, and {open} before"))
        });
    }

    fn report(&self, [before, after]: [u64; 2]) {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        let [first, second, phone] = &counts.accepted;
        let done = [
            &counts.completed,
            first,
            second,
            phone,
            &counts.registered,
            &counts.late,
            &counts.restarts,
            &counts.flooded,
        ]
        .map(get);
        let refused = counts.refused.lock().expect("no thread panicked");
        println!(
            "{} calls, {} of them by the first carrier, {} by the second, {} by the phone, which has registered {} times; \
             refused: {refused:?}; {} late calls, {} restarts, a flood of {}; {before} bytes before, {after} after; shed: {:?}",
            done[0],
            done[1],
            done[2],
            done[3],
            done[4],
            done[5],
            done[6],
            done[7],
            self.shed(),
        );
        let [completed, _, _, _, registered, _, restarts, flooded] = done;
        let [carriers, phone] = self.accepted();
        let done = [completed, carriers, phone, registered, restarts, flooded];
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

    /// A request was not accepted. Admission control refuses with 503 and Retry-After, and so does the proxy if no
    /// trunk is left (docs/error-codes.md). A request to a carrier that is away gets 500.
    fn refuse(&self, method: &str, response: &str) {
        let code = status(response);
        let retry_after = values(response, "Retry-After");
        let is_away = method != "REGISTER" && code == 500;
        assert!(
            is_away || code == 503 && !retry_after.is_empty(),
            "{response}"
        );
        let mut refused = self.counts.refused.lock().expect("no thread panicked");
        *refused.entry((method.to_owned(), code)).or_default() += 1;
    }

    /// A line of the PBX: one call after the other.
    fn line(&self, number: usize, end: Instant) -> Line {
        let socket = socket_at(SocketAddr::from((PBX, 0)));
        socket.connect(self.server).expect("a route");
        let line = Line {
            socket,
            late: RefCell::default(),
        };
        let mut calls = 0;
        while Instant::now() < end || self.lacks_calls(end) {
            calls += 1;
            let to_phone = calls % TO_PHONE == 0;
            let call = Call {
                line: &line,
                id: format!("{number}x{calls}@pbx"),
                uri: if to_phone {
                    "sip:ann@example.com"
                } else {
                    "sip:+49301@example.com"
                },
            };
            let response = call.invite();
            if status(&response) == 200 {
                std::thread::sleep(Duration::from_millis(50));
                self.hang_up(&call, &response);
                count(&self.counts.completed);
            } else {
                self.refuse("INVITE", &response);
            }
        }
        line
    }

    /// Whether the carriers or the phone had no call yet, because the machine is busy. Then the calls go on for a while.
    fn lacks_calls(&self, end: Instant) -> bool {
        self.accepted().contains(&0) && Instant::now() < end + TEST_TIMEOUT
    }

    /// How many INVITEs both carriers together and the phone have accepted. In a short run, one of the carriers may have
    /// no call: it restarts so often that most of its probes fail.
    fn accepted(&self) -> [u64; 2] {
        let [first, second, phone] = &self.counts.accepted;
        let [first, second, phone] =
            [first, second, phone].map(|calls| calls.load(Ordering::Relaxed));
        [first + second, phone]
    }

    /// Sends a BYE until it gets 200: the carrier may be away, and the server may refuse it in an overload.
    fn hang_up(&self, call: &Call<'_>, ok: &str) {
        let begun = Instant::now();
        for cseq in 2.. {
            let response = call.ask("BYE", cseq, Some(ok));
            if status(&response) == 200 {
                return;
            }
            self.refuse("BYE", &response);
            assert!(
                begun.elapsed() < TEST_TIMEOUT,
                "{}: no 200 to its BYE",
                call.id
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// A carrier accepts all calls. It restarts ten times in nine cycles, so at times also in a flood. The second
    /// carrier restarts half a cycle later.
    fn carrier(&self, number: u32, plan: &Plan) {
        let address = self.carriers[number as usize];
        let interval = plan.cycle * 9 / 10;
        let mut restart = Instant::now() + interval / 4 + interval / 2 * number;
        let mut socket = None;
        while !self.is_over.load(Ordering::Relaxed) {
            let open = socket.get_or_insert_with(|| socket_at(address));
            // A carrier sends no requests, so it ignores responses.
            let _ = self.serve_calls(open, address, number as usize);
            if Instant::now() >= restart {
                restart += interval;
                socket = None;
                std::thread::sleep(AWAY);
                count(&self.counts.restarts);
            }
        }
    }

    /// Registers once per second, and accepts all calls. Returns when it has removed its binding.
    fn phone(&self) {
        let address = SocketAddr::from((PHONE, free_port()));
        let socket = socket_at(address);
        let mut registration = Registration::new(address);
        loop {
            let is_last = self.has_no_calls.load(Ordering::Relaxed);
            if let Some(request) = registration.due(is_last) {
                let _ = socket.send_to(request.as_bytes(), self.server);
            }
            let Some(response) = self.serve_calls(&socket, address, 2) else {
                continue;
            };
            match registration.answered(&response) {
                Answered::Accepted { expires: 0 } => return,
                Answered::Accepted { .. } => count(&self.counts.registered),
                Answered::Refused => self.refuse("REGISTER", &response),
                Answered::Nothing => {}
            }
        }
    }

    /// Accepts a request that comes within a moment, or returns a response.
    fn serve_calls(&self, socket: &UdpSocket, here: SocketAddr, number: usize) -> Option<String> {
        let mut buffer = [0; 65_536];
        // An error: no message has arrived yet, or an ICMP error for an earlier datagram.
        let (length, from) = socket.recv_from(&mut buffer).ok()?;
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        if text.starts_with("SIP/2.0 ") {
            return Some(text);
        }
        if !text.starts_with("ACK ") {
            let _ = socket.send_to(ok_to(&text, here).as_bytes(), from);
            let is_invite = text.starts_with("INVITE ");
            self.counts.accepted[number].fetch_add(is_invite.into(), Ordering::Relaxed);
        }
        None
    }

    /// Sends as many requests as this thread can. None has the tag of a dialog or correct credentials.
    fn flood(&self, time: Duration) {
        let socket = |last| {
            let socket = socket_at(SocketAddr::from(([127, 66, 0, last], 0)));
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

/// Ends the other threads, also if a check fails.
struct End<'a>(&'a Lab);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.has_no_calls.store(true, Ordering::Relaxed);
        self.0.is_over.store(true, Ordering::Relaxed);
    }
}

/// A socket at this address, from which a receive returns after a moment. Another program may have the port for a
/// moment while a carrier is away.
fn socket_at(address: SocketAddr) -> UdpSocket {
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
    let (method, uri, tag, field) = match number % 6 {
        0 => ("REGISTER", "sip:example.com", "", ""),
        1 => ("INVITE", "sip:+49@example.com", "", ""),
        2 => ("BYE", "sip:+49@example.com", ";tag=made-up", ""),
        3 => ("INVITE", "urn:service:sos", "", ""),
        4 => ("OPTIONS", "sip:ann@example.com", "", ""),
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

/// The 200 of the server at this address. A repeated request gets the same one.
fn ok_to(request: &str, here: SocketAddr) -> String {
    let copied = ["Via:", "From:", "To:", "Call-ID:", "CSeq:", "Record-Route:"];
    let mut answer = format!("SIP/2.0 200 OK\r\nContact: <sip:{here}>\r\n");
    for line in request.split("\r\n") {
        if copied.iter().any(|name| line.starts_with(name)) {
            answer.push_str(line);
            if line.starts_with("To:") && !line.contains(";tag=") {
                answer.push_str(";tag=called");
            }
            answer.push_str("\r\n");
        }
    }
    answer + "Content-Length: 0\r\n\r\n"
}
