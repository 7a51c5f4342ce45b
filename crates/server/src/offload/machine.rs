//! The interfaces of this machine that serve clients or peers, and what is known of them.

use super::choice::Facts;
use io::ethtool;
use io::interfaces::InterfaceAddress;
use io::netlink::{Drivers, Netlink, NetworkInterface};
use std::net::IpAddr;

/// The highest number of interfaces that programs are attached to.
const MAX_INTERFACES: usize = 64;

/// The properties of the interfaces that packets to one of `served` arrive on. An unspecified address stands for all of
/// its family.
///
/// That is the interface that holds the address. An address on `lo` or on a dummy interface (anycast, virtual
/// addresses) is reached through any other interface. Then all Ethernet interfaces with an address count, unless they
/// belong to a bond, team or bridge.
///
/// # Errors
/// What netlink says.
pub(crate) fn read_interfaces(served: &[IpAddr]) -> std::io::Result<Vec<Facts>> {
    let addresses = io::interfaces::addresses()?;
    let interfaces = Netlink::open()?.interfaces()?;
    // The kernel may be too old to report it.
    let mut drivers = Drivers::open().ok();
    let machine = Machine {
        interfaces: &interfaces,
        addresses: &addresses,
        served,
    };
    let serving = machine.serving().into_iter().take(MAX_INTERFACES);
    Ok(serving
        .map(|(interface, indirect)| {
            let lower: Vec<NetworkInterface> = lower_devices(interface.index, &interfaces)
                .cloned()
                .collect();
            // If the device does not report it, it counts as not stripping tags.
            let strips = |interface: &NetworkInterface| {
                ethtool::strips_vlan_tags(&interface.name).unwrap_or(false)
            };
            Facts {
                interface: interface.clone(),
                xdp: drivers
                    .as_mut()
                    .and_then(|drivers| drivers.xdp(interface.index).ok()),
                strips_tags: strips(interface) || lower.iter().any(strips),
                vlan: vlan_on(interface, &interfaces),
                lower,
                indirect,
            }
        })
        .collect())
}

/// The interfaces of a machine, and what it serves.
struct Machine<'a> {
    interfaces: &'a [NetworkInterface],
    addresses: &'a [InterfaceAddress],
    served: &'a [IpAddr],
}

impl<'a> Machine<'a> {
    /// Each interface that serves, and whether it does so only for addresses on `lo` or dummy interfaces: these come
    /// last.
    fn serving(&self) -> Vec<(&'a NetworkInterface, bool)> {
        let routed = self
            .interfaces
            .iter()
            .any(|interface| self.has_routed_address(interface));
        let up = self
            .interfaces
            .iter()
            .filter(|interface| interface.up && !is_dummy(interface));
        let mut serving: Vec<_> = up
            .filter_map(|interface| {
                let holds = self.held(interface).next().is_some();
                (holds || routed && self.receives(interface)).then_some((interface, !holds))
            })
            .collect();
        serving.sort_by_key(|(_, indirect)| *indirect);
        serving
    }

    /// The served addresses that an interface holds.
    fn held(&self, interface: &NetworkInterface) -> impl Iterator<Item = IpAddr> {
        self.of(interface).filter(|own| {
            let same =
                |ip: &IpAddr| ip == own || ip.is_unspecified() && ip.is_ipv4() == own.is_ipv4();
            self.served.iter().any(same)
        })
    }

    /// Whether it holds a served address that others reach through another interface.
    fn has_routed_address(&self, interface: &NetworkInterface) -> bool {
        let hosts = interface.loopback || is_dummy(interface);
        hosts && interface.up && self.held(interface).any(|ip| !ip.is_loopback())
    }

    /// Whether the IP stack gets packets from outside by this interface.
    fn receives(&self, interface: &NetworkInterface) -> bool {
        interface.ethernet && !self.is_lower(interface) && self.of(interface).next().is_some()
    }

    /// Whether its packets go on as another interface's. Members of a VRF keep theirs.
    fn is_lower(&self, interface: &NetworkInterface) -> bool {
        let master = self
            .interfaces
            .iter()
            .find(|one| Some(one.index) == interface.master);
        master.is_some_and(|master| master.kind.as_deref() != Some("vrf"))
    }

    fn of(&self, interface: &NetworkInterface) -> impl Iterator<Item = IpAddr> {
        let own = self
            .addresses
            .iter()
            .filter(|one| on(&one.name, &interface.name));
        own.map(|address| address.ip)
    }
}

fn is_dummy(interface: &NetworkInterface) -> bool {
    interface.kind.as_deref() == Some("dummy")
}

/// The devices whose frames an interface gets: those of a bond or a team, or the virtual function of a Hyper-V
/// interface.
pub(super) fn lower_devices(
    index: u32,
    interfaces: &[NetworkInterface],
) -> impl Iterator<Item = &NetworkInterface> {
    interfaces
        .iter()
        .filter(move |interface| interface.master == Some(index))
}

/// Whether an address with this label belongs to the interface: `eth0:1` is an old way to write a second address of
/// `eth0`.
pub(super) fn on(label: &str, interface: &str) -> bool {
    let rest = label.strip_prefix(interface);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// An interface for frames of this one that have a tag.
fn vlan_on(interface: &NetworkInterface, interfaces: &[NetworkInterface]) -> Option<String> {
    let mut above = interfaces.iter();
    let is_vlan = |one: &&NetworkInterface| one.kind.as_deref() == Some("vlan");
    above
        .find(|one| is_vlan(one) && one.below == Some(interface.index))
        .map(|one| one.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_serves_if_it_is_named_or_all_are() {
        let names = |served: &[&str]| -> Vec<String> {
            let served: Vec<IpAddr> = served.iter().map(|ip| ip.parse().unwrap()).collect();
            let found = read_interfaces(&served).unwrap().into_iter();
            found.map(|facts| facts.interface.name).collect()
        };
        assert_eq!(names(&["127.0.0.1"]), ["lo"]);
        assert!(names(&["0.0.0.0"]).contains(&"lo".to_owned()));
        assert_eq!(names(&["203.0.113.77"]), [""; 0]);
        assert!(on("eth0:1", "eth0") && on("eth0", "eth0") && !on("eth01", "eth0"));
    }

    /// An Ethernet interface as netlink would describe it.
    fn interface(
        index: u32,
        name: &str,
        kind: Option<&str>,
        master: Option<u32>,
    ) -> NetworkInterface {
        NetworkInterface {
            index,
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
            ethernet: name != "lo",
            loopback: name == "lo",
            up: true,
            carrier: true,
            mac: Some([2, 0, 0, 0, 0, 1]),
            mtu: 1500,
            below: None,
            master,
            backup: false,
            xdp: None,
        }
    }

    /// Names of the interfaces that serve, those that serve indirectly with a star.
    fn serving(
        interfaces: &[NetworkInterface],
        addresses: &[(&str, &str)],
        served: &[&str],
    ) -> Vec<String> {
        let address = |(name, ip): &(&str, &str)| InterfaceAddress {
            name: (*name).to_owned(),
            ip: ip.parse().unwrap(),
            scope_id: 0,
            up: true,
            loopback: *name == "lo",
        };
        let addresses: Vec<InterfaceAddress> = addresses.iter().map(address).collect();
        let served: Vec<IpAddr> = served.iter().map(|ip| ip.parse().unwrap()).collect();
        let machine = Machine {
            interfaces,
            addresses: &addresses,
            served: &served,
        };
        let star = |indirect| if indirect { "*" } else { "" };
        let all = machine.serving().into_iter();
        all.map(|(interface, indirect)| format!("{}{}", interface.name, star(indirect)))
            .collect()
    }

    #[test]
    fn an_address_on_loopback_or_a_dummy_is_served_where_its_packets_arrive() {
        let interfaces = [
            interface(1, "lo", None, None),
            interface(2, "eth0", None, None),
            interface(3, "eth1", None, Some(5)),
            interface(4, "eth2", None, None),
            interface(5, "bond0", Some("bond"), None),
            interface(6, "dummy0", Some("dummy"), None),
            interface(7, "eth3", None, Some(8)),
            interface(8, "vrf0", Some("vrf"), None),
        ];
        let addresses = [
            ("lo", "127.0.0.1"),
            ("lo", "192.0.2.53"),
            ("eth0", "198.51.100.1"),
            ("eth1", "fe80::1"),
            ("bond0", "fe80::2"),
            ("dummy0", "192.0.2.54"),
            ("eth3", "fe80::3"),
        ];
        let serving = |served: &[&str]| serving(&interfaces, &addresses, served);
        // eth1 is below the bond, and eth2 has no address.
        let elsewhere = ["eth0*", "bond0*", "eth3*"];
        assert_eq!(serving(&["192.0.2.54"]), elsewhere);
        assert_eq!(serving(&["192.0.2.53"]), [&["lo"][..], &elsewhere].concat());
        assert_eq!(serving(&["198.51.100.1"]), ["eth0"]);
        assert_eq!(serving(&["127.0.0.1"]), ["lo"]);
        assert_eq!(serving(&["0.0.0.0"]), ["lo", "eth0", "bond0*", "eth3*"]);
        let elsewhere = ["eth3", "eth0*", "bond0*"];
        assert_eq!(serving(&["192.0.2.54", "fe80::3"]), elsewhere);
        let v6 = ["eth1", "bond0", "eth3"];
        assert_eq!(serving(&["::"]), v6, "no address on lo");
    }

    #[test]
    fn a_virtual_function_is_a_lower_device() {
        // Hyper-V: `eth0` is synthetic, and the VF carries its frames, with its own index.
        let interfaces = [
            interface(2, "eth0", None, None),
            interface(3, "enP1s1", None, Some(2)),
        ];
        let lower: Vec<u32> = lower_devices(2, &interfaces)
            .map(|interface| interface.index)
            .collect();
        assert_eq!(lower, [3]);
        let addresses = [("eth0", "10.0.0.4"), ("enP1s1", "fe80::1")];
        assert_eq!(serving(&interfaces, &addresses, &["10.0.0.4"]), ["eth0"]);
    }
}
