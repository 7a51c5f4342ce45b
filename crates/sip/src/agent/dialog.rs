//! The state of a dialog (RFC 3261 §12).

use super::draft::{Content, Draft, Path, unfolded};
use crate::header::HeaderKind;
use crate::message::Message;

#[derive(Clone, Debug)]
pub(super) struct Dialog {
    call_id: Vec<u8>,
    /// The value of From in our requests, with the local tag.
    local: Vec<u8>,
    /// The value of To in our requests, with the remote tag.
    remote: Vec<u8>,
    pub(super) remote_tag: Vec<u8>,
    /// The route set: the values of Route in our requests.
    routes: Vec<Vec<u8>>,
    /// The remote target: the URI that requests in the dialog are for.
    target: Vec<u8>,
    /// The CSeq number of the last request of the peer. `None` before the first one.
    remote_cseq: Option<u32>,
    /// The RSeq number of the last reliable provisional response in the dialog (RFC 3262 §4).
    pub(super) rseq: Option<u32>,
    /// The response with this RSeq has an offer, and the program has not answered the offer.
    pub(super) has_offered: bool,
    /// The program has answered an offer of a provisional response, so the 2xx has no offer.
    pub(super) is_settled: bool,
}

/// The values of Record-Route in their order. Those of a malformed field are missing.
fn record_routes(message: &Message<'_>) -> Vec<Vec<u8>> {
    let routes = message.record_routes().filter_map(Result::ok);
    routes.map(|route| unfolded(route.bytes)).collect()
}

/// Whether all values of Record-Route can be read.
fn are_routes_whole(message: &Message<'_>) -> bool {
    message.record_routes().all(|route| route.is_ok())
}

fn contact(message: &Message<'_>) -> Option<Vec<u8>> {
    Some(message.contact().ok()??.uri.to_vec())
}

impl Dialog {
    /// The dialog that a response to this INVITE begins (RFC 3261 §12.1.2), or the dialog of a re-INVITE. `None` if the
    /// To of the response is malformed. Also returns whether the route set is whole: `false` if a Record-Route is
    /// malformed.
    pub(super) fn of_response(invite: &Draft, response: &Message<'_>) -> Option<(Dialog, bool)> {
        let to = response.to().ok()?;
        let (routes, is_whole) = match &invite.route_set {
            // RFC 3261 §12.2: a re-INVITE does not change the route set.
            Some(routes) => (routes.clone(), true),
            None => {
                let mut routes = record_routes(response);
                routes.reverse();
                (routes, are_routes_whole(response))
            }
        };
        let dialog = Dialog {
            call_id: invite.call_id.clone(),
            local: invite.from.clone(),
            remote: unfolded(response.header(HeaderKind::To)?.value),
            // A user agent of RFC 2543 sends no tag.
            remote_tag: to.tag.unwrap_or_default().to_vec(),
            routes,
            // A provisional response may have no Contact.
            target: contact(response).unwrap_or_else(|| invite.uri.clone()),
            remote_cseq: None,
            rseq: None,
            has_offered: false,
            is_settled: false,
        };
        Some((dialog, is_whole))
    }

    /// The dialog that this side begins with a response to this INVITE (RFC 3261 §12.1.1). `None` if the INVITE lacks a
    /// Contact, or a Record-Route is malformed.
    pub(super) fn of_request(invite: &Message<'_>, local_tag: &[u8]) -> Option<Dialog> {
        if !are_routes_whole(invite) {
            return None;
        }
        let to = unfolded(invite.header(HeaderKind::To)?.value);
        let from = invite.from().ok()?;
        Some(Dialog {
            call_id: invite.call_id().ok()?.to_vec(),
            local: [&to[..], b";tag=", local_tag].concat(),
            remote: unfolded(invite.header(HeaderKind::From)?.value),
            remote_tag: from.tag.unwrap_or_default().to_vec(),
            routes: record_routes(invite),
            target: contact(invite)?,
            remote_cseq: Some(invite.cseq().ok()?.number),
            rseq: None,
            has_offered: false,
            is_settled: false,
        })
    }

    /// Whether a request of the peer with this Call-ID and From tag belongs to the dialog.
    pub(super) fn is_of(&self, call_id: &[u8], from_tag: Option<&[u8]>) -> bool {
        self.call_id == call_id && self.remote_tag == from_tag.unwrap_or_default()
    }

    /// Stores the CSeq number of a request of the peer. Returns `false` if it is not greater than the last one (RFC
    /// 3261 §12.2.2).
    pub(super) fn advance(&mut self, cseq: u32) -> bool {
        let is_newer = self.remote_cseq.is_none_or(|last| cseq > last);
        if is_newer {
            self.remote_cseq = Some(cseq);
        }
        is_newer
    }

    /// Replaces the remote target by the Contact of a message of the peer, if it has one (RFC 3261 §12.2.1.2, §12.2.2).
    pub(super) fn refresh_target(&mut self, message: &Message<'_>) {
        if let Some(target) = contact(message) {
            self.target = target;
        }
    }

    /// The remote target: the URI of the peer's last Contact.
    pub(super) fn target(&self) -> &[u8] {
        &self.target
    }

    /// The draft of a request within the dialog (RFC 3261 §12.2.1.1). `lines` are further header lines, each with its
    /// line end. The draft has no credentials yet.
    pub(super) fn draft(
        &self,
        method: &[u8],
        cseq: u32,
        lines: Vec<u8>,
        content: Content,
    ) -> Draft {
        let Path {
            uri,
            routes,
            next_hop,
        } = Path::new(&self.target, &self.routes);
        Draft {
            method: method.to_vec(),
            uri,
            routes,
            next_hop,
            route_set: Some(self.routes.clone()),
            from: self.local.clone(),
            to: self.remote.clone(),
            call_id: self.call_id.clone(),
            cseq,
            lines,
            content,
            credentials: Vec::new(),
            realms: Vec::new(),
            challenged: Vec::new(),
        }
    }
}
