//! Messages of a burst for connections: each connection gets its own with one write.

use std::sync::Arc;

use io::Flushed;

use crate::socket::{Connection, Writing};

/// The connections that a burst has something for, and those whose sockets are full.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    touched: Vec<Arc<Connection>>,
    full: Vec<Arc<Connection>>,
    /// Empty but for the time of a flush.
    retried: Vec<Arc<Connection>>,
    queued: Flushed,
}

impl Gather {
    /// Queues a message in parts for a connection. False if too much waits there already.
    #[inline]
    pub(crate) fn queue(&mut self, connection: &Arc<Connection>, parts: &[&[u8]]) -> bool {
        let mut writing = connection.write();
        let queued = self.add(&mut writing, parts);
        if queued && writing.touch() {
            self.touched.push(Arc::clone(connection));
        }
        queued
    }

    /// Queues messages for a connection, whose lock is taken once for all of them.
    #[inline]
    pub(crate) fn queue_all<'a>(
        &mut self,
        connection: &Arc<Connection>,
        messages: impl Iterator<Item = &'a [u8]>,
    ) {
        let mut writing = connection.write();
        let mut any = false;
        for message in messages {
            any |= self.add(&mut writing, &[message]);
        }
        if any && writing.touch() {
            self.touched.push(Arc::clone(connection));
        }
    }

    #[inline]
    fn add(&mut self, writing: &mut Writing<'_>, parts: &[&[u8]]) -> bool {
        let queued = writing.queue(parts);
        if queued {
            self.queued.sent += 1;
            let bytes: usize = parts.iter().map(|part| part.len()).sum();
            self.queued.sent_bytes += bytes as u64;
        } else {
            self.queued.would_block += 1;
        }
        queued
    }

    /// Ends the burst: writes what was left of earlier ones, and what this one has queued. A message counts as sent
    /// when its connection has accepted it.
    pub(crate) fn flush(&mut self) -> Flushed {
        let mut flushed = std::mem::take(&mut self.queued);
        std::mem::swap(&mut self.full, &mut self.retried);
        for connection in self.retried.drain(..) {
            connection.write().set_full(false);
            write(connection, &mut self.full, &mut flushed);
        }
        for connection in self.touched.drain(..) {
            write(connection, &mut self.full, &mut flushed);
        }
        flushed
    }

    /// Whether something waits for a full socket.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.full.is_empty()
    }
}

fn write(connection: Arc<Connection>, full: &mut Vec<Arc<Connection>>, flushed: &mut Flushed) {
    let mut writing = connection.write();
    // The reader of the connection gets the error, too, and reports it.
    let rest = matches!(writing.flush(&mut flushed.syscalls), Ok(false));
    let first = rest && !writing.set_full(true);
    drop(writing);
    if first {
        full.push(connection);
    }
}
