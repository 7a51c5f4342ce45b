//! Alerts (RFC 5246 §7.2).

/// Level and description on the wire.
pub(crate) const WARNING: u8 = 1;
pub(crate) const FATAL: u8 = 2;

/// Descriptions.
pub(crate) mod description {
    pub(crate) const CLOSE_NOTIFY: u8 = 0;
    pub(crate) const HANDSHAKE_FAILURE: u8 = 40;
    pub(crate) const BAD_CERTIFICATE: u8 = 42;
    pub(crate) const ILLEGAL_PARAMETER: u8 = 47;
    pub(crate) const DECODE_ERROR: u8 = 50;
    pub(crate) const DECRYPT_ERROR: u8 = 51;
    pub(crate) const PROTOCOL_VERSION: u8 = 70;
    pub(crate) const INTERNAL_ERROR: u8 = 80;
    pub(crate) const NO_RENEGOTIATION: u8 = 100;
    pub(crate) const UNSUPPORTED_EXTENSION: u8 = 110;
    pub(crate) const UNRECOGNIZED_NAME: u8 = 112;
    pub(crate) const NO_APPLICATION_PROTOCOL: u8 = 120;
}

/// What an alert means to the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Alert {
    CloseNotify,
    /// The connection ends.
    Fatal(u8),
    /// The connection stays open.
    Warning,
}

impl Alert {
    /// Reads an alert.
    pub(crate) const fn parse(bytes: &[u8]) -> Option<Alert> {
        match bytes {
            [_, description::CLOSE_NOTIFY] => Some(Alert::CloseNotify),
            [FATAL, description] => Some(Alert::Fatal(*description)),
            [WARNING, _] => Some(Alert::Warning),
            _ => None,
        }
    }
}

/// The name of a description in logs (RFC 5246 §7.2, RFC 6066, RFC 7301).
#[must_use]
pub const fn alert_name(description: u8) -> &'static str {
    match description {
        0 => "close_notify",
        10 => "unexpected_message",
        20 => "bad_record_mac",
        22 => "record_overflow",
        40 => "handshake_failure",
        42 => "bad_certificate",
        43 => "unsupported_certificate",
        44 => "certificate_revoked",
        45 => "certificate_expired",
        46 => "certificate_unknown",
        47 => "illegal_parameter",
        48 => "unknown_ca",
        49 => "access_denied",
        50 => "decode_error",
        51 => "decrypt_error",
        70 => "protocol_version",
        71 => "insufficient_security",
        80 => "internal_error",
        90 => "user_canceled",
        100 => "no_renegotiation",
        110 => "unsupported_extension",
        112 => "unrecognized_name",
        120 => "no_application_protocol",
        _ => "other",
    }
}
