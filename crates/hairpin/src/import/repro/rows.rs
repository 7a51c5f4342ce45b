//! The verdict about each key.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use toml::Value;

use super::super::verdict::Fixed;
use super::super::{Draft, Imported, Verdict};
use super::{File, Line};

/// How the verdict about a key is found.
#[derive(Clone, Copy)]
enum Rule {
    /// The same verdict for each value.
    Always(Fixed),
    /// A function, which can add keys to the draft.
    Decide(fn(&Line, &File, &mut Draft) -> Verdict),
}

const fn by(what: &'static str) -> Rule {
    Rule::Always(Fixed::Replaced(what))
}

const fn no(why: &'static str) -> Rule {
    Rule::Always(Fixed::Unsupported(why))
}

const fn always(why: &'static str) -> Rule {
    Rule::Always(Fixed::Unnecessary(why))
}

const LOG: Rule = by("stderr, which systemd writes to the journal");
const UNIT: Rule = by("the unit hairpin.service of the package");
const WEB: Rule = by("hairpin status, and metrics and the live page at admin.listen");
const SYNC: Rule = no("servers do not exchange registrations");
const DATABASE: Rule =
    by("users of sip.domain or auth.stores for users, and server.state_dir for bindings");
const ACCOUNTING: Rule =
    no("hairpin writes no accounting records: sip.call_log writes one log line per call");
const TLS: Rule = by("tls.certificates and sip.listen_tls");
const CERTIFICATES: Rule = Rule::Decide(|_, file, _| match pair(file) {
    Some(_) => Verdict::carried("tls.certificates"),
    None => Verdict::unnecessary("there is no TLS without certificate and key"),
});
const LISTEN: Rule = Rule::Decide(|line, file, _| match (&*line.name, pair(file)) {
    (_, _) if line.value == "0" => Verdict::unnecessary("0 turns it off"),
    ("TLSPort" | "WSSPort", None) => {
        Verdict::replaced("sip.listen_tls and sip.listen_wss, which require tls.certificates")
    }
    ("DTLSPort", _) => Verdict::unsupported("hairpin has no SIP over DTLS"),
    _ => Verdict::carried("the listeners of [sip]"),
});
const TRANSPORT: Rule = Rule::Decide(|_, _, _| Verdict::carried("the listeners of [sip]"));
const THREADS: Rule = always("hairpin has one worker per core (server.workers)");
const FLOWS: Rule = always("hairpin always uses flows (RFC 5626)");
const COOKIES: Rule = no("clients over WebSocket authenticate by digest");
const FILTER: Rule = by("sip.deny, sip.route and sip.forbidden_prefixes");
const SILO: Rule = no("hairpin does not store messages for users without a registration");
const GEO: Rule = no("hairpin does not know where clients are");
const FORKING: Rule = by("sip.forking, which uses the q values of bindings");
const PRESENCE: Rule = no("hairpin has no presence server");
const RADIUS: Rule = no("hairpin has no RADIUS client");

const ROWS: &[(&str, Rule)] = &[
    ("LoggingType", LOG),
    ("SyslogFacility", LOG),
    ("LogLevel", Rule::Decide(level)),
    ("LogFilename", LOG),
    ("LogMessageStructure", by("log.format")),
    ("LogFileMaxBytes", LOG),
    ("LogFileMaxLines", LOG),
    ("KeepAllLogFiles", LOG),
    ("LoggingInstanceName", LOG),
    (
        "EnableSipMessageLogging",
        no("messages are not logged: capture packets instead"),
    ),
    ("CaptureHost", no("hairpin has no HEP client")),
    ("CapturePort", no("hairpin has no HEP client")),
    ("CaptureAgentID", no("hairpin has no HEP client")),
    (
        "StreamMessageSizeLimit",
        by("sip.head_size and sip.body_size"),
    ),
    ("IPAddress", TRANSPORT),
    ("UDPPort", LISTEN),
    ("TCPPort", LISTEN),
    ("TLSPort", LISTEN),
    ("WSPort", LISTEN),
    ("WSSPort", LISTEN),
    ("DTLSPort", LISTEN),
    (
        "TLSDomainName",
        always("hairpin reads the name from the certificate"),
    ),
    ("TLSCertificate", CERTIFICATES),
    ("TLSPrivateKey", CERTIFICATES),
    (
        "TLSPrivateKeyPassPhrase",
        no("hairpin reads only keys without a passphrase: run openssl pkey -in OLD -out NEW"),
    ),
    (
        "TLSClientVerification",
        by("sip.client_certificates and sip.client_ca"),
    ),
    ("TLSConnectionMethod", by("tls.min_version")),
    (
        "TLSUseEmailAsSIP",
        no("a certificate names a domain by a SIP URI or a DNS name (RFC 5922)"),
    ),
    (
        "TlsDHParamsFilename",
        always("hairpin uses elliptic curves only (ECDHE)"),
    ),
    ("Transport#Interface", Rule::Decide(interface)),
    ("Transport#Type", TRANSPORT),
    (
        "Transport#RecordRouteUri",
        by("sip.advertise, which also applies to Record-Route"),
    ),
    ("Transport#RcvBufLen", by("server.receive_buffer")),
    ("Transport#TlsDomain", TLS),
    ("Transport#TlsCertificate", TLS),
    ("Transport#TlsPrivateKey", TLS),
    (
        "Transport#TlsPrivateKeyPassPhrase",
        no("hairpin reads only keys without a passphrase: run openssl pkey -in OLD -out NEW"),
    ),
    (
        "Transport#TlsClientVerification",
        by("sip.client_certificates and sip.client_ca"),
    ),
    ("DNSServers", Rule::Decide(resolvers)),
    ("EnableIPv6", by("the addresses of sip.listen")),
    ("DisableIPv4", by("the addresses of sip.listen")),
    ("TCPConnectionGCAge", Rule::Decide(idle)),
    ("TCPMinimumGCHeadroom", by("sip.connections")),
    ("HttpBindAddress", WEB),
    ("HttpPort", WEB),
    ("DisableHttpAuth", WEB),
    ("HttpAdminRealm", WEB),
    ("HttpAdminUserFile", WEB),
    ("HttpHostname", WEB),
    ("CommandBindAddress", by("server.control_socket")),
    ("CommandPort", by("server.control_socket")),
    ("CommandQueue", by("server.control_socket")),
    (
        "CommandEventTopic",
        no("hairpin sends no events to a message broker"),
    ),
    ("RegSyncPort", SYNC),
    ("RemoteRegSyncPort", SYNC),
    ("RegSyncPeer", SYNC),
    ("RegSyncBrokerTopic", SYNC),
    ("EnablePublicationReplication", PRESENCE),
    ("DatabasePath", DATABASE),
    ("DefaultDatabase", DATABASE),
    ("RuntimeDatabase", DATABASE),
    ("Database#Type", DATABASE),
    ("Database#Path", DATABASE),
    ("Database#ConnInfo", DATABASE),
    ("Database#Host", DATABASE),
    ("Database#User", DATABASE),
    ("Database#Password", DATABASE),
    ("Database#DatabaseName", DATABASE),
    ("Database#Port", DATABASE),
    ("Database#CustomUserAuthQuery", DATABASE),
    ("Database#CustomTlsAuthQuery", DATABASE),
    ("Database#TableNamePrefix", DATABASE),
    ("SessionAccountingEnabled", ACCOUNTING),
    ("SessionAccountingAddRoutingHeaders", ACCOUNTING),
    ("SessionAccountingAddViaHeaders", ACCOUNTING),
    ("RegistrationAccountingEnabled", ACCOUNTING),
    ("RegistrationAccountingAddRoutingHeaders", ACCOUNTING),
    ("RegistrationAccountingAddViaHeaders", ACCOUNTING),
    ("RegistrationAccountingLogRefreshes", ACCOUNTING),
    ("PluginDirectory", no("hairpin has no plugins")),
    ("LoadPlugins", no("hairpin has no plugins")),
    ("RunAsUser", UNIT),
    ("RunAsGroup", UNIT),
    ("Daemonize", UNIT),
    ("PidFile", UNIT),
    (
        "CADirectory",
        by("sip.next_hop_ca: without it, hairpin trusts the root certificates of the system"),
    ),
    ("CAFile", Rule::Decide(roots)),
    ("CertificatePath", TLS),
    (
        "AllowWildcardCertificates",
        no("a wildcard does not match a SIP domain (RFC 5922 §7.2)"),
    ),
    ("OpenSSLCTXSetOptions", by("tls.min_version")),
    ("OpenSSLCTXClearOptions", by("tls.min_version")),
    (
        "OpenSSLCipherList",
        always("hairpin offers only suites with forward secrecy and AEAD"),
    ),
    (
        "EnableCertServer",
        no("hairpin has no certificate server (RFC 6072)"),
    ),
    ("ServerText", always("hairpin adds no Server header field")),
    (
        "CongestionManagement",
        always("overload control is on unless sip.tolerance is 0"),
    ),
    (
        "CongestionManagementMetric",
        always("hairpin measures the waiting time"),
    ),
    ("CongestionManagementTolerance", Rule::Decide(tolerance)),
    ("StatisticsLogInterval", by("metrics (admin.listen)")),
    ("ThreadedStack", THREADS),
    ("NumAuthGrabberWorkerThreads", THREADS),
    ("NumAsyncProcessorWorkerThreads", THREADS),
    (
        "Domains",
        Rule::Decide(|_, _, _| Verdict::carried("sip.domain")),
    ),
    ("DomainSuffixes", no("each domain must be in sip.domain")),
    (
        "AddViaRport",
        always("hairpin always adds rport (RFC 3581)"),
    ),
    (
        "RecordRouteUri",
        by("sip.advertise, which also applies to Record-Route"),
    ),
    (
        "ForceRecordRouting",
        always("sip.record_route is on by default"),
    ),
    ("DisableRegistrar", by("a configuration without sip.domain")),
    ("EnablePresenceServer", PRESENCE),
    ("PresenceUsesRegistrationState", PRESENCE),
    ("PresenceNotifyClosedStateForNonPublishedUsers", PRESENCE),
    ("EnumSuffixes", no("hairpin has no ENUM (RFC 6116)")),
    ("EnumDomains", no("hairpin has no ENUM (RFC 6116)")),
    ("TimerC", always("timer C is 3 minutes (RFC 3261 §16.8)")),
    ("TimerT1", Rule::Decide(t1)),
    (
        "TCPConnectTimeout",
        always("hairpin tries the next address after answer_timeout of a trunk"),
    ),
    (
        "DNSGreylistDuration",
        by("probe_interval of sip.trunk, which finds addresses that respond again"),
    ),
    ("DisableOutbound", FLOWS),
    ("OutboundVersion", FLOWS),
    ("AssumeFirstHopSupportsOutbound", FLOWS),
    ("AssumeFirstHopSupportsFlowTokens", FLOWS),
    ("EnableFlowTokens", FLOWS),
    ("AllowInboundFlowTokensForNonDirectClients", FLOWS),
    ("ClientNatDetectionMode", FLOWS),
    ("FlowTimer", FLOWS),
    (
        "AlwaysAllowRelaying",
        no(
            "senders without credentials can send to users of sip.domain only, and only with inbound = \"anyone\"",
        ),
    ),
    (
        "NeverStripProxyAuthorizationHeaders",
        always("only credentials for a realm of this server are removed"),
    ),
    (
        "AllowInDialogImpersonationWithinRealm",
        always("requests within a dialog require no digest if they have the Route of this server"),
    ),
    (
        "EnableCertificateAuthenticator",
        by("sip.client_certificates"),
    ),
    (
        "CommonNameMappings",
        no("a certificate proves a domain, not a user"),
    ),
    (
        "DisableAuth",
        no("hairpin registers nobody without a digest"),
    ),
    ("StaticRealm", Rule::Decide(realm)),
    ("EnableRADIUS", RADIUS),
    ("RADIUSConfiguration", RADIUS),
    (
        "DisableIdentity",
        always("hairpin adds no Identity field (RFC 4474 is obsolete)"),
    ),
    (
        "EnablePAssertedIdentityProcessing",
        always("hairpin forwards P-Asserted-Identity between trunks (RFC 3325)"),
    ),
    ("DisableAuthInt", Rule::Decide(auth_int)),
    (
        "RejectBadNonces",
        always("hairpin sends a new challenge for a nonce of another server"),
    ),
    (
        "AllowBadReg",
        no("a REGISTER must be valid (RFC 3261 §10.3)"),
    ),
    ("DigestChallengeAlgorithms", Rule::Decide(algorithms)),
    ("WSCookieAuthSharedSecret", COOKIES),
    ("WSCookieNameInfo", COOKIES),
    ("WSCookieNameExtra", COOKIES),
    ("WSCookieNameMAC", COOKIES),
    ("WSCookieExtraHeaderName", COOKIES),
    ("DisableRequestFilterProcessor", FILTER),
    ("RequestFilterDefaultNoMatchBehavior", FILTER),
    ("RequestFilterDefaultDBErrorBehavior", FILTER),
    ("RequestFilterDatabase", FILTER),
    ("Routes", by("sip.trunk and sip.route")),
    (
        "ParallelForkStaticRoutes",
        by("sip.route, which tries trunks one after the other"),
    ),
    (
        "ContinueProcessingAfterRoutesFound",
        by("sip.route with to_domain"),
    ),
    (
        "ChallengeThirdPartiesCallingLocalDomains",
        Rule::Decide(|line, _, _| match line.is_true() {
            true => Verdict::unnecessary("inbound = \"known\" is the default of a domain"),
            false => Verdict::carried("inbound = \"anyone\" of sip.domain"),
        }),
    ),
    ("MessageSiloEnabled", SILO),
    ("MessageSiloDestFilterRegex", SILO),
    ("MessageSiloMimeTypeFilterRegex", SILO),
    ("MessageSiloExpirationTime", SILO),
    ("MessageSiloAddDateHeader", SILO),
    ("MessageSiloMaxContentLength", SILO),
    ("MessageSiloSuccessStatusCode", SILO),
    ("MessageSiloFilteredMimeTypeStatusCode", SILO),
    ("MessageSiloFailureStatusCode", SILO),
    (
        "RecursiveRedirect",
        Rule::Decide(|line, _, draft| {
            draft.set("sip.recurse", line.is_true());
            Verdict::carried("sip.recurse")
        }),
    ),
    ("GeoProximityTargetSorting", GEO),
    ("GeoProximityIPv4CityDatabaseFile", GEO),
    ("GeoProximityIPv6CityDatabaseFile", GEO),
    ("GeoProximityRequestUriFilter", GEO),
    ("GeoProximityDefaultDistance", GEO),
    ("LoadBalanceEqualDistantTargets", GEO),
    ("QValue", FORKING),
    ("QValueBehavior", FORKING),
    ("QValueCancelBetweenForkGroups", FORKING),
    ("QValueMsBeforeCancel", FORKING),
    ("QValueWaitForTerminateBetweenForkGroups", FORKING),
    ("QValueMsBetweenForkGroups", FORKING),
    (
        "Include",
        no("the import reads one file only: append the other file to it"),
    ),
];

/// The names of all keys; `#` means a number.
#[cfg(test)]
pub(super) fn names() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|(name, _)| *name)
}

/// Whether there is such a key.
pub(super) fn find(pattern: &str) -> Option<&'static str> {
    ROWS.iter()
        .map(|(name, _)| *name)
        .find(|name| *name == pattern)
}

/// The verdict about a line.
pub(super) fn judge(line: &Line, file: &File, draft: &mut Draft) -> Verdict {
    let pattern = line.pattern();
    let Some((_, rule)) = ROWS.iter().find(|(name, _)| *name == pattern) else {
        let names = ROWS.iter().map(|(name, _)| *name);
        return Verdict::wrong(match super::super::nearest(&line.name, names) {
            Some(name) => format!("no key of repro; did you mean `{name}`?"),
            None => "no key of repro".to_owned(),
        });
    };
    match rule {
        _ if line.value.is_empty() => Verdict::unnecessary("the value is empty"),
        Rule::Always(Fixed::Unsupported(_)) if is_off(line) => {
            Verdict::unnecessary("the value turns it off")
        }
        Rule::Always(fixed) => (*fixed).into(),
        Rule::Decide(decide) => decide(line, file, draft),
    }
}

fn is_off(line: &Line) -> bool {
    matches!(&*line.value.to_ascii_lowercase(), "false" | "no" | "off")
}

fn pair(file: &File) -> Option<(&str, &str)> {
    Some((file.value("TLSCertificate")?, file.value("TLSPrivateKey")?))
}

fn level(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    let level = match &*line.value.to_ascii_uppercase() {
        "NONE" | "CRIT" | "ERR" => "error",
        "WARNING" => "warn",
        "INFO" => "info",
        "DEBUG" | "STACK" => "debug",
        _ => return Verdict::wrong("write NONE, CRIT, ERR, WARNING, INFO, DEBUG or STACK"),
    };
    draft.set("log.level", level);
    Verdict::carried("log.level")
}

/// `ADDRESS:PORT`; repro writes IPv6 addresses without brackets.
fn socket(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let ip = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .parse()
        .ok()?;
    Some(SocketAddr::new(ip, port.parse().ok()?))
}

fn interface(line: &Line, file: &File, draft: &mut Draft) -> Verdict {
    let Some(address) = socket(&line.value) else {
        return Verdict::wrong("write ADDRESS:PORT");
    };
    let kind = file
        .value(&line.name.replace("Interface", "Type"))
        .unwrap_or_default();
    let key = match &*kind.to_ascii_uppercase() {
        "UDP" | "TCP" => "sip.listen",
        "WS" => "sip.listen_ws",
        "TLS" | "WSS" if pair(file).is_none() && own_pair(line, file, draft).is_none() => {
            return Verdict::replaced(
                "sip.listen_tls and sip.listen_wss, which require tls.certificates",
            );
        }
        "TLS" => "sip.listen_tls",
        "WSS" => "sip.listen_wss",
        "DTLS" => return Verdict::unsupported("hairpin has no SIP over DTLS"),
        _ => return Verdict::wrong("the type of this transport is missing or unknown"),
    };
    draft.push(key, address.to_string());
    Verdict::carried(key)
}

/// The certificate of one transport.
fn own_pair(line: &Line, file: &File, draft: &mut Draft) -> Option<()> {
    let value = |end: &str| {
        file.value(&line.name.replace("Interface", end))
            .map(str::to_owned)
    };
    let fields = [
        ("certificate", Value::from(value("TlsCertificate")?)),
        ("key", value("TlsPrivateKey")?.into()),
    ];
    draft.push_table("tls.certificates", fields);
    Some(())
}

fn resolvers(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    for text in line.list() {
        match text.parse::<IpAddr>() {
            Ok(ip) => draft.push("sip.resolvers", SocketAddr::new(ip, 53).to_string()),
            Err(_) => return Verdict::wrong("write IP addresses"),
        }
    }
    Verdict::carried("sip.resolvers")
}

fn number(line: &Line) -> Option<i64> {
    line.value.parse().ok()
}

fn idle(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    match number(line) {
        Some(seconds) if seconds > 0 => {
            draft.set("sip.idle", format!("{}s", seconds.clamp(32, 86_400)));
            Verdict::carried("sip.idle")
        }
        _ => Verdict::unnecessary("0 turns it off"),
    }
}

fn roots(line: &Line, _: &File, _: &mut Draft) -> Verdict {
    match line.value.contains("ca-certificates") || line.value.contains("/pki/tls/cert") {
        true => {
            Verdict::unnecessary("hairpin trusts the root certificates of the system by default")
        }
        false => Verdict::replaced("sip.next_hop_ca"),
    }
}

fn tolerance(line: &Line, file: &File, draft: &mut Draft) -> Verdict {
    let metric = file
        .value("CongestionManagementMetric")
        .unwrap_or("WAIT_TIME");
    match (number(line), metric) {
        (Some(ms), "WAIT_TIME") => {
            draft.set("sip.tolerance", format!("{}ms", ms.clamp(1, 10_000)));
            Verdict::carried("sip.tolerance")
        }
        (Some(_), _) => {
            Verdict::unsupported("hairpin measures the waiting time: set sip.tolerance")
        }
        (None, _) => Verdict::wrong("write a number"),
    }
}

fn t1(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    match number(line) {
        Some(ms) => {
            draft.set("sip.t1", format!("{}ms", ms.clamp(10, 5_000)));
            Verdict::carried("sip.t1")
        }
        None => Verdict::wrong("write a number of milliseconds"),
    }
}

fn realm(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    if line.value.len() > server::MAX_REALM_BYTES {
        return Verdict::unsupported(format!(
            "a realm has at most {} bytes",
            server::MAX_REALM_BYTES
        ));
    }
    draft.set("auth.realm", &*line.value);
    Verdict::carried("auth.realm")
}

fn auth_int(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    draft.set("sip.auth_int", !line.is_true());
    Verdict::carried("sip.auth_int")
}

fn algorithms(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    for name in line.list() {
        match name {
            "MD5" | "SHA-256" | "SHA-512-256" => draft.push("sip.digest_algorithms", name),
            _ => return Verdict::wrong("the algorithms are MD5, SHA-256 and SHA-512-256"),
        }
    }
    Verdict::carried("sip.digest_algorithms")
}

/// Writes the listeners and the domain.
pub(super) fn finish(file: &File, imported: &mut Imported) {
    let draft = &mut imported.draft;
    let numbered = [
        "sip.listen",
        "sip.listen_tls",
        "sip.listen_ws",
        "sip.listen_wss",
    ];
    if !numbered.iter().any(|key| draft.has(key)) {
        plain_listeners(file, draft);
    }
    if let Some((certificate, key)) = pair(file) {
        let fields = [("certificate", certificate.into()), ("key", key.into())];
        draft.push_table("tls.certificates", fields);
    }
    let domains: Vec<_> = file
        .find("Domains")
        .into_iter()
        .flat_map(Line::list)
        .collect();
    let is_open = file
        .find("ChallengeThirdPartiesCallingLocalDomains")
        .is_some_and(is_off);
    let inbound = if is_open { "anyone" } else { "known" };
    match domains.split_first() {
        None => imported.notes.push("the file has no Domains, so no phone can register yet: write [[sip.domain]] with the name of your domain".to_owned()),
        Some((name, rest)) => {
            let rest: Vec<Value> = rest.iter().map(|alias| Value::from(*alias)).collect();
            draft.push_table("sip.domain", [("name", (*name).into()), ("aliases", rest.into()), ("inbound", inbound.into()), ("users", super::super::placeholder_users())]);
        }
    }
}

/// The listeners of `UDPPort`, `TCPPort` and so on.
fn plain_listeners(file: &File, draft: &mut Draft) {
    let mut ips: Vec<IpAddr> = file
        .0
        .iter()
        .filter(|line| line.name == "IPAddress")
        .filter_map(|line| line.value.parse().ok())
        .collect();
    if ips.is_empty() {
        ips = vec![Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()];
    }
    let has_tls = pair(file).is_some();
    for (name, key, default, is_possible) in [
        ("UDPPort", "sip.listen", 5060, true),
        ("TCPPort", "sip.listen", 5060, true),
        ("TLSPort", "sip.listen_tls", 0, has_tls),
        ("WSPort", "sip.listen_ws", 0, true),
        ("WSSPort", "sip.listen_wss", 0, has_tls),
    ] {
        let port = file
            .value(name)
            .and_then(|port| port.parse().ok())
            .unwrap_or(default);
        if port > 0 && is_possible {
            ips.iter()
                .for_each(|ip| draft.push(key, SocketAddr::new(*ip, port).to_string()));
        }
    }
}
