//! The measurements for admission control: how many messages wait, in the sockets and here, and how long messages take.
//!
//! The kernel does not report how many datagrams wait in a socket. It reports how much memory they use (SO_MEMINFO),
//! which depends on the driver of the network card. The kernel frees the memory of datagrams late and in lumps
//! (`udp_rmem_release`). It does so when the socket has read all that waited at the last time, or a quarter of the
//! limit. The size of each lump shows how much memory a message uses.

use io::SocketMemory;
use sip::Now;
use sip::congestion::Backlog;
use sip::engine::{DropReason, Engine, Received};
use std::time::Duration;

/// The assumed memory of a datagram until the first measurement: that of 500 to 1,500 bytes over loopback, as measured.
const DEFAULT_MESSAGE_MEMORY_BYTES: u64 = 2304;
/// A lump counts if it is at least this many times the growth of memory since the last batch.
const MIN_LUMP_FACTOR: u64 = 2;
/// A lump counts if at least this many messages were read since the last lump: those of two batches.
const MIN_LUMP_MESSAGES: u64 = 32;

/// One socket's receive buffer.
#[derive(Debug, Clone, Copy)]
struct ReceiveQueue {
    waiting: u64,
    /// Bytes of memory that one message uses.
    each: u64,
    /// Messages read since the kernel last freed memory.
    read: u64,
    /// The memory after the last batch, and its growth in that batch.
    used: u64,
    growth: u64,
}

impl ReceiveQueue {
    const EMPTY: ReceiveQueue = ReceiveQueue {
        waiting: 0,
        each: DEFAULT_MESSAGE_MEMORY_BYTES,
        read: 0,
        used: 0,
        growth: 0,
    };

    /// Notes that `messages` datagrams were read, and that the socket uses `used` of `limit` bytes now.
    fn read(&mut self, messages: u64, (used, limit): (u64, u64)) {
        self.read += messages;
        if used >= self.used {
            self.growth = used - self.used;
        } else {
            let lump = self.used + self.growth - used;
            if self.read >= MIN_LUMP_MESSAGES && lump >= MIN_LUMP_FACTOR * self.growth {
                self.each = (self.each + lump / self.read).div_ceil(2).max(1);
            }
            self.read = 0;
        }
        self.used = used;
        // The kernel frees memory at the latest when it owes a quarter of the limit.
        let owed = (self.read * self.each).min(limit / 4);
        self.waiting = used.saturating_sub(owed) / self.each;
    }

    /// Notes that the socket is empty.
    fn clear(&mut self) {
        *self = ReceiveQueue {
            each: self.each,
            ..ReceiveQueue::EMPTY
        };
    }
}

/// The average length of messages is that of the last 64 messages, which are four batches.
const AVERAGED_MESSAGES: u64 = 64;

/// So long after a 503, its ACK may come: the INVITE is retransmitted for 64 * T1 (RFC 3261 §17.1.1.2, timer B).
const MAX_ACK_DELAY_NS: u64 = 32_000_000_000;

/// The messages of a batch that were timed one by one.
#[derive(Debug, Clone, Copy, Default)]
struct TimedMessages {
    messages: u32,
    time: Duration,
}

impl TimedMessages {
    fn add(&mut self, took: Duration) {
        self.messages += 1;
        self.time += took;
    }

    /// The measured time, plus `each` for every message.
    fn total(&self, each: Duration) -> Duration {
        self.time + each * self.messages
    }
}

/// The measurements of one worker.
#[derive(Debug)]
pub(super) struct Congestion {
    queues: Vec<ReceiveQueue>,
    /// Messages that wait in the current connection and in those that are not read yet.
    streams: u64,
    /// Messages that other workers have handed over.
    batches: u64,
    /// The average length of a message, times [`AVERAGED_MESSAGES`].
    bytes_sum: u64,
    lost: u64,
    /// Requests that wait for a slow back end, and those that the back end has begun since the start.
    tu: (u64, u64),
    /// Those that it had begun before the last batch.
    tu_before: u64,
    started_ns: u64,
    /// When the last batch, or the last work that belongs to no message, has ended.
    ended_ns: u64,
    busy_ns: u64,
    receiving: Duration,
    all: TimedMessages,
    refused: TimedMessages,
    /// ACKs for 503s. Their time is part of the cost of the 503s.
    acks: TimedMessages,
    /// The time of 503s and of their ACKs that is not reported to the engine yet.
    refusing: Duration,
    /// 503s for INVITE without an ACK yet. The count is cleared 32 s after the last such 503. Anybody can repeat an ACK,
    /// and a repeated one does not belong to a 503.
    expected_acks: u64,
    /// When the batch began that has sent the last one of them.
    refused_at_ns: u64,
    dropped: TimedMessages,
    /// Messages sent since the batch began.
    sent: u32,
    /// When the worker has begun to send what the batch has queued. Zero without an overload.
    sending_ns: u64,
    /// Idle time since the last batch.
    slept: Duration,
}

impl Congestion {
    pub(super) fn new(listeners: usize) -> Congestion {
        Congestion {
            queues: vec![ReceiveQueue::EMPTY; listeners],
            streams: 0,
            batches: 0,
            bytes_sum: 500 * AVERAGED_MESSAGES,
            lost: 0,
            tu: (0, 0),
            tu_before: 0,
            started_ns: 0,
            ended_ns: 0,
            busy_ns: 0,
            receiving: Duration::ZERO,
            all: TimedMessages::default(),
            refused: TimedMessages::default(),
            acks: TimedMessages::default(),
            refusing: Duration::ZERO,
            expected_acks: 0,
            refused_at_ns: 0,
            dropped: TimedMessages::default(),
            sent: 0,
            sending_ns: 0,
            slept: Duration::ZERO,
        }
    }

    /// Notes the size of a batch of datagrams. `memory` is that of the socket, if more datagrams may wait.
    pub(super) fn note_datagrams(
        &mut self,
        number: u16,
        (messages, bytes): (usize, usize),
        lost: u64,
        memory: Option<SocketMemory>,
    ) {
        let (messages, bytes) = (messages as u64, bytes as u64);
        if messages > 0 {
            let kept = AVERAGED_MESSAGES.saturating_sub(messages.min(AVERAGED_MESSAGES / 2));
            let average = self.bytes_sum / AVERAGED_MESSAGES;
            self.bytes_sum = average * kept + bytes / messages * (AVERAGED_MESSAGES - kept);
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

    /// Notes that `bytes` of a connection wait to be handled, and that `others` more connections are ready.
    pub(super) fn note_stream(&mut self, bytes: usize, others: usize) {
        let each = (self.bytes_sum / AVERAGED_MESSAGES).max(1);
        self.streams = bytes as u64 / each + others as u64;
    }

    /// Notes how many messages of other workers wait here.
    pub(super) fn note_batches(&mut self, waiting: usize) {
        self.batches = waiting as u64;
    }

    /// Notes that no connection waits any more.
    pub(super) fn clear_streams(&mut self) {
        self.streams = 0;
    }

    /// Notes work that belongs to no message: a TLS handshake, or new connections. It can take much longer than a
    /// message, so the batch after it must not include its time.
    pub(super) fn note_other(&mut self, started_ns: u64, ended_ns: u64) {
        self.busy_ns += ended_ns - started_ns;
        self.ended_ns = ended_ns;
    }

    /// Notes the load of the transaction user, before each batch. `waiting` requests wait for its back end, such as a
    /// database. It has begun `begun` requests since the start.
    pub(super) fn note_tu_load(&mut self, waiting: u64, begun: u64) {
        self.tu = (waiting, begun);
    }

    /// Reports the backlog to the engine, because a batch begins. It begins at `now`, or later, when the last batch or
    /// other work has ended. `now` may be the start of the turn, and no time must count twice.
    pub(super) fn begin(&mut self, now: Now, engine: &mut Engine) {
        self.started_ns = now.mono.0.max(self.ended_ns);
        // What timers have sent is not part of the batch.
        (self.sent, self.sending_ns) = (0, 0);
        if self.started_ns - self.refused_at_ns > MAX_ACK_DELAY_NS {
            self.expected_acks = 0;
            self.refusing = Duration::ZERO;
        }
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

    /// The time of all batches and of [`Congestion::note_other`] so far, in nanoseconds.
    pub(super) fn busy_ns(&self) -> u64 {
        self.busy_ns
    }

    /// Adds a time in which the worker was idle.
    pub(super) fn add_idle_time(&mut self, slept: Duration) {
        self.slept += slept;
    }

    /// Reports the idle time to the engine. The engine requires it also without messages, because the filter may drop
    /// all.
    pub(super) fn report_idle_time(&mut self, engine: &mut Engine) {
        engine.observe_spare(std::mem::take(&mut self.slept));
    }

    /// Notes how long the receive call of the batch took, if that was before the time that [`Congestion::begin`] gets.
    pub(super) fn note_receive_time(&mut self, took: Duration) {
        self.receiving = took;
    }

    /// Counts a message that was sent.
    pub(super) fn count_sent(&mut self) {
        self.sent = self.sent.saturating_add(1);
    }

    /// Notes that all messages of the batch are handled, and that the worker sends what they have queued. Called in an
    /// overload only.
    pub(super) fn begin_sending(&mut self) {
        self.sending_ns = io::clock::monotonic_ns();
    }

    /// Adds the time of one message. Called in an overload only. An ACK is part of the cost of 503s only if a 503 waits
    /// for one.
    pub(super) fn add_message(&mut self, outcome: MessageOutcome, took: Duration) {
        self.all.add(took);
        match outcome {
            MessageOutcome::Served => {}
            MessageOutcome::Refused { expects_ack } => {
                self.refused.add(took);
                if expects_ack {
                    self.expected_acks += 1;
                    self.refused_at_ns = self.started_ns;
                }
            }
            MessageOutcome::AckOfRefusal if self.expected_acks == 0 => {}
            MessageOutcome::AckOfRefusal => {
                self.expected_acks -= 1;
                self.acks.add(took);
            }
            MessageOutcome::Dropped => self.dropped.add(took),
        }
    }

    /// Reports a batch of `handled` messages to the engine: the time of refusals, the unused time and the time of service.
    /// Called after its responses were sent.
    pub(super) fn end(&mut self, handled: usize, engine: &mut Engine) {
        self.ended_ns = io::clock::monotonic_ns();
        let batch = Duration::from_nanos(self.ended_ns - self.started_ns);
        let sending = match self.sending_ns {
            0 => Duration::ZERO,
            begun_ns => Duration::from_nanos(self.ended_ns - begun_ns),
        };
        let receiving = std::mem::take(&mut self.receiving);
        let busy = batch + receiving;
        self.busy_ns += busy.as_nanos() as u64;
        let [all, refused, acks, dropped] = [
            &mut self.all,
            &mut self.refused,
            &mut self.acks,
            &mut self.dropped,
        ]
        .map(std::mem::take);
        // The messages that were sent share the time of sending: an ACK has no response, and a proxied request has two
        // messages. All messages share the rest, which is mostly that of receiving.
        let handled = u32::try_from(handled).unwrap_or(u32::MAX);
        let each = busy.saturating_sub(all.time + sending) / handled.max(1);
        let sent_each = sending / self.sent.max(1);
        let refusals = refused.messages + acks.messages;
        let refusing = refused.total(each + sent_each) + acks.total(each);
        let dropping = dropped.total(each);
        self.refusing += refusing;
        if refused.messages > 0 {
            engine.observe_refusals(refused.messages, std::mem::take(&mut self.refusing));
        }
        engine.observe_spare(refusing + dropping);
        let served = handled.saturating_sub(refusals + dropped.messages);
        engine.observe_service(served, busy.saturating_sub(refusing + dropping));
        self.report_idle_time(engine);
    }
}

/// What became of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageOutcome {
    Served,
    /// With a 503, which has an ACK if the request is an INVITE (RFC 3261 §17.1.1.3).
    Refused {
        expects_ack: bool,
    },
    /// The ACK for a 503.
    AckOfRefusal,
    Dropped,
}

impl MessageOutcome {
    /// The outcome of the message that the engine has received as `received`.
    pub(super) fn of(received: &Received<'_>, message: &[u8]) -> MessageOutcome {
        match received {
            Received::Refused(503) => MessageOutcome::Refused {
                expects_ack: message.starts_with(b"INVITE "),
            },
            Received::AckOfRefusal => MessageOutcome::AckOfRefusal,
            Received::Dropped(DropReason::Shed) => MessageOutcome::Dropped,
            _ => MessageOutcome::Served,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a kernel that frees memory when it owes a quarter of its limit. Returns the largest error in percent.
    fn run(queue: &mut ReceiveQueue, each: u64, waiting: u64, arrivals: u64) -> u64 {
        const RECV_BUFFER_BYTES: u64 = 8 << 20;
        let (mut used, mut owed, mut waiting) = (waiting * each, 0, waiting);
        let mut off = 0;
        for batch in 0..2000 {
            used += arrivals * each;
            waiting += arrivals;
            owed += 16 * each;
            waiting -= 16;
            if owed >= RECV_BUFFER_BYTES / 4 {
                used -= owed;
                owed = 0;
            }
            queue.read(16, (used, RECV_BUFFER_BYTES));
            if batch >= 1000 {
                off = off.max(queue.waiting.abs_diff(waiting) * 100 / waiting);
            }
        }
        off
    }

    #[test]
    fn memory_per_message_is_measured_whatever_the_driver_allocates() {
        for each in [832, 1280, 2304, 4352, 9000] {
            let mut queue = ReceiveQueue::EMPTY;
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

    /// Requires the receive buffer of a listener. The kernel grants it with CAP_NET_ADMIN, or up to net.core.rmem_max.
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
        let mut queue = ReceiveQueue::EMPTY;
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

    /// Twenty connections are ready in each turn. Each has a handshake and one message.
    #[test]
    fn the_time_of_a_message_is_neither_that_of_other_connections_nor_that_of_handshakes() {
        let spin = |time: Duration| {
            let started = io::clock::monotonic_ns();
            while io::clock::monotonic_ns() - started < time.as_nanos() as u64 {}
            started
        };
        let mut congestion = Congestion::new(1);
        let mut engine = Engine::new(sip::engine::Config::new(0, sip::HashKey::new([7; 16])), 7);
        let mut batches_ns = 0;
        for _ in 0..100 {
            let now = Now {
                mono: sip::Mono(io::clock::monotonic_ns()),
                unix_s: 1_800_000_000,
            };
            for _ in 0..20 {
                let handshake = spin(Duration::from_micros(200));
                let started = io::clock::monotonic_ns();
                congestion.note_other(handshake, started);
                congestion.begin(now, &mut engine);
                spin(Duration::from_micros(10));
                congestion.end(1, &mut engine);
                batches_ns += io::clock::monotonic_ns() - started;
            }
        }
        let average = Duration::from_nanos(batches_ns / 2000);
        let found = engine.service_time();
        assert!(found <= average * 2, "{found:?}, not {average:?}");
        assert!(congestion.busy_ns() >= 2000 * 210_000);
    }

    #[test]
    fn each_503_for_an_invite_pays_for_one_ack() {
        let mut congestion = Congestion::new(1);
        congestion.started_ns = io::clock::monotonic_ns();
        let mut engine = Engine::new(sip::engine::Config::new(0, sip::HashKey::new([7; 16])), 7);
        let mut add = |outcome, times| {
            for _ in 0..times {
                congestion.add_message(outcome, Duration::from_micros(10));
            }
        };
        add(MessageOutcome::Refused { expects_ack: true }, 2);
        add(MessageOutcome::Refused { expects_ack: false }, 3);
        add(MessageOutcome::AckOfRefusal, 10);
        assert_eq!(congestion.refused.messages, 5);
        assert_eq!(congestion.acks.messages, 2);
        congestion.end(15, &mut engine);
        // A 503 waits for its ACK for 32 s.
        let mut acks_after = |delay_ns| {
            congestion.add_message(
                MessageOutcome::Refused { expects_ack: true },
                Duration::ZERO,
            );
            let now = Now {
                mono: sip::Mono(congestion.refused_at_ns + delay_ns),
                unix_s: 1_800_000_000,
            };
            congestion.begin(now, &mut engine);
            congestion.add_message(MessageOutcome::AckOfRefusal, Duration::ZERO);
            std::mem::take(&mut congestion.acks).messages
        };
        assert_eq!(acks_after(MAX_ACK_DELAY_NS / 2), 1);
        assert_eq!(acks_after(MAX_ACK_DELAY_NS + 1), 0);
    }

    /// The batch has an ACK, and 15 messages that are dropped. What is sent answers none of them.
    #[test]
    fn a_message_pays_neither_for_the_others_nor_for_what_it_does_not_send() {
        let spin = |time: Duration| {
            let started = io::clock::monotonic_ns();
            while io::clock::monotonic_ns() - started < time.as_nanos() as u64 {}
        };
        let mut congestion = Congestion::new(1);
        let mut engine = Engine::new(sip::engine::Config::new(0, sip::HashKey::new([7; 16])), 7);
        congestion.started_ns = io::clock::monotonic_ns();
        congestion.expected_acks = 1;
        spin(Duration::from_millis(16));
        for _ in 0..15 {
            congestion.add_message(MessageOutcome::Dropped, Duration::ZERO);
        }
        congestion.add_message(MessageOutcome::AckOfRefusal, Duration::ZERO);
        congestion.begin_sending();
        congestion.count_sent();
        let handled = Duration::from_nanos(congestion.sending_ns - congestion.started_ns);
        spin(handled * 4);
        congestion.end(16, &mut engine);
        let expected = handled / 16;
        let off = congestion.refusing.abs_diff(expected);
        assert!(
            off * 10 < expected,
            "{:?}, not {expected:?}",
            congestion.refusing
        );
    }

    #[test]
    fn averages_follow_what_comes() {
        let mut congestion = Congestion::new(1);
        for _ in 0..32 {
            congestion.note_datagrams(0, (16, 16 * 1000), 0, None);
        }
        let average = congestion.bytes_sum / AVERAGED_MESSAGES;
        assert!((980..=1000).contains(&average), "{average}");
    }
}
