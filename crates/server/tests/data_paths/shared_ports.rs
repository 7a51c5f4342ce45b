//! Thousands of allocations on four relay ports, told apart by their peers.

use std::net::{SocketAddr, UdpSocket};
use std::thread;
use std::time::Duration;

use crate::common::netns::skipped;
use crate::common::{Client, Got, at};
use crate::network::{Network, within};
use crate::paths::Path;
use crate::process::{Process, SHARED_PORTS};

/// Allocations. `HAIRPIN_TEST_ALLOCATIONS` sets fewer, for an emulated machine.
const ALLOCATIONS: usize = 2_000;
/// Datagrams in transit at a time.
const WINDOW: usize = 32;
const CHANNEL: u16 = 0x4abc;
const TEST_TIMEOUT: Duration = Duration::from_secs(5);

fn allocations() -> usize {
    let set = std::env::var("HAIRPIN_TEST_ALLOCATIONS").ok();
    set.map_or(ALLOCATIONS, |number| number.parse().expect("a number"))
}

#[test]
fn user_space_distinguishes_thousands_of_allocations_on_four_ports() {
    tells_apart(Path::UserSpace);
}

#[test]
fn xdp_distinguishes_thousands_of_allocations_on_four_ports() {
    tells_apart(Path::Xdp);
}

#[test]
fn tc_distinguishes_thousands_of_allocations_on_four_ports() {
    tells_apart(Path::Tc);
}

/// A client, its relayed address and its peer.
struct Call {
    client: Client,
    relayed: SocketAddr,
    peer: UdpSocket,
}

impl Call {
    fn set_up(network: &Network) -> Call {
        let socket = |namespace, address: &str| {
            let socket = within(namespace, || UdpSocket::bind(at(address))).expect("a socket");
            socket
                .set_read_timeout(Some(TEST_TIMEOUT))
                .expect("a timeout");
            socket
        };
        let own = socket(&network.client, "10.7.1.2:0");
        let peer = socket(&network.peer, "10.7.3.2:0");
        let mut client = Client::over(own, at("10.7.1.1:3478"));
        let relayed = client.allocate();
        assert!(SHARED_PORTS.contains(&relayed.port()), "{relayed}");
        let at_peer = peer.local_addr().expect("bound");
        assert_eq!(client.bind(CHANNEL, at_peer), 0, "bound");
        Call {
            client,
            relayed,
            peer,
        }
    }
}

/// One datagram each way for each call, many in transit at a time. Each must reach its own receiver.
fn exchange(calls: &[Call], round: u32) {
    let payload = |call: usize, to: &str| format!("{to} {call} {round}").into_bytes();
    for (first, window) in (0..).step_by(WINDOW).zip(calls.chunks(WINDOW)) {
        let numbered = || (first..).zip(window);
        for (number, call) in numbered() {
            call.client.send(CHANNEL, &payload(number, "peer"));
        }
        let mut buffer = [0; 64];
        for (number, call) in numbered() {
            let (length, from) = call.peer.recv_from(&mut buffer).unwrap_or_else(|error| {
                panic!("round {round}: the peer of call {number} receives nothing: {error}")
            });
            assert_eq!(buffer[..length], payload(number, "peer"));
            assert_eq!(from, call.relayed);
        }
        for (number, call) in numbered() {
            let down = payload(number, "client");
            call.peer.send_to(&down, call.relayed).expect("sent");
        }
        for (number, call) in numbered() {
            let expected = Got::Channel(CHANNEL, payload(number, "client"));
            assert_eq!(call.client.got(), expected);
        }
    }
}

fn tells_apart(path: Path) {
    let network = match Network::build(path.checksums()) {
        Ok(network) => network,
        Err(reason) => return skipped(&reason),
    };
    let server = Process::start_with(&network.server, path, true);
    let calls: Vec<Call> = (0..allocations()).map(|_| Call::set_up(&network)).collect();
    for port in SHARED_PORTS {
        let on_port = calls.iter().filter(|call| call.relayed.port() == port);
        assert!(on_port.count() >= calls.len() / 8, "port {port}");
    }
    (0..4).for_each(|round| exchange(&calls, round));
    if path.in_kernel() {
        // Next hops are found while user space relays.
        thread::sleep(Duration::from_millis(500));
        exchange(&calls, 4);
        server.signal("STOP");
        thread::sleep(Duration::from_millis(50));
        exchange(&calls, 5);
        server.signal("CONT");
    }
    assert_eq!(network.damaged(), 0, "no checksum was wrong");
}
