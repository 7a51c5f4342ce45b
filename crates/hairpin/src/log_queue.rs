//! Log lines on their way to stderr. Any thread puts lines into a bounded queue; one thread writes them. So a worker
//! does not wait if nobody reads stderr, for example because journald has stopped.
//!
//! ```text
//!  worker, main thread, .. ── push ──▶ queue (1 MiB) ── thread hairpin-log ──▶ stderr
//!                               └─ full: the line is dropped and counted
//! ```

use std::io::{self, ErrorKind, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Limit of queued bytes: about 4,000 lines.
const MAX_QUEUED_BYTES: usize = 1 << 20;
/// The kernel writes this number of bytes to a pipe at once (`PIPE_BUF`). During an upgrade two processes write to the
/// same pipe, and their lines must not mix.
const AT_ONCE: usize = 4096;
/// Memory that the writer keeps for the next batch, in bytes.
const KEPT_BYTES: usize = 64 << 10;
/// Time between two attempts to write to a full non-blocking file.
const WRITE_RETRY_TIME: Duration = Duration::from_millis(10);
/// The longest time that the end of the process waits for the queue.
pub(crate) const MAX_FLUSH_TIME: Duration = Duration::from_secs(1);

/// The queue of this process.
pub(crate) static QUEUE: Queue = Queue::new();

/// Queued lines.
#[derive(Debug)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// A line was added.
    filled: Condvar,
    /// The lines of a batch were written.
    written: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug)]
struct State {
    lines: Vec<u8>,
    /// Lines dropped since the last batch.
    dropped: u64,
    /// Whether a thread writes the lines.
    has_writer: bool,
    /// Whether that thread has taken a batch and has not yet written it.
    is_writing: bool,
}

impl Queue {
    const fn new() -> Self {
        Self {
            state: Mutex::new(State {
                lines: Vec::new(),
                dropped: 0,
                has_writer: false,
                is_writing: false,
            }),
            filled: Condvar::new(),
            written: Condvar::new(),
            dropped: AtomicU64::new(0),
        }
    }

    /// Lines dropped since the start.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Starts the thread that writes to stderr.
    ///
    /// # Errors
    /// If the system has no resources for a thread.
    pub(crate) fn start(&'static self) -> io::Result<()> {
        let thread = std::thread::Builder::new().name("hairpin-log".to_owned());
        thread.spawn(|| {
            // The thread only writes; without the right to give up capabilities it has none.
            let _ = server::privileges::drop_all();
            self.run(io::stderr(), |lines| {
                tracing::warn!(lines, "log lines dropped: the reader of stderr is too slow");
            });
        })?;
        self.lock().has_writer = true;
        Ok(())
    }

    /// Adds a line. Never blocks on the reader of the log.
    fn push(&self, line: &[u8]) {
        let mut state = self.lock();
        if state.lines.len() + line.len() > MAX_QUEUED_BYTES {
            state.dropped += 1;
            drop(state);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        state.lines.extend_from_slice(line);
        drop(state);
        self.filled.notify_one();
    }

    /// Waits until all lines are written, at most `limit`. Returns whether they are written.
    pub(crate) fn flush(&self, limit: Duration) -> bool {
        let is_waiting =
            |state: &mut State| state.has_writer && (state.is_writing || !state.lines.is_empty());
        let outcome = self
            .written
            .wait_timeout_while(self.lock(), limit, is_waiting);
        !outcome
            .unwrap_or_else(PoisonError::into_inner)
            .1
            .timed_out()
    }

    /// Writes lines forever. `report` logs how many lines were dropped.
    fn run(&self, mut sink: impl Write, report: impl Fn(u64)) -> ! {
        let mut batch = Vec::new();
        loop {
            let dropped = self.next_batch(&mut batch);
            let lost = write_lines(&mut sink, &batch);
            self.dropped.fetch_add(lost, Ordering::Relaxed);
            // Only a batch after a stall is larger.
            batch.clear();
            batch.shrink_to(KEPT_BYTES);
            // If stderr is closed, a report would be lost, too.
            if dropped > 0 && lost == 0 {
                report(dropped);
            }
        }
    }

    /// Waits for lines. Returns the number of lines that were dropped after them.
    fn next_batch(&self, batch: &mut Vec<u8>) -> u64 {
        let mut state = self.lock();
        state.is_writing = false;
        self.written.notify_all();
        let filled = self
            .filled
            .wait_while(state, |state| state.lines.is_empty());
        let mut state = filled.unwrap_or_else(PoisonError::into_inner);
        state.is_writing = true;
        std::mem::swap(batch, &mut state.lines);
        std::mem::take(&mut state.dropped)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes lines. Returns how many were lost because of an error.
fn write_lines(sink: &mut impl Write, mut lines: &[u8]) -> u64 {
    while !lines.is_empty() {
        match sink.write(&lines[..first_lines(lines)]) {
            Ok(0) => return count(lines),
            Ok(length) => lines = &lines[length..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                std::thread::sleep(WRITE_RETRY_TIME)
            }
            Err(_) => return count(lines),
        }
    }
    0
}

/// The length of the first lines that can be written at once, or of the first line if it is longer.
fn first_lines(lines: &[u8]) -> usize {
    let window = &lines[..lines.len().min(AT_ONCE)];
    let is_end = |byte: &u8| *byte == b'\n';
    let end = window.iter().rposition(is_end);
    let end = end.or_else(|| lines.iter().position(is_end));
    end.map_or(lines.len(), |end| end + 1)
}

fn count(lines: &[u8]) -> u64 {
    lines.iter().filter(|byte| **byte == b'\n').count() as u64
}

/// Writes each event into [`QUEUE`]. The subscriber calls `write` once per line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToQueue;

impl Write for ToQueue {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        QUEUE.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// Writes only after it has received permission.
    struct Gate {
        permission: Receiver<()>,
        to: Sender<Vec<u8>>,
    }

    impl Write for Gate {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.permission.recv();
            self.to.send(bytes.to_vec()).map_err(io::Error::other)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_full_queue_drops_lines_and_reports_them_when_it_drains() {
        let queue: &'static Queue = Box::leak(Box::new(Queue::new()));
        let (open, permission) = channel();
        let (to, written) = channel();
        let reported = Arc::new(AtomicU64::new(0));
        let report = Arc::clone(&reported);
        std::thread::spawn(move || {
            queue.run(Gate { permission, to }, |lines| {
                report.fetch_add(lines, Ordering::Relaxed);
            })
        });
        queue.lock().has_writer = true;
        let line = [&[b'x'; 1023][..], b"\n"].concat();
        for _ in 0..3_000 {
            queue.push(&line);
        }
        assert!(queue.dropped() >= 3_000 - 2 * 1_024, "{}", queue.dropped());
        assert!(!queue.flush(Duration::from_millis(20)), "nothing is read");
        drop(open);
        assert!(queue.flush(Duration::from_secs(20)));
        let bytes: Vec<Vec<u8>> = written.try_iter().collect();
        assert!(bytes.iter().all(|part| part.len() <= AT_ONCE));
        let kept: u64 = bytes.iter().map(|part| count(part)).sum();
        assert_eq!(kept + queue.dropped(), 3_000);
        assert_eq!(reported.load(Ordering::Relaxed), queue.dropped());
    }

    #[test]
    fn lines_that_a_closed_file_refuses_are_counted() {
        struct Closed;
        impl Write for Closed {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(ErrorKind::BrokenPipe.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        assert_eq!(write_lines(&mut Closed, b"a\nb\n"), 2);
        let long = [&[b'x'; 5_000][..], b"\nshort\n"].concat();
        assert_eq!(first_lines(&long), 5_001);
        assert_eq!(first_lines(b"a\nb"), 2);
    }
}
