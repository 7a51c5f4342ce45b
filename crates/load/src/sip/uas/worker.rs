//! A thread of the answering side.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use io::{Events, Interest, Poller, clock};

use super::UasError;
use super::answer::{Ends, Method, respond};
use super::calls::Calls;
use super::counts::{Board, Count};
use super::socket::Socket;
use super::stream::{Listener, Streams};
use crate::sip::Transport;
use crate::sip::lines::Lines;
use crate::sip::out::Out;

/// Longest wait, so that a stop is noticed.
const NAP: Duration = Duration::from_millis(20);
/// Tokens of the poller: sockets from 0, listeners from here, connections from there.
const LISTENERS: u64 = 1 << 32;
const CONNECTIONS: u64 = 1 << 33;

/// A worker before it starts.
#[derive(Debug)]
pub(super) struct Worker {
    poller: Poller,
    sockets: Vec<Socket>,
    listeners: Vec<Listener>,
    streams: Streams,
    answerer: Answerer,
}

/// What answers; knows nothing of sockets.
#[derive(Debug)]
pub(super) struct Answerer {
    calls: Calls,
    ring_ns: u64,
    hasher: RandomState,
    early: Vec<u8>,
    answer: Vec<u8>,
    pub(super) board: Arc<Board>,
}

impl Worker {
    /// Binds a socket and a listener on each address; ports that were 0 become what they are.
    pub(super) fn bind(addresses: &mut [SocketAddr], ring: Duration) -> Result<Worker, UasError> {
        let poller = Poller::new().map_err(UasError::Thread)?;
        let (mut sockets, mut listeners) = (Vec::new(), Vec::new());
        for (index, address) in addresses.iter_mut().enumerate() {
            let refused = |transport| {
                let address = *address;
                move |source| UasError::Listen {
                    address,
                    transport,
                    source,
                }
            };
            let socket = Socket::bind(*address).map_err(refused(Transport::Udp))?;
            let bound = socket.local_addr();
            let listener = Listener::bind(bound).map_err(refused(Transport::Tcp))?;
            *address = bound;
            let token = index as u64;
            poller
                .add(socket.source(), token, Interest::Read)
                .and_then(|()| poller.add(listener.source(), LISTENERS + token, Interest::Read))
                .map_err(UasError::Thread)?;
            sockets.push(socket);
            listeners.push(listener);
        }
        let answerer = Answerer {
            calls: Calls::new(),
            ring_ns: ring.as_nanos() as u64,
            hasher: RandomState::new(),
            early: Vec::new(),
            answer: Vec::new(),
            board: Arc::default(),
        };
        Ok(Worker {
            poller,
            sockets,
            listeners,
            streams: Streams::new(CONNECTIONS),
            answerer,
        })
    }

    pub(super) fn board(&self) -> Arc<Board> {
        self.answerer.board.clone()
    }

    pub(super) fn run(mut self, stop: &AtomicBool) {
        let mut events = Events::with_capacity(256);
        while !stop.load(Ordering::Relaxed) {
            let now_ns = clock::monotonic_ns();
            let next = self.answerer.calls.next_deadline();
            let wait = next.map_or(NAP, |at| Duration::from_nanos(at.saturating_sub(now_ns)));
            if self.poller.wait(&mut events, Some(wait.min(NAP))).is_err() {
                return;
            }
            for event in events.iter() {
                match event.token {
                    token if token >= CONNECTIONS => {
                        self.streams.serve(event, &self.poller, &mut self.answerer);
                    }
                    token if token >= LISTENERS => {
                        let listener = &self.listeners[(token - LISTENERS) as usize];
                        self.streams.accept(listener, &self.poller);
                    }
                    token => {
                        self.sockets[token as usize].serve(token as u32, &mut self.answerer);
                    }
                }
            }
            self.repeat();
        }
    }

    /// Sends what is due without a request.
    fn repeat(&mut self) {
        let now_ns = clock::monotonic_ns();
        let board = self.answerer.board.clone();
        while let Some(due) = self.answerer.calls.pop_due(now_ns) {
            board.add(Count::Responses, 1);
            board.add(Count::Retransmissions, u64::from(due.again));
            match self.sockets.get_mut(due.link as usize) {
                Some(socket) => socket.send(due.to, due.message),
                None => self
                    .streams
                    .send(due.link, due.to, due.message, &self.poller),
            }
        }
        let given_up = std::mem::take(&mut self.answerer.calls.unacknowledged);
        board.add(Count::Unacknowledged, given_up);
    }
}

impl Answerer {
    /// Takes a message and puts what answers it into `out`.
    pub(super) fn take(&mut self, link: u32, message: &[u8], ends: Ends, out: &mut Out) {
        let Some(method) = Method::of(message) else {
            self.board.add(Count::Ignored, 1);
            return;
        };
        let count = match method {
            Method::Options => Count::Options,
            Method::Register => Count::Register,
            Method::Bye => Count::Bye,
            Method::Invite => return self.invite(link, message, ends, out),
            Method::Ack => {
                self.board.add(Count::Ack, 1);
                let (key, _) = self.names(message);
                return self.calls.close(key);
            }
            Method::Cancel | Method::Other => Count::Other,
        };
        self.board.add(count, 1);
        // A CANCEL comes too late for a call that is picked up; RFC 3261 §9.2: 481 if there is nothing to cancel.
        let status: &[u8] = match method {
            Method::Cancel => b"481 Call/Transaction Does Not Exist",
            _ => b"200 OK",
        };
        let (_, tag) = self.names(message);
        out.write(link, ends.from, |into| {
            respond(into, message, method, status, tag, ends);
        });
        self.board.add(Count::Responses, 1);
    }

    fn invite(&mut self, link: u32, message: &[u8], ends: Ends, out: &mut Out) {
        let (key, tag) = self.names(message);
        if let Some(due) = self.calls.repeat(key) {
            self.board.add(Count::Repeated, 1);
            self.board.add(Count::Responses, 1);
            out.write(link, ends.from, |into| into.extend_from_slice(due.message));
            return;
        }
        self.board.add(Count::Invite, 1);
        self.early.clear();
        self.answer.clear();
        let method = Method::Invite;
        respond(&mut self.early, message, method, b"180 Ringing", tag, ends);
        respond(&mut self.answer, message, method, b"200 OK", tag, ends);
        out.write(link, ends.from, |into| into.extend_from_slice(&self.early));
        self.board.add(Count::Responses, 1);
        let now_ns = clock::monotonic_ns();
        let mut answer_ns = 0;
        if self.ring_ns > 0 {
            answer_ns = now_ns + self.ring_ns;
        } else {
            out.write(link, ends.from, |into| into.extend_from_slice(&self.answer));
            self.board.add(Count::Responses, 1);
        }
        let messages = (&self.early[..], &self.answer[..]);
        self.calls
            .open(key, (link, ends.from), messages, answer_ns, now_ns);
    }

    /// A key that an INVITE and its ACK share (Call-ID and the number in CSeq), and a tag that a retransmission gets again.
    fn names(&self, message: &[u8]) -> (u64, u64) {
        let mut hasher = self.hasher.build_hasher();
        let mut tag = 0;
        for line in Lines::of(message) {
            match line.name.first() {
                Some(b'C' | b'c' | b'i' | b'I') if line.is(b"Call-ID", b"i") => {
                    hasher.write(line.value);
                    tag = hasher.finish();
                }
                Some(b'C' | b'c') if line.is(b"CSeq", b"CSeq") => {
                    hasher.write_u64(crate::sip::lines::leading_number(line.value));
                }
                _ => {}
            }
        }
        (hasher.finish(), tag)
    }
}
