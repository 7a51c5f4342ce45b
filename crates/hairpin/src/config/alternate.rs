//! Other servers to which clients are sent (RFC 8489 §10), as the user writes them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use server::alternates::{AlternateServer, AlternateSettings, RedirectConditions};
use server::turn::Transport;

use super::diagnostics::{Diagnostic, Report};
use super::node::{Node, Raw};
use super::schema::Settings;
use super::setting::{FromText, Mistake, Setting, quote, wrong_type};
use super::walk::unknown_key;

/// More would mean more threads for a moment at each check.
const MAX_SERVERS: usize = 64;
/// RFC 8489 §14.16.
const MAX_DOMAIN: usize = 255;
const MAX_WEIGHT: u32 = 1_000_000;

/// The section `[alternate]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Alternate {
    servers: Vec<Server>,
    when: Vec<Reason>,
    overload_percent: u32,
    check_interval: Duration,
}

impl Alternate {
    /// What the library takes. The servers are new ones, so they are checked at once.
    pub(crate) fn settings(&self) -> AlternateSettings {
        let mut settings = AlternateSettings::default();
        settings.servers = self.servers.iter().map(Server::made).collect();
        let has = |reason| self.when.contains(&reason);
        let mut when = RedirectConditions::default();
        when.always = has(Reason::Always);
        when.drain = has(Reason::Drain);
        when.overload = has(Reason::Overload);
        settings.when = when;
        settings.overload_percent = self.overload_percent;
        settings.check_interval = self.check_interval;
        settings
    }
}

/// One server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Server {
    ipv4: Option<SocketAddr>,
    ipv6: Option<SocketAddr>,
    transport: Option<&'static str>,
    weight: Option<u32>,
    domain: Option<String>,
}

const FIELDS: [&str; 5] = ["ipv4", "ipv6", "transport", "weight", "domain"];
const EXAMPLE: &str =
    "write it like { ipv4 = \"192.0.2.7:3478\", ipv6 = \"[2001:db8::7]:3478\", weight = 2 }";
const TRANSPORTS: [(&str, Transport); 4] = [
    ("udp", Transport::Udp),
    ("tcp", Transport::Tcp),
    ("tls", Transport::Tls),
    ("dtls", Transport::Dtls),
];

impl Setting for Server {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let server = match &node.raw {
            Raw::Toml(toml::de::DeValue::Table(_)) => read_table(node, report)?,
            // An address alone, in the environment.
            Raw::Plain(text) => {
                let mut server = Server::default();
                let read = server
                    .set("ipv4", text)
                    .or_else(|_| server.set("ipv6", text));
                read.map_err(|mistake| report.push(mistake.at(&node.at)))
                    .ok()?;
                server
            }
            _ => {
                report.push(wrong_type(node, "a server").help(EXAMPLE));
                return None;
            }
        };
        if server.ipv4.is_none() && server.ipv6.is_none() {
            let message = "the server has neither an ipv4 nor an ipv6 address";
            report.push(Diagnostic::error(&node.at, message).help(EXAMPLE));
            return None;
        }
        Some(server)
    }

    fn write(&self, _reveal: bool) -> String {
        let text = |name: &str, value: Option<String>| {
            value.map(|value| format!("{name} = {}", quote(&value)))
        };
        let fields = [
            text("ipv4", self.ipv4.map(|address| address.to_string())),
            text("ipv6", self.ipv6.map(|address| address.to_string())),
            text("transport", self.transport.map(str::to_owned)),
            self.weight.map(|weight| format!("weight = {weight}")),
            text("domain", self.domain.clone()),
        ];
        let fields: Vec<_> = fields.into_iter().flatten().collect();
        format!("{{ {} }}", fields.join(", "))
    }
}

fn read_table(node: &Node<'_>, report: &mut Report) -> Option<Server> {
    let Raw::Toml(toml::de::DeValue::Table(table)) = &node.raw else {
        return None;
    };
    let source = node.at.source;
    let mut server = Some(Server::default());
    for (name, value) in table.iter() {
        let value = Node::toml(source, value);
        let field = name.get_ref().as_ref();
        if !FIELDS.contains(&field) {
            report.push(unknown_key(source, name, "a server", &FIELDS, &[]));
            continue;
        }
        let read = match (field, value.text(), value.integer()) {
            ("weight", None, Some(Ok(weight))) => {
                server.as_mut().map(|server| server.set_weight(weight))
            }
            ("weight", ..) => None,
            (_, Some(text), _) => server.as_mut().map(|server| server.set(field, text)),
            _ => None,
        };
        match read {
            Some(Ok(())) => {}
            Some(Err(mistake)) => {
                report.push(mistake.at(&value.at));
                server = None;
            }
            None => {
                let expected = if field == "weight" {
                    "a whole number"
                } else {
                    "a text"
                };
                report.push(wrong_type(&value, expected));
                server = None;
            }
        }
        server.as_ref()?;
    }
    server
}

impl Server {
    fn set_weight(&mut self, weight: i64) -> Result<(), Mistake> {
        let weight = u32::try_from(weight)
            .ok()
            .filter(|weight| *weight <= MAX_WEIGHT);
        self.weight = Some(weight.ok_or_else(|| {
            Mistake::new("the weight is out of range").help("use 0 to 1000000; 0 gets no clients")
        })?);
        Ok(())
    }

    fn set(&mut self, field: &str, text: &str) -> Result<(), Mistake> {
        match field {
            "ipv4" => self.ipv4 = Some(address(text, SocketAddr::is_ipv4, "192.0.2.7:3478")?),
            "ipv6" => self.ipv6 = Some(address(text, SocketAddr::is_ipv6, "[2001:db8::7]:3478")?),
            "domain" => self.domain = Some(domain(text)?),
            _ => {
                let mut known = TRANSPORTS.iter().map(|(name, _)| *name);
                let transport = known.find(|name| *name == text);
                self.transport = Some(transport.ok_or_else(|| {
                    Mistake::new(format!("there is no transport `{text}`"))
                        .help("udp, tcp, tls or dtls; without one, the server is for all")
                })?);
            }
        }
        Ok(())
    }

    fn made(&self) -> Arc<AlternateServer> {
        let addresses: Vec<_> = [self.ipv4, self.ipv6].into_iter().flatten().collect();
        let mut server = AlternateServer::new(&addresses);
        let named = |name: &str| TRANSPORTS.iter().find(|(known, _)| *known == name);
        if let Some((_, transport)) = self.transport.and_then(named) {
            server = server.transport(*transport);
        }
        if let Some(weight) = self.weight {
            server = server.weight(weight);
        }
        if let Some(domain) = &self.domain {
            server = server.domain(domain);
        }
        Arc::new(server)
    }
}

fn address(
    text: &str,
    is_right: impl Fn(&SocketAddr) -> bool,
    example: &str,
) -> Result<SocketAddr, Mistake> {
    let address = text.parse().ok().filter(is_right);
    let address = address.filter(|address: &SocketAddr| {
        address.port() != 0 && !address.ip().is_unspecified() && !address.ip().is_multicast()
    });
    address.ok_or_else(|| {
        Mistake::new(format!("`{text}` is not the address of a server")).help(format!(
            "clients are told an address and a port, like {example}"
        ))
    })
}

fn domain(text: &str) -> Result<String, Mistake> {
    let is_good =
        (1..=MAX_DOMAIN).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    match is_good {
        true => Ok(text.to_owned()),
        false => Err(Mistake::new(format!("`{text}` is not a DNS name"))
            .help("use the name in the other server's certificate, at most 255 ASCII characters")),
    }
}

/// When clients are sent away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    Always,
    Drain,
    Overload,
}

const REASONS: [(&str, Reason); 3] = [
    ("always", Reason::Always),
    ("drain", Reason::Drain),
    ("overload", Reason::Overload),
];

impl FromText for Reason {
    const EXPECTED: &'static str = "\"drain\", \"overload\" or \"always\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let found = REASONS.iter().find(|(name, _)| *name == text);
        found.map(|(_, reason)| *reason).ok_or_else(|| {
            Mistake::new(format!("`{text}` is no reason to send clients away"))
                .help("use \"drain\", \"overload\" or \"always\"")
        })
    }

    fn to_text(&self) -> String {
        let found = REASONS.iter().find(|(_, reason)| reason == self);
        found.map_or("", |(name, _)| name).to_owned()
    }
}

/// The values without their locations in the file.
pub(super) fn resolve(settings: &Settings) -> Option<Alternate> {
    let s = settings.clone();
    Some(Alternate {
        servers: super::values(s.alternate_servers?.value),
        when: super::values(s.alternate_when?.value),
        overload_percent: s.alternate_overload_percent?.value.0,
        check_interval: s.alternate_check_interval?.value.0,
    })
}

/// Reports too many servers.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let Some(servers) = &settings.alternate_servers else {
        return;
    };
    if let Some(beyond) = servers.value.get(MAX_SERVERS) {
        let message = format!("there are {} alternate servers", servers.value.len());
        let help =
            format!("use at most {MAX_SERVERS}: each has a thread of its own during a check");
        report.push(Diagnostic::error(&beyond.at, message).help(help));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_out_of_range_are_refused_with_advice() {
        let mut server = Server::default();
        for (field, text, part) in [
            ("ipv4", "192.0.2.7", "192.0.2.7:3478"),
            ("ipv4", "[2001:db8::7]:1", "not the address"),
            ("ipv6", "192.0.2.7:1", "not the address"),
            ("ipv4", "0.0.0.0:3478", "not the address"),
            ("ipv4", "192.0.2.7:0", "not the address"),
            ("transport", "sctp", "no transport `sctp`"),
            ("domain", "a b", "not a DNS name"),
        ] {
            let mistake = server.set(field, text).unwrap_err().one_line();
            assert!(mistake.contains(part), "{mistake}");
        }
        assert!(server.set_weight(-1).is_err() && server.set_weight(1_000_001).is_err());
        assert!(Reason::from_text("now").is_err());
    }

    #[test]
    fn a_server_reads_back_as_it_is_written() {
        let mut server = Server::default();
        for (field, text) in [
            ("ipv4", "192.0.2.7:3478"),
            ("ipv6", "[2001:db8::7]:3478"),
            ("transport", "tls"),
            ("domain", "b.example.org"),
        ] {
            assert!(server.set(field, text).is_ok(), "{field}");
        }
        assert!(server.set_weight(3).is_ok());
        assert_eq!(
            server.write(false),
            "{ ipv4 = \"192.0.2.7:3478\", ipv6 = \"[2001:db8::7]:3478\", transport = \"tls\", weight = 3, domain = \"b.example.org\" }"
        );
        let made = server.made();
        assert_eq!(made.address(), server.ipv4);
    }
}
