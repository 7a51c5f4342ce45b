//! Access tokens (RFC 7635), both ways: hairpin accepts those of coturn's `turnutils_oauth`, which decodes those of
//! `hairpin creds oauth`.
//!
//! The client is here, by hand: the tokens go over the wire as their makers wrote them, and nothing of hairpin's own
//! codec is in between.

use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::Value;

use super::server::free_ports;
use super::stun;
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

const RUN_TIMEOUT: Duration = Duration::from_secs(20);
const SERVER_NAME: &str = "turn.oauth.example";
const REALM: &str = "oauth.example";
/// The lifetime of a token: an hour.
const LIFETIME_S: u64 = 3600;

/// A key that an authorization server and a TURN server share.
struct SharedKey {
    kid: &'static str,
    algorithm: &'static str,
    bytes: &'static str,
    /// Other ones, which the server does not know.
    unknown: &'static str,
}

/// coturn has these two algorithms.
const SHARED_KEYS: [SharedKey; 2] = [
    SharedKey {
        kid: "first",
        algorithm: "A256GCM",
        bytes: "a key of 32 bytes, A256GCM ones.",
        unknown: "another key, which has 32 bytes.",
    },
    SharedKey {
        kid: "second",
        algorithm: "A128GCM",
        bytes: "16 for A128GCM..",
        unknown: "an unknown 16...",
    },
];

/// Session keys, of the shortest length that RFC 7635 §6.2 permits and of the longest that coturn makes. A zero byte
/// would end one of coturn's keys.
const SESSION_KEYS: [&str; 2] = ["20 bytes, as RFC say", "32 bytes, the longest of coturn."];

/// The address of the server, and the folders of the files.
struct OauthTest<'a> {
    binary: &'a Path,
    logs: &'a Path,
    server: SocketAddr,
}

/// A token, and the key that its client signs with.
struct AccessToken {
    token: Vec<u8>,
    session_key: Vec<u8>,
}

pub(crate) fn run(binary: &Path, logs: &Path) -> Result<Tally> {
    let server = SocketAddr::from(([127, 0, 0, 1], free_ports(1)?));
    let test = OauthTest {
        binary,
        logs,
        server,
    };
    let mut process = test.hairpin()?;
    let mut tally = Tally::default();
    for key in &SHARED_KEYS {
        let name = key.algorithm;
        let accepted = test.accepts_tokens_of_coturn(key);
        tally.record(
            &format!("hairpin accepts coturn's tokens, {name}"),
            &accepted,
        );
        let refused = test.refuses_wrong_tokens_of_coturn(key);
        tally.record(
            &format!("hairpin refuses coturn's wrong tokens, {name}"),
            &refused,
        );
        let decoded = test.coturn_decodes_a_token_of_hairpin(key);
        tally.record(&format!("coturn decodes hairpin's token, {name}"), &decoded);
    }
    process.assert_running()?;
    process.stop(Duration::from_secs(10))?;
    Ok(tally)
}

impl OauthTest<'_> {
    fn hairpin(&self) -> Result<Process> {
        let mut command = process::command(self.binary);
        command.args([
            "serve",
            "--dev",
            "--offload=off",
            "--workers=1",
            "--relay-address=127.0.0.1",
            "--port-range=64000-65535",
        ]);
        command.arg(format!("--listen={}", self.server));
        command.arg(format!("--realm={REALM}"));
        command.arg(format!("--set=auth.token_server_name={SERVER_NAME}"));
        let keys = SHARED_KEYS.map(|key| key.to_string()).join(",");
        command.arg(format!("--set=auth.token_keys={keys}"));
        let process = Process::start("the server", command, self.logs.join("oauth-server.log"))?;
        let answered = stun::wait_until_answered(self.server, Duration::from_secs(10));
        answered.with_context(|| process.tail())?;
        Ok(process)
    }

    fn accepts_tokens_of_coturn(&self, key: &SharedKey) -> Result<String> {
        for session_key in SESSION_KEYS {
            let token = self.token_of_coturn(key, SERVER_NAME, session_key)?;
            let lifetime = TokenClient::new(self.server)?.allocate(key.kid, &token)??;
            // RFC 7635 §9: an allocation does not outlive its token.
            ensure!(
                (1..=LIFETIME_S).contains(&u64::from(lifetime)),
                "the allocation has {lifetime} s"
            );
        }
        Ok(format!(
            "session keys of {:?} bytes",
            SESSION_KEYS.map(str::len)
        ))
    }

    /// For another server, with another key, and of another client.
    fn refuses_wrong_tokens_of_coturn(&self, key: &SharedKey) -> Result<String> {
        let [session_key, _] = SESSION_KEYS;
        let other_key = SharedKey {
            bytes: key.unknown,
            ..*key
        };
        let mut stolen = self.token_of_coturn(key, SERVER_NAME, session_key)?;
        stolen.session_key = b"who has not seen it.".to_vec();
        let wrong = [
            self.token_of_coturn(key, "other.oauth.example", session_key)?,
            self.token_of_coturn(&other_key, SERVER_NAME, session_key)?,
            stolen,
        ];
        for (number, token) in wrong.iter().enumerate() {
            let refused = TokenClient::new(self.server)?.allocate(key.kid, token)?;
            ensure!(
                refused == Err(ErrorResponse(401)),
                "token {number}: {refused:?} instead of 401"
            );
        }
        Ok(format!("{} tokens", wrong.len()))
    }

    fn coturn_decodes_a_token_of_hairpin(&self, key: &SharedKey) -> Result<String> {
        let made = self.token_of_hairpin(key)?;
        TokenClient::new(self.server)?.allocate(key.kid, &made)??;
        let output = self.decoded_by_coturn(key, SERVER_NAME, &made)??;
        let shown = line_after(&output, b"    mac key: ")?;
        // It prints a key as text, which ends at a zero byte.
        let printable = made.session_key.split(|byte| *byte == 0).next();
        ensure!(
            Some(shown) == printable || made.session_key.contains(&b'\n'),
            "another session key: {shown:?}"
        );
        for (name, value) in [
            ("    nonce length: ", "12".to_owned()),
            ("    mac key length: ", made.session_key.len().to_string()),
            ("    lifetime: ", LIFETIME_S.to_string()),
        ] {
            let shown = String::from_utf8_lossy(line_after(&output, name.as_bytes())?).into_owned();
            ensure!(shown == value, "{name}{shown} instead of {value}");
        }
        let time = line_after(&output, b"        unixtime: ")?;
        let time = String::from_utf8_lossy(time).into_owned();
        let time: u64 = time.split(' ').next().unwrap_or_default().parse()?;
        ensure!(time.abs_diff(now_s()?) < 600, "it was made at {time}");
        let other = self.decoded_by_coturn(key, "other.oauth.example", &made)?;
        ensure!(other.is_err(), "coturn decodes it for another server");
        Ok(format!("a session key of {} bytes", made.session_key.len()))
    }

    fn token_of_coturn(
        &self,
        key: &SharedKey,
        server_name: &str,
        session_key: &str,
    ) -> Result<AccessToken> {
        let output = self.turnutils_oauth(
            key,
            server_name,
            &[
                "-e",
                "-p",
                &BASE64.encode(session_key),
                "-r",
                &LIFETIME_S.to_string(),
            ],
        )??;
        let answer: Value = serde_json::from_slice(&output)?;
        ensure!(answer["kid"] == key.kid, "{answer}");
        // coturn gives the key as it is, and hairpin in base64.
        ensure!(answer["key"] == session_key, "{answer}");
        Ok(AccessToken {
            token: from_base64(&answer["access_token"])?,
            session_key: session_key.as_bytes().to_vec(),
        })
    }

    fn decoded_by_coturn(
        &self,
        key: &SharedKey,
        server_name: &str,
        token: &AccessToken,
    ) -> Result<Result<Vec<u8>>> {
        let token = BASE64.encode(&token.token);
        self.turnutils_oauth(key, server_name, &["-d", "-v", "-t", &token])
    }

    /// What coturn's tool prints; the inner error is that it has failed.
    fn turnutils_oauth(
        &self,
        key: &SharedKey,
        server_name: &str,
        arguments: &[&str],
    ) -> Result<Result<Vec<u8>>> {
        let since = now_s()? - 60;
        let mut command = process::command("turnutils_oauth");
        // It takes local time for UTC.
        command.env("TZ", "UTC");
        command.args(["-i", server_name, "-j", key.kid, "-n", key.algorithm]);
        command.args(["-k", &BASE64.encode(key.bytes)]);
        command.args(["-l", &since.to_string(), "-m", "86400"]);
        command.args(arguments);
        finished(
            "turnutils_oauth",
            command,
            &self.logs.join("oauth-coturn.log"),
        )
    }

    fn token_of_hairpin(&self, key: &SharedKey) -> Result<AccessToken> {
        let mut command = process::command(self.binary);
        command.args(["creds", "oauth", "--key", &key.to_string()]);
        command.args(["--server-name", SERVER_NAME]);
        command.args(["--ttl", &format!("{LIFETIME_S}s")]);
        let log = self.logs.join("oauth-hairpin.log");
        let output = finished("hairpin creds oauth", command, &log)??;
        let answer: Value = serde_json::from_slice(&output)?;
        ensure!(answer["kid"] == key.kid, "{answer}");
        Ok(AccessToken {
            token: from_base64(&answer["access_token"])?,
            session_key: from_base64(&answer["key"])?,
        })
    }
}

/// As `auth.token_keys` has it.
impl std::fmt::Display for SharedKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let key = BASE64.encode(self.bytes);
        write!(f, "{}:{key}:{}", self.kid, self.algorithm)
    }
}

fn finished(name: &str, command: Command, log: &Path) -> Result<Result<Vec<u8>>> {
    let mut process = Process::start(name, command, log.to_owned())?;
    let ended = process.wait(RUN_TIMEOUT)?;
    let Ended::Exited(status) = ended else {
        bail!("{name} hung: {}", process.tail());
    };
    // A key in its output is no text.
    let output = std::fs::read(log)?;
    if status.success() {
        Ok(Ok(output))
    } else {
        Ok(Err(anyhow::anyhow!("{name}: {status}: {}", process.tail())))
    }
}

fn now_s() -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok(now.context("the clock is before 1970")?.as_secs())
}

fn from_base64(value: &Value) -> Result<Vec<u8>> {
    let text = value.as_str().context("not a text")?;
    Ok(BASE64.decode(text)?)
}

/// The rest of the line that begins like this.
fn line_after<'a>(output: &'a [u8], start: &[u8]) -> Result<&'a [u8]> {
    let mut lines = output.split(|byte| *byte == b'\n');
    let rest = lines.find_map(|line| line.strip_prefix(start));
    rest.with_context(|| format!("no line begins with `{}`", String::from_utf8_lossy(start)))
}

/// The code of an error response.
#[derive(Debug, PartialEq, Eq)]
struct ErrorResponse(u16);

impl std::fmt::Display for ErrorResponse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the server refuses the token with {}", self.0)
    }
}

impl std::error::Error for ErrorResponse {}

const ALLOCATE: u16 = 0x0003;
const SUCCESS: u16 = 0x0103;
const USERNAME: u16 = 0x0006;
const MESSAGE_INTEGRITY: u16 = 0x0008;
const ERROR_CODE: u16 = 0x0009;
const LIFETIME: u16 = 0x000d;
const REALM_ATTRIBUTE: u16 = 0x0014;
const NONCE: u16 = 0x0015;
const REQUESTED_TRANSPORT: u16 = 0x0019;
const ACCESS_TOKEN: u16 = 0x001b;
const THIRD_PARTY_AUTHORIZATION: u16 = 0x802e;
/// The length of MESSAGE-INTEGRITY with its header.
const INTEGRITY_LEN: usize = 24;

/// A client over UDP that has a token.
struct TokenClient {
    socket: UdpSocket,
    requests: u8,
}

impl TokenClient {
    fn new(server: SocketAddr) -> Result<TokenClient> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(Duration::from_millis(500)))?;
        Ok(TokenClient {
            socket,
            requests: 0,
        })
    }

    /// Allocates, as RFC 7635 §4.2 and §5 say. Returns the lifetime.
    fn allocate(
        &mut self,
        kid: &str,
        token: &AccessToken,
    ) -> Result<std::result::Result<u32, ErrorResponse>> {
        let transport = (REQUESTED_TRANSPORT, vec![17, 0, 0, 0]);
        let challenge = self.exchange(std::slice::from_ref(&transport), None)?;
        let value = |kind| attribute(&challenge, kind).context("an attribute of 401 is missing");
        let name = value(THIRD_PARTY_AUTHORIZATION)?;
        ensure!(name == SERVER_NAME.as_bytes(), "the server is {name:?}");
        let attributes = [
            transport,
            (USERNAME, kid.as_bytes().to_vec()),
            (REALM_ATTRIBUTE, value(REALM_ATTRIBUTE)?.to_vec()),
            (NONCE, value(NONCE)?.to_vec()),
            (ACCESS_TOKEN, token.token.clone()),
        ];
        let response = self.exchange(&attributes, Some(&token.session_key))?;
        if response[..2] != SUCCESS.to_be_bytes() {
            return Ok(Err(ErrorResponse(error_code(&response)?)));
        }
        ensure!(
            is_signed(&response, &token.session_key)?,
            "the response is not signed with the session key"
        );
        let lifetime = attribute(&response, LIFETIME).context("no LIFETIME")?;
        Ok(Ok(u32::from_be_bytes(lifetime.try_into()?)))
    }

    fn exchange(&mut self, attributes: &[(u16, Vec<u8>)], key: Option<&[u8]>) -> Result<Vec<u8>> {
        self.requests += 1;
        let id = [self.requests; 12];
        let request = request(id, attributes, key)?;
        let mut buffer = [0; 1500];
        for _ in 0..20 {
            self.socket.send(&request)?;
            let Ok(length) = self.socket.recv(&mut buffer) else {
                continue;
            };
            if length >= 20 && buffer[8..20] == id {
                return Ok(buffer[..length].to_vec());
            }
        }
        bail!("no response")
    }
}

/// An Allocate request, with MESSAGE-INTEGRITY if there is a key (RFC 8489 §14.5).
fn request(id: [u8; 12], attributes: &[(u16, Vec<u8>)], key: Option<&[u8]>) -> Result<Vec<u8>> {
    let mut message = ALLOCATE.to_be_bytes().to_vec();
    message.extend([0, 0, 0x21, 0x12, 0xa4, 0x42]);
    message.extend(id);
    for (kind, value) in attributes {
        message.extend(kind.to_be_bytes());
        message.extend(u16::try_from(value.len())?.to_be_bytes());
        message.extend(value);
        message.resize(message.len().next_multiple_of(4), 0);
    }
    let signed = message.len() + key.map_or(0, |_| INTEGRITY_LEN);
    message[2..4].copy_from_slice(&u16::try_from(signed - 20)?.to_be_bytes());
    if let Some(key) = key {
        let mac = integrity(&message, key)?;
        message.extend(MESSAGE_INTEGRITY.to_be_bytes());
        message.extend([0, 20]);
        message.extend(mac);
    }
    Ok(message)
}

fn integrity(message: &[u8], key: &[u8]) -> Result<Vec<u8>> {
    let mut mac = Hmac::<sha1::Sha1>::new_from_slice(key)?;
    mac.update(message);
    Ok(mac.finalize().into_bytes().to_vec())
}

/// Where an attribute's value is.
fn place(message: &[u8], wanted: u16) -> Option<(usize, usize)> {
    let mut at = 20;
    while let Some(header) = message.get(at..at + 4) {
        let kind = u16::from_be_bytes([header[0], header[1]]);
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if kind == wanted {
            return Some((at + 4, length));
        }
        at += 4 + length.next_multiple_of(4);
    }
    None
}

fn attribute(message: &[u8], wanted: u16) -> Option<&[u8]> {
    let (at, length) = place(message, wanted)?;
    message.get(at..at + length)
}

fn error_code(message: &[u8]) -> Result<u16> {
    let value = attribute(message, ERROR_CODE).context("neither success nor error")?;
    match value {
        [_, _, class, number, ..] => Ok(u16::from(*class & 7) * 100 + u16::from(*number)),
        _ => bail!("a short ERROR-CODE"),
    }
}

/// Whether MESSAGE-INTEGRITY is that of the key. It covers the message up to itself, with a length that includes it.
fn is_signed(message: &[u8], key: &[u8]) -> Result<bool> {
    let Some((at, 20)) = place(message, MESSAGE_INTEGRITY) else {
        return Ok(false);
    };
    let mut covered = message[..at - 4].to_vec();
    covered[2..4].copy_from_slice(&u16::try_from(at - 4 + INTEGRITY_LEN - 20)?.to_be_bytes());
    Ok(message.get(at..at + 20) == Some(&integrity(&covered, key)?[..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_signed_and_its_attributes_are_found() {
        let attributes = [
            (USERNAME, b"first".to_vec()),
            (REQUESTED_TRANSPORT, vec![17, 0, 0, 0]),
        ];
        let message = request([7; 12], &attributes, Some(b"a key")).unwrap();
        assert_eq!(message.len(), 20 + 12 + 8 + INTEGRITY_LEN);
        assert_eq!(usize::from(message[3]), message.len() - 20);
        assert_eq!(attribute(&message, USERNAME), Some(&b"first"[..]));
        assert_eq!(attribute(&message, LIFETIME), None);
        assert!(is_signed(&message, b"a key").unwrap());
        assert!(!is_signed(&message, b"another").unwrap());
        let unsigned = request([7; 12], &attributes, None).unwrap();
        assert!(!is_signed(&unsigned, b"a key").unwrap());
        // A length that lies.
        assert_eq!(
            attribute(&[&message[..20], &[0, 6, 0, 9, 1]].concat(), USERNAME),
            None
        );
    }

    #[test]
    fn error_codes_are_read() {
        let head = request([1; 12], &[(ERROR_CODE, vec![0, 0, 4, 1, b'U'])], None).unwrap();
        assert_eq!(error_code(&head).unwrap(), 401);
        let short = request([1; 12], &[(ERROR_CODE, vec![0, 0, 4])], None).unwrap();
        assert!(error_code(&short).is_err());
        assert!(error_code(&[0; 20]).is_err());
    }

    #[test]
    fn lines_of_output_need_not_be_text() {
        let output = b"{\n    mac key: \xff\x01x\n    lifetime: 3600\n";
        assert_eq!(line_after(output, b"    mac key: ").unwrap(), b"\xff\x01x");
        assert!(line_after(output, b"    nonce: ").is_err());
    }
}
