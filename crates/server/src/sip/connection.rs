//! One TCP connection: what has begun to come, what waits to be written, and how long it may take.

use super::settings::SipSettings;
use super::token::Slot;
use io::TcpConnection;
use sip::Mono;
use sip::engine::ConnectKey;
use sip::flow::ConnectionKey;
use sip::frame::{Framer, Opened};
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;

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
    written: usize,
    /// When bytes came last.
    pub(crate) heard: Mono,
    /// Since when a message has been on its way: the first from the beginning on.
    pub(crate) begun: Option<Mono>,
    /// It has sent a whole message, so that somebody is there who speaks SIP.
    pub(crate) proven: bool,
    /// It is being made by us, for this reason.
    pub(crate) connecting: Option<ConnectKey>,
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
            slot,
            key,
            is_shared: false,
            listener,
            local,
            remote,
            inbound: Vec::new(),
            framer: Framer::new(Opened::ByPeer),
            outbound: Vec::new(),
            written: 0,
            heard: now,
            begun: Some(now),
            proven: false,
            connecting: None,
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

    /// Adds to what is to be written; `false` if too much waits already.
    pub(crate) fn queue(&mut self, bytes: &[u8], spare: &mut Vec<Vec<u8>>) -> bool {
        // What other workers still answer comes even though nothing more is read.
        let most = if self.is_shared {
            MOST_SHARED
        } else {
            MOST_UNWRITTEN
        };
        if self.unwritten() + bytes.len() > most {
            return false;
        }
        if self.outbound.capacity() == 0 {
            self.outbound = spare.pop().unwrap_or_default();
        }
        self.outbound.extend_from_slice(bytes);
        true
    }

    /// Bytes that wait to be written.
    pub(crate) fn unwritten(&self) -> usize {
        self.outbound.len() - self.written
    }

    /// So much waits that nothing more is read.
    pub(crate) fn is_clogged(&self) -> bool {
        self.unwritten() > ENOUGH_UNWRITTEN
    }

    /// Writes what waits, as far as there is room. A buffer that is empty then goes to the spare ones.
    pub(crate) fn write(&mut self, spare: &mut Vec<Vec<u8>>) -> Written {
        if self.connecting.is_some() {
            return Written::Some;
        }
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
            self.connecting.is_some() || self.unwritten() > 0,
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
