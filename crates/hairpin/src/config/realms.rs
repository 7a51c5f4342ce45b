//! Realms beside `auth.realm`, as the user writes them.

use std::collections::HashMap;
use std::net::SocketAddr;

use server::quota::QuotaLimits;

use super::credentials::{Realm as Name, Secret, User};
use super::diagnostics::{Diagnostic, Report};
use super::network::PeerRule;
use super::node::{Node, Raw};
use super::ranges::{AllocationRate, Allocations, GroupRate};
use super::schema::Settings;
use super::setting::{FromText, List, Mistake, Setting, not_a_table};
use super::sip::Origin;
use super::source::{Located, Location};
use super::walk::unknown_key;

/// One realm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Realm {
    pub(crate) name: String,
    pub(crate) origins: Vec<String>,
    pub(crate) server_names: Vec<String>,
    pub(crate) listeners: Vec<SocketAddr>,
    pub(crate) secrets: Vec<String>,
    pub(crate) users: Vec<User>,
    pub(crate) peers_allow: Vec<PeerRule>,
    pub(crate) peers_deny: Vec<PeerRule>,
    pub(crate) allocations: u32,
    pub(crate) allocations_per_user: u32,
    /// Bytes per second, 0 for any number.
    pub(crate) allocation_rate: u64,
    /// The same of all allocations of the realm together, and of one user.
    pub(crate) rate: u64,
    pub(crate) rate_per_user: u64,
}

/// What is written, each value with its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawRealm {
    name: Option<Located<Name>>,
    origins: Option<List<Origin>>,
    server_names: Option<List<ServerName>>,
    listeners: Option<List<SocketAddr>>,
    secrets: Option<List<Secret>>,
    users: Option<List<User>>,
    peers_allow: Option<List<PeerRule>>,
    peers_deny: Option<List<PeerRule>>,
    allocations: Option<Allocations>,
    allocations_per_user: Option<Allocations>,
    allocation_rate: Option<AllocationRate>,
    rate: Option<GroupRate>,
    rate_per_user: Option<GroupRate>,
}

const FIELDS: [&str; 13] = [
    "name",
    "origins",
    "server_names",
    "listeners",
    "secrets",
    "users",
    "peers_allow",
    "peers_deny",
    "allocations",
    "allocations_per_user",
    "rate_per_allocation",
    "rate",
    "rate_per_user",
];
const EXAMPLE: &str = "write it like { name = \"a.example\", origins = [\"https://a.example\"], secrets = [\"SECRET\"] }";

impl RawRealm {
    /// The name of the realm.
    pub(super) fn name(&self) -> &str {
        let name = self.name.as_ref();
        name.map_or("", |name| &name.value.0)
    }
}

impl Setting for RawRealm {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Raw::Toml(toml::de::DeValue::Table(table)) = &node.raw else {
            let help = format!("{EXAMPLE}, in a configuration file");
            report.push(not_a_table(node, "a realm").help(&help));
            return None;
        };
        let source = node.at.source;
        let errors = report.errors();
        let mut realm = RawRealm::default();
        for (name, value) in table.iter() {
            if !realm.set(name.get_ref(), &Node::toml(source, value), report) {
                report.push(unknown_key(source, name, "a realm", &FIELDS, &[]));
            }
        }
        if realm.name.is_none() && report.errors() == errors {
            report.push(Diagnostic::error(&node.at, "the realm has no name").help(EXAMPLE));
        }
        (report.errors() == errors).then_some(realm)
    }

    fn write(&self, reveal: bool) -> String {
        fn one<T: Setting>(name: &str, value: Option<&T>, reveal: bool) -> Option<String> {
            value.map(|value| format!("{name} = {}", value.write(reveal)))
        }
        let name = self.name.as_ref().map(|name| &name.value);
        let fields = [
            one("name", name, reveal),
            one("origins", self.origins.as_ref(), reveal),
            one("server_names", self.server_names.as_ref(), reveal),
            one("listeners", self.listeners.as_ref(), reveal),
            one("secrets", self.secrets.as_ref(), reveal),
            one("users", self.users.as_ref(), reveal),
            one("peers_allow", self.peers_allow.as_ref(), reveal),
            one("peers_deny", self.peers_deny.as_ref(), reveal),
            one("allocations", self.allocations.as_ref(), reveal),
            one(
                "allocations_per_user",
                self.allocations_per_user.as_ref(),
                reveal,
            ),
            one("rate_per_allocation", self.allocation_rate.as_ref(), reveal),
            one("rate", self.rate.as_ref(), reveal),
            one("rate_per_user", self.rate_per_user.as_ref(), reveal),
        ];
        let fields: Vec<_> = fields.into_iter().flatten().collect();
        format!("{{ {} }}", fields.join(", "))
    }
}

impl RawRealm {
    /// Reads one field. Returns whether there is one of this name.
    fn set(&mut self, field: &str, value: &Node<'_>, report: &mut Report) -> bool {
        match field {
            "name" => {
                let name = Name::read(value, report);
                self.name = name.map(|name| Located {
                    value: name,
                    at: value.at.clone(),
                });
            }
            "origins" => self.origins = List::read(value, report),
            "server_names" => self.server_names = List::read(value, report),
            "listeners" => self.listeners = List::read(value, report),
            "secrets" => self.secrets = List::read(value, report),
            "users" => self.users = List::read(value, report),
            "peers_allow" => self.peers_allow = List::read(value, report),
            "peers_deny" => self.peers_deny = List::read(value, report),
            "allocations" => self.allocations = Allocations::read(value, report),
            "allocations_per_user" => self.allocations_per_user = Allocations::read(value, report),
            "rate_per_allocation" => self.allocation_rate = AllocationRate::read(value, report),
            "rate" => self.rate = GroupRate::read(value, report),
            "rate_per_user" => self.rate_per_user = GroupRate::read(value, report),
            _ => return false,
        }
        true
    }

    fn resolve(self) -> Option<Realm> {
        let text = |list: Option<List<Origin>>| {
            let origins = super::values(list.unwrap_or_default()).into_iter();
            origins.map(|origin| origin.0).collect()
        };
        let names = super::values(self.server_names.unwrap_or_default());
        let secrets = super::values(self.secrets.unwrap_or_default());
        Some(Realm {
            name: self.name?.value.0,
            origins: text(self.origins),
            server_names: names.into_iter().map(|name| name.0).collect(),
            listeners: super::values(self.listeners.unwrap_or_default()),
            secrets: secrets.into_iter().map(|secret| secret.0).collect(),
            users: super::values(self.users.unwrap_or_default()),
            peers_allow: super::values(self.peers_allow.unwrap_or_default()),
            peers_deny: super::values(self.peers_deny.unwrap_or_default()),
            allocations: self
                .allocations
                .map_or(QuotaLimits::UNLIMITED, |most| most.0),
            allocations_per_user: self
                .allocations_per_user
                .map_or(QuotaLimits::PER_USER, |most| most.0),
            allocation_rate: self.allocation_rate.map_or(0, |rate| rate.0),
            rate: self.rate.map_or(0, |rate| rate.0),
            rate_per_user: self.rate_per_user.map_or(0, |rate| rate.0),
        })
    }
}

/// A name that clients ask for in TLS and DTLS handshakes (RFC 6066 §3): ASCII, without a wildcard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServerName(String);

impl FromText for ServerName {
    const EXPECTED: &'static str = "a DNS name, like \"turn.example.org\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_');
        match (1..=255).contains(&text.len()) && text.bytes().all(is_name) {
            true => Ok(Self(text.to_owned())),
            false => Err(Mistake::new(format!("`{text}` is not a DNS name"))
                .help("give one whole name in ASCII, like \"turn.example.org\"")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The plain values.
pub(super) fn resolve(settings: &Settings) -> Option<Vec<Realm>> {
    let realms = super::values(settings.realms.clone()?.value).into_iter();
    realms.map(RawRealm::resolve).collect()
}

/// Reports realms that a request cannot distinguish, and realms without users.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let Some(realms) = &settings.realms else {
        return;
    };
    let mut seen: HashMap<(&str, String), &Location> = HashMap::new();
    if let Some(default) = &settings.realm {
        seen.insert(("realm", default.value.0.clone()), &default.at);
    }
    for realm in &realms.value {
        for (what, text, at) in realm.value.marks() {
            // Realms differ by letter case; origins and server names do not.
            let key = match what {
                "realm" => text.clone(),
                _ => text.to_ascii_lowercase(),
            };
            if let Some(earlier) = seen.insert((what, key), at) {
                let message = format!("the {what} `{text}` is used twice");
                report.push(Diagnostic::error(at, message).see(earlier, "used here first"));
            }
        }
        let keys = settings.token_keys.iter().flat_map(|keys| &keys.value);
        let mut of_keys = keys.filter_map(|key| key.value.0.realm.as_deref());
        if !of_keys.any(|of| of == realm.value.name()) {
            check_use(realm, report);
        }
    }
}

/// Reports a realm without token keys that no client can choose, or that nobody can authenticate in.
fn check_use(realm: &Located<RawRealm>, report: &mut Report) {
    let written = &realm.value;
    let name = written.name();
    if written.marks().count() < 2 {
        let message = format!("no client can choose the realm `{name}`");
        let help = "give it origins, server_names or listeners";
        report.push(Diagnostic::warning(&realm.at, message).help(help));
    }
    let has_users = written.users.as_ref().is_some_and(|list| !list.is_empty())
        || written
            .secrets
            .as_ref()
            .is_some_and(|list| !list.is_empty());
    if !has_users {
        let message = format!("nobody can authenticate in the realm `{name}`");
        report.push(Diagnostic::warning(&realm.at, message).help("give it secrets or users"));
    }
}

impl RawRealm {
    /// What the realm is known by, and chosen by: each once in all realms.
    fn marks(&self) -> impl Iterator<Item = (&'static str, String, &Location)> {
        let name = self.name.iter();
        let origins = self.origins.iter().flatten();
        let server_names = self.server_names.iter().flatten();
        let listeners = self.listeners.iter().flatten();
        name.map(|name| ("realm", name.value.0.clone(), &name.at))
            .chain(origins.map(|item| ("origin", item.value.0.clone(), &item.at)))
            .chain(server_names.map(|item| ("server name", item.value.0.clone(), &item.at)))
            .chain(listeners.map(|item| ("listener", item.value.to_string(), &item.at)))
    }
}
