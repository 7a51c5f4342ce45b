//! The record of one call, from its INVITE to its end. It becomes one log line.

use std::net::SocketAddr;
use std::time::Duration;

use sip::flow::{Flow, Transport};
use sip::{HashKey, Message, Mono, Now};

/// The most bytes that a record has of the Call-ID, of each URI, and of each name of a trunk or user. Longer texts are
/// cut.
const CALL_ID: usize = 88;
const URI: usize = 40;
const NAME: usize = 32;
/// Texts of one record: Call-ID, From, Request-URI, the names of the source and the target.
const TEXTS: usize = 5;

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

/// A call. With its texts, it takes at most 400 bytes.
#[derive(Debug)]
pub struct CallRecord {
    /// All texts one after the other, because one allocation needs less memory than five.
    text: Box<[u8]>,
    lens: [u8; TEXTS - 1],
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

const _: () = assert!(size_of::<CallRecord>() <= 152, "part of 512 bytes a dialog");
const _: () = assert!(
    CALL_ID + 2 * URI + 2 * NAME <= 232,
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
        let texts: [&[u8]; TEXTS - 1] = [
            cut(message.call_id().unwrap_or_default(), CALL_ID),
            cut(from.as_ref().map_or(&b""[..], |from| from.uri), URI),
            cut(message.request_uri().unwrap_or_default(), URI),
            cut(source, NAME),
        ];
        let tag = from.and_then(|from| from.tag).unwrap_or_default();
        CallRecord {
            lens: texts.map(|text| text.len() as u8),
            text: texts.concat().into_boxed_slice(),
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

    /// A final response has come by `leg`. `target` is the name of the trunk, or the address of record of the user.
    pub fn concluded(&mut self, now: Mono, code: u16, target: &[u8], leg: Option<Leg>) {
        self.code = code;
        if code / 100 == 2 && self.answered_ms == NEVER {
            self.answered_ms = self.since_begin(now);
        }
        let fixed: usize = self.lens.iter().map(|len| usize::from(*len)).sum();
        let fixed = self.text.get(..fixed).unwrap_or_default();
        self.text = [fixed, cut(target, NAME)].concat().into_boxed_slice();
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
        let end = match self.lens.get(number) {
            Some(len) => begin + usize::from(*len),
            None => self.text.len(),
        };
        self.text.get(begin..end).unwrap_or_default()
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
            target: self.text(TEXTS - 1),
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

fn cut(text: &[u8], most: usize) -> &[u8] {
    text.get(..most).unwrap_or(text)
}

/// The hash of a tag, for [`CallRecord::sender_of_bye`].
pub(crate) fn tag_hash(key: HashKey, tag: &[u8]) -> u64 {
    key.derive(4).mac(tag)
}
