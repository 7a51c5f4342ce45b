//! Requests from the server or from a peer behind it: the generator responds as a telephone does.

use std::net::SocketAddr;

use super::core::{Core, WorkContext};
use super::slots::Stage;
use super::template::{ID_LENGTH, read_id};
use super::texts::SALT;
use crate::measure::Counter;
use crate::sip::lines::Lines;
use crate::sip::out::Origin;
use crate::sip::uas::{Ends, Method, respond};

/// Which dialog of ours a request is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialog {
    /// Of the unit in this place.
    Of(u32),
    /// Of a unit that is over.
    Over,
    Unknown,
}

impl Core {
    /// Takes what is no response.
    pub(super) fn take_request(&mut self, origin: Origin, message: &[u8], around: WorkContext<'_>) {
        let measuring = u64::from(around.shared.measured(around.now_ns));
        let Some(method) = Method::of(message) else {
            let blank = message.iter().all(u8::is_ascii_whitespace);
            self.tally.report.broken += measuring * u64::from(!blank);
            return;
        };
        around.counters.add(Counter::Heard, 1);
        let ends = Ends {
            from: origin.from,
            local: self.local_of(origin),
            transport: self.setting.options.transport,
        };
        let dialog = match method {
            Method::Bye | Method::Invite => self.dialog_of(message),
            _ => Dialog::Unknown,
        };
        let status: &[u8] = match (method, dialog) {
            (Method::Bye, Dialog::Of(place)) => {
                self.tally.report.hung_up += measuring;
                self.answer(origin, message, method, b"200 OK", ends);
                return self.handle_bye(place, around);
            }
            (Method::Bye, Dialog::Over) => b"200 OK",
            (Method::Invite, Dialog::Of(_)) => b"488 Not Acceptable Here",
            _ => {
                if let Some(answerer) = &mut self.answerer {
                    return answerer.take(origin.link, message, ends, &mut self.out);
                }
                match method {
                    Method::Ack => return,
                    Method::Options => b"200 OK",
                    Method::Bye | Method::Cancel => b"481 Call/Transaction Does Not Exist",
                    Method::Invite => b"480 Temporarily Unavailable",
                    // RFC 3261 §21.4.6: a 405 lists the supported methods.
                    _ => b"405 Method Not Allowed\r\nAllow: ACK, BYE, OPTIONS",
                }
            }
        };
        self.tally.report.foreign_requests += measuring;
        self.answer(origin, message, method, status, ends);
    }

    fn answer(
        &mut self,
        origin: Origin,
        message: &[u8],
        method: Method,
        status: &[u8],
        ends: Ends,
    ) {
        // RFC 3261 §8.2.6.2: a retransmission gets the same tag.
        let call_id = Lines::of(message)
            .find(b"Call-ID", b"i")
            .unwrap_or_default();
        let tag = call_id
            .iter()
            .fold(0xCBF2_9CE4_8422_2325u64, |hash, &byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01B3)
            });
        self.out.write(origin.link, origin.from, |into| {
            respond(into, message, method, status, tag, ends);
        });
    }

    fn local_of(&self, origin: Origin) -> SocketAddr {
        self.links[origin.link as usize].local
    }

    /// A dialog is identified by Call-ID and both tags (RFC 3261 §12).
    fn dialog_of(&mut self, message: &[u8]) -> Dialog {
        let lines = || Lines::of(message);
        let call_id = lines().find(b"Call-ID", b"i").unwrap_or_default();
        let salt = &self.needle[7..];
        let id = call_id
            .get(..SALT)
            .filter(|start| *start == salt)
            .and_then(|_| call_id.get(SALT..));
        let to = lines().find(b"To", b"t").unwrap_or_default();
        let own_tag = tag(to);
        let id = id.filter(|id| id.get(..ID_LENGTH) == own_tag);
        let Some((place, generation)) = id.and_then(read_id) else {
            return Dialog::Unknown;
        };
        if self.slots.was(place, generation) {
            return Dialog::Over;
        }
        let Some(slot) = self.slots.find(place, generation) else {
            return Dialog::Unknown;
        };
        let is_up = matches!(slot.stage, Stage::Talking | Stage::Bye);
        let remote = self.memories.get(place as usize);
        let remote = remote.and_then(|memory| tag(memory.dialog.to()));
        let from = lines().find(b"From", b"f").unwrap_or_default();
        match is_up && remote.is_some() && remote == tag(from) {
            true => Dialog::Of(place),
            false => Dialog::Unknown,
        }
    }

    /// The other side has ended the call.
    fn handle_bye(&mut self, place: u32, around: WorkContext<'_>) {
        let slot = self.slots.get_mut(place);
        slot.hung_up = true;
        // If the two BYEs cross, the other side still responds to ours.
        if slot.stage == Stage::Talking {
            self.succeed(place, around);
        }
    }

    /// Sends the callee's answers that are due.
    pub(super) fn repeat_answers(&mut self, around: WorkContext<'_>) {
        if let Some(answerer) = &mut self.answerer {
            answerer.repeat(around.now_ns, &mut self.out);
        }
    }
}

/// The tag in the value of From or To.
fn tag(value: &[u8]) -> Option<&[u8]> {
    let parameters = memchr::memrchr(b'>', value).unwrap_or(0);
    let rest = &value[parameters..];
    let at = memchr::memmem::find(rest, b";tag=")?;
    let rest = &rest[at + 5..];
    let end = rest
        .iter()
        .position(|byte| matches!(byte, b';' | b' ' | b'\t'));
    Some(&rest[..end.unwrap_or(rest.len())])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tag_is_read_behind_the_address() {
        assert_eq!(tag(b"<sip:a@h;tag=no>;x;tag=yes;y"), Some(&b"yes"[..]));
        assert_eq!(tag(b"sip:a@h;tag=1"), Some(&b"1"[..]));
        assert_eq!(tag(b"<sip:a@h>"), None);
    }
}
