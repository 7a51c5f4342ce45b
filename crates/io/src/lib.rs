//! The system calls of hairpin: batched UDP, readiness, and the few questions a server asks its machine.
//!
//! A datagram enters through [`UdpSocket::recv`] or [`UdpSocket::recv_one`] into a slot of a [`RecvBatch`], which the
//! worker owns and reuses forever. It is looked at as [`Datagrams`]: one or more datagrams of equal length, because with
//! UDP_GRO the kernel hands over whole trains. The worker pushes datagrams to send into an [`Outbox`], a session on its
//! [`SendQueue`]. It borrows the bytes from the batch and groups them by flow. The runs of equal size of a flow are one
//! segmented message (UDP_SEGMENT). All messages of a socket leave in one `sendmmsg`.
//!
//! Invariant: **nothing on this path allocates, locks or copies payload in user space once a worker has warmed up, and
//! no datagram is lost without being counted** (in [`Flushed`] or [`RecvBatch::overflow`]).
//!
//! This crate and `bpf` are the only ones that may say `unsafe`; every system call has one function under `sys`, and
//! nothing unsafe is public. It runs on Linux; what a kernel lacks is noticed and done without.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "hairpin-io speaks to Linux: epoll, recvmmsg and UDP segmentation have no portable spelling"
);

mod address;
pub mod affinity;
mod arena;
pub mod capabilities;
pub mod clock;
mod control;
pub mod ethtool;
mod gro;
mod icmp;
pub mod inherited;
pub mod interfaces;
pub mod memory;
pub mod netlink;
mod netns;
mod offloads;
pub mod passing;
mod pipe;
mod poll;
pub mod process;
mod queues;
mod recv;
pub mod rlimit;
mod send;
mod shared_words;
mod signals;
mod sizes;
mod socket;
pub mod stdio;
mod sys;
pub mod sysctl;
pub mod sysfs;
mod system_calls;
pub mod tasks;
mod tcp;

pub use gro::{Brought, GroWatch, stop_joining};
pub use icmp::IcmpReport;
pub use netns::NetNs;
pub use offloads::Offloads;
pub use pipe::Pipe;
pub use poll::{Event, Events, Interest, Poller, Waker};
pub use queues::{QueueInterrupt, queue_interrupts, queue_processors};
pub use recv::{Datagrams, Received, RecvBatch, Segments};
pub use send::{Flushed, GsoRefusal, Outbox, SendOptions, SendQueue, SendTo};
pub use shared_words::SharedWords;
pub use signals::{Signal, SignalWaker, Signals};
pub use sizes::BatchSizes;
pub use socket::{SocketMemory, UdpOptions, UdpSocket};
pub use system_calls::SystemCallCounter;
pub use tcp::{TcpConnection, TcpListener, TcpOptions};
