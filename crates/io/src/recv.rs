//! The receive arena.

use std::net::{IpAddr, SocketAddr};

/// Datagrams of equal length from one source (the last may be shorter), as the kernel handed them over together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datagrams<'a> {
    /// All of them, one after the other, without padding. Empty for a datagram without payload.
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
#[derive(Debug)]
pub struct RecvBatch {
    slots: usize,
}

impl RecvBatch {
    /// Slot size for sockets without GRO: holds every datagram of an Ethernet path.
    pub const SMALL: usize = 2048;
    /// Slot size for sockets with GRO: holds the longest train, and every UDP datagram.
    pub const LARGE: usize = 65_536;

    /// `slots` (1 to 1,024) of `slot_size` bytes (1 to 65,536) each.
    ///
    /// # Panics
    /// If either is out of range.
    #[must_use]
    pub fn new(slots: usize, slot_size: usize) -> RecvBatch {
        assert!((1..=1024).contains(&slots) && (1..=Self::LARGE).contains(&slot_size));
        RecvBatch { slots }
    }

    /// Forgets what it holds; the slots are free again.
    pub fn clear(&mut self) {}

    /// Messages held.
    #[must_use]
    pub fn len(&self) -> usize {
        0
    }

    /// Holds nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        true
    }

    /// No slot is free.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.len() == self.slots
    }

    /// Everything held, in the order of arrival.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = Datagrams<'_>> + '_ {
        std::iter::empty()
    }

    /// The message at `index`, if there is one.
    #[must_use]
    pub fn get(&self, index: usize) -> Option<Datagrams<'_>> {
        let _ = index;
        None
    }

    /// Datagrams that the kernel dropped because a receive buffer was full, newly reported by the sockets received
    /// from since the last [`RecvBatch::clear`].
    #[must_use]
    pub fn overflow(&self) -> u64 {
        0
    }
}
