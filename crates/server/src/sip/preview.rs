//! Shows where the proxy would send a request, step by step and without a server. It is the decision of the proxy, with
//! a policy that has only the settings.

use super::advertise::Advertised;
use super::route_hook::{self, RouteHook};
use super::settings::{DomainCredentials, SipSettings};
use super::trunk_sources::TrunkSources;
use sip::flow::{Flow, ListenerKey, PeerName, Transport};
use sip::header::Authorization;
use sip::uri::SipUri;
use sip::{HashKey, Host, Message, Mono, Now, Spans, Uri};
use sip_server::Aor;
use sip_server::calls::{Numbers, Ticket};
use sip_server::flow::FlowId;
use sip_server::proxy::{
    Authenticated, Authentication, BindingsLocation, Calls, Config, Denied, Inbound, IsUser,
    LookedUp, Lookup, NewCall, Proxy, Pushes, Routing, Trunks,
};
pub use sip_server::proxy::{Preview, PreviewTarget};
use sip_server::registrar::{Access, Authority as _, DomainError, Domains, SameUser};
use sip_server::routes::{
    Aliases, Call, CallSender, Decision, DivertReason, Forwards, Table, TableError,
};
use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};

/// A request that is not sent.
#[derive(Debug, Clone)]
pub struct PreviewRequest<'r> {
    /// Its method, such as `INVITE`.
    pub method: &'r str,
    /// The URI in From.
    pub from: &'r str,
    /// The Request-URI.
    pub to: &'r str,
    /// Where it comes from.
    pub source: SocketAddr,
    /// The transport by which it comes.
    pub transport: Transport,
    /// The domain in the client certificate of its TLS connection, if the sender has one.
    pub certificate: Option<&'r str>,
    /// Further header fields, as `Name: value`.
    pub headers: &'r [String],
    /// Its Call-ID, which decides where a route hunts by hash.
    pub call_id: &'r str,
    /// Decides where a route hunts by weight.
    pub draw: u64,
}

/// Why a decision is not possible.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PreviewError {
    /// The domains cannot be served.
    #[error(transparent)]
    Domains(#[from] DomainError),
    /// The routes and trunks contradict each other.
    #[error(transparent)]
    Table(#[from] TableError),
    /// A text is not a URI.
    #[error("`{0}` is not a sip, sips or tel URI: write it like sip:alice@example.org")]
    Uri(String),
    /// The method, a header field or the Call-ID cannot be part of a request.
    #[error("the request is malformed: check its header fields and its Call-ID")]
    Malformed,
}

/// The decision about a request, and its steps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Previewed {
    /// The steps of the decision, each a sentence.
    pub steps: Vec<String>,
    /// The names of the trunks, by their numbers.
    pub trunks: Vec<String>,
    /// What would become of it. [`Preview::Pending`]: it goes to the registration bindings of [`Previewed::user`].
    pub outcome: Preview,
    /// The user here who is called.
    pub user: Option<String>,
}

/// Shows decisions with the same settings. It has the tables that the proxy makes of them. A store can have many
/// routes and aliases, so make it once for many requests.
#[derive(Debug)]
pub struct Previewer {
    domains: Domains,
    aliases: Aliases,
    users: HashSet<Vec<u8>>,
    credentials: Vec<DomainCredentials>,
    trunks: TrunkSources,
    table: Table,
    route_hook: Option<RouteHook>,
    forwards: Forwards,
    listeners: Vec<SocketAddr>,
    advertised: Vec<Advertised>,
    numbers: Numbers,
}

impl Previewer {
    /// Makes the tables of these settings once. `users` are the names of all users.
    ///
    /// # Errors
    /// [`PreviewError::Domains`] and [`PreviewError::Table`].
    pub fn new(
        settings: &SipSettings,
        users: &[&str],
        listeners: &[SocketAddr],
    ) -> Result<Previewer, PreviewError> {
        let table = settings.table(None)?;
        let domains = Domains::new(settings.domains.clone())?;
        Ok(Previewer {
            aliases: settings.usable_aliases(&domains),
            domains,
            users: users.iter().map(|name| name.as_bytes().to_vec()).collect(),
            credentials: settings.credentials.clone(),
            trunks: TrunkSources::new(settings),
            table,
            route_hook: settings.route_hook.clone(),
            forwards: Forwards::new(settings.forwards.clone()),
            listeners: listeners.to_vec(),
            advertised: settings.advertise.clone(),
            numbers: Numbers::new(
                &settings.calls.forbidden_prefixes,
                &settings.calls.allowed_prefixes,
            ),
        })
    }

    /// What the proxy does with a request whose sender authenticates as the user in From.
    ///
    /// # Errors
    /// [`PreviewError::Uri`] and [`PreviewError::Malformed`].
    pub fn preview(&self, request: &PreviewRequest<'_>) -> Result<Previewed, PreviewError> {
        let mut policy = SettingsPolicy {
            settings: self,
            certificate: request.certificate.map(PeerName::new),
            user: Vec::new(),
            called: None,
            draw: request.draw,
            steps: Vec::new(),
        };
        let bytes = request.bytes()?;
        let mut spans = Spans::new();
        let message = Message::parse(bytes.as_bytes(), &mut spans);
        let message = message.map_err(|_| PreviewError::Malformed)?;
        let local = self.listeners.first().copied();
        let from = FlowId {
            worker: 0,
            run: 0,
            flow: Flow {
                transport: request.transport,
                listener: ListenerKey(0),
                connection: None,
                local: local.unwrap_or(SocketAddr::from(([127, 0, 0, 1], 5060))),
                remote: request.source,
            },
        };
        let mut proxy = Proxy::new(Config::default(), HashKey::new([0; 16]), 0, 0);
        let outcome = proxy.preview(Now::default(), &mut policy, &message, &from);
        if let Some(aor) = policy.called.filter(|_| request.method == "INVITE") {
            policy.explain_forwards(&aor, (&message, request));
        }
        let trunks = self.table.trunks();
        Ok(Previewed {
            steps: std::mem::take(&mut policy.steps),
            user: policy.called.as_ref().map(text_of),
            trunks: trunks.map(|(trunk, _)| trunk.name.clone()).collect(),
            outcome,
        })
    }
}

impl Previewer {
    /// Where the hook or the routes lead.
    fn route(&self, call: &Call<'_>, say: impl FnMut(String)) -> Decision {
        let hook = self.route_hook.as_ref();
        route_hook::explain(hook, &self.table, Mono::default(), call, say)
    }
}

fn text_of(aor: &Aor) -> String {
    String::from_utf8_lossy(aor.as_bytes()).into_owned()
}

impl PreviewRequest<'_> {
    fn bytes(&self) -> Result<String, PreviewError> {
        for uri in [self.from, self.to] {
            if !matches!(Uri::parse(uri.as_bytes()), Ok(Uri::Sip(_) | Uri::Tel(_))) {
                return Err(PreviewError::Uri(uri.to_owned()));
            }
        }
        let (method, from, to, call_id) = (self.method, self.from, self.to, self.call_id);
        let mut headers = String::new();
        for header in self.headers {
            headers += header;
            headers += "\r\n";
        }
        let whole = [method, call_id, &headers.replace("\r\n", "")];
        if whole.iter().any(|part| part.contains(['\r', '\n'])) {
            return Err(PreviewError::Malformed);
        }
        Ok(format!(
            "{method} {to} SIP/2.0\r\nVia: SIP/2.0/UDP {};branch=z9hG4bKpreview\r\nFrom: <{from}>;tag=1\r\nTo: <{to}>\r\n\
             Call-ID: {call_id}\r\nCSeq: 1 {method}\r\nMax-Forwards: 70\r\n{headers}Content-Length: 0\r\n\r\n",
            self.source
        ))
    }
}

/// A policy that uses only the settings.
struct SettingsPolicy<'p> {
    settings: &'p Previewer,
    /// The name in the client certificate of the sender.
    certificate: Option<PeerName>,
    /// The user that From names.
    user: Vec<u8>,
    /// The user whose bindings were asked for.
    called: Option<Aor>,
    draw: u64,
    steps: Vec<String>,
}

impl SettingsPolicy<'_> {
    fn trunk_at(&self, ip: IpAddr) -> Option<u16> {
        self.settings.trunks.find(ip, self.certificate.as_slice())
    }

    fn has_user(&self, aor: &Aor) -> bool {
        let is_its = |own: &&DomainCredentials| {
            let host = Host::new(own.domain.as_bytes());
            let domain = host.and_then(|host| self.settings.domains.of(host));
            own.users.is_some() && domain.is_some_and(|it| it.name.as_bytes() == aor.domain())
        };
        if let Some(own) = self.settings.credentials.iter().find(is_its) {
            let mut users = own.users.iter().flatten();
            return users.any(|user| Some(user.name.as_bytes()) == aor.user());
        }
        let users = &self.settings.users;
        let is_user = |name: &[u8]| users.contains(name);
        aor.user().is_some_and(is_user) || is_user(aor.as_bytes())
    }

    /// Says where the call goes if the user does not take it, as the proxy does it.
    fn explain_forwards(
        &mut self,
        aor: &Aor,
        (message, request): (&Message<'_>, &PreviewRequest<'_>),
    ) {
        let settings = self.settings;
        let Some(forward) = settings.forwards.of(aor) else {
            return;
        };
        for missed in DivertReason::ALL {
            let Some(uri) = forward.to(missed) else {
                continue;
            };
            let after = match missed {
                DivertReason::NoAnswer => format!(" after {} s", forward.ring_time.as_secs()),
                _ => String::new(),
            };
            self.add_step(format!(
                "{}{after}: the call goes on to {uri}",
                missed.name()
            ));
            if !self.has_routes() {
                self.explain_user_here(aor, uri);
                continue;
            }
            let call = Call {
                message,
                uri: uri.as_bytes(),
                sender: CallSender::User(aor.user().unwrap_or_default(), aor.domain()),
                source: request.source,
                transport: request.transport,
                draw: request.draw,
            };
            let steps = &mut self.steps;
            let explain = |step| steps.push(format!("  {step}"));
            let decision = settings.route(&call, explain);
            match decision {
                Decision::NoRoute if self.explain_user_here(aor, uri) => {}
                Decision::NoRoute => {
                    self.add_step("  no route matches: it goes to the host of the URI".to_owned());
                }
                Decision::Local(uri) => {
                    self.explain_user_here(aor, &String::from_utf8_lossy(&uri));
                }
                _ => {}
            }
        }
    }

    /// Adds a step that says whether a call for this user is forwarded to another user of this server. Returns whether
    /// the URI names a user of this server.
    fn explain_user_here(&mut self, aor: &Aor, uri: &str) -> bool {
        let alias = alias_of(self, uri);
        let uri = alias.as_deref().unwrap_or(uri);
        let parsed = Uri::parse(uri.as_bytes());
        let sip = parsed.as_ref().ok().and_then(Uri::as_sip);
        let Some(named) = sip.and_then(|sip| self.aor(sip)) else {
            return false;
        };
        let step = match sip.is_some_and(|sip| sip.is_sips) {
            _ if named.as_bytes() == aor.as_bytes() => {
                "  it is the same user: the call is not forwarded".to_owned()
            }
            true => "  a SIPS URI cannot name a user here: the call is not forwarded".to_owned(),
            false if !self.has_user(&named) => {
                format!(
                    "  it goes to the phones of {}, if there is such a user",
                    text_of(&named)
                )
            }
            false => format!("  it goes to the phones of {}", text_of(&named)),
        };
        self.add_step(step);
        true
    }

    fn add_step(&mut self, step: String) {
        self.steps.push(step);
    }
}

/// The URI of the address that this URI is an alias of.
fn alias_of(policy: &SettingsPolicy<'_>, uri: &str) -> Option<String> {
    let parsed = Uri::parse(uri.as_bytes()).ok()?;
    let aor = policy.aor(parsed.as_sip()?)?;
    let address = policy.settings.aliases.of(&aor)?;
    Some(format!("sip:{}", String::from_utf8_lossy(address)))
}

impl Routing for SettingsPolicy<'_> {
    fn domain(&self, host: Host<'_>) -> Option<Inbound> {
        let domain = self.settings.domains.of(host);
        domain.map(|domain| domain.inbound)
    }

    fn aor(&self, uri: &SipUri<'_>) -> Option<Aor> {
        let domain = self.settings.domains.of(uri.host)?;
        Aor::of(uri, domain.name.as_bytes())
    }

    fn is_own(&self, host: Host<'_>, port: Option<u16>) -> bool {
        let ports = |own: &&SocketAddr| match port {
            Some(port) => own.port() == port,
            None => matches!(own.port(), 5060 | 5061),
        };
        let listeners = &self.settings.listeners;
        let mut advertised = self.settings.advertised.iter();
        if advertised.any(|it| it.matches(host, port, listeners)) {
            return true;
        }
        let mut own = listeners.iter().filter(ports);
        match host.ip() {
            Some(ip) => own.any(|own| own.ip() == ip.to_canonical()),
            None => self.domain(host).is_some() && own.next().is_some(),
        }
    }

    fn is_trunk(&self, flow: &Flow) -> bool {
        self.trunk_at(flow.remote.ip()).is_some()
    }

    fn is_trunk_host(&self, host: Host<'_>) -> bool {
        host.ip()
            .is_some_and(|ip| self.settings.trunks.has_address(ip))
    }

    fn listener_at(&self, _local: SocketAddr) -> Option<ListenerKey> {
        None
    }
}

impl Calls for SettingsPolicy<'_> {
    fn admit(&mut self, _now: Mono, call: &NewCall<'_>) -> Result<Vec<Ticket>, Denied> {
        // As in the running server, which has the numbers of calls besides.
        match call.user.is_some() && call.is_forbidden(&self.settings.numbers) {
            true => {
                self.add_step("the number is in sip.forbidden_prefixes".to_owned());
                Err(Denied::Number)
            }
            false => Ok(Vec::new()),
        }
    }
}

impl Lookup for SettingsPolicy<'_> {
    fn has_aliases(&self) -> bool {
        !self.settings.aliases.is_empty()
    }

    fn alias(&mut self, aor: &Aor) -> Option<Box<[u8]>> {
        let address: Box<[u8]> = self.settings.aliases.of(aor)?.into();
        let text = String::from_utf8_lossy(&address).into_owned();
        self.add_step(format!("{} is an alias of {text}", text_of(aor)));
        Some(address)
    }

    fn place(&mut self, uri: &SipUri<'_>) -> BindingsLocation {
        match self.aor(uri) {
            Some(aor) => BindingsLocation::Here(aor, None),
            None => BindingsLocation::Nowhere,
        }
    }

    fn find(&mut self, _now: Now, aor: &Aor) -> LookedUp<'_> {
        if !self.has_user(aor) {
            self.add_step(format!("there is no user {}", text_of(aor)));
            return LookedUp::Unknown;
        }
        self.add_step(format!("{} is a user here", text_of(aor)));
        self.called = Some(*aor);
        // Only the running server has the bindings.
        LookedUp::Pending
    }

    fn flow_failed(&mut self, _now: Now, _aor: &Aor, _flow: &FlowId) {}
}

impl Authentication for SettingsPolicy<'_> {
    fn authenticate(
        &mut self,
        _now: Now,
        request: &Message<'_>,
        _flow: &Flow,
    ) -> Authenticated<'_> {
        let from = request.from().ok();
        let uri = from.as_ref().and_then(|from| from.parse_uri().ok());
        let aor = match uri {
            Some(Uri::Sip(uri)) => self.aor(&uri),
            _ => None,
        };
        match aor.filter(|aor| self.has_user(aor)) {
            Some(aor) => {
                self.add_step(format!(
                    "the sender must prove to be {} (407)",
                    text_of(&aor)
                ));
                self.user = aor.user().unwrap_or_default().to_vec();
                if self.settings.users.contains(aor.as_bytes()) {
                    self.user = aor.as_bytes().to_vec();
                }
                Authenticated::User(&self.user)
            }
            None => {
                self.add_step("From names no user here, and the source is no trunk: the sender cannot authenticate".to_owned());
                Authenticated::Challenge(b"")
            }
        }
    }

    fn owns(&self, user: &[u8], aor: &Aor) -> bool {
        SameUser.access(Some(user), aor) == Access::Granted
    }

    fn is_for_us(&self, _credentials: &Authorization<'_>) -> bool {
        false
    }
}

/// The preview shows the bindings, also those of phones whose app is suspended.
impl Pushes for SettingsPolicy<'_> {}

impl Trunks for SettingsPolicy<'_> {
    fn has_routes(&self) -> bool {
        self.settings.route_hook.is_some() || self.settings.table.has_routes()
    }

    fn is_user(&mut self, _now: Now, uri: &SipUri<'_>, _flow: &Flow) -> IsUser {
        let is_gruu = uri.params.get(b"gr").is_some();
        match is_gruu || self.aor(uri).is_some_and(|aor| self.has_user(&aor)) {
            true => IsUser::Yes,
            false => IsUser::No,
        }
    }

    fn trunk_of(&self, flow: &Flow) -> Option<u16> {
        self.trunk_at(flow.remote.ip())
    }

    fn draw(&mut self) -> u64 {
        self.draw
    }

    fn route(&mut self, _now: Now, call: &Call<'_>) -> Decision {
        let steps = &mut self.steps;
        self.settings.route(call, |step| steps.push(step))
    }
}
