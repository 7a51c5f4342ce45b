//! The keys of `[sip]`: the settings that they make, and the errors of their combination.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use super::diagnostics::{Diagnostic, Report};
use super::key::Entry;
use super::network::{NameServer, Network, PeerRule};
use super::node::Node;
use super::schema::Settings;
use super::setting::{FromText, List, Mistake, Setting, one_of};
use super::sip_advertise;
use super::sip_binding_database;
use super::sip_calls;
use super::sip_domains;
use super::sip_forwards;
use super::sip_ice;
use super::sip_media;
use super::sip_push::{self, PushConfig};
use super::sip_routes;
use super::sip_tls::{self, ClientCertificates, RootFile};
use super::sip_trace;
use super::sip_trunks;
use super::source::Located;
use super::tls;
use server::IpNet;
use server::certificates::CertificateFiles;
use server::sip::routes::{Forward, Route};
use server::sip::{
    Advertised, CallSettings, DigestAlgorithm, Domain, DomainCredentials, Forking, RegistrarConfig,
    TraceSettings, Trunk,
};

/// What was read from `[sip]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sip {
    /// Addresses served over UDP and TCP; none: no SIP.
    pub(crate) listen: Vec<SocketAddr>,
    /// Addresses served over TLS.
    pub(crate) listen_tls: Vec<SocketAddr>,
    /// Addresses served over WebSocket.
    pub(crate) listen_ws: Vec<SocketAddr>,
    /// Addresses served over WebSocket and TLS.
    pub(crate) listen_wss: Vec<SocketAddr>,
    /// What listeners are called outside.
    pub(crate) advertise: Vec<Advertised>,
    /// Where they are called by their addresses all the same.
    pub(crate) local_networks: Vec<ipnet::IpNet>,
    /// Where a WebSocket is served; nothing: at any path.
    pub(crate) ws_paths: Vec<String>,
    /// Web origins whose pages may open a WebSocket; if it is empty: all.
    pub(crate) ws_origins: Vec<String>,
    /// Whether clients are asked for a certificate.
    pub(crate) client_certificates: ClientCertificates,
    /// Files with the issuers of these.
    pub(crate) client_ca: Vec<PathBuf>,
    /// Files with the issuers of next hops' certificates; nothing: those of the system.
    pub(crate) next_hop_ca: Vec<PathBuf>,
    /// What is shown to next hops that ask.
    pub(crate) next_hop_certificate: Vec<CertificateFiles>,
    /// Whether REGISTER and INVITE are accepted, from anybody: for tests.
    pub(crate) test_uas: bool,
    /// Whether that REGISTER takes a digest by one of the users.
    pub(crate) challenge: bool,
    /// The domains whose addresses of record are registered.
    pub(crate) domains: Vec<Domain>,
    /// How their users authenticate, where they have their own.
    pub(crate) credentials: Vec<DomainCredentials>,
    /// Who is known by an address.
    pub(crate) trunks: Vec<Trunk>,
    /// Where requests go that name no user here.
    pub(crate) routes: Vec<Route>,
    /// Where calls go that users do not take.
    pub(crate) forwards: Vec<Forward>,
    /// Whether the proxy stays in the way of dialogs.
    pub(crate) record_route: bool,
    /// In which order contacts are tried.
    pub(crate) forking: Forking,
    /// Whether the proxy follows a 3xx.
    pub(crate) recurse: bool,
    /// Sources whose messages are dropped.
    pub(crate) deny: Vec<IpNet>,
    /// Exceptions.
    pub(crate) allow: Vec<IpNet>,
    /// How long a source is banned that guesses passwords.
    pub(crate) ban: Duration,
    /// The beginnings of User-Agent of tools that scan.
    pub(crate) scanners: Vec<String>,
    /// How many calls there may be, and to which numbers.
    pub(crate) calls: CallSettings,
    /// Which messages are copied for administrators.
    pub(crate) trace: TraceSettings,
    /// `turn:` and `turns:` URIs that registered phones get.
    pub(crate) ice_servers: Vec<String>,
    /// The media relay of trunks.
    pub(crate) rtpengine: Option<SocketAddr>,
    /// Push notifications for phones whose app is suspended (RFC 8599).
    pub(crate) push: Option<PushConfig>,
    /// How long registrations last: what is given, at least and at most.
    pub(crate) registrar: RegistrarConfig,
    /// Registration bindings of all workers.
    pub(crate) bindings: u32,
    /// The database that saves the bindings; `None` if they are in a file or only in memory.
    pub(crate) binding_database: Option<stores::Options>,
    /// Registration bindings of one address of record.
    pub(crate) bindings_per_user: u32,
    /// By which algorithms, the first to be preferred.
    pub(crate) digest_algorithms: Vec<DigestAlgorithm>,
    /// Whether it may protect the body as well.
    pub(crate) auth_int: bool,
    /// The `uri` of credentials may be another one than the Request-URI.
    pub(crate) digest_any_uri: bool,
    /// Credentials may lack `qop`.
    pub(crate) digest_without_qop: bool,
    /// Whether it is to hash the user's name.
    pub(crate) userhash: bool,
    /// How long a message may wait before new work is refused; zero: nothing is.
    pub(crate) tolerance: Duration,
    /// What the test user agent server spends on each request besides.
    pub(crate) service_time: Duration,
    /// T1 of RFC 3261.
    pub(crate) t1: Duration,
    /// The name servers; empty: those of the system.
    pub(crate) resolvers: Vec<SocketAddr>,
    /// Where requests may go whose target a caller has chosen.
    pub(crate) targets: Vec<PeerRule>,
    /// Transactions of all workers.
    pub(crate) transactions: u32,
    /// Connections of all workers.
    pub(crate) connections: u32,
    /// Requests of one source prefix per second; 0: any number.
    pub(crate) requests_per_source: u32,
    /// Connections of one source prefix.
    pub(crate) connections_per_source: u32,
    /// Header fields of a message.
    pub(crate) headers: u32,
    /// Bytes of its start line and header fields.
    pub(crate) head_size: u32,
    /// Bytes of its body.
    pub(crate) body_size: u32,
    /// Time for the first message of a connection, and for each to be complete.
    pub(crate) message_deadline: Duration,
    /// Silence after which a connection is closed.
    pub(crate) idle: Duration,
}

/// The plain values; `None` only if `defaults.toml` lacks one.
pub(super) fn resolve(settings: &Settings) -> Option<Sip> {
    let s = settings.clone();
    Some(Sip {
        listen: values(s.sip_listen?.value),
        listen_tls: values(s.sip_listen_tls?.value),
        listen_ws: values(s.sip_listen_ws?.value),
        listen_wss: values(s.sip_listen_wss?.value),
        advertise: inner(s.sip_advertise?.value, |it| it.0),
        local_networks: networks(s.sip_local_networks?.value),
        ws_paths: inner(s.sip_ws_paths?.value, |it| it.0),
        ws_origins: inner(s.sip_ws_origins?.value, |it| it.0),
        client_certificates: s.sip_client_certificates?.value,
        client_ca: paths(s.sip_client_ca?.value),
        next_hop_ca: paths(s.sip_next_hop_ca?.value),
        next_hop_certificate: inner(s.sip_next_hop_certificate?.value, |it| it.0),
        test_uas: s.sip_test_uas?.value,
        challenge: s.sip_challenge?.value,
        domains: sip_domains::resolve(settings)?,
        credentials: sip_domains::credentials(settings)?,
        trunks: sip_trunks::resolve(settings)?,
        routes: sip_routes::resolve(settings)?,
        forwards: sip_forwards::resolve(settings)?,
        record_route: s.sip_record_route?.value,
        forking: s.sip_forking?.value.0,
        recurse: s.sip_recurse?.value,
        deny: networks(s.sip_deny?.value),
        allow: networks(s.sip_allow?.value),
        ban: s.sip_ban?.value.0,
        scanners: inner(s.sip_scanners?.value, |it| it.0),
        calls: sip_calls::resolve(settings)?,
        trace: sip_trace::resolve(settings)?,
        ice_servers: sip_ice::resolve(settings)?,
        rtpengine: s.sip_rtpengine?.value.0,
        push: sip_push::resolve(settings)?,
        registrar: sip_domains::times(settings)?,
        bindings: s.sip_bindings?.value.0,
        binding_database: sip_binding_database::resolve(settings)?,
        bindings_per_user: s.sip_bindings_per_user?.value.0,
        digest_algorithms: values(s.sip_digest_algorithms?.value.0),
        auth_int: s.sip_auth_int?.value,
        digest_any_uri: s.sip_digest_any_uri?.value,
        digest_without_qop: s.sip_digest_without_qop?.value,
        userhash: s.sip_userhash?.value,
        tolerance: s.sip_tolerance?.value.0,
        service_time: s.sip_service_time?.value.0,
        t1: s.sip_t1?.value.0,
        resolvers: name_servers(s.sip_resolvers?.value),
        targets: values(s.sip_targets?.value),
        transactions: s.sip_transactions?.value.0,
        connections: s.sip_connections?.value.0,
        requests_per_source: s.sip_requests_per_source?.value.0,
        connections_per_source: s.sip_connections_per_source?.value.0,
        headers: s.sip_headers?.value.0,
        head_size: s.sip_head_size?.value.0,
        body_size: s.sip_body_size?.value.0,
        message_deadline: s.sip_message_deadline?.value.0,
        idle: s.sip_idle?.value.0,
    })
}

/// The values within the elements of a list.
fn inner<T, V>(list: List<T>, value: impl Fn(T) -> V) -> Vec<V> {
    values(list).into_iter().map(value).collect()
}

fn values<T>(list: List<T>) -> Vec<T> {
    list.into_iter().map(|item| item.value).collect()
}

fn name_servers(list: List<NameServer>) -> Vec<SocketAddr> {
    values(list).into_iter().map(|server| server.0).collect()
}

fn networks(list: List<Network>) -> Vec<IpNet> {
    values(list).into_iter().map(|network| network.0).collect()
}

fn paths(list: List<RootFile>) -> Vec<PathBuf> {
    values(list).into_iter().map(|file| file.0).collect()
}

/// A path of a URI.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebSocketPath(String);

impl FromText for WebSocketPath {
    const EXPECTED: &'static str = "a path like \"/ws\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let is_path = text.starts_with('/')
            && text
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'?' && byte != b'#');
        match is_path {
            true => Ok(Self(text.to_owned())),
            false => Err(Mistake::new(format!("`{text}` is not a path"))
                .help("begin with a slash, like \"/ws\"")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The origin of a web page (RFC 6454 §6.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Origin(pub(crate) String);

impl FromText for Origin {
    const EXPECTED: &'static str = "an origin like \"https://phone.example.org\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let host = text
            .strip_prefix("https://")
            .or_else(|| text.strip_prefix("http://"));
        let is_origin = host.is_some_and(|host| {
            !host.is_empty()
                && host
                    .bytes()
                    .all(|byte| byte.is_ascii_graphic() && !b"/?#@".contains(&byte))
        });
        match is_origin {
            true => Ok(Self(text.to_owned())),
            false => {
                let help = "give scheme and host alone, like \"https://phone.example.org\"";
                Err(Mistake::new(format!("`{text}` is not an origin")).help(help))
            }
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// In which order the proxy tries the contacts of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ForkingOrder(Forking);

const FORKING: [(&str, Forking); 3] = [
    ("by_q", Forking::ByQ),
    ("parallel", Forking::Parallel),
    ("sequential", Forking::Sequential),
];

impl FromText for ForkingOrder {
    const EXPECTED: &'static str = "\"by_q\", \"parallel\" or \"sequential\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &FORKING).map(Self)
    }

    fn to_text(&self) -> String {
        let named = FORKING.iter().find(|(_, forking)| *forking == self.0);
        named.map_or("", |(name, _)| name).to_owned()
    }
}

/// Algorithms; without any there would be no challenge.
#[derive(Clone, Debug)]
pub(crate) struct Algorithms(pub(crate) List<DigestAlgorithm>);

impl Setting for Algorithms {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        if node.items().is_some_and(|items| items.is_empty()) {
            let help = "leave the key out for SHA-256 and MD5";
            report.push(Diagnostic::error(&node.at, "the list is empty").help(help));
            return None;
        }
        List::read(node, report).map(Self)
    }

    fn write(&self, reveal: bool) -> String {
        self.0.write(reveal)
    }
}

impl FromText for DigestAlgorithm {
    const EXPECTED: &'static str = "\"SHA-512-256\", \"SHA-256\" or \"MD5\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &DigestAlgorithm::ALL.map(|one| (one.name(), one)))
    }

    fn to_text(&self) -> String {
        self.name().to_owned()
    }
}

/// Runs every check on `[sip]`.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    name_servers_are_few(settings, report);
    listener_count_is_limited(settings, report);
    listeners_do_not_clash(settings, report);
    streams_do_not_clash(settings, report);
    tls_has_a_certificate(settings, report);
    sip_tls::check(settings, report);
    sip_advertise::check(settings, &all_listeners(settings), report);
    sip_domains::check(settings, report);
    sip_trunks::check(settings, report);
    sip_calls::check(settings, report);
    sip_ice::check(settings, report);
    sip_media::check(settings, report);
    sip_push::check(settings, report);
    sip_routes::check(settings, report);
    sip_forwards::check(settings, report);
    sip_has_listeners(settings, report);
    challenge_has_users(settings, report);
    targets_have_any_transport(settings, report);
}

/// A target is a host that requests may go to, over any transport.
fn targets_have_any_transport(settings: &Settings, report: &mut Report) {
    let targets = settings.sip_targets.as_ref();
    for target in targets.map_or(&[][..], |list| &list.value) {
        if target.value.transport.is_some() {
            let message = "a target cannot be for one transport only";
            let help = "leave out `udp:` or `tcp:`";
            report.push(Diagnostic::error(&target.at, message).help(help));
        }
    }
}

/// The addresses of UDP and TCP.
fn listeners(settings: &Settings) -> &[Located<SocketAddr>] {
    settings.sip_listen.as_ref().map_or(&[], |list| &list.value)
}

/// The lists of addresses for connections that are not plain TCP.
fn stream_lists(settings: &Settings) -> [&Entry<List<SocketAddr>>; 3] {
    [
        &settings.sip_listen_tls,
        &settings.sip_listen_ws,
        &settings.sip_listen_wss,
    ]
}

fn stream_listeners(settings: &Settings) -> impl Iterator<Item = &Located<SocketAddr>> {
    let lists = stream_lists(settings).into_iter().flatten();
    lists.flat_map(|list| &list.value)
}

fn all_listeners(settings: &Settings) -> Vec<SocketAddr> {
    let all = listeners(settings).iter().chain(stream_listeners(settings));
    all.map(|listener| listener.value).collect()
}

fn is_on(entry: &Entry<bool>) -> Option<&Located<bool>> {
    entry.as_ref().filter(|entry| entry.value)
}

/// A listener costs two sockets per worker.
const MAX_ADDRESSES: usize = 64;

fn listener_count_is_limited(settings: &Settings, report: &mut Report) {
    let lists = [&settings.sip_listen].into_iter();
    for list in lists.chain(stream_lists(settings)).flatten() {
        let count = list.value.len();
        if count <= MAX_ADDRESSES {
            continue;
        }
        let message = format!("{count} addresses are more than {MAX_ADDRESSES}");
        let help = "remove some; 0.0.0.0 and [::] listen on all";
        report.push(Diagnostic::error(&list.at, message).help(help));
    }
}

/// Further name servers would never be asked: a query times out before.
const MAX_RESOLVERS: usize = 8;

fn name_servers_are_few(settings: &Settings, report: &mut Report) {
    let Some(list) = &settings.sip_resolvers else {
        return;
    };
    let count = list.value.len();
    if count > MAX_RESOLVERS {
        let message = format!("{count} name servers are more than {MAX_RESOLVERS}");
        let help = "keep the two or three that are nearest";
        report.push(Diagnostic::error(&list.at, message).help(help));
    }
}

/// Reports a SIP listener with the address of a STUN or TURN listener, or with a port of the relay range. All of them
/// use UDP.
fn listeners_do_not_clash(settings: &Settings, report: &mut Report) {
    let udp = settings.listen_udp.as_ref();
    let udp = udp.map_or(&[][..], |list| &list.value.0);
    let dtls = settings.listen_dtls.as_ref();
    let dtls = dtls.map_or(&[][..], |list| &list.value);
    for listener in listeners(settings) {
        let address = listener.value;
        let mut others = udp.iter().chain(dtls);
        let taken = others.find(|other| other.value == address);
        if let Some(other) = taken.filter(|_| address.port() != 0) {
            report.push(
                Diagnostic::error(&listener.at, format!("{address} is taken by STUN and TURN"))
                    .see(&other.at, "listened on here")
                    .help("SIP has a port of its own, 5060; STUN is answered there, too"),
            );
        }
        let range = settings.relay_ports.as_ref();
        if let Some(range) = range.filter(|range| range.value.0.contains(&address.port())) {
            report.push(
                Diagnostic::error(
                    &listener.at,
                    format!("the SIP listener {address} lies in the relay range"),
                )
                .see(&range.at, "these ports are relayed from")
                .help("choose a port below the range, like 5060"),
            );
        }
    }
}

/// One address has one protocol, SIP's own over TCP included.
fn streams_do_not_clash(settings: &Settings, report: &mut Report) {
    let turn = [&settings.listen_tcp, &settings.listen_tls];
    let turn = turn.into_iter().flatten().flat_map(|list| &list.value);
    let mut seen: Vec<&Located<SocketAddr>> = turn.chain(listeners(settings)).collect();
    for listener in stream_listeners(settings) {
        let address = listener.value;
        let taken = seen.iter().find(|other| other.value == address);
        if let Some(other) = taken.filter(|_| address.port() != 0) {
            report.push(
                Diagnostic::error(&listener.at, format!("{address} is taken"))
                    .see(&other.at, "listened on here")
                    .help("give each protocol a port of its own"),
            );
        }
        seen.push(listener);
    }
}

fn tls_has_a_certificate(settings: &Settings, report: &mut Report) {
    let lists = [&settings.sip_listen_tls, &settings.sip_listen_wss];
    for list in lists.into_iter().flatten() {
        let message = "there is a TLS listener, but no certificate";
        let help = "set tls.certificates or acme.domains, or remove the listener";
        tls::check_listeners(settings, list, (message, help), report);
    }
}

/// Warns about `sip.test_uas`, or else about the first `sip.domain`, if there is no SIP listener.
fn sip_has_listeners(settings: &Settings, report: &mut Report) {
    if !listeners(settings).is_empty() || stream_listeners(settings).next().is_some() {
        return;
    }
    let test_uas = is_on(&settings.sip_test_uas).map(|entry| &entry.at);
    let domain = settings.sip_domain.as_ref();
    let domain = domain.and_then(|list| Some(&list.value.first()?.at));
    if let Some(at) = test_uas.or(domain) {
        report.push(
            Diagnostic::warning(at, "this has no effect, because nothing listens for SIP")
                .help("add a listener, for example sip.listen = [\"127.0.0.1:5060\"]"),
        );
    }
}

fn challenge_has_users(settings: &Settings, report: &mut Report) {
    let Some(challenge) = is_on(&settings.sip_challenge) else {
        return;
    };
    if is_on(&settings.sip_test_uas).is_none() {
        report.push(
            Diagnostic::warning(&challenge.at, "REGISTER is not served at all")
                .help("say sip.test_uas = true, too"),
        );
    }
    let users = settings.users.as_ref();
    let has_users = users.is_some_and(|users| !users.value.is_empty());
    if !has_users && !super::stores::may_have_users(settings) {
        report.push(
            Diagnostic::error(&challenge.at, "nobody could answer the challenge")
                .help("add a user to auth.users, with its password"),
        );
    }
}
