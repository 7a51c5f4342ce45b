//! NAT behaviour discovery (RFC 5780): Binding responses from another address or to another port of the client.
//!
//! Every worker has a socket of each of the four listeners, so a response leaves by another listener of the same
//! worker. Nothing is handed over, and nothing is locked. A response never goes to an IP address that the request did
//! not come from.

use std::net::{IpAddr, SocketAddr};

use stun::{
    AttributeType, BuildError, Builder, ChangeRequest, ErrorCode, MappedAddress, Message,
    OtherAddress, Padding, ResponseOrigin, ResponsePort, XorMappedAddress,
};

use super::answer::Refusal;
use super::hash::KeyedHash;
use super::shares::Prefix;
use crate::{ClientPath, ListenerKey, Mono, Transport};

/// The longest PADDING of a response: the MTU of Ethernet, so that the response leaves in two fragments
/// (RFC 5780 §6.1). A response has no more PADDING than its request.
pub const MAX_PADDING: usize = 1500;

/// Bytes of PADDING per second that all addresses of one prefix get from one server.
const PADDING_BUDGET: u32 = 32 * MAX_PADDING as u32;

/// Places in the table of these budgets. Prefixes that share a place share its budget, so the table never grows.
const BUDGETS: usize = 1024;

const NO_PADDING: &[u8; MAX_PADDING] = &[0; MAX_PADDING];

/// The four listeners of one transport and family: two IP addresses, and two ports on each (RFC 5780 §6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiscoveryListeners {
    /// The transport between client and server. CHANGE-REQUEST and RESPONSE-PORT are for UDP only: a connection has one
    /// path.
    pub transport: Transport,
    /// What the listeners are bound to.
    pub ips: [IpAddr; 2],
    /// What clients see instead; the same without a NAT in front of the server.
    pub external: [IpAddr; 2],
    /// The ports, the same on both addresses.
    pub ports: [u16; 2],
    /// The embedder's listener of each address and port, in this order: `listeners[address][port]`. Of UDP only.
    pub listeners: [[ListenerKey; 2]; 2],
}

/// The addresses of a server for NAT behaviour discovery.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Discovery {
    /// The listeners; without any, the attributes of RFC 5780 are unknown.
    pub listeners: Vec<DiscoveryListeners>,
    /// Whether PADDING is known.
    pub padding: bool,
}

/// One of the four listeners, by the number of its address and that of its port.
#[derive(Clone, Copy)]
struct DiscoveryListener<'a> {
    of: &'a DiscoveryListeners,
    ip: usize,
    port: usize,
}

impl Discovery {
    /// The listener that a request came to, if it is one of these.
    fn place(&self, path: &ClientPath) -> Option<DiscoveryListener<'_>> {
        let (transport, local) = (path.five_tuple.transport, path.five_tuple.local);
        let found = |of: &DiscoveryListeners| {
            let ip = of.ips.iter().position(|ip| *ip == local.ip())?;
            let port = of.ports.iter().position(|port| *port == local.port())?;
            (of.transport == transport).then_some((ip, port))
        };
        self.listeners
            .iter()
            .find_map(|of| found(of).map(|(ip, port)| DiscoveryListener { of, ip, port }))
    }

    /// Whether a Binding request on this path may have an attribute of RFC 5780.
    pub(super) fn knows(&self, path: &ClientPath, attribute: AttributeType) -> bool {
        match attribute {
            AttributeType::CHANGE_REQUEST | AttributeType::RESPONSE_PORT => {}
            AttributeType::PADDING if self.padding => {}
            _ => return false,
        }
        path.five_tuple.transport == Transport::Udp && self.place(path).is_some()
    }

    /// What RFC 5780 §6.1 makes of a Binding request; `None` on other listeners.
    pub(super) fn response(
        &self,
        path: &ClientPath,
        message: &Message<'_>,
    ) -> Result<Option<Response>, Refusal> {
        let Some(place) = self.place(path) else {
            return Ok(None);
        };
        let DiscoveryListener { of, ip, port } = place;
        let bad = |_| Refusal::from(ErrorCode::BAD_REQUEST);
        let change = message.get::<ChangeRequest>().map_err(bad)?;
        let to_port = message.get::<ResponsePort>().map_err(bad)?;
        let padding = message.get::<Padding<'_>>().map_err(bad)?;
        // RFC 5780 §6.1: both together are 400; else padding would go where no request came from. No datagram can go to
        // port 0.
        let port_is_zero = to_port.is_some_and(|port| port.0 == 0);
        if port_is_zero || (to_port.is_some() && padding.is_some()) {
            return Err(ErrorCode::BAD_REQUEST.into());
        }
        let (other_ip, other_port) = (1 - ip, 1 - port);
        let from_ip = if change.is_some_and(|change| change.change_ip) {
            other_ip
        } else {
            ip
        };
        let from_port = if change.is_some_and(|change| change.change_port) {
            other_port
        } else {
            port
        };
        let mut path = *path;
        let mapped = path.five_tuple.remote;
        if (from_ip, from_port) != (ip, port) {
            path.five_tuple.local = SocketAddr::new(of.ips[from_ip], of.ports[from_port]);
            path.listener = of.listeners[from_ip][from_port];
        }
        if let Some(ResponsePort(port)) = to_port {
            path.five_tuple.remote.set_port(port);
        }
        let length = padding.map(|Padding(bytes)| bytes.len().next_multiple_of(4).min(MAX_PADDING));
        Ok(Some(Response {
            path,
            mapped,
            origin: SocketAddr::new(of.external[from_ip], of.ports[from_port]),
            other: SocketAddr::new(of.external[other_ip], of.ports[other_port]),
            padding: length,
        }))
    }
}

/// A Binding response of RFC 5780.
#[derive(Debug)]
pub(super) struct Response {
    /// The way it leaves.
    pub(super) path: ClientPath,
    /// Where the request came from.
    mapped: SocketAddr,
    origin: SocketAddr,
    other: SocketAddr,
    /// The length of PADDING; `None` if the request had none.
    pub(super) padding: Option<usize>,
}

impl Response {
    /// Its attributes, in the order of RFC 5780 §6.1.
    pub(super) fn write(&self, message: &mut Builder<'_>) -> Result<(), BuildError> {
        message
            .push(&MappedAddress(self.mapped))?
            .push(&XorMappedAddress(self.mapped))?
            .push(&ResponseOrigin(self.origin))?
            .push(&OtherAddress(self.other))?;
        if let Some(length) = self.padding {
            // `length` is at most that of NO_PADDING.
            message.push(&Padding(&NO_PADDING[..length]))?;
        }
        Ok(())
    }
}

/// How much PADDING each prefix of addresses has had in the current second.
#[derive(Debug)]
pub(super) struct PaddingBudgets {
    hash: KeyedHash,
    /// The second and the bytes. Empty until a request has PADDING.
    places: Box<[(u64, u32)]>,
}

impl PaddingBudgets {
    pub(super) fn new(hash: KeyedHash) -> PaddingBudgets {
        PaddingBudgets {
            hash,
            places: Box::default(),
        }
    }

    /// Takes `bytes` out of what a client's prefix may have. `false` if that is not left.
    pub(super) fn take(&mut self, client: IpAddr, bytes: usize, now: Mono) -> bool {
        if self.places.is_empty() {
            self.places = vec![(0, 0); BUDGETS].into();
        }
        let second = now.0 / 1_000_000_000;
        let place = self.hash.prefix(Prefix::of(client)) as usize % BUDGETS;
        let (since, used) = &mut self.places[place];
        if *since != second {
            (*since, *used) = (second, 0);
        }
        let total = used.saturating_add(bytes as u32);
        let fits = total <= PADDING_BUDGET;
        if fits {
            *used = total;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_has_a_budget_per_second_and_leaves_others_theirs() {
        let mut budgets = PaddingBudgets::new(KeyedHash::new(1, 2));
        let [one, neighbour, other] =
            ["192.0.2.1", "192.0.2.9", "198.51.100.1"].map(|ip| ip.parse().unwrap());
        let at = |seconds: u64| Mono(seconds * 1_000_000_000);
        for _ in 0..32 {
            assert!(budgets.take(one, MAX_PADDING, at(7)));
        }
        assert!(!budgets.take(neighbour, 4, at(7)));
        assert!(budgets.take(other, 4, at(7)));
        assert!(budgets.take(neighbour, 4, at(8)));
    }
}
