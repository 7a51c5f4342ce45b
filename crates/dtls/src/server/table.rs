//! Connections by key and by path.

use std::hash::Hasher;

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;
use hashbrown::HashTable;

use super::connection::Connection;
use crate::Path;
use crate::cookie::address_bytes;

/// Identifies a connection. Another connection never gets the same key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionKey {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl ConnectionKey {
    /// The index in the table. It is less than the limit on connections, and is reused after the end of the connection.
    #[must_use]
    pub const fn index(self) -> u32 {
        self.index
    }
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    connection: Option<Connection>,
}

/// All connections of an endpoint.
pub(super) struct Table {
    slots: Vec<Slot>,
    free: Vec<u32>,
    paths: HashTable<u32>,
    seed: u64,
    shared: SharedSeed,
}

impl std::fmt::Debug for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Table")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Table {
    pub(super) fn new(seed: [u64; 2]) -> Table {
        Table {
            slots: Vec::new(),
            free: Vec::new(),
            paths: HashTable::new(),
            seed: seed[0],
            shared: SharedSeed::from_u64(seed[1]),
        }
    }

    pub(super) fn len(&self) -> usize {
        self.paths.len()
    }

    pub(super) fn paths(&self) -> impl Iterator<Item = Path> {
        let connections = self
            .slots
            .iter()
            .filter_map(|slot| slot.connection.as_ref());
        connections.map(|connection| connection.path)
    }

    fn hash(&self, path: &Path) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.seed, &self.shared);
        hasher.write(&address_bytes(path.local));
        hasher.write(&address_bytes(path.remote));
        hasher.finish()
    }

    fn is_on(&self, index: u32, path: &Path) -> bool {
        let connection = &self.slots[index as usize].connection;
        connection.as_ref().is_some_and(|connection| {
            connection.path.remote == path.remote && connection.path.local == path.local
        })
    }

    /// The connection of this path.
    pub(super) fn find(&self, path: &Path) -> Option<ConnectionKey> {
        let index = *self
            .paths
            .find(self.hash(path), |index| self.is_on(*index, path))?;
        let generation = self.slots[index as usize].generation;
        Some(ConnectionKey { index, generation })
    }

    /// The number of slots, in use or free.
    pub(super) fn places(&self) -> u32 {
        self.slots.len() as u32
    }

    /// The key of the connection at this index.
    pub(super) fn at(&self, index: u32) -> Option<ConnectionKey> {
        let slot = self.slots.get(index as usize)?;
        slot.connection.as_ref()?;
        Some(ConnectionKey {
            index,
            generation: slot.generation,
        })
    }

    pub(super) fn get(&self, key: ConnectionKey) -> Option<&Connection> {
        let slot = self.slots.get(key.index as usize)?;
        slot.connection
            .as_ref()
            .filter(|_| slot.generation == key.generation)
    }

    pub(super) fn get_mut(&mut self, key: ConnectionKey) -> Option<&mut Connection> {
        let slot = self.slots.get_mut(key.index as usize)?;
        slot.connection
            .as_mut()
            .filter(|_| slot.generation == key.generation)
    }

    /// Adds a connection. Its path must not have another one.
    pub(super) fn insert(&mut self, connection: Connection) -> ConnectionKey {
        debug_assert!(self.find(&connection.path).is_none());
        let index = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot {
                generation: 0,
                connection: None,
            });
            (self.slots.len() - 1) as u32
        });
        let hash = self.hash(&connection.path);
        let slot = &mut self.slots[index as usize];
        slot.connection = Some(connection);
        let generation = slot.generation;
        let Table {
            slots,
            seed,
            shared,
            ..
        } = self;
        let rehash = |index: &u32| {
            let path = slots[*index as usize]
                .connection
                .as_ref()
                .map(|connection| connection.path);
            let mut hasher = FoldHasher::with_seed(*seed, shared);
            if let Some(path) = path {
                hasher.write(&address_bytes(path.local));
                hasher.write(&address_bytes(path.remote));
            }
            hasher.finish()
        };
        self.paths.insert_unique(hash, index, rehash);
        ConnectionKey { index, generation }
    }

    pub(super) fn remove(&mut self, key: ConnectionKey) -> Option<Connection> {
        let path = self.get(key)?.path;
        let hash = self.hash(&path);
        if let Ok(entry) = self.paths.find_entry(hash, |index| *index == key.index) {
            entry.remove();
        }
        let slot = &mut self.slots[key.index as usize];
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.index);
        let connection = slot.connection.take();
        if self.paths.is_empty() {
            self.release_memory();
        }
        connection
    }

    /// Frees the hash index of an empty table after a burst. The slots stay, because their generations must not repeat.
    fn release_memory(&mut self) {
        self.paths = HashTable::new();
    }
}
