//! One connection: what has begun to come, what waits to be written, and how long it may take.

use super::layers::Layers;
use super::settings::SipSettings;
use super::token::Slot;
use io::TcpConnection;
use sip::Mono;
use sip::engine::ConnectKey;
use sip::flow::{Carrier, ConnectionKey, PeerName};
use sip::frame::{Framer, Opened};
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use streams::domains::sip_domains;
use streams::websocket::{CloseCode, FrameHeader, Kind};

/// Bytes that may wait to be written. One that does not read a hundred answers is given up.
const MOST_UNWRITTEN: usize = 256 << 10;

/// The same where other workers answer as well: what is under way between workers is bounded for all connections together.
const MOST_SHARED: usize = 4 << 20;

/// With so much unwritten, nothing more is read from the other side.
const ENOUGH_UNWRITTEN: usize = 32 << 10;

/// A connection and its state.
#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) stream: TcpConnection,
    pub(crate) carrier: Carrier,
    pub(crate) layers: Layers,
    pub(crate) slot: Slot,
    /// Its name, in all engines.
    pub(crate) key: ConnectionKey,
    /// Other workers know it by that name: messages from it were handed to them.
    pub(crate) is_shared: bool,
    /// The listener it was accepted by.
    pub(crate) listener: u16,
    pub(crate) local: SocketAddr,
    pub(crate) remote: SocketAddr,
    /// The beginning of a message whose end has not come. Empty, and without memory, most of the time.
    pub(crate) inbound: Vec<u8>,
    /// Where in `inbound` the search for the end goes on.
    pub(crate) framer: Framer,
    /// What waits to be written, and how much of it has been.
    outbound: Vec<u8>,
    /// What is to be encrypted first.
    plain: Vec<u8>,
    written: usize,
    /// When bytes came last.
    pub(crate) heard: Mono,
    /// Since when a message has been on its way: the first from the beginning on.
    pub(crate) begun: Option<Mono>,
    /// It has sent a whole message, so that somebody is there who speaks SIP.
    pub(crate) proven: bool,
    /// It is being made by us, for this reason; over TLS until the handshake is over.
    pub(crate) connecting: Option<ConnectKey>,
    /// TCP is connected.
    pub(crate) is_established: bool,
    /// It is on the list of those with something to write.
    pub(crate) dirty: bool,
    /// What the poller watches for beyond reading.
    pub(crate) watching: Watching,
    /// When its timer fires; the deadline may be later.
    pub(crate) armed: Mono,
}

/// What the poller is asked to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watching {
    Read,
    Write,
    Both,
}

/// How a write went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Written {
    All,
    Some,
    Broken,
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
            carrier: Carrier::Tcp,
            layers: Layers::default(),
            slot,
            key,
            is_shared: false,
            listener,
            local,
            remote,
            inbound: Vec::new(),
            framer: Framer::new(Opened::ByPeer),
            outbound: Vec::new(),
            plain: Vec::new(),
            written: 0,
            heard: now,
            begun: Some(now),
            proven: false,
            connecting: None,
            is_established: true,
            dirty: false,
            watching: Watching::Read,
            armed: Mono::NEVER,
        }
    }

    /// When it is to be closed unless something happens.
    pub(crate) fn deadline(&self, settings: &SipSettings) -> Mono {
        match self.begun {
            Some(begun) => begun.plus(settings.patience),
            None => self.heard.plus(settings.idle),
        }
    }

    /// Adds a message to what is to be written; `false` if too much waits already.
    pub(crate) fn queue(&mut self, bytes: &[u8], spare: &mut Vec<Vec<u8>>) -> bool {
        if self.carrier.is_websocket() {
            let header = FrameHeader::message(Kind::of(bytes), bytes.len());
            self.queue_parts(&[header.as_bytes(), bytes], spare)
        } else {
            self.queue_parts(&[bytes], spare)
        }
    }

    /// Adds bytes below the messages, such as a frame of a WebSocket.
    pub(crate) fn queue_parts(&mut self, parts: &[&[u8]], spare: &mut Vec<Vec<u8>>) -> bool {
        // What other workers still answer comes even though nothing more is read.
        let most = if self.is_shared {
            MOST_SHARED
        } else {
            MOST_UNWRITTEN
        };
        let length: usize = parts.iter().map(|part| part.len()).sum();
        if self.unwritten() + length > most {
            return false;
        }
        let buffer = match self.layers.tls {
            Some(_) => &mut self.plain,
            None => &mut self.outbound,
        };
        if buffer.capacity() == 0 {
            *buffer = spare.pop().unwrap_or_default();
        }
        parts.iter().for_each(|part| buffer.extend_from_slice(part));
        true
    }

    /// Takes what was read of a connection over TLS: appends plaintext, and keeps what TLS itself has to answer. Returns whether the
    /// other side has ended the connection.
    pub(crate) fn decrypt(
        &mut self,
        bytes: &[u8],
        plain: &mut Vec<u8>,
    ) -> Result<bool, streams::tls::TlsError> {
        let Some(tls) = &mut self.layers.tls else {
            return Ok(false);
        };
        self.layers.records.advance(bytes);
        tls.received(bytes, plain, &mut self.outbound)
    }

    /// Over TLS, makes the first message of our handshake.
    pub(crate) fn begin_handshake(&mut self) {
        if let Some(tls) = &mut self.layers.tls {
            // Nothing has come that could be wrong.
            let _ = tls.received(&[], &mut Vec::new(), &mut self.outbound);
        }
    }

    /// The SIP domains that the client of an accepted connection has proved to speak for.
    pub(crate) fn client_names(&self) -> Option<Arc<[PeerName]>> {
        let certificate = self.layers.tls.as_ref()?.peer_certificates().first()?;
        let names = sip_domains(certificate);
        (!names.is_empty()).then(|| names.iter().map(|name| PeerName::new(name)).collect())
    }

    /// Bytes that wait to be written.
    pub(crate) fn unwritten(&self) -> usize {
        self.outbound.len() - self.written + self.plain.len()
    }

    /// Tells the other side why the connection ends, if there is room for it.
    pub(crate) fn say_goodbye(&mut self, code: CloseCode) {
        if self.connecting.is_some() || self.layers.is_handshaking() {
            return;
        }
        let mut frame = Vec::new();
        if let Some(web) = &mut self.layers.web {
            web.close(code, &mut frame);
        }
        // Nothing may come between the parts of a message.
        if self.queue_parts(&[&frame], &mut Vec::new()) && self.encrypt() {
            if let Some(tls) = &mut self.layers.tls {
                tls.close(&mut self.outbound);
            }
            let rest = &self.outbound[self.written..];
            if !rest.is_empty() {
                let _ = self.stream.write(&[IoSlice::new(rest)]);
            }
        }
    }

    /// Makes records of all that waits for it: what was queued together goes into as few as possible. `false` if TLS has failed.
    fn encrypt(&mut self) -> bool {
        match &mut self.layers.tls {
            Some(tls) if !self.plain.is_empty() => {
                let is_done = tls.encrypt(&self.plain, &mut self.outbound).is_ok();
                self.plain.clear();
                is_done
            }
            _ => true,
        }
    }

    /// So much waits that nothing more is read.
    pub(crate) fn is_clogged(&self) -> bool {
        self.unwritten() > ENOUGH_UNWRITTEN
    }

    /// Writes what waits, as far as there is room. A buffer that is empty then goes to the spare ones.
    pub(crate) fn write(&mut self, spare: &mut Vec<Vec<u8>>) -> Written {
        if !self.is_established {
            return Written::Some;
        }
        if !self.encrypt() {
            return Written::Broken;
        }
        keep_spare(std::mem::take(&mut self.plain), spare);
        while self.unwritten() > 0 {
            match self
                .stream
                .write(&[IoSlice::new(&self.outbound[self.written..])])
            {
                Ok(0) => return Written::Broken,
                Ok(bytes) => self.written += bytes,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Written::Some,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return Written::Broken,
            }
        }
        self.written = 0;
        keep_spare(std::mem::take(&mut self.outbound), spare);
        Written::All
    }

    /// What the poller should report now.
    pub(crate) fn wants(&self) -> Watching {
        match (
            !self.is_established || self.unwritten() > 0,
            self.is_clogged(),
        ) {
            (false, _) => Watching::Read,
            (true, true) => Watching::Write,
            (true, false) => Watching::Both,
        }
    }
}

/// Buffers that are kept for the next connection that has something to write or the beginning of a message, and the largest that is.
const SPARE: usize = 64;
const MOST_SPARE: usize = 16 << 10;

/// Keeps a buffer that is not needed any more for the next connection.
pub(crate) fn keep_spare(mut buffer: Vec<u8>, spare: &mut Vec<Vec<u8>>) {
    buffer.clear();
    if spare.len() < SPARE && (1..=MOST_SPARE).contains(&buffer.capacity()) {
        spare.push(buffer);
    }
}
