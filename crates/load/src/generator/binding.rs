//! The `binding` workload: STUN Binding requests from many clients.

use std::io as stdio;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use io::{UdpOptions, UdpSocket};
use stun::{Builder, Class, Method, TransactionId};

use super::{Lane, Plan, Stamping, Tap};

/// What the `binding` workload needs beyond the plan's own settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BindingOptions {
    /// The STUN server.
    pub server: SocketAddr,
    /// Source sockets, each with a port of its own; at least 1.
    pub clients: u32,
}

/// Puts the lanes and taps of the workload into a plan; rate, duration and threads are the caller's.
///
/// # Errors
/// When a socket cannot be opened.
pub fn binding(options: &BindingOptions) -> stdio::Result<Plan> {
    let mut plan = Plan::new("binding", &format!("stun:{}", options.server));
    plan.latency_is = "round trip".to_owned();
    plan.flows = options.clients;
    plan.settings
        .insert("clients".to_owned(), options.clients.to_string());
    let request = request();
    for flow in 0..options.clients.max(1) {
        let socket = Arc::new(bind(options.server)?);
        plan.lanes.push(Lane::new(
            socket.clone(),
            options.server,
            flow,
            Stamping::TransactionId,
            &request,
        ));
        plan.taps.push(Tap::binding(socket));
    }
    Ok(plan)
}

fn bind(server: SocketAddr) -> stdio::Result<UdpSocket> {
    let any = match server {
        SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    };
    let options = UdpOptions {
        gro: true,
        overflow: true,
        recv_buffer: Some(4 << 20),
        send_buffer: Some(4 << 20),
        ..UdpOptions::default()
    };
    UdpSocket::bind(SocketAddr::new(any, 0), &options)
}

fn request() -> Vec<u8> {
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
