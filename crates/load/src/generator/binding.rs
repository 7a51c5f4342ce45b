//! The `binding` workload: STUN Binding requests from many clients.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use io::UdpSocket;
use stun::{Builder, Class, Method, TransactionId};

use super::connections;
use super::plan::{Flows, ROUND_TRIP, Work};
use super::setup::{
    OptionsError, SetupError, reserve_descriptors, socket_options, target_name, unspecified_of,
};
use super::{Lane, Plan, ReceiveSocket, Stamping, Stream, Target};
use crate::client::AddError;
use crate::{ServerAddress, Socket, Via};

/// What the `binding` workload needs beyond the plan's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BindingOptions {
    /// The STUN server.
    pub server: Target,
    /// How it is reached.
    pub via: Via,
    /// Source sockets, each with a port of its own; at least 1.
    pub clients: u32,
    /// The address of this machine to send from; `None` leaves it to the kernel.
    pub local: Option<IpAddr>,
}

impl BindingOptions {
    /// Ten clients.
    #[must_use]
    pub fn new(server: Target) -> BindingOptions {
        BindingOptions {
            server,
            via: Via::Udp,
            clients: 10,
            local: None,
        }
    }
}

/// Puts the lanes and taps of the workload into a plan; rate, duration and threads are the caller's. Nothing is sent
/// yet.
///
/// # Errors
/// [`SetupError`]: no clients, or a socket cannot be opened.
pub fn binding(options: &BindingOptions) -> Result<Plan, SetupError> {
    if options.clients == 0 {
        return Err(OptionsError::NoClients.into());
    }
    reserve_descriptors(options.clients.into())?;
    let server = ServerAddress {
        address: options.server.address(),
        via: options.via.clone(),
    };
    let (lanes, receive_sockets) = flows(&server, options.local, options.clients)?;
    let flows = Flows {
        streams: vec![Stream::new("binding", lanes)],
        receive_sockets,
        via: server.via.clone(),
        ..Flows::default()
    };
    let target = target_name("stun", server.address, &server.via);
    let mut plan = Plan::new("binding", &target, Work::Flows(flows));
    plan.latency_is = ROUND_TRIP.to_owned();
    let clients = options.clients.to_string();
    plan.settings.insert("clients".to_owned(), clients);
    let transport = options.via.to_string();
    plan.settings.insert("transport".to_owned(), transport);
    Ok(plan)
}

/// Lanes and taps of this many clients; their flows begin with 0. Over TCP, TLS and DTLS it waits until all are
/// connected.
pub(super) fn flows(
    server: &ServerAddress,
    local: Option<IpAddr>,
    clients: u32,
) -> Result<(Vec<Lane>, Vec<ReceiveSocket>), SetupError> {
    let ServerAddress { address, via } = server;
    let local = SocketAddr::new(local.unwrap_or(unspecified_of(address.ip())), 0);
    let request = request();
    let (mut lanes, mut receive_sockets) = (Vec::new(), Vec::new());
    let sockets = match via.has_connections() {
        true => connections::all(server, local, clients)?,
        false => udp(local, clients)?,
    };
    for (socket, flow) in sockets.into_iter().zip(0..) {
        let stamping = Stamping::TransactionId;
        lanes.push(Lane::new(
            socket.clone(),
            *address,
            flow,
            stamping,
            &request,
        ));
        receive_sockets.push(ReceiveSocket::binding(socket, *address));
    }
    Ok((lanes, receive_sockets))
}

fn udp(local: SocketAddr, clients: u32) -> Result<Vec<Socket>, SetupError> {
    let open = |_| {
        let socket = UdpSocket::bind(local, &socket_options());
        let socket = socket.map_err(|source| AddError::Socket { local, source })?;
        Ok(Socket::Udp(Arc::new(socket)))
    };
    (0..clients).map(open).collect()
}

/// RFC 8489 §6.1: a Binding request without attributes.
pub(super) fn request() -> Vec<u8> {
    let mut buffer = [0; stun::HEADER_LEN];
    Builder::new(
        &mut buffer,
        Class::Request,
        Method::BINDING,
        &TransactionId([0; 12]),
    )
    .expect("a header fits into a header")
    .finish()
    .to_vec()
}
