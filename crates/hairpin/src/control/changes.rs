//! Changes of the server that the control socket asks for, and that the main thread makes.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use server::passing::Message;
use server::signals::{SignalWaker, Signals};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::protocol::{Refusal, Reply};
use crate::audit::Audit;

/// Changes that may wait. They come by hand or from a service manager, one at a time.
const MAX_WAITING_CHANGES: usize = 16;
/// How long a change may take: a reload reads files only.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(60);

/// What the main thread is asked to do.
#[derive(Debug)]
pub(crate) enum Change {
    /// Read the configuration again.
    Reload,
    /// Admit no new work.
    Drain,
    /// Admit new work again.
    EndDrain,
    /// Say how to start this server once more.
    Describe,
    /// Start the process that takes over. It has this time to serve.
    Upgrade(Duration),
    /// Hand over to the process at the other end.
    HandOver(UnixStream),
    /// A message of the process that takes over.
    FromSuccessor(Message),
    /// The process that takes over has closed the connection.
    SuccessorEnded,
    /// A message of the process that this one has taken over from.
    FromPredecessor(Message),
    /// The process that this one has taken over from has ended.
    PredecessorEnded,
}

/// A change that waits for the main thread.
#[derive(Debug)]
pub(crate) struct PendingChange {
    change: Change,
    /// `None` if nobody waits.
    reply: Option<oneshot::Sender<Reply>>,
}

/// The caller that waits for the result of a change.
#[derive(Debug)]
pub(crate) struct Waiting(Option<oneshot::Sender<Reply>>);

impl PendingChange {
    /// What is to be done, and who waits for it.
    pub(crate) fn split(self) -> (Change, Waiting) {
        (self.change, Waiting(self.reply))
    }
}

impl Waiting {
    /// Says what came of it.
    pub(crate) fn reply(self, reply: Reply) {
        if let Some(waiting) = self.0 {
            // A caller that no longer waits finds the result in the log.
            let _ = waiting.send(reply);
        }
    }
}

/// Sends changes to the main thread.
#[derive(Clone, Debug)]
pub(crate) struct ChangeSender {
    sender: SyncSender<PendingChange>,
    waker: Arc<SignalWaker>,
}

/// Receives changes in the main thread.
#[derive(Debug)]
pub(crate) struct Inbox {
    receiver: Receiver<PendingChange>,
}

/// A channel to the thread that waits for `signals`.
///
/// # Errors
/// When no file descriptor is left.
pub(crate) fn channel(signals: &Signals) -> io::Result<(ChangeSender, Inbox)> {
    let waker = signals.waker()?;
    let (sender, receiver) = sync_channel(MAX_WAITING_CHANGES);
    let waker = Arc::new(waker);
    Ok((ChangeSender { sender, waker }, Inbox { receiver }))
}

impl ChangeSender {
    /// Tells the main thread, and waits for nothing but room. Returns `false` if it has ended.
    pub(crate) fn request_change(&self, change: Change) -> bool {
        let reply = None;
        let told = self.sender.send(PendingChange { change, reply }).is_ok();
        self.waker.wake();
        told
    }

    /// Makes a change for a caller, waits for the outcome, and writes the audit line. If this future is dropped, because
    /// the caller has ended, the line is written all the same.
    pub(crate) async fn make(&self, change: Change, action: &'static str, by: String) -> Reply {
        let sender = self.clone();
        let task = tokio::spawn(async move {
            let reply = sender.send(change).await;
            let outcome = if reply.is_ok() { "ok" } else { "refused" };
            Audit::new(action).with("outcome", outcome).log(&by);
            reply
        });
        let ended = |_| Err(Refusal::new("the server has ended"));
        task.await.unwrap_or_else(ended)
    }

    /// Asks the main thread for a change, and waits for its reply.
    pub(crate) async fn send(&self, change: Change) -> Reply {
        let (reply, outcome) = oneshot::channel();
        if self
            .sender
            .try_send(PendingChange {
                change,
                reply: Some(reply),
            })
            .is_err()
        {
            return Err(Refusal::new("too many commands wait: try again"));
        }
        self.waker.wake();
        match timeout(CHANGE_TIMEOUT, outcome).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Err(Refusal::new("the server has ended")),
            Err(_) => Err(Refusal::new(format!(
                "no result within {} s; the log will have the result",
                CHANGE_TIMEOUT.as_secs()
            ))),
        }
    }
}

impl Inbox {
    /// The next change that waits.
    pub(crate) fn next(&self) -> Option<PendingChange> {
        self.receiver.try_recv().ok()
    }
}
