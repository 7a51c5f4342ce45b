//! Clients over TCP that do not read, or hardly send: what others notice of them.

use crate::common::stream::StreamLink;
use crate::common::{
    Client, Got, PASSWORD, StopAtEnd, USER, at, eventually, ip, measure_alone, resident, socket,
    start,
};
use hairpin_server::connections::{EndReason, StreamSettings};
use hairpin_server::{Builder, Running, Server};
use std::io::Write as _;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stun::{Class, Method, TransactionId};

/// Round trips that a percentile is taken of.
const SAMPLES: usize = 1_000;

/// On a busy machine, a thread waits this long for a processor even in calm.
const NOISE: Duration = Duration::from_millis(10);

fn builder() -> Builder {
    Server::builder()
        .listen(at("127.0.0.1:0"))
        .listen_tcp(at("127.0.0.1:0"))
        .relay_address(ip("127.0.0.1"))
        .user(USER, PASSWORD)
        .allow_peers("127.0.0.0/8".parse().expect("a network"))
        .workers(1)
}

fn tcp(server: &Running) -> StreamLink {
    StreamLink::tcp(server.tcp_listeners()[0])
}

/// A client and its peer.
struct Pair {
    client: Client,
    peer: UdpSocket,
    relayed: std::net::SocketAddr,
}

impl Pair {
    fn new(mut client: Client) -> Pair {
        let relayed = client.allocate();
        let peer = socket("127.0.0.1:0");
        assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
        Pair {
            client,
            peer,
            relayed,
        }
    }

    fn round_trip(&self) -> Duration {
        let begun = Instant::now();
        self.client.send(0x4000, &[7; 120]);
        let mut buffer = [0; 120];
        self.peer.recv_from(&mut buffer).expect("data");
        self.peer.send_to(&buffer, self.relayed).expect("sent");
        assert_eq!(self.client.got(), Got::Channel(0x4000, vec![7; 120]));
        begun.elapsed()
    }

    /// The 99th percentile of round trips.
    fn p99(&self) -> Duration {
        let mut times: Vec<Duration> = (0..SAMPLES).map(|_| self.round_trip()).collect();
        times.sort();
        times[SAMPLES * 99 / 100]
    }
}

#[test]
fn a_flood_to_a_client_that_does_not_read_costs_others_little() {
    let _alone = measure_alone();
    let server = start(builder());
    let others = [
        Pair::new(Client::stream(tcp(&server))),
        Pair::new(Client::new(server.listeners()[0])),
    ];
    let calm = others.each_ref().map(Pair::p99);
    let deaf = Pair::new(Client::stream(tcp(&server)));
    let before = resident();
    let (stop, sent, queued) = (
        &AtomicBool::new(false),
        &AtomicU64::new(0),
        &AtomicU64::new(0),
    );
    let flooded = std::thread::scope(|scope| {
        let stopper = StopAtEnd(stop);
        scope.spawn(|| {
            // At least 72 MB: four times what the server may use.
            while !stop.load(Ordering::Relaxed) || sent.load(Ordering::Relaxed) < 60_000 {
                deaf.peer.send_to(&[1; 1_200], deaf.relayed).expect("sent");
                let number = sent.fetch_add(1, Ordering::Relaxed);
                if number.is_multiple_of(64) {
                    let now = server.stats().streams().queued_bytes_now;
                    queued.fetch_max(now, Ordering::Relaxed);
                }
            }
        });
        let flooded = others.each_ref().map(Pair::p99);
        drop(stopper);
        flooded
    });
    let grown = resident().saturating_sub(before);
    let (sent, queued) = (sent.load(Ordering::Relaxed), queued.load(Ordering::Relaxed));
    println!("p99 over TCP and UDP in calm {calm:?}, in a flood of {sent} datagrams {flooded:?}");
    println!("at most {queued} bytes queued; {grown} bytes of memory more");
    let limit = StreamSettings::default().queue_bytes as u64;
    assert!(queued > limit / 4, "the client's socket is full: {queued}");
    assert!(queued <= limit + 2_048, "{queued}");
    // The queue uses 4 MB, its chunks and the allocator some more. The worker touches up to 8 MB of receive buffers for
    // the first time.
    assert!(grown < 24 << 20, "{grown}");
    for (calm, flooded) in calm.iter().zip(flooded) {
        assert!(flooded <= (*calm * 2).max(NOISE), "{calm:?} {flooded:?}");
    }
    let streams = server.stats().streams();
    assert!(streams.dropped_bytes + streams.dropped_age > 10_000);
}

#[test]
fn slow_and_silent_connections_keep_nothing_and_nobody_waits() {
    let _alone = measure_alone();
    let deadline = Duration::from_secs(3);
    let mut limits = StreamSettings::default();
    limits.message_deadline = deadline;
    let server = start(builder().streams(limits));
    let honest = Pair::new(Client::stream(tcp(&server)));
    honest.p99();
    let before = resident();
    let mut slow: Vec<StreamLink> = (0..500).map(|_| tcp(&server)).collect();
    let begun = Instant::now();
    let mut request = [0; 20];
    let id = TransactionId([1; 12]);
    let _ = stun::Builder::new(&mut request, Class::Request, Method::ALLOCATE, &id)
        .expect("room")
        .finish();
    for byte in request {
        for link in &mut slow {
            // It may be closed by now.
            let _ = link.socket.write_all(&[byte]);
        }
        let p99 = Pair::new(Client::stream(tcp(&server))).round_trip();
        assert!(p99 < Duration::from_secs(1), "{p99:?}");
        std::thread::sleep(deadline / 8);
    }
    let ended = || server.stats().streams().ended(EndReason::MessageDeadline);
    eventually("all have ended", || ended() == 500);
    assert!(begun.elapsed() < deadline * 4);
    let flooded = honest.p99();
    let grown = resident().saturating_sub(before);
    println!("{grown} bytes of memory more; p99 afterwards {flooded:?}");
    assert!(grown < 8 << 20, "{grown}");
    eventually("all are forgotten", || {
        server.stats().streams().unproven_now == 0
    });
}
