//! Commands of the TU, events for the TU, and their limits.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::branch::LoopCheck;
use crate::congestion::Class;
use crate::engine::{Mark, RequestError};
use crate::flow::{Destination, Flow, ListenerKey, PeerName, Transport};
use crate::routing::{Candidate, TargetError};

/// A socket that requests can leave by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Its name.
    pub listener: ListenerKey,
    /// Its transport. A listener with two transports has two entries.
    pub transport: Transport,
    /// IPv4, or else IPv6.
    pub is_v4: bool,
}

/// Returns whether a request may go to this address ([`AllowedDestination`]). `true` if the address is configured without
/// a group, or in one of these groups. `false` for every address that is not configured.
pub type Allowed = Box<dyn Fn(SocketAddr, PeerGroups) -> bool + Send>;

/// Groups of configured addresses. The embedder names them: one for each trunk, for example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerGroups {
    /// All.
    All,
    /// The one with this identifier. Bytes have no alignment, so that requests are not larger.
    One([u8; 4]),
    /// None.
    None,
}

/// The other nodes of a cluster. Requests to them leave by sockets of their own.
pub struct ClusterNodes {
    /// The sockets for requests to them. Their transports are not used for any other address.
    pub sources: Vec<Source>,
    /// Whether one of them is at this address and has this transport there.
    pub has: Box<dyn Fn(Transport, SocketAddr) -> bool + Send>,
}

/// Limits, and the sockets to send from.
pub struct Config {
    /// What requests leave by, the preferred transport first.
    pub sources: Vec<Source>,
    /// The nodes of the cluster. Default: none.
    pub nodes: Option<ClusterNodes>,
    /// Requests at a time; 10,000 by default.
    pub most: usize,
    /// Questions to the DNS at a time; 64 by default.
    pub max_queries: usize,
    /// Responses at a time that are tried elsewhere; 32 by default.
    pub most_responses: usize,
    /// For how long after the first attempt another server is tried; twice 64*T1 by default, so that one may be silent.
    pub failover_time: Duration,
    /// The configured addresses: see [`AllowedDestination`]; none by default.
    pub allowed: Allowed,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Config")
            .field("sources", &self.sources)
            .field("most", &self.most)
            .finish_non_exhaustive()
    }
}

impl Config {
    /// The defaults, with these sockets.
    #[must_use]
    pub fn new(sources: Vec<Source>) -> Config {
        Config {
            sources,
            nodes: None,
            most: 10_000,
            max_queries: 64,
            most_responses: 32,
            failover_time: Duration::from_secs(64),
            allowed: Box::new(|_, _| false),
        }
    }

    /// The transports, each once.
    pub(super) fn transports(&self) -> Vec<Transport> {
        transports(&self.sources)
    }

    /// The transports that only lead to the addresses of nodes.
    pub(super) fn transports_of_nodes(&self) -> Vec<Transport> {
        let nodes = self.nodes.as_ref();
        transports(nodes.map_or(&[], |nodes| &nodes.sources))
    }

    /// How a server is reached, by the wanted listener if that can; `None` if by none.
    pub(super) fn destination(
        &self,
        server: Candidate,
        from: Option<SendFrom>,
        name: Option<&PeerName>,
    ) -> Option<Destination> {
        let Candidate { transport, remote } = server;
        let fits =
            |source: &&Source| source.transport == transport && source.is_v4 == remote.is_ipv4();
        let wanted = from.map(|from| from.listener);
        let nodes = self.nodes.as_ref();
        let nodes = nodes.filter(|nodes| (nodes.has)(transport, remote));
        let sources = nodes.map_or(&self.sources, |nodes| &nodes.sources);
        let mut fitting = sources.iter().filter(fits);
        let first = fitting.next()?;
        let better = fitting.find(|source| Some(source.listener) == wanted);
        let source = match wanted {
            Some(wanted) if first.listener != wanted => better.unwrap_or(first),
            _ => first,
        };
        let is_ours = |local: &SocketAddr| local.is_ipv4() == source.is_v4;
        Some(Destination {
            transport,
            remote,
            listener: source.listener,
            local: from.and_then(|from| from.local).filter(is_ours),
            name: name.filter(|_| transport.is_secure()).cloned(),
        })
    }

    pub(super) fn permits(&self, reach: AllowedDestination, to: SocketAddr) -> bool {
        let (near, groups) = match reach {
            AllowedDestination::Anywhere => return true,
            AllowedDestination::Near(near) => (Some(near), PeerGroups::None),
            AllowedDestination::NearOrGroups(near, groups) => (near, groups),
        };
        let is_near = |near: IpAddr| near.to_canonical() == to.ip().to_canonical();
        near.is_some_and(is_near) || (self.allowed)(to, groups)
    }
}

fn transports(sources: &[Source]) -> Vec<Transport> {
    let mut all = Vec::new();
    for source in sources {
        if !all.contains(&source.transport) {
            all.push(source.transport);
        }
    }
    all
}

/// How far a request may go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllowedDestination {
    /// Any address of its target: the TU is responsible for it.
    Anywhere,
    /// To this address, and to those that [`Config::allowed`] permits for [`PeerGroups::None`]. Use it for a target that
    /// an unauthenticated sender or a registered phone has chosen. Otherwise, a phone could register a Contact that
    /// makes the server send calls of others to a trunk.
    Near(IpAddr),
    /// To this address, and to those that [`Config::allowed`] permits for these groups. For a request
    /// within a dialog, permit few groups: everybody who knows the route set can send such a request.
    NearOrGroups(Option<IpAddr>, PeerGroups),
}

/// What a request is sent from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SendFrom {
    /// The socket. Another one is used if the request goes by a transport that this one has not.
    pub listener: ListenerKey,
    /// Our address, where the socket has several.
    pub local: Option<SocketAddr>,
}

/// A request for a URI.
#[derive(Clone, Copy, Debug)]
pub struct OutgoingRequest<'a> {
    /// The URI that says where it goes: of the topmost Route, or else the Request-URI (RFC 3261 §8.1.2).
    pub target: &'a [u8],
    /// The request without a Via of ours, in pieces; the first begins with the start line.
    pub pieces: &'a [&'a [u8]],
    /// The priority class. If a next hop asks for less (RFC 7339), the lowest classes are withheld first.
    pub class: Class,
    /// Comes back with each response and with a failure.
    pub mark: Mark,
    /// How far it may go.
    pub reach: AllowedDestination,
    /// What [`Engine::loop_check`](crate::engine::Engine::loop_check) said of it, for a proxy that forks.
    pub loop_check: Option<LoopCheck>,
    /// The flow to send the request by while its connection is open, instead of a DNS look-up (RFC 5626 §5.3). It is
    /// the flow that the dialog began with. If it has ended and a new connection is possible, the request goes to the
    /// target.
    pub flow: Option<Flow>,
    /// The socket to send it from, if that can reach the server: in a dialog, the socket that the dialog began with.
    pub from: Option<SendFrom>,
}

/// Why a request is not sent at all.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DispatchError {
    /// There are as many as there may be: answer with 503.
    #[error("the limit of requests in progress is reached: try again when one has ended")]
    Full,
    /// The URI leads nowhere: answer with 416, or 400.
    #[error(transparent)]
    Target(#[from] TargetError),
}

/// Why there will be no response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Nobody serves the URI, says the DNS: for a TU a 404 or 480 (RFC 3263 has none).
    #[error("there is no server for the URI")]
    Nowhere,
    /// The DNS did not respond: 503.
    #[error("the DNS did not answer")]
    NoDns,
    /// Too many queries are open: 503.
    #[error("too many DNS queries are open")]
    TooManyQueries,
    /// The URI leads only to addresses that are not allowed, or that no socket here can reach: 403, or 503.
    #[error("the URI leads to no address that requests may go to")]
    Forbidden,
    /// Every server has asked by Retry-After to be left alone for a while: 503.
    #[error("every server has asked for a pause (Retry-After)")]
    AskedToWait,
    /// No server answered in time: 408 (RFC 3261 §8.1.3.1).
    #[error("no server answered in time")]
    TimedOut,
    /// No server could be reached: 503 (RFC 3261 §8.1.3.1).
    #[error("no server could be reached")]
    TransportFailed,
    /// The engine would not send it: 503.
    #[error(transparent)]
    Refused(RequestError),
    /// The TU has cancelled it before it was sent: 487.
    #[error("cancelled before it was sent")]
    Cancelled,
}

/// A failure that the TU gets instead of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchFailure {
    /// The mark of the request. No other result of this request follows.
    pub mark: Mark,
    /// What happened.
    pub failure: Failure,
}

/// Counts, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that the TU has sent.
    pub requests: u64,
    /// Attempts after the first.
    pub failed_over: u64,
    /// Requests that got no response.
    pub failed: u64,
    /// Requests whose targets were forbidden destinations.
    pub forbidden: u64,
    /// Responses that went to another address than their request came from, because delivery there had failed.
    pub redirected: u64,
    /// Requests in progress now.
    pub alive: usize,
    /// Questions to the DNS that are open now.
    pub queries: usize,
    /// Answers of the DNS in the cache now.
    pub cached: usize,
}
