//! Answers two questions of the engine: whether a request belongs to a dialog of this server (of the proxy or the
//! notifier), and whether another node of the cluster has sent it.

use super::Secrets;
use sip::congestion::{ProofFields, RequestProof};
use sip_server::flow::TokenKeys;
use sip_server::proxy::RouteProof;
use sip_server::reg_event::SubscriptionProof;

/// The proofs of all dialogs of this server.
#[derive(Clone, Copy, Debug)]
pub(super) struct DialogProof {
    routes: RouteProof,
    subscriptions: SubscriptionProof,
}

impl DialogProof {
    /// With the keys of the proxy and of the notifier. `tokens`: those of the epoch, in a cluster.
    pub(super) fn new(secrets: &Secrets, tokens: Option<TokenKeys>) -> DialogProof {
        let proof = DialogProof {
            routes: RouteProof::new(secrets.lasting),
            subscriptions: SubscriptionProof::new(secrets.key),
        };
        proof.with_token_keys(tokens)
    }

    /// The same with other keys for the tokens in routes, if there are any.
    pub(super) fn with_token_keys(mut self, tokens: Option<TokenKeys>) -> DialogProof {
        if let Some(keys) = tokens {
            self.routes.set_token_keys(keys);
        }
        self
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
