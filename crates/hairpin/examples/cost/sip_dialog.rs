//! A request within a dialog through the proxy, without sockets: with and without an overload. In an overload, the token
//! in its Route proves the dialog before the request is parsed.

use crate::{Outcome, measure};
use sip::congestion::Backlog;
use sip::dispatch::{self, Dispatcher, Source};
use sip::endpoint::{Endpoint, Task};
use sip::engine::{Config, Engine, SentBy};
use sip::flow::{Flow, ListenerKey, Transport};
use sip::uri::Uri;
use sip::verdict::Rules;
use sip::{HashKey, Mono, Now};
use sip_server::Aor;
use sip_server::location::{
    Change, Found, Limits, Location as _, MemoryLocation, NO_Q, NewBinding, Saved,
};
use sip_server::memory_site::MemorySite;
use sip_server::proxy::{Inbound, Proxy, RouteProof};
use sip_server::registrar::{Domain, Domains, Registrar};
use sip_server::registrar_proxy::RegistrarProxy;
use sip_server::users::Users;
use std::hint::black_box;
use std::net::SocketAddr;
use std::time::Duration;

/// Requests in one round.
const ROUND: usize = 32;
/// The time from one request to the next. A transaction over UDP lasts for 32 s, so about 64 exist at a time.
const GAP_NS: u64 = 500_000_000;
/// Messages that wait in an overload, and their time: 100 ms, half of the tolerance. So some new requests are refused.
const WAITING: u64 = 2_000;
const SERVICE_TIME: Duration = Duration::from_micros(50);
/// The engine learns the service time from [`SAMPLES`] batches of [`SAMPLE`] messages, as workers report them.
const SAMPLES: u32 = 1_000;
const SAMPLE: u32 = 16;
const LISTENER: ListenerKey = ListenerKey(0);
const DOMAIN: &str = "example.com";
const RUN: u32 = 1;
const CALLER: &str = "192.0.2.2:5060";
const CALLEE: &str = "192.0.2.3:5060";

struct TestBed {
    endpoint: Endpoint<RegistrarProxy<MemorySite>>,
    now: Now,
    local: SocketAddr,
    /// The Route field of the caller: the Record-Route that it got.
    route: String,
    is_overloaded: bool,
    message: Vec<u8>,
    /// What was sent last.
    sent: Vec<u8>,
    count: u64,
}

/// Measures everything.
pub(crate) fn run() -> Outcome<()> {
    for (name, is_overloaded) in [
        ("engine: SIP INFO through the proxy", false),
        ("engine: SIP INFO through the proxy, in an overload", true),
    ] {
        let mut bed = TestBed::new(is_overloaded)?;
        measure(name, &mut || {
            (0..ROUND).try_for_each(|_| bed.once())?;
            Ok(ROUND)
        })?;
    }
    Ok(())
}

/// One message and everything that follows from it. Not inlined: the tools find it by its name.
#[inline(never)]
fn proxy_turn(bed: &mut TestBed, remote: SocketAddr) {
    let flow = Flow {
        transport: Transport::Udp,
        listener: LISTENER,
        connection: None,
        local: bed.local,
        remote,
    };
    bed.endpoint.handle_message(bed.now, &flow, &bed.message);
    let sent = &mut bed.sent;
    bed.endpoint.drain(bed.now, |task| {
        if let Task::Send { bytes, .. } = task {
            sent.clear();
            sent.extend_from_slice(black_box(bytes));
        }
    });
    if bed
        .endpoint
        .poll_timeout()
        .is_some_and(|at| at <= bed.now.mono)
    {
        bed.endpoint.handle_timeout(bed.now);
    }
}

/// A domain that everybody may call, with one user, whose phone is registered.
fn site(key: HashKey, local: SocketAddr, now: Now) -> Outcome<MemorySite> {
    let domain = Domain {
        name: DOMAIN.to_owned(),
        inbound: Inbound::Anyone,
        ..Domain::default()
    };
    let mut users = Users::new(DOMAIN, key);
    users.add("bob", "secret");
    let mut site = MemorySite {
        domains: Domains::new(vec![domain])?,
        local,
        users,
        location: MemoryLocation::new(key, Limits::default()),
    };
    let Uri::Sip(uri) = Uri::parse(b"sip:bob@example.com")? else {
        return Err("no SIP URI".into());
    };
    let bob = Aor::of(&uri, DOMAIN.as_bytes()).ok_or("no address of record")?;
    let contact = format!("sip:bob@{CALLEE}");
    let binding = NewBinding {
        uri: contact.as_bytes(),
        params: b"",
        instance: b"",
        call_id: b"1",
        cseq: 1,
        path: b"",
        agent: b"",
        flow: None,
        q: NO_Q,
        reg_id: 0,
        gruu: 0,
        expires: Mono(u64::MAX),
        updated: now.mono,
    };
    let Found::Bindings(revision, _) = site.location.find(&bob) else {
        return Err("no bindings".into());
    };
    let mut changes = vec![Change::Add(sip_server::location::Binding::new(&binding)?)];
    match site.location.change(now, &bob, revision, &mut changes)? {
        Saved::Now => Ok(site),
        _ => Err("the binding is not saved".into()),
    }
}

fn endpoint(local: SocketAddr, now: Now) -> Outcome<Endpoint<RegistrarProxy<MemorySite>>> {
    let key = HashKey::new([3; 16]);
    let mut config = Config::new(0, key);
    config.rules = Rules::PROXY;
    let (host, port) = (local.ip().to_string(), local.port());
    config.sent_by = vec![SentBy::new(LISTENER, Transport::Udp, &host, port)];
    let mut engine = Engine::new(config, 1);
    engine.set_proof(Box::new(RouteProof::new(key)));
    let source = Source {
        listener: LISTENER,
        transport: Transport::Udp,
        is_v4: true,
    };
    let mut dispatch = dispatch::Config::new(vec![source]);
    dispatch.allowed = Box::new(|_, _| true);
    let dispatcher = Dispatcher::new(dispatch, key, 1);
    let site = site(key, local, now)?;
    let registrar = Registrar::new(
        sip_server::registrar::Config::default(),
        site.domains.clone(),
        key,
        RUN.into(),
    )?;
    let proxy = Proxy::new(sip_server::proxy::Config::default(), key, 0, RUN);
    let user = RegistrarProxy::new(registrar, proxy, site, RUN);
    Ok(Endpoint::new(engine, dispatcher, user))
}

impl TestBed {
    fn new(is_overloaded: bool) -> Outcome<TestBed> {
        let local = "192.0.2.1:5060".parse()?;
        let now = Now {
            mono: Mono(1_000_000_000),
            unix_s: 1_700_000_000,
        };
        let mut bed = TestBed {
            endpoint: endpoint(local, now)?,
            now,
            local,
            route: String::new(),
            is_overloaded,
            message: Vec::new(),
            sent: Vec::new(),
            count: 0,
        };
        bed.call()?;
        Ok(bed)
    }

    /// A call, whose dialog has the requests that are measured.
    fn call(&mut self) -> Outcome<()> {
        self.compose("INVITE", "");
        proxy_turn(self, CALLER.parse()?);
        self.answer(";tag=bob")?;
        let text = std::str::from_utf8(&self.sent)?;
        let line = text.lines().find(|line| line.starts_with("Record-Route:"));
        let line = line.ok_or("no Record-Route")?;
        self.route = line.trim_start_matches("Record-").to_owned() + "\r\n";
        let engine = self.endpoint.engine_mut();
        for _ in 0..SAMPLES {
            engine.observe_service(SAMPLE, SERVICE_TIME * SAMPLE);
        }
        Ok(())
    }

    /// Sends an INFO, which the proxy forwards. Then answers it with a 200, which the proxy forwards, too.
    fn once(&mut self) -> Outcome<()> {
        self.count += 1;
        self.now.mono.0 += GAP_NS;
        let messages = if self.is_overloaded { WAITING } else { 0 };
        let backlog = Backlog {
            messages,
            ..Backlog::default()
        };
        let engine = self.endpoint.engine_mut();
        engine.observe_backlog(self.now, backlog);
        if engine.is_overloaded() != self.is_overloaded {
            return Err("the load is another one".into());
        }
        self.compose("INFO", ";tag=bob");
        proxy_turn(self, CALLER.parse()?);
        self.answer("")
    }

    fn compose(&mut self, method: &str, to_tag: &str) {
        let (number, route) = (self.count, &self.route);
        let target = if route.is_empty() { DOMAIN } else { CALLEE };
        let text = format!(
            "{method} sip:bob@{target} SIP/2.0\r\n\
             Via: SIP/2.0/UDP {CALLER};branch=z9hG4bK{method}{number:012x};rport\r\n{route}\
             Max-Forwards: 70\r\nFrom: <sip:alice@elsewhere.example>;tag=1\r\n\
             To: <sip:bob@{DOMAIN}>{to_tag}\r\nCall-ID: 1@192.0.2.2\r\nCSeq: {} {method}\r\n\
             Contact: <sip:alice@{CALLER}>\r\nContent-Length: 0\r\n\r\n",
            number + 1,
        );
        self.message.clear();
        self.message.extend_from_slice(text.as_bytes());
    }

    /// The callee answers what was sent last with 200.
    fn answer(&mut self, to_tag: &str) -> Outcome<()> {
        let sent = std::str::from_utf8(&self.sent)?;
        let (start, fields) = sent.split_once("\r\n").ok_or("nothing was sent")?;
        if !start.ends_with(&format!("@{CALLEE} SIP/2.0")) {
            return Err(format!("not forwarded: {start}").into());
        }
        let to = format!("To: <sip:bob@{DOMAIN}>");
        let contact = format!("SIP/2.0 200 OK\r\nContact: <sip:bob@{CALLEE}>\r\n");
        let fields = fields.replacen(&to, &format!("{to}{to_tag}"), 1);
        self.message = [contact, fields].concat().into_bytes();
        proxy_turn(self, CALLEE.parse()?);
        match self.sent.starts_with(b"SIP/2.0 200 ") {
            true => Ok(()),
            false => Err("the answer is not forwarded".into()),
        }
    }
}
