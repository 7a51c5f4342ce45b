//! The input and the responses: the cases of the RFC as tables, as in the Autobahn test suite. Each runs with the bytes
//! in one piece, in pieces and byte by byte.

use proptest::prelude::*;

use super::frame::{FrameHeader, Opcode};
use super::*;

const LIMITS: MessageLimits = MessageLimits {
    bytes: 1_000,
    frames: 5,
    kinds: MessageKinds::All,
};

/// An event that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Text(Vec<u8>),
    Binary(Vec<u8>),
    Alive,
    Closed(Option<u16>),
    Failed(ProtocolError),
}

fn text(text: &str) -> Seen {
    Seen::Text(text.as_bytes().to_vec())
}

fn receive(socket: &mut WebSocket, bytes: &[u8], out: &mut Vec<u8>) -> Vec<Seen> {
    let mut bytes = bytes.to_vec();
    let (mut at, mut seen) = (0, Vec::new());
    loop {
        let (used, event) = socket.receive(&mut bytes[at..], out);
        at += used;
        seen.push(match event {
            Event::Need => break,
            Event::Message {
                kind: Kind::Text,
                payload,
            } => Seen::Text(payload.to_vec()),
            Event::Message {
                kind: Kind::Binary,
                payload,
            } => Seen::Binary(payload.to_vec()),
            Event::Alive => Seen::Alive,
            Event::Ended(End::Closed(code)) => Seen::Closed(code),
            Event::Ended(End::Failed(error)) => Seen::Failed(error),
        });
    }
    assert_eq!(at, bytes.len());
    seen
}

fn in_pieces(mut socket: WebSocket, bytes: &[u8], piece: usize) -> (Vec<Seen>, Vec<u8>) {
    let mut out = Vec::new();
    let seen = bytes
        .chunks(piece)
        .flat_map(|piece| receive(&mut socket, piece, &mut out))
        .collect();
    (seen, out)
}

/// A frame of a client: the first byte as it is, any payload.
fn frame(first: u8, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let (key, payload) = ([0x37, 0xfa, 0x21, 0x3d], payload.as_ref());
    let mut frame = FrameHeader::new(Opcode::Text, payload.len(), Some(key))
        .as_bytes()
        .to_vec();
    frame[0] = first;
    frame.extend(
        payload
            .iter()
            .zip(key.iter().cycle())
            .map(|(byte, key)| byte ^ key),
    );
    frame
}

fn close(code: u16, reason: impl AsRef<[u8]>) -> Vec<u8> {
    frame(0x88, [&code.to_be_bytes(), reason.as_ref()].concat())
}

/// What a server sends when it closes.
fn closed(code: u16) -> Vec<u8> {
    [&[0x88, 2][..], &code.to_be_bytes()].concat()
}

/// Frames from a client, what the server finds, and what it answers.
fn check(name: &str, frames: &[Vec<u8>], seen: &[Seen], out: &[u8]) {
    let bytes = frames.concat();
    for piece in [1, 2, 3, 7, 13, bytes.len().max(1)] {
        let (found, answered) = in_pieces(WebSocket::server(LIMITS), &bytes, piece);
        assert_eq!(found, seen, "{name}, pieces of {piece}");
        assert_eq!(answered, out, "{name}, pieces of {piece}");
    }
}

fn fails(name: &str, frames: &[Vec<u8>], error: ProtocolError, code: u16) {
    check(name, frames, &[Seen::Failed(error)], &closed(code));
}

#[test]
fn messages_of_every_length_are_found() {
    for length in [0, 1, 7, 8, 125, 126, 127, 128, 999, 1_000] {
        let payload = vec![b'*'; length];
        check(
            "text",
            &[frame(0x81, &payload)],
            &[Seen::Text(payload.clone())],
            &[],
        );
        check(
            "binary",
            &[frame(0x82, &payload)],
            &[Seen::Binary(payload.clone())],
            &[],
        );
        let two = [frame(0x82, &payload), frame(0x81, "x")];
        check("two", &two, &[Seen::Binary(payload), text("x")], &[]);
    }
}

#[test]
fn pings_are_answered_with_their_payload_and_pongs_are_not() {
    for length in [0, 1, 125] {
        let payload = vec![0xfe; length];
        let pong = [&[0x8a, length as u8][..], &payload].concat();
        check("ping", &[frame(0x89, &payload)], &[Seen::Alive], &pong);
        check("pong", &[frame(0x8a, &payload)], &[Seen::Alive], &[]);
    }
    let ten = vec![frame(0x89, "x"); 10];
    check(
        "ten pings",
        &ten,
        &vec![Seen::Alive; 10],
        &[0x8a, 1, b'x'].repeat(10),
    );
}

#[test]
fn control_frames_are_short_and_whole() {
    for opcode in [8, 9, 10] {
        fails(
            "long",
            &[frame(0x80 | opcode, [0; 126])],
            ProtocolError::Control,
            1002,
        );
        fails(
            "fragment",
            &[frame(opcode, "")],
            ProtocolError::Control,
            1002,
        );
    }
}

#[test]
fn reserved_bits_and_opcodes_fail() {
    for bits in [0x10, 0x20, 0x40, 0x50, 0x70] {
        for opcode in [1, 2, 8, 9] {
            fails(
                "reserved",
                &[frame(0x80 | bits | opcode, "")],
                ProtocolError::ReservedBits,
                1002,
            );
        }
    }
    for opcode in [3, 4, 5, 6, 7, 11, 12, 13, 14, 15] {
        let frames = [
            frame(0x81, "before"),
            frame(0x80 | opcode, ""),
            frame(0x89, "after"),
        ];
        let seen = [text("before"), Seen::Failed(ProtocolError::Opcode)];
        check("opcode", &frames, &seen, &closed(1002));
    }
}

#[test]
fn fragments_are_joined_with_control_frames_between() {
    let frames = [frame(0x01, "frag"), frame(0x80, "ment")];
    check("two", &frames, &[text("fragment")], &[]);
    let frames = [
        frame(0x01, "frag"),
        frame(0x89, "p"),
        frame(0x00, ""),
        frame(0x8a, ""),
        frame(0x80, "ment"),
    ];
    check(
        "pings",
        &frames,
        &[Seen::Alive, Seen::Alive, text("fragment")],
        &[0x8a, 1, b'p'],
    );
    let frames = [frame(0x02, ""), frame(0x00, ""), frame(0x80, "")];
    check("empty", &frames, &[Seen::Binary(Vec::new())], &[]);
    let frames = [
        frame(0x01, "a"),
        frame(0x80, "b"),
        frame(0x82, "c"),
        frame(0x01, "d"),
        frame(0x80, ""),
    ];
    check(
        "again",
        &frames,
        &[text("ab"), Seen::Binary(b"c".to_vec()), text("d")],
        &[],
    );
}

#[test]
fn fragments_out_of_order_fail() {
    let error = ProtocolError::Fragments;
    fails("no beginning", &[frame(0x80, "x")], error, 1002);
    fails("no beginning, not final", &[frame(0x00, "x")], error, 1002);
    fails(
        "two beginnings",
        &[frame(0x01, "x"), frame(0x81, "y")],
        error,
        1002,
    );
    fails(
        "another kind",
        &[frame(0x01, "x"), frame(0x02, "y")],
        error,
        1002,
    );
    let frames = [frame(0x01, "x"), frame(0x80, "y"), frame(0x80, "z")];
    check(
        "after the end",
        &frames,
        &[text("xy"), Seen::Failed(error)],
        &closed(1002),
    );
}

#[test]
fn text_is_utf8_across_frames() {
    for valid in [
        "κόσμε",
        "\u{0}",
        "\u{7f}\u{80}\u{7ff}\u{800}",
        "\u{ffff}\u{10000}\u{10ffff}",
    ] {
        check("valid", &[frame(0x81, valid)], &[text(valid)], &[]);
        let (one, other) = valid.as_bytes().split_at(1);
        check(
            "split",
            &[frame(0x01, one), frame(0x80, other)],
            &[text(valid)],
            &[],
        );
    }
    for invalid in [
        &b"\xce\xba\xed\xa0\x80edited"[..],
        b"\x80",
        b"\xc0\xaf",
        b"\xe0\x80\xaf",
        b"\xf4\x90\x80\x80",
        b"\xf8\x88\x80\x80\x80",
        b"\xff",
        b"cut \xe2\x82",
    ] {
        fails(
            "invalid",
            &[frame(0x81, invalid), frame(0x89, "")],
            ProtocolError::Utf8,
            1007,
        );
        check(
            "binary",
            &[frame(0x82, invalid)],
            &[Seen::Binary(invalid.to_vec())],
            &[],
        );
    }
    // What cannot become valid fails before the message ends.
    fails(
        "early",
        &[frame(0x01, b"\xf4\x90"), frame(0x89, "")],
        ProtocolError::Utf8,
        1007,
    );
}

#[test]
fn a_close_is_answered_with_its_code() {
    check(
        "none",
        &[frame(0x88, "")],
        &[Seen::Closed(None)],
        &[0x88, 0],
    );
    for code in [
        1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 3000, 3999, 4000, 4999,
    ] {
        let frames = [
            close(code, "why"),
            frame(0x81, "after"),
            frame(0x89, "after"),
        ];
        check("code", &frames, &[Seen::Closed(Some(code))], &closed(code));
    }
    check(
        "long",
        &[close(1000, [b'x'; 123])],
        &[Seen::Closed(Some(1000))],
        &closed(1000),
    );
    for code in [
        0, 999, 1004, 1005, 1006, 1015, 1016, 1100, 2000, 2999, 5000, 65_535,
    ] {
        fails(
            "invalid code",
            &[close(code, "")],
            ProtocolError::CloseBody,
            1002,
        );
    }
    fails(
        "one byte",
        &[frame(0x88, "x")],
        ProtocolError::CloseBody,
        1002,
    );
    fails("reason", &[close(1000, [0xff])], ProtocolError::Utf8, 1007);
    let frames = [frame(0x01, "begun"), close(1000, "")];
    check(
        "within a message",
        &frames,
        &[Seen::Closed(Some(1000))],
        &closed(1000),
    );
}

#[test]
fn a_message_has_a_limit_in_bytes_and_frames() {
    let error = ProtocolError::TooLong;
    fails("whole", &[frame(0x82, [0; 1_001])], error, 1009);
    fails(
        "fragments",
        &[frame(0x02, [0; 600]), frame(0x80, [0; 401])],
        error,
        1009,
    );
    fails(
        "empty fragments",
        &vec![frame(0x02, ""); 1]
            .into_iter()
            .chain(vec![frame(0x00, ""); 5])
            .collect::<Vec<_>>(),
        error,
        1009,
    );
    let payload = [frame(0x02, [0; 600]), frame(0x80, [0; 400])];
    check(
        "at the limit",
        &payload,
        &[Seen::Binary(vec![0; 1_000])],
        &[],
    );
    // What is only announced takes no memory.
    let announced = [
        0x82, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0,
    ];
    fails("announced", &[announced.to_vec()], error, 1009);
}

#[test]
fn clients_mask_and_servers_do_not() {
    fails(
        "unmasked",
        &[vec![0x81, 1, b'x']],
        ProtocolError::NotMasked,
        1002,
    );
    let mut client = WebSocket::client(LIMITS, [7; 16]);
    let mut out = Vec::new();
    let seen = receive(&mut client, &frame(0x81, "x"), &mut out);
    assert_eq!(seen, [Seen::Failed(ProtocolError::Masked)]);
    let (seen, _) = in_pieces(WebSocket::server(LIMITS), &out, 1);
    assert_eq!(seen, [Seen::Closed(Some(1002))]);
}

#[test]
fn a_kind_that_is_not_understood_is_refused() {
    for (kinds, first, code) in [
        (MessageKinds::Text, 0x82, Some(1003)),
        (MessageKinds::Binary, 0x81, Some(1003)),
        (MessageKinds::Text, 0x81, None),
        (MessageKinds::Binary, 0x82, None),
    ] {
        let limits = MessageLimits { kinds, ..LIMITS };
        let (seen, out) = in_pieces(WebSocket::server(limits), &frame(first, "x"), 1);
        assert_eq!(seen == [Seen::Failed(ProtocolError::Kind)], code.is_some());
        assert_eq!(out, code.map(closed).unwrap_or_default());
    }
}

#[test]
fn after_our_close_only_the_other_sides_close_counts() {
    let mut server = WebSocket::server(LIMITS);
    let mut out = Vec::new();
    let long = "é".repeat(100);
    server.close(CloseCode::GoingAway, &long, &mut out);
    assert_eq!(
        (out[0], out[1], out.len()),
        (0x88, 124, 126),
        "the reason is cut between characters"
    );
    out.clear();
    server.close(CloseCode::Normal, "", &mut out);
    server.ping(&mut out);
    assert!(!server.send(Kind::Text, b"x", &mut out));
    let frames = [
        frame(0x81, "late"),
        frame(0x01, "la"),
        frame(0x80, "te"),
        frame(0x89, "p"),
        close(1001, ""),
    ]
    .concat();
    let seen = receive(&mut server, &frames, &mut out);
    assert_eq!(
        (seen, out.len()),
        (vec![Seen::Alive, Seen::Closed(Some(1001))], 0)
    );
    assert_eq!(receive(&mut server, b"anything", &mut out), []);
}

#[test]
fn every_close_code_has_its_number() {
    let codes = [
        (CloseCode::Normal, 1000),
        (CloseCode::GoingAway, 1001),
        (CloseCode::Protocol, 1002),
        (CloseCode::Unsupported, 1003),
        (CloseCode::Payload, 1007),
        (CloseCode::TooLong, 1009),
        (CloseCode::Internal, 1011),
    ];
    for (code, number) in codes {
        let mut out = Vec::new();
        WebSocket::server(LIMITS).close(code, "", &mut out);
        assert_eq!(out, closed(number));
    }
}

#[test]
fn a_message_in_one_piece_is_not_copied_and_nothing_is_kept() {
    let mut server = WebSocket::server(LIMITS);
    let mut bytes = frame(0x81, "in place");
    let range = bytes.as_ptr_range();
    let (_, event) = server.receive(&mut bytes, &mut Vec::new());
    let Event::Message { payload, .. } = event else {
        panic!("{event:?}");
    };
    assert!(range.contains(&payload.as_ptr()));
    in_pieces_of(&mut server, &frame(0x81, "gathered"), 3);
    assert!(!server.is_begun());
    receive(&mut server, &[], &mut Vec::new());
    assert_eq!(server.gathered_capacity(), 0);
}

fn in_pieces_of(server: &mut WebSocket, bytes: &[u8], piece: usize) {
    for piece in bytes.chunks(piece) {
        receive(server, piece, &mut Vec::new());
    }
}

/// A message dripped byte by byte costs no more per byte than a short one: no byte is looked at twice.
#[test]
fn many_bytes_one_by_one_are_gathered_in_linear_time() {
    let limits = MessageLimits {
        bytes: 4 << 20,
        ..LIMITS
    };
    let payload = vec![b'x'; 4 << 20];
    let (seen, _) = in_pieces(WebSocket::server(limits), &frame(0x81, &payload), 1);
    assert_eq!(seen, [Seen::Text(payload)]);
}

proptest! {
    /// Any bytes: the same events and the same answers, however they are cut.
    #[test]
    fn pieces_change_nothing(
        mut bytes in prop::collection::vec(any::<u8>(), 0..300),
        first in prop::sample::select(vec![0x81, 0x82, 0x01, 0x88, 0x89, 0x00]),
        length in 0..140_u8,
        is_server: bool,
        piece in 1..50_usize,
    ) {
        if let [one, other, ..] = &mut bytes[..] {
            (*one, *other) = (first, if is_server { 0x80 | length } else { length });
        }
        let socket = || if is_server { WebSocket::server(LIMITS) } else { WebSocket::client(LIMITS, [1; 16]) };
        let whole = in_pieces(socket(), &bytes, bytes.len().max(1));
        prop_assert_eq!(&whole, &in_pieces(socket(), &bytes, piece));
        prop_assert_eq!(&whole, &in_pieces(socket(), &bytes, 1));
    }

    /// What one side sends, the other finds.
    #[test]
    fn messages_arrive_as_they_were_sent(
        messages in prop::collection::vec(prop_oneof![
            any::<String>().prop_map(String::into_bytes),
            prop::collection::vec(any::<u8>(), 0..900),
        ], 0..12),
        piece in 1..2_000_usize,
        from_client: bool,
    ) {
        let (mut one, other) = (WebSocket::client(LIMITS, [3; 16]), WebSocket::server(LIMITS));
        let (mut sender, receiver) = if from_client { (one, other) } else { one = other; (one, WebSocket::client(LIMITS, [3; 16])) };
        let (mut bytes, mut expected) = (Vec::new(), Vec::new());
        for message in messages {
            let kind = Kind::of(&message);
            prop_assert!(sender.send(kind, &message, &mut bytes));
            expected.push(match kind {
                Kind::Text => Seen::Text(message),
                Kind::Binary => Seen::Binary(message),
            });
            sender.ping(&mut bytes);
            expected.push(Seen::Alive);
        }
        sender.close(CloseCode::Normal, "done", &mut bytes);
        expected.push(Seen::Closed(Some(1000)));
        let (seen, answers) = in_pieces(receiver, &bytes, piece);
        prop_assert_eq!(&seen, &expected);
        // The Pongs and the Close come back.
        let mut out = Vec::new();
        let mut back = vec![Seen::Alive; (expected.len() - 1) / 2];
        back.push(Seen::Closed(Some(1000)));
        prop_assert_eq!(receive(&mut sender, &answers, &mut out), back);
        prop_assert!(out.is_empty());
    }
}
