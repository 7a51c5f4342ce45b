//! Binding requests through both programs: which are answered, with which bytes, and which are left to user space.

use std::net::{IpAddr, SocketAddr};

use hairpin_bpf::relay::{BindingLimit, Verdict};

use crate::cases::reference::{ARRIVING, Packet};
use crate::rig::{Path, Rig};

const COOKIE: [u8; 4] = [0x21, 0x12, 0xa4, 0x42];
const ID: [u8; 12] = [0xfe, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0xff];
const FINGERPRINT: u16 = 0x8028;

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Client and listener, in both families.
fn ends() -> [(SocketAddr, SocketAddr); 2] {
    [
        (address("203.0.113.200:54321"), address("198.51.100.2:3478")),
        (
            address("[2001:db8:8000:ff01::5]:54321"),
            address("[2001:db8::2]:3478"),
        ),
    ]
}

/// CRC-32 bit by bit (ITU V.42), as FINGERPRINT has it.
fn fingerprint(message: &[u8]) -> [u8; 4] {
    let mut crc = u32::MAX;
    for byte in message {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 {
                (crc >> 1) ^ 0xedb8_8320
            } else {
                crc >> 1
            };
        }
    }
    (!crc ^ 0x5354_554e).to_be_bytes()
}

/// A message with attributes as given, each padded with `0xbb`, and the right length; with FINGERPRINT if wanted.
fn message(kind: u16, attributes: &[(u16, &[u8])], fingerprinted: bool) -> Vec<u8> {
    let mut message = kind.to_be_bytes().to_vec();
    message.extend([0, 0]);
    message.extend(COOKIE);
    message.extend(ID);
    for (number, value) in attributes {
        message.extend(number.to_be_bytes());
        message.extend((value.len() as u16).to_be_bytes());
        message.extend(*value);
        message.resize(message.len().next_multiple_of(4), 0xbb);
    }
    let length = message.len() - 20 + if fingerprinted { 8 } else { 0 };
    message[2..4].copy_from_slice(&(length as u16).to_be_bytes());
    if fingerprinted {
        let value = fingerprint(&message);
        message.extend(FINGERPRINT.to_be_bytes());
        message.extend([0, 4]);
        message.extend(value);
    }
    message
}

fn success(client: SocketAddr, fingerprinted: bool) -> Vec<u8> {
    let mask = [&COOKIE[..], &ID].concat();
    let port = client.port() ^ 0x2112;
    let (family, octets) = match client.ip() {
        IpAddr::V4(ip) => (1, ip.octets().to_vec()),
        IpAddr::V6(ip) => (2, ip.octets().to_vec()),
    };
    let mut value = vec![0, family];
    value.extend(port.to_be_bytes());
    value.extend(octets.iter().zip(mask).map(|(octet, mask)| octet ^ mask));
    message(0x0101, &[(0x0020, &value)], fingerprinted)
}

fn request(client: SocketAddr, listener: SocketAddr, payload: Vec<u8>) -> Packet {
    Packet {
        source: client,
        destination: listener,
        tos: 0xb8,
        ttl: 7,
        label: 0x1_2345,
        dont_fragment: true,
        without_checksum: false,
        payload,
    }
}

/// The answer as a socket would send it, back by the link that the request came by.
fn answer(client: SocketAddr, listener: SocketAddr, fingerprinted: bool) -> Vec<u8> {
    let packet = Packet {
        tos: 0,
        ttl: 64,
        label: if client.is_ipv4() { 0x0809 } else { 0 },
        dont_fragment: false,
        ..request(listener, client, success(client, fingerprinted))
    };
    packet.frame([ARRIVING[1], ARRIVING[0]])
}

fn rig() -> Option<Rig> {
    let mut rig = Rig::new()?;
    for (_, listener) in ends() {
        rig.relay.set_listener(listener, true).expect("room");
    }
    Some(rig)
}

fn assert_answered(rig: &mut Rig, frame: &[u8], wanted: &[u8], what: &str) {
    for path in [Path::Xdp, Path::Tc] {
        let before = rig.totals(path);
        let run = rig.run(path, frame, None);
        let verdict = match path {
            Path::Xdp => Verdict::Transmit,
            Path::Tc => Verdict::Redirect,
        };
        let grown = rig.grown(path, &before);
        assert_eq!(run.verdict, verdict, "{path:?}: {what}: {grown:?}");
        assert_eq!(run.frame, wanted, "{path:?}: {what}");
        assert_eq!(grown, [("binding", 1)], "{path:?}: {what}");
    }
}

fn assert_passed(rig: &mut Rig, frame: &[u8], why: &str, what: &str) {
    for path in [Path::Xdp, Path::Tc] {
        let before = rig.totals(path);
        let run = rig.run(path, frame, None);
        let grown = rig.grown(path, &before);
        assert_eq!(run.verdict, Verdict::Pass, "{path:?}: {what}");
        assert_eq!(run.frame, frame, "{path:?}: {what}");
        assert_eq!(grown, [(why, 1)], "{path:?}: {what}");
    }
}

/// Attributes that may be there: the comprehension-optional ones.
fn harmless() -> Vec<Vec<(u16, Vec<u8>)>> {
    let software = |length: usize| (0x8022, (0..length).map(|at| at as u8).collect());
    let mut lists: Vec<Vec<(u16, Vec<u8>)>> =
        (0..=17).map(|length| vec![software(length)]).collect();
    lists.push(vec![]);
    lists.push(vec![software(244)]);
    lists.push(vec![(0x8000, vec![]), (0xffff, vec![1, 2, 3]), software(9)]);
    lists.push(vec![(0x802a, vec![7; 8]); 14]);
    lists.push(vec![(0xc057, vec![0xff; 4]), (0x8029, vec![0xff; 8])]);
    lists
}

#[test]
fn plain_requests_are_answered() {
    let Some(mut rig) = rig() else { return };
    for (client, listener) in ends() {
        for list in harmless() {
            let list: Vec<(u16, &[u8])> = list
                .iter()
                .map(|(kind, value)| (*kind, &value[..]))
                .collect();
            for fingerprinted in [false, true] {
                let payload = message(0x0001, &list, fingerprinted);
                let what = format!("{client}, {} bytes, {fingerprinted}", payload.len());
                let packet = request(client, listener, payload);
                let wanted = answer(client, listener, fingerprinted);
                assert_answered(&mut rig, &packet.frame(ARRIVING), &wanted, &what);
                let padded = [packet.frame(ARRIVING), vec![0xee; 7]].concat();
                assert_answered(&mut rig, &padded, &wanted, &what);
            }
        }
    }
}

#[test]
fn a_request_without_checksum_gets_one() {
    let Some(mut rig) = rig() else { return };
    let (client, listener) = ends()[0];
    for list in [&[][..], &[(0x8022, &[1, 2, 3][..])]] {
        for fingerprinted in [false, true] {
            let packet = Packet {
                without_checksum: true,
                ..request(client, listener, message(1, list, fingerprinted))
            };
            let wanted = answer(client, listener, fingerprinted);
            assert_answered(&mut rig, &packet.frame(ARRIVING), &wanted, "no checksum");
        }
    }
}

#[test]
fn a_damaged_request_gets_a_damaged_answer() {
    let Some(mut rig) = rig() else { return };
    for (client, listener) in ends() {
        let mut frame =
            request(client, listener, message(1, &[(0x8022, &[1; 8])], false)).frame(ARRIVING);
        let end = frame.len();
        frame[end - 3] ^= 0x40;
        let run = rig.run(Path::Xdp, &frame, None);
        let good = answer(client, listener, false);
        let checksum = if client.is_ipv4() { 40..42 } else { 60..62 };
        assert_eq!(run.frame.len(), good.len());
        assert_ne!(run.frame[checksum.clone()], good[checksum]);
    }
}

/// What user space has to deal with, for its attributes.
fn foreign_attributes() -> Vec<(&'static str, Vec<u8>)> {
    let with = |kind: u16, value: &[u8]| message(1, &[(0x8022, &[1; 4]), (kind, value)], false);
    let first = |kind: u16, value: &[u8]| message(1, &[(kind, value)], true);
    vec![
        ("CHANGE-REQUEST", with(0x0003, &[0; 4])),
        ("USERNAME", with(0x0006, b"name")),
        ("integrity", with(0x0008, &[0; 20])),
        ("integrity by SHA-256", first(0x001c, &[0; 32])),
        ("PRIORITY", first(0x0024, &[0; 4])),
        ("too many", message(1, &[(0x8022, &[][..]); 17], false)),
        ("too long", with(0x8022, &[0; 256])),
        ("FINGERPRINT not the last", first(FINGERPRINT, &[0; 4])),
    ]
}

/// The same, for the message as a whole.
fn foreign_messages() -> Vec<(&'static str, Vec<u8>)> {
    let plain = || message(1, &[], false);
    let with = |change: fn(&mut Vec<u8>)| {
        let mut message = message(1, &[(0x8022, &[1, 2, 3])], true);
        change(&mut message);
        message
    };
    vec![
        ("an indication", message(0x0011, &[], false)),
        ("an Allocate request", message(0x0003, &[], false)),
        ("a response", message(0x0101, &[], false)),
        ("a short header", plain()[..19].to_vec()),
        ("more than it says", [plain(), vec![0; 4]].concat()),
        ("an odd length", [plain(), vec![0; 2]].concat()),
        ("another cookie", with(|message| message[5] ^= 1)),
        ("a length of 1 more", with(|message| message[3] += 1)),
        ("a wrong FINGERPRINT", with(|message| message[35] ^= 1)),
        ("damage in front of it", with(|message| message[24] ^= 1)),
        ("an overrun", with(|message| message[23] = 200)),
        ("FINGERPRINT of 3 bytes", with(|message| message[31] = 3)),
    ]
}

#[test]
fn all_else_is_for_user_space() {
    let Some(mut rig) = rig() else { return };
    for (client, listener) in ends() {
        for (what, payload) in foreign_messages().into_iter().chain(foreign_attributes()) {
            let frame = request(client, listener, payload).frame(ARRIVING);
            assert_passed(&mut rig, &frame, "pass_stun", what);
        }
        for bytes in 0..4 {
            let frame = request(client, listener, vec![0; bytes]).frame(ARRIVING);
            assert_passed(&mut rig, &frame, "pass_length", "not even a head");
        }
    }
}

#[test]
fn only_to_a_listener_and_from_where_an_answer_can_go() {
    let Some(mut rig) = rig() else { return };
    let [(client, listener), (client_v6, listener_v6)] = ends();
    let mut passed = |from: SocketAddr, to: SocketAddr, what: &str| {
        let frame = request(from, to, message(1, &[], false)).frame(ARRIVING);
        assert_passed(&mut rig, &frame, "pass_stun", what);
    };
    passed(
        client,
        SocketAddr::new(address("198.51.100.3:0").ip(), 3478),
        "another host",
    );
    passed(client_v6, address("[2001:db8::3]:3478"), "another host");
    passed(
        client,
        SocketAddr::new(listener.ip(), 443),
        "another listener port",
    );
    passed(SocketAddr::new(client.ip(), 0), listener, "port 0");
    for source in ["0.0.0.1", "127.0.0.1", "224.0.0.1", "255.255.255.255"] {
        passed(
            SocketAddr::new(source.parse().expect("an address"), 9),
            listener,
            source,
        );
    }
    for source in ["::", "::1", "::ffff:192.0.2.1", "ff02::1"] {
        passed(
            SocketAddr::new(source.parse().expect("an address"), 9),
            listener_v6,
            source,
        );
    }
    rig.relay.set_listener(listener, false).expect("gone");
    let frame = request(client, listener, message(1, &[], false)).frame(ARRIVING);
    assert_passed(&mut rig, &frame, "pass_stun", "no listener any longer");
}

#[test]
fn loopback_is_answered_at_home() {
    let Some(mut rig) = rig() else { return };
    for (client, listener) in [
        (address("127.0.0.1:5555"), address("127.0.0.1:3478")),
        (address("[::1]:5555"), address("[::1]:3478")),
    ] {
        rig.relay.set_listener(listener, true).expect("room");
        let frame = request(client, listener, message(1, &[], true)).frame(ARRIVING);
        assert_answered(&mut rig, &frame, &answer(client, listener, true), "at home");
    }
}

#[test]
fn a_prefix_gets_its_rate_and_others_theirs() {
    let Some(mut rig) = rig() else { return };
    let limit = BindingLimit {
        per_second: 1,
        burst: 5,
        drop_excess: false,
    };
    rig.relay.set_binding(Some(limit)).expect("writable");
    for (client, listener) in ends() {
        let answered = |rig: &mut Rig, client: SocketAddr| {
            let frame = request(client, listener, message(1, &[], false)).frame(ARRIVING);
            let runs = (0..20).map(|_| rig.run(Path::Xdp, &frame, None).verdict);
            runs.filter(|verdict| *verdict == Verdict::Transmit).count()
        };
        assert_eq!(answered(&mut rig, client), 6);
        let neighbour = match client.ip() {
            IpAddr::V4(_) => "203.0.113.1:7",
            IpAddr::V6(_) => "[2001:db8:8000:ff77:1::]:7",
        };
        assert_eq!(answered(&mut rig, address(neighbour)), 0, "the same prefix");
        let stranger = match client.ip() {
            IpAddr::V4(_) => "203.0.114.200:7",
            IpAddr::V6(_) => "[2001:db8:8000:fe01::5]:7",
        };
        assert_eq!(answered(&mut rig, address(stranger)), 6, "another prefix");
    }
    assert_eq!(rig.totals(Path::Xdp).binding_over_rate, 2 * (14 + 20 + 14));
}

#[test]
fn excess_is_dropped_if_configured_and_nothing_is_answered_when_off() {
    let Some(mut rig) = rig() else { return };
    let (client, listener) = ends()[0];
    let frame = request(client, listener, message(1, &[], false)).frame(ARRIVING);
    let limit = BindingLimit {
        per_second: 1,
        burst: 0,
        drop_excess: true,
    };
    // Loading takes some tenths of a second without KVM, and a second brings the next token.
    rig.relay.load_xdp().expect("it loads");
    rig.relay.load_tc().expect("it loads");
    rig.relay.set_binding(Some(limit)).expect("writable");
    let verdicts = [0; 2].map(|_| rig.run(Path::Xdp, &frame, None).verdict);
    assert_eq!(verdicts, [Verdict::Transmit, Verdict::Drop]);
    assert_eq!(rig.run(Path::Tc, &frame, None).verdict, Verdict::Drop);
    rig.relay.set_binding(None).expect("writable");
    assert_passed(&mut rig, &frame, "pass_stun", "off");
}
