//! Receive coalescing: under load, a worker reads a UDP socket for SIP at intervals.

use crate::sip_client::link::serve;
use crate::sip_client::{Client, options, status};
use hairpin_server::sip::SipSettings;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// 20,000 requests per second, for half a second.
const REQUESTS: u32 = 10_000;
const EACH: Duration = Duration::from_micros(50);

/// More requests without a response would overflow the receive buffer of the client on a busy machine.
const MAX_IN_FLIGHT: u32 = 100;
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

#[test]
fn under_load_a_worker_wakes_up_for_several_messages_at_once() {
    let (server, _) = serve(SipSettings::default(), 1);
    let address = server.sip_listeners()[0];
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(address).expect("a route");
    let receiver = socket.try_clone().expect("a descriptor");
    let wake_ups = || server.stats().counters().wake_ups;
    let before = wake_ups();
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
        let request = options(&format!("load{number}"), "UDP", "");
        socket.send(request.as_bytes()).expect("sent");
    }
    reader.join().expect("no panic");
    let woken = wake_ups() - before;
    assert_eq!(answered.load(Ordering::Relaxed), REQUESTS);
    assert!(woken * 2 < u64::from(REQUESTS), "{woken} wake-ups");

    // The load has ended, and coalescing with it: nothing wakes the worker, and it answers.
    let before = wake_ups();
    std::thread::sleep(Duration::from_millis(200));
    let woken = wake_ups() - before;
    assert!(woken < 30, "{woken} wake-ups while nothing happened");
    let client = Client::new(address);
    for _ in 0..5 {
        assert_eq!(status(&client.ask(&options("calm", "UDP", ""))), 200);
    }
}
