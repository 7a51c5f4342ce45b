//! One connection: what has begun to come, what waits to be written, and how long it may take.

use super::listener::Speaks;
use super::settings::WorkerLimits;
use super::{Arena, EndReason, Slot};
use io::TcpConnection;
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use streams::proxy::{self, Carried, Proxy};
use streams::tls::Failure;
use streams::{FirstBytes, Spare, Tls, Unwritten};
use turn::{ClientPath, Mono, Transport};

/// Parts of one write. 64 chunks of 16 KiB are more than a socket has room for.
const PARTS: usize = 64;

/// So much is encrypted before it is written: four records.
const ENCRYPTED: usize = 64 << 10;

/// With so many bytes of responses unwritten, no further request is read.
const CLOGGED: usize = 16 << 10;

/// How far a connection has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// A PROXY header comes first.
    Proxy,
    /// The first bytes will tell the protocol.
    First,
    /// The transport is known.
    Open,
}

/// What the poller reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watching {
    Nothing,
    Read,
    Write,
    Both,
}

/// What a call on a connection led to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Open,
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
    /// Where the client is. Before the stage `Open` its transport is not known yet.
    pub(super) path: ClientPath,
    /// The listener it was accepted by.
    pub(super) listener: u16,
    /// Whom the limit per source counts it for.
    pub(super) source: SocketAddr,
    stage: Stage,
    pub(super) tls: Option<Box<Tls>>,
    /// The beginning of a message whose end has not come. Empty, and without memory, most of the time.
    inbound: Vec<u8>,
    /// The message in `inbound` is whole when there are so many bytes.
    need: usize,
    pub(super) unwritten: Unwritten,
    /// What is encrypted and not written.
    ciphertext: Vec<u8>,
    ciphertext_written: usize,
    /// When bytes came last.
    heard: Mono,
    /// Since when a message has been on its way: the first from the beginning on.
    begun: Option<Mono>,
    /// It has sent the beginning of a STUN message.
    has_spoken: bool,
    /// It has had an allocation.
    pub(super) is_proven: bool,
    /// A request waits for its key; nothing is read meanwhile.
    pub(super) is_paused: bool,
    /// It is on the list of those with something to write.
    pub(super) is_dirty: bool,
    pub(super) watching: Watching,
    /// When its timer fires; the deadline may be later.
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
                Stage::Proxy
            } else {
                Stage::First
            },
            tls: None,
            inbound: Vec::new(),
            need: 0,
            unwritten: Unwritten::default(),
            ciphertext: Vec::new(),
            ciphertext_written: 0,
            heard: now,
            begun: Some(now),
            has_spoken: false,
            is_proven: false,
            is_paused: false,
            is_dirty: false,
            watching: Watching::Read,
            armed: Mono::NEVER,
        }
    }

    /// When it is to be closed unless something happens, and why.
    pub(super) fn deadline(&self, limits: &WorkerLimits) -> (Mono, EndReason) {
        match self.begun {
            Some(begun) if !self.is_paused => (
                begun.plus(limits.message_deadline),
                EndReason::MessageDeadline,
            ),
            _ => (self.heard.plus(limits.idle), EndReason::Idle),
        }
    }

    pub(super) fn is_open(&self) -> bool {
        self.stage == Stage::Open
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Nothing is to be read now.
    pub(super) fn is_deaf(&self) -> bool {
        self.is_paused || self.unwritten.message_bytes() > CLOGGED
    }

    /// Bytes that wait to be written.
    pub(super) fn waiting(&self) -> usize {
        self.unwritten.len() + self.ciphertext.len() - self.ciphertext_written
    }

    /// Takes bytes as they came; what messages they hold goes to the arena.
    pub(super) fn take(
        &mut self,
        bytes: &[u8],
        speaks: &Speaks,
        arena: &mut Arena,
        now: Mono,
    ) -> Outcome {
        self.heard = now;
        if self.stage == Stage::Open {
            return self.take_open(bytes, arena);
        }
        self.inbound.extend_from_slice(bytes);
        if self.stage == Stage::Proxy {
            match self.take_proxy_header() {
                Ok(true) => {}
                Ok(false) => return OPEN,
                Err(reason) => return ended(reason),
            }
        }
        match self.detect(speaks) {
            Ok(true) => {
                let bytes = std::mem::take(&mut self.inbound);
                self.take_open(&bytes, arena)
            }
            Ok(false) => OPEN,
            Err(outcome) => outcome,
        }
    }

    /// Returns whether the header is whole.
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
                self.stage = Stage::First;
                Ok(true)
            }
        }
    }

    /// Learns the transport from the first bytes. Returns whether they suffice.
    fn detect(&mut self, speaks: &Speaks) -> Result<bool, Outcome> {
        let transport = match FirstBytes::of(&self.inbound) {
            FirstBytes::Need => return Ok(false),
            FirstBytes::Stun if speaks.plain => Transport::Tcp,
            FirstBytes::Stun => return Err(ended(EndReason::TcpOnTls)),
            FirstBytes::Tls => {
                let Some(config) = &speaks.tls else {
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
        self.stage = Stage::Open;
        Ok(true)
    }

    fn take_open(&mut self, bytes: &[u8], arena: &mut Arena) -> Outcome {
        let is_new = self.inbound.is_empty();
        let outcome = match &mut self.tls {
            None if is_new => {
                arena.push(self.slot, bytes);
                return OPEN;
            }
            None => {
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
                let result = tls.received(bytes, plain, &mut self.ciphertext);
                arena.name(self.slot, start);
                match result {
                    Ok(false) => OPEN,
                    Ok(true) => ended(EndReason::Client),
                    Err(error) => Outcome::Ended(EndReason::Tls, Some(error.failure)),
                }
            }
        };
        if !self.is_paused && !self.inbound.is_empty() && self.inbound.len() >= self.need {
            self.resume(arena);
        }
        outcome
    }

    /// Why these first bytes, decrypted ones included, end the connection. A channel exists only after a STUN message.
    pub(super) fn judge_first(&mut self, bytes: &[u8]) -> Option<EndReason> {
        if self.has_spoken {
            return None;
        }
        match FirstBytes::of(bytes) {
            FirstBytes::Stun => {
                self.has_spoken = true;
                None
            }
            FirstBytes::Text => Some(EndReason::Text),
            _ => Some(EndReason::NotStun),
        }
    }

    /// Hands out what has been kept.
    pub(super) fn resume(&mut self, arena: &mut Arena) {
        arena.push(self.slot, &self.inbound);
        self.inbound = Vec::new();
    }

    /// Keeps what is left of received bytes: the beginning of a message of `need` bytes, or whole messages while it is paused.
    pub(super) fn keep(&mut self, rest: &[u8], need: usize, now: Mono) {
        self.need = need;
        if rest.is_empty() {
            self.begun = None;
        } else {
            self.begun = Some(now);
            self.inbound.extend_from_slice(rest);
        }
    }

    /// Writes what waits, as far as there is room. `scratch` is empty before and after.
    pub(super) fn write(
        &mut self,
        scratch: &mut Vec<u8>,
        spare: &mut Spare,
        written: &mut Written,
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

    fn broken_or_full(&self, written: &Written) -> Outcome {
        if written.is_broken {
            ended(EndReason::Client)
        } else {
            OPEN
        }
    }

    /// Returns whether all of it was written.
    fn write_ciphertext(&mut self, written: &mut Written) -> bool {
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

    /// Returns whether the socket may have room for more.
    fn write_plain(&mut self, spare: &mut Spare, written: &mut Written) -> bool {
        let mut parts = [IoSlice::new(&[]); PARTS];
        let count = self.unwritten.parts(&mut parts);
        match written.write(&self.stream, &parts[..count]) {
            Some(bytes) => {
                self.unwritten.advance(bytes, spare);
                true
            }
            None => false,
        }
    }

    /// Encrypts some records and writes them. Only what the socket has no room for is kept by the connection.
    fn write_records(
        &mut self,
        scratch: &mut Vec<u8>,
        spare: &mut Spare,
        written: &mut Written,
    ) -> bool {
        let Some(tls) = &mut self.tls else {
            return true;
        };
        while scratch.len() < ENCRYPTED
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

    /// Tells the client in order that the connection ends, if there is room for it.
    pub(super) fn say_goodbye(&mut self, written: &mut Written) {
        if let Some(tls) = &mut self.tls {
            tls.close(&mut self.ciphertext);
        }
        self.write_ciphertext(written);
    }

    /// What the poller should report now.
    pub(super) fn wants(&self) -> Watching {
        match (
            self.waiting() > 0 && !self.is_handshake_only(),
            self.is_deaf(),
        ) {
            (false, false) => Watching::Read,
            (false, true) => Watching::Nothing,
            (true, false) => Watching::Both,
            (true, true) => Watching::Write,
        }
    }

    /// What waits cannot be written before the client has sent more.
    fn is_handshake_only(&self) -> bool {
        self.ciphertext.is_empty() && self.is_handshaking()
    }
}

/// What calls that wrote have done.
#[derive(Debug, Default)]
pub(super) struct Written {
    pub(super) calls: u64,
    pub(super) bytes: u64,
    pub(super) is_broken: bool,
}

impl Written {
    /// `None` if there is no room, or the connection is broken.
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
