//! What one worker has seen and done, beyond what its engine counts. Plain numbers, written by one thread; the sum over
//! all workers is made on request.

pub use io::BatchSizes;
use std::ops::AddAssign;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Counters of one worker, or the sum over several.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters {
            $($(#[doc = $doc])+ pub $name: u64,)+
            /// Datagrams received per wake-up that received any.
            pub batches: BatchSizes,
        }

        impl Counters {
            /// Every counter with its name in metrics, in snake case.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($name), self.$name),)+].into_iter()
            }
        }

        crate::words::words!(Counters { $($name,)+ batches });

        impl AddAssign<&Counters> for Counters {
            fn add_assign(&mut self, other: &Counters) {
                $(self.$name += other.$name;)+
                self.batches += &other.batches;
            }
        }
    };
}

counters! {
    /// Times the worker woke up.
    wake_ups,
    /// Datagrams from clients.
    client_datagrams,
    /// Bytes from clients, headers of UDP and IP excluded.
    client_bytes,
    /// Datagrams from peers.
    peer_datagrams,
    /// Bytes from peers, headers of UDP and IP excluded.
    peer_bytes,
    /// Datagrams discarded because they were longer than any buffer.
    truncated,
    /// Datagrams from clients that the kernel discarded because a listener's receive buffer was full (SO_RXQ_OVFL).
    listener_overflow,
    /// Datagrams from peers that the kernel discarded because a relay's receive buffer was full (SO_RXQ_OVFL).
    relay_overflow,
    /// Receive calls that failed.
    receive_errors,
    /// ICMP errors about what relays sent to peers.
    icmp_errors,
    /// Readiness events of relays that are closed by now.
    stale_events,
    /// Datagrams discarded because the relay's socket they were to leave by is closed by now.
    relay_gone,
    /// Datagrams handed from one of this worker's relays to another of its relays.
    handed_over_here,
    /// Datagrams handed to a relay of another worker.
    handed_over_away,
    /// Datagrams discarded because they were for a relay of ours that is not live.
    relay_not_live,
    /// Datagrams discarded because another worker's mailbox, or this worker's store of batches, was exhausted.
    mailbox_full,
    /// Relay sockets opened.
    relays_opened,
    /// Relay sockets closed.
    relays_closed,
    /// Relays not opened because no port was left: the client got 508.
    no_port,
    /// Relays not opened because file descriptors or kernel memory ran out: the client got 508.
    no_descriptor,
    /// Relays not opened for another reason: the client got 508.
    open_failed,
    /// Ports passed over because another process holds them.
    foreign_ports,
    /// Reserved relays received from another worker.
    relays_received,
    /// Reserved relays given to another worker.
    relays_given,
    /// Times that something was due to expire.
    expiries,
    /// How much later than due that was noticed, added up, in nanoseconds.
    expiry_lateness_ns,
    /// Datagrams from peers to a shared relay port that no client has claimed the peer on.
    peer_unclaimed,
    /// Requests handed to the worker that was to have their allocation.
    requests_given,
    /// Clients with a ticket of another worker (RFC 8016) that could not be moved there. The table of steered flows is
    /// full, or has an entry with another worker.
    clients_not_moved,
    /// Requests received from another worker, and handled here.
    requests_taken,
    /// Bytes of data connections that the kernel has moved from one connection to the other (RFC 6062).
    stream_bytes_spliced,
    /// Bytes of data connections that were copied: over TLS, or when pipes had run out.
    stream_bytes_copied,
    /// Channels entered into the table of flows that the kernel relays.
    offload_entered,
    /// Channels left to user space because a table of the kernel's relay was full.
    offload_full,
    /// Channels left to user space because their addresses mean something else on each link, or are not known.
    offload_unfit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_cover_every_counter() {
        let mut one = Counters {
            wake_ups: 1,
            relays_given: 2,
            ..Counters::default()
        };
        one.batches.count(1);
        let mut sum = one;
        sum += &one;
        assert_eq!(
            (sum.wake_ups, sum.relays_given, sum.batches.buckets[0]),
            (2, 4, 2)
        );
        assert_eq!(sum.iter().map(|(_, value)| value).sum::<u64>(), 6);
    }
}
