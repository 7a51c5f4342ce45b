//! One line per allocation opened and closed, and nothing per packet.

mod common;

use common::{Client, loopback, socket, start};
use std::io::Write;
use std::sync::{Arc, Mutex};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .expect("no writer panics")
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn an_allocation_is_two_lines() {
    let log = Log::default();
    let writer = log.clone();
    tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone())
        .init();
    let server = start(loopback(2));
    let peer = socket("127.0.0.1:0");
    let mut client = Client::new(server.listeners()[0]);
    let relayed = client.allocate();
    assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
    for _ in 0..10 {
        client.send(0x4000, &[1; 100]);
        peer.recv_from(&mut [0; 128]).expect("relayed");
        peer.send_to(&[2; 50], relayed).expect("sent");
        client.got();
    }
    let mut other = Client::new(server.listeners()[0]);
    other.allocate();
    client.release();
    server.shutdown().expect("clean");

    let bytes = log.0.lock().expect("no writer panics").clone();
    let text = String::from_utf8(bytes).expect("UTF-8");
    let lines = |what: &str| {
        text.lines()
            .filter(|line| line.contains(what))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(
        text.lines().count(),
        5,
        "serving, two opened, two closed: {text}"
    );
    assert_eq!(lines("serving").len(), 1);
    assert_eq!(lines("allocation opened").len(), 2);
    let closed = lines("allocation closed");
    let expected = [
        format!("client={}", client.local()),
        format!("relayed={relayed}"),
        "user=\"ann\"".to_owned(),
        "to_peers_bytes=1000".to_owned(),
        "to_peers_packets=10".to_owned(),
        "to_client_bytes=500".to_owned(),
        "to_client_packets=10".to_owned(),
        "duration_ms=".to_owned(),
        "reason=\"refreshed_to_zero\"".to_owned(),
    ];
    for part in expected {
        assert!(
            closed[0].contains(&part),
            "{part} is missing: {}",
            closed[0]
        );
    }
    assert!(
        closed[1].contains("reason=\"server_shutdown\""),
        "{}",
        closed[1]
    );
}
