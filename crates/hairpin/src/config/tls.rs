//! The keys of `[tls]`: certificates, and which versions are spoken.

use std::net::SocketAddr;

use super::acme;
use super::admin::AdminListen;
use super::credentials::read_pair;
use super::diagnostics::{Diagnostic, Report};
use super::node::{Node, Raw};
use super::schema::Settings;
use super::setting::{FromText, List, Mistake, Setting, one_of, quote, wrong_type};
use super::source::{Located, Location};
use server::NatDiscovery;
use server::certificates::{CertificateFiles, CertificateInfo, Certificates};

/// A certificate and its key, as files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair(pub(crate) CertificateFiles);

const FIELDS: [&str; 2] = ["certificate", "key"];
const EXAMPLE: &str =
    "write it like { certificate = \"/etc/hairpin/tls.crt\", key = \"/etc/hairpin/tls.key\" }";

impl Setting for Pair {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        Self::read_with(node, report, None)
    }

    fn write(&self, _: bool) -> String {
        format!("{{ {} }}", self.fields())
    }
}

impl Pair {
    fn fields(&self) -> String {
        let [certificate, key] =
            [&self.0.certificate, &self.0.key].map(|path| quote(&path.display().to_string()));
        format!("certificate = {certificate}, key = {key}")
    }

    /// Reads it from a table that may have the key `more`.
    fn read_with(node: &Node<'_>, report: &mut Report, more: Option<&'static str>) -> Option<Self> {
        let [certificate, key] = match &node.raw {
            Raw::Toml(toml::de::DeValue::Table(_)) => {
                read_pair(node, report, "certificate", (FIELDS, more), EXAMPLE)?
            }
            Raw::Plain(text) => match text.split_once(':') {
                Some((certificate, key)) => [certificate.to_owned(), key.to_owned()],
                None => {
                    let help = "for example /etc/hairpin/tls.crt:/etc/hairpin/tls.key";
                    report.push(Diagnostic::error(&node.at, "expected CERTIFICATE:KEY").help(help));
                    return None;
                }
            },
            _ => {
                report.push(wrong_type(node, "a certificate").help(EXAMPLE));
                return None;
            }
        };
        Some(Self(CertificateFiles {
            certificate: certificate.into(),
            key: key.into(),
            listeners: Vec::new(),
        }))
    }
}

/// A certificate and its key, for all listeners or for some.
#[derive(Clone, Debug)]
pub(crate) struct ListenerPair {
    pair: Pair,
    /// The listeners that use it; `None`: all that no other pair names.
    listen: Option<List<SocketAddr>>,
}

/// What to do if all pairs are for other listeners.
const NAME_IT: &str =
    "add its address to `listen` of a pair in tls.certificates, or add a pair without `listen`";

/// The key with the addresses of listeners.
const LISTEN: &str = "listen";

impl Setting for ListenerPair {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let pair = Pair::read_with(node, report, Some(LISTEN));
        let listen = match &node.raw {
            Raw::Toml(toml::de::DeValue::Table(table)) => table.get(LISTEN),
            _ => None,
        };
        let listen = match listen {
            None => None,
            Some(value) => Some(List::read(&Node::toml(node.at.source, value), report)?),
        };
        Some(Self {
            pair: pair?,
            listen,
        })
    }

    fn write(&self, reveal: bool) -> String {
        let listen = self.listen.as_ref();
        let listen = listen.map(|list| format!(", {LISTEN} = {}", list.write(reveal)));
        format!("{{ {}{} }}", self.pair.fields(), listen.unwrap_or_default())
    }
}

impl ListenerPair {
    /// The plain values.
    pub(super) fn files(self) -> CertificateFiles {
        CertificateFiles {
            listeners: super::values(self.listen.unwrap_or_default()),
            ..self.pair.0
        }
    }
}

/// The oldest version of TLS that is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MinVersion {
    /// TLS 1.2.
    Tls12,
    /// TLS 1.3.
    Tls13,
}

impl FromText for MinVersion {
    const EXPECTED: &'static str = "\"1.2\" or \"1.3\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &[("1.2", Self::Tls12), ("1.3", Self::Tls13)])
    }

    fn to_text(&self) -> String {
        match self {
            Self::Tls12 => "1.2",
            Self::Tls13 => "1.3",
        }
        .to_owned()
    }
}

fn pairs(settings: &Settings) -> &[Located<ListenerPair>] {
    let pairs = settings.tls_certificates.as_ref();
    pairs.map_or(&[], |list| &list.value)
}

/// Whether a listener has a certificate, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Certificate {
    /// The listener has a certificate.
    Present,
    /// The listener has none: each pair of `tls.certificates` names other listeners.
    OfOthers,
    /// The server has no certificate.
    Absent,
}

/// Whether a listener has a certificate.
pub(super) fn certificate_of(settings: &Settings, listener: SocketAddr) -> Certificate {
    let pairs = pairs(settings);
    let is_for = |pair: &Located<ListenerPair>| match &pair.value.listen {
        Some(list) => list.iter().any(|it| it.value == listener),
        None => true,
    };
    let self_signed = settings.tls_self_signed.as_ref();
    let is_made = pairs.is_empty() && self_signed.is_some_and(|made| made.value);
    match () {
        () if pairs.iter().any(is_for) || acme::is_on(settings) || is_made => Certificate::Present,
        () if pairs.is_empty() => Certificate::Absent,
        () => Certificate::OfOthers,
    }
}

/// Reports listeners of a list that have no certificate. `message` and `help` are for a server without any certificate.
pub(super) fn check_listeners(
    settings: &Settings,
    list: &Located<List<SocketAddr>>,
    (message, help): (&str, &str),
    report: &mut Report,
) {
    for listener in &list.value {
        match certificate_of(settings, listener.value) {
            Certificate::Present => {}
            Certificate::OfOthers => report.push(of_others(listener.value, &listener.at)),
            Certificate::Absent => {
                report.push(Diagnostic::error(&list.at, message).help(help));
                return;
            }
        }
    }
}

fn of_others(listener: SocketAddr, at: &Location) -> Diagnostic {
    let message =
        format!("the listener {listener} has no certificate: all pairs name other listeners");
    Diagnostic::error(at, message).help(NAME_IT)
}

/// The TLS listeners that NAT behaviour discovery adds, each with the place of the address that they come from.
fn discovery_listeners(settings: &Settings) -> Vec<(SocketAddr, &Location)> {
    let Some(others) = &settings.nat_discovery_tls else {
        return Vec::new();
    };
    let given = settings
        .listen_tls
        .as_ref()
        .map_or(&[][..], |list| &list.value);
    let given: Vec<SocketAddr> = given.iter().map(|listener| listener.value).collect();
    let mut all = Vec::new();
    for other in &others.value {
        let added = NatDiscovery::added_listeners(other.value, &given);
        all.extend(added.into_iter().map(|address| (address, &other.at)));
    }
    all
}

/// Without its certificate, the admin listener takes tokens from other hosts over HTTP.
fn check_admin(settings: &Settings, report: &mut Report) {
    let Some(admin) = &settings.admin_listen else {
        return;
    };
    let AdminListen::At(address) = admin.value else {
        return;
    };
    if certificate_of(settings, address) != Certificate::OfOthers {
        return;
    }
    let message =
        format!("the admin listener {address} has only HTTP: all pairs name other listeners");
    let diagnostic = match address.ip().to_canonical().is_loopback() {
        true => Diagnostic::warning(&admin.at, message),
        false => Diagnostic::error(&admin.at, message)
            .label("other hosts would send tokens in clear text"),
    };
    report.push(diagnostic.help(NAME_IT));
}

/// Each address of `listen` is that of a listener.
fn check_names(settings: &Settings, report: &mut Report) {
    let lists = [
        &settings.listen_tls,
        &settings.listen_dtls,
        &settings.sip_listen_tls,
        &settings.sip_listen_wss,
        &settings.nat_discovery_tls,
    ];
    let lists = lists.into_iter().flatten().flat_map(|list| &list.value);
    let mut known: Vec<SocketAddr> = lists.map(|listener| listener.value).collect();
    if let Some(admin) = &settings.admin_listen
        && let AdminListen::At(address) = admin.value
    {
        known.push(address);
    }
    known.extend(
        discovery_listeners(settings)
            .iter()
            .map(|(address, _)| *address),
    );
    for pair in pairs(settings) {
        let Some(list) = &pair.value.listen else {
            continue;
        };
        if list.is_empty() {
            let message = "no listener uses this certificate: `listen` is empty";
            let help = "add addresses, or remove `listen`: then all listeners that no other pair names use it";
            report.push(Diagnostic::error(&pair.at, message).help(help));
        }
        for listener in list {
            let address = listener.value;
            if !known.contains(&address) {
                let message = format!("no listener with TLS or DTLS has the address {address}");
                let help = "write an address exactly as in listen.tls, listen.dtls, sip.listen_tls, sip.listen_wss, nat_discovery.tls or admin.listen";
                report.push(Diagnostic::error(&listener.at, message).help(help));
            }
        }
    }
}

/// Each pair can be read, and its key belongs to its certificate; a TLS or DTLS listener has one.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    for pair in pairs(settings) {
        let files = &pair.value.pair.0;
        match Certificates::from_files(vec![files.clone()]) {
            Err(error) => report.push(Diagnostic::error(&pair.at, error.to_string())),
            Ok(certificates) => {
                for info in certificates.info() {
                    judge_time(&info, &pair.at, report);
                }
            }
        }
        if files.is_key_exposed() {
            let key = files.key.display();
            let message = format!("every user of this machine can read the private key {key}");
            let help = format!("chmod o-r {key}");
            report.push(Diagnostic::warning(&pair.at, message).help(help));
        }
    }
    check_names(settings, report);
    for (listen, name, key) in [
        (&settings.listen_tls, "TLS", "listen.tls"),
        (&settings.listen_dtls, "DTLS", "listen.dtls"),
    ] {
        let message = format!("there is a {name} listener, but no certificate");
        let help = format!(
            "set tls.certificates or acme.domains, or remove {key}; `serve --dev` makes one itself"
        );
        if let Some(listen) = listen {
            check_listeners(settings, listen, (&message, &help), report);
        }
    }
    for (address, at) in discovery_listeners(settings) {
        if certificate_of(settings, address) == Certificate::OfOthers {
            report.push(of_others(address, at));
        }
    }
    check_admin(settings, report);
}

/// Warns about a certificate that is not valid now, because clients reject it. The server starts nevertheless, because
/// its other listeners work.
fn judge_time(info: &CertificateInfo, at: &Location, report: &mut Report) {
    let place = &info.place;
    if info.days_left() < 0 {
        let message = format!("the certificate in {place} has expired");
        report.push(Diagnostic::warning(at, message).help("renew it"));
    } else if !info.has_begun() {
        let message = format!("the certificate in {place} is not valid yet");
        report.push(Diagnostic::warning(at, message).help("check the clock of this machine"));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::config::{Inputs, load};

    /// What is wrong with a configuration that has one pair, for these listeners; and whether a server starts with it.
    fn judge(text: &str, listen: &str) -> (Vec<String>, bool) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pair.pem");
        let pem = Certificates::self_signed_pem(&["turn.example.org".to_owned()]).unwrap();
        std::fs::write(&path, pem).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        let pair =
            format!("[[tls.certificates]]\ncertificate = {path:?}\nkey = {path:?}\n{listen}");
        let loaded = load(&Inputs {
            file: Some(("hairpin.toml".to_owned(), format!("{text}{pair}\n"))),
            ..Inputs::default()
        });
        (loaded.one_line_each(), loaded.config.is_some())
    }

    #[test]
    fn an_admin_listener_that_others_reach_has_a_certificate_if_another_listener_has() {
        let judge_at = |admin: &str, listen: &str| {
            let text = format!(
                "[listen]\ntls = [\"192.0.2.8:443\"]\ndtls = []\n[admin]\nlisten = \"{admin}\"\nallow_remote = true\n"
            );
            judge(&text, listen)
        };
        let of_other = "listen = [\"192.0.2.8:443\"]";
        for (admin, starts) in [
            ("192.0.2.8:9641", false),
            ("0.0.0.0:9641", false),
            ("127.0.0.1:9641", true),
            ("[::1]:9641", true),
        ] {
            let (lines, has_started) = judge_at(admin, of_other);
            assert_eq!((lines.len(), has_started), (1, starts), "{lines:?}");
            let expected = format!("the admin listener {admin} has only HTTP");
            assert!(lines[0].contains(&expected), "{lines:?}");
            assert!(
                lines[0].contains("add its address to `listen`"),
                "{lines:?}"
            );
            assert_eq!(judge_at(admin, ""), (vec![], true));
            let both = format!("listen = [\"192.0.2.8:443\", \"{admin}\"]");
            assert_eq!(judge_at(admin, &both), (vec![], true));
        }
        for admin in ["auto", "off"] {
            assert_eq!(judge_at(admin, of_other), (vec![], true));
        }
    }

    #[test]
    fn a_pair_can_name_all_listeners_of_nat_discovery_and_none_of_them_is_forgotten() {
        let text = "[listen]\nudp = [\"192.0.2.1:3478\"]\ntls = [\"192.0.2.1:5349\"]\ndtls = []\n\
                    [nat_discovery]\ntls = [\"192.0.2.2:5350\"]\n";
        let given = "\"192.0.2.1:5349\", \"192.0.2.2:5350\"";
        let all = format!("listen = [{given}, \"192.0.2.1:5350\", \"192.0.2.2:5349\"]");
        assert_eq!(judge(text, &all), (vec![], true));
        assert_eq!(judge(text, ""), (vec![], true));
        let (lines, has_started) = judge(text, &format!("listen = [{given}]"));
        assert!(!has_started);
        assert_eq!(lines.len(), 2, "{lines:?}");
        for (line, address) in lines.iter().zip(["192.0.2.1:5350", "192.0.2.2:5349"]) {
            let expected = format!("the listener {address} has no certificate");
            assert!(line.contains(&expected), "{line}");
        }
    }
}
