//! Bencode, as far as the ng protocol needs it: strings, integers, lists and dictionaries.

/// The deepest value in a response. Those of rtpengine have six levels.
const MAX_DEPTH: u32 = 32;

/// Digits of the longest string: a datagram has less than 65,536 bytes.
const MAX_LENGTH_DIGITS: usize = 5;

/// Digits of the longest integer, its sign included.
const MAX_INTEGER_DIGITS: usize = 20;

fn string(to: &mut Vec<u8>, value: &[u8]) {
    to.extend_from_slice(value.len().to_string().as_bytes());
    to.push(b':');
    to.extend_from_slice(value);
}

/// Writes a string of a dictionary.
pub(super) fn entry(to: &mut Vec<u8>, key: &str, value: &[u8]) {
    string(to, key.as_bytes());
    string(to, value);
}

/// Writes a list of strings of a dictionary.
pub(super) fn list(to: &mut Vec<u8>, key: &str, values: &[&str]) {
    string(to, key.as_bytes());
    to.push(b'l');
    for value in values {
        string(to, value.as_bytes());
    }
    to.push(b'e');
}

/// A response of rtpengine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Response<'b> {
    /// `ok`, `pong`, `error` or `load limit`.
    pub(super) result: &'b [u8],
    pub(super) sdp: Option<&'b [u8]>,
    /// Why there is an error.
    pub(super) reason: Option<&'b [u8]>,
}

impl<'b> Response<'b> {
    /// Reads a dictionary; `None` if it is malformed, or has no result.
    pub(super) fn read(bytes: &'b [u8]) -> Option<Response<'b>> {
        let mut reader = Reader { left: bytes };
        reader.eat(b'd')?;
        let mut response = Response::default();
        while reader.left.first() != Some(&b'e') {
            match reader.string()? {
                b"result" => response.result = reader.string()?,
                b"sdp" => response.sdp = Some(reader.string()?),
                b"error-reason" => response.reason = Some(reader.string()?),
                _ => reader.skip()?,
            }
        }
        reader.eat(b'e')?;
        (reader.left.is_empty() && !response.result.is_empty()).then_some(response)
    }
}

struct Reader<'b> {
    left: &'b [u8],
}

impl<'b> Reader<'b> {
    fn eat(&mut self, byte: u8) -> Option<()> {
        self.left = self.left.strip_prefix(&[byte])?;
        Some(())
    }

    /// What is in front of this byte, which must come soon.
    fn until(&mut self, byte: u8, most: usize) -> Option<&'b [u8]> {
        let near = self.left.get(..=most).unwrap_or(self.left);
        let at = near.iter().position(|it| *it == byte)?;
        let (before, behind) = self.left.split_at_checked(at)?;
        self.left = behind.get(1..)?;
        Some(before)
    }

    fn string(&mut self) -> Option<&'b [u8]> {
        let digits = self.until(b':', MAX_LENGTH_DIGITS)?;
        let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
        let len: usize = std::str::from_utf8(digits).ok()?.parse().ok()?;
        let (value, left) = self.left.split_at_checked(len).filter(|_| is_number)?;
        self.left = left;
        Some(value)
    }

    /// Skips one value of any kind, without recursion.
    fn skip(&mut self) -> Option<()> {
        let mut depth = 0;
        loop {
            match self.left.first()? {
                b'd' | b'l' => {
                    self.left = self.left.get(1..)?;
                    depth += 1;
                    if depth > MAX_DEPTH {
                        return None;
                    }
                }
                b'e' => {
                    self.left = self.left.get(1..)?;
                    depth = u32::checked_sub(depth, 1)?;
                }
                b'i' => drop(self.until(b'e', MAX_INTEGER_DIGITS + 1)?),
                _ => drop(self.string()?),
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_response_is_read_and_other_keys_are_skipped() {
        let ok = b"d6:result2:ok3:sdp5:v=0\r\n5:statsd1:ai-3e1:bl1:x1:ye1:cd1:di0eeee";
        let read = Response {
            result: b"ok",
            sdp: Some(b"v=0\r\n"),
            reason: None,
        };
        assert_eq!(Response::read(ok), Some(read));
        let error = b"d12:error-reason12:Unknown call6:result5:errore";
        let read = Response {
            result: b"error",
            sdp: None,
            reason: Some(b"Unknown call"),
        };
        assert_eq!(Response::read(error), Some(read));
    }

    #[test]
    fn malformed_responses_are_no_responses() {
        let deep = [&b"d6:result2:ok1:x"[..], &[b'l'; 40], &[b'e'; 41]].concat();
        let bad: [&[u8]; 17] = [
            b"",
            b"d",
            b"de",
            b"le",
            b"d6:result2:ok",
            b"d6:result2:oke ",
            b"d6:result3:oke",
            b"d6:resulti1ee",
            b"d6:result99999:oke",
            b"d6:result+2:oke",
            b"d6:result-1:oke",
            b"d6:result:oke",
            b"d6:result000002:oke",
            b"d6:result2:ok1:xe",
            b"d6:result2:ok1:xi111111111111111111111111eee",
            b"d6:result2:ok1:xleee",
            &deep,
        ];
        for bytes in bad {
            let text = String::from_utf8_lossy(bytes);
            assert_eq!(Response::read(bytes), None, "{text}");
        }
    }

    /// Whatever comes, reading ends, and takes nothing from elsewhere.
    #[test]
    fn changed_responses_are_read_without_a_panic() {
        let whole = b"d6:result2:ok3:sdp5:v=0\r\n5:statsd1:ai-3e1:bl1:x1:yeee".to_vec();
        assert!(Response::read(&whole).is_some());
        let mut read = 0;
        for at in 0..whole.len() {
            assert_eq!(Response::read(&whole[..at]), None, "{at}");
            for byte in 0..=u8::MAX {
                let mut changed = whole.clone();
                changed[at] = byte;
                read += u32::from(Response::read(&changed).is_some());
            }
        }
        assert!(read > 0);
    }
}
