//! Hashes under a seed, so that nobody outside can choose keys that collide.

use std::hash::Hasher;
use std::net::SocketAddr;

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;
use stun::TransactionId;

use super::shares::Prefix;
use crate::{FiveTuple, Transport};

/// A keyed hash function.
#[derive(Clone)]
pub(super) struct KeyedHash {
    seed: u64,
    shared: SharedSeed,
}

impl std::fmt::Debug for KeyedHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyedHash")
    }
}

impl KeyedHash {
    pub(super) fn new(seed: u64, shared: u64) -> KeyedHash {
        KeyedHash {
            seed,
            shared: SharedSeed::from_u64(shared),
        }
    }

    fn hasher(&self) -> FoldHasher<'_> {
        FoldHasher::with_seed(self.seed, &self.shared)
    }

    /// Of a 5-tuple.
    pub(super) fn five_tuple(&self, five_tuple: &FiveTuple) -> u64 {
        let mut hasher = self.hasher();
        write_five_tuple(&mut hasher, five_tuple);
        hasher.finish()
    }

    /// Of a transaction of a 5-tuple: one client may have many.
    pub(super) fn transaction(&self, five_tuple: &FiveTuple, id: &TransactionId) -> u64 {
        let mut hasher = self.hasher();
        write_five_tuple(&mut hasher, five_tuple);
        hasher.write(&id.0);
        hasher.finish()
    }

    /// Of a prefix of addresses.
    pub(super) fn prefix(&self, prefix: Prefix) -> u64 {
        self.bytes(&prefix.as_u64().to_ne_bytes())
    }

    /// Of bytes.
    pub(super) fn bytes(&self, bytes: &[u8]) -> u64 {
        let mut hasher = self.hasher();
        hasher.write(bytes);
        hasher.finish()
    }
}

fn write_five_tuple(hasher: &mut FoldHasher<'_>, five_tuple: &FiveTuple) {
    write_address(
        hasher,
        &five_tuple.remote,
        transport_number(five_tuple.transport),
    );
    write_address(hasher, &five_tuple.local, 0);
}

/// One word for an IPv4 address and port, three for IPv6.
fn write_address(hasher: &mut FoldHasher<'_>, address: &SocketAddr, extra: u64) {
    let port = u64::from(address.port()) | extra << 16;
    match address {
        SocketAddr::V4(v4) => hasher.write_u64(u64::from(v4.ip().to_bits()) << 32 | port),
        SocketAddr::V6(v6) => {
            hasher.write_u128(v6.ip().to_bits());
            hasher.write_u64(u64::from(v6.scope_id()) << 32 | port);
        }
    }
}

const fn transport_number(transport: Transport) -> u64 {
    match transport {
        Transport::Udp => 0,
        Transport::Tcp => 1,
        Transport::Tls => 2,
        Transport::Dtls => 3,
    }
}
