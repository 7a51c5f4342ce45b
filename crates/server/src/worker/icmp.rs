//! ICMP errors about what relays sent to peers: clients learn of them (RFC 8656 §11.5).

use super::Worker;
use io::IcmpReport;
use turn::RelayKey;
use turn::server::IcmpError;

/// Errors read from one relay per wake-up, so that a peer that refuses everything costs others little. What is left is
/// reported again.
const MAX_ERRORS: usize = 16;

impl Worker {
    /// The same of a shared port: each error is for the relay that has claimed the peer.
    pub(super) fn read_icmp_of_shared(&mut self, number: u16) {
        for _ in 0..MAX_ERRORS {
            let Some(port) = self.sockets.shared.get(usize::from(number)) else {
                return;
            };
            match port.listener.socket.next_icmp_error() {
                Ok(Some(report)) => {
                    let relay = self.core.engine.relay_for(number, report.to);
                    self.report_icmp_error(relay, report);
                }
                Ok(None) => return,
                Err(_) => {
                    self.core.counters.receive_errors += 1;
                    return;
                }
            }
        }
    }

    /// Fetches what waits in the error queue of a relay's socket, a bounded amount of it.
    pub(super) fn read_icmp(&mut self, key: RelayKey) {
        for _ in 0..MAX_ERRORS {
            let Some(relay) = self.sockets.relays.get(key) else {
                return;
            };
            let Some(socket) = self.sockets.socket_of(relay) else {
                return;
            };
            match socket.next_icmp_error() {
                Ok(Some(report)) => self.report_icmp_error(Some(key), report),
                Ok(None) => return,
                Err(_) => {
                    self.core.counters.receive_errors += 1;
                    return;
                }
            }
        }
    }

    /// Hands an error to the engine, if there is still a relay that it is for.
    fn report_icmp_error(&mut self, relay: Option<RelayKey>, report: IcmpReport) {
        self.core.counters.icmp_errors += 1;
        let IcmpReport {
            to,
            kind,
            code,
            mtu,
            ..
        } = report;
        let error = IcmpError { kind, code, mtu };
        if let Some(relay) = relay {
            // What is not for the client is counted by the engine, with its reason.
            let _ = self
                .core
                .engine
                .handle_icmp(self.core.now, relay, to, error);
            self.drain_and_update_sockets();
        }
    }
}
