//! The admission filter with real sockets on loopback: what gets into the queue.
//!
//! These tests need root (CAP_BPF); without, they fail and say so.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use hairpin_bpf::admission_filter::{AdmissionFilter, HASHED_PLACES, PLACES, Rules};

const KEYS: [u64; 2] = [0x0123_4567_89ab_cdef, 0x9e37_79b9_7f4a_7c15];

struct Listener {
    filter: AdmissionFilter,
    socket: UdpSocket,
}

impl Listener {
    fn new(address: &str) -> Listener {
        let socket = UdpSocket::bind(address).expect("loopback has free ports");
        let limit = Some(Duration::from_secs(20));
        socket.set_read_timeout(limit).expect("a timeout");
        let mut filter =
            AdmissionFilter::load().unwrap_or_else(|error| panic!("this test needs root: {error}"));
        filter.attach(&socket).expect("a socket of ours");
        Listener { filter, socket }
    }

    fn address(&self) -> SocketAddr {
        self.socket.local_addr().expect("bound")
    }

    fn set(&mut self, thresholds: &[u16; PLACES]) {
        self.set_with(thresholds, |_| ());
    }

    fn set_with(&mut self, thresholds: &[u16; PLACES], change: fn(&mut Rules<'_>)) {
        let mut rules = Rules {
            keys: KEYS,
            thresholds,
            retransmissions: 0,
            until_ns: u64::MAX,
        };
        change(&mut rules);
        self.filter.set(Some(&rules)).expect("a map of ours");
    }

    /// Whether a message passes. A datagram behind it always does: when that has arrived, the message has arrived or
    /// was dropped.
    fn passes(&self, from: &UdpSocket, message: &str) -> bool {
        const BEHIND: &[u8] = b"no message";
        for datagram in [message.as_bytes(), BEHIND] {
            from.send_to(datagram, self.address()).expect("sent");
        }
        let first = self.receive();
        if first == BEHIND {
            return false;
        }
        assert_eq!(first, message.as_bytes(), "cut");
        assert_eq!(self.receive(), BEHIND);
        true
    }

    fn receive(&self) -> Vec<u8> {
        let mut buffer = [0; 4096];
        let (length, _) = self.socket.recv_from(&mut buffer).expect("a datagram");
        buffer[..length].to_vec()
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
fn only_what_certainly_begins_something_is_dropped() {
    let mut listener = Listener::new("127.0.0.1:0");
    let client = client("127.0.0.1");
    let plain = |method: &str| request(&format!("{method} sip:b@192.0.2.2"), 1, TO, "");
    // Without rules everything passes.
    assert!(listener.passes(&client, &plain("REGISTER")));
    listener.set(&[0; PLACES]);
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
    assert_eq!(listener.filter.dropped().expect("a map of ours"), 6);
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
    listener.filter.set(None).expect("a map of ours");
    assert!(listener.passes(&client, &plain("INVITE")));
}

#[test]
fn credentials_pass_and_priorities_that_anybody_can_write_do_not() {
    let mut listener = Listener::new("127.0.0.1:0");
    let client = client("127.0.0.1");
    listener.set(&[0; PLACES]);
    let more = |line: &str| request("REGISTER sip:192.0.2.2", 1, TO, &format!("{line}\r\n"));
    for line in ["Authorization: Digest a", "proxy-authorization: Digest a"] {
        assert!(listener.passes(&client, &more(line)), "{line}");
    }
    for line in [
        "Subject: none",
        "Priority: emergency",
        "Resource-Priority: esnet.0",
    ] {
        assert!(!listener.passes(&client, &more(line)), "{line}");
    }
}

#[test]
fn a_retransmission_has_the_fate_of_the_first_try() {
    let mut listener = Listener::new("127.0.0.1:0");
    let client = client("127.0.0.1");
    listener.set(&[u16::MAX / 4; PLACES]);
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
    // What was dropped is remembered.
    listener.set(&[u16::MAX; PLACES]);
    let later: Vec<bool> = (0..400)
        .map(|number| listener.passes(&client, &request(number)))
        .collect();
    assert_eq!(first, later);
    assert!((400..800).all(|number| listener.passes(&client, &request(number))));
    // 100 of the remembered requests pass.
    listener.set_with(&[u16::MAX; PLACES], |rules| rules.retransmissions = 100);
    let later = (0..400).filter(|number| listener.passes(&client, &request(*number)));
    assert_eq!(later.count(), passed + 100);
    listener.set_with(&[u16::MAX; PLACES], |rules| rules.retransmissions = 400);
    assert!((0..400).all(|number| listener.passes(&client, &request(number))));
    // One generation is kept.
    listener.filter.age();
    listener.set(&[u16::MAX; PLACES]);
    let kept = (0..400).filter(|number| !listener.passes(&client, &request(*number)));
    assert!(kept.count() > 100);
    listener.filter.age();
    listener.filter.age();
    listener.set(&[u16::MAX; PLACES]);
    assert!((0..400).all(|number| listener.passes(&client, &request(number))));
}

#[test]
fn rules_end_by_themselves() {
    let mut listener = Listener::new("127.0.0.1:0");
    let client = client("127.0.0.1");
    listener.set_with(&[0; PLACES], |rules| rules.until_ns = 1);
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
    listener.set(&thresholds);
    let request = request("OPTIONS sip:192.0.2.2", 1, TO, "");
    assert!(listener.passes(&client("127.0.0.1"), &request));
    assert!(!listener.passes(&client("127.0.0.2"), &request));
    assert!(listener.passes(&client("127.0.0.3"), &request));

    let mut listener = Listener::new("[::1]:0");
    listener.set(&thresholds);
    assert!(listener.passes(&client("::1"), &request));
    thresholds[place("::1".parse().expect("an address"))] = 0;
    listener.set(&thresholds);
    assert!(!listener.passes(&client("::1"), &request));
}

#[test]
fn the_source_is_part_of_the_hash() {
    let mut listener = Listener::new("127.0.0.1:0");
    listener.set(&[u16::MAX / 2; PLACES]);
    let fates = |ip: &str| -> Vec<bool> {
        let client = client(ip);
        let requests = (0..64).map(|number| request("OPTIONS sip:192.0.2.2", number, TO, ""));
        requests.map(|one| listener.passes(&client, &one)).collect()
    };
    assert_ne!(fates("127.0.0.1"), fates("127.0.0.2"));
}

#[test]
fn the_longest_network_of_a_peer_decides_its_place() {
    let network = |address: &str, length| {
        let bits = match address.parse().expect("an address") {
            IpAddr::V4(v4) => v4.to_ipv6_mapped().to_bits(),
            IpAddr::V6(v6) => v6.to_bits(),
        };
        (bits, length)
    };
    let peers = [
        network("127.0.1.0", 96 + 24),
        network("127.0.1.7", 128),
        network("127.0.1.0", 96 + 24),
        network("::1", 128),
    ];
    let request = request("OPTIONS sip:192.0.2.2", 1, TO, "");
    let mut listener = Listener::new("127.0.0.1:0");
    let passes = |listener: &mut Listener, ip: &str, open: usize| {
        let mut thresholds = [0; PLACES];
        thresholds[open] = u16::MAX;
        listener.filter.age();
        listener.filter.age();
        listener.set(&thresholds);
        listener.passes(&client(ip), &request)
    };
    let set = listener.filter.set_peers(peers.into_iter());
    set.expect("a map of ours");
    assert!(passes(&mut listener, "127.0.1.3", HASHED_PLACES));
    assert!(!passes(&mut listener, "127.0.1.7", HASHED_PLACES));
    assert!(passes(&mut listener, "127.0.1.7", HASHED_PLACES + 1));
    assert!(!passes(&mut listener, "127.0.2.7", HASHED_PLACES));
    // Others take their place.
    let set = listener.filter.set_peers(peers[1..2].iter().copied());
    set.expect("a map of ours");
    assert!(passes(&mut listener, "127.0.1.7", HASHED_PLACES));
    let hashed = place("127.0.1.3".parse().expect("an address"));
    assert!(passes(&mut listener, "127.0.1.3", hashed));

    let mut listener = Listener::new("[::1]:0");
    let set = listener.filter.set_peers(peers.into_iter());
    set.expect("a map of ours");
    assert!(passes(&mut listener, "::1", HASHED_PLACES + 3));
}

#[test]
fn new_requests_are_counted_by_place_and_those_that_are_remembered() {
    let mut listener = Listener::new("127.0.0.1:0");
    let client = client("127.0.0.1");
    let requests: Vec<String> = (0..50)
        .map(|number| request("OPTIONS sip:192.0.2.2", number, TO, ""))
        .collect();
    // Without rules nothing is counted.
    assert!(listener.passes(&client, &requests[0]));
    listener.set(&[u16::MAX / 2; PLACES]);
    let mut passed = 0;
    for _ in 0..2 {
        let passes = requests.iter().filter(|one| listener.passes(&client, one));
        passed = passes.count();
    }
    let bye = request("BYE sip:192.0.2.2", 1, TO, "");
    assert!(listener.passes(&client, &bye));
    let here = place("127.0.0.1".parse().expect("an address"));
    let mut counts = vec![0; PLACES];
    let remembered = listener.filter.count(|place, count| counts[place] = count);
    // What was dropped is asked for once, what passes each time.
    assert_eq!(counts[here] as usize, 50 + passed);
    assert_eq!(counts.iter().sum::<u32>(), counts[here]);
    assert_eq!(remembered as usize, 50 - passed);
    assert_eq!(listener.filter.count(|_, count| assert_eq!(count, 0)), 0);
}
