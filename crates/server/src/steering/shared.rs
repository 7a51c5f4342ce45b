//! The steering program while two processes have sockets in the listeners' groups.
//!
//! ```text
//!  old process                                new process
//!                                             loads the program, if the old one has none
//!  each flow gets an entry; activates itself
//!                                             binds its sockets, enters them
//!                                             runs, and activates itself
//! ```

use super::numbering::{Foreign, Numbering};
use super::{Loads, SteeringInUse, Tables, most_flows};
use crate::handover::{HandoverError, Joining, JoiningSip, Offer, TakeOver};
use crate::verifier;
use bpf::steer::{Flows, Process, SlotRange, Steering as Program, Tables as Maps};
use io::UdpSocket;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The program and its maps, as the process that owns these sockets uses them.
#[derive(Debug)]
pub(crate) struct Groups {
    maps: Maps,
    /// Which of two processes this one is.
    process: Process,
    /// This process has taken over from another one. Since then the program chooses the worker of clients without an
    /// entry. It must go on to do so, because the kernel's hash would choose another worker.
    has_taken_over: bool,
}

impl Groups {
    /// No other process uses them yet.
    pub(crate) const fn alone(maps: Maps) -> Groups {
        Groups {
            maps,
            process: Process::Even,
            has_taken_over: false,
        }
    }

    /// The maps that another process has made for this one.
    ///
    /// # Errors
    /// If this process may not use them.
    pub(crate) fn of_fds(
        fds: [OwnedFd; Maps::FD_COUNT],
        process: Process,
    ) -> Result<Groups, HandoverError> {
        let maps =
            Maps::from_fds(fds).map_err(|error| HandoverError::Steering(error.to_string()))?;
        Ok(Groups {
            maps,
            process,
            has_taken_over: false,
        })
    }

    /// Which of two processes this one is.
    pub(crate) const fn process(&self) -> Process {
        self.process
    }

    /// Descriptors for another process.
    pub(crate) fn copies(&self) -> std::io::Result<[OwnedFd; Maps::FD_COUNT]> {
        let copies: Result<Vec<_>, _> = self
            .maps
            .fds()
            .iter()
            .map(|fd| fd.try_clone_to_owned())
            .collect();
        // There are as many as there were.
        copies?
            .try_into()
            .map_err(|_| std::io::ErrorKind::Other.into())
    }

    /// A handle to the table of flows.
    pub(crate) fn flows(&self) -> Result<Flows, HandoverError> {
        let flows = self.maps.flows();
        flows.map_err(|error| HandoverError::Steering(error.to_string()))
    }

    /// Makes the program send datagrams without an entry to this process.
    pub(crate) fn activate(&mut self) -> Result<(), HandoverError> {
        let activated = self.maps.activate(Some(self.process));
        activated.map_err(|error| HandoverError::Steering(error.to_string()))
    }

    /// The other process has ended, or has stopped the upgrade. Clients without an entry find their worker as before.
    /// Entries that name no slot of this process are removed.
    pub(crate) fn forget_other(&mut self, own: SlotRange) -> Result<(), HandoverError> {
        let forgotten = self
            .maps
            .activate(self.has_taken_over.then_some(self.process))
            .and_then(|()| self.maps.forget_listeners(self.process.other()))
            .and_then(|()| self.maps.flows())
            .map(|mut flows| flows.retain(own));
        let removed = forgotten.map_err(|error| HandoverError::Steering(error.to_string()))?;
        tracing::debug!(removed, "entries of the other process removed");
        Ok(())
    }
}

/// A process that takes over, before it has bound its sockets.
#[derive(Debug)]
pub(crate) struct SteeringTakeover {
    groups: Groups,
    numbering: Numbering,
    foreign: Foreign,
}

impl SteeringTakeover {
    /// Makes the old process give each of its flows an entry, and sends it the rest of `joining`. After that, this
    /// process can bind sockets: they receive no datagrams yet.
    ///
    /// # Errors
    /// If the program cannot be loaded, or the old process refuses.
    pub(crate) fn begin(
        taking: &TakeOver,
        workers: usize,
        listeners: usize,
        allocations: usize,
        joining: Joining,
        sip: impl FnOnce(Numbering) -> std::io::Result<Option<JoiningSip>>,
    ) -> Result<SteeringTakeover, HandoverError> {
        let offer = taking.offer();
        let foreign = Foreign {
            numbering: offer.numbering(),
            listeners: offer.listeners()?.into(),
        };
        let numbering = foreign
            .numbering
            .next(offer.udp.len(), workers, listeners)
            .ok_or(HandoverError::TooManyWorkers)?;
        let (mut maps, is_new) = match offer.maps()? {
            Some(fds) => (
                Maps::from_fds(fds).map_err(|error| HandoverError::Steering(error.to_string()))?,
                false,
            ),
            None => (load(offer, allocations)?, true),
        };
        let old = offer.process();
        for (number, (address, group)) in (0..).zip(foreign.listeners.iter().zip(&offer.udp)) {
            let entered = maps.set_listener(*address, old, foreign.numbering.slots_of(number));
            let first = group.first().map_or(Ok(()), |socket| maps.attach(socket));
            entered
                .and(first)
                .map_err(|error| HandoverError::Steering(error.to_string()))?;
        }
        let groups = Groups {
            maps,
            process: old.other(),
            has_taken_over: true,
        };
        let shared = is_new.then(|| groups.copies()).transpose();
        let shared = shared.map_err(HandoverError::System)?;
        taking.hold(&Joining {
            maps: shared.map_or(Vec::new(), Vec::from),
            sip: sip(numbering).map_err(HandoverError::System)?,
            ..joining
        })?;
        Ok(SteeringTakeover {
            groups,
            numbering,
            foreign,
        })
    }

    /// The numbers of this process's workers.
    pub(crate) const fn numbering(&self) -> Numbering {
        self.numbering
    }

    /// The UDP listeners of the old process.
    pub(crate) fn listeners(&self) -> &[SocketAddr] {
        &self.foreign.listeners
    }

    /// Enters this process's sockets: one list per listener, one socket per worker. They receive no datagrams yet.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub(crate) fn enter(
        mut self,
        sockets: &[Vec<UdpSocket>],
    ) -> Result<(SteeringInUse, Tables), HandoverError> {
        let refused = |error: bpf::BpfError| HandoverError::Steering(error.to_string());
        let maps = &mut self.groups.maps;
        let process = self.groups.process;
        maps.forget_listeners(process).map_err(refused)?;
        for (slot, socket) in (self.numbering.first_slot..).zip(sockets.iter().flatten()) {
            maps.set_socket(slot, socket).map_err(refused)?;
        }
        let firsts = sockets.iter().filter_map(|group| group.first());
        for (number, socket) in (0..).zip(firsts) {
            let slots = self.numbering.slots_of(number);
            maps.set_listener(socket.local_addr(), process, slots)
                .map_err(refused)?;
            maps.attach(socket).map_err(refused)?;
        }
        let workers = usize::from(self.numbering.workers);
        let flows = (0..=workers)
            .map(|_| self.groups.flows())
            .collect::<Result<_, _>>()?;
        let tables = Tables {
            flows,
            loads: Arc::new(Loads::new(workers)),
            numbering: self.numbering,
            foreign: Some(self.foreign),
            groups: Some(self.groups),
        };
        Ok((SteeringInUse::Bpf, tables))
    }
}

/// Loads the program for an old process that has none, and enters that one's sockets.
fn load(offer: &Offer, allocations: usize) -> Result<Maps, HandoverError> {
    let sockets = offer.numbering().slots(offer.udp.len());
    let loaded = Program::load(sockets.count.saturating_mul(4), most_flows(allocations));
    let mut program = loaded.map_err(|error| {
        verifier::log_at_debug(&error);
        HandoverError::NoProgram(error.to_string())
    })?;
    let entered = (sockets.first..)
        .zip(offer.udp.iter().flatten())
        .try_for_each(|(slot, socket)| program.set_socket(slot, &socket.as_fd()));
    entered
        .and_then(|()| program.tables())
        .map_err(|error| HandoverError::Steering(error.to_string()))
}
