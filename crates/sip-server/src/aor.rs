//! Addresses of record in their canonical form, and the worker that has their bindings.

use sip::HashKey;
use sip::uri::{SipUri, unescape};

/// Bytes of the longest address of record. A longer one is no address of record here.
pub const MAX_AOR: usize = 254;

/// An address of record in canonical form (RFC 3261 §10.3 step 5): the user without escapes, `@`, and the name of the
/// domain.
///
/// The scheme is no part of it: RFC 5630 §5.2 makes the SIP and the SIPS form one address. Neither are parameters, a
/// password and the port. It lives on the stack, so that finding one does not allocate.
#[derive(Clone, Copy)]
pub struct Aor {
    bytes: [u8; MAX_AOR],
    len: u8,
}

impl Aor {
    /// The address of this URI's user in the domain with this name; `None` if it is longer than [`MAX_AOR`]. The caller
    /// has found that the URI's host is the domain.
    #[must_use]
    pub fn of(uri: &SipUri<'_>, domain: &[u8]) -> Option<Aor> {
        let mut bytes = [0; MAX_AOR];
        let mut len = 0;
        if let Some(user) = uri.user {
            // `%41` and `A` are one user.
            len = unescape(user, &mut bytes)?.len();
            *bytes.get_mut(len)? = b'@';
            len += 1;
        }
        bytes
            .get_mut(len..len + domain.len())?
            .copy_from_slice(domain);
        let len = (len + domain.len()) as u8;
        Some(Aor { bytes, len })
    }

    /// An address that is in canonical form already: the result of [`Aor::as_bytes`].
    #[must_use]
    pub fn from_canonical(canonical: &[u8]) -> Option<Aor> {
        let mut bytes = [0; MAX_AOR];
        bytes.get_mut(..canonical.len())?.copy_from_slice(canonical);
        let len = canonical.len() as u8;
        Some(Aor { bytes, len })
    }

    /// The canonical form. Any byte may be in it, as the user is without escapes.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }

    /// The user without escapes; `None` for an address of a whole domain.
    #[must_use]
    pub fn user(&self) -> Option<&[u8]> {
        self.parts().0
    }

    /// The name of the domain.
    #[must_use]
    pub fn domain(&self) -> &[u8] {
        self.parts().1
    }

    /// A user may have an `@` of its own, a domain has none.
    fn parts(&self) -> (Option<&[u8]>, &[u8]) {
        let bytes = self.as_bytes();
        match bytes.iter().rposition(|&byte| byte == b'@') {
            Some(at) => (bytes.get(..at), bytes.get(at + 1..).unwrap_or_default()),
            None => (None, bytes),
        }
    }
}

impl PartialEq for Aor {
    fn eq(&self, other: &Aor) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Aor {}

impl std::fmt::Debug for Aor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Aor({})", self.as_bytes().escape_ascii())
    }
}

/// Makes [`AorKey`]s. The key is that of all workers, and of all runs: temporary GRUUs have the result in them.
#[derive(Clone, Copy, Debug)]
pub struct AorHash(HashKey);

impl AorHash {
    /// With this key.
    #[must_use]
    pub fn new(key: HashKey) -> AorHash {
        AorHash(key.derive(u64::from_le_bytes(*b"location")))
    }

    /// The key of an address.
    #[must_use]
    pub fn of(&self, aor: &Aor) -> AorKey {
        self.of_bytes(aor.as_bytes())
    }

    /// The key of an address in canonical form.
    #[must_use]
    pub(crate) fn of_bytes(&self, aor: &[u8]) -> AorKey {
        AorKey(self.0.mac(aor))
    }
}

/// A keyed hash of an address of record. Without the key, an attacker cannot choose addresses that meet on one worker
/// or in one place of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AorKey(pub u64);

impl AorKey {
    /// Which of this many workers has the bindings of the address.
    #[must_use]
    pub fn worker(self, workers: u16) -> u16 {
        // The upper half of a product with an evenly spread number is evenly spread below the other factor.
        ((u128::from(self.0) * u128::from(workers)) >> 64) as u16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sip::Uri;

    fn aor(uri: &str) -> Option<Aor> {
        match Uri::parse(uri.as_bytes()) {
            Ok(Uri::Sip(uri)) => Aor::of(&uri, b"example.com"),
            _ => panic!("a SIP URI"),
        }
    }

    #[test]
    fn the_canonical_form_has_no_escapes_parameters_ports_or_schemes_rfc3261_10_3() {
        let canonical = aor("sip:alice@example.com").unwrap();
        for same in [
            "sip:%61lice@example.com",
            "sips:alice@example.com",
            "sip:alice@example.com:5070",
            "sip:alice:secret@example.com;user=phone;transport=tcp",
        ] {
            assert_eq!(aor(same), Some(canonical), "{same}");
        }
        for other in [
            "sip:Alice@example.com",
            "sip:bob@example.com",
            "sip:example.com",
        ] {
            assert_ne!(aor(other), Some(canonical), "{other}");
        }
    }

    #[test]
    fn user_and_domain_are_separated_for_every_user() {
        let odd = aor("sip:a%40b@example.com").unwrap();
        assert_eq!(odd.user(), Some(&b"a@b"[..]));
        assert_eq!(odd.domain(), b"example.com");
        assert_eq!(aor("sip:example.com").unwrap().user(), None);
        assert_eq!(Aor::from_canonical(odd.as_bytes()), Some(odd));
    }

    #[test]
    fn an_address_longer_than_the_longest_is_none() {
        let longest = "a".repeat(MAX_AOR - "@example.com".len());
        assert!(aor(&format!("sip:{longest}@example.com")).is_some());
        assert!(aor(&format!("sip:{longest}a@example.com")).is_none());
        let many = "a".repeat(10_000);
        assert!(aor(&format!("sip:{many}@example.com")).is_none());
    }

    #[test]
    fn addresses_spread_evenly_over_any_number_of_workers() {
        let hash = AorHash::new(HashKey::new([7; 16]));
        for workers in [1, 2, 3, 7] {
            let mut counts = vec![0; usize::from(workers)];
            for number in 0..7000 {
                let aor = aor(&format!("sip:{number}@example.com")).unwrap();
                counts[usize::from(hash.of(&aor).worker(workers))] += 1;
            }
            let even = 7000 / i32::from(workers);
            assert!(counts.iter().all(|count| (count - even).abs() < even / 8));
        }
    }
}
