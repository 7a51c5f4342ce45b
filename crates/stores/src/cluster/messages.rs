//! What nodes tell each other by the engine.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::seal::Seal;

const PURPOSE: &str = "message";
/// A message is valid for this long, by the clocks of both nodes. Clocks may differ by a minute, and the engine keeps
/// messages for one.
const VALID_S: u64 = 180;

/// A message to all nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The node that sends it.
    pub from: String,
    /// The process that sends it: during an upgrade, two have the same name.
    #[serde(default)]
    pub run: u64,
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

/// What a text of the engine is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Read {
    /// A message for this process.
    New(Message),
    /// A message of this process, or one that it has handled before.
    Known,
    /// A genuine message whose time differs too much from the clock here.
    Untimely(Message),
    /// A node has written it, but this version cannot read it.
    Unknown,
    /// No node has written it.
    Forged,
}

/// Reads messages: each once, and none that is old.
#[derive(Debug)]
pub struct Inbox {
    seal: Seal,
    own_run: u64,
    /// IDs with the time when they may be forgotten.
    seen: HashMap<u64, u64>,
}

impl Inbox {
    /// Of the process with this number.
    #[must_use]
    pub fn new(own_run: u64, seal: Seal) -> Inbox {
        Inbox {
            seal,
            own_run,
            seen: HashMap::new(),
        }
    }

    /// The text for the engine.
    #[must_use]
    pub fn write(&self, message: &Message) -> String {
        self.seal.sign(PURPOSE, message)
    }

    /// Reads a text.
    pub fn read(&mut self, text: &str, now_unix_s: u64) -> Read {
        let Some(json) = self.seal.open(PURPOSE, text) else {
            return Read::Forged;
        };
        let Ok(message) = serde_json::from_str::<Message>(json) else {
            return Read::Unknown;
        };
        self.seen.retain(|_, until| *until > now_unix_s);
        if message.run == self.own_run {
            return Read::Known;
        }
        if now_unix_s.abs_diff(message.unix_s) > VALID_S {
            return Read::Untimely(message);
        }
        let until = now_unix_s.max(message.unix_s) + VALID_S + 1;
        match self.seen.insert(message.id, until) {
            None => Read::New(message),
            Some(_) => Read::Known,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(run: u64, id: u64, unix_s: u64) -> Message {
        Message {
            from: "a".to_owned(),
            run,
            id,
            unix_s,
            order: Order::EndSessions {
                user: "alice".to_owned(),
            },
        }
    }

    #[test]
    fn a_message_is_read_once_by_the_others_and_not_when_it_is_old_or_forged() {
        let seal = Seal::new(&[1; 32]);
        let [mut a, mut b] = [1, 2].map(|run| Inbox::new(run, seal.clone()));
        let now = 1_000_000;
        let sent = message(1, 1, now);
        let text = a.write(&sent);
        assert_eq!(a.read(&text, now), Read::Known);
        // A clock that is a minute off.
        assert_eq!(b.read(&text, now + 60), Read::New(sent.clone()));
        assert_eq!(b.read(&text, now + 60), Read::Known);
        assert_eq!(b.read(&text, now + VALID_S + 1), Read::Untimely(sent));
        let ahead = a.write(&message(1, 2, now + 60));
        assert!(matches!(b.read(&ahead, now), Read::New(_)));
        assert_eq!(b.read(&ahead, now + 61), Read::Known);
        let stranger = Inbox::new(1, Seal::new(&[2; 32]));
        let forged = stranger.write(&message(1, 3, now));
        assert_eq!(b.read(&forged, now), Read::Forged);
        assert_eq!(b.read("nonsense", now), Read::Forged);
    }

    #[test]
    fn messages_of_adjacent_versions_are_read_or_known_to_be_unknown() {
        let seal = Seal::new(&[1; 32]);
        let mut inbox = Inbox::new(1, seal.clone());
        let mut read = |json: &str| {
            let value: serde_json::Value = serde_json::from_str(json).unwrap();
            inbox.read(&seal.sign(PURPOSE, &value), 1_000)
        };
        let older =
            r#"{"from":"a","id":1,"unix_s":1000,"order":{"end_sessions":{"user":"alice"}}}"#;
        assert_eq!(read(older), Read::New(message(0, 1, 1_000)));
        let newer = r#"{"from":"a","run":2,"id":2,"unix_s":1000,"more":[1],
            "order":{"end_sessions":{"user":"alice","realm":"r"}}}"#;
        assert_eq!(read(newer), Read::New(message(2, 2, 1_000)));
        let unknown =
            r#"{"from":"a","run":2,"id":3,"unix_s":1000,"order":{"make_tea":{"cups":2}}}"#;
        assert_eq!(read(unknown), Read::Unknown);
        assert_eq!(read("{}"), Read::Unknown);
    }

    #[test]
    fn an_order_of_the_new_process_reaches_the_old_one_of_the_same_node() {
        let seal = Seal::new(&[1; 32]);
        let [mut old, new] = [1, 2].map(|run| Inbox::new(run, seal.clone()));
        let text = new.write(&message(2, 1, 1_000));
        assert!(matches!(old.read(&text, 1_000), Read::New(_)));
    }
}
