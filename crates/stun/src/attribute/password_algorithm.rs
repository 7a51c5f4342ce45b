//! How a long-term password becomes a key: the server's offer and the client's choice (RFC 8489 §14.11, §14.12).
//!
//! ```text
//! +-----------------+-------------------+---------------------------------+
//! | algorithm, 2    | parameter length  | parameters, padded to 4        ..   PASSWORD-ALGORITHMS: repeated
//! +-----------------+-------------------+---------------------------------+
//! ```

use super::{AttributeError, AttributeType, fixed_attribute, slice_attribute};
use crate::{BuildError, TransactionId};

/// The hash that makes the key of a long-term credential (RFC 8489 §18.5.1); also the PASSWORD-ALGORITHM attribute.
///
/// It says nothing about the HMAC, which the integrity attribute decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PasswordAlgorithm {
    /// 16-byte keys; what RFC 5389 and a request without PASSWORD-ALGORITHM mean.
    Md5,
    /// 32-byte keys.
    Sha256,
}

impl PasswordAlgorithm {
    /// The number in the IANA registry.
    #[must_use]
    pub const fn number(self) -> u16 {
        match self {
            PasswordAlgorithm::Md5 => 1,
            PasswordAlgorithm::Sha256 => 2,
        }
    }

    /// The algorithm with this number.
    #[must_use]
    pub const fn from_number(number: u16) -> Option<PasswordAlgorithm> {
        match number {
            1 => Some(PasswordAlgorithm::Md5),
            2 => Some(PasswordAlgorithm::Sha256),
            _ => None,
        }
    }
}

fixed_attribute!(
    PasswordAlgorithm, PASSWORD_ALGORITHM,
    read: |[high, low, p0, p1]| {
        // RFC 8489 §18.5.1: the parameters of both algorithms are empty.
        match PasswordAlgorithm::from_number(u16::from_be_bytes([high, low])) {
            Some(algorithm) if [p0, p1] == [0, 0] => Ok(algorithm),
            _ => Err(AttributeError::Value),
        }
    },
    write: |this: &PasswordAlgorithm| {
        let [high, low] = this.number().to_be_bytes();
        [high, low, 0, 0]
    }
);

/// The algorithms a server offers, in its order of preference (RFC 8489 §14.11).
///
/// A client repeats the value byte by byte and the server compares it, so the bytes are kept as they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PasswordAlgorithms<'a>(&'a [u8]);

/// One entry of the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PasswordAlgorithmEntry<'a> {
    /// The number in the IANA registry, possibly unknown here.
    pub number: u16,
    /// The algorithm's parameters, without padding.
    pub parameters: &'a [u8],
}

impl PasswordAlgorithms<'static> {
    /// SHA-256, then MD5: for a server that accepts old and new clients.
    pub const SHA256_MD5: PasswordAlgorithms<'static> =
        PasswordAlgorithms(&[0, 2, 0, 0, 0, 1, 0, 0]);
    /// MD5, then SHA-256.
    pub const MD5_SHA256: PasswordAlgorithms<'static> =
        PasswordAlgorithms(&[0, 1, 0, 0, 0, 2, 0, 0]);
    /// SHA-256 only.
    pub const SHA256: PasswordAlgorithms<'static> = PasswordAlgorithms(&[0, 2, 0, 0]);
    /// MD5 only.
    pub const MD5: PasswordAlgorithms<'static> = PasswordAlgorithms(&[0, 1, 0, 0]);
}

impl<'a> PasswordAlgorithms<'a> {
    /// A list from the bytes of the attribute's value.
    ///
    /// # Errors
    /// [`AttributeError::Length`] if the bytes are not whole entries.
    pub fn from_bytes(value: &'a [u8]) -> Result<Self, AttributeError> {
        let mut entries = PasswordAlgorithmEntries { rest: value };
        while !entries.rest.is_empty() {
            entries.next().ok_or(AttributeError::Length)?;
        }
        Ok(PasswordAlgorithms(value))
    }

    /// The value, for comparing it and for sending it back.
    #[must_use]
    pub const fn as_bytes(&self) -> &'a [u8] {
        self.0
    }

    /// The entries, the one that the server prefers first.
    #[must_use]
    pub const fn entries(&self) -> PasswordAlgorithmEntries<'a> {
        PasswordAlgorithmEntries { rest: self.0 }
    }

    /// The first entry this crate can compute (RFC 8489 §9.2.5).
    #[must_use]
    pub fn first_supported(&self) -> Option<PasswordAlgorithm> {
        self.entries()
            .find_map(|entry| PasswordAlgorithmEntry::supported(&entry))
    }

    /// Whether the algorithm is on the list.
    #[must_use]
    pub fn contains(&self, algorithm: PasswordAlgorithm) -> bool {
        self.entries()
            .any(|entry| entry.supported() == Some(algorithm))
    }
}

impl PasswordAlgorithmEntry<'_> {
    /// The algorithm, if this crate can compute it with these parameters.
    #[must_use]
    pub fn supported(&self) -> Option<PasswordAlgorithm> {
        if self.parameters.is_empty() {
            PasswordAlgorithm::from_number(self.number)
        } else {
            None
        }
    }
}

/// Iterates over the entries of [`PasswordAlgorithms`].
#[derive(Debug, Clone)]
pub struct PasswordAlgorithmEntries<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for PasswordAlgorithmEntries<'a> {
    type Item = PasswordAlgorithmEntry<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let (&[n0, n1, l0, l1], tail) = self.rest.split_first_chunk()?;
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        let parameters = tail.get(..length)?;
        self.rest = tail.get(length.next_multiple_of(4)..)?;
        Some(PasswordAlgorithmEntry {
            number: u16::from_be_bytes([n0, n1]),
            parameters,
        })
    }
}

slice_attribute!(
    PasswordAlgorithms, PASSWORD_ALGORITHMS,
    read: |value| PasswordAlgorithms::from_bytes(value).map(|list| list.0),
    allowed: |_| true
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Decode;

    #[test]
    fn the_first_known_algorithm_without_parameters_is_chosen() {
        let offer = [
            0, 9, 0, 1, 7, 0, 0, 0, 0, 2, 0, 2, 1, 1, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0,
        ];
        let offer = PasswordAlgorithms::from_bytes(&offer).expect("four entries");
        let numbers: Vec<u16> = offer.entries().map(|entry| entry.number).collect();
        assert_eq!(numbers, [9, 2, 1, 2]);
        assert_eq!(offer.first_supported(), Some(PasswordAlgorithm::Md5));
        assert!(offer.contains(PasswordAlgorithm::Sha256));
    }

    #[test]
    fn a_list_that_ends_within_an_entry_is_refused() {
        for value in [
            &[0, 1, 0][..],
            &[0, 1, 0, 1],
            &[0, 1, 0, 1, 7],
            &[0, 1, 0, 0, 0],
        ] {
            assert_eq!(
                PasswordAlgorithms::from_bytes(value),
                Err(AttributeError::Length),
                "{value:?}"
            );
        }
        assert!(PasswordAlgorithms::from_bytes(&[]).is_ok());
    }

    #[test]
    fn a_choice_with_parameters_or_an_unknown_number_is_refused() {
        let id = TransactionId([0; 12]);
        assert_eq!(
            PasswordAlgorithm::decode(&[0, 2, 0, 0], &id),
            Ok(PasswordAlgorithm::Sha256)
        );
        assert_eq!(
            PasswordAlgorithm::decode(&[0, 3, 0, 0], &id),
            Err(AttributeError::Value)
        );
        assert_eq!(
            PasswordAlgorithm::decode(&[0, 2, 0, 1], &id),
            Err(AttributeError::Value)
        );
        assert_eq!(
            PasswordAlgorithm::decode(&[0, 2], &id),
            Err(AttributeError::Length)
        );
    }
}
