//! What a TU can say of a request before it is parsed: whether its dialog or its nonce is proven, and whether a node of
//! the same cluster has sent it.

use std::fmt;
use std::net::IpAddr;

/// The fields of a request from which a TU recognizes what it has written itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct ProofFields<'a> {
    /// The Request-URI.
    pub uri: &'a [u8],
    /// Call-ID, if it is well-formed.
    pub call_id: &'a [u8],
    /// The tag of From.
    pub from_tag: &'a [u8],
    /// The tag of To; empty if there is none.
    pub to_tag: &'a [u8],
    /// Where the request comes from; `None` if that is not known.
    pub source: Option<IpAddr>,
    /// The first Route field, which may have several values; empty if there is none.
    pub route: &'a [u8],
    /// The first Authorization and the first Proxy-Authorization field.
    pub credentials: [Option<&'a [u8]>; 2],
    /// The time, in seconds since 1970.
    pub unix_s: u64,
}

/// Recognizes requests of the TU. A proxy does not look dialogs up, so a request must prove its dialog.
pub trait RequestProof: fmt::Debug + Send {
    /// Whether a request with a To tag belongs to a dialog of the TU.
    fn is_of_dialog(&self, request: &ProofFields<'_>) -> bool;

    /// Whether its credentials have a nonce that this server has issued to its source, and that is not stale. The check
    /// must cost little: anybody can make up credentials.
    fn has_fresh_nonce(&self, request: &ProofFields<'_>) -> bool {
        let _ = request;
        false
    }

    /// Whether another server of the same cluster has sent it. Then its source has no limit.
    fn is_of_cluster(&self, request: &ProofFields<'_>) -> bool {
        let _ = request;
        false
    }
}
