//! `kill -9` under a thousand connections: the next start listens at once, and serves the clients that come back.

use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream};

use crate::common::{Serve, TEST_TIMEOUT};

/// As many as one source may have.
const CONNECTIONS: usize = 1_000;

/// RFC 8489 §5: a Binding request without attributes.
const BINDING: [u8; 20] = [
    0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,
];

/// A loopback address that no other test uses: between the two starts the port is free.
fn address() -> IpAddr {
    let pid = std::process::id();
    IpAddr::from([127, 128 + (pid >> 8) as u8 % 64, pid as u8, 1])
}

/// Connects, and is answered.
fn connect(server: SocketAddr) -> TcpStream {
    let mut connection = TcpStream::connect(server).expect("the server accepts");
    connection
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("not zero");
    connection.write_all(&BINDING).expect("room");
    let mut response = [0; 32];
    connection.read_exact(&mut response).expect("a response");
    assert_eq!(response[..2], [1, 1], "a Binding success response");
    connection
}

#[test]
fn the_next_start_serves_at_once() {
    let listen = SocketAddr::from((address(), 3478));
    for _ in 0..3 {
        let argument = listen.to_string();
        let serve = Serve::start(&["--listen", &argument, "--workers", "1"]);
        let mut connections: Vec<TcpStream> = (0..CONNECTIONS).map(|_| connect(listen)).collect();
        // Some have bytes on their way.
        for connection in connections.iter_mut().step_by(2) {
            connection.write_all(&BINDING[..7]).expect("room");
        }
        serve.signal("KILL");
        assert!(!serve.wait().0.success());
        for connection in &mut connections {
            // Closed or reset, but never open.
            assert!(matches!(connection.read(&mut [0; 64]), Ok(0) | Err(_)));
        }
    }
}
