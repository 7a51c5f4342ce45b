//! Which way a packet would go.

use std::io;
use std::net::IpAddr;

use super::answer::{Message, address, attributes, u32_at};
use super::message::Request;
use super::{Netlink, family, octets};

pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
/// `struct rtmsg`.
const FIXED: usize = 12;

/// The way of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Route {
    /// To whom it leads.
    pub to: RouteTo,
    /// The interface it leaves by.
    pub index: u32,
    /// The router that it goes through; `None` on link. It may be of the other family (RFC 8950).
    pub gateway: Option<IpAddr>,
    /// The largest packet for this way, if it differs from the interface's, in bytes.
    pub mtu: Option<u32>,
    /// The packet would be wrapped into another on the way.
    pub wrapped: bool,
}

/// To whom a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteTo {
    /// One other host.
    Host,
    /// This host.
    Local,
    /// Nobody, or many.
    Other,
}

impl Netlink {
    /// The way of a packet from `from`, an address of this host, to `to`, as the kernel would send it now.
    ///
    /// # Errors
    /// ENETUNREACH and the like if there is none, EINVAL if `from` is not an address of this host.
    pub fn route(&mut self, from: IpAddr, to: IpAddr) -> io::Result<Route> {
        const RTA_DST: u16 = 1;
        const RTA_SRC: u16 = 2;
        let (from, to) = (from.to_canonical(), to.to_canonical());
        let bits = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
        let fixed = [&[family(to), bits(to), bits(from), 0][..], &[0; 8]].concat();
        let request = Request::new(RTM_GETROUTE, 0, &fixed)
            .attribute(RTA_DST, &octets(to))
            .attribute(RTA_SRC, &octets(from));
        let mut found = None;
        self.ask(request, |message| found = found.or_else(|| route(message)))?;
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))
    }
}

fn route(message: &Message<'_>) -> Option<Route> {
    const RTA_OIF: u16 = 4;
    const RTA_GATEWAY: u16 = 5;
    const RTA_METRICS: u16 = 8;
    const RTA_VIA: u16 = 18;
    const RTA_ENCAP_TYPE: u16 = 21;
    const RTAX_MTU: u16 = 2;
    const RTN_UNICAST: u8 = 1;
    const RTN_LOCAL: u8 = 2;
    if message.kind != RTM_NEWROUTE {
        return None;
    }
    let mut route = Route {
        to: match *message.body.get(7)? {
            RTN_UNICAST => RouteTo::Host,
            RTN_LOCAL => RouteTo::Local,
            _ => RouteTo::Other,
        },
        index: 0,
        gateway: None,
        mtu: None,
        wrapped: false,
    };
    for (kind, value) in attributes(message.body, FIXED) {
        match kind {
            RTA_OIF => route.index = u32_at(value, 0)?,
            RTA_GATEWAY => route.gateway = address(value),
            // The address stands behind its family.
            RTA_VIA => route.gateway = address(value.get(2..)?),
            RTA_METRICS => {
                let mut metrics = attributes(value, 0);
                let mtu = metrics.find(|(kind, _)| *kind == RTAX_MTU);
                route.mtu = mtu
                    .and_then(|(_, value)| u32_at(value, 0))
                    .filter(|mtu| *mtu > 0);
            }
            RTA_ENCAP_TYPE => route.wrapped = true,
            _ => {}
        }
    }
    Some(route)
}
