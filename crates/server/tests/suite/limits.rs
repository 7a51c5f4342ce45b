//! What happens when ports, descriptors or quotas run out: the right code, the right counter, and nobody else suffers.

use crate::common::{Client, Got, at, loopback, private_loopback, socket, start};
use hairpin_server::policy::PeerRule;
use hairpin_server::quota::QuotaLimits;
use hairpin_server::{Builder, Running};
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

/// Relays from an address that no other test uses, and from ports that the system gives to nobody, so that each range
/// is its test's own.
fn ports(relay: IpAddr, first: u16, last: u16, workers: usize) -> Builder {
    let builder = hairpin_server::Server::builder()
        .listen(at("127.0.0.1:0"))
        .relay_address(relay);
    let builder = builder
        .user(crate::common::USER, crate::common::PASSWORD)
        .workers(workers);
    builder
        .allow_peers("127.0.0.0/8".parse().expect("a network"))
        .relay_ports(first, last)
}

/// Allocates until the server refuses; the clients that got something, and the code of the refusal.
fn allocate_until_refused(server: &Running) -> (Vec<(Client, SocketAddr)>, u16) {
    let mut clients = Vec::new();
    loop {
        let mut client = Client::new(server.listeners()[0]);
        let answer = client.try_allocate();
        match answer.code() {
            0 => clients.push((client, answer.relayed())),
            code => return (clients, code),
        }
    }
}

#[test]
fn every_port_is_used_before_anybody_gets_508() {
    // 96 ports are leased to two of four workers at most: the others must take from them.
    let server = start(ports(private_loopback(1), 20_016, 20_111, 4));
    let (mut clients, code) = allocate_until_refused(&server);
    assert_eq!((clients.len(), code), (96, 508));
    let mut used: Vec<u16> = clients.iter().map(|(_, relayed)| relayed.port()).collect();
    used.sort_unstable();
    assert_eq!(used, (20_016..=20_111).collect::<Vec<_>>());
    let stats = server.stats();
    assert!(
        stats
            .workers
            .iter()
            .all(|worker| worker.engine.allocations > 0),
        "all workers took part"
    );
    assert!(stats.counters().no_port >= 1);
    // A port that comes back can be had again, also at once if there is no other.
    let (mut last, freed) = clients.pop().expect("96 clients");
    last.release();
    let mut next = Client::new(server.listeners()[0]);
    assert_eq!(next.allocate().port(), freed.port());
}

#[test]
fn ports_of_other_processes_are_passed_over() {
    let relay = private_loopback(2);
    let foreign: Vec<_> = (0..20)
        .step_by(2)
        .map(|i| socket(&format!("{relay}:{}", 21_000 + i)))
        .collect();
    let server = start(ports(relay, 21_000, 21_019, 2));
    let (clients, code) = allocate_until_refused(&server);
    assert_eq!((clients.len(), code), (10, 508));
    assert!(clients.iter().all(|(_, relayed)| relayed.port() % 2 == 1));
    assert_eq!(
        server.stats().counters().foreign_ports,
        10,
        "each is tried once"
    );
    drop(foreign);
}

#[test]
fn a_user_a_source_and_all_together_have_limits_across_workers() {
    let unlimited = QuotaLimits::default()
        .per_user(1_000)
        .per_source(1_000)
        .total(1_000);
    for (limits, code, name) in [
        (unlimited.per_user(6), 486, "user"),
        (unlimited.per_source(6), 486, "source"),
        (unlimited.total(6), 508, "total"),
    ] {
        let server = start(loopback(4).quota(limits).user("bob", "hunter2"));
        let (mut clients, refused) = allocate_until_refused(&server);
        assert_eq!((clients.len(), refused), (6, code), "{name}");
        let mut bob = Client::new(server.listeners()[0]).with_user("bob", "hunter2");
        let expected = if name == "user" { 0 } else { code };
        assert_eq!(
            bob.try_allocate().code(),
            expected,
            "{name}: another user of the same source"
        );
        // What is released can be had again, on whichever worker.
        clients.pop().expect("six clients").0.release();
        Client::new(server.listeners()[0]).allocate();
        assert_eq!(
            server.stats().errors_with(code),
            if name == "user" { 1 } else { 2 }
        );
    }
}

#[test]
fn without_descriptors_new_clients_get_508_and_nothing_else_suffers() {
    let exe = std::env::current_exe().expect("a test binary");
    let script =
        "ulimit -n 120 && exec \"$0\" --exact --ignored --nocapture limits::few_descriptors";
    let output = Command::new("sh")
        .arg("-c")
        .arg(script)
        .arg(exe)
        .output()
        .expect("sh");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{text}"
    );
}

#[test]
#[ignore = "runs in a process of its own, started by the test above"]
fn few_descriptors() {
    let server = start(loopback(2));
    let mut waiting: Vec<Client> = (0..70)
        .map(|_| Client::new(server.listeners()[0]))
        .collect();
    let peer = socket("127.0.0.1:0");
    let mut served = Vec::new();
    let refused = loop {
        let mut client = waiting.pop().expect("descriptors run out first");
        let answer = client.try_allocate();
        if answer.code() != 0 {
            assert_eq!(answer.code(), 508);
            break client;
        }
        served.push((client, answer.relayed()));
    };
    assert!(served.len() > 10, "only {} were served", served.len());
    let stats = server.stats();
    assert!(stats.counters().no_descriptor >= 1);
    assert_eq!(stats.counters().no_port, 0);
    // The last ones are not for clients: the process can still open what it has to.
    let kept = || std::fs::File::open("/dev/null").expect("a descriptor is left");
    drop([kept(), kept(), kept(), kept()]);
    // Who was served still is, and STUN needs no descriptor.
    for (client, relayed) in &mut served {
        assert_eq!(client.bind(0x4000, peer.local_addr().expect("bound")), 0);
        peer.send_to(b"still here", *relayed).expect("sent");
        assert_eq!(client.got(), Got::Channel(0x4000, b"still here".to_vec()));
    }
    let mut refused = refused;
    assert_eq!(
        refused.request(stun::Method::BINDING, &|_| Ok(())).code(),
        0
    );
    // With one descriptor back, the next client is served.
    served.pop().expect("some were served").0.release();
    refused.allocate();
}

/// Sends this many datagrams of 1,000 bytes to a peer over each client's channel, and counts what the peer gets.
fn relayed(clients: &[&Client], peer: &std::net::UdpSocket, datagrams: u16) -> u64 {
    for _ in 0..datagrams {
        for client in clients {
            client.send(0x4000, &[1; 1000]);
        }
    }
    let mut buffer = [0; 1500];
    let wait = Some(std::time::Duration::from_secs(1));
    peer.set_read_timeout(wait).expect("a timeout");
    let mut bytes = 0;
    while let Ok(length) = peer.recv(&mut buffer) {
        bytes += length as u64;
    }
    bytes
}

#[test]
fn a_user_and_the_server_have_rates_at_all_workers() {
    let mut settings = hairpin_server::Settings::default();
    settings.users = vec![(
        crate::common::USER.to_owned(),
        crate::common::PASSWORD.to_owned(),
    )];
    let networks = "127.0.0.0/8".parse().expect("a network");
    let own = PeerRule::all_ports(networks);
    settings.peers.allow.push(own);
    settings.rates.per_user = 1_000;
    let builder = || {
        let server = hairpin_server::Server::builder().listen(at("127.0.0.1:0"));
        server
            .relay_address(IpAddr::from([127, 0, 0, 1]))
            .workers(4)
    };
    let peer = socket("127.0.0.1:0");
    let peer_at = peer.local_addr().expect("bound");
    let server = start(builder().settings(settings.clone()));
    let mut clients: Vec<Client> = (0..8).map(|_| Client::new(server.listeners()[0])).collect();
    for client in &mut clients {
        client.allocate();
        assert_eq!(client.bind(0x4000, peer_at), 0);
    }
    let all: Vec<&Client> = clients.iter().collect();
    // A burst of 1,000 bytes, one datagram beyond it, and what some seconds permit; a limit for each allocation would
    // let 16 pass.
    let bytes = relayed(&all, &peer, 20);
    assert!((2_000..=12_000).contains(&bytes), "{bytes}");
    let dropped = server.stats().dropped(turn::server::DropReason::OverRate);
    assert_eq!(dropped, 160 - bytes / 1_000);
    settings.rates.per_user = 0;
    server.reload(settings.clone()).expect("the limit goes");
    assert_eq!(relayed(&all, &peer, 5), 40_000);
    drop(server);
    let unlimited = {
        let mut settings = settings.clone();
        settings.rates.per_user = 0;
        start(builder().settings(settings))
    };
    settings.rates.total = 1_000_000;
    let refused = unlimited
        .reload(settings)
        .map_err(|error| error.to_string());
    let refused = refused.expect_err("there is no room");
    assert!(refused.contains("restart"), "{refused}");
}
