//! A store over HTTP that answers after a while, or never, and counts what it is asked.

use std::io::{BufRead, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::Value;
use server::stun::{PasswordAlgorithm, long_term_key};

/// MD5 of `gorst:north.gov:hero`, from coturn's documentation.
pub(crate) const GORST: &str = "7da2270ccfa49786e0115366d3a3d14d";
/// The realm of all users.
pub(crate) const REALM: &str = "north.gov";
/// The password of `gorst`, and of each user whose name begins with [`KNOWN`].
pub(crate) const PASSWORD: &str = "hero";
/// How names of users begin that the service knows.
pub(crate) const KNOWN: &str = "known";

/// Requests with this delay get no answer.
pub(crate) const NEVER: u64 = u64::MAX;
/// Requests with this delay get an error at once.
pub(crate) const ERROR: u64 = u64::MAX - 1;

/// The service.
pub(crate) struct Service {
    pub(crate) address: SocketAddr,
    delay_ms: Arc<AtomicU64>,
    requests: Arc<AtomicUsize>,
}

impl Service {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let service = Self {
            address: listener.local_addr().expect("it is bound"),
            delay_ms: Arc::default(),
            requests: Arc::default(),
        };
        let (delay, requests) = (Arc::clone(&service.delay_ms), Arc::clone(&service.requests));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (delay, requests) = (Arc::clone(&delay), Arc::clone(&requests));
                std::thread::spawn(move || converse(stream, &delay, &requests));
            }
        });
        service
    }

    /// What requests get from now on: an answer after so many milliseconds, [`NEVER`] one, or an [`ERROR`].
    pub(crate) fn set(&self, delay_ms: u64) {
        self.delay_ms.store(delay_ms, Ordering::Relaxed);
    }

    /// How many users it was asked for, those that only show whether it is there not included.
    pub(crate) fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// The configuration of a server that uses it.
    pub(crate) fn config(&self, more: &str) -> String {
        format!(
            "[auth]\nrealm = \"{REALM}\"\n[[auth.stores]]\nurl = \"http://{}/user\"\n{more}",
            self.address
        )
    }
}

/// The body of the next request.
fn request(reader: &mut impl BufRead) -> Option<Value> {
    let mut length = 0;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).unwrap_or(0) == 0 {
            return None;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().expect("a number");
        }
        if line == "\r\n" {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    Some(serde_json::from_slice(&body).expect("JSON"))
}

fn converse(stream: TcpStream, delay: &AtomicU64, requests: &AtomicUsize) {
    let mut writer = stream.try_clone().expect("a copy");
    let mut reader = BufReader::new(stream);
    while let Some(asked) = request(&mut reader) {
        // The empty name is asked for to know whether the service is there.
        let is_probe = asked["username"] == "" && asked["realm"] == "";
        assert!(is_probe || asked["realm"] == REALM, "{asked}");
        requests.fetch_add(usize::from(!is_probe), Ordering::Relaxed);
        let answer = match delay.load(Ordering::Relaxed) {
            NEVER => {
                std::thread::sleep(Duration::from_secs(60));
                return;
            }
            ERROR => "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n".to_owned(),
            ms => {
                std::thread::sleep(Duration::from_millis(ms));
                answer(asked["username"].as_str().unwrap_or_default())
            }
        };
        if writer.write_all(answer.as_bytes()).is_err() {
            return;
        }
    }
}

fn answer(name: &str) -> String {
    if name != "gorst" && !name.starts_with(KNOWN) {
        return "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned();
    }
    let key = long_term_key(PasswordAlgorithm::Md5, name, REALM, PASSWORD).expect("plain ASCII");
    let key: String = key
        .as_bytes()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    assert!(name != "gorst" || key == GORST, "{key}");
    let body = format!("{{\"md5\":\"{key}\"}}");
    format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}
