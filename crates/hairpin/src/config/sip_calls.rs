//! The limits and the session timers of SIP calls, as the user writes them, and the entries of `sip.scanners`.

use server::sip::{CallLimit, CallSettings};

use super::diagnostics::{Diagnostic, Report};
use super::schema::Settings;
use super::setting::{FromText, Mistake};

/// The first digits of a number: an entry of `sip.forbidden_prefixes` or `sip.allowed_prefixes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prefix(String);

/// An E.164 number has at most 15 digits. A `+` or an international prefix in front adds a few characters.
const MAX_NUMBER_CHARS: usize = 20;

impl FromText for Prefix {
    const EXPECTED: &'static str = "the first digits of a number like \"+49900\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let digits = text.strip_prefix('+').unwrap_or(text);
        let is_prefix = !text.is_empty()
            && text.len() <= MAX_NUMBER_CHARS
            && digits
                .bytes()
                .all(|byte| byte.is_ascii_digit() || matches!(byte, b'*' | b'#'));
        match is_prefix {
            true => Ok(Self(text.to_owned())),
            false => Err(
                Mistake::new(format!("`{text}` is not the beginning of a number"))
                    .help("write digits only, with + in front or without, like \"+49900\""),
            ),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// An entry of `sip.scanners`. The server drops requests whose User-Agent begins with this text, regardless of case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Agent(pub(crate) String);

impl FromText for Agent {
    const EXPECTED: &'static str = "the beginning of a User-Agent like \"friendly-scanner\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let is_agent = text.len() >= 3
            && text
                .bytes()
                .all(|byte| byte == b' ' || byte.is_ascii_graphic());
        match is_agent {
            true => Ok(Self(text.to_owned())),
            // A shorter text could be the beginning of a phone's User-Agent.
            false => Err(
                Mistake::new(format!("`{text}` is not the beginning of a User-Agent"))
                    .help("write at least three characters of ASCII, like \"friendly-scanner\""),
            ),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The call settings of the server; `None` only if `defaults.toml` lacks a value.
pub(super) fn resolve(settings: &Settings) -> Option<CallSettings> {
    let s = settings.clone();
    let prefixes = |list| {
        super::values(list)
            .into_iter()
            .map(|prefix: Prefix| prefix.0)
    };
    let mut calls = CallSettings::default();
    calls.per_user = CallLimit {
        concurrent: s.sip_user_calls?.value.0,
        per_second: s.sip_user_call_rate?.value.0,
    };
    calls.per_domain = CallLimit {
        concurrent: s.sip_domain_calls?.value.0,
        per_second: s.sip_domain_call_rate?.value.0,
    };
    calls.log = s.sip_call_log?.value;
    calls.most = s.sip_max_call_duration?.value.0;
    calls.session_expires = s.sip_session_expires?.value.0;
    calls.session_min = s.sip_session_min?.value.0;
    calls.forbidden_prefixes = prefixes(s.sip_forbidden_prefixes?.value).collect();
    calls.allowed_prefixes = prefixes(s.sip_allowed_prefixes?.value).collect();
    Some(calls)
}

/// Reports a session interval below the minimum, and call limits or a call log without Record-Route.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let (Some(calls), Some(expires)) = (resolve(settings), &settings.sip_session_expires) else {
        return;
    };
    if !calls.session_expires.is_zero() && calls.session_expires < calls.session_min {
        let message = "the session interval is smaller than sip.session_min";
        let help =
            "sip.session_expires must be at least sip.session_min, or 0 for no session timer";
        report.push(Diagnostic::error(&expires.at, message).help(help));
    }
    let trunks = settings.sip_trunk.iter().flat_map(|entry| &entry.value);
    let mut limits = trunks.flat_map(|trunk| [trunk.value.max_calls, trunk.value.max_calls_from]);
    let has_trunk_limit = limits.any(|most| most.is_some_and(|most| most.0 > 0));
    let is_limited =
        calls.per_user.is_set() || calls.per_domain.is_set() || has_trunk_limit || calls.log;
    let record_route = settings.sip_record_route.as_ref();
    if let Some(record_route) = record_route.filter(|entry| is_limited && !entry.value) {
        let message = "calls are limited or logged, but without Record-Route the proxy gets no BYE";
        let help = "remove sip.record_route = false, or the limits of calls and sip.call_log";
        report.push(Diagnostic::error(&record_route.at, message).help(help));
    }
}
