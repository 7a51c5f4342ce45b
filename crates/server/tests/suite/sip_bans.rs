//! Sources that guess passwords, tools that scan, and networks that are not heard.

use crate::sip_client::phone::{PASSWORD, Phone, credentials};
use crate::sip_client::{Client, LOOPBACK, Stream, example_com, options, status, with_users};
use hairpin_server::sip::SipSettings;
use hairpin_server::{Running, Settings};
use sip::{HeaderKind, Method};
use std::net::UdpSocket;
use std::time::Duration;

/// What OPTIONS for a user gets of somebody without credentials.
const HEARD: u16 = 407;

fn sip(change: impl FnOnce(&mut SipSettings)) -> SipSettings {
    let mut sip = example_com();
    // A busy machine must not look like an overload.
    sip.tolerance = Duration::ZERO;
    change(&mut sip);
    sip
}

fn serve(change: impl FnOnce(&mut SipSettings)) -> Running {
    let server = with_users(LOOPBACK, sip(change), 4).workers(2);
    server.start().expect("the server starts")
}

/// A REGISTER of `user`, as the credentials write it, with the answer to a challenge by another password.
fn guess(phone: &mut Phone, user: &str, number: u32) -> String {
    phone.user = user.replace('\\', "");
    let text = phone.request("REGISTER", "sip:example.com", &format!("g{number}"), 1, "");
    phone.send(&text);
    let challenge = phone.receive();
    assert_eq!(status(&challenge), 401, "{challenge}");
    let (kind, uri) = (HeaderKind::Authorization, "sip:example.com");
    let line = credentials(&challenge, kind, &phone.user, Method::Register, uri);
    let written = format!("username=\"{}\"", phone.user);
    let line = line.replace(&written, &format!("username=\"{user}\""));
    let at = line.find("response=\"").expect("a response") + 10;
    let wrong = if &line[at..=at] == "0" { "1" } else { "0" };
    let line = format!("{}{wrong}{}", &line[..at], &line[at + 1..]);
    let text = phone.request("REGISTER", uri, &format!("g{number}"), 2, &line);
    phone.send(&text);
    phone.receive()
}

#[test]
fn password_guessing_for_one_user_slows_only_its_source() {
    let server = serve(|_| {});
    let mut guesser = Phone::udp(&server, "user0");
    let codes: Vec<u16> = (0..7)
        .map(|number| status(&guess(&mut guesser, "user0", number)))
        .collect();
    assert_eq!(codes, [401, 401, 401, 401, 401, 503, 503]);
    let answer = guess(&mut guesser, "user0", 8);
    assert!(answer.contains("Retry-After: 20\r\n"), "{answer}");
    // A neighbour at the same address.
    Phone::udp(&server, "user1").register();
    // The user elsewhere, which the guesser cannot lock out.
    let mut elsewhere = Phone::udp(&server, "user0");
    let socket = UdpSocket::bind("127.0.0.5:0").expect("a socket");
    elsewhere.line =
        crate::sip_client::phone::Line::Udp(Client::of(socket, server.sip_listeners()[0]));
    elsewhere.register();
    let stats = server.stats();
    assert_eq!((stats.sip().digest[3], stats.sip().digest[5]), (5, 3));
    assert_eq!(stats.sip().banned, 0);
}

/// RFC 3261 §25.1: within quotes, a backslash changes nothing of the character behind it.
#[test]
fn each_spelling_of_a_user_counts_as_the_user() {
    let server = serve(|_| {});
    let mut guesser = Phone::udp(&server, "x");
    for (number, (spelling, code)) in [
        ("user0", 401),
        ("\\user0", 401),
        ("u\\ser0", 401),
        ("us\\er0", 401),
        ("use\\r0", 401),
        ("user\\0", 503),
    ]
    .into_iter()
    .enumerate()
    {
        let answer = guess(&mut guesser, spelling, number as u32);
        assert_eq!(status(&answer), code, "{spelling}: {answer}");
    }
}

#[test]
fn a_source_that_tries_many_users_is_banned_but_not_by_forged_datagrams() {
    let server = serve(|_| {});
    // Credentials with a made-up nonce prove no source.
    let mut forger = Phone::udp(&server, "user0");
    for number in 0..50 {
        let made_up = format!(
            "Authorization: Digest username=\"u{number}\", realm=\"example.com\", nonce=\"AAAA\", uri=\"sip:example.com\", \
             response=\"{:032x}\", algorithm=MD5, cnonce=\"1\", qop=auth, nc=00000001\r\n",
            number
        );
        let text = forger.request(
            "REGISTER",
            "sip:example.com",
            &format!("f{number}"),
            1,
            &made_up,
        );
        forger.send(&text);
        assert_eq!(status(&forger.receive()), 401);
    }
    assert_eq!(server.stats().sip().banned, 0);
    let mut scanner = Phone::udp(&server, "x");
    let mut connected = Stream::new(server.sip_listeners()[0]);
    for number in 0..30 {
        assert_eq!(
            status(&guess(&mut scanner, &format!("nobody{number}"), number)),
            401
        );
    }
    let ask = options("banned", "UDP", "");
    scanner.send(&ask);
    let crate::sip_client::phone::Line::Udp(client) = &scanner.line else {
        panic!("a phone on UDP");
    };
    assert!(client.hears_nothing(Duration::from_millis(300)));
    // Over a connection that is open, and over a new one.
    connected.send(options("banned2", "TCP", "").as_bytes());
    assert!(connected.ended());
    assert!(Stream::new(server.sip_listeners()[0]).ended());
    // Others are served.
    let socket = UdpSocket::bind("127.0.0.5:0").expect("a socket");
    let other = Client::of(socket, server.sip_listeners()[0]);
    assert_eq!(status(&other.ask(&options("other", "UDP", ""))), HEARD);
    let stats = server.stats();
    let sip = stats.sip();
    assert_eq!((sip.banned, sip.screened[1]), (1, 3));
    assert_eq!(sip.closed_denied, 1);
}

#[test]
fn tools_that_scan_get_no_response() {
    let server = serve(|_| {});
    let client = Client::new(server.sip_listeners()[0]);
    for (number, agent) in [
        "friendly-scanner",
        "SIPVicious 0.3",
        "sundayddr",
        "VaxSIPUserAgent/3.1",
        "pplsip",
    ]
    .into_iter()
    .enumerate()
    {
        let lines = format!("User-Agent: {agent}\r\n");
        client.send(options(&format!("s{number}"), "UDP", &lines).as_bytes());
    }
    let phone = options("phone", "UDP", "User-Agent: not a friendly-scanner\r\n");
    assert!(client.ask(&phone).contains("phone@test"));
    assert_eq!(server.stats().sip().screened, [0, 0, 5]);
    // Forged datagrams ban nobody.
    assert_eq!(server.stats().sip().banned, 0);
}

#[test]
fn data_of_denied_networks_is_dropped_and_a_reload_applies() {
    let network = |text: &str| text.parse().expect("a network");
    let server = serve(|sip| sip.deny = vec![network("127.0.0.0/24")]);
    let client = Client::new(server.sip_listeners()[0]);
    client.send(options("d1", "UDP", "").as_bytes());
    assert!(client.hears_nothing(Duration::from_millis(300)));
    assert!(Stream::new(server.sip_listeners()[0]).ended());
    assert_eq!(server.stats().sip().screened, [2, 0, 0]);
    let reload = |change: fn(&mut SipSettings)| {
        let mut settings = Settings::default();
        settings.users = vec![("user0".to_owned(), PASSWORD.to_owned())];
        settings.sip = sip(|sip| {
            sip.deny = vec!["127.0.0.0/24".parse().expect("a network")];
            change(sip);
        });
        server.reload(settings).expect("applied");
    };
    reload(|sip| sip.allow = vec!["127.0.0.1/32".parse().expect("a network")]);
    assert_eq!(status(&client.ask(&options("d2", "UDP", ""))), HEARD);
    let mut stream = Stream::new(server.sip_listeners()[0]);
    stream.send(options("d3", "TCP", "").as_bytes());
    assert_eq!(status(&stream.answer()), HEARD);
    // An open connection is closed when its source is denied again.
    reload(|_| {});
    stream.send(options("d4", "TCP", "").as_bytes());
    assert!(stream.ended());
}
