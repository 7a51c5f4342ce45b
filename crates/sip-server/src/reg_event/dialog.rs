//! The dialogs of subscriptions. The To tag of a request shows the worker and the subscription. All NOTIFY requests of
//! a subscription have the same first lines.

use sip::build::{BuildError, Builder, Part, request_of_uas};
use sip::engine::NewRequest;
use sip::header::HeaderKind;
use sip::{HashKey, Message, Method, Spans};

/// Bytes of a tag: a mark, then worker (16 bits), slot (32), generation (32) and MAC (64) in hexadecimal digits.
pub(super) const TAG_LEN: usize = 1 + 2 * SIGNED;
/// Bytes that a tag has in digits: worker, slot, generation, and the MAC.
const SIGNED: usize = 2 + 4 + 4 + 8;
/// The first byte of a tag. No other tag of this server has this first byte and this length.
const MARK: u8 = b'n';

/// Identifies the subscription of a dialog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SubscriptionId {
    pub(super) worker: u16,
    pub(super) slot: u32,
    pub(super) generation: u32,
}

/// Makes and reads the tags of this server. A MAC covers the subscription, the Call-ID and the subscriber's tag, so
/// nobody can forge a tag.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tags {
    /// For the MAC of a tag.
    key: HashKey,
    /// For the MACs of the Call-ID and of the subscriber's tag, which the MAC of a tag covers.
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

    /// The MAC of a subscription's ID, the Call-ID and the subscriber's tag.
    fn mac(&self, id: &[u8; SIGNED - 8], call_id: &[u8], from_tag: &[u8]) -> u64 {
        let mut signed = [0; SIGNED + 8];
        signed[..SIGNED - 8].copy_from_slice(id);
        signed[SIGNED - 8..SIGNED].copy_from_slice(&self.ends.mac(call_id).to_be_bytes());
        signed[SIGNED..].copy_from_slice(&self.ends.mac(from_tag).to_be_bytes());
        self.key.mac(&signed)
    }

    /// Makes the tag of this server for the dialog that a SUBSCRIBE begins.
    pub(super) fn write(&self, id: SubscriptionId, request: &NewRequest<'_>) -> [u8; TAG_LEN] {
        let mut signed = [0; SIGNED];
        signed[..2].copy_from_slice(&id.worker.to_be_bytes());
        signed[2..6].copy_from_slice(&id.slot.to_be_bytes());
        signed[6..10].copy_from_slice(&id.generation.to_be_bytes());
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

    /// The subscription of the To tag of a request. `None` if this server did not make the tag for this dialog.
    pub(super) fn read(&self, request: &NewRequest<'_>) -> Option<SubscriptionId> {
        let from_tag = request.from_tag().unwrap_or_default();
        self.read_tag(request.to_tag()?, request.call_id(), from_tag)
    }

    /// The same as [`read`](Self::read), for the To tag, the Call-ID and the From tag of a request.
    pub(super) fn read_tag(
        &self,
        tag: &[u8],
        call_id: &[u8],
        from_tag: &[u8],
    ) -> Option<SubscriptionId> {
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
        Some(SubscriptionId {
            worker: u16::from_be_bytes([head[0], head[1]]),
            slot: u32::from_be_bytes([head[2], head[3], head[4], head[5]]),
            generation: u32::from_be_bytes([head[6], head[7], head[8], head[9]]),
        })
    }
}

/// The Record-Route fields of the request that begins a dialog.
pub(super) fn record_routes(request: &Message<'_>) -> Vec<u8> {
    let fields = request.headers(HeaderKind::RecordRoute);
    let lines = fields.map(|field| [b"Record-Route: ", field.value, b"\r\n"].concat());
    lines.collect::<Vec<_>>().concat()
}

/// The first lines of every NOTIFY of a subscription, and the next hop.
#[derive(Debug)]
pub(super) struct Head {
    /// The lines before CSeq, then Contact and Event.
    pub(super) lines: Box<[u8]>,
    pub(super) next_hop: Box<[u8]>,
}

/// The maximum number of bytes of the first lines. A subscription that would need more is rejected.
const MAX_HEAD_BYTES: usize = 8 << 10;

impl Head {
    /// Makes the first lines for the dialog that a SUBSCRIBE begins or refreshes. `contact` is the whole Contact line
    /// of this server. `record_routes` are the Record-Route fields of the request that began the dialog: a refresh does
    /// not change the route set (RFC 3261 §12.2). `None` if the lines cannot be made from the SUBSCRIBE.
    pub(super) fn of(
        request: &NewRequest<'_>,
        tag: &[u8],
        contact: &[u8],
        record_routes: &[u8],
    ) -> Option<Head> {
        let message = &request.message;
        let target = message.contact().ok().flatten()?;
        // A NOTIFY cannot be sent to another URI.
        target.parse_uri().ok()?.as_sip()?;
        let target = target.uri;
        // The 2xx, as far as requests of the dialog are made from it.
        let response = response_of(message, tag, record_routes).ok()?;
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

/// Makes a 200 response with this To tag and these Record-Route fields. It has only the fields from which [`Head::of`]
/// makes requests of the dialog.
fn response_of(
    request: &Message<'_>,
    tag: &[u8],
    record_routes: &[u8],
) -> Result<Vec<u8>, BuildError> {
    let mut buffer = vec![0; MAX_HEAD_BYTES];
    let mut lines = Builder::fields(&mut buffer);
    for kind in [
        HeaderKind::Via,
        HeaderKind::From,
        HeaderKind::CallId,
        HeaderKind::CSeq,
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
    let end = b"Content-Length: 0\r\n\r\n";
    Ok([b"SIP/2.0 200 OK\r\n", lines, record_routes, end].concat())
}
