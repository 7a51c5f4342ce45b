//! What is due for the bindings of a worker.

use super::{EXPIRED, User};
use sip::Mono;

impl User {
    /// Saves and publishes bindings, removes those that have ended, and has phones refresh theirs.
    pub(super) fn expire_bindings(&mut self, now: Mono) {
        let Some(registrations) = &mut self.registrations else {
            return;
        };
        registrations.save(now);
        self.publisher.handle_timeout(now, registrations.kept());
        let _ = (0..EXPIRED)
            .take_while(|_| registrations.expire(now))
            .count();
        let Some(forwarder) = &mut self.forwarder else {
            return;
        };
        for _ in 0..EXPIRED {
            let Some((due, phones)) = registrations.next_refresh(now) else {
                return;
            };
            let pusher = &mut forwarder.pusher;
            // The phones behind one that was not notified are not notified either: the queue is full.
            let mut all = phones.into_iter();
            let were_all = all.all(|phone| pusher.push_refresh(&due.aor, phone));
            registrations.refresh_pushed(now, &due, were_all);
        }
    }
}
