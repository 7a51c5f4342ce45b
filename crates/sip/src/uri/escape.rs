//! Escapes: `%` and two hexadecimal digits (RFC 3261 §19.1.2).

use crate::chars::{self, USER};

/// Writes `user` into `buffer`, with escapes for characters that a user part does not allow; `None` if `buffer` is too
/// short.
///
/// Three times the length of `user` is always enough.
#[must_use]
pub fn escape_user<'b>(user: &[u8], buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut length = 0;
    for &byte in user {
        if chars::is(byte, USER) {
            *buffer.get_mut(length)? = byte;
            length += 1;
            continue;
        }
        let escape = buffer.get_mut(length..length + 3)?;
        let digit = |nibble: u8| HEX[usize::from(nibble & 0xF)];
        escape.copy_from_slice(&[b'%', digit(byte >> 4), digit(byte)]);
        length += 3;
    }
    buffer.get(..length)
}

/// Writes what `text` means into `buffer`; `None` if `buffer` is too short or an escape is not whole.
///
/// The length of `text` is always enough. Any byte may come out, 0 too.
#[must_use]
pub fn unescape<'b>(text: &[u8], buffer: &'b mut [u8]) -> Option<&'b [u8]> {
    let mut length = 0;
    let mut rest = text;
    while let Some((byte, after)) = take_byte(rest) {
        *buffer.get_mut(length)? = byte?;
        length += 1;
        rest = after;
    }
    buffer.get(..length)
}

/// The first byte of `text`, unescaped (inner `None` if its escape is not whole), and what follows.
#[inline]
fn take_byte(text: &[u8]) -> Option<(Option<u8>, &[u8])> {
    match text {
        [] => None,
        [b'%', high, low, rest @ ..] => {
            let digit = |digit: u8| char::from(digit).to_digit(16).map(|digit| digit as u8);
            let byte = digit(*high)
                .zip(digit(*low))
                .map(|(high, low)| high << 4 | low);
            Some((byte, rest))
        }
        [b'%', ..] => Some((None, &[])),
        [byte, rest @ ..] => Some((Some(*byte), rest)),
    }
}

/// A byte as it counts in comparisons: an escape stands for its byte, unless that is reserved (RFC 3261 §19.1.4). The
/// second is true for an escape that stays one.
#[inline]
pub(super) fn units(text: &[u8]) -> impl Iterator<Item = (u8, bool)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (byte, after) = take_byte(rest)?;
        let was_escape = rest.len() - after.len() > 1;
        rest = after;
        // What is not whole was refused when the URI was read.
        let byte = byte.unwrap_or(b'%');
        Some((byte, was_escape && chars::is(byte, chars::RESERVED)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_survive_both_ways() {
        let all: Vec<u8> = (0..=u8::MAX).collect();
        let (mut escaped, mut back) = ([0; 768], [0; 768]);
        let escaped = escape_user(&all, &mut escaped).expect("room");
        assert!(escaped.starts_with(b"%00%01"));
        assert_eq!(unescape(escaped, &mut back), Some(&all[..]));
        assert_eq!(escape_user(b"@", &mut [0; 2]), None);
        assert_eq!(unescape(b"a%4", &mut [0; 8]), None);
        assert_eq!(unescape(b"a%4g", &mut [0; 8]), None);
    }
}
