//! What one worker has seen of DTLS. Plain numbers, written by one thread.

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
    /// Established connections now.
    connections_now,
    /// Handshakes after the cookie now.
    handshakes_now,
    /// ClientHello messages answered with a cookie; nothing was kept for them.
    cookies_sent,
    /// Of these, ClientHello messages whose cookie was wrong or too old.
    cookies_bad,
    /// Handshakes that began: cookies that came back.
    handshakes,
    /// Handshakes that were completed.
    established,
    /// Times that handshakes were put off to the next wake-up, because they had taken their share of this one.
    handshakes_deferred,
    /// Flights of handshakes that were sent again.
    retransmissions,
    /// Messages received.
    messages,
    /// Messages for connections that were gone, or that were too long.
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

    /// Takes over what the endpoint counts itself.
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
