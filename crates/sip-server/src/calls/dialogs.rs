//! The dialogs that count towards a limit of calls.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sip::{HashKey, Mono};

use super::counters::Ticket;
use super::record::CallRecord;
use super::sides::{Bye, Sides};

/// Parts with a lock of their own.
const SHARDS: usize = 64;
const SECOND_NS: u64 = 1_000_000_000;
/// The maximum number of records that one call of [`Dialogs::expire`] returns: each becomes a line of the log.
const MAX_EXPIRIES: usize = 64;
/// No dialog ends by itself.
const NEVER: u64 = u64::MAX;

/// Names a dialog (RFC 3261 §12) the same way on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DialogId(u64);

impl DialogId {
    /// The dialog with this Call-ID and these two tags, in any order. With a secret key, nobody can make two dialogs
    /// with the same identity.
    #[must_use]
    pub fn new(key: HashKey, call_id: &[u8], tags: [&[u8]; 2]) -> DialogId {
        let mut tags = tags.map(|tag| key.derive(1).mac(tag));
        tags.sort_unstable();
        let parts = [key.derive(2).mac(call_id), tags[0], tags[1]];
        let mut bytes = [0; 24];
        for (place, part) in bytes.chunks_exact_mut(8).zip(parts) {
            place.copy_from_slice(&part.to_be_bytes());
        }
        DialogId(key.derive(3).mac(&bytes))
    }
}

/// How long a dialog counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DialogLifetime {
    /// The session interval (RFC 4028); `None` if the session does not expire.
    pub session: Option<Duration>,
    /// The longest time from the first 2xx on.
    pub most: Duration,
}

/// One dialog. Times are whole seconds, rounded up.
#[derive(Debug)]
struct Dialog {
    began_s: u32,
    ends_s: u32,
    sides: Sides,
    /// The tickets end with the dialog.
    tickets: Box<[HeldTicket]>,
    record: Option<Box<CallRecord>>,
}

/// A ticket of a call, and the sides of that call. Several calls may have the same identifier.
#[derive(Debug)]
struct HeldTicket {
    sides: Sides,
    /// Dropped at the end of the call.
    _ticket: Ticket,
}

/// What the table stores of a dialog until the dialog ends.
#[derive(Debug, Default)]
pub struct Counted {
    /// Tickets of the limits. They are returned when the dialog ends.
    pub tickets: Vec<Ticket>,
    /// The record of its call, if calls are recorded.
    pub record: Option<Box<CallRecord>>,
    /// Where its sides are.
    pub sides: Sides,
}

/// Where the next part of a list of dialogs begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DialogsCursor {
    /// The part of the table.
    pub part: usize,
    /// The first identity that is not listed yet.
    pub from: u64,
}

#[derive(Debug, Default)]
struct Shard {
    dialogs: BTreeMap<DialogId, Dialog>,
    /// Their ends, the first in front.
    ends: BTreeSet<(u32, DialogId)>,
}

/// The dialogs of all workers.
#[derive(Debug)]
pub struct Dialogs {
    parts: Box<[Mutex<Shard>]>,
    /// No dialog ends before this second.
    next_s: AtomicU64,
    /// Dialogs that have ended without a BYE.
    expired: AtomicU64,
    len: AtomicU64,
}

impl Default for Dialogs {
    fn default() -> Dialogs {
        Dialogs {
            parts: (0..SHARDS).map(|_| Mutex::default()).collect(),
            next_s: AtomicU64::new(NEVER),
            expired: AtomicU64::new(0),
            len: AtomicU64::new(0),
        }
    }
}

impl Dialogs {
    /// A dialog begins: its first 2xx was forwarded. It ends these calls when it ends.
    ///
    /// Two calls may have the same identifier: user agents choose Call-ID and tags, and an RFC 2543 user agent has no
    /// tag. Each of them counts until a BYE ends it, so that nobody evades a limit this way. The record of the earlier
    /// call is returned, because its end cannot always be distinguished from that of the later one.
    pub fn begin(
        &self,
        now: Mono,
        id: DialogId,
        lifetime: DialogLifetime,
        counted: Counted,
    ) -> Option<Box<CallRecord>> {
        let began_s = seconds(now);
        let ends_s = end_of(began_s, began_s, lifetime);
        let sides = counted.sides;
        let tickets = counted.tickets.into_iter();
        let mut tickets: Vec<HeldTicket> = tickets
            .map(|ticket| HeldTicket {
                sides,
                _ticket: ticket,
            })
            .collect();
        let mut part = self.part(id);
        let mut earlier = None;
        if let Some(old) = part.dialogs.remove(&id) {
            part.ends.remove(&(old.ends_s, id));
            tickets.extend(old.tickets);
            earlier = old.record;
        } else {
            self.len.fetch_add(1, Ordering::Relaxed);
        }
        let dialog = Dialog {
            began_s,
            ends_s,
            sides,
            tickets: tickets.into(),
            record: counted.record,
        };
        part.dialogs.insert(id, dialog);
        part.ends.insert((ends_s, id));
        self.next_s.fetch_min(ends_s.into(), Ordering::Relaxed);
        earlier
    }

    /// A 2xx for a re-INVITE or an UPDATE was forwarded: the session lasts from now on (RFC 4028 §8.2). Calls `report`
    /// with the record of the call, if it has one, while part of the table is locked.
    pub fn refresh(
        &self,
        now: Mono,
        id: DialogId,
        lifetime: DialogLifetime,
        report: impl FnOnce(&CallRecord),
    ) {
        let mut part = self.part(id);
        let Some(dialog) = part.dialogs.get_mut(&id) else {
            return;
        };
        let old = dialog.ends_s;
        // The proxy does not know who responded to the refresh. So a refresh never makes the session end earlier.
        let new = end_of(dialog.began_s, seconds(now), lifetime).max(old);
        dialog.ends_s = new;
        if let Some(record) = dialog.record.as_deref() {
            report(record);
        }
        part.ends.remove(&(old, id));
        part.ends.insert((new, id));
        self.next_s.fetch_min(new.into(), Ordering::Relaxed);
    }

    /// A BYE within a dialog has its final response. If it ends the call ([`Bye`]), returns the record of the call, if
    /// there is one.
    pub fn end(&self, id: DialogId, bye: &Bye) -> Option<Box<CallRecord>> {
        let mut part = self.part(id);
        let dialog = part.dialogs.get_mut(&id)?;
        let record = dialog.record.take_if(|_| bye.ends(&dialog.sides));
        if dialog.tickets.iter().any(|it| bye.ends(&it.sides)) {
            let held = std::mem::take(&mut dialog.tickets).into_iter();
            dialog.tickets = held.filter(|it| !bye.ends(&it.sides)).collect();
        }
        // Calls with the same identifier may continue.
        if dialog.tickets.is_empty() && dialog.record.is_none() {
            let ends_s = dialog.ends_s;
            part.dialogs.remove(&id);
            part.ends.remove(&(ends_s, id));
            self.len.fetch_sub(1, Ordering::Relaxed);
        }
        record
    }

    /// Examines at most `most` dialogs of one part of the table, and calls `list` with each record and the time until
    /// its dialog ends. Returns where the next part of the list begins. Locks one part of the table.
    pub fn list(
        &self,
        now: Mono,
        place: DialogsCursor,
        most: usize,
        list: &mut dyn FnMut(&CallRecord, Duration),
    ) -> Option<DialogsCursor> {
        let part = self.parts.get(place.part)?.lock();
        let part = part.unwrap_or_else(PoisonError::into_inner);
        let mut rest = part.dialogs.range(DialogId(place.from)..);
        for (_, dialog) in rest.by_ref().take(most) {
            let left = Mono(u64::from(dialog.ends_s).saturating_mul(SECOND_NS)).since(now);
            if let Some(record) = &dialog.record {
                list(record, left);
            }
        }
        let part = place.part;
        match rest.next() {
            Some((next, _)) => Some(DialogsCursor { part, from: next.0 }),
            None => {
                let next = DialogsCursor {
                    part: part + 1,
                    from: 0,
                };
                (next.part < SHARDS).then_some(next)
            }
        }
    }

    /// Removes dialogs whose time is over. Returns their records, at most 64. If there are more,
    /// [`Dialogs::next_deadline`] has passed already.
    pub fn expire(&self, now: Mono) -> Vec<Box<CallRecord>> {
        let now_s = now.0 / SECOND_NS;
        let mut records = Vec::new();
        if self.next_s.load(Ordering::Relaxed) > now_s {
            return records;
        }
        // What begins meanwhile lowers it again.
        self.next_s.store(NEVER, Ordering::Relaxed);
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            while let Some((ends_s, id)) = part.ends.first().copied() {
                if records.len() >= MAX_EXPIRIES {
                    self.next_s.fetch_min(now_s, Ordering::Relaxed);
                    return records;
                }
                if u64::from(ends_s) > now_s {
                    self.next_s.fetch_min(ends_s.into(), Ordering::Relaxed);
                    break;
                }
                part.ends.remove(&(ends_s, id));
                if let Some(dialog) = part.dialogs.remove(&id) {
                    self.len.fetch_sub(1, Ordering::Relaxed);
                    self.expired.fetch_add(1, Ordering::Relaxed);
                    records.extend(dialog.record);
                }
            }
        }
        records
    }

    /// Removes dialogs because the server ends, and calls `list` with the record of each that has one: at most `most`
    /// of them. Returns whether dialogs are left.
    pub fn drain(&self, most: usize, list: &mut dyn FnMut(&CallRecord)) -> bool {
        let mut left = most;
        for part in &self.parts {
            let mut part = part.lock().unwrap_or_else(PoisonError::into_inner);
            while left > 0
                && let Some((id, dialog)) = part.dialogs.pop_first()
            {
                part.ends.remove(&(dialog.ends_s, id));
                self.len.fetch_sub(1, Ordering::Relaxed);
                if let Some(record) = &dialog.record {
                    list(record);
                    left -= 1;
                }
            }
        }
        left == 0
    }

    /// When to call [`Dialogs::expire`].
    #[must_use]
    pub fn next_deadline(&self) -> Option<Mono> {
        let next_s = self.next_s.load(Ordering::Relaxed);
        (next_s != NEVER).then(|| Mono(next_s.saturating_mul(SECOND_NS)))
    }

    /// Dialogs that count now.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::Relaxed)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Dialogs that have ended without a BYE so far.
    #[must_use]
    pub fn expired(&self) -> u64 {
        self.expired.load(Ordering::Relaxed)
    }

    fn part(&self, id: DialogId) -> MutexGuard<'_, Shard> {
        let part = self.parts[id.0 as usize % SHARDS].lock();
        part.unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds(now: Mono) -> u32 {
    u32::try_from(now.0.div_ceil(SECOND_NS)).unwrap_or(u32::MAX)
}

fn end_of(began_s: u32, now_s: u32, lifetime: DialogLifetime) -> u32 {
    let after = |begin: u32, time: Duration| {
        begin.saturating_add(u32::try_from(time.as_secs()).unwrap_or(u32::MAX))
    };
    let most = after(began_s, lifetime.most);
    let session = lifetime.session.map(|session| after(now_s, session));
    session.map_or(most, |session| session.min(most))
}

#[cfg(test)]
mod tests {
    use super::super::{Counters, ElementHashes, Limit};
    use super::*;

    fn at(s: u64) -> Mono {
        Mono((1000 + s) * SECOND_NS)
    }

    fn id(number: u32) -> DialogId {
        let key = HashKey::new([1; 16]);
        DialogId::new(key, &number.to_be_bytes(), [b"a", b"b"])
    }

    fn lifetime(session: Option<u64>, most: u64) -> DialogLifetime {
        DialogLifetime {
            session: session.map(Duration::from_secs),
            most: Duration::from_secs(most),
        }
    }

    fn seen(place: &str) -> ElementHashes {
        ElementHashes::at(HashKey::new([1; 16]), place.parse().unwrap())
    }

    /// A call to this place, by a caller with the tag 7.
    fn ticket_at(counters: &Counters<&'static str>, place: &str) -> Counted {
        Counted {
            tickets: vec![counters.begin(at(0), &"alice", Limit::default()).unwrap()],
            record: None,
            sides: Sides::to_server(7, &seen("192.0.2.9:5060"), &seen(place)),
        }
    }

    fn ticket(counters: &Counters<&'static str>) -> Counted {
        ticket_at(counters, "192.0.2.1:5060")
    }

    /// The called party at this place has responded to a BYE of the caller.
    fn bye_to(place: &str) -> Bye {
        Bye {
            tag: 7,
            reached: Some(seen(place)),
            ..Bye::default()
        }
    }

    #[test]
    fn a_dialog_is_the_same_from_both_sides() {
        let key = HashKey::new([1; 16]);
        let of = |call_id: &[u8], tags: [&[u8]; 2]| DialogId::new(key, call_id, tags);
        assert_eq!(of(b"1@a", [b"x", b"y"]), of(b"1@a", [b"y", b"x"]));
        assert_ne!(of(b"1@a", [b"x", b"y"]), of(b"2@a", [b"x", b"y"]));
        assert_ne!(of(b"1@a", [b"x", b"y"]), of(b"1@a", [b"x", b"z"]));
        assert_ne!(of(b"1@a", [b"x", b"x"]), of(b"1@a", [b"y", b"y"]));
    }

    #[test]
    fn a_call_counts_until_its_bye() {
        let (counters, dialogs) = (Counters::default(), Dialogs::default());
        let earlier = dialogs.begin(at(0), id(1), lifetime(None, 60), ticket(&counters));
        assert!(earlier.is_none());
        // A repeated 2xx changes nothing.
        assert_eq!((dialogs.len(), counters.calls(&"alice")), (1, 1));
        let bye = bye_to("192.0.2.1:5060");
        assert!(dialogs.end(id(2), &bye).is_none());
        assert_eq!(dialogs.len(), 1);
        assert!(dialogs.end(id(1), &bye_to("192.0.2.9:5060")).is_none());
        assert_eq!((dialogs.len(), counters.calls(&"alice")), (1, 1));
        assert!(dialogs.end(id(1), &bye).is_none());
        assert_eq!(dialogs.len(), 0);
        assert!(dialogs.end(id(1), &bye).is_none(), "a repeated BYE");
        assert_eq!((dialogs.len(), counters.calls(&"alice")), (0, 0));
        dialogs.expire(at(1000));
        assert_eq!(dialogs.expired(), 0);
    }

    #[test]
    fn two_calls_with_the_same_identifier_both_count_until_the_bye() {
        let (counters, dialogs) = (Counters::default(), Dialogs::default());
        for _ in 0..2 {
            let _ = dialogs.begin(at(0), id(1), lifetime(None, 60), ticket(&counters));
        }
        assert_eq!((dialogs.len(), counters.calls(&"alice")), (1, 2));
        assert!(dialogs.end(id(1), &bye_to("192.0.2.1:5060")).is_none());
        assert_eq!((dialogs.len(), counters.calls(&"alice")), (0, 0));
        assert!(dialogs.expire(at(1000)).is_empty());
        assert_eq!(dialogs.expired(), 0);
    }

    #[test]
    fn of_two_calls_with_the_same_identifier_a_bye_ends_only_those_of_its_called_party() {
        let places = ["192.0.2.1:5060", "192.0.2.2:5060"];
        for (first, second) in [(0, 1), (1, 0)] {
            let (counters, dialogs) = (Counters::default(), Dialogs::default());
            for place in places {
                let counted = ticket_at(&counters, place);
                let _ = dialogs.begin(at(0), id(1), lifetime(None, 60), counted);
            }
            assert!(dialogs.end(id(1), &bye_to(places[first])).is_none());
            assert_eq!((dialogs.len(), counters.calls(&"alice")), (1, 1));
            assert!(dialogs.end(id(1), &bye_to(places[second])).is_none());
            assert_eq!((dialogs.len(), counters.calls(&"alice")), (0, 0));
            assert_eq!(
                dialogs
                    .next_deadline()
                    .map(|_| dialogs.expire(at(99)).len()),
                Some(0)
            );
            assert_eq!(dialogs.expired(), 0);
        }
    }

    #[test]
    fn a_call_without_a_bye_ends_with_its_session_or_its_longest_time() {
        let (counters, dialogs) = (Counters::default(), Dialogs::default());
        for (id, lifetime) in [
            (id(1), lifetime(Some(90), 600)),
            (id(2), lifetime(None, 600)),
        ] {
            assert!(
                dialogs
                    .begin(at(0), id, lifetime, ticket(&counters))
                    .is_none()
            );
        }
        assert_eq!(dialogs.next_deadline(), Some(at(90)));
        dialogs.expire(at(89));
        assert_eq!(dialogs.len(), 2);
        dialogs.refresh(at(80), id(1), lifetime(Some(90), 600), |_| {});
        dialogs.expire(at(90));
        assert_eq!(dialogs.len(), 2, "it was refreshed");
        dialogs.expire(at(170));
        assert_eq!((dialogs.len(), dialogs.expired()), (1, 1));
        assert_eq!(dialogs.next_deadline(), Some(at(600)));
        // No refresh makes a call longer than it may be.
        dialogs.refresh(at(590), id(2), lifetime(Some(90), 600), |_| {});
        dialogs.expire(at(600));
        assert_eq!((dialogs.len(), counters.calls(&"alice")), (0, 0));
        assert_eq!(dialogs.next_deadline(), None);
    }
}
