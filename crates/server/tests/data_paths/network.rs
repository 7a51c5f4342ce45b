//! The network: a client, a server that does not forward, a gateway that does, and a peer behind it, a namespace each.
//!
//! ```text
//!   client  c 10.7.1.2 ---- s 10.7.1.1  server  r 10.7.2.1 ---- g 10.7.2.9  gateway  h 10.7.3.9 ---- p 10.7.3.2  peer
//!             fd07:1::2       fd07:1::1           fd07:2::1       fd07:2::9            fd07:3::9       fd07:3::2
//! ```
//! Neighbours are found by ARP and neighbour discovery, as they are outside of tests.

use std::io;
use std::net::{IpAddr, UdpSocket};

use ::io::NetNs;
use ::io::netlink::{Netlink, VethEnd, interface_index};

use crate::common::eventually;

const LOOPBACK: u32 = 1;

/// One end of a wire.
struct End {
    device: &'static str,
    mac: [u8; 6],
    v4: &'static str,
    v6: &'static str,
}

const fn end(device: &'static str, last: u8, v4: &'static str, v6: &'static str) -> End {
    End {
        device,
        mac: [2, 0, 7, 0, 0, last],
        v4,
        v6,
    }
}

const CLIENT: End = end("c", 1, "10.7.1.2", "fd07:1::2");
const SERVER: End = end("s", 2, "10.7.1.1", "fd07:1::1");
const RELAY: End = end("r", 3, "10.7.2.1", "fd07:2::1");
const NEAR: End = end("g", 4, "10.7.2.9", "fd07:2::9");
const FAR: End = end("h", 5, "10.7.3.9", "fd07:3::9");
const PEER: End = end("p", 6, "10.7.3.2", "fd07:3::2");

/// Which checksums are left to the interfaces, as virtual ones allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Checksums {
    /// Client and peer send packets whose checksum is to be completed: on a virtual wire nobody does.
    pub(crate) partial_at_ends: bool,
    /// The server's interfaces take such packets. Otherwise its kernel completes the sum, from where it begins.
    pub(crate) partial_at_server: bool,
}

/// The four namespaces.
pub(crate) struct Network {
    pub(crate) client: NetNs,
    pub(crate) server: NetNs,
    gateway: NetNs,
    pub(crate) peer: NetNs,
}

impl Network {
    /// Builds it; says why it cannot.
    pub(crate) fn build(checksums: Checksums) -> Result<Network, String> {
        let namespace = || apart(NetNs::unshare).map_err(|error| error.to_string());
        let network = Network {
            client: namespace()?,
            server: namespace()?,
            gateway: namespace()?,
            peer: namespace()?,
        };
        network.wire().expect("veth pairs");
        network.configure().expect("addresses and routes");
        network.poll().expect("GRO");
        network.set_checksums(checksums).expect("offloads");
        network.wait();
        Ok(network)
    }

    fn wire(&self) -> io::Result<()> {
        let pairs = [
            ((&CLIENT, &self.client), (&SERVER, &self.server)),
            ((&RELAY, &self.server), (&NEAR, &self.gateway)),
            ((&FAR, &self.gateway), (&PEER, &self.peer)),
        ];
        within(&self.server, || {
            let mut netlink = Netlink::open()?;
            let veth = |(end, namespace): (&'static End, _)| VethEnd {
                name: end.device,
                mac: end.mac,
                namespace,
            };
            pairs
                .into_iter()
                .try_for_each(|(one, other)| netlink.create_veth(&veth(one), &veth(other)))
        })
    }

    fn configure(&self) -> io::Result<()> {
        within(&self.client, || set_up(&[&CLIENT], None, false))?;
        within(&self.server, || {
            set_up(&[&SERVER, &RELAY], Some(&NEAR), false)
        })?;
        within(&self.gateway, || set_up(&[&NEAR, &FAR], Some(&RELAY), true))?;
        within(&self.peer, || set_up(&[&PEER], Some(&FAR), false))
    }

    /// A veth takes redirected XDP frames only while its other end polls, as it does for GRO, and it looks at that only when
    /// GRO is toggled on an interface that is up.
    fn poll(&self) -> io::Result<()> {
        let ends = [
            (&self.client, &CLIENT),
            (&self.server, &SERVER),
            (&self.server, &RELAY),
            (&self.gateway, &NEAR),
        ];
        for on in [false, true] {
            for (namespace, end) in ends {
                within(namespace, || ::io::ethtool::set_gro(end.device, on))?;
            }
        }
        Ok(())
    }

    /// IPv6 addresses can be used a moment after they were given.
    fn wait(&self) {
        let used = [
            (&self.client, &CLIENT),
            (&self.server, &SERVER),
            (&self.server, &RELAY),
            (&self.peer, &PEER),
        ];
        for (namespace, end) in used {
            eventually(end.v6, || {
                within(namespace, || UdpSocket::bind((ip(end.v6), 0))).is_ok()
            });
        }
    }

    fn set_checksums(&self, checksums: Checksums) -> io::Result<()> {
        let set = ::io::ethtool::set_transmit_checksum;
        within(&self.client, || {
            set(CLIENT.device, checksums.partial_at_ends)
        })?;
        within(&self.peer, || set(PEER.device, checksums.partial_at_ends))?;
        within(&self.server, || {
            set(SERVER.device, checksums.partial_at_server)?;
            set(RELAY.device, checksums.partial_at_server)
        })
    }

    /// Datagrams that the kernels of client, server and peer found damaged, or had no room for.
    pub(crate) fn damaged(&self) -> u64 {
        [&self.client, &self.server, &self.peer]
            .map(|namespace| within(namespace, || Ok(damaged_here())).expect("a namespace"))
            .iter()
            .sum()
    }
}

/// UDP checksum errors of the calling thread's namespace, of both families.
fn damaged_here() -> u64 {
    let read = |name: &str| {
        std::fs::read_to_string(format!("/proc/thread-self/net/{name}")).expect("/proc")
    };
    let v4 = read("snmp");
    let mut rows = v4.lines().filter_map(|row| row.strip_prefix("Udp: "));
    let names = rows.next().expect("names").split(' ');
    let values = rows.next().expect("values").split(' ');
    let in_v4 = names.zip(values).find(|(name, _)| *name == "InCsumErrors");
    let v6 = read("snmp6");
    let in_v6 = v6
        .lines()
        .find_map(|row| row.strip_prefix("Udp6InCsumErrors"));
    [in_v4.expect("a count").1, in_v6.expect("a count")]
        .map(|text| text.trim().parse::<u64>().expect("a number"))
        .iter()
        .sum()
}

fn set_up(ends: &[&End], gateway: Option<&End>, forwards: bool) -> io::Result<()> {
    let set = |path: &str, value: &str| std::fs::write(format!("/proc/sys/net/{path}"), value);
    // Addresses can be used at once, and nobody but this test sends.
    for scope in ["all", "default"] {
        set(&format!("ipv6/conf/{scope}/accept_dad"), "0")?;
        set(&format!("ipv6/conf/{scope}/accept_ra"), "0")?;
        set(
            &format!("ipv6/conf/{scope}/forwarding"),
            if forwards { "1" } else { "0" },
        )?;
    }
    set("ipv4/ip_forward", if forwards { "1" } else { "0" })?;
    let mut netlink = Netlink::open()?;
    netlink.set_up(LOOPBACK)?;
    for end in ends {
        let index = interface_index(end.device)?;
        set(&format!("ipv6/conf/{}/accept_dad", end.device), "0")?;
        netlink.set_up(index)?;
        netlink.add_address(index, ip(end.v4), 24)?;
        netlink.add_address(index, ip(end.v6), 64)?;
    }
    if let Some(gateway) = gateway {
        netlink.add_default_route(ip(gateway.v4))?;
        netlink.add_default_route(ip(gateway.v6))?;
    }
    Ok(())
}

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

/// Runs `act` in a namespace: sockets it opens stay there.
pub(crate) fn within<T: Send>(
    namespace: &NetNs,
    act: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    apart(|| {
        namespace.enter()?;
        act()
    })
}

fn apart<T: Send>(act: impl FnOnce() -> io::Result<T> + Send) -> io::Result<T> {
    std::thread::scope(|scope| scope.spawn(act).join().expect("it does not panic"))
}
