//! The place of the admission filter: in the kernel, before the sockets' queues, or in the worker, before it parses a
//! datagram.
//!
//! In the kernel ([`bpf::admission_filter`]) a dropped datagram costs a few hundred nanoseconds. It is never queued,
//! and uses none of the worker's time. The worker writes thresholds when they change, with the time until which they
//! are valid. So a filter whose worker hangs soon drops nothing. Without CAP_BPF the worker reads every datagram first.

use crate::privileges::works_without_capabilities;
use crate::verifier;
use bpf::admission_filter::{AdmissionFilter as Program, Rules};
use io::UdpSocket;
use sip::Now;
use sip::congestion::{PLACES, WeightedSource};
use sip::engine::Engine;
use std::time::Duration;

/// How long the thresholds in the kernel are valid. The worker writes them again every 50 ms. If it misses twenty
/// writes, it hangs.
const THRESHOLDS_LIFETIME: Duration = Duration::from_secs(1);

const _: () = assert!(PLACES == bpf::admission_filter::PLACES);

/// The filter of one worker's sockets.
#[derive(Debug, Default)]
pub(super) struct AdmissionFilter {
    program: Option<Program>,
    /// What the kernel got last.
    version: u64,
    generation: bool,
    is_active: bool,
    keys: [u64; 2],
    peers: Vec<WeightedSource>,
    counts: Vec<u32>,
    /// Dropped by the program.
    dropped: u64,
    /// Dropped before the sockets' queues in all, as the sockets say: by the program, and for want of room.
    lost: u64,
    /// The most that were known to be dropped for want of room.
    overflow: u64,
}

impl AdmissionFilter {
    /// Puts the program before these sockets' queues if that can be had.
    pub(super) fn new<'a>(sockets: impl Iterator<Item = &'a UdpSocket>) -> AdmissionFilter {
        let attached = Program::load().and_then(|mut program| {
            for socket in sockets {
                program.attach(socket)?;
            }
            Ok(program)
        });
        let program = attached
            .inspect_err(|error| {
                verifier::log_at_debug(error);
                tracing::debug!(
                    reason = %error,
                    "in an overload, SIP requests are read before they are dropped; \
                     grant CAP_BPF to have the kernel do that, for a tenth of the cost"
                );
            })
            .ok();
        AdmissionFilter {
            program,
            counts: vec![0; PLACES],
            ..AdmissionFilter::default()
        }
    }

    /// Whether the maps of the kernel can be written without any capability.
    pub(super) fn can_write_unprivileged(&mut self) -> bool {
        let Some(program) = &mut self.program else {
            return true;
        };
        works_without_capabilities(|| program.set(None).is_ok() && program.dropped().is_ok())
    }

    /// Whether datagrams have to be looked at here.
    pub(super) fn is_here(&self) -> bool {
        self.program.is_none()
    }

    /// Reports what the kernel has counted, if shares are set next. To be called before the engine gets the time or a
    /// backlog.
    pub(super) fn report(&mut self, now: Now, engine: &mut Engine) {
        let Some(program) = self.program.as_mut().filter(|_| self.is_active) else {
            return;
        };
        if engine.filter_timeout().is_some_and(|at| at <= now.mono) {
            let remembered = program.count(|place, count| self.counts[place] = count);
            let counts = self.counts.iter().copied();
            engine.filter_mut().report(counts, remembered);
            self.count_dropped();
        }
    }

    fn count_dropped(&mut self) {
        let dropped = self
            .program
            .as_mut()
            .and_then(|program| program.dropped().ok());
        self.dropped = dropped.unwrap_or(self.dropped);
        let overflow = self.lost.saturating_sub(self.dropped);
        self.overflow = self.overflow.max(overflow);
    }

    /// Writes the current rules to the kernel if their version has changed.
    pub(super) fn write_rules(&mut self, now: Now, engine: &Engine) {
        let filter = engine.filter();
        let Some(program) = &mut self.program else {
            return;
        };
        if filter.version() == self.version {
            return;
        }
        self.version = filter.version();
        let keys = std::mem::replace(&mut self.keys, filter.keys());
        // It may have ended and begun again since, with other keys.
        let begins = filter.is_active() && (!self.is_active || keys != filter.keys());
        if begins {
            // Nothing of an earlier overload counts.
            program.age();
            program.age();
            program.count(|_, _| ());
        }
        if filter.is_active() && engine.peers() != self.peers {
            self.peers = engine.peers().to_vec();
            // What cannot be written leaves a peer among the other sources.
            let _ = program.set_peers(self.peers.iter().map(WeightedSource::network));
        }
        if filter.generation() != std::mem::replace(&mut self.generation, filter.generation())
            && !begins
        {
            program.age();
        }
        let rules = filter.is_active().then(|| Rules {
            keys: filter.keys(),
            thresholds: filter.thresholds(),
            retransmissions: filter.retransmissions_left(),
            until_ns: now.mono.plus(THRESHOLDS_LIFETIME).0,
        });
        // What cannot be written ends by itself.
        let _ = program.set(rules.as_ref());
        self.is_active = rules.is_some();
        if !self.is_active {
            self.count_dropped();
        }
    }

    /// The sockets report `more` further dropped datagrams. Returns whether that means that there is no room.
    pub(super) fn lost(&mut self, more: u64) -> bool {
        self.lost += more;
        // While the program drops, the socket counts both, and its own count is newer.
        if self.is_active {
            return false;
        }
        let overflow = self.lost.saturating_sub(self.dropped);
        let has_grown = overflow > self.overflow;
        self.overflow = self.overflow.max(overflow);
        has_grown
    }

    /// Datagrams that were dropped by the program, and those that were dropped for want of room.
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.dropped, self.overflow)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sip::Mono;
    use sip::congestion::{Backlog, Config};

    /// An overload begins, because the socket has lost a datagram. `ms` is the time from now.
    fn overload(engine: &mut Engine, ms: u64) -> Now {
        let now = Now {
            mono: Mono(io::clock::monotonic_ns() + ms * 1_000_000),
            unix_s: 1_800_000_000,
        };
        let backlog = Backlog {
            lost: 1,
            ..Backlog::default()
        };
        engine.observe_backlog(now, backlog);
        assert!(engine.filter().is_active());
        now
    }

    /// Requires CAP_BPF, like the filter in the kernel.
    #[test]
    fn an_overload_that_begins_anew_forgets_what_the_kernel_has_counted() {
        let socket = UdpSocket::bind(([127, 0, 0, 1], 0).into(), &io::UdpOptions::default())
            .expect("loopback has free ports");
        let mut filter = AdmissionFilter::new(std::iter::once(&socket));
        assert!(!filter.is_here(), "the test requires CAP_BPF");
        let mut engine = Engine::new(sip::engine::Config::new(0, sip::HashKey::new([7; 16])), 7);
        let now = overload(&mut engine, 0);
        filter.write_rules(now, &engine);
        let client = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback has free ports");
        let send = || {
            let request = b"OPTIONS sip:a@192.0.2.1 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.2;branch=z9hG4bK1\r\n\
                From: <sip:b@192.0.2.2>;tag=1\r\nTo: <sip:a@192.0.2.1>\r\nCall-ID: 1\r\nCSeq: 1 OPTIONS\r\n\r\n";
            client.send_to(request, socket.local_addr()).expect("sent");
        };
        let count = |filter: &mut AdmissionFilter| {
            let mut sum = 0;
            let program = filter.program.as_mut().expect("is_here is false");
            program.count(|_, count| sum += count);
            sum
        };
        send();
        assert_eq!(count(&mut filter), 1);
        let mut counted = |filter: &mut AdmissionFilter, ms| {
            send();
            // The filter ends and begins between two calls of `write_rules`.
            engine.configure_congestion(Config {
                peers: vec![WeightedSource {
                    address: [192, 0, 2, ms as u8].into(),
                    prefix: 32,
                    weight: 1,
                }],
                ..Config::default()
            });
            assert!(!engine.filter().is_active());
            let now = overload(&mut engine, ms);
            filter.write_rules(now, &engine);
            count(filter)
        };
        assert_eq!(counted(&mut filter, 100), 0);
        assert_eq!(counted(&mut filter, 200), 0);
    }
}
