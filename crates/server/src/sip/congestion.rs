//! What overload control goes by: how much waits, in the sockets and here, and how long messages take.
//!
//! How many datagrams wait in a socket the kernel does not say, only how much memory they take (SO_MEMINFO): a datagram
//! takes the next power of two above its own length and its bookkeeping. Memory of what was read is given back late, in
//! lumps: when all is read that waited at the last time, or a quarter of the limit (`udp_rmem_release`). So what was read since
//! is subtracted, and that the memory has become less says that a lump was given back.

use io::SocketMemory;
use sip::Now;
use sip::congestion::{Backlog, Behaviour};
use sip::engine::Engine;
use std::time::Duration;

/// Bytes of bookkeeping that share an allocation with a datagram: headers and `skb_shared_info`.
const BESIDE: u64 = 400;
/// The least that is allocated, and the `sk_buff` itself.
const LEAST: u64 = 576;
const SK_BUFF: u64 = 256;

/// What a datagram of so many bytes takes of a socket's receive buffer.
fn true_size(bytes: u64) -> u64 {
    let whole = bytes + BESIDE;
    let rounded = match whole <= LEAST {
        true => LEAST,
        false => whole.next_power_of_two(),
    };
    rounded + SK_BUFF
}

/// One socket's receive buffer.
#[derive(Debug, Clone, Copy, Default)]
struct Queue {
    waiting: u64,
    fill_percent: u8,
    /// Bytes read since the kernel last gave memory back, as far as that can be told.
    owed: u64,
    /// What the memory was after the batch before.
    used: u64,
}

impl Queue {
    /// So many datagrams of so many bytes each were read, and so much memory of so much at most is taken now.
    fn read(&mut self, messages: u64, each: u64, (used, limit): (u64, u64)) {
        self.owed += each * messages;
        if used < self.used || self.owed >= limit / 4 {
            self.owed = 0;
        }
        self.used = used;
        self.waiting = used.saturating_sub(self.owed) / each;
        self.fill_percent = u8::try_from(used * 100 / limit.max(1)).unwrap_or(100);
    }
}

/// How many messages an average is made of, at least.
const SPAN: u64 = 64;

/// The measurements of one worker.
#[derive(Debug)]
pub(super) struct Congestion {
    queues: Vec<Queue>,
    /// Messages that wait in the connection at hand and in those not read yet.
    streams: u64,
    /// Messages that other workers have handed over.
    batches: u64,
    /// The average length of a message, times [`SPAN`].
    bytes_sum: u64,
    lost: u64,
    started_ns: u64,
    busy_ns: u64,
    shed: u32,
    shed_time: Duration,
    /// Since the last batch.
    slept: Duration,
}

impl Congestion {
    pub(super) fn new(listeners: usize) -> Congestion {
        Congestion {
            queues: vec![Queue::default(); listeners],
            streams: 0,
            batches: 0,
            bytes_sum: 500 * SPAN,
            lost: 0,
            started_ns: 0,
            busy_ns: 0,
            shed: 0,
            shed_time: Duration::ZERO,
            slept: Duration::ZERO,
        }
    }

    /// A batch of datagrams begins, of so many messages and bytes; `memory` is asked for if there may be more.
    pub(super) fn datagrams(
        &mut self,
        number: u16,
        (messages, bytes): (usize, usize),
        lost: u64,
        memory: Option<SocketMemory>,
    ) {
        self.learn(messages, bytes);
        self.lost += lost;
        let each = true_size(self.bytes_sum / SPAN);
        let Some(queue) = self.queues.get_mut(usize::from(number)) else {
            return;
        };
        let Some(memory) = memory else {
            *queue = Queue::default();
            return;
        };
        let memory = (u64::from(memory.recv_used), u64::from(memory.recv_limit));
        queue.read(messages as u64, each, memory);
    }

    /// So many bytes of a connection wait to be handled, and `others` connections are ready besides.
    pub(super) fn stream(&mut self, bytes: usize, others: usize) {
        let each = (self.bytes_sum / SPAN).max(1);
        self.streams = bytes as u64 / each + others as u64;
    }

    /// So many messages of other workers wait here.
    pub(super) fn batches(&mut self, waiting: usize) {
        self.batches = waiting as u64;
    }

    /// No connection waits any more.
    pub(super) fn no_streams(&mut self) {
        self.streams = 0;
    }

    fn learn(&mut self, messages: usize, bytes: usize) {
        let (messages, bytes) = (messages as u64, bytes as u64);
        if messages > 0 {
            let kept = SPAN.saturating_sub(messages.min(SPAN / 2));
            let average = self.bytes_sum / SPAN;
            self.bytes_sum = average * kept + bytes / messages * (SPAN - kept);
        }
    }

    /// A batch begins: tells the engine how much waits.
    pub(super) fn begin(&mut self, now: Now, engine: &mut Engine) {
        self.started_ns = now.mono.0;
        let backlog = Backlog {
            messages: self.queues.iter().map(|queue| queue.waiting).sum::<u64>()
                + self.streams
                + self.batches,
            fill_percent: self
                .queues
                .iter()
                .map(|queue| queue.fill_percent)
                .max()
                .unwrap_or(0),
            lost: std::mem::take(&mut self.lost),
        };
        engine.observe_backlog(now, backlog);
    }

    /// Whether messages are timed one by one: where some may be shed, those must not count as work.
    pub(super) fn is_timing(&self, behaviour: Behaviour) -> bool {
        behaviour != Behaviour::Normal
    }

    /// How long all batches so far took, in nanoseconds.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// The worker had nothing to do for so long.
    pub(super) fn slept(&mut self, slept: Duration) {
        self.slept += slept;
    }

    /// Tells the engine of the time that was slept, which it has to know when nothing comes as well: all may be held back.
    pub(super) fn tell_slept(&mut self, engine: &mut Engine) {
        engine.observe_spare(std::mem::take(&mut self.slept));
    }

    /// A message was shed, which took so long.
    pub(super) fn shed(&mut self, took: Duration) {
        self.shed += 1;
        self.shed_time += took;
    }

    /// A message was held back as soon as it was seen.
    pub(super) fn held_back(&mut self) {
        self.shed += 1;
    }

    /// The batch of so many messages is done, answers sent: tells the engine how long they took.
    pub(super) fn end(&mut self, handled: usize, engine: &mut Engine) {
        let busy = Duration::from_nanos(io::clock::monotonic_ns() - self.started_ns);
        self.busy_ns += busy.as_nanos() as u64;
        let shed = std::mem::take(&mut self.shed);
        let shed_time = std::mem::take(&mut self.shed_time);
        let served = u32::try_from(handled)
            .unwrap_or(u32::MAX)
            .saturating_sub(shed);
        engine.observe_service(served, busy.saturating_sub(shed_time));
        engine.observe_spare(shed_time);
        self.tell_slept(engine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn true_sizes_are_those_of_the_kernel() {
        // Measured with SO_MEMINFO over loopback on Linux 6.18.
        for (bytes, size) in [
            (50, 832),
            (100, 832),
            (200, 1280),
            (533, 1280),
            (700, 2304),
            (1400, 2304),
            (1625, 2304),
            (2000, 4352),
            (4000, 8448),
        ] {
            assert_eq!(true_size(bytes), size, "{bytes}");
        }
    }

    #[test]
    fn what_waits_is_known_while_memory_is_given_back_late() {
        let mut queue = Queue::default();
        // 3,200 wait, and as many come as are read.
        for lump in 0..20 {
            for batch in 0..200 {
                let used = (3200 + batch * 16) * 1280;
                queue.read(16, 1280, (used, 64 << 20));
                let off = queue.waiting.abs_diff(3200);
                assert!(
                    off <= 32,
                    "{lump}: {off} messages off after {batch} batches"
                );
            }
        }
    }

    #[test]
    fn averages_follow_what_comes() {
        let mut congestion = Congestion::new(1);
        for _ in 0..32 {
            congestion.datagrams(0, (16, 16 * 1000), 0, None);
        }
        let average = congestion.bytes_sum / SPAN;
        assert!((980..=1000).contains(&average), "{average}");
    }
}
