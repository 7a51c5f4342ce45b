//! Nothing on the way of a message touches the heap.

use core::hint::black_box;
use core::net::SocketAddr;

use hairpin_stun as stun;
use stun::channel_data::ChannelData;
use stun::nonce::{LEN, NonceKeys, SecurityFeatures};
use stun::*;

const ID: TransactionId = TransactionId(*b"transaction!");

fn assert_no_allocation(run: impl FnOnce()) {
    let counted = allocation_counter::measure(run);
    assert_eq!((counted.count_total, counted.bytes_total), (0, 0));
}

/// An Allocate request as an authenticated client sends it.
fn write_request<'b>(buffer: &'b mut [u8], key: &HmacKey) -> Result<&'b [u8], BuildError> {
    let mut builder = Builder::new(buffer, Class::Request, Method::ALLOCATE, &ID)?;
    builder
        .push(&RequestedTransport::UDP)?
        .push(&Lifetime(600))?
        .push(&Username("1790000000:user"))?
        .push(&Realm("example.org"))?
        .push(&Nonce(b"obMatJos2wAAAxxxxxxxxxxxxxxxxxxxxxxx"))?
        .push(&PasswordAlgorithms::SHA256_MD5)?
        .push(&PasswordAlgorithm::Sha256)?
        .integrity(key)?
        .fingerprint()?;
    Ok(builder.finish())
}

#[test]
fn the_counter_counts() {
    let counted = allocation_counter::measure(|| drop(black_box(vec![1_u8; 100])));
    assert_eq!((counted.count_total, counted.bytes_total), (1, 100));
}

#[test]
fn building_parsing_finding_and_verifying_do_not_allocate() {
    assert_no_allocation(|| {
        for key in [
            HmacKey::sha1(b"key"),
            HmacKey::sha256(
                b"a key that is longer than the sixty-four bytes of a block, so it is hashed",
            ),
        ] {
            let mut buffer = [0; 512];
            let bytes = write_request(&mut buffer, &key).unwrap();
            let message = Message::parse(bytes).unwrap();
            assert_eq!(message.get(), Ok(Some(Username("1790000000:user"))));
            assert_eq!(message.get(), Ok(Some(Lifetime(600))));
            assert_eq!(message.get::<ReservationToken>(), Ok(None));
            assert_eq!(message.attributes().count(), 9);
            assert_eq!(message.unknown_required(|_| true).count(), 0);
            assert_eq!(
                message
                    .unknown_required(|_| false)
                    .collect::<UnknownAttributes>()
                    .as_slice()
                    .len(),
                6
            );
            assert_eq!(message.verify(&key), Ok(()));
            assert_ne!(message.verify(&HmacKey::sha1(b"wrong")), Ok(()));
            assert_eq!(message.fingerprint(), FingerprintState::Valid);
        }
    });
}

#[test]
fn answers_and_relayed_data_do_not_allocate() {
    let peer: SocketAddr = "[2001:db8::7]:40000".parse().unwrap();
    assert_no_allocation(|| {
        let mut out = [0; BINDING_SUCCESS_MAX];
        let len = binding_success(&mut out, &ID, &peer, true);
        assert_eq!(
            Message::parse(&out[..len]).unwrap().get(),
            Ok(Some(XorMappedAddress(peer)))
        );
        let mut header = [0; INDICATION_HEADER_MAX];
        assert_eq!(
            data_indication_header(&mut header, &ID, &peer, 1200),
            Some(48)
        );
        let header = channel_data::header(ChannelNumber::MIN, 0);
        assert!(ChannelData::parse_datagram(&header).is_ok());
        assert_eq!(
            stream::frame(&header),
            stream::Frame::Message {
                len: 4,
                padded_len: 4
            }
        );
        let mut buffer = [0; 512];
        let mut builder = Builder::new(&mut buffer, Class::Error, Method::ALLOCATE, &ID).unwrap();
        builder
            .push(&ErrorCode::UNAUTHENTICATED)
            .unwrap()
            .push(&Realm("example.org"))
            .unwrap();
        black_box(builder.finish());
    });
}

#[test]
fn nonces_and_ascii_credentials_do_not_allocate() {
    let client: SocketAddr = "192.0.2.1:1".parse().unwrap();
    assert_no_allocation(|| {
        let keys = NonceKeys::new(&[1; 32]);
        let mut nonce = [0; LEN];
        keys.issue(SecurityFeatures::default(), 0, client, 1, &mut nonce);
        assert!(keys.check(&nonce, client).is_some());
        assert!(keys.check(b"another", client).is_none());
        let key = long_term_key(PasswordAlgorithm::Sha256, "user", "realm", "pass").unwrap();
        black_box((
            key.hmac_sha1(),
            key.hmac_sha256(),
            userhash("user", "realm").unwrap(),
        ));
    });
}
