//! The keys of `[acme]`: certificates from an ACME server (RFC 8555).

use std::net::SocketAddr;
use std::path::PathBuf;

use super::diagnostics::{Diagnostic, Report};
use super::schema::Settings;
use super::setting::{FromText, Mistake, one_of};
use server::certificates::Certificates;

/// Where an ACME server sees that a domain leads here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Challenge {
    /// On port 80, over HTTP (RFC 8555 §8.3).
    Http01,
    /// On port 443, in the TLS handshake (RFC 8737).
    TlsAlpn01,
}

impl FromText for Challenge {
    const EXPECTED: &'static str = "\"http-01\" or \"tls-alpn-01\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let words = [("http-01", Self::Http01), ("tls-alpn-01", Self::TlsAlpn01)];
        one_of(text, &words)
    }

    fn to_text(&self) -> String {
        match self {
            Self::Http01 => "http-01",
            Self::TlsAlpn01 => "tls-alpn-01",
        }
        .to_owned()
    }
}

/// A DNS name in lower case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain(pub(crate) String);

impl FromText for Domain {
    const EXPECTED: &'static str = "a DNS name like \"turn.example.org\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        if text.starts_with("*.") {
            return Err(Mistake::new(
                "only the challenge dns-01 proves a wildcard, and it is not supported",
            ));
        }
        let label = |label: &str| {
            let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
            (1..=63).contains(&label.len()) && label.bytes().all(allowed)
        };
        if text.len() > 253 || !text.contains('.') || !text.split('.').all(label) {
            return Err(Mistake::new("this is not a DNS name"));
        }
        Ok(Self(text.to_ascii_lowercase()))
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The URL of an ACME server's directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directory(pub(crate) String);

impl FromText for Directory {
    const EXPECTED: &'static str = "a URL like \"https://acme-v02.api.letsencrypt.org/directory\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.strip_prefix("https://") {
            Some(rest) if !rest.is_empty() => Ok(Self(text.to_owned())),
            _ => Err(Mistake::new("RFC 8555 requires https://")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// A mail address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Email(pub(crate) String);

impl FromText for Email {
    const EXPECTED: &'static str = "a mail address like \"operator@example.org\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.split_once('@') {
            Some((user, domain)) if !user.is_empty() && domain.contains('.') => {
                Ok(Self(text.to_owned()))
            }
            _ => Err(Mistake::new("this is not a mail address")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// A folder of the file system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Folder(pub(crate) PathBuf);

impl FromText for Folder {
    const EXPECTED: &'static str = "a folder like \"/var/lib/hairpin/acme\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.starts_with('/') {
            true => Ok(Self(text.into())),
            false => Err(Mistake::new("give the whole path, from the root")),
        }
    }

    fn to_text(&self) -> String {
        self.0.display().to_string()
    }
}

/// The values of `[acme]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Acme {
    /// The domains of the certificate; empty: there is none.
    pub(crate) domains: Vec<String>,
    /// Where the ACME server's operator writes to.
    pub(crate) email: Vec<String>,
    /// The URL of the ACME server's directory.
    pub(crate) directory: String,
    /// How domains are proven.
    pub(crate) challenge: Challenge,
    /// Where HTTP is listened on.
    pub(crate) listen: Vec<SocketAddr>,
    /// The folder of the account and the certificate.
    pub(crate) state: PathBuf,
    /// The issuers of the ACME server's own certificate; empty: those of this system.
    pub(crate) ca: Vec<PathBuf>,
}

/// The plain values; `None` only if `defaults.toml` lacks one.
pub(super) fn resolve(settings: &Settings) -> Option<Acme> {
    let s = settings.clone();
    let plain = |list: Vec<super::source::Located<_>>| list.into_iter().map(|item| item.value);
    Some(Acme {
        domains: plain(s.acme_domains?.value)
            .map(|name: Domain| name.0)
            .collect(),
        email: s
            .acme_email?
            .value
            .into_iter()
            .map(|email| email.value.0)
            .collect(),
        directory: s.acme_directory?.value.0,
        challenge: s.acme_challenge?.value,
        listen: s
            .acme_listen?
            .value
            .into_iter()
            .map(|listen| listen.value)
            .collect(),
        state: s.acme_state?.value.0,
        ca: s
            .acme_ca?
            .value
            .into_iter()
            .map(|file| file.value.0)
            .collect(),
    })
}

/// Whether a certificate is to come from an ACME server.
pub(super) fn is_on(settings: &Settings) -> bool {
    let domains = settings.acme_domains.as_ref();
    domains.is_some_and(|list| !list.value.is_empty())
}

/// Checks what cannot be seen from one key alone.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    for file in settings.acme_ca.iter().flat_map(|list| &list.value) {
        if let Err(error) = Certificates::roots(&[&file.value.0]) {
            report.push(Diagnostic::error(&file.at, error.to_string()));
        }
    }
    let Some(domains) = settings.acme_domains.as_ref().filter(|_| is_on(settings)) else {
        return;
    };
    let agreed = settings.acme_terms_agreed.as_ref();
    if !agreed.is_some_and(|agreed| agreed.value) {
        let message = "an ACME server makes certificates only for those who agree to its terms";
        let help = "read them, and set acme.terms_agreed = true";
        report.push(Diagnostic::error(&domains.at, message).help(help));
    }
    let by_tls = (settings.acme_challenge.as_ref())
        .is_some_and(|challenge| challenge.value == Challenge::TlsAlpn01);
    let mut listens = settings.listen_tls.iter().flat_map(|list| &list.value);
    if by_tls && !listens.any(|listen| listen.value.port() == 443) {
        let message = "no TLS listener has port 443, which the ACME server connects to";
        let help = "add it to listen.tls, or forward port 443 to one of them";
        report.push(Diagnostic::warning(&domains.at, message).help(help));
    }
}
