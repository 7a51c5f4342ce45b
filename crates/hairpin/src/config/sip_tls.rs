//! The keys of `[sip]` about certificates of others: of clients that connect, and of next hops that are connected to.

use std::path::PathBuf;

use super::diagnostics::{Diagnostic, Report};
use super::schema::Settings;
use super::setting::{FromText, Mistake, one_of};
use super::sip_trunks;
use super::source::Located;
use server::certificates::Certificates;

/// Whether TLS listeners of SIP ask their clients for a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientCertificates {
    /// Clients send no certificate.
    None,
    /// Clients may send a certificate; those without one are served as well.
    Request,
    /// Clients must send a certificate; connections of others are closed.
    Require,
}

impl FromText for ClientCertificates {
    const EXPECTED: &'static str = "\"none\", \"request\" or \"require\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let words = [
            ("none", Self::None),
            ("request", Self::Request),
            ("require", Self::Require),
        ];
        one_of(text, &words)
    }

    fn to_text(&self) -> String {
        match self {
            Self::None => "none",
            Self::Request => "request",
            Self::Require => "require",
        }
        .to_owned()
    }
}

/// A PEM file with certificates of issuers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RootFile(pub(crate) PathBuf);

impl FromText for RootFile {
    const EXPECTED: &'static str = "a file like \"/etc/hairpin/ca.crt\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.is_empty() {
            true => Err(Mistake::new("the name of the file is empty")),
            false => Ok(Self(text.into())),
        }
    }

    fn to_text(&self) -> String {
        self.0.display().to_string()
    }
}

/// Runs every check on these keys.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    for list in [&settings.sip_client_ca, &settings.sip_next_hop_ca] {
        for file in list.iter().flat_map(|list| &list.value) {
            roots_can_be_read(file, report);
        }
    }
    clients_have_an_issuer(settings, report);
    trunks_can_show_a_certificate(settings, report);
    next_hop_certificate_is_one_file(settings, report);
}

fn roots_can_be_read(file: &Located<RootFile>, report: &mut Report) {
    if let Err(error) = Certificates::roots(&[&file.value.0]) {
        let help = "give a PEM file with the certificates of the issuers";
        report.push(Diagnostic::error(&file.at, error.to_string()).help(help));
    }
}

fn clients_have_an_issuer(settings: &Settings, report: &mut Report) {
    let Some(wanted) = &settings.sip_client_certificates else {
        return;
    };
    let issuers = settings.sip_client_ca.as_ref();
    let has_issuer = issuers.is_some_and(|list| !list.value.is_empty());
    match (wanted.value, issuers) {
        (ClientCertificates::None, Some(issuers)) if has_issuer => {
            let message = "clients are not asked for certificates, so nobody needs their issuers";
            let help = "set sip.client_certificates = \"request\" or \"require\"";
            report.push(Diagnostic::warning(&issuers.at, message).help(help));
        }
        (ClientCertificates::Request | ClientCertificates::Require, _) if !has_issuer => {
            let message = "certificates of clients have no issuer that they could be verified by";
            let help = "set sip.client_ca to the PEM file of their issuer";
            report.push(Diagnostic::error(&wanted.at, message).help(help));
        }
        _ => {}
    }
}

fn trunks_can_show_a_certificate(settings: &Settings, report: &mut Report) {
    let wanted = settings.sip_client_certificates.as_ref();
    let asks = wanted.is_some_and(|wanted| wanted.value != ClientCertificates::None);
    let listens = settings.sip_listen_tls.as_ref();
    let listens = listens.is_some_and(|list| !list.value.is_empty());
    let mut trunks = sip_trunks::all(settings).iter();
    let named = trunks.find_map(|trunk| trunk.value.certificates.first());
    let (message, help) = match named {
        Some(_) if !listens => (
            "no trunk can show a certificate, because nothing listens for SIP over TLS",
            "set sip.listen_tls",
        ),
        Some(_) if !asks => (
            "no trunk can show a certificate, because clients are not asked for one",
            "set sip.client_certificates = \"request\", and sip.client_ca",
        ),
        _ => return,
    };
    if let Some(name) = named {
        report.push(Diagnostic::error(&name.at, message).help(help));
    }
}

fn next_hop_certificate_is_one_file(settings: &Settings, report: &mut Report) {
    let Some(list) = &settings.sip_next_hop_certificate else {
        return;
    };
    if let [_, second, ..] = &list.value[..] {
        let message = "next hops are shown one certificate, and this is the second";
        report.push(Diagnostic::error(&second.at, message).help("keep one"));
    }
    for pair in &list.value {
        if let Err(error) = Certificates::from_files(vec![pair.value.0.clone()]) {
            report.push(Diagnostic::error(&pair.at, error.to_string()));
        }
    }
    let listens = settings.sip_listen_tls.as_ref();
    if !list.value.is_empty() && listens.is_none_or(|list| list.value.is_empty()) {
        let message = "no connection is opened over TLS, because nothing listens for SIP over TLS";
        let help = "set sip.listen_tls; connections leave from its addresses";
        report.push(Diagnostic::warning(&list.at, message).help(help));
    }
}
