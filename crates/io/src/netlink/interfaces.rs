//! The network interfaces, as the kernel describes them.

use std::io;

use super::answer::{Message, attributes, text, u16_at, u32_at};
use super::message::{NLM_F_DUMP, Request};
use super::{IFLA_INFO_KIND, IFLA_LINKINFO, Mac, Netlink};

pub(super) const RTM_NEWLINK: u16 = 16;
pub(super) const RTM_DELLINK: u16 = 17;
const RTM_GETLINK: u16 = 18;
/// `struct ifinfomsg`.
const HEADER_BYTES: usize = 16;

/// A network interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Its number.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What made it, such as `veth`, `vlan` or `bridge`; `None` for hardware and loopback.
    pub kind: Option<String>,
    /// Its frames have Ethernet headers.
    pub ethernet: bool,
    /// It is a loopback interface.
    pub loopback: bool,
    /// It is administratively up.
    pub up: bool,
    /// It has a carrier.
    pub carrier: bool,
    /// Its link-layer address.
    pub mac: Option<Mac>,
    /// The largest packet, IP header included, in bytes.
    pub mtu: u32,
    /// The interface that it sits on, for a VLAN and the like. Of a veth: its other end, maybe in another namespace.
    pub below: Option<u32>,
    /// The bond or bridge that it belongs to.
    pub master: Option<u32>,
    /// It is a backup device of a bond: the stack drops what it receives.
    pub backup: bool,
    /// The number of the XDP program that it runs, if any.
    pub xdp: Option<u32>,
}

impl Netlink {
    /// Every interface of the namespace.
    ///
    /// # Errors
    /// What the kernel says; it needs no privileges.
    pub fn interfaces(&mut self) -> io::Result<Vec<NetworkInterface>> {
        const IFLA_EXT_MASK: u16 = 29;
        const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;
        let request = Request::new(RTM_GETLINK, NLM_F_DUMP, &[0; HEADER_BYTES])
            .attribute(IFLA_EXT_MASK, &RTEXT_FILTER_SKIP_STATS.to_ne_bytes());
        let mut interfaces = Vec::new();
        self.ask(request, |message| interfaces.extend(interface(message)))?;
        Ok(interfaces)
    }
}

/// The interface that a message is about.
fn interface(message: &Message<'_>) -> Option<NetworkInterface> {
    const ARPHRD_ETHER: u16 = 1;
    const IFLA_ADDRESS: u16 = 1;
    const IFLA_IFNAME: u16 = 3;
    const IFLA_MTU: u16 = 4;
    const IFLA_LINK: u16 = 5;
    const IFLA_MASTER: u16 = 10;
    const IFLA_XDP: u16 = 43;
    if message.kind != RTM_NEWLINK {
        return None;
    }
    let body = message.body;
    let flags = u32_at(body, 8)?;
    let has = |flag: i32| flags & flag.unsigned_abs() != 0;
    let mut interface = NetworkInterface {
        index: u32_at(body, 4)?,
        name: String::new(),
        kind: None,
        ethernet: u16_at(body, 2)? == ARPHRD_ETHER,
        loopback: has(libc::IFF_LOOPBACK),
        up: has(libc::IFF_UP),
        carrier: has(libc::IFF_LOWER_UP),
        mac: None,
        mtu: 0,
        below: None,
        master: None,
        backup: false,
        xdp: None,
    };
    for (kind, value) in attributes(body, HEADER_BYTES) {
        match kind {
            IFLA_ADDRESS => interface.mac = value.try_into().ok(),
            IFLA_IFNAME => interface.name = text(value),
            IFLA_MTU => interface.mtu = u32_at(value, 0)?,
            IFLA_LINK => interface.below = u32_at(value, 0).filter(|index| *index != 0),
            IFLA_MASTER => interface.master = u32_at(value, 0).filter(|index| *index != 0),
            IFLA_LINKINFO => {
                (interface.kind, interface.backup) = (kind_of(value), is_backup(value))
            }
            IFLA_XDP => interface.xdp = xdp_program(value),
            _ => {}
        }
    }
    Some(interface)
}

fn kind_of(info: &[u8]) -> Option<String> {
    let mut all = attributes(info, 0);
    let (_, value) = all.find(|(kind, _)| *kind == IFLA_INFO_KIND)?;
    Some(text(value))
}

/// Whether a lower device of a bond is in state BOND_STATE_BACKUP: the stack drops what arrives there.
fn is_backup(info: &[u8]) -> bool {
    const IFLA_INFO_SLAVE_KIND: u16 = 4;
    const IFLA_INFO_SLAVE_DATA: u16 = 5;
    const IFLA_BOND_SLAVE_STATE: u16 = 1;
    let find = |wanted| attributes(info, 0).find(move |(kind, _)| *kind == wanted);
    let of_bond = find(IFLA_INFO_SLAVE_KIND).is_some_and(|(_, value)| text(value) == "bond");
    let state = find(IFLA_INFO_SLAVE_DATA).and_then(|(_, data)| {
        let mut all = attributes(data, 0);
        all.find(|(kind, _)| *kind == IFLA_BOND_SLAVE_STATE)
    });
    of_bond && state.is_some_and(|(_, value)| value.first() == Some(&1))
}

fn xdp_program(nested: &[u8]) -> Option<u32> {
    const IFLA_XDP_ATTACHED: u16 = 2;
    const IFLA_XDP_PROG_ID: u16 = 4;
    let find = |wanted| attributes(nested, 0).find(move |(kind, _)| *kind == wanted);
    let (_, attached) = find(IFLA_XDP_ATTACHED)?;
    // Several programs at once have numbers under other names; that there is one is what matters.
    let number = find(IFLA_XDP_PROG_ID).and_then(|(_, value)| u32_at(value, 0));
    (*attached.first()? != 0).then(|| number.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::answer::messages;

    /// What the kernel says of an interface below interface 2.
    fn below(slave_kind: &[u8], state: u8) -> NetworkInterface {
        const IFLA_MASTER: u16 = 10;
        let fixed = [[0, 0, 1, 0], [3, 0, 0, 0], [1, 0, 0, 0], [0; 4]].concat();
        let request = Request::new(RTM_NEWLINK, 0, &fixed)
            .attribute(3, b"enP1s1\0")
            .attribute(IFLA_MASTER, &2_u32.to_ne_bytes())
            .nested(IFLA_LINKINFO, |info| {
                info.attribute(4, slave_kind).nested(5, &[], |data| {
                    data.attribute(1, &[state]);
                });
            });
        let bytes = request.finish(1);
        let mut found = messages(&bytes).filter_map(|message| interface(&message));
        found.next().expect("an interface")
    }

    #[test]
    fn a_lower_device_has_a_master_and_may_be_the_backup_of_a_bond() {
        let active = below(b"bond\0", 0);
        assert_eq!((active.index, active.master), (3, Some(2)));
        assert!(active.ethernet && active.up && !active.backup);
        assert!(below(b"bond\0", 1).backup);
        // A bridge port's first attribute is another state.
        assert!(!below(b"bridge\0", 1).backup);
    }
}
