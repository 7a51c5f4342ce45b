//! Priority classes: which request is refused before which.

/// The classes, the first to be refused first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A request that begins something, or claims what cannot be true.
    New,
    /// A request in a dialog, or the second half of a challenge: work was spent on it before.
    Continuing,
    /// An emergency call (RFC 5031).
    Priority,
    /// ACK, and CANCEL, BYE and PRACK of a dialog in which this server is the user agent server: they release its
    /// memory. Never refused, as long as BYE and PRACK need less than half of the capacity.
    Finishing,
}

/// What a request's To tag says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dialog {
    /// There is none, or nothing proves it: anybody can make one up.
    #[default]
    None,
    /// The TU has recognized the dialog ([`RequestProof`](super::RequestProof)). For a proxy: Route has a value of its
    /// Record-Route, whose MAC is right for the Call-ID.
    Proven,
    /// A tag of this server: its MAC is right for Call-ID and From tag.
    Ours,
}

/// What decides the class of a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct Traits<'a> {
    /// The method.
    pub method: &'a [u8],
    /// The Request-URI.
    pub uri: &'a [u8],
    /// The To tag.
    pub dialog: Dialog,
    /// Its credentials have a fresh nonce of this server ([`RequestProof`](super::RequestProof)).
    pub has_fresh_nonce: bool,
}

/// RFC 5031 §3: the service of emergency calls.
const EMERGENCY: &[u8] = b"urn:service:sos";

impl Traits<'_> {
    /// The priority class of the request.
    #[must_use]
    pub fn class(&self) -> Class {
        match (self.method, self.dialog) {
            (b"ACK", _) | (b"CANCEL" | b"BYE" | b"PRACK", Dialog::Ours) => Class::Finishing,
            _ if is_emergency(self.uri) => Class::Priority,
            (_, Dialog::Ours | Dialog::Proven) => Class::Continuing,
            _ if self.has_fresh_nonce => Class::Continuing,
            _ => Class::New,
        }
    }
}

/// Whether a request with this Request-URI is an emergency call.
#[must_use]
pub fn is_emergency(uri: &[u8]) -> bool {
    uri.get(..EMERGENCY.len()).is_some_and(|start| {
        let behind = uri.get(EMERGENCY.len());
        start.eq_ignore_ascii_case(EMERGENCY) && matches!(behind, None | Some(b'.'))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rank_ending_above_continuing_above_beginning() {
        let class = |change: fn(&mut Traits<'_>)| {
            let mut request = Traits {
                method: b"INVITE",
                uri: b"sip:bob@example.org",
                ..Traits::default()
            };
            change(&mut request);
            request.class()
        };
        assert_eq!(class(|_| ()), Class::New);
        assert_eq!(class(|r| r.dialog = Dialog::Ours), Class::Continuing);
        assert_eq!(class(|r| r.dialog = Dialog::Proven), Class::Continuing);
        assert_eq!(class(|r| r.has_fresh_nonce = true), Class::Continuing);
        assert_eq!(class(|r| r.uri = b"URN:service:sos.fire"), Class::Priority);
        assert_eq!(class(|r| r.uri = b"urn:service:soso"), Class::New);
        assert_eq!(class(|r| r.method = b"ACK"), Class::Finishing);
        assert!(Class::New < Class::Continuing && Class::Priority < Class::Finishing);
    }

    #[test]
    fn a_bye_or_cancel_finishes_only_what_this_server_has_begun() {
        for method in ["BYE", "CANCEL", "PRACK"] {
            let class = |dialog| {
                let request = Traits {
                    method: method.as_bytes(),
                    dialog,
                    ..Traits::default()
                };
                request.class()
            };
            assert_eq!(class(Dialog::Ours), Class::Finishing, "{method}");
            assert_eq!(class(Dialog::Proven), Class::Continuing, "{method}");
            assert_eq!(class(Dialog::None), Class::New, "{method}");
        }
    }
}
