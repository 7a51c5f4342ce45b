//! The times of the OPTIONS probes to each address of the trunks (RFC 3261 §11).
//!
//! One worker sends all probes; all workers share the health of the trunks.

use std::collections::VecDeque;
use std::time::Duration;

use sip::Mono;

use super::health::Outcome;
use super::hunt::mix;
use super::table::Table;

/// A probe fails without a response within this time, or within its interval if that is less. This is less than Timer F
/// (32 s), to detect a failure early.
const PROBE_TIMEOUT: Duration = Duration::from_secs(4);

/// One address that is probed.
#[derive(Debug)]
struct Probed {
    trunk: u16,
    hop: u16,
    interval: Duration,
    /// When the next probe is sent, or the one that is in progress fails.
    due: Mono,
    /// The number of the probe that is in progress.
    waits_for: Option<u32>,
}

/// A probe that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Names it in [`Prober::concluded`].
    pub number: u32,
    /// The number of the trunk.
    pub trunk: u16,
    /// The address among those of the trunk.
    pub hop: u16,
}

/// An address has become available or unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Change {
    /// The number of the trunk.
    pub trunk: u16,
    /// The address among those of the trunk.
    pub hop: u16,
    /// What it is now.
    pub is_available: bool,
}

/// Says when to probe.
#[derive(Debug, Default)]
pub struct Prober {
    all: Vec<Probed>,
    changes: VecDeque<Change>,
    next_number: u32,
    seed: u64,
}

impl Prober {
    /// For these trunks, each of which is probed for the first time within its interval, but within five seconds.
    #[must_use]
    pub fn new(now: Mono, table: &Table, seed: u64) -> Prober {
        let mut prober = Prober {
            seed,
            ..Prober::default()
        };
        for (trunk, (config, _)) in (0..).zip(table.trunks()) {
            let interval = config.probe.interval;
            for hop in (0..config.to.len() as u16).filter(|_| !interval.is_zero()) {
                let first = prober.jitter(interval.min(Duration::from_secs(5)));
                prober.all.push(Probed {
                    trunk,
                    hop,
                    interval,
                    due: now.plus(first),
                    waits_for: None,
                });
            }
        }
        prober
    }

    /// A random part of this time.
    fn jitter(&mut self, most: Duration) -> Duration {
        self.seed = self.seed.wrapping_add(1);
        most.mul_f64((mix(self.seed) >> 11) as f64 / (1_u64 << 53) as f64)
    }

    /// When to call [`Prober::poll_probe`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        self.all.iter().map(|it| it.due).min()
    }

    /// The next probe to send. Those that had no response in time have failed.
    pub fn poll_probe(&mut self, now: Mono, table: &Table) -> Option<Probe> {
        while let Some(place) = self.all.iter().position(|it| it.due <= now) {
            let number = self.next_number;
            let Some(probed) = self.all.get_mut(place) else {
                break;
            };
            if probed.waits_for.take().is_some() {
                let (trunk, hop) = (probed.trunk, probed.hop);
                self.schedule_next(now, place);
                self.note(now, table, (trunk, hop), Outcome::Silent);
                continue;
            }
            self.next_number = number.wrapping_add(1);
            probed.waits_for = Some(number);
            probed.due = now.plus(PROBE_TIMEOUT.min(probed.interval));
            return Some(Probe {
                number,
                trunk: probed.trunk,
                hop: probed.hop,
            });
        }
        None
    }

    /// The outcome of a probe.
    pub fn concluded(&mut self, now: Mono, table: &Table, number: u32, outcome: Outcome) {
        let place = self.all.iter().position(|it| it.waits_for == Some(number));
        let Some(place) = place else {
            return;
        };
        let Some(probed) = self.all.get_mut(place) else {
            return;
        };
        probed.waits_for = None;
        let whose = (probed.trunk, probed.hop);
        self.schedule_next(now, place);
        self.note(now, table, whose, outcome);
    }

    /// The probe with this number was not sent, because the address asked for a pause or the server limits what it
    /// sends. That says nothing about the address: its state stays, and the next probe comes after the interval.
    pub fn note_not_sent(&mut self, now: Mono, number: u32) {
        let place = self.all.iter().position(|it| it.waits_for == Some(number));
        if let Some(place) = place {
            if let Some(probed) = self.all.get_mut(place) {
                probed.waits_for = None;
            }
            self.schedule_next(now, place);
        }
    }

    /// The next address that has become available or unavailable by a probe.
    pub fn poll_change(&mut self) -> Option<Change> {
        self.changes.pop_front()
    }

    fn note(&mut self, now: Mono, table: &Table, (trunk, hop): (u16, u16), outcome: Outcome) {
        let health = table.trunk(trunk).map(|(_, health)| health);
        let Some(health) = health.filter(|health| health.probed(hop, now, outcome)) else {
            return;
        };
        self.changes.push_back(Change {
            trunk,
            hop,
            is_available: health.is_available(hop, now),
        });
    }

    /// Sets the time of the next probe of this address: its interval, plus or minus at most 10 % at random.
    fn schedule_next(&mut self, now: Mono, place: usize) {
        let interval = self.all.get(place).map_or(Duration::ZERO, |it| it.interval);
        let jitter = self.jitter(interval / 5);
        if let Some(probed) = self.all.get_mut(place) {
            probed.due = now.plus(interval - interval / 10 + jitter);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::{NextHop, ProbeConfig, Trunk};

    fn table(interval_s: u64) -> Table {
        let trunk = |name: &str| Trunk {
            name: name.to_owned(),
            to: vec![NextHop::new("sip:192.0.2.7").unwrap()],
            probe: ProbeConfig {
                interval: Duration::from_secs(interval_s),
                ..ProbeConfig::default()
            },
            ..Trunk::default()
        };
        Table::new(Vec::new(), vec![trunk("a"), trunk("b")], None).unwrap()
    }

    /// Lets time pass to `end` while the trunk responds or not. Returns when it was probed, in milliseconds.
    fn run(
        prober: &mut Prober,
        table: &Table,
        now: &mut Mono,
        end: Mono,
        answers: impl Fn(u16, Mono) -> bool,
    ) -> Vec<(u16, u64)> {
        let mut sent = Vec::new();
        while let Some(due) = prober.poll_timeout().filter(|due| *due <= end) {
            *now = due;
            while let Some(probe) = prober.poll_probe(*now, table) {
                sent.push((probe.trunk, now.0 / 1_000_000));
                if answers(probe.trunk, *now) {
                    let answered = Outcome::Response(200, None);
                    prober.concluded(*now, table, probe.number, answered);
                }
            }
        }
        *now = end;
        sent
    }

    #[test]
    fn every_address_is_probed_once_per_interval_and_not_all_at_once() {
        let table = table(30);
        let mut now = Mono::default().plus_secs(1000);
        let mut prober = Prober::new(now, &table, 7);
        let sent = run(
            &mut prober,
            &table,
            &mut now,
            Mono::default().plus_secs(4000),
            |_, _| true,
        );
        for trunk in 0..2 {
            let times: Vec<u64> = sent
                .iter()
                .filter(|it| it.0 == trunk)
                .map(|it| it.1)
                .collect();
            assert!((95..=108).contains(&times.len()), "{}", times.len());
            let gaps = times.windows(2).map(|pair| pair[1] - pair[0]);
            assert!(
                gaps.clone().all(|gap| (27_000..=33_001).contains(&gap)),
                "{times:?}"
            );
        }
        assert!(sent[0].1 < 1_005_000 && sent[1].1 < 1_005_000);
    }

    #[test]
    fn a_silent_trunk_goes_down_and_comes_back_with_hysteresis() {
        let table = table(10);
        let mut now = Mono::default().plus_secs(1000);
        let second = |s: u64| Mono::default().plus_secs(1000 + s);
        let mut prober = Prober::new(now, &table, 3);
        let is_up = |now: Mono| {
            let health = |trunk| table.trunk(trunk).unwrap().1.counts(now).available == 1;
            [health(0), health(1)]
        };
        // Trunk 0 is silent from second 60 to 160.
        let answers =
            |trunk: u16, now: Mono| trunk == 1 || !(second(60)..second(160)).contains(&now);
        run(&mut prober, &table, &mut now, second(60), answers);
        assert_eq!(is_up(now), [true, true]);
        // Three probes in a row take at least two intervals, and four seconds for the last one.
        run(&mut prober, &table, &mut now, second(82), answers);
        assert_eq!(is_up(now), [true, true]);
        run(&mut prober, &table, &mut now, second(125), answers);
        assert_eq!(is_up(now), [false, true]);
        run(&mut prober, &table, &mut now, second(160), answers);
        assert_eq!(is_up(now), [false, true]);
        run(&mut prober, &table, &mut now, second(190), answers);
        assert_eq!(is_up(now), [true, true]);
    }

    #[test]
    fn nothing_is_probed_without_an_interval() {
        let prober = Prober::new(Mono(0), &table(0), 1);
        assert_eq!(prober.poll_timeout(), None);
    }
}
