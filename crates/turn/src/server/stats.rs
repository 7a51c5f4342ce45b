//! Counters and gauges of one engine. Plain numbers: the worker that owns the engine publishes them.

use stun::Method;

use super::auth_failure::AuthFailure;
use super::drop_reason::DropReason;
use super::output::{CloseReason, Traffic};

/// The error codes that the server answers with, in ascending order. [`Stats::errors`] counts each.
pub const ERROR_CODES: &[u16] = &[
    300, 400, 401, 403, 405, 420, 437, 438, 440, 441, 442, 443, 446, 447, 486, 500, 508,
];

/// The methods of requests that the server answers, with their names in metrics. [`Stats::requests`],
/// [`Stats::successes`] and [`Stats::errors`] count each.
pub const METHODS: &[(Method, &str)] = &[
    (Method::BINDING, "binding"),
    (Method::ALLOCATE, "allocate"),
    (Method::REFRESH, "refresh"),
    (Method::CREATE_PERMISSION, "create_permission"),
    (Method::CHANNEL_BIND, "channel_bind"),
    (Method::CONNECT, "connect"),
    (Method::CONNECTION_BIND, "connection_bind"),
];

/// A number that consists of `u64` words, always as many and in the same order.
trait Words {
    fn each(&self, show: &mut impl FnMut(u64));
    fn fill(&mut self, next: &mut impl FnMut() -> u64);
}

impl Words for u64 {
    fn each(&self, show: &mut impl FnMut(u64)) {
        show(*self);
    }

    fn fill(&mut self, next: &mut impl FnMut() -> u64) {
        *self = next();
    }
}

impl Words for Traffic {
    fn each(&self, show: &mut impl FnMut(u64)) {
        show(self.packets);
        show(self.bytes);
    }

    fn fill(&mut self, next: &mut impl FnMut() -> u64) {
        self.packets = next();
        self.bytes = next();
    }
}

impl<T: Words, const N: usize> Words for [T; N] {
    fn each(&self, show: &mut impl FnMut(u64)) {
        self.iter().for_each(|item| item.each(show));
    }

    fn fill(&mut self, next: &mut impl FnMut() -> u64) {
        self.iter_mut().for_each(|item| item.fill(next));
    }
}

/// Defines [`Stats`], and its numbers in the order of its fields.
macro_rules! stats {
    (
        $($(#[doc = $doc:literal])+ pub $name:ident: $type:ty,)+
        $(#[by($by:literal)] $counter:ident: $array:ty,)+
    ) => {
        /// What one engine holds and has done.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Stats {
            $($(#[doc = $doc])+ pub $name: $type,)+
            $(#[doc = $by] $counter: $array,)+
        }

        impl Stats {
            /// Shows every number, always as many and in the same order: to publish them, for example through atomics.
            pub fn each_number(&self, mut show: impl FnMut(u64)) {
                $(Words::each(&self.$name, &mut show);)+
                $(Words::each(&self.$counter, &mut show);)+
            }

            /// Sets every number, in the order of [`Stats::each_number`].
            pub fn set_numbers(&mut self, mut next: impl FnMut() -> u64) {
                $(Words::fill(&mut self.$name, &mut next);)+
                $(Words::fill(&mut self.$counter, &mut next);)+
            }
        }
    };
}

stats! {
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
    /// Connections between TCP relays and peers, those being made included (RFC 6062).
    pub peer_connections: u64,
    /// Peer connections with a bound data connection.
    pub data_connections: u64,
    /// Connections with peers that were ever made, by a Connect request or by the peer.
    pub peer_connections_opened: u64,
    /// Refused connections of peers. Causes: no permission, a peer that the policy denies, a limit, or an allocation
    /// that has ended. Another cause is an existing connection with the same address and port of the peer (RFC 6062
    /// §5.3).
    pub peer_connections_refused: u64,
    /// Deletions remembered, for retransmissions.
    pub deletions: u64,
    /// Allocations that were ever made.
    pub allocations_opened: u64,
    /// How often a client has moved its allocation to another 5-tuple (RFC 8016), since the start.
    pub allocations_moved: u64,
    /// Retransmitted Allocate requests and deletions that got their response again.
    pub retransmissions: u64,
    /// Requests that wait for a source of credentials.
    pub lookups: u64,
    /// Look-ups begun at sources that answer later.
    pub lookups_begun: u64,
    /// Look-ups that no source has answered in time: the client got 500.
    pub lookups_timed_out: u64,
    /// Look-ups that a source could not make: the client got 500.
    pub lookups_failed: u64,
    /// Relayed from clients to peers outside.
    pub to_peers: Traffic,
    /// Relayed from clients to other relayed transport addresses of this server.
    pub to_relays: Traffic,
    /// Relayed to clients, from peers outside and from other relayed transport addresses of this server.
    pub to_clients: Traffic,
    /// Keys that had to be derived, because they were in no cache.
    pub keys_derived: u64,
    #[by("By [`CloseReason`].")]
    allocations_closed: [u64; CloseReason::COUNT],
    #[by("By [`METHODS`].")]
    requests: [Traffic; METHODS.len()],
    #[by("By [`METHODS`].")]
    successes: [u64; METHODS.len()],
    #[by("By [`METHODS`], and then by [`ERROR_CODES`].")]
    errors: [[u64; ERROR_CODES.len()]; METHODS.len()],
    #[by("By [`AuthFailure`].")]
    auth_failures: [u64; AuthFailure::COUNT],
    #[by("By [`DropReason`].")]
    drops: [u64; DropReason::COUNT],
}

impl Stats {
    /// Requests of this method that were received, and their bytes with all headers of STUN. 0 for a method that is not
    /// in [`METHODS`].
    #[must_use]
    pub fn requests(&self, method: Method) -> Traffic {
        number_of(method).map_or_else(Traffic::default, |at| self.requests[at])
    }

    /// Requests of this method that got a success response.
    #[must_use]
    pub fn successes(&self, method: Method) -> u64 {
        number_of(method).map_or(0, |at| self.successes[at])
    }

    /// Requests of this method that got this error code.
    #[must_use]
    pub fn errors(&self, method: Method, code: u16) -> u64 {
        match (number_of(method), slot_of(code)) {
            (Some(at), Some(slot)) => self.errors[at][slot],
            _ => 0,
        }
    }

    /// How many error responses had this code.
    #[must_use]
    pub fn errors_with(&self, code: u16) -> u64 {
        METHODS
            .iter()
            .map(|(method, _)| self.errors(*method, code))
            .sum()
    }

    /// Allocations that ended for this reason.
    #[must_use]
    pub const fn allocations_closed(&self, reason: CloseReason) -> u64 {
        self.allocations_closed[reason as usize]
    }

    /// Requests whose credentials are not right for this reason. A request without credentials is none.
    #[must_use]
    pub const fn auth_failed(&self, reason: AuthFailure) -> u64 {
        self.auth_failures[reason as usize]
    }

    /// How many datagrams were discarded for this reason.
    #[must_use]
    pub const fn dropped(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }

    pub(super) fn count_closed(&mut self, reason: CloseReason) {
        self.allocations_closed[reason as usize] += 1;
    }

    pub(super) fn count_auth_failure(&mut self, reason: AuthFailure) {
        self.auth_failures[reason as usize] += 1;
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
        debug_assert!(slot_of(code).is_some(), "{code} is not in ERROR_CODES");
        if let (Some(at), Some(slot)) = (number_of(method), slot_of(code)) {
            self.errors[at][slot] += 1;
        }
    }

    pub(super) fn count_drops(&mut self, reason: DropReason, datagrams: usize) {
        self.drops[reason as usize] += datagrams as u64;
    }
}

/// The place of `method` in [`METHODS`]; requests of others are not answered.
fn number_of(method: Method) -> Option<usize> {
    // A search in the list costs a Binding request a hundred instructions.
    match method {
        Method::BINDING => Some(0),
        Method::ALLOCATE => Some(1),
        Method::REFRESH => Some(2),
        Method::CREATE_PERMISSION => Some(3),
        Method::CHANNEL_BIND => Some(4),
        Method::CONNECT => Some(5),
        Method::CONNECTION_BIND => Some(6),
        _ => None,
    }
}

/// The place of `code` in [`ERROR_CODES`].
fn slot_of(code: u16) -> Option<usize> {
    ERROR_CODES.iter().position(|known| *known == code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_method_is_its_place_in_the_list() {
        for (place, (method, _)) in METHODS.iter().enumerate() {
            assert_eq!(number_of(*method), Some(place));
        }
        assert_eq!(number_of(Method::SEND), None);
    }

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
    fn numbers_that_are_shown_can_be_set_again() {
        let mut stats = Stats::default();
        let mut number = 0;
        stats.set_numbers(|| {
            number += 1;
            number
        });
        assert_eq!(stats.errors(Method::BINDING, 999), 0);
        assert!(stats.errors(Method::BINDING, 300) > 0 && stats.successes(Method::BINDING) > 0);
        let mut shown = Vec::new();
        stats.each_number(|number| shown.push(number));
        assert_eq!(shown, (1..=number).collect::<Vec<u64>>());
    }
}
