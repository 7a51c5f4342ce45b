//! Messages between threads: a bounded ring per worker, and a wake-up only when it stops being empty.

use crossbeam_queue::ArrayQueue;
use io::{Poller, Waker};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The sending side of a worker's mailbox. Clones share the ring.
#[derive(Debug)]
pub(crate) struct Mailbox<M> {
    shared: Arc<Shared<M>>,
}

#[derive(Debug)]
struct Shared<M> {
    ring: ArrayQueue<M>,
    /// Set by the first sender after the worker last looked: later ones need not wake it again.
    woken: AtomicBool,
    waker: Waker,
}

impl<M> Mailbox<M> {
    /// A mailbox for at most `capacity` messages, which wakes `poller` with `token`.
    pub(crate) fn new(capacity: usize, poller: &Poller, token: u64) -> std::io::Result<Mailbox<M>> {
        let waker = Waker::new(poller, token)?;
        Ok(Mailbox {
            shared: Arc::new(Shared {
                ring: ArrayQueue::new(capacity),
                woken: AtomicBool::new(false),
                waker,
            }),
        })
    }

    /// Posts a message, or returns it if the mailbox is full.
    pub(crate) fn post(&self, message: M) -> Result<(), M> {
        self.shared.ring.push(message)?;
        self.wake();
        Ok(())
    }

    /// Wakes the owner, unless it is about to look anyway.
    pub(crate) fn wake(&self) {
        // SeqCst pairs with `begin`: either the worker sees what was written before, or we see `woken` cleared and wake
        // it again.
        if !self.shared.woken.swap(true, Ordering::SeqCst) {
            self.shared.waker.wake();
        }
    }

    /// The owner calls this when its poller reports the mailbox, before it takes messages.
    pub(crate) fn begin(&self) {
        self.shared.waker.acknowledge();
        self.shared.woken.swap(false, Ordering::SeqCst);
    }

    /// The next message.
    pub(crate) fn take(&self) -> Option<M> {
        self.shared.ring.pop()
    }

    /// How many messages wait.
    pub(crate) fn len(&self) -> usize {
        self.shared.ring.len()
    }
}

impl<M> Clone for Mailbox<M> {
    fn clone(&self) -> Self {
        Mailbox {
            shared: Arc::clone(&self.shared),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use io::Events;
    use std::time::Duration;

    #[test]
    fn a_full_mailbox_hands_the_letter_back() {
        let poller = Poller::new().expect("epoll");
        let mailbox = Mailbox::new(2, &poller, 1).expect("eventfd");
        assert_eq!(mailbox.post(1), Ok(()));
        assert_eq!(mailbox.post(2), Ok(()));
        assert_eq!(mailbox.post(3), Err(3));
        assert_eq!(
            (mailbox.take(), mailbox.take(), mailbox.take()),
            (Some(1), Some(2), None)
        );
    }

    #[test]
    fn one_wake_up_serves_a_batch() {
        let poller = Poller::new().expect("epoll");
        let mut events = Events::with_capacity(4);
        let mailbox = Mailbox::new(8, &poller, 7).expect("eventfd");
        let ready = |events: &mut Events| {
            poller
                .wait(events, Some(Duration::ZERO))
                .expect("epoll works")
        };
        (0..3).for_each(|message| mailbox.post(message).expect("there is room"));
        assert_eq!(ready(&mut events), 1);
        mailbox.begin();
        assert_eq!(mailbox.len(), 3);
        assert_eq!(ready(&mut events), 0, "acknowledged");
        while mailbox.take().is_some() {}
        mailbox.post(9).expect("there is room");
        assert_eq!(ready(&mut events), 1, "empty to non-empty wakes again");
    }

    #[test]
    fn no_letter_is_forgotten() {
        const MESSAGES: u32 = 20_000;
        let poller = Poller::new().expect("epoll");
        let mailbox = Mailbox::new(64, &poller, 0).expect("eventfd");
        let senders: Vec<_> = (0..2)
            .map(|_| {
                let mailbox = mailbox.clone();
                std::thread::spawn(move || {
                    for message in 0..MESSAGES {
                        while mailbox.post(message).is_err() {
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut events = Events::with_capacity(4);
        let mut received = 0;
        while received < 2 * MESSAGES {
            let ready = poller
                .wait(&mut events, Some(Duration::from_secs(5)))
                .expect("epoll works");
            assert_ne!(ready, 0, "a wake-up was lost after {received} messages");
            mailbox.begin();
            while mailbox.take().is_some() {
                received += 1;
            }
        }
        senders
            .into_iter()
            .for_each(|sender| sender.join().expect("senders do not panic"));
    }
}
