//! Leaves out of a log what no longer counts, a piece at a time.
//!
//! First it finds the last record of each address. Then it copies those that still have a binding. Then it copies the
//! records that were written in the meantime, unchanged. So the log can be written to all the while, and at any moment
//! one of log and copy is whole.

use std::io;

use sip::{HashKey, Now};

use super::image::{LatestRecords, LogPiece, piece};
use super::record::{MAX_RECORD, PREFIX_LEN, State};
use super::{HEADER_LEN, Storage};

/// Bytes that one step reads: some milliseconds.
const CHUNK_BYTES: usize = 1 << 20;
/// Two records of any length: what it takes to see that the first is damaged and the second is not.
const MAX_CHUNK_BYTES: usize = 2 * (MAX_RECORD + PREFIX_LEN);

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Further steps are needed.
    More,
    /// The copy is whole and synchronized.
    Done {
        /// Its bytes.
        len: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Look,
    Copy,
    CopyRest,
}

/// A compaction that is in progress.
#[derive(Debug)]
pub(super) struct Compaction {
    phase: Phase,
    /// What has been read of the log in this phase.
    at: u64,
    /// How long the log was when this began.
    end: u64,
    latest: LatestRecords,
    /// Bytes of the copy.
    copied: u64,
    chunk: usize,
    buffer: Vec<u8>,
    out: Vec<u8>,
}

impl Compaction {
    /// Of a log of this length.
    pub(super) fn new(end: u64, key: HashKey) -> Compaction {
        Compaction {
            phase: Phase::Look,
            at: HEADER_LEN as u64,
            end,
            latest: LatestRecords::new(key),
            copied: HEADER_LEN as u64,
            chunk: CHUNK_BYTES,
            buffer: Vec::new(),
            out: Vec::new(),
        }
    }

    /// Does a piece of it. The log has this length now.
    pub(super) fn step(
        &mut self,
        storage: &mut impl Storage,
        len: u64,
        now: Now,
    ) -> io::Result<Step> {
        let end = match self.phase {
            Phase::Look | Phase::Copy => self.end,
            Phase::CopyRest => len,
        };
        let wanted = (end - self.at).min(self.chunk as u64) as usize;
        self.buffer.resize(wanted, 0);
        storage.read_at(self.at, &mut self.buffer)?;
        let is_last = self.at + wanted as u64 == end;
        self.out.clear();
        let read = match self.phase {
            Phase::CopyRest => {
                self.out.extend_from_slice(&self.buffer);
                wanted
            }
            Phase::Look | Phase::Copy => self.read_records(now, is_last)?,
        };
        self.at += read as u64;
        if !self.out.is_empty() {
            storage.append_to_copy(&self.out)?;
            // Bit by bit: one large synchronization would block for as long as all of it takes.
            storage.sync_copy()?;
            self.copied += self.out.len() as u64;
        }
        if self.at < end {
            return Ok(Step::More);
        }
        match self.phase {
            Phase::Look => (self.phase, self.at) = (Phase::Copy, HEADER_LEN as u64),
            Phase::Copy => self.phase = Phase::CopyRest,
            Phase::CopyRest => {
                storage.sync_copy()?;
                return Ok(Step::Done { len: self.copied });
            }
        }
        Ok(Step::More)
    }

    /// Reads the whole records of the buffer; says how many bytes they are.
    fn read_records(&mut self, now: Now, is_last: bool) -> io::Result<usize> {
        let mut at = 0;
        while at < self.buffer.len() {
            let place = self.at + at as u64;
            match piece(&self.buffer[at..]) {
                LogPiece::Record(state, len) => {
                    // `piece` returns a record only if it is complete.
                    let record = at..at + len;
                    at += len;
                    // What cannot be understood is left out.
                    let Ok(state) = State::read(state) else {
                        continue;
                    };
                    match self.phase {
                        Phase::Look => self.latest.note(state.aor, place),
                        _ if self.latest.is_last(state.aor, place)
                            && state.is_alive(now).unwrap_or_default() =>
                        {
                            self.out.extend_from_slice(&self.buffer[record]);
                        }
                        _ => {}
                    }
                }
                LogPiece::Damaged(len) => at += len,
                LogPiece::Torn if is_last => {
                    return Err(io::Error::other("the location log is damaged"));
                }
                LogPiece::Torn => break,
            }
        }
        // A record that is longer than the buffer.
        if at == 0 && !self.buffer.is_empty() {
            if self.chunk >= MAX_CHUNK_BYTES {
                return Err(io::Error::other("the location log is damaged"));
            }
            self.chunk *= 2;
        } else {
            self.chunk = CHUNK_BYTES;
        }
        Ok(at)
    }
}
