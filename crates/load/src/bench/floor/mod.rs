//! Bare relays: what the socket interfaces, or the kernel below them, can do when nothing but the payload is handled.
//!
//! No allocations, no authentication, no permissions, no timers, no statistics: the layout of flows
//! is known beforehand, a look-up is an index into an array. What a server needs beyond its floor
//! is what it does for its users.
//!
//! `plain` calls recvfrom and sendto once per datagram. `batch` and `gro` use this project's batches: recvmmsg and
//! sendmmsg. With `gro`, the kernel also aggregates received datagrams (UDP_GRO) and segments sent ones (UDP_SEGMENT).
//! All three also answer STUN Binding requests. `xdp` and `tc` relay in the kernel ([`bpf::floor`]) and do nothing
//! else; `stun-xdp` answers Binding requests there. `program-xdp` and `program-tc` are the server's own programs
//! ([`bpf::relay`]) over a fixed table. `tcp` and `tls` relay ChannelData between connections and peers. `sip` answers
//! SIP requests, and does nothing else. `damage` and `repeat` are `plain` with a fault.

mod batch;
mod faulty;
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

use crate::sip::{Uas, UasOptions};

use super::layout::{self, FIRST_CLIENT_PORT, MAX_STATIC_FLOWS, server_address};
use super::side::REALM;

/// Why a bare relay does not run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FloorError {
    /// The arguments are not what the benchmark passes.
    #[error(
        "usage: plain|damage|repeat|batch|gro|tcp|tls|sip|xdp|tc|stun-xdp|program-xdp|program-tc FLOWS (0 to {MAX_STATIC_FLOWS}) ipv4|ipv6; this command is for the benchmark's own use"
    )]
    Usage,
    /// The programs of `xdp`, `tc` and `stun-xdp` support IPv4 only.
    #[error("bare relay: its programs know IPv4 only; leave it out of a benchmark over IPv6")]
    Ipv4Only,
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
    let [kind, flows, family] = arguments else {
        return Err(FloorError::Usage);
    };
    match family.as_str() {
        "ipv4" => {}
        "ipv6" => layout::use_ipv6(),
        _ => return Err(FloorError::Usage),
    }
    let flows: u16 = flows.parse().map_err(|_| FloorError::Usage)?;
    if flows > MAX_STATIC_FLOWS {
        return Err(FloorError::Usage);
    }
    let _ = ::io::rlimit::raise_open_files();
    match kind.as_str() {
        "plain" => plain::run(flows, plain::send)?,
        "damage" => plain::run(flows, faulty::damage)?,
        "repeat" => plain::run(flows, faulty::repeat())?,
        "batch" => batch::run(flows, false)?,
        "gro" => batch::run(flows, true)?,
        "tcp" => tcp::run(false)?,
        "tls" => tcp::run(true)?,
        "sip" => sip()?,
        "xdp" => kernel::run(Kind::RelayXdp, flows)?,
        "tc" => kernel::run(Kind::RelayTc, flows)?,
        "stun-xdp" => kernel::run(Kind::StunXdp, 0)?,
        "program-xdp" => program::run(true, flows)?,
        "program-tc" => program::run(false, flows)?,
        _ => return Err(FloorError::Usage),
    }
    Ok(())
}

/// Answers every SIP request with 200, and INVITE with 180 first, by the request's own header lines. A REGISTER without
/// credentials gets 401.
fn sip() -> Result<(), FloorError> {
    let mut options = UasOptions::new(vec![layout::sip_address()]);
    options.challenge = Some(REALM.to_owned());
    let _uas = Uas::start(&options).map_err(io::Error::other)?;
    loop {
        std::thread::park();
    }
}

/// Bytes that the listener's receive buffer and its send buffer should hold: as many as hairpin asks for.
pub const LISTENER_BUFFER: u32 = 8 << 20;
/// Datagrams received before they are handled, at most: as many as a worker of hairpin takes, once it falls behind.
pub const BATCH_LIMIT: usize = 4096;

/// The batch size limit of a relay that keeps up with its load, and of `floor-stun` and `floor-sip`: as in hairpin.
pub const BATCH: usize = 64;

/// A bare relay has the same sockets as hairpin: the options of its listeners and of its relays, which keep the
/// system's buffers.
pub(super) fn options(is_listener: bool, gro: bool) -> UdpOptions {
    match is_listener {
        true => UdpOptions {
            recv_buffer: Some(LISTENER_BUFFER),
            send_buffer: Some(LISTENER_BUFFER),
            local_address: false,
            gro,
            ..UdpOptions::listener()
        },
        false => UdpOptions {
            gro,
            ..UdpOptions::relay()
        },
    }
}

/// A socket of the standard library with the same options, and without GRO.
fn open(address: SocketAddr, is_listener: bool) -> io::Result<UdpSocket> {
    let socket = ::io::UdpSocket::bind(address, &options(is_listener, false))?;
    Ok(socket.as_fd().try_clone_to_owned()?.into())
}

/// The listener and one relay socket per flow.
fn open_all<S>(
    flows: u16,
    open: impl Fn(SocketAddr, bool) -> io::Result<S>,
) -> io::Result<(S, Vec<S>)> {
    let listener = open(server_address(), true)?;
    let relays = (0..flows)
        .map(|flow| open(layout::static_relay(flow), false))
        .collect::<io::Result<_>>()?;
    Ok((listener, relays))
}

/// The flow of a client, if it is one.
fn flow_of(client: SocketAddr, flows: usize) -> Option<usize> {
    let flow = usize::from(client.port().checked_sub(FIRST_CLIENT_PORT)?);
    (flow < flows && client.ip() == layout::client_ip()).then_some(flow)
}

/// The payload of a ChannelData message on the channel of all flows.
fn payload_of(datagram: &[u8]) -> Option<&[u8]> {
    let data = stun::channel_data::ChannelData::parse_datagram(datagram).ok()?;
    (data.number.get() == layout::CHANNEL).then_some(data.payload)
}

/// The response to a Binding request.
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
