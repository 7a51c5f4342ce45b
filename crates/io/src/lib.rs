//! The system calls of hairpin: batched UDP, readiness, and the few questions a server asks its machine.
//!
//! A datagram enters through [`UdpSocket::recv`] or [`UdpSocket::recv_one`] into a slot of a [`RecvBatch`], which the
//! worker owns and reuses forever. It is looked at as [`Datagrams`]: one or more datagrams of equal length, because
//! with UDP_GRO the kernel hands over whole trains. The worker pushes datagrams to send into an [`Outbox`], a session
//! on its [`SendQueue`]. It borrows the bytes from the batch and groups them by flow. The runs of equal size of a flow
//! are one segmented message (UDP_SEGMENT). All messages of a socket leave in one `sendmmsg`.
//!
//! Invariant: **when a worker has warmed up, nothing on this path allocates, locks or copies payload in user space.
//! Each lost datagram is counted** (in [`Flushed`] or [`RecvBatch::overflow`]).
//!
//! ```
//! use std::time::Duration;
//!
//! use hairpin_io::{RecvBatch, UdpOptions, UdpSocket};
//!
//! let server = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &UdpOptions::listener())?;
//! let client = UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &UdpOptions::relay())?;
//! client.send_to(b"hello", server.local_addr(), None)?;
//!
//! let mut batch = RecvBatch::new(64, 2048);
//! while batch.is_empty() {
//!     match server.recv(7, &mut batch) {
//!         Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => std::thread::sleep(Duration::from_millis(1)),
//!         received => drop(received?),
//!     }
//! }
//! let datagrams = batch.get(0).unwrap();
//! assert_eq!((datagrams.bytes, datagrams.tag), (&b"hello"[..], 7));
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! This crate and `bpf` are the only ones with `unsafe`. Every system call has one function in `sys`, and nothing
//! unsafe is public. The crate runs on Linux. If a kernel lacks a feature, the crate works without it.
//!
//! # When not to use it
//!
//! Its API follows the needs of hairpin and changes with them. Other programs use `std::net`, `tokio` or `quinn-udp`.

#[cfg(not(target_os = "linux"))]
compile_error!(
    "hairpin-io requires Linux, because epoll, recvmmsg and UDP segmentation exist only there"
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

pub use gro::{GroWatch, ReceiveSummary, stop_joining};
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
