//! `sip.ice_servers`: TURN URIs that phones get in the 200 to REGISTER.

use load::uri::{Scheme, Uri};

use super::diagnostics::{Diagnostic, Report};
use super::schema::Settings;
use super::setting::{FromText, Mistake};

/// A `turn:` or `turns:` URI (RFC 7065), as it is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TurnUri(pub(crate) String);

impl FromText for TurnUri {
    const EXPECTED: &'static str = "a URI like \"turn:turn.example.org?transport=udp\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let uri: Result<Uri, _> = text.parse();
        match uri {
            Ok(uri) if matches!(uri.scheme, Scheme::Turn | Scheme::Turns) => {
                Ok(Self(text.to_owned()))
            }
            Ok(_) => Err(Mistake::new(format!("`{text}` is no TURN server"))
                .help("write a `turn:` or `turns:` URI; phones need no STUN server beside it")),
            Err(error) => Err(Mistake::new(error.to_string())),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The URIs without their positions in the file.
pub(super) fn resolve(settings: &Settings) -> Option<Vec<String>> {
    let uris = &settings.sip_ice_servers.as_ref()?.value;
    Some(uris.iter().map(|uri| uri.value.0.clone()).collect())
}

/// Requires a shared secret, because TURN passwords are computed from it.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let Some(list) = &settings.sip_ice_servers else {
        return;
    };
    let secrets = settings.secrets.as_ref();
    let has_secret = secrets.is_some_and(|secrets| !secrets.value.is_empty());
    if let Some(first) = list.value.first().filter(|_| !has_secret) {
        let message = "there is no shared secret to make passwords for TURN from";
        let help = "add one to auth.secrets: openssl rand -base64 24";
        report.push(Diagnostic::error(&first.at, message).help(help));
    }
}
