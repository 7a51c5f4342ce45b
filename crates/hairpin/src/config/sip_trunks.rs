//! The trunks of the SIP proxy, as an administrator writes them.

use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use server::sip::Trunk;
use server::sip::routes::{Credentials, NextHop, ProbeConfig, RegisterConfig};

use super::diagnostics::{Diagnostic, Report};
use super::network::Network;
use super::node::Node;
use super::schema::Settings;
use super::setting::{Bounded, FromText, List, Mistake, Seconds, Setting};
use super::sip_domains::Host;
use super::sip_media::Media;
use super::source::{Located, Location};
use super::table::{self, Table};

/// One trunk, each value with its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawTrunk {
    pub(super) name: Option<Located<Name>>,
    addresses: List<Network>,
    pub(super) certificates: List<CertificateName>,
    pub(super) to: List<TrunkTarget>,
    domain: Option<Host>,
    weight: Option<Weight>,
    priority: Option<Priority>,
    calls_per_second: Option<Rate>,
    pub(super) max_calls: Option<Calls>,
    calls_per_second_from: Option<Rate>,
    pub(super) max_calls_from: Option<Calls>,
    answer_timeout: Option<AnswerTimeout>,
    probe_interval: Option<ProbeInterval>,
    probe_failures: Option<ProbeCount>,
    probe_successes: Option<ProbeCount>,
    slow_start: Option<SlowStart>,
    user: Option<User>,
    password: Option<Password>,
    realm: Option<Realm>,
    register: Option<Aor>,
    register_contact: Option<Aor>,
    register_expires: Option<RegisterExpires>,
    pub(super) media: Option<Located<Media>>,
}

/// The share of the capacity in an overload, and of calls.
type Weight = Bounded<1, 1000>;
type Priority = Bounded<0, 1000>;
type Rate = Bounded<0, 100_000>;
type Calls = Bounded<0, 1_000_000>;
type AnswerTimeout = Seconds<1, 30>;
type ProbeInterval = Seconds<0, 3600>;
type ProbeCount = Bounded<1, 100>;
type SlowStart = Seconds<0, 3600>;
type RegisterExpires = Seconds<60, 86_400>;

const FIELDS: [&str; 23] = [
    "name",
    "addresses",
    "certificates",
    "to",
    "domain",
    "weight",
    "priority",
    "calls_per_second",
    "max_calls",
    "calls_per_second_from",
    "max_calls_from",
    "answer_timeout",
    "probe_interval",
    "probe_failures",
    "probe_successes",
    "slow_start",
    "user",
    "password",
    "realm",
    "register",
    "register_contact",
    "register_expires",
    "media",
];

const EXAMPLE: &str = "write it like { name = \"carrier\", addresses = [\"192.0.2.7\"] }";

impl Setting for RawTrunk {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        table::read(node, report)
    }

    fn write(&self, reveal: bool) -> String {
        table::Writer::new(reveal)
            .one("name", self.name.as_ref().map(|name| &name.value))
            .some("addresses", &self.addresses)
            .some("certificates", &self.certificates)
            .some("to", &self.to)
            .one("domain", self.domain.as_ref())
            .one("weight", self.weight.as_ref())
            .one("priority", self.priority.as_ref())
            .one("calls_per_second", self.calls_per_second.as_ref())
            .one("max_calls", self.max_calls.as_ref())
            .one("calls_per_second_from", self.calls_per_second_from.as_ref())
            .one("max_calls_from", self.max_calls_from.as_ref())
            .one("answer_timeout", self.answer_timeout.as_ref())
            .one("probe_interval", self.probe_interval.as_ref())
            .one("probe_failures", self.probe_failures.as_ref())
            .one("probe_successes", self.probe_successes.as_ref())
            .one("slow_start", self.slow_start.as_ref())
            .one("user", self.user.as_ref())
            .one("password", self.password.as_ref())
            .one("realm", self.realm.as_ref())
            .one("register", self.register.as_ref())
            .one("register_contact", self.register_contact.as_ref())
            .one("register_expires", self.register_expires.as_ref())
            .one("media", self.media.as_ref().map(|media| &media.value))
            .finish()
    }
}

impl Table for RawTrunk {
    const WHAT: &'static str = "a trunk";
    const FIELDS: &'static [&'static str] = &FIELDS;
    const EXAMPLE: &'static str = EXAMPLE;

    fn set(&mut self, name: &str, value: &Node<'_>, report: &mut Report) -> bool {
        match name {
            "name" => {
                let name = Name::read(value, report);
                self.name = name.map(|name| Located {
                    value: name,
                    at: value.at.clone(),
                });
            }
            "addresses" => self.addresses = List::read(value, report).unwrap_or_default(),
            "certificates" => self.certificates = List::read(value, report).unwrap_or_default(),
            "to" => self.to = List::read(value, report).unwrap_or_default(),
            "domain" => self.domain = Host::read(value, report),
            "weight" => self.weight = Weight::read(value, report),
            "priority" => self.priority = Priority::read(value, report),
            "calls_per_second" => self.calls_per_second = Rate::read(value, report),
            "max_calls" => self.max_calls = Calls::read(value, report),
            "calls_per_second_from" => self.calls_per_second_from = Rate::read(value, report),
            "max_calls_from" => self.max_calls_from = Calls::read(value, report),
            "answer_timeout" => self.answer_timeout = AnswerTimeout::read(value, report),
            "probe_interval" => self.probe_interval = ProbeInterval::read(value, report),
            "probe_failures" => self.probe_failures = ProbeCount::read(value, report),
            "probe_successes" => self.probe_successes = ProbeCount::read(value, report),
            "slow_start" => self.slow_start = SlowStart::read(value, report),
            "user" => self.user = User::read(value, report),
            "password" => self.password = Password::read(value, report),
            "realm" => self.realm = Realm::read(value, report),
            "register" => self.register = Aor::read(value, report),
            "register_contact" => self.register_contact = Aor::read(value, report),
            "register_expires" => self.register_expires = RegisterExpires::read(value, report),
            "media" => {
                let media = Media::read(value, report);
                self.media = media.map(|media| Located {
                    value: media,
                    at: value.at.clone(),
                });
            }
            _ => return false,
        }
        true
    }

    fn check(&self, at: &Location, report: &mut Report) {
        let has_address = !self.addresses.is_empty() || !self.to_addresses().is_empty();
        if !has_address && self.certificates.is_empty() {
            let message = "the trunk has no address that it sends from";
            report.push(Diagnostic::error(at, message).help(EXAMPLE));
        }
        if self.user.is_some() != self.password.is_some() {
            let message = "the trunk has only one of user and password";
            report.push(Diagnostic::error(at, message).help("set both, or none"));
        }
        if self.realm.is_some() && self.password.is_none() {
            let message = "the trunk has a realm and no password";
            report.push(Diagnostic::error(at, message).help("add user and password"));
        }
        if self.realm.is_none() && self.password.is_some() {
            let message = "the trunk has a password and no realm; without one, the server answers challenges of every \
                           realm, also of called parties behind the trunk";
            let help =
                "add realm = \"carrier.example\": the realm in a WWW-Authenticate of the trunk";
            report.push(Diagnostic::warning(at, message).help(help));
        }
        if self.register.is_some() && self.register_contact.is_none() {
            let message = "the registration has no URI by which the trunk reaches this server";
            let help = "add register_contact = \"sip:+4930@203.0.113.9:5060\"";
            report.push(Diagnostic::error(at, message).help(help));
        }
        if self.register.is_some() && self.to.is_empty() {
            let message = "there is no address to register at";
            report.push(Diagnostic::error(at, message).help("add to = [\"sip:192.0.2.7:5060\"]"));
        }
    }
}

impl RawTrunk {
    /// The numeric addresses of `to`.
    fn to_addresses(&self) -> Vec<IpAddr> {
        let to = self.to.iter();
        to.filter_map(|to| to.value.0.ip()).collect()
    }

    /// Whether the media of its calls go through a relay.
    pub(super) fn relays_media(&self) -> bool {
        let media = self.media.as_ref();
        media.is_some_and(|media| media.value == Media::Relay)
    }

    fn resolve(self) -> Trunk {
        let realms = self.realm.iter().map(|realm| realm.0.clone()).collect();
        let relays_media = self.relays_media();
        let unprobed = ProbeConfig::default();
        let default = Trunk::default();
        let to_addresses = self.to_addresses();
        let networks = super::values(self.addresses).into_iter();
        let mut addresses: Vec<IpNet> = networks.map(|network| network.0).collect();
        for ip in to_addresses {
            // Requests within a dialog go where calls go.
            if !addresses.iter().any(|network| network.contains(&ip)) {
                addresses.push(ip.into());
            }
        }
        Trunk {
            name: self.name.map(|name| name.value.0).unwrap_or_default(),
            addresses,
            certificates: super::values(self.certificates)
                .into_iter()
                .map(|name| name.0)
                .collect(),
            to: super::values(self.to).into_iter().map(|to| to.0).collect(),
            domain: self.domain.map(|domain| domain.to_text()),
            weight: self.weight.map_or(1, |weight| weight.0 as u16),
            priority: self.priority.map_or(0, |priority| priority.0 as u16),
            calls_per_second: self.calls_per_second.map_or(0, |rate| rate.0),
            max_calls: self.max_calls.map_or(0, |calls| calls.0),
            calls_per_second_from: self.calls_per_second_from.map_or(0, |rate| rate.0),
            max_calls_from: self.max_calls_from.map_or(0, |calls| calls.0),
            answer_timeout: self
                .answer_timeout
                .map_or(default.answer_timeout, |it| it.0),
            probe: ProbeConfig {
                interval: self.probe_interval.map_or(unprobed.interval, |it| it.0),
                failures: self.probe_failures.map_or(unprobed.failures, |it| it.0),
                successes: self.probe_successes.map_or(unprobed.successes, |it| it.0),
                slow_start: self.slow_start.map_or(unprobed.slow_start, |it| it.0),
            },
            credentials: self
                .user
                .zip(self.password)
                .map(|(user, password)| Credentials {
                    user: user.0,
                    password: password.0,
                    realms,
                }),
            register: self
                .register
                .zip(self.register_contact)
                .map(|(aor, contact)| RegisterConfig {
                    aor: aor.0,
                    contact: contact.0,
                    expires: self.register_expires.map_or(DEFAULT_EXPIRES, |it| it.0),
                }),
            relays_media,
        }
    }
}

/// RFC 3261 §10.2.1.1 leaves it to the client; most trunks shorten it.
const DEFAULT_EXPIRES: Duration = Duration::from_secs(3600);

/// The user name of this server at a trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User(String);

impl FromText for User {
    const EXPECTED: &'static str = "the user name of this server at the trunk";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.is_empty() || text.contains(char::is_control) {
            false => Ok(Self(text.to_owned())),
            true => Err(Mistake::new(
                "the name is empty, or has a control character",
            )),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The realm of the credentials at a trunk (RFC 3261 §22.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Realm(String);

impl FromText for Realm {
    const EXPECTED: &'static str = "the realm in the challenges of the trunk";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let is_quoted = |char: char| char.is_control() || char == '"' || char == '\\';
        match text.is_empty() || text.contains(is_quoted) {
            false => Ok(Self(text.to_owned())),
            true => Err(Mistake::new(
                "the realm is empty, or has a quotation mark, a backslash or a control character",
            )),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The password of this server at a trunk.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(String);

impl std::fmt::Debug for Password {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Password")
    }
}

impl FromText for Password {
    const EXPECTED: &'static str = "the password at the trunk";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.is_empty() {
            false => Ok(Self(text.to_owned())),
            true => Err(Mistake::new("the password is empty")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// A SIP URI with a user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Aor(String);

impl FromText for Aor {
    const EXPECTED: &'static str = "a URI like \"sip:+4930@carrier.example\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match server::sip::routes::is_sip_user(text) {
            true => Ok(Self(text.to_owned())),
            false => Err(
                Mistake::new(format!("`{text}` is not a SIP URI with a user"))
                    .help("write it like \"sip:+4930@carrier.example\""),
            ),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The name of a trunk in routes, metrics and logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Name(pub(super) String);

impl FromText for Name {
    const EXPECTED: &'static str = "a name like \"carrier-a\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        match !text.is_empty() && text.len() <= 63 && text.bytes().all(is_plain) {
            true => Ok(Self(text.to_owned())),
            false => Err(Mistake::new(format!("`{text}` is not a name"))
                .help("write 1 to 63 letters, digits, `-`, `_` or `.`")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// A domain in the client certificate of a trunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CertificateName(String);

impl FromText for CertificateName {
    const EXPECTED: &'static str = "a domain like \"carrier.example\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_domain = !text.is_empty() && text.len() <= 253 && text.bytes().all(is_plain);
        // RFC 5922 §7.1: an IP address is no SIP domain identity.
        match is_domain && text.parse::<IpAddr>().is_err() {
            true => Ok(Self(text.to_owned())),
            false => Err(Mistake::new(format!(
                "`{text}` is not a domain that a certificate of SIP can have"
            ))
            .help("write the whole name, without a wildcard (RFC 5922 §7.2)")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// Where calls are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TrunkTarget(pub(super) NextHop);

impl FromText for TrunkTarget {
    const EXPECTED: &'static str = "a URI like \"sip:192.0.2.7:5060\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        NextHop::new(text).map(Self).map_err(|error| {
            Mistake::new(format!("`{text}`: {error}")).help(
                "write it like \"sip:192.0.2.7:5060\" or \"sip:sbc.example.net;transport=tls\"",
            )
        })
    }

    fn to_text(&self) -> String {
        self.0.as_str().to_owned()
    }
}

/// The plain values.
pub(super) fn resolve(settings: &Settings) -> Option<Vec<Trunk>> {
    let trunks = super::values(settings.sip_trunk.clone()?.value).into_iter();
    Some(trunks.map(RawTrunk::resolve).collect())
}

/// All trunks.
pub(super) fn all(settings: &Settings) -> &[Located<RawTrunk>] {
    settings.sip_trunk.as_ref().map_or(&[], |list| &list.value)
}

/// Reports trunks without a domain whose users they could reach, and names that two trunks have.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let mut seen: Vec<&Located<Name>> = Vec::new();
    for name in all(settings)
        .iter()
        .filter_map(|trunk| trunk.value.name.as_ref())
    {
        if let Some(first) = seen.iter().find(|other| other.value == name.value) {
            let message = format!("two trunks are called `{}`", name.value.0);
            report.push(
                Diagnostic::error(&name.at, message)
                    .see(&first.at, "the first one")
                    .help("rename one of them"),
            );
        }
        seen.push(name);
    }
    let Some(first) = all(settings).first() else {
        return;
    };
    let domains = settings.sip_domain.as_ref();
    if domains.is_none_or(|domains| domains.value.is_empty()) {
        report.push(
            Diagnostic::warning(&first.at, "the trunk has no effect: there is no domain")
                .help("add a [[sip.domain]]"),
        );
    }
}
