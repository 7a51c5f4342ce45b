//! Advisories of coturn that concern its administration over HTTP. SECURITY.md lists all of them.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::common::api::TOKEN;
use crate::common::{Serve, TEST_TIMEOUT, file};

/// A server with a store, and its admin address.
struct Admin {
    _serve: Serve,
    address: String,
    _directory: tempfile::TempDir,
}

impl Admin {
    fn start() -> Self {
        let (directory, path) = file("");
        let state = directory.path().join("state");
        let config = format!(
            "[server]\nstate_dir = {state:?}\nworkers = 1\n[auth]\nrealm = \"api.example\"\n[admin]\ntokens = [{TOKEN:?}]\n"
        );
        std::fs::write(&path, config).expect("a file can be written");
        let path = path.display().to_string();
        let args = ["--config", &path, "--dev", "--listen", "127.0.0.1:0"];
        let more = ["--offload", "off", "--admin", "127.0.0.1:0"];
        let relay = ["--relay-address", "127.0.0.1", "--set"];
        let no_socket = ["server.control_socket=off"];
        let serve = Serve::start(&[&args[..], &more, &relay, &no_socket].concat());
        let address = serve.value("admin").split('/').nth(2).expect("a URL");
        Self {
            address: address.to_owned(),
            _serve: serve,
            _directory: directory,
        }
    }

    /// What comes back for these bytes, until the server closes the connection or says nothing more.
    fn say(&self, request: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).expect("it listens");
        stream
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout can be set");
        stream.write_all(request.as_bytes()).expect("it leaves");
        // A server that refuses a request may reset the connection before the rest of it has come. Its response can be
        // read all the same.
        let _ = stream.shutdown(std::net::Shutdown::Write);
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes);
        String::from_utf8(bytes).expect("text")
    }

    /// The status of a complete request.
    fn status(&self, method: &str, path: &str, token: &str) -> u16 {
        let address = &self.address;
        let answer = self.say(&format!(
            "{method} /api/v1{path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ));
        status_of(&answer).unwrap_or_else(|| panic!("no status: {answer}"))
    }
}

fn status_of(answer: &str) -> Option<u16> {
    answer.split(' ').nth(1)?.parse().ok()
}

#[test]
fn cve_2018_4056_a_token_is_no_sql() {
    let admin = Admin::start();
    for token in [
        "' OR '1'='1",
        "' OR 1=1 --",
        "\" OR \"\"=\"",
        "x' UNION SELECT 1",
    ] {
        assert_eq!(admin.status("PUT", "/users/eve", token), 401, "{token}");
    }
    // The name of a user is one value, whatever it has in it.
    assert_eq!(admin.status("PUT", "/users/ann", TOKEN), 200);
    let name = "/users/x%27%20OR%20%271%27%3D%271";
    assert_eq!(admin.status("DELETE", name, TOKEN), 404);
    assert_eq!(admin.status("PUT", name, TOKEN), 200);
    assert_eq!(admin.status("DELETE", name, TOKEN), 200);
    assert_eq!(
        admin.status("DELETE", "/users/ann", TOKEN),
        200,
        "she is still there"
    );
}

#[test]
fn cve_2020_6061_cve_2020_6062_bodies_with_wrong_lengths_are_refused() {
    let admin = Admin::start();
    let long = "x".repeat(1 << 20);
    let bodies = [
        ("Content-Length: -1", "{}"),
        ("Content-Length: 18446744073709551616", "{}"),
        ("Content-Length: 4294967296", "{}"),
        ("Content-Length: 2\r\nContent-Length: 7", "{}"),
        ("Content-Length: 100", "{}"),
        ("Content-Length: 1048576", long.as_str()),
        (
            "Transfer-Encoding: chunked",
            "ffffffffffffffff\r\n{}\r\n0\r\n\r\n",
        ),
        ("Transfer-Encoding: chunked", "-2\r\n{}\r\n0\r\n\r\n"),
        ("Transfer-Encoding: chunked", "zz\r\n{}\r\n0\r\n\r\n"),
        ("X: y", "{\"password\":\"without a length\"}"),
    ];
    for (field, body) in bodies {
        let address = &admin.address;
        let answer = admin.say(&format!(
            "PUT /api/v1/users/eve HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n{field}\r\n\r\n{body}"
        ));
        let status = status_of(&answer);
        assert!(
            status.is_none_or(|code| (400..500).contains(&code)) || field == "X: y",
            "{field}: {answer}"
        );
        assert_eq!(
            admin.status("PUT", "/users/ann", TOKEN),
            200,
            "after {field}"
        );
    }
    // Without a length there is no body: the user gets a password that the server makes.
    assert_eq!(admin.status("DELETE", "/users/eve", TOKEN), 200);
}
