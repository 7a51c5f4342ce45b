//! What nodes publish and tell each other: JSON behind a MAC of the secret of the cluster. Who can write to the engine
//! can delay or drop it, and nothing more.

use serde::Serialize;
use serde::de::DeserializeOwned;
use stun::HmacKey;

/// Bytes of a text from the engine: a longer one is not of a node.
const MAX_TEXT_BYTES: usize = 16 << 10;
/// Hexadecimal digits of the MAC.
const MAC_DIGITS: usize = 64;

/// Makes and checks MACs.
#[derive(Clone, Debug)]
pub struct Seal(HmacKey);

impl Seal {
    /// With a key that all nodes have.
    #[must_use]
    pub fn new(key: &[u8; 32]) -> Seal {
        Seal(HmacKey::sha256(key))
    }

    fn mac(&self, purpose: &str, json: &str) -> String {
        let text = [purpose.as_bytes(), b"\0", json.as_bytes()].concat();
        crate::keys::hex(self.0.tag(&text).as_bytes())
    }

    /// Writes a value as JSON behind its MAC. [`Seal::verify`] accepts the text only with the same purpose.
    pub(super) fn sign<T: Serialize>(&self, purpose: &str, value: &T) -> String {
        // Structures of texts and numbers have a JSON form.
        let json = serde_json::to_string(value).unwrap_or_default();
        self.mac(purpose, &json) + &json
    }

    /// Reads a value; `None` if no node has written it, or if this version cannot read it.
    pub(super) fn verify<T: DeserializeOwned>(&self, purpose: &str, text: &str) -> Option<T> {
        serde_json::from_str(self.open(purpose, text)?).ok()
    }

    /// The JSON; `None` if no node has written it.
    pub(super) fn open<'t>(&self, purpose: &str, text: &'t str) -> Option<&'t str> {
        if text.len() > MAX_TEXT_BYTES || !text.is_char_boundary(MAC_DIGITS) {
            return None;
        }
        let (mac, json) = text.split_at_checked(MAC_DIGITS)?;
        let expected = self.mac(purpose, json);
        let pairs = mac.bytes().zip(expected.bytes());
        // The time does not depend on where the two differ.
        let difference = pairs.fold(0, |sum, (one, other)| sum | one ^ other);
        (difference == 0).then_some(json)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_another_key_purpose_or_content_is_none() {
        let seal = Seal::new(&[1; 32]);
        let text = seal.sign("node", &vec!["a", "b"]);
        let open = |seal: &Seal, purpose, text: &str| seal.verify::<Vec<String>>(purpose, text);
        assert_eq!(open(&seal, "node", &text).unwrap(), ["a", "b"]);
        assert_eq!(open(&seal, "kill", &text), None);
        assert_eq!(open(&Seal::new(&[2; 32]), "node", &text), None);
        for bad in [
            "",
            "x",
            &text[..63],
            &text[..64],
            &text.replace("\"b\"", "\"c\""),
        ] {
            assert_eq!(open(&seal, "node", bad), None, "{bad}");
        }
        assert_eq!(open(&seal, "node", &"ä".repeat(40)), None);
        let long = seal.sign("node", &vec!["x".repeat(MAX_TEXT_BYTES)]);
        assert_eq!(open(&seal, "node", &long), None);
    }
}
