//! The API from another address than loopback: over HTTPS, with a token.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::common::api::{CREDENTIAL_TOKEN, TOKEN};
use crate::common::{Serve, TEST_TIMEOUT, file};
use server::rustls::pki_types::ServerName;
use server::rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto};

/// A server whose admin address other hosts can reach.
struct Remote {
    serve: Serve,
    /// The admin listener at an address that is not loopback. A connection to it comes from the same address.
    admin: SocketAddr,
    trust: Arc<ClientConfig>,
    _folder: tempfile::TempDir,
}

impl Remote {
    fn start() -> Self {
        let ip = server::addresses::host_addresses()
            .into_iter()
            .find(|ip| ip.is_ipv4() && !ip.is_loopback())
            .expect("this machine has an IPv4 address besides loopback");
        let made = rcgen::generate_simple_self_signed(vec![ip.to_string()]).unwrap();
        let (folder, path) = file("");
        let (certificate, key) = (
            folder.path().join("cert.pem"),
            folder.path().join("key.pem"),
        );
        std::fs::write(&certificate, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let config = format!(
            "[tls]\ncertificates = [{{ certificate = {certificate:?}, key = {key:?} }}]\n[auth]\nrealm = \"api.example\"\nsecrets = [\"a shared secret of this test\"]\n\
             [listen]\ntls = []\ndtls = []\n[admin]\nlisten = \"0.0.0.0:0\"\nallow_remote = true\ntokens = [{TOKEN:?}]\ncredential_tokens = [{CREDENTIAL_TOKEN:?}]\n"
        );
        std::fs::write(&path, config).unwrap();
        let serve = Serve::local(&path, &["--workers", "1"]);
        let port = serve.admin().rsplit(':').next().unwrap().parse().unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let provider = Arc::new(crypto::aws_lc_rs::default_provider());
        let trust = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap();
        let trust = trust.with_root_certificates(roots).with_no_client_auth();
        Self {
            serve,
            admin: SocketAddr::new(ip, port),
            trust: Arc::new(trust),
            _folder: folder,
        }
    }

    fn connect(&self, ip: IpAddr) -> TcpStream {
        let stream = TcpStream::connect((ip, self.admin.port())).unwrap();
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream
    }

    /// The status and the text of a response over HTTPS.
    fn https(&self, method: &str, path: &str, fields: &str) -> (u16, String) {
        let name = ServerName::from(self.admin.ip());
        let session = ClientConnection::new(Arc::clone(&self.trust), name).unwrap();
        let stream = StreamOwned::new(session, self.connect(self.admin.ip()));
        exchange(stream, &format!("{}", self.admin), method, path, fields)
    }

    /// The same over HTTP, to this address.
    fn http(&self, ip: IpAddr, method: &str, path: &str, fields: &str) -> (u16, String) {
        let host = SocketAddr::new(ip, self.admin.port()).to_string();
        exchange(self.connect(ip), &host, method, path, fields)
    }
}

fn exchange(
    mut stream: impl Read + Write,
    host: &str,
    method: &str,
    path: &str,
    fields: &str,
) -> (u16, String) {
    let request = format!(
        "{method} /api/v1{path} HTTP/1.1\r\nHost: {host}\r\n{fields}Content-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut text = String::new();
    // The server ends a connection without close_notify.
    let _ = stream.read_to_string(&mut text);
    let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
    (status.unwrap_or_else(|| panic!("{text}")), text)
}

fn bearer(token: &str) -> String {
    format!("Authorization: Bearer {token}\r\n")
}

fn is((status, text): (u16, String), wanted: u16, part: &str) {
    assert_eq!(status, wanted, "{text}");
    assert!(text.contains(part), "`{part}` is not in: {text}");
}

#[test]
fn another_host_needs_a_token_and_https() {
    let remote = Remote::start();
    is(
        remote.https("GET", "/status", &bearer(TOKEN)),
        200,
        "\"state\":\"serving\"",
    );
    // On this machine, reading needs no token; elsewhere it does.
    is(
        remote.https("GET", "/status", ""),
        401,
        "a token is required",
    );
    let loopback = IpAddr::from([127, 0, 0, 1]);
    is(remote.http(loopback, "GET", "/status", ""), 200, "serving");
    is(
        remote.http(remote.admin.ip(), "GET", "/status", ""),
        401,
        "a token is required",
    );
    is(
        remote.https("GET", "/status", &bearer("0123456789abcdef0123456788")),
        401,
        "not in admin.tokens",
    );
    is(
        remote.https("POST", "/drain", &bearer(CREDENTIAL_TOKEN)),
        403,
        "ice-servers only",
    );
    is(
        remote.https("GET", "/ice-servers", &bearer(CREDENTIAL_TOKEN)),
        200,
        "iceServers",
    );
    // The token has been on the wire; it has to be replaced.
    is(
        remote.http(remote.admin.ip(), "GET", "/status", &bearer(TOKEN)),
        403,
        "replace this token",
    );
    is(
        remote.https("POST", "/drain", &bearer(TOKEN)),
        200,
        "drained",
    );
    is(remote.https("DELETE", "/drain", &bearer(TOKEN)), 200, "");
    is(
        remote.https("POST", "/reload", &bearer(TOKEN)),
        200,
        "needs_restart",
    );
    remote.serve.signal("TERM");
    let (_, log) = remote.serve.wait();
    let audit = format!("by=\\\"admin.tokens 1 at {}\\\"", remote.admin.ip());
    assert!(
        log.contains(&audit) || log.contains(&audit.replace('\\', "")),
        "{log}"
    );
}

#[test]
fn a_page_of_another_site_can_do_nothing_with_the_browser_of_an_administrator() {
    let remote = Remote::start();
    for site in ["cross-site", "same-site"] {
        let fields = format!("Sec-Fetch-Site: {site}\r\n{}", bearer(TOKEN));
        is(remote.https("POST", "/drain", &fields), 403, "other sites");
    }
    // The server sets no cookie, so a form of another site has no token to send along.
    let (_, text) = remote.https("GET", "/status", &bearer(TOKEN));
    let head = text.to_ascii_lowercase();
    assert!(
        !head.contains("set-cookie") && !head.contains("access-control-allow-origin"),
        "{text}"
    );
    let form =
        "Origin: https://evil.example\r\nContent-Type: application/x-www-form-urlencoded\r\n";
    is(
        remote.https("POST", "/drain", form),
        401,
        "a token is required",
    );
    is(
        remote.https("GET", "/status", &bearer(TOKEN)),
        200,
        "\"state\":\"serving\"",
    );
}

#[test]
fn credentials_are_made_at_a_limited_rate() {
    let remote = Remote::start();
    let loopback = IpAddr::from([127, 0, 0, 1]);
    let begun = std::time::Instant::now();
    let answers: Vec<(u16, String)> = (0..300)
        .map(|_| remote.http(loopback, "GET", "/ice-servers", &bearer(CREDENTIAL_TOKEN)))
        .collect();
    // A burst of 100, and 50 per second.
    let admitted = answers.iter().filter(|(status, _)| *status == 200).count();
    let most = 101 + (begun.elapsed().as_secs_f64() * 50.0) as usize;
    assert!(
        (100..=most).contains(&admitted),
        "{admitted} of at most {most}"
    );
    let refused = answers.iter().find(|(status, _)| *status != 200);
    if let Some(refused) = refused {
        is(refused.clone(), 429, "try again in a second");
    }
    assert!(
        refused.is_some() || begun.elapsed() > Duration::from_secs(4),
        "300 requests in {:?}",
        begun.elapsed()
    );
    // Other requests do not count.
    is(remote.http(loopback, "GET", "/status", ""), 200, "serving");
}
