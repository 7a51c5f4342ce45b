//! STUN messages (RFC 8489), the attributes of TURN (RFC 8656) and ChannelData framing.
//!
//! This crate parses and builds messages. It has no clock, no socket and no randomness. It
//! allocates nothing to parse, find, verify or build, and reads no byte twice without need.
//!
//! **One invariant:** if [`Message::parse`] has accepted a message, no accessor fails on it. No accessor shows an
//! attribute that RFC 8489 requires a receiver to ignore.
//!
//! # The path of a datagram
//!
//! 1. [`demux::Packet::of`] finds the protocol by the first byte. On a stream, [`stream::frame`] also finds the end.
//! 2. [`channel_data::ChannelData::parse_datagram`] reads the four bytes of a ChannelData message, with two
//!    comparisons.
//! 3. [`Message::parse`] checks the header and reads the attributes once, in linear time. It stores where the integrity
//!    attributes are and which types occur. Then [`Message::get`] decodes single attributes.
//!    [`Message::unknown_required`] lists the attributes for a 420, and [`Message::verify`] checks the HMAC.
//! 4. [`Builder`] writes a response into the caller's buffer. [`binding_success`] and [`data_indication_header`] write
//!    the two most frequent messages in one step.
//!
//! # Credentials
//!
//! A [`LongTermKey`] is a hash of name, realm and password ([`long_term_key`]). An [`HmacKey`] is the state of one of
//! the two HMACs after this key. Store the [`HmacKey`]: it saves half of the work per message. [`nonce`] makes and
//! checks nonces and stores none.
//!
//! # When not to use it
//!
//! For a TURN client use `hairpin-client`. For a TURN server without sockets use `hairpin-turn`. The crate does not
//! gather ICE candidates.
//!
//! # What it must never do
//!
//! - Panic on any input, or use more than linear time.
//! - Compare a MAC in a time that depends on its bytes.
//! - Print a key.
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
