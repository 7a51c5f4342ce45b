//! One step of setting clients up: who has begun, who is done, and what went wrong first.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::sync::Arc;

use turn::client::{Advice, CallError, ClientConfig, Event, RequestError};

use super::{SetupError, TurnClients};
use crate::client::{ClientId, Data, Driver, Handler};
use crate::probe::ProbeError;

/// RFC 8656 §7.4: after 437, try three client transport addresses.
const PORTS_TRIED: u8 = 3;

/// The clients of a step.
#[derive(Debug)]
pub(super) struct Progress {
    options: TurnClients,
    /// Clients in all, and those that have done this step.
    clients: u32,
    ready: u32,
    ids: Vec<ClientId>,
    /// Which client has this id, by id.
    numbers: Vec<u32>,
    /// The settings of clients that are made here.
    config: Option<Arc<ClientConfig>>,
    ports_tried: u8,
}

/// A step for a range of clients: `start` begins it for one and says how many answers to wait for.
pub(super) struct Job<F> {
    progress: Progress,
    start: F,
    waiting: Range<u32>,
    /// Answers each client waits for, by number.
    missing: Vec<u32>,
    in_flight: u32,
    failure: Option<SetupError>,
}

impl Progress {
    /// Asks for an allocation, from a new socket if the client has none.
    pub(super) fn allocate(
        &mut self,
        driver: &mut Driver,
        number: u32,
        config: &Arc<ClientConfig>,
    ) -> Result<u32, SetupError> {
        self.config = Some(config.clone());
        let server = self.options.address();
        let id = driver.add(self.options.local(), server, config.clone())?;
        match self.ids.get_mut(number as usize) {
            Some(place) => *place = id,
            None => self.ids.push(id),
        }
        self.numbers.resize(id.0 as usize + 1, u32::MAX);
        self.numbers[id.0 as usize] = number;
        let options = self.options.allocation();
        driver.with(id, |client, now| client.allocate(now, options));
        Ok(1)
    }

    /// Asks for a channel to each peer.
    pub(super) fn bind(
        &self,
        driver: &mut Driver,
        number: u32,
        peers: &[SocketAddr],
    ) -> Result<u32, SetupError> {
        for &peer in peers {
            let bound = driver.with(self.ids[number as usize], |client, now| {
                client.bind_channel(now, peer)
            });
            bound.ok_or(CallError::NoAllocation)??;
        }
        Ok(peers.len() as u32)
    }

    /// Asks for a permission for the address of each peer.
    pub(super) fn permit(
        &self,
        driver: &mut Driver,
        number: u32,
        peers: &[SocketAddr],
    ) -> Result<u32, SetupError> {
        let mut addresses: Vec<IpAddr> = peers.iter().map(SocketAddr::ip).collect();
        addresses.sort();
        addresses.dedup();
        let asked = driver.with(self.ids[number as usize], |client, now| {
            client.permit(now, &addresses)
        });
        asked.ok_or(CallError::NoAllocation)??;
        Ok(addresses.len() as u32)
    }

    /// Tries another port for a client whose 5-tuple the server believes to be in use (437). False if that was tried
    /// often enough.
    fn change_port(&mut self, driver: &mut Driver, number: u32) -> Result<bool, SetupError> {
        let Some(config) = self.config.clone() else {
            return Ok(false);
        };
        self.ports_tried += 1;
        if self.ports_tried > PORTS_TRIED {
            return Ok(false);
        }
        // The old socket is kept until the new one is open: the kernel must not choose the same port again.
        let old = driver.release(self.ids[number as usize]);
        self.allocate(driver, number, &config)?;
        drop(old);
        Ok(true)
    }

    fn refused(&self, request: &'static str, error: RequestError) -> SetupError {
        let server = self.options.server.address();
        let via = &self.options.via;
        SetupError::request((server, via), (self.ready, self.clients), request, error)
    }

    fn disconnected(&self, error: &io::Error) -> SetupError {
        let (server, via) = (self.options.server.address(), &self.options.via);
        let error = io::Error::new(error.kind(), error.to_string());
        SetupError::Server {
            ready: self.ready,
            clients: self.clients,
            source: ProbeError::connection(server, via, error),
        }
    }

    /// A refusal to relay to one peer.
    fn denied(&self, request: &'static str, peer: IpAddr, error: RequestError) -> SetupError {
        match error.code() {
            Some(403) => SetupError::PeerDenied {
                server: self.options.server.address(),
                peer,
            },
            _ => self.refused(request, error),
        }
    }
}

impl<F> Job<F>
where
    F: FnMut(&mut Progress, &mut Driver, u32) -> Result<u32, SetupError>,
{
    /// A step for clients `numbers` of `clients`, those before which have done it; `ids` has those that exist already.
    pub(super) fn new(
        options: &TurnClients,
        numbers: Range<u32>,
        clients: u32,
        ids: Vec<ClientId>,
        start: F,
    ) -> Job<F> {
        let places = ids.iter().map(|id| id.0 + 1).max().unwrap_or(0);
        let mut by_id = vec![u32::MAX; places as usize];
        for (number, id) in ids.iter().enumerate() {
            by_id[id.0 as usize] = number as u32;
        }
        Job {
            progress: Progress {
                options: options.clone(),
                clients,
                ready: numbers.start,
                ids,
                numbers: by_id,
                config: None,
                ports_tried: 0,
            },
            start,
            missing: vec![0; numbers.end as usize],
            waiting: numbers,
            in_flight: 0,
            failure: None,
        }
    }

    /// Starts as many as may be in flight.
    pub(super) fn fill(&mut self, driver: &mut Driver) {
        while self.failure.is_none() && self.in_flight < self.progress.options.in_flight.max(1) {
            let Some(number) = self.waiting.next() else {
                return;
            };
            match (self.start)(&mut self.progress, driver, number) {
                Ok(0) => {}
                Ok(answers) => {
                    self.missing[number as usize] = answers;
                    self.in_flight += 1;
                }
                Err(error) => self.failure = Some(error),
            }
        }
    }

    pub(super) fn is_done(&self) -> bool {
        self.failure.is_some() || (self.in_flight == 0 && self.waiting.is_empty())
    }

    /// The clients, and whether all went well.
    pub(super) fn end(self) -> (Vec<ClientId>, Result<(), SetupError>) {
        (self.progress.ids, self.failure.map_or(Ok(()), Err))
    }

    fn answered(&mut self, driver: &mut Driver, number: u32) {
        let missing = &mut self.missing[number as usize];
        *missing = missing.saturating_sub(1);
        if *missing == 0 {
            self.in_flight = self.in_flight.saturating_sub(1);
            self.progress.ready += 1;
            self.fill(driver);
        }
    }

    fn fail(&mut self, error: SetupError) {
        // What comes after is mostly the same.
        self.failure.get_or_insert(error);
    }
}

impl<F> Handler for Job<F>
where
    F: FnMut(&mut Progress, &mut Driver, u32) -> Result<u32, SetupError>,
{
    /// Handles an event of a client: its next step, or the failure that ends the setup.
    fn event(&mut self, driver: &mut Driver, id: ClientId, event: Event) {
        let number = self.progress.numbers.get(id.0 as usize).copied();
        let Some(number) = number.filter(|&number| number != u32::MAX) else {
            return;
        };
        let progress = &mut self.progress;
        let error = match event {
            Event::Allocated(_) | Event::Permitted { .. } | Event::ChannelBound { .. } => {
                return self.answered(driver, number);
            }
            Event::AllocateFailed { error, advice } => {
                let changed = match advice {
                    Advice::ChangePort => progress.change_port(driver, number),
                    _ => Ok(false),
                };
                match changed {
                    Ok(true) => return,
                    Ok(false) => progress.refused("Allocate", error),
                    Err(error) => error,
                }
            }
            Event::PermissionFailed { peer, error } => {
                progress.denied("CreatePermission", peer, error)
            }
            Event::ChannelFailed { peer, error, .. } => {
                progress.denied("ChannelBind", peer.ip(), error)
            }
            Event::RefreshFailed(error) => progress.refused("Refresh", error),
            _ => return,
        };
        self.fail(error);
    }

    fn disconnected(&mut self, _: &mut Driver, id: ClientId, error: &io::Error) {
        // A client that has left for another port has no number any more.
        let number = self.progress.numbers.get(id.0 as usize);
        if number.is_some_and(|&number| self.progress.ids.get(number as usize) == Some(&id)) {
            self.fail(self.progress.disconnected(error));
        }
    }

    fn data(&mut self, _: ClientId, _: Data<'_>) {}
}
