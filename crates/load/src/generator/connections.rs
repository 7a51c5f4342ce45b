//! Many connections, complete before anything is sent.

use std::io as stdio;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use io::{Events, Interest, Poller, clock};

use super::setup::{SetupError, reach};
use crate::ServerAddress;
use crate::probe::ProbeError;
use crate::socket::{Connection, MAX_READ_BYTES, Socket};

/// Connections that are made at once.
const IN_FLIGHT: usize = 64;
/// How often timers of handshakes are looked at.
const TIMER_INTERVAL: Duration = Duration::from_millis(100);
/// How long one may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Opens this number of connections, and completes their handshakes.
pub(super) fn all(
    server: &ServerAddress,
    local: SocketAddr,
    count: u32,
) -> Result<Vec<Socket>, SetupError> {
    reach(server, RESPONSE_TIMEOUT)?;
    let mut ready = Vec::new();
    while ready.len() < count as usize {
        let group = (count as usize - ready.len()).min(IN_FLIGHT);
        let made = self::group(server, local, group).map_err(|source| SetupError::Server {
            ready: ready.len() as u32,
            clients: count,
            source: ProbeError::connection(server.address, &server.via, source),
        })?;
        ready.extend(made);
    }
    Ok(ready)
}

fn group(server: &ServerAddress, local: SocketAddr, count: usize) -> stdio::Result<Vec<Socket>> {
    let poller = Poller::new()?;
    let mut events = Events::with_capacity(IN_FLIGHT);
    let (mut chunk, mut made) = (vec![0; MAX_READ_BYTES], Vec::new());
    for token in 0..count {
        let connection = Connection::open(server.address, local, &server.via)?;
        poller.add(&connection, token as u64, connection.first_interest())?;
        made.push(Arc::new(connection));
    }
    let end_ns = clock::monotonic_ns() + RESPONSE_TIMEOUT.as_nanos() as u64;
    while made.iter().any(|connection| !connection.is_established()) {
        let rest = end_ns.saturating_sub(clock::monotonic_ns());
        if rest == 0 {
            let text = "not all connections were complete in time";
            return Err(stdio::Error::new(stdio::ErrorKind::TimedOut, text));
        }
        poller.wait(
            &mut events,
            Some(Duration::from_nanos(rest).min(TIMER_INTERVAL)),
        )?;
        if events.iter().next().is_none() {
            // A DTLS handshake retransmits what is due.
            for connection in &made {
                connection.write().flush(&mut 0)?;
            }
        }
        for event in events.iter() {
            let connection = &made[event.token as usize];
            // Nothing is said before the first request; what comes is for TLS.
            connection.read(&mut chunk, |_| ())?;
            connection.write().flush(&mut 0)?;
            if connection.is_established() {
                poller.modify(&**connection, event.token, Interest::Read)?;
            }
        }
    }
    Ok(made.into_iter().map(Socket::Connection).collect())
}
