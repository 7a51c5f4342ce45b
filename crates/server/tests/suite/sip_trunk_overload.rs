//! Trunks that ask for less, over real sockets: overload control (RFC 7339) and Retry-After (RFC 3261 §21.5.4).

use crate::sip_client::phone::{PASSWORD, Phone, credentials, value, values};
use crate::sip_client::status;
use hairpin_server::sip::routes::{Action, NextHop, ProbeConfig, Route, TrunkCounts};
use hairpin_server::sip::{Domain, SipSettings, Trunk};
use hairpin_server::{Running, Server};
use sip::{HeaderKind, Method};
use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What the other end of a trunk answers, and what it got.
struct State {
    code: u16,
    /// Header lines of each response.
    lines: String,
    /// What takes the place of `oc` in the topmost Via of each response; empty: the Via is returned as it came.
    feedback: String,
    requests: Vec<String>,
}

/// The other end of a trunk, over UDP.
struct NextServer {
    at: SocketAddr,
    state: Arc<Mutex<State>>,
    ended: Arc<AtomicBool>,
}

impl NextServer {
    fn new(ip: &str) -> NextServer {
        let socket = UdpSocket::bind((ip, 0)).expect("a socket");
        let step = Some(Duration::from_millis(50));
        socket.set_read_timeout(step).expect("an option");
        let server = NextServer {
            at: socket.local_addr().expect("an address"),
            state: Arc::new(Mutex::new(State {
                code: 200,
                lines: String::new(),
                feedback: String::new(),
                requests: Vec::new(),
            })),
            ended: Arc::default(),
        };
        let (state, ended) = (server.state.clone(), server.ended.clone());
        std::thread::spawn(move || {
            let mut seen = HashSet::new();
            let mut buffer = vec![0; 65_536];
            while !ended.load(Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
                if text.starts_with("ACK ") {
                    continue;
                }
                let mut state = state.lock().expect("not poisoned");
                let response = response(&text, &state, socket.local_addr().expect("bound"));
                if seen.insert(value(&text, "Via").to_owned()) {
                    state.requests.push(text);
                }
                socket.send_to(response.as_bytes(), from).expect("sent");
            }
        });
        server
    }

    fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().expect("not poisoned"));
    }

    /// From now on each response has this in its topmost Via.
    fn report(&self, feedback: &str) {
        self.set(|state| state.feedback = feedback.to_owned());
    }

    fn requests(&self) -> Vec<String> {
        self.state.lock().expect("not poisoned").requests.clone()
    }

    fn count(&self) -> usize {
        self.state.lock().expect("not poisoned").requests.len()
    }

    fn trunk(&self, name: &str) -> Trunk {
        Trunk {
            name: name.to_owned(),
            addresses: vec![self.at.ip().into()],
            to: vec![NextHop::new(&format!("sip:{}", self.at)).expect("a next hop")],
            probe: ProbeConfig {
                interval: Duration::ZERO,
                slow_start: Duration::ZERO,
                ..ProbeConfig::default()
            },
            ..Trunk::default()
        }
    }
}

impl Drop for NextServer {
    fn drop(&mut self) {
        self.ended.store(true, Relaxed);
    }
}

fn response(request: &str, state: &State, contact: SocketAddr) -> String {
    let mut text = format!("SIP/2.0 {} Whatever\r\n", state.code);
    for (place, via) in values(request, "Via").into_iter().enumerate() {
        let via = match place {
            0 => reported(via, &state.feedback),
            _ => via.to_owned(),
        };
        text += &format!("Via: {via}\r\n");
    }
    for route in values(request, "Record-Route") {
        text += &format!("Record-Route: {route}\r\n");
    }
    for name in ["From", "Call-ID", "CSeq"] {
        text += &format!("{name}: {}\r\n", value(request, name));
    }
    let to = value(request, "To");
    let tag = if to.contains(";tag=") { "" } else { ";tag=n1" };
    format!(
        "{text}To: {to}{tag}\r\nContact: <sip:next@{contact}>\r\n{}Content-Length: 0\r\n\r\n",
        state.lines
    )
}

/// A Via with this report of a server (RFC 7339 §5.1).
fn reported(via: &str, feedback: &str) -> String {
    let params = via.split(';').map(|param| match param {
        _ if feedback.is_empty() => param,
        "oc" => feedback,
        param if param.starts_with("oc-algo=") => "oc-algo=\"loss\"",
        param => param,
    });
    params.collect::<Vec<_>>().join(";")
}

fn route(prefix: &str, trunks: &[&str]) -> Route {
    Route {
        name: prefix.to_owned(),
        prefixes: vec![prefix.to_owned()],
        action: Action::Trunks(trunks.iter().map(|&name| name.to_owned()).collect()),
        from_trunks: vec!["sender".to_owned()],
        ..Route::default()
    }
}

/// A server with these trunks, and one more that requests come from.
fn serve(trunks: Vec<Trunk>, names: &[&str], sender: &str, workers: usize) -> Running {
    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    settings.trunks = trunks;
    settings.trunks.push(Trunk {
        name: "sender".to_owned(),
        addresses: vec![format!("{sender}/32").parse().expect("a network")],
        ..Trunk::default()
    });
    let mut of_users = route("+1", names);
    of_users.from_trunks = Vec::new();
    settings.routes = vec![route("+49", names), of_users];
    let server = Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen("127.0.0.1:0".parse().expect("an address"))
        .sip(settings)
        .user("user1", PASSWORD)
        .workers(workers);
    server.start().expect("the server starts")
}

/// Sends requests that begin something, one after the other.
struct Sender {
    socket: UdpSocket,
    number: u32,
}

impl Sender {
    fn new(ip: &str, server: &Running) -> Sender {
        let socket = UdpSocket::bind((ip, 0)).expect("a socket");
        socket.connect(server.sip_listeners()[0]).expect("a route");
        let timeout = Some(Duration::from_secs(20));
        socket.set_read_timeout(timeout).expect("an option");
        Sender { socket, number: 0 }
    }

    /// The final response to a MESSAGE.
    fn ask(&mut self) -> String {
        self.number += 1;
        let (at, number) = (self.socket.local_addr().expect("bound"), self.number);
        let id = format!("{}x{number}", at.port());
        let text = format!(
            "MESSAGE sip:+4930@example.com SIP/2.0\r\nVia: SIP/2.0/UDP {at};rport;branch=z9hG4bK{id}\r\n\
             From: <sip:+4940@peer.example>;tag=1\r\nTo: <sip:+4930@example.com>\r\nCall-ID: {id}\r\n\
             CSeq: 1 MESSAGE\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
        );
        self.socket.send(text.as_bytes()).expect("sent");
        let mut buffer = vec![0; 65_536];
        loop {
            let len = self.socket.recv(&mut buffer).expect("a response in time");
            let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
            if value(&text, "Call-ID") == id && status(&text) >= 200 {
                return text;
            }
        }
    }

    fn succeeds(&mut self, times: usize) {
        for _ in 0..times {
            let answer = self.ask();
            assert_eq!(status(&answer), 200, "{answer}");
        }
    }
}

fn trunk(server: &Running, name: &str) -> TrunkCounts {
    let all = server.observer().sip_trunks();
    let found = all.into_iter().find(|(found, _)| found == name);
    found.expect("a trunk").1
}

/// RFC 7339 §4: a client sends `oc` without a value, and `oc-algo`. Only responses have `oc=`, `oc-validity` and
/// `oc-seq`.
fn is_offer(request: &str) -> bool {
    let via = values(request, "Via")[0];
    let params: Vec<&str> = via.split(';').collect();
    let algorithms = params.iter().find_map(|it| it.strip_prefix("oc-algo=\""));
    let algorithms = algorithms.and_then(|it| it.strip_suffix('"'));
    let has_loss = algorithms.is_some_and(|it| it.split(',').any(|name| name.trim() == "loss"));
    let mut others = params.iter();
    let has_answer =
        others.any(|it| it.starts_with("oc=") || it.starts_with("oc-v") || it.starts_with("oc-s"));
    params.contains(&"oc") && has_loss && !has_answer
}

#[test]
fn a_trunk_that_asks_for_half_gets_half_and_all_when_that_has_expired_rfc7339_5_5() {
    let (a, b) = (NextServer::new("127.0.0.61"), NextServer::new("127.0.0.62"));
    let trunks = vec![a.trunk("a"), b.trunk("b")];
    let server = serve(trunks, &["a", "b"], "127.0.0.63", 1);
    let mut sender = Sender::new("127.0.0.63", &server);
    sender.succeeds(20);
    let requests = a.requests();
    assert_eq!((requests.len(), b.count()), (20, 0));
    assert!(requests.iter().all(|it| is_offer(it)), "{}", requests[0]);

    let begun = Instant::now();
    a.report("oc=50;oc-validity=60000;oc-seq=1.1");
    // RFC 7339 §7.2: for 5 s the client learns the mix of its requests.
    while begun.elapsed() < Duration::from_millis(5_500) {
        sender.succeeds(1);
    }
    let before = (a.count(), b.count());
    sender.succeeds(400);
    let (to_a, to_b) = (a.count() - before.0, b.count() - before.1);
    // On a busy machine the report may expire before all requests are sent. 60 s is the longest validity.
    assert!(to_a >= 150, "{to_a} of 400");
    assert!(
        to_a <= 250 || begun.elapsed() > Duration::from_secs(60),
        "{to_a} of 400"
    );
    assert_eq!(to_a + to_b, 400, "what is held back goes to the next trunk");
    assert!(is_offer(a.requests().last().expect("a request")));
    // A request that overload control holds back does not count as unanswered.
    let counts = trunk(&server, "a");
    assert_eq!((counts.available, counts.silent), (1, 0), "{counts:?}");

    a.report("oc=100;oc-validity=8000;oc-seq=2.0");
    let before = a.count();
    while a.count() == before {
        sender.succeeds(1);
    }
    let told = Instant::now();
    a.report("");
    let before = a.count();
    for _ in 0..10 {
        sender.succeeds(1);
        // On a busy machine the time may be over before the requests are sent.
        assert!(a.count() == before || told.elapsed() > Duration::from_secs(7));
    }
    let over = Duration::from_millis(8_500);
    std::thread::sleep(over.saturating_sub(told.elapsed()));
    let before = a.count();
    sender.succeeds(50);
    assert_eq!(a.count() - before, 50);
    assert_eq!(trunk(&server, "a").available, 1);
}

#[test]
fn a_trunk_that_asks_for_less_gets_all_emergency_calls_rfc7339_5_10_1() {
    let a = NextServer::new("127.0.0.71");
    let server = serve(vec![a.trunk("a")], &["a"], "127.0.0.72", 1);
    let mut sender = Sender::new("127.0.0.72", &server);
    let mut phone = Phone::udp(&server, "user1");
    // Half of the requests are emergency calls, so three in five of the others are throttled.
    a.report("oc=30;oc-validity=60000;oc-seq=1.0");
    sender.ask();
    let begun = Instant::now();
    let mut refused = 0;
    for number in 0..60 {
        refused += u32::from(status(&sender.ask()) == 503);
        let (uri, call) = ("urn:service:sos", format!("sos{number}"));
        let route = format!("Route: <sip:{};lr>\r\n", a.at);
        let asked = phone.request("MESSAGE", uri, &call, 1, &route);
        phone.send(&asked);
        let challenge = phone.expect("SIP/2.0 407");
        let kind = HeaderKind::ProxyAuthorization;
        let line = credentials(&challenge, kind, "user1", Method::Message, uri);
        let asked = phone.request("MESSAGE", uri, &call, 2, &(route + &line));
        phone.send(&asked);
        let answer = phone.receive();
        assert_eq!(status(&answer), 200, "{number}: {answer}");
    }
    // On a busy machine the report may expire before all requests are sent.
    assert!(
        refused > 0 || begun.elapsed() > Duration::from_secs(60),
        "of the others"
    );
}

#[test]
fn a_throttled_request_gets_503_without_retry_after_if_no_trunk_is_left_rfc7339_5_10() {
    let a = NextServer::new("127.0.0.64");
    let server = serve(vec![a.trunk("a")], &["a"], "127.0.0.65", 1);
    let mut sender = Sender::new("127.0.0.65", &server);
    let mut phone = Phone::udp(&server, "user1");
    a.report("oc=100;oc-validity=60000;oc-seq=1.0");
    phone.ask(Method::Invite, "sip:+12@example.com", "held");
    let ok = phone.expect("SIP/2.0 200");
    phone.in_dialog(&ok, "ACK");
    for _ in 0..10 {
        let answer = sender.ask();
        assert_eq!(status(&answer), 503, "{answer}");
        assert!(values(&answer, "Retry-After").is_empty(), "{answer}");
    }
    assert_eq!(a.count(), 1, "the INVITE alone");
    let counts = trunk(&server, "a");
    assert_eq!((counts.available, counts.silent), (1, 0), "{counts:?}");

    // §5.10.1: a BYE frees more than it costs. Its response ends the overload (§5.7).
    a.report("oc=0;oc-validity=0;oc-seq=2.0");
    phone.in_dialog(&ok, "BYE");
    phone.expect("SIP/2.0 200");
    let requests = a.requests();
    assert!(
        requests[1].starts_with("BYE ") && is_offer(&requests[1]),
        "{}",
        requests[1]
    );
    sender.succeeds(20);
    assert_eq!(a.count(), 22);
}

#[test]
fn a_trunk_that_asks_for_a_pause_gets_no_request_meanwhile_rfc3261_21_5_4() {
    let (a, b) = (NextServer::new("127.0.0.66"), NextServer::new("127.0.0.67"));
    let trunks = vec![a.trunk("a"), b.trunk("b")];
    let server = serve(trunks, &["a", "b"], "127.0.0.68", 2);
    // Several sockets, so that both workers get requests.
    let mut senders = [(); 8].map(|()| Sender::new("127.0.0.68", &server));
    a.set(|state| {
        state.code = 503;
        state.lines = "Retry-After: 10\r\n".to_owned();
    });
    let asked = Instant::now();
    senders[0].succeeds(1);
    assert_eq!(
        (a.count(), b.count()),
        (1, 1),
        "the trunk was asked, then the next one"
    );
    let told = Instant::now();
    a.set(|state| {
        state.code = 200;
        state.lines.clear();
    });
    for sender in &mut senders {
        sender.succeeds(2);
        assert!(a.count() == 1 || asked.elapsed() > Duration::from_secs(9));
    }
    let available = trunk(&server, "a").available;
    assert!(available == 0 || asked.elapsed() > Duration::from_secs(9));
    while a.count() == 1 {
        assert!(
            told.elapsed() < Duration::from_secs(60),
            "the pause does not end"
        );
        senders[1].succeeds(1);
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(asked.elapsed() > Duration::from_millis(9_900));
    assert_eq!(trunk(&server, "a").available, 1);
}
