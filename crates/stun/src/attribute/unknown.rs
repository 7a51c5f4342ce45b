//! The list of unknown types in a 420 (RFC 8489 §14.13).

use super::{AttributeError, AttributeType, Decode, Encode};
use crate::{BuildError, TransactionId};

/// The comprehension-required types that a server does not support (RFC 8489 §14.13).
///
/// Holds at most [`UnknownAttributes::MAX`] types in place; further ones are left out. Collect it from
/// [`Message::unknown_required`](crate::Message::unknown_required).
#[derive(Clone, Copy)]
pub struct UnknownAttributes {
    types: [AttributeType; Self::MAX],
    len: usize,
}

impl UnknownAttributes {
    /// How many types fit. A sender that does not know the attributes of a server uses a few unknown ones. A message
    /// with 16 thousand is an attack. The limit keeps the response short and the work linear.
    pub const MAX: usize = 64;

    /// An empty list.
    #[must_use]
    pub const fn new() -> UnknownAttributes {
        UnknownAttributes {
            types: [AttributeType(0); Self::MAX],
            len: 0,
        }
    }

    /// Adds a type unless it is there already or the list is full; says whether it was added.
    pub fn insert(&mut self, attribute_type: AttributeType) -> bool {
        if self.as_slice().contains(&attribute_type) {
            return false;
        }
        self.push(attribute_type)
    }

    /// The types, in the order of their first appearance.
    #[must_use]
    pub fn as_slice(&self) -> &[AttributeType] {
        self.types.get(..self.len).unwrap_or_default()
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether no further type fits.
    #[must_use]
    pub const fn is_full(&self) -> bool {
        self.len == Self::MAX
    }

    fn push(&mut self, attribute_type: AttributeType) -> bool {
        let Some(slot) = self.types.get_mut(self.len) else {
            return false;
        };
        *slot = attribute_type;
        self.len += 1;
        true
    }
}

impl Default for UnknownAttributes {
    fn default() -> Self {
        Self::new()
    }
}

impl PartialEq for UnknownAttributes {
    fn eq(&self, other: &Self) -> bool {
        self.as_slice() == other.as_slice()
    }
}

impl Eq for UnknownAttributes {}

impl core::fmt::Debug for UnknownAttributes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

impl FromIterator<AttributeType> for UnknownAttributes {
    fn from_iter<I: IntoIterator<Item = AttributeType>>(types: I) -> Self {
        let mut list = UnknownAttributes::new();
        for attribute_type in types {
            if list.is_full() {
                break;
            }
            list.insert(attribute_type);
        }
        list
    }
}

impl Decode<'_> for UnknownAttributes {
    const TYPE: AttributeType = AttributeType::UNKNOWN_ATTRIBUTES;

    fn decode(value: &[u8], _: &TransactionId) -> Result<Self, AttributeError> {
        let (pairs, []) = value.as_chunks() else {
            return Err(AttributeError::Length);
        };
        Ok(pairs
            .iter()
            .map(|pair| AttributeType(u16::from_be_bytes(*pair)))
            .collect())
    }
}

impl Encode for UnknownAttributes {
    fn attribute_type(&self) -> AttributeType {
        AttributeType::UNKNOWN_ATTRIBUTES
    }

    fn value_len(&self) -> usize {
        2 * self.len
    }

    fn encode(&self, value: &mut [u8], _: &TransactionId) -> Result<(), BuildError> {
        let (pairs, _) = value.as_chunks_mut();
        if pairs.len() < self.len {
            return Err(BuildError::BufferFull);
        }
        for (pair, attribute_type) in pairs.iter_mut().zip(self.as_slice()) {
            *pair = attribute_type.0.to_be_bytes();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_type_once_and_not_more_than_fit() {
        let list: UnknownAttributes = [1, 2, 1, 3, 2].map(AttributeType).into_iter().collect();
        assert_eq!(list.as_slice(), [1, 2, 3].map(AttributeType));
        let list: UnknownAttributes = (0..1000).map(AttributeType).collect();
        assert_eq!(list.as_slice().len(), UnknownAttributes::MAX);
    }

    #[test]
    fn half_a_type_is_refused() {
        let id = TransactionId([0; 12]);
        assert_eq!(
            UnknownAttributes::decode(&[0, 1, 0], &id),
            Err(AttributeError::Length)
        );
    }
}
