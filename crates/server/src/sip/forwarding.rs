//! The proxy of a worker, and its policy. The policy has the domains and trunks, the bindings of the registrar, the
//! users of the digest, and limits of calls.

use super::Secrets;
use super::advertise::{Advertised, source_address};
use super::authentication::{DigestAuthenticator, IsAddress, RealmKey, Rejection};
use super::calls::CallControl;
use super::layers::StreamListener;
use super::lookups::QueuedQuery;
use super::nodes::{NodesHook, NodesQuery};
use super::other_process::WorkerIdentity;
use super::push::Pusher;
use super::registrar::Registrations;
use super::route_hook::{self, RouteHook};
use super::rtpengine::MediaRelay;
use super::settings::SipConfig;
use super::trunk_sources::{TrunkConnections, TrunkSources};
use sip::engine::Engine;
use sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};
use sip::header::{Authorization, HeaderKind};
use sip::uri::{SipUri, Uri};
use sip::{Host, Message, Method, Mono, Now};
use sip_server::calls::{Bye, CallEnd, CallRecord, Counted, DialogId, Limit, Ticket};
use sip_server::flow::FlowId;
use sip_server::proxy::{
    AtNodes, Authenticated, Authentication, BindingsLocation, Calls, Config, Denied, HopFull,
    Inbound, IsUser, LookedUp, Lookup, NewCall, NodeHop, Proxy, PushConfig, PushRequest, Pushes,
    Routing, SessionTimer, Trunks,
};
use sip_server::routes::{
    Aliases, Call, Credentials, Decision, DivertReason, Forwards, Hop, Outcome, Table,
};
use sip_server::{Aor, AorKey};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// The sockets of a worker.
#[derive(Clone, Debug)]
pub(super) struct Sockets {
    pub(super) all: Box<[(ListenerKey, SocketAddr)]>,
    /// The number of plain listeners. They are the first ones, and accept TLS from other nodes only.
    pub(super) plain: u16,
}

impl Sockets {
    /// The plain listeners, and behind them those of TCP, TLS and WebSocket.
    pub(super) fn new(listeners: &[SocketAddr], streams: &[StreamListener]) -> Sockets {
        let streams = streams.iter().map(|stream| stream.local);
        let all = listeners.iter().copied().chain(streams);
        Sockets {
            all: (0..).map(ListenerKey).zip(all).collect(),
            plain: listeners.len() as u16,
        }
    }
}

/// A proxy, and the listeners and trunks of this server that its policy needs.
#[derive(Debug)]
pub(super) struct Forwarder {
    pub(super) proxy: Proxy,
    pub(super) calls: CallControl,
    pub(super) pusher: Pusher,
    pub(super) media: MediaRelay,
    listeners: Sockets,
    /// What the listeners are called outside.
    advertised: Vec<Advertised>,
    trunks: TrunkSources,
    trunk_connections: TrunkConnections,
    routes: Arc<Table>,
    route_hook: Option<RouteHook>,
    forwards: Arc<Forwards>,
    aliases: Arc<Aliases>,
    /// The other nodes of a cluster.
    nodes: Option<NodesHook>,
    /// Counts requests that hunt by weight.
    draws: u64,
    origin: WorkerIdentity,
}

impl Forwarder {
    /// Of the worker of `origin`, whose sockets are these.
    pub(super) fn new(
        origin: WorkerIdentity,
        listeners: Sockets,
        sip_config: &SipConfig,
        secrets: &Secrets,
    ) -> Forwarder {
        let key = secrets.lasting;
        let mut proxy = Proxy::new(config(sip_config), key, origin.number, origin.runs.own);
        proxy.set_other_run(origin.runs.other);
        if let Some(keys) = sip_config.tokens {
            proxy.set_token_keys(keys);
        }
        Forwarder {
            proxy,
            calls: CallControl::new(secrets.calls.clone(), sip_config),
            pusher: Pusher::new(sip_config),
            media: MediaRelay::new(secrets.rtpengine.clone(), sip_config.settings.rtpengine),
            listeners,
            trunks: TrunkSources::new(&sip_config.settings),
            trunk_connections: TrunkConnections::default(),
            advertised: sip_config.settings.advertise.clone(),
            routes: Arc::clone(&sip_config.routes),
            route_hook: sip_config.settings.route_hook.clone(),
            forwards: Arc::clone(&sip_config.forwards),
            aliases: Arc::clone(&sip_config.aliases),
            nodes: sip_config.settings.nodes.clone(),
            draws: key
                .derive(u64::from_le_bytes(*b"hunting "))
                .mac(&origin.runs.own.to_be_bytes()),
            origin,
        }
    }

    /// During an upgrade, the run of the other process.
    pub(super) fn set_other_run(&mut self, other: Option<u32>) {
        self.origin.runs.other = other;
        self.proxy.set_other_run(other);
    }

    /// New settings.
    pub(super) fn apply_settings(&mut self, sip_config: &SipConfig) {
        self.proxy.configure(config(sip_config));
        if let Some(keys) = sip_config.tokens {
            self.proxy.set_token_keys(keys);
        }
        self.calls.apply_settings(sip_config);
        self.pusher.apply_settings(sip_config);
        self.media.set_address(sip_config.settings.rtpengine);
        self.trunks = TrunkSources::new(&sip_config.settings);
        self.routes = Arc::clone(&sip_config.routes);
        self.route_hook = sip_config.settings.route_hook.clone();
        self.forwards = Arc::clone(&sip_config.forwards);
        self.aliases = Arc::clone(&sip_config.aliases);
        self.nodes = sip_config.settings.nodes.clone();
    }

    /// Whether a trunk is at the other end of this flow.
    pub(super) fn is_trunk(&self, flow: &Flow) -> bool {
        let names = self.trunk_connections.names(flow);
        self.trunks.find(flow.remote.ip(), names).is_some()
    }

    /// A message has come by this flow: notes which trunk the certificate of its connection names.
    pub(super) fn note_source(&mut self, flow: &Flow, engine: &Engine) {
        self.trunk_connections.note(flow, engine, &self.trunks);
    }

    /// A connection is closed.
    pub(super) fn connection_gone(&mut self, key: ConnectionKey) {
        self.trunk_connections.remove(key);
    }

    /// A flow, with the worker that has it.
    pub(super) fn flow_id(&self, flow: &Flow) -> FlowId {
        self.origin.flow_id(flow)
    }

    /// The proxy, and its policy for a message that came to this address of the server.
    pub(super) fn with<'p>(
        &'p mut self,
        registrations: &'p mut Registrations,
        authenticator: &'p mut DigestAuthenticator,
        lines: &'p mut [u8],
        local: Option<SocketAddr>,
    ) -> (&'p mut Proxy, ServerPolicy<'p>) {
        let policy = ServerPolicy {
            listeners: &self.listeners,
            trunks: &self.trunks,
            trunk_connections: &self.trunk_connections,
            advertised: &self.advertised,
            calls: &mut self.calls,
            pusher: &mut self.pusher,
            routes: &self.routes,
            route_hook: self.route_hook.as_ref(),
            forwards: &self.forwards,
            aliases: &self.aliases,
            nodes: self.nodes.as_ref(),
            draws: &mut self.draws,
            registrations,
            authenticator,
            lines,
            local,
        };
        (&mut self.proxy, policy)
    }
}

fn config(sip_config: &SipConfig) -> Config {
    Config {
        record_route: sip_config.settings.record_route,
        forking: sip_config.settings.forking,
        recurses: sip_config.settings.recurse,
        most: sip_config.share(sip_config.settings.transactions),
        ..Config::default()
    }
}

/// The listener that is bound to this address now.
pub(super) fn listener_at(
    listeners: &[(ListenerKey, SocketAddr)],
    local: SocketAddr,
) -> Option<ListenerKey> {
    let is_at = |own: &SocketAddr| {
        let is_there = own.ip() == local.ip() || own.ip().is_unspecified();
        own.port() == local.port() && own.is_ipv4() == local.is_ipv4() && is_there
    };
    let found = listeners.iter().find(|(_, own)| is_at(own));
    found.map(|(listener, _)| *listener)
}

/// The policy of this server for its proxy.
#[derive(Debug)]
pub(super) struct ServerPolicy<'p> {
    listeners: &'p Sockets,
    advertised: &'p [Advertised],
    calls: &'p mut CallControl,
    pusher: &'p mut Pusher,
    trunks: &'p TrunkSources,
    trunk_connections: &'p TrunkConnections,
    routes: &'p Table,
    route_hook: Option<&'p RouteHook>,
    forwards: &'p Forwards,
    aliases: &'p Aliases,
    nodes: Option<&'p NodesHook>,
    draws: &'p mut u64,
    registrations: &'p mut Registrations,
    authenticator: &'p mut DigestAuthenticator,
    /// Where a challenge is written.
    lines: &'p mut [u8],
    /// The address that the message came to: one of this server's own, also where it listens on all of them.
    local: Option<SocketAddr>,
}

impl ServerPolicy<'_> {
    /// The number of the trunk at the other end of this flow.
    fn trunk_at(&self, flow: &Flow) -> Option<u16> {
        let names = self.trunk_connections.names(flow);
        self.trunks.find(flow.remote.ip(), names)
    }

    /// The realm that the sender of a request must authenticate in: that of the domain of From. Whoever is anonymous
    /// chooses a realm by the credentials, and is asked for those of the domain that the request goes to.
    fn realm_for(&self, request: &Message<'_>) -> RealmKey {
        let from = request.from().ok();
        let from = from.as_ref().and_then(|from| from.parse_uri().ok());
        let from = from.as_ref().and_then(|uri| uri.as_sip());
        let domain_of = |uri: &SipUri<'_>| self.registrations.domains().of(uri.host);
        if let Some(domain) = from.and_then(domain_of) {
            return self.authenticator.realm_of(domain.name.as_bytes());
        }
        let kind = HeaderKind::ProxyAuthorization;
        if let Some(realm) = self.authenticator.realm_in(request, kind) {
            return realm;
        }
        let uri = Uri::parse(request.request_uri().unwrap_or_default()).ok();
        let uri = uri.as_ref().and_then(|uri| uri.as_sip());
        match uri.and_then(domain_of) {
            Some(domain) => self.authenticator.realm_of(domain.name.as_bytes()),
            None => self.authenticator.common_realm(),
        }
    }

    /// The ticket of a call that a trunk has sent, if calls count.
    ///
    /// # Errors
    /// A limit of calls from the trunk is reached.
    fn admit_from_trunk(
        &mut self,
        now: Mono,
        call: &NewCall<'_>,
    ) -> Result<Option<Ticket>, Denied> {
        let trunk = call.trunk.and_then(|number| self.routes.trunk(number));
        let Some((trunk, health)) = trunk.filter(|_| call.message.method() == Some(Method::Invite))
        else {
            return Ok(None);
        };
        let limit = Limit {
            concurrent: trunk.max_calls_from,
            per_second: trunk.calls_per_second_from,
        };
        let admitted = health.admit_from(limit, self.calls.follows_dialogs(), now);
        admitted.map_err(|exceeded| {
            self.calls
                .exceeded_by_trunk(now, trunk.name.as_bytes(), exceeded)
        })
    }

    /// Whether a message comes from the address that it was sent to, without TLS: from this host. The token in the
    /// request shows whether this server has sent it.
    fn is_own_flow(&self, flow: &Flow) -> bool {
        let (local, remote) = (flow.local.ip(), flow.remote.ip());
        !flow.transport.is_secure() && local.to_canonical() == remote.to_canonical()
    }

    /// Whether a listener is called so outside.
    fn is_advertised(&self, host: Host<'_>, port: Option<u16>) -> bool {
        if self.advertised.is_empty() {
            return false;
        }
        let listeners: Vec<SocketAddr> = self.listeners.all.iter().map(|(_, own)| *own).collect();
        let mut all = self.advertised.iter();
        all.any(|advertised| advertised.matches(host, port, &listeners))
    }

    /// Whether this server listens on this port; without a port, on a default port of SIP (5060 or 5061).
    fn listens_on(&self, port: Option<u16>, ip: Option<IpAddr>) -> bool {
        let mut own = self.listeners.all.iter().map(|(_, address)| *address);
        own.any(|own| {
            let is_port = match port {
                Some(port) => own.port() == port,
                None => matches!(own.port(), 5060 | 5061),
            };
            let is_at = |ip: IpAddr| {
                let local = self.local.filter(|local| local.port() == own.port());
                own.ip() == ip
                    || local.is_some_and(|local| local.ip().to_canonical() == ip)
                    // Another address of this host is its own source.
                    || own.ip().is_unspecified() && source_address(ip) == Some(ip)
            };
            is_port && ip.is_none_or(is_at)
        })
    }
}

impl Routing for ServerPolicy<'_> {
    fn accepts_node(&self, flow: &Flow) -> bool {
        if !self.forwards.is_empty() && self.is_own_flow(flow) {
            return true;
        }
        // A plain listener has TLS with nodes only.
        let is_node = || flow.transport == Transport::Tls && flow.listener.0 < self.listeners.plain;
        let nodes = self.nodes;
        nodes.is_some_and(|nodes| !nodes.requires_tls || is_node())
    }

    fn domain(&self, host: Host<'_>) -> Option<Inbound> {
        let domain = self.registrations.domains().of(host);
        domain.map(|domain| domain.inbound)
    }

    fn aor(&self, uri: &SipUri<'_>) -> Option<Aor> {
        let domain = self.registrations.domains().of(uri.host)?;
        Aor::of(uri, domain.name.as_bytes())
    }

    fn is_own(&self, host: Host<'_>, port: Option<u16>) -> bool {
        if self.is_advertised(host, port) {
            return true;
        }
        match host.ip() {
            Some(ip) => self.listens_on(port, Some(ip.to_canonical())),
            // The name of a domain with a port: it is this server if it listens on that port.
            None => self.domain(host).is_some() && self.listens_on(port, None),
        }
    }

    fn is_trunk(&self, flow: &Flow) -> bool {
        self.trunk_at(flow).is_some()
    }

    fn is_trunk_host(&self, host: Host<'_>) -> bool {
        host.ip().is_some_and(|ip| self.trunks.has_address(ip))
    }

    fn listener_at(&self, local: SocketAddr) -> Option<ListenerKey> {
        listener_at(&self.listeners.all, local)
    }
}

impl Trunks for ServerPolicy<'_> {
    fn has_routes(&self) -> bool {
        self.route_hook.is_some() || self.routes.has_routes()
    }

    fn is_user(&mut self, now: Now, uri: &SipUri<'_>, flow: &Flow) -> IsUser {
        // A GRUU names a user (RFC 5627 §3.2); that of a temporary one is no name.
        if uri.params.get(b"gr").is_some() {
            return IsUser::Yes;
        }
        let Some(aor) = self.aor(uri) else {
            return IsUser::No;
        };
        self.exists(now, &aor, flow)
    }

    fn trunk_of(&self, flow: &Flow) -> Option<u16> {
        self.trunk_at(flow)
    }

    fn source_name(&self, flow: &Flow) -> &[u8] {
        let trunk = self.trunk_at(flow);
        let trunk = trunk.and_then(|number| self.routes.trunk(number));
        trunk.map_or(b"", |(trunk, _)| trunk.name.as_bytes())
    }

    fn trunk_name(&self, hop: &Hop) -> &[u8] {
        let trunk = self.routes.trunk_of(hop);
        trunk.map_or(b"", |(trunk, _)| trunk.name.as_bytes())
    }

    fn draw(&mut self) -> u64 {
        *self.draws = self.draws.wrapping_add(1);
        *self.draws
    }

    fn route(&mut self, now: Now, call: &Call<'_>) -> Decision {
        route_hook::decide(self.route_hook, self.routes, now.mono, call)
    }

    fn route_inputs(&self, message: &Message<'_>, flow: &Flow, to: &mut Vec<u8>) {
        let sender = (flow.remote.ip(), self.trunk_of(flow));
        self.routes.inputs(message, sender, |uri| self.aor(uri), to);
        if let Some(hook) = self.route_hook {
            hook.inputs(message, (flow, sender.1), to);
        }
    }

    fn has_forward(&self, aor: &Aor) -> bool {
        self.forwards.of(aor).is_some()
    }

    fn forward(&self, aor: &Aor, missed: DivertReason) -> Option<&[u8]> {
        Some(self.forwards.of(aor)?.to(missed)?.as_bytes())
    }

    fn own_hop(&self) -> Option<NodeHop> {
        let plain = usize::from(self.listeners.plain);
        let (_, own) = self.listeners.all.iter().take(plain).next()?;
        let ip = match own.ip() {
            ip if !ip.is_unspecified() => ip,
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        };
        Some(NodeHop {
            address: SocketAddr::new(ip, own.port()),
            is_tls: false,
            q: 1_000,
            load: 0,
            phones: Vec::new(),
        })
    }

    fn forward_after(&self, aor: &Aor) -> Option<Duration> {
        let forward = self.forwards.of(aor)?;
        forward.no_answer.as_ref().map(|_| forward.ring_time)
    }

    fn admit_hop(
        &mut self,
        now: Mono,
        hop: &Hop,
        is_invite: bool,
    ) -> Result<Option<Ticket>, HopFull> {
        // Of a trunk from before a reload there are no numbers any more.
        let Some((trunk, health)) = self.routes.trunk_of(hop) else {
            return Ok(None);
        };
        let ticket = match is_invite && self.calls.follows_dialogs() {
            true => Some(health.begin_call(trunk.max_calls).ok_or(HopFull)?),
            false => None,
        };
        match health.admit(trunk.calls_per_second, now) {
            true => Ok(ticket),
            false => Err(HopFull),
        }
    }

    fn responded(&mut self, hop: &Hop, method: Method<'_>, code: u16) {
        if let Some((_, health)) = self.routes.trunk_of(hop) {
            health.responded(method, code);
        }
    }

    fn concluded(&mut self, now: Mono, hop: &Hop, outcome: Outcome) {
        if let Some((_, health)) = self.routes.trunk_of(hop) {
            health.concluded(hop.hop, now, outcome);
        }
    }

    fn credentials(&self, hop: &Hop) -> Option<&Credentials> {
        let (trunk, _) = self.routes.trunk_of(hop)?;
        trunk.credentials.as_ref()
    }

    fn has_relays(&self) -> bool {
        self.routes.has_relays()
    }

    fn relays_to(&self, hop: &Hop) -> bool {
        let trunk = self.routes.trunk_of(hop);
        trunk.is_some_and(|(trunk, _)| trunk.relays_media)
    }

    fn relays_from(&self, flow: &Flow) -> bool {
        let trunk = self.trunk_at(flow);
        let trunk = trunk.and_then(|number| self.routes.trunk(number));
        trunk.is_some_and(|(trunk, _)| trunk.relays_media)
    }

    fn moved_on(&mut self, hop: &Hop) {
        if let Some((_, health)) = self.routes.trunk_of(hop) {
            health.moved_on();
        }
    }

    fn rung_and_failed(&mut self, hop: &Hop) {
        if let Some((_, health)) = self.routes.trunk_of(hop) {
            health.rung_and_failed();
        }
    }
}

impl Pushes for ServerPolicy<'_> {
    fn push_config(&self) -> Option<PushConfig> {
        self.pusher.config()
    }

    fn push(&mut self, request: &PushRequest<'_>) -> bool {
        self.pusher.push(request)
    }
}

impl Lookup for ServerPolicy<'_> {
    fn has_aliases(&self) -> bool {
        !self.aliases.is_empty()
    }

    fn alias(&mut self, aor: &Aor) -> Option<Box<[u8]>> {
        self.aliases.of(aor).map(Box::from)
    }

    fn place(&mut self, uri: &SipUri<'_>) -> BindingsLocation {
        self.registrations.bindings_location(uri)
    }

    fn find(&mut self, _now: Now, aor: &Aor) -> LookedUp<'_> {
        match self.authenticator.may_have_address(aor) {
            true => self.registrations.look_up(aor),
            false => LookedUp::Unknown,
        }
    }

    fn exists(&mut self, now: Now, aor: &Aor, flow: &Flow) -> IsUser {
        match self.authenticator.find_address(aor, flow, now.unix_s) {
            IsAddress::Yes => IsUser::Yes,
            IsAddress::No => IsUser::No,
            IsAddress::Pending => IsUser::Pending,
            IsAddress::Unavailable => IsUser::Unavailable,
        }
    }

    fn nodes(&mut self, _now: Now, aor: &Aor) -> AtNodes {
        let Some(nodes) = self.nodes else {
            return AtNodes::Known(Vec::new());
        };
        if let Some(found) = self.authenticator.looked_up_nodes(aor) {
            return found;
        }
        match nodes.nodes.find(aor.as_bytes()) {
            AtNodes::Pending => {
                let nodes = nodes.clone();
                let query = QueuedQuery::Nodes(NodesQuery { aor: *aor, nodes });
                match self.authenticator.lookups.note_query(query) {
                    true => AtNodes::Pending,
                    false => AtNodes::Unavailable,
                }
            }
            found => found,
        }
    }

    fn phone_key(&self, aor: &Aor) -> Option<AorKey> {
        Some(self.registrations.key_of(aor))
    }

    fn moved_phone(&mut self, key: AorKey, since_unix_s: u64) -> BindingsLocation {
        self.registrations.moved_phone(key, since_unix_s)
    }

    fn flow_failed(&mut self, now: Now, aor: &Aor, flow: &FlowId) {
        self.registrations.flow_failed(now, aor, flow);
    }
}

impl Authentication for ServerPolicy<'_> {
    fn authenticate(&mut self, now: Now, request: &Message<'_>, flow: &Flow) -> Authenticated<'_> {
        let source = flow.remote.ip();
        let realm = self.realm_for(request);
        let asked = (request, HeaderKind::ProxyAuthorization);
        match self.authenticator.check(realm, asked, flow, now.unix_s) {
            Ok(()) => Authenticated::User(self.authenticator.user()),
            Err(Rejection::Pending) => Authenticated::Pending,
            Err(Rejection::Unavailable) => Authenticated::Unavailable,
            Err(Rejection::Bad(reason)) => Authenticated::Bad(reason),
            Err(Rejection::Slowed) => Authenticated::Slowed,
            Err(Rejection::Challenge(why)) => {
                let kind = HeaderKind::ProxyAuthenticate;
                let written = self
                    .authenticator
                    .challenge(realm, self.lines, kind, source, why, now.unix_s);
                // The buffer holds more than any challenge.
                Authenticated::Challenge(written.unwrap_or_default())
            }
        }
    }

    fn owns(&self, user: &[u8], aor: &Aor) -> bool {
        self.authenticator.owns(user, aor)
    }

    fn is_for_us(&self, credentials: &Authorization<'_>) -> bool {
        self.authenticator.is_for_us(credentials)
    }
}

impl Calls for ServerPolicy<'_> {
    fn counts_calls(&self) -> bool {
        self.calls.counts_calls()
    }

    fn session_timer(&self) -> Option<SessionTimer> {
        self.calls.session_timer()
    }

    fn is_forbidden_number(&self, uri: &[u8]) -> bool {
        self.calls.is_forbidden_number(uri)
    }

    fn admit(&mut self, now: Mono, call: &NewCall<'_>) -> Result<Vec<Ticket>, Denied> {
        let of_trunk = self.admit_from_trunk(now, call)?;
        let from = call.message.from().ok();
        let uri = from.as_ref().and_then(|from| from.parse_uri().ok());
        let aor_of = |uri: &Uri<'_>| uri.as_sip().and_then(|uri| self.aor(uri));
        let from = match (uri.as_ref().and_then(aor_of), call.user) {
            // A call from a trunk counts for the domain in the Request-URI.
            (None, None) => Uri::parse(call.uri).ok().as_ref().and_then(aor_of),
            (from, _) => from,
        };
        let mut tickets = self.calls.admit(now, call, from.as_ref())?;
        tickets.extend(of_trunk);
        Ok(tickets)
    }

    fn answered(
        &mut self,
        now: Mono,
        dialog: DialogId,
        session: Option<Duration>,
        counted: Counted,
    ) {
        self.calls.answered(now, dialog, session, counted);
    }

    fn refreshed(&mut self, now: Mono, dialog: DialogId, session: Option<Duration>) {
        self.calls.refreshed(now, dialog, session);
    }

    fn ended(&mut self, dialog: DialogId, bye: &Bye) -> Option<Box<CallRecord>> {
        self.calls.ended(dialog, bye)
    }

    fn records_calls(&self) -> bool {
        self.calls.records_calls()
    }

    fn call_ended(&mut self, now: Mono, record: &CallRecord, end: CallEnd<'_>) {
        self.calls.call_ended(now, record, end);
    }
}
