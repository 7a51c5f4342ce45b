//! What holders of tokens can do after the key of their tokens has been removed.

use std::sync::Arc;

use hairpin_turn::server::credentials::StaticCredentials;
use hairpin_turn::server::{CloseReason, DropReason, Server, TicketKeys};
use hairpin_turn::{ClientPath, ConnectionKey, Transport};
use stun::{
    ConnectionId, HmacKey, Method, MobilityTicket, RequestedTransport, ThirdPartyAuthorization,
    XorPeerAddress,
};

use super::{KID, NAME, OpenTokens, PEER, REMOTE, TokenClient, world};
use crate::world::{Client, Event, REALM, World, address, path_on};

#[test]
fn an_allocation_outlives_the_key_of_its_token_and_a_new_token_of_that_key_is_refused() {
    // Strictly, too: what the token says has not changed.
    for strict_expiry in [false, true] {
        let mut world = world();
        world.reconfigure(|config| config.strict_expiry = strict_expiry);
        let mut first = TokenClient::new(&mut world, KID, 1);
        assert_eq!(first.allocate(&mut world).code(), 0);
        world.expect_opened();
        world.reconfigure(|config| {
            config.access_tokens = Some(OpenTokens::with(NAME, &[("other", None)]));
            config.credentials = Arc::new(StaticCredentials::new(REALM));
        });
        assert_eq!(first.refresh(&mut world, 900).granted(), 900);
        assert_eq!(first.client.refresh(&mut world, 800).granted(), 800);
        assert_eq!(first.client.permit(&mut world, &[PEER]), 0);
        assert_eq!(first.client.bind(&mut world, 0x4000, PEER), 0);
        // Somebody else with a token of that key, and the same client with another one.
        let mut late = TokenClient::at(&mut world, KID, 1, "198.51.100.7:7");
        let reply = late.allocate(&mut world);
        assert_eq!(reply.code(), 401);
        let name = reply.get::<ThirdPartyAuthorization<'_>>();
        assert_eq!(name, Some(ThirdPartyAuthorization(NAME)));
        let mut second = TokenClient::new(&mut world, KID, 2);
        second.client.next_id = first.client.next_id + 1000;
        assert_eq!(second.refresh(&mut world, 900).code(), 401);
        // A key that is there takes over.
        let mut newer = TokenClient::new(&mut world, "other", 3);
        newer.client.next_id = second.client.next_id + 1000;
        assert_eq!(newer.refresh(&mut world, 900).granted(), 900);
        assert_eq!(newer.client.permit(&mut world, &[PEER]), 0);
        assert_eq!(first.refresh(&mut world, 900).code(), 401);
        // The last key goes.
        world.reconfigure(|config| config.access_tokens = None);
        assert_eq!(newer.refresh(&mut world, 700).granted(), 700);
        assert_eq!(late.allocate(&mut world).code(), 420);
        world.finish();
    }
}

/// A reload has removed the key that has encrypted the tokens of [`KID`].
fn remove_key(world: &mut World) {
    world.reconfigure(|config| {
        config.access_tokens = Some(OpenTokens::with(NAME, &[("other", None)]));
    });
}

/// A TCP allocation with a token, and a connection of it that waits for its data connection.
fn connected(world: &mut World) -> (TokenClient, ConnectionKey, ConnectionId) {
    let mut client = TokenClient::new(world, KID, 1);
    let signing = client.client.signing;
    client.client = Client::on(world, KID, path_on(Transport::Tcp, REMOTE));
    client.client.signing.keys = signing.keys;
    let block = client.block.clone();
    let reply = client.client.ask(world, Method::ALLOCATE, |request| {
        request.push(&RequestedTransport::TCP).unwrap();
        TokenClient::push(&block, request);
    });
    assert_eq!(reply.code(), 0);
    world.expect_opened();
    let connect = client.client.request(Method::CONNECT, |request| {
        request.push(&XorPeerAddress(address(PEER))).unwrap();
    });
    world.client(&client.client.path, &connect);
    let Event::Connect(connection, ..) = world.event() else {
        panic!("not dialled")
    };
    assert!(world.server.connected(world.now, connection, Ok(())));
    world.drain();
    let reply = world.reply(&client.client.path);
    let id = reply.get::<ConnectionId>().expect("an ID");
    (client, connection, id)
}

/// RFC 7635 §9: the token is in Allocate and Refresh requests only.
#[test]
fn a_data_connection_is_bound_with_the_session_key_also_after_the_key_of_the_token_is_gone() {
    for is_gone in [false, true] {
        for with_token in [false, true] {
            let mut world = World::with(|config| {
                config.access_tokens = Some(OpenTokens::new(NAME));
                config.tcp_relay = true;
            });
            let (mut client, connection, id) = connected(&mut world);
            if is_gone {
                remove_key(&mut world);
            }
            let to = path_on(Transport::Tcp, "198.51.100.1:4001");
            let mut data = Client::on(&mut world, KID, to);
            let bind = |data: &mut Client, world: &mut World| {
                let reply = data.ask(world, Method::CONNECTION_BIND, |request| {
                    request.push(&id).unwrap();
                    if with_token {
                        TokenClient::push(&client.block, request);
                    }
                });
                reply.code()
            };
            // Somebody who knows the ID only.
            data.signing.keys = vec![HmacKey::sha1(&[2; 20])];
            assert_eq!(bind(&mut data, &mut world), 401);
            data.signing.keys = client.client.signing.keys.clone();
            assert_eq!(bind(&mut data, &mut world), 0);
            assert_eq!(world.event(), Event::BindConnection(connection, to));
            assert_eq!(client.client.refresh(&mut world, 0).code(), 0);
            assert_eq!(world.event(), Event::CloseConnection(connection));
            world.expect_closed(1, CloseReason::Refreshed);
            world.finish();
        }
    }
}

const CELLULAR: &str = "198.51.100.77:5000";

fn mobile() -> World {
    World::with(|config| {
        config.access_tokens = Some(OpenTokens::new(NAME));
        config.mobility = Some(TicketKeys::new(&[9; 32]));
    })
}

/// An allocation with a token. Returns its ticket, too.
fn with_ticket(world: &mut World) -> (TokenClient, Vec<u8>) {
    let mut client = TokenClient::new(world, KID, 1);
    let block = client.block.clone();
    let reply = client.client.try_allocate(world, |request| {
        request.push(&MobilityTicket(&[])).unwrap();
        TokenClient::push(&block, request);
    });
    world.expect_opened();
    let ticket = reply.get::<MobilityTicket<'_>>().expect("a ticket");
    (client, ticket.0.to_vec())
}

/// A Refresh request with the ticket, from another address.
fn move_request(
    world: &mut World,
    (client, ticket): (&TokenClient, &[u8]),
    (key, with_token): (u8, bool),
) -> (ClientPath, Vec<u8>) {
    let mut moved = Client::new(world, KID, CELLULAR);
    moved.signing.keys = vec![HmacKey::sha1(&[key; 20])];
    let request = moved.request(Method::REFRESH, |request| {
        request.push(&MobilityTicket(ticket)).unwrap();
        if with_token {
            TokenClient::push(&client.block, request);
        }
    });
    (moved.path, request)
}

#[test]
fn a_client_moves_with_the_session_key_after_the_key_of_its_token_is_gone() {
    for with_token in [false, true] {
        let mut world = mobile();
        let (client, ticket) = with_ticket(&mut world);
        remove_key(&mut world);
        // Somebody has seen the ticket, which is not encrypted on its way.
        let of = (&client, &*ticket);
        let (path, forged) = move_request(&mut world, of, (2, with_token));
        assert_eq!(world.ask(&path, &forged).code(), 401);
        let (path, refresh) = move_request(&mut world, of, (1, with_token));
        let reply = world.ask(&path, &refresh);
        assert_eq!(reply.code(), 0);
        assert!(
            reply
                .get::<MobilityTicket<'_>>()
                .is_some_and(|it| it.0 != ticket)
        );
        world.finish();
    }
}

#[test]
fn the_worker_with_the_allocation_authenticates_a_move_after_the_key_of_the_token_is_gone() {
    for with_token in [false, true] {
        let mut here = mobile();
        let (client, ticket) = with_ticket(&mut here);
        remove_key(&mut here);
        let mut there = World::new();
        there.config = here.config.clone();
        let config = there.config.clone().validate().expect("it is valid");
        there.server = Server::new(config, 8, [3; 32]);
        there.quota = Arc::clone(&here.quota);
        for (key, code) in [(2, 401), (1, 0)] {
            let of = (&client, &*ticket);
            let (path, refresh) = move_request(&mut there, of, (key, with_token));
            there.client(&path, &refresh);
            let moved = Event::MovedClient {
                to: 7,
                path,
                message: refresh.clone(),
            };
            assert_eq!(there.event(), moved, "this worker cannot know");
            here.server.handle_moved(here.now, &path, &refresh, None);
            here.drain();
            assert_eq!(here.reply(&path).code(), code);
        }
        here.finish_both(there);
    }
}

#[test]
fn a_ticket_that_is_repeated_beyond_the_limit_of_its_source_fills_no_mailbox() {
    const MAX_UNVERIFIED: usize = 3;
    let mut here = mobile();
    let (client, ticket) = with_ticket(&mut here);
    remove_key(&mut here);
    let mut there = World::new();
    there.config = here.config.clone();
    there.config.unverified_responses = MAX_UNVERIFIED as u32;
    let config = there.config.clone().validate().expect("it is valid");
    there.server = Server::new(config, 8, [3; 32]);
    there.quota = Arc::clone(&here.quota);
    let (path, captured) = move_request(&mut there, (&client, &*ticket), (2, false));
    for _ in 0..2 {
        there.pass(1_000_000_000);
        for _ in 0..MAX_UNVERIFIED {
            there.client(&path, &captured);
            assert!(matches!(there.event(), Event::MovedClient { to: 7, .. }));
        }
        for _ in 0..10 {
            let reason = there.dropped(&path, &captured);
            assert_eq!(reason, DropReason::UnverifiedOverLimit);
        }
    }
    here.finish_both(there);
}
