//! The replay window (RFC 6347 §4.1.2.6).

const BITS: u64 = 64;

/// Which of the last 64 record numbers were received.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Window {
    /// The highest received number plus one.
    end: u64,
    /// Bit n: number `end - 1 - n` was received.
    seen: u64,
}

impl Window {
    /// Whether a record of this number is acceptable: it was not received before, and the window reaches back to it.
    pub(crate) const fn is_new(&self, number: u64) -> bool {
        if number >= self.end {
            return true;
        }
        let age = self.end - 1 - number;
        age < BITS && self.seen >> age & 1 == 0
    }

    /// Records that an authenticated record of this number was received.
    pub(crate) const fn insert(&mut self, number: u64) {
        if number >= self.end {
            let ahead = number + 1 - self.end;
            self.seen = if ahead < BITS { self.seen << ahead } else { 0 };
            self.end = number + 1;
        }
        let age = self.end - 1 - number;
        if age < BITS {
            self.seen |= 1 << age;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_number_is_taken_once_and_only_while_it_is_recent(numbers in prop::collection::vec(0u64..300, 1..400)) {
            let mut window = Window::default();
            let mut seen = BTreeSet::new();
            for number in numbers {
                let highest = seen.last().copied().unwrap_or(0);
                let expected = !seen.contains(&number) && number + BITS > highest;
                prop_assert_eq!(window.is_new(number), expected);
                if expected {
                    window.insert(number);
                    seen.insert(number);
                }
            }
        }
    }
}
