//! What one direction of one flow received: loss, reordering, duplication, jitter.

use std::collections::VecDeque;

/// Sequence numbers per block.
const BLOCK_NUMBERS: u64 = 4096;
/// Default limit of blocks with gaps per flow: 16 million numbers, 2 MiB.
const DEFAULT_MAX_BLOCKS: usize = 4096;
/// A number so much higher than the highest so far was never sent.
const MAX_STEP: u64 = 1 << 32;

/// What an arriving datagram was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The next one, or a later one with others still missing.
    InOrder,
    /// Came after a later one.
    Reordered,
    /// Had come before.
    Duplicate,
    /// Its number was forgotten, so it may be a duplicate. There are at most as many of these as numbers were missing
    /// there.
    Late,
}

/// Which numbers of a block have arrived.
#[derive(Clone, Debug)]
struct Piece {
    seen: [u64; (BLOCK_NUMBERS / 64) as usize],
    count: u16,
}

/// A block. Only a block that has both gaps and numbers needs memory of its own.
#[derive(Clone, Debug)]
enum Slot {
    Empty,
    Partial(Box<Piece>),
    Complete,
}

impl Slot {
    /// Numbers that have not arrived.
    fn gaps(&self) -> u64 {
        match self {
            Slot::Empty => BLOCK_NUMBERS,
            Slot::Partial(piece) => BLOCK_NUMBERS - u64::from(piece.count),
            Slot::Complete => 0,
        }
    }
}

/// Follows the sequence numbers of one flow.
///
/// It remembers each number that has arrived: a complete block needs no memory. If there are too many blocks with gaps,
/// it forgets the oldest ones. A datagram for one of these is [`Arrival::Late`].
#[derive(Clone, Debug)]
pub struct FlowTracker {
    /// One more than the highest sequence seen; 0 before the first.
    next: u64,
    /// From block `first` on.
    pieces: VecDeque<Slot>,
    first: u64,
    /// Blocks with gaps, and how many there may be.
    held: usize,
    most: usize,
    /// Blocks below this were forgotten. `gaps`: missing numbers in these for which no late datagram has arrived.
    forgotten: u64,
    gaps: u64,
    unique: u64,
    reordered: u64,
    duplicates: u64,
    late: u64,
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
    /// Arrived after their numbers were forgotten, so they may be duplicates.
    pub late: u64,
    /// Interarrival jitter of RFC 3550 §6.4.1 in nanoseconds.
    pub jitter_ns: f64,
}

impl Default for FlowTracker {
    fn default() -> FlowTracker {
        FlowTracker::with_memory(DEFAULT_MAX_BLOCKS)
    }
}

impl FlowTracker {
    /// A tracker that remembers this many blocks of 4,096 numbers with gaps, 520 bytes each; at least 2.
    #[must_use]
    pub fn with_memory(pieces: usize) -> FlowTracker {
        FlowTracker {
            next: 0,
            pieces: VecDeque::new(),
            first: 0,
            held: 0,
            most: pieces.max(2),
            forgotten: 0,
            gaps: 0,
            unique: 0,
            reordered: 0,
            duplicates: 0,
            late: 0,
            last_transit_ns: 0,
            jitter_ns: 0.0,
        }
    }

    /// Blocks with gaps that it remembers.
    #[must_use]
    pub(crate) fn held(&self) -> usize {
        self.held
    }

    /// Remembers at most this many blocks with gaps from the next arrival on; at least 2.
    pub(crate) fn limit(&mut self, pieces: usize) {
        self.most = pieces.max(2);
    }

    /// The whole number of which `low` are the last `bits`: the one nearest to what comes next.
    #[must_use]
    pub fn nearest(&self, low: u64, bits: u32) -> u64 {
        let shift = 64 - bits;
        let since = (low.wrapping_sub(self.next) << shift) as i64 >> shift;
        self.next.checked_add_signed(since).unwrap_or(low)
    }

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
            Arrival::Late => {
                self.late += 1;
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
            late: self.late,
            jitter_ns: self.jitter_ns,
        }
    }

    /// Notes the arrival of a sequence number: new, duplicate or late.
    fn place(&mut self, sequence: u64) -> Arrival {
        let index = sequence / BLOCK_NUMBERS;
        if index < self.first {
            // Complete, or forgotten with gaps.
            if index < self.forgotten && self.gaps > 0 {
                self.gaps -= 1;
                return Arrival::Late;
            }
            return Arrival::Duplicate;
        }
        if sequence >= self.next.saturating_add(MAX_STEP) {
            // No sender has sent that; the flow cannot store all numbers between.
            return Arrival::Late;
        }
        self.reach(index);
        if index < self.first {
            return Arrival::Late;
        }
        let Some(slot) = self.pieces.get_mut((index - self.first) as usize) else {
            return Arrival::Duplicate;
        };
        if matches!(slot, Slot::Empty) {
            *slot = Slot::Partial(Box::new(Piece {
                seen: [0; (BLOCK_NUMBERS / 64) as usize],
                count: 0,
            }));
        }
        let Slot::Partial(piece) = slot else {
            return Arrival::Duplicate;
        };
        let (word, bit) = position(sequence);
        if piece.seen[word] & bit != 0 {
            return Arrival::Duplicate;
        }
        piece.seen[word] |= bit;
        piece.count += 1;
        if u64::from(piece.count) == BLOCK_NUMBERS {
            self.complete(index);
        }
        if sequence >= self.next {
            self.next = sequence + 1;
            Arrival::InOrder
        } else {
            Arrival::Reordered
        }
    }

    /// Makes room for the pieces up to `index`, and forgets the oldest if there are too many.
    fn reach(&mut self, index: u64) {
        let end = self.first + self.pieces.len() as u64;
        let oldest = (index + 1).saturating_sub(self.most as u64);
        if oldest > end {
            // All that it remembers is too old. The pieces between were never entered, so no loop goes over them.
            self.gaps += self.pieces.iter().map(Slot::gaps).sum::<u64>();
            self.gaps += (oldest - end) * BLOCK_NUMBERS;
            self.pieces.clear();
            self.held = 0;
            (self.first, self.forgotten) = (oldest, oldest);
        }
        while self.first + self.pieces.len() as u64 <= index {
            self.pieces.push_back(Slot::Empty);
            self.held += 1;
        }
        while self.held > self.most {
            self.forget();
        }
    }

    /// Forgets the oldest piece. The first one always has gaps.
    fn forget(&mut self) {
        if let Some(oldest) = self.pieces.pop_front() {
            self.held -= 1;
            self.gaps += oldest.gaps();
        }
        self.first += 1;
        self.forgotten = self.first;
        self.skip();
    }

    fn complete(&mut self, index: u64) {
        self.pieces[(index - self.first) as usize] = Slot::Complete;
        self.held -= 1;
        self.skip();
    }

    fn skip(&mut self) {
        while matches!(self.pieces.front(), Some(Slot::Complete)) {
            self.pieces.pop_front();
            self.first += 1;
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
    let place = sequence % BLOCK_NUMBERS;
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
    fn a_flow_in_order_has_nothing_to_report_and_costs_no_memory() {
        let mut tracker = FlowTracker::default();
        for sequence in 0..100_000 {
            assert_eq!(tracker.arrived(sequence, 0, 0), Arrival::InOrder);
        }
        let report = tracker.report();
        assert_eq!(
            (report.received, report.reordered, report.duplicates),
            (100_000, 0, 0)
        );
        assert!(tracker.held <= 1 && tracker.pieces.len() <= 1);
    }

    #[test]
    fn a_datagram_after_later_ones_is_reordered_and_its_copy_a_duplicate() {
        let report = run(&[0, 2, 1, 1, 2, 3]);
        assert_eq!(
            (report.received, report.reordered, report.duplicates),
            (4, 1, 2)
        );
    }

    #[test]
    fn a_copy_is_known_however_late_it_comes() {
        let mut tracker = FlowTracker::default();
        for sequence in (0..1_000_000).step_by(3) {
            assert_eq!(tracker.arrived(sequence, 0, 0), Arrival::InOrder);
        }
        for sequence in (0..1_000_000).step_by(3) {
            assert_eq!(tracker.arrived(sequence, 0, 0), Arrival::Duplicate);
        }
        assert_eq!(tracker.arrived(1, 0, 0), Arrival::Reordered);
    }

    #[test]
    fn forgotten_gaps_count_as_late_when_they_arrive() {
        let mut tracker = FlowTracker::with_memory(2);
        // One number in three arrives of four pieces: two are forgotten.
        let sent = 4 * BLOCK_NUMBERS;
        for sequence in (0..sent).step_by(3) {
            tracker.arrived(sequence, 0, 0);
        }
        for sequence in 0..sent {
            tracker.arrived(sequence, 0, 0);
        }
        let report = tracker.report();
        assert!(
            report.late > 0 && report.received + report.late <= sent,
            "{report:?}"
        );
        let forgotten = 2 * BLOCK_NUMBERS;
        assert_eq!(report.late, forgotten - forgotten.div_ceil(3));
        assert_eq!(report.received + report.late, sent);
        assert_eq!(tracker.arrived(0, 0, 0), Arrival::Duplicate);
        assert_eq!(tracker.arrived(u64::MAX, 0, 0), Arrival::Late);
    }

    #[test]
    fn a_great_leap_costs_little_memory_and_forgets_what_lies_between() {
        let mut tracker = FlowTracker::with_memory(1 << 18);
        tracker.arrived(0, 0, 0);
        let far = MAX_STEP;
        assert_eq!(tracker.arrived(far, 0, 0), Arrival::InOrder);
        let is_partial = |slot: &&Slot| matches!(slot, Slot::Partial(_));
        assert_eq!(tracker.pieces.iter().filter(is_partial).count(), 1);
        assert!(tracker.held() <= 1 << 18);
        assert_eq!(tracker.arrived(1, 0, 0), Arrival::Late);
        assert_eq!(tracker.arrived(far, 0, 0), Arrival::Duplicate);
        assert_eq!(tracker.arrived(far - 1, 0, 0), Arrival::Reordered);
        let first = (far / BLOCK_NUMBERS + 1 - (1 << 18)) * BLOCK_NUMBERS;
        assert_eq!(tracker.arrived(first, 0, 0), Arrival::Reordered);
        assert_eq!(tracker.arrived(first - 1, 0, 0), Arrival::Late);
        assert_eq!(tracker.gaps, first - 3, "0 came, 1 and the last were late");
    }

    #[test]
    fn a_lower_limit_applies_from_the_next_arrival_on() {
        let mut tracker = FlowTracker::with_memory(256);
        for piece in 0..200 {
            tracker.arrived(piece * BLOCK_NUMBERS, 0, 0);
        }
        assert_eq!(tracker.held(), 200);
        tracker.limit(2);
        tracker.arrived(200 * BLOCK_NUMBERS, 0, 0);
        assert_eq!(tracker.held(), 2);
        assert_eq!(tracker.arrived(1, 0, 0), Arrival::Late);
        assert_eq!(
            tracker.arrived(199 * BLOCK_NUMBERS, 0, 0),
            Arrival::Duplicate
        );
    }

    #[test]
    fn a_short_number_is_the_nearest_whole_one() {
        let mut tracker = FlowTracker::default();
        tracker.arrived(100_000, 0, 0);
        for whole in [100_000 - 500, 100_000, 100_000 + 500] {
            assert_eq!(tracker.nearest(whole % 1024, 10), whole);
        }
        assert_eq!(FlowTracker::default().nearest(7, 20), 7);
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
            let sequence = base * 7 + (state >> 50);
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
