//! Splits a batch of records into the states of addresses of record, for a database with a row per address.

use std::collections::HashMap;

use sip::{Mono, Now};

use super::image::{LogPiece, piece};
use super::record::State;

/// The last state of an address of record in a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AddressState<'a> {
    /// The address in canonical form.
    pub aor: &'a [u8],
    /// The URIs of its bindings. Empty if it has none any more.
    pub contacts: Vec<&'a [u8]>,
    /// When its last binding ends, in seconds since 1970; 0 without bindings.
    pub ends_unix_s: u64,
    /// The whole record. [`Image::of_records`](super::Image::of_records) reads it.
    pub record: &'a [u8],
}

/// The last state of each address in these records, in any order. Damaged records are left out.
#[must_use]
pub fn latest_states(records: &[u8]) -> Vec<AddressState<'_>> {
    let mut latest: HashMap<&[u8], AddressState<'_>> = HashMap::new();
    let mut rest = records;
    loop {
        match piece(rest) {
            LogPiece::Record(state, len) => {
                let (record, behind) = rest.split_at(len);
                rest = behind;
                if let Some(state) = read(state, record) {
                    latest.insert(state.aor, state);
                }
            }
            LogPiece::Damaged(len) => rest = &rest[len..],
            LogPiece::Torn => return latest.into_values().collect(),
        }
    }
}

fn read<'a>(state: &'a [u8], record: &'a [u8]) -> Option<AddressState<'a>> {
    // With this epoch, the times of a record are nanoseconds since 1970.
    let epoch = Now {
        mono: Mono(0),
        unix_s: 0,
    };
    let state = State::read(state).ok()?;
    let parts = state.parts(epoch);
    let parts: Vec<_> = parts.collect::<Result<_, _>>().ok()?;
    let ends = parts.iter().map(|parts| parts.expires.0 / 1_000_000_000);
    Some(AddressState {
        aor: state.aor,
        ends_unix_s: ends.max().unwrap_or(0),
        contacts: parts.iter().map(|parts| parts.uri).collect(),
        record,
    })
}
