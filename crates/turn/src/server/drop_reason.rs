//! Why a datagram was discarded.

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// Why a datagram was discarded. Every discarded datagram has one, and is counted under it.
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
    /// A client sent a datagram without a single byte.
    EmptyDatagram = "empty_datagram",
    /// The first byte says DTLS, ZRTP, RTP or nothing known (RFC 7983 §7).
    ForeignProtocol = "foreign_protocol",
    /// Not a well-formed STUN message (RFC 8489 §6.3).
    MalformedStun = "malformed_stun",
    /// A Binding request of RFC 3489, which the configuration does not allow.
    ClassicStun = "classic_stun",
    /// FINGERPRINT is there and wrong (RFC 8489 §7).
    WrongFingerprint = "wrong_fingerprint",
    /// A STUN method that this server does not support (RFC 8489 §6.3).
    UnsupportedMethod = "unsupported_method",
    /// A class that the method does not have, or a response to nothing that was asked (RFC 8489 §6.3).
    UnexpectedClass = "unexpected_class",
    /// A retransmission of a request that is being worked on.
    RequestPending = "request_pending",
    /// A source of credentials responds later, and as many requests wait for one as may.
    Lookups = "lookups",
    /// The same, for the /24 or /48 that the client is in.
    LookupsOfPrefix = "lookups_of_prefix",
    /// A retransmission of an Allocate request whose allocation the client has deleted since (RFC 8489 §6.3.1).
    AllocationDeleted = "allocation_deleted",
    /// The response would be larger than the amplification limit of an address that is not verified: three times the
    /// request, or once with [`Config::strict_amplification`](super::Config::strict_amplification).
    Amplification = "amplification",
    /// The source address, which no valid nonce has verified, has had its error responses of this second. Refresh
    /// requests that another engine must authenticate count, too.
    UnverifiedOverLimit = "unverified_over_limit",
    /// A Binding request with PADDING, from a prefix that has had its share of padded responses in this second
    /// (RFC 5780 §7.6).
    PaddingOverLimit = "padding_over_limit",
    /// An indication or ChannelData from a client without an allocation (RFC 8656 §5).
    NoAllocation = "no_allocation",
    /// The relayed transport address has expired.
    AllocationExpired = "allocation_expired",
    /// ChannelData shorter than its header says, or on a reserved channel number (RFC 8656 §12.6).
    MalformedChannelData = "malformed_channel_data",
    /// ChannelData on a channel that is not bound to a peer (RFC 8656 §12.6).
    ChannelNotBound = "channel_not_bound",
    /// From the client, to a peer without a permission (RFC 8656 §11.2).
    NoPermission = "no_permission",
    /// From the client, to a peer that the operator does not allow (RFC 8656 §11.2).
    PeerNotAllowed = "peer_not_allowed",
    /// From the client, to a peer that another client of the same shared port has claimed
    /// ([`Server::share_port`](super::Server::share_port)), or one more than a client may claim.
    PeerClaimed = "peer_claimed",
    /// A Send indication without, or with a broken, XOR-PEER-ADDRESS or DATA (RFC 8656 §11.2).
    MalformedIndication = "malformed_indication",
    /// An indication with a comprehension-required attribute that is not known (RFC 8489 §6.3.2).
    UnknownAttribute = "unknown_attribute",
    /// A Send indication to a peer of a family that the allocation has no address of.
    PeerFamilyMismatch = "peer_family_mismatch",
    /// A Send indication for a TCP allocation, which relays no datagrams (RFC 6062).
    NotUdp = "not_udp",
    /// DONT-FRAGMENT, which this server cannot do (RFC 8656 §11.2).
    DontFragmentUnsupported = "dont_fragment_unsupported",
    /// Arrived at a relayed transport address that is closed by now.
    StaleRelay = "stale_relay",
    /// Arrived at a relayed transport address that is still being opened or held in reserve.
    RelayNotInUse = "relay_not_in_use",
    /// From a peer without a permission (RFC 8656 §9).
    PeerWithoutPermission = "peer_without_permission",
    /// From a peer, and too long to be forwarded behind a header.
    TooLong = "too_long",
    /// The allocation has relayed more than its rate permits, in either direction.
    OverRate = "over_rate",
    /// An ICMP message of a type that is not relayed (RFC 8656 §11.5).
    IcmpNotRelayed = "icmp_not_relayed",
}

impl DropReason {
    /// How many reasons there are.
    pub(crate) const COUNT: usize = Self::ALL.len();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_index_the_table_and_names_are_unique() {
        for (number, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, number);
            let twins = DropReason::ALL
                .iter()
                .filter(|other| other.name() == reason.name());
            assert_eq!(twins.count(), 1, "{}", reason.name());
        }
    }
}
