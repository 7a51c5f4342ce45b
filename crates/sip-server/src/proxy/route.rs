//! Route information (RFC 3261 §16.4): which Route values are this server's, and by which flow the request leaves.

use std::borrow::Cow;
use std::net::IpAddr;

use sip::dispatch::{AllowedDestination, PeerGroups};
use sip::flow::Flow;
use sip::header::NameAddr;
use sip::uri::{SipUri, Uri};
use sip::{Message, Method};

use super::Refusal;
use super::media::RelayedDialog;
use super::nodes::AskedPhones;
use super::policy::Routing;
use super::token::{FromNode, Phone, RouteTokens, Signed, Token, has_form_of_token};
use super::uris;
use crate::flow::{FlowAvailability, FlowId, Runs};

/// Most Route values of one request: more than any dialog has, and few enough to check each.
const MAX_ROUTES: usize = 64;

/// Clocks of nodes differ by less. It bounds how long a token between nodes can be repeated.
const NODE_S: u64 = 180;
/// Most passes of a request within a dialog through this server.
const MAX_PASSES: u32 = 4;

/// A request behind its own Route values.
#[derive(Debug)]
pub(super) struct Routed<'m> {
    /// The Request-URI, without a `maddr` that names this server.
    pub(super) uri: Cow<'m, [u8]>,
    /// The Route values that are left.
    pub(super) routes: Vec<NameAddr<'m>>,
    /// Own values in front of them.
    pub(super) removed: usize,
    /// The Request-URI was this server's, and the last Route value has taken its place: the sender is a strict router.
    pub(super) was_strict: bool,
    /// The first token of this server: in the Request-URI if the sender is a strict router, else in the values that are
    /// removed.
    first_signed: Option<Signed>,
    /// One of the values that were removed shows that this server put it into this dialog.
    pub(super) is_known_dialog: bool,
    /// The last of them is of a Path.
    pub(super) is_path: bool,
    /// The flow that the values removed have the request go by.
    pub(super) flow: Option<FlowId>,
    /// The phone that the request goes to, and the flow that it had when the dialog began, if nothing else follows on
    /// the route.
    pub(super) phone: Option<(Phone, FlowId)>,
    /// The values removed name a flow that has failed.
    pub(super) is_flow_gone: bool,
    /// An address that the Request-URI may lead to: of a phone of this dialog, of another node, or of this server. It
    /// is of this server if the request passes it again.
    pub(super) near: Option<IpAddr>,
    /// The trunks that the Request-URI may lead to, by what the last value removed says.
    trunks: PeerGroups,
    /// The last value removed says that the request goes to another node, which knows what the Request-URI means.
    pub(super) is_to_node: bool,
    /// Another node knows the sender, and asks for the phones that are registered here.
    pub(super) is_from_node: bool,
    /// Which of these phones.
    pub(super) asked: AskedPhones,
    /// If the media of this dialog go through a relay.
    pub(super) relayed: Option<RelayedDialog>,
}

/// Whose URI a Route value has.
enum RouteUri {
    /// Of another server.
    Foreign,
    /// It names this server without a token: a route that the sender was configured with. It proves nothing.
    ThisServer,
    /// Written by this server.
    Signed(Signed),
}

impl Routed<'_> {
    /// Where a request within the dialog may go. `sender`: the address of its sender, if that is proven.
    ///
    /// Both sides know the tokens, so a token does not authenticate the sender. The request reaches `sip.targets`, the
    /// trunks of the last token, and one address. This is the address of the last token. If that token has none, it is
    /// the proven address of the sender. With [`Token::Pass`], the request reaches all trunks.
    pub(super) fn allowed_destination(&self, sender: Option<IpAddr>) -> AllowedDestination {
        AllowedDestination::NearOrGroups(self.near.or(sender), self.trunks)
    }

    /// The first token of this server, unless it is of a Path.
    pub(super) fn first_token(&self) -> Option<Signed> {
        self.first_signed.filter(|first| !first.is_path)
    }

    /// Whether the Request-URI is a GRUU of this server (RFC 5627 §3.1). Its targets are the current contacts of its
    /// instance.
    pub(super) fn is_gruu(&self, routing: &dyn Routing) -> bool {
        let uri = Uri::parse(&self.uri);
        uri.is_ok_and(|uri| match uri {
            Uri::Sip(sip) => sip.params.get(b"gr").is_some() && routing.domain(sip.host).is_some(),
            _ => false,
        })
    }

    /// RFC 5626 §5.3.1: a request whose flow has failed gets 430.
    pub(super) fn check_flow(&self) -> Result<(), Refusal> {
        match self.is_flow_gone {
            true => Err(Refusal::of(430, "")),
            false => Ok(()),
        }
    }
}

fn parse_sip(uri: &[u8]) -> Option<SipUri<'_>> {
    match Uri::parse(uri) {
        Ok(Uri::Sip(uri)) => Some(uri),
        _ => None,
    }
}

/// The connection of the flow in a token is closed.
#[derive(Clone, Copy, Debug)]
struct FlowGone;

/// Recognizes URIs of this server.
pub(super) struct Reader<'r> {
    pub(super) tokens: &'r RouteTokens,
    pub(super) routing: &'r dyn Routing,
    pub(super) runs: Runs,
    pub(super) unix_s: u64,
}

impl Reader<'_> {
    /// What a URI is in a request. A token that this server did not write gets 403 (RFC 5626 §5.3.1). Outside of
    /// dialogs, a user part that has not the form of a token is one that the sender was configured with
    /// (RFC 3261 §16.4).
    fn own(&self, uri: &[u8], message: &Message<'_>) -> Result<RouteUri, Refusal> {
        let Ok(Uri::Sip(uri)) = Uri::parse(uri) else {
            return Ok(RouteUri::Foreign);
        };
        let call_id = message.call_id().unwrap_or_default();
        let is_new = || message.to().is_ok_and(|to| to.tag.is_none());
        if let Some(signed) = uri.user.and_then(|user| self.tokens.read(user, call_id)) {
            return Ok(RouteUri::Signed(signed));
        }
        match (self.is_own_host(&uri), uri.user) {
            (false, _) => Ok(RouteUri::Foreign),
            (true, None) => Ok(RouteUri::ThisServer),
            (true, Some(user)) if !has_form_of_token(user) && is_new() => Ok(RouteUri::ThisServer),
            // RFC 5626 §5.3.1: "if it is not valid, 403".
            (true, Some(_)) => Err(Refusal::of(403, "Forged Route")),
        }
    }

    /// The address in a URI, if it is one of this server. A token proves nothing about the host beside it.
    fn own_address(&self, uri: &[u8]) -> Option<IpAddr> {
        match Uri::parse(uri) {
            Ok(Uri::Sip(uri)) if self.is_own_host(&uri) => uri.host.ip(),
            _ => None,
        }
    }

    fn is_own_host(&self, uri: &SipUri<'_>) -> bool {
        let is_domain = uri.port.is_none() && self.routing.domain(uri.host).is_some();
        is_domain || self.routing.is_own(uri.host, uri.port)
    }

    /// Reads the Request-URI and Route of a request that came by this flow.
    ///
    /// # Errors
    /// 400 for Route values that are malformed or too many, 403 for a forged token.
    pub(super) fn read<'m>(
        &self,
        message: &Message<'m>,
        from: &Flow,
    ) -> Result<Routed<'m>, Refusal> {
        let call_id = message.call_id().unwrap_or_default();
        let mut uri = message.request_uri().unwrap_or_default();
        let mut routes = Vec::new();
        for route in message.routes() {
            let malformed = Refusal::of(400, "Malformed Route");
            let route = route.map_err(|_| malformed)?;
            route.parse_uri().map_err(|_| malformed)?;
            if routes.len() >= MAX_ROUTES {
                return Err(Refusal::of(400, "Too Many Routes"));
            }
            routes.push(route);
        }
        let mut parsed = parse_sip(uri);
        let strict = parsed.and_then(|uri| self.strict(&uri, call_id));
        let mut signed = Vec::new();
        let was_strict = match (strict, routes.last()) {
            (Some(own), Some(last)) => {
                signed.push(own);
                uri = last.uri;
                parsed = parse_sip(uri);
                routes.pop();
                true
            }
            _ => false,
        };
        let (removed, next_pass) = self.own_values(&routes, &mut signed, message)?;
        let last_route = routes.drain(..removed).next_back();
        if next_pass.is_some() || signed.iter().any(|it| matches!(it.token, Token::Node(_))) {
            self.check_later_passes(&routes, &signed, message)?;
        }
        let flow = self.outgoing_flow(&signed, from);
        let last = signed.last().map(|signed| signed.token);
        let phone = match routes.is_empty() && next_pass.is_none() {
            true => phone(&signed, from),
            false => None,
        };
        let near = match last {
            _ if next_pass.is_some() => next_pass,
            Some(Token::Near(id) | Token::Node(id)) => Some(id.flow.remote.ip()),
            _ => None,
        };
        let from_node = match last {
            Some(Token::FromNode(from)) => Some(from),
            _ => None,
        };
        // These belong to a request of before. Nothing is decided for them.
        let is_of_before = matches!(message.method(), Some(Method::Ack | Method::Cancel));
        let from_node = from_node.filter(|_| !is_of_before);
        self.check_node(message, from_node, from)?;
        let asked = match (from_node, last_route) {
            (Some(_), Some(route)) => AskedPhones::of(route.uri),
            _ => Some(AskedPhones::All),
        };
        Ok(Routed {
            uri: self.without_own_maddr(uri, parsed),
            routes,
            removed,
            was_strict,
            first_signed: signed.first().copied(),
            is_known_dialog: signed.iter().any(Signed::is_of_dialog),
            is_path: signed.last().is_some_and(|signed| signed.is_path),
            flow: flow.unwrap_or_default(),
            phone,
            is_flow_gone: flow.is_err(),
            near,
            trunks: trunks_of(last),
            is_to_node: matches!(last, Some(Token::Node(_))),
            is_from_node: from_node.is_some(),
            asked: asked.ok_or(Refusal::of(400, "Malformed Route"))?,
            relayed: relayed(&signed),
        })
    }

    /// How many values in front are this server's, and are removed in this pass. Adds their tokens. If the request
    /// passes this server again, returns the address of this server in the next value.
    fn own_values(
        &self,
        routes: &[NameAddr<'_>],
        signed: &mut Vec<Signed>,
        message: &Message<'_>,
    ) -> Result<(usize, Option<IpAddr>), Refusal> {
        let mut removed = 0;
        for route in routes {
            match self.own(route.uri, message)? {
                RouteUri::Foreign => break,
                RouteUri::ThisServer => {}
                RouteUri::Signed(own) if is_of_next_node(signed, own) => break,
                RouteUri::Signed(own) => {
                    if is_of_next_session(signed, own)
                        && let Some(address) = self.own_address(route.uri)
                    {
                        return Ok((removed, Some(address)));
                    }
                    signed.push(own);
                }
            }
            removed += 1;
        }
        Ok((removed, None))
    }

    /// A call passes this server [`MAX_PASSES`] times at most, and one other node. With the tokens of these passes in
    /// turns, a request would come back as often as there are tokens.
    ///
    /// # Errors
    /// 482 if the Route values that are left lead through this server more often, or back to it from another node.
    fn check_later_passes(
        &self,
        left: &[NameAddr<'_>],
        removed: &[Signed],
        message: &Message<'_>,
    ) -> Result<(), Refusal> {
        let (mut sessions, mut nodes) = (0, 0);
        let mut before = removed.to_vec();
        for route in left {
            let own = match self.own(route.uri, message)? {
                RouteUri::Foreign => break,
                RouteUri::ThisServer => continue,
                RouteUri::Signed(own) => own,
            };
            let is_of_node = is_of_next_node(&before, own);
            if is_of_node || is_of_next_session(&before, own) {
                nodes += u32::from(is_of_node);
                sessions += u32::from(!is_of_node);
                before.clear();
            }
            before.push(own);
        }
        match nodes > 1 || sessions >= MAX_PASSES {
            true => Err(Refusal::of(482, "")),
            false => Ok(()),
        }
    }

    /// The token of another node is good for one request and some minutes. Without other nodes, nobody has written it.
    fn check_node(
        &self,
        message: &Message<'_>,
        from: Option<FromNode>,
        flow: &Flow,
    ) -> Result<(), Refusal> {
        let uri = message.request_uri().unwrap_or_default();
        let is_good = from.is_none_or(|from| {
            self.routing.accepts_node(flow)
                && from.request == self.tokens.hash(message, uri)
                && from.unix_s.abs_diff(self.unix_s) <= NODE_S
        });
        match is_good {
            true => Ok(()),
            false => Err(Refusal::of(403, "Forged Route")),
        }
    }

    /// Removes a `maddr` that names this server (RFC 3261 §16.4). Otherwise, the server would send the request to
    /// itself.
    fn without_own_maddr<'m>(&self, uri: &'m [u8], parsed: Option<SipUri<'m>>) -> Cow<'m, [u8]> {
        if let Some(sip) = parsed
            && let Some(maddr) = sip.maddr()
            && (self.routing.is_own(maddr, sip.port) || self.routing.domain(maddr).is_some())
        {
            return uris::without_maddr(&sip).into();
        }
        Cow::Borrowed(uri)
    }

    /// The token of a Request-URI that this server has written into Record-Route.
    fn strict(&self, uri: &SipUri<'_>, call_id: &[u8]) -> Option<Signed> {
        match uri.is_loose() {
            true => self.tokens.read(uri.user?, call_id),
            false => None,
        }
    }

    /// The last value belongs to the side that the request leaves by; a request from a flow has two. If there is only
    /// one value, and it names the flow that the request came by, it is ignored (RFC 5626 §5.3).
    fn outgoing_flow(&self, signed: &[Signed], from: &Flow) -> Result<Option<FlowId>, FlowGone> {
        let Some(Token::Flow(id)) = signed.last().map(|signed| signed.token) else {
            return Ok(None);
        };
        if is_ignored(signed, &id, from) {
            return Ok(None);
        }
        match id.state(self.runs) {
            FlowAvailability::Current | FlowAvailability::Datagrams => Ok(Some(id)),
            FlowAvailability::Gone => Err(FlowGone),
        }
    }
}

/// The trunks that a request may go to if this is the last token of this server.
const fn trunks_of(last: Option<Token>) -> PeerGroups {
    match last {
        Some(Token::Pass) => PeerGroups::All,
        Some(Token::Trunk(group)) => PeerGroups::One(group),
        _ => PeerGroups::None,
    }
}

/// Whether the only value names the flow that the request came by.
fn is_ignored(signed: &[Signed], id: &FlowId, from: &Flow) -> bool {
    signed.len() == 1 && is_same(&id.flow, from)
}

/// The phone that the last value leads to, and its flow.
fn phone(signed: &[Signed], from: &Flow) -> Option<(Phone, FlowId)> {
    let last = signed.last()?;
    match last.token {
        Token::Flow(id) | Token::Near(id) if !is_ignored(signed, &id, from) => {
            Some((last.phone?, id))
        }
        _ => None,
    }
}

/// The side that a request goes to, and the one that it comes from, if the media of its dialog go through a relay. If
/// the call has passed this server twice, values of the pass without a relay name no side.
fn relayed(signed: &[Signed]) -> Option<RelayedDialog> {
    let mut sides = signed.iter().filter_map(|signed| signed.side);
    let from = sides.next()?;
    Some(RelayedDialog {
        to: sides.next_back().unwrap_or(from),
        from: from.profile,
    })
}

/// A call can pass this server twice without another Record-Route between. If the media of both passes go through a
/// relay, each pass has a session there. A request then passes this server twice as well, so that both are changed.
fn is_of_next_session(before: &[Signed], next: Signed) -> bool {
    let mut sides = before.iter().filter_map(|signed| signed.side);
    let session = sides.next_back().map(|side| side.session);
    let next = next.side.map(|side| side.session);
    session.is_some() && next.is_some() && session != next
}

/// Nodes of a cluster read each other's tokens. A value behind one that leads to another node is that node's, if it
/// leads back and another run has written it. The run in a token that leads to a phone may be an earlier one, of before
/// an upgrade or a restart.
fn is_of_next_node(before: &[Signed], next: Signed) -> bool {
    let run_of = |signed: &Signed| match signed.token {
        Token::Node(id) => Some(id.run),
        _ => None,
    };
    match (before.iter().find_map(run_of), run_of(&next)) {
        (Some(node), Some(next)) => node != next,
        _ => false,
    }
}

/// Whether two flows lead to the same remote address or connection. Datagrams may come to several sockets.
pub(super) fn is_same(one: &Flow, other: &Flow) -> bool {
    one.transport == other.transport
        && one.connection == other.connection
        && one.remote == other.remote
}

/// Whether a request is within a dialog. `is_known`: its Route has a token that this server wrote for this Call-ID. A
/// To tag alone proves nothing, because anybody can invent one. Without a To tag, only ACK and BYE count as within a
/// dialog: a peer of RFC 2543 may have no tag (RFC 3261 §12.2.1.1). Every other method counts as outside of a dialog.
pub(super) fn is_within(message: &Message<'_>, is_known: bool) -> bool {
    let has_tag = || message.to().is_ok_and(|to| to.tag.is_some());
    is_known && (matches!(message.method(), Some(Method::Ack | Method::Bye)) || has_tag())
}

/// Whether a request with this method may begin a dialog, so that the proxy adds Record-Route (RFC 3261 §16.6 step 4).
/// Unknown methods may.
pub(super) fn may_begin_dialog(method: Method<'_>) -> bool {
    !matches!(
        method,
        Method::Register
            | Method::Options
            | Method::Message
            | Method::Publish
            | Method::Info
            | Method::Ack
            | Method::Bye
            | Method::Cancel
            | Method::Prack
            | Method::Update
    )
}
