//! RFC 4475: every message of it, sent to a running server, gets what the table says of a user agent.

use crate::sip_client::{Stream, options, serve, status, test_uas};
use sip::{Limits, Scan};
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::time::Duration;

const TABLE: &str = include_str!("../../../sip/tests/torture/expected.tsv");

/// Name and outcome of each message.
fn lines() -> impl Iterator<Item = (&'static str, &'static str)> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines.map(|line| {
        let columns: Vec<_> = line.split('\t').collect();
        (columns[1], columns[4])
    })
}

fn message(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let path = path.join(format!("../sip/tests/torture/{name}.dat"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A client whose answers come to whatever port a Via names: to one socket for each, on an address of its own.
struct Client {
    server: SocketAddr,
    ip: IpAddr,
    sockets: BTreeMap<u16, UdpSocket>,
}

impl Client {
    fn new() -> Client {
        let pid = std::process::id();
        let ip = IpAddr::from([127, 128 + (pid >> 8) as u8 % 64, pid as u8, 75]);
        Client {
            server: SocketAddr::from(([127, 0, 0, 1], 0)),
            ip,
            sockets: BTreeMap::new(),
        }
    }

    fn socket(&mut self, port: u16) -> &UdpSocket {
        let ip = self.ip;
        self.sockets.entry(port).or_insert_with(|| {
            let socket = UdpSocket::bind((ip, port)).expect("the port is free");
            socket
                .set_read_timeout(Some(Duration::from_secs(5)))
                .expect("a timeout");
            socket
        })
    }

    /// The answers to a message, up to the one to a probe that is sent behind it.
    fn ask(&mut self, name: &str, bytes: &[u8]) -> Vec<String> {
        let scan = Scan::of(bytes, &Limits::DEFAULT).ok();
        let via = scan.as_ref().and_then(Scan::top_via);
        let port = via.and_then(|via| via.port).unwrap_or(5060);
        let server = self.server;
        let probe = options(&format!("probe-{name}"), "UDP", "");
        let socket = self.socket(port);
        socket.send_to(bytes, server).expect("sent");
        socket.send_to(probe.as_bytes(), server).expect("sent");
        let mut answers = Vec::new();
        loop {
            let mut buffer = [0; 65536];
            let length = socket.recv(&mut buffer).expect("the probe is answered");
            let answer = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if answer.contains(&format!("Call-ID: probe-{name}@test\r\n")) {
                return answers;
            }
            answers.push(answer);
        }
    }
}

/// What the server did, in the words of the table.
fn outcome(bytes: &[u8], answers: &[String]) -> String {
    let codes: Vec<u16> = answers.iter().map(|answer| status(answer)).collect();
    match codes[..] {
        [] => "nothing".to_owned(),
        [200] | [180, 200, ..] => "accept".to_owned(),
        // Responses and ACKs are taken in without a word.
        _ if bytes.starts_with(b"SIP/") => format!("answers to a response: {codes:?}"),
        [_] => answers[0].lines().next().unwrap_or_default()["SIP/2.0 ".len()..].to_owned(),
        _ => format!("several answers: {codes:?}"),
    }
}

#[test]
fn each_message_of_rfc4475_gets_what_it_deserves_over_udp() {
    let mut client = Client::new();
    let mut wrong = Vec::new();
    for (name, expected) in lines() {
        let bytes = message(name);
        // Several have the same branch: to one server they would be one request.
        let server = serve(test_uas(), 1);
        client.server = server.sip_listeners()[0];
        let answers = client.ask(name, &bytes);
        let outcome = outcome(&bytes, &answers);
        let is_silent = expected.starts_with("drop") || bytes.starts_with(b"SIP/");
        let expected = match expected {
            // There is no dialog that it could belong to.
            _ if is_silent => "nothing",
            "accept" if bytes.starts_with(b"ACK") => "nothing",
            // A request of a dialog that this user agent does not have.
            "accept" if name == "wsinv" => "481 Call/Transaction Does Not Exist",
            expected => expected,
        };
        if outcome != expected {
            wrong.push(format!("{name}: {outcome}, not {expected}: {answers:#?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn over_tcp_a_wrong_length_ends_the_connection_rfc4475_3_1_2_2() {
    let server = serve(test_uas(), 1);
    let address = server.sip_listeners()[0];
    // Content-Length is negative, or missing: nobody knows where the next message begins.
    let mut stream = Stream::new(address);
    stream.send(&message("ncl"));
    assert_eq!(status(&stream.answer()), 400);
    assert!(stream.ended());
    // A body shorter than it says waits for its rest, and takes the next message for it.
    let mut stream = Stream::new(address);
    stream.send(&message("clerr"));
    let request = options("after", "TCP", "");
    let many = request.repeat(60);
    stream.send(many.as_bytes());
    assert!(status(&stream.answer()) >= 180);
}
