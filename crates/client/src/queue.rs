//! Received data on its way to the program.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::sync::Notify;

/// A bounded queue of datagrams. Its buffers are reused: once it has been full, it allocates no more.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: VecDeque<(SocketAddr, Vec<u8>)>,
    spare: Vec<Vec<u8>>,
    limit: usize,
    arrived: Arc<Notify>,
}

impl Queue {
    pub(crate) fn new(limit: usize) -> Queue {
        Queue {
            waiting: VecDeque::new(),
            spare: Vec::new(),
            limit: limit.max(1),
            arrived: Arc::default(),
        }
    }

    /// Woken once per datagram, and by [`wake_all`](Queue::wake_all).
    pub(crate) fn arrived(&self) -> Arc<Notify> {
        Arc::clone(&self.arrived)
    }

    /// Appends a datagram; false if the queue is full.
    pub(crate) fn push(&mut self, peer: SocketAddr, payload: &[u8]) -> bool {
        if self.waiting.len() >= self.limit {
            return false;
        }
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        bytes.extend_from_slice(payload);
        self.waiting.push_back((peer, bytes));
        self.arrived.notify_one();
        true
    }

    /// Copies the oldest datagram into `buffer`; what does not fit is cut off. Returns how many bytes were copied, how
    /// many the datagram had, and its sender.
    pub(crate) fn pop(&mut self, buffer: &mut [u8]) -> Option<(usize, usize, SocketAddr)> {
        let (peer, bytes) = self.waiting.pop_front()?;
        let copied = bytes.len().min(buffer.len());
        buffer[..copied].copy_from_slice(&bytes[..copied]);
        let len = bytes.len();
        self.spare.push(bytes);
        Some((copied, len, peer))
    }

    /// Wakes all that wait, because nothing more will come.
    pub(crate) fn wake_all(&self) {
        self.arrived.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> SocketAddr {
        ([192, 0, 2, 7], 7).into()
    }

    #[test]
    fn the_oldest_comes_first_and_the_newest_is_refused() {
        let mut queue = Queue::new(2);
        assert!(queue.push(peer(), b"one") && queue.push(peer(), b"two"));
        assert!(!queue.push(peer(), b"three"));
        let mut buffer = [0; 8];
        assert_eq!(queue.pop(&mut buffer), Some((3, 3, peer())));
        assert_eq!(&buffer[..3], b"one");
        assert!(queue.push(peer(), b""));
        assert_eq!(queue.pop(&mut buffer[..2]), Some((2, 3, peer())));
        assert_eq!(queue.pop(&mut buffer), Some((0, 0, peer())));
        assert_eq!(queue.pop(&mut buffer), None);
    }

    #[test]
    fn buffers_are_reused() {
        let mut queue = Queue::new(4);
        queue.push(peer(), &[7; 1200]);
        let mut buffer = [0; 1200];
        queue.pop(&mut buffer);
        let address = queue.spare[0].as_ptr();
        queue.push(peer(), &[8; 1200]);
        assert_eq!(queue.waiting[0].1.as_ptr(), address);
    }
}
