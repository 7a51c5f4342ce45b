//! Limits of connections.

use std::time::Duration;

/// Limits of TCP and TLS connections of STUN and TURN. A part of [`Settings`](crate::Settings).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamSettings {
    /// The maximum number of connections of all workers together. Default 20,000.
    pub connections: u32,
    /// The maximum number of connections of one IPv4 address or IPv6 /64. Default 1,000, because many clients may share
    /// an address behind a NAT. Behind a load balancer that sends PROXY headers, it applies to the clients that the
    /// headers name. DTLS has a count of its own, with the same limit.
    pub connections_per_source: u32,
    /// The message deadline. The first message of a new connection, TLS handshake included, must be complete within
    /// this time. So must each later message, from its first bytes on. Default 10 s.
    pub message_deadline: Duration,
    /// The idle timeout. The server closes a connection without an allocation if it receives nothing for this time.
    /// Default 60 s.
    pub idle: Duration,
    /// The longest time that relayed data waits to be written. The server then drops it. Default 500 ms.
    pub queue_age: Duration,
    /// The maximum number of bytes that wait to be written on one connection. Above it, the server drops the oldest
    /// relayed data. Default 4 MiB.
    pub queue_bytes: usize,
    /// The same for all connections together. Each worker has an equal part of it, and each connection of the worker an
    /// equal share of this part. If more than the part waits at a worker, it drops the oldest relayed data of
    /// connections above their share. Default 256 MiB.
    pub queue_bytes_total: usize,
}

impl Default for StreamSettings {
    fn default() -> StreamSettings {
        StreamSettings {
            connections: 20_000,
            connections_per_source: 1_000,
            message_deadline: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            queue_age: Duration::from_millis(500),
            queue_bytes: 4 << 20,
            queue_bytes_total: 256 << 20,
        }
    }
}

/// One worker's share of the limits.
#[derive(Debug, Clone)]
pub(crate) struct WorkerLimits {
    pub(crate) connections: usize,
    pub(crate) unproven: usize,
    pub(crate) per_source: usize,
    pub(crate) message_deadline: Duration,
    pub(crate) idle: Duration,
    pub(crate) write: streams::WriteLimits,
    pub(crate) queue_bytes_total: usize,
}

/// At most one of four connections may be unproven, that is, have had no allocation. The rest is reserved for clients
/// that allocate.
const UNPROVEN_DIVISOR: usize = 4;

/// The maximum number of bytes of STUN messages that wait on one connection: about 500 responses. Above it, the server
/// closes the connection, because the client does not read its responses.
const MESSAGE_BYTES: usize = 64 << 10;

impl StreamSettings {
    /// One worker's share of the limits. The kernel distributes connections over the workers by a hash, which is uneven
    /// for few connections. So a source may reach its limit at one worker early.
    pub(crate) fn of_worker(&self, workers: usize) -> WorkerLimits {
        let share = |of_all: usize| of_all.div_ceil(workers.max(1)).max(1);
        let connections = share(self.connections as usize);
        WorkerLimits {
            connections,
            unproven: (connections / UNPROVEN_DIVISOR).max(1),
            per_source: share(self.connections_per_source as usize),
            message_deadline: self.message_deadline,
            idle: self.idle,
            write: streams::WriteLimits {
                age: self.queue_age,
                bytes: self.queue_bytes,
                messages: MESSAGE_BYTES,
            },
            queue_bytes_total: share(self.queue_bytes_total),
        }
    }
}
