//! The BPF programs of hairpin, and their only loader.
//!
//! The programs are C (`src/programs/*.bpf.c`). Their compiled objects in `objects/` are committed
//! and embedded in the binary, so a build of hairpin does not require clang. `build-objects.sh`
//! builds them again, `build-objects.sh --check` compares them.
//!
//! - [`inject::Injector`] sends individual frames below the socket layer at a steady rate. Every benchmark of relays
//!   uses it. With GSO, a generator with sockets passes 64 datagrams to a virtual link as one packet, so every server
//!   seems faster than it is.
//! - [`count::Counter`] counts and checks each delivered datagram, at tc ingress or in XDP.
//! - [`floor::Floor`] is a bare relay, or a bare STUN responder, in XDP or tc. Benchmarks compare the programs of a
//!   server with it.
//! - [`steer::Steering`] sends the datagrams of chosen clients to chosen sockets of an SO_REUSEPORT
//!   group. The hash of the kernel decides about all others.
//! - [`relay::Relay`] relays ChannelData below the socket layer, for the channels that user space has entered. It also
//!   responds to Binding requests.
//! - [`admission_filter::AdmissionFilter`] drops new SIP requests before the queue of a socket, in an overload and by
//!   its rules.
//! - [`frame`] and [`payload`] are shared by the injector and the counter. Frames are Ethernet frames with valid
//!   checksums. A payload shows flow, order, duplication and corruption.
//!
//! ```
//! use hairpin_bpf::payload;
//!
//! // The payload of a measured datagram: flow 7, sequence number 1. A changed byte is detected.
//! let mut bytes = [0; 64];
//! payload::fill(&mut bytes, 7, 1);
//! assert_eq!(payload::check(&bytes), Some((7, 1)));
//! bytes[40] ^= 1;
//! assert_eq!(payload::check(&bytes), None);
//! ```
//!
//! No attached program outlives the process. XDP and TCX attach by links, which the kernel removes with the last
//! descriptor. A socket selector ends with the last socket of its group. On a kernel without TCX, the server attaches a
//! [`relay::Gate`], which passes every packet when the process has ended. Loading and attaching require CAP_BPF and
//! CAP_NET_ADMIN. The name of an interface is looked up in the network namespace of the calling thread.
//!
//! # When not to use it
//!
//! Do not use this crate in other programs: its API follows the needs of hairpin and changes with them. For BPF
//! programs of your own, use `aya` or `libbpf-rs`.

pub mod admission_filter;
pub mod count;
mod error;
pub mod floor;
pub mod frame;
pub mod inject;
mod interrupt;
mod object;
pub mod payload;
mod reason;
pub mod relay;
pub mod steer;
mod sys;

pub use error::{BpfError, Rejected};
