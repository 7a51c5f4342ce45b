//! The media relay of calls through trunks, as the user writes the keys.

use std::net::SocketAddr;

use super::diagnostics::{Diagnostic, Report};
use super::schema::Settings;
use super::setting::{FromText, Mistake, one_of, word};
use super::sip_trunks;

const HELP: &str = "write the address of `listen-ng` of rtpengine, like \"127.0.0.1:22222\"";

/// Where rtpengine takes requests; empty: there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RtpEngine(pub(super) Option<SocketAddr>);

impl FromText for RtpEngine {
    const EXPECTED: &'static str = "an address like \"127.0.0.1:22222\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        match text.parse::<SocketAddr>() {
            Ok(address) if address.port() == 0 => {
                Err(Mistake::new(format!("`{text}` has no port")).help(HELP))
            }
            Ok(address) if address.ip().is_unspecified() => Err(Mistake::new(format!(
                "`{text}` is no address that requests can be sent to"
            ))
            .help(HELP)),
            Ok(address) => Ok(Self(Some(address))),
            Err(_) => {
                Err(Mistake::new(format!("`{text}` is not an IP address with a port")).help(HELP))
            }
        }
    }

    fn to_text(&self) -> String {
        self.0
            .map(|address| address.to_string())
            .unwrap_or_default()
    }
}

/// Where the media of calls through a trunk go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Media {
    /// From one side to the other.
    #[default]
    Direct,
    /// Through rtpengine.
    Relay,
}

const MEDIA: [(&str, Media); 2] = [("direct", Media::Direct), ("relay", Media::Relay)];

impl FromText for Media {
    const EXPECTED: &'static str = "\"direct\" or \"relay\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &MEDIA)
    }

    fn to_text(&self) -> String {
        word(&MEDIA, *self)
    }
}

/// Reports trunks with a relay if there is none, and a relay without such a trunk.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let engine = settings.sip_rtpengine.as_ref();
    let engine = engine.filter(|engine| engine.value.0.is_some());
    let trunks = sip_trunks::all(settings).iter();
    let mut with_relay = trunks.filter(|trunk| trunk.value.relays_media()).peekable();
    match engine {
        Some(engine) if with_relay.peek().is_none() => {
            let message = "rtpengine has no effect: no trunk has media = \"relay\"";
            let help = "add media = \"relay\" to the trunks whose calls go through it";
            report.push(Diagnostic::warning(&engine.at, message).help(help));
        }
        Some(_) => {}
        None => {
            for trunk in with_relay {
                let name = trunk.value.name.as_ref();
                let name = name.map_or(String::new(), |name| format!(" `{}`", name.value.0));
                let message =
                    format!("the media of the trunk{name} go through a relay, and there is none");
                let media = trunk.value.media.as_ref();
                let at = media.map_or(&trunk.at, |media| &media.at);
                let help = "set sip.rtpengine = \"127.0.0.1:22222\", or remove media = \"relay\"";
                report.push(Diagnostic::error(at, message).help(help));
            }
        }
    }
}
