//! Which caller waits for the result of which request. A caller that stops waiting drops its receiver.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, SocketAddr};

use stun::{ChannelNumber, ConnectionId};
use tokio::sync::oneshot::{Receiver, Sender, channel};
use turn::client::{Advice, Allocated, Mapped, RequestError};

type Outcome<T> = Result<T, RequestError>;

/// The outcome of an Allocate request: the number of the allocation, and what the server said.
pub(crate) type Granted = Result<(u64, Box<Allocated>), (RequestError, Advice)>;

/// The requests that callers wait for.
#[derive(Debug, Default)]
pub(crate) struct Waiters {
    pub(crate) allocate: Option<Sender<Granted>>,
    binding: Vec<Sender<Outcome<Box<Mapped>>>>,
    refresh: Vec<Sender<Outcome<()>>>,
    close: Vec<Sender<Outcome<()>>>,
    permit: HashMap<IpAddr, Vec<Sender<Outcome<()>>>>,
    bind: HashMap<SocketAddr, Vec<Sender<Outcome<ChannelNumber>>>>,
    connect: HashMap<SocketAddr, Vec<Sender<Outcome<ConnectionId>>>>,
}

/// Appends a waiter, and removes those that have given up.
fn wait<T>(list: &mut Vec<Sender<T>>) -> Receiver<T> {
    let (sender, receiver) = channel();
    list.retain(|waiter| !waiter.is_closed());
    list.push(sender);
    receiver
}

fn notify<K: Eq + Hash, T: Clone>(
    map: &mut HashMap<K, Vec<Sender<T>>>,
    key: &K,
    outcome: T,
) -> bool {
    let waiters = map.remove(key);
    notify_all(&mut waiters.unwrap_or_default(), outcome)
}

/// Answers all of them; false if there are none.
fn notify_all<T: Clone>(waiters: &mut Vec<Sender<T>>, outcome: T) -> bool {
    let mut heard = false;
    for waiter in waiters.drain(..) {
        heard |= waiter.send(outcome.clone()).is_ok();
    }
    heard
}

impl Waiters {
    pub(crate) fn wait_allocate(&mut self) -> Receiver<Granted> {
        let (sender, receiver) = channel();
        self.allocate = Some(sender);
        receiver
    }

    pub(crate) fn wait_binding(&mut self) -> Receiver<Outcome<Box<Mapped>>> {
        // Not pruned: outcomes come one by one, each for the one who has waited longest.
        let (sender, receiver) = channel();
        self.binding.push(sender);
        receiver
    }

    pub(crate) fn wait_refresh(&mut self) -> Receiver<Outcome<()>> {
        wait(&mut self.refresh)
    }

    pub(crate) fn wait_close(&mut self) -> Receiver<Outcome<()>> {
        wait(&mut self.close)
    }

    pub(crate) fn wait_permit(&mut self, peer: IpAddr) -> Receiver<Outcome<()>> {
        wait(self.permit.entry(peer).or_default())
    }

    pub(crate) fn wait_bind(&mut self, peer: SocketAddr) -> Receiver<Outcome<ChannelNumber>> {
        wait(self.bind.entry(peer).or_default())
    }

    pub(crate) fn wait_connect(&mut self, peer: SocketAddr) -> Receiver<Outcome<ConnectionId>> {
        wait(self.connect.entry(peer).or_default())
    }

    pub(crate) fn bound_outcome(&mut self, outcome: Outcome<Box<Mapped>>) {
        if !self.binding.is_empty() {
            let _ = self.binding.remove(0).send(outcome);
        }
    }

    pub(crate) fn refreshed(&mut self) {
        notify_all(&mut self.refresh, Ok(()));
    }

    /// A Refresh request failed. The event does not say whether its lifetime was 0. So this informs the pending calls
    /// that refresh, and those that close.
    pub(crate) fn refresh_failed(&mut self, error: &RequestError) -> bool {
        let heard = notify_all(&mut self.refresh, Err(error.clone()));
        notify_all(&mut self.close, Err(error.clone())) || heard
    }

    pub(crate) fn released(&mut self) {
        notify_all(&mut self.close, Ok(()));
    }

    pub(crate) fn permitted(&mut self, peer: IpAddr, outcome: Outcome<()>) -> bool {
        notify(&mut self.permit, &peer, outcome)
    }

    pub(crate) fn bound(&mut self, peer: SocketAddr, outcome: Outcome<ChannelNumber>) -> bool {
        notify(&mut self.bind, &peer, outcome)
    }

    pub(crate) fn connected(&mut self, peer: SocketAddr, outcome: Outcome<ConnectionId>) -> bool {
        notify(&mut self.connect, &peer, outcome)
    }

    /// The allocation has ended. Pending calls for it fail, because this drops their senders.
    pub(crate) fn allocation_ended(&mut self) {
        self.refresh.clear();
        self.permit.clear();
        self.bind.clear();
        self.connect.clear();
    }

    /// All pending calls fail, because this drops their senders.
    pub(crate) fn fail_all(&mut self) {
        *self = Waiters::default();
    }
}
