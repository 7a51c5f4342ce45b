//! What a unit of work has to remember of a response: a dialog.

use crate::sip::lines::Lines;

/// What the 2xx of an INVITE says about its dialog (RFC 3261 §12.1.2). Its buffer is used again by the next call.
#[derive(Debug, Default)]
pub(super) struct Dialog {
    /// Remote target, value of To, Route lines.
    bytes: Vec<u8>,
    target_end: usize,
    to_end: usize,
    /// From the intended time of the INVITE to its 2xx.
    pub(super) answered_after_ns: u64,
}

impl Dialog {
    /// Takes what is needed of a final response. Without a Contact the request URI is empty.
    pub(super) fn read(&mut self, response: &[u8], success: bool) {
        self.bytes.clear();
        let contact = Lines::of(response).find(b"Contact", b"m");
        if let (true, Some(contact)) = (success, contact) {
            self.bytes.extend_from_slice(uri(contact));
        }
        self.target_end = self.bytes.len();
        let to = Lines::of(response).find(b"To", b"t").unwrap_or_default();
        self.bytes.extend_from_slice(to);
        self.to_end = self.bytes.len();
        if success {
            self.read_routes(response);
        }
    }

    /// The route set of a UAC is the Record-Route values from the last to the first.
    fn read_routes(&mut self, response: &[u8]) {
        let route = |line: &crate::sip::lines::Line<'_>| line.is(b"Record-Route", b"Record-Route");
        let count = Lines::of(response).filter(route).count();
        for back in (0..count).rev() {
            let line = Lines::of(response).filter(route).nth(back);
            let mut rest = line.map_or(&b""[..], |line| line.value);
            // Within a line the values stand in the other order, too. An address in a Record-Route is in angle brackets
            // (§20.30).
            while let Some(open) = memchr::memrchr(b'<', rest) {
                let end = memchr::memrchr(b'>', rest).map_or(rest.len(), |close| close + 1);
                self.bytes.extend_from_slice(b"Route: ");
                self.bytes.extend_from_slice(&rest[open..end.max(open)]);
                self.bytes.extend_from_slice(b"\r\n");
                rest = &rest[..open];
            }
        }
    }

    /// Is that of a call to `uri` that nothing has answered.
    pub(super) fn begin(&mut self, uri: &[u8]) {
        self.bytes.clear();
        self.bytes.extend_from_slice(uri);
        self.target_end = self.bytes.len();
        for part in [b"<", uri, b">"] {
            self.bytes.extend_from_slice(part);
        }
        self.to_end = self.bytes.len();
    }

    /// Puts another request URI in the place of the one that was read.
    pub(super) fn set_target(&mut self, uri: &[u8]) {
        let grown = uri.len();
        self.bytes.splice(..self.target_end, uri.iter().copied());
        self.to_end = self.to_end - self.target_end + grown;
        self.target_end = grown;
    }

    /// Request URI of requests within the dialog.
    pub(super) fn target(&self) -> &[u8] {
        &self.bytes[..self.target_end]
    }

    /// Value of To.
    pub(super) fn to(&self) -> &[u8] {
        &self.bytes[self.target_end..self.to_end]
    }

    /// Route lines.
    pub(super) fn routes(&self) -> &[u8] {
        &self.bytes[self.to_end..]
    }
}

/// The URI in the value of a Contact.
fn uri(contact: &[u8]) -> &[u8] {
    let Some(open) = memchr::memchr(b'<', contact) else {
        // Without brackets, parameters are the header's (§20.10).
        let end = contact
            .iter()
            .position(|byte| matches!(byte, b';' | b',' | b' '));
        return &contact[..end.unwrap_or(contact.len())];
    };
    let rest = &contact[open + 1..];
    &rest[..memchr::memchr(b'>', rest).unwrap_or(rest.len())]
}

#[cfg(test)]
mod tests {
    use super::*;

    const OK: &[u8] = b"SIP/2.0 200 OK\r\nRecord-Route: <sip:p3;lr>, \"x\" <sip:p2;lr>;a=b\r\nRecord-Route: <sip:p1;lr>\r\n\
        t: <sip:b@h>;tag=9\r\nm: \"B\" <sip:b@10.0.0.9;transport=udp>;expires=5\r\n\r\n";

    #[test]
    fn a_dialog_is_read_from_its_answer() {
        let mut dialog = Dialog::default();
        dialog.read(OK, true);
        assert_eq!(dialog.target(), b"sip:b@10.0.0.9;transport=udp");
        assert_eq!(dialog.to(), b"<sip:b@h>;tag=9");
        assert_eq!(
            dialog.routes(),
            b"Route: <sip:p1;lr>\r\nRoute: <sip:p2;lr>\r\nRoute: <sip:p3;lr>\r\n"
        );
    }

    #[test]
    fn a_refusal_is_acknowledged_where_the_invite_went() {
        let mut dialog = Dialog::default();
        dialog.read(OK, false);
        dialog.set_target(b"sip:service@h");
        assert_eq!(
            (dialog.target(), dialog.to(), dialog.routes()),
            (&b"sip:service@h"[..], &b"<sip:b@h>;tag=9"[..], &b""[..])
        );
    }

    #[test]
    fn a_contact_without_brackets_ends_at_its_parameters() {
        assert_eq!(uri(b"sip:a@h;expires=3"), b"sip:a@h");
        assert_eq!(uri(b"<sip:a@h"), b"sip:a@h");
        assert_eq!(uri(b""), b"");
    }

    #[test]
    fn before_an_answer_a_dialog_is_what_was_called() {
        let mut dialog = Dialog::default();
        dialog.read(OK, true);
        dialog.begin(b"sip:b@h");
        let parts = (dialog.target(), dialog.to(), dialog.routes());
        assert_eq!(parts, (&b"sip:b@h"[..], &b"<sip:b@h>"[..], &b""[..]));
    }
}
