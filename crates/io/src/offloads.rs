//! What the kernel does for UDP beyond one datagram per call.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::{SendOptions, SendQueue, SendTo, UdpOptions, UdpSocket};

/// What this kernel can do for UDP, found out by trying on the loopback interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offloads {
    /// UDP_SEGMENT works.
    pub gso: bool,
    /// UDP_GRO works.
    pub gro: bool,
    /// Most segments one send may carry: 64, or 128 on newer kernels; 1 without GSO.
    pub max_segments: usize,
}

impl Offloads {
    /// Nothing works, or nothing could be found out.
    const NONE: Offloads = Offloads {
        gso: false,
        gro: false,
        max_segments: 1,
    };

    /// Asks the kernel: opens a socket on loopback and sends some bytes to itself.
    #[must_use]
    pub fn probe() -> Offloads {
        let options = UdpOptions {
            gro: true,
            ..UdpOptions::default()
        };
        let loopback = [
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ];
        let bound = loopback
            .into_iter()
            .find_map(|ip| UdpSocket::bind((ip, 0).into(), &options).ok());
        let Some(socket) = bound else {
            return Offloads::NONE;
        };
        // UDP_MAX_SEGMENTS is 64 before Linux 6.9.
        let max_segments = [128, 64]
            .into_iter()
            .find(|&segments| takes_run(&socket, segments))
            .unwrap_or(1);
        Offloads {
            gso: max_segments > 1,
            gro: socket.gro(),
            max_segments,
        }
    }
}

/// Whether the kernel accepts a run of this many datagrams, of one byte each, as one send.
fn takes_run(socket: &UdpSocket, segments: usize) -> bool {
    let options = SendOptions {
        max_segments: segments,
        capacity: segments,
        ..SendOptions::default()
    };
    let mut queue = SendQueue::new(&options);
    let bytes = vec![0; segments];
    let mut out = queue.start();
    out.push_strided(&SendTo::new(socket, socket.local_addr()), &bytes, 1, 0..1);
    let flushed = out.flush();
    flushed.gso_segments == segments as u64 && flushed.gso_refused == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn detected_offloads_are_consistent() {
        let found = Offloads::probe();
        assert_eq!(found.gso, found.max_segments > 1);
        assert!([1, 64, 128].contains(&found.max_segments));
    }
}
