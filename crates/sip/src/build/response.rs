//! Responses, from the request they answer (RFC 3261 §8.2.6).

use core::net::{IpAddr, SocketAddr};

use super::{Builder, Part};
use crate::cursor::Cursor;
use crate::header::{CSeq, HeaderKind, NameAddr, Rport, Via};
use crate::message::{Headers, Message, Scan, ScannedVias};
use crate::{Method, hex, reason_phrase};

/// The fields that a response copies from its request, which was parsed or only scanned. So a request with a malformed
/// body or start line also gets a response. So does a request that has nothing but a Via (RFC 4475 §3.3.1). If a field
/// may occur only once, the first one counts.
#[derive(Clone, Debug)]
pub struct Answerable<'a> {
    top: Via<'a>,
    /// Its parameters are well-formed.
    is_top_whole: bool,
    vias: ViaFields<'a>,
    from: Option<&'a [u8]>,
    to: Option<&'a [u8]>,
    /// Whether To has a tag, if it has been read and is well-formed.
    is_tagged: Option<bool>,
    call_id: Option<&'a [u8]>,
    cseq: Option<&'a [u8]>,
}

/// The values of the Via fields, from the parsed message or from the scan.
#[derive(Clone, Debug)]
enum ViaFields<'a> {
    Parsed(Headers<'a>),
    Scanned(ScannedVias<'a>),
}

impl<'a> Iterator for ViaFields<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        match self {
            ViaFields::Parsed(headers) => headers.next().map(|header| header.value),
            ViaFields::Scanned(vias) => vias.next(),
        }
    }
}

impl<'a> Answerable<'a> {
    /// The topmost Via, which says where the response goes. Malformed parameters are left out.
    #[must_use]
    pub const fn top_via(&self) -> &Via<'a> {
        &self.top
    }

    /// CSeq, if it is well-formed.
    #[must_use]
    pub fn cseq(&self) -> Option<CSeq<'a>> {
        CSeq::parse(self.cseq?)
    }

    /// Whether To has a tag. A To field that cannot be read is sent back as it came, because the place for a tag is
    /// unknown.
    fn has_tag_or_is_unreadable(&self) -> bool {
        self.is_tagged.unwrap_or_else(|| {
            let to = NameAddr::read(&mut Cursor::new(self.to.unwrap_or_default()));
            to.is_none_or(|to| to.tag.is_some())
        })
    }

    /// The tag of To, if it has one.
    #[must_use]
    pub fn to_tag(&self) -> Option<&'a [u8]> {
        NameAddr::read(&mut Cursor::new(self.to?))?.tag
    }
}

/// The first value of a Via field and `true`. If its parameters are malformed, the part up to sent-by and `false`.
fn sent_by(field: &[u8]) -> Option<(Via<'_>, bool)> {
    match Via::read(&mut Cursor::new(field)) {
        Some(via) => Some((via, true)),
        None => Via::read_sent_by(&mut Cursor::new(field)).map(|via| (via, false)),
    }
}

impl<'a> Message<'a> {
    /// What a response to this request copies. `None` for a response, for ACK, and if no Via says where the response
    /// goes.
    #[must_use]
    pub fn answerable(&self) -> Option<Answerable<'a>> {
        if self.method()? == Method::Ack {
            return None;
        }
        let via = self.header(HeaderKind::Via)?;
        Some(self.answerable_to(sent_by(via.value)?, None))
    }

    /// Like [`Message::answerable`], if the caller has already read the topmost Via and knows whether To has a tag.
    pub(crate) fn answerable_to(
        &self,
        (top, is_top_whole): (Via<'a>, bool),
        is_tagged: Option<bool>,
    ) -> Answerable<'a> {
        let first = |kind| self.header(kind).map(|header| header.value);
        Answerable {
            top,
            is_top_whole,
            vias: ViaFields::Parsed(self.headers(HeaderKind::Via)),
            from: first(HeaderKind::From),
            to: first(HeaderKind::To),
            is_tagged,
            call_id: first(HeaderKind::CallId),
            cseq: first(HeaderKind::CSeq),
        }
    }
}

impl<'a> Scan<'a> {
    /// As [`Message::answerable`], from the scan alone: what a refusal needs.
    #[must_use]
    pub fn answerable(&self) -> Option<Answerable<'a>> {
        if self.method? == Method::Ack {
            return None;
        }
        Some(self.answerable_to(sent_by(self.via?)?))
    }

    /// Like [`Scan::answerable`], if the caller has already read the topmost Via.
    pub(crate) fn answerable_to(&self, (top, is_top_whole): (Via<'a>, bool)) -> Answerable<'a> {
        Answerable {
            top,
            is_top_whole,
            vias: ViaFields::Scanned(self.via_fields()),
            from: self.from,
            to: self.to,
            is_tagged: None,
            call_id: self.call_id,
            cseq: self.cseq,
        }
    }
}

/// What the receiver of a request adds to its topmost Via (RFC 3261 §18.2.1, RFC 3581 §4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// `received`: replaces any that was there.
    pub received: Option<IpAddr>,
    /// The value of `rport`, if the Via has this parameter without a value.
    pub rport: Option<u16>,
}

impl Stamp {
    /// The stamp for a request from `source`: the address if sent-by differs from it; address and port if the client
    /// asks for the port.
    #[must_use]
    pub fn of(via: &Via<'_>, source: SocketAddr) -> Stamp {
        // An IPv4 client of a socket for both families is an IPv4 client.
        let ip = source.ip().to_canonical();
        let is_asked = via.rport != Rport::Absent;
        Stamp {
            received: (is_asked || via.host.ip() != Some(ip)).then_some(ip),
            rport: is_asked.then_some(source.port()),
        }
    }
}

/// A tag of 64 bits (RFC 3261 §19.3 asks for 32 random ones), in hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag([u8; Tag::LEN]);

impl Tag {
    /// Bytes of a tag.
    pub const LEN: usize = 16;

    /// Makes a To tag. `random`: random bytes. For a stateless response, a keyed hash of the request, so that a
    /// retransmission gets the same tag (RFC 3261 §8.2.7).
    #[must_use]
    pub fn new(random: [u8; 8]) -> Tag {
        let mut digits = [0; Tag::LEN];
        hex::write(&random, &mut digits);
        Tag(digits)
    }

    /// As it is written in a message.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl<'b> Builder<'b> {
    /// Begins a response: status line, Via, From, To, Call-ID and CSeq of the request. `stamp` is added to the topmost
    /// Via, and `to_tag` to a To without a tag (RFC 3261 §8.2.6.2). A 100 takes no tag: give `None`.
    ///
    /// An empty `reason` is replaced by the usual phrase.
    #[must_use]
    pub fn response(
        buffer: &'b mut [u8],
        request: &Answerable<'_>,
        code: u16,
        reason: &[u8],
        to_tag: Option<&[u8]>,
        stamp: Stamp,
    ) -> Builder<'b> {
        let reason = match reason {
            [] => reason_phrase(code).as_bytes(),
            reason => reason,
        };
        let mut builder = Builder::status(buffer, code, reason);
        let to = builder.copied_until_to(request, stamp);
        if let (Some(tag), Some(false)) = (to_tag, to.map(|_| request.has_tag_or_is_unreadable())) {
            builder.tag(tag);
        }
        builder.copied_behind_to(request);
        builder
    }

    /// Adds what a response copies, up to the place of a tag behind To; `None` if there is no To.
    fn copied_until_to(&mut self, request: &Answerable<'_>, stamp: Stamp) -> Option<()> {
        let mut vias = request.vias.clone();
        if let Some(first) = vias.next() {
            self.raw(b"Via: ");
            match request.is_top_whole {
                true => self.stamped_as(first, &request.top, stamp),
                false => drop(self.raw(first)),
            }
            self.raw(b"\r\n");
        }
        for via in vias {
            self.copied(b"Via: ", Some(via));
        }
        self.copied(b"From: ", request.from);
        let to = request.to?;
        self.raw(b"To: ").raw(to);
        Some(())
    }

    fn copied_behind_to(&mut self, request: &Answerable<'_>) {
        if request.to.is_some() {
            self.raw(b"\r\n");
        }
        self.copied(b"Call-ID: ", request.call_id);
        self.copied(b"CSeq: ", request.cseq);
    }

    /// Adds what responses to a request copy; returns where a tag goes behind To, if it needs one.
    pub(crate) fn copies(&mut self, request: &Answerable<'_>, stamp: Stamp) -> Option<usize> {
        let to = self.copied_until_to(request, stamp);
        let place = self.len();
        self.copied_behind_to(request);
        to.filter(|()| !request.has_tag_or_is_unreadable())
            .map(|()| place)
    }

    /// Adds a `tag` parameter.
    pub(crate) fn tag(&mut self, tag: &[u8]) {
        self.raw(b";tag=").part(Part::Bytes(tag));
    }

    /// Adds a field as the request has it.
    #[inline(always)]
    fn copied(&mut self, name: &[u8], value: Option<&[u8]>) {
        if let Some(value) = value {
            self.raw(name).raw(value).raw(b"\r\n");
        }
    }

    /// Writes a Via field with a stamp on its first value, which is `via`, and with all parameters.
    pub(super) fn stamped_as(&mut self, field: &[u8], via: &Via<'_>, stamp: Stamp) {
        // Nearly all have neither `received` nor a value of `rport` yet, and no space that would have to be passed
        // over.
        let end = offset_behind(field, via.bytes);
        let port_at = via
            .rport_name
            .map_or(end, |name| offset_behind(field, name));
        let is_plain = port_at == end || field.get(port_at) == Some(&b';');
        if via.received.is_some() || !is_plain {
            return self.stamped_anew(field, via, stamp, |_| true);
        }
        let slice = |from: usize, to: usize| field.get(from..to).unwrap_or_default();
        self.raw(slice(0, port_at));
        if let (Some(port), Some(_)) = (stamp.rport, via.rport_name) {
            self.raw(b"=").part(Part::Number(port.into()));
        }
        self.raw(slice(port_at, end));
        self.stamp_received(stamp);
        self.raw(slice(end, field.len()));
    }

    /// Like `stamped_as`, with only those parameters that `keeps` accepts. Writes each of them anew.
    pub(super) fn stamped_anew(
        &mut self,
        field: &[u8],
        via: &Via<'_>,
        stamp: Stamp,
        keeps: impl Fn(&[u8]) -> bool,
    ) {
        let end = offset_behind(field, via.bytes);
        let params = via.params.as_bytes();
        let kept = match params {
            [] => via.bytes.len(),
            params => offset_behind(via.bytes, params) - params.len(),
        };
        self.raw(crate::chars::trim(
            via.bytes.get(..kept).unwrap_or_default(),
        ));
        for param in via.params {
            let name = param.name;
            if (name.eq_ignore_ascii_case(b"received") && stamp.received.is_some()) || !keeps(name)
            {
                continue;
            }
            match stamp.rport {
                Some(port) if name.eq_ignore_ascii_case(b"rport") => {
                    self.raw(b";").raw(name).raw(b"=");
                    self.part(Part::Number(port.into()));
                }
                _ => {
                    self.param(&param);
                }
            }
        }
        self.stamp_received(stamp);
        self.raw(field.get(end..).unwrap_or_default());
    }

    fn stamp_received(&mut self, stamp: Stamp) {
        if let Some(ip) = stamp.received {
            // RFC 5118 §4.5: without brackets, as the grammar of `received` has it; with them is understood as well.
            self.raw(b";received=").bare_ip(ip);
        }
    }
}

/// Where `inner`, a slice of `outer`, ends in it.
pub(super) fn offset_behind(outer: &[u8], inner: &[u8]) -> usize {
    (inner.as_ptr() as usize + inner.len()).saturating_sub(outer.as_ptr() as usize)
}
