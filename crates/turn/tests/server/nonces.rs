//! Nonces: bound to the client, short-lived, valid across workers and rotations (RFC 8489 §9.2.4).

use stun::nonce::{LEN, NonceKeys};
use stun::{Nonce, PasswordAlgorithms, Realm};

use crate::world::{Client, REALM, Signing, World, path};

#[test]
fn two_clients_never_get_the_same_nonce_and_one_cannot_use_the_others() {
    let mut world = World::new();
    let nonce = Client::nonce(&mut world, &path("198.51.100.1:4000"));
    assert_ne!(nonce, Client::nonce(&mut world, &path("198.51.100.1:4001")));
    assert_ne!(nonce, Client::nonce(&mut world, &path("198.51.100.2:4000")));
    let mut thief = Client::new(&mut world, "alice", "198.51.100.2:4000");
    thief.signing.nonce = Some(nonce);
    assert_eq!(thief.try_allocate(&mut world, |_| {}).code(), 438);
    world.finish();
}

#[test]
fn a_nonce_grows_stale_and_the_answer_brings_a_fresh_one() {
    let mut world = World::with(|config| config.nonce_lifetime_s = 60);
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    client.allocate(&mut world);
    world.pass_s(61);
    let reply = client.refresh(&mut world, 600);
    assert_eq!(reply.code(), 438);
    assert_eq!(reply.get::<Realm<'_>>(), Some(Realm(REALM)));
    assert!(reply.get::<PasswordAlgorithms<'_>>().is_some());
    let fresh = reply.get::<Nonce<'_>>().unwrap().0.to_vec();
    assert_eq!(fresh.len(), LEN);
    assert_ne!(Some(&fresh), client.signing.nonce.as_ref());
    client.signing.nonce = Some(fresh);
    assert_eq!(client.refresh(&mut world, 600).code(), 0);
    world.finish();
}

#[test]
fn wrong_credentials_with_a_stale_nonce_are_unauthenticated() {
    let mut world = World::with(|config| config.nonce_lifetime_s = 60);
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    world.pass_s(61);
    client.signing = Signing::legacy("alice", "wrong", &client.signing.nonce.clone().unwrap());
    assert_eq!(
        client.try_allocate(&mut world, |_| {}).code(),
        401,
        "the nonce is looked at last"
    );
    world.finish();
}

#[test]
fn a_rotation_of_the_nonce_keys_loses_nobody_and_the_second_one_does() {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", "198.51.100.1:4000");
    client.allocate(&mut world);
    world.reconfigure(|config| config.nonce_keys.rotate(&[8; 32]));
    assert_eq!(client.refresh(&mut world, 600).code(), 0);
    world.reconfigure(|config| config.nonce_keys.rotate(&[9; 32]));
    let reply = client.refresh(&mut world, 600);
    assert_eq!(reply.code(), 438);
    client.signing.nonce = Some(reply.get::<Nonce<'_>>().unwrap().0.to_vec());
    assert_eq!(client.refresh(&mut world, 600).code(), 0);
    world.finish();
}

#[test]
fn any_worker_takes_the_nonce_of_another() {
    let mut one = World::new();
    let mut two = World::with(|config| config.nonce_keys = NonceKeys::new(&[1; 32]));
    let mut client = Client::new(&mut one, "alice", "198.51.100.1:4000");
    client.allocate(&mut two);
    one.finish();
    two.finish();
}
