//! The requests of the benchmark's client, as bytes.

use std::net::SocketAddr;

use stun::{
    BuildError, Builder, ChannelNumber, Class, HmacKey, Lifetime, Method, Nonce, Realm,
    RequestedTransport, TransactionId, Username, XorPeerAddress,
};

use crate::bench::side::USERNAME;

/// An hour: longer than any round. Servers that grant less are held to what they grant.
const LIFETIME_S: u32 = 3600;

/// What authenticates a request (RFC 8489 §9.2.5).
#[derive(Clone)]
pub(super) struct Authority {
    pub(super) realm: String,
    pub(super) nonce: Vec<u8>,
    pub(super) key: HmacKey,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority")
            .field("realm", &self.realm)
            .finish_non_exhaustive()
    }
}

/// A Binding request.
pub(super) fn binding(id: &TransactionId) -> Result<Vec<u8>, BuildError> {
    build(Method::BINDING, id, None, |_| Ok(()))
}

/// An Allocate request for UDP.
pub(super) fn allocate(
    id: &TransactionId,
    authority: Option<&Authority>,
) -> Result<Vec<u8>, BuildError> {
    build(Method::ALLOCATE, id, authority, |builder| {
        builder
            .push(&RequestedTransport::UDP)?
            .push(&Lifetime(LIFETIME_S))
            .map(drop)
    })
}

/// A ChannelBind request, which also makes or renews the permission.
pub(super) fn channel_bind(
    id: &TransactionId,
    authority: Option<&Authority>,
    channel: ChannelNumber,
    peer: SocketAddr,
) -> Result<Vec<u8>, BuildError> {
    build(Method::CHANNEL_BIND, id, authority, |builder| {
        builder
            .push(&channel)?
            .push(&XorPeerAddress(peer))
            .map(drop)
    })
}

/// A Refresh request that deletes the allocation.
pub(super) fn release(
    id: &TransactionId,
    authority: Option<&Authority>,
) -> Result<Vec<u8>, BuildError> {
    build(Method::REFRESH, id, authority, |builder| {
        builder.push(&Lifetime(0)).map(drop)
    })
}

fn build(
    method: Method,
    id: &TransactionId,
    authority: Option<&Authority>,
    attributes: impl FnOnce(&mut Builder<'_>) -> Result<(), BuildError>,
) -> Result<Vec<u8>, BuildError> {
    // Realm and nonce are at most 763 bytes each, the rest fits in the remainder several times.
    let mut buffer = [0; 2048];
    let mut builder = Builder::new(&mut buffer, Class::Request, method, id)?;
    attributes(&mut builder)?;
    if let Some(Authority { realm, nonce, key }) = authority {
        builder
            .push(&Username(USERNAME))?
            .push(&Realm(realm))?
            .push(&Nonce(nonce))?
            .integrity(key)?;
    }
    Ok(builder.finish().to_vec())
}
