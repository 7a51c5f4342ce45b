//! Limits that the kernel sets for all, read from /proc/sys.

/// `net.core.rmem_max`: the largest receive buffer that a socket gets without CAP_NET_ADMIN, in bytes. `None` if it
/// cannot be read, as in some containers.
#[must_use]
pub fn rmem_max() -> Option<u32> {
    number("/proc/sys/net/core/rmem_max")
}

/// `net.core.wmem_max`: the largest send buffer that a socket gets without CAP_NET_ADMIN, in bytes; likewise.
#[must_use]
pub fn wmem_max() -> Option<u32> {
    number("/proc/sys/net/core/wmem_max")
}

/// `net.core.busy_poll`: microseconds that every epoll spins on a device's queue before it sleeps; 0 is off.
#[must_use]
pub fn busy_poll() -> Option<u32> {
    number("/proc/sys/net/core/busy_poll")
}

fn number(path: &str) -> Option<u32> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}
