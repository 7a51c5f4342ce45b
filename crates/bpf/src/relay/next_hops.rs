//! Next hops: the link-layer addresses and the interface that a packet leaves with.

use std::io;
use std::os::fd::OwnedFd;

use super::layout::NEXT_HOP;
use crate::BpfError;
use crate::frame::Mac;
use crate::sys::RawMap;

const USABLE_XDP: u8 = 1;
const USABLE_TC: u8 = 2;
const USABLE_XDP_TX: u8 = 4;

/// A next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextHop {
    /// The time at which this next hop becomes invalid, CLOCK_MONOTONIC in nanoseconds. From then on, packets pass to
    /// user space. The programs notice it up to a timer tick late.
    pub good_until_ns: u64,
    /// The interface to leave by.
    pub interface: u32,
    /// Its MTU in bytes, or the route's: a longer IP packet passes to user space.
    pub mtu: u16,
    /// Whether the interface takes frames that XDP redirects from another interface: its driver has `ndo_xdp_xmit`.
    pub usable_xdp: bool,
    /// Whether XDP may send a frame out of the interface that it arrived on (`XDP_TX`): the program is attached there.
    pub usable_xdp_tx: bool,
    /// Whether the interface takes packets from tc.
    pub usable_tc: bool,
    /// Link-layer address of the neighbour; zeroes for the loopback interface.
    pub destination: Mac,
    /// Link-layer address of the interface.
    pub source: Mac,
}

/// The table of next hops. Index 0 means none: nothing can be put there.
#[derive(Debug)]
pub struct NextHops {
    map: RawMap<4, NEXT_HOP>,
    length: u32,
}

impl NextHops {
    /// Over the map NEXT_HOPS, of this many entries.
    pub(super) fn new(map: OwnedFd, length: u32) -> NextHops {
        // SAFETY: the sizes are those of `relay_maps.h`, and the map is not per processor.
        let map = unsafe { RawMap::new(map, 1) };
        NextHops { map, length }
    }

    /// How many indices there are, 0 included.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.length
    }

    /// Whether no next hop fits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length <= 1
    }

    /// Writes a next hop. A program that reads it at the same time may see old and new parts of it.
    ///
    /// # Errors
    /// When there is no such index, or it is 0.
    pub fn set(&mut self, index: u32, hop: &NextHop) -> Result<(), BpfError> {
        let mut bytes = [0; NEXT_HOP];
        bytes[0..8].copy_from_slice(&hop.good_until_ns.to_ne_bytes());
        bytes[8..12].copy_from_slice(&hop.interface.to_ne_bytes());
        bytes[12..14].copy_from_slice(&hop.mtu.to_ne_bytes());
        let flag = |usable: bool, flag: u8| if usable { flag } else { 0 };
        bytes[14] = flag(hop.usable_xdp, USABLE_XDP)
            | flag(hop.usable_tc, USABLE_TC)
            | flag(hop.usable_xdp_tx, USABLE_XDP_TX);
        bytes[16..22].copy_from_slice(&hop.destination);
        bytes[22..28].copy_from_slice(&hop.source);
        self.write(index, &bytes)
    }

    /// Makes a next hop unusable: packets pass to user space.
    ///
    /// # Errors
    /// When there is no such index, or it is 0.
    pub fn clear(&mut self, index: u32) -> Result<(), BpfError> {
        self.write(index, &[0; NEXT_HOP])
    }

    fn write(&mut self, index: u32, bytes: &[u8; NEXT_HOP]) -> Result<(), BpfError> {
        let written = match index {
            0 => Err(io::ErrorKind::InvalidInput.into()),
            _ => self.map.set(&index.to_ne_bytes(), bytes),
        };
        written.map_err(|source| BpfError::Element {
            map: "NEXT_HOPS",
            source,
        })
    }
}
