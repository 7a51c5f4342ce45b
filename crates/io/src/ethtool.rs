//! The two device features that a measurement has to set, by the interface's name in the calling
//! thread's namespace.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use crate::sys::ethtool::set_value;

/// Turns generic receive offload on or off. On a veth this is also what decides whether it polls
/// (NAPI), and so whether its other end can send XDP frames to it.
///
/// # Errors
/// `NotFound`-like errors for an unknown interface, `PermissionDenied` without CAP_NET_ADMIN.
pub fn set_gro(interface: &str, on: bool) -> io::Result<()> {
    const ETHTOOL_SGRO: u32 = 0x2c;
    set(interface, ETHTOOL_SGRO, on)
}

/// Turns transmit checksum offload on or off. Off, what sockets send over a veth carries whole
/// checksums, as on a wire.
///
/// # Errors
/// As [`set_gro`].
pub fn set_transmit_checksum(interface: &str, on: bool) -> io::Result<()> {
    const ETHTOOL_STXCSUM: u32 = 0x17;
    set(interface, ETHTOOL_STXCSUM, on)
}

fn set(interface: &str, command: u32, on: bool) -> io::Result<()> {
    // Any socket of the namespace will do.
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    set_value(socket.as_fd(), interface, command, on)
}
