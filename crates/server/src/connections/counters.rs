//! Counters of one worker's connections. Only the worker's thread writes them, so they are plain integers.

use std::ops::AddAssign;
use streams::tls::Failure;

/// Why a connection of STUN or TURN ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// The client closed it, or the network broke it.
    Client,
    /// The client had no allocation and sent nothing within the idle timeout.
    Idle,
    /// A message was not complete within the message deadline.
    MessageDeadline,
    /// The bytes are neither STUN nor ChannelData.
    NotStun,
    /// The client used HTTP, SIP or another text protocol.
    Text,
    /// The client began TLS on a listener for plain TCP.
    TlsOnTcp,
    /// The client sent STUN without TLS on a listener for TLS.
    TcpOnTls,
    /// The PROXY header was missing or malformed.
    ProxyHeader,
    /// The TLS connection failed.
    Tls,
    /// The client did not read its responses, and too many waited.
    Unread,
    /// A PROXY header named a client that has too many connections.
    SourceLimit,
    /// The server closed an unproven connection to make room for a new one.
    Evicted,
    /// A data connection of a TCP allocation, or the connection with its peer, ended (RFC 6062).
    DataConnection,
    /// The server shut down.
    Shutdown,
}

impl EndReason {
    /// All reasons, in the order of their numbers.
    pub const ALL: &'static [EndReason] = &[
        EndReason::Client,
        EndReason::Idle,
        EndReason::MessageDeadline,
        EndReason::NotStun,
        EndReason::Text,
        EndReason::TlsOnTcp,
        EndReason::TcpOnTls,
        EndReason::ProxyHeader,
        EndReason::Tls,
        EndReason::Unread,
        EndReason::SourceLimit,
        EndReason::Evicted,
        EndReason::DataConnection,
        EndReason::Shutdown,
    ];

    /// The name in metrics and logs, in snake case.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            EndReason::Client => "client",
            EndReason::Idle => "idle",
            EndReason::MessageDeadline => "message_deadline",
            EndReason::NotStun => "not_stun",
            EndReason::Text => "text",
            EndReason::TlsOnTcp => "tls_on_tcp",
            EndReason::TcpOnTls => "tcp_on_tls",
            EndReason::ProxyHeader => "proxy_header",
            EndReason::Tls => "tls",
            EndReason::Unread => "unread",
            EndReason::SourceLimit => "source_limit",
            EndReason::Evicted => "evicted",
            EndReason::DataConnection => "data_connection",
            EndReason::Shutdown => "shutdown",
        }
    }
}

const REASONS: usize = EndReason::ALL.len();
const FAILURES: usize = Failure::ALL.len();

/// Defines [`StreamCounters`]. Its array `ended` has the order of [`EndReason::ALL`], `tls_failed` that of
/// [`Failure::ALL`].
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of connections of STUN and TURN, of one worker or the sum over several. Those that say "now" go up
        /// and down.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct StreamCounters {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Connections that ended, by reason.
            pub(crate) ended: [u64; REASONS],
            /// TLS connections that failed, by failure.
            pub(crate) tls_failed: [u64; FAILURES],
        }

        crate::words::words!(StreamCounters { $($name,)+ ended, tls_failed });

        impl AddAssign<&StreamCounters> for StreamCounters {
            fn add_assign(&mut self, other: &StreamCounters) {
                $(self.$name += other.$name;)+
                add(&mut self.ended, &other.ended);
                add(&mut self.tls_failed, &other.tls_failed);
            }
        }
    };
}

counters! {
    /// Connections over TCP without TLS that are open now. A TLS connection counts here until its first bytes arrive.
    tcp_now,
    /// Connections over TLS that are open now, handshakes included.
    tls_now,
    /// Connections that are open now and have not had an allocation.
    unproven_now,
    /// Bytes that wait to be written now.
    queued_bytes_now,
    /// Connections accepted.
    accepted,
    /// Connections refused because their source has too many.
    refused_source,
    /// Connections refused because of the limit on all connections or on file descriptors. No other connection could be
    /// evicted.
    refused_limit,
    /// TLS 1.2 handshakes completed.
    handshakes_tls12,
    /// TLS 1.3 handshakes completed.
    handshakes_tls13,
    /// Of the completed handshakes, those that resumed a session.
    handshakes_resumed,
    /// Times that a TLS handshake waited for the next wake-up, because handshakes had used their time in this one.
    handshakes_deferred,
    /// Messages received.
    messages,
    /// Bytes received, TLS included.
    received_bytes,
    /// Bytes written, TLS included.
    written_bytes,
    /// Write calls.
    writes,
    /// Relayed messages dropped because they waited too long.
    dropped_age,
    /// Relayed messages dropped because too many bytes waited.
    dropped_bytes,
    /// Messages dropped because the connection had ended.
    dropped_gone,
}

fn add<const N: usize>(sum: &mut [u64; N], more: &[u64; N]) {
    sum.iter_mut()
        .zip(more)
        .for_each(|(sum, more)| *sum += more);
}

impl StreamCounters {
    /// How many connections ended for this reason.
    #[must_use]
    pub fn ended(&self, reason: EndReason) -> u64 {
        index_of(EndReason::ALL, &reason).map_or(0, |at| self.ended[at])
    }

    /// How many TLS connections failed with this failure.
    #[must_use]
    pub fn tls_failed(&self, failure: Failure) -> u64 {
        index_of(Failure::ALL, &failure).map_or(0, |at| self.tls_failed[at])
    }

    pub(crate) fn count_end(&mut self, reason: EndReason) {
        if let Some(at) = index_of(EndReason::ALL, &reason) {
            self.ended[at] += 1;
        }
    }

    pub(crate) fn count_tls_failure(&mut self, failure: Failure) {
        if let Some(at) = index_of(Failure::ALL, &failure) {
            self.tls_failed[at] += 1;
        }
    }
}

fn index_of<T: PartialEq>(all: &[T], one: &T) -> Option<usize> {
    all.iter().position(|other| other == one)
}
