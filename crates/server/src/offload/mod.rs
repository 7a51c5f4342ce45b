//! Relaying in the kernel: ChannelData and Binding requests answered by a BPF program, before the datagrams reach a
//! socket.
//!
//! ```text
//!                    ┌─ entry, next hop known, all checks passed ──▶ rewritten, and out again
//!  datagram ─ XDP/tc ┤
//!                    └─ anything else ──▶ sockets ──▶ workers, as without the program
//! ```
//! A worker enters what its engine has granted into the program's tables. The worker never queries the kernel for a
//! route. It takes the number of a next hop from `NextHopTable`. The control thread determines that hop by netlink, and
//! keeps it current. Until then, and whenever anything is in doubt, datagrams take the way through user space, which is
//! always complete.

mod attach;
mod cells;
mod choice;
mod clsact;
#[cfg(test)]
#[path = "clsact_tests.rs"]
mod clsact_tests_needs_root;
mod control;
#[cfg(test)]
#[path = "control_tests.rs"]
mod control_tests_needs_root;
mod fallback;
mod hops;
#[cfg(test)]
mod hops_tests;
mod interface_probe;
mod machine;
mod next_hops;
mod part;
mod redirects;
mod status;
mod thread;
mod upgrade;

pub(crate) use attach::OffloadConfig;
pub use bpf::relay::{PathTotals, Totals};
#[cfg(test)]
pub(crate) use cells::Cells;
pub use choice::{Obstacle, OffloadMethod};
pub(crate) use control::{Control, Prepared};
pub(crate) use fallback::OnFallback;
pub use interface_probe::{OffloadProbe, probe_interfaces};
pub(crate) use next_hops::NextHopTable;
pub(crate) use part::{Flowing, WorkerTables};
pub(crate) use status::PublishedStatus;
pub use status::{InterfaceOffload, OffloadStatus};

/// How much of relaying the kernel is asked to do. It cannot change while the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Offload {
    /// By which method. Default: [`OffloadMode::Off`].
    pub mode: OffloadMode,
    /// Channels that can be relayed in the kernel at once, in all; those beyond are relayed in user space. 1 to
    /// [`Offload::MAX_CHANNELS`]. Default: [`Offload::CHANNELS`].
    pub channels: u32,
}

impl Offload {
    /// The default of [`Offload::channels`]. Each takes 512 bytes of kernel memory from the start: 32 MiB in all.
    pub const CHANNELS: u32 = 1 << 16;
    /// The most channels: a gigabyte of kernel memory.
    pub const MAX_CHANNELS: u32 = 1 << 21;
}

impl Default for Offload {
    fn default() -> Offload {
        Offload {
            mode: OffloadMode::Off,
            channels: Offload::CHANNELS,
        }
    }
}

/// By which method the kernel relays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum OffloadMode {
    /// Everything is relayed in user space. Default for a program that embeds this library.
    #[default]
    Off,
    /// On each interface by the best method that is safe there: native XDP, else tc, else user space.
    Auto,
    /// By native XDP on each interface; the server does not start where one cannot have it. Loopback, which never can,
    /// is left to user space.
    Xdp,
    /// By a classifier (TCX, or clsact before Linux 6.6) on each interface; the server does not start where one cannot
    /// have it.
    Tc,
}

/// Which Binding requests the kernel answers. It can change while the server runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelBinding {
    /// Responses per second to one source prefix (IPv4 /24, IPv6 /56), with a burst of one second; 0 leaves all Binding
    /// requests to user space. Default: [`KernelBinding::RATE`].
    pub rate: u32,
    /// What happens to requests above the rate.
    pub excess: BindingExcess,
}

impl KernelBinding {
    /// The default of [`KernelBinding::rate`].
    pub const RATE: u32 = 10_000;
}

impl Default for KernelBinding {
    fn default() -> KernelBinding {
        KernelBinding {
            rate: Self::RATE,
            excess: BindingExcess::UserSpace,
        }
    }
}

/// What happens to Binding requests above the rate of their source prefix.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum BindingExcess {
    /// User space answers them, as fast as it can. Default.
    #[default]
    UserSpace,
    /// They are dropped, and counted.
    Drop,
}
