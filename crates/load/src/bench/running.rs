//! A started server of a benchmark, and what sends load to it: its allocations, or sockets at the
//! ports of [`layout`].

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use super::bed::TestBed;
use super::client::{self, Allocations, HELD_SOCKETS};
use super::connections;
use super::error::{IoContext, SideError};
use super::layout;
use super::packets::{self, Faults, Meter, Senders};
use super::scenario::{Direction, Scenario};
use super::server::Server;
use super::side::Side;
use super::sip;
use super::spinner::Spinner;
use super::topology::Topology;
use super::verify::Ends;

/// How long a server may take to become ready.
const START_LIMIT: Duration = Duration::from_secs(10);
/// Flows of which each payload byte is checked with sockets before a scenario. The counter checks
/// only the first bytes of each payload, but of all flows.
const CHECKED_FLOWS: u16 = 4;

/// A started server.
pub(crate) struct Running {
    server: Server,
    /// The clients' allocations, if it is a TURN server and relays.
    allocations: Option<Allocations>,
    /// The relayed transport address of each flow.
    relays: Vec<SocketAddr>,
    /// It is a TURN server.
    turn: bool,
    /// Clients send no ChannelData.
    raw: bool,
    /// Faults that were found while nothing was recorded. The next meter adds its own to these.
    pub(crate) faults: Faults,
    /// The clients of a server without allocations, while a socket load runs.
    clients: Vec<UdpSocket>,
}

impl Running {
    /// Starts a side in its bed, waits until it is ready and makes `flows` allocations if it is a
    /// TURN server. `sockets`: clients' sockets will send the load, not injected frames.
    pub(crate) fn start(
        side: &Side,
        bed: &mut TestBed,
        flows: u16,
        sockets: bool,
    ) -> Result<Running, SideError> {
        let held = if sockets { HELD_SOCKETS } else { CHECKED_FLOWS };
        bed.open()?;
        let server = start_server(side, &mut bed.topology, flows)?;
        let turn = side.abilities.turn;
        let relays = (0..flows).map(layout::static_relay).collect();
        let mut running = Running {
            server,
            allocations: None,
            relays,
            turn,
            raw: side.abilities.raw,
            faults: Faults::default(),
            clients: Vec::new(),
        };
        if flows == 0 {
            // No flows, so there is nothing to allocate.
        } else if turn {
            let mut allocations = Allocations::open(&bed.topology, flows)?;
            allocations.allocate()?;
            running.relays = allocations.relays();
            allocations.close_sockets(held)?;
            running.allocations = Some(allocations);
        } else {
            running.wait_for_relaying(side, bed)?;
        }
        bed.topology
            .pin()
            .doing("pin the interfaces' kernel threads")?;
        Ok(running)
    }

    /// Prepares the clients and the test bed for a scenario, and checks with sockets that payload
    /// arrives unchanged. Returns the meter that sends and measures the load.
    pub(crate) fn meter<'a>(
        &'a mut self,
        scenario: &Scenario,
        bed: &'a mut TestBed,
        spinner: &'a Spinner,
        sockets: bool,
    ) -> Result<Meter<'a>, SideError> {
        self.server.check_alive()?;
        bed.open()?;
        if let Some(allocations) = &mut self.allocations {
            allocations.keep_alive(&bed.topology)?;
        }
        self.clients.clear();
        self.check_payload(bed, scenario)?;
        if sockets && !self.turn {
            self.clients = client::sockets(&bed.topology, scenario.flows())?;
        }
        let (first_rate, linger) = match scenario {
            Scenario::Sip { .. } | Scenario::SipOverload { .. } => {
                (sip::FIRST_RATE, sip::DRAIN_TIME)
            }
            _ => (packets::FIRST_RATE, connections::DRAIN_TIME),
        };
        let plan = connections::open(&bed.topology, scenario, self.server.id())?;
        if plan.is_none() {
            bed.prepare(scenario, &self.relays, self.raw)?;
        }
        let faults = std::mem::take(&mut self.faults);
        let flow_mask = bed.flow_mask;
        Ok(Meter {
            bed,
            faults,
            spinner,
            train: scenario.train(),
            settles: self.turn && matches!(scenario, Scenario::Relay { .. }),
            plan,
            first_rate,
            linger,
            senders: sockets.then(|| self.senders(scenario, flow_mask)).flatten(),
        })
    }

    /// An error if the server has ended.
    pub(crate) fn check_alive(&mut self) -> Result<(), SideError> {
        self.server.check_alive()
    }

    /// The sockets of a socket load, which goes from TURN clients to peers only.
    fn senders(&self, scenario: &Scenario, flow_mask: u32) -> Option<Senders<'_>> {
        let Scenario::Relay {
            flows,
            direction: Direction::ClientToPeer,
            payload,
            ..
        } = *scenario
        else {
            return None;
        };
        let flows = usize::from(flows);
        let sockets = match &self.allocations {
            Some(allocations) => allocations.sockets().take(flows).collect(),
            None => self.clients.iter().take(flows).collect(),
        };
        Some(Senders {
            sockets,
            payload: payload.into(),
            raw: self.raw,
            flow_mask,
        })
    }

    /// Sends payload through the first flows of a relay scenario, and checks each byte that arrives.
    /// Does nothing for other scenarios.
    fn check_payload(&self, bed: &TestBed, scenario: &Scenario) -> Result<(), SideError> {
        let Scenario::Relay {
            flows,
            direction,
            payload,
            ..
        } = *scenario
        else {
            return Ok(());
        };
        let own = self.static_clients(&bed.topology)?;
        let clients = match &self.allocations {
            Some(allocations) => allocations.sockets().collect(),
            None => own.iter().collect::<Vec<_>>(),
        };
        let clients: Vec<&UdpSocket> = clients
            .into_iter()
            .take(flows.min(CHECKED_FLOWS).into())
            .collect();
        let result = Ends::open(&bed.topology, clients.clone(), &self.relays, self.raw)?
            .check(direction, payload.into());
        // `Ends` has made these sockets blocking. The clients' event loop needs them non-blocking.
        clients
            .iter()
            .try_for_each(|socket| socket.set_nonblocking(true))
            .doing("make sockets non-blocking")?;
        result
    }

    /// Waits until a server without allocations relays a datagram of the first flow: then it is ready.
    fn wait_for_relaying(&mut self, side: &Side, bed: &TestBed) -> Result<(), SideError> {
        let clients = self.static_clients(&bed.topology)?;
        let ends = Ends::open(
            &bed.topology,
            clients.iter().take(1).collect(),
            &self.relays,
            self.raw,
        )?;
        let direction = if side.abilities.to_peer {
            Direction::ClientToPeer
        } else {
            Direction::PeerToClient
        };
        let server = &mut self.server;
        match ends.wait(direction, START_LIMIT, || server.check_alive())? {
            true => Ok(()),
            false => Err(self.server.silent("nothing was relayed", START_LIMIT)),
        }
    }

    /// Opens sockets at the client ports of the layout, for the flows to check. Opens none for a TURN
    /// server: the clients of its allocations have sockets.
    fn static_clients(&self, topology: &Topology) -> Result<Vec<UdpSocket>, SideError> {
        if self.turn {
            return Ok(Vec::new());
        }
        // The number of relays fits: flow numbers have 16 bits.
        let flows = CHECKED_FLOWS.min(self.relays.len() as u16);
        client::sockets(topology, flows)
    }
}

/// Starts a side's server, and waits until it is ready. A SIP server must respond to an OPTIONS
/// request, a STUN or TURN server to a Binding request. `flows` goes into its command line.
pub(crate) fn start_server(
    side: &Side,
    topology: &mut Topology,
    flows: u16,
) -> Result<Server, SideError> {
    let mut server = Server::start(side, topology, flows)?;
    if side.abilities.sip {
        let answered = sip::wait_for_answer(topology, START_LIMIT, || server.check_alive())?;
        if !answered {
            return Err(server.silent("no OPTIONS request was answered", START_LIMIT));
        }
    }
    if side.abilities.turn || side.abilities.binding {
        let answered = client::wait_for_answer(topology, START_LIMIT, || server.check_alive())?;
        if !answered {
            return Err(server.silent("no Binding request was answered", START_LIMIT));
        }
    }
    Ok(server)
}
