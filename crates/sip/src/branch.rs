//! Branches: the text in a Via that brings a response back to its worker and transaction without a look-up.
//!
//! ```text
//! z9hG4bK h 5 base32 digits per 25 bits ...
//!           └── 29 digits: worker (16 bits), slot (32), generation (32), MAC (64), one zero bit
//! ```
//!
//! If a proxy forks, the branch has `-` and 7 more digits, a hash of its routing input (RFC 5393 §4.2.1). So a request
//! that returns unchanged is recognized as a loop.
//!
//! Any worker can read whose it is, and nobody without the key can make one up. The digits are those of RFC 4648 §6 in
//! lower case. A branch is a token that is compared without regard to case (RFC 3261 §19.1.4, §7.3.1), which base64
//! does not allow.

use crate::header::HeaderKind;
use crate::message::Message;
use crate::siphash::HashKey;

/// RFC 3261 §8.1.1.7: what a branch that is unique begins with.
pub const MAGIC_COOKIE: &str = "z9hG4bK";
/// Marks a branch of this server, so that others are recognised without computing a MAC.
const MARK: u8 = b'h';
/// Marks a branch that belongs to no transaction: an ACK for a 2xx, or a request forwarded statelessly.
const STATELESS_MARK: u8 = b's';
const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
const DIGIT_COUNT: usize = 29;
/// Bytes of a branch, the magic cookie included.
pub const BRANCH_LEN: usize = MAGIC_COOKIE.len() + 1 + DIGIT_COUNT;

/// Marks the second part of a branch, for the detection of loops.
const SECOND_MARK: u8 = b'-';
/// Bytes of that part, its mark included.
pub const SECOND_LEN: usize = 8;

/// A hash of the input of a proxy's routing decision, as the second part of a branch has it (RFC 5393 §4.2.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoopCheck(u32);

impl LoopCheck {
    /// The second part of a branch: a hyphen, and 32 bits as 7 digits. The first three bits are zero.
    #[must_use]
    pub fn text(self) -> [u8; SECOND_LEN] {
        std::array::from_fn(|place| match place {
            0 => SECOND_MARK,
            place => DIGITS[(self.0 >> (5 * (SECOND_LEN - 1 - place))) as usize % 32],
        })
    }

    /// Reads the second part of a branch, in upper or lower case. `None` if the branch has none.
    #[must_use]
    pub fn of(branch: &[u8]) -> Option<LoopCheck> {
        let [SECOND_MARK, digits @ ..] = branch.last_chunk::<SECOND_LEN>()? else {
            return None;
        };
        let bits = digits.iter().try_fold(0_u64, |bits, digit| {
            Some(bits << 5 | u64::from(value(*digit)?))
        })?;
        u32::try_from(bits).ok().map(LoopCheck)
    }

    /// Whether a Via field may have a branch that ends with this. To read the field takes about 900 instructions more
    /// (callgrind).
    pub(crate) fn may_be_in(self, field: &[u8]) -> bool {
        memchr::memchr_iter(SECOND_MARK, field).any(|at| {
            let text = field.get(at..at + SECOND_LEN);
            text.and_then(LoopCheck::of) == Some(self)
        })
    }
}

/// Bytes of a To tag of ours.
pub const TAG_LEN: usize = 1 + DIGIT_COUNT;

/// Identifies a client transaction: its worker and its slot there. In a To tag, it identifies a server transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Branch {
    /// The worker that sent the request.
    pub worker: u16,
    /// The slot of the transaction in the table of this worker.
    pub slot: u32,
    /// Distinguishes successive transactions in the same slot.
    pub generation: u32,
}

/// What a branch turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BranchKind {
    /// A branch of this server, and the MAC is right.
    Ours(Branch),
    /// A branch of this server that belongs to no transaction.
    Stateless,
    /// It has the form of a branch of this server, but its MAC is wrong.
    Forged,
    /// Somebody else's.
    Foreign,
}

/// Makes and reads branches. The key is the same in all workers of a process.
#[derive(Clone, Copy, Debug)]
pub struct BranchCodec {
    key: HashKey,
    tag_key: HashKey,
    stateless_key: HashKey,
    loop_key: HashKey,
}

impl BranchCodec {
    /// With this key.
    #[must_use]
    pub fn new(key: HashKey) -> BranchCodec {
        BranchCodec {
            key: key.derive(u64::from_le_bytes(*b"branches")),
            tag_key: key.derive(u64::from_le_bytes(*b"to tags.")),
            stateless_key: key.derive(u64::from_le_bytes(*b"no state")),
            loop_key: key.derive(5393),
        }
    }

    fn mac(key: HashKey, branch: Branch) -> u64 {
        let mut bytes = [0; 10];
        bytes[..2].copy_from_slice(&branch.worker.to_be_bytes());
        bytes[2..6].copy_from_slice(&branch.slot.to_be_bytes());
        bytes[6..].copy_from_slice(&branch.generation.to_be_bytes());
        key.mac(&bytes)
    }

    fn tag_mac(&self, server: Branch, dialog: u64) -> u64 {
        let server = Self::mac(self.tag_key, server);
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&server.to_be_bytes());
        bytes[8..].copy_from_slice(&dialog.to_be_bytes());
        self.tag_key.mac(&bytes)
    }

    /// The text, magic cookie included.
    #[must_use]
    pub fn write(&self, branch: Branch) -> [u8; BRANCH_LEN] {
        text(
            MARK,
            branch.worker,
            branch.low(),
            Self::mac(self.key, branch),
        )
    }

    /// The hash of the dialog, on which a To tag of this server depends besides its transaction. Call-ID and From tag
    /// of the peer's requests identify the dialog (RFC 3261 §12). So a tag that was seen is useless in other dialogs.
    #[must_use]
    pub fn dialog(&self, call_id: &[u8], from_tag: &[u8]) -> u64 {
        let mut hasher = self.tag_key.fingerprint();
        for field in [call_id, from_tag] {
            hasher.field(field);
        }
        hasher.finish_128() as u64
    }

    /// A To tag that names a server transaction, so that the ACK for its 2xx, which has a branch of its own, finds it.
    #[must_use]
    pub fn write_tag(&self, server: Branch, dialog: u64) -> [u8; TAG_LEN] {
        let mac = self.tag_mac(server, dialog);
        let text = text(MARK, server.worker, server.low(), mac);
        std::array::from_fn(|place| text[MAGIC_COOKIE.len() + place])
    }

    /// Reads a tag that was written for this dialog; `None` for any other.
    #[must_use]
    pub fn read_tag(&self, tag: &[u8], dialog: u64) -> Option<Branch> {
        let [MARK, digits @ ..] = tag else {
            return None;
        };
        if digits.len() != DIGIT_COUNT {
            return None;
        }
        let (branch, mac) = read_digits(digits)?;
        (self.tag_mac(branch, dialog) == mac).then_some(branch)
    }

    /// The text of a branch that belongs to no transaction and differs for different numbers.
    #[must_use]
    pub fn write_stateless(&self, number: u128) -> [u8; BRANCH_LEN] {
        let bytes = number.to_le_bytes();
        let mac = self.stateless_key.mac(&bytes);
        let other = self.stateless_key.mac(&mac.to_le_bytes());
        text(STATELESS_MARK, mac as u16, other, mac)
    }

    /// A number for [`BranchCodec::write_stateless`], by what is sent.
    #[must_use]
    pub fn number_of(&self, message: &[u8]) -> u128 {
        let mut hasher = self.stateless_key.fingerprint();
        hasher.field(message);
        hasher.finish_128()
    }

    /// A hash of the input of a proxy's routing decision (RFC 5393 §4.2.1): the Request-URI, Route, and `others`.
    /// `others` is what else the location service looks at. The hash does not depend on the method. It depends on
    /// Call-ID and CSeq, so that a false loop detection does not repeat (§4.2.4).
    #[must_use]
    pub fn loop_check(&self, request: &Message<'_>, others: &[u8]) -> LoopCheck {
        let mut hasher = self.loop_key.fingerprint();
        hasher.field(request.request_uri().unwrap_or_default());
        for route in request.headers(HeaderKind::Route) {
            hasher.field(route.value);
        }
        hasher.field(others);
        hasher.field(request.call_id().unwrap_or_default());
        hasher.number(request.cseq().map_or(0, |cseq| cseq.number.into()));
        LoopCheck(hasher.finish_128() as u32)
    }

    /// Reads a branch, in upper or lower case, with or without a second part.
    #[must_use]
    pub fn read(&self, branch: &[u8]) -> BranchKind {
        let Some((cookie, rest)) = branch.split_at_checked(MAGIC_COOKIE.len()) else {
            return BranchKind::Foreign;
        };
        let [mark, digits @ ..] = rest else {
            return BranchKind::Foreign;
        };
        let (digits, second) = digits.split_at(digits.len().min(DIGIT_COUNT));
        let is_second = second.is_empty() || LoopCheck::of(second).is_some();
        let is_whole = digits.len() == DIGIT_COUNT && second.len() <= SECOND_LEN && is_second;
        if !cookie.eq_ignore_ascii_case(MAGIC_COOKIE.as_bytes()) || !is_whole {
            return BranchKind::Foreign;
        }
        match mark.to_ascii_lowercase() {
            MARK => match read_digits(digits) {
                // The time of this comparison reveals nothing of use: a guess is wrong in all 64 bits or in none.
                Some((branch, mac)) if Self::mac(self.key, branch) == mac => {
                    BranchKind::Ours(branch)
                }
                Some(_) => BranchKind::Forged,
                None => BranchKind::Foreign,
            },
            STATELESS_MARK => BranchKind::Stateless,
            _ => BranchKind::Foreign,
        }
    }
}

impl Branch {
    fn low(self) -> u64 {
        u64::from(self.slot) << 32 | u64::from(self.generation)
    }
}

/// 16, 64 and 64 bits as 29 digits of 5 bits. The last bit is zero.
fn text(mark: u8, high: u16, low: u64, mac: u64) -> [u8; BRANCH_LEN] {
    let mut out = [0; BRANCH_LEN];
    let (cookie, rest) = out.split_at_mut(MAGIC_COOKIE.len());
    cookie.copy_from_slice(MAGIC_COOKIE.as_bytes());
    rest[0] = mark;
    let mut bits: u128 = 0;
    let mut held = 0;
    let mut digits = rest[1..].iter_mut();
    let words = [(u64::from(high), 16), (low, 64), (mac, 64), (0, 1)];
    for (word, width) in words {
        bits = bits << width | u128::from(word);
        held += width;
        while held >= 5 {
            held -= 5;
            if let Some(place) = digits.next() {
                *place = DIGITS[(bits >> held) as usize % 32];
            }
        }
    }
    out
}

/// The numbers of [`text`]; `None` for what is no digit or has its last bit set.
fn read_digits(digits: &[u8]) -> Option<(Branch, u64)> {
    let mut bytes = [0; 18];
    let mut places = bytes.iter_mut();
    let mut bits: u32 = 0;
    let mut held = 0;
    for digit in digits {
        bits = bits << 5 | value(*digit)?;
        held += 5;
        if held >= 8 {
            held -= 8;
            *places.next()? = (bits >> held) as u8;
        }
    }
    if held != 1 || bits & 1 != 0 {
        return None;
    }
    let [w0, w1, rest @ ..] = bytes;
    let ([low, mac], []) = rest.as_chunks::<8>() else {
        return None;
    };
    let low = u64::from_be_bytes(*low);
    let branch = Branch {
        worker: u16::from_be_bytes([w0, w1]),
        slot: (low >> 32) as u32,
        generation: low as u32,
    };
    Some((branch, u64::from_be_bytes(*mac)))
}

fn value(digit: u8) -> Option<u32> {
    match digit {
        b'a'..=b'z' => Some(u32::from(digit - b'a')),
        b'A'..=b'Z' => Some(u32::from(digit - b'A')),
        b'2'..=b'7' => Some(u32::from(digit - b'2') + 26),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn codec() -> BranchCodec {
        BranchCodec::new(HashKey::new([5; 16]))
    }

    proptest! {
        #[test]
        fn written_branches_are_read_in_upper_and_lower_case(worker: u16, slot: u32, generation: u32) {
            let branch = Branch { worker, slot, generation };
            let text = codec().write(branch);
            prop_assert_eq!(codec().read(&text), BranchKind::Ours(branch));
            prop_assert_eq!(codec().read(&text.to_ascii_uppercase()), BranchKind::Ours(branch));
            prop_assert!(text.iter().all(u8::is_ascii_alphanumeric), "a token");
        }

        #[test]
        fn a_changed_digit_goes_nowhere(place in MAGIC_COOKIE.len() + 1..BRANCH_LEN, digit in 0usize..32) {
            let branch = Branch { worker: 1, slot: 77, generation: 9 };
            let mut text = codec().write(branch);
            prop_assume!(text[place] != DIGITS[digit]);
            text[place] = DIGITS[digit];
            prop_assert!(!matches!(codec().read(&text), BranchKind::Ours(_)));
        }

        #[test]
        fn nothing_panics(bytes in prop::collection::vec(any::<u8>(), 0..60)) {
            let _ = codec().read(&bytes);
        }
    }

    #[test]
    fn anothers_key_makes_a_forgery() {
        let branch = Branch {
            worker: 0,
            slot: 0,
            generation: 0,
        };
        let other = BranchCodec::new(HashKey::new([6; 16]));
        assert_eq!(codec().read(&other.write(branch)), BranchKind::Forged);
    }

    #[test]
    fn branches_of_others_are_recognized() {
        for foreign in [
            &b"z9hG4bKnashds8"[..],
            b"z9hG4bK",
            b"",
            b"1",
            b"z9hG4bK-524287-1---0a1b2c3d4e5f60718",
        ] {
            assert_eq!(codec().read(foreign), BranchKind::Foreign);
        }
    }

    #[test]
    fn a_tag_is_read_back_and_is_no_branch() {
        let branch = Branch {
            worker: 3,
            slot: 8,
            generation: 2,
        };
        let dialog = codec().dialog(b"1@a.example", b"9");
        let tag = codec().write_tag(branch, dialog);
        assert_eq!(codec().read_tag(&tag, dialog), Some(branch));
        for (call_id, tag_of_from) in [
            ("2@a.example", "9"),
            ("1@a.example", ""),
            ("1@a.exampl", "e9"),
        ] {
            let other = codec().dialog(call_id.as_bytes(), tag_of_from.as_bytes());
            assert_eq!(codec().read_tag(&tag, other), None);
        }
        let mut as_branch = codec().write(branch);
        as_branch[MAGIC_COOKIE.len()..].copy_from_slice(&tag);
        assert_eq!(codec().read(&as_branch), BranchKind::Forged);
        assert_eq!(codec().read_tag(b"1928301774", dialog), None);
        assert_eq!(codec().read_tag(&tag[1..], dialog), None);
    }

    #[test]
    fn stateless_branches_differ_and_are_known_as_such() {
        let one = codec().write_stateless(1);
        assert_ne!(one, codec().write_stateless(2));
        assert_eq!(one, codec().write_stateless(1));
        assert_eq!(codec().read(&one), BranchKind::Stateless);
    }
}
