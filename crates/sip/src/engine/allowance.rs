//! How much is sent to a source that has proved nothing: a datagram may have a forged source, which must not get more than 2.5 times what
//! somebody else has sent.
//!
//! A response without a transaction has [`Engine::room_for`]. A transaction has an [`Allowance`] for all its responses together, repetitions
//! included. Each repetition of the request adds to it. A 2xx to an INVITE does not count: a user has taken the call.

use std::net::IpAddr;

use super::Engine;
use super::error::DropReason;
use super::key::ServerKey;
use super::received::NewRequest;
use crate::flow::Flow;

/// Bytes that a final response has beyond what it copies from its request: status line, tag, Content-Length.
const BEYOND: usize = 96;

/// What may still be sent to the source of a request, in bytes of IP packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance(u32);

impl Allowance {
    /// The source is proven.
    const UNLIMITED: Allowance = Allowance(u32::MAX);

    /// For a request of this length.
    fn of(flow: &Flow, length: usize) -> Allowance {
        Allowance(bounded(limit(flow, length)))
    }

    /// The request has come again.
    pub(super) fn add(&mut self, flow: &Flow, length: usize) {
        self.0 = self.0.saturating_add(bounded(limit(flow, length)));
    }

    /// Takes so much, if it is there.
    fn take(&mut self, bytes: usize) -> bool {
        if *self == Allowance::UNLIMITED {
            return true;
        }
        let left = self.0.checked_sub(bounded(bytes));
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }

    fn has(self, bytes: usize) -> bool {
        self == Allowance::UNLIMITED || bounded(bytes) <= self.0
    }
}

/// Never [`Allowance::UNLIMITED`].
fn bounded(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).min(u32::MAX - 1)
}

/// Of IP and UDP.
fn header_bytes(flow: &Flow) -> usize {
    match flow.remote.ip().to_canonical() {
        IpAddr::V4(_) => 20 + 8,
        IpAddr::V6(_) => 40 + 8,
    }
}

/// What a request of this length may cause, headers included.
fn limit(flow: &Flow, length: usize) -> usize {
    (length + header_bytes(flow)) * 5 / 2
}

impl Engine {
    /// How long the response to a request may be for which nothing is kept.
    pub(super) fn room_for(&self, flow: &Flow, request: &[u8], reports_load: bool) -> usize {
        if flow.connection.is_some() {
            return usize::MAX;
        }
        let overload = match reports_load {
            true => self.oc_reply.params().len(),
            false => 0,
        };
        limit(flow, request.len()).saturating_sub(header_bytes(flow) + overload)
    }

    /// The allowance of a transaction for this request.
    pub(super) fn allowance_for(&self, request: &NewRequest<'_>) -> Allowance {
        let flow = &request.flow;
        let source = flow.remote.ip();
        let is_proven = request.is_proven
            || flow.connection.is_some()
            || !self.config.trusts_peers_only
            || self.controller.peers().iter().any(|peer| peer.has(source));
        match is_proven {
            true => Allowance::UNLIMITED,
            false => Allowance::of(flow, request.message.as_bytes().len()),
        }
    }

    /// The source of an accepted request is proven, for example because its credentials were looked up meanwhile.
    pub fn trust_source(&mut self, key: ServerKey) {
        if let Some(server) = self.servers.slab.get(key.slot, key.generation) {
            server.allowance = Allowance::UNLIMITED;
        }
    }

    /// Whether the allowance of a transaction has room for a response of this length. It need not have for a 2xx to an INVITE.
    pub(super) fn has_allowance(&mut self, key: ServerKey, length: usize) -> bool {
        let server = self.servers.slab.get(key.slot, key.generation);
        server.is_none_or(|server| {
            let bytes = length + header_bytes(&server.flow);
            server.allowance.has(bytes)
        })
    }

    /// Whether a datagram with the response in the scratch buffer may be sent. If not, it is counted as dropped.
    pub(super) fn may_send(&mut self, key: ServerKey, length: usize) -> bool {
        let class = self.scratch.get(b"SIP/2.0 ".len()).copied();
        let Some(server) = self.servers.slab.get(key.slot, key.generation) else {
            return true;
        };
        let bytes = length + header_bytes(&server.flow);
        let is_invite = server.machine.is_invite();
        let may = match class {
            Some(b'2') if is_invite => true,
            // Room for the final response stays: without one the client waits.
            Some(b'1') => {
                let kept = server
                    .request
                    .as_ref()
                    .map(|cell| self.store.get(cell).len());
                let last = kept.map_or(0, |kept| kept + BEYOND + header_bytes(&server.flow));
                server.allowance.has(bytes + last) && server.allowance.take(bytes)
            }
            _ => server.allowance.take(bytes),
        };
        if !may {
            self.stats.count_drop(DropReason::Amplification);
        }
        may
    }
}
