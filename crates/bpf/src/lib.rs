//! Every BPF program of hairpin, and the only loader of them.
//!
//! The programs are C (`src/programs/*.bpf.c`). Their compiled objects in `objects/` are committed
//! and embedded in the binary, so a build of hairpin does not require clang. `build-objects.sh`
//! rebuilds them, `--check` compares.
//!
//! What is here:
//! - [`inject::Injector`] sends individual frames below the socket layer at a steady rate, for
//!   every relay benchmark. A socket generator hands 64 datagrams to a virtual link as one packet,
//!   which makes every server look faster than it is;
//! - [`count::Counter`] counts and checks what is delivered, datagram by datagram, at tc ingress or
//!   in XDP;
//! - [`floor::Floor`] is a bare relay, or a bare STUN responder, in XDP or tc: what a server's own programs are held
//!   against in a benchmark;
//! - [`steer::Steering`] sends the datagrams of chosen clients to chosen sockets of an SO_REUSEPORT
//!   group, and leaves all others to the kernel's hash;
//! - [`relay::Relay`] relays ChannelData and answers Binding requests below the socket layer, as far as
//!   user space has entered it;
//! - [`admission_filter::AdmissionFilter`] drops new SIP work before a socket's queue, in an overload and as far as its
//!   rules say;
//! - [`frame`] and [`payload`] are what both agree on: Ethernet frames with valid checksums, and a
//!   payload that tells flow, order, duplication and corruption.
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
//! Do not use this crate in other programs: its API follows the needs of hairpin and changes with them.
//!
//! Nothing attached here outlives the process. XDP and TCX attach by links, which the kernel removes with the last
//! descriptor. A socket selector ends with the last socket of its group. Where there is no TCX, others attach a
//! [`relay::Gate`], which passes every packet once the process has ended. Loading and attaching need CAP_BPF and
//! CAP_NET_ADMIN; an interface is looked up in the network namespace of the calling thread.

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
