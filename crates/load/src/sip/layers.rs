//! What lies between the bytes of a client's connection and its messages: TLS, and a WebSocket (RFC 7118).

use std::io;
use std::sync::Arc;

use client::Tls as Verify;
use rustls::pki_types::ServerName;
use streams::websocket::{Connect, Event, Kind, MessageKinds, MessageLimits, Request, WebSocket};
use streams::{Tls, rustls};

use super::frame::{self, Frame, MAX_PART_BYTES};

/// What a WebSocket may bring.
const LIMITS: MessageLimits = MessageLimits {
    bytes: 2 * MAX_PART_BYTES,
    frames: 64,
    kinds: MessageKinds::All,
};

/// A ping of RFC 5626 §3.5.1, and its answer.
const PING: &[u8] = b"\r\n\r\n";
const PONG: &[u8] = b"\r\n";

/// What connections need beyond TCP.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionLayers {
    /// Whom to expect over TLS.
    pub(crate) tls: Option<Verify>,
    /// The host and port that a WebSocket is opened for.
    pub(crate) websocket: Option<String>,
}

/// The layers of one connection.
pub(crate) struct Layers {
    tls: Option<Box<Tls>>,
    /// The request for a WebSocket, until TLS lets it go.
    request: Vec<u8>,
    /// The handshake of the WebSocket, until it is over.
    connect: Option<Connect>,
    web: Option<Box<WebSocket>>,
    /// What was decrypted and is no whole message yet.
    plain: Vec<u8>,
    /// Frames or messages that wait for the handshakes, or to be encrypted.
    waiting: Vec<u8>,
}

impl std::fmt::Debug for Layers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Layers")
            .field("tls", &self.tls)
            .field("is_ready", &self.is_ready())
            .finish_non_exhaustive()
    }
}

impl Layers {
    /// Of a new connection; nothing over plain TCP. What goes out first is appended to `outgoing`.
    ///
    /// # Errors
    /// The TLS configuration cannot be used, or there is no randomness.
    pub(crate) fn new(
        way: &ConnectionLayers,
        outgoing: &mut Vec<u8>,
    ) -> io::Result<Option<Box<Layers>>> {
        if way.tls.is_none() && way.websocket.is_none() {
            return Ok(None);
        }
        let mut layers = Layers {
            tls: None,
            request: Vec::new(),
            connect: None,
            web: None,
            plain: Vec::new(),
            waiting: Vec::new(),
        };
        if let Some(verify) = &way.tls {
            let mut tls = session(verify)?;
            tls.received(&[], &mut Vec::new(), outgoing)
                .map_err(io::Error::other)?;
            layers.tls = Some(Box::new(tls));
        }
        if let Some(host) = &way.websocket {
            let mut bytes = [0; 32];
            getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
            let [key, mask] = [0, 16].map(|at| std::array::from_fn(|index| bytes[at + index]));
            let request = Request {
                host,
                target: "/",
                protocol: "sip",
                origin: "",
                key,
            };
            layers.connect = Some(Connect::new(&request, &mut layers.request));
            layers.web = Some(Box::new(WebSocket::client(LIMITS, mask)));
        }
        Ok(Some(Box::new(layers)))
    }

    /// Whether messages leave at once.
    pub(crate) fn is_ready(&self) -> bool {
        self.connect.is_none() && !self.is_handshaking()
    }

    fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Takes what was read and hands over each whole message. Returns `false` if nothing can follow.
    pub(crate) fn receive(
        &mut self,
        bytes: &[u8],
        outgoing: &mut Vec<u8>,
        on: &mut impl FnMut(&[u8]),
    ) -> bool {
        let mut goes_on = true;
        match &mut self.tls {
            None => self.plain.extend_from_slice(bytes),
            Some(tls) => {
                let result = tls.received(bytes, &mut self.plain, outgoing);
                goes_on = result.is_ok_and(|is_end| !is_end);
            }
        }
        goes_on && self.take_plain(on) && self.seal(outgoing)
    }

    fn take_plain(&mut self, on: &mut impl FnMut(&[u8])) -> bool {
        if let Some(connect) = &mut self.connect {
            let (used, result) = connect.receive(&self.plain);
            self.plain.drain(..used);
            match result {
                Ok(false) => return true,
                Ok(true) => self.connect = None,
                Err(_) => return false,
            }
        }
        let used = match &mut self.web {
            Some(web) => take_frames(web, &mut self.plain, &mut self.waiting, on),
            None => cut(&self.plain, &mut self.waiting, on),
        };
        match used {
            Some(used) if used == self.plain.len() => self.plain.clear(),
            Some(used) => drop(self.plain.drain(..used)),
            None => {}
        }
        used.is_some()
    }

    /// Queues a message.
    pub(crate) fn queue(&mut self, message: &[u8]) {
        match &mut self.web {
            Some(web) => {
                web.send(Kind::of(message), message, &mut self.waiting);
            }
            None => self.waiting.extend_from_slice(message),
        }
    }

    /// Bytes that wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// Moves what waits to what is to be written, if handshakes let it. `false` if TLS has failed.
    pub(crate) fn seal(&mut self, outgoing: &mut Vec<u8>) -> bool {
        if self.is_handshaking() {
            return true;
        }
        let Layers {
            tls,
            request,
            waiting,
            ..
        } = self;
        let mut move_out = |bytes: &mut Vec<u8>| {
            let moved = match tls {
                _ if bytes.is_empty() => true,
                None => {
                    outgoing.extend_from_slice(bytes);
                    true
                }
                Some(tls) => tls.encrypt(bytes, outgoing).is_ok(),
            };
            bytes.clear();
            moved
        };
        // Messages follow when the WebSocket is open.
        move_out(request) && (self.connect.is_some() || move_out(waiting))
    }
}

fn session(verify: &Verify) -> io::Result<Tls> {
    let name = ServerName::try_from(verify.server_name()).map_err(io::Error::other)?;
    Tls::client(Arc::clone(verify.config()), name).map_err(io::Error::other)
}

/// Calls `on` with each message of a WebSocket. Returns the number of bytes that were used; `None` if the connection
/// has ended.
fn take_frames(
    web: &mut WebSocket,
    bytes: &mut [u8],
    answers: &mut Vec<u8>,
    on: &mut impl FnMut(&[u8]),
) -> Option<usize> {
    let mut used = 0;
    loop {
        let (length, event) = web.receive(&mut bytes[used..], answers);
        used += length;
        let is_ping = match event {
            Event::Need => return Some(used),
            Event::Ended(_) => return None,
            Event::Alive => false,
            Event::Message { payload, .. } if payload == PING => true,
            Event::Message { payload, .. } => {
                if payload != PONG {
                    on(payload);
                }
                false
            }
        };
        if is_ping {
            web.send(Kind::Text, PONG, answers);
        }
    }
}

/// Hands over the messages of a stream. Returns how many bytes they took; `None` if no message can follow.
pub(crate) fn cut(
    bytes: &[u8],
    answers: &mut Vec<u8>,
    on: &mut impl FnMut(&[u8]),
) -> Option<usize> {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        match frame::next(rest) {
            Frame::Message(length) => {
                on(&rest[..length]);
                at += length;
            }
            Frame::Blank(length) => {
                // RFC 5626 §3.5.1: a double line end is a ping, and a single one the pong.
                if rest[..length] == *PING {
                    answers.extend_from_slice(PONG);
                }
                at += length;
            }
            Frame::Partial => break,
            Frame::Broken => return None,
        }
    }
    Some(at)
}
