//! The sieve: in an overload, requests that begin something are held back before anything is spent on them.
//!
//! Refusing costs microseconds, and dropping what was read costs a good part of one: ten times the load, repeated by all who are
//! not answered, leaves little time for work. So when 503s for all that is shed do not fit into their share of the time, a sieve is
//! put in front: where the embedder can, in the kernel, before a datagram is queued; else as the first look at it.
//!
//! ```text
//!  datagrams ─▶ sieve ─▶ queue ─▶ controller ─▶ accepted
//!                 │                   └──────▶ 503, as many as there is time for: that many too many are let through
//!                 └▶ held back, in silence
//! ```
//! - What is held back is decided by a hash of the first bytes, so that a retransmission meets the fate of the first try.
//! - What was held back is remembered, in a Bloom filter, and stays behind what is new: nobody is served seconds late who keeps
//!   somebody else from being served at once, and when the load falls, the retransmissions of all who were not served, many times
//!   what comes anew, do not make the overload last.
//! - Each source has a threshold, in one of a fixed number of places. They are levelled: whoever asks for little is not held back at
//!   all, and those who ask for more than can be had get equally much.
//! - Thresholds move only when they have to: when more is let through than the time for 503s allows, and when the worker could do more.
//!   What is wanted is computed from what was accepted and the time that was left meanwhile ([`meter`]), and what waits, let
//!   through by former thresholds, is not counted.

mod look;
mod memory;
mod meter;
#[cfg(test)]
mod tests;

use std::net::IpAddr;
use std::time::Duration;

use self::look::NewWork;
use self::memory::Memory;
use self::meter::{Meter, Verdict};
use super::controller::Admission;
use crate::{HashKey, Mono};

/// Sources share so many thresholds.
pub const PLACES: usize = 1024;
/// A threshold that lets everything through.
const EVERYTHING: u16 = u16::MAX;

/// Bytes that are hashed: the start line, the topmost Via with its branch, mostly From and Call-ID as well.
const HASHED: usize = 256;
/// How often thresholds may change.
const TICK: Duration = Duration::from_millis(25);
/// So long what was held back is remembered at least: non-INVITE requests come again every 4 s, an INVITE for the last time after
/// 32 s (RFC 3261 §17.1), and whatever comes again is remembered anew. Less if there is too much of it.
const MEMORY: Duration = Duration::from_secs(16);
/// The share of what was held back that is let through first, when there is time for all that is new.
const FIRST_STALE: u16 = 255;
/// The longest time that what was let through by former thresholds can take to be read.
const SETTLING: Duration = Duration::from_millis(200);
/// What was held back before is let through only while the worker had this share of the time to spare and the wait, in percent of
/// the tolerance, was below the first of these; above the second less of it is.
const CALM: f64 = 0.25;
const CALM_PERCENT: (u64, u64) = (10, 20);
/// With this share of its time to spare for so long a worker has next to nothing to do.
const IDLE: f64 = 0.9;
const SOON: Duration = Duration::from_millis(100);
/// So many requests of a place tell how many its sources send; fewer are weighed with what was known before, at least so much.
const ENOUGH: f32 = 32.0;
const LEAST_WEIGHT: f32 = 0.25;
/// Requests a second below which nobody is taken to be there.
const LEAST_OFFERED: f32 = 1.0;
/// Over so long it is measured how much is held back.
const WEIGHING: Duration = Duration::from_millis(50);
/// For so long after thresholds were lowered the sieve stays, though it may let everything through, and remembers: an INVITE
/// comes again after up to 16 s, all at once with those that were begun with it.
const AFTERMATH: Duration = Duration::from_secs(33);
/// The most that is let through of what was held back until then: nearly everything, as it has nothing but its retransmissions.
const MOST_STALE: u16 = EVERYTHING - 1;

/// What the sieve goes by, besides what it is told of each request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pressure {
    /// The expected wait, and the same in percent of the tolerance.
    pub(super) wait: Duration,
    pub(super) percent: u64,
    /// 503s per second that there is time for, and the share of the time that is.
    pub(super) refusals: f64,
    pub(super) share: f64,
    /// Messages per second that the worker can handle.
    pub(super) capacity: f64,
}

/// The thresholds, and what they are made from.
#[derive(Debug)]
pub struct Sieve {
    keys: [u64; 2],
    thresholds: Box<[u16; PLACES]>,
    /// That of what was held back before, whatever its place.
    stale: u16,
    /// Two generations of what was held back, if it is the embedder that calls [`Sieve::holds_back`], and which is written.
    memory: Option<Box<[Memory; 2]>>,
    generation: bool,
    aged_at: Mono,
    lowered_at: Mono,
    /// The share of what is new that is let through, of all sources together.
    share: f64,
    /// New work that was let through, by place, and what was asked for, as far as that tells.
    seen: Box<[u32; PLACES]>,
    offered: Box<[f32; PLACES]>,
    is_closed: bool,
    version: u64,
    meter: Meter,
    looked_at: Mono,
    /// What was let through by former thresholds will have been read then, at the latest; `None` if it has been.
    settling: Option<Mono>,
    /// The generation that is written has no room, says the embedder.
    is_full: bool,
    /// What was held back here, and what was in all, here or by the embedder, when it was last looked at.
    held: u64,
    held_back: u64,
    weighed_at: Mono,
    /// The most that was held back in a second, lately and in the [`MEMORY`] before, and since when that is lately.
    heaviest: [f64; 2],
    heaviest_at: Mono,
}

impl Sieve {
    pub(super) fn new(key: HashKey) -> Sieve {
        Sieve {
            keys: [key.mac(b"sieve"), key.mac(b"sieve, by") | 1],
            thresholds: Box::new([EVERYTHING; PLACES]),
            stale: EVERYTHING,
            memory: None,
            generation: false,
            aged_at: Mono::default(),
            lowered_at: Mono::default(),
            share: 1.0,
            seen: Box::new([0; PLACES]),
            offered: Box::new([0.0; PLACES]),
            is_closed: false,
            version: 0,
            meter: Meter::default(),
            looked_at: Mono::default(),
            settling: None,
            is_full: false,
            held: 0,
            held_back: 0,
            weighed_at: Mono::default(),
            heaviest: [0.0; 2],
            heaviest_at: Mono::default(),
        }
    }

    /// Whether anything may be held back.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Changes whenever the thresholds do.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.version
    }

    /// By place: a request whose hash is above it is held back. 65535 lets everything through.
    #[must_use]
    pub fn thresholds(&self) -> &[u16; PLACES] {
        &self.thresholds
    }

    /// The share of what is new that is let through, 0 to 1, as far as can be told.
    pub(super) fn share(&self) -> f64 {
        self.share
    }

    /// The threshold of what was held back before.
    #[must_use]
    pub fn stale(&self) -> u16 {
        self.stale
    }

    /// Which of two generations of what was held back is to be written. When it changes, the older one is to be forgotten.
    #[must_use]
    pub fn generation(&self) -> bool {
        self.generation
    }

    /// The secrets of the hashes: a number to begin with and an odd one to multiply by.
    ///
    /// The place of a source is the top 10 bits of `(prefix + keys[0]) * keys[1]` modulo 2^64, where `prefix` is the IPv4 address or
    /// the first 8 bytes of the IPv6 address in host order. The hash of a request: `h = keys[0]`, for each whole 8 bytes of
    /// the first 256, in host order, `h = (h ^ word) * keys[1]; h ^= h >> 32`, and in the end the top 16 bits of `h * keys[1]`.
    #[must_use]
    pub fn keys(&self) -> [u64; 2] {
        self.keys
    }

    /// When [`Sieve`] wants to be looked after, though nothing may come: it opens by itself.
    pub(super) fn next_turn(&self) -> Option<Mono> {
        self.is_closed.then(|| self.looked_at.plus(TICK))
    }

    /// Whether a datagram is held back. If so, it is remembered.
    #[must_use]
    pub fn holds_back(&mut self, source: IpAddr, datagram: &[u8]) -> bool {
        if !self.is_closed {
            return false;
        }
        let Some(new_work) = NewWork::of(datagram) else {
            return false;
        };
        let hash = self.hash(datagram);
        let other = hash ^ hash >> 29 ^ prefix(source);
        let other = other.wrapping_mul(self.keys[1]);
        let place = self.place(source);
        let memory = self.memory.get_or_insert_default();
        let threshold = match memory.iter().any(|memory| memory.has(other)) {
            true => self.stale,
            false => self.thresholds[place],
        };
        let held = (hash >> 48) as u16 > threshold && new_work.can_be_held_back();
        if held {
            self.held += 1;
            memory[usize::from(self.generation)].add(other);
        }
        held
    }

    /// Whether a request that begins something, as far as its method says, could have been held back.
    pub(crate) fn concerns(datagram: &[u8]) -> bool {
        NewWork::of(datagram).is_some()
    }

    /// New work was let through, and this became of it.
    pub(super) fn note(&mut self, source: IpAddr, admission: Admission) {
        if self.settling.is_some() {
            return;
        }
        self.meter.note(admission);
        let place = self.place(source);
        self.seen[place] = self.seen[place].saturating_add(1);
    }

    /// The worker slept or shed work for so long.
    pub(super) fn note_spare(&mut self, spare: Duration) {
        self.meter.note_spare(spare);
    }

    /// The embedder, which remembers what it holds back, has held back so many in all, and has set so many bits of the generation that
    /// is written, in percent.
    pub(super) fn note_held_back(&mut self, now: Mono, total: u64, fill_percent: u64) {
        self.is_full = fill_percent >= memory::FULL;
        self.weigh(now, total);
    }

    /// So many were held back in all until now.
    fn weigh(&mut self, now: Mono, total: u64) {
        let passed = now.since(self.weighed_at);
        if passed < WEIGHING {
            return;
        }
        let rate = total.saturating_sub(self.held_back) as f64 / passed.as_secs_f64();
        // After a long calm the rate of what came at its end is not known.
        if passed < 4 * WEIGHING {
            self.heaviest[0] = self.heaviest[0].max(rate);
        }
        if now.since(self.heaviest_at) >= MEMORY {
            self.heaviest_at = now;
            self.heaviest = [0.0, self.heaviest[0]];
        }
        self.weighed_at = now;
        self.held_back = total;
    }

    /// Time has passed: thresholds change if they have to.
    pub(super) fn turn(&mut self, now: Mono, pressure: Pressure) {
        self.meter.note_wait(pressure.percent);
        if now.since(self.looked_at) < TICK {
            return;
        }
        self.looked_at = now;
        if self.is_closed {
            if self.memory.is_some() {
                self.weigh(now, self.held);
            }
            self.forget(now);
        }
        if let Some(until) = self.settling {
            // What waits is refused faster than it would be served.
            if now >= until || pressure.percent == 0 {
                self.restart(now, Duration::ZERO);
            }
            return;
        }
        let is_disturbed = self.meter.percent() >= CALM_PERCENT.1;
        let verdict = match self.lets_stale_through() && is_disturbed {
            true => Verdict::Less(0.0),
            false => self.meter.judge(now, self.is_closed, pressure),
        };
        if verdict == Verdict::Wait {
            return;
        }
        self.estimate(now);
        let has_changed = match verdict {
            Verdict::Less(_) if self.lets_stale_through() => self.lower_stale(),
            Verdict::Less(wanted) => {
                self.lowered_at = now;
                self.stale = 0;
                self.level(wanted);
                true
            }
            Verdict::More(factor) if !self.lets_all_new_through() => {
                self.raise(factor);
                true
            }
            Verdict::More(factor) => self.move_stale(now, factor, pressure.capacity),
            Verdict::Keep | Verdict::Wait => self.move_stale(now, 1.0, pressure.capacity),
        };
        if has_changed {
            self.changed();
            self.restart(now, pressure.wait);
        } else if self.meter.is_over(now) {
            self.restart(now, Duration::ZERO);
        }
    }

    fn lower_stale(&mut self) -> bool {
        self.stale = (self.stale >> 2) & !FIRST_STALE;
        true
    }

    /// What was held back before follows when all that is new is let through. Returns whether there was a change.
    fn move_stale(&mut self, now: Mono, factor: f64, capacity: f64) -> bool {
        let most = self.most_stale(now);
        let spare_share = self.meter.spare(now);
        let is_calm = spare_share > CALM && self.meter.percent() < CALM_PERCENT.0;
        let is_idle = spare_share > IDLE;
        let is_soon = is_idle && self.meter.passed(now) >= SOON.as_secs_f64();
        if !(self.meter.is_over(now) || is_soon)
            || !is_calm
            || !self.lets_all_new_through()
            || self.stale >= most
        {
            return false;
        }
        // It comes in waves: there has to be time for as many as were held back at the worst moment.
        let spare = self.meter.rate(now) * (factor - 1.0);
        let heaviest = self.heaviest[0].max(self.heaviest[1]).max(1.0);
        // A worker with nothing to do cannot tell by what it lets through what it could: there it is tried, beginning with what it
        // surely can.
        let (least, bound) = match is_idle {
            true => (scaled(capacity / 4.0 / heaviest), EVERYTHING),
            false => (0, scaled(spare / 2.0 / heaviest).max(FIRST_STALE)),
        };
        let more = ((f64::from(self.stale) * factor) as u16).max(least);
        let before = self.stale;
        self.stale = more.max(FIRST_STALE).min(bound).min(most);
        self.stale != before
    }

    fn most_stale(&self, now: Mono) -> u16 {
        match self.is_closed && now.since(self.lowered_at) < AFTERMATH {
            true => MOST_STALE,
            false => EVERYTHING,
        }
    }

    /// Some of what was held back before, while not everything is let through.
    fn lets_stale_through(&self) -> bool {
        self.is_closed && self.stale > 0
    }

    fn lets_all_new_through(&self) -> bool {
        let mut all = self.thresholds.iter();
        all.all(|threshold| *threshold == EVERYTHING)
    }

    /// Lets everything through.
    pub(super) fn open(&mut self) {
        if self.is_closed {
            self.thresholds.fill(EVERYTHING);
            self.stale = EVERYTHING;
            self.changed();
        }
    }

    /// Forgets the older generation when it is time, or the newer one has no room.
    fn forget(&mut self, now: Mono) {
        let memory = self.memory.as_ref();
        let fill = memory.map_or(0, |memory| {
            memory[usize::from(self.generation)].fill_percent()
        });
        if !self.is_full && fill < memory::FULL && now.since(self.aged_at) < MEMORY {
            return;
        }
        self.is_full = false;
        self.aged_at = now;
        self.generation = !self.generation;
        self.version += 1;
        if let Some(memory) = &mut self.memory {
            memory[usize::from(self.generation)] = Memory::default();
        }
    }

    /// Counts anew, when what waits now has been read.
    fn restart(&mut self, now: Mono, wait: Duration) {
        self.meter = Meter::new(now);
        self.seen.fill(0);
        self.settling = (wait > Duration::ZERO).then(|| now.plus(wait.min(SETTLING)));
    }

    /// Makes thresholds with which so much a second is let through, of no place more than of others.
    fn level(&mut self, wanted: f64) {
        let offered = self.offered.iter().map(|offered| f64::from(*offered));
        let mut offered: Vec<f64> = offered.filter(|offered| *offered > 0.0).collect();
        self.share = (wanted / offered.iter().sum::<f64>().max(1.0)).min(1.0);
        let level = level(&mut offered, wanted);
        for (threshold, offered) in self.thresholds.iter_mut().zip(&*self.offered) {
            *threshold = match *offered > 0.0 {
                true => scaled(level / f64::from(*offered)),
                // Nothing got through, or nobody is there.
                false => threshold.saturating_mul(2).max(1),
            };
        }
    }

    fn raise(&mut self, by: f64) {
        self.share = (self.share * by).min(1.0);
        for threshold in self.thresholds.iter_mut() {
            *threshold = scaled((f64::from(*threshold) + 1.0) / 65536.0 * by);
        }
    }

    /// What the sources of each place ask for in a second, as far as what was let through tells; where that is little, what it told
    /// before counts, too.
    fn estimate(&mut self, now: Mono) {
        let passed = self.meter.passed(now).max(1e-3) as f32;
        let places = self.thresholds.iter().zip(&*self.seen);
        for ((threshold, seen), offered) in places.zip(self.offered.iter_mut()) {
            let share = (f32::from(*threshold) + 1.0) / 65536.0;
            let weight = match self.is_closed {
                true => (*seen as f32 / ENOUGH).clamp(LEAST_WEIGHT, 1.0),
                false => 1.0,
            };
            *offered += (*seen as f32 / share / passed - *offered) * weight;
            if *offered < LEAST_OFFERED {
                *offered = 0.0;
            }
        }
    }

    fn changed(&mut self) {
        let mut all = self.thresholds.iter().chain([&self.stale]);
        self.is_closed = all.any(|threshold| *threshold < EVERYTHING);
        self.version += 1;
        if !self.is_closed {
            self.share = 1.0;
            self.memory = None;
        }
    }

    fn place(&self, source: IpAddr) -> usize {
        let [key, multiplier] = self.keys;
        (prefix(source).wrapping_add(key).wrapping_mul(multiplier) >> 54) as usize
    }

    fn hash(&self, datagram: &[u8]) -> u64 {
        let [key, multiplier] = self.keys;
        let hashed = &datagram[..datagram.len().min(HASHED)];
        let sum = hashed.as_chunks().0.iter().fold(key, |sum, word| {
            let sum = (sum ^ u64::from_ne_bytes(*word)).wrapping_mul(multiplier);
            sum ^ sum >> 32
        });
        sum.wrapping_mul(multiplier)
    }
}

/// The part of an address that a source is known by.
fn prefix(source: IpAddr) -> u64 {
    match source.to_canonical() {
        IpAddr::V4(v4) => u64::from(u32::from_ne_bytes(v4.octets())),
        // A network has a /64 at the least: its single addresses are free to choose.
        IpAddr::V6(v6) => {
            let [a, b, c, d, e, f, g, h, ..] = v6.octets();
            u64::from_ne_bytes([a, b, c, d, e, f, g, h])
        }
    }
}

/// The threshold of a share.
fn scaled(share: f64) -> u16 {
    (share * 65536.0 - 1.0).clamp(0.0, 65535.0) as u16
}

/// How much each may have at most, so that all together have as much as is wanted; without end if they ask for less.
fn level(offered: &mut [f64], wanted: f64) -> f64 {
    offered.sort_unstable_by(f64::total_cmp);
    let (mut left, mut many) = (wanted, offered.len() as f64);
    for &one in &*offered {
        if one > left / many {
            return left / many;
        }
        left -= one;
        many -= 1.0;
    }
    f64::INFINITY
}
