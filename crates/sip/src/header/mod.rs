//! Header fields, typed. Each type reads one value from the bytes of a message when it is asked for, and borrows from
//! it.
//!
//! What a type has accepted, its accessors cannot fail on. White space and folds around the separators of the grammar
//! (RFC 3261 §25.1) are skipped. The returned bytes are those of the message, with quotes and escapes.

pub(crate) mod addr;
pub(crate) mod auth;
pub(crate) mod kind;
pub(crate) mod list;
pub(crate) mod params;
pub(crate) mod small;
pub(crate) mod via;

pub use addr::{Contact, NameAddr};
pub use auth::{AuthParamIter, AuthParams, Authorization};
pub use kind::HeaderKind;
pub use list::{Contacts, NameAddrs, Tokens, Vias};
pub use params::{Param, ParamIter, Params, unquote};
pub use small::{CSeq, MediaType, RetryAfter};
pub use via::{MAGIC_COOKIE, Rport, Via, ViaTransport};

/// Why a header field cannot be used. A request with it is answered with 400 (Bad Request) where the RFC allows an
/// answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum HeaderError {
    /// It is not there.
    #[error("{} is missing", .0.name())]
    Missing(HeaderKind),
    /// It is there and not what its grammar says.
    #[error("{} is malformed", .0.name())]
    Malformed(HeaderKind),
    /// It may occur once and occurs again.
    #[error("{} occurs more than once", .0.name())]
    Repeated(HeaderKind),
}
