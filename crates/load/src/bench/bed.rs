//! The test bed of one server: its network, the generator at both far ends, and the counters there.

use std::net::SocketAddr;

use ::io::netlink::interface_index;
use bpf::BpfError;
use bpf::count::{ArrivingPayload, Counter, Expectation, ExpectedFlow, Hook, Totals};
use bpf::inject::{Datagram, Flow, Injector};

use super::error::{BenchError, IoContext, SideError};
use super::layout::{
    self, CLIENT_DEVICE, FIRST_CLIENT_PORT, FIRST_PEER_PORT, PEER_DEVICE, server_address,
};
use super::napi::Cpus;
use super::scenario::{Direction, FlowOrder, Scenario, Sources};
use super::topology::Topology;

/// Devices of the injector.
const FROM_CLIENT: u32 = 0;
const FROM_PEER: u32 = 1;

/// One payload in this many is compared in full; of every datagram the head is checked.
const VERIFY_ONE_IN: u32 = 64;

/// Network, generator and counters; kept over all rounds.
pub(crate) struct TestBed {
    pub(crate) topology: Topology,
    pub(crate) injector: Injector,
    at_client: Counter,
    at_peer: Counter,
    /// The mask that the numbers of flows are XORed with in everything that is sent. Each run has its own mask, so a
    /// server cannot replay datagrams of another run.
    pub(crate) flow_mask: u32,
}

impl TestBed {
    /// Builds the network and attaches the counters.
    pub(crate) fn build(cpus: Cpus, sink: Hook, flows: u16) -> Result<TestBed, BenchError> {
        let mut topology = Topology::build(cpus)?;
        let flows = u32::from(flows.max(1));
        // Both directions at once need two frames per flow.
        let mut injector = Injector::load(2 * flows)?;
        let mut at_client = Counter::load(sink, flows)?;
        let mut at_peer = Counter::load(sink, flows)?;
        topology
            .in_client(|| {
                let index = interface_index(CLIENT_DEVICE)?;
                Ok(injector
                    .set_device(FROM_CLIENT, index)
                    .and_then(|()| at_client.attach(CLIENT_DEVICE)))
            })
            .network("find the client's interface")??;
        topology
            .in_peer(|| {
                let index = interface_index(PEER_DEVICE)?;
                Ok(injector
                    .set_device(FROM_PEER, index)
                    .and_then(|()| at_peer.attach(PEER_DEVICE)))
            })
            .network("find the peer's interface")??;
        topology
            .pin()
            .network("pin the interfaces' kernel threads")?;
        Ok(TestBed {
            topology,
            injector,
            at_client,
            at_peer,
            flow_mask: flow_mask().network("get random numbers")?,
        })
    }

    /// Readies generator and counters for a scenario. `relays` are the relayed addresses of the
    /// flows. `raw`: clients send and receive payloads without ChannelData.
    pub(crate) fn prepare(
        &mut self,
        scenario: &Scenario,
        relays: &[SocketAddr],
        raw: bool,
    ) -> Result<(), SideError> {
        let load = Load::new(scenario, relays, raw, self.flow_mask)?;
        self.injector.set_flows(&load.flows)?;
        self.injector.scatter_sources(scenario.is_spoofed());
        for (counter, expectation) in [
            (&mut self.at_client, &load.at_client),
            (&mut self.at_peer, &load.at_peer),
        ] {
            match expectation {
                Some(expectation) => counter.expect(expectation)?,
                None => counter.pass_everything()?,
            }
        }
        // A server that attaches XDP has made new threads of its interfaces.
        self.topology
            .pin()
            .doing("pin the interfaces' kernel threads")
    }

    /// Lets everything through to the sockets at both ends.
    pub(crate) fn open(&mut self) -> Result<(), SideError> {
        self.at_client.pass_everything()?;
        Ok(self.at_peer.pass_everything()?)
    }

    /// What has been delivered at both ends since the bed was built.
    pub(crate) fn delivered(&mut self) -> Result<Totals, BpfError> {
        Ok(self.at_client.totals()? + self.at_peer.totals()?)
    }
}

/// A random mask: two runs have the same one with a probability of one in four billion.
fn flow_mask() -> std::io::Result<u32> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes).map_err(std::io::Error::other)?;
    Ok(u32::from_ne_bytes(bytes))
}

/// A scenario as frames to send and datagrams to expect.
struct Load {
    flows: Vec<Flow>,
    at_client: Option<Expectation>,
    at_peer: Option<Expectation>,
}

impl Load {
    fn new(
        scenario: &Scenario,
        relays: &[SocketAddr],
        raw: bool,
        flow_mask: u32,
    ) -> Result<Load, BpfError> {
        match *scenario {
            Scenario::Relay {
                flows,
                order,
                direction,
                payload,
                ..
            } => {
                let payload = (payload.into(), raw);
                let mut load = Load::relay(flows, direction, payload, relays, flow_mask)?;
                if order == FlowOrder::Random {
                    permute(&mut load.flows);
                }
                Ok(load)
            }
            Scenario::Binding { clients, sources } => Load::binding(clients, sources, flow_mask),
            Scenario::Spread { .. }
            | Scenario::Sip { .. }
            | Scenario::SipOverload { .. }
            | Scenario::SipMemory { .. }
            | Scenario::Connections { .. }
            | Scenario::Handshakes { .. }
            | Scenario::Churn { .. }
            | Scenario::Memory { .. } => Err(BpfError::Flows("this scenario has no frames")),
        }
    }

    fn relay(
        flows: u16,
        direction: Direction,
        (payload, raw): (usize, bool),
        relays: &[SocketAddr],
        flow_mask: u32,
    ) -> Result<Load, BpfError> {
        let relays = relays
            .get(..usize::from(flows))
            .ok_or(BpfError::Flows("fewer allocations than flows"))?;
        let to_peer = direction != Direction::PeerToClient;
        let to_client = direction != Direction::ClientToPeer;
        let mut frames = Vec::new();
        for (flow, relay) in (0..).zip(relays) {
            let number = u32::from(flow) ^ flow_mask;
            if to_peer {
                let path = layout::path_to_server(flow);
                let datagram = match raw {
                    true => Datagram::Raw(payload),
                    false => Datagram::ChannelData(layout::CHANNEL, payload),
                };
                frames.push(Flow::new(number, FROM_CLIENT, &path, datagram)?);
            }
            if to_client {
                let path = layout::path_to_relay(flow, *relay);
                frames.push(Flow::new(number, FROM_PEER, &path, Datagram::Raw(payload))?);
            }
        }
        let at_peer = || Expectation {
            flow_mask,
            ..expectation(
                ArrivingPayload::Raw(payload),
                FIRST_PEER_PORT,
                from_relays(relays),
            )
        };
        let arrives = match raw {
            true => ArrivingPayload::Raw(payload),
            false => ArrivingPayload::ChannelData(payload),
        };
        let at_client = || Expectation {
            flow_mask,
            ..expectation(arrives, FIRST_CLIENT_PORT, from_server(flows))
        };
        Ok(Load {
            flows: frames,
            at_client: to_client.then(at_client),
            at_peer: to_peer.then(at_peer),
        })
    }

    fn binding(clients: u16, sources: Sources, flow_mask: u32) -> Result<Load, BpfError> {
        let source = match sources {
            Sources::OwnPrefixes => layout::client_in_own_prefix,
            Sources::OneAddress => layout::client,
            Sources::Spoofed => layout::scattered_client,
        };
        let frame = |client: u16| {
            let path = layout::path_from(source(client));
            let number = u32::from(client) ^ flow_mask;
            Flow::new(number, FROM_CLIENT, &path, Datagram::Binding)
        };
        let flows = (0..clients).map(frame).collect::<Result<_, _>>()?;
        let at_client = Expectation {
            flow_mask,
            ..expectation(
                ArrivingPayload::Binding,
                FIRST_CLIENT_PORT,
                from_server(clients),
            )
        };
        Ok(Load {
            flows,
            at_client: Some(at_client),
            at_peer: None,
        })
    }
}

/// Puts `items` in a random order (Fisher-Yates), the same in every run, so that runs can be compared.
fn permute<T>(items: &mut [T]) {
    // MMIX's linear congruential generator: its high bits are good enough for an order without a pattern.
    let mut state = 1u64;
    for left in (1..items.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        // At most `left`: the product of 32 bits and a length is far below 2^64.
        items.swap(left, (((state >> 32) * (left as u64 + 1)) >> 32) as usize);
    }
}

fn from_relays(relays: &[SocketAddr]) -> Vec<ExpectedFlow> {
    let expected = |(flow, relay): (u16, &SocketAddr)| ExpectedFlow {
        source: *relay,
        destination_port: layout::peer(flow).port(),
        channel: 0,
    };
    (0..).zip(relays).map(expected).collect()
}

fn from_server(flows: u16) -> Vec<ExpectedFlow> {
    let expected = |flow| ExpectedFlow {
        source: server_address(),
        destination_port: layout::client(flow).port(),
        channel: layout::CHANNEL,
    };
    (0..flows).map(expected).collect()
}

fn expectation(arrives: ArrivingPayload, first_port: u16, flows: Vec<ExpectedFlow>) -> Expectation {
    // As many ports as flows, which are numbered with 16 bits.
    Expectation {
        arrives,
        first_port,
        ports: flows.len() as u16,
        flows,
        flow_mask: 0,
        verify_one_in: VERIFY_ONE_IN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client ports in the order of the frames.
    fn ports(order: FlowOrder, flows: u16) -> Vec<u16> {
        let scenario = Scenario::Relay {
            flows,
            train: 1,
            order,
            direction: Direction::ClientToPeer,
            payload: 120,
        };
        let relays: Vec<SocketAddr> = (0..flows).map(layout::static_relay).collect();
        let load = Load::new(&scenario, &relays, false, 7).unwrap();
        let port = |flow: &Flow| u16::from_be_bytes([flow.frame()[34], flow.frame()[35]]);
        load.flows.iter().map(port).collect()
    }

    #[test]
    fn flows_take_turns_in_the_order_of_the_scenario() {
        let in_turn = ports(FlowOrder::InTurn, 16_000);
        assert!(in_turn.is_sorted());
        let random = ports(FlowOrder::Random, 16_000);
        assert_eq!(
            random,
            ports(FlowOrder::Random, 16_000),
            "runs are comparable"
        );
        let neighbours = random.windows(2).filter(|two| two[0].abs_diff(two[1]) < 16);
        assert!(
            neighbours.count() < 64,
            "30 are expected: a chance of 30 in 16,000 for each pair"
        );
        let mut sorted = random;
        sorted.sort_unstable();
        assert_eq!(sorted, in_turn, "each flow has one turn");
    }
}
