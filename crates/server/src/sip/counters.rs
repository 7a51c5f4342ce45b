//! What one worker has seen and done of SIP. Plain numbers, written by one thread.

use super::calls::CALL_REFUSALS;
use super::rtpengine::MEDIA_OUTCOMES;
use super::screen::SCREENED;
use std::ops::AddAssign;

/// Methods with a count of their own, in the order of [`SipCounters::requests`]; the last stands for all others.
pub const SIP_METHODS: [&str; 7] = [
    "REGISTER", "INVITE", "ACK", "BYE", "CANCEL", "OPTIONS", "other",
];

/// Classes of responses, in the order of [`SipCounters::responses_sent`].
pub const SIP_CLASSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "6xx"];

/// What can become of the credentials of a request that needs them, in the order of [`SipCounters::digest`].
pub const DIGEST_OUTCOMES: [&str; 7] = [
    "accepted",
    "missing",
    "stale",
    "denied",
    "malformed",
    "slowed",
    "unavailable",
];

/// Results of DNS queries, in the order of [`SipCounters::dns_queries`]: records, no records, an error, no response
/// in time. The last one counts queries that were not sent because too many were open.
pub const DNS_OUTCOMES: [&str; 5] = ["answered", "nothing", "failed", "timed_out", "refused"];

/// The place of a method in [`SIP_METHODS`].
pub(crate) fn method_index(method: &[u8]) -> usize {
    let other = SIP_METHODS.len() - 1;
    SIP_METHODS[..other]
        .iter()
        .position(|name| name.as_bytes() == method)
        .unwrap_or(other)
}

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident: $kind:ty,)+) => {
        /// Counters of one worker, or the sum over several. All but those that say "now" only ever grow.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct SipCounters {
            $($(#[doc = $doc])+ pub $name: $kind,)+
        }

        crate::words::words!(SipCounters { $($name),+ });

        impl AddAssign<&SipCounters> for SipCounters {
            fn add_assign(&mut self, other: &SipCounters) {
                $(self.$name.add(&other.$name);)+
            }
        }
    };
}

/// Adds numbers and rows of numbers alike.
trait Add {
    fn add(&mut self, other: &Self);
}

impl Add for u64 {
    fn add(&mut self, other: &u64) {
        *self += other;
    }
}

impl<const N: usize> Add for [u64; N] {
    fn add(&mut self, other: &[u64; N]) {
        self.iter_mut()
            .zip(other)
            .for_each(|(sum, one)| *sum += one);
    }
}

counters! {
    /// Messages received over UDP.
    udp_messages: u64,
    /// Messages received over connections.
    tcp_messages: u64,
    /// Bytes of messages received.
    bytes_received: u64,
    /// Bytes of messages sent.
    bytes_sent: u64,
    /// Requests that were fit to be dealt with, by method.
    requests: [u64; SIP_METHODS.len()],
    /// Responses received, by class.
    responses_received: [u64; SIP_CLASSES.len()],
    /// Responses sent, by class, repetitions included.
    responses_sent: [u64; SIP_CLASSES.len()],
    /// Retransmitted requests. They get the same response again, or none.
    request_retransmissions: u64,
    /// Responses that were sent again.
    response_retransmissions: u64,
    /// Transactions that exist now.
    transactions: u64,
    /// Transactions that were finished, and ended before their time to make room for new ones.
    transactions_cut_short: u64,
    /// Timers that are set now.
    timers: u64,
    /// Bytes of state that transactions take now.
    state_bytes: u64,
    /// How long a message that arrives now is expected to wait, in nanoseconds.
    expected_wait_ns: u64,
    /// How long an accepted message takes on average now, in nanoseconds.
    service_time_ns: u64,
    /// What admission control does now: 0 accepts all, 1 refuses some new work, 2 refuses all of it and some that was
    /// begun.
    overload_state: u64,
    /// Requests refused with 503 because of overload, before they were parsed.
    shed_refused: u64,
    /// Requests dropped after they were read, because 503s had used their share of the time.
    shed_dropped: u64,
    /// Requests that the admission filter dropped in the kernel, before they were queued.
    shed_by_kernel: u64,
    /// Requests that the admission filter dropped in the worker, as soon as they were read.
    shed_by_filter: u64,
    /// Requests that the transaction user refused because of overload.
    shed_by_user: u64,
    /// Retransmissions put off because of overload.
    shed_deferred: u64,
    /// Requests refused or dropped because their source was at its limit. [`SipCounters::shed_refused`] and
    /// [`SipCounters::shed_dropped`] also count them.
    over_limit: u64,
    /// Registration bindings that exist now.
    bindings: u64,
    /// Attempts to write or synchronize the log of bindings that failed.
    store_failures: u64,
    /// Batches of changed bindings that were not written to the log, because it failed for too long.
    store_lost: u64,
    /// Bytes of the log of bindings now.
    store_bytes: u64,
    /// Requests that the proxy has forwarded, ACKs not among them.
    forwarded: u64,
    /// Copies of them, to each target one.
    forwarded_branches: u64,
    /// Requests that the proxy has refused.
    forwarding_refused: u64,
    /// Requests whose sender the proxy has asked for credentials (407).
    forwarding_challenged: u64,
    /// Requests that the proxy is at now: not answered yet, or answered INVITEs whose transaction has not ended.
    forwarding: u64,
    /// Offers and answers that the media relay was asked to rewrite, by outcome: [`MEDIA_OUTCOMES`].
    media_requests: [u64; MEDIA_OUTCOMES.len()],
    /// Push notifications for phones whose app is suspended, handed to the hook.
    pushes: u64,
    /// Push notifications that the hook did not accept.
    pushes_dropped: u64,
    /// Calls of users that count now, those that ring not among them.
    calls: u64,
    /// Calls that have come to their longest time, or whose session has expired, without a BYE.
    calls_expired: u64,
    /// Requests of users refused because of a limit of calls: [`CALL_REFUSALS`].
    calls_refused: [u64; CALL_REFUSALS.len()],
    /// Requests refused with 503 because there were too many transactions.
    shed_transactions: u64,
    /// Requests answered with an error because they were malformed or asked for what is not there.
    refused: u64,
    /// HEP packets that the kernel accepted.
    hep_sent: u64,
    /// HEP packets dropped: the collector or the path was too slow, or there is no route to it.
    hep_dropped: u64,
    /// Messages dropped: not SIP, or not fit to be answered.
    malformed: u64,
    /// Messages dropped: responses that belong to no transaction.
    stray_responses: u64,
    /// Messages dropped: ACKs that belong to no transaction.
    stray_acks: u64,
    /// Messages and connections dropped unseen, by reason: [`SCREENED`].
    screened: [u64; SCREENED.len()],
    /// Sources that are banned now.
    banned: u64,
    /// Requests over UDP dropped: any response would be more than 2.5 times as large, and the source may be forged.
    amplification: u64,
    /// Datagrams that the kernel discarded because a listener's receive buffer was full (SO_RXQ_OVFL).
    overflow: u64,
    /// Receive calls that failed.
    receive_errors: u64,
    /// Keep-alives answered.
    pings: u64,
    /// STUN Binding requests answered.
    stun_answers: u64,
    /// Datagrams dropped: STUN that is no Binding request.
    stun_dropped: u64,
    /// Connections that are open now.
    connections: u64,
    /// Connections accepted.
    connections_accepted: u64,
    /// Connections made to a peer, because the connection of a request was closed.
    connections_made: u64,
    /// Connections closed at once because there were too many.
    connections_refused: u64,
    /// TLS handshakes completed.
    tls_handshakes: u64,
    /// TLS connections that failed, most of them in the handshake.
    tls_failed: u64,
    /// Connections over TLS that this server has opened, and whose handshake failed.
    next_hop_tls_failed: u64,
    /// Bindings removed because their phones have registered at other nodes of the cluster.
    bindings_moved: u64,
    /// TLS connections between nodes of the cluster on which both have accepted the certificate of the other one.
    node_tls_handshakes: u64,
    /// TLS connections as a node that this one refused: no published fingerprint is that of the other side's
    /// certificate.
    node_tls_refused: u64,
    /// TLS connections to other nodes whose alert refused the certificate of this one.
    node_tls_refused_by_other: u64,
    /// TLS connections between nodes that failed for another reason.
    node_tls_failed: u64,
    /// Times that a TLS handshake was put off to the next wake-up, because handshakes had taken their share of this
    /// one.
    tls_deferred: u64,
    /// WebSockets opened.
    websockets: u64,
    /// WebSocket handshakes refused.
    websockets_refused: u64,
    /// WebSockets closed because the client broke the protocol.
    websockets_failed: u64,
    /// Connections closed: by the other side.
    closed_by_peer: u64,
    /// Connections closed: their source is denied or banned.
    closed_denied: u64,
    /// Connections closed: nothing arrived within the idle timeout.
    closed_idle: u64,
    /// Connections closed: a message was not complete in time.
    closed_slow: u64,
    /// Connections closed: the received bytes were not a SIP message, or the message was too large.
    closed_malformed: u64,
    /// Connections closed: the other side did not read or acknowledge what was sent to it.
    closed_unread: u64,
    /// Connections closed: the network reported that the other side is unreachable.
    closed_unreachable: u64,
    /// Connections closed: this machine has ended them.
    closed_aborted: u64,
    /// Connections closed to make room for one of another source.
    closed_evicted: u64,
    /// Connections closed because the server was about to end.
    closed_drained: u64,
    /// Connections closed because the client that a load balancer named had too many.
    closed_source_limit: u64,
    /// Responses discarded because their connection is closed.
    unsent: u64,
    /// Messages handed to the worker that their dialog or transaction belongs to.
    handed_over: u64,
    /// Responses passed back to the worker that has the connection on which they are sent.
    handed_back: u64,
    /// CANCELs handed to another worker, because this one does not have their transaction.
    cancels_passed_on: u64,
    /// 2xx for INVITEs that were not acknowledged in time.
    unacknowledged: u64,
    /// Requests of this server's own.
    own_requests: u64,
    /// Those that were tried with another server, once for each.
    own_failed_over: u64,
    /// Those that got no response.
    own_failed: u64,
    /// Those that were not begun, because too many are in progress or their URI cannot be used.
    own_refused: u64,
    /// Those that were not sent, because their target is not allowed.
    own_forbidden: u64,
    /// Responses that went to another server of their client, because the source of the request was unreachable.
    redirected: u64,
    /// Requests that need credentials, by what became of them: [`DIGEST_OUTCOMES`].
    digest: [u64; DIGEST_OUTCOMES.len()],
    /// DNS queries, by outcome: [`DNS_OUTCOMES`].
    dns_queries: [u64; DNS_OUTCOMES.len()],
    /// How long they took, all together, in nanoseconds.
    dns_time_ns: u64,
    /// Questions that are open now.
    dns_open: u64,
    /// Answers that are kept now.
    dns_cached: u64,
    /// Messages taken over from another worker.
    taken_over: u64,
    /// Messages discarded because another worker's mailbox was full.
    mailbox_full: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_their_places_and_case_matters() {
        assert_eq!(method_index(b"REGISTER"), 0);
        assert_eq!(method_index(b"OPTIONS"), 5);
        assert_eq!(method_index(b"options"), 6);
        assert_eq!(method_index(b"other"), 6);
    }

    #[test]
    fn sums_cover_rows() {
        let mut one = SipCounters::default();
        one.requests[1] = 3;
        one.pings = 1;
        let mut sum = one;
        sum += &one;
        assert_eq!((sum.requests[1], sum.pings), (6, 2));
    }
}
