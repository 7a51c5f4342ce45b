//! By which method the kernel may relay on an interface, and why by no better one. Rules without side effects.

use super::OffloadMode;
use io::netlink::{NetworkInterface, XdpFeatures};
use std::fmt;

/// Where datagrams are relayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OffloadMethod {
    /// In user space.
    User,
    /// By a classifier at the interface's ingress (tc, TCX).
    Tc,
    /// In the driver (native XDP).
    Xdp,
}

impl OffloadMethod {
    /// Its name in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            OffloadMethod::User => "user",
            OffloadMethod::Tc => "tc",
            OffloadMethod::Xdp => "xdp",
        }
    }
}

/// Why a method is not used on an interface.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Obstacle {
    /// It is not configured.
    NotWanted,
    /// Its packets never see a driver.
    Loopback,
    /// Its packets have no Ethernet header.
    NoEthernet,
    /// A virtual interface that gets packets directly from sockets, unsegmented and one by one. XDP is slow there, and
    /// corrupts checksums unless the far end is configured for it.
    Virtual(String),
    /// The driver has none.
    NoNativeXdp,
    /// The device hides the VLAN tags of frames that belong to other interfaces.
    HiddenVlans(String),
    /// A program of another software, with this number, is there.
    ForeignProgram(u32),
    /// Many datagrams arrive with checksums that were left to the hardware.
    PartialChecksums,
    /// Packets arrive by a lower device that the program does not have.
    UnknownInterface,
    /// Its driver takes no frames that XDP redirects from another interface.
    NoXdpTransmit,
    /// Before Linux 6.3 no driver reports whether it accepts frames that XDP redirects from another interface.
    DriversDoNotTell,
    /// The control thread has ended, so next hops are not kept current.
    ControlThreadEnded,
    /// The kernel refuses, in these words.
    Refused(String),
}

impl Obstacle {
    /// Its name in metrics.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Obstacle::NotWanted => "not_wanted",
            Obstacle::Loopback => "loopback",
            Obstacle::NoEthernet => "no_ethernet",
            Obstacle::Virtual(_) => "virtual",
            Obstacle::NoNativeXdp => "no_native_xdp",
            Obstacle::HiddenVlans(_) => "hidden_vlans",
            Obstacle::ForeignProgram(_) => "foreign_program",
            Obstacle::PartialChecksums => "partial_checksums",
            Obstacle::UnknownInterface => "unknown_interface",
            Obstacle::NoXdpTransmit => "no_xdp_transmit",
            Obstacle::DriversDoNotTell => "drivers_do_not_tell",
            Obstacle::ControlThreadEnded => "control_thread_ended",
            Obstacle::Refused(_) => "refused",
        }
    }

    /// Whether it is only advice: a setting that names the method overrides it.
    const fn is_advice(&self) -> bool {
        matches!(self, Obstacle::Virtual(_) | Obstacle::PartialChecksums)
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Obstacle::NotWanted => f.write_str("not asked for"),
            Obstacle::Loopback => f.write_str("loopback has no driver that could run it"),
            Obstacle::NoEthernet => f.write_str("its packets have no Ethernet header"),
            Obstacle::Virtual(kind) => write!(
                f,
                "a {kind} interface gets unfinished checksums from the sockets at its other end"
            ),
            Obstacle::NoNativeXdp => f.write_str("its driver has no native XDP"),
            Obstacle::HiddenVlans(name) => write!(
                f,
                "the device strips VLAN tags, so that frames of {name} cannot be told from its own (ethtool -K DEVICE rxvlan off)"
            ),
            Obstacle::ForeignProgram(number) => write!(
                f,
                "another XDP program (number {number}) is attached, which stays"
            ),
            Obstacle::PartialChecksums => {
                f.write_str("many datagrams arrive with unfinished checksums")
            }
            Obstacle::UnknownInterface => {
                f.write_str("packets arrive by a lower device that the XDP program does not know")
            }
            Obstacle::NoXdpTransmit => {
                f.write_str("its driver takes no frames that XDP redirects (--offload tc relays these, too)")
            }
            Obstacle::DriversDoNotTell => f.write_str(
                "only from Linux 6.3 do drivers tell whether they take frames that XDP redirects (--offload tc relays these, too)",
            ),
            Obstacle::ControlThreadEnded => f.write_str(
                "the thread that watches routes and neighbours has ended; restart the server",
            ),
            Obstacle::Refused(why) => f.write_str(why),
        }
    }
}

/// The properties of an interface that decide about it.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) interface: NetworkInterface,
    /// What its driver can do; `None` if the kernel does not report it (before Linux 6.3): trying will show.
    pub(crate) xdp: Option<XdpFeatures>,
    /// The device takes VLAN tags out of frames.
    pub(crate) strips_tags: bool,
    /// An interface for frames with a tag.
    pub(crate) vlan: Option<String>,
    /// Those whose frames it gets, of a bond for example: its XDP program runs there.
    pub(crate) lower: Vec<NetworkInterface>,
    /// It holds no served address; packets to those on `lo` or dummy interfaces may arrive here.
    pub(crate) indirect: bool,
}

/// The methods to try on an interface, best first, each with what spoke against the better ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Choice {
    /// Why not native XDP; `None` if it is to be tried.
    pub(crate) xdp: Option<Obstacle>,
    /// Why not tc.
    pub(crate) tc: Option<Obstacle>,
    /// If nothing works out, the server is not to start.
    pub(crate) insists: bool,
}

/// What to try under `mode`.
pub(crate) fn choose(mode: OffloadMode, facts: &Facts) -> Choice {
    let against_tc =
        (!facts.interface.ethernet && !facts.interface.loopback).then_some(Obstacle::NoEthernet);
    let against_xdp = against_xdp(facts);
    match mode {
        OffloadMode::Off => Choice {
            xdp: Some(Obstacle::NotWanted),
            tc: Some(Obstacle::NotWanted),
            insists: false,
        },
        OffloadMode::Auto => Choice {
            xdp: against_xdp,
            tc: against_tc,
            insists: false,
        },
        OffloadMode::Xdp => Choice {
            xdp: against_xdp.filter(|obstacle| !obstacle.is_advice()),
            tc: Some(Obstacle::NotWanted),
            insists: !facts.interface.loopback && !facts.indirect,
        },
        OffloadMode::Tc => Choice {
            xdp: Some(Obstacle::NotWanted),
            tc: against_tc,
            insists: !facts.indirect,
        },
    }
}

/// What comes first weighs most: mere advice comes last.
fn against_xdp(facts: &Facts) -> Option<Obstacle> {
    /// Interfaces whose packets come from sockets of this machine.
    const VIRTUAL: [&str; 3] = ["veth", "tun", "netkit"];
    let interface = &facts.interface;
    if interface.loopback {
        return Some(Obstacle::Loopback);
    }
    if !interface.ethernet {
        return Some(Obstacle::NoEthernet);
    }
    if facts.xdp.is_some_and(|xdp| !xdp.native || !xdp.redirect) {
        return Some(Obstacle::NoNativeXdp);
    }
    if let Some(vlan) = facts.vlan.as_ref().filter(|_| facts.strips_tags) {
        return Some(Obstacle::HiddenVlans(vlan.clone()));
    }
    if let Some(number) = interface.xdp {
        return Some(Obstacle::ForeignProgram(number));
    }
    let interfaces = std::iter::once(interface).chain(&facts.lower);
    let mut kinds = interfaces.filter_map(|interface| interface.kind.as_ref());
    kinds
        .find(|kind| VIRTUAL.contains(&kind.as_str()))
        .map(|kind| Obstacle::Virtual(kind.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABLE: XdpFeatures = XdpFeatures {
        native: true,
        redirect: true,
        target: true,
    };

    fn hardware() -> Facts {
        Facts {
            interface: NetworkInterface {
                index: 2,
                name: "eth0".to_owned(),
                kind: None,
                ethernet: true,
                loopback: false,
                up: true,
                carrier: true,
                mac: Some([2, 0, 0, 0, 0, 1]),
                mtu: 1500,
                below: None,
                master: None,
                backup: false,
                xdp: None,
            },
            xdp: Some(ABLE),
            strips_tags: true,
            vlan: None,
            lower: Vec::new(),
            indirect: false,
        }
    }

    fn changed(change: impl FnOnce(&mut Facts)) -> Facts {
        let mut facts = hardware();
        change(&mut facts);
        facts
    }

    fn loopback() -> Facts {
        changed(|facts| {
            (facts.interface.loopback, facts.interface.ethernet) = (true, false);
            facts.xdp = Some(XdpFeatures::default());
        })
    }

    fn veth() -> Facts {
        changed(|facts| facts.interface.kind = Some("veth".to_owned()))
    }

    #[test]
    fn hardware_with_native_xdp_gets_it() {
        let choice = choose(OffloadMode::Auto, &hardware());
        assert_eq!((choice.xdp, choice.tc), (None, None));
        let unknown = changed(|facts| facts.xdp = None);
        assert_eq!(
            choose(OffloadMode::Auto, &unknown).xdp,
            None,
            "trying shows"
        );
    }

    #[test]
    fn xdp_is_not_used_where_it_would_do_harm() {
        let cases = [
            (loopback(), Obstacle::Loopback),
            (veth(), Obstacle::Virtual("veth".to_owned())),
            (
                changed(|facts| facts.interface.ethernet = false),
                Obstacle::NoEthernet,
            ),
            (
                changed(|facts| facts.xdp = Some(XdpFeatures::default())),
                Obstacle::NoNativeXdp,
            ),
            (
                changed(|facts| facts.vlan = Some("eth0.5".to_owned())),
                Obstacle::HiddenVlans("eth0.5".to_owned()),
            ),
            (
                changed(|facts| facts.interface.xdp = Some(7)),
                Obstacle::ForeignProgram(7),
            ),
            (
                // A bond of veths.
                changed(|facts| facts.lower = vec![veth().interface]),
                Obstacle::Virtual("veth".to_owned()),
            ),
        ];
        for (facts, obstacle) in cases {
            assert_eq!(choose(OffloadMode::Auto, &facts).xdp, Some(obstacle));
        }
        let unstripped = changed(|facts| {
            (facts.strips_tags, facts.vlan) = (false, Some("eth0.5".to_owned()));
        });
        assert_eq!(
            choose(OffloadMode::Auto, &unstripped).xdp,
            None,
            "the program sees the tags"
        );
    }

    #[test]
    fn required_xdp_works_on_a_veth_and_never_replaces_other_programs() {
        assert_eq!(choose(OffloadMode::Xdp, &veth()).xdp, None);
        let foreign = changed(|facts| facts.interface.xdp = Some(7));
        let choice = choose(OffloadMode::Xdp, &foreign);
        assert!(choice.insists && choice.xdp == Some(Obstacle::ForeignProgram(7)));
        assert!(
            !choose(OffloadMode::Xdp, &loopback()).insists,
            "loopback is left to user space"
        );
        let indirect = changed(|facts| facts.indirect = true);
        for mode in [OffloadMode::Xdp, OffloadMode::Tc] {
            assert!(!choose(mode, &indirect).insists, "another one may do");
        }
    }

    #[test]
    fn a_classifier_runs_wherever_there_are_ethernet_headers_and_on_loopback() {
        for facts in [hardware(), veth(), loopback()] {
            let choice = choose(OffloadMode::Tc, &facts);
            assert_eq!((choice.xdp, choice.tc), (Some(Obstacle::NotWanted), None));
        }
        let tunnel = changed(|facts| facts.interface.ethernet = false);
        assert_eq!(
            choose(OffloadMode::Tc, &tunnel).tc,
            Some(Obstacle::NoEthernet)
        );
    }

    #[test]
    fn nothing_is_tried_when_it_is_off() {
        let choice = choose(OffloadMode::Off, &hardware());
        assert_eq!(choice.xdp, Some(Obstacle::NotWanted));
        assert_eq!(choice.tc, Some(Obstacle::NotWanted));
    }
}
