//! The sockets of one worker: its listeners, and one per relayed transport address.

use crate::addresses::RelayIndex;
use crate::connections::Slot;
use crate::sip::SipToken;
use io::{GroWatch, ReceiveSummary, RecvBatch, SendTo, UdpSocket};
use std::net::SocketAddr;
use turn::{ClientPath, ConnectionKey, RelayKey};

/// A socket of a worker in a listener's SO_REUSEPORT group.
#[derive(Debug)]
pub(crate) struct Listener {
    pub(crate) socket: UdpSocket,
    /// What it is bound to.
    pub(crate) local: SocketAddr,
    gro: GroWatch,
}

impl Listener {
    pub(crate) fn new(socket: UdpSocket) -> Listener {
        Listener {
            local: socket.local_addr(),
            gro: GroWatch::new(&socket),
            socket,
        }
    }

    /// Turns GRO off as soon as all joined datagrams have been read.
    pub(crate) fn separate(&mut self) {
        self.gro.forbid();
    }

    /// Receives at most `room` messages.
    ///
    /// # Errors
    /// `WouldBlock` when nothing waits; otherwise what the system calls return.
    pub(crate) fn receive(
        &mut self,
        room: usize,
        tag: u64,
        batch: &mut RecvBatch,
    ) -> std::io::Result<usize> {
        let (before, trains) = (batch.len(), batch.totals().gro_trains);
        let messages = self.socket.recv_up_to(room, tag, batch)?;
        let drained = messages < room;
        let brought = ReceiveSummary {
            messages,
            trains: batch.totals().gro_trains - trains,
            drained,
            neighbours: self.gro.is_separate() && batch.has_neighbours(before),
        };
        self.gro.note(&self.socket, &brought)?;
        Ok(messages)
    }
}

/// What a relay sends by.
#[derive(Debug)]
pub(crate) enum PortSocket {
    /// A socket of its own.
    Own(UdpSocket),
    /// The shared port with this number, whose socket lives as long as the worker.
    Shared(u16),
}

/// A port that the relays of several allocations share.
#[derive(Debug)]
pub(crate) struct SharedPort {
    pub(crate) listener: Listener,
    pub(crate) address: RelayIndex,
    pub(crate) port: u16,
}

/// The socket of one relayed transport address.
#[derive(Debug)]
pub(crate) struct RelaySocket {
    pub(crate) key: RelayKey,
    pub(crate) socket: PortSocket,
    /// Which relay address it is bound to.
    pub(crate) address: RelayIndex,
    /// Its port there.
    pub(crate) port: u16,
}

// Part of what one allocation costs in user memory, which is promised to stay below 600 bytes.
const _: () = assert!(size_of::<Option<RelaySocket>>() <= 48);

/// Slots that are made at once: growing copies nothing, and makes no room that is not needed soon.
const CHUNK_SLOTS: usize = 64;

/// The worker's relays by the slot of their key. A key of an earlier relay in the slot finds nothing.
#[derive(Debug, Default)]
pub(crate) struct RelayTable {
    chunks: Vec<Box<[Option<RelaySocket>]>>,
    open: usize,
}

impl RelayTable {
    /// Puts a relay into its slot, and hands back a relay that was still there.
    pub(crate) fn insert(&mut self, relay: RelaySocket) -> Option<RelaySocket> {
        let slot = relay.key.index as usize;
        while self.chunks.len() <= slot / CHUNK_SLOTS {
            self.chunks.push((0..CHUNK_SLOTS).map(|_| None).collect());
        }
        let before = self.chunks[slot / CHUNK_SLOTS][slot % CHUNK_SLOTS].replace(relay);
        self.open += usize::from(before.is_none());
        before
    }

    fn slot(&self, slot: u32) -> Option<&RelaySocket> {
        let chunk = self.chunks.get(slot as usize / CHUNK_SLOTS)?;
        chunk[slot as usize % CHUNK_SLOTS].as_ref()
    }

    /// Reads the slot, to have it in the cache.
    pub(crate) fn touch(&self, slot: u32) {
        std::hint::black_box(self.slot(slot).map(|relay| (relay.key, relay.port)));
    }

    /// The relay of this key.
    pub(crate) fn get(&self, key: RelayKey) -> Option<&RelaySocket> {
        self.slot(key.index).filter(|relay| relay.key == key)
    }

    /// The relay in this slot, if it is the one at this address and port.
    pub(crate) fn at(&self, slot: u32, address: RelayIndex, port: u16) -> Option<&RelaySocket> {
        self.slot(slot)
            .filter(|relay| relay.address == address && relay.port == port)
    }

    /// Takes the relay of this key out.
    pub(crate) fn remove(&mut self, key: RelayKey) -> Option<RelaySocket> {
        let chunk = self.chunks.get_mut(key.index as usize / CHUNK_SLOTS)?;
        let relay = chunk[key.index as usize % CHUNK_SLOTS].take_if(|relay| relay.key == key)?;
        self.open -= 1;
        Some(relay)
    }

    /// Takes some relay out; for the end.
    pub(crate) fn remove_any(&mut self) -> Option<RelaySocket> {
        let mut open = self.chunks.iter().rev().flatten().flatten();
        let key = open.next()?.key;
        self.remove(key)
    }

    /// How many are open.
    pub(crate) fn len(&self) -> usize {
        self.open
    }
}

/// The sockets that a datagram can leave by. Borrowed as a whole while datagrams are queued; changes wait until they
/// have left.
#[derive(Debug)]
pub(crate) struct Sockets {
    pub(crate) listeners: Vec<Listener>,
    pub(crate) relays: RelayTable,
    /// Ports that relays share; empty if each has its own.
    pub(crate) shared: Vec<SharedPort>,
}

impl Sockets {
    /// The socket that a relay sends by.
    #[inline(always)]
    pub(crate) fn socket_of<'s>(&'s self, relay: &'s RelaySocket) -> Option<&'s UdpSocket> {
        match &relay.socket {
            PortSocket::Own(socket) => Some(socket),
            PortSocket::Shared(number) => {
                let port = self.shared.get(usize::from(*number))?;
                Some(&port.listener.socket)
            }
        }
    }

    /// How datagrams reach this client: from the address that it sends to, not from the one that the listener is bound
    /// to. `None` for a client over a connection, whose `ListenerKey` is no listener's.
    pub(crate) fn client_at(&self, path: &ClientPath, tos: u8) -> Option<SendTo<'_>> {
        let listener = self.listeners.get(path.listener.0 as usize)?;
        let wildcard = listener.local.ip().is_unspecified();
        let from_ip = wildcard.then_some(path.five_tuple.local.ip());
        Some(SendTo {
            from_ip,
            tos,
            ..SendTo::new(&listener.socket, path.five_tuple.remote)
        })
    }
}

/// What an epoll token means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token {
    Mailbox,
    Listener(u32),
    Relay(RelayKey),
    /// A shared relay port.
    Shared(u16),
    Sip(SipToken),
    /// A listener of TCP connections that carry STUN and TURN.
    Accept(u16),
    /// One of these connections.
    Connection(Slot),
    /// A TCP relay (RFC 6062).
    TcpRelay(RelayKey),
    /// A connection between a TCP relay and a peer.
    Peer(ConnectionKey),
    /// The data connection that is bound to it.
    Data(ConnectionKey),
}

/// Slots of relays stay below a few millions. Higher indices belong to TCP relays, their connections with peers, data
/// connections, and connections of STUN and TURN. SIP's begin above.
const TCP_RELAYS: std::ops::Range<u32> = 0xf400_0000..0xf800_0000;
const PEERS: std::ops::Range<u32> = 0xf800_0000..0xfa00_0000;
const DATA: std::ops::Range<u32> = 0xfa00_0000..0xfc00_0000;
const CONNECTIONS: std::ops::Range<u32> = 0xfc00_0000..0xfe00_0000;
const SHARED: std::ops::Range<u32> = 0xff00_0000..0xff01_0000;
const ACCEPT: std::ops::Range<u32> = 0xffff_c000..0xffff_e000;

impl Token {
    /// The most connections that a worker can have.
    pub(crate) const MAX_CONNECTIONS: u32 = CONNECTIONS.end - CONNECTIONS.start;

    /// Slots of relays stay far below this; tokens from here up are the worker's own.
    const FIRST_OWN_TOKEN: u32 = 0xffff_0000;

    /// The number for epoll.
    pub(crate) fn as_u64(self) -> u64 {
        match self {
            Token::Mailbox => u64::from(u32::MAX),
            Token::Listener(number) => u64::from(Self::FIRST_OWN_TOKEN + number),
            Token::Relay(key) => key.as_u64(),
            Token::Shared(number) => u64::from(SHARED.start + u32::from(number)),
            Token::Sip(token) => token.as_key().as_u64(),
            Token::Accept(number) => u64::from(ACCEPT.start + u32::from(number)),
            Token::Connection(Slot { index, generation }) => {
                number(CONNECTIONS.start + index, generation)
            }
            Token::TcpRelay(key) => number(TCP_RELAYS.start + key.index, key.generation),
            Token::Peer(key) => number(PEERS.start + key.index, key.generation),
            Token::Data(key) => number(DATA.start + key.index, key.generation),
        }
    }

    /// The token that [`Token::as_u64`] gave.
    pub(crate) fn from_u64(token: u64) -> Token {
        let key = RelayKey::from_u64(token);
        // First what each datagram has.
        if key.index < TCP_RELAYS.start {
            return Token::Relay(key);
        }
        if (Self::FIRST_OWN_TOKEN..SipToken::FIRST_LISTENER_INDEX).contains(&key.index) {
            return Token::Listener(key.index - Self::FIRST_OWN_TOKEN);
        }
        Self::of_connection(key)
    }

    /// The token of anything but datagrams of STUN and TURN.
    #[inline(never)]
    fn of_connection(key: RelayKey) -> Token {
        if let Some(token) = SipToken::from_key(key) {
            return Token::Sip(token);
        }
        match key.index {
            u32::MAX => Token::Mailbox,
            index if CONNECTIONS.contains(&index) => Token::Connection(Slot {
                index: index - CONNECTIONS.start,
                generation: key.generation,
            }),
            index if PEERS.contains(&index) => Token::Peer(ConnectionKey {
                index: index - PEERS.start,
                generation: key.generation,
            }),
            index if DATA.contains(&index) => Token::Data(ConnectionKey {
                index: index - DATA.start,
                generation: key.generation,
            }),
            index if TCP_RELAYS.contains(&index) => Token::TcpRelay(RelayKey {
                index: index - TCP_RELAYS.start,
                generation: key.generation,
            }),
            index if SHARED.contains(&index) => Token::Shared((index - SHARED.start) as u16),
            index if ACCEPT.contains(&index) => Token::Accept((index - ACCEPT.start) as u16),
            _ => Token::Relay(key),
        }
    }
}

/// The number of an index and its generation.
const fn number(index: u32, generation: u32) -> u64 {
    RelayKey { index, generation }.as_u64()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_lead_back() {
        for token in [
            Token::Mailbox,
            Token::Listener(0),
            Token::Listener(255),
            Token::Sip(SipToken::Accept(3)),
            Token::Accept(7),
            Token::Connection(Slot {
                index: Token::MAX_CONNECTIONS - 1,
                generation: 9,
            }),
            Token::Relay(RelayKey {
                index: 0,
                generation: u32::MAX,
            }),
            Token::TcpRelay(RelayKey {
                index: 70_000,
                generation: 3,
            }),
            Token::Peer(ConnectionKey {
                index: 5,
                generation: 4,
            }),
            Token::Data(ConnectionKey {
                index: (1 << 25) - 1,
                generation: u32::MAX,
            }),
        ] {
            assert_eq!(Token::from_u64(token.as_u64()), token);
        }
    }
}
