//! The measurements for admission control: how many messages wait, in the sockets and here, and how long messages take.
//!
//! The kernel does not report how many datagrams wait in a socket. It reports how much memory they use (SO_MEMINFO),
//! which depends on the driver of the network card. The kernel frees the memory of datagrams late and in lumps
//! (`udp_rmem_release`). It does so when the socket has read all that waited at the last time, or a quarter of the
//! limit. The size of each lump shows how much memory a message uses.

use io::SocketMemory;
use sip::Now;
use sip::congestion::Backlog;
use sip::engine::Engine;
use std::time::Duration;

/// Bytes of memory that a datagram uses until a lump was measured: one of 500 to 1,500 bytes over loopback, as
/// measured.
const FIRST_USE: u64 = 2304;
/// A lump counts if it is at least this many times the growth of memory since the last batch ..
const CLEAR: u64 = 2;
/// .. and if at least this many messages were read since the last lump: those of two batches.
const ENOUGH: u64 = 32;

/// One socket's receive buffer.
#[derive(Debug, Clone, Copy)]
struct Queue {
    waiting: u64,
    /// Bytes of memory that one message uses.
    each: u64,
    /// Messages read since the kernel last gave memory back.
    read: u64,
    /// What the memory was after the batch before, and by how much it had grown in that.
    used: u64,
    growth: u64,
}

impl Queue {
    const EMPTY: Queue = Queue {
        waiting: 0,
        each: FIRST_USE,
        read: 0,
        used: 0,
        growth: 0,
    };

    /// So many datagrams were read, and so much memory of so much at most is used now.
    fn read(&mut self, messages: u64, (used, limit): (u64, u64)) {
        self.read += messages;
        if used >= self.used {
            self.growth = used - self.used;
        } else {
            let lump = self.used + self.growth - used;
            if self.read >= ENOUGH && lump >= CLEAR * self.growth {
                self.each = (self.each + lump / self.read).div_ceil(2).max(1);
            }
            self.read = 0;
        }
        self.used = used;
        // More than a quarter of the limit the kernel does not owe.
        let owed = (self.read * self.each).min(limit / 4);
        self.waiting = used.saturating_sub(owed) / self.each;
    }

    /// Nothing waits any more.
    fn clear(&mut self) {
        *self = Queue {
            each: self.each,
            ..Queue::EMPTY
        };
    }
}

/// How many messages the average length is made of, at least: four batches.
const SPAN: u64 = 64;

/// The messages of a batch that were timed one by one.
#[derive(Debug, Clone, Copy, Default)]
struct Timed {
    messages: u32,
    time: Duration,
}

impl Timed {
    fn add(&mut self, took: Duration) {
        self.messages += 1;
        self.time += took;
    }
}

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
    /// Requests that wait for a slow back end, and those it has begun with in all, the latter before the last batch as
    /// well.
    tu: (u64, u64),
    tu_before: u64,
    started_ns: u64,
    busy_ns: u64,
    receiving: Duration,
    all: Timed,
    refused: Timed,
    dropped: Timed,
    /// Since the last batch.
    slept: Duration,
}

impl Congestion {
    pub(super) fn new(listeners: usize) -> Congestion {
        Congestion {
            queues: vec![Queue::EMPTY; listeners],
            streams: 0,
            batches: 0,
            bytes_sum: 500 * SPAN,
            lost: 0,
            tu: (0, 0),
            tu_before: 0,
            started_ns: 0,
            busy_ns: 0,
            receiving: Duration::ZERO,
            all: Timed::default(),
            refused: Timed::default(),
            dropped: Timed::default(),
            slept: Duration::ZERO,
        }
    }

    /// A batch of datagrams begins, with this many messages and bytes. `memory` is called if more may wait.
    pub(super) fn datagrams(
        &mut self,
        number: u16,
        (messages, bytes): (usize, usize),
        lost: u64,
        memory: Option<SocketMemory>,
    ) {
        let (messages, bytes) = (messages as u64, bytes as u64);
        if messages > 0 {
            let kept = SPAN.saturating_sub(messages.min(SPAN / 2));
            let average = self.bytes_sum / SPAN;
            self.bytes_sum = average * kept + bytes / messages * (SPAN - kept);
        }
        self.lost += lost;
        let Some(queue) = self.queues.get_mut(usize::from(number)) else {
            return;
        };
        match memory {
            Some(memory) => {
                let memory = (u64::from(memory.recv_used), u64::from(memory.recv_limit));
                queue.read(messages, memory);
            }
            None => queue.clear(),
        }
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

    /// `waiting` is how many requests wait for a back end of the transaction user, such as a database. `begun` is how
    /// many requests it has begun with since the start. To be called before a batch.
    pub(super) fn tu(&mut self, waiting: u64, begun: u64) {
        self.tu = (waiting, begun);
    }

    /// A batch begins: reports the backlog to the engine.
    pub(super) fn begin(&mut self, now: Now, engine: &mut Engine) {
        self.started_ns = now.mono.0;
        let (tu_waiting, begun) = self.tu;
        let before = std::mem::replace(&mut self.tu_before, begun);
        let queued: u64 = self.queues.iter().map(|queue| queue.waiting).sum();
        let backlog = Backlog {
            messages: queued + self.streams + self.batches,
            lost: std::mem::take(&mut self.lost),
            tu_waiting,
            tu_begun: u32::try_from(begun.saturating_sub(before)).unwrap_or(u32::MAX),
        };
        engine.observe_backlog(now, backlog);
    }

    /// How long all batches so far took, in nanoseconds.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// The worker had nothing to do for so long.
    pub(super) fn slept(&mut self, slept: Duration) {
        self.slept += slept;
    }

    /// Reports the time that was slept to the engine. It requires the time also without messages, because all may be
    /// filtered out.
    pub(super) fn report_idle_time(&mut self, engine: &mut Engine) {
        engine.observe_spare(std::mem::take(&mut self.slept));
    }

    /// Receiving the batch took so long.
    pub(super) fn received(&mut self, took: Duration) {
        self.receiving = took;
    }

    /// In an overload: a message took so long.
    pub(super) fn handled(&mut self, fate: MessageOutcome, took: Duration) {
        self.all.add(took);
        match fate {
            MessageOutcome::Served => {}
            MessageOutcome::Refused => self.refused.add(took),
            MessageOutcome::Dropped => self.dropped.add(took),
        }
    }

    /// A batch of `handled` messages ends, and the responses are sent. Reports its duration to the engine.
    pub(super) fn end(&mut self, handled: usize, engine: &mut Engine) {
        let batch = Duration::from_nanos(io::clock::monotonic_ns() - self.started_ns);
        let busy = batch + std::mem::take(&mut self.receiving);
        self.busy_ns += busy.as_nanos() as u64;
        let [all, refused, dropped] =
            [&mut self.all, &mut self.refused, &mut self.dropped].map(std::mem::take);
        // Receiving and sending belong to all of them alike.
        let handled = u32::try_from(handled).unwrap_or(u32::MAX);
        let shared = busy.saturating_sub(all.time) / handled.max(1);
        let refusing = refused.time + shared * refused.messages;
        let dropping = dropped.time + shared * dropped.messages;
        engine.observe_refusals(refused.messages, refusing);
        engine.observe_spare(refusing + dropping);
        let served = handled.saturating_sub(refused.messages + dropped.messages);
        engine.observe_service(served, busy.saturating_sub(refusing + dropping));
        self.report_idle_time(engine);
    }
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageOutcome {
    Served,
    /// With a 503.
    Refused,
    Dropped,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that gives memory back when a quarter of its limit is owed.
    fn run(queue: &mut Queue, each: u64, waiting: u64, arrivals: u64) -> u64 {
        const LIMIT: u64 = 8 << 20;
        let (mut used, mut owed, mut waiting) = (waiting * each, 0, waiting);
        let mut off = 0;
        for batch in 0..2000 {
            used += arrivals * each;
            waiting += arrivals;
            owed += 16 * each;
            waiting -= 16;
            if owed >= LIMIT / 4 {
                used -= owed;
                owed = 0;
            }
            queue.read(16, (used, LIMIT));
            if batch >= 1000 {
                off = off.max(queue.waiting.abs_diff(waiting) * 100 / waiting);
            }
        }
        off
    }

    #[test]
    fn memory_per_message_is_measured_whatever_the_driver_allocates() {
        for each in [832, 1280, 2304, 4352, 9000] {
            let mut queue = Queue::EMPTY;
            // What comes in equals what is read, or is twice as much.
            for (waiting, arrivals) in [(3200, 16), (3200, 32)] {
                let off = run(&mut queue, each, waiting, arrivals);
                assert!(off <= 15, "{each} bytes, {arrivals} arrivals: {off} % off");
            }
            assert!(
                queue.each.abs_diff(each) * 10 <= each,
                "{} for {each}",
                queue.each
            );
        }
    }

    /// Needs a receive buffer like that of a listener, which the kernel grants only to CAP_NET_ADMIN or up to
    /// net.core.rmem_max.
    #[test]
    fn messages_that_wait_in_a_socket_are_counted() {
        let options = io::UdpOptions {
            recv_buffer: Some(4 << 20),
            ..io::UdpOptions::default()
        };
        let receiver = io::UdpSocket::bind(([127, 0, 0, 1], 0).into(), &options)
            .expect("loopback has free ports");
        let sender = std::net::UdpSocket::bind("127.0.0.1:0").expect("loopback has free ports");
        sender.connect(receiver.local_addr()).expect("a route");
        let memory = |receiver: &io::UdpSocket| {
            let memory = receiver.memory().expect("a socket");
            (u64::from(memory.recv_used), u64::from(memory.recv_limit))
        };
        let mut batch = io::RecvBatch::new(16, 2048);
        let mut queue = Queue::EMPTY;
        for bytes in [100, 700, 1400, 300] {
            // A quarter of the buffer.
            let many = memory(&receiver).1 / 2304 / 4;
            let (mut waiting, mut worst) = (0, 0);
            for batches in 0..1000 {
                while waiting < many {
                    sender.send(&vec![b'x'; bytes]).expect("sent");
                    waiting += 1;
                }
                let read = receiver.recv_up_to(16, 0, &mut batch);
                let read = read.expect("there are some") as u64;
                batch.clear();
                waiting -= read;
                queue.read(read, memory(&receiver));
                if batches > 700 {
                    worst = worst.max(queue.waiting.abs_diff(waiting) * 100 / many);
                }
            }
            while receiver
                .recv_up_to(16, 0, &mut batch)
                .is_ok_and(|read| read > 0)
            {
                batch.clear();
            }
            queue.clear();
            assert!(
                worst <= 20,
                "{bytes} bytes: {worst} % off {many}, {queue:?}"
            );
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
