//! Data from one allocation through the relay to another one of ours, and back.

use std::net::SocketAddr;
use std::time::Duration;

use turn::client::Event;

use super::error::ProbeError;
use super::link::{ProbeClient, Step};

/// Datagrams that make the round trip.
const ROUND_TRIPS: u32 = 5;
/// How long one of them is waited for before the next is sent.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(400);

/// Data through the relay and back.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RelayedRoundTrip {
    /// From one allocation to the other and back: four times between here and the server. The median of a few.
    pub round_trip: Duration,
    /// The other allocation's relayed transport address.
    pub peer: SocketAddr,
    /// How many datagrams were sent from here for it.
    pub sent: u32,
    /// How many came back.
    pub returned: u32,
}

/// Sends data from `near` by a channel to `far`, which answers by Send indications.
pub(super) fn round_trip(
    near: &mut ProbeClient,
    far: &mut ProbeClient,
    timeout: Duration,
) -> Result<RelayedRoundTrip, ProbeError> {
    let (from, to) = common_family(near, far)?;
    permit(far, from, timeout)?;
    bind(near, to, timeout)?;
    let start = ::io::clock::monotonic_ns();
    let mut trips = Vec::new();
    let mut sent = 0u32;
    while trips.len() < ROUND_TRIPS as usize {
        let waited = Duration::from_nanos(::io::clock::monotonic_ns() - start);
        if waited >= timeout {
            break;
        }
        let mut payload = *b"hairpin probe 0000";
        payload[14..].copy_from_slice(&sent.to_be_bytes());
        sent += 1;
        trips.extend(one_trip(near, far, (from, to), &payload));
    }
    trips.sort();
    let waited = Duration::from_nanos(::io::clock::monotonic_ns() - start);
    match trips.get(trips.len() / 2) {
        Some(&round_trip) => Ok(RelayedRoundTrip {
            round_trip,
            peer: to,
            sent,
            returned: trips.len() as u32,
        }),
        None => Err(ProbeError::DataLost {
            from,
            to,
            sent,
            waited,
        }),
    }
}

/// One datagram there and back; `None` if it, or the response to it, is lost.
fn one_trip(
    near: &mut ProbeClient,
    far: &mut ProbeClient,
    (from, to): (SocketAddr, SocketAddr),
    payload: &[u8],
) -> Option<Duration> {
    let start = ::io::clock::monotonic_ns();
    if !near.send(to, payload) || !receive(far, from, payload) {
        return None;
    }
    if !far.send(from, payload) || !receive(near, to, payload) {
        return None;
    }
    Some(Duration::from_nanos(::io::clock::monotonic_ns() - start))
}

/// Waits for `payload` from `peer`.
fn receive(link: &mut ProbeClient, peer: SocketAddr, payload: &[u8]) -> bool {
    let deadline = turn::Mono(::io::clock::monotonic_ns()).plus(RESPONSE_TIMEOUT);
    loop {
        match link.step(deadline, &mut 0) {
            Step::Data {
                peer: from,
                payload: found,
            } if from == peer && link.bytes(found.clone()) == payload => {
                return true;
            }
            Step::Data { .. } | Step::Event(_) => {}
            Step::Deadline => return false,
        }
    }
}

/// A relayed address of each that can reach the other.
fn common_family(
    near: &ProbeClient,
    far: &ProbeClient,
) -> Result<(SocketAddr, SocketAddr), ProbeError> {
    let addresses = |link: &ProbeClient| {
        let client = link.client();
        client
            .relayed()
            .into_iter()
            .chain(client.additional_relayed())
            .collect::<Vec<_>>()
    };
    let (ours, theirs) = (addresses(near), addresses(far));
    for from in &ours {
        if let Some(to) = theirs.iter().find(|to| to.is_ipv4() == from.is_ipv4()) {
            return Ok((*from, *to));
        }
    }
    let none = SocketAddr::from(([0, 0, 0, 0], 0));
    Err(ProbeError::NoCommonFamily {
        server: near.server(),
        from: ours.first().copied().unwrap_or(none),
        to: theirs.first().copied().unwrap_or(none),
    })
}

fn permit(link: &mut ProbeClient, peer: SocketAddr, timeout: Duration) -> Result<(), ProbeError> {
    link.call(|client, now| _ = client.permit(now, &[peer.ip()]));
    link.wait("CreatePermission", timeout, |event| match event {
        Event::Permitted { .. } => Some(Ok(())),
        Event::PermissionFailed { error, .. } => Some(Err(error)),
        _ => None,
    })
}

fn bind(link: &mut ProbeClient, peer: SocketAddr, timeout: Duration) -> Result<(), ProbeError> {
    link.call(|client, now| _ = client.bind_channel(now, peer));
    link.wait("ChannelBind", timeout, |event| match event {
        Event::ChannelBound { .. } => Some(Ok(())),
        Event::ChannelFailed { error, .. } => Some(Err(error)),
        _ => None,
    })
}
