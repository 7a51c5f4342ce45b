//! RFC 7339 as a server: telling the senders that understand it how much to hold back.

use std::fmt::Write as _;

use super::controller::{Behaviour, Controller};
use crate::{Mono, Now};

/// How long a report is valid (RFC 7339 §4.3): the default of the RFC.
const VALIDITY_MS: u32 = 500;
/// After congestion has ended, for how long `oc-validity=0` tells the senders so (RFC 7339 §4.3).
const ENDING_NS: u64 = 1_000_000_000;

/// What the top Via of a request says its sender understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OcOffer {
    /// `oc` is there: it takes part.
    pub supported: bool,
    /// Among its algorithms is `rate` (RFC 7415).
    pub rate: bool,
}

impl OcOffer {
    /// From a parameter of the top Via; to be called with each.
    pub fn note(&mut self, name: &[u8], value: Option<&[u8]>) {
        if name.eq_ignore_ascii_case(b"oc") {
            self.supported = true;
        } else if name.eq_ignore_ascii_case(b"oc-algo") {
            let algorithms = value.unwrap_or_default();
            let mut names = algorithms.split(|byte| matches!(byte, b'"' | b',' | b' '));
            self.rate = names.any(|name| name.eq_ignore_ascii_case(b"rate"));
        }
    }
}

/// Whether the parameter is one of RFC 7339's, which are replaced in an answer.
#[must_use]
pub(crate) fn is_oc_parameter(name: &[u8]) -> bool {
    [&b"oc"[..], b"oc-algo", b"oc-validity", b"oc-seq"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
}

/// What is written into the top Via of every response, to senders that offered it.
#[derive(Clone, Debug, Default)]
pub struct OcReply {
    text: String,
    seconds: u64,
    fraction: u32,
    active_until: Mono,
}

impl OcReply {
    /// Nothing to say.
    #[must_use]
    pub fn new() -> OcReply {
        OcReply::default()
    }

    /// Brings the text up to date; to be called once a batch, not once a message.
    pub fn update(&mut self, now: Now, controller: &Controller) {
        let active = controller.behaviour() != Behaviour::Normal;
        if active {
            self.active_until = Mono(now.mono.0.saturating_add(ENDING_NS));
        }
        self.text.clear();
        if now.mono >= self.active_until {
            return;
        }
        self.next_sequence(now.unix_s);
        let (share, validity) = if active {
            (controller.shed_percent(), VALIDITY_MS)
        } else {
            (0, 0)
        };
        // Writing to a String cannot fail.
        let _ = write!(
            self.text,
            ";oc={share};oc-algo=\"loss\";oc-validity={validity};oc-seq={}.{:05}",
            self.seconds, self.fraction
        );
    }

    /// RFC 7339 §4.4: rising from one report to the next, also when the clock does not.
    fn next_sequence(&mut self, unix_s: u64) {
        if unix_s > self.seconds {
            self.seconds = unix_s;
            self.fraction = 0;
        } else if self.fraction == 99_999 {
            self.seconds += 1;
            self.fraction = 0;
        } else {
            self.fraction += 1;
        }
    }

    /// The parameters, with a semicolon in front; empty while there is nothing to say.
    #[must_use]
    pub fn params(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::HashKey;
    use crate::congestion::{Backlog, Config};

    fn now(ms: u64) -> Now {
        Now {
            mono: Mono(ms * 1_000_000),
            unix_s: 1_700_000_000,
        }
    }

    fn controller(messages: u64) -> Controller {
        let mut controller = Controller::new(Config::default(), HashKey::new([3; 16]));
        controller.observe_service(1000, Duration::from_millis(50));
        let backlog = Backlog {
            messages,
            ..Backlog::default()
        };
        controller.observe_backlog(Mono(0), backlog);
        controller
    }

    #[test]
    fn it_reports_while_congested_says_that_it_is_over_and_falls_silent() {
        let mut reply = OcReply::new();
        reply.update(now(0), &controller(0));
        assert!(reply.params().is_empty());
        reply.update(now(100), &controller(5000));
        let first = String::from_utf8(reply.params().to_vec()).unwrap();
        assert_eq!(
            first,
            ";oc=0;oc-algo=\"loss\";oc-validity=500;oc-seq=1700000000.00000"
        );
        reply.update(now(200), &controller(0));
        let over = String::from_utf8(reply.params().to_vec()).unwrap();
        assert_eq!(
            over,
            ";oc=0;oc-algo=\"loss\";oc-validity=0;oc-seq=1700000000.00001"
        );
        reply.update(now(1300), &controller(0));
        assert!(reply.params().is_empty());
    }

    #[test]
    fn offers_are_read_in_any_case() {
        let mut offer = OcOffer::default();
        offer.note(b"branch", Some(b"x"));
        assert!(!offer.supported);
        offer.note(b"OC", None);
        offer.note(b"oc-algo", Some(b"\"loss,Rate\""));
        assert!(offer.supported && offer.rate);
    }

    #[test]
    fn the_sequence_rises_beyond_a_hundred_thousand_reports_a_second() {
        let mut reply = OcReply::new();
        let mut before = (0, 0);
        for _ in 0..100_010 {
            reply.next_sequence(7);
            assert!((reply.seconds, reply.fraction) > before);
            before = (reply.seconds, reply.fraction);
        }
    }
}
