//! The maps of the steering program, as two processes share them during an upgrade.
//!
//! ```text
//!  SOCKETS   slots of the old process │ slots of the new process
//!  FLOWS     5-tuple ──▶ slot, written by both
//!  LISTENERS address ──▶ the slots of its sockets in either process
//!  ACTIVE    which of the two gets datagrams without an entry
//! ```

use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use aya::maps::{Array, HashMap, Map, MapData, MapError, ReusePortSockArray};

use super::{Flows, octets};
use crate::{BpfError, sys};

/// The least number of slots: a second process with more workers or listeners needs room.
pub const MIN_SLOTS: u32 = 4096;

/// One of the two processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Process {
    /// The first process, the third, and so on.
    Even,
    /// The second process, the fourth, and so on.
    Odd,
}

impl Process {
    /// The process that takes over from this one.
    #[must_use]
    pub const fn other(self) -> Process {
        match self {
            Process::Even => Process::Odd,
            Process::Odd => Process::Even,
        }
    }

    /// Its number: 0 or 1.
    #[must_use]
    pub const fn number(self) -> usize {
        match self {
            Process::Even => 0,
            Process::Odd => 1,
        }
    }

    /// The process with this number.
    #[must_use]
    pub const fn of_number(number: u64) -> Process {
        match number {
            0 => Process::Even,
            _ => Process::Odd,
        }
    }
}

/// The slots of a listener's sockets in one process, one per worker. `count` is 0 if the process does not have the
/// listener.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotRange {
    /// The slot of the first worker's socket.
    pub first: u32,
    /// How many workers.
    pub count: u32,
}

/// `struct listener` of the program.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Listener {
    of: [SlotRange; 2],
}

// SAFETY: integers without padding (asserted below), of which every pattern is a value.
unsafe impl aya::Pod for Listener {}
const _: () = assert!(size_of::<Listener>() == 16);

/// `struct local` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
struct Local {
    address: [u8; 16],
    /// In network order.
    port: [u8; 2],
    v6: u8,
    reserved: u8,
}

// SAFETY: bytes without padding (asserted below), of which every pattern is a value.
unsafe impl aya::Pod for Local {}
const _: () = assert!(size_of::<Local>() == 20);

impl Local {
    fn new(address: SocketAddr) -> Local {
        Local {
            address: octets(address.ip()),
            port: address.port().to_be_bytes(),
            v6: address.is_ipv6().into(),
            reserved: 0,
        }
    }
}

/// Handles to a steering program and its maps. Another process may have loaded them.
pub struct Tables {
    fds: [OwnedFd; Tables::FD_COUNT],
    sockets: ReusePortSockArray<MapData>,
    listeners: HashMap<MapData, Local, Listener>,
    active: Array<MapData, u32>,
}

impl Tables {
    /// How many descriptors there are.
    pub const FD_COUNT: usize = 5;

    /// The maps behind these descriptors, in the order of [`fds`](Self::fds).
    ///
    /// # Errors
    /// If one is not the map that it should be, or if the kernel does not let this process use it. Before Linux 5.19,
    /// the use of maps requires CAP_BPF where `kernel.unprivileged_bpf_disabled` is set.
    pub fn from_fds(fds: [OwnedFd; Tables::FD_COUNT]) -> Result<Tables, BpfError> {
        let map = |fd: &OwnedFd| -> Result<Map, BpfError> {
            let copy = fd.try_clone().map_err(BpfError::Descriptor)?;
            Ok(Map::from_map_data(MapData::from_fd(copy)?)?)
        };
        let [sockets, flows, listeners, active, _program] = &fds;
        // It must be a table of flows; workers open handles of their own.
        let _: Flows = Flows::of(map(flows)?)?;
        Ok(Tables {
            sockets: map(sockets)?.try_into()?,
            listeners: map(listeners)?.try_into()?,
            active: map(active)?.try_into()?,
            fds,
        })
    }

    /// The descriptors of the maps, sockets, flows, listeners, the active process, and of the program.
    #[must_use]
    pub fn fds(&self) -> [BorrowedFd<'_>; Tables::FD_COUNT] {
        self.fds.each_ref().map(AsFd::as_fd)
    }

    /// A handle to the table of flows, to be used by one thread.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub fn flows(&self) -> Result<Flows, BpfError> {
        let copy = self.fds[1].try_clone().map_err(BpfError::Descriptor)?;
        Flows::of(Map::from_map_data(MapData::from_fd(copy)?)?)
    }

    /// Attaches the program to the SO_REUSEPORT group of this socket.
    ///
    /// # Errors
    /// When the kernel refuses, as it does for a socket without SO_REUSEPORT.
    pub fn attach(&self, socket: &impl AsFd) -> Result<(), BpfError> {
        sys::attach_reuseport(socket.as_fd(), self.fds[4].as_fd()).map_err(|source| {
            BpfError::System {
                what: "attaching to a reuseport group",
                source,
            }
        })
    }

    /// Puts a bound UDP socket with SO_REUSEPORT into a slot.
    ///
    /// # Errors
    /// When there is no such slot, or the kernel refuses the socket: a socket can be in one table only.
    pub fn set_socket(&mut self, slot: u32, socket: &impl AsFd) -> Result<(), BpfError> {
        Ok(self.sockets.set(slot, &socket.as_fd().as_raw_fd(), 0)?)
    }

    /// Says which slots have the sockets of the listener at `address` in a process.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_listener(
        &mut self,
        address: SocketAddr,
        process: Process,
        slots: SlotRange,
    ) -> Result<(), BpfError> {
        let key = Local::new(address);
        let mut listener = match self.listeners.get(&key, 0) {
            Ok(listener) => listener,
            Err(MapError::KeyNotFound) => Listener::default(),
            Err(error) => return Err(error.into()),
        };
        listener.of[process.number()] = slots;
        Ok(self.listeners.insert(key, listener, 0)?)
    }

    /// Removes this process's listeners from the table.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn forget_listeners(&mut self, process: Process) -> Result<(), BpfError> {
        let keys: Vec<Local> = self.listeners.keys().filter_map(Result::ok).collect();
        for key in keys {
            let mut listener = self.listeners.get(&key, 0)?;
            listener.of[process.number()] = SlotRange::default();
            match listener.of == [SlotRange::default(); 2] {
                true => self.listeners.remove(&key)?,
                false => self.listeners.insert(key, listener, 0)?,
            }
        }
        Ok(())
    }

    /// Sends datagrams without an entry to the sockets of this process, or leaves them to the kernel's hash.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn activate(&mut self, process: Option<Process>) -> Result<(), BpfError> {
        let value = match process {
            None => 0,
            Some(Process::Even) => 1,
            Some(Process::Odd) => 2,
        };
        Ok(self.active.set(0, value, 0)?)
    }
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tables")
    }
}
