//! ChannelData: four bytes in front of a payload (RFC 8656 §12.4).
//!
//! ```text
//! +--------------------+--------------------+
//! | channel, 0x4xxx    | length of payload  |
//! +--------------------+--------------------+
//! | payload                                ..   padded to 4 bytes on streams only; the length does not count it
//! +-----------------------------------------+
//! ```

use crate::ChannelNumber;

/// Bytes in front of the payload.
pub const HEADER_LEN: usize = 4;

/// One message, over the bytes of the datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ChannelData<'a> {
    /// The channel.
    pub number: ChannelNumber,
    /// The application data; may be empty.
    pub payload: &'a [u8],
}

/// Why a datagram is not ChannelData. It is then to be discarded (RFC 8656 §12.6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelDataError {
    /// Fewer than four bytes.
    #[error("datagram is shorter than the 4 bytes of a ChannelData header")]
    TooShort,
    /// The number is not a channel number.
    #[error("the channel number is reserved")]
    ChannelNumber,
    /// The length field exceeds the rest of the datagram.
    #[error("length field exceeds the datagram")]
    Length,
}

impl<'a> ChannelData<'a> {
    /// Reads a whole datagram.
    ///
    /// # Errors
    /// [`ChannelDataError`].
    #[inline]
    pub fn parse_datagram(datagram: &'a [u8]) -> Result<ChannelData<'a>, ChannelDataError> {
        Self::parse(datagram, ChannelNumber::new)
    }

    /// Reads a whole datagram whose channel may have a number of RFC 5766: see [`ChannelNumber::of_rfc5766`].
    ///
    /// # Errors
    /// [`ChannelDataError`].
    #[inline]
    pub fn parse_datagram_rfc5766(datagram: &'a [u8]) -> Result<ChannelData<'a>, ChannelDataError> {
        Self::parse(datagram, ChannelNumber::of_rfc5766)
    }

    #[inline]
    fn parse(
        datagram: &'a [u8],
        number: impl Fn(u16) -> Option<ChannelNumber>,
    ) -> Result<ChannelData<'a>, ChannelDataError> {
        let (&[n0, n1, l0, l1], rest) = datagram
            .split_first_chunk()
            .ok_or(ChannelDataError::TooShort)?;
        let number = number(u16::from_be_bytes([n0, n1])).ok_or(ChannelDataError::ChannelNumber)?;
        let length = usize::from(u16::from_be_bytes([l0, l1]));
        // RFC 8656 §12.6: only a datagram that is too short is discarded; §12.5: over UDP padding may be there.
        let payload = rest.get(..length).ok_or(ChannelDataError::Length)?;
        Ok(ChannelData { number, payload })
    }

    /// Reads a frame of a stream, padding included or not: see [`stream`](crate::stream).
    ///
    /// # Errors
    /// [`ChannelDataError`].
    #[inline]
    pub fn parse_frame(frame: &'a [u8]) -> Result<ChannelData<'a>, ChannelDataError> {
        Self::parse_datagram(frame)
    }
}

/// The header for a payload of this length, in bytes without padding.
#[inline]
#[must_use]
pub const fn header(number: ChannelNumber, payload_len: u16) -> [u8; HEADER_LEN] {
    let [n0, n1] = number.get().to_be_bytes();
    let [l0, l1] = payload_len.to_be_bytes();
    [n0, n1, l0, l1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padding_is_tolerated_and_shortness_is_not() {
        let datagram = [0x40, 1, 0, 5, 1, 2, 3, 4, 5, 0, 0, 0];
        for end in 9..=12 {
            let data = ChannelData::parse_datagram(&datagram[..end]).expect("long enough");
            assert_eq!((data.number.get(), data.payload), (0x4001, &datagram[4..9]));
        }
        for end in 4..9 {
            assert_eq!(
                ChannelData::parse_datagram(&datagram[..end]),
                Err(ChannelDataError::Length)
            );
        }
        for end in 0..4 {
            assert_eq!(
                ChannelData::parse_datagram(&datagram[..end]),
                Err(ChannelDataError::TooShort)
            );
        }
    }

    #[test]
    fn an_empty_payload_is_valid_and_a_reserved_number_is_not() {
        // RFC 8656 §12.4: 0 is a valid length.
        let data = ChannelData::parse_datagram(&[0x4F, 0xFF, 0, 0]).expect("empty");
        assert_eq!((data.number, data.payload), (ChannelNumber::MAX, &[][..]));
        for number in [0x3F, 0x50, 0x80, 0xFF] {
            let datagram = [number, 0, 0, 0];
            let refused = Err(ChannelDataError::ChannelNumber);
            assert_eq!(ChannelData::parse_datagram(&datagram), refused);
            let older = ChannelData::parse_datagram_rfc5766(&datagram);
            assert_eq!(older.is_ok(), number == 0x50, "{number:#x}");
        }
    }

    #[test]
    fn a_header_is_what_parse_reads() {
        let bytes = header(ChannelNumber::MIN, 0);
        assert_eq!(
            ChannelData::parse_datagram(&bytes).map(|data| data.number),
            Ok(ChannelNumber::MIN)
        );
        assert_eq!([0, 1, 2, 3, 4, 5].map(crate::padding), [0, 3, 2, 1, 0, 3]);
    }
}
