//! What nodes tell each other by the engine.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::seal::Seal;

const PURPOSE: &str = "message";
/// A message is valid for this long, by the clocks of both nodes. Clocks may differ by a minute, and the engine keeps messages for one.
const VALID_S: u64 = 180;

/// A message to all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The node that sends it.
    pub from: String,
    /// Random: a message is handled once.
    pub id: u64,
    /// When, by the clock of the sender.
    pub unix_s: u64,
    /// What to do.
    pub order: Order,
}

/// What all nodes do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// End all sessions of a user.
    EndSessions {
        /// The name, without the expiry of time-limited credentials.
        user: String,
    },
}

/// Reads messages: each once, and none that is old.
#[derive(Debug)]
pub struct Inbox {
    seal: Seal,
    own: String,
    /// IDs with the time when they may be forgotten.
    seen: HashMap<u64, u64>,
}

impl Inbox {
    /// Of the node with this name.
    #[must_use]
    pub fn new(own: String, seal: Seal) -> Inbox {
        Inbox {
            seal,
            own,
            seen: HashMap::new(),
        }
    }

    /// The text for the engine.
    #[must_use]
    pub fn write(&self, message: &Message) -> String {
        self.seal.close(PURPOSE, message)
    }

    /// The message of a text; `None` if it is not for this node: forged, old, its own, or handled before.
    pub fn read(&mut self, text: &str, now_unix_s: u64) -> Option<Message> {
        let message: Message = self.seal.open(PURPOSE, text)?;
        self.seen.retain(|_, until| *until > now_unix_s);
        let is_valid = now_unix_s.abs_diff(message.unix_s) <= VALID_S;
        let until = now_unix_s.max(message.unix_s) + VALID_S + 1;
        let is_new = is_valid && self.seen.insert(message.id, until).is_none();
        (is_new && message.from != self.own).then_some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_read_once_by_the_others_and_not_when_it_is_old_or_forged() {
        let seal = Seal::new(&[1; 32]);
        let [mut a, mut b] = ["a", "b"].map(|name| Inbox::new(name.to_owned(), seal.clone()));
        let message = |id, unix_s| Message {
            from: "a".to_owned(),
            id,
            unix_s,
            order: Order::EndSessions {
                user: "alice".to_owned(),
            },
        };
        let now = 1_000_000;
        let text = a.write(&message(1, now));
        assert_eq!(a.read(&text, now), None);
        // A clock that is a minute off.
        assert_eq!(b.read(&text, now + 60), Some(message(1, now)));
        assert_eq!(b.read(&text, now + 60), None);
        assert_eq!(b.read(&text, now + VALID_S + 1), None, "it is old");
        let ahead = a.write(&message(2, now + 60));
        assert!(b.read(&ahead, now).is_some());
        assert_eq!(b.read(&ahead, now + 61), None);
        let stranger = Inbox::new("a".to_owned(), Seal::new(&[2; 32]));
        assert_eq!(b.read(&stranger.write(&message(3, now)), now), None);
        assert_eq!(b.read("nonsense", now), None);
    }
}
