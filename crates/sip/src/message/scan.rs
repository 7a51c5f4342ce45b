//! The admission scan: what must be known of a message before anything is spent on it.

use super::lines::Line;
use super::{Head, Limits, Lines, ParseError, skip_line_ends, start_line};
use crate::Method;
use crate::chars::{self, TOKEN};
use crate::cursor::Cursor;
use crate::header::{CSeq, HeaderKind, NameAddr, Via};

/// The fields that decide whether a message is accepted, and those that a refusal copies. It is one bounded pass
/// without a table or an allocation. It accepts every message that [`crate::Message::parse`] accepts.
///
/// It is more tolerant, because a request with a malformed start line or body can get a 400. The response requires Via,
/// From, To, Call-ID and CSeq (RFC 3261 §8.2.6.2).
#[derive(Clone, Copy, Debug)]
pub struct Scan<'a> {
    /// From the start line to wherever the scan has ended: the blank line, an error or the limit.
    head: &'a [u8],
    /// Where the header fields begin.
    fields_at: usize,
    /// The method of what may be a request; `None` for a response.
    pub method: Option<Method<'a>>,
    /// The status code of a response, if it is well-formed.
    pub status_code: Option<u16>,
    /// The topmost Via's field, from its first value on.
    pub via: Option<&'a [u8]>,
    /// The value of From.
    pub from: Option<&'a [u8]>,
    /// The value of To.
    pub to: Option<&'a [u8]>,
    /// The value of Call-ID.
    pub call_id: Option<&'a [u8]>,
    /// The value of CSeq.
    pub cseq: Option<&'a [u8]>,
    /// The first Route field.
    pub route: Option<&'a [u8]>,
    /// The first Authorization and the first Proxy-Authorization field.
    pub credentials: [Option<&'a [u8]>; 2],
    /// Where the values of the Via fields are.
    vias: ViaPlaces,
    /// Whether a field occurs twice that may occur once, among those above.
    pub has_repeated: bool,
    /// What ended the scan early.
    pub error: Option<ParseError>,
}

impl<'a> Scan<'a> {
    /// Scans a datagram, or a frame of a stream, up to [`Limits::head_bytes`] and [`Limits::headers`].
    ///
    /// # Errors
    /// [`ParseError::Empty`] for a keep-alive, [`ParseError::RequestLine`] for what does not begin as a request or a
    /// response does.
    pub fn of(bytes: &'a [u8], limits: &Limits) -> Result<Scan<'a>, ParseError> {
        let bytes = skip_line_ends(bytes)?;
        let head = Head::of(bytes, limits);
        let line_end = head.line_end(0).map_err(|_| ParseError::RequestLine)?;
        let line = bytes.get(..line_end).unwrap_or_default();
        let mut scan = Scan::begin(head.bytes, line, line_end + 2)?;
        if let Err(error) = scan.read_fields(&head, limits) {
            scan.error = Some(head.with_limit(error));
        }
        Ok(scan)
    }

    /// Reads as much of the first line as there is sense in.
    #[inline]
    fn begin(head: &'a [u8], line: &'a [u8], fields_at: usize) -> Result<Scan<'a>, ParseError> {
        let (mut method, mut status_code) = (None, None);
        if start_line::is_response(line) {
            if let Ok(start) = start_line::parse(line, &Limits::DEFAULT) {
                status_code = start.status_code();
            }
        } else {
            let mut cursor = Cursor::new(line);
            let name = cursor.take(TOKEN);
            let rest = cursor.rest();
            // A line with another ending is of another protocol, not a request of any version of SIP. As in the parser,
            // the version may have any case (RFC 3261 §7.1). Otherwise a request that the parser accepts would avoid
            // overload control.
            let is_sip = memchr::memrchr_iter(b' ', rest).any(|space| {
                let version = rest.get(space + 1..).unwrap_or_default();
                start_line::is_response(version)
            });
            if name.is_empty() || cursor.peek() != Some(b' ') || !is_sip {
                return Err(ParseError::RequestLine);
            }
            method = Some(Method::of(name));
        }
        Ok(Scan {
            head,
            fields_at,
            method,
            status_code,
            via: None,
            from: None,
            to: None,
            call_id: None,
            cseq: None,
            route: None,
            credentials: [None; 2],
            vias: ViaPlaces::default(),
            has_repeated: false,
            error: None,
        })
    }

    #[inline]
    fn read_fields(&mut self, head: &Head<'a>, limits: &Limits) -> Result<(), ParseError> {
        let mut lines = Lines::new(head.bytes, self.fields_at);
        let mut left = limits.headers;
        let result = loop {
            match lines.next() {
                Ok(None) => break Ok(()),
                Ok(Some(_)) if left == 0 => break Err(ParseError::TooManyHeaders),
                Ok(Some(line)) => self.keep(head.bytes, &line),
                Err(error) => break Err(error),
            }
            left -= 1;
        };
        self.head = head.bytes.get(..lines.at()).unwrap_or_default();
        result
    }

    /// Keeps a field's value if it is one of those looked for; the first counts.
    #[inline(always)]
    fn keep(&mut self, bytes: &'a [u8], line: &Line) {
        if line.kind == HeaderKind::Via {
            self.vias.push(line);
        }
        let place = match line.kind {
            HeaderKind::Via => &mut self.via,
            HeaderKind::From => &mut self.from,
            HeaderKind::To => &mut self.to,
            HeaderKind::CallId => &mut self.call_id,
            HeaderKind::CSeq => &mut self.cseq,
            HeaderKind::Route => &mut self.route,
            // There is one for each realm (RFC 3261 §22.3).
            HeaderKind::Authorization | HeaderKind::ProxyAuthorization => {
                let [own, proxy] = &mut self.credentials;
                let is_own = line.kind == HeaderKind::Authorization;
                let place = if is_own { own } else { proxy };
                *place = place.or(bytes.get(line.value_start..line.value_end));
                return;
            }
            _ => return,
        };
        if place.is_some() {
            self.has_repeated |= !line.kind.is_list();
            return;
        }
        *place = bytes.get(line.value_start..line.value_end);
    }

    /// From the start line to the end of the blank line, or as far as the scan got.
    #[must_use]
    pub const fn head(&self) -> &'a [u8] {
        self.head
    }

    /// The values of the Via fields, in their order.
    pub(crate) fn via_fields(&self) -> ScannedVias<'a> {
        ScannedVias {
            head: self.head,
            places: self.vias,
            next: 0,
            lines: Lines::new(self.head, self.fields_at),
        }
    }

    /// The topmost Via.
    #[must_use]
    pub fn top_via(&self) -> Option<Via<'a>> {
        Via::read(&mut Cursor::new(self.via?))
    }

    /// The tag of From.
    #[must_use]
    pub fn from_tag(&self) -> Option<&'a [u8]> {
        NameAddr::read(&mut Cursor::new(self.from?))?.tag
    }

    /// The tag of To: a request with one belongs to a dialog.
    #[must_use]
    pub fn to_tag(&self) -> Option<&'a [u8]> {
        NameAddr::read(&mut Cursor::new(self.to?))?.tag
    }

    /// CSeq, typed.
    #[must_use]
    pub fn typed_cseq(&self) -> Option<CSeq<'a>> {
        CSeq::parse(self.cseq?)
    }

    /// Call-ID, if it is well-formed.
    #[must_use]
    pub fn valid_call_id(&self) -> Option<&'a [u8]> {
        self.call_id.filter(|id| chars::all(id, chars::CALL_ID))
    }
}

/// Where the first Via fields are: a refusal copies them all, and seldom are there more. Those are looked for again.
#[derive(Clone, Copy, Debug, Default)]
struct ViaPlaces {
    /// First byte of a value, and the one behind it: both within 65,535.
    places: [(u16, u16); Self::MAX],
    /// How many fields there are.
    count: u16,
}

impl ViaPlaces {
    const MAX: usize = 8;

    #[inline(always)]
    fn push(&mut self, line: &Line) {
        if let Some(place) = self.places.get_mut(usize::from(self.count)) {
            *place = (line.value_start as u16, line.value_end as u16);
        }
        self.count = self.count.saturating_add(1);
    }
}

/// See [`Scan::via_fields`].
#[derive(Clone, Debug)]
pub(crate) struct ScannedVias<'a> {
    head: &'a [u8],
    places: ViaPlaces,
    next: u16,
    lines: Lines<'a>,
}

impl<'a> Iterator for ScannedVias<'a> {
    type Item = &'a [u8];

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.next >= self.places.count {
            return None;
        }
        self.next += 1;
        if usize::from(self.places.count) <= ViaPlaces::MAX {
            let &(from, to) = self.places.places.get(usize::from(self.next - 1))?;
            return self.head.get(usize::from(from)..usize::from(to));
        }
        loop {
            let line = self.lines.next().ok()??;
            if line.kind == HeaderKind::Via {
                return self.head.get(line.value_start..line.value_end);
            }
        }
    }
}
