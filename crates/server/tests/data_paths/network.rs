//! The network: a client, a server that does not forward, a gateway that does, and a peer behind it, a namespace each.
//!
//! ```text
//!   client  c 10.7.1.2 ---- s 10.7.1.1  server  r 10.7.2.1 ---- g 10.7.2.9  gateway  h 10.7.3.9 ---- p 10.7.3.2  peer
//!             fd07:1::2       fd07:1::1           fd07:2::1       fd07:2::9            fd07:3::9       fd07:3::2
//! ```
//! Neighbours are found by ARP and neighbour discovery, as they are outside of tests.

use std::io;
use std::net::{IpAddr, UdpSocket};
use std::process::Command;

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

/// What holds the addresses that the server serves at, on each of its two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The wire's interface.
    Wire,
    /// A bridge or a bond that it belongs to.
    Above(&'static str),
    /// A VLAN device on it, at both ends of the wire.
    Vlan,
    /// An interface that no packet from outside arrives on, such as `lo`: all routers are told to use the wire.
    Host(&'static str),
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
        Network::build_with(checksums, Holder::Wire)
    }

    /// Builds it with the served addresses somewhere else.
    pub(crate) fn build_with(checksums: Checksums, holder: Holder) -> Result<Network, String> {
        let namespace = || apart(NetNs::unshare).map_err(|error| error.to_string());
        let network = Network {
            client: namespace()?,
            server: namespace()?,
            gateway: namespace()?,
            peer: namespace()?,
        };
        network.wire().expect("veth pairs");
        network
            .configure(holder)
            .map_err(|error| format!("{holder:?}: {error}"))?;
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

    fn configure(&self, holder: Holder) -> io::Result<()> {
        let opposite = match holder {
            Holder::Vlan => holder,
            _ => Holder::Wire,
        };
        let wire = Holder::Wire;
        within(&self.client, || set_up(&[(&CLIENT, opposite)], None, false))?;
        within(&self.server, || {
            set_up(&[(&SERVER, holder), (&RELAY, holder)], Some(&NEAR), false)
        })?;
        within(&self.gateway, || {
            set_up(&[(&NEAR, opposite), (&FAR, wire)], Some(&RELAY), true)
        })?;
        within(&self.peer, || set_up(&[(&PEER, wire)], Some(&FAR), false))?;
        if let Holder::Host(_) = holder {
            within(&self.client, || route_by_the_wire(&SERVER))?;
            within(&self.gateway, || route_by_the_wire(&RELAY))?;
        }
        Ok(())
    }

    /// A veth takes redirected XDP frames only while its other end polls, as it does for GRO, and it looks at that only
    /// when GRO is toggled on an interface that is up.
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

fn set_up(ends: &[(&End, Holder)], gateway: Option<&End>, forwards: bool) -> io::Result<()> {
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
    for (end, holder) in ends {
        let device = hold(end, *holder)?;
        let index = interface_index(&device)?;
        set(&format!("ipv6/conf/{device}/accept_dad"), "0")?;
        netlink.set_up(index)?;
        let whole = !matches!(holder, Holder::Host(_));
        let prefix = |subnet, host| if whole { subnet } else { host };
        netlink.add_address(index, ip(end.v4), prefix(24, 32))?;
        netlink.add_address(index, ip(end.v6), prefix(64, 128))?;
    }
    if let Some(gateway) = gateway {
        netlink.add_default_route(ip(gateway.v4))?;
        netlink.add_default_route(ip(gateway.v6))?;
    }
    Ok(())
}

/// Makes what holds an end's addresses; its name.
fn hold(end: &End, holder: Holder) -> io::Result<String> {
    let wire = end.device;
    let name = format!("{wire}0");
    match holder {
        Holder::Wire => return Ok(wire.to_owned()),
        Holder::Above(kind) => {
            run(&format!("link add {name} type {kind}"))?;
            // A bond takes only what is down.
            run(&format!("link set {wire} down"))?;
            run(&format!("link set {wire} master {name}"))?;
        }
        Holder::Vlan => run(&format!("link add link {wire} name {name} type vlan id 5"))?,
        Holder::Host(kind) => {
            let (v4, v6) = by_the_wire(end);
            run(&format!("address add {v4}/24 dev {wire}"))?;
            run(&format!("link set {wire} up"))?;
            run(&format!("address add {v6}/64 dev {wire} nodad"))?;
            if kind == "lo" {
                return Ok(kind.to_owned());
            }
            run(&format!("link add {name} type {kind}"))?;
        }
    }
    run(&format!("link set {wire} up"))?;
    Ok(name)
}

/// The addresses of the wire's interface where something else holds the end's.
fn by_the_wire(end: &End) -> (String, String) {
    (format!("{}00", end.v4), format!("{}00", end.v6))
}

/// Has this namespace send by the wire what is for the addresses of an end.
fn route_by_the_wire(end: &End) -> io::Result<()> {
    let (v4, v6) = by_the_wire(end);
    run(&format!("route add {}/32 via {v4}", end.v4))?;
    run(&format!("route add {}/128 via {v6}", end.v6))
}

fn run(arguments: &str) -> io::Result<()> {
    let ran = Command::new("ip").args(arguments.split(' ')).output()?;
    if ran.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&ran.stderr);
    Err(io::Error::other(format!("ip {arguments}: {reason}")))
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
