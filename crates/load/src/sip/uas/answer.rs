//! A response out of a request's own lines.

use std::net::SocketAddr;

use memchr::memmem;

use crate::sip::Transport;
use crate::sip::lines::Lines;

/// What a request is, as far as an answer depends on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Options,
    Register,
    Invite,
    Ack,
    Bye,
    Cancel,
    Other,
}

impl Method {
    /// Of a message; `None` if it is no request.
    pub(crate) fn of(message: &[u8]) -> Option<Method> {
        let end = memchr::memchr(b'\n', message)?;
        let line = message[..end].trim_ascii_end();
        if !line.ends_with(b" SIP/2.0") {
            return None;
        }
        Some(match &line[..memchr::memchr(b' ', line)?] {
            b"OPTIONS" => Method::Options,
            b"REGISTER" => Method::Register,
            b"INVITE" => Method::Invite,
            b"ACK" => Method::Ack,
            b"BYE" => Method::Bye,
            b"CANCEL" => Method::Cancel,
            _ => Method::Other,
        })
    }
}

/// Where a request came from, and what the answer says about us.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) from: SocketAddr,
    pub(crate) local: SocketAddr,
    pub(crate) transport: Transport,
}

/// Appends the response `status` ("200 OK") to `request`. RFC 3261 §8.2.6.2: From, Call-ID, CSeq and the Vias as they
/// came, To with a tag of ours.
pub(crate) fn respond(
    into: &mut Vec<u8>,
    request: &[u8],
    method: Method,
    status: &[u8],
    tag: u64,
    ends: Ends,
) {
    for part in [b"SIP/2.0 ", status, b"\r\n"] {
        into.extend_from_slice(part);
    }
    let mut first_via = true;
    for line in Lines::of(request) {
        match line.name.first().map(u8::to_ascii_lowercase) {
            Some(b'v') if line.is(b"Via", b"v") => {
                if std::mem::take(&mut first_via) {
                    via(into, line.whole, ends.from);
                } else {
                    into.extend_from_slice(line.whole);
                }
            }
            Some(b't') if line.is(b"To", b"t") => to(into, line.whole, tag),
            Some(b'f') if line.is(b"From", b"f") => into.extend_from_slice(line.whole),
            Some(b'c' | b'i') if line.is(b"Call-ID", b"i") || line.is(b"CSeq", b"CSeq") => {
                into.extend_from_slice(line.whole);
            }
            Some(b'r') if line.is(b"Record-Route", b"Record-Route") => {
                into.extend_from_slice(line.whole);
            }
            // RFC 3261 §10.3: a registrar lists the bindings.
            Some(b'c' | b'm' | b'e')
                if method == Method::Register
                    && (line.is(b"Contact", b"m") || line.is(b"Expires", b"Expires")) =>
            {
                into.extend_from_slice(line.whole);
            }
            _ => {}
        }
    }
    // A refusal has none: it begins no dialog.
    if method == Method::Invite && !status.starts_with(b"4") {
        contact(into, ends);
    }
    into.extend_from_slice(b"Content-Length: 0\r\n\r\n");
}

/// The topmost Via: RFC 3581 §4 fills in `rport` where it was asked for.
fn via(into: &mut Vec<u8>, line: &[u8], from: SocketAddr) {
    const RPORT: &[u8] = b";rport";
    let asked = memmem::find(line, RPORT).filter(|at| line.get(at + RPORT.len()) != Some(&b'='));
    let Some(at) = asked else {
        into.extend_from_slice(line);
        return;
    };
    let (head, tail) = line.split_at(at + RPORT.len());
    into.extend_from_slice(head);
    into.push(b'=');
    decimal(into, from.port());
    into.extend_from_slice(b";received=");
    address(into, from);
    into.extend_from_slice(tail);
}

fn to(into: &mut Vec<u8>, line: &[u8], tag: u64) {
    let parameters = memchr::memrchr(b'>', line).unwrap_or(0);
    if memmem::find(&line[parameters..], b"tag=").is_some() {
        into.extend_from_slice(line);
        return;
    }
    into.extend_from_slice(line.trim_ascii_end());
    into.extend_from_slice(b";tag=");
    for shift in (0..16).rev() {
        let digit = (tag >> (shift * 4)) as usize & 15;
        into.push(b"0123456789abcdef"[digit]);
    }
    into.extend_from_slice(b"\r\n");
}

fn contact(into: &mut Vec<u8>, ends: Ends) {
    into.extend_from_slice(b"Contact: <sip:uas@");
    let v6 = ends.local.is_ipv6();
    into.extend_from_slice(if v6 { b"[" } else { b"" });
    address(into, ends.local);
    into.extend_from_slice(if v6 { b"]:" } else { b":" });
    decimal(into, ends.local.port());
    into.extend_from_slice(b";transport=");
    into.extend_from_slice(ends.transport.in_uri().as_bytes());
    into.extend_from_slice(b">\r\n");
}

fn address(into: &mut Vec<u8>, address: SocketAddr) {
    use std::io::Write;
    // Writing to a vector cannot fail.
    let _ = write!(into, "{}", address.ip());
}

fn decimal(into: &mut Vec<u8>, number: u16) {
    use std::io::Write;
    let _ = write!(into, "{number}");
}

#[cfg(test)]
mod tests {
    use super::*;

    const INVITE: &[u8] = b"INVITE sip:b@h SIP/2.0\r\nVia: SIP/2.0/UDP p:5060;branch=z9hG4bKx;rport\r\nv: SIP/2.0/UDP q;rport\r\n\
        f: <sip:a@h>;tag=1\r\nTo: <sip:b@h>\r\ni: abc\r\nCSeq: 1 INVITE\r\nSubject: tag=9\r\nl: 0\r\n\r\n";

    fn ends() -> Ends {
        Ends {
            from: "192.0.2.1:999".parse().unwrap(),
            local: "[::1]:5060".parse().unwrap(),
            transport: Transport::Tcp,
        }
    }

    fn answer(request: &[u8], status: &[u8]) -> String {
        let mut bytes = Vec::new();
        let method = Method::of(request).unwrap();
        respond(&mut bytes, request, method, status, 0xAB, ends());
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn a_response_has_the_lines_it_must_have() {
        let text = answer(INVITE, b"200 OK");
        assert_eq!(
            text,
            "SIP/2.0 200 OK\r\nVia: SIP/2.0/UDP p:5060;branch=z9hG4bKx;rport=999;received=192.0.2.1\r\nv: SIP/2.0/UDP q;rport\r\n\
             f: <sip:a@h>;tag=1\r\nTo: <sip:b@h>;tag=00000000000000ab\r\ni: abc\r\nCSeq: 1 INVITE\r\n\
             Contact: <sip:uas@[::1]:5060;transport=tcp>\r\nContent-Length: 0\r\n\r\n"
        );
    }

    #[test]
    fn a_tag_that_is_there_stays() {
        let bye = String::from_utf8(INVITE.to_vec()).unwrap();
        let bye = bye
            .replace("INVITE", "BYE")
            .replace("To: <sip:b@h>", "To: <sip:b@h>;tag=2");
        let text = answer(bye.as_bytes(), b"200 OK");
        assert!(
            text.contains("To: <sip:b@h>;tag=2\r\n") && !text.contains("Contact"),
            "{text}"
        );
    }

    #[test]
    fn other_texts_are_not_parsed_as_requests() {
        for text in [
            &b"SIP/2.0 200 OK\r\n\r\n"[..],
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
        ] {
            assert_eq!(Method::of(text), None);
        }
        assert_eq!(
            Method::of(b"INFO sip:a SIP/2.0\r\n\r\n"),
            Some(Method::Other)
        );
    }
}
