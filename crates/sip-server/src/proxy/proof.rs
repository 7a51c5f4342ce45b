//! How a request proves its dialog in an overload, before it is parsed. The proxy does not look the dialog up. The
//! proof is the token that the proxy wrote into Record-Route, and that the request has in Route.

use sip::HashKey;
use sip::congestion::{ProofFields, RequestProof};
use sip::header::NameAddr;
use sip::uri::Uri;

use super::token::{RouteTokens, Signed, Token};
use crate::flow::TokenKeys;

/// The number of Route values that are checked. Before the two values of this server (one for each side), there may be
/// one of the outbound proxy of the phone.
const LOOKED_AT: usize = 3;

/// Recognizes requests that have a token of [`Proxy`](super::Proxy).
#[derive(Clone, Copy, Debug)]
pub struct RouteProof {
    tokens: RouteTokens,
}

impl RouteProof {
    /// With the key of [`Proxy::new`](super::Proxy::new).
    #[must_use]
    pub fn new(key: HashKey) -> RouteProof {
        RouteProof {
            tokens: RouteTokens::new(key),
        }
    }

    /// The same as [`Proxy::set_token_keys`](super::Proxy::set_token_keys).
    pub fn set_token_keys(&mut self, keys: TokenKeys) {
        self.tokens.set_keys(keys);
    }

    /// Whether Route has a token of this kind. A strict router has put it into the Request-URI (RFC 3261 §16.4).
    fn has_token(&self, request: &ProofFields<'_>, is_meant: impl Fn(&Signed) -> bool) -> bool {
        let routes = NameAddr::values(request.route).take(LOOKED_AT);
        let uris = routes.map(|route| route.uri).chain([request.uri]);
        let mut tokens = uris.filter_map(|uri| match Uri::parse(uri) {
            Ok(Uri::Sip(uri)) => self.tokens.read(uri.user?, request.call_id),
            _ => None,
        });
        tokens.any(|signed| is_meant(&signed))
    }
}

impl RequestProof for RouteProof {
    fn is_of_dialog(&self, request: &ProofFields<'_>) -> bool {
        self.has_token(request, Signed::is_of_dialog)
    }

    fn is_of_cluster(&self, request: &ProofFields<'_>) -> bool {
        // Both sides of a call know the token of the other node, so it counts only from there.
        let is_of_node = |it: &Signed| match it.token {
            Token::Node(id) => Some(id.flow.remote.ip()) == request.source,
            Token::FromNode(_) => true,
            _ => false,
        };
        self.has_token(request, is_of_node)
    }
}

#[cfg(test)]
mod tests {
    use sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};

    use super::super::token::{MAX_USER, TokenContent};
    use super::*;
    use crate::flow::FlowId;

    fn route(proxy: &RouteTokens, token: Token) -> Vec<u8> {
        let said = TokenContent {
            token,
            side: None,
            phone: None,
        };
        let mut buffer = [0; MAX_USER];
        let user = proxy.write(&said, b"1@a", &mut buffer);
        [b"<sip:", user, b"@192.0.2.1;lr>"].concat()
    }

    fn request(route: &[u8]) -> ProofFields<'_> {
        ProofFields {
            uri: b"sip:bob@192.0.2.7",
            call_id: b"1@a",
            to_tag: b"x",
            route,
            ..ProofFields::default()
        }
    }

    #[test]
    fn the_proof_has_the_keys_of_the_epoch_that_the_proxy_signs_with() {
        let epochs = TokenKeys::of_epochs([4, 5, 6].map(|it| HashKey::new([it; 16])));
        let key = HashKey::new([1; 16]);
        let (mut proxy, mut proof) = (RouteTokens::new(key), RouteProof::new(key));
        assert!(proof.is_of_dialog(&request(&route(&proxy, Token::Pass))));
        proxy.set_keys(epochs);
        let signed = route(&proxy, Token::Pass);
        assert!(!proof.is_of_dialog(&request(&signed)));
        proof.set_token_keys(epochs);
        assert!(proof.is_of_dialog(&request(&signed)));
    }

    #[test]
    fn the_token_of_a_node_counts_from_its_address_only() {
        let key = HashKey::new([1; 16]);
        let (proxy, proof) = (RouteTokens::new(key), RouteProof::new(key));
        let id = FlowId {
            worker: 3,
            run: 7,
            flow: Flow {
                transport: Transport::Udp,
                listener: ListenerKey(1),
                connection: None::<ConnectionKey>,
                local: "192.0.2.1:5060".parse().expect("an address"),
                remote: "192.0.2.2:5060".parse().expect("an address"),
            },
        };
        let signed = route(&proxy, Token::Node(id));
        let from = |source: &str| ProofFields {
            source: Some(source.parse().expect("an address")),
            ..request(&signed)
        };
        assert!(proof.is_of_cluster(&from("192.0.2.2")));
        assert!(!proof.is_of_cluster(&from("192.0.2.9")));
    }
}
