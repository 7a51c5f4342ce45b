//! Third-party authorization (RFC 7635).

mod realms;
mod removed_keys;

use std::sync::Arc;

use hairpin_turn::server::credentials::{AccessTokens, TokenContent, TokenError};
use hairpin_turn::server::{AuthFailure, CloseReason, ConfigError};
use stun::{
    AccessToken, AttributeType, Builder, Class, ErrorCode, EvenPort, HmacKey, Lifetime, Message,
    Method, PasswordAlgorithms, Realm, RequestedTransport, ReservationToken, Software,
    ThirdPartyAuthorization, TransactionId,
};

use crate::world::{Client, START_UNIX_S, Signing, World, bare, path};

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
