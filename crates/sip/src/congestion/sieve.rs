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
//! - Thresholds move only when they have to: when more than the time for 503s allows is let through, and when the worker idles.

use std::net::IpAddr;
use std::time::Duration;

use super::controller::Admission;
use crate::{HashKey, Mono};

/// Sources share so many thresholds.
pub const PLACES: usize = 1024;
/// A threshold that lets everything through.
const EVERYTHING: u16 = u16::MAX;

/// Bytes that are hashed: the start line, the topmost Via with its branch, mostly From and Call-ID as well.
const HASHED: usize = 256;
/// Bytes within which To and credentials are looked for; what is further down lets a request through.
const LOOKED_AT: usize = 1024;
/// No request is shorter.
const LEAST: usize = 64;

/// How often thresholds may change ..
const TICK: Duration = Duration::from_millis(25);
/// .. and after how long all that was counted is judged.
const WINDOW: Duration = Duration::from_millis(250);
/// So long what was held back is remembered at least: non-INVITE requests come again every 4 s, an INVITE for the last time after
/// 32 s (RFC 3261 §17.1), and whatever comes again is remembered anew.
const MEMORY: Duration = Duration::from_secs(16);
/// The share of what was held back that is let through first, when there is time for all that is new.
const FIRST_STALE: u16 = 255;
/// The longest time that what was let through by former thresholds can take to be read.
const SETTLING: Duration = Duration::from_millis(200);
/// The worker idles: it was busy for less of the time than this, in percent ..
const IDLE: u64 = 92;
/// .. and the expected wait never was above this part of the tolerance, in percent.
const SHORT: u64 = 15;
/// What was held back before is let through only while the worker was busy and the wait was for less than this, in percent.
const CALM: (u64, u64) = (75, 15);
/// For so long after thresholds were lowered the sieve stays, though it may let everything through, and remembers: an INVITE
/// comes again after up to 16 s, all at once with those that were begun with it.
const AFTERMATH: Duration = Duration::from_secs(33);
/// The most that is let through of what was held back until then: nearly everything, as it has nothing but its retransmissions.
const MOST_STALE: u16 = EVERYTHING - 1;

/// What the sieve goes by, besides what it is told of each request.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pressure {
    /// The expected wait, in percent of the tolerance.
    pub(super) percent: u64,
    /// Messages that wait.
    pub(super) waiting: u64,
    /// 503s per second that there is time for.
    pub(super) refusals: f64,
}

/// What was let through since the last change.
#[derive(Debug, Default)]
struct Meter {
    since: Mono,
    accepted: u32,
    refused: u32,
    dropped: u32,
    /// The time that accepted work took, and the greatest wait, in percent of the tolerance.
    busy: Duration,
    percent: u64,
}

impl Meter {
    fn all(&self) -> u32 {
        self.accepted + self.refused + self.dropped
    }
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
    /// New work that was let through, by place.
    seen: Box<[u32; PLACES]>,
    is_closed: bool,
    version: u64,
    meter: Meter,
    looked_at: Mono,
    /// So many requests were let through by former thresholds and are still to be read, ..
    former: u64,
    /// .. until this time at the latest; `None` if all were.
    settling: Option<Mono>,
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
            is_closed: false,
            version: 0,
            meter: Meter::default(),
            looked_at: Mono::default(),
            former: 0,
            settling: None,
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
        if !self.is_closed || datagram.len() < LEAST {
            return false;
        }
        let Some(uri) = uri_of_new_work(datagram) else {
            return false;
        };
        // RFC 5031: urn:service:sos.
        let is_urn = uri
            .get(..4)
            .is_some_and(|scheme| scheme.eq_ignore_ascii_case(b"urn:"));
        let hash = self.hash(datagram);
        let other = hash ^ hash >> 29 ^ prefix(source);
        let other = other.wrapping_mul(self.keys[1]);
        let place = self.place(source);
        let memory = self.memory.get_or_insert_default();
        let threshold = match memory.iter().any(|memory| memory.has(other)) {
            true => self.stale,
            false => self.thresholds[place],
        };
        let held = !is_urn && (hash >> 48) as u16 > threshold && begins_something(datagram);
        if held {
            memory[usize::from(self.generation)].add(other);
        }
        held
    }

    /// Whether a request that begins something, as far as its method says, could have been held back.
    pub(crate) fn concerns(datagram: &[u8]) -> bool {
        uri_of_new_work(datagram).is_some()
    }

    /// New work was let through, and this became of it.
    pub(super) fn note(&mut self, source: IpAddr, admission: Admission) {
        if self.former > 0 {
            self.former -= 1;
            return;
        }
        let count = match admission {
            Admission::Accept => &mut self.meter.accepted,
            Admission::Refuse { .. } => &mut self.meter.refused,
            Admission::Drop => &mut self.meter.dropped,
        };
        *count = count.saturating_add(1);
        let place = self.place(source);
        self.seen[place] = self.seen[place].saturating_add(1);
    }

    /// Accepted work took so long.
    pub(super) fn note_busy(&mut self, busy: Duration) {
        self.meter.busy += busy;
    }

    /// Time has passed: thresholds change if they have to.
    pub(super) fn turn(&mut self, now: Mono, pressure: Pressure) {
        self.meter.percent = self.meter.percent.max(pressure.percent);
        if now.since(self.looked_at) < TICK {
            return;
        }
        self.looked_at = now;
        if self.is_closed && now.since(self.aged_at) >= MEMORY {
            self.age(now);
        }
        if let Some(until) = self.settling {
            if self.former == 0 || now >= until {
                self.restart(now, 0);
            }
            return;
        }
        let passed = now.since(self.meter.since);
        let refusals = pressure.refusals * passed.as_secs_f64();
        let is_over = passed >= WINDOW;
        // Who is dropped comes again and is served late: a few in a hundred of those served are many.
        let tolerated = self.meter.accepted / if is_over { 128 } else { 16 } + 8;
        let busy = self.meter.busy.as_nanos() * 100 / passed.as_nanos().max(1);
        let busy = u64::try_from(busy).unwrap_or(u64::MAX);
        let percent = self.meter.percent;
        let is_too_much = self.meter.dropped > tolerated
            || (self.is_closed && is_over && f64::from(self.meter.refused) > refusals);
        if self.lets_stale_through() && (is_too_much || percent >= CALM.1) {
            self.stale = (self.stale >> 2) & !FIRST_STALE;
        } else if is_too_much {
            self.lowered_at = now;
            self.lower(refusals / 2.0);
        } else if self.is_closed && busy < IDLE && percent < SHORT && !self.lets_all_new_through() {
            self.raise(110.0 / busy.max(1) as f64);
        } else if is_over && busy < CALM.0 && percent < CALM.1 && self.stale < self.most_stale(now)
        {
            let more = self.stale.saturating_mul(2).max(FIRST_STALE) | 1;
            self.stale = more.min(self.most_stale(now));
        } else {
            if is_over {
                self.restart(now, 0);
            }
            return;
        }
        self.changed();
        self.restart(now, pressure.waiting);
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

    fn age(&mut self, now: Mono) {
        self.aged_at = now;
        self.generation = !self.generation;
        self.version += 1;
        if let Some(memory) = &mut self.memory {
            memory[usize::from(self.generation)] = Memory::default();
        }
    }

    fn restart(&mut self, now: Mono, waiting: u64) {
        self.meter = Meter {
            since: now,
            ..Meter::default()
        };
        self.seen.fill(0);
        self.former = waiting;
        self.settling = (waiting > 0).then(|| now.plus(SETTLING));
    }

    /// Makes thresholds with which what was accepted would have been let through, and so much more.
    fn lower(&mut self, more: f64) {
        self.stale = 0;
        let all = f64::from(self.meter.all());
        let wanted = (f64::from(self.meter.accepted) + more).min(all * 0.9);
        let mut offered: Vec<f64> = (0..PLACES)
            .map(|place| self.offered(place))
            .filter(|offered| *offered > 0.0)
            .collect();
        self.share = (wanted / offered.iter().sum::<f64>().max(1.0)).min(1.0);
        let level = level(&mut offered, wanted);
        for place in 0..PLACES {
            let offered = self.offered(place);
            let threshold = &mut self.thresholds[place];
            *threshold = if offered > 0.0 {
                scaled(level / offered)
            } else {
                // Nothing got through, or nobody is there.
                threshold.saturating_mul(2).max(1)
            };
        }
    }

    /// What the sources of a place have asked for, as far as what was let through tells.
    fn offered(&self, place: usize) -> f64 {
        let share = (f64::from(self.thresholds[place]) + 1.0) / 65536.0;
        f64::from(self.seen[place]) / share
    }

    fn raise(&mut self, by: f64) {
        let by = by.clamp(1.1, 2.0);
        self.share = (self.share * by).min(1.0);
        for threshold in self.thresholds.iter_mut() {
            *threshold = scaled((f64::from(*threshold) + 1.0) / 65536.0 * by);
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

/// Words of 2^24 bits: of 600,000 requests that were held back, which is ten times the load of 18,000/s for four seconds, it
/// mistakes one new one in a thousand for one of them.
const WORDS: usize = 1 << 18;

/// A Bloom filter with three hashes.
#[derive(Debug)]
struct Memory(Box<[u64]>);

impl Default for Memory {
    fn default() -> Memory {
        Memory(vec![0; WORDS].into())
    }
}

impl Memory {
    fn places(hash: u64) -> [(usize, u64); 3] {
        [0, 20, 40].map(|shift| {
            let bit = hash >> shift;
            ((bit >> 6) as usize % WORDS, 1 << (bit & 63))
        })
    }

    fn has(&self, hash: u64) -> bool {
        let places = Memory::places(hash);
        places.iter().all(|(word, bit)| self.0[*word] & bit != 0)
    }

    fn add(&mut self, hash: u64) {
        for (word, bit) in Memory::places(hash) {
            self.0[word] |= bit;
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

/// From the Request-URI on, if the method begins something.
fn uri_of_new_work(datagram: &[u8]) -> Option<&[u8]> {
    let methods: [&[u8]; 6] = [
        b"INVITE ",
        b"REGISTER ",
        b"OPTIONS ",
        b"SUBSCRIBE ",
        b"MESSAGE ",
        b"PUBLISH ",
    ];
    methods
        .iter()
        .find_map(|method| datagram.strip_prefix(*method))
}

/// Whether a request surely begins something: To is there without a tag, and neither credentials nor priorities are.
fn begins_something(datagram: &[u8]) -> bool {
    let looked_at = &datagram[..datagram.len().min(LOOKED_AT)];
    let (mut in_to, mut seen_to) = (false, false);
    let mut at = 0;
    for end in memchr::memchr_iter(b'\n', looked_at) {
        let line = &looked_at[at..end];
        at = end + 1;
        match line {
            [] | b"\r" => return seen_to,
            // RFC 3261 §7.3.1: a line that begins with a blank continues the one before.
            [b' ' | b'\t', ..] => {}
            _ if spares(line) => return false,
            _ => in_to = is_to(line),
        }
        seen_to |= in_to;
        if in_to && has_tag(line) {
            return false;
        }
    }
    seen_to && datagram.len() <= LOOKED_AT
}

fn is_to(line: &[u8]) -> bool {
    let name = memchr::memchr(b':', line).map_or(line, |colon| &line[..colon]);
    let name = name.trim_ascii_end();
    name.eq_ignore_ascii_case(b"to") || name.eq_ignore_ascii_case(b"t")
}

fn has_tag(line: &[u8]) -> bool {
    line.windows(4)
        .any(|part| part.eq_ignore_ascii_case(b"tag="))
}

/// Credentials, the second half of a challenge, and priorities, of which the controller knows which count.
fn spares(line: &[u8]) -> bool {
    let names: [&[u8]; 4] = [
        b"authorization",
        b"proxy-authorization",
        b"priority",
        b"resource-priority",
    ];
    names.iter().any(|name| {
        line.get(..name.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(name))
    })
}
