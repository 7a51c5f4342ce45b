//! What a program that embeds the server learns of SIP: the life of calls, and failed authentications.

use super::Transport;
use sip::flow::Flow;
use sip_server::calls::{CallLine, EndedBy};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// Called for each SIP event, on a worker. It must not wait.
pub type OnSipEvent = dyn Fn(&SipEvent<'_>) + Send + Sync;

/// Something that has happened to a call, or to a request with credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SipEvent<'a> {
    /// A call was answered: the proxy forwards the first 2xx of its INVITE.
    CallOpened(CallLine<'a>),
    /// The session of a call was refreshed (RFC 4028 §8.2).
    CallRefreshed(CallLine<'a>),
    /// A call has ended, or its INVITE has failed.
    CallClosed {
        /// The call.
        call: CallLine<'a>,
        /// Who has ended it.
        ended_by: EndedBy,
    },
    /// A digest is wrong, for a nonce that the server has issued to this source. At most one event per second and
    /// worker.
    AuthenticationFailed {
        /// Where the request came from.
        source: SocketAddr,
        /// Its transport.
        transport: Transport,
        /// The realm of the credentials.
        realm: &'a str,
        /// The user name that the request claims; anybody can have written it.
        user: &'a [u8],
        /// How many of these came without an event since the last one.
        omitted: u64,
    },
}

/// The hook, if there is one.
#[derive(Clone, Default)]
pub(crate) struct Reporter {
    pub(crate) hook: Option<Arc<OnSipEvent>>,
    /// It wants events of calls.
    pub(crate) wants_calls: bool,
}

impl fmt::Debug for Reporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reporter")
            .field("hook", &self.hook.is_some())
            .field("wants_calls", &self.wants_calls)
            .finish()
    }
}

impl Reporter {
    pub(super) const fn wants_calls(&self) -> bool {
        self.hook.is_some() && self.wants_calls
    }

    pub(super) fn report(&self, event: &SipEvent<'_>) {
        if let Some(hook) = &self.hook {
            hook(event);
        }
    }
}

/// Reports wrong digests, at most one per second: a source that guesses passwords must not fill queues.
#[derive(Debug, Default)]
pub(super) struct FailureReports {
    pub(super) reporter: Reporter,
    last_unix_s: u64,
    omitted: u64,
}

impl FailureReports {
    pub(super) fn new(reporter: Reporter) -> FailureReports {
        FailureReports {
            reporter,
            ..FailureReports::default()
        }
    }

    pub(super) fn failed(&mut self, unix_s: u64, flow: &Flow, realm: &str, user: &[u8]) {
        if self.reporter.hook.is_none() {
            return;
        }
        if self.last_unix_s == unix_s {
            self.omitted += 1;
            return;
        }
        self.last_unix_s = unix_s;
        self.reporter.report(&SipEvent::AuthenticationFailed {
            source: flow.remote,
            transport: flow.transport,
            realm,
            user,
            omitted: std::mem::take(&mut self.omitted),
        });
    }
}
