//! The formats of RFC 6347 (records, handshake headers, HelloVerifyRequest) and RFC 5246 (the messages in them).

pub(crate) mod alert;
pub(crate) mod certificate;
pub(crate) mod client_hello;
pub(crate) mod handshake;
pub(crate) mod key_exchange;
mod reader;
pub(crate) mod record;
pub(crate) mod server_hello;
mod writer;

pub(crate) use reader::{Reader, u16s};
pub(crate) use writer::{put_u16, vector8, vector16, vector24};

/// DTLS 1.0 on the wire: the version of a HelloVerifyRequest (RFC 6347 §4.2.1).
pub(crate) const DTLS10: u16 = 0xfeff;
/// DTLS 1.2 on the wire.
pub(crate) const DTLS12: u16 = 0xfefd;

/// Extensions of hello messages that this crate reads or writes.
pub(crate) mod extension {
    /// RFC 6066 §3.
    pub(crate) const SERVER_NAME: u16 = 0;
    /// RFC 8422 §5.1.1.
    pub(crate) const SUPPORTED_GROUPS: u16 = 10;
    /// RFC 8422 §5.1.2.
    pub(crate) const EC_POINT_FORMATS: u16 = 11;
    /// RFC 5246 §7.4.1.4.1.
    pub(crate) const SIGNATURE_ALGORITHMS: u16 = 13;
    /// RFC 7301 §3.1.
    pub(crate) const ALPN: u16 = 16;
    /// RFC 7627 §5.1.
    pub(crate) const EXTENDED_MASTER_SECRET: u16 = 23;
    /// RFC 5746 §3.2.
    pub(crate) const RENEGOTIATION_INFO: u16 = 0xff01;
}
