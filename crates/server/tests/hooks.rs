//! What an embedding program decides and learns.

mod common;

use common::{Client, eventually, loopback, start};
use hairpin_server::hooks::{ClientIdentity, Event};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use turn::server::{Quota, QuotaExceeded};

const PEER: &str = "127.0.0.1:4000";
const OTHER: &str = "127.0.0.1:4001";

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

#[test]
fn a_peer_needs_the_rules_and_the_hook() {
    let server = start(loopback(1).permit_peer(|client, peer| {
        assert_eq!(client.user, common::USER);
        peer.port() != 4001
    }));
    let mut client = Client::new(server.listeners()[0]);
    client.allocate();
    // A permission is for all ports: the hook is asked with port 0.
    assert_eq!(client.permit(at(OTHER)), 0);
    assert_eq!(client.bind(0x4000, at(PEER)), 0);
    assert_eq!(client.bind(0x4001, at(OTHER)), 403);
}

/// One relayed address per user name.
#[derive(Debug, Default)]
struct OneEach(Mutex<Vec<String>>);

impl Quota for OneEach {
    fn try_acquire(&self, client: &ClientIdentity<'_>) -> Result<(), QuotaExceeded> {
        let mut held = self.0.lock().expect("unpoisoned");
        if held.iter().any(|user| user == client.user) {
            return Err(QuotaExceeded::User);
        }
        held.push(client.user.to_owned());
        Ok(())
    }

    fn release(&self, client: &ClientIdentity<'_>) {
        let mut held = self.0.lock().expect("unpoisoned");
        held.retain(|user| user != client.user);
    }

    fn transfer(
        &self,
        _: &ClientIdentity<'_>,
        _: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded> {
        Ok(())
    }
}

#[test]
fn a_quota_of_ones_own_stands_beside_the_limits() {
    let quota = Arc::new(OneEach::default());
    let server = start(loopback(2).quota_hook(quota.clone()));
    let mut one = Client::new(server.listeners()[0]);
    let mut two = Client::new(server.listeners()[0]);
    one.allocate();
    assert_eq!(two.try_allocate().code(), 486);
    one.release();
    eventually("the unit is free", || two.try_allocate().code() == 0);
    assert_eq!(server.relayed_addresses_held(), 1);
    server.shutdown().expect("no worker failed");
    assert!(quota.0.lock().expect("unpoisoned").is_empty());
}

#[test]
fn events_tell_the_life_of_an_allocation() {
    let events: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&events);
    let server = start(loopback(1).on_event(move |event| {
        let text = match event {
            Event::AuthenticationFailed { user, reason, .. } => {
                format!("failed {user} {}", reason.name())
            }
            Event::AllocationOpened { client, .. } => format!("opened {}", client.user),
            Event::AllocationRefreshed { lifetime_s, .. } => format!("refreshed {lifetime_s}"),
            Event::PermissionInstalled { peer, .. } => format!("permission {peer}"),
            Event::ChannelBound { number, peer, .. } => {
                format!("channel {:#x} {peer}", number.get())
            }
            Event::AllocationClosed {
                to_peers, reason, ..
            } => format!("closed {} {}", to_peers.packets, reason.name()),
            _ => String::new(),
        };
        seen.lock().expect("unpoisoned").push(text);
    }));
    let listener = server.listeners()[0];
    let mut stranger = Client::new(listener).with_user(common::USER, "wrong");
    assert_eq!(stranger.try_allocate().code(), 401);
    let mut client = Client::new(listener);
    client.allocate();
    assert_eq!(client.permit(at(PEER)), 0);
    assert_eq!(client.bind(0x4000, at(PEER)), 0);
    client.send(0x4000, b"one");
    client.release();
    server.shutdown().expect("no worker failed");
    let peer: IpAddr = at(PEER).ip();
    let expected = [
        format!("failed {} wrong_password", common::USER),
        format!("opened {}", common::USER),
        format!("permission {peer}"),
        format!("channel 0x4000 {PEER}"),
        "closed 1 refreshed_to_zero".to_owned(),
    ];
    assert_eq!(*events.lock().expect("unpoisoned"), expected);
}

#[test]
fn servers_with_one_nonce_key_accept_each_others_nonces() {
    let [one, two] = [(); 2].map(|()| start(loopback(1).nonce_key([7; 32])));
    let mut client = Client::new(one.listeners()[0]);
    assert_eq!(client.try_allocate().code(), 0);
    // From the same address, with the same nonce.
    client.server = two.listeners()[0];
    assert_eq!(client.try_allocate().code(), 0);
    eventually("the counters are published", || {
        two.stats().sum(|worker| worker.engine.allocations_opened) == 1
    });
    let challenges = two
        .stats()
        .sum(|worker| worker.engine.errors_with(401) + worker.engine.errors_with(438));
    assert_eq!(challenges, 0, "no challenge");
}
