//! The timers of RFC 3261 §17: how long each runs, and the wheel they run on.

use std::time::Duration;

/// The timers of transactions, with ticks of a millisecond.
pub(crate) type Wheel = timers::Wheel<1_000_000>;

/// The base values from which timers A to M follow (RFC 3261 §17.1.1.1, table 4 in its appendix A).
///
/// | timer | value | for |
/// |---|---|---|
/// | A | T1, doubling | INVITE requests, unreliable transports |
/// | B | 64*T1 | no response to an INVITE |
/// | C | over 3 minutes | an INVITE that rings too long |
/// | D | at least 32 s, 0 if reliable | repeated final responses to an INVITE |
/// | E | T1, doubling to T2 | other requests, unreliable transports |
/// | F | 64*T1 | no final response to another request |
/// | G | T1, doubling to T2 | final responses to an INVITE, unreliable transports |
/// | H | 64*T1 | no ACK |
/// | I | T4, 0 if reliable | repeated ACKs |
/// | J | 64*T1, 0 if reliable | repeated other requests |
/// | K | T4, 0 if reliable | repeated responses to another request |
/// | L | 64*T1 | 2xx sent for an INVITE (RFC 6026 §7.1) |
/// | M | 64*T1 | 2xx received for an INVITE (RFC 6026 §7.2) |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timers {
    /// An estimate of the round-trip time; 500 ms by default.
    pub t1: Duration,
    /// The longest interval between retransmissions of anything but an INVITE; 4 s by default.
    pub t2: Duration,
    /// How long a message may stay in the network; 5 s by default.
    pub t4: Duration,
    /// How long an INVITE server transaction waits for its TU before it sends 100 (RFC 3261 §17.2.1); 200 ms by
    /// default.
    pub trying: Duration,
    /// Timer C (RFC 3261 §16.6 step 11): the time after which an INVITE without a new provisional response is
    /// cancelled. It is more than 3 minutes, 200 s by default.
    pub c: Duration,
    /// How long an INVITE server transaction waits for its TU altogether; a quarter of an hour by default. It is a
    /// guard against a TU that forgets a call, not a protocol timer.
    pub answer_limit: Duration,
}

impl Default for Timers {
    fn default() -> Timers {
        Timers {
            t1: Duration::from_millis(500),
            t2: Duration::from_secs(4),
            t4: Duration::from_secs(5),
            trying: Duration::from_millis(200),
            c: Duration::from_secs(200),
            answer_limit: Duration::from_secs(900),
        }
    }
}

impl Timers {
    /// 64*T1: timers B, F, H, L and M, J over unreliable transports, and what a cancelled INVITE has left.
    #[must_use]
    pub fn give_up(&self) -> Duration {
        self.t1.saturating_mul(64)
    }

    /// Timer D over unreliable transports. RFC 3261 §17.1.1.2: at least 32 s, because the server's T1 is not known.
    #[must_use]
    pub fn d(&self) -> Duration {
        self.give_up().max(Duration::from_secs(32))
    }

    /// Timer A after `sent` transmissions: T1, 2*T1, 4*T1, without a limit.
    #[must_use]
    pub fn doubling(&self, sent: u8) -> Duration {
        let doublings = u32::from(sent.saturating_sub(1)).min(20);
        self.t1.saturating_mul(1 << doublings)
    }

    /// Timers E and G after `sent` transmissions: T1, 2*T1, .. up to T2.
    #[must_use]
    pub fn doubling_to_t2(&self, sent: u8) -> Duration {
        self.doubling(sent).min(self.t2)
    }

    /// How long a client's timer E takes to be reset to T2: 3.5 s with the default values. RFC 4320 §4.1: no 100 for
    /// a non-INVITE request over an unreliable transport before that time, and one at that time over any.
    #[must_use]
    pub fn non_invite_trying(&self) -> Duration {
        let mut passed = Duration::ZERO;
        let mut interval = self.t1.max(Duration::from_millis(1));
        while interval < self.t2 {
            passed += interval;
            interval *= 2;
        }
        passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_values_are_those_of_rfc_3261() {
        let timers = Timers::default();
        let ms = Duration::from_millis;
        assert_eq!(timers.give_up(), Duration::from_secs(32));
        assert_eq!(timers.d(), Duration::from_secs(32));
        let a: Vec<_> = (1..=7).map(|sent| timers.doubling(sent)).collect();
        assert_eq!(a, [500, 1000, 2000, 4000, 8000, 16_000, 32_000].map(ms));
        let e: Vec<_> = (1..=6).map(|sent| timers.doubling_to_t2(sent)).collect();
        assert_eq!(e, [500, 1000, 2000, 4000, 4000, 4000].map(ms));
        assert_eq!(timers.non_invite_trying(), ms(3500));
    }

    #[test]
    fn timer_d_is_never_below_32_seconds() {
        let timers = Timers {
            t1: Duration::from_millis(10),
            ..Timers::default()
        };
        assert_eq!(timers.d(), Duration::from_secs(32));
    }
}
