//! The names of header fields, their compact forms, and the look-up of a name.

/// Defines [`HeaderKind`] from a list of variants, names and compact forms.
macro_rules! kinds {
    ($($variant:ident $name:literal $(= $compact:literal)?,)*) => {
        /// A header field that has a name of its own here; all others are [`HeaderKind::Other`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum HeaderKind {
            $(#[doc = concat!("`", $name, "`")] $variant,)*
            /// Any other header field, known by its name alone.
            Other,
        }

        impl HeaderKind {
            /// Every kind with a name, in the order of their numbers.
            pub const NAMED: &[HeaderKind] = &[$(HeaderKind::$variant,)*];

            /// The canonical name; empty for [`HeaderKind::Other`].
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(HeaderKind::$variant => $name,)*
                    HeaderKind::Other => "",
                }
            }

            /// The compact form (RFC 3261 §7.3.3), if there is one.
            #[must_use]
            pub const fn compact(self) -> Option<u8> {
                match self {
                    $($(HeaderKind::$variant => Some($compact),)?)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    Accept "Accept",
    AcceptContact "Accept-Contact" = b'a',
    AcceptEncoding "Accept-Encoding",
    AcceptLanguage "Accept-Language",
    AcceptResourcePriority "Accept-Resource-Priority",
    AlertInfo "Alert-Info",
    Allow "Allow",
    AllowEvents "Allow-Events" = b'u',
    AuthenticationInfo "Authentication-Info",
    Authorization "Authorization",
    CallId "Call-ID" = b'i',
    CallInfo "Call-Info",
    Contact "Contact" = b'm',
    ContentDisposition "Content-Disposition",
    ContentEncoding "Content-Encoding" = b'e',
    ContentLanguage "Content-Language",
    ContentLength "Content-Length" = b'l',
    ContentType "Content-Type" = b'c',
    CSeq "CSeq",
    Date "Date",
    ErrorInfo "Error-Info",
    Event "Event" = b'o',
    Expires "Expires",
    FeatureCaps "Feature-Caps",
    FlowTimer "Flow-Timer",
    From "From" = b'f',
    HistoryInfo "History-Info",
    Identity "Identity" = b'y',
    IdentityInfo "Identity-Info" = b'n',
    InReplyTo "In-Reply-To",
    MaxBreadth "Max-Breadth",
    MaxForwards "Max-Forwards",
    MimeVersion "MIME-Version",
    MinExpires "Min-Expires",
    MinSe "Min-SE",
    Organization "Organization",
    PAssertedIdentity "P-Asserted-Identity",
    PPreferredIdentity "P-Preferred-Identity",
    Path "Path",
    Priority "Priority",
    Privacy "Privacy",
    ProxyAuthenticate "Proxy-Authenticate",
    ProxyAuthorization "Proxy-Authorization",
    ProxyRequire "Proxy-Require",
    RAck "RAck",
    Reason "Reason",
    RecordRoute "Record-Route",
    ReferredBy "Referred-By" = b'b',
    ReferTo "Refer-To" = b'r',
    RejectContact "Reject-Contact" = b'j',
    Replaces "Replaces",
    ReplyTo "Reply-To",
    RequestDisposition "Request-Disposition" = b'd',
    Require "Require",
    ResourcePriority "Resource-Priority",
    RetryAfter "Retry-After",
    Route "Route",
    RSeq "RSeq",
    SecurityClient "Security-Client",
    SecurityServer "Security-Server",
    SecurityVerify "Security-Verify",
    Server "Server",
    ServiceRoute "Service-Route",
    SessionExpires "Session-Expires" = b'x',
    SipEtag "SIP-ETag",
    SipIfMatch "SIP-If-Match",
    Subject "Subject" = b's',
    SubscriptionState "Subscription-State",
    Supported "Supported" = b'k',
    Timestamp "Timestamp",
    To "To" = b't',
    Unsupported "Unsupported",
    UserAgent "User-Agent",
    Via "Via" = b'v',
    Warning "Warning",
    WwwAuthenticate "WWW-Authenticate",
}

/// How many kinds there are, [`HeaderKind::Other`] included.
pub(crate) const KINDS: usize = HeaderKind::NAMED.len() + 1;

/// Kinds and their names by the hash of the name. Names that share a slot do not compile.
static BY_NAME: [(HeaderKind, &[u8]); 256] = by_name();
/// Kinds by their compact form, from `a`.
static BY_LETTER: [HeaderKind; 26] = by_letter();

const fn by_name() -> [(HeaderKind, &'static [u8]); 256] {
    let empty: &[u8] = &[];
    let mut table = [(HeaderKind::Other, empty); 256];
    let mut i = 0;
    while i < HeaderKind::NAMED.len() {
        let kind = HeaderKind::NAMED[i];
        let slot = hash(kind.name().as_bytes());
        assert!(
            matches!(table[slot].0, HeaderKind::Other),
            "two names share a slot: choose other factors"
        );
        table[slot] = (kind, kind.name().as_bytes());
        i += 1;
    }
    table
}

const fn by_letter() -> [HeaderKind; 26] {
    let mut table = [HeaderKind::Other; 26];
    let mut i = 0;
    while i < HeaderKind::NAMED.len() {
        let kind = HeaderKind::NAMED[i];
        if let Some(letter) = kind.compact() {
            table[(letter - b'a') as usize] = kind;
        }
        i += 1;
    }
    table
}

/// A slot for a name of at least one byte, regardless of the case of its letters. The factors were found by trial.
#[inline(always)]
const fn hash(name: &[u8]) -> usize {
    let len = name.len();
    let (first, middle, last) = (name[0] | 0x20, name[len / 2] | 0x20, name[len - 1] | 0x20);
    (len * 253 + first as usize * 67 + last as usize * 23 + middle as usize * 209) & 0xFF
}

impl HeaderKind {
    /// The kind of a header with this name, in any case, or this compact form.
    #[inline]
    #[must_use]
    pub fn of(name: &[u8]) -> HeaderKind {
        match name {
            [] => HeaderKind::Other,
            [letter] => {
                let index = usize::from((letter | 0x20).wrapping_sub(b'a'));
                match letter.is_ascii_alphabetic() {
                    true => BY_LETTER.get(index).copied().unwrap_or(HeaderKind::Other),
                    false => HeaderKind::Other,
                }
            }
            _ => {
                let (kind, canonical) = BY_NAME[hash(name)];
                // Most senders write the canonical name: one comparison of memory.
                match canonical == name || canonical.eq_ignore_ascii_case(name) {
                    true => kind,
                    false => HeaderKind::Other,
                }
            }
        }
    }

    /// Whether several header fields of this kind mean the same as one with a comma list (RFC 3261 §7.3.1).
    ///
    /// The four authorization headers never do: commas are part of their values.
    #[must_use]
    pub const fn is_list(self) -> bool {
        use HeaderKind::*;
        matches!(
            self,
            Accept
                | AcceptContact
                | AcceptEncoding
                | AcceptLanguage
                | AcceptResourcePriority
                | AlertInfo
                | Allow
                | AllowEvents
                | CallInfo
                | Contact
                | ContentEncoding
                | ContentLanguage
                | ErrorInfo
                | HistoryInfo
                | InReplyTo
                | PAssertedIdentity
                | PPreferredIdentity
                | Path
                | ProxyRequire
                | Reason
                | RecordRoute
                | RejectContact
                | Require
                | ResourcePriority
                | Route
                | SecurityClient
                | SecurityServer
                | SecurityVerify
                | ServiceRoute
                | Supported
                | Unsupported
                | Via
                | Warning
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_in_any_case() {
        for &kind in HeaderKind::NAMED {
            let name = kind.name();
            for spelling in [name.to_owned(), name.to_lowercase(), name.to_uppercase()] {
                assert_eq!(HeaderKind::of(spelling.as_bytes()), kind, "{spelling}");
            }
            assert_eq!(
                HeaderKind::of(format!("{name}x").as_bytes()),
                HeaderKind::Other
            );
        }
    }

    #[test]
    fn compact_forms_are_those_of_the_registry() {
        let letters: String = (b'a'..=b'z')
            .filter(|letter| HeaderKind::of(&[*letter]) != HeaderKind::Other)
            .map(char::from)
            .collect();
        assert_eq!(letters, "abcdefijklmnorstuvxy");
        assert_eq!(HeaderKind::of(b"V"), HeaderKind::Via);
        assert_eq!(HeaderKind::of(b"@"), HeaderKind::Other);
        assert_eq!(HeaderKind::of(b""), HeaderKind::Other);
    }
}
