//! The protocol of a datagram, from its first byte (RFC 7983 §7, RFC 8656 §12, table 3).

/// The protocols that may share a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Packet {
    /// 0 to 3.
    Stun,
    /// 16 to 19.
    Zrtp,
    /// 20 to 63.
    Dtls,
    /// 64 to 79: ChannelData.
    TurnChannel,
    /// 128 to 191: RTP or RTCP.
    Rtp,
    /// Anything else, and the empty datagram: the caller drops it.
    Other,
}

impl Packet {
    /// The protocol of a first byte.
    #[inline]
    #[must_use]
    pub const fn of_byte(first: u8) -> Packet {
        match first {
            0..=3 => Packet::Stun,
            16..=19 => Packet::Zrtp,
            20..=63 => Packet::Dtls,
            64..=79 => Packet::TurnChannel,
            128..=191 => Packet::Rtp,
            _ => Packet::Other,
        }
    }

    /// The protocol of a datagram.
    #[inline]
    #[must_use]
    pub const fn of(datagram: &[u8]) -> Packet {
        match datagram {
            [first, ..] => Packet::of_byte(*first),
            [] => Packet::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_rfc_7983() {
        let count = |packet| {
            (0..=u8::MAX)
                .filter(|&byte| Packet::of_byte(byte) == packet)
                .count()
        };
        let all = [
            Packet::Stun,
            Packet::Zrtp,
            Packet::Dtls,
            Packet::TurnChannel,
            Packet::Rtp,
            Packet::Other,
        ];
        assert_eq!(all.map(count), [4, 4, 44, 16, 64, 124]);
        assert_eq!(
            [3, 4, 15, 80, 127, 192].map(Packet::of_byte)[0],
            Packet::Stun
        );
        assert!(
            [4, 15, 80, 127, 192]
                .iter()
                .all(|&byte| Packet::of_byte(byte) == Packet::Other)
        );
        assert_eq!(Packet::of(&[]), Packet::Other);
    }
}
