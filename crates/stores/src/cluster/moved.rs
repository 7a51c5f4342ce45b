//! Bindings of phones that have registered at another node since (RFC 5626 §6). The node that the phone has left
//! removes its binding.
//!
//! ```text
//!  node B ── bind ──> engine ── A had this binding ──> B ── tell ──> engine ── exchange ──> node A
//! ```

use serde::{Deserialize, Serialize};

use super::engine::Moved;
use super::seal::Seal;

/// Longest age of a message. Clocks of nodes must differ by less. An attacker without the secret can replay a message
/// only for this time.
const VALID_S: u64 = 180;
const PURPOSE: &str = "moved";

/// A binding that its node must remove, because the phone has registered at another node. A binding of a later REGISTER
/// has another Call-ID or CSeq, and stays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MovedBinding {
    /// The address of record.
    pub aor: Box<[u8]>,
    /// As in [`super::SharedBinding`].
    pub id: u64,
    /// As in [`super::SharedBinding`].
    pub call: u64,
    /// As in [`super::SharedBinding`].
    pub cseq: u32,
}

/// The same for another node, behind a MAC.
#[derive(Serialize, Deserialize)]
struct Text {
    /// Of the node that has it no more, in hexadecimal digits.
    node: String,
    aor: String,
    id: u64,
    call: u64,
    cseq: u32,
    unix_s: u64,
}

impl MovedBinding {
    /// `None` if the engine says something that no node has written.
    pub(super) fn of(aor: &[u8], moved: &Moved) -> Option<MovedBinding> {
        Some(MovedBinding {
            aor: aor.into(),
            id: u64::from_str_radix(&moved.field, 16).ok()?,
            call: u64::from_str_radix(&moved.call, 16).ok()?,
            cseq: moved.cseq,
        })
    }

    /// The name and the text for the node that has it no more.
    pub(super) fn close(&self, node: &str, seal: &Seal, unix_s: u64) -> (String, String) {
        let text = Text {
            node: node.to_owned(),
            aor: crate::keys::hex(&self.aor),
            id: self.id,
            call: self.call,
            cseq: self.cseq,
            unix_s,
        };
        let name = format!("{:016x}{}", self.id, text.aor);
        (name, seal.close(PURPOSE, &text))
    }

    /// Reads a text for this node; `None` if no node has written it lately.
    pub(super) fn open(text: &str, node: &str, seal: &Seal, unix_s: u64) -> Option<MovedBinding> {
        let text = seal.open::<Text>(PURPOSE, text)?;
        let is_timely = text.unix_s.abs_diff(unix_s) <= VALID_S;
        let is_meant = text.node == crate::keys::hex(node.as_bytes());
        Some(MovedBinding {
            aor: hex_of(&text.aor).filter(|_| is_timely && is_meant)?,
            id: text.id,
            call: text.call,
            cseq: text.cseq,
        })
    }
}

/// Reads hexadecimal digits.
fn hex_of(text: &str) -> Option<Box<[u8]>> {
    if !text.len().is_multiple_of(2) || !text.is_ascii() {
        return None;
    }
    let pairs = (0..text.len()).step_by(2).map(|at| &text[at..at + 2]);
    let bytes: Option<Vec<u8>> = pairs
        .map(|pair| u8::from_str_radix(pair, 16).ok())
        .collect();
    bytes.map(Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_for_one_node_and_for_some_minutes() {
        let seal = Seal::new(&[1; 32]);
        let said = Moved {
            node: crate::keys::hex(b"a"),
            field: format!("{:016x}", u64::MAX - 1),
            call: format!("{:016x}", 7),
            cseq: 5,
        };
        let moved = MovedBinding::of(b"bob@d\xff", &said).unwrap();
        assert_eq!((moved.id, moved.call, moved.cseq), (u64::MAX - 1, 7, 5));
        let (_, text) = moved.close(&said.node, &seal, 1_000);
        let open = |node, seal: &Seal, unix_s| MovedBinding::open(&text, node, seal, unix_s);
        assert_eq!(open("a", &seal, 1_180), Some(moved.clone()));
        assert_eq!(open("a", &seal, 1_181), None);
        assert_eq!(open("b", &seal, 1_000), None);
        assert_eq!(open("a", &Seal::new(&[2; 32]), 1_000), None);
        assert_eq!(MovedBinding::open("nonsense", "a", &seal, 1_000), None);
        let nonsense = Moved {
            field: "x".to_owned(),
            ..said
        };
        assert_eq!(MovedBinding::of(b"bob@d", &nonsense), None);
    }
}
