//! Bindings of phones that have registered at another node since (RFC 5626 §6). The earlier node removes its
//! binding.
//!
//! ```text
//!  node B ── bind ──> engine ── text of A for this binding ──> B ── tell ──> engine ── exchange ──> node A
//! ```
//!
//! Whoever can write to the engine must not remove bindings. So B trusts only a text of A with a MAC. This text has the
//! Call-ID, the CSeq and the time of the REGISTER at A. A trusts only a notice of B with a MAC.

use serde::{Deserialize, Serialize};

use super::seal::Seal;

/// Longest age of a notice. Clocks of nodes must differ by less. An attacker without the secret can replay a notice
/// until its time is this far in the past.
const VALID_S: u64 = 180;
const PURPOSE: &str = "moved";
/// With one Call-ID, a request that came more than this time before the other one never replaces it.
const CLOCKS_MS: u64 = 2_000;

/// The REGISTER request that created or refreshed a binding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Register {
    /// As in [`super::SharedBinding`].
    pub(super) call: u64,
    /// As in [`super::SharedBinding`].
    pub(super) cseq: u32,
    /// When it came, by the clock of its node.
    pub(super) unix_ms: u64,
}

impl Register {
    /// Whether this request replaces the binding of the other one. With one Call-ID, the CSeq decides (RFC 3261 §10.3):
    /// two requests with the same CSeq are the same request. A phone that has restarted may use an earlier CSeq with the
    /// same Call-ID. So an old request does not replace a new one, whatever its CSeq.
    pub(super) fn is_later_than(&self, other: &Register) -> bool {
        match self.call == other.call {
            true => {
                let is_old = self.unix_ms.saturating_add(CLOCKS_MS) < other.unix_ms;
                self.cseq > other.cseq && !is_old
            }
            false => self.unix_ms > other.unix_ms,
        }
    }
}

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

/// Tells a node to remove a binding. It has a MAC.
#[derive(Serialize, Deserialize)]
struct RemovalNotice {
    /// The name of the node.
    node: String,
    /// The address of record in hexadecimal digits, because it is not always text.
    aor: String,
    id: u64,
    call: u64,
    cseq: u32,
    /// When it was sent.
    unix_s: u64,
}

impl MovedBinding {
    /// A name for the notice, and its text with a MAC, for the node of this name.
    pub(super) fn sign(&self, node: &str, seal: &Seal, unix_s: u64) -> (String, String) {
        let notice = RemovalNotice {
            node: node.to_owned(),
            aor: crate::keys::hex(&self.aor),
            id: self.id,
            call: self.call,
            cseq: self.cseq,
            unix_s,
        };
        let name = format!("{:016x}{}", self.id, notice.aor);
        (name, seal.sign(PURPOSE, &notice))
    }

    /// Reads a notice for the node of this name.
    pub(super) fn read(text: &str, node: &str, seal: &Seal, unix_s: u64) -> NoticeRead {
        let Some(notice) = seal.verify::<RemovalNotice>(PURPOSE, text) else {
            return NoticeRead::Forged;
        };
        let Some(aor) = crate::keys::unhex(&notice.aor) else {
            return NoticeRead::Forged;
        };
        if notice.node != node {
            return NoticeRead::OtherNode;
        }
        if notice.unix_s.abs_diff(unix_s) > VALID_S {
            return NoticeRead::Untimely;
        }
        NoticeRead::Valid(MovedBinding {
            aor: aor.into(),
            id: notice.id,
            call: notice.call,
            cseq: notice.cseq,
        })
    }
}

/// What a text for a node is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NoticeRead {
    /// A notice for this node.
    Valid(MovedBinding),
    /// A node has sent it to this one. But it is too old, or the clocks of both nodes differ too much.
    Untimely,
    /// A node has sent it to another node. Somebody who can write to the engine has copied it.
    OtherNode,
    /// No node has sent it.
    Forged,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_for_one_node_and_for_some_minutes() {
        let seal = Seal::new(&[1; 32]);
        let moved = MovedBinding {
            aor: b"bob@d\xff".as_slice().into(),
            id: u64::MAX - 1,
            call: 7,
            cseq: 5,
        };
        let (_, text) = moved.sign("a", &seal, 1_000);
        let read = |node, seal: &Seal, unix_s| MovedBinding::read(&text, node, seal, unix_s);
        let valid = NoticeRead::Valid(moved.clone());
        assert_eq!(read("a", &seal, 1_180), valid);
        assert_eq!(read("a", &seal, 820), valid);
        assert_eq!(read("a", &seal, 1_181), NoticeRead::Untimely);
        assert_eq!(read("a", &seal, 819), NoticeRead::Untimely);
        assert_eq!(read("b", &seal, 1_000), NoticeRead::OtherNode);
        assert_eq!(read("b", &seal, 9_000), NoticeRead::OtherNode);
        let other = Seal::new(&[2; 32]);
        assert_eq!(read("a", &other, 1_000), NoticeRead::Forged);
        let nonsense = MovedBinding::read("nonsense", "a", &seal, 1_000);
        assert_eq!(nonsense, NoticeRead::Forged);
        // Another text of a node is no notice.
        let other = seal.sign("node", &1);
        let other = MovedBinding::read(&other, "a", &seal, 1_000);
        assert_eq!(other, NoticeRead::Forged);
    }

    #[test]
    fn one_call_id_is_ordered_by_cseq_and_several_by_time_rfc3261_10_3() {
        let register = |call, cseq, unix_ms| Register {
            call,
            cseq,
            unix_ms,
        };
        let old = register(1, 5, 1_000);
        assert!(register(1, 6, 0).is_later_than(&old));
        assert!(!register(1, 5, 2_000).is_later_than(&old));
        assert!(!register(1, 4, 2_000).is_later_than(&old));
        assert!(register(2, 1, 1_001).is_later_than(&old));
        assert!(!register(2, 9, 1_000).is_later_than(&old));
        // The phone has restarted since.
        assert!(!register(1, 50, 1_000).is_later_than(&register(1, 1, 600_000)));
    }
}
