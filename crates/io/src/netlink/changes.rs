//! What changes in the network's configuration, as it happens.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use super::answer::messages;
use super::interfaces::{RTM_DELLINK, RTM_NEWLINK};
use super::neighbours::{Neighbour, neighbour};
use super::routes::{RTM_DELROUTE, RTM_NEWROUTE};
use crate::sys;

const RTM_NEWADDR: u16 = 20;
const RTM_DELADDR: u16 = 21;
const RTM_NEWRULE: u16 = 32;
const RTM_DELRULE: u16 = 33;

/// Room for the longest datagram that the kernel makes.
const MAX_DATAGRAM_BYTES: usize = 64 << 10;

/// Something has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum NetworkChange {
    /// An interface: new, gone, up, down, or different.
    Interface,
    /// An address, a route or a rule.
    Route,
    /// A neighbour has this state now.
    Neighbour(Neighbour),
    /// The queue of changes has overflowed: query everything again.
    Overflow,
}

/// Reports changes in the network namespace that its thread was in when it was opened. Add it to a
/// [`Poller`](crate::Poller).
#[derive(Debug)]
pub struct NetworkChanges {
    socket: OwnedFd,
    buffer: Vec<u8>,
}

impl NetworkChanges {
    /// Starts to listen to everything.
    ///
    /// # Errors
    /// What `socket` and `bind` return.
    pub fn open() -> io::Result<NetworkChanges> {
        /// RTMGRP_: interfaces, neighbours, addresses, routes and rules of both families.
        const GROUPS: u32 = 0x1 | 0x4 | 0x10 | 0x40 | 0x80 | 0x100 | 0x400 | 0x4_0000;
        NetworkChanges::open_groups(GROUPS)
    }

    /// Starts to listen to what changes the addresses of this host: those of its interfaces, and whether these are up.
    /// Routes and neighbours, which change far more often, are not reported.
    ///
    /// # Errors
    /// As [`NetworkChanges::open`].
    pub fn open_addresses() -> io::Result<NetworkChanges> {
        /// RTMGRP_: interfaces, and addresses of both families.
        const GROUPS: u32 = 0x1 | 0x10 | 0x100;
        NetworkChanges::open_groups(GROUPS)
    }

    fn open_groups(groups: u32) -> io::Result<NetworkChanges> {
        let socket = sys::netlink::event_socket()?;
        sys::netlink::subscribe(socket.as_fd(), groups)?;
        // Many changes of neighbours must not overflow the queue. Without CAP_NET_ADMIN, this fails and the default
        // applies.
        let _ = sys::socket::setsockopt(
            socket.as_fd(),
            libc::SOL_SOCKET,
            libc::SO_RCVBUFFORCE,
            4 << 20,
        );
        Ok(NetworkChanges {
            socket,
            buffer: vec![0; MAX_DATAGRAM_BYTES],
        })
    }

    /// Calls `each` for every change that the kernel has queued. Does not wait.
    ///
    /// # Errors
    /// What `recv` returns.
    pub fn read(&mut self, mut each: impl FnMut(NetworkChange)) -> io::Result<()> {
        loop {
            match sys::netlink::recv(self.socket.as_fd(), &mut self.buffer) {
                Ok(length) => {
                    messages(&self.buffer[..length])
                        .filter_map(|message| match message.kind {
                            RTM_NEWLINK | RTM_DELLINK => Some(NetworkChange::Interface),
                            RTM_NEWADDR | RTM_DELADDR | RTM_NEWROUTE | RTM_DELROUTE
                            | RTM_NEWRULE | RTM_DELRULE => Some(NetworkChange::Route),
                            _ => neighbour(&message).map(NetworkChange::Neighbour),
                        })
                        .for_each(&mut each);
                }
                Err(error) => match error.raw_os_error() {
                    Some(libc::ENOBUFS) => each(NetworkChange::Overflow),
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) => return Ok(()),
                    _ => return Err(error),
                },
            }
        }
    }
}

impl AsFd for NetworkChanges {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
