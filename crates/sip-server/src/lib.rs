//! The registrar, the location service and the proxy of a SIP server, without a socket or a clock.
//!
//! # The path of a REGISTER
//!
//! 1. [`registrar::Registrar::examine`] finds the domain of a REGISTER and its address of record: an [`Aor`].
//! 2. The embedder authenticates the request, and passes it to the worker that [`AorKey::worker`] names. All bindings
//!    of an address of record are on one worker.
//! 3. [`registrar::Registrar::register`] changes the bindings in a [`location::Location`], all or none. It writes the
//!    header fields of the response.
//!
//! [`reg_event::RegEvents`] notifies subscribers of changes of the bindings of an address of record (RFC 3680).
//!
//! All other requests go to [`proxy::Proxy`], which forwards them to the bindings, or to the trunks of [`routes`].
//!
//! **The invariant:** a REGISTER whose response is not 200 has changed no binding (RFC 3261 §10.3).
//!
//! ```
//! use hairpin_sip_server::{Aor, AorHash};
//! use sip::HashKey; // the crate hairpin-sip
//! use sip::uri::Uri;
//!
//! // Two spellings of one address of record (RFC 3261 §10.3 step 5), and the worker of its bindings.
//! let aor = |text: &'static str| match Uri::parse(text.as_bytes()) {
//!     Ok(Uri::Sip(uri)) => Aor::of(&uri, b"example.com"),
//!     _ => None,
//! };
//! let alice = aor("sip:alice@example.com").ok_or("too long")?;
//! assert_eq!(Some(alice), aor("sip:%61lice@EXAMPLE.com;transport=tcp"));
//! assert_eq!(alice.as_bytes(), b"alice@example.com");
//! assert!(AorHash::new(HashKey::new([7; 16])).of(&alice).worker(4) < 4);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`memory_site::MemorySite`] has all traits of a small server; `examples/` has a registrar and a proxy with sockets.
//!
//! # When not to use it
//!
//! - You want a server, not a library: use the program `hairpin`. Its configuration has registrar, proxy and trunks.
//! - You write a phone or a B2BUA: use `agent` of `hairpin-sip`.
#![forbid(unsafe_code)]

mod aor;
pub mod calls;
mod date;
pub mod flow;
pub mod location;
pub mod log;
pub mod memory_site;
pub mod proxy;
pub mod push;
pub mod reg_event;
pub mod registrar;
pub mod registrar_proxy;
pub mod routes;
pub mod users;

pub use aor::{Aor, AorHash, AorKey, MAX_AOR};
