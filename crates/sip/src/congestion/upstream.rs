//! RFC 7339 as a server: telling the senders that understand it how much to hold back.

use std::fmt::Write as _;

use super::controller::{Behaviour, Controller};
use crate::Now;
use crate::header::Via;

/// How long a report is valid (RFC 7339 §4.3): the default of the RFC.
const VALIDITY_MS: u32 = 500;

/// What the top Via of a request says its sender understands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OcOffer {
    /// `oc` is there: it takes part.
    pub supported: bool,
    /// `oc-algo` has no `loss` among its algorithms. A client must have it (RFC 7339 §4.2); there is nothing to agree upon then.
    pub lacks_loss: bool,
}

impl OcOffer {
    /// What a Via offers.
    #[must_use]
    pub fn of(via: &Via<'_>) -> OcOffer {
        let mut offer = OcOffer::default();
        for param in via.params {
            offer.note(param.name, param.value);
        }
        offer
    }

    /// From a parameter of the top Via; to be called with each.
    pub fn note(&mut self, name: &[u8], value: Option<&[u8]>) {
        if name.eq_ignore_ascii_case(b"oc") {
            self.supported = true;
        } else if name.eq_ignore_ascii_case(b"oc-algo") {
            let algorithms = value.unwrap_or_default();
            let mut names = algorithms.split(|byte| matches!(byte, b'"' | b',' | b' '));
            self.lacks_loss = !names.any(|name| name.eq_ignore_ascii_case(b"loss"));
        }
    }

    /// Whether its sender is to be told how much to hold back, by the loss algorithm.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.supported && !self.lacks_loss
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
///
/// It is always the loss algorithm, which every client has (RFC 7339 §4.2); so it never changes for anybody (§5.8).
#[derive(Clone, Debug)]
pub struct OcReply {
    text: String,
    seconds: u64,
    fraction: u32,
    active: bool,
}

impl Default for OcReply {
    fn default() -> OcReply {
        OcReply::new()
    }
}

impl OcReply {
    /// That there is nothing to hold back.
    #[must_use]
    pub fn new() -> OcReply {
        let mut reply = OcReply {
            text: String::new(),
            seconds: 0,
            fraction: 0,
            active: false,
        };
        reply.write(0, 0);
        reply
    }

    /// Brings the text up to date; to be called once a batch, not once a message.
    ///
    /// While there is no congestion it stays as it was when the last one ended, sequence number and all: several workers
    /// answer under one address, and what the calm ones say must not end what a busy one has asked for.
    pub fn update(&mut self, now: Now, controller: &Controller) {
        let active = controller.behaviour() != Behaviour::Normal;
        if !active && !self.active {
            return;
        }
        self.active = active;
        self.next_sequence(now.unix_s);
        if active {
            self.write(controller.shed_percent(), VALIDITY_MS);
        } else {
            // RFC 7339 §5.7: the end is told by zeros, under a new number.
            self.write(0, 0);
        }
    }

    fn write(&mut self, share: u8, validity_ms: u32) {
        self.text.clear();
        // Writing to a String cannot fail.
        let _ = write!(
            self.text,
            ";oc={share};oc-algo=\"loss\";oc-validity={validity_ms};oc-seq={}.{:05}",
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

    /// The parameters, with a semicolon in front.
    #[must_use]
    pub fn params(&self) -> &[u8] {
        self.text.as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::congestion::{Backlog, Config};
    use crate::{HashKey, Mono};

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

    fn said(reply: &OcReply) -> String {
        String::from_utf8(reply.params().to_vec()).unwrap()
    }

    #[test]
    fn it_reports_while_congested_and_otherwise_that_there_is_nothing_to_hold_back_rfc7339_5_1() {
        let mut reply = OcReply::new();
        let calm = ";oc=0;oc-algo=\"loss\";oc-validity=0;oc-seq=0.00000";
        assert_eq!(said(&reply), calm);
        reply.update(now(0), &controller(0));
        assert_eq!(said(&reply), calm);
        reply.update(now(100), &controller(5000));
        assert_eq!(
            said(&reply),
            ";oc=0;oc-algo=\"loss\";oc-validity=500;oc-seq=1700000000.00000"
        );
        // RFC 7339 §5.7: the end has a higher number than what it ends, and the same from then on.
        let over = ";oc=0;oc-algo=\"loss\";oc-validity=0;oc-seq=1700000000.00001";
        for ms in [200, 1300, 100_000] {
            reply.update(now(ms), &controller(0));
            assert_eq!(said(&reply), over);
        }
    }

    /// Two workers under one address: see [`OcReply::update`].
    #[test]
    fn what_a_calm_worker_says_ends_nothing_that_a_busy_one_asked_for_rfc7339_4_4() {
        use crate::congestion::{Class, Downstream, Feedback};
        let (mut busy, mut calm) = (OcReply::new(), OcReply::new());
        let hop = ([192, 0, 2, 1], 5060).into();
        let feedback = |reply: &OcReply| {
            let mut feedback = Feedback::default();
            for param in said(reply).split(';').skip(1) {
                let (name, value) = param.split_once('=').unwrap();
                feedback.note(name.as_bytes(), Some(value.as_bytes()));
            }
            feedback
        };
        // It was busy as well, before.
        calm.update(now(0), &controller(5000));
        calm.update(now(1), &controller(0));
        busy.update(now(2), &controller(0));
        busy.next_sequence(1_700_000_001);
        busy.write(100, VALIDITY_MS);
        let mut client = Downstream::new(7);
        client.learn(Mono(0), hop, feedback(&busy));
        client.learn(Mono(1), hop, feedback(&calm));
        assert!(!client.admit(Mono(2), hop, Class::New));
    }

    #[test]
    fn offers_are_read_in_any_case_and_need_loss_rfc7339_4_2() {
        let offer = |params: &[(&[u8], Option<&[u8]>)]| {
            let mut offer = OcOffer::default();
            params
                .iter()
                .for_each(|(name, value)| offer.note(name, *value));
            offer.is_accepted()
        };
        assert!(!offer(&[(b"branch", Some(b"x"))]));
        assert!(offer(&[(b"OC", None)]), "the default is loss");
        assert!(offer(&[
            (b"oc", None),
            (b"oc-algo", Some(b"\"rate,Loss\""))
        ]));
        assert!(!offer(&[(b"oc", None), (b"oc-algo", Some(b"\"rate\""))]));
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
