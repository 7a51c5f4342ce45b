//! Messages are written into the caller's buffer.
//!
//! [`Builder`] writes a message line by line; [`Builder::response`] begins a response with what it copies from its
//! request. [`forward`] keeps a received message except for the few lines that a proxy changes. The result is a list of
//! slices for one gathering write.

mod dialog;
mod forward;
mod response;
mod writer;

pub use dialog::{DialogRequest, request_of_uas};
pub use forward::{Edits, Gather, MAX_SLICES, SCRATCH, forward};
pub use response::{Answerable, Stamp, Tag};
pub(crate) use writer::fold_free_pieces;
pub use writer::{Builder, Part, decimal};

/// Why a message could not be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum BuildError {
    /// The buffer is too short, or the message is in more pieces than there is room for.
    #[error("the buffer is too short for the message")]
    NoRoom,
    /// A value has a line end in it, which would begin a header field of its own.
    #[error("a value has a line end in it")]
    LineEnd,
    /// Something cannot be a start line: a method or a header name that is no token, a code outside 100 to 699.
    #[error("not a method, a status code or a header name")]
    Token,
    /// The message to be copied from is malformed where it would be changed.
    #[error("the message is malformed where it would be changed")]
    Malformed,
}
