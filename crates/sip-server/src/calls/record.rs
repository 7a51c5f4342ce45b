//! The record of one call, from its INVITE to its end. It becomes one log line.

use std::net::SocketAddr;
use std::time::Duration;

use sip::flow::{Flow, Transport};
use sip::{HashKey, Message, Mono, Now};

/// The most bytes that a record has of the Call-ID, of each URI, and of each name of a trunk or user. Longer texts are
/// cut.
const MAX_CALL_ID_BYTES: usize = 88;
const MAX_URI_BYTES: usize = 40;
const MAX_NAME_BYTES: usize = 32;
/// The most bytes of all texts together. If all other texts are at their limits, 25 bytes are left for the list of
/// failed attempts and their times.
const MAX_BYTES: usize = 258;
/// The most bytes of the list of failed attempts. The list uses the bytes that shorter texts leave.
const MAX_FAILED_BYTES: usize = 120;
/// The end of the list, if it has no room for further attempts.
const MORE: &[u8] = b" ...";
/// Texts of one record: Call-ID, From, Request-URI, the names of the source and the target. Before the name of the
/// target is the list of failed attempts. Its length in one byte is before the list, and the times are after it.
const TEXT_COUNT: usize = 5;
/// Bytes of the time of a failed attempt, and its unit in milliseconds.
const TIME: usize = 2;
const TIME_UNIT: u32 = 10;

/// The time of an event that has not happened.
const NEVER: u32 = u32::MAX;

/// One side of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Leg {
    /// The transport.
    pub transport: Transport,
    /// The address of the next element: the phone, its NAT, or another server.
    pub remote: SocketAddr,
}

impl From<&Flow> for Leg {
    fn from(flow: &Flow) -> Leg {
        Leg {
            transport: flow.transport,
            remote: flow.remote,
        }
    }
}

/// Who has ended a call, or a call attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndedBy {
    /// The caller: a BYE, or a CANCEL before the answer.
    Caller,
    /// The called party: a BYE, or a final response other than 2xx.
    Called,
    /// The proxy: a limit was exceeded, or no target could be reached.
    Proxy,
    /// Nobody: the session has expired without a BYE, or the longest duration of a call is over. Or a later call has
    /// the same Call-ID and tags, so that the end of this one cannot be recognised.
    Expiry,
    /// The server ends, and with it the state of the call.
    Server,
}

impl EndedBy {
    /// Its name in a log line.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EndedBy::Caller => "caller",
            EndedBy::Called => "called",
            EndedBy::Proxy => "proxy",
            EndedBy::Expiry => "expiry",
            EndedBy::Server => "server",
        }
    }
}

/// How a call, or a call attempt, has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallEnd<'r> {
    /// Who has ended it.
    pub by: EndedBy,
    /// The reason phrase, if the proxy itself has refused the call and says why; otherwise empty.
    pub reason: &'r str,
}

impl From<EndedBy> for CallEnd<'_> {
    fn from(by: EndedBy) -> Self {
        CallEnd { by, reason: "" }
    }
}

/// Why a copy of an INVITE was not answered with a 2xx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AttemptFailure {
    /// The target has sent this final response.
    Code(u16),
    /// It has rung for too long, and was cancelled.
    NoAnswer,
    /// There was no response in time.
    NoResponse,
    /// The copy could not be sent, or its connection was lost.
    NotSent,
    /// The proxy has sent no copy, because of a limit of the trunk or because the target has asked for less
    /// (RFC 7339).
    Limited,
}

impl std::fmt::Display for AttemptFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            AttemptFailure::Code(code) => return write!(f, "{code}"),
            AttemptFailure::NoAnswer => "no_answer",
            AttemptFailure::NoResponse => "silent",
            AttemptFailure::NotSent => "not_sent",
            AttemptFailure::Limited => "limited",
        })
    }
}

/// A call. With its texts, it takes at most 410 bytes.
#[derive(Debug)]
pub struct CallRecord {
    /// All texts one after the other, because one allocation needs less memory than five.
    text: Box<[u8]>,
    lens: [u8; TEXT_COUNT - 1],
    began: Mono,
    began_unix_s: u64,
    rang_ms: u32,
    answered_ms: u32,
    /// The hash of the caller's tag.
    caller: u64,
    source: Leg,
    target: Option<Leg>,
    tried: u8,
    code: u16,
    /// A CANCEL of the caller has come.
    is_cancelled: bool,
}

const _: () = assert!(size_of::<CallRecord>() <= 128, "part of 512 bytes a dialog");
const _: () = assert!(
    MAX_CALL_ID_BYTES + 2 * MAX_URI_BYTES + 2 * MAX_NAME_BYTES + MORE.len() < MAX_BYTES,
    "part of 512 bytes a dialog"
);

impl CallRecord {
    /// The record of an INVITE that came by `flow`. `source` is the name of the trunk or user that has sent it.
    #[must_use]
    pub fn new(
        key: HashKey,
        now: Now,
        message: &Message<'_>,
        (source, flow): (&[u8], &Flow),
    ) -> CallRecord {
        let from = message.from().ok();
        let texts: [&[u8]; TEXT_COUNT - 1] = [
            cut(message.call_id().unwrap_or_default(), MAX_CALL_ID_BYTES),
            cut(
                from.as_ref().map_or(&b""[..], |from| from.uri),
                MAX_URI_BYTES,
            ),
            cut(message.request_uri().unwrap_or_default(), MAX_URI_BYTES),
            cut(source, MAX_NAME_BYTES),
        ];
        let tag = from.and_then(|from| from.tag).unwrap_or_default();
        CallRecord {
            lens: texts.map(|text| text.len() as u8),
            // No attempt has failed.
            text: [&texts.concat()[..], &[0]].concat().into_boxed_slice(),
            began: now.mono,
            began_unix_s: now.unix_s,
            rang_ms: NEVER,
            answered_ms: NEVER,
            caller: tag_hash(key, tag),
            source: flow.into(),
            target: None,
            tried: 0,
            code: 0,
            is_cancelled: false,
        }
    }

    /// The caller has sent a CANCEL.
    pub const fn cancelled(&mut self) {
        self.is_cancelled = true;
    }

    /// The proxy sends this final response, which is not a 2xx. Returns who has ended the call. `is_own`: the proxy
    /// itself has made the response.
    pub const fn refused(&mut self, code: u16, is_own: bool) -> EndedBy {
        self.code = code;
        match (self.is_cancelled, is_own) {
            (true, _) => EndedBy::Caller,
            (false, true) => EndedBy::Proxy,
            (false, false) => EndedBy::Called,
        }
    }

    /// The proxy has sent a copy to one more target.
    pub const fn tried(&mut self) {
        self.tried = self.tried.saturating_add(1);
    }

    /// The proxy forwards a provisional response other than 100.
    pub fn rang(&mut self, now: Mono) {
        if self.rang_ms == NEVER {
            self.rang_ms = self.since_begin(now);
        }
    }

    /// A copy of the INVITE has failed. `trunk` is the name of the trunk that it was for; empty for another target.
    pub fn attempt_failed(&mut self, now: Mono, trunk: &[u8], failure: AttemptFailure) {
        let (before, times) = (self.failed(), self.failed_times());
        if before.ends_with(MORE) {
            return;
        }
        // A later time has no room. It is unknown.
        let time = u16::try_from(self.since_begin(now) / TIME_UNIT).unwrap_or(u16::MAX);
        let mut times = [times, &time.to_be_bytes()].concat();
        let gap: &[u8] = if before.is_empty() { b"" } else { b" " };
        let colon: &[u8] = if trunk.is_empty() { b"" } else { b":" };
        let failure = failure.to_string();
        let mut all = [
            before,
            gap,
            cut(trunk, MAX_NAME_BYTES),
            colon,
            failure.as_bytes(),
        ]
        .concat();
        // The name of the target comes later. One byte has the length.
        let room = (MAX_BYTES - MAX_NAME_BYTES - 1)
            .saturating_sub(self.fixed().len() + times.len())
            .min(MAX_FAILED_BYTES);
        if all.len() + MORE.len() > room {
            all = [before, MORE].concat();
            times.truncate(times.len() - TIME);
        }
        self.text = self.with_end((&all, &times), self.target_name());
    }

    /// A final response has come by `leg`. `target` is the name of the trunk, or the address of record of the user.
    pub fn concluded(&mut self, now: Mono, code: u16, target: &[u8], leg: Option<Leg>) {
        self.code = code;
        if code / 100 == 2 && self.answered_ms == NEVER {
            self.answered_ms = self.since_begin(now);
        }
        let failed = (self.failed(), self.failed_times());
        self.text = self.with_end(failed, cut(target, MAX_NAME_BYTES));
        self.target = leg;
    }

    /// Who has sent a BYE, by the hash of the tag in its From.
    pub(crate) const fn sender_of_bye(&self, tag: u64) -> EndedBy {
        match tag == self.caller {
            true => EndedBy::Caller,
            false => EndedBy::Called,
        }
    }

    fn since_begin(&self, now: Mono) -> u32 {
        u32::try_from(now.since(self.began).as_millis()).unwrap_or(NEVER - 1)
    }

    fn text(&self, number: usize) -> &[u8] {
        let mut begin = 0;
        for len in self.lens.iter().take(number) {
            begin += usize::from(*len);
        }
        let len = self.lens.get(number).copied().unwrap_or(0);
        let end = begin + usize::from(len);
        self.text.get(begin..end).unwrap_or_default()
    }

    /// The texts that do not change.
    fn fixed(&self) -> &[u8] {
        let len: usize = self.lens.iter().map(|len| usize::from(*len)).sum();
        self.text.get(..len).unwrap_or_default()
    }

    /// The failed attempts, their times, and the name of the target.
    fn end(&self) -> (&[u8], &[u8], &[u8]) {
        let end = self.text.get(self.fixed().len()..).unwrap_or_default();
        let (len, rest) = end.split_first().unwrap_or((&0, &[]));
        let (failed, rest) = rest.split_at_checked((*len).into()).unwrap_or_default();
        let listed = failed.strip_suffix(MORE).unwrap_or(failed);
        let attempts = match listed.is_empty() {
            true => 0,
            false => 1 + listed.iter().filter(|byte| **byte == b' ').count(),
        };
        let (times, target) = rest.split_at_checked(attempts * TIME).unwrap_or_default();
        (failed, times, target)
    }

    fn failed(&self) -> &[u8] {
        self.end().0
    }

    fn failed_times(&self) -> &[u8] {
        self.end().1
    }

    fn target_name(&self) -> &[u8] {
        self.end().2
    }

    /// All texts with these at the end.
    fn with_end(&self, (failed, times): (&[u8], &[u8]), target: &[u8]) -> Box<[u8]> {
        let len = failed.len() as u8;
        let text = [self.fixed(), &[len], failed, times, target].concat();
        text.into_boxed_slice()
    }

    /// The fields of its log line.
    #[must_use]
    pub fn line(&self, now: Mono) -> CallLine<'_> {
        let happened = |ms: u32| (ms != NEVER).then(|| Duration::from_millis(ms.into()));
        CallLine {
            call_id: self.text(0),
            from: self.text(1),
            to: self.text(2),
            source: self.text(3),
            failed: self.failed(),
            failed_at: AttemptTimes(self.failed_times()),
            target: self.target_name(),
            began_unix_s: self.began_unix_s,
            rang: happened(self.rang_ms),
            answered: happened(self.answered_ms),
            lasted: now.since(self.began),
            source_leg: self.source,
            target_leg: self.target,
            tried: self.tried,
            code: self.code,
        }
    }
}

/// The fields of the log line of a record. All durations begin with the INVITE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallLine<'r> {
    /// The Call-ID.
    pub call_id: &'r [u8],
    /// The URI in From.
    pub from: &'r [u8],
    /// The Request-URI of the caller.
    pub to: &'r [u8],
    /// The trunk or the user that has sent the INVITE; empty for other senders.
    pub source: &'r [u8],
    /// The copies of the INVITE that have failed, in order, with a space between: the name of a trunk with a colon, and
    /// the code or another [`AttemptFailure`].
    pub failed: &'r [u8],
    /// When they have failed, in the same order.
    pub failed_at: AttemptTimes<'r>,
    /// The trunk or the user that has sent the final response; empty if the proxy itself has sent it.
    pub target: &'r [u8],
    /// When the INVITE came, in seconds since 1970.
    pub began_unix_s: u64,
    /// Time until the first provisional response other than 100.
    pub rang: Option<Duration>,
    /// Time until the first 2xx.
    pub answered: Option<Duration>,
    /// Time until now.
    pub lasted: Duration,
    /// Where the INVITE came from.
    pub source_leg: Leg,
    /// Where the final response came from.
    pub target_leg: Option<Leg>,
    /// How many copies of the INVITE the proxy has sent.
    pub tried: u8,
    /// The final response to the INVITE; 0 without one.
    pub code: u16,
}

/// Times of failed attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptTimes<'r>(&'r [u8]);

impl AttemptTimes<'_> {
    /// The time of each attempt since the INVITE, rounded down to 10 ms; `None` after more than ten minutes.
    pub fn iter(&self) -> impl Iterator<Item = Option<Duration>> {
        let (times, _) = self.0.as_chunks::<TIME>();
        times.iter().map(|time| {
            let time = u16::from_be_bytes(*time);
            let ms = u64::from(time) * u64::from(TIME_UNIT);
            (time != u16::MAX).then(|| Duration::from_millis(ms))
        })
    }
}

fn cut(text: &[u8], most: usize) -> &[u8] {
    text.get(..most).unwrap_or(text)
}

/// The hash of a tag, for [`CallRecord::sender_of_bye`].
pub(crate) fn tag_hash(key: HashKey, tag: &[u8]) -> u64 {
    key.derive(4).mac(tag)
}

#[cfg(test)]
mod tests {
    use sip::Spans;

    use super::*;

    #[test]
    fn failed_attempts_are_listed_in_order_as_far_as_there_is_room() {
        let text = "INVITE sip:+4930@example.com SIP/2.0\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\n\
                    From: <sip:alice@example.com>;tag=1\r\nTo: <sip:+4930@example.com>\r\nCall-ID: 1@h\r\n\
                    CSeq: 1 INVITE\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n";
        let mut spans = Spans::new();
        let message = Message::parse(text.as_bytes(), &mut spans).unwrap();
        let flow = Flow {
            transport: Transport::Udp,
            listener: sip::flow::ListenerKey(0),
            connection: None,
            local: "192.0.2.1:5060".parse().unwrap(),
            remote: "192.0.2.2:5060".parse().unwrap(),
        };
        let now = Now::default();
        let mut record = CallRecord::new(HashKey::new([1; 16]), now, &message, (b"alice", &flow));
        assert_eq!(record.line(now.mono).failed, b"");
        let after = |ms: u64| now.mono.plus(Duration::from_millis(ms));
        record.attempt_failed(after(40), b"a", AttemptFailure::Code(503));
        record.concluded(now.mono, 503, b"carrier-a", None);
        record.attempt_failed(after(32_049), b"carrier-b", AttemptFailure::NoResponse);
        record.attempt_failed(after(700_000), b"", AttemptFailure::Code(486));
        record.concluded(now.mono, 200, b"carrier-c", None);
        let line = record.line(now.mono);
        let times: Vec<_> = line.failed_at.iter().collect();
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(times, [ms(40), ms(32_040), None]);
        assert_eq!(line.failed, b"a:503 carrier-b:silent 486");
        assert_eq!(
            (line.source, line.target),
            (&b"alice"[..], &b"carrier-c"[..])
        );
        assert_eq!(line.to, b"sip:+4930@example.com");
        for _ in 0..300 {
            record.attempt_failed(now.mono, b"carrier-d", AttemptFailure::NotSent);
        }
        let line = record.line(now.mono);
        let listed = line.failed.split(|byte| *byte == b' ').count() - 1;
        assert_eq!(line.failed_at.iter().count(), listed);
        assert!(record.text.len() <= MAX_BYTES);
        assert!(
            line.failed
                .starts_with(b"a:503 carrier-b:silent 486 carrier-d:not_sent ")
        );
        assert!(line.failed.ends_with(b"carrier-d:not_sent ..."));
        assert!(line.failed.len() <= MAX_FAILED_BYTES);
        assert_eq!(line.target, b"carrier-c");
    }
}
