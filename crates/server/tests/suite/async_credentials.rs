//! Sources of credentials that answer later: from an async function, from another thread, under floods.

use crate::common::{Client, PASSWORD, StopAtEnd, at, eventually, ip, socket, start};
use hairpin_server::credentials::{
    AsyncCredentials, Claim, Credentials, KeyLookup, KeyQuery, KeyReply, KnownUser, OwnedKeyQuery,
};
use hairpin_server::stats::AuthFailure;
use hairpin_server::{Builder as ServerBuilder, Running, Server, Steering};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};
use stun::{BuildError, Builder, Lifetime, Method, Nonce, RequestedTransport};

/// The password of everybody whose name does not begin with `x` is [`PASSWORD`].
fn find(query: &OwnedKeyQuery) -> KeyLookup {
    let query = query.query();
    match query.claim {
        Claim::Username(name) if !name.starts_with('x') => {
            let key = stun::long_term_key(query.algorithm, name, query.realm, PASSWORD);
            key.map_or(KeyLookup::Unknown, |key| {
                KeyLookup::Known(KnownUser::with_key(name, key))
            })
        }
        _ => KeyLookup::Unknown,
    }
}

/// Answers on a thread of its own, 5 ms later.
#[derive(Debug)]
struct Slow(Mutex<mpsc::Sender<(OwnedKeyQuery, KeyReply)>>);

impl Slow {
    fn start() -> Arc<Slow> {
        let (sender, receiver) = mpsc::channel::<(OwnedKeyQuery, KeyReply)>();
        std::thread::spawn(move || {
            for (query, reply) in receiver {
                std::thread::sleep(Duration::from_millis(5));
                reply.send(find(&query));
            }
        });
        Arc::new(Slow(Mutex::new(sender)))
    }
}

impl Credentials for Slow {
    fn find(&self, _: &KeyQuery<'_>) -> KeyLookup {
        KeyLookup::Pending
    }

    fn begin_find(&self, query: &KeyQuery<'_>, reply: KeyReply) {
        let sender = self.0.lock().expect("not poisoned");
        sender.send((query.to_owned(), reply)).expect("it runs");
    }
}

/// Never answers, and keeps what it was asked.
#[derive(Debug, Default)]
struct Silent(Mutex<Vec<KeyReply>>);

impl Credentials for Silent {
    fn find(&self, query: &KeyQuery<'_>) -> KeyLookup {
        match query.claim {
            Claim::Username(name) if name.starts_with('x') => KeyLookup::Pending,
            _ => find(&query.to_owned()),
        }
    }

    fn begin_find(&self, _: &KeyQuery<'_>, reply: KeyReply) {
        self.0.lock().expect("not poisoned").push(reply);
    }
}

fn with(source: Arc<dyn Credentials>, workers: usize) -> ServerBuilder {
    Server::builder()
        .listen(at("127.0.0.1:0"))
        .relay_address(ip("127.0.0.1"))
        .credentials(source)
        .workers(workers)
}

fn lookups(server: &Running) -> u64 {
    server.stats().sum(|worker| worker.engine.lookups_begun)
}

fn udp(request: &mut Builder<'_>) -> Result<(), BuildError> {
    request.push(&RequestedTransport::UDP).map(drop)
}

#[test]
fn an_async_function_is_a_source() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let handle = runtime.handle().clone();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let thread = std::thread::spawn(move || runtime.block_on(async { stopped.await.ok() }));
    let source = AsyncCredentials::new(
        move |future| drop(handle.spawn(future)),
        |query| async move {
            tokio::time::sleep(Duration::from_millis(5)).await;
            find(&query)
        },
    );
    let server = start(with(Arc::new(source), 2));
    for name in ["ann", "bob"] {
        let mut client = Client::new(server.listeners()[0]).with_user(name, PASSWORD);
        client.allocate();
        client.release();
    }
    let mut stranger = Client::new(server.listeners()[0]).with_user("xena", PASSWORD);
    assert_eq!(stranger.try_allocate().code(), 401);
    assert_eq!(lookups(&server), 3);
    stop.send(()).expect("it runs");
    thread.join().expect("it ends");
    // A runtime that has ended drops what it is given.
    let mut late = Client::new(server.listeners()[0]).with_user("cid", PASSWORD);
    assert_eq!(late.try_allocate().code(), 500);
}

#[test]
fn a_user_who_was_forgotten_is_asked_for_again() {
    let server = start(with(Slow::start(), 2));
    let mut client = Client::new(server.listeners()[0]);
    client.allocate();
    assert_eq!(lookups(&server), 1);
    server.forget_users(Some("bob")).expect("told");
    client.release();
    client.allocate();
    assert_eq!(lookups(&server), 1, "another one was forgotten");
    server
        .forget_users(Some(crate::common::USER))
        .expect("told");
    client.release();
    client.allocate();
    assert_eq!(lookups(&server), 2);
    server.forget_users(None).expect("told");
    client.release();
    client.allocate();
    assert_eq!(lookups(&server), 3);
}

#[test]
fn a_request_that_moves_to_another_worker_takes_its_user_along() {
    let server = start(with(Slow::start(), 4).steering(Steering::Bpf));
    let mut clients: Vec<Client> = (0..32)
        .map(|number| {
            Client::new(server.listeners()[0]).with_user(&format!("user{number}"), PASSWORD)
        })
        .collect();
    clients.iter_mut().for_each(|client| {
        client.allocate();
    });
    let stats = server.stats();
    let moved = stats.sum(|worker| worker.counters.requests_taken);
    assert!(moved > 0, "none was moved");
    assert_eq!(lookups(&server), 32, "and none was looked up twice");
    assert_eq!(stats.allocations(), 32);
    for client in &mut clients {
        let refreshed = client.request(Method::REFRESH, &|request| {
            request.push(&Lifetime(600)).map(drop)
        });
        assert_eq!(refreshed.code(), 0);
    }
    assert_eq!(lookups(&server), 32);
}

/// A datagram with a nonce that no server issued: the last character of a genuine one is changed.
fn forged(server: &Running) -> Vec<u8> {
    let mut forger = Client::new(server.listeners()[0]).with_user("xena", "guess");
    let mut request = forger.signed(Method::ALLOCATE, &udp);
    let nonce = stun::Message::parse(&request).expect("well formed");
    let nonce: Nonce<'_> = nonce.get().expect("well formed").expect("signed");
    let nonce = nonce.0.to_vec();
    let place = request.windows(nonce.len()).position(|part| part == nonce);
    let last = place.expect("it is in there") + nonce.len() - 1;
    request[last] = if request[last] == b'A' { b'Q' } else { b'A' };
    request
}

/// Sends a datagram 100,000 times a second until told to stop. Returns how often.
fn flood(request: &[u8], server: std::net::SocketAddr, stop: &AtomicBool) -> u64 {
    let socket = UdpSocket::bind(at("127.0.0.1:0")).expect("loopback has free ports");
    socket.connect(server).expect("a socket");
    socket.set_nonblocking(true).expect("a socket");
    let (begin, mut sent) = (Instant::now(), 0);
    while !stop.load(Ordering::Relaxed) {
        let due = (begin.elapsed().as_secs_f64() * 100_000.0) as u64;
        for _ in sent..due {
            // A full queue at our own end is as good as sent.
            let _ = socket.send(request);
        }
        sent = due;
        std::thread::sleep(Duration::from_micros(200));
    }
    sent
}

#[test]
fn a_flood_of_forged_nonces_reaches_no_source_and_an_honest_client_is_served() {
    let server = start(with(Slow::start(), 2));
    let request = forged(&server);
    let (stop, sent) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut cycles = 0;
    let begin = Instant::now();
    std::thread::scope(|scope| {
        let _stop = StopAtEnd(&stop);
        for _ in 0..2 {
            scope.spawn(|| {
                let count = flood(&request, server.listeners()[0], &stop);
                sent.fetch_add(count, Ordering::Relaxed);
            });
        }
        let mut honest = Client::new(server.listeners()[0]).retransmitting();
        while begin.elapsed() < Duration::from_secs(2) {
            honest.allocate();
            honest.release();
            cycles += 1;
        }
    });
    let seconds = begin.elapsed().as_secs_f64();
    let refused = server
        .stats()
        .sum(|worker| worker.engine.auth_failed(AuthFailure::ForgedNonce));
    let sent = sent.load(Ordering::Relaxed);
    println!(
        "{:.0} forged requests per second sent, {:.0} refused; {cycles} allocations meanwhile",
        sent as f64 / seconds,
        refused as f64 / seconds
    );
    assert!(refused > 10_000 && cycles > 0);
    assert_eq!(lookups(&server), 1, "the honest client's");
}

#[test]
fn look_ups_of_one_prefix_take_no_other_prefix_its_share() {
    let source = Arc::new(Silent::default());
    let server = start(with(Arc::clone(&source) as _, 1));
    // Genuine nonces, random names, and a source that does not answer: 127.0.1.0/24.
    let sockets: Vec<UdpSocket> = (0..500).map(|_| socket("127.0.1.1:0")).collect();
    for (number, socket) in sockets.into_iter().enumerate() {
        let name = format!("x{number}");
        let mut flooder = Client::over(socket, server.listeners()[0]).with_user(&name, "guess");
        let request = flooder.signed(Method::ALLOCATE, &udp);
        flooder.transmit(&request);
    }
    eventually("the share is used up", || lookups(&server) == 341);
    let mut served = 0;
    for number in 0..200 {
        let local = format!("127.0.2.{}:0", 1 + number % 100);
        let mut honest = Client::from(&local, server.listeners()[0]);
        served += u32::from(honest.try_allocate().code() == 0);
        honest.release();
    }
    assert!(served >= 198, "{served} of 200");
    assert_eq!(source.0.lock().expect("not poisoned").len(), 341);
    // Nobody waits for ever.
    eventually("the look-ups time out", || {
        server.stats().sum(|worker| worker.engine.lookups) == 0
            || server.stats().sum(|worker| worker.engine.lookups_timed_out) > 0
    });
}
