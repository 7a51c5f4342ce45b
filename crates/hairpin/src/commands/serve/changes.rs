//! Changes that the control socket asks for.

use std::time::Duration;

use anyhow::Error;
use serde_json::{Value, json};
use server::Observer;

use super::Service;
use super::reload::Mistakes;
use crate::control::Change;
use crate::control::protocol::{Refusal, Reply};

impl Service<'_> {
    /// Makes the changes that wait.
    pub(super) fn apply_changes(&mut self) {
        while let Some(asked) = self.inbox.next() {
            let (change, waiting) = asked.split();
            waiting.reply(self.make(change));
        }
    }

    /// Makes a change. The reply is for the caller that waits.
    fn make(&mut self, change: Change) -> Reply {
        match change {
            Change::Reload => return self.reload_by_command(),
            Change::Drain => return self.drain_by_command(),
            Change::EndDrain => return self.end_drain_by_command(),
            Change::Describe => return Ok(Service::describe()),
            Change::Upgrade(timeout) => return self.start_successor(timeout),
            Change::HandOver(stream) => self.hand_over(stream),
            Change::FromSuccessor(message) => self.handle_successor_message(message),
            Change::SuccessorEnded => self.successor_ended(),
            Change::FromPredecessor(message) => self.handle_predecessor_message(&message),
            Change::PredecessorEnded => self.predecessor_ended(),
        }
        Ok(Value::Null)
    }

    fn reload_by_command(&mut self) -> Reply {
        match self.reload() {
            Ok(reloaded) => Ok(json!({
                "warnings": reloaded.warnings,
                "needs_restart": reloaded.needs_restart,
            })),
            Err(error) => Err(refusal(&error)),
        }
    }

    /// Admits no new work from now on. The server runs until it gets the command to stop.
    fn drain_by_command(&self) -> Reply {
        let drained = self.running.drain(Duration::ZERO);
        let drained = drained.map_err(|error| Refusal::new(format!("not draining: {error:#}")))?;
        let status = describe_remaining(&self.running.observer());
        self.manager.status(&status);
        tracing::info!(
            "draining until the server is stopped: no new allocations, no new SIP transactions"
        );
        Ok(json!({ "drained": drained }))
    }

    /// Admits new work again.
    fn end_drain_by_command(&self) -> Reply {
        let ended = self.running.end_drain();
        ended.map_err(|error| Refusal::new(format!("still draining: {error:#}")))?;
        self.manager.status(&self.serving());
        tracing::info!("drain ended: new allocations and SIP transactions are admitted");
        Ok(json!({}))
    }
}

/// Why a reload was refused.
fn refusal(error: &Error) -> Refusal {
    let why = "reload refused, the old configuration stays";
    match error.downcast_ref::<Mistakes>() {
        Some(Mistakes(mistakes)) => Refusal {
            error: why.to_owned(),
            mistakes: mistakes.clone(),
        },
        None => Refusal::new(format!("{why}: {error:#}")),
    }
}

/// What a drain waits for, in a few words.
pub(super) fn describe_remaining(observer: &Observer) -> String {
    let stats = observer.stats();
    format!(
        "Draining: {} allocations, {} SIP transactions left",
        stats.allocations(),
        stats.sip().transactions
    )
}

/// A server that is about to end changes nothing any more.
pub(super) fn reply_while_stopping(change: &Change) -> Reply {
    match change {
        Change::Drain => Ok(json!({ "drained": false })),
        _ => Err(Refusal::new("the server is about to stop")),
    }
}
