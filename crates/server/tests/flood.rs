//! Garbage and unauthenticated requests from many sources: no memory, and no harm to a client that is served.

mod common;

use common::{Client, Got, Random, StopAtEnd, loopback, resident, socket, start};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stun::{Builder, Class, Lifetime, Method, RequestedTransport, TransactionId, Username};
use turn::server::DropReason;

/// Random bytes, broken STUN, ChannelData to nobody, and requests without or with wrong credentials.
fn garbage(random: &mut Random, buffer: &mut [u8; 256]) -> usize {
    let kind = random.next() % 6;
    let length = 20 + (random.next() % 200) as usize;
    let mut id = [0; 12];
    buffer
        .chunks_mut(8)
        .for_each(|chunk| chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]));
    id.copy_from_slice(&buffer[..12]);
    let id = TransactionId(id);
    match kind {
        0 => return length,
        1 => buffer[0] = 0x40,
        2 => buffer[..8].copy_from_slice(&[0, 3, 0, 200, 0x21, 0x12, 0xa4, 0x42]),
        _ => {
            let method = [Method::ALLOCATE, Method::REFRESH, Method::BINDING][(kind % 3) as usize];
            let mut builder = Builder::new(buffer, Class::Request, method, &id).expect("room");
            builder
                .push(&RequestedTransport::UDP)
                .and_then(|b| b.push(&Lifetime(600)))
                .expect("room");
            if random.next().is_multiple_of(2) {
                builder
                    .push(&Username("nobody"))
                    .and_then(|b| b.integrity(&stun::HmacKey::sha1(b"wrong")))
                    .expect("room");
            }
            return builder.finish().len();
        }
    }
    length
}

/// Sends `count` datagrams from all `sources` in turn, at most as fast as the server takes them.
fn flood(sources: &[UdpSocket], server: SocketAddr, count: usize, random: &mut Random) {
    let mut buffer = [0; 256];
    for i in 0..count {
        let length = garbage(random, &mut buffer);
        // A full queue at our own end is as good as sent.
        let _ = sources[i % sources.len()].send_to(&buffer[..length], server);
        if i % 64 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
    }
}

#[test]
fn a_flood_of_unknown_sources_uses_no_memory_and_clients_lose_no_data() {
    const DATAGRAMS: usize = 300_000;
    let server = start(loopback(2));
    let listener = server.listeners()[0];
    let sources: Vec<UdpSocket> = (0..200)
        .map(|i| {
            let source = socket(&format!("127.3.{}.{}:0", i / 100, 1 + i % 100));
            source.set_nonblocking(true).expect("an option");
            source
        })
        .collect();
    let peer = socket("127.0.0.1:0");
    let mut client = Client::new(listener);
    let relayed = client.allocate();
    assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    flood(&sources, listener, 40_000, &mut random);

    let before = resident();
    let (stop, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    let elapsed = std::thread::scope(|scope| {
        let _stopper = StopAtEnd(&stop);
        let (stop, rounds, peer) = (&stop, &rounds, &peer);
        scope.spawn(move || {
            let mut buffer = [0; 64];
            while !stop.load(Ordering::Relaxed) {
                client.send(0x4000, b"ping");
                assert_eq!(
                    peer.recv_from(&mut buffer).expect("not lost in the flood"),
                    (4, relayed)
                );
                peer.send_to(b"pong", relayed).expect("sent");
                assert_eq!(client.got(), Got::Channel(0x4000, b"pong".to_vec()));
                rounds.fetch_add(1, Ordering::Relaxed);
            }
        });
        let start = Instant::now();
        flood(&sources, listener, DATAGRAMS, &mut random);
        start.elapsed()
    });
    let grown = resident().saturating_sub(before);
    let stats = server.stats();
    let reasons = DropReason::ALL.iter();
    let drops: u64 = reasons.map(|&reason| stats.dropped(reason)).sum();
    println!(
        "{DATAGRAMS} strangers in {elapsed:?}: memory grew by {grown} bytes, {drops} dropped with a reason, {} got 401, {} round trips meanwhile",
        stats.errors_with(401),
        rounds.load(Ordering::Relaxed)
    );
    assert!(grown <= 4 << 20, "resident memory grew by {grown} bytes");
    assert!(rounds.load(Ordering::Relaxed) > 100);
    assert!(
        drops > DATAGRAMS as u64 / 4 && stats.errors_with(401) > DATAGRAMS as u64 / 10,
        "{stats:?}"
    );
    assert_eq!(stats.allocations(), 1);
}
