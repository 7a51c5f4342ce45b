//! What the server holds for a client (RFC 8656 §6), and where it is found.

use std::sync::Arc;

use hashbrown::HashTable;
use stun::TransactionId;

use super::granted::Missing;
use super::hash::KeyedHash;
use super::output::Traffic;
use super::packed::PackedPath;
use super::policy::ClientIdentity;
use super::request_context::RequestContext;
use super::slab::Slab;
use super::user::User;
use crate::{ClientPath, FiveTuple, Mono};

/// A 5-tuple that has an allocation, or will have one as soon as its sockets are open.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) path: PackedPath,
    pub(super) user: Arc<User>,
    pub(super) stage: Stage,
}

impl Client {
    /// The allocation, if its sockets are open.
    #[inline]
    pub(super) const fn allocation_mut(&mut self) -> Option<&mut Allocation> {
        match &mut self.stage {
            Stage::Open(allocation) => Some(allocation),
            Stage::Opening(_) => None,
        }
    }

    /// The client as policy and quota see it.
    #[inline]
    pub(super) fn identity(&self) -> ClientIdentity<'_> {
        self.user.identity(self.path.five_tuple())
    }

    /// Counts application data on its way to the client.
    pub(super) const fn count_to_client(&mut self, packets: usize, bytes: usize) {
        if let Some(allocation) = self.allocation_mut() {
            allocation.to_client.add(packets, bytes);
        }
    }
}

/// How far the allocation is.
#[derive(Debug)]
pub(super) enum Stage {
    /// Waits for the embedder.
    Opening(Box<Opening>),
    /// In use.
    Open(Allocation),
}

/// An Allocate request whose checks have all passed.
#[derive(Debug)]
pub(super) struct Opening {
    pub(super) context: RequestContext,
    pub(super) lifetime_s: u32,
    pub(super) plan: Plan,
    /// Whether the relays are TCP (RFC 6062).
    pub(super) is_tcp: bool,
    /// The relays that were asked for; one or two.
    pub(super) relays: [Option<RelayIndex>; 2],
}

/// What was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// One relayed transport address.
    Single,
    /// An even port, and the next port for a reservation.
    Pair,
    /// A relay of each family, requested as in RFC 8656 or as in the draft before it.
    Dual { draft: bool },
    /// A reservation that another worker holds.
    Claim,
}

/// An allocation. What belongs to one relayed transport address is in its [`Relay`](super::relay::Relay).
#[derive(Debug, Default)]
pub(super) struct Allocation {
    pub(super) v4: Option<RelayIndex>,
    pub(super) v6: Option<RelayIndex>,
    pub(super) opened_at: Mono,
    pub(super) made_by: AllocateTransaction,
    pub(super) to_peers: Traffic,
    pub(super) to_client: Traffic,
}

/// The transaction that made an allocation, with what its response said beside the relayed transport addresses (RFC
/// 8656 §7.2). A retransmission finds it here, regardless of the requests of other clients.
#[derive(Debug, Default)]
pub(super) struct AllocateTransaction {
    pub(super) transaction_id: TransactionId,
    /// The lifetime that was granted.
    pub(super) lifetime_s: u32,
    pub(super) extra: Option<Box<Extra>>,
}

/// What few responses have.
#[derive(Debug)]
pub(super) struct Extra {
    pub(super) token: Option<[u8; 8]>,
    pub(super) missing: Option<Missing>,
}

impl Allocation {
    /// Its relays: one or two.
    pub(super) fn relays(&self) -> impl Iterator<Item = u32> + use<> {
        [self.v4, self.v6]
            .into_iter()
            .flatten()
            .map(RelayIndex::get)
    }
}

/// A relay's index in its slab, in four bytes also where there may be none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RelayIndex(std::num::NonZeroU32);

impl RelayIndex {
    pub(super) const fn new(index: u32) -> RelayIndex {
        RelayIndex(std::num::NonZeroU32::MIN.saturating_add(index))
    }

    pub(super) const fn get(self) -> u32 {
        self.0.get() - 1
    }
}

/// An index for so few clients is not worth shrinking.
const MIN_SHRUNK_CLIENTS: usize = 64;

/// All clients, found by 5-tuple.
#[derive(Debug)]
pub(super) struct Clients {
    slab: Slab<Client>,
    index: HashTable<u32>,
    hash: KeyedHash,
}

impl Clients {
    pub(super) fn new(hash: KeyedHash) -> Clients {
        Clients {
            slab: Slab::new(),
            index: HashTable::new(),
            hash,
        }
    }

    /// The client's place.
    pub(super) fn find(&self, five_tuple: &FiveTuple) -> Option<u32> {
        let is_it = |place: &u32| {
            self.slab
                .get(*place)
                .is_some_and(|client| client.path.is_of(five_tuple))
        };
        self.index
            .find(self.hash.five_tuple(five_tuple), is_it)
            .copied()
    }

    /// Where the client probably is, found without looking at it: one guess in ten may be another client.
    pub(super) fn guess(&self, five_tuple: &FiveTuple) -> Option<u32> {
        self.index
            .find(self.hash.five_tuple(five_tuple), |_| true)
            .copied()
    }

    /// All slot numbers are below this.
    pub(super) fn slots_end(&self) -> usize {
        self.slab.slots_end()
    }

    pub(super) fn get(&self, place: u32) -> Option<&Client> {
        self.slab.get(place)
    }

    pub(super) fn get_mut(&mut self, place: u32) -> Option<&mut Client> {
        self.slab.get_mut(place)
    }

    /// The client at a place, if it has this generation.
    pub(super) fn get_of_generation(&mut self, place: u32, generation: u32) -> Option<&mut Client> {
        self.slab.get_of_generation(place, generation)
    }

    /// The generation of the client at a place.
    pub(super) fn generation(&self, place: u32) -> u32 {
        self.slab.generation(place)
    }

    /// The allocation at a place.
    pub(super) fn allocation(&self, place: u32) -> Option<&Allocation> {
        match &self.slab.get(place)?.stage {
            Stage::Open(allocation) => Some(allocation),
            Stage::Opening(_) => None,
        }
    }

    /// The allocation of a 5-tuple, with its place and its user.
    pub(super) fn allocation_of(
        &mut self,
        five_tuple: &FiveTuple,
    ) -> Option<(u32, &User, &mut Allocation)> {
        let place = self.find(five_tuple)?;
        let client = self.slab.get_mut(place)?;
        match &mut client.stage {
            Stage::Open(allocation) => Some((place, &client.user, allocation)),
            Stage::Opening(_) => None,
        }
    }

    /// Adds a client whose 5-tuple is not there yet. Returns its place and generation.
    pub(super) fn insert(&mut self, client: Client) -> (u32, u32) {
        let five_tuple = client.path.five_tuple();
        let (place, generation) = self.slab.insert(client);
        self.list(place, &five_tuple);
        (place, generation)
    }

    /// Adds a client to the index under its 5-tuple.
    fn list(&mut self, place: u32, five_tuple: &FiveTuple) {
        let (slab, hasher) = (&self.slab, &self.hash);
        self.index
            .insert_unique(hasher.five_tuple(five_tuple), place, |other| {
                slab.get(*other)
                    .map_or(0, |client| hasher.five_tuple(&client.path.five_tuple()))
            });
    }

    /// Gives a client another path, whose 5-tuple no client has. Returns the one that it had.
    pub(super) fn set_path(&mut self, place: u32, path: PackedPath) -> Option<ClientPath> {
        let client = self.slab.get_mut(place)?;
        let before = std::mem::replace(&mut client.path, path).path();
        let hash = self.hash.five_tuple(&before.five_tuple);
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == place) {
            entry.remove();
        }
        self.list(place, &path.five_tuple());
        Some(before)
    }

    pub(super) fn remove(&mut self, place: u32) -> Option<Client> {
        let client = self.slab.remove(place)?;
        let hash = self.hash.five_tuple(&client.path.five_tuple());
        if let Ok(entry) = self.index.find_entry(hash, |other| *other == place) {
            entry.remove();
        }
        self.shrink_index();
        Some(client)
    }

    /// Returns memory of the index once seven eighths of it are unused. Each shrink is paid for by as many removals.
    fn shrink_index(&mut self) {
        let length = self.index.len();
        if self.index.capacity() > 8 * length.max(MIN_SHRUNK_CLIENTS) {
            let (slab, hasher) = (&self.slab, &self.hash);
            self.index.shrink_to(2 * length, |other| {
                slab.get(*other)
                    .map_or(0, |client| hasher.five_tuple(&client.path.five_tuple()))
            });
        }
    }

    /// All places that were ever in use are below this.
    pub(super) fn places_ever(&self) -> usize {
        self.slab.slots_end()
    }
}
