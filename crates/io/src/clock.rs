//! The clocks of the worker loop. Engines get their time as an argument; this is where it comes from.

use libc::{clockid_t, timespec};

use crate::sys::time::{clock_gettime, set_timer_slack};

/// Nanoseconds of CLOCK_MONOTONIC: never steps back, starts near boot.
#[must_use]
pub fn monotonic_ns() -> u64 {
    nanoseconds(libc::CLOCK_MONOTONIC)
}

/// Whole seconds since 1970-01-01T00:00:00Z (CLOCK_REALTIME); 0 if the clock is set before that.
#[must_use]
pub fn unix_s() -> u64 {
    u64::try_from(clock_gettime(libc::CLOCK_REALTIME).tv_sec).unwrap_or(0)
}

/// Nanoseconds since 1970-01-01T00:00:00Z (CLOCK_REALTIME), the clock of the kernel's time stamps.
#[must_use]
pub fn realtime_ns() -> u64 {
    nanoseconds(libc::CLOCK_REALTIME)
}

/// Processor time in nanoseconds that the calling thread has used, in user space and in the kernel.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    nanoseconds(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// Processor time in nanoseconds that the whole process has used.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    nanoseconds(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// Lets the calling thread sleep as precisely as the kernel can, for one that has to send on time. By default the
/// kernel may wake it 50 us late to save energy. A thread of the real-time classes is never delayed; where the call is
/// not permitted nothing changes.
pub fn sleep_precisely() {
    // One nanosecond is the least that can be asked for.
    let _ = set_timer_slack(1);
}

/// These clocks do not go below zero, and 2^64 ns are 584 years.
fn nanoseconds(clock: clockid_t) -> u64 {
    let timespec {
        tv_sec, tv_nsec, ..
    } = clock_gettime(clock);
    tv_sec as u64 * 1_000_000_000 + tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, SystemTime};

    #[test]
    fn monotonic_time_passes_and_processor_time_only_with_work() {
        let (start, cpu) = (monotonic_ns(), thread_cpu_ns());
        std::thread::sleep(Duration::from_millis(20));
        assert!(monotonic_ns() - start >= 20_000_000);
        assert!(
            thread_cpu_ns() - cpu < 15_000_000,
            "sleeping uses no processor"
        );
        assert!(process_cpu_ns() >= cpu);
    }

    #[test]
    fn a_precise_sleeper_is_woken_without_the_usual_delay() {
        let late = |pause: Duration| {
            let start = monotonic_ns();
            std::thread::sleep(pause);
            Duration::from_nanos(monotonic_ns() - start).saturating_sub(pause)
        };
        sleep_precisely();
        // The usual delay alone is 50 us; the best of many shows that it is gone, however busy the machine is.
        let best = (0..200).map(|_| late(Duration::from_micros(100))).min();
        assert!(best.unwrap() < Duration::from_micros(50), "{best:?}");
    }

    #[test]
    fn wall_time_is_the_systems() {
        let system = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap()
            .as_secs();
        assert!(unix_s().abs_diff(system) <= 1);
    }
}
