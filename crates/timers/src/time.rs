//! Time as an argument.

use std::time::Duration;

/// A point on the embedder's monotonic clock, in nanoseconds since any fixed origin.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Mono(pub u64);

impl Mono {
    /// The latest point there is: a deadline that never comes.
    pub const NEVER: Mono = Mono(u64::MAX);

    /// This point plus `seconds`, saturating.
    #[must_use]
    pub const fn plus_secs(self, seconds: u64) -> Mono {
        Mono(self.0.saturating_add(seconds.saturating_mul(1_000_000_000)))
    }

    /// This point plus `duration`, saturating.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Mono {
        Mono(
            self.0
                .saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// The time from `earlier` to this point; zero if `earlier` is the later one.
    #[must_use]
    pub const fn since(self, earlier: Mono) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// The present moment: deadlines are kept in `mono`, time-limited user names and nonces in `unix_s`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// The monotonic clock; never goes back from one call to the next.
    pub mono: Mono,
    /// Seconds since 1970-01-01 UTC; may jump.
    pub unix_s: u64,
}
