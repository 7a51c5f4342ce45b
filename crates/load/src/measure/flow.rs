//! What one direction of one flow received: loss, reordering, duplication, jitter.

/// Sequence numbers behind the highest that are remembered one by one. What comes later than that counts as lost and,
/// when it does come, as reordered: no real path holds a datagram back for so long.
const WINDOW: u64 = 256;

/// What an arriving datagram was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The next one, or a later one with others still missing.
    InOrder,
    /// Came after a later one.
    Reordered,
    /// Had come before.
    Duplicate,
}

/// Follows the sequence numbers of one flow. 72 bytes, no allocation.
#[derive(Clone, Debug, Default)]
pub struct FlowTracker {
    /// One more than the highest sequence seen; 0 before the first.
    next: u64,
    /// Bit `s % WINDOW` says whether sequence `s`, of the last WINDOW ones, has come.
    seen: [u64; (WINDOW / 64) as usize],
    unique: u64,
    reordered: u64,
    duplicates: u64,
    last_transit_ns: i64,
    jitter_ns: f64,
}

/// What a [`FlowTracker`] has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct FlowReport {
    /// Datagrams received, each counted once.
    pub received: u64,
    /// Came after a later one.
    pub reordered: u64,
    /// Came again.
    pub duplicates: u64,
    /// Interarrival jitter of RFC 3550 §6.4.1 in nanoseconds.
    pub jitter_ns: f64,
}

impl FlowTracker {
    /// Takes note of an arrival. `intended_ns` and `now_ns` are readings of one clock.
    pub fn arrived(&mut self, sequence: u64, intended_ns: u64, now_ns: u64) -> Arrival {
        let arrival = self.place(sequence);
        match arrival {
            Arrival::InOrder => self.unique += 1,
            Arrival::Reordered => {
                self.unique += 1;
                self.reordered += 1;
            }
            Arrival::Duplicate => {
                self.duplicates += 1;
                return arrival;
            }
        }
        self.note_transit(now_ns.wrapping_sub(intended_ns) as i64);
        arrival
    }

    /// What was seen so far.
    #[must_use]
    pub fn report(&self) -> FlowReport {
        FlowReport {
            received: self.unique,
            reordered: self.reordered,
            duplicates: self.duplicates,
            jitter_ns: self.jitter_ns,
        }
    }

    fn place(&mut self, sequence: u64) -> Arrival {
        if sequence >= self.next {
            // Forget what slides out of the window before its places are used again.
            let first_new = self.next.max((sequence + 1).saturating_sub(WINDOW));
            for skipped in first_new..sequence {
                self.set(skipped, false);
            }
            self.set(sequence, true);
            self.next = sequence + 1;
            return Arrival::InOrder;
        }
        if self.next - sequence > WINDOW {
            return Arrival::Reordered;
        }
        let (word, bit) = position(sequence);
        if self.seen[word] & bit != 0 {
            return Arrival::Duplicate;
        }
        self.set(sequence, true);
        Arrival::Reordered
    }

    fn set(&mut self, sequence: u64, seen: bool) {
        let (word, bit) = position(sequence);
        if seen {
            self.seen[word] |= bit;
        } else {
            self.seen[word] &= !bit;
        }
    }

    // RFC 3550 §6.4.1: J(i) = J(i-1) + (|D(i-1,i)| - J(i-1)) / 16.
    fn note_transit(&mut self, transit_ns: i64) {
        if self.unique > 1 {
            let difference = transit_ns.abs_diff(self.last_transit_ns) as f64;
            self.jitter_ns += (difference - self.jitter_ns) / 16.0;
        }
        self.last_transit_ns = transit_ns;
    }
}

fn position(sequence: u64) -> (usize, u64) {
    let place = sequence % WINDOW;
    ((place / 64) as usize, 1 << (place % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(sequences: &[u64]) -> FlowReport {
        let mut tracker = FlowTracker::default();
        for &sequence in sequences {
            tracker.arrived(sequence, 0, 0);
        }
        tracker.report()
    }

    #[test]
    fn a_flow_in_order_has_nothing_to_report() {
        let report = run(&(0..1000).collect::<Vec<_>>());
        assert_eq!(
            (report.received, report.reordered, report.duplicates),
            (1000, 0, 0)
        );
    }

    #[test]
    fn a_late_datagram_is_reordered_and_its_copy_a_duplicate() {
        let report = run(&[0, 2, 1, 1, 2, 3]);
        assert_eq!(
            (report.received, report.reordered, report.duplicates),
            (4, 1, 2)
        );
    }

    #[test]
    fn gaps_longer_than_the_window_leave_no_ghosts() {
        let mut tracker = FlowTracker::default();
        tracker.arrived(0, 0, 0);
        tracker.arrived(10 * WINDOW, 0, 0);
        // Same place in the window as sequence 0, never received.
        assert_eq!(tracker.arrived(10 * WINDOW - 1, 0, 0), Arrival::Reordered);
        assert_eq!(tracker.arrived(9 * WINDOW + 1, 0, 0), Arrival::Reordered);
        assert_eq!(tracker.arrived(9 * WINDOW + 1, 0, 0), Arrival::Duplicate);
    }

    #[test]
    fn jitter_follows_the_formula() {
        let mut tracker = FlowTracker::default();
        // Transit 100, 116, 100: differences of 16 twice.
        tracker.arrived(0, 0, 100);
        tracker.arrived(1, 1000, 1116);
        tracker.arrived(2, 2000, 2100);
        let expected = 1.0 + (16.0 - 1.0) / 16.0;
        assert!((tracker.report().jitter_ns - expected).abs() < 1e-9);
    }

    #[test]
    fn agrees_with_a_set_on_random_orders() {
        let mut state = 1u64;
        let mut tracker = FlowTracker::default();
        let mut seen = std::collections::HashSet::new();
        let mut duplicates = 0;
        for base in 0..5000u64 {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1442);
            let sequence = base + (state >> 60);
            duplicates += u64::from(!seen.insert(sequence));
            tracker.arrived(sequence, 0, 0);
        }
        let report = tracker.report();
        assert_eq!(
            (report.received, report.duplicates),
            (seen.len() as u64, duplicates)
        );
    }
}
