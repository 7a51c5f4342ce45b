//! Counters of one worker's DTLS connections. Only the worker's thread writes them, so they are plain integers.

use ::dtls::{CloseReason, DropReason, Endpoint};
use std::ops::AddAssign;

const REASONS: usize = CloseReason::NAMES.len();
const DROPS: usize = DropReason::ALL.len();

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of DTLS, of one worker or the sum over several. Those that say "now" go up and down.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct DtlsCounters {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Connections that ended, by reason.
            ended: [u64; REASONS],
            /// Records that were discarded, by reason.
            dropped: [u64; DROPS],
        }

        crate::words::words!(DtlsCounters { $($name,)+ ended, dropped });

        impl AddAssign<&DtlsCounters> for DtlsCounters {
            fn add_assign(&mut self, other: &DtlsCounters) {
                $(self.$name += other.$name;)+
                add(&mut self.ended, &other.ended);
                add(&mut self.dropped, &other.dropped);
            }
        }
    };
}

counters! {
    /// Connections that are established now.
    connections_now,
    /// Handshakes in progress now, of clients that have returned a valid cookie.
    handshakes_now,
    /// HelloVerifyRequest messages sent, each with a cookie. The server keeps no state for them.
    cookies_sent,
    /// Of these, responses to a ClientHello whose cookie was wrong or too old.
    cookies_bad,
    /// Handshakes begun, each by a ClientHello with a valid cookie.
    handshakes,
    /// Handshakes completed.
    established,
    /// Times that handshakes waited for the next wake-up, because they had used their time in this one.
    handshakes_deferred,
    /// Flights of handshake messages retransmitted.
    retransmissions,
    /// Messages received.
    messages,
    /// Messages dropped because the connection had ended, or because they were too long.
    dropped_gone,
}

fn add<const N: usize>(sum: &mut [u64; N], more: &[u64; N]) {
    sum.iter_mut()
        .zip(more)
        .for_each(|(sum, more)| *sum += more);
}

impl DtlsCounters {
    /// How many connections and handshakes ended, by the reason's name.
    pub fn ended(&self) -> impl Iterator<Item = (&'static str, u64)> {
        CloseReason::NAMES.into_iter().zip(self.ended)
    }

    /// How many connections and handshakes ended for this reason.
    #[must_use]
    pub fn ended_for(&self, reason: CloseReason) -> u64 {
        self.ended[reason.number()]
    }

    /// How many records were discarded for this reason.
    #[must_use]
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.dropped[reason as usize]
    }

    pub(super) fn count_end(&mut self, reason: CloseReason) {
        self.ended[reason.number()] += 1;
    }

    /// Copies the counters of the endpoint.
    pub(super) fn take(&mut self, endpoint: &Endpoint) {
        let counters = endpoint.counters();
        self.handshakes_now = endpoint.half_open() as u64;
        self.connections_now = endpoint.connections() as u64 - self.handshakes_now;
        self.cookies_sent = counters.hello_verify_requests;
        self.cookies_bad = counters.bad_cookies;
        self.handshakes = counters.handshakes;
        self.established = counters.established;
        self.retransmissions = counters.retransmissions;
        self.dropped = counters.drops;
    }
}
