//! The `binding` workload: STUN Binding requests from many clients.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use io::UdpSocket;
use stun::{Builder, Class, Method, TransactionId};

use super::plan::ROUND_TRIP;
use super::setup::{OptionsError, SetupError, any_like, reserve_descriptors, socket_options};
use super::{Lane, Plan, Stamping, Stream, Tap, Target};
use crate::client::AddError;

/// What the `binding` workload needs beyond the plan's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BindingOptions {
    /// The STUN server.
    pub server: Target,
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
            clients: 10,
            local: None,
        }
    }
}

/// Puts the lanes and taps of the workload into a plan; rate, duration and threads are the caller's. Nothing is sent yet.
///
/// # Errors
/// [`SetupError`]: no clients, or a socket cannot be opened.
pub fn binding(options: &BindingOptions) -> Result<Plan, SetupError> {
    if options.clients == 0 {
        return Err(OptionsError::NoClients.into());
    }
    reserve_descriptors(options.clients.into())?;
    let server = options.server.address();
    let (lanes, taps) = flows(server, options.local, options.clients)?;
    let streams = vec![Stream::new("binding", lanes)];
    let mut plan = Plan::of_flows("binding", &format!("stun:{server}"), streams, taps);
    plan.latency_is = ROUND_TRIP.to_owned();
    let clients = options.clients.to_string();
    plan.settings.insert("clients".to_owned(), clients);
    Ok(plan)
}

/// Lanes and taps of so many clients; their flows begin with 0.
pub(super) fn flows(
    server: SocketAddr,
    local: Option<IpAddr>,
    clients: u32,
) -> Result<(Vec<Lane>, Vec<Tap>), SetupError> {
    let local = SocketAddr::new(local.unwrap_or(any_like(server.ip())), 0);
    let request = request();
    let (mut lanes, mut taps) = (Vec::new(), Vec::new());
    for flow in 0..clients {
        let socket = UdpSocket::bind(local, &socket_options())
            .map_err(|source| AddError::Socket { local, source })?;
        let socket = Arc::new(socket);
        let stamping = Stamping::TransactionId;
        lanes.push(Lane::new(socket.clone(), server, flow, stamping, &request));
        taps.push(Tap::binding(socket));
    }
    Ok((lanes, taps))
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
