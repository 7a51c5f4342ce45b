//! What an endpoint counts.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// Why a record or a datagram was discarded.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        #[repr(u8)]
        pub enum DropReason { $($(#[doc = $doc])+ $variant,)+ }

        impl DropReason {
            /// All reasons, in the order of their numbers.
            pub const ALL: &'static [DropReason] = &[$(DropReason::$variant,)+];

            /// The reason's name in metrics and logs, in snake case.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(DropReason::$variant => $name,)+ }
            }
        }
    };
}

drop_reasons! {
    /// No DTLS record (RFC 6347 §4.1).
    MalformedRecord = "malformed_record",
    /// A record that begins no handshake, from a source without a connection.
    UnknownSource = "unknown_source",
    /// A handshake message that cannot be parsed.
    MalformedHandshake = "malformed_handshake",
    /// A ClientHello in fragments of which the first lacks the cipher suites, or another fragment came first.
    FragmentedHello = "fragmented_hello",
    /// A ClientHello that is shorter than the HelloVerifyRequest would be.
    ShortHello = "short_hello",
    /// The cookie is back, but the endpoint has as many connections as it may have.
    TooManyConnections = "too_many_connections",
    /// An encrypted record that came before the keys, and cannot be kept.
    Early = "early",
    /// An epoch that the connection does not have (any more).
    WrongEpoch = "wrong_epoch",
    /// The record came before, or is too old to tell (RFC 6347 §4.1.2.6).
    Replayed = "replayed",
    /// The record does not decrypt.
    Forged = "forged",
    /// A handshake message that does not belong here, or exceeds what is kept for reassembly.
    UnexpectedHandshake = "unexpected_handshake",
    /// The client wants to renegotiate.
    Renegotiation = "renegotiation",
}

/// What has happened, since the beginning.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// ClientHello messages that were answered with a cookie.
    pub hello_verify_requests: u64,
    /// Among them: those that came with a cookie that is wrong or too old.
    pub bad_cookies: u64,
    /// Handshakes that began: cookies that came back.
    pub handshakes: u64,
    /// Handshakes that ended with a connection.
    pub established: u64,
    /// Flights that were sent again.
    pub retransmissions: u64,
    /// Records and datagrams that were discarded, by [`DropReason`].
    pub drops: [u64; DropReason::ALL.len()],
}

impl Counters {
    pub(super) fn dropped(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// How many records and datagrams were discarded for this reason.
    #[must_use]
    pub fn drops(&self, reason: DropReason) -> u64 {
        self.drops[reason as usize]
    }
}
