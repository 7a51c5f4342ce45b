//! One connection: the incomplete message, the bytes that wait to be written, and the deadlines.

use super::connections::DisconnectReason;
use super::layers::Layers;
use super::settings::SipSettings;
use super::token::Slot;
use io::TcpConnection;
use sip::Mono;
use sip::engine::ConnectKey;
use sip::flow::{ConnectionKey, PeerName, Transport};
use sip::frame::{Framer, Opened};
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use streams::domains::sip_domains;
use streams::websocket::{CloseCode, FrameHeader, Kind};
use streams::{ChunkPool, Content, WriteLimits, WriteQueue};

/// Bytes that may wait to be written. The worker closes a connection that does not read a hundred responses.
const MAX_UNWRITTEN_BYTES: usize = 256 << 10;

/// Parts of one vectored write.
const MAX_WRITE_PARTS: usize = 64;

/// Bytes that are encrypted before they are written: four records.
const MAX_ENCRYPTED_BYTES: usize = 64 << 10;

/// Like [`MAX_UNWRITTEN_BYTES`], for connections to which other workers also send. The bytes between workers have one
/// limit for all connections.
const MAX_SHARED_UNWRITTEN_BYTES: usize = 4 << 20;

/// If more bytes wait to be written, the worker does not read from the other side.
const READ_PAUSE_BYTES: usize = 32 << 10;

/// A connection and its state.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpConnection,
    pub(crate) transport: Transport,
    pub(crate) layers: Layers,
    pub(crate) slot: Slot,
    /// Its key in the engines of all workers.
    pub(crate) key: ConnectionKey,
    /// Other workers know its key, because they have got messages from it.
    pub(crate) is_shared: bool,
    /// The listener it was accepted by.
    pub(crate) listener: u16,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The first bytes of an incomplete message. Usually empty and without memory.
    pub(crate) inbound: Vec<u8>,
    /// Where in `inbound` the search for the end of the message continues.
    pub(crate) framer: Framer,
    /// Bytes that wait to be written. Over TLS, they wait to be encrypted.
    pub(crate) unwritten: WriteQueue,
    /// TLS bytes that the socket had no room for, or that are messages of TLS itself; and how many of them are written.
    ciphertext: Vec<u8>,
    ciphertext_written: usize,
    /// When the last bytes arrived.
    pub(crate) heard: Mono,
    /// How often the other side sends something. It has registered with Outbound, and has got Flow-Timer (RFC 5626
    /// §4.4).
    pub(crate) flow_timer: Option<Duration>,
    /// When the last Ping of a WebSocket was sent.
    pub(crate) pinged: Mono,
    /// When the incomplete message has begun. For the first message, when the connection was opened.
    pub(crate) begun: Option<Mono>,
    /// It comes from a load balancer, whose header of the PROXY protocol is not complete yet. The header's beginning is
    /// in `inbound`.
    pub(crate) awaits_proxy_header: bool,
    /// It has sent a whole message, so the other side supports SIP.
    pub(crate) proven: bool,
    /// The key of the attempt, while this server opens the connection. Over TLS, the attempt lasts until the handshake
    /// ends.
    pub(crate) connecting: Option<ConnectKey>,
    /// The name that TLS verifies, until the connection is open.
    pub(crate) verifies: Option<PeerName>,
    /// TCP is connected.
    pub(crate) is_established: bool,
    /// The other side has shut down its sending side.
    pub(crate) ended: Option<HalfClosed>,
    /// It is in the list of connections with bytes to write.
    pub(crate) dirty: bool,
    /// The events that the poller reports.
    pub(crate) watching: WatchedEvents,
    /// When its timer fires; the deadline may be later.
    pub(crate) armed: Mono,
}

/// The state of a connection whose other side has shut down its sending side.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HalfClosed {
    /// When the connection is closed, regardless of its state.
    pub(crate) until: Mono,
    /// No response is missing. The worker closes the connection when all of them are written.
    pub(crate) has_all: bool,
}

/// The events of a connection that the poller reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WatchedEvents {
    /// Only errors.
    Nothing,
    Read,
    Write,
    Both,
}

/// The result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteResult {
    All,
    Some,
    Broken(DisconnectReason),
}

impl Connection {
    pub(crate) fn new(
        stream: TcpConnection,
        (slot, key): (Slot, ConnectionKey),
        (listener, local, remote): (u16, SocketAddr, SocketAddr),
        now: Mono,
    ) -> Connection {
        Connection {
            stream,
            transport: Transport::Tcp,
            layers: Layers::default(),
            slot,
            key,
            is_shared: false,
            listener,
            local,
            remote,
            inbound: Vec::new(),
            framer: Framer::new(Opened::ByPeer),
            unwritten: WriteQueue::default(),
            ciphertext: Vec::new(),
            ciphertext_written: 0,
            heard: now,
            flow_timer: None,
            pinged: now,
            begun: Some(now),
            awaits_proxy_header: false,
            proven: false,
            connecting: None,
            verifies: None,
            is_established: true,
            ended: None,
            dirty: false,
            watching: WatchedEvents::Read,
            armed: Mono::NEVER,
        }
    }

    /// When the worker closes it, unless something arrives.
    pub(crate) fn deadline(&self, settings: &SipSettings) -> Mono {
        if let Some(ended) = self.ended {
            return ended.until;
        }
        match self.begun {
            Some(begun) => begun.plus(settings.message_deadline),
            None => self.heard.plus(self.silence(settings.idle)),
        }
    }

    /// How long the other side may send nothing.
    fn silence(&self, idle: Duration) -> Duration {
        match self.flow_timer {
            Some(timer) => idle.min(timer + slack(timer)),
            None => idle,
        }
    }

    /// When its timer must fire, to send a Ping or to close it.
    pub(crate) fn next_timer(&self, settings: &SipSettings) -> Mono {
        let deadline = self.deadline(settings);
        self.next_ping().map_or(deadline, |ping| ping.min(deadline))
    }

    /// When the next Ping is due. Browsers cannot send pings, so this server sends them on a WebSocket with a
    /// Flow-Timer (RFC 7118 §6).
    fn next_ping(&self) -> Option<Mono> {
        let is_quiet = self.ended.is_none() && self.begun.is_none();
        let timer = self
            .flow_timer
            .filter(|_| is_quiet && self.transport.is_websocket())?;
        Some(self.heard.max(self.pinged).plus(timer / 2))
    }

    /// Appends a Ping if one is due.
    pub(crate) fn ping(&mut self, now: Mono, out: &mut Vec<u8>) {
        if self.next_ping().is_some_and(|due| due <= now)
            && let Some(web) = &mut self.layers.web
        {
            self.pinged = now;
            web.ping(out);
        }
    }

    /// Notes the Flow-Timer of a response that is about to be written. Returns when the timer must fire because of it.
    pub(crate) fn follow_flow_timer(&mut self, response: &[u8]) -> Option<Mono> {
        let timer = flow_timer_of(response)?;
        self.flow_timer = (!timer.is_zero()).then_some(timer);
        let timer = self.flow_timer?;
        let deadline = self.heard.plus(timer + slack(timer));
        Some(self.next_ping().map_or(deadline, |ping| ping.min(deadline)))
    }

    /// Queues a message to be written. Returns `false` if too many bytes wait already.
    pub(crate) fn queue(&mut self, bytes: &[u8], now: Mono, spare: &mut ChunkPool) -> bool {
        if self.transport.is_websocket() {
            let header = FrameHeader::message(Kind::of(bytes), bytes.len());
            self.queue_parts(&[header.as_bytes(), bytes], now, spare)
        } else {
            self.queue_parts(&[bytes], now, spare)
        }
    }

    /// Adds bytes below the messages, such as a frame of a WebSocket.
    pub(crate) fn queue_parts(
        &mut self,
        parts: &[&[u8]],
        now: Mono,
        spare: &mut ChunkPool,
    ) -> bool {
        // Responses of other workers arrive even while nothing is read.
        let most = if self.is_shared {
            MAX_SHARED_UNWRITTEN_BYTES
        } else {
            MAX_UNWRITTEN_BYTES
        };
        // SIP messages are not dropped at any age, because a transaction waits for each.
        let limits = WriteLimits {
            age: Duration::MAX,
            bytes: usize::MAX,
            messages: most,
        };
        let pushed = self
            .unwritten
            .push(parts, Content::Message, now, &limits, spare);
        pushed.is_ok()
    }

    /// Decrypts bytes that were read from a TLS connection. Appends the plaintext, and keeps messages of TLS itself.
    /// Returns whether the other side has ended the connection.
    pub(crate) fn decrypt(
        &mut self,
        bytes: &[u8],
        plain: &mut Vec<u8>,
    ) -> Result<bool, streams::tls::TlsError> {
        let Some(tls) = &mut self.layers.tls else {
            return Ok(false);
        };
        self.layers.records.advance(bytes);
        tls.received(bytes, plain, &mut self.ciphertext)
    }

    /// Over TLS, writes the first message of the handshake of a client.
    pub(crate) fn begin_handshake(&mut self) {
        if let Some(tls) = &mut self.layers.tls {
            // Without received bytes, no error can occur.
            let _ = tls.received(&[], &mut Vec::new(), &mut self.ciphertext);
        }
    }

    /// The SIP domains that the client of an accepted connection has proved to speak for.
    pub(crate) fn client_names(&self) -> Option<Arc<[PeerName]>> {
        let certificate = self.layers.tls.as_ref()?.peer_certificates().first()?;
        let names = sip_domains(certificate);
        (!names.is_empty()).then(|| names.iter().map(|name| PeerName::new(name)).collect())
    }

    /// Bytes that wait to be written.
    pub(crate) fn waiting(&self) -> usize {
        self.unwritten.len() + self.ciphertext.len() - self.ciphertext_written
    }

    /// Tells the other side why the connection ends, if the socket has room.
    pub(crate) fn send_close_notify(
        &mut self,
        code: CloseCode,
        now: Mono,
        scratch: &mut Vec<u8>,
        spare: &mut ChunkPool,
    ) {
        if !self.is_established || self.layers.is_handshaking() {
            return;
        }
        let mut frame = Vec::new();
        if let Some(web) = &mut self.layers.web {
            web.close(code, &mut frame);
        }
        // No other bytes may be between the parts of a message.
        if (frame.is_empty() || self.queue_parts(&[&frame], now, spare))
            && self.write(scratch, spare) == WriteResult::All
            && let Some(tls) = &mut self.layers.tls
        {
            tls.close(&mut self.ciphertext);
            self.write_ciphertext();
        }
    }

    /// Whether so many bytes wait that the worker does not read.
    pub(crate) fn is_write_queue_full(&self) -> bool {
        self.waiting() > READ_PAUSE_BYTES
    }

    /// Writes the bytes that wait, as far as the socket has room. `scratch` is empty before and afterwards.
    pub(crate) fn write(&mut self, scratch: &mut Vec<u8>, spare: &mut ChunkPool) -> WriteResult {
        if !self.is_established {
            return WriteResult::Some;
        }
        loop {
            match self.write_ciphertext() {
                WriteResult::All => {}
                other => return other,
            }
            if self.unwritten.is_empty() {
                return WriteResult::All;
            }
            let written = match &self.layers.tls {
                None => self.write_plain(spare),
                // It is encrypted after the handshake.
                Some(_) if self.layers.is_handshaking() => return WriteResult::Some,
                Some(_) => self.write_records(scratch, spare),
            };
            if written != WriteResult::All {
                return written;
            }
        }
    }

    fn write_ciphertext(&mut self) -> WriteResult {
        while self.ciphertext_written < self.ciphertext.len() {
            let rest = &self.ciphertext[self.ciphertext_written..];
            match write(&self.stream, &[IoSlice::new(rest)]) {
                Ok(bytes) => self.ciphertext_written += bytes,
                Err(written) => return written,
            }
        }
        self.ciphertext = Vec::new();
        self.ciphertext_written = 0;
        WriteResult::All
    }

    /// Makes one write call.
    fn write_plain(&mut self, spare: &mut ChunkPool) -> WriteResult {
        let mut parts = [IoSlice::new(&[]); MAX_WRITE_PARTS];
        let count = self.unwritten.parts(&mut parts);
        match write(&self.stream, &parts[..count]) {
            Ok(bytes) => {
                self.unwritten.advance(bytes, spare);
                WriteResult::All
            }
            Err(written) => written,
        }
    }

    /// Encrypts queued messages into as few records as possible, and writes them.
    fn write_records(&mut self, scratch: &mut Vec<u8>, spare: &mut ChunkPool) -> WriteResult {
        let Some(tls) = &mut self.layers.tls else {
            return WriteResult::All;
        };
        while scratch.len() < MAX_ENCRYPTED_BYTES
            && let Some(chunk) = self.unwritten.first()
        {
            if tls.encrypt(chunk, scratch).is_err() {
                scratch.clear();
                return WriteResult::Broken(DisconnectReason::Peer);
            }
            let length = chunk.len();
            self.unwritten.advance(length, spare);
        }
        let (mut done, mut written) = (0, WriteResult::All);
        while done < scratch.len() && written == WriteResult::All {
            match write(&self.stream, &[IoSlice::new(&scratch[done..])]) {
                Ok(bytes) => done += bytes,
                Err(stopped) => written = stopped,
            }
        }
        self.ciphertext.extend_from_slice(&scratch[done..]);
        scratch.clear();
        written
    }

    /// The events that the poller should report now.
    pub(crate) fn wants(&self) -> WatchedEvents {
        // During a handshake, messages wait for the other side, even if the socket has room.
        let is_held = self.ciphertext.is_empty() && self.layers.is_handshaking();
        let writes = !self.is_established || (self.waiting() > 0 && !is_held);
        if self.ended.is_some() {
            return match writes {
                true => WatchedEvents::Write,
                false => WatchedEvents::Nothing,
            };
        }
        match (writes, self.is_write_queue_full()) {
            (false, _) => WatchedEvents::Read,
            (true, true) => WatchedEvents::Write,
            (true, false) => WatchedEvents::Both,
        }
    }
}

/// How much later a keep-alive may arrive: TCP may have to retransmit it.
fn slack(flow_timer: Duration) -> Duration {
    (flow_timer / 10).clamp(Duration::from_secs(1), Duration::from_secs(10))
}

/// The Flow-Timer that a response sets for the connection it is written to; `None` if the response does not concern it.
/// Only a 200 to a REGISTER from the other side does, whether it is from this server's registrar or another one.
/// Without Flow-Timer, the result is zero. With several Via values, the REGISTER is that of another element (RFC 5626
/// §5.4).
fn flow_timer_of(response: &[u8]) -> Option<Duration> {
    if !response.starts_with(b"SIP/2.0 200 ") {
        return None;
    }
    let (mut vias, mut is_register, mut timer) = (0, false, 0);
    let mut rest = response;
    loop {
        let (line, after) = rest.split_at(memchr::memchr(b'\n', rest)?);
        rest = after.get(1..)?;
        // Only lines that may be Via, CSeq or Flow-Timer: each message to a connection is read here.
        match line.first()?.to_ascii_lowercase() {
            b'\r' => break,
            b'v' | b'c' | b'f' => {}
            _ => continue,
        }
        let Some(colon) = memchr::memchr(b':', line) else {
            continue;
        };
        let (name, value) = (line[..colon].trim_ascii(), line[colon + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"Via") || name.eq_ignore_ascii_case(b"v") {
            vias += 1 + memchr::memchr_iter(b',', value).count();
        } else if name.eq_ignore_ascii_case(b"CSeq") {
            is_register = value.ends_with(b" REGISTER");
            if !is_register {
                return None;
            }
        } else if name.eq_ignore_ascii_case(b"Flow-Timer") {
            let seconds = std::str::from_utf8(value).ok();
            timer = seconds.and_then(|it| it.parse().ok()).unwrap_or(0_u32);
        }
    }
    (is_register && vias == 1).then(|| Duration::from_secs(timer.into()))
}

/// Writes once; says why if nothing can be written.
fn write(stream: &TcpConnection, parts: &[IoSlice<'_>]) -> Result<usize, WriteResult> {
    loop {
        match stream.write(parts) {
            Ok(0) => return Err(WriteResult::Broken(DisconnectReason::Peer)),
            Ok(bytes) => return Ok(bytes),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Err(WriteResult::Some),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(WriteResult::Broken(DisconnectReason::of(&error))),
        }
    }
}

/// How many buffers are kept for incomplete messages of other connections, and the largest of them.
const MAX_SPARE_BUFFERS: usize = 64;
const MAX_SPARE_BYTES: usize = 16 << 10;

/// Keeps a buffer that is not needed any more for the next connection.
pub(crate) fn keep_spare(mut buffer: Vec<u8>, spare: &mut Vec<Vec<u8>>) {
    buffer.clear();
    if spare.len() < MAX_SPARE_BUFFERS && (1..=MAX_SPARE_BYTES).contains(&buffer.capacity()) {
        spare.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flow_timer_is_that_of_a_200_to_a_register_with_one_via_rfc5626_5_4() {
        let response = |code: &str, method: &str, lines: &str| {
            format!(
                "SIP/2.0 {code} X\r\nVia: SIP/2.0/TCP a\r\nCSeq: 1 {method}\r\n{lines}Content-Length: 0\r\n\r\n"
            )
        };
        let of =
            |code, method, lines: &str| flow_timer_of(response(code, method, lines).as_bytes());
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        assert_eq!(of("200", "REGISTER", "Flow-Timer: 120\r\n"), seconds(120));
        assert_eq!(of("200", "REGISTER", "flow-timer:120\r\n"), seconds(120));
        assert_eq!(of("200", "REGISTER", ""), seconds(0));
        assert_eq!(of("200", "INVITE", "Flow-Timer: 1\r\n"), None);
        assert_eq!(of("180", "REGISTER", "Flow-Timer: 1\r\n"), None);
        // The REGISTER of a phone behind another proxy.
        for via in ["Via: SIP/2.0/UDP b\r\n", "v: SIP/2.0/UDP b\r\n"] {
            let lines = format!("{via}Flow-Timer: 1\r\n");
            assert_eq!(of("200", "REGISTER", &lines), None);
        }
        let two = response("200", "REGISTER", "Flow-Timer: 1\r\n")
            .replace("TCP a", "TCP a, SIP/2.0/UDP b");
        assert_eq!(flow_timer_of(two.as_bytes()), None);
        for wrong in ["0", "x", "-1", "99999999999", ""] {
            let line = format!("Flow-Timer: {wrong}\r\n");
            assert_eq!(of("200", "REGISTER", &line), seconds(0), "{wrong}");
        }
        // It is no part of the body.
        let body = response("200", "REGISTER", "") + "\r\nFlow-Timer: 5\r\n";
        assert_eq!(flow_timer_of(body.as_bytes()), seconds(0));
        assert_eq!(flow_timer_of(b"SIP/2.0 200 OK\r\nFlow-Timer: 5"), None);
    }

    #[test]
    fn a_keep_alive_may_be_late_by_one_to_ten_seconds() {
        let of = |seconds| slack(Duration::from_secs(seconds)).as_secs();
        assert_eq!([1, 20, 60, 120, 3600].map(of), [1, 2, 6, 10, 10]);
    }
}
