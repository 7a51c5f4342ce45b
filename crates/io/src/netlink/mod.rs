//! Interfaces, addresses, neighbours and routes of a network namespace, by rtnetlink.
//!
//! Enough to build a measured network of veth pairs, and to find the route of a packet. Every call waits for the
//! kernel's response, which comes at once; [`NetworkChanges`] reports later changes.

mod answer;
mod changes;
mod drivers;
mod filters;
mod interfaces;
mod ipsec;
mod message;
mod neighbours;
mod routes;

use std::ffi::CString;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::NetNs;
use crate::sys;
use answer::{Message, messages};
use message::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE, Request};

pub use changes::{NetworkChange, NetworkChanges};
pub use drivers::{Drivers, XdpFeatures};
pub use filters::Filter;
pub use interfaces::NetworkInterface;
pub use ipsec::Ipsec;
pub use neighbours::{Neighbour, NeighbourState};
pub use routes::{Route, RoutePrefix, RouteTo};

/// A link-layer (Ethernet) address.
pub type Mac = [u8; 6];

/// Number of the interface called `name` in the calling thread's namespace.
///
/// # Errors
/// ENODEV if there is none.
pub fn interface_index(name: &str) -> io::Result<u32> {
    let name = CString::new(name).map_err(|_| io::ErrorKind::InvalidInput)?;
    sys::netlink::if_nametoindex(&name)
}

/// One end of a veth pair.
#[derive(Clone, Copy, Debug)]
pub struct VethEnd<'a> {
    /// Name of the interface, at most 15 bytes.
    pub name: &'a str,
    /// Its link-layer address.
    pub mac: Mac,
    /// The namespace it appears in.
    pub namespace: &'a NetNs,
}

/// A connection to the kernel's network configuration, for the namespace that its thread was in
/// when it was opened.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
}

impl Netlink {
    /// Opens a connection.
    ///
    /// # Errors
    /// What `socket` returns.
    pub fn open() -> io::Result<Netlink> {
        Ok(Netlink {
            socket: sys::netlink::route_socket()?,
            sequence: 0,
        })
    }

    /// Makes a veth pair: each interface receives what the other one sends. Both are down. If one is
    /// deleted, so is the other one.
    ///
    /// # Errors
    /// `AlreadyExists` for a taken name, `PermissionDenied` without CAP_NET_ADMIN.
    pub fn create_veth(&mut self, one: &VethEnd<'_>, other: &VethEnd<'_>) -> io::Result<()> {
        const IFLA_ADDRESS: u16 = 1;
        const IFLA_NET_NS_FD: u16 = 28;
        const VETH_INFO_PEER: u16 = 1;
        let name = |end: &VethEnd<'_>| [end.name.as_bytes(), &[0]].concat();
        let namespace = |end: &VethEnd<'_>| end.namespace.as_fd().as_raw_fd().to_ne_bytes();
        let request = new_link(one.name)
            .attribute(IFLA_ADDRESS, &one.mac)
            .attribute(IFLA_NET_NS_FD, &namespace(one))
            .nested(IFLA_LINKINFO, |info| {
                info.attribute(IFLA_INFO_KIND, b"veth")
                    .nested(IFLA_INFO_DATA, &[], |data| {
                        data.nested(VETH_INFO_PEER, &interface_message(0, false), |peer| {
                            peer.attribute(IFLA_IFNAME, &name(other))
                                .attribute(IFLA_ADDRESS, &other.mac)
                                .attribute(IFLA_NET_NS_FD, &namespace(other));
                        });
                    });
            });
        self.transact(request)
    }

    /// Brings an interface up.
    ///
    /// # Errors
    /// ENODEV if there is none of this number.
    pub fn set_up(&mut self, index: u32) -> io::Result<()> {
        const RTM_SETLINK: u16 = 19;
        self.transact(Request::new(
            RTM_SETLINK,
            0,
            &interface_message(index, true),
        ))
    }

    /// Gives an interface an address and the subnet of `prefix` bits around it.
    ///
    /// # Errors
    /// `AlreadyExists` if it has it.
    pub fn add_address(&mut self, index: u32, address: IpAddr, prefix: u8) -> io::Result<()> {
        const RTM_NEWADDR: u16 = 20;
        const IFA_ADDRESS: u16 = 1;
        const IFA_LOCAL: u16 = 2;
        let fixed = [&[family(address), prefix, 0, 0][..], &index.to_ne_bytes()].concat();
        let bytes = octets(address);
        let request = Request::new(RTM_NEWADDR, NLM_F_CREATE | NLM_F_EXCL, &fixed)
            .attribute(IFA_LOCAL, &bytes)
            .attribute(IFA_ADDRESS, &bytes);
        self.transact(request)
    }

    /// Sets the link-layer address of a neighbour permanently, so that the kernel never uses ARP for it.
    ///
    /// # Errors
    /// ENODEV if there is no such interface.
    pub fn set_neighbour(&mut self, index: u32, address: IpAddr, mac: Mac) -> io::Result<()> {
        const NDA_DST: u16 = 1;
        const NDA_LLADDR: u16 = 2;
        const NUD_PERMANENT: u16 = 0x80;
        let fixed = [
            &[family(address), 0, 0, 0][..],
            &index.to_ne_bytes(),
            &NUD_PERMANENT.to_ne_bytes(),
            &[0, 0],
        ]
        .concat();
        let request = Request::new(
            neighbours::RTM_NEWNEIGH,
            NLM_F_CREATE | NLM_F_REPLACE,
            &fixed,
        )
        .attribute(NDA_DST, &octets(address))
        .attribute(NDA_LLADDR, &mac);
        self.transact(request)
    }

    /// Sends everything that no other route covers to `gateway`.
    ///
    /// # Errors
    /// `AlreadyExists` if there is a default route; ENETUNREACH if no interface's subnet has the
    /// gateway.
    pub fn add_default_route(&mut self, gateway: IpAddr) -> io::Result<()> {
        let everything = match gateway {
            IpAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
            IpAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
        };
        self.add_route(everything, 0, &[gateway])
    }

    /// Adds a route for the addresses that begin with the first `length` bits of `network`. If there are several gateways,
    /// the kernel's hash chooses one for each flow.
    ///
    /// # Errors
    /// As [`Netlink::add_default_route`].
    pub fn add_route(
        &mut self,
        network: IpAddr,
        length: u8,
        gateways: &[IpAddr],
    ) -> io::Result<()> {
        self.transact(routes::new_route(network, length, gateways))
    }

    /// Deletes an interface.
    ///
    /// # Errors
    /// ENODEV if there is none of this number.
    pub fn delete_link(&mut self, index: u32) -> io::Result<()> {
        self.transact(Request::new(
            interfaces::RTM_DELLINK,
            0,
            &interface_message(index, false),
        ))
    }

    /// Makes an interface of a kind without settings, such as `dummy`, `bridge` or `bond`. It is down.
    ///
    /// # Errors
    /// EOPNOTSUPP for a kind that the kernel lacks, `AlreadyExists` for a taken name.
    pub fn create_link(&mut self, name: &str, kind: &str) -> io::Result<()> {
        let request = new_link(name).nested(IFLA_LINKINFO, |info| {
            info.attribute(IFLA_INFO_KIND, kind.as_bytes());
        });
        self.transact(request)
    }

    /// Makes an interface for the frames of another that have the VLAN tag `vlan`. It is down.
    ///
    /// # Errors
    /// As [`Netlink::create_link`].
    pub fn create_vlan(&mut self, name: &str, below: u32, vlan: u16) -> io::Result<()> {
        const IFLA_LINK: u16 = 5;
        const IFLA_VLAN_ID: u16 = 1;
        let request = new_link(name)
            .attribute(IFLA_LINK, &below.to_ne_bytes())
            .nested(IFLA_LINKINFO, |info| {
                info.attribute(IFLA_INFO_KIND, b"vlan")
                    .nested(IFLA_INFO_DATA, &[], |data| {
                        data.attribute(IFLA_VLAN_ID, &vlan.to_ne_bytes());
                    });
            });
        self.transact(request)
    }

    /// Forgets a neighbour.
    ///
    /// # Errors
    /// ENOENT if there is none.
    pub fn delete_neighbour(&mut self, index: u32, address: IpAddr) -> io::Result<()> {
        const NDA_DST: u16 = 1;
        let fixed = [
            &[family(address), 0, 0, 0][..],
            &index.to_ne_bytes(),
            &[0; 4],
        ]
        .concat();
        let request = Request::new(neighbours::RTM_DELNEIGH, 0, &fixed);
        self.transact(request.attribute(NDA_DST, &octets(address)))
    }

    fn transact(&mut self, request: Request) -> io::Result<()> {
        self.ask(request, |_| ())
    }

    /// Sends a request, and passes the messages of its answer to `each`.
    fn ask(&mut self, request: Request, each: impl FnMut(&Message<'_>)) -> io::Result<()> {
        self.sequence += 1;
        exchange(&self.socket, request, self.sequence, each)
    }
}

/// Sends a request, and passes the messages of its answer to `each` until it ends.
fn exchange(
    socket: &OwnedFd,
    request: Request,
    sequence: u32,
    mut each: impl FnMut(&Message<'_>),
) -> io::Result<()> {
    /// The kernel fills at most 32 KiB at a time.
    const BUFFER_BYTES: usize = 64 << 10;
    sys::netlink::send(socket.as_fd(), &request.finish(sequence))?;
    let mut answer = vec![0; BUFFER_BYTES];
    loop {
        let length = sys::netlink::recv(socket.as_fd(), &mut answer)?;
        for message in messages(&answer[..length]) {
            if message.sequence != sequence {
                continue;
            }
            match message.result() {
                Some(result) => return result,
                None => each(&message),
            }
        }
    }
}

const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_INFO_KIND: u16 = 1;
const IFLA_INFO_DATA: u16 = 2;

/// A request for a new interface.
fn new_link(name: &str) -> Request {
    Request::new(
        interfaces::RTM_NEWLINK,
        NLM_F_CREATE | NLM_F_EXCL,
        &interface_message(0, false),
    )
    .attribute(IFLA_IFNAME, &[name.as_bytes(), &[0]].concat())
}

/// `struct ifinfomsg`, asking for the interface to be up or for nothing.
fn interface_message(index: u32, up: bool) -> Vec<u8> {
    let flags = if up { libc::IFF_UP as u32 } else { 0 };
    [
        [0; 4],
        index.to_ne_bytes(),
        flags.to_ne_bytes(),
        flags.to_ne_bytes(),
    ]
    .concat()
}

fn family(address: IpAddr) -> u8 {
    // Both constants are below 256.
    match address {
        IpAddr::V4(_) => libc::AF_INET as u8,
        IpAddr::V6(_) => libc::AF_INET6 as u8,
    }
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    }
}

#[cfg(test)]
mod tests_needs_root {
    use super::*;
    use crate::{ethtool, interfaces, sysfs};
    use std::net::UdpSocket;
    use std::time::Duration;

    fn rooted<T>(result: io::Result<T>) -> T {
        result.unwrap_or_else(|error| panic!("this test needs root: {error}"))
    }

    /// Runs in a separate thread, because it changes namespaces.
    fn in_thread(test: impl FnOnce() + Send + 'static) {
        std::thread::spawn(test).join().unwrap();
    }

    #[test]
    fn two_namespaces_talk_over_a_veth_pair_and_forget_it_together() {
        in_thread(|| {
            let left = rooted(NetNs::unshare());
            let mut netlink = Netlink::open().unwrap();
            let right = rooted(NetNs::unshare());
            let ends = [("veth-l", &left, 1), ("veth-r", &right, 2)];
            let end = |(name, namespace, last): (&'static str, _, u8)| VethEnd {
                name,
                mac: [2, 0, 0, 0, 0, last],
                namespace,
            };
            netlink.create_veth(&end(ends[0]), &end(ends[1])).unwrap();
            for (name, namespace, last) in ends {
                namespace.enter().unwrap();
                let mut netlink = Netlink::open().unwrap();
                let index = interface_index(name).unwrap();
                netlink.set_up(index).unwrap();
                netlink
                    .add_address(index, [192, 0, 2, last].into(), 24)
                    .unwrap();
                netlink
                    .set_neighbour(
                        index,
                        [192, 0, 2, 3 - last].into(),
                        [2, 0, 0, 0, 0, 3 - last],
                    )
                    .unwrap();
                netlink
                    .add_default_route([192, 0, 2, 3 - last].into())
                    .unwrap();
                ethtool::set_gro(name, true).unwrap();
                ethtool::set_transmit_checksum(name, false).unwrap();
                assert!(
                    interfaces::addresses()
                        .unwrap()
                        .iter()
                        .any(|a| a.name == name)
                );
            }
            sysfs::write(&right, &["/sys/class/net/veth-r/threaded".into()], "1").unwrap();
            let receiver = UdpSocket::bind("192.0.2.2:7000").unwrap();
            receiver
                .set_read_timeout(Some(Duration::from_millis(20)))
                .unwrap();
            left.enter().unwrap();
            let sender = UdpSocket::bind("192.0.2.1:0").unwrap();
            // A fresh interface drops what is sent before the kernel's work queue has noticed its
            // carrier.
            let arrived = (0..100).any(|_| {
                sender.send_to(b"hello", "192.0.2.2:7000").unwrap();
                receiver.recv(&mut [0; 16]).is_ok_and(|len| len == 5)
            });
            assert!(arrived);
        });
    }

    #[test]
    fn the_kernels_refusals_come_back_as_errors() {
        in_thread(|| {
            rooted(NetNs::unshare());
            let mut netlink = Netlink::open().unwrap();
            assert_eq!(
                netlink.set_up(4000).unwrap_err().raw_os_error(),
                Some(libc::ENODEV)
            );
            assert!(netlink.add_default_route([192, 0, 2, 1].into()).is_err());
            assert!(interface_index("nosuch").is_err());
            assert!(ethtool::set_gro("nosuch", true).is_err());
            assert!(ethtool::set_gro("a name that is too long", true).is_err());
        });
    }
}
