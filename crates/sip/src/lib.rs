//! SIP (RFC 3261) without a socket or a clock: messages, transactions, routing and overload control.
//!
//! The embedder owns sockets, names, time and randomness; it passes datagrams and stream bytes in and carries out the
//! outputs.
//!
//! # The path of a message
//!
//! 1. [`Scan::of`] reads, in one bounded pass, the fields for admission control and those that a refusal copies.
//! 2. [`Message::parse`] finds each header field in one pass. A field is decoded when it is read.
//! 3. [`engine::Engine`] does both and finds the transaction of the message. It returns what its transaction user must
//!    do: a user agent, a registrar, a proxy.
//! 4. [`dispatch::Dispatcher`] sends the requests of this user to URIs: by the DNS, to one server after the other.
//!
//! [`agent::UserAgent`] is a transaction user for phones: registrations and calls. [`endpoint::Endpoint`] ties it to an
//! engine and a dispatcher, so that a program adds its sockets and its clock. `examples/` of `hairpin-sip-server` has
//! programs with sockets.
//!
//! None of them allocates in steady state. They copy only what must be retransmitted.
//!
//! ```
//! use hairpin_sip::{Message, Method, Spans};
//!
//! let mut spans = Spans::new(); // one for each thread, used again and again
//! let datagram = b"OPTIONS sip:example.com SIP/2.0\r\n\
//!     Via: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bK7;rport\r\n\
//!     f: Alice <sip:alice@example.com>;tag=1\r\n\
//!     t: <sip:example.com>\r\n\
//!     i: 5@192.0.2.1\r\nCSeq: 1 OPTIONS\r\nMax-Forwards: 70\r\nl: 0\r\n\r\n";
//! let message = Message::parse(datagram, &mut spans)?;
//! assert_eq!(message.method(), Some(Method::Options));
//! assert_eq!(message.via()?.branch, Some(&b"z9hG4bK7"[..]));
//! assert_eq!(message.from()?.tag, Some(&b"1"[..]));
//! assert_eq!(message.cseq()?.number, 1);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # When not to use it
//!
//! - You want a server and no program: use `hairpin`, which has a registrar, a proxy and trunks by configuration.
//! - You need media, session descriptions or session timers of user agents (RFC 4028): the crate does not have them.
#![forbid(unsafe_code)]

pub mod agent;
pub mod branch;
pub mod build;
mod chars;
pub mod congestion;
mod cursor;
pub mod digest;
pub mod dispatch;
pub mod endpoint;
pub mod engine;
pub mod flow;
pub mod frame;
mod hash;
pub mod header;
mod hex;
pub mod host;
pub mod message;
mod method;
pub mod routing;
mod siphash;
mod status;
pub mod timer;
mod transaction;
pub mod tu;
pub mod ua;
pub mod uri;
pub mod verdict;

pub use header::{HeaderError, HeaderKind};
pub use host::Host;
pub use message::{Framing, Limits, Message, ParseError, Scan, Spans, StartLine};
pub use method::Method;
pub use siphash::HashKey;
pub use status::reason_phrase;
pub use timers::{Mono, Now};
pub use uri::Uri;
