//! The keys of `[tls]`: certificates, and which versions are spoken.

use super::acme;
use super::credentials::read_pair;
use super::diagnostics::{Diagnostic, Report};
use super::node::{Node, Raw};
use super::schema::Settings;
use super::setting::{FromText, Mistake, Setting, one_of, quote, wrong_type};
use super::source::Location;
use server::certificates::{CertificateFiles, CertificateInfo, Certificates};

/// A certificate and its key, as files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pair(pub(crate) CertificateFiles);

const FIELDS: [&str; 2] = ["certificate", "key"];
const EXAMPLE: &str =
    "write it like { certificate = \"/etc/hairpin/tls.crt\", key = \"/etc/hairpin/tls.key\" }";

impl Setting for Pair {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let [certificate, key] = match &node.raw {
            Raw::Toml(toml::de::DeValue::Table(_)) => {
                read_pair(node, report, "certificate", FIELDS, EXAMPLE)?
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
        }))
    }

    fn write(&self, _: bool) -> String {
        let [certificate, key] =
            [&self.0.certificate, &self.0.key].map(|path| quote(&path.display().to_string()));
        format!("{{ certificate = {certificate}, key = {key} }}")
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

/// Each pair can be read, and its key belongs to its certificate; a TLS or DTLS listener has one.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let pairs = settings.tls_certificates.as_ref();
    let pairs = pairs.map_or(&[][..], |list| &list.value);
    for pair in pairs {
        match Certificates::from_files(vec![pair.value.0.clone()]) {
            Err(error) => report.push(Diagnostic::error(&pair.at, error.to_string())),
            Ok(certificates) => {
                for info in certificates.info() {
                    judge_time(&info, &pair.at, report);
                }
            }
        }
        if pair.value.0.is_key_exposed() {
            let key = pair.value.0.key.display();
            let message = format!("every user of this machine can read the private key {key}");
            let help = format!("chmod o-r {key}");
            report.push(Diagnostic::warning(&pair.at, message).help(help));
        }
    }
    let self_signed = settings.tls_self_signed.as_ref();
    if !pairs.is_empty() || acme::is_on(settings) || self_signed.is_some_and(|made| made.value) {
        return;
    }
    for (listen, name, key) in [
        (&settings.listen_tls, "TLS", "listen.tls"),
        (&settings.listen_dtls, "DTLS", "listen.dtls"),
    ] {
        if let Some(listen) = listen.as_ref().filter(|listen| !listen.value.is_empty()) {
            let message = format!("there is a {name} listener, but no certificate");
            let help = format!(
                "set tls.certificates or acme.domains, or remove {key}; `serve --dev` makes one itself"
            );
            report.push(Diagnostic::error(&listen.at, message).help(help));
        }
    }
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
