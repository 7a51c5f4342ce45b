//! The domains of SIP's registrar, as the user writes them.

use server::sip::{
    DigestAlgorithm, Domain, DomainCredentials, DomainUser, Domains, Inbound, RegistrarConfig,
    UserSecret,
};

use super::credentials::Realm;
use super::diagnostics::{Diagnostic, Report};
use super::node::{Node, Raw};
use super::schema::Settings;
use super::setting::{FromText, List, Mistake, Setting, not_a_table, one_of};
use super::sip::Algorithms;
use super::sip_users::User;
use super::source::Located;
use super::walk::unknown_key;

/// One domain as the user writes it. Keys that are not set are `None`.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawDomain {
    name: Option<Located<Host>>,
    aliases: Option<List<Host>>,
    service_route: Option<List<Route>>,
    inbound: Option<Senders>,
    realm: Option<Realm>,
    users: Option<List<User>>,
    digest_algorithms: Option<Algorithms>,
}

const FIELDS: [&str; 7] = [
    "name",
    "aliases",
    "service_route",
    "inbound",
    "realm",
    "users",
    "digest_algorithms",
];

const EXAMPLE: &str = "write it like { name = \"example.org\" }";

impl Setting for RawDomain {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Raw::Toml(toml::de::DeValue::Table(table)) = &node.raw else {
            let help = format!("{EXAMPLE}, in a configuration file");
            report.push(not_a_table(node, "a domain").help(&help));
            return None;
        };
        let source = node.at.source;
        let errors_before = report.errors();
        let mut domain = RawDomain::default();
        for (name, value) in table.iter() {
            let value = Node::toml(source, value);
            match &name.get_ref()[..] {
                "name" => {
                    let name = Host::read(&value, report);
                    domain.name = name.map(|name| Located {
                        value: name,
                        at: value.at.clone(),
                    });
                }
                "aliases" => domain.aliases = List::read(&value, report),
                "service_route" => domain.service_route = List::read(&value, report),
                "inbound" => domain.inbound = Senders::read(&value, report),
                "realm" => domain.realm = Realm::read(&value, report),
                "users" => domain.users = List::read(&value, report),
                "digest_algorithms" => {
                    domain.digest_algorithms = Algorithms::read(&value, report);
                }
                _ => report.push(unknown_key(source, name, "a domain", &FIELDS, &[])),
            }
        }
        if domain.name.is_none() && report.errors() == errors_before {
            report.push(Diagnostic::error(&node.at, "the domain has no name").help(EXAMPLE));
        }
        (report.errors() == errors_before).then_some(domain)
    }

    fn write(&self, reveal: bool) -> String {
        fn one<T: Setting>(name: &str, value: Option<&T>, reveal: bool) -> Option<String> {
            value.map(|value| format!("{name} = {}", value.write(reveal)))
        }
        let name = self.name.as_ref().map(|name| &name.value);
        let fields = [
            one("name", name, reveal),
            one("aliases", self.aliases.as_ref(), reveal),
            one("service_route", self.service_route.as_ref(), reveal),
            one("inbound", self.inbound.as_ref(), reveal),
            one("realm", self.realm.as_ref(), reveal),
            one("users", self.users.as_ref(), reveal),
            one("digest_algorithms", self.digest_algorithms.as_ref(), reveal),
        ];
        let fields: Vec<_> = fields.into_iter().flatten().collect();
        format!("{{ {} }}", fields.join(", "))
    }
}

/// The host of a domain: a name or an IP address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host(String);

impl FromText for Host {
    const EXPECTED: &'static str = "a domain like \"example.org\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let domain = Domain {
            name: text.to_owned(),
            ..Domain::default()
        };
        match Domains::new(vec![domain]) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(Mistake::new(error.to_string())
                .help("write a name like \"example.org\", or an IP address without a port")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// A value of Service-Route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route(String);

impl FromText for Route {
    const EXPECTED: &'static str = "a route like \"<sip:proxy.example.org;lr>\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let domain = Domain {
            name: "example.org".to_owned(),
            service_route: vec![text.to_owned()],
            ..Domain::default()
        };
        match Domains::new(vec![domain]) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => {
                Err(Mistake::new(error.to_string())
                    .help("write a SIP URI with `lr` in angle brackets"))
            }
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// Who may send to the users of a domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Senders(Inbound);

const SENDERS: [(&str, Inbound); 2] = [("known", Inbound::Known), ("anyone", Inbound::Anyone)];

impl FromText for Senders {
    const EXPECTED: &'static str = "\"known\" or \"anyone\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &SENDERS).map(Self)
    }

    fn to_text(&self) -> String {
        let named = SENDERS.iter().find(|(_, inbound)| *inbound == self.0);
        named.map_or("", |(name, _)| name).to_owned()
    }
}

/// The domains as the server needs them. `None` if a value is missing.
pub(super) fn resolve(settings: &Settings) -> Option<Vec<Domain>> {
    let domains = super::values(settings.sip_domain.clone()?.value).into_iter();
    domains.map(RawDomain::resolve).collect()
}

impl RawDomain {
    /// Whether the domain has a setting of its own for authentication.
    const fn has_credentials(&self) -> bool {
        self.users.is_some() || self.realm.is_some() || self.digest_algorithms.is_some()
    }

    fn credentials(self) -> Option<DomainCredentials> {
        let users = self.users.map(super::values);
        let algorithms = self.digest_algorithms.map(|list| super::values(list.0));
        Some(DomainCredentials {
            domain: self.name?.value.0,
            realm: self.realm.map(|realm| realm.0),
            users: users.map(|users| users.into_iter().map(|user| user.0).collect()),
            algorithms,
        })
    }

    /// Reports users that are there twice, and users without a hash for a digest algorithm that the domain offers.
    fn check_users(&self, settings: &Settings, report: &mut Report) {
        let all = settings.sip_digest_algorithms.as_ref();
        let own = self.digest_algorithms.as_ref().map(|own| &own.0);
        let offered = own.or_else(|| all.map(|all| &all.value.0));
        let offered = offered.into_iter().flatten().map(|one| one.value);
        let mut names = std::collections::HashSet::new();
        for user in self.users.iter().flatten() {
            let DomainUser { name, secret } = &user.value.0;
            if !names.insert(name) {
                let message = format!("the domain has two users `{name}`");
                report.push(Diagnostic::error(&user.at, message).help("remove one"));
            }
            let UserSecret::Ha1s(ha1s) = secret else {
                continue;
            };
            let is_missing = |it: &DigestAlgorithm| ha1s.iter().all(|(of, _)| of != it);
            if let Some(missing) = offered.clone().find(is_missing) {
                let missing = missing.name();
                let message = format!("user `{name}` has no hash of {missing}, which is offered");
                let help = format!(
                    "add the hash, or set digest_algorithms of the domain without {missing}"
                );
                report.push(Diagnostic::error(&user.at, message).help(&help));
            }
        }
    }

    fn resolve(self) -> Option<Domain> {
        let aliases = super::values(self.aliases.unwrap_or_default());
        let routes = super::values(self.service_route.unwrap_or_default());
        Some(Domain {
            name: self.name?.value.0,
            aliases: aliases.into_iter().map(|alias| alias.0).collect(),
            service_route: routes.into_iter().map(|route| route.0).collect(),
            inbound: self.inbound.map(|senders| senders.0).unwrap_or_default(),
        })
    }
}

/// The credentials of each domain that has users, a realm or digest algorithms of its own.
pub(super) fn credentials(settings: &Settings) -> Option<Vec<DomainCredentials>> {
    let domains = super::values(settings.sip_domain.clone()?.value).into_iter();
    let own = domains.filter(RawDomain::has_credentials);
    own.map(RawDomain::credentials).collect()
}

/// The registrar's limits of Expires, and its Flow-Timer. `None` if a key has no valid value.
pub(super) fn times(settings: &Settings) -> Option<RegistrarConfig> {
    // No duration is cut off here: the types of the keys allow only far shorter ones.
    let seconds = |time: std::time::Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    Some(RegistrarConfig {
        default_expires: seconds(settings.sip_register_expires.as_ref()?.value.0),
        min_expires: seconds(settings.sip_register_min.as_ref()?.value.0),
        max_expires: seconds(settings.sip_register_max.as_ref()?.value.0),
        flow_timer: Some(seconds(settings.sip_flow_timer.as_ref()?.value.0)).filter(|it| *it > 0),
        ..RegistrarConfig::default()
    })
}

/// Reports mistakes that no single key shows: register times in the wrong order, a host in two domains, and a domain
/// without users. Domains together with `sip.test_uas` are a mistake, too.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    if let (Some(times), Some(expires)) = (times(settings), &settings.sip_register_expires)
        && let Err(error) = times.validate()
    {
        let help = "sip.register_min <= sip.register_expires <= sip.register_max";
        report.push(Diagnostic::error(&expires.at, error.to_string()).help(help));
    }
    let Some(list) = settings.sip_domain.as_ref() else {
        return;
    };
    let (Some(first), Some(domains)) = (list.value.first(), resolve(settings)) else {
        return;
    };
    if let Err(error) = Domains::new(domains) {
        report.push(Diagnostic::error(&list.at, error.to_string()).help("name each host once"));
    }
    let users = settings.users.as_ref();
    let has_common = users.is_some_and(|users| !users.value.is_empty())
        || super::stores::may_have_users(settings);
    for domain in &list.value {
        domain.value.check_users(settings, report);
        let own = domain.value.users.as_ref();
        if own.map_or(!has_common, List::is_empty) {
            report.push(
                Diagnostic::error(&domain.at, "nobody can register in the domain")
                    .help("give it users, add a user to auth.users, with its password, or a store to auth.stores"),
            );
        }
    }
    if let Some(test_uas) = settings.sip_test_uas.as_ref().filter(|entry| entry.value) {
        let message = "sip.test_uas would accept REGISTER from anybody";
        report.push(
            Diagnostic::error(&test_uas.at, message)
                .see(&first.at, "the domain has a registrar")
                .help("remove sip.test_uas, or the domains"),
        );
    }
}
