//! A thread of the answering side.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use io::{Events, Interest, Poller, clock};

use super::answerer::Answerer;
use super::counts::{Count, WorkerCounts};
use super::socket::Socket;
use super::stream::{Listener, Streams};
use super::{UasError, UasOptions};
use crate::sip::Transport;

/// Longest wait, so that a stop is noticed.
const MAX_SLEEP: Duration = Duration::from_millis(20);
/// Tokens of the poller: sockets from 0, listeners from here, connections from there.
const FIRST_LISTENER: u64 = 1 << 32;
const FIRST_CONNECTION: u64 = 1 << 33;

/// A worker before it starts.
#[derive(Debug)]
pub(super) struct Worker {
    poller: Poller,
    sockets: Vec<Socket>,
    listeners: Vec<Listener>,
    streams: Streams,
    answerer: Answerer,
}

impl Worker {
    /// Binds a socket and a listener on each address; ports that were 0 become what they are.
    pub(super) fn bind(
        addresses: &mut [SocketAddr],
        options: &UasOptions,
    ) -> Result<Worker, UasError> {
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
                .and_then(|()| {
                    poller.add(listener.source(), FIRST_LISTENER + token, Interest::Read)
                })
                .map_err(UasError::Thread)?;
            sockets.push(socket);
            listeners.push(listener);
        }
        let mut answerer = Answerer::new(options.ring);
        if let Some(realm) = &options.challenge {
            answerer.challenge(realm);
        }
        Ok(Worker {
            poller,
            sockets,
            listeners,
            streams: Streams::new(FIRST_CONNECTION),
            answerer,
        })
    }

    pub(super) fn counts(&self) -> Arc<WorkerCounts> {
        self.answerer.counts.clone()
    }

    pub(super) fn run(mut self, stop: &AtomicBool) {
        let mut events = Events::with_capacity(256);
        while !stop.load(Ordering::Relaxed) {
            let now_ns = clock::monotonic_ns();
            let next = self.answerer.calls.next_deadline();
            let wait = next.map_or(MAX_SLEEP, |at| {
                Duration::from_nanos(at.saturating_sub(now_ns))
            });
            if self
                .poller
                .wait(&mut events, Some(wait.min(MAX_SLEEP)))
                .is_err()
            {
                return;
            }
            for event in events.iter() {
                match event.token {
                    token if token >= FIRST_CONNECTION => {
                        self.streams.serve(event, &self.poller, &mut self.answerer);
                    }
                    token if token >= FIRST_LISTENER => {
                        let listener = &self.listeners[(token - FIRST_LISTENER) as usize];
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
        let counts = self.answerer.counts.clone();
        while let Some(due) = self.answerer.calls.pop_due(now_ns) {
            counts.add(Count::Responses, 1);
            counts.add(Count::Retransmissions, u64::from(due.again));
            match self.sockets.get_mut(due.link as usize) {
                Some(socket) => socket.send(due.to, due.message),
                None => self
                    .streams
                    .send(due.link, due.to, due.message, &self.poller),
            }
        }
        let given_up = std::mem::take(&mut self.answerer.calls.unacknowledged);
        counts.add(Count::Unacknowledged, given_up);
    }
}
