//! The client side of the handshake (RFC 6455 §4.1).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use super::accept::accept_value;
use super::head::{Gather, Gathered, Head};

/// The longest accepted response in bytes.
const MAX_BYTES: usize = 8 << 10;
/// The maximum number of header fields in a response.
const MAX_FIELDS: usize = 64;

/// The contents of a client's request.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// The host, with the port unless it is the default port.
    pub host: &'a str,
    /// Path and query.
    pub target: &'a str,
    /// The offered subprotocol. If empty, the field is omitted.
    pub protocol: &'a str,
    /// The origin. If empty, the field is omitted: only browsers must send it.
    pub origin: &'a str,
    /// Random bytes for Sec-WebSocket-Key.
    pub key: [u8; 16],
}

/// Why the handshake failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The response is not HTTP/1.1, or is too long.
    #[error("the response is not HTTP/1.1, or is too long")]
    Malformed,
    /// The status code is not 101.
    #[error("the response has status {0} instead of 101")]
    Status(u16),
    /// This header field is missing, or does not match the request.
    #[error("the header field {0} is missing or invalid")]
    Field(&'static str),
}

/// A handshake in progress.
#[derive(Debug)]
pub struct Connect {
    head: Gather,
    accept: String,
    protocol: String,
}

impl Connect {
    /// Begins a handshake and appends the request to `out`.
    #[must_use]
    pub fn new(request: &Request<'_>, out: &mut Vec<u8>) -> Connect {
        let key = STANDARD.encode(request.key);
        let Request { host, target, .. } = request;
        let mut text = format!(
            "GET {target} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
        );
        for (name, value) in [
            ("Sec-WebSocket-Protocol", request.protocol),
            ("Origin", request.origin),
        ] {
            if !value.is_empty() {
                text.push_str(&format!("{name}: {value}\r\n"));
            }
        }
        text.push_str("\r\n");
        out.extend_from_slice(text.as_bytes());
        Connect {
            head: Gather::default(),
            accept: accept_value(&key),
            protocol: request.protocol.to_owned(),
        }
    }

    /// Processes bytes of the response. Returns how many it used, and whether the WebSocket is open. Then pass the
    /// remaining bytes to the [`WebSocket`](super::WebSocket).
    ///
    /// # Errors
    /// If the server refuses the handshake or its response is invalid. Close the connection.
    pub fn receive(&mut self, bytes: &[u8]) -> (usize, Result<bool, ConnectError>) {
        let (used, gathered) = self.head.receive(bytes, MAX_BYTES);
        let result = match gathered {
            Gathered::Need => Ok(false),
            Gathered::TooLong => Err(ConnectError::Malformed),
            Gathered::Whole => self.check().map(|()| true),
        };
        (used, result)
    }

    fn check(&mut self) -> Result<(), ConnectError> {
        let bytes = self.head.take();
        let head = Head::parse(&bytes, MAX_FIELDS).map_err(|_| ConnectError::Malformed)?;
        let status = head
            .line
            .strip_prefix("HTTP/1.1 ")
            .and_then(|rest| rest.get(..3)?.parse().ok())
            .ok_or(ConnectError::Malformed)?;
        if status != 101 {
            return Err(ConnectError::Status(status));
        }
        let protocol = head.all("Sec-WebSocket-Protocol").next();
        // RFC 6455 §4.1: the client must fail the connection if one of these is invalid.
        for (name, is_valid) in [
            ("Upgrade", head.has("Upgrade", "websocket")),
            ("Connection", head.has("Connection", "upgrade")),
            (
                "Sec-WebSocket-Accept",
                head.only("Sec-WebSocket-Accept") == Some(&self.accept),
            ),
            (
                "Sec-WebSocket-Extensions",
                head.list("Sec-WebSocket-Extensions").next().is_none(),
            ),
            (
                "Sec-WebSocket-Protocol",
                protocol.unwrap_or_default() == self.protocol,
            ),
        ] {
            if !is_valid {
                return Err(ConnectError::Field(name));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::websocket::{Accept, AcceptRules};

    fn request<'a>() -> Request<'a> {
        Request {
            host: "example.org",
            target: "/",
            protocol: "sip",
            origin: "",
            key: *b"the sample nonce",
        }
    }

    #[test]
    fn client_and_server_agree() {
        let rules = AcceptRules {
            bytes: 2_048,
            fields: 20,
            paths: Vec::new(),
            protocols: vec!["sip".to_owned()],
            origins: None,
        };
        let (mut to_server, mut to_client) = (Vec::new(), Vec::new());
        let mut connect = Connect::new(&request(), &mut to_server);
        let (used, accepted) = Accept::default().receive(&to_server, &rules, &mut to_client);
        assert_eq!(used, to_server.len());
        assert!(accepted.is_ok_and(|accepted| accepted.is_some()));
        let length = to_client.len();
        to_client.extend([0x81, 0]);
        for byte in &to_client[..length - 1] {
            assert_eq!(connect.receive(&[*byte]), (1, Ok(false)));
        }
        assert_eq!(connect.receive(&to_client[length - 1..]), (1, Ok(true)));
    }

    #[test]
    fn a_server_without_that_websocket_is_recognized() {
        let good = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: sip\r\n\r\n";
        let check = |response: &str| {
            Connect::new(&request(), &mut Vec::new())
                .receive(response.as_bytes())
                .1
        };
        assert_eq!(check(good), Ok(true));
        for (from, to, error) in [
            ("101", "404", ConnectError::Status(404)),
            ("HTTP/1.1", "HTTP/1.0", ConnectError::Malformed),
            ("s3p", "S3p", ConnectError::Field("Sec-WebSocket-Accept")),
            (
                ": sip",
                ": xmpp",
                ConnectError::Field("Sec-WebSocket-Protocol"),
            ),
            (
                "Sec-WebSocket-Protocol: sip\r\n",
                "",
                ConnectError::Field("Sec-WebSocket-Protocol"),
            ),
            ("websocket", "h2c", ConnectError::Field("Upgrade")),
            (
                "Connection: Upgrade",
                "Connection: close",
                ConnectError::Field("Connection"),
            ),
            (
                "Upgrade: w",
                "Sec-WebSocket-Extensions: x\r\nUpgrade: w",
                ConnectError::Field("Sec-WebSocket-Extensions"),
            ),
        ] {
            assert_eq!(
                check(&good.replacen(from, to, 1)),
                Err(error),
                "{from} {to}"
            );
        }
        assert_eq!(check(&"x".repeat(9_000)), Err(ConnectError::Malformed));
    }
}
