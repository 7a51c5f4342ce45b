//! Who has sent a request, and whether its source address is proven.

use std::net::IpAddr;

use sip::engine::NewRequest;
use sip::flow::Flow;

use super::route::Routed;
use super::token::Token;

/// Who has sent a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// A trunk, by its address.
    Trunk,
    /// An authenticated user.
    User(Box<[u8]>),
    /// One side of a dialog that passes through this server (Record-Route).
    Dialog {
        /// The request has come from the address in the token of its side.
        is_source_proven: bool,
    },
    /// Another node of the cluster, which knows who has sent it.
    Node,
    /// Anybody: the domain has `Inbound::Anyone`.
    Anyone,
}

impl Sender {
    /// Whether the source address of the request is not forged.
    pub(super) const fn has_proven_source(&self) -> bool {
        match self {
            Sender::Trunk | Sender::User(_) | Sender::Node => true,
            Sender::Dialog { is_source_proven } => *is_source_proven,
            Sender::Anyone => false,
        }
    }

    /// The address of the sender of a request within a dialog, unless it may be forged.
    pub(super) fn proven_address(&self, from: &Flow) -> Option<IpAddr> {
        self.has_proven_source().then_some(from.remote.ip())
    }
}

/// Tells the engine how far the sender of a request is known.
pub(super) fn trust(request: &mut NewRequest<'_>, sender: Option<&Sender>) {
    match sender {
        Some(Sender::User(_)) => request.trust(),
        Some(sender) if sender.has_proven_source() => request.trust_source(),
        _ => {}
    }
}

impl Routed<'_> {
    /// The sender of a request within a dialog.
    ///
    /// The tokens of a dialog are bound to its Call-ID, not to an address. Both sides know them. So either side can
    /// send them with a forged source address, and the responses go there. The first token is that of the sender's
    /// side. The source is proven only if this token names it, and the server has authenticated the phone there.
    /// Without an authenticated phone, the address in the token may itself be forged.
    pub(super) fn sender_in_dialog(&self, from: &Flow) -> Sender {
        let is_source_proven = from.connection.is_some()
            || self.first_token().is_some_and(|signed| {
                let id = match signed.token {
                    Token::Node(id) => Some(id),
                    Token::Flow(id) | Token::Near(id) => signed.phone.map(|_| id),
                    Token::Pass | Token::Trunk(_) | Token::FromNode(_) => None,
                };
                id.is_some_and(|id| id.flow.remote == from.remote)
            });
        Sender::Dialog { is_source_proven }
    }
}
