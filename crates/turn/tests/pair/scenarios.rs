//! What a client obtains from our server, step by step.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use stun::nonce::NonceKeys;
use stun::{AddressFamily, IntegrityAlgorithm, PasswordAlgorithm};
use turn::client::{
    Advice, AllocateOptions, AllocationLoss, CallError, Client, ClientConfig, Event, RequestError,
    RequestedPort, RequestedRelays, Security,
};
use turn::server::{ClientIdentity, Quota, QuotaExceeded, TicketKeys};

use crate::network::Weather;
use crate::pair::{PASSWORD, Pair, REALM, USER};

fn peer(last: u8, port: u16) -> SocketAddr {
    ([198, 51, 100, last], port).into()
}

/// A peer with a permission, and one with a channel.
fn reach_both_ways(pair: &mut Pair, client: usize) -> (SocketAddr, SocketAddr) {
    let (by_indication, by_channel) = (peer(200, 700), peer(201, 701));
    pair.with(client, |client, now| {
        client
            .permit(now, &[by_indication.ip()])
            .expect("allocated");
        client.bind_channel(now, by_channel).expect("allocated");
    });
    (by_indication, by_channel)
}

fn allocation_error(events: &[Event]) -> (&RequestError, &Advice) {
    match events {
        [Event::AllocateFailed { error, advice }] => (error, advice),
        other => panic!("expected one AllocateFailed, got {other:?}"),
    }
}

#[test]
fn the_strongest_credentials_are_agreed_upon() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_allocated();
    let offer = pair.clients[client].offer().expect("challenged");
    assert_eq!(offer.realm, REALM);
    assert_eq!(offer.integrity, IntegrityAlgorithm::Sha256);
    let (_, chosen) = offer.algorithms.expect("listed");
    assert_eq!(chosen, PasswordAlgorithm::Sha256);
    assert!(offer.anonymous);
}

#[test]
fn a_classic_client_is_served_too() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_client(ClientConfig {
        security: Security::Classic,
        fingerprint: true,
        ..ClientConfig::with_credentials(USER, PASSWORD)
    });
    pair.allocate(client, AllocateOptions::default());
    let offer = pair.clients[client].offer().expect("challenged");
    assert_eq!(offer.integrity, IntegrityAlgorithm::Sha1);
}

#[test]
fn a_wrong_password_is_recognized() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_client(ClientConfig::with_credentials(USER, "wrong"));
    let events = pair.try_allocate(client, AllocateOptions::default());
    let (error, advice) = allocation_error(&events);
    let realm = REALM.into();
    assert_eq!(*error, RequestError::WrongCredentials { realm });
    assert_eq!(*advice, Advice::GiveUp);
}

#[test]
fn a_binding_needs_no_credentials() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_client(ClientConfig::default());
    pair.with(client, |client, now| client.binding(now));
    pair.run_s(1);
    let events = pair.events(client);
    let [Event::Mapped(mapped)] = &events[..] else {
        panic!("{events:?}");
    };
    assert_eq!(mapped.address, ([198, 51, 100, 1], 10_000).into());
    assert_eq!(mapped.timing.elapsed, Duration::from_millis(20));
}

#[test]
fn data_goes_out_and_comes_back_both_ways() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_allocated();
    let (by_indication, by_channel) = reach_both_ways(&mut pair, client);
    pair.run_s(1);
    for (to, payload) in [
        (by_indication, &b"indicated"[..]),
        (by_channel, b"channelled"),
        (by_channel, b""),
    ] {
        assert!(pair.send(client, to, payload));
        pair.run_s(1);
        assert_eq!(pair.data(client), [(to, payload.to_vec())]);
    }
    assert!(pair.logs[client].ignored.is_empty());
}

#[test]
fn two_clients_of_one_server_reach_each_other() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let (one, two) = (pair.add_allocated(), pair.add_allocated());
    let (from, to) = (pair.relayed(one), pair.relayed(two));
    pair.with(one, |client, now| client.bind_channel(now, to).map(|_| ()))
        .expect("allocated");
    pair.with(two, |client, now| client.permit(now, &[from.ip()]))
        .expect("allocated");
    pair.run_s(1);
    assert!(pair.send(one, to, b"there"));
    assert!(pair.send(two, from, b"and back"));
    pair.run_s(1);
    assert_eq!(pair.data(two), [(from, b"there".to_vec())]);
    assert_eq!(pair.data(one), [(to, b"and back".to_vec())]);
}

#[test]
fn a_dual_allocation_relays_both_families_and_gives_one_back() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_default_client();
    pair.allocate(
        client,
        AllocateOptions {
            mobility: false,
            relay: RequestedRelays::Both { even_port: false },
            dont_fragment: true,
            lifetime_s: Some(1200),
        },
    );
    let v6: SocketAddr = "[2001:db8:2::7]:700".parse().expect("an address");
    let v4 = peer(200, 700);
    pair.with(client, |client, now| {
        client.bind_channel(now, v6).expect("allocated");
        client.bind_channel(now, v4).expect("allocated");
    });
    pair.run_s(1);
    assert!(pair.send(client, v6, b"six") && pair.send(client, v4, b"four"));
    pair.run_s(1);
    assert_eq!(pair.data(client).len(), 2);
    pair.with(client, |client, now| {
        client
            .release(now, Some(AddressFamily::V4))
            .expect("allocated");
    });
    pair.run_s(1);
    assert!(!pair.send(client, v4, b"gone"));
    assert!(pair.send(client, v6, b"still here"));
    pair.run_s(1);
    assert_eq!(pair.data(client), [(v6, b"still here".to_vec())]);
}

#[test]
fn a_reserved_port_is_claimed_by_another_client() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let (one, two) = (pair.add_default_client(), pair.add_default_client());
    let port = RequestedPort::EvenAndNext;
    let relay = RequestedRelays::One { family: None, port };
    let options = AllocateOptions {
        relay,
        ..AllocateOptions::default()
    };
    let events = pair.try_allocate(one, options);
    let [Event::Allocated(first)] = &events[..] else {
        panic!("{events:?}");
    };
    let token = first.reservation.expect("asked for");
    let options = AllocateOptions {
        relay: RequestedRelays::Reserved(token),
        ..AllocateOptions::default()
    };
    pair.allocate(two, options);
    assert_eq!(first.relayed.port() % 2, 0);
    assert_eq!(pair.relayed(two).port(), first.relayed.port() + 1);
}

#[test]
fn a_forbidden_peer_is_refused_and_the_others_are_not() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_allocated();
    let forbidden = peer(66, 0).ip();
    pair.policy
        .denied
        .lock()
        .expect("unpoisoned")
        .push(forbidden);
    pair.events(client);
    let ips = [peer(65, 0).ip(), forbidden, peer(67, 0).ip()];
    pair.with(client, |client, now| client.permit(now, &ips))
        .expect("allocated");
    pair.run_s(1);
    let events = pair.events(client);
    let failed = events.iter().find_map(|event| match event {
        Event::PermissionFailed { peer, error } => Some((*peer, error.code())),
        _ => None,
    });
    assert_eq!(failed, Some((forbidden, Some(403))));
    assert_eq!(events.len(), 3);
    assert!(pair.send(client, peer(67, 9), b"x"));
}

#[derive(Debug)]
struct Full;

impl Quota for Full {
    fn try_acquire(&self, _: &ClientIdentity<'_>) -> Result<(), QuotaExceeded> {
        Err(QuotaExceeded::User)
    }

    fn release(&self, _: &ClientIdentity<'_>) {}

    fn transfer(
        &self,
        _: &ClientIdentity<'_>,
        _: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded> {
        Err(QuotaExceeded::User)
    }
}

#[test]
fn a_reached_quota_advises_to_wait() {
    let mut pair = Pair::new(Weather::FINE, 1);
    pair.reconfigure(|config| config.quota = Arc::new(Full));
    let client = pair.add_default_client();
    let events = pair.try_allocate(client, AllocateOptions::default());
    let (error, advice) = allocation_error(&events);
    assert_eq!(error.code(), Some(486));
    assert_eq!(*advice, Advice::Wait(Duration::from_secs(60)));
}

#[test]
fn an_allocation_lives_for_hours_with_everything_on_it() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_allocated();
    let (by_indication, by_channel) = reach_both_ways(&mut pair, client);
    for minute in 0..180u32 {
        pair.run_s(60);
        // Nonces expire after ten minutes, and now and then the server takes a new key for them.
        if minute % 50 == 49 {
            pair.reconfigure(|config| config.nonce_keys.rotate(&[minute as u8; 32]));
        }
        for to in [by_indication, by_channel] {
            assert!(pair.send(client, to, &minute.to_be_bytes()));
        }
        pair.run_s(1);
        assert_eq!(pair.data(client).len(), 2, "minute {minute}");
    }
    let lost = |event: &Event| {
        !matches!(
            event,
            Event::Allocated(_)
                | Event::Refreshed { .. }
                | Event::Permitted { .. }
                | Event::ChannelBound { .. }
        )
    };
    assert!(!pair.events(client).iter().any(lost));
}

#[test]
fn keys_of_nonces_that_are_all_new_cost_a_challenge_and_nothing_else() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_allocated();
    pair.reconfigure(|config| config.nonce_keys = NonceKeys::new(&[77; 32]));
    pair.events(client);
    pair.with(client, |client, now| client.refresh(now, None))
        .expect("allocated");
    pair.run_s(1);
    assert!(matches!(
        pair.events(client)[..],
        [Event::Refreshed {
            lifetime_s: 600,
            ..
        }]
    ));
    assert_eq!(pair.server.stats().errors_with(438), 1);
}

#[test]
fn an_allocation_without_a_refresh_expires_on_both_sides() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_client(ClientConfig {
        keep_alive: false,
        ..ClientConfig::with_credentials(USER, PASSWORD)
    });
    pair.allocate(client, AllocateOptions::default());
    pair.run_s(600);
    assert_eq!(
        pair.events(client).pop(),
        Some(Event::Lost(AllocationLoss::Expired))
    );
    assert_eq!(pair.server.stats().allocations, 0);
    pair.allocate(client, AllocateOptions::default());
}

#[test]
fn releasing_leaves_nothing_on_the_server() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_allocated();
    pair.with(client, |client, now| {
        client.bind_channel(now, peer(1, 1)).expect("allocated");
        client.release(now, None).expect("allocated");
    });
    pair.run_s(1);
    assert!(matches!(
        pair.events(client).last(),
        Some(Event::Released { family: None, .. })
    ));
    let stats = pair.server.stats();
    assert_eq!(
        (stats.allocations, stats.permissions, stats.channels),
        (0, 0, 0)
    );
    assert_eq!(pair.clients[client].poll_timeout(), None);
}

#[test]
fn a_second_allocation_on_the_same_path_wants_another_port() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_allocated();
    // The client has crashed and come back with the same address.
    let config = ClientConfig::with_credentials(USER, PASSWORD);
    pair.clients[client] = turn::client::Client::new(Arc::new(config), [99; 32]);
    pair.events(client);
    let events = pair.try_allocate(client, AllocateOptions::default());
    let (error, advice) = allocation_error(&events);
    assert_eq!(error.code(), Some(437));
    assert_eq!(*advice, Advice::ChangePort);
}

#[test]
fn a_client_keeps_its_allocation_at_another_address_rfc8016_3() {
    for weather in [Weather::FINE, Weather::FOUL] {
        let mut pair = Pair::new(weather, 8);
        pair.reconfigure(|config| config.mobility = Some(TicketKeys::new(&[4; 32])));
        let client = pair.add_default_client();
        let options = AllocateOptions {
            mobility: true,
            ..AllocateOptions::default()
        };
        pair.allocate(client, options);
        let relayed = pair.relayed(client);
        let (by_indication, by_channel) = reach_both_ways(&mut pair, client);
        pair.run_s(40);
        pair.events(client);
        for _ in 0..3 {
            pair.change_address(client);
            // Asked for before the server knows the address.
            pair.with(client, |client, now| {
                client
                    .permit(now, &[by_indication.ip()])
                    .expect("allocated");
            });
            pair.run_s(60);
            let events = pair.events(client);
            let is_moved = |event: &Event| matches!(event, Event::Moved { .. });
            assert!(events.iter().any(is_moved), "{events:?}");
            // Longer than permissions, channels and nonces last without being refreshed.
            for round in 0..25 {
                for peer in [by_indication, by_channel] {
                    for copy in 0..40 {
                        assert!(pair.send(client, peer, &[round, copy]));
                        pair.run_ms(20);
                    }
                }
                pair.run_s(60);
                let senders: HashSet<SocketAddr> = pair
                    .data(client)
                    .into_iter()
                    .map(|(from, _)| from)
                    .collect();
                assert_eq!(senders, HashSet::from([by_indication, by_channel]));
            }
            assert_eq!(pair.relayed(client), relayed);
        }
        assert_eq!(pair.server.stats().allocations_moved, 3);
        assert_eq!(pair.server.stats().allocations, 1);
    }
}

#[test]
fn a_server_that_forbids_mobility_is_asked_without_rfc8016_3_1_4() {
    let mut pair = Pair::new(Weather::FINE, 1);
    let client = pair.add_default_client();
    let options = AllocateOptions {
        mobility: true,
        ..AllocateOptions::default()
    };
    let events = pair.try_allocate(client, options);
    let (error, advice) = allocation_error(&events);
    assert_eq!((error.code(), advice), (Some(405), &Advice::OmitMobility));
    pair.allocate(client, AllocateOptions::default());
    let moved = pair.with(client, Client::moved);
    assert_eq!(moved, Err(CallError::NoTicket));
}
