//! Steering: which worker's socket of an SO_REUSEPORT group gets a client's datagrams.
//!
//! ```text
//!              ┌─ entry for the 5-tuple ──▶ slot ──▶ SOCKETS[slot]
//!  datagram ───┤
//!              └─ none ──▶ the kernel's hash, as without the program; during an upgrade, the active process
//! ```
//! One program, one table of sockets and one of flows serve all groups: a slot is one socket of one group. The table of
//! flows is a plain hash, so an entry stays until it is removed. If it is full, [`Flows::insert`] returns an error, and
//! the kernel's hash selects the socket. Nothing is pinned: all ends with the sockets and the last handle.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};

use aya::maps::{HashMap, Map, MapData, MapError, ReusePortSockArray};
use aya::programs::SkReuseport;

mod tables;

pub use tables::{MIN_SLOTS, Process, SlotRange, Tables};

use crate::BpfError;
use crate::object::Object;
use crate::reason::Kernel;

/// Refuse an entry that is there already (`BPF_NOEXIST`).
const NO_EXIST: u64 = 1;

/// The program requires BPF instructions that compare 32 bits.
const NEEDS: Kernel = Kernel(5, 1);

/// The number of UDP in IP headers.
const UDP: u8 = 17;

/// The loaded program with its tables. Attach it to each group once its sockets are in.
pub struct Steering {
    object: Object,
}

impl Steering {
    /// Loads the program with room for this number of sockets, but at least [`MIN_SLOTS`], and for this number of
    /// flows.
    ///
    /// # Errors
    /// When the kernel refuses: without CAP_BPF and CAP_NET_ADMIN, or before Linux 5.1.
    pub fn load(sockets: u32, flows: u32) -> Result<Steering, BpfError> {
        let bytes = aya::include_bytes_aligned!("../../objects/steer.o");
        let sizes = [("SOCKETS", sockets.max(MIN_SLOTS)), ("FLOWS", flows.max(1))];
        let mut object = Object::load("steer", bytes, &sizes)?;
        object.load_program("steer", NEEDS, SkReuseport::load)?;
        Ok(Steering { object })
    }

    /// Puts a bound UDP socket with SO_REUSEPORT into a slot. From then on entries may name it.
    ///
    /// # Errors
    /// When there is no such slot, or the kernel refuses the socket.
    pub fn set_socket(&mut self, slot: u32, socket: &impl AsFd) -> Result<(), BpfError> {
        let mut sockets: ReusePortSockArray<_> = self.object.map("SOCKETS")?;
        Ok(sockets.set(slot, &socket.as_fd().as_raw_fd(), 0)?)
    }

    /// Attaches the program to the group of this socket. It selects the socket of each datagram while the group exists.
    ///
    /// # Errors
    /// When the kernel refuses, as it does for a socket without SO_REUSEPORT.
    pub fn attach(&mut self, socket: &impl AsFd) -> Result<(), BpfError> {
        Ok(self
            .object
            .program::<SkReuseport>("steer")?
            .attach(socket.as_fd())?)
    }

    /// A handle to the table of flows, to be used by one thread.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn flows(&self) -> Result<Flows, BpfError> {
        Ok(Flows {
            table: self.object.own_hash("FLOWS")?,
        })
    }

    /// Handles to the program and its maps, which another process can use as well.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn tables(&self) -> Result<Tables, BpfError> {
        let [sockets, flows, listeners, active] =
            ["SOCKETS", "FLOWS", "LISTENERS", "ACTIVE"].map(|name| self.object.own_map(name));
        let program = self.object.own_program("steer")?;
        Tables::from_fds([sockets?, flows?, listeners?, active?, program])
    }
}

impl std::fmt::Debug for Steering {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Steering")
    }
}

/// A UDP flow from a client, in the addresses of its packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    /// The client.
    pub remote: SocketAddr,
    /// Where the client sends to: never a wildcard address, also if a wildcard listener takes it.
    pub local: SocketAddr,
}

/// Why a flow was not entered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InsertError {
    /// It has an entry, which stays as it is.
    #[error("the flow already has an entry: remove it first")]
    Exists,
    /// The table is full.
    #[error("the table of steered flows is full: remove entries, or use a larger table")]
    Full,
    /// The kernel refuses otherwise, for example for want of memory.
    #[error(transparent)]
    Refused(BpfError),
}

/// The table of flows.
pub struct Flows {
    table: HashMap<MapData, Key, u32>,
}

impl Flows {
    /// The table behind a map.
    fn of(map: Map) -> Result<Flows, BpfError> {
        Ok(Flows {
            table: map.try_into()?,
        })
    }

    /// Removes the entries that name no slot of this range, because their process has ended. It reads the whole table.
    /// Returns their number.
    pub fn retain(&mut self, slots: SlotRange) -> usize {
        let range = slots.first..slots.first.saturating_add(slots.count);
        let names_another = |entry: Result<(Key, u32), MapError>| {
            let (key, slot) = entry.ok()?;
            (!range.contains(&slot)).then_some(key)
        };
        let keys: Vec<Key> = self.table.iter().filter_map(names_another).collect();
        let removed = keys.iter().filter(|key| self.table.remove(key).is_ok());
        removed.count()
    }

    /// Sends a flow that has no entry to the socket in `slot`, from the next datagram on.
    ///
    /// # Errors
    /// Then nothing has changed.
    pub fn insert(&mut self, flow: &Flow, slot: u32) -> Result<(), InsertError> {
        self.table
            .insert(Key::new(flow), slot, NO_EXIST)
            .map_err(refused)
    }

    /// Leaves a flow to the kernel's hash again, from the next datagram on. Returns whether it had an entry.
    pub fn remove(&mut self, flow: &Flow) -> bool {
        self.table.remove(&Key::new(flow)).is_ok()
    }

    /// The slot of a flow that has an entry.
    #[must_use]
    pub fn get(&self, flow: &Flow) -> Option<u32> {
        self.table.get(&Key::new(flow), 0).ok()
    }

    /// How many flows have an entry: walks the table, a system call per entry.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.keys().filter_map(Result::ok).count()
    }
}

impl std::fmt::Debug for Flows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Flows")
    }
}

fn refused(error: MapError) -> InsertError {
    match &error {
        MapError::SyscallError(call) => match call.io_error.raw_os_error() {
            Some(libc::EEXIST) => InsertError::Exists,
            Some(libc::E2BIG) => InsertError::Full,
            _ => InsertError::Refused(error.into()),
        },
        _ => InsertError::Refused(error.into()),
    }
}

/// `struct flow` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
struct Key {
    remote: [u8; 16],
    local: [u8; 16],
    /// In network order, like all of it.
    remote_port: [u8; 2],
    local_port: [u8; 2],
    protocol: u8,
    v6: u8,
    reserved: [u8; 2],
}

// SAFETY: bytes without padding (asserted below), of which every pattern is a value.
unsafe impl aya::Pod for Key {}
const _: () = assert!(size_of::<Key>() == 40);

impl Key {
    fn new(flow: &Flow) -> Key {
        Key {
            remote: octets(flow.remote.ip()),
            local: octets(flow.local.ip()),
            remote_port: flow.remote.port().to_be_bytes(),
            local_port: flow.local.port().to_be_bytes(),
            protocol: UDP,
            v6: flow.remote.is_ipv6().into(),
            reserved: [0; 2],
        }
    }
}

fn octets(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => {
            let mut octets = [0; 16];
            octets[..4].copy_from_slice(&v4.octets());
            octets
        }
        IpAddr::V6(v6) => v6.octets(),
    }
}
