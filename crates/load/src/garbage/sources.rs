//! Where garbage comes from.

use std::net::{IpAddr, Ipv4Addr};

/// The source addresses of a flood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sources {
    /// 0: the kernel chooses.
    loopback: u32,
}

impl Sources {
    /// The sender's own address.
    pub const OWN: Sources = Sources { loopback: 0 };
    /// As many addresses as [`Sources::loopback`] has.
    pub const MAX: u32 = 65_536;

    /// This many addresses of 127.0.0.0/8 in turn, at most [`Sources::MAX`]; each datagram says by ancillary data
    /// which.
    #[must_use]
    pub fn loopback(addresses: u32) -> Sources {
        Sources {
            loopback: addresses.min(Sources::MAX),
        }
    }

    /// Where datagram `n` comes from; `None` leaves it to the kernel.
    #[must_use]
    pub fn at(self, n: u64) -> Option<IpAddr> {
        (self.loopback > 0).then(|| Sources::loopback_at(n, self.loopback))
    }

    /// The `n`th of `addresses` addresses, which repeat.
    pub(super) fn loopback_at(n: u64, addresses: u32) -> IpAddr {
        let index = (n % u64::from(addresses)) as u32;
        // 127.64.0.0 onwards: away from 127.0.0.1, where real clients of a test live.
        IpAddr::V4(Ipv4Addr::from(0x7F40_0000 | index))
    }
}
