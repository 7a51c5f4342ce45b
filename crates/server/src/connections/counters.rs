//! What one worker has seen of connections. Plain numbers, written by one thread.

use std::ops::AddAssign;
use streams::tls::Failure;

/// Why a connection of STUN or TURN ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EndReason {
    /// The client closed it, or the network broke it.
    Client,
    /// Nothing came for too long, and there was no allocation.
    Idle,
    /// The first message, or one that had begun, was not complete in time.
    MessageDeadline,
    /// The bytes are neither STUN nor ChannelData.
    NotStun,
    /// HTTP, SIP or another text protocol was spoken.
    Text,
    /// TLS was begun on a listener for plain TCP.
    TlsOnTcp,
    /// STUN without TLS was begun on a listener for TLS.
    TcpOnTls,
    /// The PROXY header was missing or malformed.
    ProxyHeader,
    /// The TLS connection failed.
    Tls,
    /// The client did not read its responses.
    Unread,
    /// It was unproven, and made room for another.
    Evicted,
    /// The server ends.
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
        EndReason::Evicted,
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
            EndReason::Evicted => "evicted",
            EndReason::Shutdown => "shutdown",
        }
    }
}

const REASONS: usize = EndReason::ALL.len();
const FAILURES: usize = Failure::ALL.len();

/// What became of connections that were accepted, in the order of [`StreamCounters::ended`] and
/// [`StreamCounters::tls_failed`]: [`EndReason::ALL`] and [`Failure::ALL`].
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of connections of STUN and TURN, of one worker or the sum over several. Those that say "now" go up and down.
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
    /// Connections over TCP without TLS that are open now.
    tcp_now,
    /// Connections over TLS that are open now, handshakes included.
    tls_now,
    /// Connections without an allocation so far that are open now.
    unproven_now,
    /// Bytes that wait to be written now.
    queued_bytes_now,
    /// Connections accepted.
    accepted,
    /// Connections refused because their source has too many.
    refused_source,
    /// Connections refused because there are too many, or descriptors have run out, and none could be evicted.
    refused_limit,
    /// TLS 1.2 handshakes completed.
    handshakes_tls12,
    /// TLS 1.3 handshakes completed.
    handshakes_tls13,
    /// Of the completed handshakes, those that resumed a session.
    handshakes_resumed,
    /// Times that TLS handshakes were put off to the next wake-up, because they had taken their share of this one.
    handshakes_deferred,
    /// Messages received.
    messages,
    /// Bytes received, TLS included.
    received_bytes,
    /// Bytes written, TLS included.
    written_bytes,
    /// Calls that wrote.
    writes,
    /// Relayed messages dropped because they had waited for too long.
    dropped_age,
    /// Relayed messages dropped because too many bytes waited.
    dropped_bytes,
    /// Messages for connections that were gone.
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

    /// How many TLS connections failed so.
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
