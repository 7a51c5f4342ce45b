//! The connection between the SIP workers of two processes, while one takes over from the other.
//!
//! ```text
//!  worker ── try_send ──> queue ──> thread that writes ══ Unix socket ══> thread that reads ──> mailbox of a worker
//! ```
//!
//! Workers send inter-worker messages to the workers of the other process over this connection. The queue is bounded,
//! and a worker never waits for it. If the queue is full, the worker drops the SIP message, counts it, and closes its
//! connection. If a worker does not read its mailbox, the reading thread waits. Then the socket becomes full, then the
//! queue.

mod wire;

use super::balance::SipBatch;
use crate::mailbox::Mailbox;
use crate::privileges::KeptCapabilities;
use crate::steering::Numbering;
use crate::worker::WorkerMessage;
use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TrySendError};
use std::time::Duration;

/// Frames that may wait to be written. A frame is a batch of up to 64 messages.
const MAX_QUEUED_FRAMES: usize = 256;

/// If more frames wait, the other process gets no more new requests.
const BEHIND_FRAMES: usize = MAX_QUEUED_FRAMES / 2;

/// Time until a full mailbox is tried again.
const RETRY_INTERVAL: Duration = Duration::from_millis(1);

/// How long the old process may take to hand over its state. Before that, it enters its clients into the steering
/// table, and writes its log.
const HANDOVER_TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum of server transactions in one frame.
pub(super) const MAX_FRAME_IDS: usize = 1 << 16;

/// A message from one process to the other.
#[derive(Debug)]
pub(crate) enum Frame {
    /// Messages for a worker of the other process.
    Batch {
        /// Its number.
        to: u16,
        batch: SipBatch,
    },
    /// The old process: server transactions of one of its workers.
    Transactions { worker: u16, ids: Vec<u64> },
    /// The old process: bindings that are in no log, in the format of log records.
    Bindings(Vec<u8>),
    /// The old process has handed over everything.
    Settled,
}

/// The state that the old process has handed over.
#[derive(Debug, Default)]
pub(crate) struct HandedOverState {
    /// Its server transactions, each with the number of its worker.
    pub(crate) transactions: HashMap<u64, u16>,
    /// Its bindings that are in no log, in the format of log records.
    pub(crate) bindings: Vec<u8>,
}

/// The side of the link that this process has. When it is dropped, the connection closes.
#[derive(Debug)]
pub(crate) struct ProcessLink {
    stream: UnixStream,
    sender: SyncSender<Frame>,
    waiting: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

/// The state of the threads of a link.
#[derive(Debug)]
pub(crate) struct ProcessLinkThreads {
    stream: UnixStream,
    receiver: Receiver<Frame>,
    waiting: Arc<AtomicUsize>,
    is_over: Arc<AtomicBool>,
}

impl ProcessLink {
    /// The link over this socket. It sends frames only after the threads have started.
    ///
    /// # Errors
    /// If no descriptor is left.
    pub(crate) fn new(stream: UnixStream) -> io::Result<(Arc<ProcessLink>, ProcessLinkThreads)> {
        let (sender, receiver) = mpsc::sync_channel(MAX_QUEUED_FRAMES);
        stream.set_read_timeout(None)?;
        let threads = ProcessLinkThreads {
            stream: stream.try_clone()?,
            receiver,
            waiting: Arc::default(),
            is_over: Arc::default(),
        };
        let link = ProcessLink {
            stream,
            sender,
            waiting: Arc::clone(&threads.waiting),
            is_over: Arc::clone(&threads.is_over),
        };
        Ok((Arc::new(link), threads))
    }

    /// Queues a frame, or returns it if the queue is full or the other process has ended.
    pub(super) fn try_send(&self, frame: Frame) -> Result<(), Frame> {
        // Incremented before the frame is queued, so that the count never underflows.
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.sender.try_send(frame).map_err(|error| {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
            let (TrySendError::Full(frame) | TrySendError::Disconnected(frame)) = error;
            frame
        })
    }

    /// Queues a frame, and waits for space in the queue. The other process reads these frames without any other work.
    pub(crate) fn send(&self, frame: Frame) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // It fails if the other process has ended. The thread that reads notices that.
        let _ = self.sender.send(frame);
    }

    /// Whether so many frames wait that the other process gets no more new requests.
    pub(super) fn is_behind(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > BEHIND_FRAMES
    }
}

impl Drop for ProcessLink {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        // This wakes the thread that reads. The other end may be closed already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

impl ProcessLinkThreads {
    /// Writes queued frames, and passes received frames to the workers of this process. Both threads end with the
    /// connection.
    ///
    /// # Errors
    /// If a thread cannot be started.
    pub(crate) fn start(
        self,
        boxes: Arc<[Mailbox<WorkerMessage>]>,
        numbering: Numbering,
        kept: KeptCapabilities,
    ) -> io::Result<()> {
        let ProcessLinkThreads {
            stream,
            receiver,
            waiting,
            is_over,
        } = self;
        let writer = stream.try_clone()?;
        let spawn = |body: Box<dyn FnOnce() + Send>| {
            let builder = std::thread::Builder::new().name("hairpin-sip-link".to_owned());
            builder.spawn(move || {
                kept.restrict_watch_thread();
                body();
            })
        };
        spawn(Box::new(move || write_all(&writer, &receiver, &waiting)))?;
        spawn(Box::new(move || {
            read_all(&stream, &boxes, numbering, &is_over);
        }))?;
        Ok(())
    }
}

fn write_all(mut stream: &UnixStream, frames: &Receiver<Frame>, waiting: &AtomicUsize) {
    let mut bytes = Vec::new();
    for frame in frames {
        waiting.fetch_sub(1, Ordering::Relaxed);
        wire::encode(&frame, &mut bytes);
        if stream.write_all(&bytes).is_err() {
            return;
        }
    }
}

/// Posts the batches of the other process to the mailboxes of their workers, until the stream ends. It waits while a
/// mailbox is full, until `is_over` is set.
fn read_all(
    stream: &UnixStream,
    boxes: &[Mailbox<WorkerMessage>],
    numbering: Numbering,
    is_over: &AtomicBool,
) {
    while let Ok(frame) = read(stream) {
        let Frame::Batch { to, batch } = frame else {
            continue;
        };
        let mailbox = numbering
            .index(to)
            .and_then(|at| boxes.get(usize::from(at)));
        let Some(mailbox) = mailbox else {
            continue;
        };
        let mut message = WorkerMessage::SipMessages(batch);
        while let Err(unposted) = mailbox.post(message) {
            if is_over.load(Ordering::Relaxed) {
                return;
            }
            message = unposted;
            std::thread::sleep(RETRY_INTERVAL);
        }
    }
}

fn read(mut stream: &UnixStream) -> io::Result<Frame> {
    let mut length = [0; wire::LENGTH_BYTES];
    stream.read_exact(&mut length)?;
    let length = u32::from_le_bytes(length) as usize;
    if length > wire::MAX_FRAME_BYTES {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body)?;
    wire::decode(&body).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Receives the state of the old process. Only the new process calls it.
///
/// # Errors
/// If the old process gives up, or takes too long.
pub(crate) fn receive(stream: &UnixStream) -> io::Result<HandedOverState> {
    stream.set_read_timeout(Some(HANDOVER_TIMEOUT))?;
    let mut handed = HandedOverState::default();
    loop {
        match read(stream)? {
            Frame::Transactions { worker, ids } => {
                let ids = ids.into_iter().map(|id| (id, worker));
                handed.transactions.extend(ids);
            }
            Frame::Bindings(records) => handed.bindings.extend_from_slice(&records),
            Frame::Settled => return Ok(handed),
            // The old process sends no batch to a worker that does not run yet.
            Frame::Batch { .. } => {}
        }
    }
}
