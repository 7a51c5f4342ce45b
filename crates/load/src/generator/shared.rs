//! What every thread of a run reads.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use io::clock;

use super::stamps::Stamps;
use super::{Plan, Stopper};
use crate::report::Pace;

/// Between starting the threads and time zero of the schedule.
const HEAD_START_NS: u64 = 20_000_000;

/// Times and flags of a run. Nothing here is written per datagram.
#[derive(Debug)]
pub(super) struct Shared {
    /// Time zero of the schedule.
    pub(super) origin_ns: u64,
    /// The measured part: from here ..
    pub(super) measure_ns: u64,
    /// .. to here, where the senders stop.
    pub(super) end_ns: u64,
    /// How long to wait then for what is on its way.
    pub(super) linger: Duration,
    /// The kernel says when datagrams arrived.
    pub(super) stamp_arrivals: bool,
    /// How its datagrams are recognised.
    pub(super) stamps: Stamps,
    /// The user ends the run by this.
    stopper: Stopper,
    /// The run ends early by itself.
    quit: AtomicBool,
    receivers_off: AtomicBool,
    /// Seconds of the run that are over.
    second: AtomicU64,
}

/// What the times of a run are made of.
#[derive(Clone, Debug)]
pub(super) struct RunTiming {
    warm_up: Duration,
    duration: Duration,
    linger: Duration,
    stamp_arrivals: bool,
    payload_key: Option<u64>,
    stopper: Stopper,
}

#[cfg(test)]
impl RunTiming {
    pub(super) fn sample(stopper: Stopper) -> RunTiming {
        RunTiming {
            warm_up: Duration::ZERO,
            duration: Duration::from_secs(10),
            linger: Duration::ZERO,
            stamp_arrivals: false,
            payload_key: None,
            stopper,
        }
    }
}

/// Up to this rate, per second, the kernel stamps arrivals: above, a receiver seldom sleeps, and each stamp costs time.
const MAX_STAMPED_RATE: f64 = 20_000.0;

impl Plan {
    pub(super) fn timing(&self) -> RunTiming {
        RunTiming {
            warm_up: self.warm_up,
            duration: self.duration,
            linger: self.linger,
            stamp_arrivals: self
                .offered_rate()
                .is_some_and(|rate| rate <= MAX_STAMPED_RATE)
                && self.pace() == Pace::Open,
            payload_key: self.payload_key,
            stopper: self.stopper.clone(),
        }
    }
}

impl Shared {
    pub(super) fn new(plan: &Plan) -> Shared {
        Shared::of(&plan.timing())
    }

    /// Of a run that begins in a moment.
    pub(super) fn of(timing: &RunTiming) -> Shared {
        let origin_ns = clock::monotonic_ns() + HEAD_START_NS;
        let measure_ns = origin_ns + timing.warm_up.as_nanos() as u64;
        Shared {
            origin_ns,
            measure_ns,
            end_ns: measure_ns + timing.duration.as_nanos() as u64,
            linger: timing.linger,
            stamp_arrivals: timing.stamp_arrivals,
            stamps: Stamps::new(origin_ns, timing.payload_key),
            stopper: timing.stopper.clone(),
            quit: AtomicBool::new(false),
            receivers_off: AtomicBool::new(false),
            second: AtomicU64::new(0),
        }
    }

    /// The number of the current second, from 0.
    #[inline]
    pub(super) fn second(&self) -> u64 {
        self.second.load(Ordering::Relaxed)
    }

    /// Begins the next second, and returns the number of the one that is over.
    pub(super) fn end_second(&self) -> u64 {
        self.second.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether what was meant to leave at this time is measured.
    #[inline]
    pub(super) fn measured(&self, intended_ns: u64) -> bool {
        (self.measure_ns..self.end_ns).contains(&intended_ns)
    }

    pub(super) fn warm_up(&self) -> Duration {
        Duration::from_nanos(self.measure_ns - self.origin_ns)
    }

    /// Whether no more is to be sent.
    #[inline]
    pub(super) fn stopping(&self) -> bool {
        self.quit.load(Ordering::Relaxed) || self.stopper.is_stopped()
    }

    pub(super) fn stopped_by_user(&self) -> bool {
        self.stopper.is_stopped()
    }

    pub(super) fn quit(&self) {
        self.quit.store(true, Ordering::Relaxed);
    }

    /// Whether no more is to be received.
    pub(super) fn receivers_off(&self) -> bool {
        self.receivers_off.load(Ordering::Relaxed)
    }

    pub(super) fn turn_receivers_off(&self) {
        self.receivers_off.store(true, Ordering::Relaxed);
    }
}
