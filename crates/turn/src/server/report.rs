//! Failed authentications: each is counted, few are reported to the embedder for its log.

use stun::{Message, Userhash, Username};

use super::Server;
use super::auth_failure::AuthFailure;
use super::output::Output;
use super::outputs::QueuedAuth;
use crate::{ClientPath, Mono, Now};

/// At most one report per reason in this time, in seconds.
const INTERVAL_S: u64 = 1;

/// The longest user name that is reported whole: 508 bytes are what USERNAME holds.
const NAME_MAX: usize = 128;

/// When the next report of each reason is due, and how many were left out since the last one.
#[derive(Debug, Default)]
pub(super) struct Reports {
    due: [Mono; AuthFailure::COUNT],
    omitted: [u64; AuthFailure::COUNT],
}

/// A failed authentication, for its log line.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) path: ClientPath,
    /// Whom the request claims to be from.
    pub(super) user: Box<str>,
    pub(super) reason: AuthFailure,
    pub(super) omitted: u64,
}

impl Failure {
    pub(super) fn output(&self) -> Output<'_> {
        Output::AuthenticationFailed {
            path: self.path,
            user: &self.user,
            reason: self.reason,
            omitted: self.omitted,
        }
    }
}

impl Server {
    /// Counts a failed authentication, and reports it if none of its reason was reported of late.
    pub(super) fn auth_failed(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
        reason: AuthFailure,
    ) {
        // Both arrays have an entry for each reason.
        let number = reason as usize;
        self.stats.count_auth_failure(reason);
        if reason.is_routine() {
            return;
        }
        if now.mono < self.reports.due[number] {
            self.reports.omitted[number] += 1;
            return;
        }
        self.reports.due[number] = now.mono.plus_secs(INTERVAL_S);
        let failure = Failure {
            path: *path,
            user: claimed_name(message),
            reason,
            omitted: std::mem::take(&mut self.reports.omitted[number]),
        };
        self.outputs
            .push_auth(QueuedAuth::Failed(Box::new(failure)));
    }
}

/// The user name that a request states, or the start of it, or the hash of one in hexadecimal digits.
fn claimed_name(message: &Message<'_>) -> Box<str> {
    if let Ok(Some(Username(name))) = message.get() {
        return name[..name.floor_char_boundary(NAME_MAX)].into();
    }
    match message.get::<Userhash>() {
        Ok(Some(Userhash(hash))) => hash.iter().map(|byte| format!("{byte:02x}")).collect(),
        _ => "".into(),
    }
}
