//! Advisories of coturn that concern its administration. SECURITY.md lists all of them, each with its test.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::common::api::TOKEN;
use crate::common::controlled::Controlled;
use crate::common::{Serve, TEST_TIMEOUT, fails, file, run, stderr};

/// A server with a store, and its admin address.
struct Admin {
    _serve: Serve,
    address: String,
    directory: tempfile::TempDir,
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
            directory,
        }
    }

    fn say(&self, request: &str) -> String {
        say(self.address.parse().expect("an address"), request)
    }

    fn status(&self, method: &str, path: &str, token: &str) -> u16 {
        status(
            self.address.parse().expect("an address"),
            method,
            path,
            token,
        )
    }
}

/// The response to these bytes, until the server closes the connection or sends nothing more.
fn say(address: SocketAddr, request: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("it listens");
    stream
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout can be set");
    // A server that refuses a request may reset the connection before the rest of it has arrived. Its response can
    // still be read.
    let _ = stream.write_all(request.as_bytes());
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut bytes = Vec::new();
    let _ = stream.read_to_end(&mut bytes);
    String::from_utf8(bytes).expect("text")
}

/// The status of a complete request.
fn status(address: SocketAddr, method: &str, path: &str, token: &str) -> u16 {
    let answer = say(
        address,
        &format!(
            "{method} /api/v1{path} HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ),
    );
    status_of(&answer).unwrap_or_else(|| panic!("no status: {answer}"))
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

/// The sockets on which a process accepts TCP connections.
fn listening(pid: u32) -> BTreeSet<SocketAddr> {
    let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).expect("Linux");
    let links = descriptors
        .flatten()
        .flat_map(|entry| fs::read_link(entry.path()));
    let inodes = links.filter_map(|link| {
        let name = link.to_str()?.strip_prefix("socket:[")?;
        name.strip_suffix(']').map(str::to_owned)
    });
    let inodes: BTreeSet<String> = inodes.collect();
    let mut found = BTreeSet::new();
    for table in ["tcp", "tcp6"] {
        // Absent where the kernel has no IPv6.
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        for row in text.lines().skip(1) {
            let fields: Vec<&str> = row.split_whitespace().collect();
            // 0A is LISTEN.
            if fields[3] == "0A" && inodes.contains(fields[9]) {
                found.insert(address_of(fields[1]));
            }
        }
    }
    found
}

/// An address as `/proc/net/tcp` has it: words of 32 bits as this machine stores them, and the port.
fn address_of(text: &str) -> SocketAddr {
    let (address, port) = text.split_once(':').expect("address and port");
    let words = address.as_bytes().chunks(8).map(|word| {
        let word = std::str::from_utf8(word).expect("ASCII");
        u32::from_str_radix(word, 16).expect("hexadecimal")
    });
    let bytes: Vec<u8> = words.flat_map(u32::to_ne_bytes).collect();
    let ip = match <[u8; 16]>::try_from(bytes.clone()) {
        Ok(v6) => IpAddr::from(v6),
        Err(_) => IpAddr::from(<[u8; 4]>::try_from(bytes).expect("4 bytes")),
    };
    (ip, u16::from_str_radix(port, 16).expect("hexadecimal")).into()
}

#[test]
fn cve_2018_4059_nobody_administers_without_a_token() {
    let listen = ["--listen", "127.0.0.1:0", "--relay-address", "127.0.0.1"];
    let more = ["--user", "ann:a password", "--offload", "off"];
    let serve = Serve::start(&[&listen[..], &more, &["--admin", "127.0.0.1:0"]].concat());
    let admin: SocketAddr = serve.admin().parse().expect("an address");
    // Nothing listens but what the server shows.
    let shown = serve.banner().split_whitespace();
    let shown: BTreeSet<SocketAddr> = shown.filter_map(|word| word.parse().ok()).collect();
    let open = listening(serve.id());
    assert!(open.contains(&admin), "{open:?}");
    for at in &open {
        assert!(
            *at == admin || shown.contains(at),
            "{at}: {}",
            serve.banner()
        );
        // No telnet there, and no prompt.
        let answer = say(*at, "\r\nps\r\nhelp\r\n\r\n");
        let is_refused = answer.is_empty() || answer.starts_with("HTTP/1.1 400 ");
        assert!(is_refused, "{at}: {answer}");
    }
    // It is for this machine only, unless the operator says twice that it is not.
    let (_directory, path) = file("[admin]\nlisten = \"0.0.0.0:0\"\n");
    fails(
        &run(&["check", &path.display().to_string()]),
        1,
        "allow_remote",
    );
    // There is no token that is known to everybody, and an empty one is none.
    let with_tokens = Admin::start();
    let secured: SocketAddr = with_tokens.address.parse().expect("an address");
    for token in ["", " ", "admin", "root", "qwerty", "password", "hairpin"] {
        for method in ["PUT", "DELETE"] {
            let code = status(admin, method, "/users/eve", token);
            assert!((400..500).contains(&code), "{method} {token}: {code}");
            let code = status(secured, method, "/users/eve", token);
            assert_eq!(code, 401, "{method} {token}");
        }
    }
    let (_directory, path) = file("[admin]\ntokens = [\"\"]\n");
    let checked = run(&["check", &path.display().to_string()]);
    assert_eq!(checked.status.code(), Some(1), "{}", stderr(&checked));
}

/// The first line of what the control socket answers to these bytes.
fn ask_control(socket: &Path, bytes: &[u8]) -> String {
    let stream = UnixStream::connect(socket).expect("it listens");
    stream
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout can be set");
    (&stream).write_all(bytes).expect("it leaves");
    let mut line = String::new();
    let _ = BufReader::new(&stream).read_line(&mut line);
    line
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).expect("it exists").flatten();
    entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .collect()
}

/// In coturn 4.13, the command `psd` of the telnet console wrote the sessions to any file that its argument named.
#[test]
fn coturn_4_13_no_command_writes_a_file_that_it_names() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let socket = Controlled::socket_in(folder.path());
    let victim = folder.path().join("victim");
    fs::write(&victim, "as it was").expect("a file can be written");
    let config = format!(
        "[listen]\nudp = [\"127.0.0.1:0\"]\n[relay]\naddresses = [\"127.0.0.1\"]\n[auth]\nusers = [{{ name = \"ann\", password = \"a password\" }}]\n[offload]\nmode = \"off\"\n[admin]\nlisten = \"off\"\n[server]\ncontrol_socket = {socket:?}\n"
    );
    let server = Controlled::start(folder, &config);
    let path = victim.to_str().expect("UTF-8");
    let before = names(server.folder.path());
    // What the server knows is in its own answer.
    let unknown = ask_control(&socket, b"{\"protocol\":1,\"command\":\"psd\"}\n");
    let unknown: serde_json::Value = serde_json::from_str(&unknown).expect("JSON");
    let list = unknown["error"].as_str().expect("the reason");
    let (_, list) = list.split_once("there are ").expect("the commands");
    let commands: Vec<&str> = list.split(", ").collect();
    assert!(commands.len() >= 15, "{commands:?}");
    let fields = [
        "file", "path", "output", "name", "user", "call_id", "to", "id",
    ];
    let arguments: serde_json::Map<_, _> = fields
        .iter()
        .map(|field| ((*field).to_owned(), path.into()))
        .collect();
    // The last one would hand over the server.
    for command in commands.iter().filter(|name| **name != "take_over") {
        let request = serde_json::json!({
            "protocol": 1, "command": command, "arguments": arguments,
            "file": path, "output": path,
        });
        let answer = ask_control(&socket, format!("{request}\n").as_bytes());
        assert!(answer.starts_with('{'), "{command}: {answer}");
    }
    for line in [format!("psd {path}\n"), format!("psd {path}.new\r\n")] {
        let answer = ask_control(&socket, line.as_bytes());
        assert!(answer.contains("\"ok\":false"), "{answer}");
    }
    assert_eq!(names(server.folder.path()), before);
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "as it was");

    // The same by the API, where names are parts of paths.
    let admin = Admin::start();
    let victim = admin.directory.path().join("victim");
    fs::write(&victim, "as it was").expect("a file can be written");
    let before = names(admin.directory.path());
    let whole = victim.to_str().expect("UTF-8").replace('/', "%2F");
    for name in ["..%2Fvictim", "..%2F..%2Fvictim", &whole] {
        for kind in ["users", "secrets", "realms", "sessions"] {
            for method in ["PUT", "POST", "GET"] {
                let path = format!("/{kind}/{name}?output={whole}&file={whole}");
                let code = admin.status(method, &path, TOKEN);
                assert!(code < 500, "{method} {path}: {code}");
            }
        }
    }
    assert_eq!(names(admin.directory.path()), before);
    assert_eq!(fs::read_to_string(&victim).expect("a file"), "as it was");
}

/// The Rust files below a folder.
fn sources(folder: &Path, found: &mut Vec<String>) {
    for entry in fs::read_dir(folder).expect("it exists").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(fs::read_to_string(path).expect("UTF-8"));
        }
    }
}

#[test]
fn every_advisory_names_a_test_that_exists() {
    const PAGE: &str = include_str!("../../../../SECURITY.md");
    let (_, table) = PAGE.split_once("## Advisories of coturn").expect("a table");
    let rows = table.lines().filter(|line| line.starts_with("| "));
    // The head comes first.
    let rows: Vec<&str> = rows.skip(1).collect();
    assert!(rows.len() >= 19, "{rows:?}");
    let mut texts = Vec::new();
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    sources(&crates, &mut texts);
    for row in rows {
        let name = row.split('`').skip(1).step_by(2).find(|name| {
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
            name.matches('_').count() >= 3 && name.chars().all(is_name)
        });
        let name = name.unwrap_or_else(|| panic!("no test in {row}"));
        let test = format!("fn {name}()");
        let exists = texts.iter().any(|text| text.contains(&test));
        assert!(exists, "there is no test {name}");
    }
}
