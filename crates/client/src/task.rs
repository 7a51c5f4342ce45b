//! The task of a client: the only one that receives, transmits requests and waits for time to pass.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;

use tokio::io::ReadBuf;
use tokio::time::{Instant, sleep_until};
use turn::Mono;
use turn::client::{Allocated, Event};

use crate::endpoint::Input;
use crate::error::{Disconnect, Ended};
use crate::link::is_hard;
use crate::shared::{Core, Shared};
use crate::waiters::Granted;

/// Longer than any message: the length field of ChannelData has 16 bits.
const BUFFER_BYTES: usize = 65_535 + 4 + 3;

/// When the task ends in any way, it tells the callers that nothing more will come.
struct End(Arc<Shared>);

impl Drop for End {
    fn drop(&mut self) {
        let mut core = self.0.lock();
        core.closed = true;
        core.waiters.fail_all();
        core.wake_all();
    }
}

/// Works until the last handle is dropped and the allocation is released.
pub(crate) async fn drive(shared: Arc<Shared>) {
    let end = End(Arc::clone(&shared));
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Some(deadline) = process(&shared) {
        let deadline = deadline.and_then(|at| shared.instant(at));
        tokio::select! {
            received = receive(&shared, &mut buffer) => match received {
                Ok(len) => handle(&shared, &buffer[..len]),
                Err(error) if !failed(&shared, &error) => break,
                Err(_) => {}
            },
            () = shared.changed.notified() => {}
            () = until(deadline) => {}
        }
    }
    drop(end);
}

async fn receive(shared: &Shared, buffer: &mut [u8]) -> io::Result<usize> {
    let mut buffer = ReadBuf::new(buffer);
    poll_fn(|cx| shared.link.poll_recv(cx, &mut buffer)).await?;
    Ok(buffer.filled().len())
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// Restores the invariant of the endpoint. Returns when to come back at the latest, or `None` when the task is to end.
fn process(shared: &Shared) -> Option<Option<Mono>> {
    let now = shared.now();
    let mut guard = shared.lock();
    let core = &mut *guard;
    core.endpoint.timeout(now);
    let mut refused = false;
    loop {
        let mut happened = Vec::new();
        core.endpoint.drain(
            |request| {
                if let Err(error) = shared.link.try_send(request) {
                    core.stats.unsent += 1;
                    refused |= is_hard(&error);
                }
            },
            |event| happened.push(event),
        );
        let again = std::mem::take(&mut refused);
        if !again && happened.is_empty() {
            break;
        }
        if again {
            core.endpoint
                .with(now, |client, now| client.handle_unreachable(now));
        }
        happened.into_iter().for_each(|event| core.take(event, now));
    }
    if let Some(end_at) = core.end_at
        && (now.mono >= end_at || !core.endpoint.client().is_busy())
    {
        return None;
    }
    let deadline = core.endpoint.deadline();
    Some(match (deadline, core.end_at) {
        (Some(deadline), Some(end_at)) => Some(deadline.min(end_at)),
        (deadline, end_at) => deadline.or(end_at),
    })
}

fn handle(shared: &Shared, message: &[u8]) {
    let now = shared.now();
    let mut core = shared.lock();
    let server = core.endpoint.server();
    // The link brings what the server sent and nothing else.
    match core.endpoint.input(now, server, message) {
        Input::Data { peer, payload, .. } => core.deliver(peer, &message[payload]),
        Input::Handled => {}
        Input::Ignored(_) => core.stats.ignored += 1,
        Input::NotMine | Input::UnknownSource => core.stats.foreign += 1,
    }
}

/// The link has reported an error. False if it is of no use any more.
fn failed(shared: &Shared, error: &io::Error) -> bool {
    let now = shared.now();
    // A DTLS session can end, too.
    let ends = shared.link.transport().is_stream() || error.kind() == io::ErrorKind::UnexpectedEof;
    let mut core = shared.lock();
    if ends {
        let why = Disconnect::from(error);
        core.lost = Some(why.clone());
        core.allocation_ended(Ended::Disconnected(why));
        return false;
    }
    if is_hard(error) {
        core.endpoint
            .with(now, |client, now| client.handle_unreachable(now));
    }
    true
}

impl Core {
    /// Passes an event to the caller that waits for it, or queues it.
    fn take(&mut self, event: Event, now: turn::Now) {
        match event {
            Event::Mapped(mapped) => self.waiters.bound_outcome(Ok(mapped)),
            Event::BindingFailed(error) => self.waiters.bound_outcome(Err(error)),
            Event::Allocated(allocated) => self.allocated(allocated, now),
            Event::AllocateFailed { error, advice } => self.granted(Err((error, advice))),
            Event::Released { family: None, .. } => {
                self.allocation_ended(Ended::Closed);
                self.waiters.released();
            }
            Event::Lost(loss) => {
                self.allocation_ended(loss.clone().into());
                // The caller wanted to release it, so this is success.
                self.waiters.released();
                self.note(Event::Lost(loss));
            }
            Event::RefreshFailed(error) => {
                if !self.waiters.refresh_failed(&error) {
                    self.note(Event::RefreshFailed(error));
                }
            }
            Event::Refreshed { lifetime_s, timing } => {
                self.waiters.refreshed();
                self.note(Event::Refreshed { lifetime_s, timing });
            }
            Event::Permitted { peer, .. } => _ = self.waiters.permitted(peer, Ok(())),
            Event::PermissionFailed { peer, error } => {
                if !self.waiters.permitted(peer, Err(error.clone())) {
                    self.note(Event::PermissionFailed { peer, error });
                }
            }
            Event::ChannelBound { channel, peer, .. } => _ = self.waiters.bound(peer, Ok(channel)),
            Event::ChannelFailed {
                channel,
                peer,
                error,
            } => {
                if !self.waiters.bound(peer, Err(error.clone())) {
                    self.note(Event::ChannelFailed {
                        channel,
                        peer,
                        error,
                    });
                }
            }
            Event::Connected { peer, id, .. } => _ = self.waiters.connected(peer, Ok(id)),
            Event::ConnectFailed { peer, error } => {
                _ = self.waiters.connected(peer, Err(error));
            }
            Event::PeerConnected { peer, id } => {
                if !self.attempts.push(peer, id, now.mono) {
                    self.stats.attempts_dropped += 1;
                }
            }
            other => self.note(other),
        }
    }

    fn note(&mut self, event: Event) {
        if !self.events.push(event) {
            self.stats.events_dropped += 1;
        }
    }

    fn allocated(&mut self, allocated: Box<Allocated>, now: turn::Now) {
        self.allocation.number += 1;
        self.allocation.ended = None;
        let number = self.allocation.number;
        self.granted(Ok((number, allocated)));
        if self.allocation.number == number && self.allocation.ended.is_some() {
            // No caller waits any more: the allocation is released at once.
            let _ = self
                .endpoint
                .with(now, |client, now| client.release(now, None));
        }
    }

    fn granted(&mut self, outcome: Granted) {
        let waiter = self.waiters.allocate.take();
        let granted = outcome.is_ok();
        let heard = waiter.is_some_and(|waiter| waiter.send(outcome).is_ok());
        if granted && !heard {
            self.allocation.ended = Some(Ended::Closed);
        }
    }
}
