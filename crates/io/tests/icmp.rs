//! ICMP errors are fetched, and cost nobody else a datagram.

#![allow(clippy::unwrap_used)] // a test may fail this way

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::time::Duration;

use hairpin_io::{
    Events, Interest, Poller, RecvBatch, SendOptions, SendQueue, SendTo, UdpOptions, UdpSocket,
};

const ANY: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

fn bind(address: &str, options: &UdpOptions) -> UdpSocket {
    UdpSocket::bind(address.parse().unwrap(), options).unwrap()
}

/// An address at which nobody listens.
fn nobody(address: &str) -> SocketAddr {
    bind(address, &UdpOptions::default()).local_addr()
}

fn ready(poller: &Poller) -> Vec<(bool, bool)> {
    let mut events = Events::with_capacity(4);
    poller.wait(&mut events, Some(Duration::ZERO)).unwrap();
    events
        .iter()
        .map(|event| (event.error, event.readable))
        .collect()
}

#[test]
fn a_closed_port_is_reported_once_and_then_the_poller_is_silent() {
    for (address, expected) in ANY.into_iter().zip([(3, 3), (1, 4)]) {
        let socket = bind(address, &UdpOptions::relay());
        let poller = Poller::new().unwrap();
        poller.add(&socket, 1, Interest::Read).unwrap();
        assert_eq!(socket.next_icmp_error().unwrap(), None);
        let closed = nobody(address);
        socket.send_to(b"hello", closed, None).unwrap();
        assert_eq!(ready(&poller), [(true, true)], "{address}");
        let report = socket.next_icmp_error().unwrap().unwrap();
        assert_eq!((report.to, report.mtu), (closed, 0));
        assert_eq!((report.kind, report.code), expected);
        assert_eq!(socket.next_icmp_error().unwrap(), None);
        assert_eq!(ready(&poller), []);
        let mut batch = RecvBatch::new(2, RecvBatch::SMALL);
        let kind = socket.recv(0, &mut batch).unwrap_err().kind();
        assert_eq!(kind, ErrorKind::WouldBlock);
    }
}

/// Each send to the closed port leaves an error behind that the next call meets.
#[test]
fn no_other_datagram_is_lost() {
    for (address, gso) in ANY.into_iter().flat_map(|any| [(any, true), (any, false)]) {
        let socket = bind(address, &UdpOptions::relay());
        let receivers = [(); 2].map(|()| bind(address, &UdpOptions::default()));
        let closed = nobody(address);
        let options = SendOptions {
            gso,
            ..SendOptions::default()
        };
        let mut queue = SendQueue::new(&options);
        let payload = [7; 100];
        let mut sent = 0;
        for round in 0..100 {
            let mut out = queue.start();
            for _ in 0..round % 3 {
                for to in [closed, receivers[0].local_addr(), receivers[1].local_addr()] {
                    out.push(&SendTo::new(&socket, to), &payload);
                }
            }
            // By themselves, too: a plain sendto.
            out.flush();
            out.push(&SendTo::new(&socket, closed), &payload);
            out.flush();
            out.push(&SendTo::new(&socket, receivers[0].local_addr()), &payload);
            let flushed = out.flush();
            assert_eq!((flushed.sent, flushed.dropped()), (1, 0), "{flushed:?}");
            sent += round % 3;
        }
        let totals = queue.totals();
        assert_eq!((totals.dropped(), totals.gso_refused), (0, 0), "{totals:?}");
        let mut batch = RecvBatch::new(1024, RecvBatch::SMALL);
        receivers[0].recv(0, &mut batch).unwrap();
        assert_eq!(batch.len(), sent + 100);
        batch.clear();
        receivers[1].recv(0, &mut batch).unwrap();
        assert_eq!(batch.len(), sent);
    }
}

/// An error that waits does not keep datagrams from being received.
#[test]
fn receiving_goes_on() {
    for address in ANY {
        let socket = bind(address, &UdpOptions::relay());
        let peer = bind(address, &UdpOptions::default());
        let mut batch = RecvBatch::new(4, RecvBatch::LARGE);
        for one in [true, false] {
            socket.send_to(b"hello", nobody(address), None).unwrap();
            peer.send_to(b"there", socket.local_addr(), None).unwrap();
            batch.clear();
            let received = match one {
                true => socket.recv_one(0, &mut batch),
                false => socket.recv(0, &mut batch),
            };
            assert_eq!(received.unwrap(), 1);
            assert!(socket.next_icmp_error().unwrap().is_some());
        }
    }
}
