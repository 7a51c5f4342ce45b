//! Whatever arrives: no panic, no verdict beyond what was handed in, and no change without the right key.

use hairpin_turn::server::{ClaimError, ClientVerdict, OpenError, PeerVerdict};
use hairpin_turn::{RelayKey, RequestKey, Run};
use proptest::prelude::*;
use stun::{Lifetime, Method, XorPeerAddress};

use crate::world::{Client, World, address, channel_header};

const REMOTE: &str = "198.51.100.1:4000";
const PEER: &str = "198.51.100.200:700";

/// An allocation with a permission and a channel.
fn ready() -> (World, Client, RelayKey) {
    let mut world = World::new();
    let mut client = Client::new(&mut world, "alice", REMOTE);
    let (relay, _) = client.allocate(&mut world);
    assert_eq!(client.bind(&mut world, 0x4000, PEER), 0);
    (world, client, relay)
}

fn check_peer(verdict: &PeerVerdict, run: Run<'_>) {
    assert!((1..=run.count()).contains(&verdict.covers()), "{verdict:?}");
}

fn check(verdict: &ClientVerdict, run: Run<'_>) {
    assert!((1..=run.count()).contains(&verdict.covers()), "{verdict:?}");
    if let ClientVerdict::ToPeer { payload, .. } | ClientVerdict::ToRelay { payload, .. } = verdict
    {
        assert!(
            payload.start <= payload.end && payload.end <= run.first().len(),
            "{verdict:?}"
        );
    }
}

#[test]
fn no_bit_of_a_signed_request_can_be_turned() {
    let (mut world, mut client, _) = ready();
    let request = client.request(Method::REFRESH, |request| {
        request.push(&Lifetime(0)).unwrap();
    });
    for bit in 0..request.len() * 8 {
        let mut forged = request.clone();
        forged[bit / 8] ^= 1 << (bit % 8);
        world.client(&client.path, &forged);
        world.events.clear();
        assert_eq!(world.server.stats().allocations, 1, "bit {bit}");
    }
    assert_eq!(
        world.ask(&client.path, &request).code(),
        0,
        "and it would have worked"
    );
    world.events.clear();
    world.finish();
}

#[test]
fn a_replayed_request_does_nothing_from_another_address() {
    let (mut world, mut client, _) = ready();
    let request = client.request(Method::REFRESH, |request| {
        request.push(&Lifetime(0)).unwrap();
    });
    let thief = Client::new(&mut world, "bob", "198.51.100.66:4000");
    assert_eq!(
        world.ask(&thief.path, &request).code(),
        438,
        "the nonce is bound to the address"
    );
    assert_eq!(world.server.stats().allocations, 1);
    world.finish();
}

/// Datagrams of many kinds: noise, and noise behind the first bytes of something real.
fn datagrams() -> impl Strategy<Value = Vec<u8>> {
    let noise = prop::collection::vec(any::<u8>(), 0..200);
    let channel =
        (0x4000u16..0x4003, 0usize..80, 0usize..200).prop_map(|(number, length, size)| {
            let mut bytes = channel_header(number, length).to_vec();
            bytes.resize(4 + size, 7);
            bytes
        });
    let stun =
        (0u16..0x0200, prop::collection::vec(any::<u8>(), 0..100)).prop_map(|(kind, body)| {
            let mut bytes = kind.to_be_bytes().to_vec();
            bytes.extend(((body.len() / 4 * 4) as u16).to_be_bytes());
            bytes.extend(0x2112_A442u32.to_be_bytes());
            bytes.extend([5; 12]);
            bytes.extend(&body[..body.len() / 4 * 4]);
            bytes
        });
    prop_oneof![noise, channel, stun]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn anything_may_arrive(
        datagrams in prop::collection::vec((datagrams(), 0usize..120), 0..20),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
        key in any::<(u32, u32)>(),
    ) {
        let (mut world, mut client, relay) = ready();
        for (bytes, stride) in &datagrams {
            let run = Run { bytes, stride: (*stride).min(bytes.len()), tos: 0 };
            check(&world.server.handle_client(world.now, &client.path, run), run);
            check_peer(&world.server.handle_peer(world.now, relay, address(PEER), run), run);
            check_peer(&world.server.handle_peer(world.now, relay, address("[2001:db8::1]:1"), run), run);
            world.drain();
        }
        let mut request = client.request(Method::CREATE_PERMISSION, |request| {
            request.push(&XorPeerAddress(address(PEER))).unwrap();
        });
        for (place, value) in flips {
            let place = place.index(request.len());
            request[place] = value;
        }
        world.client(&client.path, &request);
        let (index, generation) = key;
        let stranger = RelayKey { index, generation };
        let lost = world.server.handle_peer(world.now, stranger, address(PEER), Run::single(b"x"));
        prop_assert!(stranger == relay || matches!(lost, PeerVerdict::Drop { .. }), "{:?}", lost);
        let request = RequestKey { index, generation };
        prop_assert!(!world.server.relays_opened(world.now, request, &[Err(OpenError::Other)]));
        prop_assert!(!world.server.reservation_claimed(world.now, request, Err(ClaimError::Unknown)));
        prop_assert_eq!(world.server.stats().allocations, 1);
        world.events.clear();
        world.finish();
    }
}
