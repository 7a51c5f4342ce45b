//! The rate limits of users, realms and the server hold for what XDP relays, each direction by itself. All kinds of
//! limits are tested at tc (`tests/offload/main.rs`): both programs charge the same buckets.

use std::net::UdpSocket;
use std::thread::sleep;
use std::time::{Duration, Instant};

use hairpin_server::offload::Totals;
use hairpin_server::stats::DropReason;
use hairpin_server::{AddressFamily, Running, Server, Settings};
use stun::RequestedAddressFamily;

use crate::common::rates::{BURST, Caller, Limit, PAYLOAD, expect_limited};
use crate::common::{self, Client, at, eventually, ip};
use crate::network::{Network, within};
use crate::paths::Path;

const CHANNEL: u16 = 0x4abc;
/// The port of the listeners of the further realm.
const SHOP_PORT: u16 = 3479;
/// Datagrams of each call and direction: three bursts.
const SENT: u64 = 3 * BURST;
/// Fewer than a burst.
const OTHERS: u64 = BURST / 2;
/// Datagrams in a row: fewer than the smallest queue on their way holds.
const WINDOW: u64 = 16;
/// The kernel's counts are never older.
const COUNTS_AGE: Duration = Duration::from_millis(1200);
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

struct Call {
    client: Client,
    peer: UdpSocket,
    relayed: std::net::SocketAddr,
}

fn udp(namespace: &::io::NetNs, address: &str) -> UdpSocket {
    let socket = within(namespace, || UdpSocket::bind(at(address))).expect("a socket");
    socket
        .set_read_timeout(Some(TEST_TIMEOUT))
        .expect("a timeout");
    socket
}

impl Call {
    /// The second address of clients is the IPv6 one.
    fn new(network: &Network, caller: Caller) -> Call {
        let port = if caller.in_shop { SHOP_PORT } else { 3478 };
        let (own, listener) = match caller.from_second {
            false => ("10.7.1.2:0", format!("10.7.1.1:{port}")),
            true => ("[fd07:1::2]:0", format!("[fd07:1::1]:{port}")),
        };
        let socket = udp(&network.client, own);
        let (user, password) = caller.user;
        let mut client = Client::over(socket, at(&listener)).with_user(user, password);
        let family = RequestedAddressFamily(AddressFamily::V4);
        let answer = client.allocate_with(&|builder| builder.push(&family).map(drop));
        let peer = udp(&network.peer, "10.7.3.2:0");
        assert_eq!(client.bind(CHANNEL, peer.local_addr().expect("bound")), 0);
        Call {
            relayed: answer.relayed(),
            client,
            peer,
        }
    }

    fn up(&self) {
        self.client.send(CHANNEL, &[1; PAYLOAD]);
    }

    fn down(&self) {
        let sent = self.peer.send_to(&[2; PAYLOAD], self.relayed);
        sent.expect("sent");
    }

    /// One small datagram each way.
    fn exchange(&self) {
        self.client.send(CHANNEL, b"up");
        let mut buffer = [0; 16];
        let (_, from) = self.peer.recv_from(&mut buffer).expect("relayed");
        assert_eq!(from, self.relayed);
        self.peer.send_to(b"down", self.relayed).expect("sent");
        let got = common::Got::Channel(CHANNEL, b"down".to_vec());
        assert_eq!(self.client.got(), got);
    }
}

/// Datagrams to peers, to clients, and those dropped because of a rate, by XDP and by user space.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    by_kernel: [u64; 3],
    by_workers: [u64; 3],
}

impl Counts {
    fn of(server: &Running) -> Counts {
        let Totals { xdp, .. } = server.observer().offload().totals;
        let stats = server.stats();
        Counts {
            by_kernel: [xdp.to_peer, xdp.to_client, xdp.rate_dropped],
            by_workers: [
                stats.sum(|worker| worker.engine.to_peers.packets),
                stats.sum(|worker| worker.engine.to_clients.packets),
                stats.dropped(DropReason::OverRate),
            ],
        }
    }

    fn all(&self) -> [u64; 3] {
        [0, 1, 2].map(|at| self.by_kernel[at] + self.by_workers[at])
    }
}

/// Each call sends so many datagrams in turns with the others.
fn flood(calls: &[Call], each: u64, send: impl Fn(&Call)) {
    for number in 1..=each {
        calls.iter().for_each(&send);
        if number.is_multiple_of(WINDOW / calls.len() as u64) {
            sleep(Duration::from_millis(1));
        }
    }
}

fn start(network: &Network, limit: Limit) -> Running {
    let mut settings = Settings::default();
    limit.set(&mut settings, SHOP_PORT, true);
    let mut builder = Server::builder()
        .settings(settings)
        .relay_address(ip("10.7.2.1"))
        .allow_peers("10.7.3.0/24".parse().expect("a network"))
        .workers(2);
    for host in ["10.7.1.1", "[fd07:1::1]"] {
        for port in [3478, SHOP_PORT] {
            builder = builder.listen(at(&format!("{host}:{port}")));
        }
    }
    let started = within(&network.server, || Ok(Path::Xdp.choose(builder).start()));
    let started = started.expect("a namespace");
    started.unwrap_or_else(|error| panic!("{error}"))
}

fn holds(network: &Network, limit: Limit) {
    let server = start(network, limit);
    let new = |caller| Call::new(network, caller);
    let calls: Vec<Call> = limit.limited().into_iter().map(new).collect();
    let other = limit.outside().map(new);
    // Neighbours are found while user space relays. Then a packet after a pause brings a flow to the kernel.
    let exchange = || calls.iter().chain(&other).for_each(Call::exchange);
    let each_way = calls.len() + usize::from(other.is_some());
    eventually("the kernel relays", || {
        let before = Counts::of(&server).by_kernel;
        exchange();
        sleep(COUNTS_AGE);
        let now = Counts::of(&server).by_kernel;
        [0, 1].map(|way| now[way] - before[way]) == [each_way as u64; 2]
    });
    let before = Counts::of(&server);
    let begin = Instant::now();
    flood(&calls, SENT, Call::up);
    flood(&calls, SENT, Call::down);
    let sent = 2 * SENT * calls.len() as u64;
    eventually("all of them", || {
        let now: u64 = Counts::of(&server).all().iter().sum();
        now >= before.all().iter().sum::<u64>() + sent
    });
    let after = Counts::of(&server);
    let [up, down, dropped] = [0, 1, 2].map(|at| after.all()[at] - before.all()[at]);
    expect_limited(up, begin, &format!("{limit:?}, to peers"));
    expect_limited(down, begin, &format!("{limit:?}, to clients"));
    assert_eq!(up + down + dropped, sent, "{limit:?}");
    // One in 65,536 complete checksums looks like a partial one, which XDP leaves to user space.
    let by_workers = [0, 1, 2].map(|at| after.by_workers[at] - before.by_workers[at]);
    assert!(by_workers.iter().sum::<u64>() <= 5, "{by_workers:?}");
    if let Some(other) = other {
        let mut buffer = [0; 2 * PAYLOAD];
        for _ in 0..OTHERS {
            other.up();
            let (length, _) = other.peer.recv_from(&mut buffer).expect("it passes");
            assert_eq!(length, PAYLOAD, "{limit:?}");
        }
    }
}

#[test]
fn rates_hold_in_xdp_for_each_direction() {
    let network = match Network::build(Path::Xdp.checksums()) {
        Ok(network) => network,
        Err(reason) => return common::netns::skipped(&reason),
    };
    for limit in [Limit::User, Limit::Realm, Limit::Total] {
        holds(&network, limit);
    }
    assert_eq!(network.damaged(), 0, "no checksum was wrong");
}
