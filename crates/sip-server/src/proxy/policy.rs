//! The questions of a proxy to its embedder: where a request may go, which bindings an address has, who sent the
//! request, and how many calls there may be.

use std::net::SocketAddr;
use std::time::Duration;

use sip::flow::{Flow, ListenerKey};
use sip::header::{Authorization, NameAddr};
use sip::uri::SipUri;
use sip::{Host, Message, Method, Mono, Now};

use super::nodes::{AtNodes, NodeHop};
use super::push::Pushes;
use super::session::SessionTimer;
use crate::calls::{Bye, CallEnd, CallRecord, Counted, DialogId, Numbers, Ticket};
use crate::flow::FlowId;
use crate::location::Binding;
use crate::routes::{Call, Credentials, Decision, DivertReason, Hop, Outcome};
use crate::{Aor, AorKey};

/// Who may send requests to the users of a domain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Inbound {
    /// Trunks and authenticated users.
    #[default]
    Known,
    /// Everybody. A sender that is no trunk and names a local user in From must authenticate as that user.
    Anyone,
}

/// Which hosts are served here, and which senders are known by their address.
pub trait Routing {
    /// Who may send to the domain that has this host among its names; `None` if no domain has.
    fn domain(&self, host: Host<'_>) -> Option<Inbound>;

    /// The address of record that a URI names in one of the domains.
    fn aor(&self, uri: &SipUri<'_>) -> Option<Aor>;

    /// Whether a request for this host and port comes to this server.
    fn is_own(&self, host: Host<'_>, port: Option<u16>) -> bool;

    /// Whether the other end of this flow is a trunk.
    fn is_trunk(&self, flow: &Flow) -> bool;

    /// Whether a URI with this host leads to a trunk. Only numeric addresses count: the proxy does not ask the DNS
    /// here.
    fn is_trunk_host(&self, host: Host<'_>) -> bool;

    /// Whether another node of a cluster, or this server itself ([`Trunks::own_hop`]), may send requests by this flow.
    /// If not, the proxy refuses requests with the token of a node.
    fn accepts_node(&self, _flow: &Flow) -> bool {
        false
    }

    /// The socket that is bound to this address now: for datagrams of a flow that an earlier run of the server had.
    fn listener_at(&self, local: SocketAddr) -> Option<ListenerKey>;
}

/// Where the bindings of an address of record are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one request"
)]
pub enum BindingsLocation {
    /// This worker has them. The number is that of the temporary GRUU (RFC 5627), if the URI is one.
    Here(Aor, Option<u64>),
    /// This worker has them.
    Elsewhere(u16),
    /// The URI names no address of record.
    Nowhere,
}

/// What [`Lookup::find`] knows.
#[derive(Debug)]
pub enum LookedUp<'l> {
    /// The address exists, and has these bindings. Some may have expired.
    Known(&'l [Binding]),
    /// There is no such address.
    Unknown,
    /// The lookup is not complete. The embedder calls [`super::Proxy::resume`] when it is.
    Pending,
}

/// The location service, as a proxy sees it (RFC 3261 §16.5).
pub trait Lookup {
    /// Whether any address here is an alias of another one.
    fn has_aliases(&self) -> bool {
        false
    }

    /// The address that this one is an alias of, as a URI has it behind the scheme: `alice@example.org`. Requests go
    /// there instead, and the bindings of the alias itself are not used.
    fn alias(&mut self, _aor: &Aor) -> Option<Box<[u8]>> {
        None
    }

    /// Where the bindings are of the address that a URI of a domain names.
    fn place(&mut self, uri: &SipUri<'_>) -> BindingsLocation;

    /// The bindings of an address.
    fn find(&mut self, now: Now, aor: &Aor) -> LookedUp<'_>;

    /// Whether an address is that of a user, although [`Lookup::find`] knows no bindings of it: its users are in a
    /// database, for example. The proxy asks only for senders that are known, because others do not learn it. `flow`:
    /// the request came by it.
    fn exists(&mut self, _now: Now, _aor: &Aor, _flow: &Flow) -> IsUser {
        IsUser::Yes
    }

    /// The other nodes that have bindings of an address.
    fn nodes(&mut self, _now: Now, _aor: &Aor) -> AtNodes {
        AtNodes::Known(Vec::new())
    }

    /// The key of an address of record that tokens of its phones have, so that requests within a dialog find a phone
    /// with a new flow. [`Registrar::key_of`](crate::registrar::Registrar::key_of) has it. `None`: they don't.
    fn phone_key(&self, _aor: &Aor) -> Option<AorKey> {
        None
    }

    /// Where the bindings are of the address of record with this key, for a request within a dialog that began at this
    /// Unix time. [`BindingsLocation::Nowhere`] if none of its phones has got another flow since.
    fn moved_phone(&mut self, _key: AorKey, _since_unix_s: u64) -> BindingsLocation {
        BindingsLocation::Nowhere
    }

    /// A flow has failed (RFC 5626 §5.3.1): the bindings of this address with this flow are of no use any more. Another
    /// binding may have the same contact.
    fn flow_failed(&mut self, now: Now, aor: &Aor, flow: &FlowId);
}

/// The result of an authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authenticated<'a> {
    /// This user has sent the request.
    User(&'a [u8]),
    /// There are no valid credentials: the 407 has these header lines.
    Challenge(&'a [u8]),
    /// The request contradicts itself: 400 with this reason phrase.
    Bad(&'static str),
    /// The sender has tried too many passwords: 503 with Retry-After.
    Slowed,
    /// The sender cannot be checked now, for example because a database is down: 503 with Retry-After.
    Unavailable,
    /// The authentication is not complete. The embedder keeps its result and calls [`super::Proxy::resume`].
    Pending,
}

/// Finds out who sent a request (RFC 3261 §22.3).
pub trait Authentication {
    /// Looks at Proxy-Authorization.
    fn authenticate(&mut self, now: Now, request: &Message<'_>, flow: &Flow) -> Authenticated<'_>;

    /// Whether the address of record is this user's.
    fn owns(&self, user: &[u8], aor: &Aor) -> bool;

    /// Whether these credentials are for the realm of this server, not for another proxy's (RFC 3261 §22.3).
    fn is_for_us(&self, credentials: &Authorization<'_>) -> bool;
}

/// A request outside of dialogs that is about to be forwarded.
#[derive(Clone, Copy, Debug)]
pub struct NewCall<'a> {
    /// The request: an INVITE or any other.
    pub message: &'a Message<'a>,
    /// The authenticated user who has sent it; `None` for a trunk, and for others that need no credentials.
    pub user: Option<&'a [u8]>,
    /// The number of the trunk that has sent it.
    pub trunk: Option<u16>,
    /// Whom it is for: the Request-URI, also if Route names another next hop.
    pub uri: &'a [u8],
    /// The numbers that routes make of it, for the trunks that they lead to.
    pub rewritten: &'a [&'a [u8]],
    /// The Route values behind those of this server. The next hop may make one the Request-URI (RFC 3261 §16.6 step 6).
    pub routes: &'a [NameAddr<'a>],
    /// `uri` is an address of record here.
    pub is_local: bool,
}

impl NewCall<'_> {
    /// Whether a number of this request is forbidden: the called number, one that a route makes of it, or one in Route.
    #[must_use]
    pub fn is_forbidden(&self, numbers: &Numbers) -> bool {
        let is_forbidden = |uri: &[u8]| numbers.forbid(uri);
        !self.is_local
            && (is_forbidden(self.uri)
                || self.rewritten.iter().any(|it| is_forbidden(it))
                || self.routes.iter().any(|it| is_forbidden(it.uri)))
    }
}

/// Why a request is not forwarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Denied {
    /// Nobody may call this number: 403.
    Number,
    /// The limit of concurrent calls is reached: 486.
    Concurrent,
    /// The limit of calls per second is reached: 480 with Retry-After.
    Rate,
}

/// Limits of calls. The default methods set no limits. Then the proxy keeps nothing per dialog.
pub trait Calls {
    /// Whether dialogs count: then the proxy calls [`Calls::refreshed`] and [`Calls::ended`].
    fn counts_calls(&self) -> bool {
        false
    }

    /// The session timer that the proxy asks for (RFC 4028 §8), if any.
    fn session_timer(&self) -> Option<SessionTimer> {
        None
    }

    /// Whether a request outside of dialogs may be forwarded. If it begins a call that counts: the tickets of it. The
    /// proxy drops them if the call is not answered.
    ///
    /// # Errors
    /// Why it may not be forwarded.
    fn admit(&mut self, _now: Mono, _call: &NewCall<'_>) -> Result<Vec<Ticket>, Denied> {
        Ok(Vec::new())
    }

    /// Whether the configuration forbids the number in this URI. The proxy asks before it tries a contact of a 3xx.
    fn is_forbidden_number(&self, _uri: &[u8]) -> bool {
        false
    }

    /// Whether calls are recorded. If so, each INVITE outside of dialogs has a [`CallRecord`], also if the proxy
    /// refuses it. A request that is challenged has none.
    fn records_calls(&self) -> bool {
        false
    }

    /// A recorded call has ended, or its INVITE has failed.
    fn call_ended(&mut self, _now: Mono, _record: &CallRecord, _end: CallEnd<'_>) {}

    /// A call was answered: the first 2xx of this dialog is forwarded. `counted` has its tickets and its record.
    /// `session` is the session interval.
    fn answered(
        &mut self,
        _now: Mono,
        _dialog: DialogId,
        _session: Option<Duration>,
        _counted: Counted,
    ) {
    }

    /// The session of a dialog was refreshed. It may be a dialog that does not count.
    fn refreshed(&mut self, _now: Mono, _dialog: DialogId, _session: Option<Duration>) {}

    /// A BYE within a dialog has its final response. It may be a dialog that does not count, and the dialog may
    /// continue: [`Dialogs::end`](crate::calls::Dialogs::end) decides. Returns the record of the call, if the call has
    /// ended and has a record.
    fn ended(&mut self, _dialog: DialogId, _bye: &Bye) -> Option<Box<CallRecord>> {
        None
    }
}

/// The result of [`Trunks::is_user`] and [`Lookup::exists`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IsUser {
    /// The user exists.
    Yes,
    /// There is no such user.
    No,
    /// The lookup is not complete. The embedder calls [`super::Proxy::resume`] when it is.
    Pending,
    /// The lookup has failed, for example because a database is down: 503 with Retry-After.
    Unavailable,
}

/// A limit of a trunk is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HopFull;

/// Routes to trunks. A [`Table`](crate::routes::Table) has all that is needed to answer; by default there is no route.
///
/// Routes are asked for requests outside of dialogs that name no user here.
pub trait Trunks {
    /// Whether there are routes at all.
    fn has_routes(&self) -> bool {
        false
    }

    /// Whether a URI of a domain names a user who exists. Routes do not apply to requests for such a user. `flow`: the
    /// request came by it.
    fn is_user(&mut self, _now: Now, _uri: &SipUri<'_>, _flow: &Flow) -> IsUser {
        IsUser::Yes
    }

    /// The number of the trunk at the other end of this flow; `None` if it is not a trunk.
    fn trunk_of(&self, _flow: &Flow) -> Option<u16> {
        None
    }

    /// The name of the trunk at the other end of this flow; empty if it is not a trunk.
    fn source_name(&self, _flow: &Flow) -> &[u8] {
        b""
    }

    /// The name of the trunk to which a step of a route leads.
    fn trunk_name(&self, _hop: &Hop) -> &[u8] {
        b""
    }

    /// A random number, for routes that hunt by weight.
    fn draw(&mut self) -> u64 {
        0
    }

    /// Where a request goes.
    fn route(&mut self, _now: Now, _call: &Call<'_>) -> Decision {
        Decision::NoRoute
    }

    /// Adds what else of a request decides where its routes lead, besides the Request-URI and Route. A request that
    /// comes back with another of these values is a spiral, not a loop (RFC 5393 §4.2.1).
    /// [`Table::inputs`](crate::routes::Table::inputs) has them.
    fn route_inputs(&self, _message: &Message<'_>, _flow: &Flow, _to: &mut Vec<u8>) {}

    /// Whether a call for this user may go on to another URI if the user does not take it.
    fn has_forward(&self, _aor: &Aor) -> bool {
        false
    }

    /// The URI to which it goes on then.
    fn forward(&self, _aor: &Aor, _missed: DivertReason) -> Option<&[u8]> {
        None
    }

    /// An address of this server to which it can send a request for another user here. Another worker may have the
    /// bindings of that user. [`Routing::accepts_node`] must accept requests from this address. `None`: no call is
    /// forwarded to a user here.
    fn own_hop(&self) -> Option<NodeHop> {
        None
    }

    /// How long the phones of this user ring before a call goes on; `None` if it does not go on then.
    fn forward_after(&self, _aor: &Aor) -> Option<Duration> {
        None
    }

    /// Whether a trunk may get one more request now. The request counts from then on. `is_invite`: it begins a call. If
    /// the call counts, the result has its ticket, which the proxy drops when the INVITE has failed, or gives to
    /// [`Calls::answered`].
    ///
    /// # Errors
    /// [`HopFull`]: the trunk must not get it.
    fn admit_hop(
        &mut self,
        _now: Mono,
        _hop: &Hop,
        _is_invite: bool,
    ) -> Result<Option<Ticket>, HopFull> {
        Ok(None)
    }

    /// A trunk has sent this final response to a request that was admitted.
    fn responded(&mut self, _hop: &Hop, _method: Method<'_>, _code: u16) {}

    /// The outcome of a request that was admitted.
    fn concluded(&mut self, _now: Mono, _hop: &Hop, _outcome: Outcome) {}

    /// The credentials that this server has at a trunk, if it answers the trunk's challenges.
    fn credentials(&self, _hop: &Hop) -> Option<&Credentials> {
        None
    }

    /// Whether the media of calls through some trunk go through a relay: then [`super::Proxy::poll_media`] has requests
    /// for it.
    fn has_relays(&self) -> bool {
        false
    }

    /// Whether the media of calls to this trunk go through the relay.
    fn relays_to(&self, _hop: &Hop) -> bool {
        false
    }

    /// Whether the media of calls that come by this flow from a trunk go through the relay.
    fn relays_from(&self, _flow: &Flow) -> bool {
        false
    }

    /// A request moves on from this address. It may have rung there.
    fn moved_on(&mut self, _hop: &Hop) {}

    /// An INVITE rang at this address and then failed (500, 502, 503, 504, or no final response), and no other address
    /// follows.
    fn rung_and_failed(&mut self, _hop: &Hop) {}
}

/// All that a proxy asks its embedder.
pub trait Policy: Routing + Lookup + Authentication + Calls + Trunks + Pushes {}

impl<P: Routing + Lookup + Authentication + Calls + Trunks + Pushes> Policy for P {}
