//! Commands with `--api`, and a server that does not do what it should: it is dead, silent, or sends what a terminal
//! must not get.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{fails, file, hairpin, run, stderr};

/// A server that responds to each request as this function says, with a status and a body.
fn respond(response: impl Fn(&str) -> (u16, String) + Send + 'static) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("it is bound"));
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            converse(stream, &response);
        }
    });
    url
}

fn converse(mut stream: TcpStream, response: impl Fn(&str) -> (u16, String)) {
    let (mut text, mut part) = (String::new(), [0; 4096]);
    while !text.contains("\r\n\r\n") {
        match stream.read(&mut part) {
            Ok(length @ 1..) => text.push_str(&String::from_utf8_lossy(&part[..length])),
            _ => return,
        }
    }
    let (status, body) = response(text.lines().next().unwrap_or_default());
    let kind = match status {
        200 => "application/json",
        _ => "application/problem+json",
    };
    let length = body.len();
    // The command ends the connection when it has seen enough.
    let _ = write!(
        stream,
        "HTTP/1.1 {status} Status\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
}

/// Red letters, a bell, a new title of the window, and a character of C1.
const HOSTILE: &str = "no\\u001b[31m\\u0007\\u001b]0;title\\u009b2J way";

fn problem(status: u16) -> (u16, String) {
    let body = format!("{{\"detail\":\"{HOSTILE}\",\"mistakes\":[\"{HOSTILE}\"]}}");
    (status, body)
}

#[test]
fn what_a_server_says_cannot_drive_the_terminal() {
    let (folder, _) = file("");
    let token = folder.path().join("token");
    std::fs::write(&token, "0123456789abcdef\n").expect("it is written");
    let token = token.display().to_string();
    for status in [401, 403, 409] {
        let url = respond(move |_| problem(status));
        for command in [&["status"][..], &["drain"], &["user", "del", "ann"]] {
            let output = run(&[command, &["--api", &url, "--token-file", &token]].concat());
            fails(&output, 1, "no?[31m??]0;title?2J way");
            let text = stderr(&output);
            let is_plain = text.chars().all(|c| c == '\n' || !c.is_control());
            assert!(is_plain, "{status} {command:?}: {text:?}");
        }
    }
}

#[test]
fn an_upgrade_whose_state_is_not_known_says_why() {
    let started = std::sync::atomic::AtomicBool::new(false);
    let url = respond(move |request| {
        use std::sync::atomic::Ordering::Relaxed;
        if request.starts_with("POST ") {
            started.store(true, Relaxed);
            return (200, "{\"pid\":7}".to_owned());
        }
        match started.load(Relaxed) {
            false => (200, "{\"pid\":6}".to_owned()),
            true => problem(403),
        }
    });
    let output = run(&["upgrade", "--api", &url, "--timeout", "1s"]);
    fails(
        &output,
        1,
        "process 7 was started, but its state is not known: ",
    );
    fails(&output, 1, "refuses the request: no?[31m");
}

/// Begins `hairpin status` at this server.
fn ask(url: &str) -> Child {
    let mut command = hairpin(&["status", "--api", url]);
    let command = command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().expect("the binary starts")
}

/// A listener that admits no more connections: the kernel drops further ones, as a dead machine does.
fn full() -> (socket2::Socket, Vec<socket2::Socket>, SocketAddr) {
    use socket2::{Domain, Socket, Type};
    let socket = || Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    let listener = socket();
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    listener.bind(&any.into()).expect("a port");
    listener.listen(0).expect("it listens");
    let address = listener.local_addr().expect("it is bound");
    let address = address.as_socket().expect("an address");
    let connect = |_| {
        let client = socket();
        client.set_nonblocking(true).expect("an option");
        // It is in progress.
        let _ = client.connect(&address.into());
        client
    };
    let clients = (0..4).map(connect).collect();
    (listener, clients, address)
}

#[test]
fn a_server_that_does_not_respond_ends_the_command_after_the_connect_timeout() {
    let (_listener, _clients, dead) = full();
    let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
    let silent = silent.local_addr().map(|at| (at, silent));
    let (address, _silent) = silent.expect("it is bound");
    let begun = Instant::now();
    let commands = [
        (ask(&format!("http://{dead}")), "no connection within 10 s"),
        (ask(&format!("https://{address}")), "no TLS with https://"),
    ];
    for (command, part) in commands {
        let output = command.wait_with_output().expect("it ends");
        fails(&output, 1, part);
        fails(&output, 1, "within 10 s");
    }
    // Without a connect timeout, a response has 90 s, and a connection of the kernel 130 s.
    let took = begun.elapsed();
    assert!(took < Duration::from_secs(60), "{took:?}");
}
