//! Forwarding: a received message as it is, but for the lines a proxy changes.
//!
//! Unchanged parts are not copied. The result is a list of slices of the received message and of the new parts, in
//! order, for one gathering write. Runs of unchanged lines are one slice, so that a request forwarded with a Via on top
//! and a lower Max-Forwards is five.

use super::response::offset_behind;
use super::{BuildError, Builder, Stamp, decimal};
use crate::chars::{self, LWS};
use crate::congestion::is_oc_parameter;
use crate::cursor::Cursor;
use crate::header::{HeaderKind, NameAddr, Via};
use crate::message::{Header, Message, StartLine};

/// The most slices of a forwarded message. Each change needs two. A dropped field may occur several times.
pub const MAX_SLICES: usize = 32;

/// Bytes of scratch that [`forward`] needs beyond the topmost Via field, which it writes anew if it is stamped.
pub const SCRATCH: usize = 128;

/// Places where parameters of overload control are left out, at most. Each needs two slices.
const MAX_CUTS: usize = 8;

/// What is changed on the way (RFC 3261 §16.6, §16.7). The default is nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Edits<'a> {
    /// Replaces the Request-URI.
    pub request_uri: Option<&'a [u8]>,
    /// Whole header lines, each with its line end, in front of all others: Via, Record-Route, Route. See
    /// [`Builder::fields`].
    pub on_top: &'a [u8],
    /// Whole header lines behind all others.
    pub at_end: &'a [u8],
    /// Replaces Max-Forwards, or adds it.
    pub max_forwards: Option<u8>,
    /// Put on the topmost Via that was received.
    pub stamp: Stamp,
    /// Leaves out the parameters of RFC 7339 in the Via values that remain. They are only for the next neighbour. A
    /// proxy does not forward those of a client (§5.6), nor those below the topmost Via of a response (§5.4). The
    /// engine stores what it has agreed upon with the client, and writes it into its responses. At most eight places
    /// are changed: a neighbour that does the same leaves one.
    pub drop_overload: bool,
    /// Leaves out the topmost value of Via: a response on its way back (§16.7 step 3).
    pub drop_top_via: bool,
    /// Leaves out as many values of Route from the top (§16.4, §16.6 step 6).
    pub drop_routes: usize,
    /// Leaves out all fields of these kinds.
    pub drop_kinds: &'a [HeaderKind],
}

/// A message in pieces.
#[derive(Clone, Debug)]
pub struct Gather<'a> {
    slices: [&'a [u8]; MAX_SLICES],
    len: usize,
}

impl<'a> Gather<'a> {
    const fn new() -> Gather<'a> {
        Gather {
            slices: [&[]; MAX_SLICES],
            len: 0,
        }
    }

    /// The pieces in their order; none is empty.
    #[must_use]
    pub fn slices(&self) -> &[&'a [u8]] {
        self.slices.get(..self.len).unwrap_or_default()
    }

    /// The length of the message in bytes.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.slices().iter().map(|slice| slice.len()).sum()
    }

    /// Copies the message into `buffer`.
    ///
    /// # Errors
    /// [`BuildError::NoRoom`] if it is too short.
    pub fn copy_to<'b>(&self, buffer: &'b mut [u8]) -> Result<&'b [u8], BuildError> {
        let mut at = 0;
        for slice in self.slices() {
            let end = at + slice.len();
            let room = buffer.get_mut(at..end).ok_or(BuildError::NoRoom)?;
            room.copy_from_slice(slice);
            at = end;
        }
        Ok(buffer.get(..at).unwrap_or_default())
    }

    fn push(&mut self, slice: &'a [u8]) -> Result<(), BuildError> {
        if slice.is_empty() {
            return Ok(());
        }
        *self.slices.get_mut(self.len).ok_or(BuildError::NoRoom)? = slice;
        self.len += 1;
        Ok(())
    }
}

/// The message with `edits` made, in pieces. `scratch` holds what has to be written anew: [`SCRATCH`] bytes, and as
/// many as the topmost Via field has if it is stamped.
///
/// A message without Content-Length, which a datagram may be, gets one: the next hop may be a stream.
///
/// # Errors
/// [`BuildError::NoRoom`] if `scratch` is too short or there are more than [`MAX_SLICES`] pieces.
/// [`BuildError::Malformed`] if the topmost Via is to be stamped and is malformed, if there are too few values to leave
/// out, or if a value to leave out is malformed. A malformed value without a comma may be left out without an error.
pub fn forward<'a>(
    message: &Message<'a>,
    edits: &Edits<'a>,
    scratch: &'a mut [u8],
) -> Result<Gather<'a>, BuildError> {
    let mut work = Work {
        message: *message,
        out: Gather::new(),
        cuts: 0,
        copied: 0,
    };
    let (length, scratch) = scratch.split_at_mut_checked(10).ok_or(BuildError::NoRoom)?;
    let (hops, scratch) = scratch.split_at_mut_checked(10).ok_or(BuildError::NoRoom)?;
    work.start_line(edits)?;
    let stamped = stamp_top_via(message, edits, scratch)?;
    let max_forwards = edits
        .max_forwards
        .map(|hops_left| digits(hops_left.into(), hops));
    let mut routes_left = edits.drop_routes;
    let mut is_top_via = true;
    for header in message.all_headers() {
        match header.kind {
            kind if edits.drop_kinds.contains(&kind) => work.replace(&header, &[])?,
            HeaderKind::MaxForwards => {
                if let Some(hops) = max_forwards {
                    work.replace_value(&header, hops)?;
                }
            }
            HeaderKind::Via => {
                if std::mem::take(&mut is_top_via) {
                    if edits.drop_top_via {
                        work.drop_values(&header, 1, |cursor| Via::read(cursor).map(drop))?;
                    } else if let Some(Stamped { old, new }) = stamped {
                        work.replace_slice(old, new)?;
                    }
                }
                if edits.drop_overload {
                    work.drop_overload(&header)?;
                }
            }
            HeaderKind::Route if routes_left > 0 => {
                routes_left -= work.drop_values(&header, routes_left, |cursor| {
                    NameAddr::read(cursor).map(drop)
                })?;
            }
            _ => {}
        }
    }
    if routes_left > 0 || (is_top_via && edits.drop_top_via) {
        return Err(BuildError::Malformed);
    }
    work.end(edits, max_forwards, length)
}

fn digits(number: u32, room: &mut [u8]) -> &[u8] {
    let mut buffer = [0; 10];
    let text = decimal(number, &mut buffer);
    match room.get_mut(..text.len()) {
        Some(room) => {
            room.copy_from_slice(text);
            room
        }
        None => &[],
    }
}

/// Whether a Via field may have a parameter whose name begins with `oc`. Without this check, forwarding a request and
/// its response costs 4 % more instructions (callgrind), because each Via is read.
fn may_have_oc(field: &[u8]) -> bool {
    memchr::memchr2_iter(b'o', b'O', field).any(|at| {
        let before = at.checked_sub(1).and_then(|at| field.get(at));
        before.is_some_and(|&byte| byte == b';' || chars::is(byte, LWS))
            && matches!(field.get(at + 1), Some(b'c' | b'C'))
    })
}

/// Whether a field is not empty, and has no comma outside of quoted strings. Then it has one value. Otherwise it must
/// be read: a comma may also be in a URI.
fn has_no_comma(field: &[u8]) -> bool {
    let mut cursor = Cursor::new(field);
    while let Some(passed) = memchr::memchr3(b',', b'"', b'<', cursor.rest()) {
        cursor.skip(passed);
        let is_passed = match cursor.skip_if(b'<') {
            // A quote in a URI begins no quoted string.
            true => cursor
                .until(b'>')
                .is_some_and(|uri| memchr::memchr2(b',', b'"', uri).is_none()),
            false => cursor.quoted().is_some(),
        };
        if !is_passed {
            return false;
        }
    }
    !field.is_empty()
}

/// The topmost Via as it came, and with its stamp.
#[derive(Clone, Copy)]
struct Stamped<'a> {
    old: &'a [u8],
    new: &'a [u8],
}

fn stamp_top_via<'a>(
    message: &Message<'a>,
    edits: &Edits<'_>,
    scratch: &'a mut [u8],
) -> Result<Option<Stamped<'a>>, BuildError> {
    if edits.stamp == Stamp::default() || edits.drop_top_via {
        return Ok(None);
    }
    let via = message.via().map_err(|_| BuildError::Malformed)?;
    let mut builder = Builder::fields(scratch);
    match edits.drop_overload && via.has_oc {
        true => builder.stamped_anew(via.bytes, &via, edits.stamp, |name| !is_oc_parameter(name)),
        false => builder.stamped_as(via.bytes, &via, edits.stamp),
    }
    let new = builder.finish_fields()?;
    Ok(Some(Stamped {
        old: via.bytes,
        new,
    }))
}

/// A message being cut in pieces.
struct Work<'a> {
    message: Message<'a>,
    out: Gather<'a>,
    /// Times that parameters of overload control were left out.
    cuts: usize,
    /// How much of the message is in pieces already, or left out.
    copied: usize,
}

impl<'a> Work<'a> {
    /// The start line and what comes on top.
    fn start_line(&mut self, edits: &Edits<'a>) -> Result<(), BuildError> {
        let head = self.message.head();
        let first = self.message.all_headers().next();
        let fields_at = first.map_or(head.len() - 2, |first| self.offset(first.line));
        if let (StartLine::Request { uri, .. }, Some(new)) =
            (self.message.start_line(), edits.request_uri)
        {
            let at = self.offset(uri);
            self.keep_to(at)?;
            self.out.push(new)?;
            self.copied = at + uri.len();
        }
        self.version()?;
        self.keep_to(fields_at)?;
        self.out.push(edits.on_top)
    }

    /// Writes the version of the start line in upper case (RFC 3261 §7.1).
    fn version(&mut self) -> Result<(), BuildError> {
        const VERSION: &[u8] = b"SIP/2.0";
        let at = match self.message.start_line() {
            StartLine::Request { uri, .. } => self.offset(uri) + uri.len() + 1,
            StartLine::Response { .. } => 0,
        };
        let bytes = self.message.as_bytes();
        match bytes.get(at..at + VERSION.len()) {
            Some(version) if version != VERSION => self.replace_slice(version, VERSION),
            _ => Ok(()),
        }
    }

    fn offset(&self, inner: &[u8]) -> usize {
        offset_behind(self.message.as_bytes(), inner) - inner.len()
    }

    /// Takes over everything up to `end` that has not been yet.
    fn keep_to(&mut self, end: usize) -> Result<(), BuildError> {
        let slice = self.message.as_bytes().get(self.copied..end);
        self.copied = end;
        self.out.push(slice.unwrap_or_default())
    }

    /// Puts `new` in the place of a whole field.
    fn replace(&mut self, header: &Header<'_>, new: &'a [u8]) -> Result<(), BuildError> {
        let at = self.offset(header.line);
        self.keep_to(at)?;
        self.copied = at + header.line.len();
        self.out.push(new)
    }

    /// Puts `new` in the place of a field's value.
    fn replace_value(&mut self, header: &Header<'_>, new: &'a [u8]) -> Result<(), BuildError> {
        self.replace_slice(header.value, new)
    }

    /// Puts `new` in the place of a part of the message.
    fn replace_slice(&mut self, old: &[u8], new: &'a [u8]) -> Result<(), BuildError> {
        let at = self.offset(old);
        self.keep_to(at)?;
        self.copied = at + old.len();
        self.out.push(new)
    }

    /// Leaves out the parameters of overload control of all values of a Via field that are still to be taken over.
    fn drop_overload(&mut self, header: &Header<'a>) -> Result<(), BuildError> {
        let bytes = self.message.as_bytes();
        // Left out, or replaced by the stamped value.
        let is_done = self.copied >= offset_behind(bytes, header.value);
        if is_done || !may_have_oc(header.value) {
            return Ok(());
        }
        let mut cursor = Cursor::new(header.value);
        // A Via that cannot be read stays as it is, because only the element that wrote it uses it.
        while let Some(via) = Via::read(&mut cursor) {
            let mut behind = offset_behind(bytes, via.bytes) - via.params.as_bytes().len();
            if via.params.as_bytes().is_empty() {
                behind = offset_behind(bytes, via.bytes);
            }
            for param in via.params {
                let from = behind;
                behind = offset_behind(bytes, param.value.unwrap_or(param.name));
                if !is_oc_parameter(param.name) || from < self.copied {
                    continue;
                }
                // Adjacent parameters count as one cut.
                self.cuts += usize::from(from > self.copied);
                if self.cuts > MAX_CUTS {
                    return Ok(());
                }
                self.keep_to(from)?;
                self.copied = behind;
            }
            cursor.skip_lws();
            if !cursor.skip_if(b',') {
                break;
            }
        }
        Ok(())
    }

    /// Leaves out at most `n` values from the front of a field, and the field if none is left; returns how many.
    fn drop_values(
        &mut self,
        header: &Header<'a>,
        n: usize,
        read: impl Fn(&mut Cursor<'a>) -> Option<()>,
    ) -> Result<usize, BuildError> {
        if has_no_comma(header.value) {
            // Its only value need not be read to be left out.
            self.replace(header, &[])?;
            return Ok(1);
        }
        let mut cursor = Cursor::new(header.value);
        for dropped in 1..=n {
            read(&mut cursor).ok_or(BuildError::Malformed)?;
            cursor.skip_lws();
            if cursor.is_at_end() {
                self.replace(header, &[])?;
                return Ok(dropped);
            }
            if !cursor.skip_if(b',') {
                return Err(BuildError::Malformed);
            }
        }
        cursor.skip_lws();
        let at = self.offset(header.value);
        self.keep_to(at)?;
        self.copied = at + cursor.at();
        Ok(n)
    }

    /// What comes behind the last field, and the body.
    fn end(
        mut self,
        edits: &Edits<'a>,
        max_forwards: Option<&'a [u8]>,
        length: &'a mut [u8],
    ) -> Result<Gather<'a>, BuildError> {
        let message = self.message;
        let drops = |kind| edits.drop_kinds.contains(&kind);
        self.keep_to(message.head().len() - 2)?;
        if let Some(hops) = max_forwards.filter(|_| !message.has(HeaderKind::MaxForwards)) {
            for slice in [&b"Max-Forwards: "[..], hops, b"\r\n"] {
                self.out.push(slice)?;
            }
        }
        self.out.push(edits.at_end)?;
        if !message.has(HeaderKind::ContentLength) && !drops(HeaderKind::ContentLength) {
            let body_len = u32::try_from(message.body().len()).map_err(|_| BuildError::NoRoom)?;
            for slice in [&b"Content-Length: "[..], digits(body_len, length), b"\r\n"] {
                self.out.push(slice)?;
            }
        }
        self.keep_to(message.as_bytes().len())?;
        Ok(self.out)
    }
}
