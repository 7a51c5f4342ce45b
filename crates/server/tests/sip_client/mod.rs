//! A SIP client for tests: what it sends is text.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub(crate) mod link;
pub(crate) mod phone;

use hairpin_server::sip::{Domain, SipSettings};
use hairpin_server::{Builder, Running, Server};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

const TEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A server of SIP on loopback.
pub(crate) fn serve(settings: SipSettings, workers: usize) -> Running {
    Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .user("ann", "secret")
        .sip_listen("127.0.0.1:0".parse().expect("an address"))
        .sip(settings)
        .workers(workers)
        .start()
        .expect("the server starts")
}

/// An address with a port that the kernel chooses.
pub(crate) const LOOPBACK: &str = "127.0.0.1:0";

/// A server of SIP at this address, with users named `user0`, `user1` and so on.
pub(crate) fn with_users(at: &str, settings: SipSettings, count: usize) -> Builder {
    let server = Server::builder()
        .listen(LOOPBACK.parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen(at.parse().expect("an address"))
        .sip(settings);
    (0..count).fold(server, |server, number| {
        server.user(&format!("user{number}"), phone::PASSWORD)
    })
}

/// Settings of a server for the domain `example.com`.
pub(crate) fn example_com() -> SipSettings {
    let mut settings = SipSettings::default();
    settings.domains = vec![Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    }];
    settings
}

/// Settings of a user agent server for tests.
pub(crate) fn test_uas() -> SipSettings {
    let mut settings = SipSettings::default();
    settings.test_uas = true;
    settings
}

/// A request OPTIONS with this Call-ID and branch, over `transport`, with further header fields.
pub(crate) fn options(id: &str, transport: &str, more: &str) -> String {
    format!(
        "OPTIONS sip:test@127.0.0.1 SIP/2.0\r\n\
         Via: SIP/2.0/{transport} 192.0.2.1:5060;rport;branch=z9hG4bK{id}\r\n\
         From: <sip:a@example.org>;tag=1\r\nTo: <sip:test@127.0.0.1>\r\n\
         Call-ID: {id}@test\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\n\
         Contact: <sip:a@192.0.2.1>\r\n{more}Content-Length: 0\r\n\r\n"
    )
}

/// The status code of a response.
pub(crate) fn status(response: &str) -> u16 {
    let code = response
        .strip_prefix("SIP/2.0 ")
        .and_then(|rest| rest.get(..3));
    code.and_then(|code| code.parse().ok())
        .unwrap_or_else(|| panic!("no response: {response:?}"))
}

/// A client over UDP.
pub(crate) struct Client {
    socket: UdpSocket,
    /// Where it sends to, if it takes messages from everywhere.
    to: Option<SocketAddr>,
}

impl Client {
    pub(crate) fn new(server: SocketAddr) -> Client {
        Client::of(UdpSocket::bind("127.0.0.1:0").expect("a socket"), server)
    }

    /// One that sends from this socket.
    pub(crate) fn of(socket: UdpSocket, server: SocketAddr) -> Client {
        socket.connect(server).expect("a route");
        socket
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        Client { socket, to: None }
    }

    /// One that takes messages from all addresses of the server.
    pub(crate) fn of_all_addresses(server: SocketAddr) -> Client {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        socket
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        Client {
            socket,
            to: Some(server),
        }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.socket.local_addr().expect("an address")
    }

    pub(crate) fn send(&self, bytes: &[u8]) {
        match self.to {
            Some(to) => self.socket.send_to(bytes, to),
            None => self.socket.send(bytes),
        }
        .expect("sent");
    }

    pub(crate) fn receive(&self) -> Vec<u8> {
        let mut buffer = vec![0; 65536];
        let length = self.socket.recv(&mut buffer).expect("an answer in time");
        buffer.truncate(length);
        buffer
    }

    /// Nothing comes for `time`.
    pub(crate) fn hears_nothing(&self, time: Duration) -> bool {
        self.socket.set_read_timeout(Some(time)).expect("a timeout");
        let nothing = self.socket.recv(&mut [0; 16]).is_err();
        self.socket
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        nothing
    }

    /// What comes within this time.
    pub(crate) fn answer_within(&self, time: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(time)).expect("a timeout");
        let mut buffer = vec![0; 65536];
        let length = self.socket.recv(&mut buffer).ok();
        self.socket
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        let bytes = buffer.get(..length?).unwrap_or_default();
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    pub(crate) fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        self.send(bytes);
        self.receive()
    }

    pub(crate) fn answer(&self) -> String {
        String::from_utf8_lossy(&self.receive()).into_owned()
    }

    pub(crate) fn ask(&self, request: &str) -> String {
        self.send(request.as_bytes());
        self.answer()
    }
}

/// A client over TCP.
pub(crate) struct Stream {
    stream: TcpStream,
    pending: Vec<u8>,
}

impl Stream {
    pub(crate) fn new(server: SocketAddr) -> Stream {
        let stream = TcpStream::connect(server).expect("a connection");
        stream
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        stream.set_nodelay(true).expect("an option");
        Stream {
            stream,
            pending: Vec::new(),
        }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.stream.local_addr().expect("an address")
    }

    pub(crate) fn into_inner(self) -> TcpStream {
        self.stream
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("written");
    }

    fn more(&mut self) -> usize {
        let mut buffer = [0; 4096];
        let length = self.stream.read(&mut buffer).unwrap_or(0);
        self.pending.extend_from_slice(&buffer[..length]);
        length
    }

    /// The next so many bytes.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        while self.pending.len() < count {
            assert_ne!(self.more(), 0, "the connection ended");
        }
        self.pending.drain(..count).collect()
    }

    /// The first message that has arrived as a whole.
    fn whole(&mut self) -> Option<String> {
        let text = String::from_utf8_lossy(&self.pending).into_owned();
        let end = text.find("\r\n\r\n")?;
        let length = text[..end]
            .lines()
            .find_map(|line| line.strip_prefix("Content-Length: "))
            .and_then(|length| length.parse::<usize>().ok())
            .expect("a length");
        let message = text.get(..end + 4 + length)?;
        self.pending.drain(..message.len());
        Some(message.to_owned())
    }

    /// The next response.
    pub(crate) fn answer(&mut self) -> String {
        loop {
            if let Some(text) = self.whole() {
                return text;
            }
            let text = String::from_utf8_lossy(&self.pending).into_owned();
            assert_ne!(self.more(), 0, "the connection ended after {text:?}");
        }
    }

    /// The next message, if it arrives within this time.
    pub(crate) fn answer_within(&mut self, time: Duration) -> Option<String> {
        let whole = self.whole();
        if whole.is_some() {
            return whole;
        }
        self.stream.set_read_timeout(Some(time)).expect("a timeout");
        self.more();
        self.stream
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        self.whole()
    }

    /// The other side closes the connection, without another byte.
    pub(crate) fn ended(&mut self) -> bool {
        self.pending.is_empty() && self.more() == 0
    }
}
