//! What a message says, when asked.

use super::spans::Span;
use super::{Message, StartLine};
use crate::Method;
use crate::chars::{self, CALL_ID};
use crate::cursor::Cursor;
use crate::header::{
    Authorization, CSeq, Contact, Contacts, HeaderError, HeaderKind, MediaType, NameAddr,
    NameAddrs, RetryAfter, Tokens, Via, Vias, small,
};

/// One header field as it is in the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header<'a> {
    /// Which it is.
    pub kind: HeaderKind,
    /// Its name as it is spelled there.
    pub name: &'a [u8],
    /// Its value without white space around it; folds within it are as they are.
    pub value: &'a [u8],
    /// The whole field with its line end.
    pub line: &'a [u8],
}

/// Header fields in the order of the message: all of them, or those of one kind.
#[derive(Clone, Debug)]
pub struct Headers<'a> {
    bytes: &'a [u8],
    spans: &'a [Span],
    next: Option<u8>,
    of_one_kind: bool,
}

impl<'a> Headers<'a> {
    /// No fields.
    pub(crate) const fn empty() -> Headers<'a> {
        Headers {
            bytes: &[],
            spans: &[],
            next: None,
            of_one_kind: false,
        }
    }
}

impl<'a> Iterator for Headers<'a> {
    type Item = Header<'a>;

    #[inline]
    fn next(&mut self) -> Option<Header<'a>> {
        let index = self.next?;
        let span = self.spans.get(usize::from(index))?;
        self.next = match self.of_one_kind {
            true => span.next(),
            false => index.checked_add(1),
        };
        Some(header(self.bytes, span))
    }
}

#[inline]
fn header<'a>(bytes: &'a [u8], span: &Span) -> Header<'a> {
    let slice = |from: u16, to: u16| {
        bytes
            .get(usize::from(from)..usize::from(to))
            .unwrap_or_default()
    };
    Header {
        kind: span.kind,
        name: slice(span.start, span.start + span.name_len),
        value: slice(span.value_start, span.value_end),
        line: slice(span.start, span.end),
    }
}

impl<'a> Message<'a> {
    /// The message: start line, header and body. What a datagram had in front of it or behind is not part of it.
    #[inline]
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Start line and header with the blank line.
    #[inline]
    #[must_use]
    pub fn head(&self) -> &'a [u8] {
        self.bytes.get(..self.head_len).unwrap_or_default()
    }

    /// The body.
    #[inline]
    #[must_use]
    pub fn body(&self) -> &'a [u8] {
        self.bytes.get(self.head_len..).unwrap_or_default()
    }

    /// The first line.
    #[inline]
    #[must_use]
    pub const fn start_line(&self) -> StartLine<'a> {
        self.start
    }

    /// Whether it is a request.
    #[inline]
    #[must_use]
    pub const fn is_request(&self) -> bool {
        matches!(self.start, StartLine::Request { .. })
    }

    /// The method of a request.
    #[inline]
    #[must_use]
    pub const fn method(&self) -> Option<Method<'a>> {
        self.start.method()
    }

    /// The Request-URI of a request.
    #[inline]
    #[must_use]
    pub const fn request_uri(&self) -> Option<&'a [u8]> {
        match self.start {
            StartLine::Request { uri, .. } => Some(uri),
            StartLine::Response { .. } => None,
        }
    }

    /// The status code of a response.
    #[inline]
    #[must_use]
    pub const fn status_code(&self) -> Option<u16> {
        match self.start {
            StartLine::Response { code, .. } => Some(code),
            StartLine::Request { .. } => None,
        }
    }

    /// All header fields in their order.
    #[must_use]
    pub fn all_headers(&self) -> Headers<'a> {
        Headers {
            bytes: self.bytes,
            spans: self.spans.as_slice(),
            next: Some(0),
            of_one_kind: false,
        }
    }

    /// The header fields of a kind in their order. Fields without a kind of their own are found by
    /// [`Message::headers_named`].
    #[inline]
    #[must_use]
    pub fn headers(&self, kind: HeaderKind) -> Headers<'a> {
        Headers {
            bytes: self.bytes,
            spans: self.spans.as_slice(),
            next: self.spans.first(kind),
            of_one_kind: true,
        }
    }

    /// The header fields with this name, in any case, that have no kind of their own.
    pub fn headers_named(&self, name: &'a [u8]) -> impl Iterator<Item = Header<'a>> + use<'a> {
        self.headers(HeaderKind::Other)
            .filter(move |header| header.name.eq_ignore_ascii_case(name))
    }

    /// The first header field of a kind.
    #[inline]
    #[must_use]
    pub fn header(&self, kind: HeaderKind) -> Option<Header<'a>> {
        let span = self.spans.get(self.spans.first(kind)?)?;
        Some(header(self.bytes, span))
    }

    /// Whether there is a header field of this kind.
    #[inline]
    #[must_use]
    pub fn has(&self, kind: HeaderKind) -> bool {
        self.spans.first(kind).is_some()
    }

    /// The value of a header that must be there once.
    #[inline]
    fn single(&self, kind: HeaderKind) -> Result<&'a [u8], HeaderError> {
        self.optional(kind)?.ok_or(HeaderError::Missing(kind))
    }

    /// The value of a header that may be there once.
    #[inline]
    fn optional(&self, kind: HeaderKind) -> Result<Option<&'a [u8]>, HeaderError> {
        let Some(span) = self
            .spans
            .first(kind)
            .and_then(|index| self.spans.get(index))
        else {
            return Ok(None);
        };
        match span.next() {
            None => Ok(Some(header(self.bytes, span).value)),
            Some(_) => Err(HeaderError::Repeated(kind)),
        }
    }

    /// A header that may be there once, read by `read`.
    #[inline]
    fn read<T>(
        &self,
        kind: HeaderKind,
        read: impl FnOnce(&'a [u8]) -> Option<T>,
    ) -> Result<Option<T>, HeaderError> {
        match self.optional(kind)? {
            None => Ok(None),
            Some(value) => read(value).map(Some).ok_or(HeaderError::Malformed(kind)),
        }
    }

    /// The topmost Via. Those below are looked at by [`Message::vias`] only.
    ///
    /// # Errors
    /// [`HeaderError`] if there is none or it is malformed.
    #[inline]
    pub fn via(&self) -> Result<Via<'a>, HeaderError> {
        self.vias()
            .next()
            .unwrap_or(Err(HeaderError::Missing(HeaderKind::Via)))
    }

    /// All values of Via, the topmost first.
    #[inline]
    #[must_use]
    pub fn vias(&self) -> Vias<'a> {
        Vias::new(HeaderKind::Via, self.headers(HeaderKind::Via))
    }

    /// From.
    ///
    /// # Errors
    /// [`HeaderError`] unless it is there once and well-formed. A tag need not be there (RFC 2543).
    #[inline]
    pub fn from(&self) -> Result<NameAddr<'a>, HeaderError> {
        self.address(HeaderKind::From)
    }

    /// To.
    ///
    /// # Errors
    /// [`HeaderError`] unless it is there once and well-formed.
    #[inline]
    pub fn to(&self) -> Result<NameAddr<'a>, HeaderError> {
        self.address(HeaderKind::To)
    }

    /// A header of a single address: From, To, Refer-To, Referred-By, Reply-To.
    ///
    /// # Errors
    /// [`HeaderError`] unless it is there once and well-formed.
    #[inline]
    pub fn address(&self, kind: HeaderKind) -> Result<NameAddr<'a>, HeaderError> {
        let mut cursor = Cursor::new(self.single(kind)?);
        NameAddr::read(&mut cursor)
            .filter(|_| cursor.is_at_end())
            .ok_or(HeaderError::Malformed(kind))
    }

    /// Call-ID. It compares byte by byte.
    ///
    /// # Errors
    /// [`HeaderError`] unless it is there once and well-formed.
    #[inline]
    pub fn call_id(&self) -> Result<&'a [u8], HeaderError> {
        let value = self.single(HeaderKind::CallId)?;
        match chars::all(value, CALL_ID) {
            true => Ok(value),
            false => Err(HeaderError::Malformed(HeaderKind::CallId)),
        }
    }

    /// CSeq.
    ///
    /// # Errors
    /// [`HeaderError`] unless it is there once and well-formed. Whether its method is that of the request is
    /// another question.
    #[inline]
    pub fn cseq(&self) -> Result<CSeq<'a>, HeaderError> {
        CSeq::parse(self.single(HeaderKind::CSeq)?).ok_or(HeaderError::Malformed(HeaderKind::CSeq))
    }

    /// The values of Contact.
    #[must_use]
    pub fn contacts(&self) -> Contacts<'a> {
        Contacts::new(HeaderKind::Contact, self.headers(HeaderKind::Contact))
    }

    /// The first value of Contact, if it is an address.
    ///
    /// # Errors
    /// [`HeaderError`] if it is malformed.
    pub fn contact(&self) -> Result<Option<NameAddr<'a>>, HeaderError> {
        match self.contacts().next().transpose()? {
            Some(Contact::Addr(addr)) => Ok(Some(addr)),
            Some(Contact::Star) | None => Ok(None),
        }
    }

    /// The values of Route, the topmost first.
    #[inline]
    #[must_use]
    pub fn routes(&self) -> NameAddrs<'a> {
        self.addresses(HeaderKind::Route)
    }

    /// The values of Record-Route, the topmost first.
    #[must_use]
    pub fn record_routes(&self) -> NameAddrs<'a> {
        self.addresses(HeaderKind::RecordRoute)
    }

    /// The values of Path (RFC 3327), the topmost first.
    #[must_use]
    pub fn paths(&self) -> NameAddrs<'a> {
        self.addresses(HeaderKind::Path)
    }

    /// The values of a list of addresses: Route, Record-Route, Path, Service-Route, P-Asserted-Identity.
    #[inline]
    #[must_use]
    pub fn addresses(&self, kind: HeaderKind) -> NameAddrs<'a> {
        NameAddrs::new(kind, self.headers(kind))
    }

    /// Max-Forwards, 0 to 255.
    ///
    /// # Errors
    /// [`HeaderError`] if the field has another value, or is there twice.
    #[inline]
    pub fn max_forwards(&self) -> Result<Option<u8>, HeaderError> {
        self.read(HeaderKind::MaxForwards, |value| {
            u8::try_from(chars::decimal(value)?).ok()
        })
    }

    /// Expires in seconds. A value above 2^32 - 1 is read as 2^32 - 1 (RFC 3261 §20.19).
    ///
    /// # Errors
    /// [`HeaderError`] if it is malformed or occurs twice. A registrar then uses 3600 (RFC 3261 §10.2.1.1).
    #[inline]
    pub fn expires(&self) -> Result<Option<u32>, HeaderError> {
        self.read(HeaderKind::Expires, small::delta_seconds)
    }

    /// Min-Expires in seconds.
    ///
    /// # Errors
    /// [`HeaderError`] if it is there and malformed, or twice.
    pub fn min_expires(&self) -> Result<Option<u32>, HeaderError> {
        self.read(HeaderKind::MinExpires, small::delta_seconds)
    }

    /// Retry-After.
    ///
    /// # Errors
    /// [`HeaderError`] if it is there and malformed, or twice.
    pub fn retry_after(&self) -> Result<Option<RetryAfter>, HeaderError> {
        self.read(HeaderKind::RetryAfter, RetryAfter::parse)
    }

    /// Content-Length as the message has it: see [`Message::body`] for what there is.
    #[must_use]
    pub fn content_length(&self) -> Option<u32> {
        chars::decimal(self.header(HeaderKind::ContentLength)?.value)
    }

    /// Content-Type.
    ///
    /// # Errors
    /// [`HeaderError`] if it is there and malformed, or twice.
    pub fn content_type(&self) -> Result<Option<MediaType<'a>>, HeaderError> {
        self.read(HeaderKind::ContentType, MediaType::parse)
    }

    /// The tokens of a list: Require, Proxy-Require, Supported, Unsupported, Allow, Content-Encoding.
    #[must_use]
    pub fn tokens(&self, kind: HeaderKind) -> Tokens<'a> {
        Tokens::new(kind, self.headers(kind))
    }

    /// The tokens of Require.
    #[must_use]
    pub fn require(&self) -> Tokens<'a> {
        self.tokens(HeaderKind::Require)
    }

    /// The tokens of Proxy-Require.
    #[must_use]
    pub fn proxy_require(&self) -> Tokens<'a> {
        self.tokens(HeaderKind::ProxyRequire)
    }

    /// The tokens of Supported.
    #[must_use]
    pub fn supported(&self) -> Tokens<'a> {
        self.tokens(HeaderKind::Supported)
    }

    /// Each Authorization, Proxy-Authorization, WWW-Authenticate or Proxy-Authenticate: one for each realm or
    /// algorithm.
    pub fn authorizations(
        &self,
        kind: HeaderKind,
    ) -> impl Iterator<Item = Result<Authorization<'a>, HeaderError>> + use<'a> {
        self.headers(kind).map(move |header| {
            Authorization::parse(header.value).ok_or(HeaderError::Malformed(kind))
        })
    }
}

impl core::fmt::Debug for Message<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        // Kinds only: values are somebody's names and secrets.
        let kinds = self.spans.as_slice().iter().map(|span| span.kind);
        f.debug_struct("Message")
            .field("method", &self.method())
            .field("status_code", &self.status_code())
            .field("headers", &kinds.collect::<Vec<_>>())
            .field("body_len", &self.body().len())
            .finish()
    }
}
