//! Hexadecimal digits, in lower case.

const DIGITS: &[u8; 16] = b"0123456789abcdef";

/// Writes two digits for each byte, as many as there is room for.
#[inline]
pub(crate) fn write(bytes: &[u8], digits: &mut [u8]) {
    for (pair, byte) in digits.chunks_exact_mut(2).zip(bytes) {
        for (digit, nibble) in pair.iter_mut().zip([byte >> 4, byte & 0xF]) {
            *digit = DIGITS[usize::from(nibble)];
        }
    }
}

/// The bytes that `digits` stand for, as many as fit exactly; `None` for anything else, upper case too.
#[inline]
pub(crate) fn read<const N: usize>(digits: &[u8]) -> Option<[u8; N]> {
    let value = |digit: u8| match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    };
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let [high, low] = pair else { return None };
        *byte = value(*high)? << 4 | value(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_survives_and_nothing_else_is_read() {
        for byte in 0..=u8::MAX {
            let mut digits = [0; 2];
            write(&[byte], &mut digits);
            assert_eq!(read(&digits), Some([byte]));
        }
        for wrong in ["", "0", "000", "0g", "AB", "+1"] {
            assert_eq!(read::<1>(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
