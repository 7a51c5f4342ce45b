//! Steering with real sockets on loopback: where datagrams arrive, with and without entries.
//!
//! These tests need root (CAP_BPF and CAP_NET_ADMIN); without, they fail and say so.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::{Duration, Instant};

use hairpin_bpf::steer::{Flow, Flows, InsertError, Process, SlotRange, Steering, Tables};

const WORKERS: u32 = 4;

/// A UDP socket with SO_REUSEPORT, which std cannot make.
fn listener(address: SocketAddr) -> UdpSocket {
    let family = if address.is_ipv4() {
        libc::AF_INET
    } else {
        libc::AF_INET6
    };
    // SAFETY: takes three integers and no memory.
    let number = unsafe { libc::socket(family, libc::SOCK_DGRAM, 0) };
    assert!(number >= 0);
    // SAFETY: `socket` has just made this descriptor and nobody else knows it.
    let socket = unsafe { UdpSocket::from_raw_fd(number) };
    let on: libc::c_int = 1;
    // SAFETY: the pointer and the length describe a live integer.
    let set = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_REUSEPORT,
            (&raw const on).cast(),
            4,
        )
    };
    assert_eq!(set, 0);
    let bound = match address {
        SocketAddr::V4(v4) => {
            let name = libc::sockaddr_in {
                sin_family: libc::AF_INET as u16,
                sin_port: v4.port().to_be(),
                sin_addr: libc::in_addr {
                    s_addr: u32::from_ne_bytes(v4.ip().octets()),
                },
                sin_zero: [0; 8],
            };
            // SAFETY: the pointer and the length describe a live sockaddr_in.
            unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), 16) }
        }
        SocketAddr::V6(v6) => {
            let name = libc::sockaddr_in6 {
                sin6_family: libc::AF_INET6 as u16,
                sin6_port: v6.port().to_be(),
                sin6_flowinfo: 0,
                sin6_addr: libc::in6_addr {
                    s6_addr: v6.ip().octets(),
                },
                sin6_scope_id: 0,
            };
            // SAFETY: the pointer and the length describe a live sockaddr_in6.
            unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), 28) }
        }
    };
    assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
    socket.set_nonblocking(true).expect("a flag");
    socket
}

/// The sockets of one group, all in slots from `first` on.
fn group(steering: &mut Steering, first: u32, address: &str) -> Vec<UdpSocket> {
    let address: SocketAddr = address.parse().expect("an address");
    let one = listener(address);
    let bound = one.local_addr().expect("bound");
    let mut group = vec![one];
    group.extend((1..WORKERS).map(|_| listener(bound)));
    for (slot, socket) in (first..).zip(&group) {
        steering.set_socket(slot, socket).expect("a slot");
    }
    steering.attach(&group[0]).expect("a group");
    group
}

fn loaded(groups: u32, flows: u32) -> (Steering, Flows) {
    let steering = Steering::load(groups * WORKERS, flows)
        .unwrap_or_else(|error| panic!("this test needs root: {error}"));
    let flows = steering.flows().expect("a handle");
    (steering, flows)
}

/// Which sockets of the group have something to read; empties them.
fn arrived(group: &[UdpSocket]) -> Vec<usize> {
    let mut buffer = [0; 64];
    // Loopback delivers before `send_to` returns.
    let mut arrived = Vec::new();
    for (number, socket) in group.iter().enumerate() {
        while socket.recv_from(&mut buffer).is_ok() {
            arrived.push(number);
        }
    }
    arrived
}

fn client(ip: &str) -> UdpSocket {
    let ip: IpAddr = ip.parse().expect("an address");
    UdpSocket::bind((ip, 0)).expect("loopback has free ports")
}

fn flow(client: &UdpSocket, to: SocketAddr) -> Flow {
    Flow {
        remote: client.local_addr().expect("bound"),
        local: to,
    }
}

/// Where a client's datagram arrives.
fn lands(client: &UdpSocket, to: SocketAddr, group: &[UdpSocket]) -> usize {
    client.send_to(b"x", to).expect("sent");
    // A busy kernel delivers a moment after `send_to` has returned.
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut sockets = arrived(group);
    while sockets.is_empty() && Instant::now() < deadline {
        sockets = arrived(group);
    }
    match sockets[..] {
        [one] => one,
        ref other => panic!("one datagram, one socket: {other:?}"),
    }
}

fn an_entry_decides(listen: &str, from: &str, to_ip: &str) {
    let (mut steering, mut flows) = loaded(2, 64);
    // Slots of another group first, so that a slot is not a worker's number.
    let _other = group(&mut steering, 0, listen);
    let group = group(&mut steering, WORKERS, listen);
    let to = SocketAddr::new(
        to_ip.parse().expect("an address"),
        group[0].local_addr().expect("bound").port(),
    );
    for number in 0..32 {
        let client = client(from);
        let flow = flow(&client, to);
        let hashed = lands(&client, to, &group);
        assert_eq!(lands(&client, to, &group), hashed, "the hash is steady");
        let target = number % WORKERS;
        flows.insert(&flow, WORKERS + target).expect("room");
        assert_eq!(flows.get(&flow), Some(WORKERS + target));
        assert_eq!(lands(&client, to, &group), target as usize);
        assert!(matches!(
            flows.insert(&flow, WORKERS),
            Err(InsertError::Exists)
        ));
        assert_eq!(lands(&client, to, &group), target as usize);
        assert!(flows.remove(&flow));
        assert!(!flows.remove(&flow));
        assert_eq!(lands(&client, to, &group), hashed, "back to the hash");
    }
    assert_eq!(flows.count(), 0);
}

#[test]
fn an_entry_decides_and_without_it_the_hash() {
    an_entry_decides("127.0.0.1:0", "127.0.0.1", "127.0.0.1");
}

#[test]
fn an_entry_decides_over_ipv6() {
    an_entry_decides("[::1]:0", "::1", "::1");
}

#[test]
fn behind_a_wildcard_the_local_address_is_that_of_the_packet() {
    an_entry_decides("0.0.0.0:0", "127.0.0.1", "127.0.0.7");
    an_entry_decides("[::]:0", "::1", "::1");
}

#[test]
fn the_rest_is_spread_by_the_kernel() {
    let (mut steering, flows) = loaded(1, 64);
    let group = group(&mut steering, 0, "127.0.0.1:0");
    let to = group[0].local_addr().expect("bound");
    let mut seen = [0; WORKERS as usize];
    for _ in 0..200 {
        seen[lands(&client("127.0.0.1"), to, &group)] += 1;
    }
    assert!(seen.iter().all(|count| *count > 20), "{seen:?}");
    assert_eq!(flows.count(), 0);
}

#[test]
fn a_full_table_refuses_and_forgets_nobody() {
    let (mut steering, mut flows) = loaded(1, 8);
    let group = group(&mut steering, 0, "127.0.0.1:0");
    let to = group[0].local_addr().expect("bound");
    let clients: Vec<UdpSocket> = (0..9).map(|_| client("127.0.0.1")).collect();
    for client in &clients[..8] {
        flows.insert(&flow(client, to), 3).expect("room");
    }
    let refused = flows.insert(&flow(&clients[8], to), 3);
    assert!(matches!(refused, Err(InsertError::Full)), "{refused:?}");
    assert_eq!(flows.count(), 8);
    for client in &clients[..8] {
        assert_eq!(lands(client, to, &group), 3);
    }
    assert!(flows.remove(&flow(&clients[0], to)));
    flows.insert(&flow(&clients[8], to), 2).expect("room again");
    assert_eq!(lands(&clients[8], to, &group), 2);
}

#[test]
fn an_entry_for_a_closed_socket_leaves_the_flow_to_the_hash() {
    let (mut steering, mut flows) = loaded(1, 8);
    let mut group = group(&mut steering, 0, "127.0.0.1:0");
    let to = group[0].local_addr().expect("bound");
    let client = client("127.0.0.1");
    flows.insert(&flow(&client, to), 3).expect("room");
    drop(group.pop());
    client
        .set_read_timeout(Some(Duration::from_secs(1)))
        .expect("a timeout");
    assert!(lands(&client, to, &group) < 3);
}

#[test]
fn the_program_goes_on_when_its_loader_is_gone() {
    let (mut steering, mut flows) = loaded(1, 8);
    let group = group(&mut steering, 0, "127.0.0.1:0");
    drop(steering);
    let to = group[0].local_addr().expect("bound");
    let client = client("127.0.0.1");
    let target = (lands(&client, to, &group) + 1) % group.len();
    flows
        .insert(&flow(&client, to), target as u32)
        .expect("room");
    assert_eq!(lands(&client, to, &group), target);
}

/// Handles of a second process to the maps.
fn copies(tables: &Tables) -> Tables {
    let fds = tables
        .fds()
        .map(|fd| fd.try_clone_to_owned().expect("a descriptor"));
    Tables::from_fds(fds).expect("the same maps")
}

fn two_processes_share_a_group(listen: &str, from: &str, to_ip: &str) {
    let (mut steering, mut flows) = loaded(1, 64);
    let old = group(&mut steering, 0, listen);
    let bound = old[0].local_addr().expect("bound");
    let to = SocketAddr::new(to_ip.parse().expect("an address"), bound.port());
    let mut tables = copies(&steering.tables().expect("maps"));
    let range = |first| SlotRange {
        first,
        count: WORKERS,
    };
    tables
        .set_listener(bound, Process::Even, range(0))
        .expect("room");
    tables.activate(Some(Process::Even)).expect("written");
    // The sockets of the new process get nothing before it is their turn.
    let new: Vec<UdpSocket> = (0..WORKERS).map(|_| listener(bound)).collect();
    for (slot, socket) in (WORKERS..).zip(&new) {
        tables.set_socket(slot, socket).expect("a slot");
    }
    tables
        .set_listener(bound, Process::Odd, range(WORKERS))
        .expect("room");
    let clients: Vec<UdpSocket> = (0..64).map(|_| client(from)).collect();
    for client in &clients {
        lands(client, to, &old);
    }
    assert!(arrived(&new).is_empty());
    // Whoever has an entry stays; all others are the new process's.
    flows.insert(&flow(&clients[0], to), 3).expect("room");
    tables.activate(Some(Process::Odd)).expect("written");
    assert_eq!(lands(&clients[0], to, &old), 3);
    let mut seen = [0; WORKERS as usize];
    for client in &clients[1..] {
        seen[lands(client, to, &new)] += 1;
    }
    assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
    assert!(arrived(&old).is_empty());
    // The new process dies: what remains of the group gets everything, before and after it is told.
    drop(new);
    tables.attach(&old[0]).expect("the same program once more");
    lands(&clients[1], to, &old);
    tables.activate(Some(Process::Even)).expect("written");
    lands(&clients[1], to, &old);
    tables.forget_listeners(Process::Odd).expect("written");
    lands(&clients[1], to, &old);
    assert_eq!(flows.retain(range(0)), 0);
    assert_eq!(flows.retain(range(WORKERS)), 1);
    assert_eq!(flows.count(), 0);
}

#[test]
fn during_an_upgrade_the_active_process_gets_what_has_no_entry() {
    two_processes_share_a_group("127.0.0.1:0", "127.0.0.1", "127.0.0.1");
    two_processes_share_a_group("[::1]:0", "::1", "::1");
    two_processes_share_a_group("0.0.0.0:0", "127.0.0.1", "127.0.0.7");
}

#[test]
fn maps_of_another_kind_are_refused() {
    let (steering, _flows) = loaded(1, 8);
    let tables = steering.tables().expect("maps");
    let [sockets, flows, listeners, active, program] = tables
        .fds()
        .map(|fd| fd.try_clone_to_owned().expect("a descriptor"));
    assert!(Tables::from_fds([flows, sockets, listeners, active, program]).is_err());
}
