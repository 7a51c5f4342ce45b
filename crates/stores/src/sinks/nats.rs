//! A publisher for NATS: the few verbs of its protocol that it needs.
//!
//! ```text
//! <- INFO {..}                      -> CONNECT {..}  PING          <- PONG
//! -> PUB topic.kind 120, JSON, ..   -> PING                        <- PONG: the server has read all before it
//! ```
//! <https://docs.nats.io/reference/reference-protocols/nats-protocol>

use std::io;
use std::sync::Arc;

use hyper::Uri;
use rustls_pki_types::ServerName;
use serde::Deserialize;
use serde_json::json;
use tokio::io::{
    AsyncBufReadExt as _, AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Line, SendError, SinkOptions};
use crate::error::StoreError;
use crate::kinds::Options;
use crate::kinds::tls::client_config;

/// The port of NATS.
const PORT: u16 = 4222;
/// The longest line of the server that is read: INFO lists the servers of a cluster.
const MAX_LINE: u64 = 64 << 10;

/// What a URL says.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct NatsUrl {
    host: String,
    port: u16,
    is_tls: bool,
    user: Option<String>,
    password: Option<String>,
}

impl NatsUrl {
    pub(super) fn of(options: &Options) -> Result<NatsUrl, StoreError> {
        let wrong = |why: &str| StoreError::Url(format!("nats: {why}"));
        let uri: Uri = options
            .url
            .parse()
            .map_err(|error: hyper::http::uri::InvalidUri| wrong(&error.to_string()))?;
        let authority = uri
            .authority()
            .ok_or_else(|| wrong("the URL has no host"))?;
        let host = authority.host().trim_matches(['[', ']']);
        if host.is_empty() {
            return Err(wrong("the URL has no host"));
        }
        if !uri.path().trim_matches('/').is_empty() {
            return Err(wrong("the URL has a path; the subject is in `topic`"));
        }
        let named = authority.as_str().rsplit_once('@').map(|(named, _)| named);
        let (user, password) = match named.map(|named| named.split_once(':').unwrap_or((named, "")))
        {
            Some((user, password)) => (decoded(user), decoded(password)),
            None => (None, None),
        };
        Ok(NatsUrl {
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(PORT),
            is_tls: uri.scheme_str() == Some("tls"),
            user,
            password: options.password.clone().or(password),
        })
    }

    /// The argument of CONNECT. A password without a user is a token.
    fn connect(&self) -> String {
        let mut options = json!({
            "verbose": false,
            "pedantic": false,
            "tls_required": self.is_tls,
            "name": "hairpin",
            "lang": "rust",
            "version": env!("CARGO_PKG_VERSION"),
        });
        let (user, password) = match &self.user {
            Some(user) => (Some(("user", user)), ("pass", &self.password)),
            None => (None, ("auth_token", &self.password)),
        };
        let fields = user
            .into_iter()
            .chain(password.1.as_ref().map(|it| (password.0, it)));
        for (name, value) in fields {
            options[name] = json!(value);
        }
        options.to_string()
    }
}

/// RFC 3986 §2.1. Nothing is no text.
fn decoded(text: &str) -> Option<String> {
    let (mut bytes, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('%') {
        bytes.extend_from_slice(before.as_bytes());
        let byte = after
            .get(..2)
            .and_then(|hex| u8::from_str_radix(hex, 16).ok())?;
        bytes.push(byte);
        rest = &after[2..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8(bytes)
        .ok()
        .filter(|text| !text.is_empty())
}

/// A stream of bytes in both directions.
trait Duplex: AsyncRead + AsyncWrite + Unpin + Send + std::fmt::Debug {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send + std::fmt::Debug> Duplex for T {}

type Connection = BufReader<Box<dyn Duplex>>;

#[derive(Debug)]
pub(super) struct Nats {
    place: NatsUrl,
    topic: String,
    tls: TlsConfig,
    connection: Option<Connection>,
}

struct TlsConfig(Arc<rustls::ClientConfig>);

impl std::fmt::Debug for TlsConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TlsConfig")
    }
}

/// A part of INFO.
#[derive(Deserialize)]
struct Info {
    #[serde(default)]
    tls_required: bool,
}

impl Nats {
    pub(super) fn new(options: &SinkOptions) -> Result<Nats, StoreError> {
        Ok(Nats {
            place: NatsUrl::of(&options.at)?,
            topic: options.topic.clone(),
            tls: TlsConfig(Arc::new(client_config(options.at.ca.as_deref())?)),
            connection: None,
        })
    }

    pub(super) fn disconnect(&mut self) {
        self.connection = None;
    }

    pub(super) async fn publish(&mut self, lines: &[Line]) -> Result<(), SendError> {
        let batch = self.batch(lines);
        let failed = |error: io::Error| SendError::Later(format!("nats: {error}"));
        let mut connection = match self.connection.take() {
            Some(mut kept) => {
                // The server closes connections that do not answer its PING in time, and nobody reads while there are
                // no events. A batch that was sent must not be sent again here: with at most one attempt, it would
                // arrive twice.
                match exchange(&mut kept, b"").await {
                    Ok(()) => kept,
                    Err(_) => self.connect().await.map_err(failed)?,
                }
            }
            None => self.connect().await.map_err(failed)?,
        };
        exchange(&mut connection, &batch).await.map_err(failed)?;
        self.connection = Some(connection);
        Ok(())
    }

    fn batch(&self, lines: &[Line]) -> Vec<u8> {
        let mut batch = Vec::new();
        for Line { kind, json } in lines {
            let verb = format!("PUB {}.{kind} {}\r\n", self.topic, json.len());
            for part in [&verb, json, "\r\n"] {
                batch.extend_from_slice(part.as_bytes());
            }
        }
        batch
    }

    async fn connect(&self) -> io::Result<Connection> {
        let place = &self.place;
        let stream = TcpStream::connect((&*place.host, place.port)).await?;
        stream.set_nodelay(true)?;
        let mut connection: Connection = BufReader::new(Box::new(stream));
        let info = line(&mut connection).await?;
        let info = info
            .strip_prefix("INFO ")
            .ok_or_else(|| io::Error::other("this is no NATS server"))?;
        let info: Info = serde_json::from_str(info)?;
        if info.tls_required || place.is_tls {
            let name = ServerName::try_from(place.host.clone()).map_err(io::Error::other)?;
            let connector = TlsConnector::from(Arc::clone(&self.tls.0));
            let encrypted = connector.connect(name, connection.into_inner()).await?;
            connection = BufReader::new(Box::new(encrypted));
        }
        let hello = format!("CONNECT {}\r\n", place.connect());
        exchange(&mut connection, hello.as_bytes()).await?;
        Ok(connection)
    }
}

/// Writes verbs, and waits until the server has read them all.
async fn exchange(connection: &mut Connection, verbs: &[u8]) -> io::Result<()> {
    connection.write_all(verbs).await?;
    connection.write_all(b"PING\r\n").await?;
    connection.flush().await?;
    loop {
        let line = line(connection).await?;
        match line.split_ascii_whitespace().next() {
            Some("PONG") => return Ok(()),
            Some("PING") => connection.write_all(b"PONG\r\n").await?,
            Some("-ERR") => return Err(io::Error::other(line)),
            // +OK, and INFO when the cluster changes.
            _ => {}
        }
        connection.flush().await?;
    }
}

async fn line(connection: &mut Connection) -> io::Result<String> {
    let mut line = String::new();
    let read = connection.take(MAX_LINE).read_line(&mut line).await?;
    match read > 0 && line.ends_with('\n') {
        true => Ok(line.trim_end().to_owned()),
        false => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(url: &str) -> Result<NatsUrl, StoreError> {
        NatsUrl::of(&Options {
            url: url.to_owned(),
            ..Options::default()
        })
    }

    #[test]
    fn a_url_has_a_host_and_may_have_a_user() {
        let one = place("nats://ann:s%40cret@[::1]:4333").unwrap();
        assert_eq!((&*one.host, one.port, one.is_tls), ("::1", 4333, false));
        assert!(
            one.connect().contains(r#""pass":"s@cret""#)
                && one.connect().contains(r#""user":"ann""#)
        );
        let other = place("tls://nats.example.org").unwrap();
        assert_eq!((other.port, other.is_tls, &other.user), (PORT, true, &None));
        assert!(place("nats://host/subject").is_err() && place("nats:///").is_err());
    }

    #[test]
    fn a_password_without_a_user_is_a_token() {
        let options = Options {
            url: "nats://host".to_owned(),
            password: Some("t0ken".to_owned()),
            ..Options::default()
        };
        let connect = NatsUrl::of(&options).unwrap().connect();
        assert!(connect.contains(r#""auth_token":"t0ken""#), "{connect}");
    }
}
