//! What this machine could do for relaying, found out without serving anything.

use super::attach::{Attachment, OffloadConfig, attach_tc, load_tc, refused};
use super::choice::{Facts, Obstacle, OffloadMethod, choose};
use super::machine::read_interfaces;
use super::{Offload, OffloadMode};
use crate::ports::PortRange;
use crate::rates::TableSize;
use bpf::relay::Relay;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// What could be had on one interface.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct OffloadProbe {
    /// Its name.
    pub interface: String,
    /// Its number.
    pub index: u32,
    /// By which method [`OffloadMode::Auto`] would relay.
    pub auto: OffloadMethod,
    /// The reason against native XDP; `None` if its driver says that it can. Only attaching would prove it, and may
    /// interrupt a link, so that is not tried.
    pub not_xdp: Option<Obstacle>,
    /// Whether [`OffloadMode::Xdp`] would try it all the same.
    pub xdp_on_demand: bool,
    /// Whether a classifier is attached by clsact, because the kernel has no TCX (before Linux 6.6).
    pub clsact: bool,
    /// The reason against a classifier; `None` if one was attached for a moment, which has no effect on traffic.
    pub not_tc: Option<Obstacle>,
}

/// Looks at every interface that is up and has an address. Programs are loaded, and classifiers attached for a moment;
/// they pass all packets.
///
/// # Errors
/// If the kernel does not list its interfaces.
pub fn probe_interfaces() -> std::io::Result<Vec<OffloadProbe>> {
    let everywhere = [
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    ];
    let facts = read_interfaces(&everywhere)?;
    let listeners = everywhere.map(|ip| SocketAddr::new(ip, 3478));
    let offload = Offload {
        channels: 1,
        ..Offload::default()
    };
    let wanted = OffloadConfig {
        offload,
        binding: None,
        listeners: &listeners,
        relays: &[],
        ports: PortRange::DYNAMIC,
        rates: TableSize::default(),
        tcx: true,
        other: None,
    };
    let mut relay = wanted.load();
    Ok(facts
        .iter()
        .map(|facts| prospect(facts, &mut relay))
        .collect())
}

fn prospect(facts: &Facts, relay: &mut Result<Relay, Obstacle>) -> OffloadProbe {
    let choice = choose(OffloadMode::Auto, facts);
    let demanded = choose(OffloadMode::Xdp, facts);
    let (mut not_xdp, mut not_tc, mut clsact) = (choice.xdp, choice.tc, false);
    match relay {
        Err(obstacle) => {
            not_xdp.get_or_insert_with(|| obstacle.clone());
            not_tc.get_or_insert_with(|| obstacle.clone());
        }
        Ok(relay) if not_tc.is_none() => match try_tc(relay, facts.interface.index) {
            Ok(attached) => clsact = matches!(attached, Attachment::Clsact(_)),
            Err(obstacle) => not_tc = Some(obstacle),
        },
        Ok(_) => {}
    }
    OffloadProbe {
        interface: facts.interface.name.clone(),
        index: facts.interface.index,
        auto: match (&not_xdp, &not_tc) {
            (None, _) => OffloadMethod::Xdp,
            (_, None) => OffloadMethod::Tc,
            _ => OffloadMethod::User,
        },
        xdp_on_demand: relay.is_ok() && demanded.xdp.is_none(),
        not_xdp,
        clsact,
        not_tc,
    }
}

fn try_tc(relay: &mut Relay, interface: u32) -> Result<Attachment, Obstacle> {
    let gate = load_tc(relay, true).map_err(|error| refused(&error))?;
    attach_tc(relay, gate, interface)
}
