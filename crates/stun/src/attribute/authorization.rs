//! The attributes of third-party authorization (RFC 7635 §6).
//!
//! ```text
//! ACCESS-TOKEN:
//! +-----------------+----------------+--------------------------+
//! | nonce length, 2 | nonce          | encrypted block         ..
//! +-----------------+----------------+--------------------------+
//! ```

use super::text::{READ_MAX, is_writable, read_text};
use super::{AttributeError, AttributeType, Decode, Encode, put_slice, slice_attribute};
use crate::{BuildError, TransactionId};

/// A token from an authorization server, still sealed (RFC 7635 §6.2).
///
/// The sealed block has the session key, a time stamp and a lifetime. To open it, this server uses the key that
/// it shares with the authorization server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AccessToken<'a> {
    /// The nonce of the AEAD.
    pub nonce: &'a [u8],
    /// The AEAD's output: ciphertext and tag.
    pub encrypted_block: &'a [u8],
}

impl<'a> Decode<'a> for AccessToken<'a> {
    const TYPE: AttributeType = AttributeType::ACCESS_TOKEN;

    fn decode(value: &'a [u8], _: &TransactionId) -> Result<Self, AttributeError> {
        let (length, rest) = value.split_first_chunk().ok_or(AttributeError::Length)?;
        let length = usize::from(u16::from_be_bytes(*length));
        let (nonce, encrypted_block) = rest
            .split_at_checked(length)
            .ok_or(AttributeError::Length)?;
        Ok(AccessToken {
            nonce,
            encrypted_block,
        })
    }
}

impl Encode for AccessToken<'_> {
    fn attribute_type(&self) -> AttributeType {
        AttributeType::ACCESS_TOKEN
    }

    fn value_len(&self) -> usize {
        2 + self.nonce.len() + self.encrypted_block.len()
    }

    fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
        let length = u16::try_from(self.nonce.len())
            .map_err(|_| BuildError::Attribute(AttributeError::Length))?;
        let (head, rest) = value
            .split_first_chunk_mut()
            .ok_or(BuildError::BufferFull)?;
        *head = length.to_be_bytes();
        let (nonce, block) = rest
            .split_at_mut_checked(self.nonce.len())
            .ok_or(BuildError::BufferFull)?;
        nonce.copy_from_slice(self.nonce);
        put_slice(block, self.encrypted_block)
    }
}

/// The server accepts access tokens. The value is its name at the authorization server (RFC 7635 §6.1).
///
/// At most 127 characters are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ThirdPartyAuthorization<'a>(
    /// The server's name.
    pub &'a str,
);
slice_attribute!(
    ThirdPartyAuthorization, THIRD_PARTY_AUTHORIZATION,
    read: |value| read_text(value, READ_MAX),
    allowed: is_writable
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_longer_than_the_value_is_refused() {
        let id = TransactionId([0; 12]);
        assert_eq!(AccessToken::decode(&[0], &id), Err(AttributeError::Length));
        assert_eq!(
            AccessToken::decode(&[0, 2, 1], &id),
            Err(AttributeError::Length)
        );
        let token = AccessToken {
            nonce: &[1],
            encrypted_block: &[],
        };
        assert_eq!(AccessToken::decode(&[0, 1, 1], &id), Ok(token));
    }
}
