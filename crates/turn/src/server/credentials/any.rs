//! Several sources of credentials, asked in turn.

use std::sync::Arc;

use stun::PasswordAlgorithm;

use super::{Credentials, KeyLookup, KeyQuery, KeyReply, OwnedKeyQuery};

/// Asks several sources in order.
///
/// If sources that respond at once have the user, all their keys are valid. Sources that respond later are queried only
/// if no other source has the user. They are queried one after the other, until one has the user.
#[derive(Clone, Debug, Default)]
pub struct AnyOf(
    /// The sources, in the order in which they are asked.
    pub Vec<Arc<dyn Credentials>>,
);

impl Credentials for AnyOf {
    fn find(&self, query: &KeyQuery<'_>) -> KeyLookup {
        let lookups = self.0.iter().map(|source| source.find(query));
        lookups.fold(KeyLookup::Unknown, merge)
    }

    // `find` has returned `Pending`. So no source that responds at once has the user.
    fn begin_find(&self, query: &KeyQuery<'_>, reply: KeyReply) {
        let pending =
            |source: &&Arc<dyn Credentials>| matches!(source.find(query), KeyLookup::Pending);
        let sources: Vec<_> = self.0.iter().filter(pending).cloned().collect();
        begin_next(
            sources.into_iter(),
            query.to_owned(),
            KeyLookup::Unknown,
            reply,
        );
    }

    /// Only if all sources can find a user by USERHASH: a client that learns of this feature sends hashes only.
    fn knows_userhash(&self) -> bool {
        !self.0.is_empty() && self.0.iter().all(|source| source.knows_userhash())
    }

    fn supports(&self, algorithm: PasswordAlgorithm) -> bool {
        self.0.iter().all(|source| source.supports(algorithm))
    }

    /// Only if all are available: a user that one source does not have may be in another source.
    fn is_available(&self) -> bool {
        self.0.iter().all(|source| source.is_available())
    }
}

/// The result of two sources together. If both have the user under one name, it has the keys of both. If neither has
/// the user, it is the more specific result.
fn merge(one: KeyLookup, other: KeyLookup) -> KeyLookup {
    match (one, other) {
        (KeyLookup::Known(mut user), KeyLookup::Known(same)) => {
            if user.username == same.username {
                user.keys.extend(same.keys);
            }
            KeyLookup::Known(user)
        }
        (KeyLookup::Known(user), _) | (_, KeyLookup::Known(user)) => KeyLookup::Known(user),
        (KeyLookup::Pending, _) | (_, KeyLookup::Pending) => KeyLookup::Pending,
        (KeyLookup::Unknown, result) | (result, _) => result,
    }
}

/// Queries the next of `sources`. If it does not have the user, the others follow. `before` is the merged result of the
/// sources before. It is the reply if no source is left.
fn begin_next(
    mut sources: std::vec::IntoIter<Arc<dyn Credentials>>,
    query: OwnedKeyQuery,
    before: KeyLookup,
    reply: KeyReply,
) {
    let Some(source) = sources.next() else {
        reply.send(before);
        return;
    };
    let asked = query.clone();
    let then = KeyReply::new(move |lookup| match merge(before, lookup) {
        KeyLookup::Known(user) => reply.send(KeyLookup::Known(user)),
        result => begin_next(sources, query, result, reply),
    });
    source.begin_find(&asked.query(), then);
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::super::{Claim, KnownUser};
    use super::*;
    use crate::{ClientPath, FiveTuple, ListenerKey, Transport};
    use stun::LongTermKey;

    /// Knows one user, at once or later.
    #[derive(Debug)]
    struct One {
        name: &'static str,
        key: u8,
        later: bool,
        asked: Mutex<u32>,
    }

    impl One {
        fn new(name: &'static str, key: u8, later: bool) -> Arc<One> {
            let asked = Mutex::new(0);
            Arc::new(One {
                name,
                key,
                later,
                asked,
            })
        }

        fn answer(&self, query: &KeyQuery<'_>) -> KeyLookup {
            if query.claim == Claim::Username(self.name) {
                let key = LongTermKey::from_md5(&[self.key; 16]);
                KeyLookup::Known(KnownUser::with_key(self.name, key))
            } else {
                KeyLookup::Unknown
            }
        }
    }

    impl Credentials for One {
        fn find(&self, query: &KeyQuery<'_>) -> KeyLookup {
            match self.later {
                true => KeyLookup::Pending,
                false => self.answer(query),
            }
        }

        fn begin_find(&self, query: &KeyQuery<'_>, reply: KeyReply) {
            *self.asked.lock().expect("not poisoned") += 1;
            reply.send(self.answer(query));
        }
    }

    fn query(name: &str) -> KeyQuery<'_> {
        let five_tuple = FiveTuple {
            transport: Transport::Udp,
            local: ([192, 0, 2, 1], 3478).into(),
            remote: ([198, 51, 100, 1], 4000).into(),
        };
        KeyQuery {
            claim: Claim::Username(name),
            realm: "example.org",
            algorithm: PasswordAlgorithm::Md5,
            client: ClientPath {
                five_tuple,
                listener: ListenerKey(0),
            },
            unix_s: 0,
        }
    }

    fn keys(lookup: KeyLookup) -> Vec<u8> {
        match lookup {
            KeyLookup::Known(user) => user.keys.iter().map(|key| key.key.as_bytes()[0]).collect(),
            _ => Vec::new(),
        }
    }

    fn found_later(sources: &AnyOf, name: &str) -> Vec<u8> {
        let (sender, receiver) = std::sync::mpsc::channel();
        let reply = KeyReply::new(move |lookup| sender.send(lookup).expect("received below"));
        sources.begin_find(&query(name), reply);
        keys(receiver.try_recv().expect("answered exactly once"))
    }

    #[test]
    fn keys_of_all_sources_that_know_the_user_count() {
        let sources = AnyOf(vec![
            One::new("ann", 1, false),
            One::new("bob", 2, false),
            One::new("ann", 3, false),
        ]);
        assert_eq!(keys(sources.find(&query("ann"))), [1, 3]);
        assert_eq!(keys(sources.find(&query("bob"))), [2]);
        assert!(matches!(sources.find(&query("eve")), KeyLookup::Unknown));
    }

    #[test]
    fn sources_that_answer_later_are_asked_in_turn_until_one_knows_the_user() {
        let (first, second) = (One::new("bob", 2, true), One::new("bob", 3, true));
        let third = One::new("cid", 4, true);
        let sources = AnyOf(vec![
            One::new("ann", 1, false),
            Arc::clone(&first) as _,
            Arc::clone(&second) as _,
            Arc::clone(&third) as _,
        ]);
        assert_eq!(keys(sources.find(&query("ann"))), [1], "known at once");
        assert!(matches!(sources.find(&query("bob")), KeyLookup::Pending));
        assert_eq!(found_later(&sources, "bob"), [2]);
        assert_eq!(*second.asked.lock().expect("not poisoned"), 0);
        assert_eq!(found_later(&sources, "cid"), [4]);
        assert_eq!(found_later(&sources, "eve"), [0; 0]);
        assert_eq!(*second.asked.lock().expect("not poisoned"), 2);
    }

    #[test]
    fn a_reply_that_is_dropped_says_that_the_source_is_unavailable() {
        let (sender, receiver) = std::sync::mpsc::channel();
        drop(KeyReply::new(move |lookup| {
            sender.send(lookup).expect("received below");
        }));
        assert!(matches!(receiver.try_recv(), Ok(KeyLookup::Unavailable)));
    }
}
