//! The route that a packet would take.

use std::io;
use std::net::IpAddr;

use super::answer::{Message, address, attributes, u32_at};
use super::message::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, Request};
use super::{Netlink, family, octets};

pub(super) const RTM_NEWROUTE: u16 = 24;
pub(super) const RTM_DELROUTE: u16 = 25;
const RTM_GETROUTE: u16 = 26;
const RTM_NEWRULE: u16 = 32;
const RTM_GETRULE: u16 = 34;
/// `struct rtmsg`, and `struct fib_rule_hdr`.
const HEADER_BYTES: usize = 12;
/// Flags of `struct rtmsg`: a route for one destination, made of another; the entry of the table is asked for, not what
/// was made of it.
const RTM_F_CLONED: u32 = 0x200;
const RTM_F_FIB_MATCH: u32 = 0x2000;
const RTA_DST: u16 = 1;
const RTA_SRC: u16 = 2;
const RTA_GATEWAY: u16 = 5;
const RTA_MULTIPATH: u16 = 9;
const RTA_VIA: u16 = 18;
const RTN_UNICAST: u8 = 1;

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
    /// The route encapsulates the packet in another one (RTA_ENCAP_TYPE).
    pub wrapped: bool,
}

/// To whom a route leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RouteTo {
    /// One other host.
    Host,
    /// This host.
    Local,
    /// None, or several.
    Other,
}

/// Destinations for which the routing tables have an entry of their own: a route, the condition of a rule, or an
/// exception.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoutePrefix {
    /// The lowest of the addresses.
    pub network: IpAddr,
    /// How many leading bits they have in common.
    pub length: u8,
    /// The prefix does not lead to one gateway: it is on link, has several next hops, or is not unicast and still
    /// delivers.
    pub separates: bool,
}

impl Netlink {
    /// Every prefix that can make a difference for a route: of all tables, rules and exceptions (path MTUs, ICMP
    /// redirects), both families. Empty if there are more than `most`.
    ///
    /// # Errors
    /// What the kernel says; it needs no privileges.
    pub fn route_prefixes(&mut self, most: usize) -> io::Result<Vec<RoutePrefix>> {
        let mut found = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            // Both are below 256.
            let mut fixed = [0; HEADER_BYTES];
            fixed[0] = family as u8;
            let mut add = |prefix: Option<RoutePrefix>| {
                // One more than `most` is kept, so that it is known that there were more.
                found.extend(prefix.filter(|_| found.len() <= most));
            };
            let routes = Request::new(RTM_GETROUTE, NLM_F_DUMP, &fixed);
            self.ask(routes, |message| add(route_prefix(message)))?;
            let rules = Request::new(RTM_GETRULE, NLM_F_DUMP, &fixed);
            match self.ask(rules, |message| add(rule_prefix(message))) {
                // A kernel without policy routing.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {}
                result => result?,
            }
        }
        if found.len() > most {
            found.clear();
        }
        Ok(found)
    }

    /// The entry of the routing tables for packets from `from` to `to`, without the properties of this one destination.
    /// It holds for all destinations that the same prefixes contain.
    ///
    /// # Errors
    /// As [`Netlink::route`].
    pub fn table_route(&mut self, from: IpAddr, to: IpAddr) -> io::Result<Route> {
        self.route_with(RTM_F_FIB_MATCH, from, to)
    }

    /// The way of a packet from `from`, an address of this host, to `to`, as the kernel would send it now.
    ///
    /// # Errors
    /// ENETUNREACH and the like if there is none, EINVAL if `from` is not an address of this host.
    pub fn route(&mut self, from: IpAddr, to: IpAddr) -> io::Result<Route> {
        self.route_with(0, from, to)
    }

    fn route_with(&mut self, flags: u32, from: IpAddr, to: IpAddr) -> io::Result<Route> {
        let (from, to) = (from.to_canonical(), to.to_canonical());
        let bits = |ip: IpAddr| if ip.is_ipv4() { 32 } else { 128 };
        let head = [family(to), bits(to), bits(from), 0, 0, 0, 0, 0];
        let fixed = [&head[..], &flags.to_ne_bytes()].concat();
        let request = Request::new(RTM_GETROUTE, 0, &fixed)
            .attribute(RTA_DST, &octets(to))
            .attribute(RTA_SRC, &octets(from));
        let mut found = None;
        self.ask(request, |message| found = found.or_else(|| route(message)))?;
        found.ok_or_else(|| io::Error::from_raw_os_error(libc::ENETUNREACH))
    }
}

/// A request for a new route of the main table.
pub(super) fn new_route(network: IpAddr, length: u8, gateways: &[IpAddr]) -> Request {
    const RT_TABLE_MAIN: u8 = 254;
    const RTPROT_STATIC: u8 = 4;
    const RT_SCOPE_UNIVERSE: u8 = 0;
    let kind = [RT_TABLE_MAIN, RTPROT_STATIC, RT_SCOPE_UNIVERSE, RTN_UNICAST];
    let fixed = [&[family(network), length, 0, 0][..], &kind, &[0; 4]].concat();
    let request = Request::new(RTM_NEWROUTE, NLM_F_CREATE | NLM_F_EXCL, &fixed)
        .attribute(RTA_DST, &octets(network));
    if let [gateway] = gateways {
        return request.attribute(RTA_GATEWAY, &octets(*gateway));
    }
    // `struct rtnexthop` with its attributes, one after the other.
    let hop = |gateway: &IpAddr| {
        let address = octets(*gateway);
        // At most 8 and 4 and 16.
        let attribute = [4 + address.len() as u16, RTA_GATEWAY].map(u16::to_ne_bytes);
        let length = 8 + 4 + address.len() as u16;
        [
            &length.to_ne_bytes()[..],
            &[0; 6],
            &attribute.concat(),
            &address,
        ]
        .concat()
    };
    let hops: Vec<u8> = gateways.iter().flat_map(hop).collect();
    request.attribute(RTA_MULTIPATH, &hops)
}

/// The prefix of a route or of an exception.
fn route_prefix(message: &Message<'_>) -> Option<RoutePrefix> {
    /// RTN_BLACKHOLE, RTN_UNREACHABLE, RTN_PROHIBIT, RTN_THROW: no destination gets anywhere by it.
    const NOWHERE: std::ops::RangeInclusive<u8> = 6..=9;
    if message.kind != RTM_NEWROUTE {
        return None;
    }
    let is_exception = u32_at(message.body, 8)? & RTM_F_CLONED != 0;
    let kind = *message.body.get(7)?;
    let has = |wanted: u16| attributes(message.body, HEADER_BYTES).any(|(kind, _)| kind == wanted);
    let one_gateway = (has(RTA_GATEWAY) || has(RTA_VIA)) && !has(RTA_MULTIPATH);
    let together = NOWHERE.contains(&kind) || kind == RTN_UNICAST && one_gateway;
    prefix(message, RTA_DST, is_exception || !together)
}

/// The prefix of a rule's condition.
fn rule_prefix(message: &Message<'_>) -> Option<RoutePrefix> {
    const FRA_DST: u16 = 1;
    let is_rule = message.kind == RTM_NEWRULE && *message.body.get(1)? > 0;
    is_rule.then(|| prefix(message, FRA_DST, false))?
}

/// The prefix of a message. Its address is in an attribute, which is absent if the length is 0.
fn prefix(message: &Message<'_>, destination: u16, separates: bool) -> Option<RoutePrefix> {
    let (family, length) = (*message.body.first()?, *message.body.get(1)?);
    let mut found = attributes(message.body, HEADER_BYTES).filter(|(kind, _)| *kind == destination);
    let network = match found.next() {
        Some((_, value)) => address(value)?,
        None if length > 0 => return None,
        None if i32::from(family) == libc::AF_INET => std::net::Ipv4Addr::UNSPECIFIED.into(),
        None => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    Some(RoutePrefix {
        network,
        length,
        separates,
    })
}

fn route(message: &Message<'_>) -> Option<Route> {
    const RTA_OIF: u16 = 4;
    const RTA_METRICS: u16 = 8;
    const RTA_ENCAP_TYPE: u16 = 21;
    const RTAX_MTU: u16 = 2;
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
    for (kind, value) in attributes(message.body, HEADER_BYTES) {
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
            // Only an entry of a table has several: which one is taken depends on the destination.
            RTA_MULTIPATH => route.to = RouteTo::Other,
            RTA_ENCAP_TYPE => route.wrapped = true,
            _ => {}
        }
    }
    Some(route)
}

#[cfg(test)]
mod tests_needs_root {
    use super::super::{VethEnd, interface_index};
    use super::*;
    use crate::NetNs;

    /// Runs in a namespace whose interface has 192.0.2.1/24 and 2001:db8::1/64.
    fn wired(test: impl FnOnce(Netlink) + Send + 'static) {
        let body = move || {
            let here =
                NetNs::unshare().unwrap_or_else(|error| panic!("this test needs root: {error}"));
            let mut netlink = Netlink::open().unwrap();
            let end = |name, last| VethEnd {
                name,
                mac: [2, 0, 0, 0, 0, last],
                namespace: &here,
            };
            netlink
                .create_veth(&end("near", 1), &end("far", 2))
                .unwrap();
            for name in ["lo", "near", "far"] {
                netlink.set_up(interface_index(name).unwrap()).unwrap();
            }
            let near = interface_index("near").unwrap();
            for (address, length) in [("192.0.2.1", 24), ("2001:db8::1", 64)] {
                let address = address.parse().unwrap();
                netlink.add_address(near, address, length).unwrap();
            }
            test(netlink);
        };
        std::thread::spawn(body).join().unwrap();
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn prefixes_say_whether_they_lead_to_one_gateway() {
        wired(|mut netlink| {
            let (one, other) = (ip("192.0.2.2"), ip("192.0.2.3"));
            netlink.add_default_route(one).unwrap();
            netlink
                .add_route(ip("198.51.100.0"), 24, &[one, other])
                .unwrap();
            netlink
                .add_route(ip("2001:db8:1::"), 48, &[ip("2001:db8::2")])
                .unwrap();
            let found = netlink.route_prefixes(1000).unwrap();
            for (network, length, separates) in [
                ("0.0.0.0", 0, false),
                ("192.0.2.0", 24, true),
                ("192.0.2.1", 32, true),
                ("198.51.100.0", 24, true),
                ("2001:db8::", 64, true),
                ("2001:db8:1::", 48, false),
            ] {
                let of_this = found
                    .iter()
                    .filter(|one| one.network == ip(network) && one.length == length);
                let all: Vec<bool> = of_this.map(|one| one.separates).collect();
                assert!(
                    !all.is_empty() && all.iter().all(|one| *one == separates),
                    "{network}: {all:?}"
                );
            }
            assert!(netlink.route_prefixes(3).unwrap().is_empty(), "too many");
        });
    }

    #[test]
    fn the_table_has_one_answer_for_all_and_none_where_a_hash_decides() {
        wired(|mut netlink| {
            let (one, other) = (ip("192.0.2.2"), ip("192.0.2.3"));
            netlink.add_default_route(one).unwrap();
            netlink
                .add_route(ip("198.51.100.0"), 24, &[one, other])
                .unwrap();
            let here = ip("192.0.2.1");
            let route = netlink.table_route(here, ip("203.0.113.7")).unwrap();
            assert_eq!((route.to, route.gateway), (RouteTo::Host, Some(one)));
            let route = netlink.table_route(here, ip("198.51.100.7")).unwrap();
            assert_eq!((route.to, route.gateway), (RouteTo::Other, None));
            let route = netlink.route(here, ip("198.51.100.7")).unwrap();
            assert!([Some(one), Some(other)].contains(&route.gateway));
        });
    }
}
