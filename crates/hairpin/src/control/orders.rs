//! What the thread of the control socket has the main thread do.

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use server::signals::{SignalWaker, Signals};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::protocol::{Refusal, Reply};

/// Orders that may wait. They come by hand or from a service manager, one at a time.
const WAITING: usize = 16;
/// How long an order may take: a reload reads files only.
const TIME: Duration = Duration::from_secs(60);

/// What the main thread is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Order {
    /// Read the configuration again.
    Reload,
    /// Admit no new work.
    Drain,
    /// Admit new work again.
    EndDrain,
}

/// An order that waits for its reply.
#[derive(Debug)]
pub(crate) struct Asked {
    order: Order,
    reply: oneshot::Sender<Reply>,
}

impl Asked {
    /// What is to be done.
    pub(crate) fn order(&self) -> Order {
        self.order
    }

    /// Says what came of it.
    pub(crate) fn reply(self, reply: Reply) {
        // Whoever has given up waiting reads the log.
        let _ = self.reply.send(reply);
    }
}

/// Where orders come from.
#[derive(Debug)]
pub(crate) struct Orders {
    sender: SyncSender<Asked>,
    waker: SignalWaker,
}

/// Where orders go to.
#[derive(Debug)]
pub(crate) struct Inbox {
    receiver: Receiver<Asked>,
}

/// Orders to the thread that waits for `signals`.
///
/// # Errors
/// When no file descriptor is left.
pub(crate) fn channel(signals: &Signals) -> io::Result<(Orders, Inbox)> {
    let waker = signals.waker()?;
    let (sender, receiver) = sync_channel(WAITING);
    Ok((Orders { sender, waker }, Inbox { receiver }))
}

impl Orders {
    /// Has the main thread obey, and waits for its reply.
    pub(super) async fn give(&self, order: Order) -> Reply {
        let (reply, outcome) = oneshot::channel();
        if self.sender.try_send(Asked { order, reply }).is_err() {
            return Err(Refusal::new("too many commands wait: try again"));
        }
        self.waker.wake();
        match timeout(TIME, outcome).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(_)) => Err(Refusal::new("the server has ended")),
            Err(_) => Err(Refusal::new(format!(
                "no result within {} s; the log will say what came of it",
                TIME.as_secs()
            ))),
        }
    }
}

impl Inbox {
    /// The next order that waits.
    pub(crate) fn next(&self) -> Option<Asked> {
        self.receiver.try_recv().ok()
    }
}
