//! Requests written once, with places that change.
//!
//! ```text
//!   OPTIONS sip:10.0.0.5:5060 SIP/2.0
//!   Via: SIP/2.0/UDP 10.0.0.1:40001;branch=z9hG4bK<salt 8><id 12><role 1>;rport
//!   From: <sip:load@10.0.0.1:40001>;tag=<id 12>           id: slot and generation of the transaction, in hex
//!   Call-ID: <salt 8><id 12>@hairpin                      salt: of this run and thread
//!   CSeq: <10 digits> OPTIONS
//! ```
//! The slot and the generation in a branch bring a response to its transaction without a look-up.

/// Stand in a text for what is patched.
const ID: u8 = 1;
const CSEQ: u8 = 2;
const AOR: u8 = 3;
const PEER: u8 = 4;
const ROLE: u8 = 5;

/// Hex digits of a slot, and of a generation.
const HALF: usize = 6;
/// Length of an id.
pub(super) const ID_LENGTH: usize = 2 * HALF;
/// Slots and generations are counted up to here.
pub(super) const ID_LIMIT: u32 = 1 << (4 * HALF as u32);
/// Digits of a CSeq number.
const CSEQ_LENGTH: usize = 10;
/// The first CSeq number: of ten digits, as are all that follow (RFC 3261 §8.1.1.5: below 2^31).
pub(super) const FIRST_CSEQ: u32 = 1_000_000_000;

const HEX: &[u8; 16] = b"0123456789abcdef";

/// What is written into a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) cseq: u32,
    pub(super) aor: u32,
    /// Number of the AOR that is called.
    pub(super) peer: u32,
    /// The letter of `texts::role`.
    pub(super) role: u8,
}

/// A request with places that change.
#[derive(Clone, Debug)]
pub(super) struct Template {
    bytes: Vec<u8>,
    /// Where, how long, and the marker that stood there.
    places: Vec<(u16, u16, u8)>,
    /// Where the empty line is.
    head_end: usize,
}

impl Template {
    /// What stands for an id in the text of a template.
    pub(super) fn id_mark() -> String {
        mark(ID, ID_LENGTH)
    }

    /// What stands for a CSeq number.
    pub(super) fn cseq_mark() -> String {
        mark(CSEQ, CSEQ_LENGTH)
    }

    /// What stands for the number of an AOR, of `width` digits.
    pub(super) fn aor_mark(width: usize) -> String {
        mark(AOR, width)
    }

    /// What stands for the number of the AOR that is called, of `width` digits.
    pub(super) fn peer_mark(width: usize) -> String {
        mark(PEER, width)
    }

    /// What stands for the role.
    pub(super) fn role_mark() -> String {
        mark(ROLE, 1)
    }

    /// Finds the marks in `text`, which is at most 65,535 bytes long.
    pub(super) fn new(text: &str) -> Template {
        let bytes = text.as_bytes().to_vec();
        let mut places = Vec::new();
        let mut at = 0;
        while at < bytes.len() {
            let byte = bytes[at];
            let run = bytes[at..].iter().take_while(|&&next| next == byte).count();
            let whole = match byte {
                ID => ID_LENGTH,
                CSEQ => CSEQ_LENGTH,
                _ => run,
            };
            if matches!(byte, ID | CSEQ | AOR | PEER | ROLE) {
                places.push((at as u16, whole as u16, byte));
            }
            at += whole;
        }
        let empty = memchr::memmem::find(&bytes, b"\r\n\r\n");
        let head_end = empty.map_or(bytes.len(), |at| at + 2);
        Template {
            bytes,
            places,
            head_end,
        }
    }

    /// Appends the request to `into`, with the values of `fields` in the places of the template.
    pub(super) fn write(&self, into: &mut Vec<u8>, fields: &Fields) {
        let start = into.len();
        into.extend_from_slice(&self.bytes);
        let id = id(fields.slot, fields.generation);
        for &(at, length, kind) in &self.places {
            let at = start + usize::from(at);
            let place = &mut into[at..at + usize::from(length)];
            match kind {
                ID => place.copy_from_slice(&id),
                CSEQ => decimal(place, fields.cseq),
                PEER => decimal(place, fields.peer),
                ROLE => place.fill(fields.role),
                _ => decimal(place, fields.aor),
            }
        }
    }

    /// Appends the request with more header lines behind its others.
    pub(super) fn write_with(&self, into: &mut Vec<u8>, fields: &Fields, lines: &[u8]) {
        let start = into.len();
        self.write(into, fields);
        if !lines.is_empty() {
            let at = start + self.head_end;
            into.splice(at..at, lines.iter().copied());
        }
    }
}

fn mark(byte: u8, length: usize) -> String {
    char::from(byte).to_string().repeat(length)
}

/// Slot and generation in hex.
pub(super) fn id(slot: u32, generation: u32) -> [u8; ID_LENGTH] {
    let mut digits = [0; ID_LENGTH];
    let both = u64::from(slot) << (4 * HALF) | u64::from(generation % ID_LIMIT);
    for (place, digit) in digits.iter_mut().enumerate() {
        *digit = HEX[(both >> (4 * (ID_LENGTH - 1 - place))) as usize & 15];
    }
    digits
}

/// Reads what [`id`] wrote: slot and generation.
pub(super) fn read_id(digits: &[u8]) -> Option<(u32, u32)> {
    let digits = digits.first_chunk::<ID_LENGTH>()?;
    let mut both = 0u64;
    for &digit in digits {
        let value = match digit {
            b'0'..=b'9' => digit - b'0',
            // RFC 3261 §7.3.1: a branch is a token, and a token may change its case on its way.
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return None,
        };
        both = both << 4 | u64::from(value);
    }
    let generation = both as u32 % ID_LIMIT;
    Some(((both >> (4 * HALF)) as u32, generation))
}

/// Fills `place` with the last digits of `number`.
pub(super) fn decimal(place: &mut [u8], mut number: u32) {
    for digit in place.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIELDS: Fields = Fields {
        slot: 0xABC,
        generation: 7,
        cseq: FIRST_CSEQ + 5,
        aor: 42,
        peer: 43,
        role: b'b',
    };

    #[test]
    fn marks_are_replaced_and_nothing_else() {
        let (id, cseq, aor) = (
            Template::id_mark(),
            Template::cseq_mark(),
            Template::aor_mark(4),
        );
        let peer = Template::peer_mark(3);
        let role = Template::role_mark();
        let text = format!("A {id}{id}{role};{peer}\r\nu{aor}\r\nCSeq: {cseq} A\r\n\r\nbody");
        let template = Template::new(&text);
        let mut bytes = b"before".to_vec();
        template.write(&mut bytes, &FIELDS);
        let expected =
            "beforeA 000abc000007000abc000007b;043\r\nu0042\r\nCSeq: 1000000005 A\r\n\r\nbody";
        assert_eq!(String::from_utf8(bytes).unwrap(), expected);
        let mut bytes = Vec::new();
        template.write_with(&mut bytes, &FIELDS, b"X: y\r\n");
        assert!(bytes.ends_with(b" A\r\nX: y\r\n\r\nbody"));
    }

    #[test]
    fn an_id_is_read_in_any_case_and_nothing_else_is() {
        for (slot, generation) in [(0, 0), (0xABCDEF, 0xFEDCBA), (ID_LIMIT - 1, 1)] {
            let text = id(slot, generation);
            assert_eq!(read_id(&text), Some((slot, generation)));
            assert_eq!(
                read_id(&text.to_ascii_uppercase()),
                Some((slot, generation))
            );
        }
        assert_eq!(read_id(b"00000000000g"), None);
        assert_eq!(read_id(b"0000"), None);
    }
}
