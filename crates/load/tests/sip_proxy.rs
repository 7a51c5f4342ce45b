//! Both ends of calls through a small proxy with a registrar, over UDP and TCP.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use hairpin_load::generator::{
    Plan, Run, SipCredentials, SipOptions, SipWorkload, Stopper, Target, sip,
};
use hairpin_load::measure::{Rate, Schedule};
use hairpin_load::report::LoadReport;
use hairpin_load::sip::Transport;

/// A stateless proxy that keeps bindings by user, and challenges what begins a call or a registration if it is told to.
struct Proxy {
    own: SocketAddr,
    transport: &'static str,
    challenges: bool,
    bindings: HashMap<String, SocketAddr>,
    /// Users that have answered a challenge, and calls that went through.
    proved: Vec<String>,
    calls: u64,
}

fn lines(text: &str) -> (Vec<&str>, &str) {
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    (head.split("\r\n").collect(), body)
}

fn is(line: &str, name: &str) -> bool {
    let found = line.split(':').next().unwrap_or_default();
    found.eq_ignore_ascii_case(name)
}

fn user_of(uri: &str) -> &str {
    uri.trim_start_matches("sip:").split('@').next().unwrap()
}

/// The address of `sip:user@ADDRESS;parameters`.
fn address_of(uri: &str) -> Option<SocketAddr> {
    let host = uri.split('@').nth(1)?;
    host.split([';', '>']).next()?.parse().ok()
}

impl Proxy {
    #[allow(clippy::too_many_lines)] // a proxy of one piece is easier to follow
    fn handle(&mut self, from: SocketAddr, text: &str) -> Vec<(SocketAddr, String)> {
        let (mut head, body) = lines(text);
        if head[0].starts_with("SIP/2.0") {
            // The topmost Via is ours, and says where the request came from.
            let at = head.iter().position(|line| is(line, "Via")).unwrap();
            let own = head.remove(at);
            let to = own.split("z9hG4bKp-").nth(1).unwrap();
            let to = to.split('-').next().unwrap().parse().unwrap();
            return vec![(to, join(&head, body))];
        }
        let mut words = head[0].split(' ');
        let (method, uri) = (words.next().unwrap(), words.next().unwrap().to_owned());
        let value = |name: &str| {
            let found = head.iter().find(|line| is(line, name));
            found.map(|line| line.split_once(':').unwrap().1.trim().to_owned())
        };
        let answer = |status: &str, more: &str| {
            let kept = ["via", "from", "to", "call-id", "cseq"];
            let kept = head[1..]
                .iter()
                .filter(|line| kept.iter().any(|name| is(line, name)));
            let kept: Vec<&str> = kept.copied().collect();
            let text = format!(
                "SIP/2.0 {status}\r\n{}\r\n{more}Content-Length: 0\r\n\r\n",
                kept.join("\r\n")
            );
            vec![(from, text)]
        };
        let begins = matches!(method, "REGISTER" | "INVITE");
        let proof = value("Authorization").or(value("Proxy-Authorization"));
        if self.challenges && begins {
            let Some(proof) = proof else {
                return match method {
                    "REGISTER" => answer(
                        "401 Unauthorized",
                        "WWW-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth\"\r\n",
                    ),
                    _ => answer(
                        "407 Proxy Authentication Required",
                        "Proxy-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth\"\r\n",
                    ),
                };
            };
            let name = proof.split("username=\"").nth(1).unwrap();
            let name = name.split('"').next().unwrap().to_owned();
            let from = value("From").unwrap();
            assert!(from.contains(&format!("sip:{name}@")), "{from} {proof}");
            assert!(proof.contains(&format!("uri=\"{uri}\"")), "{text}");
            self.proved.push(name);
        }
        if method == "REGISTER" {
            let user = user_of(value("To").unwrap().trim_start_matches('<')).to_owned();
            match value("Expires").as_deref() {
                Some("0") => drop(self.bindings.remove(&user)),
                _ => drop(self.bindings.insert(user, from)),
            }
            return answer("200 OK", "");
        }
        if method == "ACK" && value("Route").is_none() {
            // It answers our own 407, or goes where the INVITE went.
            let Some(to) = self
                .bindings
                .get(user_of(&uri))
                .filter(|_| !self.challenges)
            else {
                return Vec::new();
            };
            return vec![(*to, self.forward(&head, body, from))];
        }
        let to = address_of(&uri).filter(|to| *to != self.own);
        let to = to.or(self.bindings.get(user_of(&uri)).copied());
        let Some(to) = to else {
            return answer("404 Not Found", "");
        };
        self.calls += u64::from(method == "INVITE");
        vec![(to, self.forward(&head, body, from))]
    }

    fn forward(&self, head: &[&str], body: &str, from: SocketAddr) -> String {
        let branch = head.iter().find(|line| is(line, "Via")).unwrap();
        let branch = branch.split("z9hG4bK").nth(1).unwrap();
        let branch = branch.split(';').next().unwrap();
        let (own, transport) = (self.own, self.transport);
        let via = format!(
            "Via: SIP/2.0/{} {own};branch=z9hG4bKp-{from}-{branch}",
            transport.to_uppercase()
        );
        let record = format!("Record-Route: <sip:{own};transport={transport};lr>");
        let mut all = vec![head[0], &via];
        if head[0].starts_with("INVITE") {
            all.push(&record);
        }
        let rest = head[1..].iter().filter(|line| !is(line, "Route"));
        all.extend(rest);
        join(&all, body)
    }
}

fn join(head: &[&str], body: &str) -> String {
    format!("{}\r\n\r\n{body}", head.join("\r\n"))
}

/// A proxy at work. It ends when dropped.
struct Running {
    address: SocketAddr,
    proxy: Arc<Mutex<Proxy>>,
    done: Arc<AtomicBool>,
}

impl Drop for Running {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

fn start(transport: Transport, challenges: bool) -> Running {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let is_tcp = transport == Transport::Tcp;
    let own = match is_tcp {
        true => listener.local_addr().unwrap(),
        false => socket.local_addr().unwrap(),
    };
    let proxy = Arc::new(Mutex::new(Proxy {
        own,
        transport: transport.in_uri(),
        challenges,
        bindings: HashMap::new(),
        proved: Vec::new(),
        calls: 0,
    }));
    let done = Arc::new(AtomicBool::new(false));
    let running = Running {
        address: own,
        proxy: Arc::clone(&proxy),
        done: Arc::clone(&done),
    };
    match is_tcp {
        true => drop(thread::spawn(move || accept(&listener, &proxy, &done))),
        false => drop(thread::spawn(move || serve(&socket, &proxy, &done))),
    }
    running
}

fn serve(socket: &UdpSocket, proxy: &Mutex<Proxy>, done: &AtomicBool) {
    let step = Some(Duration::from_millis(50));
    socket.set_read_timeout(step).unwrap();
    let mut buffer = [0; 4096];
    while !done.load(Ordering::Relaxed) {
        let Ok((length, from)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let text = std::str::from_utf8(&buffer[..length]).unwrap();
        for (to, text) in proxy.lock().unwrap().handle(from, text) {
            socket.send_to(text.as_bytes(), to).unwrap();
        }
    }
}

type Writers = Arc<Mutex<HashMap<SocketAddr, TcpStream>>>;

fn accept(listener: &TcpListener, proxy: &Arc<Mutex<Proxy>>, done: &Arc<AtomicBool>) {
    listener.set_nonblocking(true).unwrap();
    let writers = Writers::default();
    while !done.load(Ordering::Relaxed) {
        let Ok((stream, from)) = listener.accept() else {
            thread::sleep(Duration::from_millis(2));
            continue;
        };
        stream.set_nonblocking(false).unwrap();
        let writer = stream.try_clone().unwrap();
        writers.lock().unwrap().insert(from, writer);
        let (proxy, writers) = (Arc::clone(proxy), Arc::clone(&writers));
        thread::spawn(move || relay(stream, from, &proxy, &writers));
    }
}

fn relay(mut stream: TcpStream, from: SocketAddr, proxy: &Mutex<Proxy>, writers: &Writers) {
    let (mut waiting, mut buffer) = (Vec::new(), [0; 16_384]);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        waiting.extend_from_slice(&buffer[..length]);
        loop {
            let text = String::from_utf8(waiting.clone()).unwrap();
            let Some(at) = text.find("\r\n\r\n") else {
                break;
            };
            let size = text[..at].split("Content-Length: ").nth(1).unwrap();
            let size: usize = size.split("\r\n").next().unwrap().parse().unwrap();
            let end = at + 4 + size;
            if text.len() < end {
                break;
            }
            waiting.drain(..end);
            for (to, text) in proxy.lock().unwrap().handle(from, &text[..end]) {
                if let Some(writer) = writers.lock().unwrap().get_mut(&to) {
                    writer.write_all(text.as_bytes()).unwrap();
                }
            }
        }
    }
}

fn options(proxy: &Running, transport: Transport) -> SipOptions {
    let mut options = SipOptions::new(Target::admit(proxy.address, false).unwrap());
    options.workload = SipWorkload::Proxy;
    options.transport = transport;
    options.links = 3;
    options.aors = 20;
    options.aor = "phone{n}".to_owned();
    options.domain = Some("example.org".to_owned());
    options
}

fn plan(options: &SipOptions, senders: usize) -> Plan {
    let mut plan = sip(options, &Stopper::new()).unwrap();
    plan.senders = senders;
    plan.warm_up = Duration::from_millis(100);
    plan.duration = Duration::from_millis(500);
    plan.set_schedule(&Schedule::constant(Rate(200.0)));
    plan
}

fn report(plan: Plan) -> LoadReport {
    Run::start(plan).unwrap().finish()
}

#[test]
fn users_register_call_each_other_and_leave() {
    for (transport, senders) in [
        (Transport::Udp, 1),
        (Transport::Udp, 2),
        (Transport::Tcp, 1),
        (Transport::Tcp, 2),
    ] {
        let proxy = start(transport, false);
        let report = report(plan(&options(&proxy, transport), senders));
        let sip = report.sip.as_deref().unwrap();
        let callees = sip.callees.unwrap();
        assert_eq!((callees.registered, callees.left), (20, 20), "{report}");
        assert_eq!(report.total.received, report.total.sent, "{report}");
        assert!(report.total.sent >= 80, "{report}");
        // Both ends have seen the same calls, those of the warm-up included.
        let (came, seen) = (callees.answered, proxy.proxy.lock().unwrap());
        assert_eq!(
            (came.invite, came.ack, came.bye),
            (seen.calls, seen.calls, seen.calls),
            "{report}"
        );
        assert_eq!(
            (came.other, came.ignored, came.unacknowledged),
            (0, 0, 0),
            "{report}"
        );
        assert_eq!(
            (sip.stray, sip.foreign_requests, sip.broken),
            (0, 0, 0),
            "{report}"
        );
        assert!(
            seen.bindings.is_empty() && report.errors.is_empty(),
            "{report}"
        );
    }
}

#[test]
fn callers_and_callees_prove_who_they_are() {
    let proxy = start(Transport::Udp, true);
    let mut options = options(&proxy, Transport::Udp);
    options.credentials = Some(SipCredentials {
        user: "phone{n}".to_owned(),
        password: "secret{n}".to_owned(),
    });
    for reuse in [false, true] {
        options.reuse_nonces = reuse;
        let report = report(plan(&options, 1));
        assert_eq!(report.total.received, report.total.sent, "{report}");
        assert!(report.errors.is_empty(), "{report}");
        let challenges = report.sip.as_deref().unwrap().challenges;
        match reuse {
            false => assert_eq!(challenges, report.total.sent, "{report}"),
            // Each AOR has its first challenge behind it.
            true => assert!(challenges <= 20, "{report}"),
        }
    }
    let seen = proxy.proxy.lock().unwrap();
    let users: std::collections::HashSet<_> = seen.proved.iter().collect();
    assert_eq!(users.len(), 20);
}

#[test]
fn callees_that_cannot_register_are_an_error_before_the_run() {
    let proxy = start(Transport::Udp, true);
    let refused = Run::start(plan(&options(&proxy, Transport::Udp), 1)).unwrap_err();
    let text = refused.to_string();
    assert!(
        text.contains("0 of 20 callees") && text.contains("20 were answered 401"),
        "{text}"
    );
}
