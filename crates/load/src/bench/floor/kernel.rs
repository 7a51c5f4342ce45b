//! In the kernel: one hash look-up, checksums patched, out again. This process only holds the programs.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use ::io::netlink::interface_index;
use bpf::floor::{Exit, Floor, Flow, Kind};

use super::FloorError;
use crate::bench::layout::{self, CLIENT, PEER, Port, RELAY, SERVER, SERVER_ADDRESS};

/// Relays until the process is killed.
pub(super) fn run(kind: Kind, flows: u16) -> Result<(), FloorError> {
    let mut floor = Floor::load(kind, flows.into())?;
    let to_client = exit(&SERVER, &CLIENT)?;
    let to_peer = exit(&RELAY, &PEER)?;
    floor.add((0..flows).map(|flow| Flow {
        client: v4(layout::client(flow)),
        server: v4(SERVER_ADDRESS),
        channel: layout::CHANNEL,
        relay: v4(layout::static_relay(flow)),
        peer: v4(layout::peer(flow)),
        to_client,
        to_peer,
    }))?;
    floor.attach(SERVER.device)?;
    if kind != Kind::StunXdp {
        floor.attach(RELAY.device)?;
    }
    loop {
        std::thread::park();
    }
}

/// The way out of an interface to what is at the other end of its wire.
fn exit(near: &Port, far: &Port) -> Result<Exit, FloorError> {
    Ok(Exit {
        if_index: interface_index(near.device)?,
        source_mac: near.mac,
        destination_mac: far.mac,
    })
}

/// The layout has IPv4 addresses only.
fn v4(address: SocketAddr) -> SocketAddrV4 {
    match address.ip() {
        IpAddr::V4(ip) => SocketAddrV4::new(ip, address.port()),
        IpAddr::V6(_) => SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, address.port()),
    }
}
