//! What a stranger gets out of a datagram whose source address is forged: no answer is much larger than its request.
//!
//! Sizes count the IP and UDP headers, as the victim's line does.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use crate::common::Serve;

const BINDING: u16 = 0x0001;
/// Binding, Allocate, Refresh, CreatePermission, ChannelBind, Connect, ConnectionBind, and a method that nobody has.
const METHODS: [u16; 8] = [
    BINDING, 0x0003, 0x0004, 0x0008, 0x0009, 0x000A, 0x000B, 0x0077,
];

const FINGERPRINT_XOR: u32 = 0x5354_554E;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = [kind.to_be_bytes(), (value.len() as u16).to_be_bytes()].concat();
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn message(kind: u16, attributes: &[u8]) -> Vec<u8> {
    let mut bytes = [kind.to_be_bytes(), (attributes.len() as u16).to_be_bytes()].concat();
    bytes.extend(0x2112_A442u32.to_be_bytes());
    bytes.extend([7; 12]);
    bytes.extend(attributes);
    bytes
}

/// The message with a FINGERPRINT, which asks for one in the answer.
fn with_fingerprint(kind: u16) -> Vec<u8> {
    let mut bytes = message(kind, &[]);
    bytes[3] = 8;
    let crc = bytes.iter().fold(u32::MAX, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| {
            if crc & 1 == 1 {
                crc >> 1 ^ 0xEDB8_8320
            } else {
                crc >> 1
            }
        })
    });
    bytes.extend(attribute(0x8028, &(!crc ^ FINGERPRINT_XOR).to_be_bytes()));
    bytes
}

/// Requests that anybody can make up, from the shortest on.
fn requests(method: u16) -> Vec<Vec<u8>> {
    let unknown: Vec<u8> = (0..9).flat_map(|n| attribute(0x7000 + n, &[])).collect();
    let forged = [
        attribute(0x0006, b"u"),
        attribute(0x0014, b"r"),
        attribute(0x0015, b"n"),
        attribute(0x0008, &[1; 20]),
    ]
    .concat();
    vec![
        message(method, &[]),
        message(method, &attribute(0x0019, &[17, 0, 0, 0])),
        message(method, &unknown),
        message(method, &attribute(0x0008, &[1; 20])),
        message(method, &forged),
        with_fingerprint(method),
    ]
}

/// How many times larger than its request an answer is; 0 if there is none.
fn factor(socket: &UdpSocket, server: SocketAddr, request: &[u8]) -> f64 {
    let headers = if server.is_ipv4() { 28.0 } else { 48.0 };
    socket.send_to(request, server).expect("sent");
    // A second request that is surely answered marks the end of the first one's answers. Not one that the kernel
    // answers: that would overtake them.
    let marker = message(BINDING, &attribute(0x0099, &[9; 40]));
    let marker = [&marker[..8], &[9; 12], &marker[20..]].concat();
    socket.send_to(&marker, server).expect("sent");
    let mut bytes = 0.0;
    let mut buffer = [0; 2048];
    loop {
        let length = socket.recv(&mut buffer).expect("the marker is answered");
        if buffer[8..20] == [9; 12] {
            return bytes / (request.len() as f64 + headers);
        }
        bytes += length as f64 + headers;
    }
}

#[test]
fn no_unauthenticated_response_is_three_times_its_request_and_no_binding_twice() {
    let serve = Serve::start(&["--listen", "127.0.0.1:0", "--listen", "[::1]:0", "--dev"]);
    assert_eq!(serve.listeners.len(), 2);
    for &server in &serve.listeners {
        let socket = UdpSocket::bind(SocketAddr::new(server.ip(), 0)).expect("a port");
        socket
            .set_read_timeout(Some(Duration::from_secs(5)))
            .expect("an option");
        let mut worst = 0.0f64;
        for method in METHODS {
            let limit = if method == BINDING { 2.0 } else { 3.0 };
            for (number, request) in requests(method).iter().enumerate() {
                let factor = factor(&socket, server, request);
                worst = worst.max(factor);
                assert!(
                    factor <= limit,
                    "request {number} of method {method:#x} to {server} is answered {factor:.2} times as large"
                );
            }
        }
        assert!(worst > 1.0, "nothing was answered at all");
        println!("{server}: at most {worst:.2} times the request");
    }
}
