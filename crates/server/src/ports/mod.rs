//! Relay ports: who may take which, who owns which, and how long a freed one rests.
//!
//! Each relay address has one [`PortPool`] (which ports are free) and one [`OwnerTable`] (which worker's relay a port
//! belongs to). Both are plain atomics that all workers share. A relayed datagram uses neither, with one exception: the
//! owner table is read if the peer is a relayed address of this server.

mod other_process;
mod owner;
mod pool;
mod quarantine;
mod set;

pub(crate) use other_process::{ENTRY_BYTES, ForeignPorts, SharedPorts};
pub use owner::{Owner, OwnerTable};
pub use pool::{PortCounts, PortPool, PortRange, PortRangeError, PortSelection};
pub use set::PortSet;
