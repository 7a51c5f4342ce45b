//! Counters and gauges of one engine. Plain numbers: the worker that owns the engine publishes them.

use super::drop_reason::DropReason;
use super::output::Traffic;

/// The error codes that the server answers with, in the order of [`Stats::errors`].
pub const ERROR_CODES: [u16; 14] = [
    300, 400, 401, 403, 420, 437, 438, 440, 441, 442, 443, 486, 500, 508,
];

/// What one engine holds and has done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Allocations that exist.
    pub allocations: u64,
    /// Relayed transport addresses of these allocations: a dual allocation has two.
    pub relays: u64,
    /// Ports held in reserve.
    pub reservations: u64,
    /// Requests that wait for the embedder.
    pub pending: u64,
    /// Permissions that exist, counting those that have lapsed and are not swept yet.
    pub permissions: u64,
    /// Channels that exist, counting those that have lapsed and are not swept yet.
    pub channels: u64,
    /// Answers kept for retransmissions.
    pub answers: u64,
    /// Allocations that were ever made.
    pub allocations_opened: u64,
    /// Binding requests answered with success.
    pub bindings: u64,
    /// Requests other than Binding answered with success.
    pub successes: u64,
    /// Retransmitted requests that got their stored answer again.
    pub retransmissions: u64,
    /// Error responses by code, in the order of [`ERROR_CODES`].
    pub errors: [u64; ERROR_CODES.len()],
    /// Discarded datagrams by [`DropReason`].
    pub drops: [u64; DropReason::COUNT],
    /// Relayed from clients to peers.
    pub to_peers: Traffic,
    /// Relayed from peers to clients.
    pub to_clients: Traffic,
    /// Keys that had to be derived, because they were in no cache.
    pub keys_derived: u64,
}

impl Stats {
    /// How many error responses had this code.
    #[must_use]
    pub fn errors_with(&self, code: u16) -> u64 {
        ERROR_CODES
            .iter()
            .zip(&self.errors)
            .find(|(known, _)| **known == code)
            .map_or(0, |(_, count)| *count)
    }

    /// How many datagrams were discarded for this reason.
    #[must_use]
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    pub(super) fn count_error(&mut self, code: u16) {
        if let Some(slot) = ERROR_CODES.iter().position(|known| *known == code) {
            self.errors[slot] += 1;
        }
    }

    pub(super) fn count_drops(&mut self, reason: DropReason, datagrams: usize) {
        self.drops[reason as usize] += datagrams as u64;
    }
}
