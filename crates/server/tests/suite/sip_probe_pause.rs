//! A trunk answers a probe with 503 and Retry-After.

use crate::sip_client::phone::value;
use crate::sip_routes::{Carrier, Peer, response, route, serve, settings};
use hairpin_server::sip::Trunk;
use hairpin_server::sip::routes::{NextHop, ProbeConfig};
use std::collections::HashSet;
use std::net::UdpSocket;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The Retry-After of the trunk.
const PAUSE: Duration = Duration::from_secs(3);
/// Longer than anything here takes.
const LIMIT: Duration = Duration::from_secs(60);

/// What has happened at the trunk.
#[derive(Default)]
struct Log {
    /// When it sent the 503.
    refused: Option<Instant>,
    probes_after: u32,
    calls: Vec<Instant>,
    seen: HashSet<String>,
}

/// Answers the first OPTIONS with 503, and every later request with 200. It ends with the test.
fn answer(socket: &UdpSocket, log: &Mutex<Log>) {
    let mut buffer = vec![0; 65_536];
    while let Ok((len, from)) = socket.recv_from(&mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..len]).into_owned();
        let now = Instant::now();
        let mut log = log.lock().unwrap();
        let is_new = log.seen.insert(value(&text, "Via").to_owned());
        let is_probe = text.starts_with("OPTIONS ");
        let answer = match (is_new, is_probe, log.refused) {
            // A repeated probe: its response was lost or is late. It gets no second one, so that one 503 counts.
            (false, true, _) => continue,
            (true, true, None) => {
                log.refused = Some(now);
                let line = format!("Retry-After: {}\r\nContent-Length", PAUSE.as_secs());
                response(&text, 503).replace("Content-Length", &line)
            }
            (true, true, Some(_)) => {
                log.probes_after += 1;
                response(&text, 200)
            }
            (_, false, _) => {
                log.calls.push(now);
                response(&text, 200)
            }
        };
        drop(log);
        socket.send_to(answer.as_bytes(), from).expect("sent");
    }
}

#[test]
fn a_probe_that_gets_503_with_retry_after_ends_calls_for_that_time_rfc3261_20_33() {
    let socket = UdpSocket::bind("127.0.0.61:0").expect("a socket");
    let to = format!("sip:{}", socket.local_addr().expect("an address"));
    let log = Arc::new(Mutex::new(Log::default()));
    let shared = Arc::clone(&log);
    std::thread::spawn(move || answer(&socket, &shared));
    let paused = Trunk {
        name: "paused".to_owned(),
        to: vec![NextHop::new(&to).expect("a next hop")],
        probe: ProbeConfig {
            interval: Duration::from_millis(200),
            failures: 3,
            successes: 2,
            slow_start: Duration::ZERO,
        },
        ..Trunk::default()
    };
    let other = Carrier::new("127.0.0.62", &[(0, 200)]);
    let caller = Trunk {
        name: "caller".to_owned(),
        addresses: vec!["127.0.0.63/32".parse().expect("a network")],
        ..Trunk::default()
    };
    let mut route = route("+49", &["paused", "other"]);
    route.from_trunks = vec!["caller".to_owned()];
    let trunks = vec![paused, other.trunk("other"), caller];
    let server = serve(settings(trunks, vec![route]));
    let end = Instant::now() + LIMIT;
    loop {
        let trunks = server.observer().sip_trunks();
        let (_, counts) = trunks.iter().find(|it| it.0 == "paused").expect("a trunk");
        if counts.probes_failed > 0 {
            let refused = log.lock().unwrap().refused.expect("a 503");
            // One failure is enough. The machine may have stopped for longer than the pause.
            assert!(counts.available == 0 || refused.elapsed() >= PAUSE);
            break;
        }
        assert!(Instant::now() < end, "no probe");
        std::thread::sleep(Duration::from_millis(5));
    }
    let peer = Peer::new("127.0.0.63", &server);
    for number in 0.. {
        let call = format!("pause{number}");
        peer.send("MESSAGE", "sip:+4930@example.com", &call, "");
        let answer = loop {
            assert!(Instant::now() < end, "no response to {call}");
            let text = peer.receive().unwrap_or_default();
            if text.contains(&call) {
                break text;
            }
        };
        assert!(answer.starts_with("SIP/2.0 200 "), "{answer}");
        if !log.lock().unwrap().calls.is_empty() {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = log.lock().unwrap();
    let refused = log.refused.expect("a 503");
    let waited = log.calls[0].duration_since(refused);
    assert!(waited >= PAUSE, "a call came after {waited:?}");
    // Probes go on, and their success does not end the pause.
    assert!(log.probes_after > 2, "{}", log.probes_after);
}
