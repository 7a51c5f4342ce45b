//! A server that gets far more than it can do, over real sockets: it goes on doing what it can, and finishes what it
//! has begun.

use crate::sip_client::{serve, status, test_uas};
use hairpin_server::sip::WeightedSource;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What the application takes for each request: few enough of them fit into a second that a flood is no effort.
const WORK: Duration = Duration::from_millis(2);
/// So long each load lasts.
const LOAD: Duration = Duration::from_secs(2);
/// So often the two are compared: whatever else the machine does in one of them falls upon the other one the next time.
const ATTEMPTS: usize = 5;
/// What cannot be done within this time on any machine is not done at all.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

fn socket(server: SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    socket.connect(server).expect("a route");
    socket
        .set_read_timeout(Some(Duration::from_millis(500)))
        .expect("a timeout");
    socket
}

fn request(method: &str, id: &str, cseq: u32, to_tag: &str) -> String {
    format!(
        "{method} sip:bob@127.0.0.1 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;rport;branch=z9hG4bK{id}{method}\r\n\
         From: <sip:a@example.org>;tag=1\r\nTo: <sip:bob@127.0.0.1>{to_tag}\r\nCall-ID: {id}@test\r\nCSeq: {cseq} {method}\r\n\
         Max-Forwards: 70\r\nContact: <sip:a@192.0.2.1>\r\nContent-Length: 0\r\n\r\n"
    )
}

/// Final responses of this code that are there.
fn answers(socket: &UdpSocket, code: u16) -> usize {
    let mut buffer = [0; 4096];
    let mut count = 0;
    while let Ok(length) = socket.recv(&mut buffer) {
        let text = String::from_utf8_lossy(&buffer[..length]);
        count += usize::from(status(&text) == code);
    }
    count
}

/// Registrations that succeed if `window` are in progress at a time; `id` is in all that they are known by.
fn closed_loop(server: SocketAddr, window: usize, id: usize) -> usize {
    let socket = socket(server);
    let until = Instant::now() + LOAD;
    let mut succeeded = 0;
    let mut number = 0;
    let mut begin = || {
        number += 1;
        let request = request("REGISTER", &format!("loop{id}.{number}"), 1, "");
        socket.send(request.as_bytes()).expect("sent");
    };
    (0..window).for_each(|_| begin());
    let mut buffer = [0; 4096];
    while Instant::now() < until {
        if socket.recv(&mut buffer).is_ok() {
            succeeded += 1;
            begin();
        }
    }
    succeeded
}

/// As many registrations as can be sent until told to stop; how many succeeded.
fn flood(server: SocketAddr, id: usize, stop: &AtomicBool) -> usize {
    let socket = socket(server);
    socket.set_nonblocking(true).expect("a flag");
    let (mut succeeded, mut number) = (0, 0u64);
    while !stop.load(Ordering::Relaxed) {
        for _ in 0..64 {
            number += 1;
            let request = request("REGISTER", &format!("flood{id}.{number}"), 1, "");
            // A full buffer of our own is no matter.
            let _ = socket.send(request.as_bytes());
        }
        succeeded += answers(&socket, 200);
    }
    succeeded
}

/// Sends until the final response comes, as a client does.
fn insist(socket: &UdpSocket, request: &str) -> String {
    let until = Instant::now() + TEST_TIMEOUT;
    let mut buffer = [0; 4096];
    while Instant::now() < until {
        socket.send(request.as_bytes()).expect("sent");
        while let Ok(length) = socket.recv(&mut buffer) {
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            if status(&text) >= 200 {
                return text;
            }
        }
    }
    panic!("no answer to {request}");
}

fn to_tag(response: &str) -> String {
    let to = response.lines().find(|line| line.starts_with("To:"));
    let tag = to.and_then(|to| to.split_once(";tag="));
    format!(";tag={}", tag.expect("a tag of the server").1.trim())
}

/// The goodput without a flood. Meanwhile another flood goes to a socket that nobody reads. Its sender takes as
/// much processor time from the server as the sender of the flood that is tested.
fn peak(address: SocketAddr, number: usize) -> usize {
    let unread = UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let sink = unread.local_addr().expect("bound");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(sink, number, &stop));
        let succeeded = closed_loop(address, 8, number);
        stop.store(true, Ordering::Relaxed);
        assert_eq!(flooding.join().expect("no panic"), 0);
        succeeded
    })
}

/// How many registrations of a flood succeed, during which a call ends that was there before.
fn goodput_around_a_call(address: SocketAddr, caller: &UdpSocket, number: usize) -> usize {
    let id = format!("call{number}");
    let answer = insist(caller, &request("INVITE", &id, 1, ""));
    assert_eq!(status(&answer), 200);
    let tag = to_tag(&answer);
    caller
        .send(request("ACK", &id, 1, &tag).as_bytes())
        .expect("sent");
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let flooding = scope.spawn(|| flood(address, number, &stop));
        std::thread::sleep(LOAD / 2);
        let bye = insist(caller, &request("BYE", &id, 2, &tag));
        assert_eq!(status(&bye), 200);
        std::thread::sleep(LOAD / 2);
        stop.store(true, Ordering::Relaxed);
        flooding.join().expect("no panic")
    })
}

#[test]
fn a_flood_costs_little_of_the_goodput_and_calls_end_meanwhile() {
    let mut settings = test_uas();
    settings.service_time = WORK;
    // All comes from one address.
    settings.requests_per_source = 0;
    let server = serve(settings, 1);
    let address = server.sip_listeners()[0];
    let caller = socket(address);
    let mut seen = Vec::new();
    // Wide: whatever else runs on this machine takes from either.
    let costs_little = (0..ATTEMPTS).any(|attempt| {
        let peak = peak(address, attempt);
        if peak == 0 {
            return false;
        }
        let goodput = goodput_around_a_call(address, &caller, attempt);
        seen.push((goodput, peak));
        goodput * 2 >= peak
    });
    let sip = server.stats().sip();
    let shed = sip.shed_refused + sip.shed_dropped + sip.shed_by_kernel + sip.shed_by_filter;
    assert!(shed > 0);
    assert!(costs_little, "goodput and peak: {seen:?}, {sip:?}");

    // Afterwards all is as before.
    let after = insist(&caller, &request("REGISTER", "after", 1, ""));
    assert!(matches!(status(&after), 200 | 503), "{after}");
    let until = Instant::now() + TEST_TIMEOUT;
    let mut number = 0;
    while status(&insist(
        &caller,
        &request("REGISTER", &format!("calm{number}"), 1, ""),
    )) != 200
    {
        number += 1;
        assert!(Instant::now() < until);
    }
}

#[test]
fn requests_beyond_the_limit_of_a_source_get_503_and_those_of_a_peer_do_not() {
    const REQUESTS: usize = 32;
    for is_peer in [false, true] {
        let mut settings = test_uas();
        // One in 250 ms. The worker handles up to 16 that wait as of one time.
        settings.requests_per_source = 1;
        if is_peer {
            settings.peers = vec![WeightedSource {
                address: [127, 0, 0, 1].into(),
                prefix: 32,
                weight: 1,
            }];
        }
        let server = serve(settings, 1);
        let client = socket(server.sip_listeners()[0]);
        for number in 0..REQUESTS {
            let request = request("OPTIONS", &format!("limit{number}"), 1, "");
            client.send(request.as_bytes()).expect("sent");
        }
        let (mut accepted, mut refused) = (0, 0);
        let mut buffer = [0; 4096];
        client
            .set_read_timeout(Some(TEST_TIMEOUT))
            .expect("a timeout");
        for _ in 0..REQUESTS {
            let length = client.recv(&mut buffer).expect("a response to each");
            let text = String::from_utf8_lossy(&buffer[..length]);
            match status(&text) {
                200 => accepted += 1,
                503 if text.contains("\r\nRetry-After: ") => refused += 1,
                _ => panic!("{text}"),
            }
        }
        assert!(accepted > 0);
        assert_eq!(refused > 0, !is_peer, "{accepted} accepted");
    }
}
