//! Validates UTF-8 that arrives in pieces (RFC 6455 §8.1).

/// The state of the validation between two pieces.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Utf8 {
    /// The first bytes of an incomplete character.
    begun: [u8; 4],
    length: usize,
}

impl Utf8 {
    /// Adds bytes. Returns whether the text is valid so far.
    pub(super) fn accepts(&mut self, mut bytes: &[u8]) -> bool {
        while self.length > 0 {
            let Some((&byte, rest)) = bytes.split_first() else {
                return true;
            };
            // A character has at most four bytes, and an incomplete one at most three: there is room for one more.
            self.begun[self.length] = byte;
            self.length += 1;
            bytes = rest;
            match std::str::from_utf8(&self.begun[..self.length]) {
                Ok(_) => self.length = 0,
                Err(error) if error.error_len().is_none() => {}
                Err(_) => return false,
            }
        }
        match std::str::from_utf8(bytes) {
            Ok(_) => true,
            Err(error) if error.error_len().is_none() => {
                // At most three bytes are left, because a character has at most four.
                let begun = &bytes[error.valid_up_to()..];
                self.begun[..begun.len()].copy_from_slice(begun);
                self.length = begun.len();
                true
            }
            Err(_) => false,
        }
    }

    /// Whether the text may end here: no character is incomplete.
    pub(super) const fn is_whole(&self) -> bool {
        self.length == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Pieces of any length are found valid, and invalid at the same byte, as the whole.
        #[test]
        fn pieces_are_judged_as_the_whole(
            bytes in prop_oneof![
                prop::collection::vec(any::<u8>(), 0..12),
                prop::collection::vec(prop::sample::select(vec![0x41, 0xc3, 0xa9, 0xe2, 0x82, 0xac, 0xed, 0xa0, 0xf0, 0x9f, 0x98, 0x80, 0xf4, 0x90]), 0..12),
                any::<String>().prop_map(String::into_bytes),
            ],
            piece in 1..5_usize
        ) {
            let mut whole = Utf8::default();
            let accepted = whole.accepts(&bytes);
            let mut pieces = Utf8::default();
            let all = bytes.chunks(piece).all(|piece| pieces.accepts(piece));
            prop_assert_eq!(accepted, all);
            prop_assert_eq!(accepted && whole.is_whole(), std::str::from_utf8(&bytes).is_ok());
            prop_assert_eq!(accepted && whole.is_whole(), all && pieces.is_whole());
        }
    }
}
