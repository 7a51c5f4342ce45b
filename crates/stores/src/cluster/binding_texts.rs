//! What the engine has of the bindings of a node: texts with a MAC. Other nodes believe nothing else.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::bindings::{AtNode, Change, SharedBinding};
use super::clock_steps::ClockSteps;
use super::engine::{BindEntry, BindRequest, Conflict};
use super::moved::{MovedBinding, Register};
use super::seal::Seal;

/// Longest lifetime of a binding that is written: 30 days.
const LONGEST_MS: u64 = 30 * 86_400_000;
/// Clocks of nodes differ by less. It limits how long somebody without the secret can repeat an entry.
const VALID_S: u64 = 180;
const PURPOSE: &str = "binding";

/// What the engine has of one binding, behind a MAC.
#[derive(Debug, Serialize, Deserialize)]
struct BindingText {
    /// The address of record in hexadecimal digits, because it is not always text.
    aor: String,
    node: String,
    id: u64,
    q: u16,
    ends_unix_s: u64,
    /// Nodes of earlier versions do not write these.
    #[serde(default)]
    register: Option<Register>,
    #[serde(default)]
    phone: u64,
}

/// A text of the engine that no node has written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Forged;

/// Whose bindings are written.
pub(super) struct Owner<'o> {
    pub(super) node: &'o str,
    pub(super) seal: &'o Seal,
    pub(super) unix_ms: u64,
}

impl SharedBinding {
    /// The REGISTER of a binding that was so old at this time.
    fn register(&self, unix_ms: u64) -> Register {
        Register {
            call: self.call,
            cseq: self.cseq,
            unix_ms: unix_ms.saturating_sub(self.age_ms),
        }
    }
}

impl Owner<'_> {
    pub(super) fn request(
        &self,
        aor: Box<[u8]>,
        change: Change,
        now_ms: u64,
        steps: &ClockSteps,
    ) -> BindRequest {
        let waited = now_ms.saturating_sub(change.at_ms);
        let hex = crate::keys::hex(&aor);
        let aged = change.bindings.iter().filter_map(|binding| {
            let left = binding.ttl_ms.min(LONGEST_MS).checked_sub(waited);
            let registered_ms = change.at_ms.saturating_sub(binding.age_ms);
            let missed = steps.missed_ms(registered_ms);
            Some(SharedBinding {
                age_ms: binding.age_ms.saturating_add(waited).saturating_add(missed),
                ttl_ms: left.filter(|left| *left > 0)?,
                ..*binding
            })
        });
        let bindings: Vec<SharedBinding> = aged.collect();
        let entries = bindings.iter().map(|binding| {
            let text = BindingText {
                aor: hex.clone(),
                node: self.node.to_owned(),
                id: binding.id,
                q: binding.q,
                ends_unix_s: (self.unix_ms + binding.ttl_ms).div_ceil(1_000),
                register: Some(binding.register(self.unix_ms)),
                phone: binding.phone,
            };
            BindEntry {
                field: format!("{:016x}", binding.id),
                call: format!("{:016x}", binding.call),
                cseq: binding.cseq,
                age_ms: binding.age_ms,
                ttl_ms: binding.ttl_ms,
                text: self.seal.sign(PURPOSE, &text),
            }
        });
        BindRequest {
            entries: entries.collect(),
            aor,
            age_ms: waited,
            taken_unix_ms: self.unix_ms,
            bindings,
            change,
        }
    }

    /// The node that must remove its binding: the one with the earlier REGISTER. `None` if the text of the other node
    /// does not prove the order. Nothing else proves it: everybody who can write to the engine can change the rest.
    pub(super) fn moved(
        &self,
        request: &BindRequest,
        conflict: &Conflict,
    ) -> Result<Option<(String, MovedBinding)>, Forged> {
        let text = self.seal.verify::<BindingText>(PURPOSE, &conflict.text);
        let text = text.ok_or(Forged)?;
        let mut bindings = request.bindings.iter();
        let (Some(own), Some(register)) = (bindings.find(|it| it.id == text.id), text.register)
        else {
            return Ok(None);
        };
        let own_register = own.register(request.taken_unix_ms);
        let (node, earlier, later) = match conflict.is_accepted {
            true => (&*text.node, register, own_register),
            false => (self.node, own_register, register),
        };
        let has_ended = text.ends_unix_s.saturating_add(VALID_S) < request.taken_unix_ms / 1_000;
        let is_proven = text.aor == crate::keys::hex(&request.aor)
            && text.node != self.node
            && own.has_reg_id
            && !has_ended
            && later.is_later_than(&earlier);
        let moved = MovedBinding {
            aor: request.aor.clone(),
            id: own.id,
            call: earlier.call,
            cseq: earlier.cseq,
        };
        Ok(is_proven.then(|| (node.to_owned(), moved)))
    }

    /// The other nodes that these texts of the engine name, and how many texts no node has written.
    pub(super) fn read(&self, aor: &[u8], texts: &[String]) -> (Arc<[AtNode]>, u64) {
        let hex = crate::keys::hex(aor);
        let mut nodes: Vec<AtNode> = Vec::new();
        let mut forged = 0;
        for text in texts {
            let Some(text) = self.seal.verify::<BindingText>(PURPOSE, text) else {
                forged += 1;
                continue;
            };
            if text.aor != hex {
                forged += 1;
                continue;
            }
            let has_ended = text.ends_unix_s.saturating_add(VALID_S) < self.unix_ms / 1_000;
            if has_ended || text.node == self.node {
                continue;
            }
            match nodes.iter_mut().find(|known| known.node == text.node) {
                Some(known) => {
                    known.q = known.q.max(text.q);
                    known.phones.push(text.phone);
                }
                None => nodes.push(AtNode {
                    node: text.node,
                    q: text.q,
                    phones: vec![text.phone],
                }),
            }
        }
        (nodes.into(), forged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn binding(id: u64, q: u16) -> SharedBinding {
        SharedBinding {
            id,
            has_reg_id: true,
            phone: 10 + id,
            call: 7,
            cseq: 1,
            q,
            age_ms: 0,
            ttl_ms: 60_000,
        }
    }

    fn owner<'o>(node: &'o str, seal: &'o Seal) -> Owner<'o> {
        Owner {
            node,
            seal,
            unix_ms: 1_000_000_000,
        }
    }

    #[test]
    fn a_text_is_of_one_address_and_names_other_nodes_once() {
        let seal = Seal::new(&[1; 32]);
        let texts = |node: &str, seal: &Seal, aor: &[u8], bindings: Vec<SharedBinding>| {
            let at_ms = 0;
            let change = Change { bindings, at_ms };
            let steps = ClockSteps::default();
            let request = owner(node, seal).request(aor.into(), change, 0, &steps);
            let entries = request.entries.into_iter();
            entries.map(|entry| entry.text).collect::<Vec<_>>()
        };
        let mut all = texts("b", &seal, b"x@d", vec![binding(1, 500), binding(2, 700)]);
        all.extend(texts("a", &seal, b"x@d", vec![binding(3, 1_000)]));
        let forged = Seal::new(&[2; 32]);
        all.extend(texts("c", &forged, b"x@d", vec![binding(4, 1_000)]));
        all.extend(texts("c", &seal, b"y@d", vec![binding(5, 1_000)]));
        let (nodes, forged) = owner("a", &seal).read(b"x@d", &all);
        let expected = AtNode {
            node: "b".to_owned(),
            q: 700,
            phones: vec![11, 12],
        };
        assert_eq!((&*nodes, forged), (&[expected][..], 2));
        // Long after its end.
        let mut later = owner("a", &seal);
        later.unix_ms += (60 + VALID_S + 1) * 1_000;
        assert!(later.read(b"x@d", &all).0.is_empty());
    }

    #[test]
    fn a_text_of_an_earlier_version_names_no_phone() {
        let seal = Seal::new(&[1; 32]);
        let earlier = serde_json::json!({
            "aor": crate::keys::hex(b"x@d"), "node": "b", "id": 1, "q": 700, "ends_unix_s": 1_000_060,
        });
        let (nodes, forged) = owner("a", &seal).read(b"x@d", &[seal.sign(PURPOSE, &earlier)]);
        assert_eq!((&nodes[0].phones[..], forged), (&[0][..], 0));
    }

    #[test]
    fn a_binding_that_has_ended_while_it_waited_is_not_written() {
        let seal = Seal::new(&[1; 32]);
        let change = Change {
            bindings: vec![binding(1, 1_000)],
            at_ms: 0,
        };
        let aor = b"x@d".as_slice().into();
        let steps = ClockSteps::default();
        let request = owner("a", &seal).request(aor, change, 60_000, &steps);
        assert_eq!((request.entries.len(), request.age_ms), (0, 60_000));
    }
}
