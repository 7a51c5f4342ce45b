//! Calls to trunks by routes, over real sockets and on several workers: hunting, failover under load, probes, and the
//! preview.

use crate::sip_client::example_com;
use crate::sip_client::phone::{PASSWORD, Phone, value, values};
use hairpin_server::sip::routes::{Action, HeaderRule, Hunt, NextHop, ProbeConfig, Route};
use hairpin_server::sip::{Preview, PreviewRequest, Previewer, SipSettings, Transport, Trunk};
use hairpin_server::{Running, Server};
use sip::Method;
use std::collections::{HashMap, HashSet};
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The other end of a trunk.
pub(crate) struct Carrier {
    pub(crate) socket: Arc<UdpSocket>,
    /// It reads and says nothing.
    is_dead: Arc<AtomicBool>,
    pub(crate) ended: Arc<AtomicBool>,
    requests: Arc<AtomicU32>,
}

impl Carrier {
    /// At this address. Responds to each request with these codes, after so many milliseconds each.
    pub(crate) fn new(ip: &str, codes: &'static [(u64, u16)]) -> Carrier {
        let socket = UdpSocket::bind((ip, 0)).expect("a socket");
        let step = Some(Duration::from_millis(5));
        socket.set_read_timeout(step).expect("an option");
        let carrier = Carrier {
            socket: Arc::new(socket),
            is_dead: Arc::default(),
            ended: Arc::default(),
            requests: Arc::default(),
        };
        let (socket, is_dead) = (carrier.socket.clone(), carrier.is_dead.clone());
        let (ended, requests) = (carrier.ended.clone(), carrier.requests.clone());
        std::thread::spawn(move || {
            let mut due: Vec<(Instant, String, SocketAddr)> = Vec::new();
            let mut seen = HashSet::new();
            let mut buffer = vec![0; 65_536];
            while !ended.load(Relaxed) {
                let now = Instant::now();
                let is_dead = is_dead.load(Relaxed);
                due.retain(|(at, text, to)| {
                    if *at <= now && !is_dead {
                        socket.send_to(text.as_bytes(), to).expect("sent");
                    }
                    *at > now
                });
                let Ok((len, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
                if is_dead || text.starts_with("SIP/2.0") || text.starts_with("ACK ") {
                    continue;
                }
                let is_options = text.starts_with("OPTIONS ");
                let codes: &[(u64, u16)] = if is_options { &[(0, 200)] } else { codes };
                let is_new = seen.insert(value(&text, "Via").to_owned());
                requests.fetch_add(u32::from(is_new && !is_options), Relaxed);
                for (ms, code) in codes.iter().filter(|_| is_new) {
                    let at = now + Duration::from_millis(*ms);
                    due.push((at, response(&text, *code), from));
                }
            }
        });
        carrier
    }

    pub(crate) fn at(&self) -> SocketAddr {
        self.socket.local_addr().expect("an address")
    }

    pub(crate) fn requests(&self) -> u32 {
        self.requests.load(Relaxed)
    }

    pub(crate) fn trunk(&self, name: &str) -> Trunk {
        Trunk {
            name: name.to_owned(),
            addresses: vec![self.at().ip().into()],
            to: vec![NextHop::new(&format!("sip:{}", self.at())).expect("a next hop")],
            answer_timeout: Duration::from_secs(2),
            probe: ProbeConfig {
                interval: Duration::ZERO,
                ..ProbeConfig::default()
            },
            ..Trunk::default()
        }
    }
}

impl Drop for Carrier {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
    }
}

pub(crate) fn response(request: &str, code: u16) -> String {
    let mut text = format!("SIP/2.0 {code} Whatever\r\n");
    for via in values(request, "Via") {
        text += &format!("Via: {via}\r\n");
    }
    for route in values(request, "Record-Route") {
        text += &format!("Record-Route: {route}\r\n");
    }
    for name in ["From", "To", "Call-ID", "CSeq"] {
        let tag = if name == "To" { ";tag=c1" } else { "" };
        text += &format!("{name}: {}{tag}\r\n", value(request, name));
    }
    text + "Contact: <sip:carrier@127.0.0.1:9>\r\nContent-Length: 0\r\n\r\n"
}

pub(crate) fn route(prefix: &str, trunks: &[&str]) -> Route {
    Route {
        name: prefix.to_owned(),
        prefixes: vec![prefix.to_owned()],
        action: Action::Trunks(trunks.iter().map(|&name| name.to_owned()).collect()),
        ..Route::default()
    }
}

pub(crate) fn settings(trunks: Vec<Trunk>, routes: Vec<Route>) -> SipSettings {
    let mut settings = example_com();
    settings.trunks = trunks;
    settings.routes = routes;
    settings
}

pub(crate) fn serve(settings: SipSettings) -> Running {
    let server = Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen("127.0.0.1:0".parse().expect("an address"))
        .sip(settings)
        .user("user1", PASSWORD)
        .workers(2);
    server.start().expect("the server starts")
}

/// A peer that is a trunk by its address, and sends whatever it likes.
pub(crate) struct Peer(pub(crate) UdpSocket);

impl Peer {
    pub(crate) fn new(ip: &str, server: &Running) -> Peer {
        let socket = UdpSocket::bind((ip, 0)).expect("a socket");
        socket.connect(server.sip_listeners()[0]).expect("a route");
        let timeout = Some(Duration::from_millis(5));
        socket.set_read_timeout(timeout).expect("an option");
        Peer(socket)
    }

    pub(crate) fn send(&self, method: &str, uri: &str, call: &str, extra: &str) {
        let at = self.0.local_addr().expect("an address");
        let text = format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {at};rport;branch=z9hG4bK{call}\r\n\
             From: <sip:+4930@peer.example>;tag=1\r\nTo: <{uri}>\r\nCall-ID: {call}\r\nCSeq: 1 {method}\r\n\
             Max-Forwards: 70\r\nContact: <sip:{at}>\r\n{extra}Content-Length: 0\r\n\r\n"
        );
        self.0.send(text.as_bytes()).expect("sent");
    }

    pub(crate) fn receive(&self) -> Option<String> {
        let mut buffer = vec![0; 65_536];
        let len = self.0.recv(&mut buffer).ok()?;
        Some(String::from_utf8_lossy(&buffer[..len]).into_owned())
    }
}

#[test]
fn a_user_calls_a_number_and_a_silent_trunk_is_left_after_its_time() {
    let (a, b) = (
        Carrier::new("127.0.0.21", &[]),
        Carrier::new("127.0.0.22", &[(20, 180), (60, 200)]),
    );
    a.is_dead.store(true, Relaxed);
    let trunks = vec![a.trunk("a"), b.trunk("b")];
    let server = serve(settings(trunks, vec![route("+49", &["a", "b"])]));
    let mut phone = Phone::udp(&server, "user1");
    let begin = Instant::now();
    phone.ask(Method::Invite, "sip:+49301234@example.com", "number");
    let ok = phone.expect("SIP/2.0 200");
    let took = begin.elapsed();
    assert!(
        took >= Duration::from_secs(2) && took < Duration::from_secs(6),
        "{took:?}"
    );
    phone.in_dialog(&ok, "ACK");
    let trunks: HashMap<_, _> = server.observer().sip_trunks().into_iter().collect();
    assert_eq!((trunks["a"].silent, trunks["a"].moved_on), (1, 1));
    assert_eq!((trunks["b"].calls, trunks["b"].responses[1]), (1, 1));
}

#[test]
fn calls_from_a_trunk_to_a_trunk_have_the_limits_of_the_domain() {
    let to = Carrier::new("127.0.0.41", &[(10, 200)]);
    let mut from = to.trunk("from");
    from.addresses = vec!["127.0.0.42/32".parse().expect("a network")];
    let mut route = route("+", &["to"]);
    route.from_trunks = vec!["from".to_owned()];
    let mut settings = settings(vec![to.trunk("to"), from], vec![route]);
    settings.calls.per_domain.concurrent = 1;
    // The limits per user do not apply to trunks, so the second call below reaches the limit of the domain.
    settings.calls.per_user.per_second = 1;
    settings.calls.forbidden_prefixes = vec!["+1900".to_owned()];
    let server = serve(settings);
    let peer = Peer::new("127.0.0.42", &server);
    let begin = Instant::now();
    let answer_to = |method: &str, uri: &str, call: &str| {
        peer.send(method, uri, call, "");
        loop {
            let text = peer.receive().unwrap_or_default();
            if text.contains(call) && !text.starts_with("SIP/2.0 1") {
                return text;
            }
            assert!(begin.elapsed() < Duration::from_secs(20), "in time");
        }
    };
    let forbidden = answer_to("MESSAGE", "sip:+19005550199@example.com", "forbidden");
    assert!(forbidden.starts_with("SIP/2.0 403 Number Is Not Allowed"));
    let ok = answer_to("INVITE", "sip:+49301@example.com", "first");
    assert!(ok.starts_with("SIP/2.0 200 "), "{ok}");
    let second = answer_to("INVITE", "sip:+49302@example.com", "second");
    assert!(second.starts_with("SIP/2.0 486 Too Many Calls"), "{second}");
    assert_eq!(to.requests(), 1);
    assert_eq!(server.stats().sip().calls_refused, [0, 0, 1, 0, 1, 0, 0]);
}

/// RFC 3261 §26: a route set is no credential. Whoever has seen a call can send its Record-Route values.
#[test]
fn the_route_set_of_a_call_leads_to_its_other_party_only() {
    let carriers = ["127.0.0.43", "127.0.0.44", "127.0.0.46"];
    let [a, b, unnamed] = carriers.map(|ip| Carrier::new(ip, &[(0, 200)]));
    let trunks = vec![a.trunk("a"), b.trunk("b"), unnamed.trunk("")];
    let server = serve(settings(trunks, vec![route("+49", &["a"])]));
    let mut phone = Phone::udp(&server, "user1");
    phone.ask(Method::Invite, "sip:+49301@example.com", "call");
    let ok = phone.expect("SIP/2.0 200");
    let stranger = Peer::new("127.0.0.45", &server);
    let own = stranger.0.local_addr().expect("an address");
    let route_set = |ok: &str| {
        let mut routes = values(ok, "Record-Route");
        routes.reverse();
        (routes.join(", "), value(ok, "Call-ID").to_owned())
    };
    let mut dialog = route_set(&ok);
    let mut number = 0;
    let mut answer = |dialog: &(String, String), method: &str, to: SocketAddr, tag: &str| {
        number += 1;
        let (routes, call) = dialog;
        let text = format!(
            "{method} sip:x@{to} SIP/2.0\r\nVia: SIP/2.0/UDP {own};rport;branch=z9hG4bKs{number}\r\n\
             From: <sip:user1@example.com>;tag=1\r\nTo: <sip:x@{to}>{tag}\r\nCall-ID: {call}\r\n\
             CSeq: {number} {method}\r\nMax-Forwards: 70\r\nRoute: {routes}\r\nContact: <sip:{own}>\r\n\
             Content-Length: 0\r\n\r\n"
        );
        stranger.0.send(text.as_bytes()).expect("sent");
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let text = stranger.receive().unwrap_or_default();
            if text.contains(&format!("CSeq: {number} ")) && !text.starts_with("SIP/2.0 1") {
                return text.lines().next().unwrap_or_default().to_owned();
            }
            assert!(Instant::now() < end, "{method} {to} {tag}");
        }
    };
    for method in ["MESSAGE", "INVITE", "REGISTER", "SUBSCRIBE"] {
        // Without a To tag, it is a request of its own.
        let code = answer(&dialog, method, a.at(), "");
        assert!(code.starts_with("SIP/2.0 407 "), "{method}: {code}");
        // Neither another trunk nor the source address, which may be forged.
        for to in [b.at(), own] {
            let code = answer(&dialog, method, to, ";tag=2");
            assert!(code.starts_with("SIP/2.0 403 "), "{method} {to}: {code}");
        }
    }
    assert_eq!((a.requests(), b.requests()), (1, 0));
    // The call goes on.
    let code = answer(&dialog, "BYE", a.at(), ";tag=c1");
    assert!(code.starts_with("SIP/2.0 200 "), "{code}");
    assert_eq!(a.requests(), 2);
    // Calls to the addresses of trunks, with and without a name.
    for (carrier, call) in [(&b, "named"), (&unnamed, "unnamed")] {
        let to = carrier.at();
        phone.ask(Method::Invite, &format!("sip:x@{to}"), call);
        let ok = phone.expect("SIP/2.0 200");
        dialog = route_set(&ok);
        let code = answer(&dialog, "BYE", to, ";tag=c1");
        assert!(code.starts_with("SIP/2.0 200 "), "{call}: {code}");
    }
}

/// What became of calls.
#[derive(Default)]
struct Calls {
    sent_at: Vec<Duration>,
    died: Duration,
    rang: HashMap<usize, Duration>,
    answered: HashMap<usize, Duration>,
    failed: HashMap<usize, String>,
}

/// 200 calls per second for six seconds. After two of them the trunk dies.
fn load(generator: &Peer, die: impl Fn()) -> Calls {
    let (rate, seconds) = (200_u32, 6_u32);
    let begin = Instant::now();
    let mut calls = Calls::default();
    while begin.elapsed() < Duration::from_secs(u64::from(seconds) + 5) {
        let now = begin.elapsed();
        if calls.died.is_zero() && now >= Duration::from_secs(2) {
            die();
            calls.died = now;
        }
        let mut sent = calls.sent_at.len() as u32;
        while sent < rate * seconds && now >= Duration::from_secs(1) / rate * sent {
            let uri = "sip:+49301234@example.com";
            generator.send("INVITE", uri, &format!("c{sent}"), "");
            calls.sent_at.push(now);
            sent += 1;
        }
        let Some(text) = generator.receive() else {
            continue;
        };
        let call: usize = value(&text, "Call-ID")[1..].parse().expect("a number");
        match &text[8..11] {
            "100" => {}
            "180" => drop(calls.rang.entry(call).or_insert(now)),
            "200" => drop(calls.answered.entry(call).or_insert(now)),
            _ => drop(calls.failed.insert(call, text)),
        }
    }
    assert_eq!(calls.sent_at.len() as u32, rate * seconds);
    calls
}

impl Calls {
    /// How many rang and were lost, and how long the slowest of the others took.
    fn judge(&self) -> (usize, Duration) {
        let mut lost_after_ringing = 0;
        let mut slowest = Duration::ZERO;
        for (call, at) in self.sent_at.iter().enumerate() {
            if let Some(end) = self.answered.get(&call) {
                slowest = slowest.max(*end - *at);
                continue;
            }
            // It rang at the trunk that died.
            let latest = self.died + Duration::from_millis(200);
            let has_rung = self.rang.get(&call).is_some_and(|rang| *rang < latest);
            assert!(has_rung, "call {call}: {:?}", self.failed);
            lost_after_ringing += 1;
        }
        (lost_after_ringing, slowest)
    }
}

#[test]
fn a_trunk_that_dies_under_200_calls_per_second_loses_only_calls_that_rang() {
    let (a, b) = (
        Carrier::new("127.0.0.23", &[(0, 180), (300, 200)]),
        Carrier::new("127.0.0.24", &[(0, 180), (300, 200)]),
    );
    let mut from = route("+49", &["a", "b"]);
    from.from_trunks = vec!["peer".to_owned()];
    let peer = Trunk {
        name: "peer".to_owned(),
        addresses: vec!["127.0.0.25/32".parse().expect("a network")],
        ..Trunk::default()
    };
    let server = serve(settings(vec![a.trunk("a"), b.trunk("b"), peer], vec![from]));
    let generator = Peer::new("127.0.0.25", &server);
    let calls = load(&generator, || a.is_dead.store(true, Relaxed));
    let (lost_after_ringing, slowest) = calls.judge();
    let (sent, failed) = (calls.sent_at.len(), &calls.failed);
    let trunks: HashMap<_, _> = server.observer().sip_trunks().into_iter().collect();
    println!(
        "{sent} calls, {lost_after_ringing} rang and were lost, {} moved on, the slowest took {slowest:?}",
        trunks["a"].moved_on
    );
    assert!(failed.is_empty(), "{failed:?}");
    // 300 ms of ringing at 200 calls per second, and some more on a busy machine.
    assert!(lost_after_ringing <= 200, "{lost_after_ringing}");
    // 2 s without an answer, and 300 ms of ringing. Without `answer_timeout` it would be 32 s (Timer B).
    assert!(slowest < Duration::from_secs(20), "{slowest:?}");
    assert!(trunks["a"].moved_on >= 1);
    assert!(b.requests() >= 700, "{}", b.requests());
    // Three calls without a response are enough: the trunk is left alone then.
    assert!(trunks["a"].calls < 1_000, "{}", trunks["a"].calls);
}

#[test]
fn probes_take_a_trunk_out_and_bring_it_back() {
    let (a, b) = (
        Carrier::new("127.0.0.26", &[(0, 200)]),
        Carrier::new("127.0.0.27", &[(0, 200)]),
    );
    let mut first = a.trunk("a");
    first.probe = ProbeConfig {
        interval: Duration::from_millis(100),
        failures: 3,
        successes: 2,
        slow_start: Duration::ZERO,
    };
    let mut from = route("+49", &["a", "b"]);
    from.from_trunks = vec!["b".to_owned()];
    let server = serve(settings(vec![first, b.trunk("b")], vec![from]));
    let available = |name: &str| {
        let trunks = server.observer().sip_trunks();
        let found = trunks.into_iter().find(|(found, _)| found == name);
        found.expect("a trunk").1
    };
    let until = |is_up: u64| {
        let end = Instant::now() + Duration::from_secs(20);
        while available("a").available != is_up {
            assert!(Instant::now() < end, "{:?}", available("a"));
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    while available("a").probes_answered < 3 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let peer = Peer::new("127.0.0.27", &server);
    let mut number = 0;
    let mut ask = || {
        number += 1;
        peer.send(
            "MESSAGE",
            "sip:+4930@example.com",
            &format!("p{number}"),
            "",
        );
        let end = Instant::now() + Duration::from_secs(10);
        while Instant::now() < end {
            if let Some(text) = peer.receive() {
                assert!(text.starts_with("SIP/2.0 200"), "{text}");
                return;
            }
        }
        panic!("no response");
    };
    ask();
    assert_eq!((a.requests(), b.requests()), (1, 0));
    a.is_dead.store(true, Relaxed);
    until(0);
    assert!(available("a").probes_failed >= 3);
    ask();
    assert_eq!(
        (a.requests(), b.requests()),
        (1, 1),
        "nothing was tried at the dead one"
    );
    a.is_dead.store(false, Relaxed);
    until(1);
    ask();
    assert_eq!((a.requests(), b.requests()), (2, 1));
}

/// Numbers that look random, and are the same in every run.
fn next(state: &mut u64, end: u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state % end
}

fn random_settings(sink: &Carrier) -> SipSettings {
    let trunk = |name: &str| Trunk {
        domain: Some(format!("{name}.example")),
        ..sink.trunk(name)
    };
    let mut trunks: Vec<Trunk> = ["a", "b", "c"].iter().map(|name| trunk(name)).collect();
    let sender = |name: &str, ip: &str| Trunk {
        name: name.to_owned(),
        addresses: vec![ip.parse().expect("a network")],
        ..Trunk::default()
    };
    trunks.push(sender("x", "127.0.0.31/32"));
    trunks.push(sender("y", "127.0.0.32/32"));
    let mut state = 0x0dd_ba11;
    let mut routes = Vec::new();
    for number in 0..40 {
        let digits = |state: &mut u64| -> String {
            let len = 1 + next(state, 4);
            (0..len)
                .map(|_| char::from(b'1' + next(state, 3) as u8))
                .collect()
        };
        let from = ["x", "y"][next(&mut state, 2) as usize];
        let mut route = route(&digits(&mut state), &["a", "b", "c"]);
        route.name = number.to_string();
        route.from_trunks = vec![from.to_owned()];
        route.hunt = [Hunt::Order, Hunt::Hash][next(&mut state, 2) as usize];
        route.strip = next(&mut state, 2) as u16;
        route.priority = next(&mut state, 2) as u16;
        match next(&mut state, 8) {
            0 => {
                route.action = Action::Reject {
                    code: 403,
                    reason: String::new(),
                }
            }
            1 => route.from_trunks.clear(),
            2 => {
                route.headers = vec![HeaderRule {
                    name: "X-Tenant".to_owned(),
                    value: "7".to_owned(),
                    is_prefix: false,
                }];
            }
            _ => {}
        }
        routes.push(route);
    }
    settings(trunks, routes)
}

#[test]
fn the_preview_and_the_running_server_agree_on_10000_requests() {
    let sink = Carrier::new("127.0.0.30", &[]);
    sink.ended.store(true, Relaxed);
    let settings = random_settings(&sink);
    let server = serve(settings.clone());
    let sink = sink.socket.try_clone().expect("a socket");
    let step = Some(Duration::from_millis(1));
    sink.set_read_timeout(step).expect("an option");
    std::thread::sleep(Duration::from_millis(50));
    let peers = [("x", "127.0.0.31"), ("y", "127.0.0.32")].map(|(_, ip)| Peer::new(ip, &server));
    let listeners = server.sip_listeners().to_vec();
    let previewer = Previewer::new(&settings, &["user1"], &listeners).expect("settings");
    let mut state = 0xfeed_beef_u64;
    let mut buffer = vec![0; 65_536];
    let mut forwarded = 0;
    for number in 0..10_000 {
        let peer = &peers[next(&mut state, 2) as usize];
        let digits: String = (0..1 + next(&mut state, 6))
            .map(|_| char::from(b'1' + next(&mut state, 3) as u8))
            .collect();
        let host = ["example.com", "other.example"][usize::from(next(&mut state, 5) == 0)];
        let uri = format!("sip:{digits}@{host}");
        let tenant = next(&mut state, 3) == 0;
        let call_id = format!("r{number}");
        let (extra, headers) = match tenant {
            true => ("X-Tenant: 7\r\n", vec!["X-Tenant: 7".to_owned()]),
            false => ("", Vec::new()),
        };
        let source = peer.0.local_addr().expect("an address");
        let expected = previewer.preview(&PreviewRequest {
            transport: Transport::Udp,
            certificate: None,
            method: "MESSAGE",
            from: "sip:+4930@peer.example",
            to: &uri,
            source,
            headers: &headers,
            call_id: &call_id,
            draw: 0,
        });
        let expected = match expected.expect("a preview").outcome {
            Preview::Forwarded(targets) => targets[0].uri.clone(),
            Preview::Refused(code, _) => code.to_string(),
            other => panic!("{other:?}"),
        };
        peer.send("MESSAGE", &uri, &call_id, extra);
        let end = Instant::now() + Duration::from_secs(20);
        let happened = loop {
            assert!(Instant::now() < end, "nothing came of {uri}");
            if let Ok((len, from)) = sink.recv_from(&mut buffer) {
                let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
                if value(&text, "Call-ID") != call_id {
                    continue;
                }
                sink.send_to(response(&text, 200).as_bytes(), from)
                    .expect("sent");
                while peer.receive().is_none() {}
                forwarded += 1;
                break text.split(' ').nth(1).expect("a URI").to_owned();
            }
            if let Some(text) = peer.receive() {
                break text[8..11].to_owned();
            }
        };
        assert_eq!(happened, expected, "{uri} of {source}");
    }
    assert!((1_000..9_500).contains(&forwarded), "{forwarded}");
}
