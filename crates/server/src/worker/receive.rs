//! Reads the ready sockets of a worker, and handles the datagrams they have.

use super::batch_limit::HandledBatch;
use super::session::Session;
use super::{BatchLimit, PortSocket, Token, Worker};
use io::{Event, Events};
use turn::RelayKey;

/// With this many messages at once from one relay, UDP_GRO saves time for the next ones.
const TRAIN_MESSAGES: usize = 4;

impl Worker {
    /// Reads every ready socket once. Returns whether the mailbox is ready, too.
    pub(super) fn receive(&mut self, events: &Events) -> bool {
        let mut has_mail = false;
        let each = self.batch_limit.per_relay(events.len());
        let (mut relays, mut messages, mut listeners_read) = (0, 0, 0);
        for event in events.iter() {
            if self.batch.len() >= self.batch_limit.limit() {
                self.handle_batch();
            }
            match Token::from_u64(event.token) {
                Token::Mailbox => has_mail = true,
                Token::Listener(number) => {
                    self.make_room();
                    self.read_listener(number, event);
                    listeners_read += 1;
                }
                Token::Shared(number) => {
                    self.make_room();
                    // As for a relay's own socket.
                    if event.error {
                        self.read_icmp_of_shared(number);
                    }
                    self.read_shared_port(number, event);
                }
                // Read after the datagrams.
                Token::Accept(_)
                | Token::Connection(_)
                | Token::TcpRelay(_)
                | Token::Peer(_)
                | Token::Data(_) => {}
                Token::Sip(token) => {
                    if let Some(sip) = &mut self.sip {
                        sip.ready(token, event);
                    }
                }
                Token::Relay(key) => {
                    if each >= self.batch_limit.limit() {
                        self.make_room();
                    }
                    // First, as an error that waits makes the next call fail, and is reported until it is fetched.
                    if event.error {
                        self.read_icmp(key);
                    }
                    relays += 1;
                    messages += self.read_relay(key, event, each);
                }
            }
        }
        if events.is_full() && listeners_read < self.sockets.listeners.len() {
            self.read_all_listeners();
        }
        self.handle_batch();
        if each > 1 {
            self.batch_limit.relays_read(relays, messages);
        }
        has_mail
    }

    /// More sockets are ready than epoll reports in one wake-up, so listeners may be among the others. A flood of new
    /// connections must not delay datagrams.
    #[cold]
    fn read_all_listeners(&mut self) {
        for number in 0..self.sockets.listeners.len() as u32 {
            self.make_room();
            self.read_listener(number, Event::readable(Token::Listener(number).as_u64()));
        }
    }

    /// A socket that may fill a batch gets at least half of one. Otherwise the last of several busy sockets would get
    /// only the room that the others leave, at every wake-up, because their order does not change.
    fn make_room(&mut self) {
        if self.batch.len() * 2 > self.batch_limit.limit() {
            self.handle_batch();
        }
    }

    fn read_listener(&mut self, number: u32, event: Event) {
        let Some(listener) = self.sockets.listeners.get_mut(number as usize) else {
            return;
        };
        let overflow = self.batch.overflow();
        let room = self.batch_limit.limit() - self.batch.len();
        let result = listener.receive(room, event.token, &mut self.batch);
        self.core.counters.listener_overflow += self.batch.overflow() - overflow;
        self.core.counters.receive_errors += u64::from(failed(&result));
    }

    fn read_shared_port(&mut self, number: u16, event: Event) {
        let Some(port) = self.sockets.shared.get_mut(usize::from(number)) else {
            return;
        };
        let overflow = self.batch.overflow();
        let room = self.batch_limit.limit() - self.batch.len();
        let result = port.listener.receive(room, event.token, &mut self.batch);
        self.core.counters.relay_overflow += self.batch.overflow() - overflow;
        self.core.counters.receive_errors += u64::from(failed(&result));
    }

    /// Returns how many messages came.
    fn read_relay(&mut self, key: RelayKey, event: Event, each: usize) -> usize {
        let relay = self.sockets.relays.get(key);
        let Some(PortSocket::Own(socket)) = relay.map(|relay| &relay.socket) else {
            self.core.counters.stale_events += 1;
            return 0;
        };
        let overflow = self.batch.overflow();
        let result = if each == 1 {
            socket.recv_one(event.token, &mut self.batch)
        } else {
            let room = self.batch_limit.limit() - self.batch.len();
            socket.recv_up_to(room.min(each), event.token, &mut self.batch)
        };
        let messages = *result.as_ref().unwrap_or(&0);
        if messages >= TRAIN_MESSAGES && self.core.opener.gro && !socket.gro() {
            // Without it the next train merely comes as single datagrams, too.
            let _ = socket.set_gro(true);
        } else if !self.core.opener.gro && socket.gro() {
            // After a fallback to tc. While a datagram waits it stays on, and the next receive tries again.
            let _ = io::stop_joining(socket);
        }
        self.core.counters.relay_overflow += self.batch.overflow() - overflow;
        self.core.counters.receive_errors += u64::from(failed(&result));
        messages
    }

    /// Handles what the batch holds, and empties it.
    fn handle_batch(&mut self) {
        if self.batch.is_empty() {
            return;
        }
        let mut session = Session::new(&mut self.core, &self.sockets, &mut self.queue);
        let mut relayed = 0;
        let mut handled = 0;
        while handled < self.batch.len() {
            let next = session.read_ahead(&self.batch, handled);
            for received in self.batch.range(handled..next) {
                if received.truncated {
                    session.core.counters.truncated += 1;
                    continue;
                }
                match Token::from_u64(received.tag) {
                    Token::Listener(number) if session.is_dtls(number, received.bytes) => {
                        session.client_sent_dtls(number, &received);
                    }
                    Token::Listener(number) => session.client_sent(number, &received),
                    Token::Relay(relay) => session.peer_sent(relay, &received),
                    Token::Shared(number) => session.peer_sent_to_shared(number, &received),
                    _ => {}
                }
                relayed += usize::from(std::mem::take(&mut session.relayed));
            }
            handled = next;
        }
        let flushed = session.out.flush();
        let handled = HandledBatch {
            held: self.batch.len(),
            relayed,
            sent: flushed.sent,
            sends: flushed.sends(),
        };
        drop(session);
        self.batch.clear();
        if self.batch_limit.judge(&handled) {
            self.batch.shrink(BatchLimit::MIN);
        }
        self.apply_changes();
        self.handle_dtls_messages();
    }
}

/// A receive failed, other than for want of datagrams.
fn failed(result: &std::io::Result<usize>) -> bool {
    result
        .as_ref()
        .is_err_and(|error| error.kind() != std::io::ErrorKind::WouldBlock)
}
