//! The server's own programs over a fixed table. This shows the cost of relaying in the kernel with every check,
//! counter and bucket, without a server.

use std::time::Duration;

use ::io::netlink::interface_index;
use bpf::relay::{
    Attached, BindingLimit, Bucket, FlowEntry, FlowKey, NextHop, NextHops, Relay, Settings, Table,
};

use super::FloorError;
use crate::bench::layout::{self, CLIENT, PEER, Port, RELAY, SERVER, server_address};

/// Far above what any load reaches, so that every datagram is charged and none is dropped. Bytes per second.
const BYTES_PER_S: u64 = 10_000_000_000;
/// Longer than any benchmark.
const FOR_EVER: Duration = Duration::from_secs(1 << 20);
const TO_CLIENT: u32 = 1;
const TO_PEER: u32 = 2;
const MTU: u16 = 1500;

/// Relays until the process is killed.
pub(super) fn run(xdp: bool, flows: u16) -> Result<(), FloorError> {
    let flows = flows.max(1);
    let mut relay = Relay::load(&Settings {
        listener_ports: vec![server_address().port()],
        relay_ports: layout::static_relay(0).port()..=layout::static_relay(flows - 1).port(),
        channels: flows.into(),
        buckets: flows.into(),
        next_hops: TO_PEER,
        binding: Some(BindingLimit::default()),
    })?;
    relay.set_listener(server_address(), true)?;
    let mut hops = relay.next_hops()?;
    hop(&mut hops, TO_CLIENT, (&SERVER, &CLIENT))?;
    hop(&mut hops, TO_PEER, (&RELAY, &PEER))?;
    let buckets = relay.buckets()?;
    let mut table = relay.table();
    for flow in 0..flows {
        if let Some(bucket) = buckets.get(flow.into()) {
            bucket.set(Bucket::scale(BYTES_PER_S), 1_000_000);
        }
        enter(&mut table, flow)?;
    }
    let _attached = [
        attach(&mut relay, &SERVER, xdp)?,
        attach(&mut relay, &RELAY, xdp)?,
    ];
    loop {
        std::thread::park();
    }
}

fn attach(relay: &mut Relay, port: &Port, xdp: bool) -> Result<Attached, FloorError> {
    let index = interface_index(port.device)?;
    Ok(match xdp {
        true => relay.attach_xdp(index, port.mac)?,
        false => relay.attach_tc(index)?,
    })
}

fn hop(hops: &mut NextHops, index: u32, wire: (&Port, &Port)) -> Result<(), FloorError> {
    let (near, far) = wire;
    let hop = NextHop {
        good_until_ns: deadline_ns(),
        interface: interface_index(near.device)?,
        mtu: MTU,
        usable_xdp: true,
        usable_xdp_tx: true,
        usable_tc: true,
        destination: far.mac,
        source: near.mac,
    };
    Ok(hops.set(index, &hop)?)
}

/// Enters both directions of a flow.
fn enter(table: &mut Table, flow: u16) -> Result<(), FloorError> {
    let (client, peer, relay) = (
        layout::client(flow),
        layout::peer(flow),
        layout::static_relay(flow),
    );
    let channel = Some(layout::CHANNEL);
    let number = u32::from(flow);
    let entry = |source, destination, channel, next_hop| FlowEntry {
        source,
        destination,
        channel,
        own_relay: false,
        next_hop,
        bucket: Some(number),
        deadline_ns: deadline_ns(),
        settles: false,
    };
    let key = |remote, local, channel| FlowKey {
        remote,
        local,
        channel,
    };
    let to_peer = entry(relay, peer, None, TO_PEER);
    let to_client = entry(server_address(), client, channel, TO_CLIENT);
    table.insert(&key(client, server_address(), channel), &to_peer)?;
    Ok(table.insert(&key(peer, relay, None), &to_client)?)
}

fn deadline_ns() -> u64 {
    // Twelve days: far from the end of the clock.
    ::io::clock::monotonic_ns() + FOR_EVER.as_nanos() as u64
}
