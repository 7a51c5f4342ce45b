//! Calls that ring until they are cancelled, or until a timeout.

use sip::engine::ServerKey;
use sip::{Message, Mono};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

/// A call without an answer rings for this time, and then gets 480.
const MAX_RINGING_TIME: Duration = Duration::from_secs(60);

/// The ringing calls of a worker. Each is found by its end and by its transaction, so a CANCEL does not make the worker
/// search all of them.
#[derive(Debug, Default)]
pub(super) struct Ringing {
    ends: BTreeMap<(Mono, u64), (ServerKey, u16)>,
    calls: HashMap<ServerKey, (Mono, u64)>,
    count: u64,
}

impl Ringing {
    /// Begins to ring, for a minute or until the INVITE expires (RFC 3261 §13.3.1).
    pub(super) fn begin(&mut self, now: Mono, key: ServerKey, invite: &Message<'_>) {
        let expires = invite.expires().ok().flatten();
        let expires = expires.map(|seconds| Duration::from_secs(seconds.into()));
        let (time, code) = match expires {
            Some(time) if time < MAX_RINGING_TIME => (time, 487),
            _ => (MAX_RINGING_TIME, 480),
        };
        self.count += 1;
        let end = (now.plus(time), self.count);
        self.ends.insert(end, (key, code));
        self.calls.insert(key, end);
    }

    /// The timeout of the next call.
    pub(super) fn next_end(&self) -> Option<Mono> {
        self.ends.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes a call after its timeout, with the code of its response.
    pub(super) fn expired(&mut self, now: Mono) -> Option<(ServerKey, u16)> {
        let first = self.ends.first_entry()?;
        if first.key().0 > now {
            return None;
        }
        let (key, code) = first.remove();
        self.calls.remove(&key);
        Some((key, code))
    }

    /// Removes a call that does not ring any more.
    pub(super) fn end(&mut self, key: ServerKey) {
        if let Some(end) = self.calls.remove(&key) {
            self.ends.remove(&end);
        }
    }
}
