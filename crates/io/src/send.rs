//! The send queue.

use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::ops::{AddAssign, Range};

use crate::UdpSocket;

/// How a [`SendQueue`] is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendOptions {
    /// Send runs of equal-sized datagrams with UDP_SEGMENT where the socket can.
    pub gso: bool,
    /// Most datagrams in one GSO send: 64, or what [`Offloads::probe`](crate::Offloads::probe) found.
    pub max_segments: usize,
    /// Datagrams that may wait for a flush; a push beyond that flushes by itself. 1 to 65,536.
    pub capacity: usize,
}

impl Default for SendOptions {
    /// GSO on, 64 segments, 1,024 datagrams.
    fn default() -> SendOptions {
        SendOptions {
            gso: true,
            max_segments: 64,
            capacity: 1024,
        }
    }
}

/// Where a datagram goes, and how.
#[derive(Clone, Copy, Debug)]
pub struct SendTo<'buf> {
    /// The socket it leaves by.
    pub socket: &'buf UdpSocket,
    /// Destination.
    pub to: SocketAddr,
    /// Source address, for sockets bound to a wildcard; `None` leaves it to the kernel.
    pub from_ip: Option<IpAddr>,
    /// DSCP and ECN octet.
    pub tos: u8,
    /// Carry DF (IPv4), or do not fragment here (IPv6).
    pub dont_fragment: bool,
}

impl<'buf> SendTo<'buf> {
    /// To `to` by `socket`; source left to the kernel, TOS 0, fragments allowed.
    #[must_use]
    pub fn new(socket: &'buf UdpSocket, to: SocketAddr) -> SendTo<'buf> {
        SendTo {
            socket,
            to,
            from_ip: None,
            tos: 0,
            dont_fragment: false,
        }
    }
}

/// What became of pushed datagrams. Every datagram is in `sent` or in exactly one of the other counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Flushed {
    /// Datagrams the kernel took.
    pub sent: u64,
    /// Their payload bytes.
    pub sent_bytes: u64,
    /// Dropped: the socket's send buffer was full (EAGAIN).
    pub would_block: u64,
    /// Dropped: larger than the path or UDP allows (EMSGSIZE).
    pub too_big: u64,
    /// Dropped: no route, host or network down, or source address gone.
    pub unreachable: u64,
    /// Dropped: refused by a firewall or policy (EPERM, EACCES).
    pub denied: u64,
    /// Dropped: the kernel had no memory or queue space (ENOBUFS, ENOMEM).
    pub no_buffers: u64,
    /// Dropped: any other error.
    pub other_errors: u64,
    /// System calls made.
    pub syscalls: u64,
    /// Sends that carried more than one datagram by GSO.
    pub gso_runs: u64,
    /// Datagrams they carried.
    pub gso_segments: u64,
    /// GSO sends refused by the kernel and repeated as single datagrams.
    pub gso_refused: u64,
}

impl Flushed {
    /// Datagrams lost, whatever the reason.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.would_block
            + self.too_big
            + self.unreachable
            + self.denied
            + self.no_buffers
            + self.other_errors
    }
}

impl AddAssign for Flushed {
    fn add_assign(&mut self, other: Flushed) {
        self.sent += other.sent;
    }
}

/// Storage for outgoing datagrams, allocated once and owned by a worker.
#[derive(Debug)]
pub struct SendQueue {
    totals: Flushed,
}

impl SendQueue {
    /// Longest prefix that [`Outbox::push_prefixed`] takes, in bytes.
    pub const MAX_PREFIX: usize = 64;

    /// Allocates all it will ever need.
    #[must_use]
    pub fn new(options: &SendOptions) -> SendQueue {
        let _ = options;
        SendQueue {
            totals: Flushed::default(),
        }
    }

    /// Opens a session. What is pushed borrows its bytes and sockets for `'buf`; dropping the session flushes it.
    pub fn start<'q, 'buf>(&'q mut self) -> Outbox<'q, 'buf> {
        Outbox {
            queue: self,
            buffers: PhantomData,
        }
    }

    /// Counts since the queue was made.
    #[must_use]
    pub fn totals(&self) -> &Flushed {
        &self.totals
    }
}

/// A session on a [`SendQueue`]: push, then flush.
///
/// Datagrams of one flow (socket, destination and source address) leave in the order they were pushed. Between flows
/// there is no order: what leaves by one socket leaves together.
#[derive(Debug)]
pub struct Outbox<'q, 'buf> {
    queue: &'q mut SendQueue,
    buffers: PhantomData<&'buf [u8]>,
}

impl<'buf> Outbox<'_, 'buf> {
    /// Queues one datagram.
    pub fn push(&mut self, to: &SendTo<'buf>, payload: &'buf [u8]) {
        let _ = (to, payload);
    }

    /// Queues one datagram of `prefix` (copied, at most [`SendQueue::MAX_PREFIX`] bytes), `payload` and `pad` zero bytes (at most 3).
    ///
    /// # Panics
    /// If the prefix or the padding is longer.
    pub fn push_prefixed(
        &mut self,
        to: &SendTo<'buf>,
        prefix: &[u8],
        payload: &'buf [u8],
        pad: usize,
    ) {
        let _ = (to, prefix, payload, pad);
    }

    /// Queues a copy of `datagram`: for answers built in a buffer that does not live long enough.
    pub fn push_copied(&mut self, to: &SendTo<'buf>, datagram: &[u8]) {
        let _ = (to, datagram);
    }

    /// Cuts `bytes` every `stride` bytes and queues `payload` of each piece, of the last what it has of it.
    pub fn push_strided(
        &mut self,
        to: &SendTo<'buf>,
        bytes: &'buf [u8],
        stride: usize,
        payload: Range<usize>,
    ) {
        let _ = (to, bytes, stride, payload);
    }

    /// Datagrams waiting for a flush.
    #[must_use]
    pub fn len(&self) -> usize {
        0
    }

    /// Nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        true
    }

    /// Sends everything that waits. Returns what became of all that was pushed since the last `flush` or the start,
    /// including what left early because the queue was full.
    pub fn flush(&mut self) -> Flushed {
        self.queue.totals
    }
}
