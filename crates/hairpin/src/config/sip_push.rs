//! Push notifications for phones whose app is suspended (RFC 8599), as the user writes the keys.

use std::time::Duration;

use super::diagnostics::{Diagnostic, Report};
use super::schema::Settings;
use super::setting::{FromText, Mistake};

/// Where and how push notifications are sent.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PushConfig {
    /// The URL of the gateway.
    pub(crate) gateway: String,
    /// The bearer token for it; empty: none.
    pub(crate) token: String,
    /// The push services that it supports.
    pub(crate) providers: Vec<String>,
    /// How long a call waits.
    pub(crate) wait: Duration,
    /// Calls that wait at a time.
    pub(crate) calls: u32,
    /// How long before its binding ends a phone is woken to refresh it.
    pub(crate) refresh: Duration,
}

impl std::fmt::Debug for PushConfig {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Without the token.
        f.debug_struct("PushConfig")
            .field("gateway", &self.gateway)
            .field("providers", &self.providers)
            .finish_non_exhaustive()
    }
}

/// The URL of the gateway; empty: none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gateway(String);

impl FromText for Gateway {
    const EXPECTED: &'static str = "a URL like \"https://push.example.org/sip\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let uri: Result<hyper::Uri, _> = text.parse();
        let is_url = uri.is_ok_and(|uri| {
            matches!(uri.scheme_str(), Some("http" | "https"))
                && uri.host().is_some_and(|host| !host.is_empty())
        });
        match is_url || text.is_empty() {
            true => Ok(Self(text.to_owned())),
            false => Err(Mistake::new(format!("`{text}` is not an HTTP URL"))
                .help("write it like \"https://push.example.org/sip\"")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The bearer token for the gateway; empty: none.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(***)")
    }
}

impl FromText for Token {
    const EXPECTED: &'static str = "a text without spaces";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        match text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(text.to_owned())),
            false => Err(Mistake::new(
                "the token has a space or a character that is not ASCII",
            )),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The name of a push service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Provider(String);

impl FromText for Provider {
    const EXPECTED: &'static str = "the name of a push service, like \"fcm\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        match !text.is_empty() && text.len() <= 32 && text.bytes().all(is_plain) {
            true => Ok(Self(text.to_owned())),
            false => Err(Mistake::new(format!("`{text}` is not a push service"))
                .help("write pn-provider of the phones: \"apns\", \"fcm\" or \"webpush\"")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The plain values; an inner `None` without a gateway.
pub(super) fn resolve(settings: &Settings) -> Option<Option<PushConfig>> {
    let s = settings.clone();
    let gateway = s.sip_push_gateway?.value.0;
    let providers = super::values(s.sip_push_providers?.value);
    let config = PushConfig {
        token: s.sip_push_token?.value.0,
        providers: providers.into_iter().map(|it| it.0).collect(),
        wait: s.sip_push_timeout?.value.0,
        calls: s.sip_push_calls?.value.0,
        refresh: s.sip_push_refresh?.value.0,
        gateway,
    };
    Some(Some(config).filter(|config| !config.gateway.is_empty()))
}

/// Reports a gateway without a push service, and a token that everybody can read.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let Some(gateway) = &settings.sip_push_gateway else {
        return;
    };
    let text = &gateway.value.0;
    if text.is_empty() {
        return;
    }
    let providers = settings.sip_push_providers.as_ref();
    if providers.is_none_or(|providers| providers.value.is_empty()) {
        let message = "no phone is woken: there is no push service";
        let help = "add sip.push_providers = [\"apns\", \"fcm\"]";
        report.push(Diagnostic::error(&gateway.at, message).help(help));
    }
    check_times(settings, report);
    let token = settings.sip_push_token.as_ref();
    if text.starts_with("http:") && token.is_some_and(|token| !token.value.0.is_empty()) {
        let message = "the token is sent without TLS";
        report.push(Diagnostic::warning(&gateway.at, message).help("use an https URL"));
    }
}

/// Reports registrations that end before a notification would be sent.
fn check_times(settings: &Settings, report: &mut Report) {
    let (Some(refresh), Some(most), Some(default)) = (
        &settings.sip_push_refresh,
        &settings.sip_register_max,
        &settings.sip_register_expires,
    ) else {
        return;
    };
    let refresh = refresh.value.0;
    if most.value.0 <= refresh {
        let message =
            "no phone is woken to refresh its registration: all registrations are too short";
        let help = "make sip.register_max longer than sip.push_refresh";
        report.push(Diagnostic::warning(&most.at, message).help(help));
    } else if default.value.0 <= refresh {
        let message = "a phone whose REGISTER has no time is not woken to refresh its registration: it is too short";
        let help = "make sip.register_expires longer than sip.push_refresh";
        report.push(Diagnostic::warning(&default.at, message).help(help));
    }
}
