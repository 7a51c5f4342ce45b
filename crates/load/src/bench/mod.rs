//! `bench`: an A/B benchmark of STUN, TURN and SIP servers that is hard to fool.
//!
//! Purpose: to compare two or more servers on one processor, with a realistic load, so that a
//! repetition gives the same result. Every rule below is there because leaving it out once gave a
//! wrong answer:
//!
//! - Frames are injected one by one below the socket layer ([`bpf::inject`]). A socket generator
//!   with segmentation offload hands 64 datagrams over a virtual link as one packet. Then any relay
//!   looks ten times too fast.
//! - Delivered datagrams are counted where they arrive, segment by segment, each checked
//!   ([`bpf::count`]). What a server *sends* says nothing.
//! - Processor time includes the receive softirq of the server's interfaces, which threaded NAPI
//!   makes a task of its own.
//! - Servers take turns within a round, the order changes, the first run after a start is thrown
//!   away, ratios are taken within a round.
//! - A spinner on the server's processor shows how much time other processes took; a disturbed measurement is repeated.
//! - Goodput is the highest load that a server holds for two seconds, and again in another round. At most 1 % may be
//!   lost, and little may be late. A short step above it may only fill buffers. Cost is measured at 30, 60 and 90 % of
//!   it, because an overloaded server spends time on what it then drops.
//! - SIP clients and callees are those of `hairpin load sip`. A unit of work counts as a datagram does.
//! - A datagram that arrives twice, changed or in the wrong place does not count as delivered. The exit status of the
//!   run then says so.
//!
//! It builds everything in unnamed network namespaces and leaves nothing behind, however it ends.
//! It needs root, two processors and Linux 5.18.
//!
//! ```text
//! run -> TestBed (network, generator, counters)   one per server, for the whole benchmark
//!     -> Running (process, allocations)       one per server and round
//!     -> Meter (points, search)               one per measurement
//!     -> Report (table, JSON, HTML)
//! ```

mod bed;
mod certificate;
mod client;
mod connections;
mod error;
mod fairness;
pub mod floor;
mod gates;
mod generator;
mod hold;
mod layout;
mod napi;
mod options;
mod packets;
pub(crate) mod procfs;
pub mod report;
mod run;
mod running;
mod scenario;
mod server;
mod side;
mod sip;
mod sockets;
mod spinner;
mod spread;
pub mod stats;
mod topology;
mod upkeep;
mod verify;

pub use error::{BenchError, SideError};
pub use gates::{Gate, GateKind};
pub use generator::{GeneratorSpeed, generator_speed};
pub use options::{BenchOptions, LoadKind};
pub use packets::{Packets, Point};
pub use report::Report;
pub use run::run;
pub use scenario::{Direction, FlowOrder, Scenario, SipWork, Sources, Transport};
pub use side::{Abilities, Programs, Role, Side};
pub use sip::Overload;
pub use spread::Spread;
pub use upkeep::{Churn, Memory};
