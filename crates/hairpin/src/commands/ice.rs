//! Credentials in the forms that clients take them.

use serde_json::json;

/// A user name and password for one or more servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ice {
    /// `turn:` URIs (RFC 7065).
    pub(crate) uris: Vec<String>,
    /// USERNAME.
    pub(crate) username: String,
    /// The password.
    pub(crate) password: String,
}

impl Ice {
    /// What `new RTCPeerConnection(..)` takes, on one line.
    pub(crate) fn json(&self) -> String {
        // Written by hand to keep the order in which everybody writes these three.
        let (urls, username) = (json!(self.uris), json!(self.username));
        let credential = json!(self.password);
        format!(
            r#"{{"iceServers":[{{"urls":{urls},"username":{username},"credential":{credential}}}]}}"#
        )
    }

    /// URIs with the credentials in them (`turn://user:password@host:port`), as GStreamer takes them; no RFC has this
    /// form.
    pub(crate) fn uris_with_credentials(&self) -> Vec<String> {
        let user = format!(
            "{}:{}",
            percent_encode(&self.username),
            percent_encode(&self.password)
        );
        let with_user = |uri: &String| {
            let (scheme, rest) = uri.split_once(':').unwrap_or(("turn", uri));
            format!("{scheme}://{user}@{}", rest.trim_start_matches('/'))
        };
        self.uris.iter().map(with_user).collect()
    }

    /// Assignments for a POSIX shell.
    pub(crate) fn env(&self) -> String {
        let uris = self.uris.join(" ");
        let assignment = |name: &str, value: &str| format!("{name}={}\n", shell_quote(value));
        assignment("TURN_URI", &uris)
            + &assignment("TURN_USERNAME", &self.username)
            + &assignment("TURN_PASSWORD", &self.password)
    }
}

/// RFC 3986 §2.1, for everything but the unreserved characters.
pub(crate) fn percent_encode(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                char::from(byte).to_string()
            }
            other => format!("%{other:02X}"),
        })
        .collect()
}

fn shell_quote(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ice() -> Ice {
        Ice {
            uris: vec!["turn:192.0.2.1:3478?transport=udp".into()],
            username: "1735689600:o'neil".into(),
            password: "a+/=".into(),
        }
    }

    #[test]
    fn json_is_what_a_browser_takes() {
        let value: serde_json::Value = serde_json::from_str(&ice().json()).unwrap();
        assert_eq!(
            value["iceServers"][0]["urls"][0],
            "turn:192.0.2.1:3478?transport=udp"
        );
        assert_eq!(value["iceServers"][0]["credential"], "a+/=");
    }

    #[test]
    fn uris_carry_escaped_credentials() {
        let expected = "turn://1735689600%3Ao%27neil:a%2B%2F%3D@192.0.2.1:3478?transport=udp";
        assert_eq!(ice().uris_with_credentials(), [expected]);
    }

    #[test]
    fn shells_see_quotes_as_they_are() {
        assert!(
            ice()
                .env()
                .contains(r"TURN_USERNAME='1735689600:o'\''neil'")
        );
    }
}
