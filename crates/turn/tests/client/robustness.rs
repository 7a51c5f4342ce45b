//! Whatever comes in, the client neither panics nor believes it.

use proptest::prelude::*;
use stun::{ChannelNumber, Lifetime, XorMappedAddress, XorRelayedAddress};
use turn::client::{AllocateOptions, Event, Received};

use crate::script::{Script, mapped, peer, relayed};

/// A client in the middle of everything: allocated, with a channel, and a refresh, a permission and a Binding under
/// way.
fn busy() -> Script {
    let mut script = Script::allocated();
    let now = script.now;
    script
        .client
        .bind_channel(now, peer(1, 1))
        .expect("allocated");
    let bind = script.request();
    script.succeed(&bind, |_| ());
    script.client.refresh(now, None).expect("allocated");
    script
        .client
        .permit(now, &[peer(2, 0).ip()])
        .expect("allocated");
    script.client.binding(now);
    while script.event().is_some() {}
    script
}

/// Cuts, flips and repeats bytes.
fn mangle(mut bytes: Vec<u8>, edits: &[(u16, u8)]) -> Vec<u8> {
    for (at, change) in edits {
        let at = usize::from(*at) % (bytes.len() + 1);
        match change {
            0..16 => bytes.truncate(at),
            16..32 => bytes.insert(at, *change),
            _ => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= change;
                }
            }
        }
    }
    bytes
}

fn is_about_the_allocation(event: &Event) -> bool {
    matches!(
        event,
        Event::Refreshed { .. } | Event::Released { .. } | Event::Lost(_) | Event::Permitted { .. }
    )
}

proptest! {
    #[test]
    fn random_bytes_do_no_harm(datagram in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut script = busy();
        let _ = script.input(&datagram);
        prop_assert!(script.event().is_none());
        prop_assert_eq!(script.client.relayed(), Some(relayed()));
    }

    #[test]
    fn a_mangled_response_is_not_believed(edits in proptest::collection::vec(any::<(u16, u8)>(), 1..6)) {
        let mut script = busy();
        while let Some(request) = script.poll_request() {
            let key = script.key.clone().expect("challenged");
            let good = crate::script::answer(&request, stun::Class::Success, |response| {
                response.push(&XorMappedAddress(mapped())).expect("fits");
                response.push(&Lifetime(600)).expect("fits").integrity(&key).expect("fits");
            });
            let bad = mangle(good.clone(), &edits);
            let _ = script.input(&bad);
            while let Some(event) = script.event() {
                // A Binding is not authenticated, and edits may undo each other.
                let harmless = bad == good || bad.starts_with(&good) || !is_about_the_allocation(&event);
                prop_assert!(harmless, "{:?} from {:02x?}", event, bad);
            }
        }
    }

    #[test]
    fn a_mangled_challenge_or_grant_never_panics(edits in proptest::collection::vec(any::<(u16, u8)>(), 1..6)) {
        let mut script = Script::with_credentials();
        script.client.allocate(script.now, AllocateOptions::default()).expect("not allocated");
        let request = script.request();
        for class in [stun::Class::Success, stun::Class::Error] {
            let good = crate::script::answer(&request, class, |response| {
                response.push(&stun::ErrorCode::UNAUTHENTICATED).expect("fits");
                response.push(&stun::Realm("example.org")).expect("fits");
                response.push(&stun::Nonce(crate::script::NONCE_BOTH)).expect("fits");
                response.push(&stun::PasswordAlgorithms::SHA256_MD5).expect("fits");
                response.push(&XorRelayedAddress(relayed())).expect("fits");
            });
            let _ = script.input(&mangle(good, &edits));
            let _ = script.poll_request();
        }
        script.run_s(60);
    }

    #[test]
    fn only_the_channels_own_number_carries_data(number in any::<u16>(), len in any::<u16>(), payload in proptest::collection::vec(any::<u8>(), 0..100)) {
        let mut script = busy();
        let datagram = [&number.to_be_bytes()[..], &len.to_be_bytes(), &payload].concat();
        let bound = ChannelNumber::MIN;
        match script.input(&datagram) {
            Received::Data { channel, payload: range, .. } => {
                prop_assert_eq!((channel, number), (Some(bound), bound.get()));
                prop_assert_eq!(range, 4..4 + usize::from(len));
            }
            _ => prop_assert!(number != bound.get() || usize::from(len) > payload.len()),
        }
    }
}
