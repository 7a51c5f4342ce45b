//! Counters and gauges of one engine. Plain numbers: the worker that owns the engine publishes them.

use stun::Method;

use super::auth_failure::AuthFailure;
use super::drop_reason::DropReason;
use super::output::{CloseReason, Traffic};

/// The error codes that the server answers with, in the order of [`Stats::errors`].
pub const ERROR_CODES: [u16; 14] = [
    300, 400, 401, 403, 420, 437, 438, 440, 441, 442, 443, 486, 500, 508,
];

/// The methods of requests that the server answers, with their names in metrics, in the order of [`Stats::requests`],
/// [`Stats::successes`] and [`Stats::errors`].
pub const METHODS: [(Method, &str); 5] = [
    (Method::BINDING, "binding"),
    (Method::ALLOCATE, "allocate"),
    (Method::REFRESH, "refresh"),
    (Method::CREATE_PERMISSION, "create_permission"),
    (Method::CHANNEL_BIND, "channel_bind"),
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
    /// Deletions remembered, for retransmissions.
    pub deletions: u64,
    /// Allocations that were ever made.
    pub allocations_opened: u64,
    /// Allocations that ended, by [`CloseReason`].
    pub allocations_closed: [u64; CloseReason::COUNT],
    /// Requests received, and their bytes with all headers of STUN, by [`METHODS`].
    pub requests: [Traffic; METHODS.len()],
    /// Requests answered with success, by [`METHODS`].
    pub successes: [u64; METHODS.len()],
    /// Retransmitted Allocate requests and deletions that got their response again.
    pub retransmissions: u64,
    /// Error responses by [`METHODS`] and then by code, in the order of [`ERROR_CODES`].
    pub errors: [[u64; ERROR_CODES.len()]; METHODS.len()],
    /// Requests whose credentials are not right, by [`AuthFailure`]. A request without credentials is none.
    pub auth_failures: [u64; AuthFailure::COUNT],
    /// Requests that wait for a source of credentials.
    pub lookups: u64,
    /// Look-ups begun at sources that answer later.
    pub lookups_begun: u64,
    /// Look-ups that no source has answered in time: the client got 500.
    pub lookups_timed_out: u64,
    /// Look-ups that a source could not make: the client got 500.
    pub lookups_failed: u64,
    /// Discarded datagrams by [`DropReason`].
    pub drops: [u64; DropReason::COUNT],
    /// Relayed from clients to peers outside.
    pub to_peers: Traffic,
    /// Relayed from clients to other relayed transport addresses of this server.
    pub to_relays: Traffic,
    /// Relayed to clients, from peers outside and from other relayed transport addresses of this server.
    pub to_clients: Traffic,
    /// Keys that had to be derived, because they were in no cache.
    pub keys_derived: u64,
}

impl Stats {
    /// How many error responses had this code.
    #[must_use]
    pub fn errors_with(&self, code: u16) -> u64 {
        let Some(at) = ERROR_CODES.iter().position(|known| *known == code) else {
            return 0;
        };
        self.errors.iter().map(|by_code| by_code[at]).sum()
    }

    /// How many requests were not believed for this reason.
    #[must_use]
    pub const fn auth_failed(&self, reason: AuthFailure) -> u64 {
        self.auth_failures[reason as usize]
    }

    /// Binding requests answered with success.
    #[must_use]
    pub const fn bindings(&self) -> u64 {
        self.successes[0]
    }

    /// How many datagrams were discarded for this reason.
    #[must_use]
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    pub(super) fn count_request(&mut self, method: Method, bytes: usize) {
        if let Some(at) = number_of(method) {
            self.requests[at].add(1, bytes);
        }
    }

    pub(super) fn count_success(&mut self, method: Method) {
        if let Some(at) = number_of(method) {
            self.successes[at] += 1;
        }
    }

    pub(super) fn count_error(&mut self, method: Method, code: u16) {
        let slot = ERROR_CODES.iter().position(|known| *known == code);
        if let (Some(at), Some(slot)) = (number_of(method), slot) {
            self.errors[at][slot] += 1;
        }
    }

    pub(super) fn count_drops(&mut self, reason: DropReason, datagrams: usize) {
        self.drops[reason as usize] += datagrams as u64;
    }
}

/// The place of `method` in [`METHODS`]; requests of others are not answered.
fn number_of(method: Method) -> Option<usize> {
    METHODS.iter().position(|(known, _)| *known == method)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_add_up_over_methods() {
        let mut stats = Stats::default();
        stats.count_error(Method::ALLOCATE, 401);
        stats.count_error(Method::REFRESH, 401);
        stats.count_error(Method::REFRESH, 438);
        assert_eq!((stats.errors_with(401), stats.errors_with(438)), (2, 1));
        assert_eq!(stats.errors_with(999), 0);
    }

    #[test]
    fn bindings_are_the_first_method() {
        let mut stats = Stats::default();
        stats.count_success(Method::BINDING);
        assert_eq!(stats.bindings(), 1);
    }
}
