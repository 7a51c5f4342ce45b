//! The dialogs of subscriptions: the To tag names worker and subscription, and the beginning of each NOTIFY is always
//! the same.

use sip::build::{BuildError, Builder, Part, request_of_uas};
use sip::engine::NewRequest;
use sip::header::HeaderKind;
use sip::{HashKey, Message, Method, Spans};

/// Bytes of a tag: a mark, then worker (16 bits), slot (32), generation (32) and MAC (64) in hexadecimal digits.
pub(super) const TAG_LEN: usize = 1 + 2 * SIGNED;
const SIGNED: usize = 2 + 4 + 4 + 8;
/// No other tag of this server begins so and has this length.
const MARK: u8 = b'n';

/// Which subscription a dialog is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Name {
    pub(super) worker: u16,
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// Makes and reads tags. A MAC covers Call-ID and the tag of the subscriber: nobody can make a tag up.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tags {
    key: HashKey,
    ends: HashKey,
}

impl Tags {
    /// With the key of all workers of this run: after a restart, there is no subscription of an earlier run.
    pub(super) fn new(key: HashKey) -> Tags {
        let own = key.derive(u64::from_le_bytes(*b"regevent"));
        Tags {
            key: own.derive(1),
            ends: own.derive(2),
        }
    }

    fn mac(&self, name: &[u8; SIGNED - 8], call_id: &[u8], from_tag: &[u8]) -> u64 {
        let mut signed = [0; SIGNED + 8];
        signed[..SIGNED - 8].copy_from_slice(name);
        signed[SIGNED - 8..SIGNED].copy_from_slice(&self.ends.mac(call_id).to_be_bytes());
        signed[SIGNED..].copy_from_slice(&self.ends.mac(from_tag).to_be_bytes());
        self.key.mac(&signed)
    }

    /// The tag of this server in the dialog of a request.
    pub(super) fn write(&self, name: Name, request: &NewRequest<'_>) -> [u8; TAG_LEN] {
        let mut signed = [0; SIGNED];
        signed[..2].copy_from_slice(&name.worker.to_be_bytes());
        signed[2..6].copy_from_slice(&name.slot.to_be_bytes());
        signed[6..10].copy_from_slice(&name.generation.to_be_bytes());
        let mut head = [0; SIGNED - 8];
        head.copy_from_slice(&signed[..SIGNED - 8]);
        let from_tag = request.from_tag().unwrap_or_default();
        let mac = self.mac(&head, request.call_id(), from_tag);
        signed[SIGNED - 8..].copy_from_slice(&mac.to_be_bytes());
        let mut tag = [MARK; TAG_LEN];
        for (place, byte) in signed.iter().enumerate() {
            const HEX: &[u8; 16] = b"0123456789abcdef";
            // TAG_LEN is one byte more than two digits for each byte of `signed`.
            tag[1 + 2 * place] = HEX[usize::from(byte >> 4)];
            tag[2 + 2 * place] = HEX[usize::from(byte & 15)];
        }
        tag
    }

    /// The subscription that the To tag of a request names; `None` if the tag is none of these.
    pub(super) fn read(&self, request: &NewRequest<'_>) -> Option<Name> {
        let from_tag = request.from_tag().unwrap_or_default();
        self.read_tag(request.to_tag()?, request.call_id(), from_tag)
    }

    /// The same of its parts.
    pub(super) fn read_tag(&self, tag: &[u8], call_id: &[u8], from_tag: &[u8]) -> Option<Name> {
        let tag: &[u8; TAG_LEN] = tag.try_into().ok()?;
        let [MARK, digits @ ..] = tag else {
            return None;
        };
        let mut signed = [0; SIGNED];
        for (byte, pair) in signed.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |digit: u8| char::from(digit).to_digit(16);
            *byte = (digit(pair[0])? << 4 | digit(pair[1])?) as u8;
        }
        let (head, mac) = signed.split_first_chunk::<{ SIGNED - 8 }>()?;
        if mac != self.mac(head, call_id, from_tag).to_be_bytes() {
            return None;
        }
        Some(Name {
            worker: u16::from_be_bytes([head[0], head[1]]),
            slot: u32::from_be_bytes([head[2], head[3], head[4], head[5]]),
            generation: u32::from_be_bytes([head[6], head[7], head[8], head[9]]),
        })
    }
}

/// What every NOTIFY of a subscription begins with, up to CSeq, and where it goes.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) lines: Box<[u8]>,
    pub(super) next_hop: Box<[u8]>,
}

/// Bytes of the longest head: a longer one belongs to no subscriber.
const MAX_HEAD_BYTES: usize = 8 << 10;

impl Head {
    /// Of the dialog that a SUBSCRIBE begins or refreshes. `contact` is this server's, a whole line.
    pub(super) fn of(request: &NewRequest<'_>, tag: &[u8], contact: &[u8]) -> Option<Head> {
        let message = &request.message;
        let target = message.contact().ok().flatten()?.uri;
        // The 2xx, as far as requests of the dialog are made from it.
        let response = response_of(message, tag).ok()?;
        let mut spans = Box::<Spans>::default();
        let response = Message::parse(&response, &mut spans).ok()?;
        let mut written = vec![0; MAX_HEAD_BYTES];
        let notify = request_of_uas(&mut written, Method::Notify, &response, target, 1).ok()?;
        let next_hop = notify.next_hop.into();
        const CSEQ: &[u8] = b"\r\nCSeq: ";
        let mut windows = notify.bytes.windows(CSEQ.len());
        let end = windows.rposition(|window| window == CSEQ)? + 2;
        let event = message.header(HeaderKind::Event)?;
        let lines = [
            notify.bytes.get(..end)?,
            contact,
            b"Event: ",
            event.value,
            b"\r\n",
        ]
        .concat();
        Some(Head {
            lines: lines.into(),
            next_hop,
        })
    }
}

/// A response with this To tag, from which the dialog is made. It has only the fields that a dialog requires.
fn response_of(request: &Message<'_>, tag: &[u8]) -> Result<Vec<u8>, BuildError> {
    let mut buffer = vec![0; MAX_HEAD_BYTES];
    let mut lines = Builder::fields(&mut buffer);
    for kind in [
        HeaderKind::Via,
        HeaderKind::From,
        HeaderKind::CallId,
        HeaderKind::CSeq,
        HeaderKind::RecordRoute,
    ] {
        for field in request.headers(kind) {
            lines.copy(&field);
        }
    }
    let to = request
        .header(HeaderKind::To)
        .ok_or(BuildError::Malformed)?;
    let has_tag = request.to().is_ok_and(|to| to.tag.is_some());
    let parts = match has_tag {
        true => [Part::Bytes(to.value), Part::Bytes(b""), Part::Bytes(b"")],
        false => [
            Part::Bytes(to.value),
            Part::Bytes(b";tag="),
            Part::Bytes(tag),
        ],
    };
    lines.header_of(HeaderKind::To, &parts);
    let lines = lines.finish_fields()?;
    Ok([b"SIP/2.0 200 OK\r\n", lines, b"Content-Length: 0\r\n\r\n"].concat())
}
