//! Ephemeral keys (RFC 8422).

use aws_lc_rs::agreement::{self, EphemeralPrivateKey, UnparsedPublicKey};
use aws_lc_rs::rand::SystemRandom;
use zeroize::Zeroizing;

use super::Refused;

/// A group of elliptic curve keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(crate) enum Group {
    P256 = 23,
    P384 = 24,
    X25519 = 29,
}

impl Group {
    /// The preferred first.
    pub(crate) const ALL: [Group; 3] = [Group::X25519, Group::P256, Group::P384];

    pub(crate) fn by_id(id: u16) -> Option<Group> {
        Group::ALL.into_iter().find(|group| group.id() == id)
    }

    pub(crate) const fn id(self) -> u16 {
        self as u16
    }

    fn algorithm(self) -> &'static agreement::Algorithm {
        match self {
            Group::P256 => &agreement::ECDH_P256,
            Group::P384 => &agreement::ECDH_P384,
            Group::X25519 => &agreement::X25519,
        }
    }

    /// A new key pair.
    pub(crate) fn generate(self) -> Result<KeyPair, Refused> {
        let private = EphemeralPrivateKey::generate(self.algorithm(), &SystemRandom::new())?;
        let public = private.compute_public_key()?;
        Ok(KeyPair { private, public })
    }
}

/// An ephemeral key pair; its agreement uses it up.
#[derive(Debug)]
pub(crate) struct KeyPair {
    private: EphemeralPrivateKey,
    public: agreement::PublicKey,
}

impl KeyPair {
    pub(crate) fn public(&self) -> &[u8] {
        self.public.as_ref()
    }

    /// The pre-master secret with the peer's public key; fails if that is not a point of the group.
    pub(crate) fn agree(self, peer: &[u8]) -> Result<Zeroizing<Vec<u8>>, Refused> {
        let peer = UnparsedPublicKey::new(self.private.algorithm(), peer);
        agreement::agree_ephemeral(self.private, peer, Refused, |secret| {
            Ok(Zeroizing::new(secret.to_vec()))
        })
    }
}
