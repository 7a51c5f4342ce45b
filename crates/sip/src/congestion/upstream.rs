//! RFC 7339 as a server: telling the senders that understand it how much to hold back.

use std::fmt::Write as _;
use std::net::IpAddr;

use super::controller::{Behaviour, Controller};
use super::rates::Rates;
use crate::header::Via;
use crate::{HashKey, Now};

/// How long a report is valid (RFC 7339 §4.3): the default of the RFC.
const VALIDITY_MS: u32 = 500;
/// How far the number of a calm report lies behind the clock, in seconds: it is older than any report that is still valid, and not
/// so much older that it could be taken for that of a server which has begun anew (RFC 7339 §4.4).
const CALM_AGE_S: u64 = 60;

/// The algorithms that there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Holding back a share of the requests (RFC 7339 §7).
    Loss,
    /// Sending so many requests a second (RFC 7415).
    Rate,
}

/// What the top Via of a request says its sender understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OcOffer {
    /// `oc` is there: it takes part.
    pub supported: bool,
    /// The first algorithm of `oc-algo` that is known here; loss where there is no `oc-algo` (RFC 7339 §4.2).
    pub preferred: Option<Algorithm>,
}

impl Default for OcOffer {
    fn default() -> OcOffer {
        OcOffer {
            supported: false,
            preferred: Some(Algorithm::Loss),
        }
    }
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
            let mut names = algorithms.split(|byte| matches!(byte, b'"' | b',' | b' ' | b'\t'));
            self.preferred = names.find_map(|name| match () {
                () if name.eq_ignore_ascii_case(b"loss") => Some(Algorithm::Loss),
                () if name.eq_ignore_ascii_case(b"rate") => Some(Algorithm::Rate),
                () => None,
            });
        }
    }

    /// The algorithm that is agreed upon (RFC 7339 §5.1): the one the sender prefers. A sender repeats its list in every request
    /// (§4.2), so that it never changes for anybody (§5.8), although nothing is kept about it. `None` if it does not
    /// take part, or knows nothing that is known here.
    #[must_use]
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.preferred.filter(|_| self.supported)
    }
}

/// Whether the parameter is one of RFC 7339's, which are replaced in an answer.
#[must_use]
pub(crate) fn is_oc_parameter(name: &[u8]) -> bool {
    [&b"oc"[..], b"oc-algo", b"oc-validity", b"oc-seq"]
        .iter()
        .any(|known| name.eq_ignore_ascii_case(known))
}

/// What is written into the top Via of every response to senders that offered it, by algorithm.
#[derive(Debug)]
pub struct OcReply {
    loss: Report,
    rate: Report,
    rates: Rates,
}

impl OcReply {
    /// That there is nothing to hold back.
    #[must_use]
    pub fn new(key: HashKey) -> OcReply {
        OcReply {
            loss: Report::new("loss"),
            rate: Report::new("rate"),
            rates: Rates::new(key),
        }
    }

    /// Brings the reports up to date; to be called once a batch, not once a message.
    pub fn update(&mut self, now: Now, controller: &Controller) {
        let is_congested = controller.behaviour() != Behaviour::Normal;
        let loss = is_congested.then(|| (u32::from(controller.shed_percent()), VALIDITY_MS));
        self.loss.set(now.unix_s, loss);
        if self.rates.turn(now.mono, controller) {
            self.rate.set(now.unix_s, self.rates.limit());
        } else {
            self.rate.stay_young(now.unix_s);
        }
    }

    /// So many messages were handled, refusals not counted.
    pub fn observe_service(&mut self, messages: u32) {
        self.rates.observe_service(messages);
    }

    /// A request that belongs to no transaction has come from there, and was accepted, or not.
    #[inline]
    pub fn count(&mut self, source: IpAddr, is_accepted: bool) {
        self.rates.count(source, is_accepted);
    }

    /// The parameters for a sender with which this algorithm was agreed upon, with a semicolon in front.
    #[must_use]
    pub fn params(&mut self, algorithm: Algorithm) -> &[u8] {
        match algorithm {
            Algorithm::Loss => self.loss.text.as_bytes(),
            Algorithm::Rate => {
                self.rates.note_speaker();
                self.rate.text.as_bytes()
            }
        }
    }
}

/// What one algorithm asks for, and the number of that.
#[derive(Debug)]
struct Report {
    algorithm: &'static str,
    text: String,
    seconds: u64,
    fraction: u32,
    active: bool,
}

impl Report {
    fn new(algorithm: &'static str) -> Report {
        let mut report = Report {
            algorithm,
            text: String::new(),
            seconds: 0,
            fraction: 0,
            active: false,
        };
        report.write(0, 0);
        report
    }

    /// The value of `oc` and for how many milliseconds it holds; or that there is nothing to hold back.
    ///
    /// While there is nothing, the number is lower than that of any report which still holds: several workers answer under one
    /// address, and what the calm ones say must not end what a busy one has asked for.
    fn set(&mut self, unix_s: u64, asked: Option<(u32, u32)>) {
        if asked.is_none() && !self.active {
            return self.stay_young(unix_s);
        }
        self.active = asked.is_some();
        self.next_sequence(unix_s);
        // RFC 7339 §5.7: the end is told by zeros, under a new number.
        let (value, validity_ms) = asked.unwrap_or((0, 0));
        self.write(value, validity_ms);
    }

    /// RFC 7339 §4.4: much lower numbers are taken for those of a server that has begun anew.
    fn stay_young(&mut self, unix_s: u64) {
        if !self.active && unix_s > self.seconds.saturating_add(2 * CALM_AGE_S) {
            self.seconds = unix_s - CALM_AGE_S;
            self.fraction = 0;
            self.write(0, 0);
        }
    }

    fn write(&mut self, value: u32, validity_ms: u32) {
        self.text.clear();
        // Writing to a String cannot fail.
        let _ = write!(
            self.text,
            ";oc={value};oc-algo=\"{}\";oc-validity={validity_ms};oc-seq={}.{:05}",
            self.algorithm, self.seconds, self.fraction
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
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::congestion::{Backlog, Class, Config, Downstream, Feedback};
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
        controller.observe_service(1000, Duration::from_millis(50));
        let backlog = Backlog {
            messages,
            ..Backlog::default()
        };
        controller.observe_backlog(Mono(0), backlog);
        controller
    }

    fn reply() -> OcReply {
        OcReply::new(HashKey::new([3; 16]))
    }

    fn said(reply: &mut OcReply, algorithm: Algorithm) -> String {
        String::from_utf8(reply.params(algorithm).to_vec()).unwrap()
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
    fn it_reports_while_congested_and_otherwise_that_there_is_nothing_to_hold_back_rfc7339_5_1() {
        let mut reply = reply();
        reply.update(now(0), &controller(0));
        let calm = ";oc=0;oc-algo=\"loss\";oc-validity=0;oc-seq=1699999940.00000";
        assert_eq!(said(&mut reply, Algorithm::Loss), calm);
        assert_eq!(
            said(&mut reply, Algorithm::Rate),
            calm.replace("loss", "rate")
        );
        reply.update(now(100), &controller(5000));
        assert_eq!(
            said(&mut reply, Algorithm::Loss),
            ";oc=0;oc-algo=\"loss\";oc-validity=500;oc-seq=1700000000.00000"
        );
        // RFC 7339 §5.7: the end has a higher number than what it ends, and the same from then on.
        let over = ";oc=0;oc-algo=\"loss\";oc-validity=0;oc-seq=1700000000.00001";
        for ms in [200, 1300, 100_000] {
            reply.update(now(ms), &controller(0));
            assert_eq!(said(&mut reply, Algorithm::Loss), over);
        }
    }

    /// Two workers under one address: see [`Report::set`].
    #[test]
    fn what_a_calm_worker_says_ends_nothing_that_a_busy_one_asked_for_rfc7339_4_4() {
        for algorithm in [Algorithm::Loss, Algorithm::Rate] {
            for calm_was_busy in [false, true] {
                let (mut busy, mut calm) = (reply(), reply());
                let hop = ([192, 0, 2, 1], 5060).into();
                calm.update(now(0), &controller(0));
                if calm_was_busy {
                    calm.loss.set(START, Some((10, VALIDITY_MS)));
                    calm.rate.set(START, Some((10, VALIDITY_MS)));
                }
                // Long ago.
                let later = now(20_000_000);
                calm.update(later, &controller(0));
                busy.update(later, &controller(0));
                busy.loss.set(later.unix_s, Some((100, VALIDITY_MS)));
                busy.rate.set(later.unix_s, Some((0, VALIDITY_MS)));
                let mut client = Downstream::new(7);
                client.learn(Mono(0), hop, feedback(&said(&mut busy, algorithm)));
                client.learn(Mono(1), hop, feedback(&said(&mut calm, algorithm)));
                assert!(!client.admit(Mono(2), hop, Class::New), "{algorithm:?}");
            }
        }
    }

    #[test]
    fn the_algorithm_a_sender_prefers_is_agreed_upon_rfc7339_4_2_rfc7415_3_3() {
        let agreed = |algorithms: Option<&str>| {
            let mut offer = OcOffer::default();
            offer.note(b"branch", Some(b"x"));
            offer.note(b"OC", None);
            if let Some(algorithms) = algorithms {
                offer.note(b"oc-Algo", Some(algorithms.as_bytes()));
            }
            offer.algorithm()
        };
        assert_eq!(agreed(None), Some(Algorithm::Loss), "the default");
        assert_eq!(agreed(Some("\"loss,rate\"")), Some(Algorithm::Loss));
        assert_eq!(agreed(Some("\"A, Rate,Loss\"")), Some(Algorithm::Rate));
        // RFC 7339 §4.2 has every client know loss: who does not say so is not answered with it.
        assert_eq!(agreed(Some("\"rate\"")), Some(Algorithm::Rate));
        assert_eq!(agreed(Some("\"window\"")), None);
        assert_eq!(OcOffer::default().algorithm(), None, "no oc");
    }

    #[test]
    fn the_sequence_rises_beyond_a_hundred_thousand_reports_a_second() {
        let mut report = Report::new("loss");
        let mut before = (0, 0);
        for _ in 0..100_010 {
            report.next_sequence(7);
            assert!((report.seconds, report.fraction) > before);
            before = (report.seconds, report.fraction);
        }
    }
}
