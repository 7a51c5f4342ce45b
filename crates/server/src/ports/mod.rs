//! Relay ports: who may take which, who owns which, and how long a freed one rests.
//!
//! Each relay address has one [`PortPool`] (which ports are free) and one [`OwnerTable`] (which worker's relay a port
//! belongs to). Both are plain atomics shared by all workers; neither is touched for a relayed datagram, except that the
//! owner table is read when the peer is itself one of our relayed addresses.

mod foreign;
mod owner;
mod pool;
mod resting;
mod set;

pub(crate) use foreign::{ENTRY, ForeignPorts, SharedPorts};
pub use owner::{Owner, OwnerTable};
pub use pool::{PortCounts, PortPool, PortRange, PortRangeError, PortSelection};
pub use set::PortSet;
