//! One WebSocket after its handshake: frames and messages (RFC 6455 §5 to §8).

use std::ops::Range;

use super::frame::{CloseCode, FrameHeader, Header, Kind, MAX_CONTROL, MAX_HEADER, Opcode};
use super::mask;
use super::utf8::Utf8;

/// Which kinds of messages are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKinds {
    /// Text and binary, as for SIP (RFC 7118 §4.2).
    All,
    /// Text only.
    Text,
    /// Binary only.
    Binary,
}

impl MessageKinds {
    const fn contains(self, kind: Kind) -> bool {
        match self {
            MessageKinds::All => true,
            MessageKinds::Text => matches!(kind, Kind::Text),
            MessageKinds::Binary => matches!(kind, Kind::Binary),
        }
    }
}

/// Limits on received messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageLimits {
    /// The longest message in bytes.
    pub bytes: usize,
    /// The maximum number of frames per message. Without this limit, a message of empty frames would never end.
    pub frames: u32,
    /// Which kinds of messages are accepted.
    pub kinds: MessageKinds,
}

/// How the peer violated the protocol. Its [`name`](ProtocolError::name) goes to metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ProtocolError {
    /// RFC 6455 §5.1: a client masks its frames.
    #[error("a frame of a client is not masked")]
    NotMasked,
    /// RFC 6455 §5.1: a server does not mask its frames.
    #[error("a frame of a server is masked")]
    Masked,
    /// RFC 6455 §5.2: no extension is negotiated that defines these bits.
    #[error("a reserved bit is set")]
    ReservedBits,
    /// RFC 6455 §5.2.
    #[error("the opcode is unknown")]
    Opcode,
    /// RFC 6455 §5.2: the length must be encoded in the minimal number of bytes.
    #[error("a payload length is not in its shortest form")]
    Length,
    /// RFC 6455 §5.5.
    #[error("a control frame is fragmented or too long")]
    Control,
    /// RFC 6455 §5.4.
    #[error("fragments are out of order")]
    Fragments,
    /// RFC 6455 §5.5.1, §7.4.
    #[error("a Close frame has an invalid code")]
    CloseBody,
    /// [`MessageLimits::kinds`] does not have this kind of message.
    #[error("a message has a kind that is not accepted")]
    Kind,
    /// RFC 6455 §8.1.
    #[error("text is not UTF-8")]
    Utf8,
    /// A message exceeds [`MessageLimits::bytes`] or [`MessageLimits::frames`].
    #[error("a message is too long")]
    TooLong,
}

impl ProtocolError {
    /// All errors, in the order of their numbers.
    pub const ALL: &'static [ProtocolError] = &[
        ProtocolError::NotMasked,
        ProtocolError::Masked,
        ProtocolError::ReservedBits,
        ProtocolError::Opcode,
        ProtocolError::Length,
        ProtocolError::Control,
        ProtocolError::Fragments,
        ProtocolError::CloseBody,
        ProtocolError::Kind,
        ProtocolError::Utf8,
        ProtocolError::TooLong,
    ];

    /// The name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            ProtocolError::NotMasked => "not_masked",
            ProtocolError::Masked => "masked",
            ProtocolError::ReservedBits => "reserved_bits",
            ProtocolError::Opcode => "opcode",
            ProtocolError::Length => "length",
            ProtocolError::Control => "control",
            ProtocolError::Fragments => "fragments",
            ProtocolError::CloseBody => "close_body",
            ProtocolError::Kind => "kind",
            ProtocolError::Utf8 => "utf8",
            ProtocolError::TooLong => "too_long",
        }
    }

    /// The status code of the Close frame that reports the error.
    #[must_use]
    pub const fn close_code(self) -> CloseCode {
        match self {
            ProtocolError::Kind => CloseCode::Unsupported,
            ProtocolError::Utf8 => CloseCode::Payload,
            ProtocolError::TooLong => CloseCode::TooLong,
            _ => CloseCode::Protocol,
        }
    }
}

/// How a WebSocket ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Both sides have sent a Close frame. The number is the peer's status code, if it sent one.
    Closed(Option<u16>),
    /// The peer violated the protocol.
    Failed(ProtocolError),
}

/// The result of [`WebSocket::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// All bytes are used. The next event requires more bytes.
    Need,
    /// A complete message.
    Message {
        /// Text or binary.
        kind: Kind,
        /// The payload of all its frames.
        payload: &'a [u8],
    },
    /// A Ping or a Pong: the peer is alive. The Pong for a Ping was appended.
    Alive,
    /// The WebSocket has ended. Write the appended bytes. Then the server closes the connection first
    /// (RFC 6455 §7.1.1).
    Ended(End),
}

/// The same as [`Event`], without a borrow.
enum OwnedEvent {
    Need,
    InPlace(Kind, Range<usize>),
    Gathered(Kind),
    Alive,
    Ended(End),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Open,
    /// This side has sent a Close frame, and the peer's has not arrived.
    Closing,
    Ended,
}

/// A frame whose header is known.
#[derive(Clone, Copy, Debug)]
struct Frame {
    header: Header,
    /// Bytes of its payload that were received.
    seen: u64,
}

/// An incomplete message.
#[derive(Clone, Copy, Debug)]
struct IncompleteMessage {
    kind: Kind,
    frames: u32,
    utf8: Utf8,
}

/// One WebSocket of a server or a client. It allocates memory only for an incomplete message.
pub struct WebSocket {
    limits: MessageLimits,
    /// `None` on a server, which does not mask.
    keys: Option<mask::Keys>,
    state: State,
    header: [u8; MAX_HEADER],
    header_length: usize,
    frame: Option<Frame>,
    message: Option<IncompleteMessage>,
    /// The payload of the incomplete message.
    gathered: Vec<u8>,
    /// Whether the last event has borrowed `gathered`; the next call frees it.
    is_handed_out: bool,
    control: [u8; MAX_CONTROL],
    control_length: usize,
}

impl std::fmt::Debug for WebSocket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WebSocket")
            .field("is_server", &self.keys.is_none())
            .field("state", &self.state)
            .field("frame", &self.frame)
            .field("gathered", &self.gathered.len())
            .finish_non_exhaustive()
    }
}

impl WebSocket {
    /// The server side.
    #[must_use]
    pub const fn server(limits: MessageLimits) -> WebSocket {
        WebSocket::new(limits, None)
    }

    /// The client side. The masking keys derive from the seed, which must be unpredictable (RFC 6455 §10.3).
    #[must_use]
    pub const fn client(limits: MessageLimits, seed: [u8; 16]) -> WebSocket {
        WebSocket::new(limits, Some(mask::Keys::new(seed)))
    }

    const fn new(limits: MessageLimits, keys: Option<mask::Keys>) -> WebSocket {
        WebSocket {
            limits,
            keys,
            state: State::Open,
            header: [0; MAX_HEADER],
            header_length: 0,
            frame: None,
            message: None,
            gathered: Vec::new(),
            is_handed_out: false,
            control: [0; MAX_CONTROL],
            control_length: 0,
        }
    }

    /// Whether messages can be sent: neither side has sent a Close frame.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    /// Whether a frame or a message is incomplete. The caller applies the message deadline to the rest.
    #[must_use]
    pub const fn is_begun(&self) -> bool {
        self.header_length > 0 || self.frame.is_some() || self.message.is_some()
    }

    #[cfg(test)]
    pub(super) const fn gathered_capacity(&self) -> usize {
        self.gathered.capacity()
    }

    /// Processes bytes up to the next event. Returns how many it used, and the event. Appends bytes for the peer to
    /// `out`. Call it with the remaining bytes until it returns [`Event::Need`]. `input` is unmasked in place.
    pub fn receive<'a>(&'a mut self, input: &'a mut [u8], out: &mut Vec<u8>) -> (usize, Event<'a>) {
        if self.is_handed_out {
            self.gathered = Vec::new();
            self.is_handed_out = false;
        }
        let mut used = 0;
        let found = self.find(input, &mut used, out);
        let event = match found {
            OwnedEvent::Need => Event::Need,
            OwnedEvent::Alive => Event::Alive,
            OwnedEvent::Ended(end) => Event::Ended(end),
            OwnedEvent::InPlace(kind, range) => Event::Message {
                kind,
                payload: &input[range],
            },
            OwnedEvent::Gathered(kind) => {
                self.is_handed_out = true;
                Event::Message {
                    kind,
                    payload: &self.gathered,
                }
            }
        };
        (used, event)
    }

    fn find(&mut self, input: &mut [u8], used: &mut usize, out: &mut Vec<u8>) -> OwnedEvent {
        loop {
            if self.state == State::Ended {
                *used = input.len();
                return OwnedEvent::Need;
            }
            let found = match self.step(input, used, out) {
                Ok(found) => found,
                Err(error) => Some(self.fail(error, out)),
            };
            if let Some(found) = found {
                return found;
            }
        }
    }

    /// Processes a header, or payload. Returns `None` if more of `input` may be processed.
    fn step(
        &mut self,
        input: &mut [u8],
        used: &mut usize,
        out: &mut Vec<u8>,
    ) -> Result<Option<OwnedEvent>, ProtocolError> {
        let Some(frame) = self.frame else {
            let is_whole = self.take_header(input, used)?;
            return Ok((!is_whole).then_some(OwnedEvent::Need));
        };
        let header = frame.header;
        // `begin` has checked the length against the limits, which are usize.
        let left = usize::try_from(header.length - frame.seen).unwrap_or(usize::MAX);
        let payload = *used..*used + left.min(input.len() - *used);
        *used = payload.end;
        let bytes = &mut input[payload.clone()];
        if let Some(key) = header.mask {
            mask::apply(bytes, key, (frame.seen % 4) as usize);
        }
        let seen = frame.seen + bytes.len() as u64;
        let is_end = seen == header.length;
        self.frame = (!is_end).then_some(Frame { header, seen });
        if header.opcode.is_control() {
            self.control[self.control_length..self.control_length + bytes.len()]
                .copy_from_slice(bytes);
            self.control_length += bytes.len();
            return if is_end {
                self.control_frame(header.opcode, out).map(Some)
            } else {
                Ok(Some(OwnedEvent::Need))
            };
        }
        let is_whole_frame = is_end && frame.seen == 0;
        self.data(&input[payload.clone()], is_end && header.is_final)?;
        let Some(begun) = self.message.filter(|_| is_end && header.is_final) else {
            self.gathered.extend_from_slice(&input[payload]);
            return Ok((!is_end).then_some(OwnedEvent::Need));
        };
        self.message = None;
        if self.state != State::Open {
            // RFC 6455 §1.4: after this side has sent a Close frame, it ignores data.
            self.gathered = Vec::new();
            return Ok(None);
        }
        // The usual case: the message is in one piece of `input`, and is not copied.
        if is_whole_frame && begun.frames == 1 {
            return Ok(Some(OwnedEvent::InPlace(begun.kind, payload)));
        }
        self.gathered.extend_from_slice(&input[payload]);
        Ok(Some(OwnedEvent::Gathered(begun.kind)))
    }

    /// Checks the payload of a message.
    fn data(&mut self, bytes: &[u8], is_end: bool) -> Result<(), ProtocolError> {
        let Some(begun) = &mut self.message else {
            return Err(ProtocolError::Fragments);
        };
        if begun.kind == Kind::Text {
            let is_valid = begun.utf8.accepts(bytes);
            if !is_valid || is_end && !begun.utf8.is_whole() {
                return Err(ProtocolError::Utf8);
            }
        }
        Ok(())
    }

    /// Reads bytes of a header. Returns whether the header is complete.
    fn take_header(&mut self, input: &[u8], used: &mut usize) -> Result<bool, ProtocolError> {
        loop {
            let wanted = match self.header[..self.header_length] {
                [_, second, ..] => Header::length_of(second),
                _ => 2,
            };
            let bytes = &input[*used..];
            let taken = bytes.len().min(wanted - self.header_length);
            self.header[self.header_length..self.header_length + taken]
                .copy_from_slice(&bytes[..taken]);
            self.header_length += taken;
            *used += taken;
            if self.header_length < wanted {
                return Ok(false);
            }
            if wanted == 2 {
                // An error in the first two bytes is reported without waiting for the rest of the header.
                self.check_start()?;
                if Header::length_of(self.header[1]) > 2 {
                    continue;
                }
            }
            let header = Header::parse(&self.header[..wanted])?;
            self.header_length = 0;
            return self.begin(header).map(|()| true);
        }
    }

    fn check_start(&self) -> Result<(), ProtocolError> {
        let [first, second, ..] = self.header;
        Header::check(first, second)?;
        // RFC 6455 §5.1: a server rejects unmasked frames, a client rejects masked frames.
        match (self.keys.is_none(), second & 0x80 != 0) {
            (true, false) => Err(ProtocolError::NotMasked),
            (false, true) => Err(ProtocolError::Masked),
            _ => Ok(()),
        }
    }

    /// Begins a frame. Checks its opcode, kind and length.
    fn begin(&mut self, header: Header) -> Result<(), ProtocolError> {
        self.frame = Some(Frame { header, seen: 0 });
        if header.opcode.is_control() {
            self.control_length = 0;
            return Ok(());
        }
        let new = |kind| IncompleteMessage {
            kind,
            frames: 0,
            utf8: Utf8::default(),
        };
        // RFC 6455 §5.4: only control frames may be sent between the fragments of a message.
        let mut begun = match (header.opcode, self.message) {
            (Opcode::Continuation, Some(begun)) => begun,
            (Opcode::Text, None) => new(Kind::Text),
            (Opcode::Binary, None) => new(Kind::Binary),
            _ => return Err(ProtocolError::Fragments),
        };
        begun.frames += 1;
        self.message = Some(begun);
        if !self.limits.kinds.contains(begun.kind) {
            return Err(ProtocolError::Kind);
        }
        let room = (self.limits.bytes - self.gathered.len().min(self.limits.bytes)) as u64;
        if header.length > room || begun.frames > self.limits.frames {
            return Err(ProtocolError::TooLong);
        }
        Ok(())
    }

    fn control_frame(
        &mut self,
        opcode: Opcode,
        out: &mut Vec<u8>,
    ) -> Result<OwnedEvent, ProtocolError> {
        let payload = self.control;
        let payload = &payload[..self.control_length];
        match opcode {
            Opcode::Close => self.close_frame(payload, out),
            Opcode::Ping if self.state == State::Open => {
                self.write(Opcode::Pong, payload, out);
                Ok(OwnedEvent::Alive)
            }
            _ => Ok(OwnedEvent::Alive),
        }
    }

    /// Handles the peer's Close frame. Unless this side has sent one, it replies with the same status code
    /// (RFC 6455 §5.5.1).
    fn close_frame(
        &mut self,
        payload: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<OwnedEvent, ProtocolError> {
        let code = match payload.split_first_chunk() {
            Some((code, reason)) => {
                let code = u16::from_be_bytes(*code);
                if !CloseCode::is_sendable(code) {
                    return Err(ProtocolError::CloseBody);
                }
                if std::str::from_utf8(reason).is_err() {
                    return Err(ProtocolError::Utf8);
                }
                Some(code)
            }
            None if payload.is_empty() => None,
            None => return Err(ProtocolError::CloseBody),
        };
        if self.state == State::Open {
            let echoed = code.map(u16::to_be_bytes);
            self.write(Opcode::Close, echoed.as_ref().map_or(&[], |code| code), out);
        }
        self.end();
        Ok(OwnedEvent::Ended(End::Closed(code)))
    }

    fn fail(&mut self, error: ProtocolError, out: &mut Vec<u8>) -> OwnedEvent {
        self.close(error.close_code(), "", out);
        self.end();
        OwnedEvent::Ended(End::Failed(error))
    }

    fn end(&mut self) {
        self.state = State::Ended;
        self.gathered = Vec::new();
        self.message = None;
        self.frame = None;
        self.header_length = 0;
    }

    fn write(&mut self, opcode: Opcode, payload: &[u8], out: &mut Vec<u8>) {
        let key = self.keys.as_mut().map(mask::Keys::next);
        out.extend_from_slice(FrameHeader::new(opcode, payload.len(), key).as_bytes());
        let start = out.len();
        out.extend_from_slice(payload);
        if let Some(key) = key {
            mask::apply(&mut out[start..], key, 0);
        }
    }

    /// Appends a message. Returns false, and appends nothing, after a Close frame. To save the copy, a server may write
    /// [`FrameHeader::message`] and the payload itself.
    pub fn send(&mut self, kind: Kind, payload: &[u8], out: &mut Vec<u8>) -> bool {
        if self.is_open() {
            self.write(kind.opcode(), payload, out);
        }
        self.is_open()
    }

    /// Appends a Ping. The peer's Pong is [`Event::Alive`].
    pub fn ping(&mut self, out: &mut Vec<u8>) {
        if self.is_open() {
            self.write(Opcode::Ping, &[], out);
        }
    }

    /// Appends a Close frame, unless one was sent or received. The reason is truncated to 123 bytes. Messages that
    /// arrive afterwards are dropped until [`Event::Ended`].
    pub fn close(&mut self, code: CloseCode, reason: &str, out: &mut Vec<u8>) {
        if !self.is_open() {
            return;
        }
        let reason = &reason[..reason.floor_char_boundary(MAX_CONTROL - 2)];
        let payload = [&code.number().to_be_bytes(), reason.as_bytes()].concat();
        self.write(Opcode::Close, &payload, out);
        self.state = State::Closing;
    }
}
