//! The queue of outputs. Messages lie one behind the other in one buffer that is kept, so that answering
//! allocates nothing.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use super::output::{
    CloseReason, OffloadedChannel, Output, RelayRequest, RelayedAddresses, Traffic,
};
use super::user::User;
use crate::{AllocationKey, ClientPath, Mono, RelayKey, RequestKey};

/// What the buffers may hold on to once all is done, in bytes and in outputs: more was a burst.
const KEEP_BYTES: usize = 1 << 20;
const KEEP_OUTPUTS: usize = 4096;

/// How an allocation ended, for its log line.
#[derive(Debug)]
pub(super) struct Closed {
    pub(super) allocation: AllocationKey,
    pub(super) user: Arc<User>,
    pub(super) path: ClientPath,
    pub(super) relayed: RelayedAddresses,
    pub(super) to_peers: Traffic,
    pub(super) to_client: Traffic,
    pub(super) duration: Duration,
    pub(super) reason: CloseReason,
}

/// An [`Output`] that owns what it speaks of.
#[derive(Debug)]
pub(super) enum Queued {
    Send {
        path: ClientPath,
        bytes: Range<usize>,
    },
    OpenRelays {
        request: RequestKey,
        relays: [RelayRequest; 2],
        count: usize,
    },
    ClaimReservation {
        request: RequestKey,
        token: [u8; 8],
        user: Arc<User>,
        key: RelayKey,
    },
    Forward {
        to: u16,
    },
    CloseRelay(RelayKey),
    Offload {
        channel: OffloadedChannel,
        own_relay: bool,
        deadline: Mono,
    },
    Onload(OffloadedChannel),
    Opened {
        user: Arc<User>,
        path: ClientPath,
        relayed: RelayedAddresses,
        lifetime_s: u32,
    },
    Closed(Box<Closed>),
}

impl Queued {
    pub(super) fn open_relays(
        request: RequestKey,
        first: RelayRequest,
        second: Option<RelayRequest>,
    ) -> Queued {
        let count = if second.is_some() { 2 } else { 1 };
        Queued::OpenRelays {
            request,
            relays: [first, second.unwrap_or(first)],
            count,
        }
    }

    /// What the embedder gets to see; messages are in `sent`.
    fn output<'a>(&'a self, sent: &'a [u8]) -> Output<'a> {
        match self {
            Queued::Send { path, bytes } => Output::Send {
                path: *path,
                bytes: sent.get(bytes.clone()).unwrap_or_default(),
            },
            Queued::OpenRelays {
                request,
                relays,
                count,
            } => Output::OpenRelays {
                request: *request,
                relays: relays.get(..*count).unwrap_or_default(),
            },
            Queued::ClaimReservation {
                request,
                token,
                user,
                key,
            } => Output::ClaimReservation {
                request: *request,
                token: *token,
                user: user.name(),
                key: *key,
            },
            Queued::Forward { to } => Output::Forward { to: *to },
            Queued::CloseRelay(relay) => Output::CloseRelay { relay: *relay },
            Queued::Offload {
                channel,
                own_relay,
                deadline,
            } => Output::Offload {
                channel: *channel,
                own_relay: *own_relay,
                deadline: *deadline,
            },
            Queued::Onload(channel) => Output::Onload { channel: *channel },
            Queued::Opened {
                user,
                path,
                relayed,
                lifetime_s,
            } => Output::AllocationOpened {
                user: user.name(),
                path: *path,
                relayed: *relayed,
                lifetime_s: *lifetime_s,
            },
            Queued::Closed(closed) => closed.output(),
        }
    }
}

impl Closed {
    fn output(&self) -> Output<'_> {
        Output::AllocationClosed {
            user: self.user.name(),
            path: self.path,
            relayed: self.relayed,
            to_peers: self.to_peers,
            to_client: self.to_client,
            duration: self.duration,
            reason: self.reason,
        }
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(super) struct Outputs {
    queue: VecDeque<Queued>,
    bytes: Vec<u8>,
    /// The one handed out last; it owns what the embedder is looking at.
    current: Option<Queued>,
}

impl Outputs {
    pub(super) fn push(&mut self, output: Queued) {
        self.queue.push_back(output);
    }

    /// Queues a message to a client.
    pub(super) fn send(&mut self, path: ClientPath, message: &[u8]) {
        self.send_parts(path, message, &[]);
    }

    /// Queues a message that lies in two places.
    pub(super) fn send_parts(&mut self, path: ClientPath, front: &[u8], rest: &[u8]) {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(front);
        self.bytes.extend_from_slice(rest);
        self.queue.push_back(Queued::Send {
            path,
            bytes: start..self.bytes.len(),
        });
    }

    #[inline]
    pub(super) fn is_waiting(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The end of this allocation, if it is in the queue.
    pub(super) fn closing(&mut self, allocation: AllocationKey) -> Option<&mut Closed> {
        self.queue.iter_mut().find_map(|queued| match queued {
            Queued::Closed(closed) if closed.allocation == allocation => Some(&mut **closed),
            _ => None,
        })
    }

    /// The next output.
    pub(super) fn next(&mut self) -> Option<Output<'_>> {
        self.current = self.queue.pop_front();
        if self.current.is_none() {
            self.bytes.clear();
            self.bytes.shrink_to(KEEP_BYTES);
            self.queue.shrink_to(KEEP_OUTPUTS);
        }
        Some(self.current.as_ref()?.output(&self.bytes))
    }
}
