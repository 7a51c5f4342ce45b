//! What one worker has counted, and how things are now.

use super::Endpoint;
use crate::sip::counters::{SipCounters, method_index};
use sip::engine::DropReason;

impl Endpoint {
    /// What was counted, and how things are now.
    pub(in crate::sip) fn counters(&self) -> SipCounters {
        let stats = self.engine.stats();
        let mut counters = self.counters;
        self.requests.count(&mut counters);
        let rows = [
            (&mut counters.responses_sent, &stats.responses_sent),
            (&mut counters.responses_received, &stats.responses_received),
        ];
        for (sum, row) in rows {
            sum.iter_mut().zip(row).for_each(|(sum, one)| *sum += one);
        }
        counters.requests[method_index(b"ACK")] += stats.acks;
        self.tu.count(&mut counters);
        counters.screened = self.screen.counts;
        // One worker says it for all.
        if self.is_first {
            counters.banned = self.screen.bans.count(self.now.unix_s);
        }
        counters.shed_transactions = stats.without_room;
        counters.request_retransmissions = stats.retransmissions_received;
        counters.response_retransmissions = stats.retransmissions_sent;
        counters.transactions = (stats.servers + stats.clients) as u64;
        counters.transactions_cut_short = stats.cut_short;
        counters.timers = stats.timers as u64;
        counters.state_bytes = stats.message_bytes as u64;
        counters.expected_wait_ns = self.engine.expected_wait().as_nanos() as u64;
        counters.service_time_ns = self.engine.service_time().as_nanos() as u64;
        counters.overload_state = self.engine.overload_state().into();
        counters.shed_refused = stats.shed.refused;
        counters.shed_dropped = stats.shed.dropped;
        (counters.shed_by_kernel, counters.overflow) = self.filter.counts();
        counters.shed_by_filter = stats.shed.filtered;
        counters.shed_by_user = stats.shed.from_tu;
        counters.shed_deferred = stats.shed.deferred;
        counters.over_limit = stats.shed.over_limit;
        for (reason, count) in DropReason::ALL.iter().zip(stats.dropped) {
            match reason {
                DropReason::NotSip
                | DropReason::NoReturnPath
                | DropReason::BadAck
                | DropReason::BadResponse => {
                    counters.malformed += count;
                }
                DropReason::Shed => {}
                DropReason::Amplification => counters.amplification += count,
                _ => counters.stray_responses += count,
            }
        }
        counters
    }
}
