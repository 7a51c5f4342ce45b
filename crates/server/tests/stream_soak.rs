//! Clients over UDP, TCP, TLS and DTLS that come, vanish, flap, roam, lie and do not read: whoever behaves is served,
//! and nothing is left behind.
//!
//! `HAIRPIN_SOAK=20m cargo test --release -p hairpin-server --test stream_soak -- --nocapture` runs it for longer.
//! Seconds without a unit.

mod common;
mod soak_clients;

use common::dtls::DtlsLink;
use common::stream::StreamLink;
use common::{
    Client, Got, PASSWORD, Random, StopAtEnd, USER, at, private_loopback, resident, socket, start,
};
use hairpin_server::certificates::Certificates;
use hairpin_server::connections::{EndReason, StreamSettings};
use hairpin_server::offload::{Offload, OffloadMode};
use hairpin_server::rustls::ClientConfig;
use hairpin_server::{Running, Server, Settings};
use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stun::{Class, Method, TransactionId};

/// Threads of clients that misbehave.
const CLIENTS: u64 = 6;

/// How long it runs unless `HAIRPIN_SOAK` says otherwise.
const DURATION: Duration = Duration::from_secs(10);

/// The longest time that a server on a busy machine takes for the end of connections whose deadlines are at most
/// [`IDLE_TIMEOUT`].
const END: Duration = Duration::from_secs(30);

/// Deadlines of connections and lifetimes of allocations, so that what vanishes ends within the test.
const IDLE_TIMEOUT: Duration = Duration::from_secs(2);

/// The figures of [`Lab::held`].
const HELD: usize = 13;

/// In the kernel where it can be, so that entries of its tables come and go, too.
fn offload() -> Offload {
    let mut offload = Offload::default();
    offload.mode = OffloadMode::Auto;
    offload
}

struct Lab {
    server: Running,
    tls: Arc<ClientConfig>,
    dtls: Arc<dtls::ClientConfig>,
}

impl Lab {
    fn new() -> Lab {
        let (certificates, dtls): (Certificates, _) = common::dtls::configs();
        let (server, tls) = common::stream::configs();
        let mut streams = StreamSettings::default();
        (streams.message_deadline, streams.idle) = (IDLE_TIMEOUT, IDLE_TIMEOUT);
        // All come from one address, and DTLS clients that vanish count until the idle timeout.
        (streams.connections, streams.connections_per_source) = (200_000, 200_000);
        let mut settings = Settings::default();
        settings.default_lifetime = IDLE_TIMEOUT;
        let builder = Server::builder()
            .settings(settings)
            .streams(streams)
            .kernel_relay(offload())
            .listen(at("127.0.0.1:0"))
            .listen_tcp(at("127.0.0.1:0"))
            .listen_tls(at("127.0.0.1:0"))
            .listen_dtls(at("127.0.0.1:0"))
            .certificates(certificates)
            .tls(server)
            .relay_address(private_loopback(1))
            .user(USER, PASSWORD)
            .allow_peers("127.0.0.0/8".parse().expect("a network"))
            .workers(2);
        let server = start(builder);
        Lab { server, tls, dtls }
    }

    fn tcp(&self) -> StreamLink {
        StreamLink::tcp(self.server.tcp_listeners()[0])
    }

    fn raw_tls(&self) -> TcpStream {
        StreamLink::tcp(self.server.tls_listeners()[0]).socket
    }

    /// A client over TCP, TLS or DTLS.
    fn client(&self, transport: u64) -> Client {
        match transport % 3 {
            0 => Client::stream(self.tcp()),
            1 => Client::stream(StreamLink::tls(self.server.tls_listeners()[0], &self.tls)),
            _ => {
                let server = self.server.dtls_listeners()[0];
                Client::dtls(DtlsLink::new(socket("127.0.0.1:0"), server, &self.dtls))
            }
        }
    }

    /// Connections, handshakes, allocations, relays, waiting bytes, entries of BPF tables, quota and ports that the
    /// server holds now.
    fn held(&self) -> [u64; HELD] {
        let stats = self.server.stats();
        let observer = self.server.observer();
        let (streams, dtls) = (stats.streams(), stats.dtls());
        [
            streams.tcp_now,
            streams.tls_now,
            streams.queued_bytes_now,
            dtls.connections_now,
            dtls.handshakes_now,
            stats.allocations(),
            stats.sum(|worker| worker.relays_open),
            stats.sum(|worker| worker.engine.permissions + worker.engine.channels),
            stats.sum(|worker| worker.engine.peer_connections + worker.engine.pending),
            stats.sum(|worker| worker.channels_offloaded),
            self.server.steered_flows() as u64,
            observer.relayed_addresses().0.into(),
            observer
                .ports(stun::AddressFamily::V4)
                .map_or(0, |ports| ports.in_use as u64),
        ]
    }

    fn wait_until_empty(&self) {
        let began = Instant::now();
        while self.held() != [0; HELD] {
            assert!(began.elapsed() < END, "still held: {:?}", self.held());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// `20m`, `90s` or `90`.
fn duration() -> Duration {
    let Ok(text) = std::env::var("HAIRPIN_SOAK") else {
        return DURATION;
    };
    let (number, unit) = match text.strip_suffix('m') {
        Some(minutes) => (minutes, 60),
        None => (text.trim_end_matches('s'), 1),
    };
    let number: u64 = number.parse().expect("HAIRPIN_SOAK is a time such as 20m");
    Duration::from_secs(number * unit)
}

fn binding() -> Vec<u8> {
    let mut buffer = [0; 20];
    let id = TransactionId([1; 12]);
    let builder = stun::Builder::new(&mut buffer, Class::Request, Method::BINDING, &id);
    builder.expect("room").finish().to_vec()
}

/// Peers, relays and the client over UDP have addresses of their own: at 127.0.0.1 a port that a vanished DTLS client
/// had before gets the alert of its connection.
fn peer() -> UdpSocket {
    socket(&format!("{}:0", private_loopback(2)))
}

/// Ends the connection by RST.
fn reset(socket: &TcpStream) {
    let socket = socket2::SockRef::from(socket);
    socket.set_linger(Some(Duration::ZERO)).expect("a socket");
}

/// One client that does one thing, chosen at random. `silent` are connections that stay open and send nothing more.
fn misbehave(lab: &Lab, random: &mut Random, silent: &mut VecDeque<StreamLink>) {
    let choice = random.next();
    let transport = random.next();
    match choice % 21 {
        0 => relays(soak_clients::allocated(|| lab.client(transport))),
        1 => vanishes_with_an_allocation(lab, transport),
        2 => sends(&lab.tcp().socket, &noise(random)),
        3 => sends(
            &lab.raw_tls(),
            &[&[22, 3, 1, 0, 9], &noise(random)[..]].concat(),
        ),
        4 => sends(&lab.tcp().socket, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
        5 => sends(
            &lab.tcp().socket,
            &binding()[..(random.next() % 20) as usize],
        ),
        6 => sends(
            &lab.raw_tls(),
            &[22, 3, 1, 2, 0, 1][..(random.next() % 7) as usize],
        ),
        7 => drop(lab.client(transport)),
        8 => does_not_read(lab),
        9 => half_closes(lab),
        10 => sends(&lab.tcp().socket, &binding().repeat(2_000)),
        11 => sends_garbage_within(lab, random),
        12 | 13 => soak_clients::roams(lab, random),
        14 => soak_clients::flaps(lab, random),
        15 | 16 => soak_clients::lies(lab, random),
        17 | 18 => soak_clients::connects_to_a_peer(lab, random),
        19 => relays(soak_clients::allocated(|| soak_clients::client(lab, 3))),
        _ => stays_silent(lab, random, silent),
    }
}

/// Stops within a message, or after one. Of 50 such connections the oldest ends, unless the server has ended it.
fn stays_silent(lab: &Lab, random: &mut Random, silent: &mut VecDeque<StreamLink>) {
    let mut link = lab.tcp();
    let length = 1 + random.next() as usize % 30;
    link.send(&binding().repeat(2)[..length]);
    silent.push_back(link);
    if silent.len() > 50 {
        silent.pop_front();
    }
}

fn noise(random: &mut Random) -> Vec<u8> {
    (0..random.next() % 300)
        .map(|_| random.next() as u8)
        .collect()
}

/// Sends these bytes and leaves, at times by RST. The server may have closed the connection before.
fn sends(mut socket: &TcpStream, bytes: &[u8]) {
    socket
        .set_write_timeout(Some(Duration::from_millis(100)))
        .expect("not zero");
    let _ = socket.write_all(bytes);
    if bytes.len().is_multiple_of(2) {
        reset(socket);
    }
}

/// Behaves: relays some data both ways, and releases its allocation.
fn relays((mut client, relayed): (Client, SocketAddr)) {
    let peer = peer();
    let to = peer.local_addr().expect("bound");
    assert_eq!(client.bind(0x4000, to), 0);
    let mut buffer = [0; 2048];
    for length in [1, 160, 1200] {
        client.send(0x4000, &vec![9; length]);
        let (received, from) = peer.recv_from(&mut buffer).expect("data");
        assert_eq!((received, from), (length, relayed));
        peer.send_to(&buffer[..received], relayed).expect("sent");
        assert_eq!(client.got(), Got::Channel(0x4000, vec![9; length]));
    }
    client.release();
}

fn vanishes_with_an_allocation(lab: &Lab, transport: u64) {
    let (client, _) = soak_clients::allocated(|| lab.client(transport));
    if transport % 3 != 2 && transport.is_multiple_of(2) {
        reset(&client.connection().socket);
    }
}

/// Has a peer that sends more than the client's socket holds, and reads nothing.
fn does_not_read(lab: &Lab) {
    let (mut client, relayed) = soak_clients::allocated(|| Client::stream(lab.tcp()));
    let peer = peer();
    assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
    for _ in 0..400 {
        peer.send_to(&[5; 1400], relayed).expect("sent");
    }
    std::thread::sleep(Duration::from_millis(5));
}

/// Sends a request and closes its direction. The server may answer before it closes the other one.
fn half_closes(lab: &Lab) {
    let mut socket = lab.tcp().socket;
    // The server may be quicker.
    let _ = socket.write_all(&binding());
    let _ = socket.shutdown(Shutdown::Write);
    let _ = socket.read_to_end(&mut Vec::new());
}

/// Completes the handshake of TLS or DTLS, and sends what is no STUN through it.
fn sends_garbage_within(lab: &Lab, random: &mut Random) {
    let client = lab.client(1 + random.next() % 2);
    client.transmit(&noise(random));
}

/// A client that behaves for the whole time. Returns the longest time that a round trip took.
fn behave(lab: &Lab, transport: u64, stop: &AtomicBool) -> Duration {
    let mut longest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let (mut client, relayed) =
            soak_clients::allocated(|| soak_clients::client(lab, transport));
        // A second, which is within the lifetime.
        let ends = Instant::now() + IDLE_TIMEOUT / 2;
        let peer = peer();
        assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
        while Instant::now() < ends && !stop.load(Ordering::Relaxed) {
            let sent = Instant::now();
            peer.send_to(&[7; 100], relayed).expect("sent");
            assert_eq!(client.got(), Got::Channel(0x4000, vec![7; 100]));
            longest = longest.max(sent.elapsed());
            std::thread::sleep(Duration::from_millis(10));
        }
        client.release();
    }
    longest
}

/// What [`load`] came to.
struct Outcome {
    /// How many clients misbehaved.
    count: u64,
    /// The longest round trip over each transport.
    longest: Vec<Duration>,
    /// The most channels that the kernel relayed at a time.
    offloaded: u64,
}

/// All clients for this time.
fn load(lab: &Lab, time: Duration, seed: u64) -> Outcome {
    let (stop, count) = (&AtomicBool::new(false), &AtomicU64::new(0));
    std::thread::scope(|scope| {
        let stopper = StopAtEnd(stop);
        for number in 0..CLIENTS {
            scope.spawn(move || {
                let mut random = Random(seed * CLIENTS + number + 1);
                let mut silent = VecDeque::new();
                while !stop.load(Ordering::Relaxed) {
                    misbehave(lab, &mut random, &mut silent);
                    count.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let honest: Vec<_> = (0..4)
            .map(|transport| scope.spawn(move || behave(lab, transport, stop)))
            .collect();
        let (end, mut offloaded) = (Instant::now() + time, 0);
        while Instant::now() < end {
            std::thread::sleep(Duration::from_millis(100));
            let stats = lab.server.stats();
            offloaded = offloaded.max(stats.sum(|worker| worker.channels_offloaded));
        }
        drop(stopper);
        let longest = honest
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        Outcome {
            longest: longest.collect(),
            count: count.load(Ordering::Relaxed),
            offloaded,
        }
    })
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("Linux").count()
}

#[test]
fn connections_leave_nothing_behind() {
    let lab = Lab::new();
    // Tables and the allocator's arenas of all threads have their size after that.
    load(&lab, duration() / 4, 1);
    lab.wait_until_empty();
    let (before, open) = (resident(), descriptors());
    let Outcome {
        count,
        longest,
        offloaded,
    } = load(&lab, duration(), 2);
    lab.wait_until_empty();
    assert_eq!(descriptors(), open, "descriptors");
    let grown = resident().saturating_sub(before);
    let streams = lab.server.stats().streams();
    let ended = EndReason::ALL
        .iter()
        .map(|&reason| (reason.name(), streams.ended(reason)));
    let moved = lab
        .server
        .stats()
        .sum(|worker| worker.engine.allocations_moved);
    println!("{moved} allocations moved; at most {offloaded} channels in the kernel at a time");
    println!("{count} misbehaved; longest round trips of TCP, TLS, DTLS, UDP: {longest:?}");
    println!(
        "{grown} bytes more; connections ended: {:?}",
        ended.collect::<Vec<_>>()
    );
    assert!(count > 100, "{count}");
    let bound = streams.ended(EndReason::DataConnection);
    let steers = lab.server.steering().name() == "bpf";
    assert!(
        bound > 0 && (moved > 0 || !steers),
        "{bound} bound, {moved} moved"
    );
    // Threads of the test come and go, too, and leave arenas of the allocator.
    assert!(grown < 32 << 20, "{grown} bytes more");
    for reason in [
        EndReason::Client,
        EndReason::NotStun,
        EndReason::Text,
        EndReason::Tls,
    ] {
        assert!(streams.ended(reason) > 0, "{}", reason.name());
    }
    assert_eq!(lab.server.failed_worker(), None);
    let stats = lab.server.shutdown().expect("no worker failed");
    assert_eq!(
        stats.counters().relays_opened,
        stats.counters().relays_closed
    );
}
