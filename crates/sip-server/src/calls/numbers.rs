//! Numbers that no user may call, for example premium-rate services, which somebody could call with a stolen password.

use sip::uri::Uri;

/// Digits of a number that are compared: far more than E.164 has.
const MAX_DIGITS: usize = 64;

/// Prefixes of numbers: those that are forbidden, and exceptions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Numbers {
    /// Each with whether it is forbidden.
    prefixes: Vec<(Box<str>, bool)>,
}

impl Numbers {
    /// From prefixes such as `+49900` or `0900`. They are compared as they are written: `+` and `00` differ.
    #[must_use]
    pub fn new(forbidden: &[String], allowed: &[String]) -> Numbers {
        let of = |list: &[String], is_forbidden| {
            let prefixes = list
                .iter()
                .map(|prefix| (prefix.as_str().into(), is_forbidden));
            prefixes.collect::<Vec<(Box<str>, bool)>>()
        };
        let mut prefixes = of(forbidden, true);
        prefixes.extend(of(allowed, false));
        Numbers { prefixes }
    }

    /// Whether nobody may call the number of this URI. The longest prefix decides; of two that are equal, the one that
    /// allows.
    #[must_use]
    pub fn forbid(&self, uri: &[u8]) -> bool {
        if self.prefixes.is_empty() {
            return false;
        }
        let mut digits = [0; MAX_DIGITS];
        let number = number_in(uri, &mut digits);
        let matching = self
            .prefixes
            .iter()
            .filter(|(prefix, _)| number.starts_with(prefix.as_bytes()));
        let longest = matching.max_by_key(|(prefix, is_forbidden)| (prefix.len(), !is_forbidden));
        longest.is_some_and(|(_, is_forbidden)| *is_forbidden)
    }
}

/// Whether a byte counts in the comparison. `has_begun`: it is not the first one, so a `+` does not count. A gateway may
/// ignore more characters than the visual separators of RFC 3966 §3. So the comparison ignores all others, too.
const fn is_compared(byte: u8, has_begun: bool) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'*' | b'#') || byte == b'+' && !has_begun
}

/// The number in a URI. It is the user of a SIP URI, or the subscriber of a `tel` URI, without parameters and
/// separators. Escapes are decoded, as the next hop does it.
fn number_in<'d>(uri: &[u8], digits: &'d mut [u8; MAX_DIGITS]) -> &'d [u8] {
    let text = match Uri::parse(uri) {
        Ok(Uri::Sip(sip)) => sip.user.unwrap_or_default(),
        _ => match uri.iter().position(|byte| *byte == b':') {
            Some(colon) => &uri[colon + 1..],
            None => uri,
        },
    };
    let mut len = 0;
    let mut rest = text;
    while let [byte, behind @ ..] = rest {
        rest = behind;
        let mut byte = *byte;
        if byte == b';' {
            break;
        }
        if let (b'%', [high, low, behind @ ..]) = (byte, rest)
            && let (Some(high), Some(low)) = (hex(*high), hex(*low))
        {
            byte = high << 4 | low;
            rest = behind;
        }
        if !is_compared(byte, len > 0) {
            continue;
        }
        if len == MAX_DIGITS {
            break;
        }
        digits[len] = byte;
        len += 1;
    }
    &digits[..len]
}

fn hex(digit: u8) -> Option<u8> {
    char::from(digit).to_digit(16).map(|value| value as u8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_prefix_decides() {
        let list = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect::<Vec<_>>();
        let numbers = Numbers::new(
            &list(&["+", "0900", "+49900"]),
            &list(&["+49", "+49900555", "0900"]),
        );
        for (uri, is_forbidden) in [
            ("sip:+1900123@carrier.example", true),
            ("sip:+49301234@carrier.example;user=phone", false),
            ("sip:+49900123@carrier.example", true),
            ("sip:+49900555123@carrier.example", false),
            ("sip:+49-900-123@carrier.example", true),
            ("sip:%2B4990%30123@carrier.example", true),
            ("sip:+49900123;phone-context=x@carrier.example", true),
            ("tel:+49-(900)-123", true),
            ("sip:+49~9_00!'&=$,/?123@carrier.example", true),
            ("sip:+49%009%0D%0A%E2%80%8B00123@carrier.example", true),
            ("sip:%A0++49+900123@carrier.example", true),
            ("sip:+49*900123@carrier.example", false),
            ("tel:+49.30.123;ext=+1", false),
            ("sip:0900123@carrier.example", false),
            ("sip:bob@carrier.example", false),
            ("sip:carrier.example", false),
        ] {
            assert_eq!(numbers.forbid(uri.as_bytes()), is_forbidden, "{uri}");
        }
        assert!(!Numbers::default().forbid(b"sip:+1900123@carrier.example"));
    }
}
