//! Nonce counts that have been used (RFC 7616 §3.4, `nc`), in memory with a limit.
//!
//! A nonce selects one set of places, and its place has a window of the last 64 counts, because requests overtake each
//! other over UDP. The table begins small, because most servers have few clients. If a set is full, its oldest nonce is
//! removed if it was issued more than two lifetimes before the new one. Otherwise the table doubles, up to its full
//! size. From then on, the oldest nonce of a full set is removed in any case. The table does not shrink.
//!
//! The set remembers the age of what was removed. A nonce of that age or older that is not in the set may have been
//! there, so it counts as used. So nothing counts twice, regardless of the load. A full table costs a few more
//! challenges.
//!
//! Only nonces with a correct digest take a place.

/// Places in a set.
const WAYS: usize = 4;
/// The most sets at the beginning, if the full number is this times a power of two. Otherwise the full number is halved
/// as often as possible.
const FIRST_SETS: usize = 16;

/// What the use of a nonce is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NonceUse {
    /// The first of this count.
    Fresh,
    /// The count was used already, or is too old to decide: challenge again with `stale=true`.
    Used,
}

/// One nonce.
#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    id: u64,
    issued_unix_s: u64,
    /// Which of the 64 counts up to `highest` were used; bit 0 is `highest`. 0 says that the place is free.
    window: u64,
    highest: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Set {
    entries: [Entry; WAYS],
    /// Nonces issued then or before that are not here may have been pushed out.
    floor_unix_s: u64,
}

/// The counts of the nonces in use.
#[derive(Clone, Debug)]
pub struct Replay {
    sets: Box<[Set]>,
    /// The full number of sets.
    max_sets: usize,
    lifetime_s: u64,
}

impl Replay {
    /// A table for at most about `nonces` nonces, whose lifetime is `lifetime_s` seconds. Each uses 34 bytes. If the
    /// full size can be halved often enough, the table begins with at most 64 nonces.
    #[must_use]
    pub fn new(nonces: usize, lifetime_s: u64) -> Replay {
        let max_sets = nonces.div_ceil(WAYS).max(1);
        let mut sets = max_sets;
        while sets > FIRST_SETS && sets.is_multiple_of(2) {
            sets /= 2;
        }
        Replay {
            sets: vec![Set::default(); sets].into_boxed_slice(),
            max_sets,
            lifetime_s,
        }
    }

    /// Notes that a nonce was answered rightly with this count. If the set is full and its
    /// oldest nonce has not expired, the table doubles, up to its full size.
    pub fn note(&mut self, id: u64, issued_unix_s: u64, count: u32) -> NonceUse {
        let sets = self.sets.len() as u64;
        // The identity is a MAC: its bits are as good as random, and nobody chooses them.
        let Some(set) = self.sets.get_mut((id % sets) as usize) else {
            return NonceUse::Used;
        };
        let is_it = |entry: &&mut Entry| {
            entry.window != 0 && entry.id == id && entry.issued_unix_s == issued_unix_s
        };
        if let Some(entry) = set.entries.iter_mut().find(is_it) {
            return entry.note(count);
        }
        if issued_unix_s <= set.floor_unix_s {
            return NonceUse::Used;
        }
        let age = |entry: &&mut Entry| (entry.window != 0, entry.issued_unix_s);
        let Some(oldest) = set.entries.iter_mut().min_by_key(age) else {
            return NonceUse::Used;
        };
        if oldest.window != 0 {
            // A nonce is good for its lifetime before and after it was issued, as clocks may be set back.
            let expires = oldest
                .issued_unix_s
                .saturating_add(self.lifetime_s.saturating_mul(2));
            if expires >= issued_unix_s && sets < self.max_sets as u64 {
                self.double();
                return self.note(id, issued_unix_s, count);
            }
            if issued_unix_s < oldest.issued_unix_s {
                return NonceUse::Used;
            }
            set.floor_unix_s = set.floor_unix_s.max(oldest.issued_unix_s);
        }
        *oldest = Entry {
            id,
            issued_unix_s,
            window: 1,
            highest: count,
        };
        NonceUse::Fresh
    }

    /// Each set becomes two. Both know what the set knew of the age of removed nonces.
    fn double(&mut self) {
        let mut sets = [&self.sets[..], &self.sets[..]].concat();
        let count = sets.len() as u64;
        for (number, set) in (0..).zip(&mut sets) {
            for entry in &mut set.entries {
                // This entry belongs to the other one of the two.
                if entry.id % count != number {
                    *entry = Entry::default();
                }
            }
        }
        self.sets = sets.into();
    }
}

impl Entry {
    fn note(&mut self, count: u32) -> NonceUse {
        if let Some(ahead @ 1..) = count.checked_sub(self.highest) {
            self.window = self.window.checked_shl(ahead).unwrap_or(0) | 1;
            self.highest = count;
            return NonceUse::Fresh;
        }
        let bit = 1_u64.checked_shl(self.highest - count).unwrap_or(0);
        if bit == 0 || self.window & bit != 0 {
            return NonceUse::Used;
        }
        self.window |= bit;
        NonceUse::Fresh
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn each_count_is_good_once_in_any_order_of_the_last_64() {
        let mut replay = Replay::new(1, 600);
        for (count, expected) in [
            (1, NonceUse::Fresh),
            (1, NonceUse::Used),
            (3, NonceUse::Fresh),
            (2, NonceUse::Fresh),
            (2, NonceUse::Used),
            (66, NonceUse::Fresh),
            (3, NonceUse::Used),
            (4, NonceUse::Fresh),
            (2, NonceUse::Used),
            (200, NonceUse::Fresh),
            (66, NonceUse::Used),
            (137, NonceUse::Fresh),
            (136, NonceUse::Used),
            (u32::MAX, NonceUse::Fresh),
            (u32::MAX, NonceUse::Used),
            (0, NonceUse::Used),
        ] {
            assert_eq!(replay.note(7, 100, count), expected, "{count}");
        }
    }

    /// However full the table is: what was taken once is never taken again.
    #[test]
    fn nothing_counts_twice_though_the_table_is_full_or_grows() {
        // One that is full at once, one that becomes full, and one that only grows.
        for nonces in [8, 4 * 32, 4 * 1024] {
            nothing_counts_twice(Replay::new(nonces, 600));
        }
    }

    fn nothing_counts_twice(mut replay: Replay) {
        let (mut taken, mut seed, mut fresh) = (HashSet::new(), 1_u64, 0);
        for step in 0..20_000_u64 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let nonce = (seed >> 33) % 64 + step / 100;
            let (issued, count) = (nonce / 4, (seed >> 20) as u32 % 8 + 1);
            if replay.note(nonce.wrapping_mul(0x9E37_79B9_7F4A_7C15), issued, count)
                == NonceUse::Fresh
            {
                assert!(taken.insert((nonce, count)), "{nonce} {count}");
                fresh += 1;
            }
        }
        assert!(fresh > 100);
    }

    #[test]
    fn memory_grows_with_the_nonces_up_to_what_it_was_made_for() {
        assert!(size_of::<Set>() <= 34 * WAYS);
        assert_eq!(Replay::new(0, 600).sets.len(), 1);
        assert_eq!(
            Replay::new(4 * 1001, 600).sets.len(),
            1001,
            "it cannot be halved"
        );
        let mut replay = Replay::new(4 * 1024, 1 << 20);
        assert_eq!(replay.sets.len(), FIRST_SETS);
        let id = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for number in 1..150 {
            assert_eq!(replay.note(id(number), number, 1), NonceUse::Fresh);
        }
        assert!(replay.sets.len() <= 256, "{}", replay.sets.len());
        for number in 1..150 {
            let again = replay.note(id(number), number, 1);
            assert_eq!(again, NonceUse::Used, "none was lost");
            assert_eq!(replay.note(id(number), number, 2), NonceUse::Fresh);
        }
        for number in 150..50_000 {
            replay.note(id(number), number, 1);
        }
        assert_eq!(replay.sets.len(), 1024, "and no larger");
    }

    /// A hundred clients that get another nonce every five minutes, for two weeks.
    #[test]
    fn expired_nonces_give_way_before_the_table_grows() {
        let mut replay = Replay::new(4 * 1024, 600);
        let id = |number: u64| number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        for number in 0..100 * 4_000_u64 {
            let issued = 1_000_000 + number * 3;
            assert_eq!(replay.note(id(number), issued, 1), NonceUse::Fresh);
            assert_eq!(replay.note(id(number), issued, 1), NonceUse::Used);
        }
        // 400 nonces are younger than twice the lifetime.
        assert!(replay.sets.len() <= 512, "{}", replay.sets.len());
    }
}
