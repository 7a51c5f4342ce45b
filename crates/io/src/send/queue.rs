//! The datagrams that wait to be sent. Each push sorts its datagram into a flow and a lane.

use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, SocketAddr};
use std::ptr;

use super::flush::Wire;
use super::index::{Index, mix};
use super::refused::Refused;
use super::{SendOptions, SendTo};
use crate::UdpSocket;
use crate::address::RawAddress;
use crate::sys;

/// End of a list of indexes.
pub(super) const END_OF_LIST: u32 = u32::MAX;

/// Room for prefixes: a few bytes for each datagram of a full queue, and one copied datagram of any size.
const PREFIX_BYTES_PER_DATAGRAM: usize = 16;
const MIN_PREFIX_BYTES: usize = 65_536;

/// The queue's storage. Raw pointers in it were borrowed by the session that pushed them, and are followed only by
/// [`Queue::transmit`], within that session.
#[derive(Debug)]
pub(super) struct Queue {
    pub(super) gso: bool,
    pub(super) max_segments: usize,
    capacity: usize,
    pub(super) entries: Vec<Entry>,
    pub(super) flows: Vec<Flow>,
    pub(super) lanes: Vec<Lane>,
    pub(super) prefixes: Vec<u8>,
    pub(super) refused: Refused,
    pub(super) wire: Wire,
    flow_index: Index,
    lane_index: Index,
    /// The index of the last push's flow. Most often, the next push has the same flow.
    recent: u32,
    /// The secret seed of the hashes. A client that does not know it cannot choose addresses whose hashes collide.
    seed: u64,
}

/// A datagram: prefix, payload, padding.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) payload: *const u8,
    pub(super) payload_len: u32,
    pub(super) prefix_at: u32,
    /// The index of the next datagram of the same flow.
    pub(super) next: u32,
    pub(super) prefix_len: u16,
    pub(super) pad: u8,
    pub(super) tos: u8,
    pub(super) dont_fragment: bool,
}

impl Entry {
    pub(super) fn len(&self) -> usize {
        usize::from(self.prefix_len) + self.payload_len as usize + usize::from(self.pad)
    }
}

/// Datagrams with one socket, destination and source address, in the order they were pushed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flow {
    socket: *const UdpSocket,
    pub(super) to: SocketAddr,
    pub(super) from_ip: Option<IpAddr>,
    pub(super) raw: RawAddress,
    /// The indexes of its first and its last datagram.
    pub(super) first: u32,
    pub(super) last: u32,
    /// The index of the next flow of the same lane.
    pub(super) next: u32,
}

/// Flows with one socket, in the order of their first datagram.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lane {
    pub(super) socket: *const UdpSocket,
    /// The indexes of its first and its last flow.
    pub(super) first: u32,
    pub(super) last: u32,
}

// SAFETY: the raw pointers are followed only within a session, on the thread that holds it. Any thread may use the
// values that they were made from (`&[u8]`, `&UdpSocket`).
unsafe impl Send for Queue {}

impl Queue {
    pub(super) fn new(options: &SendOptions) -> Queue {
        let SendOptions {
            gso,
            max_segments,
            capacity,
        } = *options;
        // A kernel without UDP_SEGMENT would ignore it and send a whole run as one datagram.
        let gso = gso && max_segments > 1 && sys::socket::kernel_has_gso();
        Queue {
            gso,
            max_segments,
            capacity,
            entries: Vec::with_capacity(capacity),
            flows: Vec::with_capacity(capacity),
            lanes: Vec::with_capacity(capacity),
            prefixes: Vec::with_capacity(capacity * PREFIX_BYTES_PER_DATAGRAM + MIN_PREFIX_BYTES),
            refused: Refused::new(),
            // If the kernel refuses a run, its datagrams are sent again one by one, after all other messages.
            wire: Wire::new(capacity + max_segments),
            flow_index: Index::new(capacity),
            lane_index: Index::new(capacity),
            recent: END_OF_LIST,
            seed: RandomState::new().hash_one(0),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether one more datagram fits, with a prefix of `prefix` bytes. In an empty queue, it always fits.
    pub(super) fn has_room(&self, prefix: usize) -> bool {
        self.entries.len() < self.capacity
            && self.prefixes.capacity() - self.prefixes.len() >= prefix
    }

    /// Empties the queue without sending.
    pub(super) fn forget(&mut self) {
        self.entries.clear();
        self.flows.clear();
        self.lanes.clear();
        self.prefixes.clear();
        self.flow_index.clear();
        self.lane_index.clear();
        self.recent = END_OF_LIST;
    }

    /// Adds a datagram: `prefix`, which is copied, then `payload`, then `pad` zero bytes. The queue must have room, and
    /// each length must fit in 16 bits. The payload and the socket must live until `forget`.
    #[inline]
    pub(super) fn push(&mut self, to: &SendTo<'_>, prefix: &[u8], payload: &[u8], pad: usize) {
        let flow = self.flow_of(to);
        let entry = self.entries.len() as u32;
        let flow = &mut self.flows[flow as usize];
        match self.entries.get_mut(flow.last as usize) {
            Some(last) => last.next = entry,
            None => flow.first = entry,
        }
        flow.last = entry;
        self.entries.push(Entry {
            payload: payload.as_ptr(),
            payload_len: payload.len() as u32,
            prefix_at: self.prefixes.len() as u32,
            next: END_OF_LIST,
            prefix_len: prefix.len() as u16,
            pad: pad as u8,
            tos: to.tos,
            dont_fragment: to.dont_fragment,
        });
        self.prefixes.extend_from_slice(prefix);
    }

    /// Returns the index of the flow for this socket, destination and source address. Adds the flow if there is none.
    #[inline]
    fn flow_of(&mut self, to: &SendTo<'_>) -> u32 {
        if let Some(flow) = self.flows.get(self.recent as usize)
            && flow.is_for(to)
        {
            return self.recent;
        }
        let hash = hash(to, self.seed);
        self.recent = match self
            .flow_index
            .find(hash, |flow| self.flows[flow as usize].is_for(to))
        {
            Ok(flow) => flow,
            Err(vacancy) => {
                let flow = self.open_flow(to);
                self.flow_index.fill(vacancy, flow);
                flow
            }
        };
        self.recent
    }

    /// Adds a flow for this socket, destination and source address. Returns its index.
    fn open_flow(&mut self, to: &SendTo<'_>) -> u32 {
        let raw = if to.socket.is_v6() {
            RawAddress::new_on_v6(to.to)
        } else {
            RawAddress::new(to.to)
        };
        let SendTo {
            socket,
            to,
            from_ip,
            ..
        } = *to;
        let flow = self.flows.len() as u32;
        self.flows.push(Flow {
            socket,
            to,
            from_ip,
            raw,
            first: END_OF_LIST,
            last: END_OF_LIST,
            next: END_OF_LIST,
        });
        let lane = self.lane_of(socket);
        let lane = &mut self.lanes[lane as usize];
        match self.flows.get_mut(lane.last as usize) {
            Some(last) => last.next = flow,
            None => lane.first = flow,
        }
        lane.last = flow;
        flow
    }

    /// Returns the index of the lane of a socket. Adds the lane if there is none.
    fn lane_of(&mut self, socket: &UdpSocket) -> u32 {
        let socket = ptr::from_ref(socket);
        if let Some(last) = self.lanes.last()
            && ptr::eq(last.socket, socket)
        {
            return self.lanes.len() as u32 - 1;
        }
        let hash = mix(socket.addr() as u64 ^ self.seed, HASH_FACTOR);
        self.lane_index
            .find(hash, |lane| {
                ptr::eq(self.lanes[lane as usize].socket, socket)
            })
            .unwrap_or_else(|vacancy| {
                let lane = self.lanes.len() as u32;
                self.lanes.push(Lane {
                    socket,
                    first: END_OF_LIST,
                    last: END_OF_LIST,
                });
                self.lane_index.fill(vacancy, lane);
                lane
            })
    }
}

impl Flow {
    #[inline]
    fn is_for(&self, to: &SendTo<'_>) -> bool {
        ptr::eq(self.socket, to.socket) && self.to == to.to && self.from_ip == to.from_ip
    }
}

/// An odd constant with well-mixed bits: 2^64 divided by the golden ratio.
const HASH_FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

/// The hash of a socket and a destination. Source addresses are left out, because they rarely differ.
#[inline]
fn hash(to: &SendTo<'_>, seed: u64) -> u64 {
    let socket = ptr::from_ref(to.socket).addr() as u64 ^ seed;
    match to.to {
        SocketAddr::V4(v4) => mix(
            socket,
            u64::from(v4.ip().to_bits()) << 16 ^ u64::from(v4.port()) ^ HASH_FACTOR,
        ),
        SocketAddr::V6(v6) => {
            let bits = v6.ip().to_bits();
            let high = mix(socket, (bits >> 64) as u64 ^ HASH_FACTOR);
            mix(high ^ u64::from(v6.port()), bits as u64 ^ seed)
        }
    }
}
