//! The few device features that matter here, by the interface's name in the calling
//! thread's namespace.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;

use crate::sys::ethtool::{get_flags, set_value};

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

/// Whether the device removes the VLAN tag of a frame before XDP. XDP then cannot distinguish a frame of a VLAN from an
/// untagged one.
///
/// # Errors
/// As [`set_gro`]; it needs no privileges.
pub fn strips_vlan_tags(interface: &str) -> io::Result<bool> {
    const ETH_FLAG_RXVLAN: u32 = 1 << 8;
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    Ok(get_flags(socket.as_fd(), interface)? & ETH_FLAG_RXVLAN != 0)
}

fn set(interface: &str, command: u32, on: bool) -> io::Result<()> {
    // Any socket of the namespace will do.
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    set_value(socket.as_fd(), interface, command, on)
}
