//! The receive arena.
//!
//! ```text
//! headers   [ mmsghdr | mmsghdr | mmsghdr | ...      what recvmmsg takes, one after the other
//!                |         |
//! slots     [ iovec from control | iovec from control | ...
//!                |                     |
//! payload   [ slot_size ..... gap | slot_size ..... gap | ...
//! messages  [ what the first recv said, parsed | ...  as many as were received
//! ```
//! All of it is allocated once; the pointers between the rows never change. What one `recv` filled stays until `clear`,
//! so that a worker can gather from many sockets before it handles anything.

use std::mem;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::AsFd;
use std::{io, slice};

use libc::{iovec, mmsghdr};

use crate::address::{RawAddress, unmap};
use crate::arena::Arena;
use crate::control::{Ancillary, RecvControl};
use crate::{BatchSizes, UdpSocket, sys};

/// Datagrams of equal length from one source (the last may be shorter), as the kernel handed them over together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datagrams<'a> {
    /// The bytes of all datagrams, one after the other, without padding. Empty for a datagram without payload.
    pub bytes: &'a [u8],
    /// Length of each but the last, in bytes: `bytes.len()` if there is only one (so 0 if it is empty).
    pub stride: usize,
    /// Where they came from.
    pub from: SocketAddr,
    /// The address they were sent to, if [`UdpOptions::local_address`](crate::UdpOptions) asked for it.
    pub local_ip: Option<IpAddr>,
    /// DSCP and ECN, the TOS or traffic class octet; 0 if not asked for.
    pub tos: u8,
    /// TTL or hop limit, if asked for.
    pub ttl: Option<u8>,
    /// When they arrived at this machine, nanoseconds since 1970, if [`UdpSocket::stamp_arrivals`] asked for it.
    pub arrived_ns: Option<u64>,
    /// The slot was too small and the end is missing.
    pub truncated: bool,
    /// What the caller of `recv` marked them with.
    pub tag: u64,
}

impl<'a> Datagrams<'a> {
    /// Each datagram by itself, in order; at least one, which may be empty.
    #[must_use]
    pub fn segments(&self) -> Segments<'a> {
        Segments {
            rest: Some(self.bytes),
            stride: self.stride,
        }
    }
}

/// Iterator over the datagrams of [`Datagrams`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    rest: Option<&'a [u8]>,
    stride: usize,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let rest = self.rest.take()?;
        match rest.split_at_checked(self.stride) {
            Some((segment, tail)) if !tail.is_empty() => {
                self.rest = Some(tail);
                Some(segment)
            }
            _ => Some(rest),
        }
    }
}

/// Storage for received messages, allocated once and owned by a worker.
pub struct RecvBatch {
    headers: Vec<mmsghdr>,
    slots: Vec<Slot>,
    payload: Arena,
    slot_size: usize,
    /// Distance of two slots' payloads.
    pitch: usize,
    messages: Vec<Message>,
    overflow: u64,
    totals: Received,
}

/// What a [`RecvBatch`] has received since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Received {
    /// Datagrams, each segment of a train being one.
    pub datagrams: u64,
    /// Trains that the kernel handed over as one message (UDP_GRO).
    pub gro_trains: u64,
    /// Datagrams that came in trains.
    pub gro_segments: u64,
    /// Datagrams per system call that brought any.
    pub per_call: BatchSizes,
}

impl std::ops::AddAssign<&Received> for Received {
    fn add_assign(&mut self, other: &Received) {
        self.datagrams += other.datagrams;
        self.gro_trains += other.gro_trains;
        self.gro_segments += other.gro_segments;
        self.per_call += &other.per_call;
    }
}

/// What a header points to, beside the payload.
struct Slot {
    payload: iovec,
    from: RawAddress,
    control: RecvControl,
}

/// A received message; its payload is that of the slot with the same index.
#[derive(Clone, Copy)]
struct Message {
    len: usize,
    truncated: bool,
    from: SocketAddr,
    tag: u64,
    ancillary: Ancillary,
}

// SAFETY: its raw pointers lead only to its own heap memory, which moves along with it.
unsafe impl Send for RecvBatch {}

impl RecvBatch {
    /// Slot size for sockets without GRO: holds every datagram of an Ethernet path.
    pub const SMALL: usize = 2048;
    /// Slot size for sockets with GRO: holds the longest train, and every UDP datagram.
    pub const LARGE: usize = 65_536;

    /// As [`RecvBatch::try_new`], for few slots.
    ///
    /// # Panics
    /// If either is out of range, or if the address space is exhausted.
    #[must_use]
    pub fn new(slots: usize, slot_size: usize) -> RecvBatch {
        RecvBatch::try_new(slots, slot_size).expect("address space for a receive batch")
    }

    /// `slots` (1 to 65,536) of `slot_size` bytes (1 to 65,536) each. Unused room costs address space, no memory.
    ///
    /// # Errors
    /// ENOMEM when the address space is limited or exhausted, or the system does not overcommit memory.
    ///
    /// # Panics
    /// If either is out of range.
    pub fn try_new(slots: usize, slot_size: usize) -> io::Result<RecvBatch> {
        assert!(
            (1..=65_536).contains(&slots),
            "a batch has 1 to 65,536 slots"
        );
        assert!(
            (1..=Self::LARGE).contains(&slot_size),
            "a slot has 1 to 65,536 bytes"
        );
        let pitch = pitch(slot_size);
        let payload = Arena::new(slots * pitch)?;
        let mut batch = RecvBatch {
            headers: (0..slots).map(|_| empty_header()).collect(),
            slots: (0..slots).map(|_| Slot::new()).collect(),
            payload,
            slot_size,
            pitch,
            messages: Vec::with_capacity(slots),
            overflow: 0,
            totals: Received::default(),
        };
        batch.connect();
        Ok(batch)
    }

    /// Sets the pointers between the rows. Both target vectors keep their allocation for life.
    fn connect(&mut self) {
        let payload = self.payload.as_mut_ptr();
        let slots = self.slots.as_mut_ptr();
        for (index, header) in self.headers.iter_mut().enumerate() {
            // SAFETY: `index` is below the number of slots, which is the number of headers. The payload has `pitch`
            // bytes for each slot, so `index * pitch` lies inside it.
            let (slot, bytes) = unsafe { (slots.add(index), payload.add(index * self.pitch)) };
            // SAFETY: `slot` points to a live Slot that nothing else refers to right now.
            unsafe {
                (*slot).payload = iovec {
                    iov_base: bytes.cast(),
                    iov_len: self.slot_size,
                };
                header.msg_hdr.msg_iov = &raw mut (*slot).payload;
                header.msg_hdr.msg_name = (&raw mut (*slot).from).cast();
                header.msg_hdr.msg_control = (&raw mut (*slot).control).cast();
            }
            header.msg_hdr.msg_iovlen = 1;
            rearm(header);
        }
    }

    /// Forgets what it holds; the slots are free again.
    pub fn clear(&mut self) {
        for header in &mut self.headers[..self.messages.len()] {
            rearm(header);
        }
        self.messages.clear();
        self.overflow = 0;
    }

    /// Free slots.
    #[must_use]
    pub fn room(&self) -> usize {
        self.slots.len() - self.messages.len()
    }

    /// Releases the memory of all slots after the first `slots`. A burst may have used them. Call it on an empty batch,
    /// because the contents of these slots become zeros.
    pub fn shrink(&mut self, slots: usize) {
        self.payload.forget_from(slots.saturating_mul(self.pitch));
    }

    /// Messages held.
    #[must_use]
    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// No slot is free.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.messages.len() == self.slots.len()
    }

    /// Most of the messages from number `first` on came from the source of the message before: several sources, or only
    /// one of many, send trains. `false` for fewer than 8 messages; looks at no more than 16.
    #[must_use]
    pub fn has_neighbours(&self, first: usize) -> bool {
        let messages = self.messages.get(first..).unwrap_or(&[]);
        let messages = &messages[..messages.len().min(16)];
        let alike = messages
            .windows(2)
            .filter(|pair| pair[0].from == pair[1].from)
            .count();
        messages.len() >= 8 && alike * 4 >= messages.len() * 3
    }

    /// All datagrams, in the order of arrival.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Datagrams<'_>> + '_ {
        self.range(0..self.len())
    }

    /// The datagrams with these numbers, in the order of arrival.
    ///
    /// # Panics
    /// If it does not hold this many.
    pub fn range(&self, range: Range<usize>) -> impl ExactSizeIterator<Item = Datagrams<'_>> + '_ {
        let first = range.start;
        self.messages[range]
            .iter()
            .enumerate()
            .map(move |(index, message)| self.datagrams(first + index, message))
    }

    /// The message at `index`, if there is one.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Datagrams<'_>> {
        self.messages
            .get(index)
            .map(|message| self.datagrams(index, message))
    }

    /// Datagrams that the kernel dropped because a receive buffer was full, newly reported by the sockets received
    /// from since the last [`RecvBatch::clear`]. A socket reports its drops with the next datagram it does deliver.
    #[must_use]
    pub fn overflow(&self) -> u64 {
        self.overflow
    }

    /// Counts since the batch was made; [`RecvBatch::clear`] leaves them alone.
    #[must_use]
    pub fn totals(&self) -> &Received {
        &self.totals
    }

    fn datagrams(&self, index: usize, message: &Message) -> Datagrams<'_> {
        let ancillary = &message.ancillary;
        Datagrams {
            bytes: &self.payload.as_slice()[index * self.pitch..][..message.len],
            stride: ancillary
                .segment_size
                .map_or(message.len, |size| size.min(message.len)),
            from: message.from,
            local_ip: ancillary.local_ip,
            tos: ancillary.tos,
            ttl: ancillary.ttl,
            arrived_ns: ancillary.arrived_ns,
            truncated: message.truncated,
            tag: message.tag,
        }
    }

    /// Fills free slots, at most `limit`, with one `recvmmsg`.
    pub(crate) fn receive_many(
        &mut self,
        socket: &UdpSocket,
        tag: u64,
        limit: usize,
    ) -> io::Result<usize> {
        let start = self.messages.len();
        let end = self.slots.len().min(start.saturating_add(limit));
        if start == end {
            return Ok(0);
        }
        // SAFETY: `connect` pointed these headers to memory of this batch, whose lengths they state, and `&mut self`
        // proves that nobody is looking at it.
        let received =
            unsafe { sys::recv::recvmmsg(socket.as_fd(), &mut self.headers[start..end]) }?;
        let before = self.totals.datagrams;
        for index in start..start + received {
            self.take_slot(socket, tag, index, self.headers[index].msg_len as usize);
        }
        self.totals.per_call.count(self.totals.datagrams - before);
        Ok(received)
    }

    /// Fills one slot with one `recvmsg`, or with `recvfrom` if the socket reports nothing beside the payload.
    pub(crate) fn receive_one(&mut self, socket: &UdpSocket, tag: u64) -> io::Result<usize> {
        let index = self.messages.len();
        if index == self.slots.len() {
            return Ok(0);
        }
        let before = self.totals.datagrams;
        if socket.has_ancillary() || socket.gro() {
            // SAFETY: as in `receive_many`.
            let len =
                unsafe { sys::recv::recvmsg(socket.as_fd(), &mut self.headers[index].msg_hdr) }?;
            self.take_slot(socket, tag, index, len);
        } else {
            let iovec { iov_base, iov_len } = self.slots[index].payload;
            // SAFETY: these are the bytes of a slot that is free, initialised since `new`, and `&mut self` proves that
            // nobody is looking at them.
            let buffer = unsafe { slice::from_raw_parts_mut(iov_base.cast::<u8>(), iov_len) };
            let mut from = RawAddress::default();
            let len = sys::recv::recvfrom(socket.as_fd(), buffer, &mut from)?;
            self.take(
                socket,
                Message {
                    len: len.min(self.slot_size),
                    truncated: len > self.slot_size,
                    from: from.get(),
                    tag,
                    ancillary: Ancillary::default(),
                },
            );
        }
        self.totals.per_call.count(self.totals.datagrams - before);
        Ok(1)
    }

    /// Parses what the kernel wrote about the message in slot `index`.
    #[inline]
    fn take_slot(&mut self, socket: &UdpSocket, tag: u64, index: usize, len: usize) {
        let header = &self.headers[index].msg_hdr;
        let slot = &self.slots[index];
        let used: usize = header.msg_controllen as _;
        let message = Message {
            len,
            truncated: header.msg_flags & libc::MSG_TRUNC != 0,
            from: slot.from.get(),
            tag,
            ancillary: Ancillary::parse(slot.control.bytes.get(..used).unwrap_or(&[])),
        };
        self.take(socket, message);
    }

    #[inline]
    fn take(&mut self, socket: &UdpSocket, mut message: Message) {
        let ancillary = &mut message.ancillary;
        if let Some(drops) = ancillary.drops {
            self.overflow += socket.new_drops(drops);
        }
        let datagrams = match ancillary.segment_size {
            Some(size) if size < message.len => {
                let segments = message.len.div_ceil(size) as u64;
                self.totals.gro_trains += 1;
                self.totals.gro_segments += segments;
                segments
            }
            _ => 1,
        };
        self.totals.datagrams += datagrams;
        if socket.is_dual_stack() {
            message.from = unmap(message.from);
            ancillary.local_ip = ancillary.local_ip.map(|ip| ip.to_canonical());
        }
        self.messages.push(message);
    }
}

/// Slots whose first bytes share cache sets would evict each other: an odd number of lines spreads them over all sets.
fn pitch(slot_size: usize) -> usize {
    const CACHE_LINE_BYTES: usize = 64;
    let lines = slot_size.div_ceil(CACHE_LINE_BYTES);
    (if lines.is_multiple_of(2) {
        lines + 5
    } else {
        lines
    }) * CACHE_LINE_BYTES
}

/// Resets the lengths that the kernel has overwritten. The memory behind the pointers needs no reset: the kernel writes
/// it before anybody reads it.
fn rearm(header: &mut mmsghdr) {
    header.msg_hdr.msg_namelen = RawAddress::CAPACITY;
    header.msg_hdr.msg_controllen = size_of::<RecvControl>() as _;
}

fn empty_header() -> mmsghdr {
    // SAFETY: integers and pointers only: all zeros are valid, null pointers with zero lengths.
    unsafe { mem::zeroed() }
}

impl Slot {
    fn new() -> Slot {
        let payload = iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        };
        Slot {
            payload,
            from: RawAddress::default(),
            control: RecvControl::new(),
        }
    }
}

impl std::fmt::Debug for RecvBatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RecvBatch")
            .field("slots", &self.slots.len())
            .field("slot_size", &self.slot_size)
            .field("len", &self.len())
            .field("overflow", &self.overflow)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn datagrams(bytes: &[u8], stride: usize) -> Datagrams<'_> {
        let from = "192.0.2.1:1".parse().unwrap();
        Datagrams {
            bytes,
            stride,
            from,
            local_ip: None,
            tos: 0,
            ttl: None,
            arrived_ns: None,
            truncated: false,
            tag: 0,
        }
    }

    #[test]
    fn segments_are_cut_at_the_stride_and_the_last_may_be_short() {
        let all: Vec<_> = datagrams(b"aabbc", 2).segments().collect();
        assert_eq!(all, [b"aa".as_slice(), b"bb", b"c"]);
        let all: Vec<_> = datagrams(b"aabb", 2).segments().collect();
        assert_eq!(all, [b"aa".as_slice(), b"bb"]);
    }

    #[test]
    fn an_empty_datagram_is_one_empty_segment() {
        assert_eq!(datagrams(b"", 0).segments().collect::<Vec<_>>(), [b""]);
        assert_eq!(datagrams(b"", 0).segments().count(), 1);
    }

    #[test]
    fn slots_start_in_different_cache_sets() {
        for size in [1, 64, 100, 1500, RecvBatch::SMALL, RecvBatch::LARGE] {
            let lines = pitch(size) / 64;
            assert!(
                pitch(size) >= size && pitch(size).is_multiple_of(64) && !lines.is_multiple_of(2)
            );
        }
    }
}
