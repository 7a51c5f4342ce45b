//! What a REGISTER asks for: its contacts, checked before anything is looked up.

use sip::header::{Contact, HeaderKind, NameAddr};
use sip::uri::Uri;
use sip::{Message, Method};

use super::{Config, Refusal};
use crate::location::NO_Q;

/// RFC 3261 §10.2.1.1: a malformed time counts as an hour.
const MALFORMED: u32 = 3600;
/// RFC 3261 §10.3 step 7: shorter times than this may be refused.
const HOUR: u32 = 3600;
/// The maximum number of contacts in one request. The registrar compares each with each binding.
const MAX_CONTACTS: usize = 32;

/// One contact of a REGISTER: a binding to add, refresh or remove.
#[derive(Clone, Copy, Debug)]
pub(super) struct RequestedBinding<'m> {
    pub(super) contact: NameAddr<'m>,
    pub(super) uri: Uri<'m>,
    /// In seconds; 0 to remove the binding.
    pub(super) expires: u32,
    /// The priority in thousandths, or [`NO_Q`].
    pub(super) q: u16,
    /// Without quotes and brackets; empty if there is none.
    pub(super) instance: &'m [u8],
    /// 0 if there is none, if it is not valid, or if there is no instance.
    pub(super) reg_id: u32,
}

/// What the contacts of a REGISTER ask for.
#[derive(Debug)]
pub(super) enum RequestedChange<'m> {
    /// There is no Contact: the request asks for the bindings (RFC 3261 §10.2.3).
    Query,
    /// `*`: all bindings are to be removed.
    RemoveAll,
    /// Bindings to add, refresh or remove.
    Contacts(Vec<RequestedBinding<'m>>),
}

impl<'m> RequestedChange<'m> {
    /// Reads the contacts of a REGISTER (RFC 3261 §10.3 steps 6 and 7). Does not compare them with stored bindings.
    pub(super) fn read(
        message: &Message<'m>,
        config: &Config,
    ) -> Result<RequestedChange<'m>, Refusal> {
        let expires = match message.expires() {
            Ok(seconds) => seconds,
            Err(_) => Some(MALFORMED),
        };
        let mut requested = Vec::new();
        let (mut stars, mut count) = (0, 0);
        for contact in message.contacts() {
            count += 1;
            match contact.map_err(|_| Refusal::bad("Malformed Contact"))? {
                Contact::Star => stars += 1,
                Contact::Addr(contact) => {
                    requested.push(RequestedBinding::read(contact, expires, config)?)
                }
            }
            if count > MAX_CONTACTS {
                return Err(Refusal::bad("Too Many Contacts"));
            }
        }
        if stars > 0 && (count > 1 || expires != Some(0)) {
            return Err(Refusal::bad("Contact * Goes Alone and With Expires 0"));
        }
        Ok(match (stars, count) {
            (0, 0) => RequestedChange::Query,
            (0, _) => RequestedChange::Contacts(requested),
            _ => RequestedChange::RemoveAll,
        })
    }
}

impl<'m> RequestedBinding<'m> {
    /// Reads a Contact of a REGISTER. `header` is the value of Expires in seconds, if there is one.
    fn read(
        contact: NameAddr<'m>,
        header: Option<u32>,
        config: &Config,
    ) -> Result<RequestedBinding<'m>, Refusal> {
        let uri = contact.parse_uri();
        let uri = uri.map_err(|_| Refusal::bad("Bad URI in Contact"))?;
        let param = contact.params.get(b"expires");
        let asked = match param {
            Some(_) => contact.expires().unwrap_or(MALFORMED),
            None => header.unwrap_or(config.default_expires),
        };
        // RFC 3261 §10.3 step 7: only what is shorter than an hour may be refused as too short.
        if asked > 0 && asked < HOUR && asked < config.min_expires {
            return Err(Refusal::too_brief(config.min_expires));
        }
        let instance = instance(&contact);
        Ok(RequestedBinding {
            contact,
            uri,
            expires: asked.min(config.max_expires),
            q: contact.q().unwrap_or(NO_Q),
            instance,
            // RFC 5626 §6: a reg-id without an instance is ignored.
            reg_id: if instance.is_empty() {
                0
            } else {
                reg_id(&contact)
            },
        })
    }
}

/// The URN in `+sip.instance="<urn:..>"` of a contact. Empty if there is none in this form, or if it has more than
/// [`MAX_INSTANCE`](super::MAX_INSTANCE) bytes.
pub(crate) fn instance<'m>(contact: &NameAddr<'m>) -> &'m [u8] {
    let param = contact.params.get(b"+sip.instance");
    let quoted = param.and_then(|param| param.value).unwrap_or_default();
    let urn = quoted
        .strip_prefix(b"\"<")
        .and_then(|rest| rest.strip_suffix(b">\""));
    // A URN with a line end or an escape does not count: it would be stored in another form than it was received.
    let is_plain = |byte: &u8| byte.is_ascii_graphic() && !b"\"\\<>".contains(byte);
    urn.filter(|urn| urn.iter().all(is_plain) && urn.len() <= super::MAX_INSTANCE)
        .unwrap_or_default()
}

/// The `reg-id` of a contact, 1 to 2^31 - 1 (RFC 5626 §11.2); 0 if there is none, or another value.
fn reg_id(contact: &NameAddr<'_>) -> u32 {
    let param = contact.params.get(b"reg-id");
    let digits = param.and_then(|param| param.value).unwrap_or_default();
    let number = std::str::from_utf8(digits)
        .ok()
        .filter(|digits| !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_digit()));
    let number = number.and_then(|digits| digits.parse::<u32>().ok());
    number
        .filter(|number| *number < 1 << 31)
        .unwrap_or_default()
}

/// Whether the header fields of this kind in a REGISTER list this token, such as `path` in Supported. Case does not
/// matter.
pub(super) fn has_token(message: &Message<'_>, kind: HeaderKind, token: &[u8]) -> bool {
    debug_assert_eq!(message.method(), Some(Method::Register));
    message
        .tokens(kind)
        .filter_map(Result::ok)
        .any(|found| found.eq_ignore_ascii_case(token))
}
