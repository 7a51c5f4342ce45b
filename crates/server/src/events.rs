//! Events on their way from the workers to a thread or a task of the embedding program.
//!
//! ```
//! use hairpin_server::events::{self, Event};
//! # use hairpin_server::Server;
//!
//! let (sender, mut receiver) = events::channel(1024);
//! let builder = Server::builder().on_event(sender.into_hook());
//! # drop(builder);
//! while let Some(event) = receiver.blocking_recv() {
//!     if let Event::AllocationClosed { client, to_peers, .. } = event.get() {
//!         println!("{} has sent {} bytes", client.user, to_peers.bytes);
//!     }
//! }
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

pub use crate::hooks::Event;

/// A channel for at most `capacity` events (at least 1) that wait to be received. A worker that finds it full drops its
/// event and counts it in [`EventReceiver::lost`]. It never waits.
#[must_use]
pub fn channel(capacity: usize) -> (EventSender, EventReceiver) {
    let (sender, receiver) = mpsc::channel(capacity.max(1));
    let lost = Arc::new(AtomicU64::new(0));
    let sender = EventSender {
        sender,
        lost: Arc::clone(&lost),
    };
    (sender, EventReceiver { receiver, lost })
}

/// An [`Event`] with a copy of the text it names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedEvent {
    realm: Box<str>,
    user: Box<str>,
    /// The same with an empty realm and user name.
    event: Event<'static>,
}

impl OwnedEvent {
    /// The event.
    #[must_use]
    pub fn get(&self) -> Event<'_> {
        self.event.with_names(&self.realm, &self.user)
    }
}

impl From<&Event<'_>> for OwnedEvent {
    fn from(event: &Event<'_>) -> OwnedEvent {
        OwnedEvent {
            realm: event.client().map_or("", |client| client.realm).into(),
            user: event.user().into(),
            event: event.with_names("", ""),
        }
    }
}

/// The end of the workers. Clones are ends of the same channel.
#[derive(Clone, Debug)]
pub struct EventSender {
    sender: mpsc::Sender<OwnedEvent>,
    lost: Arc<AtomicU64>,
}

impl EventSender {
    /// Sends a copy of the event. If there is no room or no receiver, it counts as lost. For hooks that send some
    /// events only.
    pub fn send(&self, event: &Event<'_>) {
        // Nothing is copied for a channel that is full.
        match self.sender.try_reserve() {
            Ok(permit) => permit.send(event.into()),
            Err(_) => {
                self.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The hook for [`Builder::on_event`](crate::Builder::on_event) that sends every event.
    pub fn into_hook(self) -> impl Fn(&Event<'_>) + Send + Sync + 'static {
        move |event| self.send(event)
    }
}

/// The end of the embedding program.
#[derive(Debug)]
pub struct EventReceiver {
    receiver: mpsc::Receiver<OwnedEvent>,
    lost: Arc<AtomicU64>,
}

impl EventReceiver {
    /// The next event, in a task; `None` after the last one, when the server has ended and its settings are dropped. It
    /// may be cancelled.
    pub async fn recv(&mut self) -> Option<OwnedEvent> {
        self.receiver.recv().await
    }

    /// The next event, on a separate thread; `None` as for [`recv`](Self::recv).
    ///
    /// # Panics
    /// In a task of tokio.
    pub fn blocking_recv(&mut self) -> Option<OwnedEvent> {
        self.receiver.blocking_recv()
    }

    /// The next event if one is waiting.
    pub fn try_recv(&mut self) -> Option<OwnedEvent> {
        self.receiver.try_recv().ok()
    }

    /// How many events have found the channel full, or were sent after the receiver was dropped, since it was made.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;
    use turn::FiveTuple;
    use turn::Transport;
    use turn::server::{ClientIdentity, RelayedAddresses};

    fn opened(user: &str) -> Event<'_> {
        let five_tuple = FiveTuple {
            transport: Transport::Udp,
            local: SocketAddr::from(([127, 0, 0, 1], 3478)),
            remote: SocketAddr::from(([127, 0, 0, 1], 4000)),
        };
        Event::AllocationOpened {
            client: ClientIdentity::new(five_tuple, "example.org", user),
            relayed: RelayedAddresses::default(),
            lifetime_s: 600,
        }
    }

    #[test]
    fn events_beyond_the_queue_are_counted() {
        let (sender, mut receiver) = channel(2);
        for name in ["one", "two", "three"] {
            sender.send(&opened(name));
        }
        assert_eq!(receiver.lost(), 1);
        let names = [(); 2].map(|()| receiver.try_recv().expect("an event"));
        assert_eq!(names[0].get(), opened("one"));
        assert_eq!(names[1].get(), opened("two"));
        sender.send(&opened("four"));
        assert_eq!(
            receiver.blocking_recv(),
            Some(OwnedEvent::from(&opened("four")))
        );
        drop(sender);
        assert_eq!(receiver.blocking_recv(), None);
    }

    #[test]
    fn without_a_receiver_all_events_are_lost_and_nobody_waits() {
        let (sender, receiver) = channel(0);
        let lost = Arc::clone(&receiver.lost);
        drop(receiver);
        let hook = sender.into_hook();
        hook(&opened("one"));
        assert_eq!(lost.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn an_owned_event_has_all_of_its_client() {
        let five_tuple = FiveTuple {
            transport: Transport::Tcp,
            local: "192.0.2.1:3478".parse().expect("an address"),
            remote: "198.51.100.1:4000".parse().expect("an address"),
        };
        let client = ClientIdentity::new(five_tuple, "example.org", "ann").over_tcp();
        let peer = "192.0.2.7".parse().expect("an address");
        let event = Event::PermissionEnded { client, peer };
        let owned = OwnedEvent::from(&event);
        assert_eq!(owned.get().client(), Some(&client));
    }
}
