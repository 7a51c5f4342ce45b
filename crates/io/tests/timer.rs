//! The timer wheel beside a sorted map.

#![allow(clippy::unwrap_used)] // a test may fail this way

use std::collections::BTreeMap;

use hairpin_io::{TimerKey, TimerWheel};
use proptest::prelude::*;

#[derive(Clone, Debug)]
enum Step {
    Insert { after: u64 },
    Cancel { pick: usize },
    Reschedule { pick: usize, after: u64 },
    Advance { by: u64 },
    SleepUntilNext,
}

/// Spans of every order of magnitude, so that every wheel and what lies beyond them is met.
fn span() -> impl Strategy<Value = u64> {
    (0u32..44, any::<u64>()).prop_map(|(bits, random)| random & ((1 << bits) - 1))
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => span().prop_map(|after| Step::Insert { after }),
        1 => any::<usize>().prop_map(|pick| Step::Cancel { pick }),
        2 => (any::<usize>(), span()).prop_map(|(pick, after)| Step::Reschedule { pick, after }),
        2 => span().prop_map(|by| Step::Advance { by }),
        2 => Just(Step::SleepUntilNext),
    ]
}

/// Name of a timer, its deadline, its key.
struct Model {
    wheel: TimerWheel<u32>,
    tick: u64,
    now: u64,
    pending: BTreeMap<u32, (u64, TimerKey)>,
    gone: Vec<TimerKey>,
    names: u32,
}

impl Model {
    fn pick(&self, pick: usize) -> Option<u32> {
        let count = self.pending.len();
        (count > 0).then(|| *self.pending.keys().nth(pick % count).unwrap())
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Insert { after } => {
                let key = self.wheel.insert(self.now + after, self.names);
                self.pending.insert(self.names, (self.now + after, key));
                self.names += 1;
            }
            Step::Cancel { pick } => {
                let Some(name) = self.pick(pick) else { return };
                let (_, key) = self.pending.remove(&name).unwrap();
                assert_eq!(self.wheel.cancel(key), Some(name));
                self.gone.push(key);
            }
            Step::Reschedule { pick, after } => {
                let Some(name) = self.pick(pick) else { return };
                let (deadline, key) = self.pending.get_mut(&name).unwrap();
                *deadline = self.now + after;
                assert!(self.wheel.reschedule(*key, self.now + after));
            }
            Step::Advance { by } => self.advance_to(self.now + by),
            Step::SleepUntilNext => {
                let Some(next) = self.wheel.next_deadline() else {
                    return assert!(self.pending.is_empty());
                };
                self.advance_to(self.now.max(next));
            }
        }
        self.check();
    }

    fn advance_to(&mut self, now: u64) {
        self.now = now;
        let mut last_tick = 0;
        let (pending, gone, tick) = (&mut self.pending, &mut self.gone, self.tick);
        self.wheel.advance(now, &mut |name| {
            let (deadline, key) = pending.remove(&name).expect("fires once");
            assert!(deadline <= now, "fired {} ns early", deadline - now);
            // What was overdue when it was set counts as due at its setting, which the model does not keep.
            last_tick = last_tick.max(deadline.div_ceil(tick));
            gone.push(key);
        });
        assert!(last_tick <= now / tick);
        for (deadline, _) in self.pending.values() {
            assert!(*deadline + tick > now, "{} ns late", now - *deadline);
        }
    }

    fn check(&mut self) {
        assert_eq!(self.wheel.len(), self.pending.len());
        assert_eq!(self.wheel.is_empty(), self.pending.is_empty());
        let earliest = self.pending.values().map(|(deadline, _)| *deadline).min();
        let next = self.wheel.next_deadline();
        assert_eq!(next.is_some(), earliest.is_some());
        if let (Some(next), Some(earliest)) = (next, earliest) {
            assert!(
                next < earliest + self.tick,
                "sleeping until {next} would miss {earliest}"
            );
        }
        for key in &self.gone {
            assert_eq!(self.wheel.cancel(*key), None);
            assert!(!self.wheel.reschedule(*key, 0));
        }
        self.gone.truncate(16);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn the_wheel_does_what_a_sorted_map_does(
        tick in prop_oneof![Just(1u64), Just(1000), Just(1_000_000), 1..10_000u64],
        start in span(),
        steps in prop::collection::vec(step(), 1..60),
    ) {
        let wheel = TimerWheel::new(tick, start);
        let mut model = Model { wheel, tick, now: start, pending: BTreeMap::new(), gone: Vec::new(), names: 0 };
        for step in steps {
            model.apply(step);
        }
        // Sleeping from deadline to deadline empties it, with a bounded number of wake-ups per timer, and one more for
        // each turn of the coarsest wheel (2^36 ticks).
        let mut wakes = model.pending.len() * (8 + (1 << (44 - 36)));
        while !model.pending.is_empty() {
            prop_assert!(wakes > 0, "too many wake-ups");
            wakes -= 1;
            model.apply(Step::SleepUntilNext);
        }
    }
}

#[test]
fn ticks_fire_in_order_whatever_the_order_of_insertion() {
    let mut wheel = TimerWheel::new(10, 0);
    for deadline in [5000, 15, 700_000, 11, 99, 64 * 64 * 10, 640] {
        wheel.insert(deadline, deadline);
    }
    let mut fired = Vec::new();
    wheel.advance(1_000_000, &mut |deadline| fired.push(deadline / 10));
    assert!(fired.is_sorted() && fired.len() == 7, "{fired:?}");
}

#[test]
fn the_wheel_may_be_changed_between_two_due_timers() {
    let mut wheel = TimerWheel::new(1, 0);
    let a = wheel.insert(10, 'a');
    wheel.insert(20, 'b');
    assert_eq!(wheel.pop_due(30), Some('a'));
    assert_eq!(wheel.cancel(a), None);
    let c = wheel.insert(15, 'c');
    wheel.insert(40, 'd');
    assert!(wheel.reschedule(c, 35));
    assert_eq!(wheel.pop_due(30), Some('b'));
    assert_eq!(wheel.pop_due(30), None);
    assert_eq!(wheel.next_deadline(), Some(35));
    assert_eq!(wheel.pop_due(35), Some('c'));
}

#[test]
fn deadlines_at_the_end_of_time_do_not_fire_or_panic() {
    let mut wheel = TimerWheel::new(1_000_000, 5);
    let never = wheel.insert(u64::MAX, ());
    wheel.advance(u64::MAX / 2, &mut |()| panic!("early"));
    assert!(wheel.next_deadline().is_some());
    assert_eq!(wheel.cancel(never), Some(()));
    assert_eq!(wheel.next_deadline(), None);
}

#[test]
fn an_empty_wheel_crosses_years_at_once() {
    let mut wheel = TimerWheel::<()>::new(1, 0);
    let start = std::time::Instant::now();
    wheel.advance(u64::MAX, &mut |()| {});
    assert!(start.elapsed() < std::time::Duration::from_millis(50));
}
