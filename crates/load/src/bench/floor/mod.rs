//! Bare relays: what the socket interfaces, or the kernel below them, can do when nothing but the payload is handled.
//!
//! No allocations, no authentication, no permissions, no timers, no statistics: the layout of flows
//! is known beforehand, a look-up is an index into an array. What a server needs beyond its floor
//! is what it does for its users.
//!
//! `plain` calls recvfrom and sendto once per datagram. `batch` and `gro` use this project's own
//! batches: recvmmsg and sendmmsg, and `gro` lets the kernel aggregate on the way in (UDP_GRO) and
//! segment on the way out (UDP_SEGMENT). All three also answer STUN Binding requests. `xdp` and `tc` relay in the kernel
//! ([`bpf::floor`]) and do nothing else; `stun-xdp` answers Binding requests there. `program-xdp` and `program-tc` are the
//! server's own programs ([`bpf::relay`]) over a fixed table. `tcp` and `tls` relay ChannelData between connections and peers.

mod batch;
mod kernel;
mod plain;
mod program;
mod tcp;

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;

use ::io::UdpOptions;
use bpf::BpfError;
use bpf::floor::Kind;
use bpf::relay::InsertError;
use stun::Message;

use super::layout::{self, FIRST_CLIENT_PORT, MAX_STATIC_FLOWS, SERVER_ADDRESS};

/// Why a bare relay does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FloorError {
    /// The arguments are not what the benchmark passes.
    #[error(
        "usage: plain|batch|gro|tcp|tls|xdp|tc|stun-xdp|program-xdp|program-tc FLOWS (0 to {MAX_STATIC_FLOWS}); this command is for the benchmark's own use"
    )]
    Usage,
    /// A socket cannot be made or waited for.
    #[error("bare relay: {0}")]
    Io(#[from] io::Error),
    /// The kernel does not take the programs.
    #[error("bare relay: {0}")]
    Bpf(#[from] BpfError),
    /// A flow cannot be entered.
    #[error("bare relay: {0}")]
    Table(#[from] InsertError),
}

/// Runs a bare relay in the calling thread's network namespace until the process is killed.
///
/// # Errors
/// [`FloorError`]; it does not return otherwise.
pub fn main(arguments: &[String]) -> Result<(), FloorError> {
    let [kind, flows] = arguments else {
        return Err(FloorError::Usage);
    };
    let flows: u16 = flows.parse().map_err(|_| FloorError::Usage)?;
    if flows > MAX_STATIC_FLOWS {
        return Err(FloorError::Usage);
    }
    let _ = ::io::rlimit::raise_open_files();
    match kind.as_str() {
        "plain" => plain::run(flows)?,
        "batch" => batch::run(flows, false)?,
        "gro" => batch::run(flows, true)?,
        "tcp" => tcp::run(false)?,
        "tls" => tcp::run(true)?,
        "xdp" => kernel::run(Kind::RelayXdp, flows)?,
        "tc" => kernel::run(Kind::RelayTc, flows)?,
        "stun-xdp" => kernel::run(Kind::StunXdp, 0)?,
        "program-xdp" => program::run(true, flows)?,
        "program-tc" => program::run(false, flows)?,
        _ => return Err(FloorError::Usage),
    }
    Ok(())
}

/// Room for what arrives between two turns, in bytes; the system's default holds about 200
/// datagrams.
const RECEIVE_BUFFER: u32 = 4 << 20;

fn options(gro: bool) -> UdpOptions {
    UdpOptions {
        recv_buffer: Some(RECEIVE_BUFFER),
        send_buffer: Some(RECEIVE_BUFFER),
        tos: false,
        gro,
        ..UdpOptions::default()
    }
}

/// A socket of the standard library with the benchmark's buffers.
fn open(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = ::io::UdpSocket::bind(address, &options(false))?;
    Ok(socket.as_fd().try_clone_to_owned()?.into())
}

/// The listener and one relay socket per flow.
fn open_all<S>(flows: u16, open: impl Fn(SocketAddr) -> io::Result<S>) -> io::Result<(S, Vec<S>)> {
    let listener = open(SERVER_ADDRESS)?;
    let relays = (0..flows)
        .map(|flow| open(layout::static_relay(flow)))
        .collect::<io::Result<_>>()?;
    Ok((listener, relays))
}

/// The flow of a client, if it is one.
fn flow_of(client: SocketAddr, flows: usize) -> Option<usize> {
    let flow = usize::from(client.port().checked_sub(FIRST_CLIENT_PORT)?);
    (flow < flows && client.ip() == layout::CLIENT_IP).then_some(flow)
}

/// The payload of a ChannelData message on the channel of all flows.
fn payload_of(datagram: &[u8]) -> Option<&[u8]> {
    let data = stun::channel_data::ChannelData::parse_datagram(datagram).ok()?;
    (data.number.get() == layout::CHANNEL).then_some(data.payload)
}

/// The answer to a Binding request.
fn binding_answer<'a>(
    datagram: &[u8],
    client: SocketAddr,
    buffer: &'a mut [u8],
) -> Option<&'a [u8]> {
    let message = Message::parse(datagram).ok()?;
    if message.class() != stun::Class::Request || message.method() != stun::Method::BINDING {
        return None;
    }
    let mut builder = stun::Builder::new(
        buffer,
        stun::Class::Success,
        stun::Method::BINDING,
        &message.transaction_id(),
    )
    .ok()?;
    builder.push(&stun::XorMappedAddress(client)).ok()?;
    Some(builder.finish())
}
