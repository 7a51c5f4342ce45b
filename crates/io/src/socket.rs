//! UDP sockets, non-blocking and close-on-exec.

use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use libc::c_int;

use crate::RecvBatch;
use crate::address::RawAddress;
use crate::icmp::retry_after_icmp;
use crate::send::send_at_once;
use crate::sys::socket::{bind, getsockname, getsockopt, kernel_has_gso, setsockopt, socket};

/// How to open a [`UdpSocket`]. Start from `UdpOptions::default()` (a plain socket: nothing asked of the kernel but
/// TOS), [`UdpOptions::listener`] or [`UdpOptions::relay`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UdpOptions {
    /// SO_REUSEPORT: several sockets share the address and the kernel spreads flows. Never for relay sockets: two
    /// allocations could share a port.
    pub reuse_port: bool,
    /// Receive buffer in bytes of payload (the kernel doubles it to pay for its own overhead); `None` keeps the
    /// system's default. Beyond `net.core.rmem_max` it takes CAP_NET_ADMIN, otherwise the limit applies: see
    /// [`UdpSocket::recv_buffer`].
    pub recv_buffer: Option<u32>,
    /// Send buffer in bytes, likewise with `net.core.wmem_max` and [`UdpSocket::send_buffer`].
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
    /// large datagrams are fragmented: IPv4 to the interface's MTU, ignoring path MTU messages, IPv6 to the path's.
    pub dont_fragment: bool,
    /// IP_RECVERR: keep ICMP errors about what was sent, for [`UdpSocket::next_icmp_error`]. Errors wait in the receive
    /// buffer, and the poller reports them ([`Event::error`](crate::Event)) until they are fetched.
    pub icmp_errors: bool,
    /// SO_BUSY_POLL and SO_PREFER_BUSY_POLL: spin on the device queue for this many microseconds before sleeping; 0 is
    /// off. Ignored without CAP_NET_ADMIN. A caller that waits with epoll requires
    /// [`Poller::set_busy_poll`](crate::Poller::set_busy_poll) besides.
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
            icmp_errors: false,
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

    /// What the socket of one relayed transport address wants: the overflow count and ICMP errors, and never
    /// SO_REUSEPORT. GRO only once several datagrams come at a time, which they do in few calls.
    #[must_use]
    pub fn relay() -> UdpOptions {
        UdpOptions {
            overflow: true,
            icmp_errors: true,
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

// One per relayed transport address: what it takes is part of what an allocation costs.
const _: () = assert!(size_of::<UdpSocket>() == 36);

/// An unconnected UDP socket. ICMP errors do not disturb it: they are ignored, or fetched on purpose. It may move to
/// another thread, or be shared.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    local_ip: IpAddr,
    local_port: u16,
    /// Of a link-local address; else 0.
    scope_id: u32,
    traits: SocketTraits,
    /// ICMP errors are kept for now, though it was not opened so.
    icmp_errors: AtomicBool,
    gro: AtomicBool,
    /// What the socket is set to now; flipped when a send wants the other.
    dont_fragment: AtomicBool,
    /// What SO_RXQ_OVFL said last.
    drops: AtomicU32,
}

impl UdpSocket {
    /// Opens and binds a socket. Port 0 lets the kernel choose one.
    ///
    /// Some options are optional: buffers, GRO, overflow count and busy polling. If the kernel refuses one of them, the
    /// socket opens without it.
    ///
    /// # Errors
    /// What `socket`, `setsockopt` or `bind` returns: `AddrInUse`, `AddrNotAvailable`, `PermissionDenied` (ports below
    /// 1024), EMFILE and ENFILE when descriptors ran out.
    pub fn bind(address: SocketAddr, options: &UdpOptions) -> io::Result<UdpSocket> {
        let v6 = address.is_ipv6();
        let family = if v6 { libc::AF_INET6 } else { libc::AF_INET };
        let fd = socket(
            family,
            libc::SOCK_DGRAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC,
        )?;
        let opening = Opening {
            fd: fd.as_fd(),
            v6,
            dual_stack: v6 && !options.v6_only,
        };
        opening.before_bind(options)?;
        opening.require(options)?;
        let (gro, dual_stack) = (opening.wish(options), opening.dual_stack);
        bind(fd.as_fd(), &RawAddress::new(address))?;
        // A caller that names the port has it.
        let local = match address.port() {
            0 => getsockname(fd.as_fd())?.get(),
            _ => address,
        };
        Ok(UdpSocket::new(fd, local, options, (gro, dual_stack)))
    }

    /// Takes a socket that is bound already, and sets what `options` ask for. [`UdpOptions::reuse_port`] and
    /// [`UdpOptions::v6_only`] have no effect: they count before a socket is bound.
    ///
    /// # Errors
    /// `InvalidInput`: this is no UDP socket, or it is not bound, or it is connected; the text says which. Otherwise
    /// what `fcntl`, `getsockopt` or `setsockopt` returns.
    pub fn from_bound(fd: OwnedFd, options: &UdpOptions) -> io::Result<UdpSocket> {
        let refused = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        let [domain, kind, protocol] =
            [libc::SO_DOMAIN, libc::SO_TYPE, libc::SO_PROTOCOL].map(|name| -> io::Result<c_int> {
                let [word] = getsockopt::<1>(fd.as_fd(), libc::SOL_SOCKET, name)?;
                Ok(word as c_int)
            });
        let v6 = match (domain?, kind?, protocol?) {
            (libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_UDP) => false,
            (libc::AF_INET6, libc::SOCK_DGRAM, libc::IPPROTO_UDP) => true,
            _ => return refused("it is no UDP socket"),
        };
        let socket = std::net::UdpSocket::from(fd);
        socket.set_nonblocking(true)?;
        let local = socket.local_addr()?;
        if local.port() == 0 {
            return refused("it is not bound");
        }
        if socket.peer_addr().is_ok() {
            return refused("it is connected");
        }
        let fd = OwnedFd::from(socket);
        let opening = Opening {
            fd: fd.as_fd(),
            v6,
            dual_stack: v6
                && getsockopt::<1>(fd.as_fd(), libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)? == [0],
        };
        opening.require(options)?;
        let (gro, dual_stack) = (opening.wish(options), opening.dual_stack);
        Ok(UdpSocket::new(fd, local, options, (gro, dual_stack)))
    }

    fn new(
        fd: OwnedFd,
        local: SocketAddr,
        options: &UdpOptions,
        (gro, dual_stack): (bool, bool),
    ) -> UdpSocket {
        UdpSocket {
            local_ip: local.ip(),
            local_port: local.port(),
            scope_id: match local {
                SocketAddr::V6(v6) => v6.scope_id(),
                SocketAddr::V4(_) => 0,
            },
            traits: SocketTraits::of(options, dual_stack),
            icmp_errors: AtomicBool::new(false),
            gro: AtomicBool::new(gro),
            dont_fragment: AtomicBool::new(options.dont_fragment),
            drops: AtomicU32::new(0),
            fd,
        }
    }

    /// The address it is bound to.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        match self.local_ip {
            IpAddr::V4(ip) => SocketAddr::from((ip, self.local_port)),
            IpAddr::V6(ip) => SocketAddrV6::new(ip, self.local_port, 0, self.scope_id).into(),
        }
    }

    /// The IP address it is bound to.
    pub(crate) fn local_ip(&self) -> IpAddr {
        self.local_ip
    }

    /// Appends waiting datagrams to `batch`, each marked with `tag`, with one `recvmmsg`: for sockets many flows share.
    /// Returns how many messages (each may be several datagrams) came; 0 if the batch is full.
    ///
    /// # Errors
    /// `WouldBlock` when nothing waits; otherwise what `recvmmsg` returns.
    pub fn recv(&self, tag: u64, batch: &mut RecvBatch) -> io::Result<usize> {
        retry_after_icmp(self, || batch.receive_many(self, tag, usize::MAX))
    }

    /// Like [`UdpSocket::recv`], but at most `limit` messages: so that one flooded socket leaves room for others.
    ///
    /// # Errors
    /// `WouldBlock` when nothing waits; otherwise what `recvmmsg` returns.
    pub fn recv_up_to(&self, limit: usize, tag: u64, batch: &mut RecvBatch) -> io::Result<usize> {
        retry_after_icmp(self, || batch.receive_many(self, tag, limit))
    }

    /// Like [`UdpSocket::recv`], but at most one message by the cheapest single call: for the socket of one allocation.
    ///
    /// # Errors
    /// `WouldBlock` when nothing waits; otherwise what `recvfrom` or `recvmsg` returns.
    #[inline]
    pub fn recv_one(&self, tag: u64, batch: &mut RecvBatch) -> io::Result<usize> {
        retry_after_icmp(self, || batch.receive_one(self, tag))
    }

    /// Sends one datagram at once: for cold paths and tests. Workers use a [`SendQueue`](crate::SendQueue).
    ///
    /// # Errors
    /// What `sendto` or `sendmsg` returns.
    pub fn send_to(&self, datagram: &[u8], to: SocketAddr, from: Option<IpAddr>) -> io::Result<()> {
        retry_after_icmp(self, || send_at_once(self, datagram, None, to, from))
    }

    /// Sends a train at once: `bytes` cut up every `segment` bytes (UDP_SEGMENT), of which the last may be shorter. At
    /// most 64 segments and 65,507 bytes (65,487 over IPv6). For a generator that has but one destination at a time; a
    /// [`SendQueue`](crate::SendQueue) makes trains by itself, and sends singly what this refuses.
    ///
    /// # Errors
    /// [`GsoRefusal`](crate::GsoRefusal) shows whether the train is the cause. `InvalidInput`: a segment of 0 bytes.
    /// Otherwise what `sendmsg` returns.
    pub fn send_train(&self, bytes: &[u8], segment: u16, to: SocketAddr) -> io::Result<()> {
        // With a segment size of 0, the kernel would send everything as one datagram. So would a kernel without this
        // option.
        if segment == 0 || !kernel_has_gso() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        retry_after_icmp(self, || send_at_once(self, bytes, Some(segment), to, None))
    }

    /// Size of the receive buffer in bytes as granted, without the kernel's doubling.
    ///
    /// # Errors
    /// What `getsockopt` returns.
    pub fn recv_buffer(&self) -> io::Result<u32> {
        self.word(libc::SO_RCVBUF).map(|doubled| doubled / 2)
    }

    /// Size of the send buffer in bytes as granted, without the kernel's doubling.
    ///
    /// # Errors
    /// What `getsockopt` returns.
    pub fn send_buffer(&self) -> io::Result<u32> {
        self.word(libc::SO_SNDBUF).map(|doubled| doubled / 2)
    }

    /// Microseconds of busy polling as granted; 0 is off.
    ///
    /// # Errors
    /// What `getsockopt` returns.
    pub fn busy_poll_us(&self) -> io::Result<u32> {
        self.word(libc::SO_BUSY_POLL)
    }

    /// The socket's number, which the kernel gives to no other socket (SO_COOKIE): two descriptors of one socket have
    /// the same.
    ///
    /// # Errors
    /// What `getsockopt` returns.
    pub fn cookie(&self) -> io::Result<u64> {
        let [low, high] = getsockopt::<2>(self.as_fd(), libc::SOL_SOCKET, libc::SO_COOKIE)?;
        Ok(u64::from(high) << 32 | u64::from(low))
    }

    /// Whether an IPv6 socket serves IPv4, too (IPV6_V6ONLY is off).
    #[must_use]
    pub fn serves_both_families(&self) -> bool {
        self.is_dual_stack()
    }

    /// SO_REUSEPORT is on.
    #[must_use]
    pub fn reuse_port(&self) -> bool {
        self.word(libc::SO_REUSEPORT).is_ok_and(|on| on != 0)
    }

    /// Has the kernel say of each datagram when it arrived at this machine (SO_TIMESTAMPING, by software), or not. The
    /// socket must have been bound with another option that brings ancillary data.
    ///
    /// # Errors
    /// What `setsockopt` returns.
    pub fn stamp_arrivals(&self, on: bool) -> io::Result<()> {
        let flags = match on {
            true => libc::SOF_TIMESTAMPING_RX_SOFTWARE | libc::SOF_TIMESTAMPING_SOFTWARE,
            false => 0,
        };
        let flags = libc::c_int::try_from(flags).map_err(io::Error::other)?;
        setsockopt(self.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPING, flags)
    }

    /// SO_RXQ_OVFL is on.
    #[must_use]
    pub fn overflow_counted(&self) -> bool {
        self.word(libc::SO_RXQ_OVFL).is_ok_and(|on| on != 0)
    }

    /// GRO is on.
    #[must_use]
    pub fn gro(&self) -> bool {
        self.gro.load(Ordering::Relaxed)
    }

    /// Turns GRO on or off. A train that waits to be received when GRO is turned off will look like one long datagram:
    /// see [`GroWatch`](crate::GroWatch).
    ///
    /// # Errors
    /// What `setsockopt` returns: ENOPROTOOPT before Linux 5.0.
    pub fn set_gro(&self, on: bool) -> io::Result<()> {
        setsockopt(self.as_fd(), libc::SOL_UDP, libc::UDP_GRO, on.into())?;
        self.gro.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Keeps ICMP errors from now on, or discards them. It is for a socket that requires them only for a while, because
    /// they use room in its receive buffer. See [`UdpOptions::icmp_errors`].
    ///
    /// # Errors
    /// What `setsockopt` returns.
    pub fn keep_icmp_errors(&self, on: bool) -> io::Result<()> {
        let opening = Opening {
            fd: self.as_fd(),
            v6: self.local_ip.is_ipv6(),
            dual_stack: self.traits.has(SocketTraits::DUAL_STACK),
        };
        opening.by_family(libc::IP_RECVERR, libc::IPV6_RECVERR, on.into(), true)?;
        self.icmp_errors.store(on, Ordering::Relaxed);
        Ok(())
    }

    /// Memory in use and datagrams dropped.
    ///
    /// # Errors
    /// What `getsockopt` returns.
    pub fn memory(&self) -> io::Result<SocketMemory> {
        // SK_MEMINFO_RMEM_ALLOC, RCVBUF, WMEM_ALLOC, SNDBUF, FWD_ALLOC, WMEM_QUEUED, OPTMEM, BACKLOG, DROPS.
        let [recv_used, recv_limit, send_used, send_limit, .., drops] =
            getsockopt::<9>(self.as_fd(), libc::SOL_SOCKET, libc::SO_MEMINFO)?;
        Ok(SocketMemory {
            recv_used,
            recv_limit,
            send_used,
            send_limit,
            drops,
        })
    }

    /// The processor that handled the last datagram received.
    ///
    /// # Errors
    /// What `getsockopt` returns.
    pub fn incoming_cpu(&self) -> io::Result<u32> {
        self.word(libc::SO_INCOMING_CPU)
    }

    /// Prefers this socket of its SO_REUSEPORT group for datagrams handled on `cpu`.
    ///
    /// # Errors
    /// What `setsockopt` returns.
    pub fn set_incoming_cpu(&self, cpu: u32) -> io::Result<()> {
        setsockopt(
            self.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_INCOMING_CPU,
            cpu as c_int,
        )
    }

    /// Lets a loaded BPF program (sk_reuseport) choose among the sockets of this SO_REUSEPORT group.
    ///
    /// # Errors
    /// What `setsockopt` returns; `PermissionDenied` without the capability.
    pub fn attach_reuseport_program(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        setsockopt(
            self.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_REUSEPORT_EBPF,
            program.as_raw_fd(),
        )
    }

    fn word(&self, name: c_int) -> io::Result<u32> {
        getsockopt::<1>(self.as_fd(), libc::SOL_SOCKET, name).map(|[word]| word)
    }

    pub(crate) fn is_v6(&self) -> bool {
        self.local_ip.is_ipv6()
    }

    pub(crate) fn is_dual_stack(&self) -> bool {
        self.traits.has(SocketTraits::DUAL_STACK)
    }

    pub(crate) fn has_ancillary(&self) -> bool {
        self.traits.has(SocketTraits::ANCILLARY)
    }

    pub(crate) fn reports_icmp(&self) -> bool {
        self.traits.has(SocketTraits::ICMP_ERRORS) || self.icmp_errors.load(Ordering::Relaxed)
    }

    /// Takes the socket's running count of drops and returns how many are new.
    pub(crate) fn new_drops(&self, total: u32) -> u64 {
        let new = total.wrapping_sub(self.drops.load(Ordering::Relaxed));
        // Two threads that receive at once may report out of order: a step back is no drop.
        if new == 0 || new > u32::MAX / 2 {
            return 0;
        }
        self.drops.store(total, Ordering::Relaxed);
        new.into()
    }

    /// Makes the next sends carry DF, or not; `true` if that took system calls. One thread at a time may want this.
    pub(crate) fn set_dont_fragment(&self, wanted: bool) -> io::Result<bool> {
        if self.dont_fragment.load(Ordering::Relaxed) == wanted {
            return Ok(false);
        }
        Opening {
            fd: self.as_fd(),
            v6: self.is_v6(),
            dual_stack: self.is_dual_stack(),
        }
        .fragmentation(wanted)?;
        self.dont_fragment.store(wanted, Ordering::Relaxed);
        Ok(true)
    }
}

/// Properties of a socket that never change, in one byte.
#[derive(Clone, Copy, Debug)]
struct SocketTraits(u8);

impl SocketTraits {
    /// Serves IPv4 on an IPv6 socket.
    const DUAL_STACK: u8 = 1;
    /// Something beside payload and sender is asked for.
    const ANCILLARY: u8 = 2;
    const ICMP_ERRORS: u8 = 4;

    fn of(options: &UdpOptions, dual_stack: bool) -> SocketTraits {
        let ancillary = options.local_address || options.tos || options.ttl || options.overflow;
        let bits = [
            (dual_stack, SocketTraits::DUAL_STACK),
            (ancillary, SocketTraits::ANCILLARY),
            (options.icmp_errors, SocketTraits::ICMP_ERRORS),
        ];
        SocketTraits(
            bits.into_iter()
                .filter(|(on, _)| *on)
                .map(|(_, bit)| bit)
                .sum(),
        )
    }

    fn has(self, bit: u8) -> bool {
        self.0 & bit != 0
    }
}

/// A socket while its options are set.
struct Opening<'a> {
    fd: BorrowedFd<'a>,
    v6: bool,
    dual_stack: bool,
}

impl Opening<'_> {
    /// Sets what counts only before the socket is bound.
    fn before_bind(&self, options: &UdpOptions) -> io::Result<()> {
        if self.v6 {
            setsockopt(
                self.fd,
                libc::IPPROTO_IPV6,
                libc::IPV6_V6ONLY,
                options.v6_only.into(),
            )?;
        }
        if options.reuse_port {
            setsockopt(self.fd, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
        }
        Ok(())
    }

    /// Sets what the caller's correctness rests upon.
    fn require(&self, options: &UdpOptions) -> io::Result<()> {
        if options.local_address {
            // A dual-stack socket reports IPv4 addresses here too, mapped.
            self.by_family(libc::IP_PKTINFO, libc::IPV6_RECVPKTINFO, 1, false)?;
        }
        if options.tos {
            self.by_family(libc::IP_RECVTOS, libc::IPV6_RECVTCLASS, 1, true)?;
        }
        if options.ttl {
            self.by_family(libc::IP_RECVTTL, libc::IPV6_RECVHOPLIMIT, 1, true)?;
        }
        if options.icmp_errors {
            self.by_family(libc::IP_RECVERR, libc::IPV6_RECVERR, 1, true)?;
        }
        self.fragmentation(options.dont_fragment)
    }

    /// Sets one thing under its IPv4 or its IPv6 name; `both` if a dual-stack socket needs the IPv4 one as well.
    fn by_family(
        &self,
        v4_name: c_int,
        v6_name: c_int,
        value: c_int,
        both: bool,
    ) -> io::Result<()> {
        if self.v6 {
            setsockopt(self.fd, libc::IPPROTO_IPV6, v6_name, value)?;
        }
        if !self.v6 || (both && self.dual_stack) {
            setsockopt(self.fd, libc::IPPROTO_IP, v4_name, value)?;
        }
        Ok(())
    }

    /// On: DF is set, the interface's MTU limits. Off: DF is clear and what exceeds the interface's MTU is fragmented.
    ///
    /// IPv4 ignores the path MTU cache, because anybody who can forge an ICMP message could lower it: routers
    /// fragment what has no DF. IPv6 routers do not. So the sender must know the path's MTU (at least 1,280 bytes), or
    /// longer datagrams are lost.
    fn fragmentation(&self, dont_fragment: bool) -> io::Result<()> {
        let (v4, v6) = if dont_fragment {
            (libc::IP_PMTUDISC_PROBE, libc::IPV6_PMTUDISC_PROBE)
        } else {
            (libc::IP_PMTUDISC_OMIT, libc::IPV6_PMTUDISC_WANT)
        };
        if self.v6 {
            setsockopt(self.fd, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, v6)?;
            setsockopt(
                self.fd,
                libc::IPPROTO_IPV6,
                libc::IPV6_DONTFRAG,
                dont_fragment.into(),
            )?;
        }
        if !self.v6 || self.dual_stack {
            setsockopt(self.fd, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, v4)?;
        }
        Ok(())
    }

    /// Asks for what is merely better to have, and returns whether GRO is on.
    fn wish(&self, options: &UdpOptions) -> bool {
        for (size, force, plain) in [
            (options.recv_buffer, libc::SO_RCVBUFFORCE, libc::SO_RCVBUF),
            (options.send_buffer, libc::SO_SNDBUFFORCE, libc::SO_SNDBUF),
        ] {
            let Some(size) = size else { continue };
            let size = c_int::try_from(size).unwrap_or(c_int::MAX);
            let _ = setsockopt(self.fd, libc::SOL_SOCKET, force, size)
                .or_else(|_| setsockopt(self.fd, libc::SOL_SOCKET, plain, size));
        }
        if options.overflow {
            let _ = setsockopt(self.fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1);
        }
        if options.busy_poll_us > 0 {
            let spin = c_int::try_from(options.busy_poll_us).unwrap_or(c_int::MAX);
            let _ = setsockopt(self.fd, libc::SOL_SOCKET, libc::SO_BUSY_POLL, spin);
            let _ = setsockopt(self.fd, libc::SOL_SOCKET, libc::SO_PREFER_BUSY_POLL, 1);
        }
        options.gro && setsockopt(self.fd, libc::SOL_UDP, libc::UDP_GRO, 1).is_ok()
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
