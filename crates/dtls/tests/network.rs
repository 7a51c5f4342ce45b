//! Handshakes and messages over a network that loses, delays, changes the order and doubles.

#![allow(clippy::unwrap_used, reason = "a test says no more")]

mod support;

use std::collections::BTreeMap;

use hairpin_dtls::{Client, ClientEvent, CloseReason, Endpoint, Limits};
use proptest::prelude::*;
use support::*;
use timers::Mono;

/// A network with one client; what happens to a datagram comes from a list of bytes, over and over.
struct Network {
    endpoint: Endpoint,
    client: Client,
    fate: Vec<u8>,
    next_fate: usize,
    /// By time of arrival and order of sending. True: to the server.
    underway: BTreeMap<(u64, u64), (bool, Vec<u8>)>,
    sent: u64,
    now: Mono,
}

impl Network {
    fn send(&mut self, to_server: bool, datagram: &[u8]) {
        let fate = self.fate[self.next_fate % self.fate.len()];
        self.next_fate += 1;
        // A quarter is lost, a quarter comes twice, and each copy takes up to 300 ms.
        let copies = match fate & 3 {
            0 => 0,
            1 => 2,
            _ => 1,
        };
        for copy in 0..copies {
            let delay = u64::from(fate >> 2) * (5 - 2 * copy) * MS;
            self.underway.insert(
                (self.now.0 + delay, self.sent),
                (to_server, datagram.to_vec()),
            );
            self.sent += 1;
        }
    }

    fn flush(&mut self) {
        for (_, datagram) in transmits(&mut self.endpoint) {
            self.send(false, &datagram);
        }
        for datagram in client_transmits(&mut self.client) {
            self.send(true, &datagram);
        }
    }

    fn run(&mut self, until: Mono) {
        loop {
            self.flush();
            let arrival = self.underway.first_key_value().map(|(at, _)| Mono(at.0));
            let timers = [
                arrival,
                self.endpoint.poll_timeout(),
                self.client.poll_timeout(),
            ];
            let Some(next) = timers
                .into_iter()
                .flatten()
                .min()
                .filter(|next| *next <= until)
            else {
                return;
            };
            self.now = self.now.max(next);
            if arrival == Some(next) {
                let (_, (to_server, datagram)) = self.underway.pop_first().unwrap();
                if to_server {
                    give(&mut self.endpoint, self.now, &path(1), &datagram);
                } else {
                    give_client(&mut self.client, self.now, &datagram);
                }
            } else {
                self.endpoint.handle_timeout(self.now);
                self.client.handle_timeout(self.now);
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_handshake_survives_loss_reordering_and_copies(
        fate in prop::collection::vec(any::<u8>(), 40..200),
        mtu in prop::sample::select(vec![150usize, 400, 1200]),
    ) {
        // So that two in three are not lost in a row for ever.
        prop_assume!(fate.iter().filter(|fate| **fate & 3 == 0).count() * 3 < fate.len());
        let authority = Authority::ecdsa();
        let limits = Limits { mtu, handshake_timeout: std::time::Duration::from_secs(600), ..Limits::default() };
        let mut config = authority.client_config();
        config.mtu = mtu;
        config.handshake_timeout = limits.handshake_timeout;
        let mut network = Network {
            endpoint: authority.endpoint(limits),
            client: client_of(config, "turn.example", Mono(0)),
            fate,
            next_fate: 0,
            underway: BTreeMap::new(),
            sent: 0,
            now: Mono(0),
        };
        network.run(Mono(500 * 1000 * MS));
        prop_assert!(network.client.is_established(), "{:?}", client_events(&mut network.client));
        prop_assert_eq!(network.endpoint.half_open(), 0);
        prop_assert_eq!(network.endpoint.counters().established, 1);
        let key = network.endpoint.find(&path(1)).unwrap();
        let mut sealed = vec![0; 100];
        let length = network.client.seal(&[b"up"], &mut sealed).unwrap();
        prop_assert_eq!(give(&mut network.endpoint, network.now, &path(1), &sealed[..length]), [b"up"]);
        let length = network.endpoint.seal(key, &[b"down"], &mut sealed).unwrap();
        prop_assert_eq!(give_client(&mut network.client, network.now, &sealed[..length]), [b"down"]);
    }
}

#[test]
fn a_client_gives_up_where_nobody_answers() {
    let mut client = Authority::ecdsa().client(Mono(0));
    let mut sent = Vec::new();
    let mut now = Mono(0);
    while let Some(next) = client.poll_timeout() {
        if !client_transmits(&mut client).is_empty() {
            sent.push(now.0 / (1000 * MS));
        }
        now = next;
        client.handle_timeout(now);
    }
    assert_eq!(sent, [0, 1, 3, 7, 15]);
    assert_eq!(
        client_events(&mut client),
        [ClientEvent::Closed(CloseReason::HandshakeTimeout)]
    );
}
