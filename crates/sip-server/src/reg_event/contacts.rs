//! The contacts of an address of record as its subscribers have them, and their changes (RFC 3680 §4.7.1).

use sip::{Mono, Uri};

use crate::location::Binding;
use crate::registrar::is_same_instance;

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

    /// Whether the contact was removed.
    pub(super) const fn ends(self) -> bool {
        !matches!(self, Event::Registered | Event::Refreshed)
    }
}

/// Why bindings are not there any more, if their time is not over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A REGISTER has removed them, at this server or at another node.
    Register,
    /// The server has, for example because their flow has failed: the phone registers again at once.
    Server,
}

/// A contact as it was reported last.
#[derive(Clone, Debug)]
pub(super) struct Contact {
    /// Stays the same as long as the contact is bound, and is never used again for another one.
    pub(super) id: u64,
    pub(super) uri: Box<[u8]>,
    /// The instance of the user agent (RFC 5626 §4.1); empty if it is not known.
    pub(super) instance: Box<[u8]>,
    /// 0 if the binding is that of a URI.
    pub(super) reg_id: u32,
    pub(super) call_id: Box<[u8]>,
    pub(super) cseq: u32,
    pub(super) q: Option<u16>,
    pub(super) expires: Mono,
    /// When it was bound, or when this server was notified of it.
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
            instance: binding.instance().into(),
            reg_id: binding.reg_id(),
            call_id: binding.call_id().into(),
            cseq: binding.cseq(),
            q: binding.q(),
            expires: binding.expires(),
            since,
            updated: binding.updated(),
            event,
        }
    }

    /// Whether this is the contact of a binding, by what the registrar goes by: instance and `reg-id` (RFC 5626 §6),
    /// otherwise the URI. So a user agent that registers again by another connection, with another URI, is the same
    /// contact.
    fn is_of(&self, binding: &Binding) -> bool {
        if self.reg_id != binding.reg_id() {
            return false;
        }
        match self.reg_id {
            0 if *self.uri == *binding.uri() => true,
            0 => match (Uri::parse(&self.uri), Uri::parse(binding.uri())) {
                (Ok(own), Ok(other)) => own == other,
                _ => false,
            },
            _ => is_same_instance(&self.instance, binding.instance()),
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
    /// Takes the bindings that there are now. Returns the contacts that are new or gone or have another URI, with what
    /// has happened to them.
    ///
    /// A refresh with the same URI is no change: it is seen in the next full document.
    pub(super) fn update(
        &mut self,
        bindings: &[Binding],
        cause: Cause,
        now: Mono,
    ) -> Vec<(Contact, Event)> {
        let alive = || bindings.iter().filter(|binding| !binding.is_expired(now));
        let mut changes = Vec::new();
        self.all.retain(|contact| {
            let is_there = alive().any(|binding| contact.is_of(binding));
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
            match known.find(|contact| contact.is_of(binding)) {
                Some(contact) if contact.updated == binding.updated() => {}
                Some(contact) => {
                    let (id, since) = (contact.id, contact.since);
                    let has_moved = *contact.uri != *binding.uri();
                    *contact = Contact::of(id, since, Event::Refreshed, binding);
                    if has_moved {
                        changes.push((contact.clone(), Event::Refreshed));
                    }
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

    /// All contacts, each with its last event.
    pub(super) fn list(&self) -> Vec<(&Contact, Event)> {
        let all = self.all.iter();
        all.map(|contact| (contact, contact.event)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::{NO_Q, NewBinding};

    const ONE: &str = "urn:uuid:00000000-0000-1000-8000-00000000000a";

    fn binding(uri: &str, (instance, reg_id): (&str, u32), at_s: u64, expires_s: u64) -> Binding {
        let params = match instance {
            "" => String::new(),
            instance => format!(";+sip.instance=\"<{instance}>\""),
        };
        Binding::new(&NewBinding {
            uri: uri.as_bytes(),
            params: params.as_bytes(),
            instance: instance.as_bytes(),
            call_id: b"c",
            cseq: 1,
            path: b"",
            agent: b"",
            flow: None,
            q: NO_Q,
            reg_id,
            gruu: 0,
            expires: Mono(0).plus_secs(expires_s),
            updated: Mono(0).plus_secs(at_s),
        })
        .unwrap()
    }

    /// Id, event and URI of each change.
    fn update(
        contacts: &mut Contacts,
        bindings: &[Binding],
        cause: Cause,
        at_s: u64,
    ) -> Vec<(u64, Event, String)> {
        let changes = contacts.update(bindings, cause, Mono(0).plus_secs(at_s));
        let of = |(contact, event): (Contact, Event)| {
            let uri = String::from_utf8(contact.uri.to_vec()).unwrap();
            (contact.id, event, uri)
        };
        changes.into_iter().map(of).collect()
    }

    #[test]
    fn an_instance_keeps_its_id_when_it_registers_by_another_flow_rfc3680_5_2() {
        let mut contacts = Contacts::default();
        let first = [binding("sip:a@192.0.2.1:1;ob", (ONE, 1), 0, 100)];
        let changes = update(&mut contacts, &first, Cause::Register, 0);
        let uri = "sip:a@192.0.2.1:1;ob".to_owned();
        assert_eq!(changes, [(1, Event::Registered, uri)]);
        // After its connection was lost; the instance is compared without regard to case (RFC 4122).
        let again = [binding(
            "sip:a@192.0.2.1:2;ob",
            (&ONE.to_uppercase(), 1),
            50,
            150,
        )];
        let changes = update(&mut contacts, &again, Cause::Register, 50);
        let uri = "sip:a@192.0.2.1:2;ob".to_owned();
        assert_eq!(changes, [(1, Event::Refreshed, uri)]);
        assert_eq!(contacts.all[0].since, Mono(0));
        // The other flow of the same instance, with the same URI, is a contact of its own.
        let both = [
            again[0].clone(),
            binding("sip:a@192.0.2.1:2;ob", (ONE, 2), 60, 160),
        ];
        let changes = update(&mut contacts, &both, Cause::Register, 60);
        assert_eq!(changes.len(), 1);
        assert_eq!((changes[0].0, changes[0].1), (2, Event::Registered));
        assert!(update(&mut contacts, &both, Cause::Register, 61).is_empty());
        // One ends with its flow, the other with its time.
        let changes = update(&mut contacts, &both[1..], Cause::Server, 70);
        assert_eq!((changes[0].0, changes[0].1), (1, Event::Deactivated));
        let changes = update(&mut contacts, &both[1..], Cause::Register, 160);
        assert_eq!((changes[0].0, changes[0].1), (2, Event::Expired));
        // An id is never used again.
        let changes = update(&mut contacts, &first, Cause::Register, 90);
        assert_eq!((changes[0].0, changes[0].1), (3, Event::Registered));
    }

    #[test]
    fn without_reg_id_a_contact_is_its_uri() {
        let mut contacts = Contacts::default();
        let first = [binding("sip:a@example.com;x=1", (ONE, 0), 0, 100)];
        assert_eq!(update(&mut contacts, &first, Cause::Register, 0).len(), 1);
        // The same URI in other words (RFC 3261 §19.1.4).
        let same = [binding("sip:a@EXAMPLE.com;x=1", (ONE, 0), 10, 100)];
        let changes = update(&mut contacts, &same, Cause::Register, 10);
        assert_eq!((changes[0].0, changes[0].1), (1, Event::Refreshed));
        let other = [binding("sip:b@example.com", (ONE, 0), 20, 100)];
        let changes = update(&mut contacts, &other, Cause::Register, 20);
        let events = changes.iter().map(|(id, event, _)| (*id, *event));
        let wanted = [(1, Event::Unregistered), (2, Event::Registered)];
        assert_eq!(events.collect::<Vec<_>>(), wanted);
    }
}
