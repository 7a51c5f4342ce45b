//! What the kernel does for a server: probed at startup, logged and shown as metrics.

use crate::steering::SteeringInUse;
use io::{Offloads, UdpSocket};
use std::net::SocketAddr;

/// The optional features in use. The server also works without the features that the kernel lacks or does not permit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Features {
    /// UDP_GRO: trains of one flow are received as one.
    pub gro: bool,
    /// UDP_SEGMENT: trains of one flow are sent as one.
    pub gso: bool,
    /// Most datagrams in one such send: 64 or 128; 1 without GSO.
    pub max_segments: usize,
    /// Whether the workers poll devices before they sleep.
    pub busy_poll: BusyPoll,
    /// Each worker stays on a core of its own.
    pub pinned: bool,
    /// How new allocations find their worker.
    pub steering: SteeringInUse,
    /// The listeners, in the order they were asked for.
    pub listeners: Vec<ListenerFeatures>,
}

/// What is in use at the sockets of one listener.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ListenerFeatures {
    /// Where it listens.
    pub address: SocketAddr,
    /// SO_REUSEPORT: each worker has a socket of its own, and the kernel spreads clients over them.
    pub reuse_port: bool,
    /// UDP_GRO is on.
    pub gro: bool,
    /// SO_RXQ_OVFL: what the kernel discards because the receive buffer is full is counted.
    pub overflow_counted: bool,
    /// The receive buffer of each of its sockets.
    pub receive_buffer: SocketBuffer,
    /// The send buffer of each of its sockets.
    pub send_buffer: SocketBuffer,
}

/// What the buffers of a listener's socket should hold, in bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffers {
    pub(crate) receive: u32,
    pub(crate) send: u32,
}

/// The receive or send buffer of a socket, in bytes without the kernel's doubling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketBuffer {
    /// Asked for.
    pub wanted: u32,
    /// Got: all of it with CAP_NET_ADMIN (SO_RCVBUFFORCE, SO_SNDBUFFORCE), else at most the limit.
    pub granted: u32,
    /// `net.core.rmem_max` or `net.core.wmem_max`, if it could be read.
    pub limit: Option<u32>,
}

impl SocketBuffer {
    /// The limit kept it smaller than it should be.
    #[must_use]
    pub fn is_capped(&self) -> bool {
        self.granted < self.wanted
    }

    /// It is larger than the limit allows, by CAP_NET_ADMIN.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.limit.is_some_and(|limit| self.granted > limit)
    }
}

/// Whether the workers spin on a device's queue before they sleep.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BusyPoll {
    /// It is not configured.
    #[default]
    Off,
    /// For this many microseconds.
    On(u32),
    /// Asked for, and refused for this reason.
    Refused(String),
}

impl Features {
    pub(crate) fn of(
        offloads: Option<Offloads>,
        groups: &[Vec<UdpSocket>],
        wanted: Buffers,
    ) -> Features {
        let limits = [io::sysctl::rmem_max(), io::sysctl::wmem_max()];
        let listeners = groups.iter().filter_map(|group| {
            group
                .first()
                .map(|socket| ListenerFeatures::of(socket, wanted, limits))
        });
        Features {
            gro: offloads.is_some_and(|offloads| offloads.gro),
            gso: offloads.is_some_and(|offloads| offloads.gso),
            max_segments: offloads.map_or(1, |offloads| offloads.max_segments),
            listeners: listeners.collect(),
            ..Features::default()
        }
    }
}

impl ListenerFeatures {
    fn of(
        socket: &UdpSocket,
        wanted: Buffers,
        [rmem_max, wmem_max]: [Option<u32>; 2],
    ) -> ListenerFeatures {
        ListenerFeatures {
            address: socket.local_addr(),
            reuse_port: socket.reuse_port(),
            gro: socket.gro(),
            overflow_counted: socket.overflow_counted(),
            receive_buffer: SocketBuffer {
                wanted: wanted.receive,
                granted: socket.recv_buffer().unwrap_or(0),
                limit: rmem_max,
            },
            send_buffer: SocketBuffer {
                wanted: wanted.send,
                granted: socket.send_buffer().unwrap_or(0),
                limit: wmem_max,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_is_capped_or_forced_or_neither() {
        let buffer = |granted, limit| SocketBuffer {
            wanted: 4000,
            granted,
            limit,
        };
        let of = |buffer: SocketBuffer| (buffer.is_capped(), buffer.is_forced());
        assert_eq!(of(buffer(200, Some(200))), (true, false));
        assert_eq!(of(buffer(4000, Some(200))), (false, true));
        assert_eq!(of(buffer(4000, Some(9000))), (false, false));
        assert_eq!(of(buffer(4000, None)), (false, false));
    }
}
