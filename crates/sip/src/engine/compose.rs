//! The messages that the engine makes itself: responses from requests, ACK and CANCEL from INVITEs, and the Via on top
//! of requests.

use super::received::NewRequest;
use super::reply::{Content, Reply};
use super::sent_by::Signature;
use crate::branch::{BRANCH_LEN, LoopCheck};
use crate::build::{Answerable, BuildError, Builder, Part, Stamp};
use crate::congestion::{OcReply, is_oc_parameter};
use crate::cursor::Cursor;
use crate::flow::Transport;
use crate::header::{HeaderKind, Via};
use crate::message::{Header, Lines, Message};
use crate::{Method, reason_phrase};

/// A response, written into `buffer`. `copied` are further fields of the request that stand in it as well.
pub(super) fn response<'b, 'r>(
    buffer: &'b mut [u8],
    request: &Answerable<'_>,
    reply: &Reply<'_>,
    own_tag: &[u8],
    stamp: Stamp,
    copied: impl Iterator<Item = Header<'r>>,
) -> Result<&'b [u8], BuildError> {
    match reply.content {
        Content::Pieces(pieces) => concat(buffer, pieces),
        Content::Made {
            reason,
            to_tag,
            headers,
            body,
        } => {
            // RFC 3261 §17.2.1: a 100 has no tag of its own.
            let tag = (reply.code > 100).then_some(to_tag.unwrap_or(own_tag));
            let mut builder = Builder::response(buffer, request, reply.code, reason, tag, stamp);
            for field in copied {
                builder.copy(&field);
            }
            builder.raw(headers);
            builder.finish_with(body)
        }
    }
}

/// Where things are in what [`keep`] has written: the fields of every response, then Record-Route, then Timestamp.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Layout {
    /// Where a tag goes behind To; 0 if there is one.
    tag_at: u16,
    /// Behind the fields of every response.
    fields_end: u16,
    /// Behind Record-Route.
    routes_end: u16,
}

/// Writes what responses to a request copy from it, so that it need not be read again when they are made.
pub(super) fn keep<'b>(
    buffer: &'b mut [u8],
    request: &NewRequest<'_>,
) -> Result<(&'b [u8], Layout), BuildError> {
    let mut builder = Builder::fields(buffer);
    let tag_at = builder.copies(&request.answerable(), request.stamp());
    let fields_end = builder.len();
    let message = &request.message;
    if message.method().is_some_and(begins_dialog) {
        for route in message.headers(HeaderKind::RecordRoute) {
            builder.copy(&route);
        }
    }
    let routes_end = builder.len();
    for timestamp in message.headers(HeaderKind::Timestamp) {
        builder.copy(&timestamp);
    }
    let place = |at: usize| u16::try_from(at).map_err(|_| BuildError::NoRoom);
    let layout = Layout {
        tag_at: place(tag_at.unwrap_or(0))?,
        fields_end: place(fields_end)?,
        routes_end: place(routes_end)?,
    };
    Ok((builder.finish_fields()?, layout))
}

/// A response to a request of which this was kept, written into `buffer`.
pub(super) fn later<'b>(
    buffer: &'b mut [u8],
    (kept, layout): (&[u8], Layout),
    reply: &Reply<'_>,
    own_tag: &[u8],
) -> Result<&'b [u8], BuildError> {
    let Content::Made {
        reason,
        to_tag,
        headers,
        body,
    } = reply.content
    else {
        return Err(BuildError::Malformed);
    };
    let reason = match reason {
        [] => reason_phrase(reply.code).as_bytes(),
        reason => reason,
    };
    let [tag_at, fields_end, routes_end] =
        [layout.tag_at, layout.fields_end, layout.routes_end].map(usize::from);
    let slice = |from: usize, to: usize| kept.get(from..to).unwrap_or_default();
    let mut builder = Builder::status(buffer, reply.code, reason);
    builder.raw(slice(0, tag_at));
    // RFC 3261 §17.2.1: a 100 has no tag of its own.
    if reply.code > 100 && tag_at > 0 {
        builder.tag(to_tag.unwrap_or(own_tag));
    }
    builder.raw(slice(tag_at, fields_end));
    match reply.code {
        100 => drop(builder.raw(slice(routes_end, kept.len()))),
        101..300 => drop(builder.raw(slice(fields_end, routes_end))),
        _ => {}
    }
    builder.raw(headers);
    builder.finish_with(body)
}

/// Whether a 2xx to this method may begin a dialog (RFC 3261 §12.1, RFC 6665 §4.1.2).
pub(super) fn begins_dialog(method: Method<'_>) -> bool {
    matches!(
        method,
        Method::Invite | Method::Subscribe | Method::Refer | Method::Notify
    )
}

/// The fields that a response with this code to this method copies in addition. Record-Route if the response may begin
/// a dialog (RFC 3261 §12.1.1), Timestamp in a 100 (§8.2.6.1).
pub(super) fn copies(method: Method<'_>, code: u16) -> Option<HeaderKind> {
    match code {
        100 => Some(HeaderKind::Timestamp),
        101..300 if begins_dialog(method) => Some(HeaderKind::RecordRoute),
        _ => None,
    }
}

/// The pieces in a row.
pub(super) fn concat<'b>(buffer: &'b mut [u8], pieces: &[&[u8]]) -> Result<&'b [u8], BuildError> {
    let mut at = 0;
    for piece in pieces {
        let end = at + piece.len();
        buffer
            .get_mut(at..end)
            .ok_or(BuildError::NoRoom)?
            .copy_from_slice(piece);
        at = end;
    }
    Ok(buffer.get(..at).unwrap_or_default())
}

/// The ACK for a final response but a 2xx (RFC 3261 §17.1.1.3).
pub(super) fn ack<'b>(
    buffer: &'b mut [u8],
    invite: &Message<'_>,
    response: &Message<'_>,
) -> Result<&'b [u8], BuildError> {
    hop_by_hop(buffer, invite, response, (Method::Ack, b""))
}

/// The CANCEL for an INVITE (RFC 3261 §9.1), with these Reason header lines.
pub(super) fn cancel<'b>(
    buffer: &'b mut [u8],
    invite: &Message<'_>,
    reason: &[u8],
) -> Result<&'b [u8], BuildError> {
    hop_by_hop(buffer, invite, invite, (Method::Cancel, reason))
}

/// The INVITE's Request-URI, topmost Via, Route, From, Call-ID and CSeq number, and To of `to_of`; then these lines.
fn hop_by_hop<'b>(
    buffer: &'b mut [u8],
    invite: &Message<'_>,
    to_of: &Message<'_>,
    (method, lines): (Method<'_>, &[u8]),
) -> Result<&'b [u8], BuildError> {
    let uri = invite.request_uri().ok_or(BuildError::Malformed)?;
    let via = invite.via().map_err(|_| BuildError::Malformed)?;
    let cseq = invite.cseq().map_err(|_| BuildError::Malformed)?;
    let mut builder = Builder::request(buffer, method, uri);
    builder.header(HeaderKind::Via, via.bytes);
    for route in invite.headers(HeaderKind::Route) {
        builder.copy(&route);
    }
    builder.number(HeaderKind::MaxForwards, 70);
    for (message, kind) in [
        (invite, HeaderKind::From),
        (to_of, HeaderKind::To),
        (invite, HeaderKind::CallId),
    ] {
        let field = message.header(kind).ok_or(BuildError::Malformed)?;
        builder.copy(&field);
    }
    let number = [
        Part::Number(cseq.number),
        Part::Bytes(b" "),
        Part::Bytes(method.as_bytes()),
    ];
    builder.header_of(HeaderKind::CSeq, &number);
    builder.raw(lines);
    builder.finish()
}

/// A request of the TU with our Via on top, behind the start line.
pub(super) fn request<'b>(
    buffer: &'b mut [u8],
    pieces: &[&[u8]],
    signature: &Signature<'_>,
    branch: (&[u8; BRANCH_LEN], Option<LoopCheck>),
    overload_offer: &[u8],
) -> Result<&'b [u8], BuildError> {
    let mut builder = Builder::fields(buffer);
    let mut waits = true;
    for piece in pieces {
        match memchr::memchr(b'\n', piece).filter(|_| waits) {
            Some(end) => {
                waits = false;
                let (line, rest) = piece.split_at(end + 1);
                builder.raw(line);
                write_via(&mut builder, signature, branch, overload_offer);
                builder.raw(rest);
            }
            None => {
                builder.raw(piece);
            }
        }
    }
    if waits {
        return Err(BuildError::Malformed);
    }
    builder.finish_fields()
}

fn write_via(
    builder: &mut Builder<'_>,
    signature: &Signature<'_>,
    (first, second): (&[u8; BRANCH_LEN], Option<LoopCheck>),
    overload_offer: &[u8],
) {
    let name = signature.transport.via_name().as_bytes();
    builder.raw(b"Via: SIP/2.0/").raw(name).raw(b" ");
    builder.part(signature.host_part()).raw(b":");
    builder.part(Part::Number(signature.port.into()));
    builder.raw(b";rport;branch=").raw(first);
    if let Some(second) = second {
        builder.raw(&second.text());
    }
    builder.raw(overload_offer).raw(b"\r\n");
}

/// Changes the transport in the topmost Via of a request of ours from TCP to UDP.
pub(super) fn make_udp(request: &mut [u8]) {
    const TCP: &[u8] = b"\nVia: SIP/2.0/TCP ";
    if let Some(at) = memchr::memmem::find(request, TCP)
        && let Some(place) = request.get_mut(at + TCP.len() - 4..at + TCP.len() - 1)
    {
        place.copy_from_slice(Transport::Udp.via_name().as_bytes());
    }
}

/// The response with the parameters of RFC 7339 in its topmost Via, in place of what the client offered; `None` if it
/// cannot be read.
///
/// A proxy has left the offer out where it forwarded the request (§5.6), so that the response does not have it.
pub(super) fn with_overload<'b>(
    buffer: &'b mut [u8],
    response: &[u8],
    reply: &OcReply,
) -> Option<&'b [u8]> {
    let mut lines = Lines::new(response, memchr::memchr(b'\n', response)? + 1);
    let line = loop {
        let line = lines.next().ok()??;
        if line.kind == HeaderKind::Via {
            break line;
        }
    };
    let value = response.get(line.value_start..line.value_end)?;
    let via = Via::read(&mut Cursor::new(value))?;
    let params = via.params.as_bytes();
    let start = match params {
        [] => offset_of(response, via.bytes) + via.bytes.len(),
        params => offset_of(response, params),
    };
    let mut builder = Builder::fields(buffer);
    builder.raw(response.get(..start)?);
    for param in via
        .params
        .into_iter()
        .filter(|param| !is_oc_parameter(param.name))
    {
        builder.param(&param);
    }
    builder.raw(reply.params());
    builder.raw(response.get(start + params.len()..)?);
    builder.finish_fields().ok()
}

fn offset_of(outer: &[u8], inner: &[u8]) -> usize {
    (inner.as_ptr() as usize).saturating_sub(outer.as_ptr() as usize)
}
