//! Limits of connections.

use std::time::Duration;

/// Limits of TCP and TLS connections of STUN and TURN. A part of [`Settings`](crate::Settings).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamSettings {
    /// Connections of all workers together. Default 20,000.
    pub connections: u32,
    /// Connections of one IPv4 address or IPv6 /64. Default 1,000, as many clients may share an address behind a NAT.
    pub connections_per_source: u32,
    /// Within this time a connection's first message must be complete, TLS handshake included, and each message that has begun.
    /// Default 10 s.
    pub message_deadline: Duration,
    /// A connection without an allocation on which nothing comes for so long is closed. Default 60 s.
    pub idle: Duration,
    /// Relayed data that waits for longer to be written is dropped, the oldest first. Default 500 ms.
    pub queue_age: Duration,
    /// Bytes that may wait to be written on one connection. Beyond, the oldest relayed data is dropped. Default 4 MiB.
    pub queue_bytes: usize,
    /// The same for all connections together. Default 256 MiB.
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

/// One worker's part of the limits.
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

/// One in so many connections may be unproven, that is, have had no allocation yet: those who only connect leave room for others.
const UNPROVEN: usize = 4;

/// Bytes of STUN messages that may wait on one connection: some 500 responses. A client that sends so many requests and reads none of the
/// responses is closed.
const MESSAGE_BYTES: usize = 64 << 10;

impl StreamSettings {
    /// What one of so many workers may have. The kernel spreads connections by a hash, so a source may have all of its own on one worker.
    pub(crate) fn of_worker(&self, workers: usize) -> WorkerLimits {
        let share = |of_all: usize| of_all.div_ceil(workers.max(1)).max(1);
        let connections = share(self.connections as usize);
        WorkerLimits {
            connections,
            unproven: (connections / UNPROVEN).max(1),
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
