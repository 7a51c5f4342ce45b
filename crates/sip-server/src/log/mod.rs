//! Bindings that survive a restart: an append-only log.
//!
//! ```text
//! file    "hairpin location"  version  crc of both  record ...
//!               16 bytes         4          4
//! record  length  crc of length and state  state
//!           4               4              length
//! ```
//!
//! All numbers are little-endian. The state of a version 2 record begins with a byte 0, which no address has as its
//! length. A record is the whole state of one address of record, with no binding if there is none left. The last record
//! of an address counts. Times are seconds since 1970: the monotonic clock does not survive a restart.
//!
//! - [`Journal`] collects the records of a worker's changes; [`Persistent`] is a location in memory with a journal.
//! - [`Log`] writes batches to a [`Storage`], and leaves out what no longer counts ([`Log::run`]). It belongs on a
//!   separate thread, because writing may block. [`Disk`] is the storage in a file, and the one part of this crate that
//!   does I/O.
//! - [`Image`] is what was read: a torn end is cut and reported, a damaged record within is left out and counted.
//! - [`latest_states`] splits a batch for a database that is used instead of a log.

mod compaction;
mod disk;
mod image;
mod journal;
mod record;
mod states;
mod writer;

pub use disk::Disk;
pub use image::{Image, Report};
pub use journal::{Journal, Persistent};
pub use record::MAX_RECORD;
pub use states::{AddressState, latest_states};
pub use writer::{Log, OpenError, Settings, Storage};

use record::StateError;

/// What a log begins with.
const MAGIC: &[u8; 16] = b"hairpin location";
/// Of the format of records. A log of version 1 is read, too: its records have no User-Agent.
const VERSION: u32 = 2;
/// Bytes in front of the first record.
const HEADER_LEN: usize = MAGIC.len() + 4 + 4;

/// The first bytes of a log.
fn header() -> [u8; HEADER_LEN] {
    let mut header = [0; HEADER_LEN];
    let (signed, crc) = header.split_at_mut(HEADER_LEN - 4);
    signed[..MAGIC.len()].copy_from_slice(MAGIC);
    signed[MAGIC.len()..].copy_from_slice(&VERSION.to_le_bytes());
    crc.copy_from_slice(&crc32fast::hash(signed).to_le_bytes());
    header
}

/// What the first bytes of a file say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FileHeader {
    /// A log of this version, or of one whose records are read.
    Ours,
    /// The file is empty, or shorter than a header: the process ended while it made the file.
    Unfinished,
    /// A log of another version.
    Version(u32),
    /// Something else.
    Other,
}

fn beginning(bytes: &[u8]) -> FileHeader {
    let expected = header();
    let Some(found) = bytes.first_chunk::<HEADER_LEN>() else {
        return match expected.starts_with(bytes) {
            true => FileHeader::Unfinished,
            false => FileHeader::Other,
        };
    };
    let (signed, crc) = found.split_at(HEADER_LEN - 4);
    let is_whole = crc32fast::hash(signed).to_le_bytes() == *crc;
    match signed.strip_prefix(MAGIC).map(<[u8; 4]>::try_from) {
        Some(Ok(version)) if is_whole => match u32::from_le_bytes(version) {
            1 | VERSION => FileHeader::Ours,
            version => FileHeader::Version(version),
        },
        _ => FileHeader::Other,
    }
}
