//! The header field `Ice-Servers` in the 200 to a REGISTER: time-limited credentials for TURN on this server, in the
//! form that `RTCPeerConnection` accepts. So a phone in a browser needs credentials for SIP only.

use std::fmt::{self, Write as _};

use super::settings::SipConfig;
use crate::rest::rest_password;
use sip_server::Aor;

/// The parts of the header field that are the same for all users.
pub(super) struct IceServers {
    /// The URIs as a JSON array.
    urls: String,
    secret: Vec<u8>,
    /// Seconds.
    lifetime: u32,
}

impl fmt::Debug for IceServers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret must not appear in logs.
        f.debug_struct("IceServers")
            .field("urls", &self.urls)
            .finish_non_exhaustive()
    }
}

impl IceServers {
    /// `None` if there is no URI, or no secret to make passwords from.
    pub(super) fn new(sip_config: &SipConfig) -> Option<IceServers> {
        let mut urls = String::new();
        for uri in &sip_config.settings.ice_servers {
            urls.push(if urls.is_empty() { '[' } else { ',' });
            push_string(&mut urls, uri);
        }
        let secret = sip_config.ice_secret.clone()?;
        (!urls.is_empty()).then(|| IceServers {
            urls: urls + "]",
            secret,
            // Each refresh of a registration returns new credentials. So they must last as long as the longest
            // registration.
            lifetime: sip_config.settings.registrar.max_expires,
        })
    }

    /// The header line for this address of record; `None` if its name is not UTF-8, as RFC 8489 §14.3 requires of
    /// USERNAME.
    pub(super) fn line(&self, aor: &Aor, unix_s: u64) -> Option<String> {
        let user = std::str::from_utf8(aor.user()?).ok()?;
        let domain = std::str::from_utf8(aor.domain()).ok()?;
        let expires = unix_s.saturating_add(self.lifetime.into());
        let name = format!("{expires}:{user}@{domain}");
        let password = rest_password(&self.secret, &name);
        let mut line = format!("Ice-Servers: [{{\"urls\":{},\"username\":", self.urls);
        push_string(&mut line, &name);
        line.push_str(",\"credential\":");
        push_string(&mut line, &password);
        line.push_str("}]\r\n");
        Some(line)
    }
}

/// Appends a JSON string (RFC 8259 §7).
fn push_string(text: &mut String, value: &str) {
    text.push('"');
    for character in value.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            control if control.is_control() => {
                // All control characters are below U+00A0, so four digits are enough. Writing to a String never fails.
                let _ = write!(text, "\\u{:04x}", u32::from(control));
            }
            other => text.push(other),
        }
    }
    text.push('"');
}

#[cfg(test)]
mod tests {
    use super::push_string;

    #[test]
    fn a_value_cannot_end_its_string_or_the_header_line() {
        let mut text = String::new();
        push_string(&mut text, "o\"neil\\\r\nVia: x");
        assert_eq!(text, r#""o\"neil\\\u000d\u000aVia: x""#);
    }
}
