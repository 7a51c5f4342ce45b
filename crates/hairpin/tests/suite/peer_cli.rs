//! `hairpin peer`: what it sends back, counts and says.

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use crate::common::{Background, run, stderr, stdout};

/// A peer on a port of its own choice, and where that is.
fn peer(args: &[&str]) -> (Background, SocketAddr) {
    let mut all = vec!["peer", "--listen", "127.0.0.1:0"];
    all.extend(args);
    let mut peer = Background::start(&all);
    let line = peer.wait_for("listening on ");
    let address = line["listening on ".len()..].parse().expect("an address");
    (peer, address)
}

fn client(to: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket on loopback");
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .and_then(|()| socket.connect(to))
        .expect("a connected socket");
    socket
}

#[test]
fn an_echo_sends_back_counts_and_reports_at_the_end() {
    let (mut peer, address) = peer(&["--threads", "2", "--json", "-"]);
    let socket = client(address);
    let mut buffer = [0; 64];
    for word in ["one", "two", "three"] {
        socket.send(word.as_bytes()).unwrap();
        let length = socket.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], word.as_bytes());
    }
    let line = peer.wait_for("at_s=");
    assert!(
        line.contains("recv_pps=") && line.contains("overflow="),
        "{line}"
    );
    peer.signal("INT");
    let (status, stdout, stderr) = peer.wait();
    assert_eq!(status.code(), Some(0), "{stderr}");
    let report: serde_json::Value = serde_json::from_str(&stdout).expect(&stdout);
    assert_eq!(report["total"]["received"], 3);
    assert_eq!(report["total"]["sent"], 3);
    assert_eq!(report["threads"].as_array().unwrap().len(), 2);
    assert!(stderr.contains("received 3"), "{stderr}");
}

#[test]
fn a_sink_is_silent_and_stops_by_itself() {
    let directory = tempfile::tempdir().unwrap();
    let json = directory.path().join("sink.json");
    let (peer, address) = peer(&[
        "--sink",
        "--duration",
        "500ms",
        "--json",
        json.to_str().unwrap(),
    ]);
    let socket = client(address);
    socket
        .send(b"not a measured payload, whatever it is")
        .unwrap();
    let (status, stdout, stderr) = peer.wait();
    assert_eq!(status.code(), Some(0), "{stderr}");
    assert!(stdout.starts_with("received 0"), "{stdout}");
    socket.set_nonblocking(true).unwrap();
    assert!(socket.recv(&mut [0; 64]).is_err());
    let report: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report["total"]["foreign"], 1);
}

#[test]
fn a_source_sends_to_each_address_that_has_sent() {
    let (peer, address) = peer(&["--source", "1k/s", "--size", "200"]);
    let socket = client(address);
    socket.send(b"hello").unwrap();
    let mut buffer = [0; 2048];
    for _ in 0..100 {
        assert_eq!(socket.recv(&mut buffer).unwrap(), 200);
    }
    peer.signal("TERM");
    assert_eq!(peer.wait().0.code(), Some(0));
}

#[test]
fn a_port_in_use_is_named_with_what_to_do() {
    let taken = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let output = run(&["peer", "--listen", &address, "--duration", "1s"]);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(
        text.contains(&address) && text.contains("--listen"),
        "{text}"
    );
    assert_eq!(stdout(&output), "");
}

#[test]
fn wrong_arguments_have_status_2() {
    for args in [
        &["--listen", "nowhere"][..],
        &["--listen", "127.0.0.1:9-8"],
        &["--threads", "0"],
        &["--sink", "--source", "1k/s"],
        &["--source", "0"],
        &["--source", "fast"],
        &["--source", "1k/s", "--size", "10"],
        &["--size", "100"],
        &["--duration", "soon"],
    ] {
        let output = run(&[&["peer"][..], args].concat());
        assert_eq!(
            output.status.code(),
            Some(2),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}
