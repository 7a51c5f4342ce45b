//! Keys of access tokens (RFC 7635), and the algorithms that RFC 7518 §5.1 names for them.

use aws_lc_rs::aead::{AES_128_GCM, AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::cipher::{
    AES_128, AES_256, DecryptionContext, EncryptionContext, PaddedBlockDecryptingKey,
    PaddedBlockEncryptingKey, UnboundCipherKey,
};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use stun::AccessToken;
use turn::server::credentials::AccessTokens;

pub use turn::server::credentials::{TokenContent, TokenError};

/// How a token is encrypted and authenticated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenAlgorithm {
    /// AES-256 in Galois/Counter mode, with a key of 32 bytes. RFC 7635 §4.1.1 requires it.
    #[default]
    A256Gcm,
    /// AES-128 in Galois/Counter mode, with a key of 16 bytes.
    A128Gcm,
    /// AES-256 in CBC mode with HMAC-SHA-512, with a key of 64 bytes.
    A256CbcHs512,
    /// AES-128 in CBC mode with HMAC-SHA-256, with a key of 32 bytes.
    A128CbcHs256,
}

impl TokenAlgorithm {
    /// All of them, the default first.
    pub const ALL: [TokenAlgorithm; 4] = [
        TokenAlgorithm::A256Gcm,
        TokenAlgorithm::A128Gcm,
        TokenAlgorithm::A256CbcHs512,
        TokenAlgorithm::A128CbcHs256,
    ];

    /// The name in RFC 7518 §5.1.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            TokenAlgorithm::A256Gcm => "A256GCM",
            TokenAlgorithm::A128Gcm => "A128GCM",
            TokenAlgorithm::A256CbcHs512 => "A256CBC-HS512",
            TokenAlgorithm::A128CbcHs256 => "A128CBC-HS256",
        }
    }

    /// The length of a key in bytes.
    #[must_use]
    pub const fn key_len(self) -> usize {
        match self {
            TokenAlgorithm::A256Gcm | TokenAlgorithm::A128CbcHs256 => 32,
            TokenAlgorithm::A128Gcm => 16,
            TokenAlgorithm::A256CbcHs512 => 64,
        }
    }
}

/// A long-term key that this server shares with an authorization server (RFC 7635 §4.1).
#[derive(Clone, PartialEq, Eq)]
pub struct TokenKey {
    /// The key's name, which clients send in USERNAME.
    pub kid: String,
    /// What the key is for.
    pub algorithm: TokenAlgorithm,
    /// [`TokenAlgorithm::key_len`] bytes.
    pub key: Vec<u8>,
    /// The realm of the holders of its tokens; `None` for the default realm.
    pub realm: Option<String>,
}

/// Keys stay out of logs.
impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenKey")
            .field("kid", &self.kid)
            .field("algorithm", &self.algorithm)
            .field("realm", &self.realm)
            .finish_non_exhaustive()
    }
}

/// Why keys cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TokenKeyError {
    /// RFC 7518 §5.2, §5.3.
    #[error("the key {kid:?} has {got} bytes; {} requires {}", algorithm.name(), algorithm.key_len())]
    Length {
        /// The key's name.
        kid: String,
        /// The key's algorithm.
        algorithm: TokenAlgorithm,
        /// The bytes that the key has.
        got: usize,
    },
    /// The kid of two keys.
    #[error("two keys have the kid {0:?}")]
    Duplicate(String),
}

/// The keys of all authorization servers. All are valid at once, so that a key can be replaced without a gap.
pub struct TokenKeys {
    server_name: String,
    keys: BTreeMap<String, Entry>,
    /// Of all keys.
    realms: BTreeSet<String>,
}

struct Entry {
    cipher: Cipher,
    realm: Option<String>,
}

/// Keys stay out of logs.
impl fmt::Debug for TokenKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TokenKeys")
            .field("server_name", &self.server_name)
            .field("kids", &self.keys.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl TokenKeys {
    /// With these keys. `server_name` is the name by which the authorization servers know this server.
    ///
    /// # Errors
    /// If a key has a wrong length, or two have the same kid.
    pub fn new(
        server_name: &str,
        keys: impl IntoIterator<Item = TokenKey>,
    ) -> Result<TokenKeys, TokenKeyError> {
        let mut by_kid = BTreeMap::new();
        let mut realms = BTreeSet::new();
        for key in keys {
            let got = key.key.len();
            let Some(cipher) = Cipher::new(key.algorithm, &key.key) else {
                let (kid, algorithm) = (key.kid, key.algorithm);
                return Err(TokenKeyError::Length {
                    kid,
                    algorithm,
                    got,
                });
            };
            realms.extend(key.realm.clone());
            let realm = key.realm;
            if by_kid
                .insert(key.kid.clone(), Entry { cipher, realm })
                .is_some()
            {
                return Err(TokenKeyError::Duplicate(key.kid));
            }
        }
        Ok(TokenKeys {
            server_name: server_name.to_owned(),
            keys: by_kid,
            realms,
        })
    }

    /// The value of ACCESS-TOKEN for this content, as an authorization server makes it; `None` if there is no such key.
    #[must_use]
    pub fn seal(&self, kid: &str, content: &TokenContent) -> Option<Vec<u8>> {
        let entry = self.keys.get(kid)?;
        entry
            .cipher
            .seal(self.server_name.as_bytes(), content.to_block())
    }
}

impl AccessTokens for TokenKeys {
    fn server_name(&self) -> &str {
        &self.server_name
    }

    fn open(&self, kid: &str, token: &AccessToken<'_>) -> Result<TokenContent, TokenError> {
        let entry = self.keys.get(kid).ok_or(TokenError::UnknownKey)?;
        let block = entry.cipher.open(self.server_name.as_bytes(), token);
        let content = block.and_then(|block| TokenContent::parse(&block));
        content.ok_or(TokenError::Forged)
    }

    fn realm_of(&self, kid: &str) -> Option<&str> {
        self.keys.get(kid)?.realm.as_deref()
    }

    fn has_realm(&self, realm: &str) -> bool {
        self.realms.contains(realm)
    }
}

/// A key, ready for use.
enum Cipher {
    Gcm(LessSafeKey),
    Cbc(Box<Cbc>),
}

struct Cbc {
    encrypt: PaddedBlockEncryptingKey,
    decrypt: PaddedBlockDecryptingKey,
    authenticate: hmac::Key,
    /// Bytes of the tag.
    tag_len: usize,
}

/// RFC 7635 §6.2: "The Initialization Vector is set to zero".
const ZERO_IV: [u8; 16] = [0; 16];

impl Cipher {
    /// `None` if the key has a wrong length.
    fn new(algorithm: TokenAlgorithm, key: &[u8]) -> Option<Cipher> {
        if key.len() != algorithm.key_len() {
            return None;
        }
        // RFC 7518 §5.2.2.1: first the key of the HMAC, then that of the cipher.
        let (first, second) = key.split_at(key.len() / 2);
        let gcm = |algorithm| UnboundKey::new(algorithm, key).map(LessSafeKey::new);
        match algorithm {
            TokenAlgorithm::A256Gcm => gcm(&AES_256_GCM).ok().map(Cipher::Gcm),
            TokenAlgorithm::A128Gcm => gcm(&AES_128_GCM).ok().map(Cipher::Gcm),
            TokenAlgorithm::A256CbcHs512 => Cipher::cbc(&AES_256, hmac::HMAC_SHA512, first, second),
            TokenAlgorithm::A128CbcHs256 => Cipher::cbc(&AES_128, hmac::HMAC_SHA256, first, second),
        }
    }

    fn cbc(
        algorithm: &'static aws_lc_rs::cipher::Algorithm,
        mac: hmac::Algorithm,
        auth_key: &[u8],
        as_rs_key: &[u8],
    ) -> Option<Cipher> {
        let key = || UnboundCipherKey::new(algorithm, as_rs_key).ok();
        Some(Cipher::Cbc(Box::new(Cbc {
            encrypt: PaddedBlockEncryptingKey::cbc_pkcs7(key()?).ok()?,
            decrypt: PaddedBlockDecryptingKey::cbc_pkcs7(key()?).ok()?,
            authenticate: hmac::Key::new(mac, auth_key),
            // RFC 7518 §5.2.3, §5.2.5: half of the hash.
            tag_len: auth_key.len(),
        })))
    }

    /// The value of ACCESS-TOKEN: nonce length, nonce, ciphertext, tag.
    fn seal(&self, server_name: &[u8], mut block: Vec<u8>) -> Option<Vec<u8>> {
        match self {
            Cipher::Gcm(key) => {
                let mut nonce = [0; NONCE_LEN];
                getrandom::fill(&mut nonce).ok()?;
                let of_key = Nonce::assume_unique_for_key(nonce);
                key.seal_in_place_append_tag(of_key, Aad::from(server_name), &mut block)
                    .ok()?;
                Some([&(NONCE_LEN as u16).to_be_bytes()[..], &nonce, &block].concat())
            }
            Cipher::Cbc(keys) => {
                let iv = EncryptionContext::Iv128((&ZERO_IV).into());
                keys.encrypt.less_safe_encrypt(&mut block, iv).ok()?;
                let tag = tag(&keys.authenticate, server_name, &block);
                Some([&[0, 0], &block[..], tag.as_ref().get(..keys.tag_len)?].concat())
            }
        }
    }

    /// The decrypted block, if the tag is right.
    fn open(&self, server_name: &[u8], token: &AccessToken<'_>) -> Option<Vec<u8>> {
        match self {
            Cipher::Gcm(key) => {
                let nonce = Nonce::try_assume_unique_for_key(token.nonce).ok()?;
                let mut block = token.encrypted_block.to_vec();
                let opened = key.open_in_place(nonce, Aad::from(server_name), &mut block);
                let length = opened.ok()?.len();
                block.truncate(length);
                Some(block)
            }
            Cipher::Cbc(keys) => {
                let length = token.encrypted_block.len().checked_sub(keys.tag_len)?;
                let (encrypted, claimed) = token.encrypted_block.split_at(length);
                let right = tag(&keys.authenticate, server_name, encrypted);
                verify_slices_are_equal(right.as_ref().get(..keys.tag_len)?, claimed).ok()?;
                let mut block = encrypted.to_vec();
                let iv = DecryptionContext::Iv128((&ZERO_IV).into());
                Some(keys.decrypt.decrypt(&mut block, iv).ok()?.to_vec())
            }
        }
    }
}

/// RFC 7635 §6.2: the MAC of the server name, the ciphertext, and the bits of the server name as 64-bit number.
fn tag(key: &hmac::Key, server_name: &[u8], encrypted: &[u8]) -> hmac::Tag {
    let mut context = hmac::Context::with_key(key);
    context.update(server_name);
    context.update(encrypted);
    context.update(&(server_name.len() as u64 * 8).to_be_bytes());
    context.sign()
}

#[cfg(test)]
mod tests {
    use super::*;
    use stun::{Decode, TransactionId};

    const NAME: &str = "blackdow.carleon.gov";

    fn key(kid: &str, algorithm: TokenAlgorithm) -> TokenKey {
        TokenKey {
            kid: kid.into(),
            algorithm,
            key: (0..algorithm.key_len() as u8).collect(),
            realm: None,
        }
    }

    fn keys(server_name: &str) -> TokenKeys {
        let all = TokenAlgorithm::ALL.map(|algorithm| key(algorithm.name(), algorithm));
        TokenKeys::new(server_name, all).expect("good keys")
    }

    fn content() -> TokenContent {
        TokenContent {
            mac_key: vec![3; 20],
            made_unix_s: 1_700_000_000,
            lifetime_s: 3600,
        }
    }

    fn open(keys: &TokenKeys, kid: &str, value: &[u8]) -> Result<TokenContent, TokenError> {
        let token = AccessToken::decode(value, &TransactionId([0; 12])).expect("well formed");
        keys.open(kid, &token)
    }

    #[test]
    fn a_token_opens_with_its_key_for_its_server_only() {
        let (ours, other) = (keys(NAME), keys("other.example.org"));
        for algorithm in TokenAlgorithm::ALL {
            let kid = algorithm.name();
            let value = ours.seal(kid, &content()).expect("sealed");
            assert_eq!(open(&ours, kid, &value), Ok(content()), "{kid}");
            assert_eq!(open(&other, kid, &value), Err(TokenError::Forged));
            assert_eq!(open(&ours, "unknown", &value), Err(TokenError::UnknownKey));
            for wrong in TokenAlgorithm::ALL {
                let opened = open(&ours, wrong.name(), &value);
                assert_eq!(opened.is_ok(), wrong == algorithm);
            }
            let head = 2 + usize::from(value[1]);
            for at in head..value.len() {
                let mut spoilt = value.clone();
                spoilt[at] ^= 1;
                assert_eq!(open(&ours, kid, &spoilt), Err(TokenError::Forged), "{at}");
            }
            for length in head..value.len() {
                let cut = open(&ours, kid, &value[..length]);
                assert_eq!(cut, Err(TokenError::Forged), "{length}");
            }
        }
    }

    /// The tag of RFC 7518's composite algorithms, with the server name as the associated data and without an IV.
    #[test]
    fn the_tag_of_cbc_is_that_of_rfc_7635() {
        let keys = keys(NAME);
        let value = keys.seal("A256CBC-HS512", &content()).expect("sealed");
        assert_eq!(value[..2], [0, 0], "no nonce");
        // 34 bytes are padded to 48; the tag has 32.
        assert_eq!(value.len(), 2 + 48 + 32);
        let again = keys.seal("A256CBC-HS512", &content()).expect("sealed");
        assert_eq!(value, again, "the IV is zero");
        let mac_key: Vec<u8> = (0..32).collect();
        let text = [NAME.as_bytes(), &value[2..50], &160_u64.to_be_bytes()].concat();
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA512, &mac_key), &text);
        assert_eq!(value[50..], tag.as_ref()[..32]);
    }

    #[test]
    fn keys_of_a_wrong_length_and_two_of_a_kid_are_refused() {
        let mut short = key("a", TokenAlgorithm::A256Gcm);
        short.key.pop();
        let error = TokenKeys::new(NAME, [short]).unwrap_err().to_string();
        assert_eq!(error, "the key \"a\" has 31 bytes; A256GCM requires 32");
        let twice = [TokenAlgorithm::A128Gcm; 2].map(|algorithm| key("a", algorithm));
        let error = TokenKeys::new(NAME, twice).unwrap_err();
        assert_eq!(error, TokenKeyError::Duplicate("a".into()));
        let shown = format!("{:?} {:?}", keys(NAME), key("a", TokenAlgorithm::A128Gcm));
        assert!(
            !shown.contains("0, 1") && shown.contains("A128Gcm"),
            "{shown}"
        );
    }
}
