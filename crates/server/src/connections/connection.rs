//! One connection: its protocol detection, incomplete messages, write queue and deadline.

use super::listener::Protocols;
use super::settings::WorkerLimits;
use super::{Arena, EndReason, Slot};
use io::TcpConnection;
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use streams::proxy::{self, Carried, Proxy};
use streams::tls::Failure;
use streams::{ChunkPool, FirstBytes, Tls, WriteQueue};
use turn::{ClientPath, Mono, Transport};

/// The maximum number of parts in one vectored write. 64 chunks of 16 KiB exceed the room in a socket.
const MAX_WRITE_PARTS: usize = 64;

/// The worker encrypts up to this number of bytes before it writes them: four records.
const MAX_ENCRYPTED_BYTES: usize = 64 << 10;

/// Above this number of unwritten response bytes, the worker reads no further requests of the client.
const MAX_UNWRITTEN_RESPONSES: usize = 16 << 10;

/// The progress of the protocol detection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DetectionStage {
    /// A PROXY header must arrive first.
    Proxy,
    /// The first bytes, which select the protocol, have not arrived.
    First,
    /// The transport is known.
    Open,
}

/// The readiness that the poller reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WatchedEvents {
    Nothing,
    Read,
    Write,
    Both,
}

/// The received bytes that a connection keeps after its complete messages have been handled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeptBytes {
    Nothing,
    /// Messages that must wait until an earlier request has its credentials, or the client has read earlier responses.
    Messages,
    /// More bytes of an incomplete message that was kept before. The message requires `need` bytes.
    Same {
        need: usize,
    },
    /// The first bytes of a message that requires `need` bytes.
    New {
        need: usize,
    },
}

impl KeptBytes {
    const fn need(self) -> usize {
        match self {
            KeptBytes::Nothing | KeptBytes::Messages => 0,
            KeptBytes::Same { need } | KeptBytes::New { need } => need,
        }
    }
}

/// The result of a call on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Open,
    /// The connection must end for this reason. The failure is that of TLS, if there is one.
    Ended(EndReason, Option<Failure>),
}

const OPEN: Outcome = Outcome::Open;

const fn ended(reason: EndReason) -> Outcome {
    Outcome::Ended(reason, None)
}

/// A connection and its state.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(super) stream: TcpConnection,
    pub(super) slot: Slot,
    /// The client's 5-tuple and listener. The transport is unknown before the stage `Open`.
    pub(super) path: ClientPath,
    /// The listener that accepted it.
    pub(super) listener: u16,
    /// The address that the limits per source count: the client's, or the load balancer's until its PROXY header has
    /// arrived.
    pub(super) source: SocketAddr,
    stage: DetectionStage,
    pub(super) tls: Option<Box<Tls>>,
    /// The first bytes of an incomplete message. It is usually empty and then holds no memory.
    pub(super) inbound: Vec<u8>,
    /// `inbound` must hold this number of bytes before its message is parsed again.
    need: usize,
    pub(super) unwritten: WriteQueue,
    /// Encrypted bytes that wait to be written.
    pub(super) ciphertext: Vec<u8>,
    ciphertext_written: usize,
    /// Time of the last received data. An incomplete TLS record is no data: a client cannot prolong the idle timeout
    /// with it.
    last_received: Mono,
    /// Start of the message deadline: when the connection was accepted, or when the first bytes of the incomplete
    /// message arrived.
    begun: Option<Mono>,
    /// The client has sent the first byte of a STUN message.
    has_sent_stun: bool,
    /// The client has had an allocation.
    pub(super) is_proven: bool,
    /// A request waits for its credentials. The worker reads nothing from the connection meanwhile.
    pub(super) is_paused: bool,
    /// It is about to become a data connection, or to move to another worker. Bytes that arrive now are not for this
    /// worker's session.
    pub(super) is_held: bool,
    /// It is in the list of connections to write to.
    pub(super) is_dirty: bool,
    pub(super) watching: WatchedEvents,
    /// Time at which its timer fires. The deadline may be later.
    pub(super) armed: Mono,
}

impl Connection {
    pub(super) fn new(
        stream: TcpConnection,
        slot: Slot,
        path: ClientPath,
        listener: u16,
        is_proxied: bool,
        now: Mono,
    ) -> Connection {
        Connection {
            stream,
            slot,
            source: path.five_tuple.remote,
            path,
            listener,
            stage: if is_proxied {
                DetectionStage::Proxy
            } else {
                DetectionStage::First
            },
            tls: None,
            inbound: Vec::new(),
            need: 0,
            unwritten: WriteQueue::default(),
            ciphertext: Vec::new(),
            ciphertext_written: 0,
            last_received: now,
            begun: Some(now),
            has_sent_stun: false,
            is_proven: false,
            is_paused: false,
            is_held: false,
            is_dirty: false,
            watching: WatchedEvents::Read,
            armed: Mono::NEVER,
        }
    }

    /// Continues a connection of another process, which has read these bytes from it, and knows the client's addresses.
    pub(super) fn adopt(&mut self, (local, remote): (SocketAddr, SocketAddr), bytes: Vec<u8>) {
        self.path.five_tuple.local = local;
        self.path.five_tuple.remote = remote;
        self.stage = DetectionStage::Open;
        self.has_sent_stun = true;
        self.inbound = bytes;
    }

    /// The time at which the connection is closed if nothing happens before, and the reason.
    pub(super) fn deadline(&self, limits: &WorkerLimits) -> (Mono, EndReason) {
        let idle = self.last_received.plus(limits.idle);
        match self.begun {
            _ if self.is_paused => (idle, EndReason::Idle),
            _ if self.has_unread_responses() => (idle, EndReason::Unread),
            None => (idle, EndReason::Idle),
            Some(begun) => (
                begun.plus(limits.message_deadline),
                EndReason::MessageDeadline,
            ),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.stage == DetectionStage::Open
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Whether the worker must not read from the connection now.
    pub(super) fn is_reading_stopped(&self) -> bool {
        self.is_paused || self.is_held || self.has_unread_responses()
    }

    /// Whether too many responses wait: the client must read them before the server reads again.
    fn has_unread_responses(&self) -> bool {
        self.unwritten.message_bytes() > MAX_UNWRITTEN_RESPONSES
    }

    /// The number of bytes that wait to be written.
    pub(super) fn waiting(&self) -> usize {
        self.unwritten.len() + self.ciphertext.len() - self.ciphertext_written
    }

    /// Handles received bytes: the PROXY header first, then the protocol detection, then data. Adds data to the arena,
    /// and decrypts it if there is TLS.
    pub(super) fn handle_received(
        &mut self,
        bytes: &[u8],
        protocols: &Protocols,
        arena: &mut Arena,
        now: Mono,
    ) -> Outcome {
        if self.stage == DetectionStage::Open {
            return self.handle_data(bytes, arena, now);
        }
        self.last_received = now;
        self.inbound.extend_from_slice(bytes);
        if self.stage == DetectionStage::Proxy {
            match self.take_proxy_header() {
                Ok(true) => {}
                Ok(false) => return OPEN,
                Err(reason) => return ended(reason),
            }
        }
        match self.detect(protocols) {
            Ok(true) => {
                let bytes = std::mem::take(&mut self.inbound);
                self.handle_data(&bytes, arena, now)
            }
            Ok(false) => OPEN,
            Err(outcome) => outcome,
        }
    }

    /// Parses and removes the PROXY header. Returns whether it was complete.
    fn take_proxy_header(&mut self) -> Result<bool, EndReason> {
        match proxy::parse(&self.inbound, Carried::Stream) {
            Proxy::Need(_) => Ok(false),
            Proxy::Invalid => Err(EndReason::ProxyHeader),
            Proxy::Header { len, addresses } => {
                if let Some(addresses) = addresses {
                    self.path.five_tuple.remote = addresses.client;
                    self.path.five_tuple.local = addresses.server;
                }
                self.inbound.drain(..len);
                self.stage = DetectionStage::First;
                Ok(true)
            }
        }
    }

    /// Detects the transport from the first bytes. Returns false if more bytes are required.
    fn detect(&mut self, protocols: &Protocols) -> Result<bool, Outcome> {
        let transport = match FirstBytes::of(&self.inbound) {
            FirstBytes::Need => return Ok(false),
            FirstBytes::Stun if protocols.plain => Transport::Tcp,
            FirstBytes::Stun => return Err(ended(EndReason::TcpOnTls)),
            FirstBytes::Tls => {
                let Some(config) = &protocols.tls else {
                    return Err(ended(EndReason::TlsOnTcp));
                };
                let tls = Tls::server(config.clone());
                let tls =
                    tls.map_err(|error| Outcome::Ended(EndReason::Tls, Some(error.failure)))?;
                self.tls = Some(Box::new(tls));
                Transport::Tls
            }
            FirstBytes::Text => return Err(ended(EndReason::Text)),
            FirstBytes::Proxy => return Err(ended(EndReason::ProxyHeader)),
            FirstBytes::Other => return Err(ended(EndReason::NotStun)),
        };
        self.path.five_tuple.transport = transport;
        self.stage = DetectionStage::Open;
        Ok(true)
    }

    /// Handles bytes that arrive after the protocol detection: decrypts them if there is TLS, and adds them to the
    /// arena. If a message is incomplete, they go to `inbound` until it holds the `need` bytes of the message.
    fn handle_data(&mut self, bytes: &[u8], arena: &mut Arena, now: Mono) -> Outcome {
        let is_new = self.inbound.is_empty();
        let outcome = match &mut self.tls {
            None if is_new => {
                self.last_received = now;
                arena.push(self.slot, bytes);
                return OPEN;
            }
            None => {
                self.last_received = now;
                self.inbound.extend_from_slice(bytes);
                OPEN
            }
            Some(tls) => {
                let start = arena.bytes.len();
                let plain = if is_new {
                    &mut arena.bytes
                } else {
                    &mut self.inbound
                };
                let before = plain.len();
                let result = tls.received(bytes, plain, &mut self.ciphertext);
                if plain.len() > before {
                    self.last_received = now;
                }
                arena.name(self.slot, start);
                match result {
                    Ok(false) => OPEN,
                    Ok(true) => ended(EndReason::Client),
                    Err(error) => Outcome::Ended(EndReason::Tls, Some(error.failure)),
                }
            }
        };
        let waits = self.is_paused || self.is_held;
        if !waits && !self.inbound.is_empty() && self.inbound.len() >= self.need {
            self.resume(arena);
        }
        outcome
    }

    /// Checks that the first application data begins a STUN message; if not, returns why the connection must end.
    /// ChannelData is no valid beginning, because a new connection has no channel.
    pub(super) fn check_first_bytes(&mut self, bytes: &[u8]) -> Option<EndReason> {
        if self.has_sent_stun {
            return None;
        }
        match FirstBytes::of(bytes) {
            FirstBytes::Stun => {
                self.has_sent_stun = true;
                None
            }
            FirstBytes::Text => Some(EndReason::Text),
            _ => Some(EndReason::NotStun),
        }
    }

    /// Moves the kept bytes to the arena.
    pub(super) fn resume(&mut self, arena: &mut Arena) {
        arena.push(self.slot, &self.inbound);
        self.inbound = Vec::new();
    }

    /// Keeps received bytes that were not handled.
    pub(super) fn keep(&mut self, rest: &[u8], kept: KeptBytes, now: Mono) {
        self.inbound.extend_from_slice(rest);
        self.need = kept.need();
        self.begun = match kept {
            KeptBytes::Nothing | KeptBytes::Messages => None,
            // The deadline runs from the first bytes of a message, however many parts it arrives in.
            KeptBytes::Same { .. } => self.begun.or(Some(now)),
            KeptBytes::New { .. } => Some(now),
        };
    }

    /// Writes queued bytes until the socket has no room. `scratch` is empty before and after the call.
    pub(super) fn write(
        &mut self,
        scratch: &mut Vec<u8>,
        spare: &mut ChunkPool,
        written: &mut WriteTotals,
    ) -> Outcome {
        loop {
            if !self.write_ciphertext(written) {
                return self.broken_or_full(written);
            }
            if self.unwritten.is_empty() || self.is_handshaking() {
                return OPEN;
            }
            let wrote_all = match &mut self.tls {
                None => self.write_plain(spare, written),
                Some(_) => self.write_records(scratch, spare, written),
            };
            if !wrote_all {
                return self.broken_or_full(written);
            }
        }
    }

    /// The result after a write that left bytes: the connection is broken, or its socket has no room.
    fn broken_or_full(&self, written: &WriteTotals) -> Outcome {
        if written.is_broken {
            ended(EndReason::Client)
        } else {
            OPEN
        }
    }

    /// Writes encrypted bytes. Returns whether all were written.
    pub(super) fn write_ciphertext(&mut self, written: &mut WriteTotals) -> bool {
        while self.ciphertext_written < self.ciphertext.len() {
            let rest = &self.ciphertext[self.ciphertext_written..];
            match written.write(&self.stream, &[IoSlice::new(rest)]) {
                Some(bytes) => self.ciphertext_written += bytes,
                None => return false,
            }
        }
        self.ciphertext = Vec::new();
        self.ciphertext_written = 0;
        true
    }

    /// Writes queued bytes without TLS. Returns whether the socket may have room for more.
    fn write_plain(&mut self, spare: &mut ChunkPool, written: &mut WriteTotals) -> bool {
        let mut parts = [IoSlice::new(&[]); MAX_WRITE_PARTS];
        let count = self.unwritten.parts(&mut parts);
        match written.write(&self.stream, &parts[..count]) {
            Some(bytes) => {
                self.unwritten.advance(bytes, spare);
                true
            }
            None => false,
        }
    }

    /// Encrypts some records and writes them. Keeps the encrypted bytes for which the socket has no room. Returns
    /// whether all were written.
    fn write_records(
        &mut self,
        scratch: &mut Vec<u8>,
        spare: &mut ChunkPool,
        written: &mut WriteTotals,
    ) -> bool {
        let Some(tls) = &mut self.tls else {
            return true;
        };
        while scratch.len() < MAX_ENCRYPTED_BYTES
            && let Some(chunk) = self.unwritten.first()
        {
            if tls.encrypt(chunk, scratch).is_err() {
                written.is_broken = true;
                scratch.clear();
                return false;
            }
            let length = chunk.len();
            self.unwritten.advance(length, spare);
        }
        let mut done = 0;
        while done < scratch.len() {
            match written.write(&self.stream, &[IoSlice::new(&scratch[done..])]) {
                Some(bytes) => done += bytes,
                None => break,
            }
        }
        self.ciphertext.extend_from_slice(&scratch[done..]);
        scratch.clear();
        self.ciphertext.is_empty()
    }

    /// Over TLS, sends close_notify if the socket has room.
    pub(super) fn send_close_notify(&mut self, written: &mut WriteTotals) {
        if let Some(tls) = &mut self.tls {
            tls.close(&mut self.ciphertext);
        }
        self.write_ciphertext(written);
    }

    /// The readiness that the poller must report now.
    pub(super) fn wants(&self) -> WatchedEvents {
        match (
            self.waiting() > 0 && !self.is_handshake_only(),
            self.is_reading_stopped(),
        ) {
            (false, false) => WatchedEvents::Read,
            (false, true) => WatchedEvents::Nothing,
            (true, false) => WatchedEvents::Both,
            (true, true) => WatchedEvents::Write,
        }
    }

    /// Whether queued data must wait for the client's part of the TLS handshake.
    fn is_handshake_only(&self) -> bool {
        self.ciphertext.is_empty() && self.is_handshaking()
    }
}

/// The counts of write calls, and whether the connection is broken.
#[derive(Debug, Default)]
pub(super) struct WriteTotals {
    pub(super) calls: u64,
    pub(super) bytes: u64,
    pub(super) is_broken: bool,
}

impl WriteTotals {
    /// Returns the number of written bytes; `None` if the socket has no room or the connection is broken.
    fn write(&mut self, stream: &TcpConnection, parts: &[IoSlice<'_>]) -> Option<usize> {
        loop {
            self.calls += 1;
            match stream.write(parts) {
                Ok(0) => self.is_broken = true,
                Ok(bytes) => {
                    self.bytes += bytes as u64;
                    return Some(bytes);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => self.is_broken = error.kind() != ErrorKind::WouldBlock,
            }
            return None;
        }
    }
}
