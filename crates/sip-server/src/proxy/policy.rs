//! The questions of a proxy to its embedder: where a request may go, which bindings an address has, and who sent the request.

use std::net::SocketAddr;

use sip::flow::{Flow, ListenerKey};
use sip::header::Authorization;
use sip::uri::SipUri;
use sip::{Host, Message, Now};

use crate::Aor;
use crate::location::Binding;

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

    /// Whether what comes by this flow comes from a trunk.
    fn is_trunk(&self, flow: &Flow) -> bool;

    /// Whether a URI with this host leads to a trunk. Only numeric addresses count: the proxy does not ask the DNS here.
    fn is_trunk_host(&self, host: Host<'_>) -> bool;

    /// The socket that is bound to this address now: for datagrams of a flow that an earlier run of the server had.
    fn listener_at(&self, local: SocketAddr) -> Option<ListenerKey>;
}

/// Where the bindings of an address of record are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "it lives on the stack for one request"
)]
pub enum Place {
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
    /// Where the bindings are of the address that a URI of a domain names.
    fn place(&mut self, uri: &SipUri<'_>) -> Place;

    /// The bindings of an address.
    fn find(&mut self, now: Now, aor: &Aor) -> LookedUp<'_>;

    /// The flow of a binding has failed (RFC 5626 §5.3.1): the binding with this contact is of no use any more.
    fn flow_failed(&mut self, now: Now, aor: &Aor, contact: &[u8]);
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

/// All of them.
pub trait Policy: Routing + Lookup + Authentication {}

impl<P: Routing + Lookup + Authentication> Policy for P {}
