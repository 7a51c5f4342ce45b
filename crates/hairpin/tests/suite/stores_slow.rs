//! A store that answers late, never, or with errors, and a flood of unknown names: what clients notice of it.

use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::common::service::{ERROR, KNOWN, NEVER, PASSWORD, Service};
use crate::common::turn::Client;
use crate::common::{Serve, file};

const LOCAL: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
/// Another source address: the limits of unknown names apply to each IPv4 address.
const ELSEWHERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 0, 1, 1));

/// A server with one worker, so that a worker that waits for the store delays every datagram.
fn serve(service: &Service, more: &str) -> (tempfile::TempDir, Serve) {
    let (folder, config) = file(&service.config(more));
    let args = ["--dev", "--workers", "1", "--admin", "127.0.0.1:0"];
    (folder, Serve::local(&config, &args))
}

/// An allocation with a channel to a peer that sends everything back.
fn relay(server: &Serve) -> Client {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let address = peer.local_addr().unwrap();
    std::thread::spawn(move || {
        let mut buffer = [0; 2048];
        while let Ok((length, from)) = peer.recv_from(&mut buffer) {
            let _ = peer.send_to(&buffer[..length], from);
        }
    });
    let mut client = Client::of(server.address(), LOCAL, "gorst", PASSWORD);
    assert_eq!(client.allocate().code, 0);
    assert_eq!(client.bind_channel(address).code, 0);
    client
}

/// Round trips through the relay until `is_over`, in ascending order.
fn round_trips(relay: &mut Client, is_over: impl Fn(Duration) -> bool) -> Vec<Duration> {
    let (begun, mut times) = (Instant::now(), Vec::new());
    while !is_over(begun.elapsed()) {
        let number = u32::try_from(times.len()).unwrap();
        times.push(relay.round_trip(number).expect("the datagram comes back"));
        std::thread::sleep(Duration::from_millis(1));
    }
    times.sort_unstable();
    times
}

/// The median, the 99th percentile and the maximum.
fn summary(times: &[Duration]) -> [Duration; 3] {
    let last = times.len() - 1;
    [times[last / 2], times[last * 99 / 100], times[last]]
}

/// The codes that new users get, and how long each waits, while the store is in trouble.
fn new_users(server: &Serve) -> Vec<(u16, Duration)> {
    std::thread::scope(|scope| {
        let users: Vec<_> = (0..8)
            .map(|number| {
                scope.spawn(move || {
                    let name = format!("{KNOWN}{number}");
                    let mut client = Client::of(server.address(), ELSEWHERE, &name, PASSWORD);
                    let begun = Instant::now();
                    (client.allocate().code, begun.elapsed())
                })
            })
            .collect();
        users.into_iter().map(|user| user.join().unwrap()).collect()
    })
}

/// Relays while the store is well, then while new users ask a store in trouble. Returns what the new users got.
fn relaying_goes_on(what: &str, delay_ms: u64, timeout: &str) -> Vec<(u16, Duration)> {
    let service = Service::start();
    let (_folder, server) = serve(&service, &format!("timeout = \"{timeout}\"\n"));
    let mut relay = relay(&server);
    let phase = Duration::from_secs(3);
    let calm = summary(&round_trips(&mut relay, |passed| passed >= phase));
    service.set(delay_ms);
    let before = service.requests();
    let is_done = AtomicBool::new(false);
    let (users, times) = std::thread::scope(|scope| {
        let users = scope.spawn(|| {
            let users = new_users(&server);
            is_done.store(true, Ordering::Relaxed);
            users
        });
        let times = round_trips(&mut relay, |passed| {
            passed >= phase && (is_done.load(Ordering::Relaxed) || users.is_finished())
        });
        (users.join().unwrap(), times)
    });
    let trouble = summary(&times);
    println!("{what}: median, p99, maximum {calm:?} while calm, {trouble:?} in trouble");
    assert!(
        service.requests() > before,
        "{what}: the store was not asked"
    );
    // A busy machine delays datagrams, too. A worker that waits for the store delays them by seconds.
    let [median, p99, maximum] = trouble;
    assert!(
        maximum < Duration::from_millis(1_500),
        "{what}: {trouble:?}"
    );
    assert!(p99 < Duration::from_millis(250), "{what}: {trouble:?}");
    let most = calm[0] * 3 + Duration::from_millis(1);
    assert!(median < most, "{what}: {calm:?}, {trouble:?}");
    users
}

#[test]
fn a_store_in_trouble_delays_no_datagram_and_new_users_get_what_is_documented() {
    for (code, waited) in relaying_goes_on("after 2 s", 2_000, "4s") {
        assert_eq!(code, 0);
        assert!(waited >= Duration::from_millis(1_900), "{waited:?}");
    }
    // docs/stores.md: "Requests of other users get 500".
    for (code, waited) in relaying_goes_on("never", NEVER, "2s") {
        assert_eq!(code, 500);
        assert!(waited < Duration::from_secs(9), "{waited:?}");
    }
    for (code, _) in relaying_goes_on("with errors", ERROR, "2s") {
        assert_eq!(code, 500);
    }
}

/// The codes of responses.
#[derive(Debug, Default, PartialEq, Eq)]
struct Codes {
    unknown: usize,
    refused: usize,
    missing: usize,
}

/// Sends requests of many users with one nonce: so many at once that no queue overflows.
fn flood(client: &mut Client, names: impl Iterator<Item = String>) -> Codes {
    let mut codes = Codes::default();
    let names: Vec<String> = names.collect();
    for some in names.chunks(32) {
        some.iter().for_each(|name| client.send_as(name));
        for sent in 0..some.len() {
            match client.next_code() {
                Some(401) => codes.unknown += 1,
                Some(500) => codes.refused += 1,
                Some(other) => panic!("{other}"),
                None => {
                    codes.missing += some.len() - sent;
                    break;
                }
            }
        }
    }
    codes
}

fn resident_bytes(server: &Serve) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{}/statm", server.id())).unwrap();
    let pages: u64 = text.split(' ').nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

const NAMES: usize = 10_000;
/// docs/stores.md: names that one source may ask for at once, and then per second.
const BURST: usize = 512;
const PER_SECOND: usize = 20;

#[test]
fn ten_thousand_unknown_users_cost_the_store_its_budget_and_known_ones_allocate() {
    let service = Service::start();
    let (_folder, server) = serve(&service, "ttl_unknown = \"10m\"\n");
    let mut flooding = Client::of(server.address(), LOCAL, "eve", PASSWORD);
    flooding.get_nonce();
    let before = resident_bytes(&server);
    let is_over = AtomicBool::new(false);
    let begun = Instant::now();
    let (codes, allocated) = std::thread::scope(|scope| {
        let (server, is_over) = (&server, &is_over);
        let known = scope.spawn(move || {
            let mut allocated = 0;
            // At least one, however fast the flood is over.
            while allocated == 0 || !is_over.load(Ordering::Relaxed) {
                let name = format!("{KNOWN}{allocated}");
                let mut client = Client::of(server.address(), ELSEWHERE, &name, PASSWORD);
                assert_eq!(client.allocate().code, 0, "{name}");
                assert_eq!(client.refresh(0).code, 0, "{name}");
                allocated += 1;
            }
            allocated
        });
        let codes = flood(
            &mut flooding,
            (0..NAMES).map(|number| format!("eve{number}")),
        );
        is_over.store(true, Ordering::Relaxed);
        (codes, known.join().unwrap())
    });
    let seconds = usize::try_from(begun.elapsed().as_secs()).unwrap() + 1;
    let asked = service.requests() - allocated;
    let grown = resident_bytes(&server).saturating_sub(before) >> 10;
    println!("{codes:?}, {asked} names asked, {allocated} known users, {grown} KiB, {seconds} s");
    assert!(codes.missing < NAMES / 20, "{codes:?}");
    assert!(codes.refused > 0, "{codes:?}");
    assert!(
        asked <= BURST + PER_SECOND * seconds,
        "{asked} in {seconds} s"
    );
    assert!(asked >= codes.unknown, "{asked}: {codes:?}");
    assert!(grown < 32 << 10, "{grown} KiB");
    // The first names are in the cache: the store is not asked again, and they still have an answer.
    let names = (0..100).map(|number| format!("eve{number}"));
    let again = flood(&mut flooding, names);
    assert_eq!(service.requests() - allocated, asked);
    assert!(
        again.unknown + again.missing == 100 && again.unknown > 90,
        "{again:?}"
    );
    let refused = server.metric("hairpin_store_lookups_total", "outcome=\"refused\"");
    assert!(refused >= Some(codes.refused as f64), "{refused:?}");
}
