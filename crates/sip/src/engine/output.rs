//! What the engine asks of its embedder.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::Range;

use super::key::{ClientKey, ConnectKey, ServerKey};
use crate::flow::{ConnectionKey, Destination, Flow, ListenerKey};

/// A mark the TU puts on a transaction and gets back with each of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Mark(pub u64);

impl Mark {
    /// Bits of [`Mark::number`].
    const NUMBER_BITS: u32 = 56;

    /// A mark of one of several TUs that share an engine. Of the number, 56 bits count.
    #[must_use]
    pub const fn of(user: u8, number: u64) -> Mark {
        let number = number & ((1 << Mark::NUMBER_BITS) - 1);
        Mark((user as u64) << Mark::NUMBER_BITS | number)
    }

    /// The TU that it belongs to.
    #[must_use]
    pub const fn user(self) -> u8 {
        (self.0 >> Mark::NUMBER_BITS) as u8
    }

    /// What that TU calls it.
    #[must_use]
    pub const fn number(self) -> u64 {
        self.0 & ((1 << Mark::NUMBER_BITS) - 1)
    }
}

/// Where bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendTo {
    /// As a datagram.
    Datagram {
        /// From this socket.
        listener: ListenerKey,
        /// From this address of ours, if the socket has several; `None` leaves it to the kernel.
        local: Option<SocketAddr>,
        /// To this address.
        remote: SocketAddr,
    },
    /// Over this connection.
    Stream(ConnectionKey),
}

impl SendTo {
    /// Back by the way a message came, but to this address if it is a datagram.
    pub(super) fn back(flow: &Flow, remote: SocketAddr) -> SendTo {
        match flow.connection {
            Some(connection) => SendTo::Stream(connection),
            None => SendTo::Datagram {
                listener: flow.listener,
                local: Some(flow.local),
                remote,
            },
        }
    }
}

/// On whose behalf something is sent: to be named in `Engine::send_failed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Origin {
    /// A client transaction.
    Client(ClientKey),
    /// A server transaction.
    Server(ServerKey),
    /// None: nothing is lost that would not be sent again by somebody else.
    Nobody,
}

/// How a client transaction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClientFailure {
    /// No response, or no final one, in time: for a TU a 408 (RFC 3261 §8.1.3.1).
    TimedOut,
    /// The request could not be sent: for a TU a 503 (RFC 3261 §8.1.3.1).
    TransportFailed,
    /// The TU has cancelled it before it was sent: 487. Nothing of it will be sent.
    Cancelled,
}

/// How a server transaction failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ServerFailure {
    /// No ACK came for the final response, be it the transaction's or the TU's 2xx.
    NoAck,
    /// A response could not be sent. The transaction lives on (RFC 6026 §8.8).
    TransportFailed,
    /// The TU did not respond in time.
    Abandoned,
}

/// An event of a transaction for the TU, after its messages. Only transactions with a [`Mark`] have events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// A client transaction failed, and has ended.
    ClientFailed {
        /// Which.
        key: ClientKey,
        /// Its mark.
        mark: Mark,
        /// Why.
        failure: ClientFailure,
    },
    /// A client transaction has ended: no response will come of it any more.
    ClientEnded {
        /// Which.
        key: ClientKey,
        /// Its mark.
        mark: Mark,
    },
    /// A server transaction has a failure to report.
    ServerFailed {
        /// Which.
        key: ServerKey,
        /// Its mark.
        mark: Mark,
        /// Why.
        failure: ServerFailure,
    },
    /// What became of [`Engine::redirect`](super::Engine::redirect).
    Redirected {
        /// The mark that was given to it.
        mark: Mark,
        /// There was a connection, and the response went over it.
        sent: bool,
    },
    /// A server transaction has ended: it cannot be responded to any more.
    ServerEnded {
        /// Which.
        key: ServerKey,
        /// Its mark.
        mark: Mark,
    },
}

/// What the engine asks for, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Output<'a> {
    /// Send these bytes.
    Send {
        /// Where to.
        to: SendTo,
        /// On whose behalf.
        origin: Origin,
        /// A whole message.
        bytes: &'a [u8],
    },
    /// Open a connection; `Engine::connected` or `Engine::connect_failed` says how it went.
    Connect {
        /// To be named there.
        key: ConnectKey,
        /// Where to; over TLS, to whom. Who cannot prove that name there is not connected to (RFC 5922 §7.3).
        to: &'a Destination,
    },
    /// No ACK has arrived for a 2xx that was retransmitted until now. The TU must end the dialog with a BYE
    /// (RFC 3261 §13.3.1.4). Only if [`Reply::until_ack_from`](super::Reply::until_ack_from) named whom it would go to.
    /// The transaction ends with this.
    Unacknowledged {
        /// The path of the INVITE.
        flow: Flow,
        /// The 2xx: what a request within its dialog needs, but for
        response: &'a [u8],
        /// the URI of the INVITE's Contact.
        remote_target: &'a [u8],
    },
    /// The connection of a response is lost, and no new one can be had (RFC 3261 §18.2.2). The embedder tries the
    /// servers that sent-by names, with [`Engine::redirect`](super::Engine::redirect), or calls
    /// [`Engine::undeliverable`](super::Engine::undeliverable). Only with
    /// [`Config::redirects_responses`](super::Config::redirects_responses).
    Undelivered {
        /// Its transaction.
        server: ServerKey,
        /// Where it could not go.
        to: &'a Destination,
        /// The response.
        bytes: &'a [u8],
    },
    /// Close a connection when everything is written: nothing has used it for long, or its other end sends nothing more
    /// and has all its responses.
    Close(ConnectionKey),
    /// Tell the TU.
    Event(Event),
}

/// What the buffer may hold on to once all is done: more was a burst.
const KEEP_BYTES: usize = 1 << 20;
const KEEP_OUTPUTS: usize = 4096;

#[derive(Debug)]
enum Queued {
    Send {
        to: SendTo,
        origin: Origin,
        bytes: Range<usize>,
    },
    Unacknowledged {
        flow: Flow,
        bytes: Range<usize>,
        target_len: usize,
    },
    Undelivered {
        server: ServerKey,
        to: Destination,
        bytes: Range<usize>,
    },
    Connect {
        key: ConnectKey,
        to: Destination,
    },
    Other(Output<'static>),
}

/// The queue. Messages follow each other in one buffer that is reused. So a response allocates no memory.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    queue: VecDeque<Queued>,
    bytes: Vec<u8>,
    current: Option<Queued>,
}

impl Outputs {
    pub(super) fn send(&mut self, to: SendTo, origin: Origin, message: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(message);
        let bytes = start..self.bytes.len();
        self.queue.push_back(Queued::Send { to, origin, bytes });
    }

    pub(super) fn undelivered(&mut self, server: ServerKey, to: Destination, response: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(response);
        let bytes = start..self.bytes.len();
        self.queue
            .push_back(Queued::Undelivered { server, to, bytes });
    }

    /// `kept` is the 2xx and, behind it, the remote target.
    pub(super) fn unacknowledged(&mut self, flow: Flow, kept: &[u8], target_len: usize) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(kept);
        let bytes = start..self.bytes.len();
        self.queue.push_back(Queued::Unacknowledged {
            flow,
            bytes,
            target_len,
        });
    }

    pub(super) fn connect(&mut self, key: ConnectKey, to: Destination) {
        self.queue.push_back(Queued::Connect { key, to });
    }

    /// Queues what has no bytes.
    pub(super) fn push(&mut self, output: Output<'static>) {
        self.queue.push_back(Queued::Other(output));
    }

    pub(super) fn event(&mut self, event: Event) {
        self.push(Output::Event(event));
    }

    /// The next output; when there is none, the buffer is emptied.
    pub(super) fn poll(&mut self) -> Option<Output<'_>> {
        self.current = self.queue.pop_front();
        match &self.current {
            None => {
                self.bytes.clear();
                if self.bytes.capacity() > KEEP_BYTES {
                    self.bytes.shrink_to(KEEP_BYTES);
                }
                if self.queue.capacity() > KEEP_OUTPUTS {
                    self.queue.shrink_to(KEEP_OUTPUTS);
                }
                None
            }
            Some(Queued::Send { to, origin, bytes }) => Some(Output::Send {
                to: *to,
                origin: *origin,
                bytes: self.bytes.get(bytes.clone()).unwrap_or_default(),
            }),
            Some(Queued::Unacknowledged {
                flow,
                bytes,
                target_len,
            }) => {
                let kept = self.bytes.get(bytes.clone()).unwrap_or_default();
                let (response, remote_target) =
                    kept.split_at_checked(kept.len().saturating_sub(*target_len))?;
                Some(Output::Unacknowledged {
                    flow: *flow,
                    response,
                    remote_target,
                })
            }
            Some(Queued::Undelivered { server, to, bytes }) => Some(Output::Undelivered {
                server: *server,
                to,
                bytes: self.bytes.get(bytes.clone()).unwrap_or_default(),
            }),
            Some(Queued::Connect { key, to }) => Some(Output::Connect { key: *key, to }),
            Some(Queued::Other(output)) => Some(*output),
        }
    }
}
