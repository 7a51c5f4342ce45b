//! Allocations that follow their client to another 5-tuple (RFC 8016).

use hairpin_turn::server::{
    ClientVerdict, CloseReason, Config, DropReason, PeerVerdict, Server, TicketKeys,
};
use hairpin_turn::{RelayKey, Transport};
use stun::{
    AddressFamily, AttributeType, Lifetime, Method, MobilityTicket, RequestedAddressFamily,
    RequestedTransport,
};

use crate::world::{Client, Event, Reply, World, address, drop_of, path, path_on};

const WIRELESS: &str = "198.51.100.1:4000";
const CELLULAR: &str = "198.51.100.77:5000";
const THIRD: &str = "198.51.100.99:6000";
const PEER: &str = "192.0.2.200:7000";
const KEY: [u8; 32] = [9; 32];

fn on(config: &mut Config) {
    config.mobility = Some(TicketKeys::new(&KEY));
}

fn world() -> World {
    World::with(on)
}

fn ticket_of(reply: &Reply) -> Vec<u8> {
    let ticket = reply.get::<MobilityTicket<'_>>();
    ticket.expect("a ticket").0.to_vec()
}

fn has_ticket(reply: &Reply) -> bool {
    reply.message().contains(AttributeType::MOBILITY_TICKET)
}

/// An allocation with a ticket, and a channel to [`PEER`].
fn allocate(world: &mut World, client: &mut Client) -> (RelayKey, Vec<u8>) {
    let reply = client.try_allocate(world, |request| {
        request.push(&MobilityTicket(&[])).unwrap();
    });
    assert_eq!(reply.code(), 0);
    world.expect_opened();
    assert_eq!(client.bind(world, 0x4000, PEER), 0);
    (world.relay_at(reply.relayed()[0]), ticket_of(&reply))
}

/// The same client at another address.
fn at(world: &mut World, client: &Client, remote: &str) -> Client {
    moved_to(world, client, path(remote))
}

fn moved_to(world: &mut World, client: &Client, to: hairpin_turn::ClientPath) -> Client {
    let mut moved = Client::on(world, "alice", to);
    // No two of its transactions have the same ID.
    moved.next_id = moved.next_id.max(client.next_id) + 1000;
    moved
}

fn request(client: &mut Client, ticket: &[u8], lifetime_s: u32) -> Vec<u8> {
    client.request(Method::REFRESH, |request| {
        request.push(&Lifetime(lifetime_s)).unwrap();
        request.push(&MobilityTicket(ticket)).unwrap();
    })
}

fn move_by(world: &mut World, client: &mut Client, ticket: &[u8]) -> Reply {
    let request = request(client, ticket, 600);
    world.ask(&client.path, &request)
}

/// Whom the peer's data reaches.
fn receiver(world: &mut World, relay: RelayKey) -> String {
    match world.peer(relay, PEER, b"data") {
        PeerVerdict::ChannelData { path, .. } => path.five_tuple.remote.to_string(),
        other => panic!("{other:?}"),
    }
}

fn is_relayed(verdict: &ClientVerdict) -> bool {
    matches!(verdict, ClientVerdict::ToPeer { .. })
}

#[test]
fn a_ticket_is_given_to_who_asks_for_one_rfc8016_3_1_2() {
    let mut world = world();
    let mut client = Client::new(&mut world, "alice", WIRELESS);
    let request = client.allocate_request(|request| {
        request.push(&MobilityTicket(&[])).unwrap();
    });
    let reply = world.ask(&client.path, &request);
    world.expect_opened();
    let ticket = ticket_of(&reply);
    assert!(ticket.len() == 36 && ticket.is_ascii());
    assert_eq!(world.ask(&client.path, &request), reply, "a retransmission");

    let mut other = Client::new(&mut world, "alice", THIRD);
    let reply = other.try_allocate(&mut world, |_| {});
    world.expect_opened();
    assert!(!has_ticket(&reply));
    // An ordinary Refresh request gets no new ticket.
    assert!(!has_ticket(&client.refresh(&mut world, 600)));
    world.finish();
}

#[test]
fn an_allocate_request_with_a_ticket_is_400_and_without_mobility_405_rfc8016_3_1_2() {
    for (change, empty) in [(on as fn(&mut Config), 0), (|_: &mut Config| {}, 405)] {
        let mut world = World::with(change);
        let mut client = Client::new(&mut world, "alice", WIRELESS);
        for (ticket, code) in [(&[1, 2, 3][..], 400), (&[], empty)] {
            let reply = client.try_allocate(&mut world, |request| {
                request.push(&MobilityTicket(ticket)).unwrap();
            });
            assert_eq!(reply.code(), code);
        }
        world.events.clear();
        world.finish();
    }
}

#[test]
fn the_client_moves_when_it_sends_data_from_its_new_address_rfc8016_3_2_2() {
    for by_channel in [true, false] {
        let mut world = world();
        let mut old = Client::new(&mut world, "alice", WIRELESS);
        let (relay, first) = allocate(&mut world, &mut old);
        let mut new = at(&mut world, &old, CELLULAR);
        let reply = move_by(&mut world, &mut new, &first);
        assert_eq!((reply.code(), reply.granted()), (0, 600));
        assert_ne!(ticket_of(&reply), first);

        // Both serve requests, and data keeps to the old one, as long as it likes.
        world.pass_s(60);
        assert!(is_relayed(&old.channel_data(&mut world, 0x4000, b"data")));
        assert_eq!(receiver(&mut world, relay), WIRELESS);
        assert_eq!(old.permit(&mut world, &[PEER]), 0);
        assert_eq!(new.permit(&mut world, &[PEER]), 0);
        assert_eq!(new.bind(&mut world, 0x4000, PEER), 0);
        assert_eq!(new.try_allocate(&mut world, |_| {}).code(), 437);
        assert_eq!(world.server.stats().allocations_moved, 0);

        let verdict = if by_channel {
            new.channel_data(&mut world, 0x4000, b"data")
        } else {
            new.send(&mut world, PEER, b"data")
        };
        assert!(is_relayed(&verdict));
        assert_eq!(receiver(&mut world, relay), CELLULAR);
        let no_allocation = drop_of(DropReason::NoAllocation);
        assert_eq!(old.channel_data(&mut world, 0x4000, b"late"), no_allocation);
        assert_eq!(old.refresh(&mut world, 600).code(), 437);
        assert_eq!(new.refresh(&mut world, 600).code(), 0);
        assert_eq!(world.server.stats().allocations_moved, 1);
        assert_eq!(
            world.reports,
            [
                format!("also at {CELLULAR}"),
                format!("alice moved from {WIRELESS} to {CELLULAR}")
            ]
        );
        assert_eq!(new.refresh(&mut world, 0).code(), 0);
        world.expect_closed(1, CloseReason::Refreshed);
        world.finish();
    }
}

#[test]
fn an_old_ticket_serves_retransmissions_for_30_seconds_and_nothing_else_rfc8016_3_2_2() {
    let mut world = world();
    let mut old = Client::new(&mut world, "alice", WIRELESS);
    let (_, first) = allocate(&mut world, &mut old);
    let mut new = at(&mut world, &old, CELLULAR);
    let refresh = request(&mut new, &first, 700);
    let reply = world.ask(&new.path, &refresh);
    assert_eq!(reply.granted(), 700);
    // Another request, and the same from elsewhere.
    assert_eq!(move_by(&mut world, &mut new, &first).code(), 400);
    let mut third = at(&mut world, &new, THIRD);
    third.next_id = 5_000_000;
    assert_eq!(move_by(&mut world, &mut third, &first).code(), 400);
    for _ in 0..30 {
        world.pass_s(1);
        assert_eq!(world.ask(&new.path, &refresh), reply);
    }
    world.pass(1);
    assert_eq!(world.ask(&new.path, &refresh).code(), 400);
    // The new one is good for another move.
    let reply = move_by(&mut world, &mut third, &ticket_of(&reply));
    assert_eq!(reply.code(), 0);
    assert!(
        world
            .reports
            .contains(&format!("no longer also at {CELLULAR}"))
    );
    assert_eq!(new.refresh(&mut world, 600).code(), 437);
    world.finish();
}

#[test]
fn data_from_the_new_address_ends_the_old_ticket_rfc8016_3_2_2() {
    let mut world = world();
    let mut old = Client::new(&mut world, "alice", WIRELESS);
    let (_, first) = allocate(&mut world, &mut old);
    let mut new = at(&mut world, &old, CELLULAR);
    let refresh = request(&mut new, &first, 600);
    assert_eq!(world.ask(&new.path, &refresh).code(), 0);
    assert!(is_relayed(&new.channel_data(&mut world, 0x4000, b"data")));
    assert_eq!(world.ask(&new.path, &refresh).code(), 400);
    world.finish();
}

#[test]
fn the_old_allocate_request_makes_no_second_allocation() {
    let mut world = world();
    let mut old = Client::new(&mut world, "alice", WIRELESS);
    let allocate = old.allocate_request(|request| {
        request.push(&MobilityTicket(&[])).unwrap();
    });
    let reply = world.ask(&old.path, &allocate);
    world.expect_opened();
    assert_eq!(old.permit(&mut world, &[PEER]), 0);
    let mut new = at(&mut world, &old, CELLULAR);
    let moved = move_by(&mut world, &mut new, &ticket_of(&reply));
    assert_eq!(moved.code(), 0);
    assert!(is_relayed(&new.send(&mut world, PEER, b"data")));
    let late = world.dropped(&old.path, &allocate);
    assert_eq!(late, DropReason::AllocationDeleted);
    assert_eq!(world.server.stats().allocations, 1);
    world.finish();
}

#[test]
fn tickets_that_prove_nothing_are_refused_rfc8016_3_2_2() {
    let mut world = world();
    let mut old = Client::new(&mut world, "alice", WIRELESS);
    let (_, ticket) = allocate(&mut world, &mut old);
    let mut new = at(&mut world, &old, CELLULAR);
    let mut forged = ticket.clone();
    forged[20] ^= 1;
    for bad in [&forged[..], &[], &ticket[1..]] {
        assert_eq!(move_by(&mut world, &mut new, bad).code(), 400);
    }
    // From where the allocation is already.
    assert_eq!(move_by(&mut world, &mut old, &ticket).code(), 400);
    // Another user's.
    let mut bob = Client::new(&mut world, "bob", THIRD);
    assert_eq!(move_by(&mut world, &mut bob, &ticket).code(), 441);
    // A 5-tuple with an allocation of its own.
    let mut busy = Client::new(&mut world, "alice", "198.51.100.5:1");
    busy.allocate(&mut world);
    assert_eq!(move_by(&mut world, &mut busy, &ticket).code(), 437);
    // A lifetime or a family that cannot be had changes nothing.
    let reply = new.ask(&mut world, Method::REFRESH, |request| {
        request.push(&MobilityTicket(&ticket)).unwrap();
        request
            .push(&RequestedAddressFamily(AddressFamily::V6))
            .unwrap();
    });
    assert_eq!(reply.code(), 443);
    assert_eq!(move_by(&mut world, &mut new, &ticket).code(), 0);
    // Of an allocation that has ended, even if another one has its place.
    let third = ticket;
    assert_eq!(old.refresh(&mut world, 0).code(), 0);
    world.events.clear();
    let mut again = Client::new(&mut world, "alice", "198.51.100.6:1");
    again.allocate(&mut world);
    let mut late = at(&mut world, &old, THIRD);
    assert_eq!(move_by(&mut world, &mut late, &third).code(), 437);
    world.events.clear();
    world.finish();
}

#[test]
fn mobility_that_was_turned_off_is_405_and_old_clients_stay_rfc8016_3_2_2() {
    let mut world = world();
    let mut old = Client::new(&mut world, "alice", WIRELESS);
    let (relay, ticket) = allocate(&mut world, &mut old);
    let mut new = at(&mut world, &old, CELLULAR);
    world.reconfigure(|config| config.mobility = None);
    assert_eq!(move_by(&mut world, &mut new, &ticket).code(), 405);
    assert!(is_relayed(&old.channel_data(&mut world, 0x4000, b"data")));
    assert_eq!(receiver(&mut world, relay), WIRELESS);
    world.finish();
}

#[test]
fn a_refresh_to_zero_with_a_ticket_ends_the_allocation_without_another_ticket() {
    let mut world = world();
    let mut old = Client::new(&mut world, "alice", WIRELESS);
    let (_, ticket) = allocate(&mut world, &mut old);
    let mut new = at(&mut world, &old, CELLULAR);
    let refresh = request(&mut new, &ticket, 0);
    let reply = world.ask(&new.path, &refresh);
    assert_eq!((reply.code(), reply.granted()), (0, 0));
    assert!(!has_ticket(&reply));
    world.expect_closed(1, CloseReason::Refreshed);
    assert_eq!(world.ask(&new.path, &refresh), reply, "a retransmission");
    assert!(world.reports.is_empty());
    world.finish();
}

#[test]
fn the_second_address_goes_with_the_allocation() {
    let mut world = world();
    let mut old = Client::new(&mut world, "alice", WIRELESS);
    let (_, ticket) = allocate(&mut world, &mut old);
    let mut new = at(&mut world, &old, CELLULAR);
    assert_eq!(move_by(&mut world, &mut new, &ticket).code(), 0);
    assert!(world.server.has_allocation(&new.path.five_tuple));
    assert_eq!(old.refresh(&mut world, 0).code(), 0);
    world.expect_closed(1, CloseReason::Refreshed);
    assert!(!world.server.has_allocation(&new.path.five_tuple));
    assert_eq!(
        world.reports.last().unwrap(),
        &format!("no longer also at {CELLULAR}")
    );
    assert_eq!(new.refresh(&mut world, 600).code(), 437);
    world.finish();
}

#[test]
fn the_end_of_the_old_connection_moves_the_client_rfc8016_3_2_2() {
    let mut world = world();
    let wired = path_on(Transport::Tls, WIRELESS);
    let mut old = Client::on(&mut world, "alice", wired);
    let (relay, ticket) = allocate(&mut world, &mut old);
    let mut new = at(&mut world, &old, CELLULAR);
    assert_eq!(move_by(&mut world, &mut new, &ticket).code(), 0);
    assert_eq!(receiver(&mut world, relay), WIRELESS);
    world.server.client_closed(world.now, &wired.five_tuple);
    world.drain();
    assert_eq!(receiver(&mut world, relay), CELLULAR);
    world.finish();
}

#[test]
fn an_allocation_without_a_connection_waits_for_its_client_until_it_expires() {
    for same_port in [false, true] {
        let mut world = world();
        let wired = path_on(Transport::Tcp, WIRELESS);
        let mut old = Client::on(&mut world, "alice", wired);
        let (relay, ticket) = allocate(&mut world, &mut old);
        world.server.client_closed(world.now, &wired.five_tuple);
        world.drain();
        world.pass_s(200);
        let remote = if same_port { WIRELESS } else { CELLULAR };
        let mut new = moved_to(&mut world, &old, path_on(Transport::Tcp, remote));
        let reply = move_by(&mut world, &mut new, &ticket);
        assert_eq!(reply.code(), 0);
        // Nobody else could get the data.
        assert_eq!(receiver(&mut world, relay), remote);

        world.server.client_closed(world.now, &new.path.five_tuple);
        world.pass_s(600);
        world.expect_closed(1, CloseReason::Expired);
        let mut late = at(&mut world, &new, THIRD);
        let late = move_by(&mut world, &mut late, &ticket_of(&reply));
        assert_eq!(late.code(), 437);
        world.finish();
    }
}

#[test]
fn the_end_of_the_new_connection_leaves_the_client_where_it_was() {
    let mut world = world();
    let mut old = Client::new(&mut world, "alice", WIRELESS);
    let (relay, ticket) = allocate(&mut world, &mut old);
    let wired = path_on(Transport::Tcp, CELLULAR);
    let mut new = moved_to(&mut world, &old, wired);
    let next = ticket_of(&move_by(&mut world, &mut new, &ticket));
    world.server.client_closed(world.now, &wired.five_tuple);
    world.drain();
    assert_eq!(receiver(&mut world, relay), WIRELESS);
    assert!(is_relayed(&old.channel_data(&mut world, 0x4000, b"data")));
    // The ticket was used up all the same.
    let mut third = at(&mut world, &new, THIRD);
    assert_eq!(move_by(&mut world, &mut third, &ticket).code(), 400);
    assert_eq!(move_by(&mut world, &mut third, &next).code(), 0);
    world.finish();
}

#[test]
fn the_quota_follows_the_client_and_is_released_once() {
    let mut world = world();
    let mut old = Client::new(&mut world, "alice", WIRELESS);
    let (_, ticket) = allocate(&mut world, &mut old);
    let mut new = at(&mut world, &old, CELLULAR);
    *world.quota.per_source.lock().unwrap() = 0;
    assert_eq!(move_by(&mut world, &mut new, &ticket).code(), 486);
    *world.quota.per_source.lock().unwrap() = 1;
    assert_eq!(move_by(&mut world, &mut new, &ticket).code(), 0);
    assert_eq!(world.quota.held(), 1);
    // It counts where the client has asked for it, so the old source has room again.
    let mut other = Client::new(&mut world, "alice", "198.51.100.1:4444");
    other.allocate(&mut world);
    let mut other = Client::new(&mut world, "alice", "198.51.100.77:5555");
    assert_eq!(other.try_allocate(&mut world, |_| {}).code(), 486);
    world.events.clear();
    world.finish();
}

#[test]
fn the_kernel_relays_for_the_new_address_from_its_first_data_on() {
    let mut world = World::with(|config| {
        on(config);
        config.offload = true;
    });
    let mut old = Client::new(&mut world, "alice", WIRELESS);
    let (_, ticket) = allocate(&mut world, &mut old);
    let mut new = at(&mut world, &old, CELLULAR);
    assert_eq!(move_by(&mut world, &mut new, &ticket).code(), 0);
    let offloaded = |world: &World| {
        let all = world.offloaded.keys();
        all.map(|(five_tuple, _)| five_tuple.remote.to_string())
            .collect::<Vec<_>>()
    };
    assert_eq!(offloaded(&world), [WIRELESS]);
    assert!(is_relayed(&new.channel_data(&mut world, 0x4000, b"data")));
    assert_eq!(offloaded(&world), [CELLULAR]);
    world.events.clear();
    world.finish();
}

#[test]
fn the_policy_is_asked_again_for_the_new_address() {
    let mut world = world();
    let mut old = Client::new(&mut world, "alice", WIRELESS);
    let (_, ticket) = allocate(&mut world, &mut old);
    let mut new = at(&mut world, &old, CELLULAR);
    assert_eq!(move_by(&mut world, &mut new, &ticket).code(), 0);
    // Without a new configuration, what was allowed once stays so where the client is.
    let peer = address(PEER).ip();
    world.policy.denied.lock().unwrap().insert(peer);
    assert!(is_relayed(&old.channel_data(&mut world, 0x4000, b"data")));
    let denied = drop_of(DropReason::PeerNotAllowed);
    assert_eq!(new.channel_data(&mut world, 0x4000, b"data"), denied);
    world.finish();
}

/// A second worker that shares keys and quota.
fn second_worker(first: &World) -> World {
    let mut second = World::with(on);
    second.config = first.config.clone();
    let config = second.config.clone().validate().unwrap();
    second.server = Server::new(config, 8, [3; 32]);
    second.quota = std::sync::Arc::clone(&first.quota);
    second
}

#[test]
fn another_worker_sends_the_client_to_the_one_that_its_ticket_names() {
    let mut here = world();
    let mut there = second_worker(&here);
    let mut old = Client::new(&mut here, "alice", WIRELESS);
    let (relay, ticket) = allocate(&mut here, &mut old);

    let mut new = at(&mut there, &old, CELLULAR);
    let refresh = request(&mut new, &ticket, 600);
    let handled = ClientVerdict::Handled { covers: 1 };
    assert_eq!(there.client(&new.path, &refresh), handled);
    let moved = Event::MovedClient {
        to: 7,
        path: new.path,
        message: refresh.clone(),
    };
    assert_eq!(there.event(), moved);
    // What had arrived before the client was led away follows.
    assert_eq!(there.client(&new.path, &refresh), handled);
    assert!(matches!(there.event(), Event::Moved { to: 7, .. }));

    assert_eq!(here.client(&new.path, &refresh), handled);
    let reply = here.reply(&new.path);
    assert_eq!(reply.code(), 0);
    assert!(is_relayed(&new.channel_data(&mut here, 0x4000, b"data")));
    assert_eq!(receiver(&mut here, relay), CELLULAR);

    // Nobody but the user is led anywhere.
    let mut stranger = at(&mut there, &new, THIRD);
    let next = ticket_of(&reply);
    let mut forged = request(&mut stranger, &next, 600);
    *forged.last_mut().unwrap() ^= 1;
    assert_eq!(there.ask(&stranger.path, &forged).code(), 401);
    // A session of DTLS cannot be moved.
    let session = path_on(Transport::Dtls, THIRD);
    let mut dtls = moved_to(&mut there, &stranger, session);
    assert_eq!(move_by(&mut there, &mut dtls, &next).code(), 405);
    here.finish_both(there);
}

#[test]
fn a_ticket_leads_to_its_worker_wherever_an_allocate_request_went_before() {
    let mut here = world();
    let mut there = second_worker(&here);
    let mut old = Client::new(&mut here, "alice", WIRELESS);
    let (_, ticket) = allocate(&mut here, &mut old);
    let mut new = at(&mut there, &old, CELLULAR);
    there.auto_open = false;
    let allocate = new.allocate_request(|_| {});
    there.client(&new.path, &allocate);
    let Event::OpenRelays { request: asked, .. } = there.event() else {
        panic!("sockets are asked for")
    };
    assert!(there.server.request_moved(there.now, asked, 3));
    there.drain();
    let refresh = request(&mut new, &ticket, 600);
    there.client(&new.path, &refresh);
    assert!(matches!(there.event(), Event::MovedClient { to: 7, .. }));
    here.finish_both(there);
}

#[test]
fn a_connection_goes_to_the_worker_that_its_ticket_names() {
    let mut here = world();
    let mut there = second_worker(&here);
    let mut old = Client::new(&mut here, "alice", WIRELESS);
    let (_, ticket) = allocate(&mut here, &mut old);
    let stream = path_on(Transport::Tcp, CELLULAR);
    let mut new = moved_to(&mut there, &old, stream);
    let refresh = request(&mut new, &ticket, 600);
    there.client(&new.path, &refresh);
    assert!(matches!(
        there.event(),
        Event::MovedConnection { to: 7, .. }
    ));
    here.server.connection_moved(here.now, &stream, &refresh);
    here.drain();
    assert_eq!(here.reply(&stream).code(), 0);
    // The embedder cannot move it.
    there.server.connection_moved(there.now, &stream, &refresh);
    there.drain();
    assert_eq!(there.reply(&stream).code(), 405);
    here.finish_both(there);
}

#[test]
fn a_tcp_allocation_moves_to_streams_only_rfc6062_4_1() {
    let mut world = World::with(|config| {
        on(config);
        config.tcp_relay = true;
    });
    let mut old = Client::on(&mut world, "alice", path_on(Transport::Tcp, WIRELESS));
    let reply = old.ask(&mut world, Method::ALLOCATE, |request| {
        request.push(&RequestedTransport::TCP).unwrap();
        request.push(&MobilityTicket(&[])).unwrap();
    });
    assert_eq!(reply.code(), 0);
    world.expect_opened();
    let ticket = ticket_of(&reply);
    let mut udp = at(&mut world, &old, CELLULAR);
    assert_eq!(move_by(&mut world, &mut udp, &ticket).code(), 400);
    let mut tls = moved_to(&mut world, &udp, path_on(Transport::Tls, CELLULAR));
    assert_eq!(move_by(&mut world, &mut tls, &ticket).code(), 0);
    world.finish();
}

#[test]
fn a_ticket_is_good_in_the_realm_of_its_user() {
    let mut world = World::with(|config| {
        on(config);
        let mut users = hairpin_turn::server::credentials::StaticCredentials::new("other.example");
        users.add_password("alice", "alice's password").unwrap();
        let mut realm =
            hairpin_turn::server::RealmConfig::new("other.example", std::sync::Arc::new(users));
        realm.origins = vec!["https://other.example".to_owned()];
        config.realms.push(realm);
    });
    let mut old = Client::new(&mut world, "alice", WIRELESS);
    let (_, ticket) = allocate(&mut world, &mut old);
    let mut new = at(&mut world, &old, CELLULAR);
    // A web page of the other realm would choose that one, but the request names the user's.
    let reply = new.ask(&mut world, Method::REFRESH, |request| {
        request.push(&MobilityTicket(&ticket)).unwrap();
        request
            .push(&stun::Origin("https://other.example"))
            .unwrap();
    });
    assert_eq!(reply.code(), 0);
    world.finish();
}
