//! The server side of the handshake (RFC 6455 §4.2).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha1::{Digest as _, Sha1};

use super::head::{Gather, Gathered, Head, HeadError, is_token};

/// The string that is appended to a key before hashing (RFC 6455 §1.3).
const GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";

/// The value of Sec-WebSocket-Accept for a key.
pub(super) fn accept_value(key: &str) -> String {
    let hash = Sha1::new()
        .chain_update(key.as_bytes())
        .chain_update(GUID)
        .finalize();
    STANDARD.encode(hash)
}

/// Which handshakes a server accepts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcceptRules {
    /// The longest request in bytes.
    pub bytes: usize,
    /// The maximum number of header fields in a request.
    pub fields: usize,
    /// The paths that accept a WebSocket, such as `/`. If empty, every path does.
    pub paths: Vec<String>,
    /// The supported subprotocols, the preferred first. A request must offer one of them, unless the list is empty.
    pub protocols: Vec<String>,
    /// The origins of web pages that may connect, such as `https://example.org`. `None` allows all. A request without
    /// Origin, from a client that is not a browser, is always allowed.
    pub origins: Option<Vec<String>>,
}

/// A handshake that was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// The selected subprotocol, as an index into [`AcceptRules::protocols`].
    pub protocol: Option<usize>,
    /// The requested path with its query.
    pub target: String,
    /// The value of the Host field: the host, and the port if the client sent one.
    pub host: String,
    /// The origin of the web page; `None` if the client is not a browser.
    pub origin: Option<String>,
}

/// Why a handshake was refused. [`Accept::receive`] has appended a response with its [`status`](Refusal::status).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Refusal {
    /// The request violates HTTP/1.1 (RFC 9112).
    #[error("the request is malformed")]
    Malformed,
    /// Sec-WebSocket-Key is missing or invalid.
    #[error("Sec-WebSocket-Key is missing or invalid")]
    Key,
    /// The server supports none of the offered subprotocols.
    #[error("Sec-WebSocket-Protocol offers no subprotocol that this server supports")]
    Protocol,
    /// [`AcceptRules::origins`] does not allow the origin of the web page.
    #[error("the origin of the page is not allowed")]
    Origin,
    /// [`AcceptRules::paths`] does not have this path.
    #[error("no WebSocket is served at this path")]
    Path,
    /// The method is not GET.
    #[error("the method is not GET")]
    Method,
    /// The request does not ask for an upgrade to WebSocket version 13.
    #[error("the request does not ask for an upgrade to WebSocket version 13")]
    Upgrade,
    /// The request exceeds the limit on bytes or header fields.
    #[error("the request is too long")]
    TooLong,
    /// The version of HTTP is not 1.1.
    #[error("the request is not HTTP/1.1")]
    Version,
}

impl Refusal {
    /// All refusals, in the order of their status codes.
    pub const ALL: &'static [Refusal] = &[
        Refusal::Malformed,
        Refusal::Key,
        Refusal::Protocol,
        Refusal::Origin,
        Refusal::Path,
        Refusal::Method,
        Refusal::Upgrade,
        Refusal::TooLong,
        Refusal::Version,
    ];

    /// The name in metrics and logs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Refusal::Malformed => "malformed",
            Refusal::Key => "key",
            Refusal::Protocol => "protocol",
            Refusal::Origin => "origin",
            Refusal::Path => "path",
            Refusal::Method => "method",
            Refusal::Upgrade => "upgrade",
            Refusal::TooLong => "too_long",
            Refusal::Version => "version",
        }
    }

    /// The status code of the response (RFC 9110 §15, RFC 6585 §5).
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Refusal::Malformed | Refusal::Key | Refusal::Protocol => 400,
            Refusal::Origin => 403,
            Refusal::Path => 404,
            Refusal::Method => 405,
            Refusal::Upgrade => 426,
            Refusal::TooLong => 431,
            Refusal::Version => 505,
        }
    }

    /// The status code with its reason phrase, and the header fields that it requires.
    const fn head(self) -> &'static str {
        match self.status() {
            403 => "403 Forbidden\r\n",
            404 => "404 Not Found\r\n",
            // RFC 9110 §15.5.6.
            405 => "405 Method Not Allowed\r\nAllow: GET\r\n",
            // RFC 6455 §4.4, RFC 9110 §15.5.22. `write` adds a second Connection field, with `close`.
            426 => {
                "426 Upgrade Required\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            }
            431 => "431 Request Header Fields Too Large\r\n",
            505 => "505 HTTP Version Not Supported\r\n",
            _ => "400 Bad Request\r\n",
        }
    }

    /// Appends the response to `out`.
    fn write(self, out: &mut Vec<u8>) {
        let body = format!("{self}\n");
        let length = body.len();
        let response = format!(
            "HTTP/1.1 {}Content-Type: text/plain; charset=utf-8\r\nContent-Length: {length}\r\n\
             Cache-Control: no-store\r\nConnection: close\r\n\r\n{body}",
            self.head()
        );
        out.extend_from_slice(response.as_bytes());
    }
}

/// A handshake in progress.
#[derive(Debug, Default)]
pub struct Accept {
    head: Gather,
}

impl Accept {
    /// Processes bytes of the request. Returns how many it used, and the accepted handshake once the request is
    /// complete. It then appends the response to `out`. Pass the remaining bytes to the
    /// [`WebSocket`](super::WebSocket).
    ///
    /// # Errors
    /// If the handshake is refused. Write the response, then close the connection.
    pub fn receive(
        &mut self,
        bytes: &[u8],
        rules: &AcceptRules,
        out: &mut Vec<u8>,
    ) -> (usize, Result<Option<Accepted>, Refusal>) {
        let (used, gathered) = self.head.receive(bytes, rules.bytes);
        let result = match gathered {
            Gathered::Need => return (used, Ok(None)),
            Gathered::TooLong => Err(Refusal::TooLong),
            Gathered::Whole => accept(&self.head.take(), rules, out),
        };
        if let Err(refusal) = &result {
            refusal.write(out);
        }
        (used, result.map(Some))
    }
}

/// Checks a complete request. If it is accepted, appends the response 101 to `out`.
fn accept(head: &[u8], rules: &AcceptRules, out: &mut Vec<u8>) -> Result<Accepted, Refusal> {
    let head = Head::parse(head, rules.fields).map_err(|error| match error {
        HeadError::Malformed => Refusal::Malformed,
        HeadError::TooManyFields => Refusal::TooLong,
    })?;
    let (target, host) = request(&head, rules)?;
    let key = upgrade(&head)?;
    let origin = head.only("Origin");
    if let Some(allowed) = &rules.origins
        && let Some(other) = head.all("Origin").next()
        && !allowed
            .iter()
            .any(|allowed| allowed.eq_ignore_ascii_case(other) && origin.is_some())
    {
        return Err(Refusal::Origin);
    }
    // RFC 6455 §4.2.2: the server selects one of the client's subprotocols, in its own order. The comparison is
    // case-sensitive.
    let protocol = rules.protocols.iter().position(|known| {
        head.list("Sec-WebSocket-Protocol")
            .any(|name| name == known)
    });
    if protocol.is_none() && !rules.protocols.is_empty() {
        return Err(Refusal::Protocol);
    }
    let accepted = accept_value(key);
    let mut response = format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: {accepted}\r\n"
    );
    if let Some(name) = protocol.map(|place| &rules.protocols[place]) {
        response.push_str(&format!("Sec-WebSocket-Protocol: {name}\r\n"));
    }
    response.push_str("\r\n");
    out.extend_from_slice(response.as_bytes());
    Ok(Accepted {
        protocol,
        target: target.to_owned(),
        host: host.to_owned(),
        origin: origin.map(str::to_owned),
    })
}

/// Checks the request line and the host. Returns target and host.
fn request<'a>(head: &Head<'a>, rules: &AcceptRules) -> Result<(&'a str, &'a str), Refusal> {
    let mut words = head.line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(Refusal::Malformed);
    };
    if !is_token(method) || !version.starts_with("HTTP/") || !target.is_ascii() {
        return Err(Refusal::Malformed);
    }
    if version != "HTTP/1.1" {
        return Err(Refusal::Version);
    }
    // RFC 9112 §3.2: a request without a host, or with two, is malformed.
    let host = head.only("Host").ok_or(Refusal::Malformed)?;
    // The WebSocket would parse a body as frames.
    let has_body = head.all("Transfer-Encoding").next().is_some()
        || head.all("Content-Length").any(|length| length != "0");
    if has_body {
        return Err(Refusal::Malformed);
    }
    if method != "GET" {
        return Err(Refusal::Method);
    }
    let target = origin_form(target).ok_or(Refusal::Malformed)?;
    let path = target.split('?').next().unwrap_or_default();
    if !rules.paths.is_empty() && !rules.paths.iter().any(|known| known == path) {
        return Err(Refusal::Path);
    }
    Ok((target, host))
}

/// Path and query of a target, which may be in absolute form (RFC 9112 §3.2.2).
fn origin_form(target: &str) -> Option<&str> {
    if target.starts_with('/') {
        return Some(target);
    }
    let (scheme, rest) = target.split_once("://")?;
    let is_known = ["http", "https", "ws", "wss"]
        .iter()
        .any(|known| scheme.eq_ignore_ascii_case(known));
    is_known.then(|| rest.find('/').map_or("/", |at| &rest[at..]))
}

/// Checks that the request asks for a WebSocket. Returns its key.
fn upgrade<'a>(head: &Head<'a>) -> Result<&'a str, Refusal> {
    let is_upgrade = head.has("Upgrade", "websocket") && head.has("Connection", "upgrade");
    if !is_upgrade || head.only("Sec-WebSocket-Version") != Some("13") {
        return Err(Refusal::Upgrade);
    }
    // RFC 6455 §4.1: 16 bytes in base64.
    head.only("Sec-WebSocket-Key")
        .filter(|key| STANDARD.decode(key).is_ok_and(|bytes| bytes.len() == 16))
        .ok_or(Refusal::Key)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules() -> AcceptRules {
        AcceptRules {
            bytes: 2_048,
            fields: 20,
            paths: vec!["/".to_owned(), "/ws".to_owned()],
            protocols: vec!["sip".to_owned()],
            origins: None,
        }
    }

    const FIELDS: &[&str] = &[
        "Host: sip-ws.example.com",
        "Upgrade: websocket",
        "Connection: keep-alive, Upgrade",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
        "Origin: http://www.example.com",
        "Sec-WebSocket-Protocol: xmpp, sip",
        "Sec-WebSocket-Version: 13",
    ];

    fn request(line: &str, fields: &[&str]) -> String {
        format!("{line}\r\n{}\r\n\r\n", fields.join("\r\n"))
    }

    /// The request of RFC 7118 §4.1 with one field left out or another in its place.
    fn without(name: &str, instead: &[&str]) -> String {
        let mut fields: Vec<&str> = FIELDS.to_vec();
        fields.retain(|field| !field.starts_with(name));
        fields.extend(instead);
        request("GET / HTTP/1.1", &fields)
    }

    type Outcome = (usize, Result<Option<Accepted>, Refusal>, String);

    fn receive(bytes: &[u8], rules: &AcceptRules, piece: usize) -> Outcome {
        let (mut accept, mut out, mut total) = (Accept::default(), Vec::new(), 0);
        for piece in bytes.chunks(piece) {
            let (used, result) = accept.receive(piece, rules, &mut out);
            total += used;
            if result != Ok(None) {
                return (total, result, String::from_utf8(out).unwrap());
            }
            assert_eq!((used, out.is_empty()), (piece.len(), true));
        }
        (total, Ok(None), String::new())
    }

    #[test]
    fn the_handshake_of_rfc_7118_is_answered_as_it_says() {
        let request = request("GET /ws?x=1 HTTP/1.1", FIELDS);
        let bytes = [request.as_bytes(), &[0x81, 0x80]].concat();
        let (used, result, response) = receive(&bytes, &rules(), usize::MAX);
        assert_eq!(used, request.len());
        let accepted = Accepted {
            protocol: Some(0),
            target: "/ws?x=1".to_owned(),
            host: "sip-ws.example.com".to_owned(),
            origin: Some("http://www.example.com".to_owned()),
        };
        assert_eq!(result, Ok(Some(accepted)));
        assert_eq!(
            response,
            "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\nSec-WebSocket-Protocol: sip\r\n\r\n"
        );
    }

    /// A request, why it is refused, and the number and phrase of the response.
    type Case = (String, Refusal, &'static str);

    fn malformed() -> Vec<Case> {
        let fields = |name, instead: &[&str]| without(name, instead);
        [
            request("GET / HTTP/1.1 x", FIELDS),
            request("GET  HTTP/1.1", FIELDS),
            request("GET x HTTP/1.1", FIELDS),
            fields("Host", &[]),
            fields("Host", &["Host: a", "Host: b"]),
            fields("Host", &["Host : a"]),
            fields("?", &[" folded"]),
            fields("?", &["X: a\nY: b"]),
            fields("?", &["Content-Length: 5"]),
            fields("?", &["Transfer-Encoding: chunked"]),
        ]
        .map(|request| (request, Refusal::Malformed, "400 Bad Request"))
        .into()
    }

    fn unwanted() -> Vec<Case> {
        let (key, protocol) = ("Sec-WebSocket-Key", "Sec-WebSocket-Protocol");
        let (bad, upgrade) = ("400 Bad Request", "426 Upgrade Required");
        let long = format!("X: {}", "a".repeat(2_100));
        let too_long = "431 Request Header Fields Too Large";
        let version = ["Sec-WebSocket-Version: 8"];
        vec![
            (without(key, &[]), Refusal::Key, bad),
            (
                without(key, &["Sec-WebSocket-Key: AAAA"]),
                Refusal::Key,
                bad,
            ),
            (without("?", &[FIELDS[3]]), Refusal::Key, bad),
            (without(protocol, &[]), Refusal::Protocol, bad),
            (
                without(protocol, &["Sec-WebSocket-Protocol: SIP"]),
                Refusal::Protocol,
                bad,
            ),
            (
                request("GET /x HTTP/1.1", FIELDS),
                Refusal::Path,
                "404 Not Found",
            ),
            (
                request("POST / HTTP/1.1", FIELDS),
                Refusal::Method,
                "405 Method Not Allowed\r\nAllow: GET",
            ),
            (
                without("Upgrade", &[]),
                Refusal::Upgrade,
                "426 Upgrade Required\r\nUpgrade: websocket",
            ),
            (without("Connection", &[]), Refusal::Upgrade, upgrade),
            (
                without(&version[0][..21], &version),
                Refusal::Upgrade,
                upgrade,
            ),
            (without("?", &[&long]), Refusal::TooLong, too_long),
            (without("?", &["X: y"; 14]), Refusal::TooLong, too_long),
            (
                request("GET / HTTP/1.0", FIELDS),
                Refusal::Version,
                "505 HTTP Version Not Supported",
            ),
        ]
    }

    #[test]
    fn each_refusal_has_its_status_and_fields() {
        for (request, refusal, status) in malformed().into_iter().chain(unwanted()) {
            let (used, result, response) = receive(request.as_bytes(), &rules(), usize::MAX);
            assert_eq!(result, Err(refusal), "{request}");
            let first = format!("HTTP/1.1 {status}\r\n");
            assert!(response.starts_with(&first), "{response}");
            let (head, body) = response.split_once("\r\n\r\n").unwrap();
            assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())));
            assert!(head.ends_with("\r\nConnection: close"));
            let names_version = head.contains("Sec-WebSocket-Version: 13");
            assert_eq!(names_version, refusal == Refusal::Upgrade);
            let by_byte = receive(request.as_bytes(), &rules(), 1);
            assert_eq!(by_byte, (used, result, response));
        }
    }

    #[test]
    fn pages_of_other_origins_are_refused_and_clients_without_one_are_not() {
        let rules = AcceptRules {
            origins: Some(vec!["https://example.org".to_owned()]),
            ..rules()
        };
        for (fields, is_accepted) in [
            (&["Origin: https://example.org"][..], true),
            (&["Origin: HTTPS://Example.org"], true),
            (&["Origin: https://example.net"], false),
            (&["Origin: null"], false),
            (
                &["Origin: https://example.org", "Origin: https://example.net"],
                false,
            ),
            (&[], true),
        ] {
            let (_, result, response) = receive(without("Origin", fields).as_bytes(), &rules, 7);
            assert_eq!(result.is_ok(), is_accepted, "{fields:?}");
            assert_eq!(response.starts_with("HTTP/1.1 403 "), !is_accepted);
        }
    }

    #[test]
    fn a_target_may_be_a_whole_uri_and_a_server_may_have_no_subprotocol() {
        let mut rules = rules();
        rules.protocols.clear();
        for (target, expected) in [
            ("http://a.example/ws", Some("/ws")),
            ("wss://a.example", Some("/")),
            ("ftp://a/ws", None),
        ] {
            let request = request(&format!("GET {target} HTTP/1.1"), FIELDS);
            let (_, result, response) = receive(request.as_bytes(), &rules, 64);
            assert_eq!(
                result
                    .ok()
                    .flatten()
                    .map(|accepted| accepted.target)
                    .as_deref(),
                expected
            );
            assert!(!response.contains("Sec-WebSocket-Protocol"));
        }
    }
}
