//! Registration information documents (RFC 3680 §5).

use sip::Mono;
use sip::uri::starts_with_sips;

use super::contacts::{Contact, Event};
use crate::Aor;
use crate::registrar::{MAX_INSTANCE, escape_instance};

/// The media type of the documents.
pub(super) const MEDIA_TYPE: &[u8] = b"application/reginfo+xml";

/// Writes a document. `is_full` says that it has all contacts; otherwise it has those that have changed.
pub(super) fn write(
    body: &mut Vec<u8>,
    (version, is_full): (u32, bool),
    aor: &Aor,
    is_active: bool,
    contacts: &[(&Contact, Event)],
    now: Mono,
) {
    let mut digits = [0; 10];
    body.extend_from_slice(
        b"<?xml version=\"1.0\"?>\r\n<reginfo xmlns=\"urn:ietf:params:xml:ns:reginfo\"\
          \x20xmlns:gr=\"urn:ietf:params:xml:ns:gruuinfo\" version=\"",
    );
    body.extend_from_slice(sip::build::decimal(version, &mut digits));
    body.extend_from_slice(b"\" state=\"");
    body.extend_from_slice(if is_full { b"full" } else { b"partial" });
    body.extend_from_slice(b"\">\r\n  <registration aor=\"sip:");
    write_aor(body, aor);
    // RFC 3680 §5.2: without contacts it is `init` in a full document, and `terminated` when the last one has ended.
    let state: &[u8] = match (is_active, is_full && contacts.is_empty()) {
        (true, _) => b"active",
        (false, true) => b"init",
        (false, false) => b"terminated",
    };
    // One registration per document, so any number that stays the same will do.
    body.extend_from_slice(b"\" id=\"r1\" state=\"");
    body.extend_from_slice(state);
    body.extend_from_slice(b"\">\r\n");
    for (contact, event) in contacts {
        write_contact(body, aor, contact, *event, now);
    }
    body.extend_from_slice(b"  </registration>\r\n</reginfo>\r\n");
}

/// Writes an address without its scheme.
fn write_aor(body: &mut Vec<u8>, aor: &Aor) {
    let mut buffer = [0; 3 * crate::MAX_AOR];
    if let Some(user) = aor.user() {
        let user = sip::uri::escape_user(user, &mut buffer);
        escape(body, user.unwrap_or_default());
        body.push(b'@');
    }
    escape(body, aor.domain());
}

/// Writes the public GRUU of a contact with an instance (RFC 5628 §5.1). Its scheme is that of the contact
/// (RFC 5630 §5.2.1).
fn write_gruu(body: &mut Vec<u8>, aor: &Aor, contact: &Contact) {
    let mut buffer = [0; 3 * MAX_INSTANCE];
    let Some(instance) = escape_instance(&contact.instance, &mut buffer) else {
        return;
    };
    body.extend_from_slice(b"      <gr:pub-gruu uri=\"");
    body.extend_from_slice(match starts_with_sips(&contact.uri) {
        true => b"sips:",
        false => b"sip:",
    });
    write_aor(body, aor);
    body.extend_from_slice(b";gr=");
    escape(body, instance);
    body.extend_from_slice(b"\"/>\r\n");
}

fn write_contact(body: &mut Vec<u8>, aor: &Aor, contact: &Contact, event: Event, now: Mono) {
    let mut digits = [0; 10];
    let mut number = |body: &mut Vec<u8>, name: &[u8], value: u64| {
        body.extend_from_slice(name);
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        body.extend_from_slice(sip::build::decimal(value, &mut digits));
        body.push(b'"');
    };
    number(body, b"    <contact id=\"c", contact.id);
    body.extend_from_slice(b" state=\"");
    body.extend_from_slice(if event.ends() {
        b"terminated"
    } else {
        b"active"
    });
    body.extend_from_slice(b"\" event=\"");
    body.extend_from_slice(event.name());
    body.push(b'"');
    let registered = now.since(contact.since).as_secs();
    number(body, b" duration-registered=\"", registered);
    if !event.ends() {
        number(body, b" expires=\"", contact.expires.since(now).as_secs());
    }
    if let Some(q) = contact.q {
        body.extend_from_slice(b" q=\"");
        body.push(b'0' + (q / 1000).min(1) as u8);
        let digit = |weight: u16| b'0' + (q / weight % 10) as u8;
        body.extend_from_slice(&[b'.', digit(100), digit(10), digit(1), b'"']);
    }
    number(body, b" cseq=\"", contact.cseq.into());
    body.extend_from_slice(b" callid=\"");
    escape(body, &contact.call_id);
    body.extend_from_slice(b"\">\r\n      <uri>");
    escape(body, &contact.uri);
    body.extend_from_slice(b"</uri>\r\n");
    if !contact.instance.is_empty() {
        // RFC 3680 §5.2: parameters that RFC 3261 does not define, as RFC 5628 §5.2 shows it.
        body.extend_from_slice(b"      <unknown-param name=\"+sip.instance\">\"&lt;");
        escape(body, &contact.instance);
        body.extend_from_slice(b"&gt;\"</unknown-param>\r\n");
    }
    if contact.reg_id != 0 {
        let mut digits = [0; 10];
        body.extend_from_slice(b"      <unknown-param name=\"reg-id\">");
        body.extend_from_slice(sip::build::decimal(contact.reg_id, &mut digits));
        body.extend_from_slice(b"</unknown-param>\r\n");
    }
    if !contact.instance.is_empty() && !event.ends() {
        write_gruu(body, aor, contact);
    }
    body.extend_from_slice(b"    </contact>\r\n");
}

/// Writes text of a message into XML. What XML 1.0 cannot have (§2.2), or what is no UTF-8, becomes a question mark.
fn escape(body: &mut Vec<u8>, text: &[u8]) {
    for chunk in text.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '&' => body.extend_from_slice(b"&amp;"),
                '<' => body.extend_from_slice(b"&lt;"),
                '>' => body.extend_from_slice(b"&gt;"),
                '"' => body.extend_from_slice(b"&quot;"),
                '\t' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'.. => {
                    let mut buffer = [0; 4];
                    body.extend_from_slice(character.encode_utf8(&mut buffer).as_bytes());
                }
                _ => body.push(b'?'),
            }
        }
        if !chunk.invalid().is_empty() {
            body.push(b'?');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::location::{Binding, NO_Q, NewBinding};
    use crate::reg_event::contacts::{Cause, Contacts};

    #[test]
    fn text_cannot_end_what_it_stands_in() {
        let mut body = Vec::new();
        escape(&mut body, b"a\"<&>\x00\xff\xc3\xa4");
        let text = "a&quot;&lt;&amp;&gt;??\u{e4}";
        assert_eq!(body, text.as_bytes());
    }

    /// A document about two contacts of one address.
    fn document(instance: &str, scheme: &str, ends: bool) -> String {
        let binding = |uri: &str, instance: &str| {
            let params = match instance {
                "" => String::new(),
                instance => format!(";+sip.instance=\"<{instance}>\""),
            };
            Binding::new(&NewBinding {
                uri: uri.as_bytes(),
                params: params.as_bytes(),
                instance: instance.as_bytes(),
                call_id: b"c",
                cseq: 1,
                path: b"",
                agent: b"",
                flow: None,
                q: NO_Q,
                reg_id: 0,
                gruu: 0,
                expires: Mono(0).plus_secs(60),
                updated: Mono(0),
            })
            .unwrap()
        };
        let bindings = [
            binding("sip:plain@192.0.2.1", ""),
            binding(&format!("{scheme}:one@192.0.2.1"), instance),
        ];
        let mut contacts = Contacts::default();
        let mut changes = contacts.update(&bindings, Cause::Register, Mono(0));
        if ends {
            changes = contacts.update(&[], Cause::Register, Mono(0));
        }
        let changes: Vec<_> = changes.iter().map(|(it, event)| (it, *event)).collect();
        let aor = Aor::from_canonical(b"al ice@example.com").unwrap();
        let mut body = Vec::new();
        write(&mut body, (0, !ends), &aor, !ends, &changes, Mono(0));
        String::from_utf8(body).unwrap()
    }

    #[test]
    fn a_document_has_one_registration_with_all_attributes_rfc3680_5_1() {
        let head = "<?xml version=\"1.0\"?>\r\n<reginfo xmlns=\"urn:ietf:params:xml:ns:reginfo\" \
                    xmlns:gr=\"urn:ietf:params:xml:ns:gruuinfo\" version=\"0\" state=\"full\">\r\n";
        let contact = |id: u32, uri: &str| {
            format!(
                "    <contact id=\"c{id}\" state=\"active\" event=\"registered\" duration-registered=\"0\" \
                 expires=\"60\" cseq=\"1\" callid=\"c\">\r\n      <uri>{uri}</uri>\r\n    </contact>\r\n"
            )
        };
        let expected = format!(
            "{head}  <registration aor=\"sip:al%20ice@example.com\" id=\"r1\" state=\"active\">\r\n{}{}  \
             </registration>\r\n</reginfo>\r\n",
            contact(1, "sip:plain@192.0.2.1"),
            contact(2, "sip:one@192.0.2.1"),
        );
        assert_eq!(document("", "sip", false), expected);
        // The registration has the same id in a later document.
        let ended = document("", "sip", true);
        assert!(ended.contains("id=\"r1\" state=\"terminated\""), "{ended}");
    }

    #[test]
    fn a_contact_with_an_instance_has_its_public_gruu_rfc5627_5_5() {
        for (scheme, instance, escaped) in [
            ("sip", "urn:uuid:1", "urn:uuid:1"),
            ("sips", "urn:x:a;b&c", "urn:x:a%3Bb&amp;c"),
        ] {
            let body = document(instance, scheme, false);
            let gruu = format!(
                "      <gr:pub-gruu uri=\"{scheme}:al%20ice@example.com;gr={escaped}\"/>\r\n    </contact>"
            );
            assert!(body.contains(&gruu), "{body}");
            assert_eq!(body.matches("pub-gruu").count(), 1, "{body}");
            let namespace = " xmlns:gr=\"urn:ietf:params:xml:ns:gruuinfo\"";
            assert!(body.contains(namespace), "{body}");
            assert!(body.contains("aor=\"sip:al%20ice@example.com\""), "{body}");
        }
        // The GRUU does not lead to a contact that has ended.
        let body = document("urn:uuid:1", "sip", true);
        assert!(body.contains("terminated") && !body.contains("pub-gruu"));
    }
}
