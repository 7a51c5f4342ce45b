//! Listener sockets that another program has opened. The server checks each before a worker gets it.

use crate::error::OpenSocketError;
use io::{UdpOptions, UdpSocket};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;

/// Checks the open sockets of one listener, and returns one for each worker. `options_of` returns the
/// options with which the builder would open a socket at this address.
pub(super) fn take_group(
    sockets: &[OwnedFd],
    workers: usize,
    options_of: &impl Fn(SocketAddr) -> UdpOptions,
) -> Result<Vec<UdpSocket>, OpenSocketError> {
    if sockets.len() != workers {
        let sockets = sockets.len();
        return Err(OpenSocketError::Count { sockets, workers });
    }
    let group: Vec<UdpSocket> = sockets
        .iter()
        .map(|socket| take(socket, options_of))
        .collect::<Result<_, _>>()?;
    check_group(&group)?;
    Ok(group)
}

/// Duplicates a descriptor, and sets the options of the new socket. A socket that serves both IPv6 and
/// IPv4 is an error.
fn take(
    socket: &OwnedFd,
    options_of: &impl Fn(SocketAddr) -> UdpOptions,
) -> Result<UdpSocket, OpenSocketError> {
    // The builder can be cloned, so it keeps the original until it is dropped.
    let copy = socket.try_clone().map_err(OpenSocketError::System)?;
    let copy = std::net::UdpSocket::from(copy);
    let address = copy.local_addr().map_err(OpenSocketError::System)?;
    let socket = UdpSocket::from_bound(copy.into(), &options_of(address))
        .map_err(OpenSocketError::System)?;
    if socket.serves_both_families() {
        return Err(OpenSocketError::BothFamilies(socket.local_addr()));
    }
    Ok(socket)
}

/// Checks that the sockets of a group are distinct and have the same address. If there are several, each must have
/// SO_REUSEPORT.
fn check_group(group: &[UdpSocket]) -> Result<(), OpenSocketError> {
    let mut cookies = Vec::with_capacity(group.len());
    for socket in group {
        let (first, address) = (group[0].local_addr(), socket.local_addr());
        if address != first {
            return Err(OpenSocketError::Addresses(first, address));
        }
        let cookie = socket.cookie().map_err(OpenSocketError::System)?;
        if cookies.contains(&cookie) {
            return Err(OpenSocketError::Duplicate(address));
        }
        cookies.push(cookie);
        if group.len() > 1 && !socket.reuse_port() {
            return Err(OpenSocketError::NoReusePort(address));
        }
    }
    Ok(())
}
