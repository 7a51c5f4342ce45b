//! The limit of bytes to an unproven source. The source of a datagram may be forged; the victim must not get more than
//! 2.5 times the bytes that the sender has sent.
//!
//! A response without a transaction has [`Engine::room_for`]. A transaction has an [`Allowance`] for all its responses
//! together, repetitions included. Each repetition of the request adds to it. A 2xx to an INVITE does not count: a user
//! has taken the call.

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

    /// Whether there is no limit: the source is proven.
    pub(super) fn is_unlimited(self) -> bool {
        self == Allowance::UNLIMITED
    }

    /// The request has come again.
    pub(super) fn add(&mut self, flow: &Flow, length: usize) {
        self.0 = self.0.saturating_add(bounded(limit(flow, length)));
    }

    /// Takes so much, or what is there.
    fn take(&mut self, bytes: usize) {
        if !self.is_unlimited() {
            self.0 = self.0.saturating_sub(bounded(bytes));
        }
    }

    fn has(self, bytes: usize) -> bool {
        self.is_unlimited() || bounded(bytes) <= self.0
    }
}

/// Never [`Allowance::UNLIMITED`].
fn bounded(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX).min(u32::MAX - 1)
}

/// Whether a response is a reliable provisional one. It is not replaced by a shorter one: without RSeq there would be
/// no PRACK for it (RFC 3262 §3).
pub(super) fn has_rseq(response: &[u8]) -> bool {
    let lines = response.split(|byte| *byte == b'\n');
    lines
        .take_while(|line| !line.trim_ascii().is_empty())
        .filter_map(|line| line.split(|byte| *byte == b':').next())
        .any(|name| name.trim_ascii().eq_ignore_ascii_case(b"RSeq"))
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

    /// Whether a datagram with a response of this class and length may be sent. A 2xx to an INVITE may always. Behind a
    /// provisional response there is room for the final one: without it the client waits.
    pub(super) fn has_allowance(&mut self, key: ServerKey, class: u16, length: usize) -> bool {
        let Some(server) = self.servers.slab.get(key.slot, key.generation) else {
            return true;
        };
        if server.allowance == Allowance::UNLIMITED {
            return true;
        }
        let headers = header_bytes(&server.flow);
        let kept = || {
            server
                .request
                .as_ref()
                .map(|cell| self.store.get(cell).len())
        };
        let last = match class {
            1 => kept().map_or(0, |kept| kept + BEYOND + headers),
            2 if server.machine.is_invite() => return true,
            _ => 0,
        };
        server.allowance.has(length + headers + last)
    }

    /// Whether a datagram with the response in the scratch buffer may be sent. If not, it is counted as dropped.
    pub(super) fn may_send(&mut self, key: ServerKey, length: usize) -> bool {
        let class = self.scratch.get(b"SIP/2.0 ".len()).copied();
        let class = class.map_or(0, |digit| u16::from(digit.wrapping_sub(b'0')));
        if !self.has_allowance(key, class, length) {
            self.stats.count_drop(DropReason::Amplification);
            return false;
        }
        if let Some(server) = self.servers.slab.get(key.slot, key.generation) {
            server.allowance.take(length + header_bytes(&server.flow));
        }
        true
    }
}
