//! Receive coalescing: under load, a worker reads a UDP socket for SIP with pauses.

use crate::sip_client::link::serve;
use crate::sip_client::{Client, options, status};
use hairpin_server::sip::SipSettings;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// 20,000 requests per second, for half a second.
const REQUESTS: u32 = 10_000;
const EACH: Duration = Duration::from_micros(50);

/// More requests without a response would overflow the receive buffer of the client on a busy machine.
const MAX_IN_FLIGHT: u32 = 100;
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Coalescing begins at 8,000 datagrams per second. If a busy machine sends fewer requests per second than `MIN_RATE`,
/// which leaves a margin, the test sends them again.
const MIN_RATE: u32 = 12_000;
const ATTEMPTS: u32 = 5;

/// Sends the requests, and returns how many it sent per second. All of them get a response.
fn send_requests(address: SocketAddr, attempt: u32) -> u32 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(address).expect("a route");
    let receiver = socket.try_clone().expect("a descriptor");
    let answered = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&answered);
    let reader = std::thread::spawn(move || {
        let timeout = Some(Duration::from_secs(1));
        receiver.set_read_timeout(timeout).expect("a socket");
        let mut buffer = [0; 2048];
        while receiver.recv(&mut buffer).is_ok() {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    });
    let start = Instant::now();
    for number in 0..REQUESTS {
        while start.elapsed() < EACH * number
            || number - answered.load(Ordering::Relaxed) > MAX_IN_FLIGHT
        {
            assert!(start.elapsed() < TEST_TIMEOUT, "{number} requests sent");
            std::thread::yield_now();
        }
        let request = options(&format!("load{attempt}-{number}"), "UDP", "");
        socket.send(request.as_bytes()).expect("sent");
    }
    let rate = f64::from(REQUESTS) / start.elapsed().as_secs_f64();
    reader.join().expect("no panic");
    assert_eq!(answered.load(Ordering::Relaxed), REQUESTS);
    rate as u32
}

#[test]
fn under_load_a_worker_wakes_up_for_several_messages_at_once() {
    let (server, _) = serve(SipSettings::default(), 1);
    let address = server.sip_listeners()[0];
    let wake_ups = || server.stats().counters().wake_ups;
    let mut rates = Vec::new();
    while rates.last().is_none_or(|rate| *rate < MIN_RATE) {
        assert!(
            rates.len() < ATTEMPTS as usize,
            "requests per second: {rates:?}"
        );
        let before = wake_ups();
        let rate = send_requests(address, rates.len() as u32);
        let woken = wake_ups() - before;
        assert!(
            rate < MIN_RATE || woken * 2 < u64::from(REQUESTS),
            "{woken} wake-ups"
        );
        rates.push(rate);
    }

    // The load has ended, and coalescing with it. The idle worker is not woken, and it still responds to requests.
    let before = wake_ups();
    std::thread::sleep(Duration::from_millis(200));
    let woken = wake_ups() - before;
    assert!(woken < 30, "{woken} wake-ups while nothing happened");
    let client = Client::new(address);
    for _ in 0..5 {
        assert_eq!(status(&client.ask(&options("calm", "UDP", ""))), 200);
    }
}
