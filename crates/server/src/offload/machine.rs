//! The interfaces of this machine that serve clients or peers, and what is known of them.

use super::choice::Facts;
use io::ethtool;
use io::interfaces::InterfaceAddress;
use io::netlink::{Drivers, Link, Netlink};
use std::net::IpAddr;

/// Most interfaces that programs are attached to: nobody serves from more.
const MOST: usize = 64;

/// Everything that the rules want to know of the interfaces that hold one of `served`. An unspecified address stands for all of its
/// family.
///
/// # Errors
/// What netlink says.
pub(crate) fn survey(served: &[IpAddr]) -> std::io::Result<Vec<Facts>> {
    let addresses = io::interfaces::addresses()?;
    let links = Netlink::open()?.links()?;
    // The kernel may be too old to tell.
    let mut drivers = Drivers::open().ok();
    let serving = links
        .iter()
        .filter(|link| link.up && holds_one(link, &addresses, served));
    Ok(serving
        .take(MOST)
        .map(|link| Facts {
            link: link.clone(),
            xdp: drivers
                .as_mut()
                .and_then(|drivers| drivers.xdp(link.index).ok()),
            // Who cannot say does not strip.
            strips_tags: ethtool::strips_vlan_tags(&link.name).unwrap_or(false),
            vlan: vlan_on(link, &links),
        })
        .collect())
}

fn holds_one(link: &Link, addresses: &[InterfaceAddress], served: &[IpAddr]) -> bool {
    let mut own = addresses.iter().filter(|one| on(&one.name, &link.name));
    own.any(|address| {
        let same = |ip: &IpAddr| {
            *ip == address.ip || ip.is_unspecified() && ip.is_ipv4() == address.ip.is_ipv4()
        };
        served.iter().any(same)
    })
}

/// Whether an address with this label belongs to the interface: `eth0:1` is an old way to write a second address of `eth0`.
pub(super) fn on(label: &str, interface: &str) -> bool {
    let rest = label.strip_prefix(interface);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
}

/// An interface for frames of this one that have a tag.
fn vlan_on(link: &Link, links: &[Link]) -> Option<String> {
    let mut above = links.iter();
    let is_vlan = |one: &&Link| one.kind.as_deref() == Some("vlan");
    above
        .find(|one| is_vlan(one) && one.below == Some(link.index))
        .map(|one| one.name.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_serves_if_it_is_named_or_all_are() {
        let names = |served: &[&str]| -> Vec<String> {
            let served: Vec<IpAddr> = served.iter().map(|ip| ip.parse().unwrap()).collect();
            let found = survey(&served).unwrap().into_iter();
            found.map(|facts| facts.link.name).collect()
        };
        assert_eq!(names(&["127.0.0.1"]), ["lo"]);
        assert!(names(&["0.0.0.0"]).contains(&"lo".to_owned()));
        assert_eq!(names(&["203.0.113.77"]), [""; 0]);
        assert!(on("eth0:1", "eth0") && on("eth0", "eth0") && !on("eth01", "eth0"));
    }
}
