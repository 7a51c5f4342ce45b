//! The sieve with real sockets on loopback: what gets into the queue.
//!
//! These tests need root (CAP_BPF); without, they fail and say so.

use std::net::{IpAddr, SocketAddr, UdpSocket};

use hairpin_bpf::sieve::{PLACES, Rules, Sieve};

const KEYS: [u64; 2] = [0x0123_4567_89ab_cdef, 0x9e37_79b9_7f4a_7c15];

struct Listener {
    sieve: Sieve,
    socket: UdpSocket,
}

impl Listener {
    fn new(address: &str) -> Listener {
        let socket = UdpSocket::bind(address).expect("loopback has free ports");
        socket.set_nonblocking(true).expect("a flag");
        let mut sieve =
            Sieve::load().unwrap_or_else(|error| panic!("this test needs root: {error}"));
        sieve.attach(&socket).expect("a socket of ours");
        Listener { sieve, socket }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("bound")
    }

    fn close(&mut self, thresholds: &[u16; PLACES]) {
        self.close_with(thresholds, |_| ());
    }

    fn close_with(&mut self, thresholds: &[u16; PLACES], change: fn(&mut Rules<'_>)) {
        let mut rules = Rules {
            keys: KEYS,
            thresholds,
            stale: 0,
            until_ns: u64::MAX,
            spare_credentials: false,
            spare_priority: false,
        };
        change(&mut rules);
        self.sieve.set(Some(&rules)).expect("a map of ours");
    }

    /// Whether a message gets through. Loopback delivers before `send_to` returns.
    fn passes(&self, from: &UdpSocket, message: &str) -> bool {
        from.send_to(message.as_bytes(), self.address())
            .expect("sent");
        let mut buffer = [0; 4096];
        match self.socket.recv_from(&mut buffer) {
            Ok((length, _)) => {
                assert_eq!(&buffer[..length], message.as_bytes(), "cut");
                true
            }
            Err(_) => false,
        }
    }
}

fn client(ip: &str) -> UdpSocket {
    let ip: IpAddr = ip.parse().expect("an address");
    UdpSocket::bind((ip, 0)).expect("loopback has free ports")
}

fn request(first: &str, branch: u32, to: &str, more: &str) -> String {
    format!(
        "{first} SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK{branch};rport\r\nMax-Forwards: 70\r\n\
         From: <sip:a@192.0.2.1>;tag=f{branch}\r\n{to}\r\nCall-ID: {branch}@192.0.2.1\r\nCSeq: 1 X\r\n{more}Content-Length: 0\r\n\r\n"
    )
}

const TO: &str = "To: <sip:b@192.0.2.2>";

#[test]
fn only_what_surely_begins_something_is_held_back() {
    let mut listener = Listener::new("127.0.0.1:0");
    let client = client("127.0.0.1");
    let plain = |method: &str| request(&format!("{method} sip:b@192.0.2.2"), 1, TO, "");
    // Without rules everything passes.
    assert!(listener.passes(&client, &plain("REGISTER")));
    listener.close(&[0; PLACES]);
    for method in [
        "INVITE",
        "REGISTER",
        "OPTIONS",
        "SUBSCRIBE",
        "MESSAGE",
        "PUBLISH",
    ] {
        assert!(!listener.passes(&client, &plain(method)), "{method}");
    }
    assert_eq!(listener.sieve.dropped().expect("a map of ours"), 6);
    for method in [
        "ACK", "BYE", "CANCEL", "PRACK", "UPDATE", "INFO", "REFER", "NOTIFY", "INVITES",
    ] {
        assert!(listener.passes(&client, &plain(method)), "{method}");
    }
    let invite = |to: &str, more: &str| request("INVITE sip:b@192.0.2.2", 1, to, more);
    for to in [
        "To: <sip:b@192.0.2.2>;tag=1",
        "TO : \"To\" <sip:b@192.0.2.2> ; Tag=1",
        "t:sip:b@192.0.2.2;tag=1",
        "To: <sip:b@192.0.2.2>\r\n ;tag=1",
        "Subject: no To at all;tag=1",
    ] {
        assert!(listener.passes(&client, &invite(to, "")), "{to}");
    }
    for to in [
        "t: <sip:b@192.0.2.2>",
        "To: <sip:b@192.0.2.2>\r\nTopic: none;tag=1",
    ] {
        assert!(!listener.passes(&client, &invite(to, "")), "{to}");
    }
    assert!(listener.passes(&client, &request("INVITE urn:service:sos.fire", 1, TO, "")));
    assert!(listener.passes(&client, "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK1\r\nTo: <sip:b@192.0.2.2>\r\n\r\n"));
    assert!(listener.passes(&client, "\r\n\r\n"));
    // To is further down than is looked.
    let vias = "Via: SIP/2.0/UDP 192.0.2.9;branch=z9hG4bK1\r\n".repeat(30);
    let late = plain("INVITE").replacen("Via:", &format!("{vias}Via:"), 1);
    assert!(listener.passes(&client, &late));
    listener.sieve.set(None).expect("a map of ours");
    assert!(listener.passes(&client, &plain("INVITE")));
}

#[test]
fn credentials_and_priorities_are_spared_where_they_are_to_be() {
    let mut listener = Listener::new("127.0.0.1:0");
    let client = client("127.0.0.1");
    let more = |line: &str| request("REGISTER sip:192.0.2.2", 1, TO, &format!("{line}\r\n"));
    let credentials = [
        more("Authorization: Digest a"),
        more("proxy-authorization: Digest a"),
    ];
    let priorities = [
        more("Priority: emergency"),
        more("Resource-Priority: esnet.0"),
    ];
    listener.close_with(&[0; PLACES], |rules| rules.spare_credentials = true);
    assert!(credentials.iter().all(|one| listener.passes(&client, one)));
    assert!(!priorities.iter().any(|one| listener.passes(&client, one)));
    listener.close_with(&[0; PLACES], |rules| rules.spare_priority = true);
    assert!(!credentials.iter().any(|one| listener.passes(&client, one)));
    assert!(priorities.iter().all(|one| listener.passes(&client, one)));
    assert!(!listener.passes(&client, &more("Subject: none")));
}

#[test]
fn a_retransmission_shares_the_fate_of_the_first_try() {
    let mut listener = Listener::new("127.0.0.1:0");
    let client = client("127.0.0.1");
    listener.close(&[u16::MAX / 4; PLACES]);
    let request = |number| request("REGISTER sip:192.0.2.2", number, TO, "");
    let first: Vec<bool> = (0..400)
        .map(|number| listener.passes(&client, &request(number)))
        .collect();
    let again: Vec<bool> = (0..400)
        .map(|number| listener.passes(&client, &request(number)))
        .collect();
    assert_eq!(first, again);
    let passed = first.iter().filter(|passed| **passed).count();
    assert!((60..140).contains(&passed), "{passed} of 400");
    // What was dropped is remembered, and has a threshold of its own.
    listener.close(&[u16::MAX; PLACES]);
    let later: Vec<bool> = (0..400)
        .map(|number| listener.passes(&client, &request(number)))
        .collect();
    assert_eq!(first, later);
    assert!((400..800).all(|number| listener.passes(&client, &request(number))));
    listener.close_with(&[u16::MAX; PLACES], |rules| rules.stale = u16::MAX);
    assert!((0..400).all(|number| listener.passes(&client, &request(number))));
    // One generation is kept.
    listener.sieve.age();
    listener.close(&[u16::MAX; PLACES]);
    let kept = (0..400).filter(|number| !listener.passes(&client, &request(*number)));
    assert!(kept.count() > 100);
    listener.sieve.age();
    listener.sieve.age();
    listener.close(&[u16::MAX; PLACES]);
    assert!((0..400).all(|number| listener.passes(&client, &request(number))));
}

#[test]
fn rules_end_by_themselves() {
    let mut listener = Listener::new("127.0.0.1:0");
    let client = client("127.0.0.1");
    listener.close_with(&[0; PLACES], |rules| rules.until_ns = 1);
    assert!(listener.passes(&client, &request("REGISTER sip:192.0.2.2", 1, TO, "")));
}

/// As the program computes it.
fn place(source: IpAddr) -> usize {
    let prefix = match source {
        IpAddr::V4(v4) => u32::from_ne_bytes(v4.octets()).into(),
        IpAddr::V6(v6) => u64::from_ne_bytes(v6.octets()[..8].try_into().expect("eight bytes")),
    };
    (prefix.wrapping_add(KEYS[0]).wrapping_mul(KEYS[1]) >> 54) as usize
}

#[test]
fn each_source_has_a_threshold_of_its_own() {
    let mut listener = Listener::new("127.0.0.1:0");
    let mut thresholds = [u16::MAX; PLACES];
    thresholds[place("127.0.0.2".parse().expect("an address"))] = 0;
    listener.close(&thresholds);
    let request = request("OPTIONS sip:192.0.2.2", 1, TO, "");
    assert!(listener.passes(&client("127.0.0.1"), &request));
    assert!(!listener.passes(&client("127.0.0.2"), &request));
    assert!(listener.passes(&client("127.0.0.3"), &request));

    let mut listener = Listener::new("[::1]:0");
    listener.close(&thresholds);
    assert!(listener.passes(&client("::1"), &request));
    thresholds[place("::1".parse().expect("an address"))] = 0;
    listener.close(&thresholds);
    assert!(!listener.passes(&client("::1"), &request));
}
