//! The domains of SIP's registrar, as the user writes them.

use server::sip::{Domain, Domains, Inbound, RegistrarConfig};

use super::diagnostics::{Diagnostic, Report};
use super::node::{Node, Raw};
use super::schema::Settings;
use super::setting::{FromText, List, Mistake, Setting, one_of, wrong_type};
use super::source::Located;
use super::walk::unknown_key;

/// One domain, each value with its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    name: Option<Located<Host>>,
    aliases: Option<List<Host>>,
    service_route: Option<List<Route>>,
    inbound: Option<Senders>,
}

const FIELDS: [&str; 4] = ["name", "aliases", "service_route", "inbound"];

const EXAMPLE: &str = "write it like { name = \"example.org\" }";

impl Setting for Written {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Raw::Toml(toml::de::DeValue::Table(table)) = &node.raw else {
            let help = format!("{EXAMPLE}, in a configuration file");
            report.push(wrong_type(node, "a domain").help(&help));
            return None;
        };
        let source = node.at.source;
        let errors = report.errors();
        let mut domain = Written::default();
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
                _ => report.push(unknown_key(source, name, "a domain", &FIELDS, &[])),
            }
        }
        if domain.name.is_none() && report.errors() == errors {
            report.push(Diagnostic::error(&node.at, "the domain has no name").help(EXAMPLE));
        }
        (report.errors() == errors).then_some(domain)
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
        ];
        let fields: Vec<_> = fields.into_iter().flatten().collect();
        format!("{{ {} }}", fields.join(", "))
    }
}

/// A name or an address of a domain.
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

/// The plain values.
pub(super) fn resolve(settings: &Settings) -> Option<Vec<Domain>> {
    let domains = super::values(settings.sip_domain.clone()?.value).into_iter();
    domains.map(Written::resolve).collect()
}

impl Written {
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

/// How long registrations last.
pub(super) fn times(settings: &Settings) -> Option<RegistrarConfig> {
    // The types of the keys have limits far below.
    let seconds = |time: std::time::Duration| u32::try_from(time.as_secs()).unwrap_or(u32::MAX);
    Some(RegistrarConfig {
        default_expires: seconds(settings.sip_register_expires.as_ref()?.value.0),
        min_expires: seconds(settings.sip_register_min.as_ref()?.value.0),
        max_expires: seconds(settings.sip_register_max.as_ref()?.value.0),
        ..RegistrarConfig::default()
    })
}

/// Reports domains that cannot be told apart or that nobody can register in, and times that are not in order.
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
    if users.is_none_or(|users| users.value.is_empty()) {
        report.push(
            Diagnostic::error(&first.at, "nobody can register in the domain")
                .help("add a user to auth.users, with its password"),
        );
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
