//! Users of SIP in sources of credentials that answer later, never, or not at all.

use crate::sip_client::phone::{PASSWORD, Phone, credentials_of, value};
use crate::sip_client::{Client, example_com, options, status};
use hairpin_server::credentials::{
    Claim, Credentials, KeyLookup, KeyQuery, KeyReply, KnownUser, OwnedKeyQuery,
};
use hairpin_server::sip::routes::{Action, NextHop, Route};
use hairpin_server::sip::{Inbound, SipSettings, Trunk};
use hairpin_server::{Running, Server};
use sip::{HeaderKind, Method};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// A source with all users except those whose names begin with `x` or `+`. It responds after `delay`, and never for
/// names that begin with `never`. For names that begin with `down`, it is unavailable.
#[derive(Debug, Default)]
struct Slow {
    delay: Duration,
    begun: AtomicU64,
    kept: Mutex<Vec<KeyReply>>,
}

fn find(query: &KeyQuery<'_>) -> KeyLookup {
    match query.claim {
        Claim::Username(name) if name.starts_with("down") => KeyLookup::Unavailable,
        Claim::Username(name) if !name.starts_with('x') && !name.starts_with('+') => {
            let key = stun::long_term_key(query.algorithm, name, query.realm, PASSWORD);
            key.map_or(KeyLookup::Unknown, |key| {
                KeyLookup::Known(KnownUser::with_key(name, key))
            })
        }
        _ => KeyLookup::Unknown,
    }
}

impl Credentials for Slow {
    fn find(&self, _: &KeyQuery<'_>) -> KeyLookup {
        KeyLookup::Pending
    }

    fn begin_find(&self, query: &KeyQuery<'_>, reply: KeyReply) {
        self.begun.fetch_add(1, Ordering::Relaxed);
        if matches!(query.claim, Claim::Username(name) if name.starts_with("never")) {
            return self.kept.lock().expect("not poisoned").push(reply);
        }
        let (query, delay): (OwnedKeyQuery, _) = (query.to_owned(), self.delay);
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            reply.send(find(&query.query()));
        });
    }
}

fn settings() -> SipSettings {
    example_com()
}

fn serve(source: &Arc<Slow>, settings: SipSettings) -> Running {
    Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen("127.0.0.1:0".parse().expect("an address"))
        .sip(settings)
        .credentials(Arc::clone(source) as Arc<dyn Credentials>)
        .workers(2)
        .start()
        .expect("the server starts")
}

fn slow(ms: u64) -> Arc<Slow> {
    Arc::new(Slow {
        delay: Duration::from_millis(ms),
        ..Slow::default()
    })
}

/// The final response to a request with this password.
fn answer(server: &Running, user: &str, password: &str, method: Method<'static>) -> String {
    let mut phone = Phone::udp(server, user);
    let name = String::from_utf8_lossy(method.as_bytes()).into_owned();
    let (uri, kind) = match method {
        Method::Register => ("sip:example.com", HeaderKind::Authorization),
        _ => ("sip:bob@example.com", HeaderKind::ProxyAuthorization),
    };
    let call = format!("{user}{}", phone.contact().len());
    let text = phone.request(&name, uri, &call, 1, "");
    phone.send(&text);
    let challenge = phone.expect("SIP/2.0 4");
    let line = credentials_of(&challenge, kind, (user, password), method, uri);
    let text = phone.request(&name, uri, &call, 2, &line);
    phone.send(&text);
    loop {
        let answer = phone.receive();
        if status(&answer) >= 200 {
            return answer;
        }
    }
}

#[test]
fn users_of_a_source_that_answers_later_register_and_call() {
    let server = serve(&slow(20), settings());
    let mut bob = Phone::udp(&server, "bob");
    bob.register();
    for user in ["ann", "xenia"] {
        let answer = answer(&server, user, "wrong", Method::Register);
        assert_eq!(status(&answer), 401, "{user} is told apart: {answer}");
        assert!(!answer.contains("stale=true"), "{answer}");
    }
    let mut ann = Phone::tcp(&server, "ann");
    ann.register();
    let invite = ann.ask(Method::Invite, "sip:bob@example.com", "call1");
    let incoming = bob.expect("INVITE ");
    assert_eq!(
        value(&incoming, "P-Asserted-Identity"),
        "<sip:ann@example.com>"
    );
    bob.respond(&incoming, "486 Busy Here");
    let busy = ann.expect("SIP/2.0 486");
    ann.acknowledge(&invite, &busy);
}

#[test]
fn a_source_that_never_answers_delays_nothing_else_and_ends_with_503() {
    let source = slow(0);
    let server = serve(&source, settings());
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for method in [Method::Register, Method::Message, Method::Invite] {
            let server = &server;
            scope.spawn(move || {
                let answer = answer(server, "never", PASSWORD, method);
                assert_eq!(status(&answer), 503, "{answer}");
                assert_eq!(value(&answer, "Retry-After"), "5", "{answer}");
            });
        }
        let client = Client::new(server.sip_listeners()[0]);
        let mut worst = Duration::ZERO;
        for number in 0..100 {
            let asked = Instant::now();
            let text = options(&format!("o{number}"), "UDP", "");
            let answer = client.ask(&text.replacen("sip:test@127.0.0.1", "sip:example.com", 1));
            assert_eq!(status(&answer), 200, "{answer}");
            worst = worst.max(asked.elapsed());
            std::thread::sleep(Duration::from_millis(10));
        }
        // A worker that waits for the source delays a response by up to 5 s.
        assert!(worst < Duration::from_secs(2), "{worst:?}");
        assert!(begun.elapsed() < Duration::from_secs(5), "too slow to say");
    });
    assert!(begun.elapsed() >= Duration::from_secs(5));
}

#[test]
fn retransmissions_wait_for_one_query() {
    let source = slow(1_500);
    let server = serve(&source, settings());
    let mut phone = Phone::udp(&server, "ann");
    let uri = "sip:example.com";
    let text = phone.request("REGISTER", uri, "call", 1, "");
    phone.send(&text);
    let challenge = phone.expect("SIP/2.0 401");
    let kind = HeaderKind::Authorization;
    let line = credentials_of(&challenge, kind, ("ann", PASSWORD), Method::Register, uri);
    let text = phone.request("REGISTER", uri, "call", 2, &line);
    for _ in 0..3 {
        phone.send(&text);
        std::thread::sleep(Duration::from_millis(100));
    }
    phone.expect("SIP/2.0 200");
    assert_eq!(source.begun.load(Ordering::Relaxed), 1);
}

#[test]
fn a_source_that_is_down_gets_503_with_retry_after() {
    let server = serve(&slow(5), settings());
    for method in [Method::Register, Method::Message] {
        let answer = answer(&server, "down", PASSWORD, method);
        assert_eq!(status(&answer), 503, "{answer}");
        assert_eq!(value(&answer, "Retry-After"), "5", "{answer}");
    }
}

#[test]
fn routes_are_asked_only_for_names_that_the_source_does_not_know() {
    let trunk = Client::of_all_addresses("127.0.0.1:9".parse().expect("an address"));
    let port = trunk.local().port();
    let mut settings = settings();
    settings.trunks = vec![Trunk {
        name: "out".to_owned(),
        to: vec![NextHop::new(&format!("sip:127.0.0.1:{port}")).expect("a hop")],
        ..Trunk::default()
    }];
    settings.routes = vec![Route {
        name: "all".to_owned(),
        action: Action::Trunks(vec!["out".to_owned()]),
        ..Route::default()
    }];
    let source = slow(20);
    let server = serve(&source, settings);
    let mut ann = Phone::udp(&server, "ann");
    // The user exists, and has no phone.
    ann.ask(Method::Message, "sip:carol@example.com", "a");
    let answer = ann.expect("SIP/2.0 4");
    assert_eq!(status(&answer), 480, "{answer}");
    ann.ask(Method::Message, "sip:+4930@example.com", "b");
    // The trunk also gets probes.
    let forwarded = std::iter::repeat_with(|| trunk.answer())
        .find(|request| !request.starts_with("OPTIONS "))
        .expect("it repeats without end");
    assert!(forwarded.starts_with("MESSAGE sip:+4930@"), "{forwarded}");
    // The source gets no query for the callee if the sender has no credentials.
    let begun = source.begun.load(Ordering::Relaxed);
    let text = ann.request("MESSAGE", "sip:dave@example.com", "c", 1, "");
    ann.send(&text);
    ann.expect("SIP/2.0 407");
    assert_eq!(source.begun.load(Ordering::Relaxed), begun);
}

/// A MESSAGE of somebody who is no user here.
fn of_a_stranger(to: &str, call: &str) -> String {
    format!(
        "MESSAGE sip:{to}@example.com SIP/2.0\r\n\
         Via: SIP/2.0/UDP 192.0.2.1;rport;branch=z9hG4bK{call}\r\n\
         From: <sip:who@elsewhere.example>;tag=1\r\nTo: <sip:{to}@example.com>\r\n\
         Call-ID: {call}@elsewhere\r\nCSeq: 1 MESSAGE\r\nMax-Forwards: 70\r\n\
         Content-Length: 0\r\n\r\n"
    )
}

#[test]
fn only_known_senders_learn_whether_a_user_of_a_store_exists() {
    let mut settings = settings();
    settings.domains[0].inbound = Inbound::Anyone;
    let source = slow(5);
    let server = serve(&source, settings);
    let mut ann = Phone::udp(&server, "ann");
    // The third user is in a source that is down: without a binding nobody can be reached there.
    for (to, code) in [("carol", 480), ("xenia", 404), ("down", 480)] {
        ann.ask(Method::Message, &format!("sip:{to}@example.com"), to);
        let answer = ann.expect("SIP/2.0 4");
        assert_eq!(status(&answer), code, "{to}: {answer}");
    }
    // The source gets no query on behalf of a stranger.
    let begun = source.begun.load(Ordering::Relaxed);
    let stranger = Client::new(server.sip_listeners()[0]);
    for to in ["carol", "xenia", "down"] {
        let answer = stranger.ask(&of_a_stranger(to, to));
        assert_eq!(status(&answer), 480, "{to}: {answer}");
    }
    assert_eq!(source.begun.load(Ordering::Relaxed), begun);
}

/// So many requests of senders that are not known may wait for a source.
const MAX_UNKNOWN: usize = 512;

#[test]
fn a_flood_of_made_up_users_leaves_places_for_trunks_and_authenticated_users() {
    let mut settings = settings();
    // Requests that wait are a backlog, which overload control would answer.
    settings.tolerance = Duration::ZERO;
    settings.trunks = vec![Trunk {
        name: "carrier".to_owned(),
        addresses: vec!["127.0.0.2/32".parse().expect("a network")],
        ..Trunk::default()
    }];
    let source = slow(5);
    let server = Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen("127.0.0.1:0".parse().expect("an address"))
        .sip(settings)
        .user("conf", PASSWORD)
        .credentials(Arc::clone(&source) as Arc<dyn Credentials>)
        .workers(1)
        .start()
        .expect("the server starts");
    let mut flood = Phone::udp(&server, "never");
    let uri = "sip:example.com";
    let text = flood.request("REGISTER", uri, "f", 1, "");
    flood.send(&text);
    let challenge = flood.expect("SIP/2.0 401");
    let kind = HeaderKind::Authorization;
    let more = 40;
    for number in 0..MAX_UNKNOWN + more {
        let user = (&format!("never{number}")[..], PASSWORD);
        let line = credentials_of(&challenge, kind, user, Method::Register, uri);
        let text = flood.request("REGISTER", uri, &format!("f{number}"), 2, &line);
        flood.send(&text);
        if number % 16 == 0 {
            std::thread::sleep(Duration::from_millis(3));
        }
    }
    for _ in 0..more {
        let answer = flood.receive();
        assert_eq!(status(&answer), 503, "{answer}");
        assert_eq!(value(&answer, "Retry-After"), "5");
    }
    assert_eq!(source.begun.load(Ordering::Relaxed), MAX_UNKNOWN as u64);
    let socket = std::net::UdpSocket::bind("127.0.0.2:0").expect("a socket");
    let trunk = Client::of(socket, server.sip_listeners()[0]);
    let mut conf = Phone::udp(&server, "conf");
    for (to, code) in [("carol", 480), ("xenia", 404)] {
        let answer = trunk.ask(&of_a_stranger(to, to));
        assert_eq!(status(&answer), code, "{to}: {answer}");
        conf.ask(Method::Message, &format!("sip:{to}@example.com"), to);
        let answer = conf.expect("SIP/2.0 4");
        assert_eq!(status(&answer), code, "{to}: {answer}");
    }
}
