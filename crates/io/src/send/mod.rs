//! Sending in batches.
//!
//! A worker pushes datagrams in any order. The queue sorts them, by hash, into *flows* (socket, destination, source
//! address), and flows into *lanes* (socket). A flush turns each flow into as few kernel messages as possible, with
//! UDP_SEGMENT for consecutive datagrams of one size. It sends each lane with one `sendmmsg`.
//!
//! ```text
//! pushed        a1 b1 a2 c1 b2 a3          a, b: flows of the listener; c: a flow of a relay socket
//! lanes         listener: a1 a2 a3 | b1 b2        relay: c1
//! messages      [a1 a2 a3]  [b1 b2]               [c1]
//! system calls  sendmmsg                          sendto
//! ```
//! Nothing is allocated after `new`, and payload is never copied, except by `push_copied`.

mod at_once;
mod flush;
mod index;
mod queue;
mod refused;

use std::io;
use std::marker::PhantomData;
use std::net::{IpAddr, SocketAddr};
use std::ops::{AddAssign, Range};

use crate::{BatchSizes, UdpSocket};
pub(crate) use at_once::send_at_once;
use queue::Queue;
pub use refused::GsoRefusal;

/// How a [`SendQueue`] is made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendOptions {
    /// Send runs of equal-sized datagrams with UDP_SEGMENT where the path takes it.
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

/// The results of pushed datagrams. Every datagram is in `sent`, or in exactly one of the counts of dropped datagrams.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
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
    /// GSO sends refused because the path does not support GSO. The queue remembers the destination.
    pub gso_unsupported: u64,
    /// GSO sends refused because of the size of their datagrams. The queue remembers the destination and the size.
    pub gso_wrong_size: u64,
    /// Datagrams per system call that sent any.
    pub per_call: BatchSizes,
}

impl Flushed {
    /// Messages that the kernel took: a run of datagrams is one.
    #[must_use]
    pub fn sends(&self) -> u64 {
        self.sent - self.gso_segments + self.gso_runs
    }

    /// Datagrams lost, regardless of the reason.
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
        self.sent_bytes += other.sent_bytes;
        self.would_block += other.would_block;
        self.too_big += other.too_big;
        self.unreachable += other.unreachable;
        self.denied += other.denied;
        self.no_buffers += other.no_buffers;
        self.other_errors += other.other_errors;
        self.syscalls += other.syscalls;
        self.gso_runs += other.gso_runs;
        self.gso_segments += other.gso_segments;
        self.gso_refused += other.gso_refused;
        self.gso_unsupported += other.gso_unsupported;
        self.gso_wrong_size += other.gso_wrong_size;
        self.per_call += &other.per_call;
    }
}

impl Flushed {
    /// Counts `datagrams` that were dropped because of `error`.
    fn count_error(&mut self, error: &io::Error, datagrams: u64) {
        let count = match error.raw_os_error().unwrap_or(0) {
            libc::EAGAIN => &mut self.would_block,
            libc::EMSGSIZE => &mut self.too_big,
            libc::ENETUNREACH
            | libc::EHOSTUNREACH
            | libc::ENETDOWN
            | libc::EHOSTDOWN
            | libc::EADDRNOTAVAIL => &mut self.unreachable,
            libc::EPERM | libc::EACCES => &mut self.denied,
            libc::ENOBUFS | libc::ENOMEM => &mut self.no_buffers,
            _ => &mut self.other_errors,
        };
        *count += datagrams;
    }
}

/// Storage for outgoing datagrams, allocated once and owned by a worker.
#[derive(Debug)]
pub struct SendQueue {
    queue: Queue,
    totals: Flushed,
}

impl SendQueue {
    /// Longest prefix that [`Outbox::push_prefixed`] takes, in bytes.
    pub const MAX_PREFIX: usize = 64;

    /// Allocates all it will ever need.
    ///
    /// # Panics
    /// If `capacity` or `max_segments` is out of range.
    #[must_use]
    pub fn new(options: &SendOptions) -> SendQueue {
        assert!(
            (1..=65_536).contains(&options.capacity),
            "a send queue holds 1 to 65,536 datagrams"
        );
        assert!(
            (1..=1024).contains(&options.max_segments),
            "a GSO send has 1 to 1,024 segments"
        );
        SendQueue {
            queue: Queue::new(options),
            totals: Flushed::default(),
        }
    }

    /// Opens a session. What is pushed borrows its bytes and sockets for `'buf`; dropping the session flushes it.
    pub fn start<'q, 'buf>(&'q mut self) -> Outbox<'q, 'buf> {
        // A session that was leaked, not dropped, leaves entries whose buffers may be gone.
        self.queue.forget();
        Outbox {
            queue: &mut self.queue,
            totals: &mut self.totals,
            fresh: Flushed::default(),
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
    queue: &'q mut Queue,
    totals: &'q mut Flushed,
    /// Counts since the last `flush`.
    fresh: Flushed,
    /// Everything in the queue was pushed through this session, so it lives for `'buf`.
    buffers: PhantomData<(&'buf [u8], &'buf UdpSocket)>,
}

impl<'buf> Outbox<'_, 'buf> {
    /// Queues one datagram.
    pub fn push(&mut self, to: &SendTo<'buf>, payload: &'buf [u8]) {
        self.enqueue(to, &[], payload, 0);
    }

    /// Queues one datagram of `prefix` (copied, at most [`SendQueue::MAX_PREFIX`] bytes), `payload` and `pad` zero
    /// bytes (at most 3).
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
        assert!(
            prefix.len() <= SendQueue::MAX_PREFIX && pad <= 3,
            "prefix or padding too long"
        );
        self.enqueue(to, prefix, payload, pad);
    }

    /// Queues a copy of `datagram`: for answers built in a buffer that does not live long enough.
    pub fn push_copied(&mut self, to: &SendTo<'buf>, datagram: &[u8]) {
        if datagram.len() > MAX_DATAGRAM {
            self.fresh.too_big += 1;
            return;
        }
        self.enqueue(to, datagram, &[], 0);
    }

    /// Cuts `bytes` into pieces of `stride` bytes, and queues the range `payload` of each. The last piece may be
    /// shorter, and has a shorter payload then. Without bytes, or with a `stride` of 0, there is one piece.
    pub fn push_strided(
        &mut self,
        to: &SendTo<'buf>,
        bytes: &'buf [u8],
        stride: usize,
        payload: Range<usize>,
    ) {
        let mut rest = Some(bytes);
        while let Some(current) = rest {
            let (piece, tail) = match current.split_at_checked(stride) {
                Some((piece, tail)) if stride > 0 && !tail.is_empty() => (piece, Some(tail)),
                _ => (current, None),
            };
            let end = payload.end.min(piece.len());
            self.enqueue(to, &[], &piece[payload.start.min(end)..end], 0);
            rest = tail;
        }
    }

    #[inline]
    fn enqueue(&mut self, to: &SendTo<'buf>, prefix: &[u8], payload: &'buf [u8], pad: usize) {
        if payload.len() > MAX_DATAGRAM {
            self.fresh.too_big += 1;
            return;
        }
        if !self.queue.has_room(prefix.len()) {
            self.transmit();
        }
        self.queue.push(to, prefix, payload, pad);
    }

    /// Datagrams waiting for a flush.
    #[must_use]
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Whether the queue has no datagrams.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.queue.len() == 0
    }

    /// Sends all queued datagrams. Returns the results of all datagrams that were pushed since the last `flush` or the
    /// start. These include datagrams that were sent early because the queue was full.
    pub fn flush(&mut self) -> Flushed {
        self.transmit();
        let fresh = std::mem::take(&mut self.fresh);
        *self.totals += fresh;
        fresh
    }

    fn transmit(&mut self) {
        if !self.is_empty() {
            // SAFETY: every buffer and socket in the queue was pushed through this session, whose `'buf` they outlive.
            unsafe { self.queue.transmit(&mut self.fresh) };
        }
    }
}

impl Drop for Outbox<'_, '_> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Largest payload that a UDP length field can state; what the path or IPv4 does not take, the kernel refuses.
const MAX_DATAGRAM: usize = 65_535;
