//! Third-party authorization (RFC 7635).

use std::sync::{Arc, Mutex};

use hairpin_turn::server::credentials::{
    AccessTokens, StaticCredentials, TokenContent, TokenError,
};
use hairpin_turn::server::{
    AuthFailure, ClientIdentity, CloseReason, ConfigError, DropReason, Quota, QuotaExceeded,
    RealmConfig, Server, TicketKeys,
};
use hairpin_turn::{ClientPath, ConnectionKey, Transport};
use stun::{
    AccessToken, AttributeType, Builder, Class, ConnectionId, ErrorCode, EvenPort, HmacKey,
    Lifetime, Message, Method, MobilityTicket, PasswordAlgorithms, Realm, RequestedTransport,
    ReservationToken, Software, ThirdPartyAuthorization, TransactionId, XorPeerAddress,
};

use crate::world::{
    Client, Event, REALM, START_UNIX_S, Signing, World, address, bare, path, path_on,
};

const NAME: &str = "turn.example.org";
const KID: &str = "2026-11";
const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";
const TAG: [u8; 4] = *b"tag!";

/// Tokens that are not encrypted and end with a tag.
#[derive(Debug)]
struct OpenTokens {
    name: &'static str,
    /// The kids of the keys, each with its realm.
    kids: Vec<(&'static str, Option<&'static str>)>,
}

impl OpenTokens {
    fn new(name: &'static str) -> Arc<OpenTokens> {
        OpenTokens::with(name, &[(KID, None), ("other", None)])
    }

    fn with(name: &'static str, kids: &[(&'static str, Option<&'static str>)]) -> Arc<OpenTokens> {
        let kids = kids.to_vec();
        Arc::new(OpenTokens { name, kids })
    }
}

impl AccessTokens for OpenTokens {
    fn server_name(&self) -> &str {
        self.name
    }

    fn realm_of(&self, kid: &str) -> Option<&str> {
        self.kids.iter().find(|(known, _)| *known == kid)?.1
    }

    fn has_realm(&self, realm: &str) -> bool {
        self.kids.iter().any(|(_, of)| *of == Some(realm))
    }

    fn open(&self, kid: &str, token: &AccessToken<'_>) -> Result<TokenContent, TokenError> {
        if !self.kids.iter().any(|(known, _)| *known == kid) {
            return Err(TokenError::UnknownKey);
        }
        let block = token.encrypted_block.strip_suffix(&TAG);
        let content = block.and_then(TokenContent::parse);
        content.ok_or(TokenError::Forged)
    }
}

fn world() -> World {
    World::with(|config| config.access_tokens = Some(OpenTokens::new(NAME)))
}

/// A client that has a token.
struct TokenClient {
    client: Client,
    block: Vec<u8>,
}

impl TokenClient {
    fn new(world: &mut World, kid: &str, key: u8) -> TokenClient {
        TokenClient::with_lifetime(world, kid, key, 3600)
    }

    fn with_lifetime(world: &mut World, kid: &str, key: u8, lifetime_s: u32) -> TokenClient {
        let mut client = Client::new(world, kid, REMOTE);
        let content = TokenContent {
            mac_key: vec![key; 20],
            made_unix_s: world.now.unix_s,
            lifetime_s,
        };
        client.signing.keys = vec![HmacKey::sha1(&content.mac_key)];
        let block = [&content.to_block()[..], &TAG].concat();
        TokenClient { client, block }
    }

    /// The same for another client of this address.
    fn at(world: &mut World, kid: &str, key: u8, remote: &str) -> TokenClient {
        let like = TokenClient::new(world, kid, key);
        let mut client = Client::new(world, kid, remote);
        client.signing.keys = like.client.signing.keys;
        TokenClient { client, ..like }
    }

    fn push(block: &[u8], request: &mut Builder<'_>) {
        let token = AccessToken {
            nonce: &[9; 12],
            encrypted_block: block,
        };
        request.push(&token).unwrap();
    }

    fn allocate(&mut self, world: &mut World) -> crate::world::Reply {
        let block = &self.block;
        self.client
            .try_allocate(world, |request| TokenClient::push(block, request))
    }

    fn refresh(&mut self, world: &mut World, lifetime_s: u32) -> crate::world::Reply {
        let block = &self.block;
        self.client.ask(world, Method::REFRESH, |request| {
            request.push(&Lifetime(lifetime_s)).unwrap();
            TokenClient::push(block, request);
        })
    }
}

#[test]
fn challenges_name_the_server_and_offer_passwords_beside_tokens() {
    let mut world = world();
    let reply = world.ask(&path(REMOTE), &bare(Method::ALLOCATE));
    assert_eq!(reply.code(), 401);
    assert!(reply.get::<Realm<'_>>().is_some());
    let mut buffer = [0; 64];
    let id = TransactionId([1; 12]);
    let mut request = Builder::new(&mut buffer, Class::Request, Method::ALLOCATE, &id).unwrap();
    request.push(&RequestedTransport::UDP).unwrap();
    let reply = world.ask(&path(REMOTE), request.finish());
    assert_eq!(
        reply.get::<ThirdPartyAuthorization<'_>>(),
        Some(ThirdPartyAuthorization(NAME))
    );
    assert!(reply.get::<PasswordAlgorithms<'_>>().is_some());
    // The clients of passwords go on as before.
    let mut alice = Client::new(&mut world, "alice", "198.51.100.7:1");
    alice.allocate(&mut world);
    world.finish();
}

#[test]
fn the_longest_server_name_fits_every_challenge_to_an_allocate_request() {
    let longest = hairpin_turn::server::max_server_name_bytes(crate::world::REALM.len());
    let name: &'static str = "n".repeat(longest).leak();
    let mut world = World::with(|config| {
        config.access_tokens = Some(OpenTokens::new(name));
        config.software = Some("hairpin".into());
    });
    let mut buffer = [0; 64];
    let id = TransactionId([1; 12]);
    let mut request = Builder::new(&mut buffer, Class::Request, Method::ALLOCATE, &id).unwrap();
    request.push(&RequestedTransport::UDP).unwrap();
    let reply = world.ask(&path(REMOTE), request.finish());
    let told = reply.get::<ThirdPartyAuthorization<'_>>();
    assert_eq!(told, Some(ThirdPartyAuthorization(name)));
    assert!(reply.get::<PasswordAlgorithms<'_>>().is_some());
    assert!(reply.get::<Software<'_>>().is_none());
    for bad in [&*"n".repeat(longest + 1), "", "a\nb"] {
        let bad: &'static str = bad.to_owned().leak();
        let mut config = world.config.clone();
        config.access_tokens = Some(OpenTokens::new(bad));
        let error = config.validate().unwrap_err();
        assert_eq!(error, ConfigError::ServerName(longest), "{bad:?}");
    }
    world.finish();
}

#[test]
fn a_token_makes_an_allocation_and_its_key_signs_everything() {
    let mut world = world();
    let mut client = TokenClient::new(&mut world, KID, 1);
    let reply = client.allocate(&mut world);
    assert_eq!(reply.code(), 0);
    let message = Message::parse(&reply.0).unwrap();
    message.verify(client.client.key()).unwrap();
    match world.event() {
        crate::world::Event::Opened { user, .. } => assert_eq!(user, "2026-11/74616721"),
        other => panic!("{other:?}"),
    }
    // RFC 7635 §9: only Allocate and Refresh carry the token.
    assert_eq!(client.client.permit(&mut world, &[PEER]), 0);
    assert_eq!(client.client.bind(&mut world, 0x4000, PEER), 0);
    assert_eq!(client.refresh(&mut world, 900).granted(), 900);
    assert_eq!(client.client.refresh(&mut world, 700).granted(), 700);
    assert_eq!(client.refresh(&mut world, 0).code(), 0);
    world.expect_closed(1, CloseReason::Refreshed);
    world.finish();
}

#[test]
fn a_newer_token_takes_the_place_of_the_older_one() {
    let mut world = world();
    let mut client = TokenClient::with_lifetime(&mut world, KID, 1, 100);
    assert_eq!(client.allocate(&mut world).granted(), 100);
    world.expect_opened();
    world.pass_s(60);
    let mut newer = TokenClient::with_lifetime(&mut world, KID, 2, 2000);
    newer.client.next_id = client.client.next_id + 1000;
    assert_eq!(newer.refresh(&mut world, 900).granted(), 900);
    assert_eq!(newer.client.permit(&mut world, &[PEER]), 0);
    // The older key is gone from the allocation.
    assert_eq!(client.client.permit(&mut world, &[PEER]), 401);
    // The authorization server's own key has been replaced.
    let mut rotated = TokenClient::new(&mut world, "other", 3);
    rotated.client.next_id = newer.client.next_id + 1000;
    assert_eq!(rotated.refresh(&mut world, 900).granted(), 900);
    assert_eq!(rotated.client.permit(&mut world, &[PEER]), 0);
    assert_eq!(newer.client.permit(&mut world, &[PEER]), 401);
    // A user with a password is somebody else.
    let mut alice = Client::new(&mut world, "alice", REMOTE);
    assert_eq!(alice.refresh(&mut world, 900).code(), 441);
    // The quota counts the allocation under the name that it was made with, and gives it back.
    world.finish();
}

#[test]
fn a_reservation_is_for_the_holders_of_tokens_at_the_same_address() {
    let mut world = world();
    let mut client = TokenClient::new(&mut world, KID, 1);
    let block = client.block.clone();
    let reply = client.client.try_allocate(&mut world, |request| {
        request.push(&EvenPort { reserve: true }).unwrap();
        TokenClient::push(&block, request);
    });
    assert_eq!(reply.code(), 0);
    world.expect_opened();
    let token = reply.get::<ReservationToken>().unwrap();
    let mut claim = |remote: &str, kid: &str| {
        let mut other = TokenClient::new(&mut world, kid, 2);
        other.client = Client {
            signing: other.client.signing,
            ..Client::new(&mut world, kid, remote)
        };
        other.client.signing.nonce = Some(Client::nonce(&mut world, &other.client.path));
        let block = other.block;
        let reply = other.client.try_allocate(&mut world, |request| {
            request.push(&token).unwrap();
            TokenClient::push(&block, request);
        });
        reply.code()
    };
    assert_eq!(claim("198.51.100.2:4001", KID), 508);
    assert_eq!(claim("198.51.100.1:4001", "other"), 0);
    world.expect_opened();
    world.finish();
}

#[test]
fn no_lifetime_reaches_beyond_the_token() {
    let mut world = world();
    let mut client = TokenClient::with_lifetime(&mut world, KID, 1, 300);
    assert_eq!(client.allocate(&mut world).granted(), 300);
    world.expect_opened();
    world.pass_s(200);
    assert_eq!(client.refresh(&mut world, 3600).granted(), 105);
    // Without the token, the one that the allocation has counts.
    assert_eq!(client.client.refresh(&mut world, 3600).granted(), 105);
    world.pass_s(104);
    assert_eq!(client.refresh(&mut world, 3600).granted(), 1);
    world.pass_s(1);
    world.expect_closed(1, CloseReason::Expired);
    assert_eq!(client.allocate(&mut world).code(), 401);
    assert_eq!(
        world.failures.pop().unwrap().1,
        AuthFailure::ExpiredCredential
    );
    world.finish();
}

#[test]
fn a_token_that_is_wrong_in_any_way_is_unauthenticated_with_its_reason() {
    let mut world = world();
    let wrong = |world: &mut World, kid: &str, spoil: fn(&mut TokenClient)| {
        // The log gets one failure of a kind per second.
        world.pass_s(1);
        let mut client = TokenClient::new(world, kid, 1);
        spoil(&mut client);
        let reply = client.allocate(world);
        assert!(!reply.is_signed());
        (reply.code(), world.failures.pop().map(|failure| failure.1))
    };
    let forged = wrong(&mut world, KID, |client| {
        *client.block.last_mut().unwrap() ^= 1
    });
    assert_eq!(forged, (401, Some(AuthFailure::ForgedToken)));
    let unknown = wrong(&mut world, "nobody", |_| {});
    assert_eq!(unknown, (401, Some(AuthFailure::UnknownUser)));
    let signed = wrong(&mut world, KID, |client| {
        client.client.signing.keys = vec![HmacKey::sha1(&[2; 20])];
    });
    assert_eq!(signed, (401, Some(AuthFailure::WrongPassword)));
    let stale = wrong(&mut world, KID, |client| {
        client.block[2 + 20..2 + 20 + 8]
            .copy_from_slice(&((START_UNIX_S - 4000) << 16).to_be_bytes());
    });
    assert_eq!(stale, (401, Some(AuthFailure::ExpiredCredential)));
    let hashed = wrong(&mut world, KID, |client| {
        client.client.signing.username = None;
        client.client.signing.userhash = Some([1; 32]);
    });
    assert_eq!(hashed, (401, Some(AuthFailure::UnknownUser)));
    let forged_nonce = wrong(&mut world, KID, |client| {
        client.client.signing.nonce.as_mut().unwrap()[20] ^= 1;
    });
    assert_eq!(forged_nonce.0, 438);
    world.finish();
}

#[test]
fn a_malformed_token_is_a_bad_request() {
    let mut world = world();
    let mut client = TokenClient::new(&mut world, KID, 1);
    let reply = client.client.try_allocate(&mut world, |request| {
        let value = [0, 200, 1, 2];
        request
            .push_raw(AttributeType::ACCESS_TOKEN, &value)
            .unwrap();
    });
    assert_eq!(reply.code(), 400);
    world.finish();
}

#[test]
fn an_unexpected_token_is_an_unknown_attribute() {
    let mut world = World::new();
    let mut client = TokenClient::new(&mut world, KID, 1);
    let reply = client.allocate(&mut world);
    assert_eq!(reply.code(), 420);
    let message = Message::parse(&reply.0).unwrap();
    let list = message.find(AttributeType::UNKNOWN_ATTRIBUTES).unwrap();
    assert_eq!(list.value, [0x00, 0x1b]);
    // Beside a password, too, and signed then.
    let mut alice = Client::new(&mut world, "alice", REMOTE);
    let reply = alice.try_allocate(&mut world, |request| TokenClient::push(&[1; 40], request));
    assert_eq!(reply.code(), 420);
    world.finish();
}

#[test]
fn a_key_of_256_bits_signs_with_sha_256_and_gets_message_integrity() {
    let mut world = world();
    let mut client = TokenClient::new(&mut world, KID, 1);
    let key = [5; 32];
    let content = TokenContent {
        mac_key: key.to_vec(),
        made_unix_s: world.now.unix_s,
        lifetime_s: 600,
    };
    client.block = [&content.to_block()[..], &TAG].concat();
    client.client.signing = Signing {
        keys: vec![HmacKey::sha256(&key)],
        ..client.client.signing
    };
    let reply = client.allocate(&mut world);
    assert_eq!(reply.code(), 0);
    world.expect_opened();
    let message = Message::parse(&reply.0).unwrap();
    message.verify(&HmacKey::sha1(&key)).unwrap();
    assert_eq!(client.client.permit(&mut world, &[PEER]), 0);
    world.finish();
}

#[test]
fn the_first_16_bytes_of_a_key_sign_too_unless_that_is_off() {
    for short_token_keys in [true, false] {
        let mut world = World::with(|config| {
            config.access_tokens = Some(OpenTokens::new(NAME));
            config.short_token_keys = short_token_keys;
        });
        let mut client = TokenClient::new(&mut world, KID, 1);
        client.client.signing.keys = vec![HmacKey::sha1(&[1; 16])];
        let reply = client.allocate(&mut world);
        assert_eq!(reply.code(), if short_token_keys { 0 } else { 401 });
        if short_token_keys {
            world.expect_opened();
            assert!(reply.is_signed_with(client.client.key()));
            assert_eq!(client.client.permit(&mut world, &[PEER]), 0);
        }
        world.finish();
    }
}

#[test]
fn protected_binding_requests_take_tokens() {
    let mut world = World::with(|config| {
        config.access_tokens = Some(OpenTokens::new(NAME));
        config.authenticate_binding = true;
    });
    let mut client = TokenClient::new(&mut world, KID, 1);
    let block = client.block.clone();
    let reply = client.client.ask(&mut world, Method::BINDING, |request| {
        TokenClient::push(&block, request);
    });
    assert_eq!(reply.code(), 0);
    assert_ne!(
        reply.get::<ErrorCode<'_>>().map(|error| error.code),
        Some(401)
    );
    world.finish();
}

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
    const LIMIT: usize = 3;
    let mut here = mobile();
    let (client, ticket) = with_ticket(&mut here);
    remove_key(&mut here);
    let mut there = World::new();
    there.config = here.config.clone();
    there.config.unverified_responses = LIMIT as u32;
    let config = there.config.clone().validate().expect("it is valid");
    there.server = Server::new(config, 8, [3; 32]);
    there.quota = Arc::clone(&here.quota);
    let (path, captured) = move_request(&mut there, (&client, &*ticket), (2, false));
    for _ in 0..2 {
        there.pass(1_000_000_000);
        for _ in 0..LIMIT {
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

/// The realms of the clients that have taken something.
#[derive(Debug, Default)]
struct Realms(Mutex<Vec<String>>);

impl Quota for Realms {
    fn try_acquire(&self, client: &ClientIdentity<'_>) -> Result<(), QuotaExceeded> {
        self.0.lock().unwrap().push(client.realm.to_owned());
        Ok(())
    }

    fn release(&self, client: &ClientIdentity<'_>) {
        let mut all = self.0.lock().unwrap();
        let place = all.iter().position(|realm| realm == client.realm);
        all.swap_remove(place.expect("released what was acquired"));
    }

    fn transfer(
        &self,
        from: &ClientIdentity<'_>,
        to: &ClientIdentity<'_>,
    ) -> Result<(), QuotaExceeded> {
        self.release(from);
        self.try_acquire(to)
    }
}

#[test]
fn a_key_chooses_the_realm_of_the_holders_of_its_tokens() {
    const SHOP: &str = "shop.example";
    let quota = Arc::new(Realms::default());
    let mut world = World::with(|config| {
        let users = || Arc::new(StaticCredentials::new(SHOP));
        let mut shop = RealmConfig::new(SHOP, users());
        shop.origins = vec!["https://shop.example".to_owned()];
        config.realms = vec![shop, RealmConfig::new("bank.example", users())];
        config.quota = Arc::clone(&quota) as _;
        let kids = [(KID, None), ("other", Some(SHOP)), ("gone", Some("gone"))];
        config.access_tokens = Some(OpenTokens::with(NAME, &kids));
    });
    let held = || quota.0.lock().unwrap().clone();
    let mut shopper = TokenClient::new(&mut world, "other", 1);
    assert_eq!(shopper.allocate(&mut world).code(), 0);
    world.expect_opened();
    assert_eq!(held(), [SHOP]);
    // With the challenge of the default realm, and with that of the realm.
    for realm in [REALM, SHOP] {
        shopper.client.signing.realm = Some(realm.to_owned());
        assert_eq!(shopper.client.permit(&mut world, &[PEER]), 0, "{realm}");
        assert_eq!(shopper.refresh(&mut world, 900).granted(), 900, "{realm}");
    }
    shopper.client.signing.realm = Some("bank.example".to_owned());
    assert_eq!(shopper.client.permit(&mut world, &[PEER]), 401);
    // A token of another realm does not refresh the allocation.
    let mut other = TokenClient::new(&mut world, KID, 2);
    other.client.next_id = shopper.client.next_id + 1000;
    assert_eq!(other.refresh(&mut world, 900).code(), 441);
    let mut default = TokenClient::at(&mut world, KID, 3, "198.51.100.7:7");
    assert_eq!(default.allocate(&mut world).code(), 0);
    world.expect_opened();
    assert_eq!(held(), [SHOP, REALM]);
    // Its realm is not there.
    let mut gone = TokenClient::at(&mut world, "gone", 4, "198.51.100.7:8");
    assert_eq!(gone.allocate(&mut world).code(), 401);
    // In the shop's realm, only its tokens count.
    for (kid, port, code) in [("other", 9, 0), (KID, 10, 401)] {
        let mut client = TokenClient::at(&mut world, kid, 5, &format!("198.51.100.7:{port}"));
        client.client.signing.realm = Some(SHOP.to_owned());
        let block = client.block.clone();
        let reply = client.client.try_allocate(&mut world, |request| {
            let origin = stun::Origin("https://shop.example");
            request.push(&origin).unwrap();
            TokenClient::push(&block, request);
        });
        assert_eq!(reply.code(), code, "{kid}");
        let name = reply.get::<ThirdPartyAuthorization<'_>>();
        assert_eq!(name.is_some(), code == 401);
    }
    world.expect_opened();
    assert_eq!(held(), [SHOP, REALM, SHOP]);
    world.events.clear();
    world.finish();
}

#[test]
fn the_server_name_fits_beside_the_longest_realm_with_keys() {
    let longest = hairpin_turn::server::max_server_name_bytes(REALM.len());
    let name: &'static str = "n".repeat(longest).leak();
    let long: &'static str = "r".repeat(40).leak();
    let world = World::with(|config| {
        let users = Arc::new(StaticCredentials::new(long));
        config.realms = vec![RealmConfig::new(long, users)];
        config.access_tokens = Some(OpenTokens::new(name));
    });
    let mut config = world.config.clone();
    config.access_tokens = Some(OpenTokens::with(name, &[(KID, Some(long))]));
    let room = hairpin_turn::server::max_server_name_bytes(long.len());
    assert_eq!(
        config.validate().unwrap_err(),
        ConfigError::ServerName(room)
    );
}
