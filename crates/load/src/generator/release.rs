//! Releases the allocations of a run.

use std::time::Duration;

use turn::client::Event;

use super::ReceiveSocket;
use crate::client::{ClientId, ClientParts, Data, Driver, DriverOptions, Handler};

/// Releases in flight at once.
const IN_FLIGHT: usize = 64;

/// Deletes the allocations behind `receive_sockets` (RFC 8656 §8: a Refresh with a lifetime of 0) and returns how many
/// were not confirmed. Gives up when nothing has been confirmed for `timeout`.
pub(super) fn release(receive_sockets: Vec<ReceiveSocket>, timeout: Duration) -> u64 {
    let clients = receive_sockets
        .into_iter()
        .filter_map(ReceiveSocket::into_client);
    let clients: Vec<ClientParts> = clients
        .filter(|parts| parts.client.relayed().is_some())
        .collect();
    let count = clients.len() as u64;
    if clients.is_empty() {
        return 0;
    }
    let Ok(mut driver) = Driver::new(&DriverOptions::default()) else {
        return count;
    };
    let adopted: Vec<ClientId> = clients
        .into_iter()
        .filter_map(|parts| driver.adopt(parts).ok())
        .collect();
    count - release_all(&mut driver, adopted, timeout)
}

/// Deletes the allocations of these clients and returns how many were confirmed.
pub(super) fn release_all(driver: &mut Driver, clients: Vec<ClientId>, timeout: Duration) -> u64 {
    let mut releases = Releases {
        waiting: clients,
        in_flight: 0,
        confirmed: 0,
    };
    for _ in 0..IN_FLIGHT {
        releases.next(driver);
    }
    let mut last = None;
    while releases.in_flight > 0 && last != Some(releases.in_flight + releases.waiting.len()) {
        last = Some(releases.in_flight + releases.waiting.len());
        let done = |_: &Driver, releases: &Releases| releases.in_flight == 0;
        if driver.run_until(timeout, &mut releases, done).is_err() {
            break;
        }
    }
    releases.confirmed
}

struct Releases {
    waiting: Vec<ClientId>,
    in_flight: usize,
    confirmed: u64,
}

impl Releases {
    fn next(&mut self, driver: &mut Driver) {
        while let Some(id) = self.waiting.pop() {
            let asked = driver.with(id, |client, now| client.release(now, None));
            if matches!(asked, Some(Ok(()))) {
                self.in_flight += 1;
                return;
            }
        }
    }
}

impl Handler for Releases {
    fn event(&mut self, driver: &mut Driver, id: ClientId, event: Event) {
        match event {
            Event::Released { .. } | Event::Lost(_) => self.confirmed += 1,
            Event::RefreshFailed(_) => {}
            _ => return,
        }
        // It has nothing more to say; its socket is closed.
        drop(driver.release(id));
        self.in_flight = self.in_flight.saturating_sub(1);
        self.next(driver);
    }

    fn data(&mut self, _: ClientId, _: Data<'_>) {}
}
