//! The cipher suites: ECDHE with an AEAD, nothing older.

use aws_lc_rs::{aead, digest, tls_prf};
use rustls::{SignatureAlgorithm, SignatureScheme};

/// The kind of certificate that a cipher suite requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Authentication {
    /// ECDSA, and Ed25519 (RFC 8422 §2).
    Ecdsa,
    Rsa,
}

impl Authentication {
    /// What a key of this algorithm authenticates.
    pub(crate) fn of_key(algorithm: SignatureAlgorithm) -> Option<Authentication> {
        match algorithm {
            SignatureAlgorithm::ECDSA | SignatureAlgorithm::ED25519 => Some(Authentication::Ecdsa),
            SignatureAlgorithm::RSA => Some(Authentication::Rsa),
            _ => None,
        }
    }

    /// What a signature of this scheme authenticates.
    pub(crate) fn of_scheme(scheme: SignatureScheme) -> Option<Authentication> {
        match scheme {
            SignatureScheme::ECDSA_NISTP256_SHA256
            | SignatureScheme::ECDSA_NISTP384_SHA384
            | SignatureScheme::ECDSA_NISTP521_SHA512
            | SignatureScheme::ED25519 => Some(Authentication::Ecdsa),
            SignatureScheme::RSA_PSS_SHA256
            | SignatureScheme::RSA_PSS_SHA384
            | SignatureScheme::RSA_PSS_SHA512
            | SignatureScheme::RSA_PKCS1_SHA256
            | SignatureScheme::RSA_PKCS1_SHA384
            | SignatureScheme::RSA_PKCS1_SHA512 => Some(Authentication::Rsa),
            _ => None,
        }
    }
}

/// A cipher suite of TLS 1.2.
#[derive(Debug)]
pub(crate) struct Suite {
    pub(crate) id: u16,
    /// The name in the IANA registry.
    pub(crate) name: &'static str,
    pub(crate) authentication: Authentication,
    pub(crate) aead: &'static aead::Algorithm,
    pub(crate) hash: &'static digest::Algorithm,
    pub(crate) prf: &'static tls_prf::Algorithm,
    /// RFC 5288 §3: 4 bytes of the nonce are fixed and 8 are in the record. RFC 7905 §2: all 12 are fixed, and the
    /// record number is mixed in.
    pub(crate) explicit_nonce: bool,
}

macro_rules! suites {
    ($($id:literal $name:ident $auth:ident $aead:ident $hash:ident $prf:ident $explicit:literal),+ $(,)?) => {
        /// All cipher suites, the preferred one first. AES-128 comes first because what TURN carries is mostly
        /// encrypted already.
        pub(crate) static SUITES: &[Suite] = &[$(Suite {
            id: $id,
            name: stringify!($name),
            authentication: Authentication::$auth,
            aead: &aead::$aead,
            hash: &digest::$hash,
            prf: &tls_prf::$prf,
            explicit_nonce: $explicit,
        }),+];
    };
}

suites! {
    0xc02b TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256 Ecdsa AES_128_GCM SHA256 P_SHA256 true,
    0xc02f TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 Rsa AES_128_GCM SHA256 P_SHA256 true,
    0xc02c TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384 Ecdsa AES_256_GCM SHA384 P_SHA384 true,
    0xc030 TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384 Rsa AES_256_GCM SHA384 P_SHA384 true,
    0xcca9 TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256 Ecdsa CHACHA20_POLY1305 SHA256 P_SHA256 false,
    0xcca8 TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256 Rsa CHACHA20_POLY1305 SHA256 P_SHA256 false,
}

impl Suite {
    pub(crate) fn by_id(id: u16) -> Option<&'static Suite> {
        SUITES.iter().find(|suite| suite.id == id)
    }

    /// The suite for a client's list and our certificate. A client whose first shared suite has ChaCha20 has no AES
    /// instructions, so the server selects this suite.
    pub(crate) fn choose(
        offered: impl Iterator<Item = u16> + Clone,
        authentication: Authentication,
    ) -> Option<&'static Suite> {
        let fits = |suite: &&Suite| suite.authentication == authentication;
        let first = offered
            .clone()
            .filter_map(Suite::by_id)
            .find(|suite| fits(suite))?;
        if first.aead == &aead::CHACHA20_POLY1305 {
            return Some(first);
        }
        SUITES
            .iter()
            .filter(fits)
            .find(|suite| offered.clone().any(|id| id == suite.id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aes_128_is_preferred_unless_the_client_prefers_chacha20() {
        let choose = |offered: &[u16]| {
            Suite::choose(offered.iter().copied(), Authentication::Ecdsa).map(|suite| suite.id)
        };
        assert_eq!(choose(&[0xc030, 0xc02c, 0xcca9, 0xc02b]), Some(0xc02b));
        assert_eq!(choose(&[0xcca8, 0xcca9, 0xc02b]), Some(0xcca9));
        assert_eq!(choose(&[0xc02f, 0xc02c]), Some(0xc02c));
        assert_eq!(choose(&[0xc02f, 0x009c, 0x00ff]), None);
    }
}
