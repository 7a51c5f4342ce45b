//! One row per option.

use ipnet::IpNet;

use super::super::verdict::Fixed;
use super::super::{Account, Imported, Proof, Verdict};
use super::yaml::{self, Entry};

/// How the verdict about an option is found.
pub(super) enum Rule {
    /// The same verdict for each value.
    Always(Fixed),
    /// A function, which can add keys to the draft.
    Decide(fn(&Context<'_, '_>, &mut Imported) -> Verdict),
}

/// An option among the others.
pub(super) struct Context<'n, 'a> {
    pub(super) entry: &'n Entry<'a>,
    pub(super) all: &'n [Entry<'a>],
    pub(super) has_database: bool,
}

impl Context<'_, '_> {
    fn text(&self) -> String {
        yaml::text(&self.entry.value).unwrap_or_default()
    }

    fn find(&self, name: &str) -> Option<&Entry<'_>> {
        self.all.iter().find(|entry| entry.name == name)
    }
}

/// One option.
pub(super) struct Row {
    pub(super) name: &'static str,
    pub(super) rule: Rule,
}

const fn row(name: &'static str, rule: Rule) -> Row {
    Row { name, rule }
}

const fn replaced(by: &'static str) -> Rule {
    Rule::Always(Fixed::Replaced(by))
}

const fn unnecessary(why: &'static str) -> Rule {
    Rule::Always(Fixed::Unnecessary(why))
}

const CLIENTS: Rule = Rule::Always(Fixed::Unsupported(
    "hairpin has no list of client addresses: use a firewall",
));

/// All options but `listen` and `modules`.
pub(super) const ROWS: &[Row] = &[
    row("secret", Rule::Decide(secrets)),
    row("credentials", Rule::Decide(users)),
    row(
        "realm",
        Rule::Decide(|context, imported| set(context, imported, "auth.realm")),
    ),
    row("strict_expiry", Rule::Decide(strict_expiry)),
    row("software_name", Rule::Decide(software)),
    row("relay_ipv4_addr", Rule::Decide(external)),
    row("relay_ipv6_addr", Rule::Decide(external)),
    row("relay_min_port", Rule::Decide(ports)),
    row("relay_max_port", Rule::Decide(ports)),
    row("tls_crt_file", Rule::Decide(certificate)),
    row("tls_key_file", Rule::Decide(certificate)),
    row(
        "tls_dh_file",
        unnecessary("hairpin uses elliptic curves only (ECDHE)"),
    ),
    row(
        "tls_options",
        unnecessary("hairpin has TLS 1.2 and 1.3 only: see tls.min_version"),
    ),
    row(
        "tls_ciphers",
        unnecessary("hairpin offers only suites with forward secrecy and AEAD"),
    ),
    row(
        "max_allocations",
        Rule::Decide(|context, imported| {
            limit(context, imported, "limits.allocations_per_user", 10_000_000)
        }),
    ),
    row(
        "max_permissions",
        Rule::Decide(|context, imported| {
            limit(context, imported, "limits.permissions_per_allocation", 1024)
        }),
    ),
    row("max_bps", Rule::Decide(rate)),
    row(
        "blacklist",
        Rule::Decide(|context, imported| peers(context, imported, "peers.deny")),
    ),
    row(
        "whitelist",
        Rule::Decide(|context, imported| peers(context, imported, "peers.allow")),
    ),
    row(
        "blacklist_peers",
        Rule::Decide(|context, imported| peers(context, imported, "peers.deny")),
    ),
    row(
        "whitelist_peers",
        Rule::Decide(|context, imported| peers(context, imported, "peers.allow")),
    ),
    row("blacklist_clients", CLIENTS),
    row("whitelist_clients", CLIENTS),
    row(
        "run_dir",
        replaced("the directories of the unit hairpin.service"),
    ),
    row(
        "log_dir",
        replaced("stderr, which systemd writes to the journal"),
    ),
    row(
        "log_rotate_size",
        replaced("the journal, which rotates its files"),
    ),
    row(
        "log_rotate_count",
        replaced("the journal, which rotates its files"),
    ),
    row("log_level", Rule::Decide(level)),
];

fn set(context: &Context<'_, '_>, imported: &mut Imported, key: &'static str) -> Verdict {
    match context.text() {
        text if text.is_empty() => Verdict::wrong("the value is missing"),
        text => {
            imported.draft.set(key, text);
            Verdict::carried(key)
        }
    }
}

fn secrets(context: &Context<'_, '_>, imported: &mut Imported) -> Verdict {
    let secrets: Vec<_> = yaml::elements(&context.entry.value)
        .into_iter()
        .filter_map(yaml::text)
        .collect();
    match secrets.is_empty() {
        true => Verdict::wrong("write a secret, or a list of secrets"),
        false if context.has_database => {
            imported.secrets = secrets;
            Verdict::carried("the database")
        }
        false => {
            secrets
                .into_iter()
                .for_each(|secret| imported.draft.push("auth.secrets", secret));
            Verdict::carried("auth.secrets")
        }
    }
}

fn users(context: &Context<'_, '_>, imported: &mut Imported) -> Verdict {
    if !yaml::is_mapping(&context.entry.value) {
        return Verdict::wrong("write names with passwords");
    }
    for user in yaml::children(context.entry.value.clone()) {
        let Some(password) = yaml::text(&user.value) else {
            return Verdict::wrong(format!("the user {} has no password", user.name));
        };
        if context.has_database {
            let proof = Proof::Password(password);
            imported.users.push(Account {
                name: user.name,
                proof,
            });
        } else {
            let fields = [("name", user.name.into()), ("password", password.into())];
            imported.draft.push_table("auth.users", fields);
        }
    }
    Verdict::carried(if context.has_database {
        "the database"
    } else {
        "auth.users"
    })
}

fn strict_expiry(context: &Context<'_, '_>, imported: &mut Imported) -> Verdict {
    match yaml::boolean(&context.entry.value) {
        Some(truth) => {
            imported.draft.set("auth.strict_expiry", truth);
            Verdict::carried("auth.strict_expiry")
        }
        None => Verdict::wrong("write true or false"),
    }
}

fn software(context: &Context<'_, '_>, imported: &mut Imported) -> Verdict {
    match &*context.text() {
        "none" => Verdict::unnecessary("responses have no SOFTWARE unless server.software is set"),
        _ => set(context, imported, "server.software"),
    }
}

fn external(context: &Context<'_, '_>, imported: &mut Imported) -> Verdict {
    let text = context.text();
    if text == "none" {
        return Verdict::unsupported(
            "a family is off if relay.addresses has none of its addresses",
        );
    }
    match text.parse::<std::net::IpAddr>() {
        Ok(ip) => {
            imported.draft.push("relay.external_ip", ip.to_string());
            Verdict::carried("relay.external_ip")
        }
        Err(_) => Verdict::wrong("write an IP address"),
    }
}

fn ports(context: &Context<'_, '_>, imported: &mut Imported) -> Verdict {
    let port = |name, default| match context.find(name) {
        None => Some(default),
        Some(entry) => yaml::number(&entry.value).filter(|port| (1024..=65_535).contains(port)),
    };
    let (first, last) = (
        port("relay_min_port", 49_152),
        port("relay_max_port", 65_535),
    );
    match (first, last) {
        (Some(first), Some(last)) if first <= last => {
            imported.draft.set("relay.ports", format!("{first}-{last}"));
            Verdict::carried("relay.ports")
        }
        _ => Verdict::wrong("the ports are not a range within 1024 to 65535"),
    }
}

fn certificate(context: &Context<'_, '_>, imported: &mut Imported) -> Verdict {
    let file = |name| {
        context
            .find(name)
            .and_then(|entry| yaml::text(&entry.value))
    };
    match (file("tls_crt_file"), file("tls_key_file")) {
        (Some(certificate), Some(key)) => {
            let fields = [("certificate", certificate.into()), ("key", key.into())];
            imported.draft.push_table("tls.certificates", fields);
            Verdict::carried("tls.certificates")
        }
        (Some(file), None) | (None, Some(file)) => {
            let fields = [("certificate", (&*file).into()), ("key", (&*file).into())];
            imported.draft.push_table("tls.certificates", fields);
            Verdict::carried("tls.certificates, for certificate and key")
        }
        (None, None) => Verdict::wrong("the value is missing"),
    }
}

fn limit(
    context: &Context<'_, '_>,
    imported: &mut Imported,
    key: &'static str,
    most: u64,
) -> Verdict {
    let number = match &*context.text() {
        "unlimited" => Some(most),
        text => text.parse::<u64>().ok().filter(|number| *number > 0),
    };
    match number.and_then(|number| i64::try_from(number.min(most)).ok()) {
        Some(number) => {
            imported.draft.set(key, number);
            Verdict::carried(key)
        }
        None => Verdict::wrong("write a number or unlimited"),
    }
}

fn rate(context: &Context<'_, '_>, imported: &mut Imported) -> Verdict {
    match &*context.text() {
        "unlimited" => Verdict::unnecessary("hairpin has no rate limit by default"),
        text => match text.parse::<u64>() {
            Ok(rate) => {
                let rate = rate.clamp(1024, 1 << 30);
                imported
                    .draft
                    .set("limits.rate_per_allocation", format!("{rate}B/s"));
                imported.draft.set("limits.rate_directions", "apart");
                Verdict::carried("limits.rate_per_allocation")
            }
            Err(_) => Verdict::wrong("write a number of bytes per second or unlimited"),
        },
    }
}

fn peers(context: &Context<'_, '_>, imported: &mut Imported, key: &'static str) -> Verdict {
    let mut is_recommended = false;
    for text in yaml::elements(&context.entry.value)
        .into_iter()
        .filter_map(yaml::text)
    {
        if text == "recommended" {
            is_recommended = true;
            continue;
        }
        let network = text
            .parse::<IpNet>()
            .ok()
            .or_else(|| text.parse::<std::net::IpAddr>().ok().map(IpNet::from));
        match network {
            Some(network) => imported.draft.push(key, network.trunc().to_string()),
            None => return Verdict::wrong(format!("{text} is not an address or a network")),
        }
    }
    match (is_recommended, imported.draft.has(key)) {
        (true, false) => Verdict::unnecessary("hairpin denies these networks by default"),
        (true, true) => Verdict::carried(format!(
            "{key}; hairpin denies the recommended networks by default"
        )),
        (false, _) => Verdict::carried(key),
    }
}

fn level(context: &Context<'_, '_>, imported: &mut Imported) -> Verdict {
    let level = match &*context.text() {
        "critical" | "error" => "error",
        "warning" => "warn",
        "notice" | "info" => "info",
        "debug" => "debug",
        _ => return Verdict::wrong("write critical, error, warning, notice, info or debug"),
    };
    imported.draft.set("log.level", level);
    Verdict::carried("log.level")
}
