//! The head of an HTTP/1.1 message (RFC 9112 §2 to §5): its first line and its fields, with limits.

/// Collects the bytes of a head. The cost per byte is constant, however the network splits the bytes.
#[derive(Debug, Default)]
pub(super) struct Gather {
    bytes: Vec<u8>,
}

/// Whether a head is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gathered {
    Need,
    Whole,
    TooLong,
}

const END: &[u8] = b"\r\n\r\n";

impl Gather {
    /// Adds bytes up to the end of the head. Returns how many, and whether the head is complete.
    pub(super) fn receive(&mut self, bytes: &[u8], most: usize) -> (usize, Gathered) {
        let before = self.bytes.len();
        let taken = bytes.len().min(most - before.min(most));
        self.bytes.extend_from_slice(&bytes[..taken]);
        // The end marker may begin in earlier bytes.
        let from = before.saturating_sub(END.len() - 1);
        let end = self.bytes[from..]
            .windows(END.len())
            .position(|window| window == END);
        match end {
            Some(at) => {
                self.bytes.truncate(from + at + END.len());
                (self.bytes.len() - before, Gathered::Whole)
            }
            None if self.bytes.len() >= most => (taken, Gathered::TooLong),
            None => (taken, Gathered::Need),
        }
    }

    /// Returns the complete head and keeps no memory.
    pub(super) fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.bytes)
    }
}

/// Why a head is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeadError {
    Malformed,
    TooManyFields,
}

/// A parsed head: the first line, and the header fields.
#[derive(Debug)]
pub(super) struct Head<'a> {
    pub(super) line: &'a str,
    fields: Vec<(&'a str, &'a str)>,
}

impl<'a> Head<'a> {
    /// Parses a head, which ends with an empty line.
    pub(super) fn parse(bytes: &'a [u8], most_fields: usize) -> Result<Head<'a>, HeadError> {
        let text = bytes
            .strip_suffix(END)
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
            .ok_or(HeadError::Malformed)?;
        let mut lines = text.split("\r\n");
        let line = lines.next().unwrap_or_default();
        if line.contains(is_control) {
            return Err(HeadError::Malformed);
        }
        let mut fields = Vec::new();
        for field in lines {
            if fields.len() == most_fields {
                return Err(HeadError::TooManyFields);
            }
            let (name, value) = field.split_once(':').ok_or(HeadError::Malformed)?;
            let value = value.trim_matches([' ', '\t']);
            // RFC 9112 §5.1: no whitespace before the colon. Line folding is not accepted either.
            if !is_token(name) || value.contains(is_control) {
                return Err(HeadError::Malformed);
            }
            fields.push((name, value));
        }
        Ok(Head { line, fields })
    }

    /// The values of all fields of this name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.fields
            .iter()
            .filter(move |(other, _)| other.eq_ignore_ascii_case(name))
            .map(|(_, value)| *value)
    }

    /// The value of the only field of this name; `None` also if there are several.
    pub(super) fn only(&self, name: &str) -> Option<&'a str> {
        let mut values = self.all(name);
        values.next().filter(|_| values.next().is_none())
    }

    /// The elements of the comma-separated lists in all fields of this name.
    pub(super) fn list(&self, name: &str) -> impl Iterator<Item = &'a str> {
        self.all(name)
            .flat_map(|value| value.split(','))
            .map(|element| element.trim_matches([' ', '\t']))
            .filter(|element| !element.is_empty())
    }

    /// Whether a comma-separated list has this element. The comparison is case-insensitive.
    pub(super) fn has(&self, name: &str, element: &str) -> bool {
        self.list(name)
            .any(|other| other.eq_ignore_ascii_case(element))
    }
}

const fn is_control(character: char) -> bool {
    matches!(character, '\0'..='\x08' | '\x0a'..='\x1f' | '\x7f')
}

/// A token (RFC 9110 §5.6.2).
pub(super) fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}
