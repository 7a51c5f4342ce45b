//! The location service: which contacts an address of record has.
//!
//! [`Location`] is what a registrar changes and a proxy reads. [`MemoryLocation`] keeps the bindings of one worker in
//! memory; databases and other nodes are further implementations.

mod binding;
mod memory;

pub use binding::{Binding, MAX_AGENT, NO_Q, NewBinding, TooLong};
pub use memory::{Limits, MemoryLocation, Removed};

use crate::{Aor, AorKey};
use sip::Now;

/// Which state of an address's bindings was read: a change is made to that state or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Revision(pub u64);

/// The result of [`Location::find`].
#[derive(Debug)]
pub enum Found<'l> {
    /// The bindings of the address, none if there are none. Some may have expired and not been removed yet.
    Bindings(Revision, &'l [Binding]),
    /// The location asks somebody else. The embedder runs the request again when the location has the result.
    Pending,
}

/// One step of a change. Places are those of the bindings that [`Location::find`] gave.
#[derive(Clone, Debug)]
pub enum Change {
    /// Removes a binding.
    Remove(usize),
    /// Puts another binding where one is.
    Replace(usize, Binding),
    /// Gives a binding another number of temporary GRUUs (RFC 5627 §5.1): those issued so far lead nowhere.
    SetGruu(usize, u64),
    /// Adds a binding.
    Add(Binding),
}

/// When a change is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Saved {
    /// It is.
    Now,
    /// The embedder withholds the answer until the location says of this number that it is saved, or answers 500.
    Later(u64),
}

/// Why nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum ChangeError {
    /// The address would have more bindings than a user may have.
    #[error("the address of record has as many bindings as it may have")]
    UserFull,
    /// There would be more bindings than there may be in all.
    #[error("there are as many bindings as there may be")]
    Full,
    /// The bindings are not those that were read, or the place of a binding is none.
    #[error("the bindings have changed in the meantime")]
    Conflict,
    /// The location cannot save.
    #[error("the location cannot save the bindings")]
    Failed,
}

/// Where bindings are kept. Its bindings are those of one worker, or can be reached from there.
pub trait Location {
    /// The bindings of an address of record.
    fn find(&mut self, aor: &Aor) -> Found<'_>;

    /// The address with this key that has a binding with this number of temporary GRUUs.
    fn find_gruu(&mut self, key: AorKey, gruu: u64) -> Option<Aor>;

    /// The address with this key, if it has bindings. By default it is not known: then requests within a dialog do not
    /// find a phone that has another flow now.
    fn find_key(&mut self, _key: AorKey) -> Option<Aor> {
        None
    }

    /// Makes all of these changes or none (RFC 3261 §10.3 step 7). `changes` is empty afterwards, also after an error.
    ///
    /// # Errors
    /// [`ChangeError`]; nothing was changed then.
    fn change(
        &mut self,
        now: Now,
        aor: &Aor,
        basis: Revision,
        changes: &mut Vec<Change>,
    ) -> Result<Saved, ChangeError>;
}
