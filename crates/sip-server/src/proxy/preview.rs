//! The decision of the proxy about a request, without state and without sending anything.

use sip::{Message, Now};

use super::request::{Decision, ReceivedRequest};
use super::sender::Sender;
use super::{Policy, Proxy};
use crate::flow::FlowId;

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Preview {
    /// It is for this server itself.
    Own,
    /// Another worker would decide.
    Elsewhere(u16),
    /// The lookup or the authentication is not complete.
    Pending,
    /// 407.
    Challenge,
    /// This response.
    Refused(u16, String),
    /// It goes to the first of these, then to the others as the routes and the forking say.
    Forwarded(Vec<PreviewTarget>),
}

/// Where a request would go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreviewTarget {
    /// Its Request-URI.
    pub uri: String,
    /// The URI that says where it goes, if that is another one.
    pub next_hop: Option<String>,
    /// The number of the trunk, if it is one's.
    pub trunk: Option<u16>,
}

impl Proxy {
    /// The decision about a request that arrives on this flow.
    pub fn preview(
        &mut self,
        now: Now,
        policy: &mut dyn Policy,
        message: &Message<'_>,
        from: &FlowId,
    ) -> Preview {
        let asked = ReceivedRequest {
            now,
            message,
            from,
            sender: None::<Sender>,
        };
        match self.decide(asked, policy) {
            Err(refusal) => Preview::Refused(refusal.code, refusal.reason.to_owned()),
            Ok(Decision::Own) => Preview::Own,
            Ok(Decision::Elsewhere(worker)) => Preview::Elsewhere(worker),
            Ok(Decision::Pending(_)) => Preview::Pending,
            Ok(Decision::Challenge) => Preview::Challenge,
            Ok(Decision::Reject(code, reason)) => Preview::Refused(code, reason.into()),
            Ok(Decision::Forward(plan)) => {
                // The tickets are dropped: nothing counts.
                if let Err(refusal) = self.admit(now, (message, &from.flow), &plan, policy) {
                    return Preview::Refused(refusal.code, refusal.reason.to_owned());
                }
                let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                let targets = plan.targets.iter().map(|target| PreviewTarget {
                    uri: text(&target.uri),
                    next_hop: target.next_hop.as_deref().map(text),
                    trunk: target.hop.map(|hop| hop.trunk),
                });
                Preview::Forwarded(targets.collect())
            }
        }
    }
}
