//! Answers three questions of the engine about a request. Does it belong to a dialog of this server (proxy or
//! notifier)? Do its credentials answer a challenge of this server? Has another node of the cluster sent it?

use super::Secrets;
use super::authentication::{NONCE_LIFETIME_S, nonce_keys, octets};
use sip::congestion::{ProofFields, RequestProof};
use sip::digest::NonceKeys;
use sip_server::flow::TokenKeys;
use sip_server::proxy::RouteProof;
use sip_server::reg_event::SubscriptionProof;

/// The proofs of all dialogs and challenges of this server.
#[derive(Clone, Copy, Debug)]
pub(super) struct DialogProof {
    routes: RouteProof,
    subscriptions: SubscriptionProof,
    nonces: NonceKeys,
}

impl DialogProof {
    /// With the keys of the proxy, of the notifier and of nonces. `tokens`: those of the epoch, in a cluster.
    pub(super) fn new(secrets: &Secrets, tokens: Option<TokenKeys>) -> DialogProof {
        let proof = DialogProof {
            routes: RouteProof::new(secrets.lasting),
            subscriptions: SubscriptionProof::new(secrets.key),
            nonces: nonce_keys(secrets.key, secrets.runs.own),
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

    fn has_fresh_nonce(&self, request: &ProofFields<'_>) -> bool {
        let Some(source) = request.source else {
            return false;
        };
        let mut place = [0; 16];
        let source = octets(source.to_canonical(), &mut place);
        let mut all = request.credentials.into_iter().flatten();
        all.any(|it| {
            self.nonces
                .has_valid(it, source, request.unix_s, NONCE_LIFETIME_S)
        })
    }

    fn is_of_cluster(&self, request: &ProofFields<'_>) -> bool {
        self.routes.is_of_cluster(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sip::HashKey;
    use sip::digest::NONCE_LEN;

    #[test]
    fn credentials_count_with_a_nonce_of_this_run_from_its_source_while_it_is_fresh() {
        let key = HashKey::new([7; 16]);
        let proof = |run| DialogProof {
            routes: RouteProof::new(key),
            subscriptions: SubscriptionProof::new(key),
            nonces: nonce_keys(key, run),
        };
        let mut nonce = [0; NONCE_LEN];
        let source = [192, 0, 2, 1];
        nonce_keys(key, 1).issue(b"example.com", &source, [1; 6], 1_000, &mut nonce);
        let nonce = str::from_utf8(&nonce).expect("digits");
        let value = format!("Digest realm=\"example.com\", nonce=\"{nonce}\"");
        let has = |run, source: &str, unix_s| {
            let own = [Some(value.as_bytes()), None];
            let proxy = [None, Some(value.as_bytes())];
            let [own, proxy] = [own, proxy].map(|credentials| {
                proof(run).has_fresh_nonce(&ProofFields {
                    credentials,
                    source: Some(source.parse().expect("an address")),
                    unix_s,
                    ..ProofFields::default()
                })
            });
            assert_eq!(own, proxy);
            own
        };
        assert!(has(1, "192.0.2.1", 1_000 + NONCE_LIFETIME_S));
        assert!(has(1, "::ffff:192.0.2.1", 1_000));
        assert!(!has(1, "192.0.2.1", 1_001 + NONCE_LIFETIME_S));
        assert!(!has(1, "192.0.2.2", 1_000));
        assert!(!has(2, "192.0.2.1", 1_000));
    }
}
