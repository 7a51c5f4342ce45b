//! The tokens of SIP sockets, which are a part of the tokens of the worker.

use turn::RelayKey;

/// A socket of SIP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SipToken {
    /// The UDP socket of this listener.
    Datagrams(u16),
    /// The TCP listener beside it.
    Accept(u16),
    /// A connection.
    Connection(Slot),
}

/// A place in the table of connections, with the generation of its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Slot {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// The indices of SIP sockets. Those of relays stay below a few millions.
const CONNECTION_INDICES: std::ops::Range<u32> = 0xfe00_0000..0xff00_0000;
const DATAGRAM_INDICES: std::ops::Range<u32> = 0xffff_8000..0xffff_a000;
const ACCEPT_INDICES: std::ops::Range<u32> = 0xffff_a000..0xffff_c000;

impl SipToken {
    /// The first index of a SIP listener.
    pub(crate) const FIRST_LISTENER_INDEX: u32 = DATAGRAM_INDICES.start;

    /// The maximum of connections per worker.
    pub(crate) const MAX_CONNECTIONS: usize =
        (CONNECTION_INDICES.end - CONNECTION_INDICES.start) as usize;

    pub(crate) fn as_key(self) -> RelayKey {
        let (index, generation) = match self {
            SipToken::Datagrams(number) => (DATAGRAM_INDICES.start + u32::from(number), 0),
            SipToken::Accept(number) => (ACCEPT_INDICES.start + u32::from(number), 0),
            SipToken::Connection(slot) => (CONNECTION_INDICES.start + slot.index, slot.generation),
        };
        RelayKey { index, generation }
    }

    /// The token, if the key is that of a SIP socket.
    pub(crate) fn from_key(key: RelayKey) -> Option<SipToken> {
        let index = key.index;
        if CONNECTION_INDICES.contains(&index) {
            return Some(SipToken::Connection(Slot {
                index: index - CONNECTION_INDICES.start,
                generation: key.generation,
            }));
        }
        let number = |range: std::ops::Range<u32>| {
            let number = range.contains(&index).then(|| index - range.start)?;
            u16::try_from(number).ok()
        };
        number(DATAGRAM_INDICES)
            .map(SipToken::Datagrams)
            .or_else(|| number(ACCEPT_INDICES).map(SipToken::Accept))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_lead_back_and_relays_are_none() {
        let slot = Slot {
            index: 77,
            generation: u32::MAX,
        };
        for token in [
            SipToken::Datagrams(0),
            SipToken::Accept(63),
            SipToken::Connection(slot),
        ] {
            assert_eq!(SipToken::from_key(token.as_key()), Some(token));
        }
        for index in [0, 5_000_000, 0xffff_0000, u32::MAX] {
            let key = RelayKey {
                index,
                generation: 0,
            };
            assert_eq!(SipToken::from_key(key), None);
        }
    }
}
