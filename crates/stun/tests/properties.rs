//! Parsing what was written gives what was meant; no input panics.

use core::net::{IpAddr, SocketAddr};

use hairpin_stun as stun;
use proptest::collection::vec;
use proptest::prelude::*;
use stun::*;

#[expect(
    unreachable_pub,
    reason = "the fuzz targets use it as a module of a library"
)]
#[path = "../../../fuzz/src/stun.rs"]
mod targets;

/// Declares one sample per attribute: what it holds, and the attribute it makes.
macro_rules! samples {
    ($($name:ident($($field:ident: $held:ty),*) => $attribute:expr;)*) => {
        #[derive(Debug, Clone)]
        enum Sample {
            $($name($($held),*)),*
        }

        impl Sample {
            fn push(&self, builder: &mut Builder<'_>) -> Result<(), BuildError> {
                match self {
                    $(Sample::$name($($field),*) => builder.push(&$attribute).map(|_| ()),)*
                }
            }

            fn check(&self, raw: RawAttribute<'_>, id: &TransactionId) {
                match self {
                    $(Sample::$name($($field),*) => same($attribute, raw, id),)*
                }
            }
        }
    };
}

fn same<'a, A: Decode<'a> + Encode + PartialEq + core::fmt::Debug>(
    written: A,
    raw: RawAttribute<'a>,
    id: &TransactionId,
) {
    assert_eq!(raw.attribute_type, A::TYPE);
    assert_eq!(raw.attribute_type, written.attribute_type());
    assert_eq!(raw.value.len(), written.value_len());
    assert_eq!(A::decode(raw.value, id), Ok(written));
}

samples! {
    MappedAddress(a: SocketAddr) => MappedAddress(*a);
    XorMappedAddress(a: SocketAddr) => XorMappedAddress(*a);
    XorPeerAddress(a: SocketAddr) => XorPeerAddress(*a);
    XorRelayedAddress(a: SocketAddr) => XorRelayedAddress(*a);
    AlternateServer(a: SocketAddr) => AlternateServer(*a);
    ResponseOrigin(a: SocketAddr) => ResponseOrigin(*a);
    OtherAddress(a: SocketAddr) => OtherAddress(*a);
    Username(text: String) => Username(text);
    Realm(text: String) => Realm(text);
    Software(text: String) => Software(text);
    ThirdPartyAuthorization(text: String) => ThirdPartyAuthorization(text);
    AlternateDomain(text: String) => AlternateDomain(text);
    Nonce(bytes: Vec<u8>) => Nonce(bytes);
    Data(bytes: Vec<u8>) => Data(bytes);
    MobilityTicket(bytes: Vec<u8>) => MobilityTicket(bytes);
    Padding(bytes: Vec<u8>) => Padding(bytes);
    AccessToken(nonce: Vec<u8>, encrypted_block: Vec<u8>) => AccessToken { nonce, encrypted_block };
    Userhash(hash: [u8; 32]) => Userhash(*hash);
    ReservationToken(token: [u8; 8]) => ReservationToken(*token);
    ErrorCode(code: u16, reason: String) => ErrorCode { code: *code, reason };
    AddressErrorCode(v6: bool, code: u16, reason: String) =>
        AddressErrorCode { family: family(*v6), code: *code, reason };
    ChannelNumber(low: u16) => ChannelNumber::new(0x4000 | low & 0x0FFF).expect("in range");
    Lifetime(n: u32) => Lifetime(*n);
    ConnectionId(n: u32) => ConnectionId(*n);
    Priority(n: u32) => Priority(*n);
    CacheTimeout(n: u32) => CacheTimeout(*n);
    IceControlled(n: u64) => IceControlled(*n);
    IceControlling(n: u64) => IceControlling(*n);
    RequestedTransport(n: u8) => RequestedTransport(*n);
    ResponsePort(n: u16) => ResponsePort(*n);
    RequestedAddressFamily(v6: bool) => RequestedAddressFamily(family(*v6));
    AdditionalAddressFamily(v6: bool) => AdditionalAddressFamily(family(*v6));
    EvenPort(reserve: bool) => EvenPort { reserve: *reserve };
    ChangeRequest(change_ip: bool, change_port: bool) =>
        ChangeRequest { change_ip: *change_ip, change_port: *change_port };
    PasswordAlgorithm(sha256: bool) =>
        if *sha256 { PasswordAlgorithm::Sha256 } else { PasswordAlgorithm::Md5 };
    PasswordAlgorithms(entries: Vec<u16>) =>
        PasswordAlgorithms::from_bytes(&algorithm_list(entries)).expect("whole entries");
    Icmp(icmp_type: u8, icmp_code: u8, error_data: u32) =>
        Icmp { icmp_type: *icmp_type, icmp_code: *icmp_code, error_data: *error_data };
    UnknownAttributes(types: Vec<u16>) => types.iter().copied().map(AttributeType).collect::<UnknownAttributes>();
    DontFragment() => DontFragment;
    UseCandidate() => UseCandidate;
}

fn family(v6: bool) -> AddressFamily {
    if v6 {
        AddressFamily::V6
    } else {
        AddressFamily::V4
    }
}

/// Entries without parameters.
fn algorithm_list(numbers: &[u16]) -> Vec<u8> {
    numbers
        .iter()
        .flat_map(|number| [(number >> 8) as u8, *number as u8, 0, 0])
        .collect()
}

fn addresses() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..40)
}

fn text() -> impl Strategy<Value = String> {
    ".{0,127}"
}

fn sample() -> impl Strategy<Value = Sample> {
    let address = prop_oneof![
        addresses().prop_map(Sample::MappedAddress),
        addresses().prop_map(Sample::XorMappedAddress),
        addresses().prop_map(Sample::XorPeerAddress),
        addresses().prop_map(Sample::XorRelayedAddress),
        addresses().prop_map(Sample::AlternateServer),
        addresses().prop_map(Sample::ResponseOrigin),
        addresses().prop_map(Sample::OtherAddress),
    ];
    let texts = prop_oneof![
        text().prop_map(Sample::Username),
        text().prop_map(Sample::Realm),
        text().prop_map(Sample::Software),
        text().prop_map(Sample::ThirdPartyAuthorization),
        "[a-z0-9.-]{0,255}".prop_map(Sample::AlternateDomain),
        (300..=699_u16, text()).prop_map(|(code, reason)| Sample::ErrorCode(code, reason)),
        (any::<bool>(), 300..=699_u16, text())
            .prop_map(|(v6, code, reason)| Sample::AddressErrorCode(v6, code, reason)),
    ];
    let opaque = prop_oneof![
        bytes().prop_map(Sample::Nonce),
        bytes().prop_map(Sample::Data),
        bytes().prop_map(Sample::MobilityTicket),
        bytes().prop_map(Sample::Padding),
        (bytes(), bytes()).prop_map(|(nonce, block)| Sample::AccessToken(nonce, block)),
        any::<[u8; 32]>().prop_map(Sample::Userhash),
        any::<[u8; 8]>().prop_map(Sample::ReservationToken),
        vec(any::<u16>(), 0..6).prop_map(Sample::PasswordAlgorithms),
        vec(any::<u16>(), 0..UnknownAttributes::MAX).prop_map(Sample::UnknownAttributes),
    ];
    let numbers = prop_oneof![
        any::<u16>().prop_map(Sample::ChannelNumber),
        any::<u32>().prop_map(Sample::Lifetime),
        any::<u32>().prop_map(Sample::ConnectionId),
        any::<u32>().prop_map(Sample::Priority),
        any::<u32>().prop_map(Sample::CacheTimeout),
        any::<u64>().prop_map(Sample::IceControlled),
        any::<u64>().prop_map(Sample::IceControlling),
        any::<u8>().prop_map(Sample::RequestedTransport),
        any::<u16>().prop_map(Sample::ResponsePort),
        (any::<u8>(), any::<u8>(), any::<u32>()).prop_map(|(t, c, d)| Sample::Icmp(t, c, d)),
    ];
    let flags = prop_oneof![
        any::<bool>().prop_map(Sample::RequestedAddressFamily),
        any::<bool>().prop_map(Sample::AdditionalAddressFamily),
        any::<bool>().prop_map(Sample::EvenPort),
        any::<bool>().prop_map(Sample::PasswordAlgorithm),
        (any::<bool>(), any::<bool>()).prop_map(|(ip, port)| Sample::ChangeRequest(ip, port)),
        Just(Sample::DontFragment()),
        Just(Sample::UseCandidate()),
    ];
    prop_oneof![address, texts, opaque, numbers, flags]
}

fn class() -> impl Strategy<Value = Class> {
    prop_oneof![
        Just(Class::Request),
        Just(Class::Indication),
        Just(Class::Success),
        Just(Class::Error)
    ]
}

/// What closes a message.
#[derive(Debug, Clone, Copy)]
struct Seals {
    sha1: bool,
    sha256: bool,
    fingerprint: bool,
}

impl Seals {
    fn count(self) -> usize {
        usize::from(self.sha1) + usize::from(self.sha256) + usize::from(self.fingerprint)
    }
}

fn seals() -> impl Strategy<Value = Seals> {
    any::<[bool; 3]>().prop_map(|[sha1, sha256, fingerprint]| Seals {
        sha1,
        sha256,
        fingerprint,
    })
}

/// Writes a whole message into a dirty buffer.
fn build(
    class: Class,
    method: Method,
    id: &TransactionId,
    samples: &[Sample],
    seals: Seals,
) -> Vec<u8> {
    let mut buffer = vec![0xA5; 65_536];
    let mut builder = Builder::new(&mut buffer, class, method, id).expect("room");
    for sample in samples {
        sample.push(&mut builder).expect("a valid attribute");
    }
    if seals.sha1 {
        builder.integrity(&HmacKey::sha1(b"key")).expect("room");
    }
    if seals.sha256 {
        builder.integrity(&HmacKey::sha256(b"key")).expect("room");
    }
    if seals.fingerprint {
        builder.fingerprint().expect("room");
    }
    builder.finish().to_vec()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn parsing_what_was_written_gives_what_was_meant(
        class in class(),
        method in 0..0x1000_u16,
        id in any::<[u8; 12]>().prop_map(TransactionId),
        samples in vec(sample(), 0..12),
        seals in seals(),
    ) {
        let method = Method::new(method).expect("12 bits");
        let bytes = build(class, method, &id, &samples, seals);
        let message = Message::parse(&bytes).expect("written by us");
        prop_assert_eq!((message.class(), message.method(), message.transaction_id()), (class, method, id));
        prop_assert_eq!(message.attributes().count(), samples.len() + seals.count());
        for (sample, raw) in samples.iter().zip(message.attributes()) {
            sample.check(raw, &id);
            let first = message.attributes().find(|other| other.attribute_type == raw.attribute_type);
            prop_assert_eq!(message.find(raw.attribute_type), first);
        }
        let sha1 = if seals.sha1 { Ok(()) } else { Err(IntegrityError::Missing) };
        let sha256 = if seals.sha256 { Ok(()) } else { Err(IntegrityError::Missing) };
        prop_assert_eq!(message.verify(&HmacKey::sha1(b"key")), sha1);
        prop_assert_eq!(message.verify(&HmacKey::sha256(b"key")), sha256);
        let state = if seals.fingerprint { FingerprintState::Valid } else { FingerprintState::Absent };
        prop_assert_eq!(message.fingerprint(), state);
    }

    #[test]
    fn no_mutation_or_truncation_of_a_message_panics(
        samples in vec(sample(), 0..8),
        seals in seals(),
        mutations in vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        end in any::<prop::sample::Index>(),
        repair in any::<bool>(),
    ) {
        let mut bytes = build(Class::Request, Method::ALLOCATE, &TransactionId([3; 12]), &samples, seals);
        for (at, byte) in mutations {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(end.index(bytes.len() + 1));
        if repair && bytes.len() >= 20 {
            // A right length takes the damage past the header, into the attributes.
            bytes.truncate(bytes.len() & !3);
            let length = ((bytes.len() - 20) as u16).to_be_bytes();
            bytes[2..4].copy_from_slice(&length);
        }
        targets::message(&bytes);
        targets::stream(&bytes);
    }

    #[test]
    fn no_bytes_panic(bytes in vec(any::<u8>(), 0..200), first in 0..=0x50_u8) {
        targets::message(&bytes);
        targets::stream(&bytes);
        targets::channel_data(&bytes);
        targets::nonce(&bytes);
        let mut channel = bytes;
        channel.insert(0, first);
        targets::channel_data(&channel);
        targets::stream(&channel);
    }

    #[test]
    fn no_attributes_behind_a_good_header_panic(mut bytes in vec(any::<u8>(), 0..300), types in vec(any::<u8>(), 0..8)) {
        bytes.truncate(bytes.len() & !3);
        // Sprinkle types that have a meaning.
        for (at, low) in (0..bytes.len()).step_by(12).zip(types) {
            bytes[at] = if low & 0x80 == 0 { 0x00 } else { 0x80 };
            bytes[at + 1] = low & 0x3F;
            bytes[at + 2] = 0;
            bytes[at + 3] &= 0x1F;
        }
        let mut message = vec![0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12];
        message[2..4].copy_from_slice(&(bytes.len() as u16).to_be_bytes());
        message.extend(bytes);
        targets::message(&message);
    }

    #[test]
    fn no_text_panics(bytes in vec(any::<u8>(), 0..60), text in ".{0,40}") {
        targets::credentials(&bytes);
        targets::credentials(text.as_bytes());
    }

    /// Ours over bare compression functions, against the one of the `hmac` crate.
    #[test]
    fn our_hmac_is_hmac(key in vec(any::<u8>(), 0..200), text in vec(any::<u8>(), 0..300)) {
        use hmac::{Hmac, KeyInit, Mac};
        let mut theirs = Hmac::<sha1::Sha1>::new_from_slice(&key).expect("any length");
        theirs.update(&text);
        let ours = HmacKey::sha1(&key).tag(&text);
        prop_assert_eq!(ours.as_bytes(), &theirs.finalize().into_bytes()[..]);
        let mut theirs = Hmac::<sha2::Sha256>::new_from_slice(&key).expect("any length");
        theirs.update(&text);
        let ours = HmacKey::sha256(&key).tag(&text);
        prop_assert_eq!(ours.as_bytes(), &theirs.finalize().into_bytes()[..]);
    }

    /// The length is patched wherever the blocks of the hash happen to end.
    #[test]
    fn a_message_is_authenticated_with_its_length_patched(padding in 0..300_usize) {
        use hmac::{Hmac, KeyInit, Mac};
        let data = vec![0x11; padding];
        let bytes = build(
            Class::Request,
            Method::SEND,
            &TransactionId([9; 12]),
            &[Sample::Data(data)],
            Seals { sha1: false, sha256: true, fingerprint: true },
        );
        let before = bytes.len() - 8 - 36;
        let mut text = bytes[..before].to_vec();
        text[2..4].copy_from_slice(&((before + 36 - 20) as u16).to_be_bytes());
        let mut theirs = Hmac::<sha2::Sha256>::new_from_slice(b"key").expect("any length");
        theirs.update(&text);
        prop_assert_eq!(&bytes[before + 4..before + 36], &theirs.finalize().into_bytes()[..]);
    }
}
