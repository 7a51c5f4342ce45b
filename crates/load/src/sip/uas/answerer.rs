//! Makes the responses to requests, without sockets.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::time::Duration;

use io::clock;

use super::answer::{Ends, Method, respond};
use super::calls::Calls;
use super::counts::{Count, UasReport, WorkerCounts};
use crate::sip::lines::Lines;
use crate::sip::out::Out;

/// Answers what comes, and remembers calls until they are acknowledged.
#[derive(Debug)]
pub(crate) struct Answerer {
    pub(super) calls: Calls,
    ring_ns: u64,
    /// Status and WWW-Authenticate of the response to a REGISTER without credentials.
    challenge: Option<Vec<u8>>,
    hasher: RandomState,
    early: Vec<u8>,
    answer: Vec<u8>,
    pub(super) counts: Arc<WorkerCounts>,
}

impl Answerer {
    /// Picks up after `ring`.
    pub(crate) fn new(ring: Duration) -> Answerer {
        Answerer {
            calls: Calls::new(),
            ring_ns: ring.as_nanos() as u64,
            challenge: None,
            hasher: RandomState::new(),
            early: Vec::new(),
            answer: Vec::new(),
            counts: Arc::default(),
        }
    }

    /// From now on, a REGISTER without credentials gets 401. Any credentials are accepted.
    pub(crate) fn challenge(&mut self, realm: &str) {
        let challenge = format!(
            "401 Unauthorized\r\nWWW-Authenticate: Digest realm=\"{realm}\", nonce=\"{:016x}\", algorithm=MD5, \
             qop=\"auth\"",
            self.hasher.hash_one(realm)
        );
        self.challenge = Some(challenge.into_bytes());
    }

    /// Takes a message and puts what answers it into `out`.
    pub(crate) fn take(&mut self, link: u32, message: &[u8], ends: Ends, out: &mut Out) {
        let Some(method) = Method::of(message) else {
            self.counts.add(Count::Ignored, 1);
            return;
        };
        let count = match method {
            Method::Options => Count::Options,
            Method::Register => Count::Register,
            Method::Bye => Count::Bye,
            Method::Invite => return self.invite(link, message, ends, out),
            Method::Cancel => return self.cancel(link, message, ends, out),
            Method::Ack => {
                self.counts.add(Count::Ack, 1);
                let (key, _) = self.names(message);
                return self.calls.close(key);
            }
            Method::Other => Count::Other,
        };
        self.counts.add(count, 1);
        let (_, tag) = self.names(message);
        let challenge = self.challenge.as_deref().filter(|_| {
            let credentials = Lines::of(message).find(b"Authorization", b"Authorization");
            method == Method::Register && credentials.is_none()
        });
        let status = challenge.unwrap_or(b"200 OK");
        out.write(link, ends.from, |into| {
            respond(into, message, method, status, tag, ends);
        });
        self.counts.add(Count::Responses, 1);
    }

    /// RFC 3261 §9.2: a ringing call ends with 487, an answered call continues, and an unknown call gets 481.
    fn cancel(&mut self, link: u32, message: &[u8], ends: Ends, out: &mut Out) {
        let (key, tag) = self.names(message);
        self.counts.add(Count::Cancel, 1);
        let known = self.calls.repeat(key).is_some();
        let status: &[u8] = match known {
            true => b"200 OK",
            false => b"481 Call/Transaction Does Not Exist",
        };
        out.write(link, ends.from, |into| {
            respond(into, message, Method::Cancel, status, tag, ends);
        });
        self.counts.add(Count::Responses, 1);
        let now_ns = clock::monotonic_ns();
        if let Some(due) = self.calls.cancel(key, now_ns) {
            out.write(due.link, due.to, |into| into.extend_from_slice(due.message));
            self.counts.add(Count::Responses, 1);
            self.counts.add(Count::Cancelled, 1);
        }
    }

    /// Sends what is due without a request.
    pub(crate) fn repeat(&mut self, now_ns: u64, out: &mut Out) {
        while let Some(due) = self.calls.pop_due(now_ns) {
            self.counts.add(Count::Responses, 1);
            self.counts
                .add(Count::Retransmissions, u64::from(due.again));
            out.write(due.link, due.to, |into| into.extend_from_slice(due.message));
        }
        let given_up = std::mem::take(&mut self.calls.unacknowledged);
        self.counts.add(Count::Unacknowledged, given_up);
    }

    /// When [`Answerer::repeat`] has something to do.
    pub(crate) fn next_deadline(&self) -> Option<u64> {
        self.calls.next_deadline()
    }

    /// What it has done so far.
    pub(crate) fn report(&self) -> UasReport {
        let mut report = UasReport::default();
        self.counts.add_to(&mut report);
        report
    }

    fn invite(&mut self, link: u32, message: &[u8], ends: Ends, out: &mut Out) {
        let (key, tag) = self.names(message);
        if let Some(due) = self.calls.repeat(key) {
            self.counts.add(Count::Repeated, 1);
            self.counts.add(Count::Responses, 1);
            out.write(link, ends.from, |into| into.extend_from_slice(due.message));
            return;
        }
        self.counts.add(Count::Invite, 1);
        self.early.clear();
        self.answer.clear();
        let method = Method::Invite;
        respond(&mut self.early, message, method, b"180 Ringing", tag, ends);
        respond(&mut self.answer, message, method, b"200 OK", tag, ends);
        out.write(link, ends.from, |into| into.extend_from_slice(&self.early));
        self.counts.add(Count::Responses, 1);
        let now_ns = clock::monotonic_ns();
        let mut answer_ns = 0;
        if self.ring_ns > 0 {
            answer_ns = now_ns + self.ring_ns;
        } else {
            out.write(link, ends.from, |into| into.extend_from_slice(&self.answer));
            self.counts.add(Count::Responses, 1);
        }
        let messages = (&self.early[..], &self.answer[..]);
        self.calls
            .open(key, (link, ends.from), messages, answer_ns, now_ns);
    }

    /// A key that an INVITE and its ACK share (Call-ID and the number in CSeq), and a tag that a retransmission gets
    /// again.
    fn names(&self, message: &[u8]) -> (u64, u64) {
        let mut hasher = self.hasher.build_hasher();
        let mut tag = 0;
        for line in Lines::of(message) {
            match line.name.first() {
                Some(b'C' | b'c' | b'i' | b'I') if line.is(b"Call-ID", b"i") => {
                    hasher.write(line.value);
                    tag = hasher.finish();
                }
                Some(b'C' | b'c') if line.is(b"CSeq", b"CSeq") => {
                    hasher.write_u64(crate::sip::lines::leading_number(line.value));
                }
                _ => {}
            }
        }
        (hasher.finish(), tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sip::Transport;

    fn answer(answerer: &mut Answerer, request: &str) -> String {
        let mut out = Out::default();
        let ends = Ends {
            from: ([192, 0, 2, 1], 5060).into(),
            local: ([192, 0, 2, 2], 5060).into(),
            transport: Transport::Udp,
        };
        answerer.take(0, request.as_bytes(), ends, &mut out);
        String::from_utf8(out.bytes).unwrap()
    }

    #[test]
    fn only_a_register_without_credentials_is_challenged() {
        let mut answerer = Answerer::new(Duration::ZERO);
        answerer.challenge("bench");
        let request = |method: &str, more: &str| {
            format!("{method} sip:h SIP/2.0\r\nCall-ID: a\r\nCSeq: 1 {method}\r\n{more}\r\n")
        };
        let first = answer(&mut answerer, &request("REGISTER", ""));
        assert!(
            first.starts_with(
                "SIP/2.0 401 Unauthorized\r\nWWW-Authenticate: Digest realm=\"bench\", "
            )
        );
        let with = request("REGISTER", "Authorization: Digest x\r\n");
        assert!(answer(&mut answerer, &with).starts_with("SIP/2.0 200 OK\r\n"));
        let other = request("OPTIONS", "");
        assert!(answer(&mut answerer, &other).starts_with("SIP/2.0 200 OK\r\n"));
    }
}
