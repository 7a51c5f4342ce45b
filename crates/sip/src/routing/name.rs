//! Names of the DNS.

/// A host name in lower case without a final dot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DnsName(Box<str>);

/// RFC 1035 §2.3.4.
const MAX_NAME_BYTES: usize = 253;
const LONGEST_LABEL: usize = 63;

impl DnsName {
    /// The name, if it can be one: labels of letters, digits, hyphens and underscores.
    #[must_use]
    pub fn new(text: &[u8]) -> Option<DnsName> {
        let text = text.strip_suffix(b".").unwrap_or(text);
        if text.is_empty() || text.len() > MAX_NAME_BYTES {
            return None;
        }
        let is_label = |label: &[u8]| {
            (1..=LONGEST_LABEL).contains(&label.len())
                && label
                    .iter()
                    .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        };
        if !text.split(|byte| *byte == b'.').all(is_label) {
            return None;
        }
        let text = std::str::from_utf8(text).ok()?;
        Some(DnsName(text.to_ascii_lowercase().into()))
    }

    /// The root: as the target of an SRV record it says that the service is not available (RFC 2782).
    #[must_use]
    pub fn root() -> DnsName {
        DnsName("".into())
    }

    /// Whether it is the root.
    #[must_use]
    pub fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name with labels in front, such as `_sip._udp`.
    pub(crate) fn under(&self, labels: &str) -> Option<DnsName> {
        DnsName::new(format!("{labels}.{}", self.0).as_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn case_and_the_final_dot_do_not_matter() {
        let name = DnsName::new(b"SIP.Example.ORG.");
        assert_eq!(name, DnsName::new(b"sip.example.org"));
        let srv = name.and_then(|name| name.under("_sip._udp"));
        assert_eq!(srv, DnsName::new(b"_sip._udp.sip.example.org"));
    }

    #[test]
    fn malformed_names_are_refused() {
        let long = [b'a'; 64];
        for wrong in [&b""[..], b".", b"a..b", b"a b", b"a@b", b"[::1]", &long] {
            assert_eq!(DnsName::new(wrong), None);
        }
    }
}
