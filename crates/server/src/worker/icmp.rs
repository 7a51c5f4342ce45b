//! ICMP errors about what relays sent to peers: clients learn of them (RFC 8656 §11.5).

use super::Worker;
use io::IcmpReport;
use turn::RelayKey;
use turn::server::IcmpError;

/// Errors read from one relay per wake-up, so that a peer that refuses everything costs others little. What is left is reported
/// again.
const ERRORS: usize = 16;

impl Worker {
    /// Fetches what waits in the error queue of a relay's socket, a bounded amount of it.
    pub(super) fn read_icmp(&mut self, key: RelayKey) {
        for _ in 0..ERRORS {
            let Some(relay) = self.sockets.relays.get(key) else {
                return;
            };
            let report = match relay.socket.next_icmp_error() {
                Ok(Some(report)) => report,
                Ok(None) => return,
                Err(_) => {
                    self.core.counters.receive_errors += 1;
                    return;
                }
            };
            self.core.counters.icmp_errors += 1;
            let IcmpReport {
                to,
                kind,
                code,
                mtu,
                ..
            } = report;
            let error = IcmpError { kind, code, mtu };
            // What is not for the client is counted by the engine, with its reason.
            let _ = self.core.engine.handle_icmp(self.core.now, key, to, error);
            self.settle();
        }
    }
}
