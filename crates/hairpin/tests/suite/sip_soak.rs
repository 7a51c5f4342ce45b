//! Phones over UDP, TCP and TLS that register, register again, call each other, and vanish. No call is lost, and nothing
//! is left of them.
//!
//! `HAIRPIN_SOAK=30m cargo test -p hairpin --test suite -- --ignored --nocapture sip_soak::` runs for that time, which is
//! its default. docs/sip.md has the figures of such a run.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::common::controlled::free_port;
use crate::common::sip::phone_over_tls;
use crate::common::{Serve, hairpin};
use crate::sip_client::phone::{Line, PASSWORD, Phone, credentials, value};
use crate::sip_client::status;
use crate::tls_peer::{Authority, Link};
use hairpin_server::rustls::RootCertStore;
use sip::{HeaderKind, Method};

/// Threads with phones that call each other, and phones of each.
const THREADS: usize = 3;
const PHONES: usize = 6;

/// Threads with phones that vanish, and users of each, who take turns: a user's binding has expired at its next turn.
const VANISHING: usize = 2;
const VICTIMS: usize = 60;

/// Seconds that registrations last: of phones that stay, and of phones that vanish.
const STAYS: u32 = 120;
const VANISHES: u32 = 3;

/// A phone registers again when its binding has this age.
const REFRESH: Duration = Duration::from_secs(40);

/// Resident memory that may stay at the end. Caches and tables that have grown once are a part of it.
const SPARE: u64 = 24 << 20;
/// The table of used nonce counts grows for two lifetimes of a nonce, and a little later.
const NONCES: Duration = Duration::from_secs(21 * 60);
/// How much more memory the second half of the time after [`NONCES`] may use than the first half.
const GROWTH: u64 = 1 << 20;

/// Gauges that are at the end what they were at the beginning.
pub(crate) const GAUGES: [&str; 8] = [
    "hairpin_sip_transactions ",
    "hairpin_sip_timers ",
    "hairpin_sip_state_bytes ",
    "hairpin_sip_bindings ",
    "hairpin_sip_forwarding ",
    "hairpin_sip_calls ",
    "hairpin_sip_connections ",
    "hairpin_sip_dns_queries_open ",
];

/// Counters of what must not happen.
const NEVER: [&str; 3] = [
    "hairpin_sip_unacknowledged_total ",
    "hairpin_sip_store_failures_total ",
    "hairpin_sip_store_lost_batches_total ",
];

/// What a run is like.
struct Plan {
    time: Duration,
    t1: Duration,
    /// Time between two actions of a thread.
    pace: Duration,
    /// Also what the server remembers for longer than 64 * T1: a failure response over UDP for 32 s (Timer D of RFC 3261
    /// §17.1.1.2), and a call without a BYE for a minute (`sip.max_call_duration`).
    is_whole: bool,
}

impl Plan {
    /// How long the server remembers what is over.
    fn memory(&self) -> Duration {
        64 * self.t1 + Duration::from_secs(if self.is_whole { 60 } else { 0 })
    }

    /// How many of the ways to vanish occur. The last one is without a BYE.
    fn ways(&self) -> usize {
        if self.is_whole { 4 } else { 3 }
    }
}

#[test]
fn phones_come_and_go() {
    let plan = Plan {
        time: Duration::from_secs(4),
        t1: Duration::from_millis(100),
        pace: Duration::from_millis(200),
        is_whole: false,
    };
    Lab::start(&plan).run(&plan);
}

#[test]
#[ignore = "it takes half an hour"]
fn phones_come_and_go_for_half_an_hour() {
    let plan = Plan {
        time: duration().unwrap_or(Duration::from_secs(30 * 60)),
        t1: Duration::from_millis(500),
        // Five calls per second, as four of five actions are calls.
        pace: Duration::from_millis(480),
        is_whole: true,
    };
    let samples = Lab::start(&plan).run(&plan);
    println!("resident memory: {samples:?}");
    let interval = plan.time / samples.len().max(1) as u32;
    let later: Vec<u64> = (1..)
        .zip(samples)
        .filter(|(number, _)| interval * *number > NONCES)
        .map(|(_, bytes)| bytes)
        .collect();
    if later.len() < 10 {
        println!("the run is too short to judge the memory");
        return;
    }
    let (first, second) = later.split_at(later.len() / 2);
    let (first, second) = (mean(first), mean(second));
    println!(
        "after {NONCES:?}: {first} bytes in the first half of the time, {second} in the second"
    );
    assert!(second < first + GROWTH, "memory grows");
}

/// The time in `HAIRPIN_SOAK`: `20m`, `90s` or `90`.
pub(crate) fn duration() -> Option<Duration> {
    let text = std::env::var("HAIRPIN_SOAK").ok()?;
    let (number, unit) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.trim_end_matches('s'), 1),
    };
    let number: u64 = number.parse().expect("HAIRPIN_SOAK is a time such as 20m");
    Some(Duration::from_secs(number * unit))
}

/// What has happened.
#[derive(Default)]
struct Counts {
    calls: AtomicU64,
    cancelled: AtomicU64,
    refused: AtomicU64,
    registrations: AtomicU64,
    vanished: AtomicU64,
    /// What those got who talked to a phone that has vanished, by the way it has.
    outcomes: Mutex<BTreeMap<(&'static str, u16), u64>>,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

struct Lab {
    serve: Serve,
    plain: SocketAddr,
    tls: SocketAddr,
    roots: Arc<RootCertStore>,
    /// Numbers of TLS phones, for their Contacts.
    contacts: AtomicU64,
    counts: Counts,
    _folder: tempfile::TempDir,
}

impl Lab {
    fn start(plan: &Plan) -> Lab {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let authority = Authority::new();
        let (certificate, key) = authority.issue(&["example.com"]).pem();
        std::fs::write(at("tls.crt"), certificate).expect("a certificate");
        std::fs::write(at("tls.key"), key).expect("a key");
        let [plain, tls] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
        let mut text = format!(
            "[listen]\nudp = [\"127.0.0.1:0\"]\n[relay]\naddresses = [\"127.0.0.1\"]\n[peers]\nallow_local = true\n\
             [admin]\nlisten = \"127.0.0.1:0\"\n[offload]\nmode = \"off\"\n[log]\nlevel = \"error\"\n\
             [server]\nworkers = 2\ncontrol_socket = \"off\"\nstate_dir = {:?}\n\
             [tls]\ncertificates = [{{ certificate = {:?}, key = {:?} }}]\n\
             [sip]\nlisten = [\"{plain}\"]\nlisten_tls = [\"{tls}\"]\ntolerance = \"0s\"\nt1 = \"{}ms\"\n\
             register_min = \"1s\"\nuser_calls = 100\nmax_call_duration = \"1m\"\n\
             [[sip.domain]]\nname = \"example.com\"\n[auth]\nrealm = \"example.com\"\nusers = [\n",
            at("state"),
            at("tls.crt"),
            at("tls.key"),
            plan.t1.as_millis(),
        );
        let callers = (0..THREADS).flat_map(|it| (0..PHONES).map(move |phone| caller(it, phone)));
        let victims =
            (0..VANISHING).flat_map(|it| (0..=VICTIMS).map(move |phone| victim(it, phone)));
        for user in callers.chain(victims) {
            let _ = writeln!(text, "{{ name = \"{user}\", password = \"{PASSWORD}\" }},");
        }
        text.push_str("]\n");
        let config = at("hairpin.toml");
        std::fs::write(&config, text).expect("a configuration");
        let mut command = hairpin(&["serve", "--config"]);
        command.arg(&config);
        Lab {
            serve: Serve::start_command(command),
            plain,
            tls,
            roots: authority.roots(),
            contacts: AtomicU64::new(0),
            counts: Counts::default(),
            _folder: folder,
        }
    }

    /// Runs the plan. Returns the resident memory from time to time.
    fn run(self, plan: &Plan) -> Vec<u64> {
        let serve = &self.serve;
        let (held, open) = (metrics(serve, &GAUGES), files(serve));
        let memory = resident(serve);
        let begun = Instant::now();
        let end = begun + plan.time;
        let samples = std::thread::scope(|scope| {
            let mut threads: Vec<_> = (0..THREADS)
                .map(|number| {
                    let lab = &self;
                    scope.spawn(move || lab.phones_that_stay(number, plan, end))
                })
                .collect();
            threads.extend((0..VANISHING).map(|number| {
                let lab = &self;
                scope.spawn(move || lab.phones_that_vanish(number, plan, end))
            }));
            let mut samples = Vec::new();
            while !threads.iter().all(|thread| thread.is_finished()) {
                std::thread::sleep((plan.time / 90).max(Duration::from_millis(200)));
                samples.push(resident(serve));
            }
            for thread in threads {
                thread.join().expect("no call is lost");
            }
            samples
        });
        let limit = plan.memory() + Duration::from_secs(60);
        eventually(limit, || left(&GAUGES, &metrics(serve, &GAUGES), &held));
        // At the beginning, the connection of a request for metrics may still have been open.
        eventually(limit, || {
            let now = files(serve);
            (now > open).then(|| format!("{now} descriptors, and {open} before"))
        });
        assert_eq!(metrics(serve, &NEVER), [0; NEVER.len()], "{NEVER:?}");
        let after = resident(serve);
        self.report(begun.elapsed(), [memory, after]);
        assert!(
            after < memory + SPARE,
            "{memory} bytes before, {after} after"
        );
        self.serve.signal("TERM");
        let (status, log) = self.serve.wait();
        assert!(status.success(), "{status}: {log}");
        samples
    }

    fn report(&self, time: Duration, [before, after]: [u64; 2]) {
        let counts = &self.counts;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let outcomes = counts.outcomes.lock().expect("no thread panicked");
        println!(
            "{} s: {} calls, {} cancelled, {} refused, {} registrations, {} phones vanished {outcomes:?}; \
             {before} bytes before, {after} after, {} bytes of log",
            time.as_secs(),
            get(&counts.calls),
            get(&counts.cancelled),
            get(&counts.refused),
            get(&counts.registrations),
            get(&counts.vanished),
            metrics(&self.serve, &["hairpin_sip_store_bytes "])[0],
        );
    }

    /// A phone over UDP (0), TCP (1) or TLS (2).
    fn desk(&self, user: &str, transport: usize) -> Desk {
        let phone = match transport % 3 {
            0 => Phone::udp_at(self.plain, user),
            1 => Phone::tcp_at(self.plain, user),
            _ => {
                let link = Link::connect(self.tls, "example.com", self.roots.clone(), None);
                let port = self.contacts.fetch_add(1, Ordering::Relaxed) % 60_000 + 1;
                phone_over_tls(link.expect("TLS"), port as u16, user)
            }
        };
        Desk {
            phone,
            cseq: 0,
            registered: Instant::now(),
        }
    }

    fn phones_that_stay(&self, thread: usize, plan: &Plan, end: Instant) {
        let mut random = Random(thread as u64 + 1);
        let mut desks: Vec<Desk> = (0..PHONES)
            .map(|number| {
                let mut desk = self.desk(&caller(thread, number), number);
                desk.register(STAYS, &self.counts);
                desk
            })
            .collect();
        let mut number = 0;
        while Instant::now() < end {
            let next = Instant::now() + plan.pace;
            number += 1;
            let id = format!("c{thread}n{number}");
            self.act(&mut desks, &mut random, &id, (thread, plan));
            for desk in &mut desks {
                if desk.registered.elapsed() > REFRESH {
                    desk.register(STAYS, &self.counts);
                }
            }
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        // Half of them unregister; the bindings of the others expire.
        for (number, desk) in desks.iter_mut().enumerate() {
            desk.register(if number % 2 == 0 { 0 } else { VANISHES }, &self.counts);
        }
    }

    /// One action of two phones, chosen at random.
    fn act(
        &self,
        desks: &mut [Desk],
        random: &mut Random,
        id: &str,
        (thread, plan): (usize, &Plan),
    ) {
        let one = random.below(PHONES);
        let other = (one + 1 + random.below(PHONES - 1)) % PHONES;
        let action = match random.below(10) {
            // It is called over UDP.
            0 | 1 if !plan.is_whole && other.is_multiple_of(3) => 2,
            action => action,
        };
        if action == 8 {
            desks[one].register(STAYS, &self.counts);
            return;
        }
        if action == 9 {
            // By another socket, or another connection.
            desks[one].register(0, &self.counts);
            desks[one] = self.desk(&caller(thread, one), one);
            desks[one].register(STAYS, &self.counts);
            return;
        }
        let [caller, callee] = desks
            .get_disjoint_mut([one, other])
            .expect("different phones");
        match action {
            0 => {
                cancels(caller, callee, id);
                count(&self.counts.cancelled);
            }
            1 => {
                refuses(caller, callee, id);
                count(&self.counts.refused);
            }
            _ => {
                let call = establish(caller, callee, id);
                talks(caller, callee, &call, action % 2 == 0);
                count(&self.counts.calls);
            }
        }
    }

    fn phones_that_vanish(&self, thread: usize, plan: &Plan, end: Instant) {
        let mut caller = self.desk(&victim(thread, VICTIMS), 0);
        caller.register(STAYS, &self.counts);
        let mut number = 0;
        while Instant::now() < end {
            let next = Instant::now() + 3 * plan.pace;
            if caller.registered.elapsed() > REFRESH {
                caller.register(STAYS, &self.counts);
            }
            // First those over connections, whose end the server sees at once.
            let transport = number / plan.ways() + 1 + thread;
            let mut victim = self.desk(&victim(thread, number % VICTIMS), transport);
            victim.register(VANISHES, &self.counts);
            let id = format!("v{thread}n{number}");
            let way = number % plan.ways();
            self.vanish(&mut caller, victim, way, &id, plan);
            count(&self.counts.vanished);
            number += 1;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        caller.register(0, &self.counts);
    }

    /// A phone vanishes, and somebody sends it a request before or after that.
    fn vanish(&self, caller: &mut Desk, mut victim: Desk, way: usize, id: &str, plan: &Plan) {
        // The server tries for as long as a transaction lasts.
        let limit = 64 * plan.t1 + Duration::from_secs(30);
        let uri = victim.uri();
        let (way, code) = match way {
            0 => {
                drop(victim);
                let asked = caller.invite(&uri, id);
                let over = caller.failure(id, "2 INVITE", limit);
                caller.phone.acknowledge(&asked, &over);
                ("before the call", status(&over))
            }
            1 => {
                let (asked, _) = ring(caller, &mut victim, id);
                drop(victim);
                caller.cancel(&asked);
                let over = caller.failure(id, "2 INVITE", limit);
                caller.phone.acknowledge(&asked, &over);
                ("while it rang", status(&over))
            }
            2 => {
                let call = establish(caller, &mut victim, id);
                drop(victim);
                caller.phone.in_dialog(&call.ok, "BYE");
                let over = caller.failure(id, "3 BYE", limit);
                ("before the BYE", status(&over))
            }
            _ => {
                establish(caller, &mut victim, id);
                // Neither side sends a BYE.
                ("in a call", 0)
            }
        };
        let mut outcomes = self.counts.outcomes.lock().expect("no thread panicked");
        *outcomes.entry((way, code)).or_default() += 1;
    }
}

/// The values of these metrics.
pub(crate) fn metrics(serve: &Serve, names: &[&str]) -> Vec<u64> {
    let page = serve.get("/metrics");
    let value = |name: &&str| {
        let line = page.lines().find_map(|line| line.strip_prefix(name));
        let value: f64 = line.expect(name).trim().parse().expect("a number");
        value as u64
    };
    names.iter().map(value).collect()
}

/// Open descriptors of the server.
pub(crate) fn files(serve: &Serve) -> u64 {
    let folder = format!("/proc/{}/fd", serve.id());
    std::fs::read_dir(folder).expect("it runs").count() as u64
}

/// Resident bytes of the server, without those of its program file.
pub(crate) fn resident(serve: &Serve) -> u64 {
    let path = format!("/proc/{}/status", serve.id());
    let text = std::fs::read_to_string(path).expect("it runs");
    let mut lines = text.lines();
    let kib = lines.find_map(|line| line.strip_prefix("RssAnon:"));
    let kib = kib.expect("RssAnon").trim().trim_end_matches(" kB");
    kib.parse::<u64>().expect("a number") * 1024
}

fn mean(samples: &[u64]) -> u64 {
    samples.iter().sum::<u64>() / samples.len().max(1) as u64
}

fn caller(thread: usize, phone: usize) -> String {
    format!("c{thread}x{phone}")
}

fn victim(thread: usize, phone: usize) -> String {
    format!("v{thread}x{phone}")
}

/// What is not as it was, if something is not.
pub(crate) fn left(names: &[&str], now: &[u64], before: &[u64]) -> Option<String> {
    (now != before).then(|| format!("{names:?}: {now:?}, and {before:?} before"))
}

/// Waits until nothing is wrong.
pub(crate) fn eventually(limit: Duration, mut wrong: impl FnMut() -> Option<String>) {
    let end = Instant::now() + limit;
    while let Some(text) = wrong() {
        assert!(Instant::now() < end, "{text}");
        std::thread::sleep(Duration::from_millis(500));
    }
}

struct Random(u64);

impl Random {
    /// xorshift64*: the same sequence in each run.
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }
}

/// A phone that passes over what it does not expect: on a busy machine messages arrive again.
struct Desk {
    phone: Phone,
    /// Of its last REGISTER.
    cseq: u32,
    registered: Instant,
}

/// A call that is up: the INVITE that the callee has, and the 200 that the caller has.
struct Call {
    id: String,
    invite: String,
    ok: String,
}

/// What a phone waits for. If the test panics meanwhile, it prints this.
struct Awaited {
    what: String,
    since: Instant,
    /// The last message that came.
    last: String,
}

impl Drop for Awaited {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Awaited { what, since, last } = self;
            let now = std::time::SystemTime::now();
            eprintln!("{now:?}: waits for {what} since {since:?}; before: {last}");
        }
    }
}

impl Desk {
    fn uri(&self) -> String {
        format!("sip:{}@example.com", self.phone.user)
    }

    /// The message that begins so, of this call and with this CSeq.
    fn expect(&mut self, start: &str, id: &str, cseq: &str) -> String {
        let mut awaited = Awaited {
            what: format!("{start} of {id} at {}", self.phone.user),
            since: Instant::now(),
            last: String::new(),
        };
        for _ in 0..100 {
            awaited.last = self.phone.receive();
            let text = awaited.last.clone();
            if text.starts_with(start) && is_of(&text, id, cseq) {
                return text;
            }
        }
        panic!("{}: no {start} of {id}", self.phone.user);
    }

    /// The failure response that arrives within this time. It has a socket for UDP.
    fn failure(&mut self, id: &str, cseq: &str, limit: Duration) -> String {
        let end = Instant::now() + limit;
        loop {
            assert!(Instant::now() < end, "{id}: no response to {cseq}");
            let Line::Udp(client) = &self.phone.line else {
                panic!("it is not over UDP");
            };
            let text = client.answer_within(Duration::from_millis(500));
            let found = text.filter(|text| text.starts_with("SIP/2.0 ") && is_of(text, id, cseq));
            if let Some(text) = found.filter(|text| status(text) >= 200) {
                assert!(status(&text) >= 300, "{id}: {text}");
                return text;
            }
        }
    }

    /// Sends a request and, upon the challenge, the same with credentials, which is returned.
    fn ask(&mut self, method: Method<'_>, uri: &str, id: &str, cseq: u32, lines: &str) -> String {
        let name = String::from_utf8_lossy(method.as_bytes()).into_owned();
        let (start, kind) = match method {
            Method::Register => ("SIP/2.0 401", HeaderKind::Authorization),
            _ => ("SIP/2.0 407", HeaderKind::ProxyAuthorization),
        };
        let request = self.phone.request(&name, uri, id, cseq, lines);
        self.phone.send(&request);
        let challenge = self.expect(start, id, &format!("{cseq} {name}"));
        if method == Method::Invite {
            self.phone.acknowledge(&request, &challenge);
        }
        let line = credentials(&challenge, kind, &self.phone.user, method, uri);
        let lines = format!("{lines}{line}");
        let request = self.phone.request(&name, uri, id, cseq + 1, &lines);
        self.phone.send(&request);
        request
    }

    /// Registers for so many seconds; 0 removes the binding.
    fn register(&mut self, expires: u32, counts: &Counts) {
        let id = format!("r{}p{}", self.phone.user, self.phone.port());
        let lines = format!("Expires: {expires}\r\n");
        self.ask(
            Method::Register,
            "sip:example.com",
            &id,
            self.cseq + 1,
            &lines,
        );
        self.cseq += 2;
        let cseq = format!("{} REGISTER", self.cseq);
        let ok = self.expect("SIP/2.0 200", &id, &cseq);
        let contact = self.phone.contact();
        let contact = contact.trim_matches(['<', '>']);
        assert_eq!(ok.contains(contact), expires > 0, "{contact}: {ok}");
        self.registered = Instant::now();
        count(&counts.registrations);
    }

    fn invite(&mut self, uri: &str, id: &str) -> String {
        self.ask(Method::Invite, uri, id, 1, "")
    }

    /// Sends a CANCEL for this INVITE.
    fn cancel(&mut self, asked: &str) {
        let cancel = asked
            .replacen("INVITE ", "CANCEL ", 1)
            .replace(" INVITE\r\n", " CANCEL\r\n");
        self.phone.send(&cancel);
    }
}

fn is_of(text: &str, id: &str, cseq: &str) -> bool {
    value(text, "Call-ID") == format!("{id}@test") && value(text, "CSeq") == cseq
}

/// A call that rings: the INVITEs of both sides.
fn ring(caller: &mut Desk, callee: &mut Desk, id: &str) -> (String, String) {
    let asked = caller.invite(&callee.uri(), id);
    let invite = callee.expect("INVITE ", id, "2 INVITE");
    callee.phone.respond(&invite, "180 Ringing");
    caller.expect("SIP/2.0 180", id, "2 INVITE");
    (asked, invite)
}

fn establish(caller: &mut Desk, callee: &mut Desk, id: &str) -> Call {
    let (_, invite) = ring(caller, callee, id);
    callee.phone.respond(&invite, "200 OK");
    let ok = caller.expect("SIP/2.0 200", id, "2 INVITE");
    caller.phone.in_dialog(&ok, "ACK");
    callee.expect("ACK ", id, "2 ACK");
    Call {
        id: id.to_owned(),
        invite,
        ok,
    }
}

/// A second INVITE within the call, then one side hangs up.
fn talks(caller: &mut Desk, callee: &mut Desk, call: &Call, callee_ends: bool) {
    let id = &call.id;
    caller.phone.in_dialog(&call.ok, "INVITE");
    let again = callee.expect("INVITE ", id, "3 INVITE");
    callee.phone.respond(&again, "200 OK");
    caller.expect("SIP/2.0 200", id, "3 INVITE");
    // The route set is that of the first 200 (RFC 3261 §12.2.1.1).
    let ok = call.ok.replace("CSeq: 2 INVITE", "CSeq: 3 INVITE");
    caller.phone.in_dialog(&ok, "ACK");
    callee.expect("ACK ", id, "3 ACK");
    if callee_ends {
        callee.phone.hang_up(&call.invite);
        let bye = caller.expect("BYE ", id, "1 BYE");
        caller.phone.respond(&bye, "200 OK");
        callee.expect("SIP/2.0 200", id, "1 BYE");
    } else {
        caller.phone.in_dialog(&ok, "BYE");
        let bye = callee.expect("BYE ", id, "4 BYE");
        callee.phone.respond(&bye, "200 OK");
        caller.expect("SIP/2.0 200", id, "4 BYE");
    }
}

/// The caller gives up while the other side rings.
fn cancels(caller: &mut Desk, callee: &mut Desk, id: &str) {
    let (asked, invite) = ring(caller, callee, id);
    caller.cancel(&asked);
    let cancel = callee.expect("CANCEL ", id, "2 CANCEL");
    callee.phone.respond(&cancel, "200 OK");
    callee.phone.respond(&invite, "487 Request Terminated");
    callee.expect("ACK ", id, "2 ACK");
    let over = caller.expect("SIP/2.0 487", id, "2 INVITE");
    caller.phone.acknowledge(&asked, &over);
}

fn refuses(caller: &mut Desk, callee: &mut Desk, id: &str) {
    let asked = caller.invite(&callee.uri(), id);
    let invite = callee.expect("INVITE ", id, "2 INVITE");
    callee.phone.respond(&invite, "486 Busy Here");
    callee.expect("ACK ", id, "2 ACK");
    let busy = caller.expect("SIP/2.0 486", id, "2 INVITE");
    caller.phone.acknowledge(&asked, &busy);
}
