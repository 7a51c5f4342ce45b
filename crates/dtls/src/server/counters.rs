//! Counters of an endpoint.

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
    /// The bytes are not a DTLS record (RFC 6347 §4.1).
    MalformedRecord = "malformed_record",
    /// The source has no connection, and the record does not begin a handshake.
    UnknownSource = "unknown_source",
    /// The endpoint cannot parse the handshake message.
    MalformedHandshake = "malformed_handshake",
    /// The ClientHello is fragmented, and this fragment is not the first, or does not have all cipher suites and
    /// compression methods.
    FragmentedHello = "fragmented_hello",
    /// The ClientHello is shorter than the HelloVerifyRequest.
    ShortHello = "short_hello",
    /// The cookie is valid, but the endpoint has reached its limit on connections.
    TooManyConnections = "too_many_connections",
    /// The cookie is valid, but the source has reached its limit on connections.
    TooManyOfSource = "too_many_of_source",
    /// The encrypted record arrived before the keys were derived, and there is no room to store it.
    Early = "early",
    /// The connection does not use this epoch now.
    WrongEpoch = "wrong_epoch",
    /// The record was received before, or is older than the replay window (RFC 6347 §4.1.2.6).
    Replayed = "replayed",
    /// The authentication tag of the record is wrong.
    Forged = "forged",
    /// The handshake message is out of order, or exceeds the limits of the reassembly.
    UnexpectedHandshake = "unexpected_handshake",
    /// The client tried to renegotiate.
    Renegotiation = "renegotiation",
}

/// Counters since the start of the endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// HelloVerifyRequest messages sent, each with a cookie.
    pub hello_verify_requests: u64,
    /// Of these, responses to a ClientHello whose cookie was wrong or too old.
    pub bad_cookies: u64,
    /// Handshakes begun, each by a ClientHello with a valid cookie.
    pub handshakes: u64,
    /// Handshakes completed.
    pub established: u64,
    /// Flights retransmitted.
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
