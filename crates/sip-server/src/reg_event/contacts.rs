//! The contacts of an address of record as its subscribers know them, and what has become of them (RFC 3680 §4.7.1).

use sip::Mono;

use crate::location::Binding;

/// What has happened to a contact.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Registered,
    Refreshed,
    Expired,
    Unregistered,
    Deactivated,
}

impl Event {
    pub(super) const fn name(self) -> &'static [u8] {
        match self {
            Event::Registered => b"registered",
            Event::Refreshed => b"refreshed",
            Event::Expired => b"expired",
            Event::Unregistered => b"unregistered",
            Event::Deactivated => b"deactivated",
        }
    }

    /// Whether the contact is gone.
    pub(super) const fn ends(self) -> bool {
        !matches!(self, Event::Registered | Event::Refreshed)
    }
}

/// Why bindings are not there any more, if their time is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A REGISTER has removed them.
    Register,
    /// The server has, as their flow has failed: the phone may register again.
    Server,
}

/// A contact as it was reported last.
#[derive(Clone, Debug)]
pub(super) struct Contact {
    /// Stays the same as long as the contact is bound, and is never used again for another one.
    pub(super) id: u64,
    pub(super) uri: Box<[u8]>,
    pub(super) call_id: Box<[u8]>,
    pub(super) cseq: u32,
    pub(super) q: Option<u16>,
    pub(super) expires: Mono,
    /// When it was bound, or when this server has heard of it.
    pub(super) since: Mono,
    updated: Mono,
    /// What has happened last.
    pub(super) event: Event,
}

impl Contact {
    fn of(id: u64, since: Mono, event: Event, binding: &Binding) -> Contact {
        Contact {
            id,
            uri: binding.uri().into(),
            call_id: binding.call_id().into(),
            cseq: binding.cseq(),
            q: binding.q(),
            expires: binding.expires(),
            since,
            updated: binding.updated(),
            event,
        }
    }
}

/// All contacts of an address of record.
#[derive(Debug, Default)]
pub(super) struct Contacts {
    pub(super) all: Vec<Contact>,
    next_id: u64,
}

impl Contacts {
    /// Takes the bindings that there are now. Returns the contacts that are new or gone, with what has happened to them.
    ///
    /// A refresh is no change: it is seen in the next full document.
    pub(super) fn update(
        &mut self,
        bindings: &[Binding],
        cause: Cause,
        now: Mono,
    ) -> Vec<(Contact, Event)> {
        let alive = || bindings.iter().filter(|binding| !binding.is_expired(now));
        let mut changes = Vec::new();
        self.all.retain(|contact| {
            let is_there = alive().any(|binding| *binding.uri() == *contact.uri);
            if !is_there {
                let event = match cause {
                    _ if contact.expires <= now => Event::Expired,
                    Cause::Register => Event::Unregistered,
                    Cause::Server => Event::Deactivated,
                };
                changes.push((contact.clone(), event));
            }
            is_there
        });
        for binding in alive() {
            let mut known = self.all.iter_mut();
            match known.find(|contact| *contact.uri == *binding.uri()) {
                Some(contact) if contact.updated == binding.updated() => {}
                Some(contact) => {
                    let (id, since) = (contact.id, contact.since);
                    *contact = Contact::of(id, since, Event::Refreshed, binding);
                }
                None => {
                    self.next_id += 1;
                    let since = binding.updated();
                    let contact = Contact::of(self.next_id, since, Event::Registered, binding);
                    changes.push((contact.clone(), Event::Registered));
                    self.all.push(contact);
                }
            }
        }
        changes
    }

    /// All of them, with what has happened last.
    pub(super) fn list(&self) -> Vec<(&Contact, Event)> {
        let all = self.all.iter();
        all.map(|contact| (contact, contact.event)).collect()
    }
}
