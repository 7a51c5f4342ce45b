//! Hosts: names, IPv4 addresses and IPv6 references.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::chars::{self, HOST};
use crate::cursor::Cursor;

/// The `host` of RFC 3261 §25.1 as it is in the message.
#[derive(Clone, Copy, Debug)]
pub struct Host<'a> {
    text: &'a [u8],
    v6: Option<Ipv6Addr>,
}

impl<'a> Host<'a> {
    /// The whole of `text` as a host; an IPv6 address may be without its brackets, as some write it into `received`.
    #[must_use]
    pub fn new(text: &'a [u8]) -> Option<Host<'a>> {
        if let Some(v6) = ipv6(text) {
            return Some(Host { text, v6: Some(v6) });
        }
        let mut cursor = Cursor::new(text);
        Host::read(&mut cursor).filter(|_| cursor.is_at_end())
    }

    /// Reads a host.
    #[inline(always)]
    pub(crate) fn read(cursor: &mut Cursor<'a>) -> Option<Host<'a>> {
        let from = cursor.at();
        if !cursor.skip_if(b'[') {
            let text = cursor.take(HOST);
            return (!text.is_empty()).then_some(Host { text, v6: None });
        }
        let v6 = Some(ipv6(cursor.until(b']')?)?);
        let text = cursor.since(from);
        Some(Host { text, v6 })
    }

    /// As it is written in the message, with brackets.
    #[inline]
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.text
    }

    /// The address, unless it is a name.
    #[inline]
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self.v6 {
            Some(v6) => Some(IpAddr::V6(v6)),
            None => ipv4(self.text).map(IpAddr::V4),
        }
    }
}

impl PartialEq for Host<'_> {
    /// Names without regard to case, addresses by what they mean.
    fn eq(&self, other: &Host<'_>) -> bool {
        match (self.v6, other.v6) {
            (None, None) => self.text.eq_ignore_ascii_case(other.text),
            (ours, theirs) => ours == theirs,
        }
    }
}

impl Eq for Host<'_> {}

/// A dotted quad, exactly.
#[inline]
pub(crate) fn ipv4(text: &[u8]) -> Option<Ipv4Addr> {
    let mut octets = [0; 4];
    let mut parts = text.split(|&byte| byte == b'.');
    for octet in &mut octets {
        let part = parts.next()?;
        if part.len() > 3 {
            return None;
        }
        *octet = u8::try_from(chars::decimal(part)?).ok()?;
    }
    parts.next().is_none().then(|| Ipv4Addr::from(octets))
}

/// An IPv6 address without brackets.
fn ipv6(text: &[u8]) -> Option<Ipv6Addr> {
    // The longest is 45 bytes; without a colon it is none, which saves names the rest.
    if text.len() > 45 || !text.contains(&b':') {
        return None;
    }
    let text = std::str::from_utf8(text).ok()?;
    let address = text.parse().ok();
    // RFC 5118 §4.5: the grammar of RFC 3261 made people write three colons before an embedded IPv4 address.
    address.or_else(|| text.replacen(":::", "::", 1).parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_dotted_quads_are_ipv4_addresses() {
        assert_eq!(ipv4(b"192.0.2.255"), Some(Ipv4Addr::new(192, 0, 2, 255)));
        for wrong in [
            "192.0.2.256",
            "1.2.3",
            "1.2.3.4.5",
            "1.2.3.",
            "1..2.3",
            "a.b.c.d",
            "0001.2.3.4",
            "",
        ] {
            assert_eq!(ipv4(wrong.as_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn three_colons_are_taken_for_two_rfc5118_4_5() {
        assert_eq!(
            Host::new(b"[2001:db8:::192.0.2.1]"),
            Host::new(b"[2001:db8::192.0.2.1]")
        );
        assert!(Host::new(b"[2001:db8:::1:::2]").is_none());
        assert!(Host::new(b"[2001:db8::::1]").is_none());
        assert!(Host::new(b"[2001::db8:::1]").is_none());
    }

    #[test]
    fn ipv6_addresses_are_equal_by_meaning_and_checked() {
        assert_eq!(Host::new(b"[2001:db8::1]"), Host::new(b"[2001:DB8:0::1]"));
        assert_eq!(Host::new(b"2001:db8::1"), Host::new(b"[2001:db8::1]"));
        assert!(Host::new(b"[2001:db8::1").is_none());
        assert!(Host::new(b"[example.com]").is_none());
        assert!(Host::new(b"[2001:db8::g]").is_none());
        assert_eq!(Host::new(b"Example.COM"), Host::new(b"example.com"));
        assert!(Host::new(b"a b").is_none());
    }
}
