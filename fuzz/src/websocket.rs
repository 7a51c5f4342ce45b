//! What the WebSocket targets do with an input, shared with the test in crates/streams that replays the corpus.
//!
//! However the bytes are cut, events and responses must be the same, and what is answered must be what the protocol
//! allows.

use hairpin_streams as streams;
use streams::websocket::{
    Accept, AcceptRules, Connect, End, Event, Kind, MessageKinds, MessageLimits, Request, WebSocket,
};

const LIMITS: MessageLimits = MessageLimits {
    bytes: 300,
    frames: 6,
    kinds: MessageKinds::All,
};

/// An event that owns its bytes.
#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Message(Kind, Vec<u8>),
    Alive,
    Ended(End),
}

fn receive(mut socket: WebSocket, bytes: &[u8], piece: usize) -> (Vec<Seen>, Vec<u8>) {
    let (mut seen, mut out) = (Vec::new(), Vec::new());
    for piece in bytes.chunks(piece.max(1)) {
        let mut piece = piece.to_vec();
        let mut at = 0;
        loop {
            let (used, event) = socket.receive(&mut piece[at..], &mut out);
            at += used;
            seen.push(match event {
                Event::Need => break,
                Event::Message { kind, payload } => {
                    assert!(payload.len() <= LIMITS.bytes);
                    assert!(kind == Kind::Binary || std::str::from_utf8(payload).is_ok());
                    Seen::Message(kind, payload.to_vec())
                }
                Event::Alive => Seen::Alive,
                Event::Ended(end) => {
                    assert!(!socket.is_open() && !socket.is_begun());
                    Seen::Ended(end)
                }
            });
        }
        assert_eq!(at, piece.len());
    }
    (seen, out)
}

/// Frames: the first byte says to which side, and how they are cut.
pub fn frames(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else {
        return;
    };
    let limits = LIMITS;
    let is_server = first & 0x80 == 0;
    let socket = || match is_server {
        true => WebSocket::server(limits),
        false => WebSocket::client(limits, [5; 16]),
    };
    let whole = receive(socket(), bytes, bytes.len());
    for piece in [1, usize::from(first & 0x7f)] {
        assert_eq!(whole, receive(socket(), bytes, piece));
    }
    let ends = |seen: &Seen| matches!(seen, Seen::Ended(_));
    assert!(!whole.0.iter().rev().skip(1).any(ends), "{whole:?}");
    // The other side finds nothing wrong with the answers.
    let other = match is_server {
        true => WebSocket::client(limits, [6; 16]),
        false => WebSocket::server(limits),
    };
    let (seen, _) = receive(other, &whole.1, 9);
    let fails = |seen: &Seen| matches!(seen, Seen::Ended(End::Failed(_)) | Seen::Message(..));
    assert!(!seen.iter().any(fails), "{seen:?}");
}

/// Handshakes of both sides: the first byte says how they are cut.
pub fn handshake(input: &[u8]) {
    let Some((first, bytes)) = input.split_first() else {
        return;
    };
    let rules = AcceptRules {
        bytes: 512,
        fields: 12,
        paths: vec!["/".to_owned(), "/ws".to_owned()],
        protocols: vec!["sip".to_owned()],
        origins: (first & 0x80 != 0).then(|| vec!["https://example.org".to_owned()]),
    };
    let accept = |piece: usize| {
        let (mut accept, mut out, mut total) = (Accept::default(), Vec::new(), 0);
        for piece in bytes.chunks(piece.max(1)) {
            let (used, result) = accept.receive(piece, &rules, &mut out);
            total += used;
            if result != Ok(None) {
                return (total, result, out);
            }
            assert!(out.is_empty());
        }
        (total, Ok(None), out)
    };
    let whole = accept(bytes.len());
    assert_eq!(whole, accept(1));
    assert_eq!(whole, accept(usize::from(first & 0x7f)));
    let status = match &whole.1 {
        Ok(None) => String::new(),
        Ok(Some(_)) => "HTTP/1.1 101 ".to_owned(),
        Err(refusal) => format!("HTTP/1.1 {} ", refusal.status()),
    };
    assert!(whole.2.starts_with(status.as_bytes()));
    let request = Request {
        host: "example.org",
        target: "/",
        protocol: "sip",
        origin: "",
        key: *b"the sample nonce",
    };
    let connect = |piece: usize| {
        let mut connect = Connect::new(&request, &mut Vec::new());
        for piece in bytes.chunks(piece.max(1)) {
            let (_, result) = connect.receive(piece);
            if result != Ok(false) {
                return result;
            }
        }
        Ok(false)
    };
    assert_eq!(connect(bytes.len()), connect(1));
}
