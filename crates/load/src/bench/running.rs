//! A started server, and what is necessary to load it: its allocations, or its layout.

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
/// Flows whose payload is checked with sockets before a scenario; the counter checks the heads of
/// all.
const CHECKED_FLOWS: u16 = 4;

/// A started server.
pub(crate) struct Running {
    server: Server,
    allocations: Option<Allocations>,
    relays: Vec<SocketAddr>,
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
    /// TURN server. `sockets`: whether clients' sockets are going to send.
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
            // Nothing is relayed: it answers, and that is all it has to do.
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

    /// Checks payload with sockets, then returns a meter for the scenario.
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
        // The allocating clients' sockets go back to their event loop.
        clients
            .iter()
            .try_for_each(|socket| socket.set_nonblocking(true))
            .doing("make sockets non-blocking")?;
        result
    }

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

    /// Sockets at the client ports of the layout; none for a TURN server, whose clients have them.
    fn static_clients(&self, topology: &Topology) -> Result<Vec<UdpSocket>, SideError> {
        if self.turn {
            return Ok(Vec::new());
        }
        // As many as relays, which are numbered with 16 bits.
        let flows = CHECKED_FLOWS.min(self.relays.len() as u16);
        client::sockets(topology, flows)
    }
}

/// Starts a side's server and waits until it answers Binding requests, if it can.
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
