//! What the STUN targets do with an input, shared with the test in crates/stun that replays the corpus.
//!
//! Besides not panicking, these check what must hold for any input.

use std::net::SocketAddr;

use hairpin_stun as stun;
use stun::channel_data::{self, ChannelData};
use stun::demux::Packet;
use stun::nonce::{NonceKeys, SecurityFeatures};
use stun::stream::{Frame, frame, frame_rfc5766};
use stun::*;

/// Parses a datagram and asks it everything.
pub fn message(datagram: &[u8]) {
    let Ok(message) = Message::parse(datagram) else {
        return;
    };
    let len = datagram.len();
    // RFC 8489 §18.2 keeps methods below 0x100, which leaves first bytes from 4 to others (RFC 7983).
    let (packet, framing) = match message.method().number() {
        0..0x100 => (
            Packet::Stun,
            Frame::Message {
                len,
                padded_len: len,
            },
        ),
        _ => (Packet::of_byte(datagram[0]), Frame::Invalid),
    };
    assert_eq!((Packet::of(datagram), frame(datagram)), (packet, framing));
    assert_eq!(message.as_bytes(), datagram);
    let _ = format!("{message:?}");
    for attribute in message.attributes() {
        let first = message
            .find(attribute.attribute_type)
            .expect("it was just there");
        let same = message
            .attributes()
            .find(|other| other.attribute_type == attribute.attribute_type);
        assert_eq!(Some(first), same);
    }
    decode_all(&message);
    let unknown: UnknownAttributes = message.unknown_required(|t| t.name().is_some()).collect();
    assert!(
        unknown
            .as_slice()
            .iter()
            .all(|t| t.is_comprehension_required() && t.name().is_none())
    );
    let keys = [HmacKey::sha1(b"fuzz"), HmacKey::sha256(b"fuzz")];
    for key in &keys {
        let present = message.integrity(key.algorithm()).is_some();
        assert_eq!(
            message.verify(key) == Err(IntegrityError::Missing),
            !present
        );
    }
    let _ = message.fingerprint();
    rebuild(&message, &keys);
}

/// Writes what was read, seals it and reads it again.
fn rebuild(message: &Message<'_>, keys: &[HmacKey; 2]) {
    let mut buffer = vec![0xAA; message.as_bytes().len() + 24 + 36 + 8];
    let id = message.transaction_id();
    let mut builder = Builder::new(&mut buffer, message.class(), message.method(), &id)
        .expect("room for a header");
    let is_plain = |t| {
        ![
            AttributeType::MESSAGE_INTEGRITY,
            AttributeType::MESSAGE_INTEGRITY_SHA256,
            AttributeType::FINGERPRINT,
        ]
        .contains(&t)
    };
    let plain: Vec<_> = message
        .attributes()
        .filter(|attribute| is_plain(attribute.attribute_type))
        .collect();
    for attribute in &plain {
        builder
            .push_raw(attribute.attribute_type, attribute.value)
            .expect("it fitted before");
    }
    let sealed =
        keys.iter().all(|key| builder.integrity(key).is_ok()) && builder.fingerprint().is_ok();
    let again = Message::parse(builder.finish()).expect("written by us");
    assert_eq!(
        (again.class(), again.method(), again.transaction_id()),
        (message.class(), message.method(), id)
    );
    assert!(
        again
            .attributes()
            .filter(|a| is_plain(a.attribute_type))
            .eq(plain)
    );
    if sealed {
        assert_eq!(again.fingerprint(), FingerprintState::Valid);
        assert!(keys.iter().all(|key| again.verify(key).is_ok()));
    }
}

/// Decodes every type there is; what decodes must survive being written and read again.
fn decode_all(message: &Message<'_>) {
    let id = message.transaction_id();
    macro_rules! each {
        ($($attribute:ty),* $(,)?) => {$(
            if let Ok(Some(decoded)) = message.get::<$attribute>() {
                let mut value = vec![0; decoded.value_len()];
                match decoded.encode(&mut value, &id) {
                    Ok(()) => assert_eq!(<$attribute>::decode(&value, &id), Ok(decoded)),
                    // More is read than may be written.
                    Err(error) => assert!(matches!(error, BuildError::Attribute(_)), "{error}"),
                }
            }
        )*};
    }
    each!(
        AccessToken<'_>,
        AdditionalAddressFamily,
        AddressErrorCode<'_>,
        AlternateDomain<'_>,
        AlternateServer,
        CacheTimeout,
        ChangeRequest,
        ChannelNumber,
        ConnectionId,
        Data<'_>,
        DontFragment,
        ErrorCode<'_>,
        EvenPort,
        IceControlled,
        IceControlling,
        Icmp,
        Lifetime,
        MappedAddress,
        MobilityTicket<'_>,
        Nonce<'_>,
        OtherAddress,
        Padding<'_>,
        PasswordAlgorithm,
        PasswordAlgorithms<'_>,
        Priority,
        Realm<'_>,
        RequestedAddressFamily,
        RequestedTransport,
        ReservationToken,
        ResponseOrigin,
        ResponsePort,
        Software<'_>,
        ThirdPartyAuthorization<'_>,
        UnknownAttributes,
        UseCandidate,
        Userhash,
        Username<'_>,
        XorMappedAddress,
        XorPeerAddress,
        XorRelayedAddress,
    );
}

/// Cuts a stream in frames as it arrives byte by byte and as a whole.
pub fn stream(bytes: &[u8]) {
    let mut rest = bytes;
    loop {
        if frame(rest) != Frame::Invalid {
            assert_eq!(frame(rest), frame_rfc5766(rest));
        }
        match frame(rest) {
            Frame::Need(n) => {
                assert!(n > rest.len());
                break;
            }
            Frame::Invalid => break,
            Frame::Message { len, padded_len } => {
                assert!(
                    len <= padded_len
                        && padded_len - len < 4
                        && padded_len <= rest.len()
                        && len >= 4
                );
                for end in [0, 1, 3, 4, padded_len - 1] {
                    assert!(
                        matches!(frame(&rest[..end.min(padded_len - 1)]), Frame::Need(n) if n <= padded_len)
                    );
                }
                match Packet::of(rest) {
                    Packet::TurnChannel => {
                        let data = ChannelData::parse_frame(&rest[..len]).expect("framed");
                        assert_eq!(data.payload.len() + 4, len);
                    }
                    _ => message(&rest[..len]),
                }
                rest = &rest[padded_len..];
            }
        }
    }
}

/// Reads ChannelData and writes its header again.
pub fn channel_data(datagram: &[u8]) {
    if let Ok(data) = ChannelData::parse_datagram(datagram) {
        assert_eq!(ChannelData::parse_datagram_rfc5766(datagram), Ok(data));
        assert_eq!(Packet::of(datagram), Packet::TurnChannel);
        let length = u16::try_from(data.payload.len()).expect("the field has 16 bits");
        assert_eq!(datagram[..4], channel_data::header(data.number, length));
        assert!(ChannelNumber::new(data.number.get()).is_some());
    }
}

/// No input is a nonce of ours, whatever the keys.
pub fn nonce(bytes: &[u8]) {
    let mut keys = NonceKeys::new(&[0x5A; 32]);
    keys.rotate(&[0xA5; 32]);
    let client = SocketAddr::from(([192, 0, 2, 1], 1));
    assert_eq!(keys.check(bytes, client), None);
    let _ = SecurityFeatures::of_nonce(bytes);
}

/// Texts of any kind make a key or an error.
pub fn credentials(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let mut parts = text.splitn(3, '\u{1}');
    let [username, realm, password] = std::array::from_fn(|_| parts.next().unwrap_or_default());
    for algorithm in [PasswordAlgorithm::Md5, PasswordAlgorithm::Sha256] {
        let key = long_term_key(algorithm, username, realm, password);
        let again = long_term_key(algorithm, username, realm, password);
        assert_eq!(
            key.as_ref().map(LongTermKey::as_bytes).ok(),
            again.as_ref().map(LongTermKey::as_bytes).ok()
        );
    }
    let _ = userhash(username, realm);
    if let Some(prepared) = opaque_string(&text) {
        assert_eq!(
            opaque_string(&prepared).as_deref(),
            Some(&*prepared),
            "preparing twice changes nothing"
        );
    }
}
