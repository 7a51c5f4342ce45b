//! What an embedding program decides and learns.

use crate::common::{Client, eventually, loopback, start};
use hairpin_server::AddressFamily;
use hairpin_server::hooks::{ClientIdentity, Event, RelayChoice};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use stun::{EvenPort, Method, RequestedAddressFamily, RequestedTransport, ReservationToken};
use turn::server::{Quota, QuotaExceeded};

const PEER: &str = "127.0.0.1:4000";
const OTHER: &str = "127.0.0.1:4001";

fn at(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

#[test]
fn a_peer_needs_the_rules_and_the_hook() {
    let server = start(loopback(1).permit_peer(|client, peer| {
        assert_eq!(
            (client.user, client.realm),
            (crate::common::USER, "hairpin")
        );
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
        assert_eq!(client.realm, "hairpin");
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
fn events_cover_the_life_of_an_allocation() {
    let events: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = Arc::clone(&events);
    let server = start(loopback(1).on_event(move |event| {
        let text = match event {
            Event::AuthenticationFailed { user, reason, .. } => {
                format!("failed {user} {}", reason.name())
            }
            Event::AllocationOpened { client, .. } => {
                format!("opened {} of {}", client.user, client.realm)
            }
            Event::AllocationRefreshed { lifetime_s, .. } => format!("refreshed {lifetime_s}"),
            Event::PermissionInstalled { peer, .. } => format!("permission {peer}"),
            Event::ChannelBound { number, peer, .. } => {
                format!("channel {:#x} {peer}", number.get())
            }
            Event::AllocationClosed {
                to_peers, reason, ..
            } => format!("closed {} {}", to_peers.packets, reason.name()),
            Event::Authenticated { client, method } => {
                format!("proven {} {:#x}", client.user, method.number())
            }
            _ => String::new(),
        };
        seen.lock().expect("unpoisoned").push(text);
    }));
    let listener = server.listeners()[0];
    let mut stranger = Client::new(listener).with_user(crate::common::USER, "wrong");
    assert_eq!(stranger.try_allocate().code(), 401);
    let mut client = Client::new(listener);
    client.allocate();
    assert_eq!(client.permit(at(PEER)), 0);
    assert_eq!(client.bind(0x4000, at(PEER)), 0);
    client.send(0x4000, b"one");
    client.release();
    server.shutdown().expect("no worker failed");
    let peer: IpAddr = at(PEER).ip();
    let proven = |method: u16| format!("proven {} {method:#x}", crate::common::USER);
    let expected = [
        format!("failed {} wrong_password", crate::common::USER),
        proven(3),
        format!("opened {} of hairpin", crate::common::USER),
        proven(8),
        format!("permission {peer}"),
        proven(9),
        format!("channel 0x4000 {PEER}"),
        proven(4),
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

/// Two relay addresses of IPv4, and one of IPv6.
fn with_choice(
    choose: impl Fn(&ClientIdentity<'_>, AddressFamily) -> RelayChoice + Send + Sync + 'static,
) -> hairpin_server::Running {
    let builder = loopback(2)
        .relay_address(crate::common::ip("127.0.0.2"))
        .relay_address(crate::common::ip("::1"))
        .external_address(
            crate::common::ip("198.51.100.7"),
            Some(crate::common::ip("127.0.0.2")),
        )
        .user("bob", crate::common::PASSWORD)
        .choose_relay(choose);
    start(builder)
}

#[test]
fn the_hook_chooses_the_relay_address_by_either_side_of_its_mapping() {
    let server = with_choice(|client, family| {
        assert_eq!(family, AddressFamily::V4);
        RelayChoice::Address(crate::common::ip(match client.user {
            "bob" => "198.51.100.7",
            _ => "127.0.0.1",
        }))
    });
    let listener = server.listeners()[0];
    for _ in 0..8 {
        let relayed = Client::new(listener).allocate();
        assert_eq!(relayed.ip(), crate::common::ip("127.0.0.1"));
        let mut bob = Client::new(listener).with_user("bob", crate::common::PASSWORD);
        assert_eq!(bob.allocate().ip(), crate::common::ip("198.51.100.7"));
    }
}

#[test]
fn a_pair_of_ports_has_the_chosen_address() {
    let server = with_choice(|_, _| RelayChoice::Address(crate::common::ip("127.0.0.2")));
    let listener = server.listeners()[0];
    for _ in 0..8 {
        let mut client = Client::new(listener);
        let answer =
            client.allocate_with(&|request| request.push(&EvenPort { reserve: true }).map(drop));
        assert_eq!(answer.relayed().ip(), crate::common::ip("198.51.100.7"));
        let token = answer.token();
        let claimed = Client::new(listener)
            .request(Method::ALLOCATE, &|request| {
                request.push(&RequestedTransport::UDP)?;
                request.push(&ReservationToken(token)).map(drop)
            })
            .relayed();
        assert_eq!(claimed.ip(), crate::common::ip("198.51.100.7"));
        assert_eq!(claimed.port(), answer.relayed().port() + 1);
    }
}

#[test]
fn a_client_may_get_no_address_of_a_family() {
    let server = with_choice(|_, family| match family {
        AddressFamily::V4 => RelayChoice::None,
        AddressFamily::V6 => RelayChoice::Any,
    });
    let listener = server.listeners()[0];
    assert_eq!(Client::new(listener).try_allocate().code(), 440);
    let answer = Client::new(listener).allocate_with(&|request| {
        request
            .push(&RequestedAddressFamily(AddressFamily::V6))
            .map(drop)
    });
    assert_eq!(answer.code(), 0);
}

#[test]
fn an_address_that_is_no_relay_address_of_the_family_is_508() {
    for wrong in ["127.0.0.3", "::1"] {
        let server = with_choice(move |_, _| RelayChoice::Address(crate::common::ip(wrong)));
        let mut client = Client::new(server.listeners()[0]);
        assert_eq!(client.try_allocate().code(), 508, "{wrong}");
    }
}
