//! The registrar as phones see it (RFC 3261 §10), on several workers.

use crate::sip_client::{Client, Stream, status, test_uas};
use hairpin_server::sip::{Domain, SipSettings};
use hairpin_server::{Running, Server, Settings, SettingsError, StartError};
use sip::build::Builder;
use sip::digest::{DigestResponse, choose};
use sip::{HeaderKind, Message, Method, Spans};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Ports and connections tried: that all are the right worker's has a chance of 4^-16.
const MANY: usize = 16;
const WORKERS: usize = 4;
const PASSWORD: &str = "secret";

fn settings() -> SipSettings {
    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        aliases: vec!["127.0.0.1".to_owned()],
        ..Domain::default()
    }];
    settings.registrar.min_expires = 1;
    settings
}

fn start(settings: SipSettings, workers: usize) -> Result<Running, StartError> {
    let mut server = Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen("127.0.0.1:0".parse().expect("an address"))
        .sip(settings)
        .workers(workers);
    for number in 0..MANY {
        server = server.user(&user(number), PASSWORD);
    }
    server.start()
}

fn serve(workers: usize) -> Running {
    start(settings(), workers).expect("the server starts")
}

fn user(number: usize) -> String {
    format!("user{number}")
}

fn address(server: &Running) -> SocketAddr {
    server.sip_listeners()[0]
}

/// A way to the server.
trait Line {
    const TRANSPORT: &'static str;
    fn ask(&mut self, request: &str) -> String;
}

impl Line for Client {
    const TRANSPORT: &'static str = "UDP";
    fn ask(&mut self, request: &str) -> String {
        Client::ask(self, request)
    }
}

impl Line for Stream {
    const TRANSPORT: &'static str = "TCP";
    fn ask(&mut self, request: &str) -> String {
        self.send(request.as_bytes());
        self.answer()
    }
}

fn request<L: Line>(to: &str, id: &str, cseq: u32, lines: &str) -> String {
    format!(
        "REGISTER sip:example.com SIP/2.0\r\n\
         Via: SIP/2.0/{} 192.0.2.1:5060;rport;branch=z9hG4bK{id}{cseq}\r\n\
         From: <sip:{to}>;tag=1\r\nTo: <sip:{to}>\r\nCall-ID: {id}@test\r\n\
         CSeq: {cseq} REGISTER\r\nMax-Forwards: 70\r\n{lines}Content-Length: 0\r\n\r\n",
        L::TRANSPORT
    )
}

/// The line with the credentials that answer this challenge.
fn credentials(unauthorized: &str, user: &str) -> String {
    let mut spans = Spans::new();
    let message = Message::parse(unauthorized.as_bytes(), &mut spans).expect("well-formed");
    let challenge = choose(&message, HeaderKind::WwwAuthenticate).expect("a challenge");
    let answer = DigestResponse {
        challenge: &challenge,
        username: user.as_bytes(),
        ha1: &challenge.ha1(user.as_bytes(), PASSWORD.as_bytes()),
        method: Method::Register,
        uri: b"sip:example.com",
        body: b"",
        count: 1,
        cnonce: b"c1",
    };
    let mut buffer = [0; 2048];
    let mut line = Builder::fields(&mut buffer);
    answer.write(&mut line, HeaderKind::Authorization);
    String::from_utf8(line.finish_fields().expect("room").to_vec()).expect("text")
}

/// Registers as this user: the request that was accepted or refused in the end, and its answer.
fn register_as<L: Line>(
    line: &mut L,
    user: &str,
    to: &str,
    id: &str,
    cseq: u32,
    lines: &str,
) -> (String, String) {
    let challenge = line.ask(&request::<L>(to, id, cseq, lines));
    assert_eq!(status(&challenge), 401, "{challenge}");
    let lines = format!("{lines}{}", credentials(&challenge, user));
    let request = request::<L>(to, id, cseq + 1, &lines);
    let answer = line.ask(&request);
    (request, answer)
}

fn register<L: Line>(line: &mut L, user: &str, id: &str, cseq: u32, lines: &str) -> String {
    let to = format!("{user}@example.com");
    register_as(line, user, &to, id, cseq, lines).1
}

/// The contacts of an answer without their times.
fn contacts(answer: &str) -> Vec<&str> {
    assert_eq!(status(answer), 200, "{answer}");
    let lines = answer.lines();
    let values = lines.filter_map(|line| line.strip_prefix("Contact: "));
    values
        .map(|value| value.split_inclusive('>').next().expect("a URI"))
        .collect()
}

#[test]
fn bindings_are_found_by_whichever_port_and_connection_rfc3261_10_3() {
    let server = serve(WORKERS);
    for number in 0..MANY {
        let user = user(number);
        let udp = format!("Contact: <sip:{user}@192.0.2.1>\r\n");
        let mut phone = Client::new(address(&server));
        let answer = register(&mut phone, &user, &format!("u{number}"), 1, &udp);
        assert_eq!(contacts(&answer).len(), 1, "{answer}");
        let tcp = format!("Contact: <sip:{user}@192.0.2.2;transport=tcp>\r\n");
        let mut phone = Stream::new(address(&server));
        let answer = register(&mut phone, &user, &format!("t{number}"), 1, &tcp);
        assert_eq!(contacts(&answer).len(), 2, "{answer}");
        // Another phone asks what there is.
        let mut other = Client::new(address(&server));
        let answer = register(&mut other, &user, &format!("q{number}"), 1, "");
        let mut found = contacts(&answer);
        found.sort_unstable();
        let expected = [
            format!("<sip:{user}@192.0.2.1>"),
            format!("<sip:{user}@192.0.2.2;transport=tcp>"),
        ];
        assert_eq!(found, expected);
    }
    let sip = server.stats().sip();
    assert_eq!(sip.bindings, 2 * MANY as u64);
    assert!(sip.taken_over > 0 && sip.handed_back > 0);
    // Three phones, each with a challenge: every request is counted once.
    let registers: u64 = sip.requests.iter().sum();
    assert_eq!(registers, 6 * MANY as u64);
    assert_eq!(sip.unsent, 0);
}

/// The value of `Ice-Servers`.
fn ice_servers(answer: &str) -> Option<&str> {
    let mut lines = answer.lines();
    lines.find_map(|line| line.strip_prefix("Ice-Servers: "))
}

#[test]
fn a_registered_user_alone_gets_credentials_for_turn() {
    const SECRET: &str = "a secret of this test";
    let mut with_turn = settings();
    with_turn.ice_servers = vec![
        "turn:turn.example.com".to_owned(),
        "turns:turn.example.com".to_owned(),
    ];
    with_turn.registrar.max_expires = 7200;
    let server = Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen("127.0.0.1:0".parse().expect("an address"))
        .sip(with_turn)
        .secret(SECRET.as_bytes())
        .workers(2)
        .user("user0", PASSWORD)
        .user("user1", PASSWORD)
        .start()
        .expect("the server starts");
    let mut phone = Client::new(address(&server));
    let contact = "Contact: <sip:user0@192.0.2.1>\r\n";
    let challenge = phone.ask(&request::<Client>("user0@example.com", "a", 1, contact));
    assert_eq!(ice_servers(&challenge), None, "{challenge}");
    let forbidden = register_as(&mut phone, "user1", "user0@example.com", "b", 1, contact).1;
    assert_eq!((status(&forbidden), ice_servers(&forbidden)), (403, None));
    let before = unix_s();
    let answer = register(&mut phone, "user0", "c", 1, contact);
    assert_eq!(contacts(&answer), ["<sip:user0@192.0.2.1>"]);
    let value = ice_servers(&answer).expect("the header field");
    let head = r#"[{"urls":["turn:turn.example.com","turns:turn.example.com"],"username":""#;
    let rest = value.strip_prefix(head).expect(value);
    let (name, rest) = rest.split_once(r#"","credential":""#).expect(value);
    let password = rest.strip_suffix(r#""}]"#).expect(value);
    let (expires, user) = name.split_once(':').expect(name);
    assert_eq!(user, "user0@example.com");
    let expires: u64 = expires.parse().expect(expires);
    assert!((before + 7200..=unix_s() + 7200).contains(&expires));
    let expected = hairpin_server::rest::rest_password(SECRET.as_bytes(), name);
    assert_eq!(password, expected);
}

fn unix_s() -> u64 {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed();
    since.expect("a clock after 1970").as_secs()
}

#[test]
fn a_repeated_request_gets_the_first_answer_wherever_it_arrives_rfc3261_17_2_2() {
    let server = serve(WORKERS);
    for number in 0..MANY {
        let user = user(number);
        let to = format!("{user}@example.com");
        let contact = "Contact: <sip:a@192.0.2.1>\r\n";
        let mut phone = Client::new(address(&server));
        let id = format!("r{number}");
        let (request, answer) = register_as(&mut phone, &user, &to, &id, 1, contact);
        assert_eq!(contacts(&answer).len(), 1);
        assert_eq!(phone.ask(&request), answer);
    }
    assert_eq!(server.stats().sip().request_retransmissions, MANY as u64);
}

#[test]
fn users_register_at_their_own_address_and_others_learn_nothing_rfc3261_10_3() {
    let server = serve(2);
    let mut phone = Client::new(address(&server));
    let contact = "Contact: <sip:a@192.0.2.1>\r\n";
    for (number, (to, code)) in [
        ("user1@example.com", 403),
        ("nobody@example.com", 403),
        ("user0@elsewhere.example", 404),
        ("user0@127.0.0.1", 200),
        ("user0@example.com", 200),
    ]
    .into_iter()
    .enumerate()
    {
        // Without credentials every address looks the same: register_as expects a 401.
        let id = format!("o{number}");
        let (_, answer) = register_as(&mut phone, "user0", to, &id, 1, contact);
        assert_eq!(status(&answer), code, "{to}: {answer}");
    }
    let foreign = request::<Client>("user0@example.com", "f", 1, contact);
    let foreign = foreign.replace("REGISTER sip:example.com", "REGISTER sip:elsewhere.example");
    // It would be forwarded, for who has a password (§10.3 step 1).
    assert_eq!(status(&phone.ask(&foreign)), 407);
    assert_eq!(server.stats().sip().bindings, 1);
}

#[test]
fn answers_have_what_the_registrar_says_rfc3261_10_3() {
    let mut settings = settings();
    settings.registrar.min_expires = 60;
    let server = start(settings, 1).expect("the server starts");
    let mut phone = Client::new(address(&server));
    let brief = "Contact: <sip:a@192.0.2.1>;expires=30\r\n";
    let answer = register(&mut phone, "user0", "b", 1, brief);
    assert_eq!(status(&answer), 423);
    assert!(answer.contains("\r\nMin-Expires: 60\r\n"), "{answer}");
    assert!(!answer.contains("Authentication-Info"), "{answer}");
    let lines = "Contact: <sip:a@192.0.2.1>;reg-id=1;+sip.instance=\"<urn:x:y>\"\r\n\
         Supported: path, outbound, gruu\r\n";
    let answer = register(&mut phone, "user0", "o", 1, lines);
    assert_eq!(status(&answer), 200);
    for part in [
        "\r\nAuthentication-Info: ",
        "\r\nRequire: outbound\r\n",
        "\r\nDate: ",
        ";expires=3600;reg-id=1;+sip.instance=\"<urn:x:y>\";pub-gruu=\"sip:user0@example.com;gr=urn:x:y\"",
    ] {
        assert!(answer.contains(part), "{part} in {answer}");
    }
    // For the server itself; the rest is forwarded.
    let options = crate::sip_client::options("a", "UDP", "");
    let options = options.replace("OPTIONS sip:test@127", "OPTIONS sip:127");
    let answer = phone.ask(&options);
    assert!(
        answer.contains("\r\nAllow: OPTIONS, REGISTER, SUBSCRIBE\r\n"),
        "{answer}"
    );
    assert!(
        answer.contains("\r\nSupported: path, outbound, gruu\r\n"),
        "{answer}"
    );
    assert!(answer.contains("\r\nAllow-Events: reg\r\n"), "{answer}");
    let invite = options.replace("OPTIONS", "INVITE").replace("bKa", "bKb");
    assert_eq!(status(&phone.ask(&invite)), 405);
}

#[test]
fn bindings_end_in_time() {
    let server = serve(2);
    let mut phone = Client::new(address(&server));
    let contact = "Contact: <sip:a@192.0.2.1>;expires=1\r\n";
    assert_eq!(
        contacts(&register(&mut phone, "user0", "e", 1, contact)).len(),
        1
    );
    let deadline = Instant::now() + Duration::from_secs(20);
    while server.stats().sip().bindings > 0 {
        assert!(Instant::now() < deadline, "the binding is still there");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(contacts(&register(&mut phone, "user0", "q", 1, "")).is_empty());
}

#[test]
fn domains_can_be_added_while_the_server_runs() {
    let server = start(SipSettings::default(), 2).expect("the server starts");
    let mut phone = Client::new(address(&server));
    let contact = "Contact: <sip:a@192.0.2.1>\r\n";
    let refused = phone.ask(&request::<Client>("user0@example.com", "n", 1, contact));
    assert_eq!(status(&refused), 405);
    let mut changed = Settings::default();
    changed.users = (0..MANY)
        .map(|number| (user(number), PASSWORD.to_owned()))
        .collect();
    changed.sip = settings();
    server.reload(changed.clone()).expect("they fit");
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut number = 0;
    // Each worker learns of it in its next turn.
    while status(&phone.ask(&request::<Client>(
        "user0@example.com",
        &format!("w{number}"),
        1,
        contact,
    ))) != 401
    {
        assert!(Instant::now() < deadline, "REGISTER is still refused");
        number += 1;
    }
    assert_eq!(
        contacts(&register(&mut phone, "user0", "a", 1, contact)).len(),
        1
    );
    // Another change of settings leaves bindings where they are.
    changed.sip.domains[0].aliases.clear();
    server.reload(changed).expect("they fit");
    assert_eq!(
        contacts(&register(&mut phone, "user0", "b", 1, "")).len(),
        1
    );
}

#[test]
fn invalid_sip_settings_are_refused_at_startup() {
    let refused = |change: fn(&mut SipSettings)| {
        let mut settings = settings();
        change(&mut settings);
        match start(settings, 1) {
            Err(StartError::Settings(error)) => error,
            other => panic!("{other:?}"),
        }
    };
    let twice = refused(|settings| settings.domains.push(settings.domains[0].clone()));
    assert!(matches!(twice, SettingsError::SipDomains(_)), "{twice}");
    let late = refused(|settings| settings.registrar.min_expires = 3601);
    assert!(matches!(late, SettingsError::SipRegistrar(_)), "{late}");
    let both = refused(|settings| settings.test_uas = test_uas().test_uas);
    assert!(matches!(both, SettingsError::SipTestUas), "{both}");
}
