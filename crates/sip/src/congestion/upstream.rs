//! RFC 7339 as a server: it reports to senders with support how much to throttle. It uses the algorithm "loss", which
//! all of them have (§4.2). Senders by rate (RFC 7415) would need a share of their own each, kept and counted.

use std::fmt::Write as _;

use super::controller::Controller;
use crate::Now;
use crate::header::Via;

/// How long a report is valid: the default of RFC 7339 §4.3.
const VALIDITY_MS: u32 = 500;
/// How many seconds the sequence number of a report without overload is behind the clock. It must be lower than that of
/// any report that is still valid. It must not be so low that the next hop takes it for that of a server that has
/// restarted (RFC 7339 §4.4).
const CALM_AGE_S: u64 = 60;

/// Whether the sender of a request with this Via supports the algorithm "loss". RFC 7339 §4.2 requires the sender to
/// list its algorithms; a sender without a list supports "loss".
#[must_use]
pub fn offers_loss(via: &Via<'_>) -> bool {
    let (mut has_oc, mut has_loss) = (false, true);
    for param in via.params {
        if param.name.eq_ignore_ascii_case(b"oc") {
            has_oc = true;
        } else if param.name.eq_ignore_ascii_case(b"oc-algo") {
            let algorithms = param.value.unwrap_or_default();
            let mut names = algorithms.split(|byte| matches!(byte, b'"' | b',' | b' ' | b'\t'));
            has_loss = names.any(|name| name.eq_ignore_ascii_case(b"loss"));
        }
    }
    has_oc && has_loss
}

/// Whether the parameter is one of RFC 7339's, which are replaced in an answer.
#[must_use]
pub(crate) fn is_oc_parameter(name: &[u8]) -> bool {
    [&b"oc"[..], b"oc-algo", b"oc-validity", b"oc-seq"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
}

/// What is written into the top Via of every response to senders that support overload control.
#[derive(Debug)]
pub struct OcReply {
    text: String,
    seconds: u64,
    fraction: u32,
    is_active: bool,
}

impl Default for OcReply {
    fn default() -> OcReply {
        OcReply::new()
    }
}

impl OcReply {
    /// That there is nothing to throttle.
    #[must_use]
    pub fn new() -> OcReply {
        let mut reply = OcReply {
            text: String::new(),
            seconds: 0,
            fraction: 0,
            is_active: false,
        };
        reply.write(0, 0);
        reply
    }

    /// Brings the report up to date; to be called once a batch, not once a message.
    pub fn update(&mut self, now: Now, controller: &Controller) {
        let shed = controller.shed_percent();
        let is_overloaded = controller.state() > 0 || (self.is_active && shed > 0);
        self.set(now.unix_s, is_overloaded.then_some(shed));
    }

    /// The parameters, with a semicolon in front.
    #[must_use]
    pub fn params(&self) -> &[u8] {
        self.text.as_bytes()
    }

    /// The percentage to throttle, or that there is nothing to throttle.
    ///
    /// Without overload, the number is lower than that of any report that is still valid. Several workers respond from
    /// one address, and a report of an idle worker must not end the reduction that a busy one has requested.
    /// RFC 7339 §4.4: much lower numbers are taken for those of a server that has begun anew.
    fn set(&mut self, unix_s: u64, percent: Option<u8>) {
        if percent.is_none() && !self.is_active {
            if unix_s > self.seconds.saturating_add(2 * CALM_AGE_S) {
                (self.seconds, self.fraction) = (unix_s - CALM_AGE_S, 0);
                self.write(0, 0);
            }
            return;
        }
        self.is_active = percent.is_some();
        self.next_sequence(unix_s);
        // RFC 7339 §5.7: the end is reported by zeros, under a new number.
        self.write(percent.unwrap_or(0), percent.map_or(0, |_| VALIDITY_MS));
    }

    fn write(&mut self, percent: u8, validity_ms: u32) {
        self.text.clear();
        // Writing to a String cannot fail.
        let _ = write!(
            self.text,
            ";oc={percent};oc-algo=\"loss\";oc-validity={validity_ms};oc-seq={}.{:05}",
            self.seconds, self.fraction
        );
    }

    /// RFC 7339 §4.4: rising from one report to the next, also when the clock does not.
    fn next_sequence(&mut self, unix_s: u64) {
        if unix_s > self.seconds {
            (self.seconds, self.fraction) = (unix_s, 0);
        } else if self.fraction == 99_999 {
            (self.seconds, self.fraction) = (self.seconds + 1, 0);
        } else {
            self.fraction += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::congestion::{Backlog, Class, Config, Downstream, Feedback};
    use crate::cursor::Cursor;
    use crate::{HashKey, Mono};

    const START: u64 = 1_700_000_000;

    fn now(ms: u64) -> Now {
        Now {
            mono: Mono(ms * 1_000_000),
            unix_s: START + ms / 1000,
        }
    }

    fn controller(messages: u64) -> Controller {
        let mut controller = Controller::new(Config::default(), HashKey::new([3; 16]));
        for _ in 0..500 {
            controller.observe_service(32, Duration::from_micros(32 * 50));
        }
        let backlog = Backlog {
            messages,
            ..Backlog::default()
        };
        controller.observe_backlog(Mono(0), backlog);
        controller
    }

    fn said(reply: &OcReply) -> &str {
        std::str::from_utf8(reply.params()).unwrap()
    }

    fn feedback(said: &str) -> Feedback {
        let mut feedback = Feedback::default();
        for param in said.split(';').skip(1) {
            let (name, value) = param.split_once('=').unwrap();
            feedback.note(name.as_bytes(), Some(value.as_bytes()));
        }
        feedback
    }

    #[test]
    fn it_reports_the_reduction_while_congested_and_otherwise_zero_rfc7339_5_1() {
        let mut reply = OcReply::new();
        reply.update(now(0), &controller(0));
        let calm = ";oc=0;oc-algo=\"loss\";oc-validity=0;oc-seq=1699999940.00000";
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

    /// Two workers under one address: see [`OcReply::set`].
    #[test]
    fn a_calm_worker_does_not_end_the_reduction_of_a_busy_one_rfc7339_4_4() {
        for calm_was_busy in [false, true] {
            let (mut busy, mut calm) = (OcReply::new(), OcReply::new());
            let hop = ([192, 0, 2, 1], 5060).into();
            calm.update(now(0), &controller(0));
            if calm_was_busy {
                calm.set(START, Some(10));
            }
            // Long ago.
            let later = now(20_000_000);
            calm.update(later, &controller(0));
            busy.update(later, &controller(0));
            busy.set(later.unix_s, Some(100));
            let mut client = Downstream::new(7);
            client.learn(Mono(0), hop, feedback(said(&busy)));
            client.learn(Mono(1), hop, feedback(said(&calm)));
            assert!(!client.admit(Mono(2), hop, Class::New));
        }
    }

    #[test]
    fn senders_that_list_algorithms_must_include_loss_rfc7339_4_2() {
        let offers = |params: &str| {
            let via = format!("SIP/2.0/UDP a.example;branch=x{params}");
            offers_loss(&Via::read(&mut Cursor::new(via.as_bytes())).unwrap())
        };
        assert!(offers(";OC"), "loss is the default");
        assert!(offers(";oc;oc-Algo=\"loss,rate\""));
        assert!(offers(";oc;oc-algo=\"A, Rate,Loss\""));
        assert!(!offers(";oc;oc-algo=\"rate\""));
        assert!(!offers(";oc;oc-algo=\"window\""));
        assert!(!offers(";rport"), "no oc");
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
