//! Parts of URLs.

/// `text` with every byte escaped that is neither unreserved (RFC 3986 §2.3) nor in `kept`.
pub(super) fn percent(text: &str, kept: &str) -> String {
    let one = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
            char::from(byte).to_string()
        }
        byte if kept.as_bytes().contains(&byte) => char::from(byte).to_string(),
        byte => format!("%{byte:02X}"),
    };
    text.bytes().map(one).collect()
}
