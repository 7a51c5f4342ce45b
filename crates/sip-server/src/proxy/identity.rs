//! The asserted identity of a sender (RFC 3325), and the credentials that a proxy removes (RFC 3261 §22.3).

use sip::Message;
use sip::header::{Contact, HeaderKind};
use sip::uri::{Uri, escape_user, starts_with_sips};

use super::Refusal;
use super::policy::Policy;
use super::route::may_begin_dialog;
use super::sender::Sender;
use crate::MAX_AOR;

/// RFC 3323 §4.1.1.3: the host of an anonymous From.
const ANONYMOUS: &[u8] = b"anonymous.invalid";

/// The address of record that a header names, if it is one of a domain here.
fn aor_in(message: &Message<'_>, kind: HeaderKind, policy: &dyn Policy) -> Option<crate::Aor> {
    let address = message.address(kind).ok()?;
    match address.parse_uri() {
        Ok(Uri::Sip(uri)) => policy.aor(&uri),
        _ => None,
    }
}

/// The address of record here that From names.
pub(super) fn from_aor(message: &Message<'_>, policy: &dyn Policy) -> Option<crate::Aor> {
    aor_in(message, HeaderKind::From, policy)
}

/// Whether From names an address of record of a domain here.
pub(super) fn is_from_local(message: &Message<'_>, policy: &dyn Policy) -> bool {
    aor_in(message, HeaderKind::From, policy).is_some()
}

/// From must name an address of the user who has sent the request, or nobody.
///
/// # Errors
/// 403 if it names somebody else.
pub(super) fn check_from(
    message: &Message<'_>,
    user: &[u8],
    policy: &dyn Policy,
) -> Result<(), Refusal> {
    if let Some(aor) = aor_in(message, HeaderKind::From, policy)
        && policy.owns(user, &aor)
    {
        return Ok(());
    }
    let from = message.from().ok();
    let uri = from.as_ref().and_then(|from| from.parse_uri().ok());
    let host = uri
        .as_ref()
        .and_then(|uri| uri.as_sip().map(|uri| uri.host));
    match host {
        Some(host) if host.as_bytes().eq_ignore_ascii_case(ANONYMOUS) => Ok(()),
        _ => Err(Refusal::of(403, "From Is Not an Address of This User")),
    }
}

/// Rejects a Contact that is the public GRUU of another user of this server (RFC 5627 §6.2). Otherwise, later requests
/// of the dialog would go to that user.
///
/// # Errors
/// 403 if it is.
pub(super) fn check_contact(
    message: &Message<'_>,
    user: &[u8],
    policy: &dyn Policy,
) -> Result<(), Refusal> {
    if !message.method().is_some_and(may_begin_dialog) {
        return Ok(());
    }
    let is_anothers = |uri: &[u8]| match Uri::parse(uri) {
        // A temporary GRUU has a `gr` without a value. Its user part does not name a user.
        Ok(Uri::Sip(uri)) if uri.params.value(b"gr").is_some() => {
            policy.aor(&uri).is_some_and(|aor| !policy.owns(user, &aor))
        }
        _ => false,
    };
    let mut contacts = message.contacts().filter_map(Result::ok);
    let any = contacts.any(|contact| match contact {
        Contact::Addr(contact) => is_anothers(contact.uri),
        Contact::Star => false,
    });
    match any {
        true => Err(Refusal::of(403, "Contact Is a GRUU of Another User")),
        false => Ok(()),
    }
}

/// What is changed of identities and credentials: the kinds that are removed, and the lines that are added.
#[derive(Debug, Default)]
pub(super) struct Changes {
    pub(super) drops: Vec<HeaderKind>,
    pub(super) lines: Vec<u8>,
}

/// The changes for a request of this sender.
pub(super) fn changes(message: &Message<'_>, sender: &Sender, policy: &dyn Policy) -> Changes {
    let mut changes = Changes::default();
    // Another node has made these changes.
    if matches!(sender, Sender::Trunk | Sender::Node) {
        return changes;
    }
    // RFC 3325 §5: "remove this header field", because its sender is not trusted.
    if message.has(HeaderKind::PAssertedIdentity) {
        changes.drops.push(HeaderKind::PAssertedIdentity);
    }
    // §6: "The proxy MUST remove the user-provided P-Preferred-Identity".
    if message.has(HeaderKind::PPreferredIdentity) {
        changes.drops.push(HeaderKind::PPreferredIdentity);
    }
    consume_credentials(message, policy, &mut changes);
    let Sender::User(user) = sender else {
        return changes;
    };
    let own = || own_aor(user, policy).map(|aor| (aor, false));
    if let Some((aor, is_sips)) = asserted(message, user, policy).or_else(own) {
        changes.lines.extend_from_slice(b"P-Asserted-Identity: <");
        write_aor(&mut changes.lines, &aor, is_sips);
        changes.lines.extend_from_slice(b">\r\n");
    }
    changes
}

/// Writes an address of record as a URI. A parameter, a header or a password of a received URI is not part of it,
/// because nobody has verified these.
pub(super) fn write_aor(lines: &mut Vec<u8>, aor: &crate::Aor, is_sips: bool) {
    lines.extend_from_slice(if is_sips { b"sips:" } else { b"sip:" });
    if let Some(user) = aor.user() {
        let mut buffer = [0; 3 * MAX_AOR];
        lines.extend_from_slice(escape_user(user, &mut buffer).unwrap_or_default());
        lines.push(b'@');
    }
    lines.extend_from_slice(aor.domain());
}

/// Whether neither From nor P-Preferred-Identity names an address of record of the authenticated user. Only trunks then
/// get the identity, as with `Privacy: id`.
pub(super) fn is_anonymous(message: &Message<'_>, sender: &Sender, policy: &dyn Policy) -> bool {
    matches!(sender, Sender::User(user) if asserted(message, user, policy).is_none())
}

/// The address of record of a user whose name has the form `user@domain`. Other names exist in several domains, so they
/// have no single address.
fn own_aor(user: &[u8], policy: &dyn Policy) -> Option<crate::Aor> {
    let at = user.iter().rposition(|byte| *byte == b'@')?;
    let mut uri = b"sip:".to_vec();
    let mut buffer = [0; 3 * MAX_AOR];
    uri.extend_from_slice(escape_user(&user[..at], &mut buffer)?);
    uri.extend_from_slice(&user[at..]);
    let uri = Uri::parse(&uri).ok()?;
    policy
        .aor(uri.as_sip()?)
        .filter(|aor| policy.owns(user, aor))
}

/// The address of record by which this user has sent a request (RFC 3325 §6), and whether its URI is a SIPS URI.
pub(super) fn asserted(
    message: &Message<'_>,
    user: &[u8],
    policy: &dyn Policy,
) -> Option<(crate::Aor, bool)> {
    let mut kinds = [HeaderKind::PPreferredIdentity, HeaderKind::From].into_iter();
    kinds.find_map(|kind| {
        let aor = aor_in(message, kind, policy).filter(|aor| policy.owns(user, aor))?;
        Some((aor, starts_with_sips(message.address(kind).ok()?.uri)))
    })
}

/// RFC 3261 §22.3: removes credentials for this realm, and keeps those for other proxies.
fn consume_credentials(message: &Message<'_>, policy: &dyn Policy, changes: &mut Changes) {
    let kind = HeaderKind::ProxyAuthorization;
    let is_ours = |value: &[u8]| {
        sip::header::Authorization::parse(value).is_some_and(|it| policy.is_for_us(&it))
    };
    if !message.headers(kind).any(|header| is_ours(header.value)) {
        return;
    }
    changes.drops.push(kind);
    for header in message.headers(kind) {
        if !is_ours(header.value) {
            changes.lines.extend_from_slice(header.line);
        }
    }
}

/// Whether P-Asserted-Identity may not leave the trusted elements: Privacy names `id` (RFC 3325 §7).
pub(super) fn is_private(message: &Message<'_>) -> bool {
    message.headers(HeaderKind::Privacy).any(|header| {
        // RFC 3323 §4.2: values are separated by semicolons; some write commas.
        let mut values = header.value.split(|byte| matches!(byte, b';' | b','));
        values.any(|value| value.trim_ascii().eq_ignore_ascii_case(b"id"))
    })
}
