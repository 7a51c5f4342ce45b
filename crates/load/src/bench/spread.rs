//! How evenly a server with two workers distributes its allocations.
//!
//! The kernel's hash chooses a worker for each client at random. A server with steering corrects this, so that both
//! workers always have about the same number of allocations. The metrics of the server show the number of each worker.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde::Serialize;

use super::client::Allocations;
use super::error::{IoContext, SideError};
use super::layout;
use super::running::start_server;
use super::side::Side;
use super::topology::Topology;

/// Number of steps, each with `at_once` allocations.
const STEPS: u16 = 32;
/// How long a response with metrics may take.
const METRICS_TIMEOUT: Duration = Duration::from_secs(5);
/// Workers publish their counters within 50 ms after a change.
const PUBLISHING_DELAY: Duration = Duration::from_millis(60);

/// How evenly allocations were spread.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Spread {
    /// The greatest difference between the allocations of the two workers. With steering it is small; without, it is
    /// the greatest value of a random walk.
    pub apart: u32,
    /// The share of all allocations that the busier worker had at the end: 0.5 is even.
    pub busier: f64,
}

/// Starts a server and lets it allocate `at_once` at a time.
pub(super) fn measure(
    side: &Side,
    topology: &mut Topology,
    at_once: u16,
) -> Result<Spread, SideError> {
    let mut server = start_server(side, topology, at_once * STEPS)?;
    let (mut last, mut apart) = ([0; 2], 0);
    let mut held = Vec::new();
    for time in 0..STEPS {
        // One after the other: steering does not count allocations that are in progress.
        for client in time * at_once..(time + 1) * at_once {
            let mut client = Allocations::open_from(topology, client, 1)?;
            client.allocate()?;
            held.push(client);
        }
        std::thread::sleep(PUBLISHING_DELAY);
        server.check_alive()?;
        last = topology
            .in_client(allocations)
            .doing("read the server's metrics")?;
        apart = apart.max(last[0].abs_diff(last[1]));
    }
    Ok(Spread {
        apart,
        busier: share(last),
    })
}

fn share([one, other]: [u32; 2]) -> f64 {
    f64::from(one.max(other)) / f64::from((one + other).max(1))
}

/// The allocations of each worker.
fn allocations() -> io::Result<[u32; 2]> {
    let mut stream = TcpStream::connect(layout::metrics_address())?;
    stream.set_read_timeout(Some(METRICS_TIMEOUT))?;
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let of = |worker: u8| {
        let name = format!("hairpin_turn_allocations{{worker=\"{worker}\"}} ");
        let mut lines = text.lines();
        let value = lines.find_map(|line| line.strip_prefix(&name)?.trim().parse().ok());
        value.ok_or_else(|| io::Error::other(format!("there is no `{name}` in them")))
    };
    Ok([of(0)?, of(1)?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_that_of_the_busier_worker() {
        assert_eq!(share([2, 2]), 0.5);
        assert_eq!(share([1, 3]), 0.75);
        assert_eq!(share([0, 0]), 0.0);
    }
}
