//! The client of the admin API: with `--api`, commands ask a server on another machine over HTTPS.
//!
//! One request per connection, because the server ends a connection after its response.

mod url;
pub(crate) mod verbs;

use std::fmt;
use std::io::{ErrorKind, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, bail};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use server::certificates::Certificates;
use server::rustls::pki_types::ServerName;
use server::rustls::{CertificateError, ClientConfig, Error as TlsError, RootCertStore, crypto};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

pub(crate) use url::ApiUrl;

use crate::commands::{percent_encode, printable};
use crate::control::protocol::{Refusal, Reply};

/// A reload reads files, and a store has its own timeout: both take less.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(90);
/// The connect timeout, with the name server and the TLS handshake.
const CONNECT_TIME: Duration = Duration::from_secs(10);
/// The longest page of a list has less.
const MAX_REPLY: usize = 16 << 20;
/// A longer file is no token.
const MAX_TOKEN: u64 = 4_096;
/// The media type of an error (RFC 9457).
const PROBLEM: &[u8] = b"application/problem+json";

/// The parameters of a request, without those that are `None`.
pub(crate) type Parameters<'a> = &'a [(&'a str, Option<&'a str>)];

/// Asks one server.
pub(crate) struct Client {
    url: ApiUrl,
    authorization: Option<HeaderValue>,
    token_file: Option<PathBuf>,
    tls: Option<Arc<ClientConfig>>,
    /// `None` once it is dropped.
    runtime: Option<Runtime>,
}

impl Drop for Client {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            // A name server that is silent would hold up the command.
            runtime.shutdown_background();
        }
    }
}

/// The token stays out of logs.
impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("url", &self.url)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// For the server at `url`. `ca` has the certificates of issuers that it trusts instead of those of the system.
    ///
    /// # Errors
    /// If a file cannot be used.
    pub(crate) fn new(url: &ApiUrl, token_file: Option<&Path>, ca: Option<&Path>) -> Result<Self> {
        let authorization = token_file.map(bearer).transpose()?;
        if ca.is_some() && !url.is_tls {
            bail!("--ca has no effect with {url}: it is for https");
        }
        let tls = url.is_tls.then(|| trust(ca)).transpose()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start a runtime")?;
        Ok(Self {
            url: url.clone(),
            authorization,
            token_file: token_file.map(Path::to_owned),
            tls,
            runtime: Some(runtime),
        })
    }

    /// Sends a request and waits for the response. `path` is below `/api/v1`.
    ///
    /// # Errors
    /// If the server cannot be reached, does not admit this client, or does not have this operation. What the operation
    /// itself refuses is a reply.
    pub(crate) fn call(
        &self,
        method: &str,
        path: &str,
        parameters: Parameters<'_>,
        body: Option<&Value>,
    ) -> Result<Reply> {
        let target = target(path, parameters);
        let exchange = self.exchange(method, &target, body);
        let runtime = self.runtime.as_ref().context("the client has ended")?;
        let outcome =
            runtime.block_on(async { tokio::time::timeout(RESPONSE_TIMEOUT, exchange).await });
        let no_reply = || {
            anyhow!(
                "{} does not respond within {} s",
                self.url,
                RESPONSE_TIMEOUT.as_secs()
            )
        };
        let (status, is_problem, body) = outcome.map_err(|_| no_reply())??;
        self.read((method, path), status, is_problem, &body)
    }

    /// A part of a path, encoded.
    pub(crate) fn segment(text: &str) -> String {
        percent_encode(text)
    }

    fn read(
        &self,
        (method, path): (&str, &str),
        status: StatusCode,
        is_problem: bool,
        body: &[u8],
    ) -> Result<Reply> {
        let value: Option<Value> = serde_json::from_slice(body).ok();
        let problem = value.as_ref().filter(|_| is_problem);
        let detail = problem.map_or("", |problem| problem["detail"].as_str().unwrap_or_default());
        // Text of another machine must not contain control sequences for the terminal.
        let detail = &*printable(detail);
        match status {
            StatusCode::OK if value.is_some() => return Ok(Ok(value.unwrap_or_default())),
            StatusCode::UNAUTHORIZED => return Err(self.refused_token(detail)),
            StatusCode::FORBIDDEN if problem.is_some() => {
                bail!("{} refuses the request: {detail}", self.url)
            }
            _ => {}
        }
        // The server names the path if it does not have it.
        let is_unknown = status == StatusCode::METHOD_NOT_ALLOWED
            || status == StatusCode::NOT_FOUND && detail.starts_with(&format!("/api/v1{path} "));
        if problem.is_some() && is_unknown {
            bail!(
                "{} has no {method} /api/v1{path}: it is of another release than this command; run the command on the machine of the server, or upgrade the server",
                self.url
            );
        }
        let Some(problem) = problem else {
            bail!(
                "{} responds with {status}, and not like the API of hairpin: name the address of admin.listen",
                self.url
            );
        };
        let mistakes = problem["mistakes"].as_array().into_iter().flatten();
        let mistakes = mistakes.filter_map(Value::as_str).map(printable);
        Ok(Err(Refusal {
            error: detail.to_owned(),
            mistakes: mistakes.collect(),
        }))
    }

    /// 401: which token was refused, and what to do.
    fn refused_token(&self, detail: &str) -> anyhow::Error {
        match &self.token_file {
            Some(file) => anyhow!(
                "{} refuses the token of {} (401): {detail}",
                self.url,
                file.display()
            ),
            None => anyhow!(
                "{} requires a token (401): name a file with one of admin.tokens by --token-file or HAIRPIN_TOKEN_FILE",
                self.url
            ),
        }
    }

    async fn exchange(
        &self,
        method: &str,
        target: &str,
        body: Option<&Value>,
    ) -> Result<(StatusCode, bool, Bytes)> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}/api/v1{target}", self.url.prefix))
            .header(HOST, &self.url.authority);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        if body.is_some() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        let bytes = body.map_or_else(Bytes::new, |body| Bytes::from(body.to_string()));
        let request = request.body(Full::new(bytes))?;
        let (host, port) = (&*self.url.host, self.url.port);
        let deadline = Instant::now() + CONNECT_TIME;
        let connecting = timeout_at(deadline, TcpStream::connect((host, port))).await;
        let connecting = connecting.unwrap_or_else(|_| Err(ErrorKind::TimedOut.into()));
        let stream = connecting.map_err(|error| self.unreachable(&error))?;
        let response = match &self.tls {
            None => self.send(stream, request).await?,
            Some(tls) => {
                let name = ServerName::try_from(host.to_owned())
                    .with_context(|| format!("{host} cannot be the name of a server"))?;
                let connecting = TlsConnector::from(Arc::clone(tls)).connect(name, stream);
                let silent = || {
                    let (url, time) = (&self.url, CONNECT_TIME.as_secs());
                    anyhow!("no TLS with {url} within {time} s: is it the address of admin.listen?")
                };
                let connecting = timeout_at(deadline, connecting).await;
                let stream = connecting.map_err(|_| silent())?;
                let stream = stream.map_err(|error| self.untrusted(&error))?;
                self.send(stream, request).await?
            }
        };
        let status = response.status();
        let kind = response.headers().get(CONTENT_TYPE);
        let is_problem = kind.is_some_and(|kind| kind.as_bytes().starts_with(PROBLEM));
        let body = Limited::new(response.into_body(), MAX_REPLY)
            .collect()
            .await;
        let body =
            body.map_err(|error| anyhow!("the response of {} is incomplete: {error}", self.url))?;
        Ok((status, is_problem, body.to_bytes()))
    }

    async fn send<S>(
        &self,
        stream: S,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<hyper::body::Incoming>>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let failed = |error: hyper::Error| {
            let scheme = if self.url.is_tls {
                ""
            } else {
                "; does it require https?"
            };
            anyhow!("{} does not respond over HTTP: {error}{scheme}", self.url)
        };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(failed)?;
        // It ends with the response.
        tokio::spawn(async move { drop(connection.await) });
        sender.send_request(request).await.map_err(failed)
    }

    fn unreachable(&self, error: &std::io::Error) -> anyhow::Error {
        use ErrorKind::{ConnectionRefused, TimedOut};
        let url = &self.url;
        match error.kind() {
            ConnectionRefused => anyhow!(
                "cannot reach {url}: nobody listens there; is it the address of admin.listen, and is admin.allow_remote set?"
            ),
            TimedOut => {
                let time = CONNECT_TIME.as_secs();
                anyhow!(
                    "cannot reach {url}: no connection within {time} s; is the machine on, and does a firewall drop the packets?"
                )
            }
            _ => anyhow!("cannot reach {url}: {error}"),
        }
    }

    /// A handshake that has failed: what the certificate lacks, and what to do.
    fn untrusted(&self, error: &std::io::Error) -> anyhow::Error {
        let url = &self.url;
        let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
        let why = match cause {
            Some(TlsError::InvalidCertificate(why)) => why,
            Some(other) => return anyhow!("no TLS with {url}: {other}"),
            None => {
                return anyhow!(
                    "no TLS with {url}: {error}; if the server has no certificate, its admin address has no https"
                );
            }
        };
        let help = match why {
            CertificateError::UnknownIssuer => {
                "its issuer is not known: name a PEM file with the certificate of the issuer by --ca"
            }
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                "it is for another name: use a name that it has"
            }
            CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                "it has expired: renew it at the server"
            }
            CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                "it is not valid yet: check the clocks of both machines"
            }
            _ => "replace it at the server",
        };
        anyhow!("the certificate of {url} is not trusted ({why}): {help}")
    }
}

/// The path with its parameters, encoded.
fn target(path: &str, parameters: Parameters<'_>) -> String {
    let given = parameters.iter();
    let given = given.filter_map(|(name, value)| Some((name, (*value)?)));
    let pairs: Vec<String> = given
        .map(|(name, value)| format!("{name}={}", percent_encode(value)))
        .collect();
    match pairs.is_empty() {
        true => path.to_owned(),
        false => format!("{path}?{}", pairs.join("&")),
    }
}

/// RFC 6750 §2.1: the token in the first line of a file.
fn bearer(path: &Path) -> Result<HeaderValue> {
    let name = path.display();
    let file =
        std::fs::File::open(path).with_context(|| format!("cannot open the token file {name}"))?;
    let mut text = String::new();
    file.take(MAX_TOKEN)
        .read_to_string(&mut text)
        .with_context(|| format!("cannot read the token file {name}"))?;
    let token = text.lines().next().unwrap_or_default().trim();
    let is_token = !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic());
    if !is_token {
        bail!("the first line of {name} is no token: write one of admin.tokens into it");
    }
    let mut value = HeaderValue::from_str(&format!("Bearer {token}"))?;
    value.set_sensitive(true);
    Ok(value)
}

/// TLS with the issuers of `ca`, else with those of the system.
fn trust(ca: Option<&Path>) -> Result<Arc<ClientConfig>> {
    let roots = match ca {
        Some(path) => Certificates::roots(&[path]).context("--ca")?,
        None => {
            let mut roots = RootCertStore::empty();
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            Arc::new(roots)
        }
    };
    let provider = Arc::new(crypto::aws_lc_rs::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn client() -> Client {
        let url = ApiUrl::read("http://127.0.0.1:1").expect("a URL");
        Client::new(&url, None, None).expect("a client")
    }

    #[test]
    fn parameters_are_encoded_and_absent_ones_are_left_out() {
        let parameters = [("user", Some("o'neil & co")), ("after", None)];
        assert_eq!(
            target("/sessions", &parameters),
            "/sessions?user=o%27neil%20%26%20co"
        );
        assert_eq!(target("/status", &[]), "/status");
    }

    #[test]
    fn a_file_without_a_token_is_refused() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("token");
        for text in ["", "\nsecond line", "two words", "k\u{e4}se"] {
            std::fs::write(&path, text).expect("it is written");
            assert!(bearer(&path).is_err(), "{text:?}");
        }
        std::fs::write(&path, "0123456789abcdef\n").expect("it is written");
        assert_eq!(bearer(&path).expect("a token"), "Bearer 0123456789abcdef");
        assert!(bearer(&folder.path().join("none")).is_err());
    }

    #[test]
    fn each_response_is_a_reply_or_says_what_to_do() {
        let client = client();
        let read = |status, is_problem, body: &str| {
            let status = StatusCode::from_u16(status).expect("a status");
            client.read(("GET", "/nodes"), status, is_problem, body.as_bytes())
        };
        let reply = read(200, false, "{\"nodes\":[]}").expect("a reply");
        assert_eq!(reply.expect("nodes")["nodes"], serde_json::json!([]));
        let refusal = read(409, true, "{\"detail\":\"no\",\"mistakes\":[\"a:1: b\"]}");
        let refusal = refusal.expect("a reply").expect_err("a refusal");
        assert_eq!((&*refusal.error, refusal.mistakes.len()), ("no", 1));
        let missing = "{\"detail\":\"/api/v1/nodes does not exist: ..\"}";
        for (status, is_problem, body, part) in [
            (
                401,
                true,
                "{\"detail\":\"a token is required\"}",
                "--token-file",
            ),
            (403, true, "{\"detail\":\"use https\"}", "use https"),
            (404, true, missing, "another release"),
            (405, true, "{}", "another release"),
            (404, false, "<html>", "admin.listen"),
            (200, false, "<html>", "admin.listen"),
        ] {
            let error = read(status, is_problem, body).expect_err(body);
            assert!(format!("{error:#}").contains(part), "{error:#}");
        }
        // What the operation itself does not find is a refusal like that of the control socket.
        let none = read(
            404,
            true,
            "{\"detail\":\"this server knows no other nodes\"}",
        );
        assert!(none.expect("a reply").is_err());
    }
}
