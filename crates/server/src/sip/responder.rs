//! What is said to each request that is well-formed: OPTIONS is answered to anybody, the rest of a user agent server only for tests.
//!
//! Dialogs take no state: the To-tag of an answer is a keyed hash of Call-ID and From-tag, so that a BYE with the right tags is told from
//! one of a dialog that never was.

use super::reply::{Reply, Served, With};
use sip::build::Tag;
use sip::header::Contact;
use sip::verdict::Rules;
use sip::{Message, Method};
use std::hash::{BuildHasher, RandomState};

/// What is served to everybody.
const OPTIONS_ONLY: Rules<'static> = Rules {
    methods: &[Method::Options],
    ..Rules::USER_AGENT
};

impl Served {
    /// By what a request is judged.
    pub(super) const fn rules(self) -> Rules<'static> {
        match self {
            Served::Options => OPTIONS_ONLY,
            Served::TestUas => Rules::USER_AGENT,
        }
    }
}

/// Decides on answers.
#[derive(Debug)]
pub(super) struct Responder {
    hash: RandomState,
}

impl Responder {
    pub(super) fn new(hash: RandomState) -> Responder {
        Responder { hash }
    }

    /// The tag that stands for the dialog, and is the same for each retransmission (RFC 3261 §8.2.7).
    pub(super) fn tag(&self, call_id: &[u8], from_tag: &[u8]) -> Tag {
        Tag::new(self.hash.hash_one((call_id, from_tag)).to_be_bytes())
    }

    /// The answer to a request that was judged to be well-formed and supported; not to an ACK.
    pub(super) fn answer(&self, message: &Message<'_>) -> Reply {
        match message.method() {
            Some(Method::Invite) => self.invite(message),
            Some(Method::Register) => register(message),
            Some(Method::Bye) if self.knows_dialog(message) => Reply::new(200),
            // No dialog (§12.2.2, §15.1.2); nothing to cancel (§9.2).
            Some(Method::Bye | Method::Cancel) => Reply::new(481),
            _ => Reply::new(200).with(With::Capabilities),
        }
    }

    fn invite(&self, message: &Message<'_>) -> Reply {
        // §8.1.1.8: without a Contact nobody could send anything within the dialog.
        if !matches!(message.contact(), Ok(Some(_))) {
            return Reply::new(400).because("Missing Contact");
        }
        let in_dialog = message.to().is_ok_and(|to| to.tag.is_some());
        match in_dialog && !self.knows_dialog(message) {
            true => Reply::new(481),
            false => Reply::new(200).with(With::Dialog),
        }
    }

    /// Its tags are those of a dialog that an answer of ours has made.
    fn knows_dialog(&self, message: &Message<'_>) -> bool {
        let (Ok(call_id), Ok(from), Ok(to)) = (message.call_id(), message.from(), message.to())
        else {
            return false;
        };
        let ours = self.tag(call_id, from.tag.unwrap_or_default());
        to.tag == Some(ours.as_bytes())
    }
}

/// §10.3, for a registrar that forgets: what it would refuse is refused.
fn register(message: &Message<'_>) -> Reply {
    let (mut stars, mut count) = (0, 0);
    for contact in message.contacts() {
        stars += usize::from(matches!(contact, Ok(Contact::Star)));
        count += 1;
    }
    // §10.2.2: "*" stands alone, and only to remove everything.
    let removes = message.expires().ok().flatten() == Some(0);
    if stars > 0 && (count > 1 || !removes) {
        return Reply::new(400).because("Contact * Goes Alone and With Expires 0");
    }
    Reply::new(200).with(With::Bindings)
}

/// The answer to an offer that accepts none of its media (RFC 3264 §6), or an offer of none (§5).
pub(super) fn without_media(message: &Message<'_>) -> Vec<u8> {
    let mut sdp =
        b"v=0\r\no=- 0 0 IN IP4 192.0.2.0\r\ns=-\r\nc=IN IP4 192.0.2.0\r\nt=0 0\r\n".to_vec();
    let body = message.body();
    for line in body.split(|byte| *byte == b'\n') {
        let Some(media) = line.trim_ascii_end().strip_prefix(b"m=") else {
            continue;
        };
        let mut words = media.split(|byte| *byte == b' ');
        let (Some(kind), Some(_port)) = (words.next(), words.next()) else {
            continue;
        };
        sdp.extend_from_slice(b"m=");
        sdp.extend_from_slice(kind);
        sdp.extend_from_slice(b" 0");
        for word in words {
            sdp.push(b' ');
            sdp.extend_from_slice(word);
        }
        sdp.extend_from_slice(b"\r\n");
    }
    sdp
}
