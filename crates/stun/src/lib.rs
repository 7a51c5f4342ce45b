//! STUN messages (RFC 8489), the attributes of TURN (RFC 8656) and ChannelData framing.
//!
//! This crate turns bytes into meaning and meaning into bytes. It has no clock, no socket and no randomness. It
//! allocates nothing to parse, find, verify or build, and reads no byte twice without need.
//!
//! **One invariant:** what [`Message::parse`] has accepted, no accessor can fail on, and no accessor shows an attribute
//! that RFC 8489 tells a receiver to ignore.
//!
//! # A datagram's way
//!
//! 1. [`demux::Packet::of`] says from the first byte who it is for; on a stream, [`stream::frame`] also where it ends.
//! 2. [`channel_data::ChannelData::parse_datagram`] reads the four bytes of a ChannelData message: the path of the
//!    payload, two comparisons long.
//! 3. [`Message::parse`] checks the header and walks the attributes once, in linear time, noting where the integrity
//!    attributes are and which types occur. Then [`Message::get`] decodes single attributes,
//!    [`Message::unknown_required`] lists what a 420 complains about, and [`Message::verify`] checks the HMAC from the
//!    noted place.
//! 4. [`Builder`] writes an answer into the caller's buffer; [`binding_success`] and [`data_indication_header`] are the
//!    two most frequent ones laid out at once.
//!
//! # Credentials
//!
//! A [`LongTermKey`] is a hash of name, realm and password ([`long_term_key`]); an [`HmacKey`] is that key taken in by
//! one of the two HMACs. Keep the latter: it saves half of the work per message. [`nonce`] makes and checks nonces
//! without keeping any.
//!
//! # What it must never do
//!
//! Panic on any input; take more than linear time; compare a MAC in a time that depends on its bytes; print a key.
//!
//! ```
//! # use hairpin_stun as stun;
//! use stun::{Builder, Class, Message, Method, TransactionId, XorMappedAddress};
//!
//! let mut buffer = [0; 64];
//! let mut builder = Builder::new(&mut buffer, Class::Success, Method::BINDING, &TransactionId([1; 12]))?;
//! builder.push(&XorMappedAddress("192.0.2.1:32853".parse()?))?;
//! let message = Message::parse(builder.finish())?;
//! let mapped: Option<XorMappedAddress> = message.get()?;
//! assert_eq!(mapped.map(|mapped| mapped.0.port()), Some(32853));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

pub mod attribute;
mod builder;
pub mod channel_data;
mod classic;
mod credentials;
pub mod demux;
mod fingerprint;
mod header;
mod hmac;
mod integrity;
mod message;
pub mod nonce;
mod ready_made;
mod siphash;
pub mod stream;

pub use attribute::{
    AccessToken, AdditionalAddressFamily, AddressErrorCode, AddressFamily, AlternateDomain,
    AlternateServer, AttributeError, AttributeType, CacheTimeout, ChangeRequest, ChannelNumber,
    ConnectionId, Data, Decode, DontFragment, Encode, ErrorCode, EvenPort, IceControlled,
    IceControlling, Icmp, Lifetime, MappedAddress, MobilityTicket, Nonce, Origin, OtherAddress,
    Padding, PasswordAlgorithm, PasswordAlgorithms, Priority, Realm, RequestedAddressFamily,
    RequestedTransport, ReservationToken, ResponseOrigin, ResponsePort, Software,
    ThirdPartyAuthorization, UnknownAttributes, UseCandidate, Userhash, Username, XorMappedAddress,
    XorPeerAddress, XorRelayedAddress,
};
pub use builder::{BuildError, Builder};
pub use classic::{CLASSIC_RESPONSE_MAX, ClassicBinding, classic_server_error};
pub use credentials::{
    CredentialError, LongTermKey, long_term_key, opaque_string, short_term_key_sha1,
    short_term_key_sha256, userhash,
};
pub use fingerprint::FingerprintState;
pub use header::{Class, HEADER_LEN, MAGIC_COOKIE, Method, TransactionId};
pub use integrity::{HmacKey, HmacTag, Integrity, IntegrityAlgorithm, IntegrityError};
pub use message::{Attributes, Message, ParseError, RawAttribute, UnknownRequired};
pub use ready_made::{
    BINDING_SUCCESS_MAX, INDICATION_HEADER_MAX, binding_success, data_indication_header, padding,
    send_indication_header,
};
