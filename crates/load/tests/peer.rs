//! The reflector against plain sockets.
#![allow(clippy::unwrap_used)] // helpers of tests

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use hairpin_load::measure::{Counter, Payload, Rate, RunStamp};
use hairpin_load::peer::{Mode, Peer, PeerError, PeerOptions};

fn client() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(2)))
        .unwrap();
    socket
}

fn start(options: PeerOptions) -> (Peer, SocketAddr) {
    let peer = Peer::start(&options).unwrap();
    let address = peer.addresses()[0];
    (peer, address)
}

/// Without a key.
fn run(number: u32) -> RunStamp {
    RunStamp { number, key: 0 }
}

fn loopback() -> Vec<SocketAddr> {
    vec!["127.0.0.1:0".parse().unwrap()]
}

#[test]
fn an_echo_returns_every_datagram_unchanged() {
    let mut options = PeerOptions::echo(loopback());
    options.threads = 2;
    let (peer, address) = start(options);
    for port in 0..20u8 {
        let socket = client();
        for length in [0usize, 1, 120, 1200, 9000] {
            let sent = vec![port; length];
            socket.send_to(&sent, address).unwrap();
            let mut buffer = [0; 10_000];
            let (received, from) = socket.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..received], from), (&sent[..], address));
        }
    }
    let report = peer.stop();
    assert_eq!(report.total.get(Counter::Sent), 100);
    assert_eq!(report.to_json()["total"]["received"], 100);
}

#[test]
fn an_echo_on_a_wildcard_answers_from_the_address_that_was_asked() {
    let (_peer, address) = start(PeerOptions::echo(vec!["0.0.0.0:0".parse().unwrap()]));
    let socket = client();
    let asked = SocketAddr::new("127.0.0.9".parse().unwrap(), address.port());
    socket.send_to(b"hello", asked).unwrap();
    assert_eq!(socket.recv_from(&mut [0; 16]).unwrap().1, asked);
}

#[test]
fn a_sink_counts_good_corrupt_duplicate_and_foreign_separately() {
    let mut options = PeerOptions::echo(loopback());
    options.mode = Mode::Sink;
    let (peer, address) = start(options);
    let socket = client();
    let mut datagram = vec![0; 120];
    Payload::new().fill(&mut datagram, 3);
    for sequence in [0, 1, 1, 2] {
        Payload::stamp(&mut datagram, run(1), sequence, 0);
        socket.send_to(&datagram, address).unwrap();
    }
    datagram[100] ^= 1;
    socket.send_to(&datagram, address).unwrap();
    socket.send_to(b"what is this", address).unwrap();
    let seen = |peer: &Peer| {
        let now = peer.snapshot();
        [
            Counter::Received,
            Counter::Duplicate,
            Counter::Corrupt,
            Counter::Foreign,
        ]
        .map(|counter| now.get(counter))
    };
    for _ in 0..100 {
        if seen(&peer) == [3, 1, 1, 1] {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(seen(&peer), [3, 1, 1, 1]);
}

#[test]
fn a_sink_counts_cut_payloads_and_other_runs_apart() {
    let mut options = PeerOptions::echo(loopback());
    options.mode = Mode::Sink;
    let (peer, address) = start(options);
    let socket = client();
    let mut datagram = vec![0; 120];
    Payload::new().fill(&mut datagram, 3);
    let mut send = |number, sequence, length: usize| {
        Payload::stamp(&mut datagram, run(number), sequence, 0);
        let longer = [&datagram[..], &[0; 40]].concat();
        socket.send_to(&longer[..length], address).unwrap();
    };
    // Each is still a prefix of the pattern.
    for (sequence, length) in [(0, 120), (1, 60), (2, 24), (3, 125), (4, 120)] {
        send(1, sequence, length);
    }
    // Payloads of another run arrive again.
    for sequence in 5..8 {
        send(2, sequence, 120);
    }
    let wanted = [
        (Counter::Received, 2),
        (Counter::Truncated, 3),
        (Counter::OtherRun, 3),
    ];
    let seen = || {
        let now = peer.snapshot();
        wanted.map(|(counter, _)| (counter, now.get(counter)))
    };
    for _ in 0..500 {
        if seen() == wanted {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(seen(), wanted);
    let report = peer.stop();
    assert_eq!(report.to_json()["total"]["other_run"], 3);
    assert!(report.to_string().contains("of another run 3"), "{report}");
}

/// What a network between a sender and a sink did.
#[derive(Debug, Default, PartialEq, Eq)]
struct Account {
    passed: u64,
    repeated: u64,
    reordered: u64,
    cut: u64,
    corrupt: u64,
    forged: u64,
}

#[test]
fn a_sink_counts_what_a_faulty_network_did() {
    const KEY: u64 = 4711;
    let mut options = PeerOptions::echo(loopback());
    (options.mode, options.payload_key) = (Mode::Sink, KEY);
    let (peer, address) = start(options);
    let socket = client();
    let mut datagram = vec![0; 120];
    Payload::new().fill(&mut datagram, 3);
    let mut send = |key, sequence, change: &dyn Fn(&mut Vec<u8>)| {
        Payload::stamp(&mut datagram, RunStamp { number: 1, key }, sequence, 0);
        let mut changed = datagram.clone();
        change(&mut changed);
        socket.send_to(&changed, address).unwrap();
    };
    let (mut account, as_it_is) = (Account::default(), |_: &mut Vec<u8>| ());
    for sequence in 0..400u64 {
        match (sequence + 7) % 8 {
            // It has the format, but not the key. The true one comes after it.
            0 => {
                account.forged += 1;
                send(KEY + 1, sequence, &as_it_is);
                send(0, sequence, &as_it_is);
                account.forged += 1;
            }
            1 => {
                account.repeated += 2;
                send(KEY, sequence, &as_it_is);
                send(KEY, sequence, &as_it_is);
            }
            2 => {
                account.cut += 1;
                send(KEY, sequence, &|bytes| bytes.truncate(70));
                continue;
            }
            3 => {
                account.corrupt += 1;
                send(KEY, sequence, &|bytes| bytes[90] ^= 4);
                continue;
            }
            // The next one comes first.
            4 => continue,
            5 => {
                send(KEY, sequence, &as_it_is);
                account.passed += 1;
                account.reordered += 1;
                send(KEY, sequence - 1, &as_it_is);
                account.passed += 1;
                continue;
            }
            _ => {}
        }
        account.passed += 1;
        send(KEY, sequence, &as_it_is);
    }
    let told = || {
        let now = peer.snapshot();
        Account {
            passed: now.get(Counter::Received),
            repeated: now.get(Counter::Duplicate),
            reordered: now.get(Counter::Reordered),
            cut: now.get(Counter::Truncated),
            corrupt: now.get(Counter::Corrupt),
            forged: now.get(Counter::OtherRun),
        }
    };
    for _ in 0..3_000 {
        if told() == account {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(told(), account);
}

#[test]
fn a_source_streams_to_whoever_has_spoken() {
    let mut options = PeerOptions::echo(loopback());
    options.mode = Mode::Source {
        rate: Rate(1000.0),
        size: 200,
    };
    let (_peer, address) = start(options);
    let socket = client();
    socket.send_to(b"hello", address).unwrap();
    let payload = Payload::new();
    let sequences: HashSet<u64> = (0..100)
        .map(|_| {
            let mut buffer = [0; 300];
            let received = socket.recv(&mut buffer).unwrap();
            payload.check(&buffer[..received], 0, 0).unwrap().sequence
        })
        .collect();
    assert_eq!(sequences, (0..100).collect());
}

#[test]
fn impossible_peers_are_refused_with_a_reason() {
    let mut options = PeerOptions::echo(loopback());
    options.mode = Mode::Source {
        rate: Rate(1.0),
        size: 10,
    };
    assert!(matches!(Peer::start(&options), Err(PeerError::Size(10))));
    let options = PeerOptions::echo(vec!["192.0.2.77:1".parse().unwrap()]);
    let error = Peer::start(&options).unwrap_err().to_string();
    assert!(error.contains("192.0.2.77:1"), "{error}");
}
