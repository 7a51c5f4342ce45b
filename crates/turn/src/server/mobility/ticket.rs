//! Tickets (RFC 8016 §3.3): which allocation the holder may move, encrypted and authenticated.
//!
//! ```text
//!  base64url( tag, 12 bytes ‖ content, 15 bytes, encrypted )
//! ```
//!
//! It is text because turnutils_uclient handles tickets as strings: it would cut one at a byte of zero.
//!
//! The tag is HMAC-SHA256 of the content under one key. The content is XORed with HMAC-SHA256 of the tag under another.
//! So a ticket is the same whenever it is made again, and two tickets differ in all of their bytes. The serial number
//! makes each ticket of an allocation another one.
//!
//! The nodes of a cluster share both keys. Each epoch has other keys. The content names the process that has the
//! allocation. So a node recognises a ticket of another node, and responds that the allocation is not there (437). A
//! ticket that no node has made is invalid (400; RFC 8016 §3.2.2).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use stun::{ErrorCode, HmacKey};

/// Characters of a ticket.
pub(in super::super) const LEN: usize = (TAG + CONTENT) / 3 * 4;

const TAG: usize = 12;
const CONTENT: usize = TICKET + ORIGIN;
const TICKET: usize = 12;
/// With 24 bits, two processes of 1,000 have the same origin with a probability of 3 %. Even then, a ticket must match
/// the user, the generation and the serial number of an allocation of the other process.
const ORIGIN: usize = 3;

/// The keys of tickets. Workers that share them accept each other's tickets.
#[derive(Clone, Debug)]
pub struct TicketKeys {
    current: SealKeys,
    /// Tickets that were made with these keys are valid as well.
    others: Option<[SealKeys; 2]>,
    /// The process whose allocations its tickets name.
    origin: [u8; ORIGIN],
}

/// Both keys of one epoch.
#[derive(Clone, Debug)]
struct SealKeys {
    mac: HmacKey,
    cipher: HmacKey,
}

/// What a ticket says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Ticket {
    /// The worker that has the allocation.
    pub(in super::super) worker: u8,
    /// Its client's index there, and the generation of that.
    pub(in super::super) index: u32,
    pub(in super::super) generation: u32,
    /// Counts the tickets of the allocation; 24 bits.
    pub(in super::super) serial: u32,
}

impl TicketKeys {
    /// Keys made from 32 secret random bytes.
    #[must_use]
    pub fn new(secret: &[u8; 32]) -> TicketKeys {
        TicketKeys {
            current: SealKeys::new(secret),
            others: None,
            origin: origin(secret),
        }
    }

    /// Keys made from what all nodes of a cluster share: 32 bytes for each of three consecutive epochs. The middle one
    /// makes tickets. They name allocations of the process that has these 32 random bytes.
    #[must_use]
    pub fn of_epochs([previous, current, next]: &[[u8; 32]; 3], process: &[u8; 32]) -> TicketKeys {
        TicketKeys {
            current: SealKeys::new(current),
            others: Some([SealKeys::new(previous), SealKeys::new(next)]),
            origin: origin(process),
        }
    }

    pub(in super::super) fn seal(&self, ticket: &Ticket) -> [u8; LEN] {
        let mut content = [0; CONTENT];
        content[..TICKET].copy_from_slice(&ticket.to_bytes());
        content[TICKET..].copy_from_slice(&self.origin);
        let tag = self.current.mac.tag(&content);
        let mut sealed = [0; TAG + CONTENT];
        let (head, body) = sealed.split_at_mut(TAG);
        head.copy_from_slice(&tag.as_bytes()[..TAG]);
        body.copy_from_slice(&self.current.crypt(head, content));
        let mut text = [0; LEN];
        // It has exactly the length of the text.
        let _ = URL_SAFE_NO_PAD.encode_slice(sealed, &mut text);
        text
    }

    /// The content of a ticket.
    ///
    /// # Errors
    /// RFC 8016 §3.2.2: 400 if these keys did not make it, 437 if the allocation is not one of this process.
    pub(in super::super) fn open(&self, sealed: &[u8]) -> Result<Ticket, ErrorCode<'static>> {
        let content = self.decrypt(sealed).ok_or(ErrorCode::BAD_REQUEST)?;
        let (ticket, origin) = content.split_at(TICKET);
        match ticket.try_into() {
            Ok(ticket) if origin == self.origin => Ok(Ticket::of_bytes(ticket)),
            _ => Err(ErrorCode::ALLOCATION_MISMATCH),
        }
    }

    fn decrypt(&self, sealed: &[u8]) -> Option<[u8; CONTENT]> {
        let text: &[u8; LEN] = sealed.try_into().ok()?;
        let mut sealed = [0; TAG + CONTENT];
        let length = URL_SAFE_NO_PAD.decode_slice(text, &mut sealed).ok()?;
        if length != sealed.len() {
            return None;
        }
        let (tag, body) = sealed.split_first_chunk::<TAG>()?;
        let body = body.try_into().ok()?;
        let others = self.others.iter().flatten();
        let mut all = std::iter::once(&self.current).chain(others);
        all.find_map(|keys| keys.decrypt(tag, body))
    }
}

/// What tickets call the process that has these random bytes.
fn origin(process: &[u8; 32]) -> [u8; ORIGIN] {
    let of_process = HmacKey::sha256(process).tag(b"mobility ticket: process");
    let mut origin = [0; ORIGIN];
    origin.copy_from_slice(&of_process.as_bytes()[..ORIGIN]);
    origin
}

impl SealKeys {
    fn new(secret: &[u8; 32]) -> SealKeys {
        let secret = HmacKey::sha256(secret);
        let derived = |purpose: &[u8]| HmacKey::sha256(secret.tag(purpose).as_bytes());
        SealKeys {
            mac: derived(b"mobility ticket: authenticate"),
            cipher: derived(b"mobility ticket: encrypt"),
        }
    }

    fn decrypt(&self, tag: &[u8; TAG], body: [u8; CONTENT]) -> Option<[u8; CONTENT]> {
        let content = self.crypt(tag, body);
        let is_genuine = self.mac.tag(&content).starts_with(tag);
        is_genuine.then_some(content)
    }

    /// Encrypts or decrypts.
    fn crypt(&self, tag: &[u8], mut content: [u8; CONTENT]) -> [u8; CONTENT] {
        let stream = self.cipher.tag(tag);
        for (byte, mask) in content.iter_mut().zip(stream.as_bytes()) {
            *byte ^= mask;
        }
        content
    }
}

impl Ticket {
    fn to_bytes(self) -> [u8; TICKET] {
        let mut bytes = [0; TICKET];
        bytes[0] = self.worker;
        bytes[1..4].copy_from_slice(&self.serial.to_be_bytes()[1..]);
        bytes[4..8].copy_from_slice(&self.index.to_be_bytes());
        bytes[8..].copy_from_slice(&self.generation.to_be_bytes());
        bytes
    }

    fn of_bytes(bytes: [u8; TICKET]) -> Ticket {
        let [worker, s0, s1, s2, i0, i1, i2, i3, g0, g1, g2, g3] = bytes;
        Ticket {
            worker,
            serial: u32::from_be_bytes([0, s0, s1, s2]),
            index: u32::from_be_bytes([i0, i1, i2, i3]),
            generation: u32::from_be_bytes([g0, g1, g2, g3]),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICKET: Ticket = Ticket {
        worker: 3,
        index: 70_000,
        generation: 5,
        serial: 0x00ab_cdef,
    };

    #[test]
    fn a_ticket_comes_back_as_it_was_and_no_other_key_opens_it() {
        let keys = TicketKeys::new(&[1; 32]);
        let sealed = keys.seal(&TICKET);
        assert_eq!(sealed, keys.seal(&TICKET));
        assert_eq!(keys.open(&sealed), Ok(TICKET));
        let invalid = Err(ErrorCode::BAD_REQUEST);
        assert_eq!(TicketKeys::new(&[2; 32]).open(&sealed), invalid);
        assert_eq!(keys.open(&sealed[1..]), invalid);
        assert_eq!(keys.open(&[]), invalid);
    }

    #[test]
    fn a_ticket_of_another_node_is_genuine_but_its_allocation_is_not_there_rfc8016_3_2_2() {
        let node = |process| epoch(1, process);
        let sealed = node(7).seal(&TICKET);
        assert_eq!(node(7).open(&sealed), Ok(TICKET));
        assert_eq!(node(8).open(&sealed), Err(ErrorCode::ALLOCATION_MISMATCH));
        assert_eq!(epoch(9, 7).open(&sealed), Err(ErrorCode::BAD_REQUEST));
    }

    /// The keys of a process in an epoch.
    fn epoch(number: u8, process: u8) -> TicketKeys {
        let around = [number - 1, number, number + 1];
        TicketKeys::of_epochs(&around.map(|number| [number; 32]), &[process; 32])
    }

    #[test]
    fn a_ticket_is_valid_in_its_own_epoch_and_in_the_ones_around_it() {
        let sealed = epoch(5, 7).seal(&TICKET);
        for (number, is_valid) in [(3, false), (4, true), (5, true), (6, true), (7, false)] {
            let expected = is_valid.then_some(TICKET).ok_or(ErrorCode::BAD_REQUEST);
            assert_eq!(epoch(number, 7).open(&sealed), expected, "{number}");
        }
        assert_ne!(epoch(6, 7).seal(&TICKET), sealed);
    }

    #[test]
    fn no_bit_of_a_ticket_can_be_changed() {
        let keys = TicketKeys::new(&[1; 32]);
        for bit in 0..LEN * 8 {
            let mut sealed = keys.seal(&TICKET);
            sealed[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(keys.open(&sealed), Err(ErrorCode::BAD_REQUEST), "bit {bit}");
        }
    }

    #[test]
    fn tickets_of_one_allocation_have_nothing_in_common() {
        let keys = TicketKeys::new(&[1; 32]);
        let [one, next] = [0, 1].map(|serial| keys.seal(&Ticket { serial, ..TICKET }));
        let same = one.iter().zip(&next).filter(|(one, next)| one == next);
        assert!(same.count() < 8, "{one:?} {next:?}");
    }
}
