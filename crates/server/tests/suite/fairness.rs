//! However busy some sockets are, at every wake-up the others and the timers get their share.
//!
//! The server runs on the test's own thread, one wake-up at a time, so what each of them does can be counted.

use crate::common::local::Crowd;
use hairpin_server::{Server, Settings};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// More than a worker takes at once, and as much as a socket's buffer holds.
const FLOOD: usize = 250;

/// What came to the clients and to their peer, which are one socket, at one wake-up.
#[derive(Debug, Default)]
struct Arrived {
    /// From relayed addresses to the peer.
    at_peer: usize,
    /// On each client's path.
    at_client: Vec<usize>,
}

/// One wake-up of the server.
fn wake(crowd: &mut Crowd, clients: usize) -> Arrived {
    crowd.server.turn(Duration::ZERO).expect("epoll works");
    let paths: Vec<SocketAddr> = (0..clients).map(|client| crowd.server_of(client)).collect();
    let mut arrived = Arrived {
        at_client: vec![0; clients],
        ..Arrived::default()
    };
    let mut buffer = [0; 2048];
    loop {
        match crowd.socket.recv_from(&mut buffer) {
            Ok((_, from)) => match paths.iter().position(|path| *path == from) {
                Some(client) => arrived.at_client[client] += 1,
                None => arrived.at_peer += 1,
            },
            Err(error) if error.kind() == ErrorKind::WouldBlock => return arrived,
            Err(error) => panic!("{error}"),
        }
    }
}

/// ChannelData on the channel that each client of the crowd has.
fn channel_data() -> [u8; 8] {
    [0x40, 0, 0, 4, 1, 2, 3, 4]
}

/// Sends as much as fits.
fn flood(crowd: &Crowd, to: SocketAddr, datagram: &[u8]) {
    for _ in 0..FLOOD {
        crowd.socket.send_to(datagram, to).expect("sent");
    }
}

/// A relay and the listener are flooded without end. Each other relay's datagram passes at once, and what expires
/// expires.
#[test]
fn floods_leave_other_flows_and_timers_alone() {
    let mut settings = Settings::default();
    settings.default_lifetime = Duration::from_secs(1);
    let mut crowd = Crowd::of(Server::builder().settings(settings));
    crowd.allocate(0..3, &mut |turn| turn());
    let begun = Instant::now();
    crowd.allocate_only(3, None, &mut |turn| turn());
    assert_eq!(crowd.server.stats().relays_open, 4);
    let (mut wake_ups, mut open) = (0, 4);
    while open == 4 {
        flood(&crowd, crowd.relayed(0), b"flood");
        flood(&crowd, crowd.server_of(1), &channel_data());
        crowd
            .socket
            .send_to(b"quiet", crowd.relayed(2))
            .expect("sent");
        let over_before = begun.elapsed();
        let arrived = wake(&mut crowd, 3);
        wake_ups += 1;
        assert_eq!(arrived.at_client[2], 1, "wake-up {wake_ups}: {arrived:?}");
        assert!(
            arrived.at_client[0] >= 32 && arrived.at_peer >= 32,
            "{arrived:?}"
        );
        open = crowd.server.stats().relays_open;
        // A second, of which the server's clock may have seen a little less at the start.
        let late = over_before > Duration::from_millis(1_050);
        assert!(
            !late || open == 3,
            "its time was over {over_before:?} after it began"
        );
    }
    assert!(
        begun.elapsed() >= Duration::from_millis(990),
        "not before its time"
    );
    assert!(wake_ups > 20, "{wake_ups} wake-ups");
}

/// Relays with one datagram each fill a batch but for a few places; the listener is ready last, and gets more than
/// those.
#[test]
fn the_listener_has_its_share_behind_any_number_of_relays() {
    for relays in [1, 3, 31, 60, 63, 64, 65, 100] {
        let mut crowd = Crowd::new();
        crowd.allocate(0..relays, &mut |turn| turn());
        // What is ready first comes first, now and as long as it is ready at every wake-up: the listener forgets its
        // place.
        wake(&mut crowd, relays);
        for round in 0..20 {
            for relay in 0..relays {
                crowd
                    .socket
                    .send_to(b"busy", crowd.relayed(relay))
                    .expect("sent");
            }
            if round == 0 {
                flood(&crowd, crowd.server_of(0), &channel_data());
            }
            for _ in 0..32 {
                let to = crowd.server_of(0);
                crowd.socket.send_to(&channel_data(), to).expect("sent");
            }
            let arrived = wake(&mut crowd, relays);
            assert!(
                arrived.at_peer >= 32 && arrived.at_client.iter().all(|count| *count > 0),
                "{relays} relays, round {round}: {arrived:?}"
            );
        }
    }
}

/// Whichever of two relays is read first, what it had does not eat the other's place.
#[test]
fn a_few_busy_relays_share_alike() {
    for (few, many) in [(0, 1), (1, 0)] {
        for first in [10, 40, 63] {
            let mut crowd = Crowd::new();
            crowd.allocate(0..2, &mut |turn| turn());
            wake(&mut crowd, 2);
            for round in 0..5 {
                for _ in 0..first {
                    crowd
                        .socket
                        .send_to(b"few", crowd.relayed(few))
                        .expect("sent");
                }
                for _ in 0..if round == 0 { FLOOD } else { 32 } {
                    crowd
                        .socket
                        .send_to(b"many", crowd.relayed(many))
                        .expect("sent");
                }
                let arrived = wake(&mut crowd, 2).at_client;
                assert!(
                    arrived[few] > 0 && arrived[many] >= 32,
                    "{first} at relay {few}, round {round}: {arrived:?}"
                );
            }
        }
    }
}
