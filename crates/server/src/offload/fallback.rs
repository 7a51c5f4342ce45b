//! Falling back from XDP at run time: to tc, or to user space where tc cannot be had or is not wanted.

use super::OffloadMode;
use super::attach::InterfaceAttachment;
use super::choice::{Obstacle, OffloadMethod};
use super::thread::Thread;
use bpf::relay::PathTotals;
use std::collections::HashMap;

/// Unfinished checksums per second that cause a fallback, at least: one datagram in 65,536 looks like one by chance.
const MANY_PARTIAL: u64 = 100;

/// A fallback also requires more than one unfinished checksum per this many datagrams that the program relays.
const PARTIAL_ONE_IN: u64 = 100;

/// Seconds in a row in which packets come by an unknown interface. A device that joins a bond is known within
/// milliseconds.
const UNKNOWN_SECONDS: u32 = 3;

/// What is to happen when an interface goes from XDP to tc: sockets must not join datagrams any more. Returns whether
/// all workers are notified; if not, it is called again.
pub(crate) type OnFallback = Box<dyn FnMut() -> bool + Send>;

/// What the XDP program had counted a second ago, and the callback for a fallback.
pub(super) struct Fallback {
    /// Unfinished checksums, by interface.
    partial: HashMap<u32, u64>,
    relayed: u64,
    unknown: u64,
    /// Seconds in a row in which `unknown` has grown.
    unknown_seconds: u32,
    on_fallback: OnFallback,
    /// Some worker is not notified yet.
    must_notify: bool,
}

impl Fallback {
    pub(super) fn new(on_fallback: OnFallback) -> Fallback {
        Fallback {
            partial: HashMap::new(),
            relayed: 0,
            unknown: 0,
            unknown_seconds: 0,
            on_fallback,
            must_notify: false,
        }
    }

    /// Notifies workers of a fallback. Those whose mailbox is full get it at another call.
    pub(super) fn notify_workers(&mut self) {
        self.must_notify = self.must_notify && !(self.on_fallback)();
    }

    /// How many packets of a second had unfinished checksums, if that is no chance.
    fn partial(&mut self, interface: u32, count: u64, relayed: u64) -> Option<u64> {
        let before = self.partial.insert(interface, count).unwrap_or(0);
        let partial = count.saturating_sub(before);
        (partial >= MANY_PARTIAL && partial > relayed / PARTIAL_ONE_IN).then_some(partial)
    }

    /// Whether packets have come by an unknown interface for seconds.
    fn persists_unknown_interface(&mut self, unknown: u64) -> bool {
        let grown = unknown > std::mem::replace(&mut self.unknown, unknown);
        self.unknown_seconds = if grown { self.unknown_seconds + 1 } else { 0 };
        self.unknown_seconds >= UNKNOWN_SECONDS
    }
}

impl Thread {
    /// Takes XDP from an interface where it cannot work.
    pub(super) fn watch_xdp(&mut self) {
        let totals = self.relay.totals().unwrap_or_default().xdp;
        self.watch_checksums(&totals);
        if self
            .fallback
            .persists_unknown_interface(totals.pass_interface)
        {
            for index in self.suspects() {
                self.fall_back(index, Obstacle::UnknownInterface);
            }
        }
    }

    /// Datagrams arrive with checksums that were left to the hardware, far more than by chance.
    fn watch_checksums(&mut self, totals: &PathTotals) {
        let relayed = totals.to_peer + totals.to_client + totals.relay_to_relay + totals.binding;
        let passed = relayed.saturating_sub(std::mem::replace(&mut self.fallback.relayed, relayed));
        let over_xdp: Vec<(u32, Vec<u32>)> = self.at(OffloadMethod::Xdp).map(indices).collect();
        for (index, lower) in over_xdp {
            let all = lower.iter().chain([&index]);
            let count = all.map(|one| self.relay.partial_checksums(*one)).sum();
            let Some(packets) = self.fallback.partial(index, count, passed) else {
                continue;
            };
            if self.mode == OffloadMode::Xdp {
                tracing::warn!(
                    index,
                    packets,
                    "datagrams without a complete checksum: user space relays them, because XDP cannot; tc can"
                );
            } else {
                self.fall_back(index, Obstacle::PartialChecksums);
            }
        }
    }

    /// The interfaces whose packets may come by another: those with lower devices, else all.
    fn suspects(&self) -> Vec<u32> {
        let all: Vec<(u32, Vec<u32>)> = self.at(OffloadMethod::Xdp).map(indices).collect();
        let any_lower = all.iter().any(|(_, lower)| !lower.is_empty());
        let suspected = |(_, lower): &&(u32, Vec<u32>)| !any_lower || !lower.is_empty();
        all.iter()
            .filter(suspected)
            .map(|(index, _)| *index)
            .collect()
    }

    fn fall_back(&mut self, index: u32, why: Obstacle) {
        let Some(attachment) = self
            .attachments
            .iter_mut()
            .find(|one| one.about.index == index)
        else {
            return;
        };
        tracing::warn!(interface = attachment.about.name, reason = %why, "XDP detached from this interface");
        attachment.about.not_xdp = Some(why);
        attachment.attach_tc(&mut self.relay);
        tracing::info!(
            interface = attachment.about.name,
            method = attachment.about.method.name(),
            "data path of an interface"
        );
        self.fallback.must_notify |= attachment.about.method == OffloadMethod::Tc;
        self.fallback.notify_workers();
        self.check_links();
    }
}

fn indices(attachment: &InterfaceAttachment) -> (u32, Vec<u32>) {
    (attachment.about.index, attachment.lower.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fallback() -> Fallback {
        Fallback::new(Box::new(|| true))
    }

    #[test]
    fn packets_of_an_unknown_interface_count_when_they_come_for_seconds() {
        let mut fallback = fallback();
        let counts = [0, 5, 9, 9, 10, 11, 12];
        let seen: Vec<bool> = counts
            .map(|count| fallback.persists_unknown_interface(count))
            .into();
        assert_eq!(seen, [false, false, false, false, false, false, true]);
    }

    #[test]
    fn workers_are_notified_of_a_fallback_until_all_know() {
        let mut full = 2;
        let mut fallback = Fallback::new(Box::new(move || {
            full -= 1;
            assert!(full >= 0, "all know already");
            full == 0
        }));
        fallback.notify_workers();
        fallback.must_notify = true;
        for _ in 0..4 {
            fallback.notify_workers();
        }
        assert!(!fallback.must_notify);
    }
}
