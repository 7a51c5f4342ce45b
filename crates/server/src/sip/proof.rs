//! What the engine asks about requests in an overload: whether the proxy or the notifier of this server knows their
//! dialog.

use super::Secrets;
use sip::congestion::{ProofFields, RequestProof};
use sip_server::proxy::RouteProof;
use sip_server::reg_event::SubscriptionProof;

/// The proofs of all dialogs of this server.
#[derive(Debug)]
pub(super) struct DialogProof {
    routes: RouteProof,
    subscriptions: SubscriptionProof,
}

impl DialogProof {
    /// With the keys of the proxy and of the notifier.
    pub(super) fn new(secrets: &Secrets) -> DialogProof {
        DialogProof {
            routes: RouteProof::new(secrets.lasting),
            subscriptions: SubscriptionProof::new(secrets.key),
        }
    }
}

impl RequestProof for DialogProof {
    fn is_of_dialog(&self, request: &ProofFields<'_>) -> bool {
        self.routes.is_of_dialog(request) || self.subscriptions.is_of_dialog(request)
    }

    fn is_of_cluster(&self, request: &ProofFields<'_>) -> bool {
        self.routes.is_of_cluster(request)
    }
}
