//! Keys into the server's tables. Each carries a generation: the key of a removed entry finds nothing,
//! also when its slot is in use again.

/// Names one relayed transport address, and with it the embedder's socket for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelayKey {
    /// The slot in the server's table.
    pub index: u32,
    /// Distinguishes the successive entries of the slot.
    pub generation: u32,
}

impl RelayKey {
    /// The key as one number, for an epoll token.
    #[must_use]
    pub const fn as_u64(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    /// The key that [`as_u64`](Self::as_u64) gave.
    #[must_use]
    pub const fn from_u64(token: u64) -> RelayKey {
        RelayKey {
            index: token as u32,
            generation: (token >> 32) as u32,
        }
    }
}

/// Names a request that waits for the embedder: for its sockets, or for another worker's reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestKey {
    /// The slot in the server's table.
    pub index: u32,
    /// Distinguishes the successive entries of the slot.
    pub generation: u32,
}

/// Names a request that waits for a source of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LookupKey {
    /// The slot in the server's table.
    pub index: u32,
    /// Distinguishes the successive entries of the slot.
    pub generation: u32,
}

/// Names one TCP connection between a relay and a peer (RFC 6062), from the request for it to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionKey {
    /// The slot in the server's table.
    pub index: u32,
    /// Distinguishes the successive entries of the slot.
    pub generation: u32,
}

/// Names one allocation of a server, for as long as it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AllocationKey {
    /// The slot in the server's table: small numbers, used again and again, so that an embedder may index by it.
    pub index: u32,
    /// Distinguishes the successive entries of the slot.
    pub generation: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_leads_back_to_its_key() {
        let key = RelayKey {
            index: 7,
            generation: 0xdead_beef,
        };
        assert_eq!(RelayKey::from_u64(key.as_u64()), key);
    }
}
