//! The two parties of a dialog: which tokens in Record-Route lead to them.

use std::net::SocketAddr;

use sip::dispatch::AllowedDestination;
use sip::flow::Flow;
use sip::uri::Uri;

use super::context::Base;
use super::policy::Policy;
use super::target::Target;
use super::token::{NO_TRUNK, Token, trunk_group};

/// The token in the Record-Route value for requests to the callee, if they do not go by a flow. A target with a flow
/// needs it, too: if the connection is closed, the requests go to the contact.
/// `destination`: the URI that the request is sent to.
pub(super) fn callee_token(
    policy: &dyn Policy,
    (base, target): (&Base, &Target),
    destination: &[u8],
) -> Token {
    let name = match (target.near, &target.hop) {
        (Some(node), _) if target.is_node => return Token::Node(node),
        (Some(near), _) => return Token::Near(near),
        (None, Some(hop)) => Some(policy.trunk_name(hop)),
        (None, None) => {
            let uri = Uri::parse(destination).ok();
            let sip = uri.as_ref().and_then(|uri| uri.as_sip());
            match sip.map(|sip| sip.maddr().unwrap_or(sip.host).ip()) {
                Some(Some(ip)) => {
                    let there = Flow {
                        remote: SocketAddr::new(ip, 0),
                        connection: None,
                        ..base.from.flow
                    };
                    let trunk = policy.trunk_of(&there);
                    trunk.map(|_| policy.source_name(&there))
                }
                // A host name may lead to a trunk. This counts only if the sender is known, or the configuration chose the
                // target.
                _ if !base.is_of_anyone || target.reach == AllowedDestination::Anywhere => {
                    return Token::Pass;
                }
                _ => None,
            }
        }
    };
    match name {
        None => Token::Trunk(NO_TRUNK),
        // The trunk has no name, or it is unknown after a reload.
        Some(b"") => Token::Pass,
        Some(name) => Token::Trunk(trunk_group(name)),
    }
}

/// The token in the Record-Route value for requests to the caller.
pub(super) fn caller_token(base: &Base) -> Token {
    match (base.is_trunk, base.is_node) {
        // The trunk has no name, or it is unknown after a reload.
        (true, _) if base.trunk_group == NO_TRUNK => Token::Pass,
        (true, _) => Token::Trunk(base.trunk_group),
        // Connections between nodes end when nothing uses them.
        (false, true) => Token::Node(base.from),
        (false, false) => Token::Flow(base.from),
    }
}
