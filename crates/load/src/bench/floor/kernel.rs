//! In the kernel: one hash look-up, checksums patched, out again. This process only holds the programs.

use std::net::{SocketAddr, SocketAddrV4};

use ::io::netlink::interface_index;
use bpf::floor::{Exit, Floor, Flow, Kind};

use super::FloorError;
use crate::bench::layout::{self, CLIENT, PEER, Port, RELAY, SERVER, server_address};

/// Relays until the process is killed.
pub(super) fn run(kind: Kind, flows: u16) -> Result<(), FloorError> {
    let mut floor = Floor::load(kind, flows.into())?;
    let to_client = exit(&SERVER, &CLIENT)?;
    let to_peer = exit(&RELAY, &PEER)?;
    let flow = |flow| {
        Ok(Flow {
            client: v4(layout::client(flow))?,
            server: v4(server_address())?,
            channel: layout::CHANNEL,
            relay: v4(layout::static_relay(flow))?,
            peer: v4(layout::peer(flow))?,
            to_client,
            to_peer,
        })
    };
    let flows: Vec<Flow> = (0..flows).map(flow).collect::<Result<_, FloorError>>()?;
    floor.add(flows)?;
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

/// These programs support IPv4 only.
fn v4(address: SocketAddr) -> Result<SocketAddrV4, FloorError> {
    match address {
        SocketAddr::V4(address) => Ok(address),
        SocketAddr::V6(_) => Err(FloorError::Ipv4Only),
    }
}
