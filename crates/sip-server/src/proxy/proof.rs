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
