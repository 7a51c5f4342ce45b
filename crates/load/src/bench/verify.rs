//! The payload check: real sockets at both ends, every byte looked at.
//!
//! It is also how a statically configured server shows that it is ready: the first datagram comes
//! through.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use bpf::payload;
use stun::channel_data::ChannelData;

use super::error::{IoContext, SideError};
use super::layout::{self, server_address};
use super::scenario::Direction;
use super::topology::Topology;

/// Datagrams per flow, direction and length.
const DATAGRAMS_PER_FLOW: u32 = 16;
/// How long one datagram may take before the server is known to be ready. If it is not, the datagram is lost, and the
/// next one is sent.
const ARRIVAL_AT_START: Duration = Duration::from_millis(500);
/// How long one datagram may take afterwards. On a machine that is busy otherwise the server may wait for its
/// processor.
const ARRIVAL_TIMEOUT: Duration = Duration::from_secs(5);
const MAX_PAYLOAD_BYTES: usize = 2048;

/// Both ends of some flows. The client's sockets are those that allocated, so they are lent.
pub(crate) struct Ends<'a> {
    clients: Vec<&'a UdpSocket>,
    peers: Vec<UdpSocket>,
    relays: &'a [SocketAddr],
    /// Clients send and receive no ChannelData.
    raw: bool,
}

impl<'a> Ends<'a> {
    /// Opens the peers' sockets for as many flows as there are clients.
    pub(crate) fn open(
        topology: &Topology,
        clients: Vec<&'a UdpSocket>,
        relays: &'a [SocketAddr],
        raw: bool,
    ) -> Result<Ends<'a>, SideError> {
        let count = u16::try_from(clients.len().min(relays.len())).unwrap_or(u16::MAX);
        let peers = topology
            .in_peer(|| {
                (0..count)
                    .map(|flow| UdpSocket::bind(layout::peer(flow)))
                    .collect::<io::Result<Vec<_>>>()
            })
            .doing("open peer sockets")?;
        for socket in peers.iter().chain(clients.iter().copied()) {
            socket.set_nonblocking(false).doing("make a socket wait")?;
        }
        Ok(Ends {
            clients,
            peers,
            relays,
            raw,
        })
    }

    fn set_timeout(&self, timeout: Duration) -> Result<(), SideError> {
        let mut sockets = self.peers.iter().chain(self.clients.iter().copied());
        sockets
            .try_for_each(|socket| socket.set_read_timeout(Some(timeout)))
            .doing("set a timeout")
    }

    /// Sends a few datagrams of each flow and looks at every byte that comes out.
    pub(crate) fn check(&self, direction: Direction, length: usize) -> Result<(), SideError> {
        let ways: &[Direction] = match direction {
            Direction::Both => &[Direction::ClientToPeer, Direction::PeerToClient],
            Direction::ClientToPeer => &[Direction::ClientToPeer],
            Direction::PeerToClient => &[Direction::PeerToClient],
        };
        self.set_timeout(ARRIVAL_TIMEOUT)?;
        for way in ways {
            for flow in 0..self.peers.len() {
                for sequence in 0..DATAGRAMS_PER_FLOW {
                    self.pass(flow, *way, length, sequence)?;
                }
            }
        }
        Ok(())
    }

    /// Sends datagrams of flow 0 until one comes through. `alive` may say that waiting is useless.
    pub(crate) fn wait(
        &self,
        direction: Direction,
        limit: Duration,
        mut alive: impl FnMut() -> Result<(), SideError>,
    ) -> Result<bool, SideError> {
        self.set_timeout(ARRIVAL_AT_START)?;
        let deadline = Instant::now() + limit;
        let way = if direction == Direction::PeerToClient {
            direction
        } else {
            Direction::ClientToPeer
        };
        while Instant::now() < deadline {
            alive()?;
            // A sequence that the check does not use: a late arrival is not taken for one of its
            // own.
            match self.pass(0, way, payload::MIN_LEN, u32::MAX) {
                Ok(()) => return Ok(true),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
        Ok(false)
    }

    fn pass(
        &self,
        flow: usize,
        way: Direction,
        length: usize,
        sequence: u32,
    ) -> Result<(), SideError> {
        let (client, peer) = (self.clients[flow], &self.peers[flow]);
        // Flows are numbered with 16 bits.
        let number = flow as u16;
        let mut sent = vec![0; length];
        payload::fill(&mut sent, number.into(), sequence);
        if way == Direction::ClientToPeer {
            let datagram = match self.raw {
                true => sent.clone(),
                false => channel_data(&sent),
            };
            client.send(&datagram).doing("send to the server")?;
            let (received, from) = receive(peer)?;
            compare(flow, &sent, &received)?;
            expect_address("the relayed address", self.relays[flow], from)
        } else {
            peer.send_to(&sent, self.relays[flow])
                .doing("send to the relayed address")?;
            let (received, from) = receive(client)?;
            if self.raw {
                compare(flow, &sent, &received)?;
                return expect_address("the server", server_address(), from);
            }
            let data = ChannelData::parse_datagram(&received)
                .map_err(|error| SideError::Payload(format!("not ChannelData: {error}")))?;
            if data.number.get() != layout::CHANNEL {
                return Err(SideError::Payload(format!(
                    "flow {flow} arrived on channel {}",
                    data.number
                )));
            }
            compare(flow, &sent, data.payload)?;
            expect_address("the server", server_address(), from)
        }
    }
}

/// A ChannelData message without padding (RFC 8656 §12.4).
pub(crate) fn channel_data(payload: &[u8]) -> Vec<u8> {
    // Payloads are at most payload::MAX_LEN.
    let length = (payload.len() as u16).to_be_bytes();
    [&layout::CHANNEL.to_be_bytes()[..], &length, payload].concat()
}

/// The next datagram that is not a late response to the allocating client.
fn receive(socket: &UdpSocket) -> Result<(Vec<u8>, SocketAddr), SideError> {
    let mut buffer = vec![0; MAX_PAYLOAD_BYTES];
    loop {
        let (length, from) = match socket.recv_from(&mut buffer) {
            Ok(received) => received,
            // A signal for the process, such as that of Ctrl-C, says nothing about the datagram.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failure_to_receive(error)),
        };
        if stun::Message::parse(&buffer[..length]).is_err() {
            buffer.truncate(length);
            return Ok((buffer, from));
        }
    }
}

fn failure_to_receive(error: io::Error) -> SideError {
    match error.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => SideError::Lost,
        _ => SideError::Io {
            what: "receive a relayed datagram",
            source: error,
        },
    }
}

fn compare(flow: usize, sent: &[u8], received: &[u8]) -> Result<(), SideError> {
    if sent == received {
        return Ok(());
    }
    let at = sent.iter().zip(received).position(|(a, b)| a != b);
    let text = match at {
        Some(at) => format!("flow {flow}: byte {at} of {} differs", sent.len()),
        None => format!(
            "flow {flow}: {} bytes arrived as {}",
            sent.len(),
            received.len()
        ),
    };
    Err(SideError::Payload(text))
}

fn expect_address(what: &str, wanted: SocketAddr, found: SocketAddr) -> Result<(), SideError> {
    match wanted == found {
        true => Ok(()),
        false => Err(SideError::Payload(format!(
            "a datagram came from {found}, not from {what} {wanted}"
        ))),
    }
}
