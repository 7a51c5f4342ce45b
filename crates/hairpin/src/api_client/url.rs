//! The URL of an admin API, such as `https://turn.example.org:9641`.

use std::fmt;
use std::net::IpAddr;

use hyper::Uri;

/// Where an admin API is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ApiUrl {
    pub(super) is_tls: bool,
    /// Without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Host and port as they are written, for `Host`.
    pub(super) authority: String,
    /// The path in front of `/api/v1`, if a reverse proxy adds one; it begins with `/` or is empty.
    pub(super) prefix: String,
}

impl ApiUrl {
    /// Reads it.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub(crate) fn read(text: &str) -> Result<Self, String> {
        let wrong = || {
            "it is not the URL of an admin API: write it like https://turn.example.org:9641"
                .to_owned()
        };
        let uri: Uri = text.parse().map_err(|_| wrong())?;
        let (scheme, authority) = uri.scheme_str().zip(uri.authority()).ok_or_else(wrong)?;
        let is_tls = match scheme {
            "https" => true,
            "http" => false,
            _ => return Err(wrong()),
        };
        let host = uri.host().unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || uri.query().is_some() {
            return Err(wrong());
        }
        if authority.as_str().contains('@') {
            return Err(
                "it has a user name: put the token into a file, and name that with --token-file"
                    .to_owned(),
            );
        }
        if !is_tls && !is_loopback(host) {
            return Err("over http, anybody on the path could read the token: use https, or http to 127.0.0.1 by a tunnel of ssh".to_owned());
        }
        let default = if is_tls { 443 } else { 80 };
        let path = uri.path().trim_end_matches('/');
        let prefix = path.strip_suffix("/api/v1").unwrap_or(path);
        Ok(Self {
            is_tls,
            host: host.to_owned(),
            port: authority.port_u16().unwrap_or(default),
            authority: authority.to_string(),
            prefix: prefix.to_owned(),
        })
    }
}

fn is_loopback(host: &str) -> bool {
    let ip = host.parse::<IpAddr>();
    host == "localhost" || ip.is_ok_and(|ip| ip.to_canonical().is_loopback())
}

impl fmt::Display for ApiUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.is_tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.prefix)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_host_port_and_prefix() {
        let url = ApiUrl::read("https://turn.example.org:9641/").expect("a URL");
        assert_eq!(
            (&*url.host, url.port, &*url.prefix),
            ("turn.example.org", 9641, "")
        );
        assert_eq!(url.to_string(), "https://turn.example.org:9641");
        let url = ApiUrl::read("https://[2001:db8::1]/turn/api/v1").expect("a URL");
        assert_eq!(
            (&*url.host, url.port, &*url.prefix),
            ("2001:db8::1", 443, "/turn")
        );
        assert_eq!(url.authority, "[2001:db8::1]");
        for text in [
            "http://127.0.0.1:9641",
            "http://[::1]:9641",
            "http://localhost",
        ] {
            assert!(!ApiUrl::read(text).expect(text).is_tls);
        }
    }

    #[test]
    fn urls_that_cannot_be_used_are_refused_with_the_reason() {
        for (text, part) in [
            ("", "write it like"),
            ("turn.example.org:9641", "write it like"),
            ("ftp://turn.example.org", "write it like"),
            ("https://turn.example.org/?a=b", "write it like"),
            ("https://", "write it like"),
            ("https://token@turn.example.org", "--token-file"),
            ("http://turn.example.org:9641", "use https"),
            ("http://192.0.2.1:9641", "use https"),
        ] {
            let error = ApiUrl::read(text).expect_err(text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
