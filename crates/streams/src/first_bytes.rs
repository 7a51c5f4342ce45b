//! Detects the protocol of a connection from its first bytes. RFC 7983 §7 defines the same for datagrams.

/// The protocol that the first bytes of a connection belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FirstBytes {
    /// More bytes are required to decide.
    Need,
    /// A STUN message.
    Stun,
    /// A TLS handshake.
    Tls,
    /// A header of the PROXY protocol, version 2.
    Proxy,
    /// A capital letter, as in a method of HTTP or SIP.
    Text,
    /// Another protocol: close the connection. ChannelData is here too, because a new connection has no channel.
    Other,
}

/// The record type of a TLS handshake (RFC 8446 §5.1), and the major version.
const TLS: [u8; 2] = [22, 3];

impl FirstBytes {
    /// Detects the protocol that these bytes begin with.
    #[must_use]
    pub fn of(bytes: &[u8]) -> FirstBytes {
        match bytes {
            [] => FirstBytes::Need,
            [0 | 1, ..] => FirstBytes::Stun,
            [b'A'..=b'Z', ..] => FirstBytes::Text,
            [22] => FirstBytes::Need,
            _ if bytes.starts_with(&TLS) => FirstBytes::Tls,
            _ if bytes.starts_with(crate::proxy::SIGNATURE) => FirstBytes::Proxy,
            _ if crate::proxy::SIGNATURE.starts_with(bytes) => FirstBytes::Need,
            _ => FirstBytes::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_protocol_is_recognized_by_its_first_bytes() {
        for (bytes, what) in [
            (&[][..], FirstBytes::Need),
            (&[0, 1, 0, 0], FirstBytes::Stun),
            (&[1], FirstBytes::Stun),
            (&[22], FirstBytes::Need),
            (&[22, 3, 1, 2, 0], FirstBytes::Tls),
            (&[22, 0xfe, 0xfd], FirstBytes::Other),
            (b"GET / HTTP/1.1", FirstBytes::Text),
            (b"REGISTER sip:example.org SIP/2.0", FirstBytes::Text),
            (b"\r\n\r\n\0\r\nQUIT\n\x21", FirstBytes::Proxy),
            (b"\r\n", FirstBytes::Need),
            (b"\r\n\r\nOPTIONS", FirstBytes::Other),
            (&[0x40, 0, 0, 1, 2], FirstBytes::Other),
            (&[0xff], FirstBytes::Other),
        ] {
            assert_eq!(FirstBytes::of(bytes), what, "{bytes:?}");
        }
    }
}
