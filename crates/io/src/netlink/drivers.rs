//! What drivers can do with XDP, by the generic netlink family `netdev` (Linux 6.3).

use std::io;
use std::os::fd::OwnedFd;

use super::answer::{attributes, u16_at, u32_at, u64_at};
use super::exchange;
use super::message::Request;
use crate::sys;

/// `struct genlmsghdr`.
const HEADER_BYTES: usize = 4;

/// What the driver of an interface can do with XDP at this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct XdpFeatures {
    /// It runs programs itself (native mode), and takes XDP_TX.
    pub native: bool,
    /// Its programs may redirect.
    pub redirect: bool,
    /// Frames can be redirected to it. With some drivers that depends on what is attached.
    pub target: bool,
}

/// A connection for questions about drivers, for the namespace that its thread was in when it was opened.
#[derive(Debug)]
pub struct Drivers {
    socket: OwnedFd,
    family: u16,
    sequence: u32,
}

impl Drivers {
    /// Opens a connection.
    ///
    /// # Errors
    /// ENOENT if the kernel does not report it (before Linux 6.3).
    pub fn open() -> io::Result<Drivers> {
        const GENL_ID_CTRL: u16 = 16;
        const CTRL_CMD_GETFAMILY: u8 = 3;
        const CTRL_ATTR_FAMILY_ID: u16 = 1;
        const CTRL_ATTR_FAMILY_NAME: u16 = 2;
        let mut drivers = Drivers {
            socket: sys::netlink::generic_socket()?,
            family: 0,
            sequence: 0,
        };
        let request = Request::new(GENL_ID_CTRL, 0, &[CTRL_CMD_GETFAMILY, 1, 0, 0])
            .attribute(CTRL_ATTR_FAMILY_NAME, b"netdev\0");
        drivers.family = drivers
            .ask(request, CTRL_ATTR_FAMILY_ID, |value| u16_at(value, 0))?
            .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOENT))?;
        Ok(drivers)
    }

    /// What the driver of an interface can do.
    ///
    /// # Errors
    /// ENODEV.
    pub fn xdp(&mut self, index: u32) -> io::Result<XdpFeatures> {
        const NETDEV_CMD_DEV_GET: u8 = 1;
        const NETDEV_A_DEV_IFINDEX: u16 = 1;
        const NETDEV_A_DEV_XDP_FEATURES: u16 = 3;
        const BASIC: u64 = 1;
        const REDIRECT: u64 = 2;
        const NDO_XMIT: u64 = 4;
        let request = Request::new(self.family, 0, &[NETDEV_CMD_DEV_GET, 1, 0, 0])
            .attribute(NETDEV_A_DEV_IFINDEX, &index.to_ne_bytes());
        let bits = self
            .ask(request, NETDEV_A_DEV_XDP_FEATURES, |value| {
                u64_at(value, 0).or_else(|| u32_at(value, 0).map(u64::from))
            })?
            .unwrap_or(0);
        Ok(XdpFeatures {
            native: bits & BASIC != 0,
            redirect: bits & REDIRECT != 0,
            target: bits & NDO_XMIT != 0,
        })
    }

    /// Sends a request and reads one attribute of its answer.
    fn ask<T>(
        &mut self,
        request: Request,
        attribute: u16,
        read: impl Fn(&[u8]) -> Option<T>,
    ) -> io::Result<Option<T>> {
        self.sequence += 1;
        let mut found = None;
        exchange(&self.socket, request, self.sequence, |message| {
            let mut all = attributes(message.body, HEADER_BYTES);
            let value = all.find(|(kind, _)| *kind == attribute);
            found = value.and_then(|(_, value)| read(value)).or(found.take());
        })?;
        Ok(found)
    }
}
