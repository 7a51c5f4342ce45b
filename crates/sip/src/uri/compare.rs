//! Comparison of URIs (RFC 3261 §19.1.4, RFC 3966 §4).

use super::escape::units;
use super::{SipUri, TelUri, Uri, UriHeaders, UriParams, is_visual_separator};

/// Parameters that make two URIs different if only one has them. RFC 3261 §19.1.4 names the first four, and shows the
/// fifth among its examples.
const NEVER_IGNORED: [&[u8]; 5] = [b"user", b"ttl", b"method", b"maddr", b"transport"];

impl PartialEq for Uri<'_> {
    /// Whether both mean the same by the rules of their scheme. The relation is not transitive: a parameter that only
    /// one of two has is ignored (RFC 3261 §19.1.4).
    fn eq(&self, other: &Uri<'_>) -> bool {
        match (self, other) {
            (Uri::Sip(ours), Uri::Sip(theirs)) => ours == theirs,
            (Uri::Tel(ours), Uri::Tel(theirs)) => ours == theirs,
            (
                Uri::Other { scheme, rest },
                Uri::Other {
                    scheme: theirs,
                    rest: their_rest,
                },
            ) => scheme.eq_ignore_ascii_case(theirs) && rest == their_rest,
            _ => false,
        }
    }
}

impl PartialEq for SipUri<'_> {
    /// RFC 3261 §19.1.4: user and password with regard to case, all else without; what is left out is not its default.
    fn eq(&self, other: &SipUri<'_>) -> bool {
        self.is_sips == other.is_sips
            && self.port == other.port
            && self.host == other.host
            && eq_optional(self.user, other.user)
            && eq_optional(self.password, other.password)
            && eq_params(&self.params, &other.params)
            && eq_headers(&self.headers, &other.headers)
    }
}

impl Uri<'_> {
    /// Whether both lead to the same place: like `==`, but a port that is left out is the default one, and `transport`
    /// does not count. Phones write their digest `uri` so (RFC 7616 §3.4.6 leaves it to the server what is
    /// "equivalent").
    #[must_use]
    pub fn is_equivalent(&self, other: &Uri<'_>) -> bool {
        match (self, other) {
            (Uri::Sip(ours), Uri::Sip(theirs)) => ours.is_equivalent(theirs),
            (ours, theirs) => ours == theirs,
        }
    }
}

impl SipUri<'_> {
    fn is_equivalent(&self, other: &SipUri<'_>) -> bool {
        let port = |uri: &SipUri<'_>| uri.port.unwrap_or(if uri.is_sips { 5061 } else { 5060 });
        // RFC 3261 §19.1.2: over TLS the default is 5061, regardless of the scheme.
        let over_tls = |uri: &SipUri<'_>| {
            let transport = uri.params.get(b"transport").flatten();
            transport.is_some_and(|name| eq_ignore_case(name, b"tls"))
        };
        let is_default = |uri: &SipUri<'_>| match uri.port {
            None => true,
            Some(port) => port == 5060 || port == 5061 && over_tls(uri),
        };
        let same_port = port(self) == port(other) || (is_default(self) && is_default(other));
        self.is_sips == other.is_sips
            && same_port
            && self.host == other.host
            && eq_optional(self.user, other.user)
            && eq_optional(self.password, other.password)
            && eq_params_but(Some(b"transport"), &self.params, &other.params)
            && eq_headers(&self.headers, &other.headers)
    }
}

impl PartialEq for TelUri<'_> {
    /// RFC 3966 §4: without visual separators, and with the same parameters in any order.
    fn eq(&self, other: &TelUri<'_>) -> bool {
        let has_all = |ours: &UriParams<'_>, theirs: &UriParams<'_>| {
            ours.iter().all(|(name, value)| {
                theirs
                    .get(name)
                    .is_some_and(|other| eq_values(value, other))
            })
        };
        digits(self.number).eq(digits(other.number))
            && (self.params.0 == other.params.0
                || has_all(&self.params, &other.params) && has_all(&other.params, &self.params))
    }
}

/// The digits of a telephone number.
fn digits(number: &[u8]) -> impl Iterator<Item = u8> {
    let digits = number.iter().filter(|&&byte| !is_visual_separator(byte));
    digits.map(u8::to_ascii_lowercase)
}

/// Whether two texts are the same, escapes understood.
fn eq(ours: &[u8], theirs: &[u8]) -> bool {
    ours == theirs || units(ours).eq(units(theirs))
}

/// The same without regard to case.
pub(super) fn eq_ignore_case(ours: &[u8], theirs: &[u8]) -> bool {
    let lower = |(byte, escaped): (u8, bool)| (byte.to_ascii_lowercase(), escaped);
    units(ours).map(lower).eq(units(theirs).map(lower))
}

fn eq_optional(ours: Option<&[u8]>, theirs: Option<&[u8]>) -> bool {
    match (ours, theirs) {
        (Some(ours), Some(theirs)) => eq(ours, theirs),
        (ours, theirs) => ours.is_none() && theirs.is_none(),
    }
}

fn eq_values(ours: Option<&[u8]>, theirs: Option<&[u8]>) -> bool {
    eq_ignore_case(ours.unwrap_or_default(), theirs.unwrap_or_default())
}

/// What both have must be the same; what one has counts only if it is one of [`NEVER_IGNORED`].
fn eq_params(ours: &UriParams<'_>, theirs: &UriParams<'_>) -> bool {
    eq_params_but(None, ours, theirs)
}

/// The same without one parameter.
fn eq_params_but(but: Option<&[u8]>, ours: &UriParams<'_>, theirs: &UriParams<'_>) -> bool {
    let counts = |name: &[u8]| but.is_none_or(|but| !eq_ignore_case(but, name));
    let agrees = |ours: &UriParams<'_>, theirs: &UriParams<'_>| {
        let mut all = ours.iter().filter(|(name, _)| counts(name));
        all.all(|(name, value)| match theirs.get(name) {
            Some(other) => eq_values(value, other),
            None => !NEVER_IGNORED
                .iter()
                .any(|never| eq_ignore_case(never, name)),
        })
    };
    ours.0 == theirs.0 || (agrees(ours, theirs) && agrees(theirs, ours))
}

/// Headers are never ignored. Their values compare byte by byte: a rule for each header would make no more than a few
/// spellings equal that nobody sends.
fn eq_headers(ours: &UriHeaders<'_>, theirs: &UriHeaders<'_>) -> bool {
    let has_all = |ours: &UriHeaders<'_>, theirs: &UriHeaders<'_>| {
        ours.iter().all(|(name, value)| {
            theirs
                .iter()
                .any(|(other, their_value)| eq_ignore_case(name, other) && eq(value, their_value))
        })
    };
    ours.0 == theirs.0 || (has_all(ours, theirs) && has_all(theirs, ours))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn same(ours: &str, theirs: &str) -> bool {
        let parse = |text: &'static str| Uri::parse(text.as_bytes()).expect("a URI");
        let (ours, theirs) = (ours.to_owned().leak(), theirs.to_owned().leak());
        let (ours, theirs) = (parse(ours), parse(theirs));
        let result = ours == theirs;
        assert_eq!(PartialEq::eq(&theirs, &ours), result, "symmetry");
        result
    }

    /// RFC 3261 §19.1.4, the examples.
    #[test]
    fn the_equal_pairs_of_the_rfc() {
        for (ours, theirs) in [
            (
                "sip:%61lice@atlanta.com;transport=TCP",
                "sip:alice@AtLanTa.CoM;Transport=tcp",
            ),
            ("sip:carol@chicago.com", "sip:carol@chicago.com;newparam=5"),
            ("sip:carol@chicago.com", "sip:carol@chicago.com;security=on"),
            (
                "sip:carol@chicago.com;newparam=5",
                "sip:carol@chicago.com;security=on",
            ),
            (
                "sip:biloxi.com;transport=tcp;method=REGISTER?to=sip:bob%40biloxi.com",
                "sip:biloxi.com;method=REGISTER;transport=tcp?to=sip:bob%40biloxi.com",
            ),
            (
                "sip:alice@atlanta.com?subject=project%20x&priority=urgent",
                "sip:alice@atlanta.com?priority=urgent&subject=project%20x",
            ),
        ] {
            assert!(same(ours, theirs), "{ours} {theirs}");
        }
    }

    /// RFC 3261 §19.1.4, the examples.
    #[test]
    fn the_different_pairs_of_the_rfc() {
        for (ours, theirs) in [
            (
                "SIP:ALICE@AtLanTa.CoM;Transport=udp",
                "sip:alice@AtLanTa.CoM;Transport=UDP",
            ),
            ("sip:bob@biloxi.com", "sip:bob@biloxi.com:5060"),
            ("sip:bob@biloxi.com", "sip:bob@biloxi.com;transport=udp"),
            (
                "sip:bob@biloxi.com",
                "sip:bob@biloxi.com:6000;transport=tcp",
            ),
            (
                "sip:carol@chicago.com",
                "sip:carol@chicago.com?Subject=next%20meeting",
            ),
            ("sip:bob@phone21.boxesbybob.com", "sip:bob@192.0.2.4"),
            (
                "sip:carol@chicago.com;security=on",
                "sip:carol@chicago.com;security=off",
            ),
        ] {
            assert!(!same(ours, theirs), "{ours} {theirs}");
        }
    }

    #[test]
    fn a_default_port_and_a_transport_make_no_other_place() {
        let same = |ours: &'static str, theirs: &'static str| {
            let parse = |text: &'static str| Uri::parse(text.as_bytes()).expect("a URI");
            let (ours, theirs) = (parse(ours), parse(theirs));
            assert_eq!(ours.is_equivalent(&theirs), theirs.is_equivalent(&ours));
            ours.is_equivalent(&theirs)
        };
        for other in [
            "sip:a@x:5060",
            "sip:a@X;transport=udp",
            "sip:a@x:5060;transport=TCP",
            "sip:a@x;transport=tls",
            "sip:a@x:5061;transport=tls",
        ] {
            assert!(same("sip:a@x", other), "{other}");
        }
        assert!(same("sips:a@x", "sips:a@x:5061;transport=tcp"));
        for other in [
            "sip:a@x:5061",
            "sip:b@x",
            "sips:a@x",
            "sip:a@y",
            "sip:a@x;user=phone",
            "sip:a@x;maddr=1.1.1.1;transport=udp",
        ] {
            assert!(!same("sip:a@x", other), "{other}");
        }
        assert!(same("tel:1-2", "tel:12"));
    }

    #[test]
    fn escapes_of_reserved_bytes_stay_different() {
        assert!(same("sip:a%2fb@x", "sip:a%2Fb@x"));
        assert!(!same("sip:a%2Fb@x", "sip:a/b@x"));
        assert!(same("sip:%61%7e@x", "sip:a~@x"));
        assert!(!same("sip:a@x", "sips:a@x"));
        assert!(same("sip:a@x;%6cr", "sip:a@x;lr"));
        assert!(!same("sip:a@x;maddr=1.1.1.1", "sip:a@x"));
    }

    #[test]
    fn telephone_numbers_without_their_separators() {
        assert!(same("tel:+1-972-555", "tel:+1(972)555"));
        assert!(!same("tel:+1972555", "tel:1972555"));
        assert!(same(
            "tel:55;phone-context=+49;ext=1",
            "tel:5-5;ext=1;phone-context=+49"
        ));
        assert!(!same("tel:55;ext=1", "tel:55"));
        assert!(same("HTTP://x", "http://x"));
        assert!(!same("http://x", "http://X"));
    }
}
