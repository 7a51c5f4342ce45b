//! What is due for the bindings of a worker.

use super::{MAX_EXPIRED, WorkerTu};
use sip::Mono;

impl WorkerTu {
    /// Whether this process wakes phones.
    pub(in crate::sip) fn set_waking(&mut self, wakes: bool) {
        if let Some(registrations) = &mut self.registrations {
            registrations.set_waking(wakes);
        }
    }

    /// Saves changed bindings, and reports them to other nodes. Removes bindings that have ended. Sends push
    /// notifications to phones that must refresh theirs.
    pub(super) fn expire_bindings(&mut self, now: Mono) {
        let Some(registrations) = &mut self.registrations else {
            return;
        };
        if registrations.save(now) {
            self.publisher.restart();
        }
        self.publisher.handle_timeout(now, registrations.kept());
        let _ = (0..MAX_EXPIRED)
            .take_while(|_| registrations.expire(now))
            .count();
        let Some(forwarder) = &mut self.forwarder else {
            return;
        };
        for _ in 0..MAX_EXPIRED {
            let Some((due, phones)) = registrations.next_refresh(now) else {
                return;
            };
            let pusher = &mut forwarder.pusher;
            let mut phones = phones.into_iter();
            // If the queue is full for one, it is full for the phones after it.
            let are_accepted = phones.all(|phone| pusher.push_refresh(&due.aor, phone));
            registrations.refresh_pushed(now, &due, are_accepted);
        }
    }
}
