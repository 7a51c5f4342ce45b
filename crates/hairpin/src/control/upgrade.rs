//! An upgrade that this process has started by itself, for the API.

use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

/// The flags of a process that takes over.
pub(crate) const OURS: [&str; 2] = ["--take-over", "--adopt-output"];

/// What became of the new process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// It reads its configuration and opens its stores.
    Starting,
    /// It serves new clients.
    Serving,
    /// Why it does not.
    Failed(String),
}

/// The last process that this one has started, if any.
#[derive(Debug, Default)]
pub(crate) struct Upgrade(Mutex<Option<(u32, State)>>);

impl Upgrade {
    fn get(&self) -> Option<(u32, State)> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Notes the state of a process.
    pub(crate) fn set(&self, pid: u32, state: State) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((pid, state));
    }

    /// Notes that the process with this ID serves, if this one has started it.
    pub(crate) fn set_serving(&self, pid: &str) {
        if let Some((own, State::Starting)) = self.get()
            && own.to_string() == pid
        {
            self.set(own, State::Serving);
        }
    }

    /// Whether a process was started that does not serve yet.
    pub(crate) fn is_starting(&self) -> bool {
        matches!(self.get(), Some((_, State::Starting)))
    }

    /// Whether this process serves.
    pub(crate) fn is_serving(&self, pid: u32) -> bool {
        self.get() == Some((pid, State::Serving))
    }

    /// For `hairpin status`.
    pub(crate) fn json(&self) -> Value {
        let Some((pid, state)) = self.get() else {
            return Value::Null;
        };
        let (state, error) = match state {
            State::Starting => ("starting", None),
            State::Serving => ("serving", None),
            State::Failed(why) => ("failed", Some(why)),
        };
        json!({ "pid": pid, "state": state, "error": error })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_process_that_was_started_begins_to_serve() {
        let upgrade = Upgrade::default();
        assert_eq!(upgrade.json(), Value::Null);
        upgrade.set_serving("7");
        upgrade.set(7, State::Starting);
        upgrade.set_serving("8");
        assert!(upgrade.is_starting() && !upgrade.is_serving(7));
        upgrade.set_serving("7");
        assert!(!upgrade.is_starting() && upgrade.is_serving(7));
        upgrade.set(7, State::Failed("it has ended".to_owned()));
        assert_eq!(
            upgrade.json(),
            json!({ "pid": 7, "state": "failed", "error": "it has ended" })
        );
        // A message that comes late changes nothing.
        upgrade.set_serving("7");
        assert!(!upgrade.is_serving(7));
    }
}
