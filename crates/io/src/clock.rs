//! The clocks of the worker loop. Engines get their time as an argument; this is where it comes from.

/// Nanoseconds of CLOCK_MONOTONIC: never steps back, starts near boot.
#[must_use]
pub fn monotonic_ns() -> u64 {
    0
}

/// Whole seconds since 1970-01-01T00:00:00Z (CLOCK_REALTIME); 0 if the clock is set before that.
#[must_use]
pub fn unix_s() -> u64 {
    0
}

/// Processor time in nanoseconds that the calling thread has used, in user space and in the kernel.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    0
}

/// Processor time in nanoseconds that the whole process has used.
#[must_use]
pub fn process_cpu_ns() -> u64 {
    0
}
