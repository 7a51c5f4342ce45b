//! The TURN server's state machine (RFC 8656), and the STUN server's with it.

mod answered;
mod channel;
mod config;
pub mod credentials;
mod deadlines;
mod drop_reason;
mod hash;
mod output;
mod outputs;
mod permission;
mod policy;
mod quota;
mod slab;
mod stats;
mod user;
mod verdict;

use std::net::SocketAddr;
use std::sync::Arc;

pub use config::{
    CHANNEL_LIFETIME_S, Config, ConfigError, DEFAULT_LIFETIME_S, MAX_LIFETIME_S,
    PERMISSION_LIFETIME_S,
};
pub use credentials::Credentials;
pub use drop_reason::DropReason;
pub use output::{
    CloseReason, OpenError, OpenedRelay, Output, PortRequest, RelayRequest, RelayedAddresses,
    Traffic,
};
pub use policy::{PeerClass, PeerPolicy};
pub use quota::{Quota, QuotaExceeded, Unlimited};
pub use stats::{ERROR_CODES, Stats};
pub use verdict::Verdict;

use crate::{ClientPath, FiveTuple, Mono, Now, RelayKey, RequestKey, Run};

/// An ICMP error that came back for a datagram sent from a relay (RFC 8656 §11.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The ICMP or ICMPv6 type.
    pub kind: u8,
    /// The code within the type.
    pub code: u8,
    /// The next hop's MTU, where the message is about size; else 0.
    pub mtu: u32,
}

/// A reserved relay that was handed to another worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimedRelay {
    /// The key it had here; it is not valid any more, and no `CloseRelay` follows: move the socket.
    pub relay: RelayKey,
    /// Its addresses.
    pub opened: OpenedRelay,
}

/// The TURN server of one worker.
#[derive(Debug)]
pub struct Server {
    config: Arc<Config>,
    stats: Stats,
}

impl Server {
    /// A server without allocations. `worker` is its number in reservation tokens, so that another worker can be asked; `seed` is 32
    /// random bytes that nobody else knows.
    #[must_use]
    pub fn new(config: Arc<Config>, worker: u8, seed: [u8; 32], now: Now) -> Server {
        let _ = (worker, seed, now);
        Server {
            config,
            stats: Stats::default(),
        }
    }

    /// Takes a new configuration. Allocations stay; their peers are classified anew as they are used.
    pub fn set_config(&mut self, config: Arc<Config>) {
        self.config = config;
    }

    /// Datagrams from a client. The verdict speaks for the first [`Verdict::covers`] of them.
    pub fn handle_client(&mut self, now: Now, path: &ClientPath, run: Run<'_>) -> Verdict {
        let _ = (now, path, run);
        Verdict::Handled { covers: 1 }
    }

    /// Datagrams from a peer, arrived at the relay's socket, or from another relay of this server.
    pub fn handle_peer(
        &mut self,
        now: Now,
        relay: RelayKey,
        from: SocketAddr,
        run: Run<'_>,
    ) -> Verdict {
        let _ = (now, relay, from, run);
        Verdict::Handled { covers: 1 }
    }

    /// An ICMP error for a datagram that was sent from the relay's socket to `peer`.
    pub fn icmp_error(
        &mut self,
        now: Now,
        relay: RelayKey,
        peer: SocketAddr,
        icmp: IcmpError,
    ) -> Verdict {
        let _ = (now, relay, peer, icmp);
        Verdict::Handled { covers: 1 }
    }

    /// The next thing to do, oldest first; `None` when all is done.
    pub fn poll_output(&mut self) -> Option<Output<'_>> {
        None
    }

    /// The answer to [`Output::OpenRelays`], one result per entry in the same order. Returns `false` if the request is not known
    /// (any more): the embedder closes what it opened.
    pub fn relays_opened(
        &mut self,
        now: Now,
        request: RequestKey,
        results: &[Result<OpenedRelay, OpenError>],
    ) -> bool {
        let _ = (now, request, results);
        false
    }

    /// Another worker's [`Output::ClaimReservation`]. On success the relay is no longer known here.
    pub fn claim_reservation(
        &mut self,
        now: Now,
        token: [u8; 8],
        user: &str,
    ) -> Option<ClaimedRelay> {
        let _ = (now, token, user);
        None
    }

    /// The answer to [`Output::ClaimReservation`]; `None` if the other worker has no such reservation. Returns `false` if the request is
    /// not known (any more): the embedder closes the socket.
    pub fn reservation_claimed(
        &mut self,
        now: Now,
        request: RequestKey,
        relay: Option<OpenedRelay>,
    ) -> bool {
        let _ = (now, request, relay);
        false
    }

    /// The client's connection is gone: its allocation ends. For stream transports and DTLS.
    pub fn client_closed(&mut self, now: Now, five_tuple: &FiveTuple) {
        let _ = (now, five_tuple);
    }

    /// Ends all allocations, reservations and pending requests.
    pub fn close_all(&mut self, now: Now, reason: CloseReason) {
        let _ = (now, reason);
    }

    /// When [`handle_timeout`](Self::handle_timeout) must be called next; exact, and `None` if nothing can expire.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        None
    }

    /// Expires what is due. Does a bounded amount of work: call [`poll_timeout`](Self::poll_timeout) again afterwards.
    pub fn handle_timeout(&mut self, now: Now) {
        let _ = now;
    }

    /// Counters and gauges.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Writes the head of the Data indication for [`Verdict::Indicate`]: everything before the payload. Returns its length; the payload
    /// follows, padded with zeros to a multiple of 4.
    pub fn write_data_indication(
        &mut self,
        relay: RelayKey,
        peer: SocketAddr,
        payload_len: usize,
        header: &mut [u8; 64],
    ) -> usize {
        let _ = (relay, peer, payload_len, header);
        0
    }
}
