//! Priority classes: which request is refused before which.

/// The classes, the first to be refused first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A request that begins something, or claims what cannot be true.
    New,
    /// A request in a dialog, or the second half of a challenge: work was spent on it before.
    Continuing,
    /// An emergency call (RFC 5031), a `Priority: emergency` or what the configuration names.
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

/// What a request's headers say of its class.
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
    /// The value of Priority (RFC 3261 §20.26).
    pub priority: Option<&'a [u8]>,
    /// A value of Resource-Priority (RFC 4412), the first.
    pub resource_priority: Option<&'a [u8]>,
}

/// Sorts requests into classes.
#[derive(Clone, Debug, Default)]
pub struct Classifier {
    resource_priorities: Vec<Box<[u8]>>,
    /// Whether `Priority: emergency` counts: anybody may write it.
    trust_priority: bool,
}

/// RFC 5031 §3: the service of emergency calls.
const EMERGENCY: &[u8] = b"urn:service:sos";

impl Classifier {
    /// [`Class::Priority`] has emergency calls to `urn:service:sos`, these values of Resource-Priority (RFC 4412, such
    /// as `esnet.0`) and, if `trust_priority` is set, `Priority: emergency`.
    #[must_use]
    pub fn new(resource_priorities: &[&str], trust_priority: bool) -> Classifier {
        Classifier {
            resource_priorities: resource_priorities
                .iter()
                .map(|value| value.as_bytes().into())
                .collect(),
            trust_priority,
        }
    }

    /// The class.
    #[must_use]
    pub fn classify(&self, request: &Traits<'_>) -> Class {
        match (request.method, request.dialog) {
            (b"ACK", _) | (b"CANCEL" | b"BYE" | b"PRACK", Dialog::Ours) => Class::Finishing,
            _ if self.has_priority(request) => Class::Priority,
            (_, Dialog::Ours | Dialog::Proven) => Class::Continuing,
            _ if request.has_fresh_nonce => Class::Continuing,
            _ => Class::New,
        }
    }

    /// Whether a request has priority, regardless of its dialog.
    #[must_use]
    pub fn has_priority(&self, request: &Traits<'_>) -> bool {
        let is_emergency = request.uri.get(..EMERGENCY.len()).is_some_and(|start| {
            let behind = request.uri.get(EMERGENCY.len());
            start.eq_ignore_ascii_case(EMERGENCY) && matches!(behind, None | Some(b'.'))
        });
        let asks = self.trust_priority
            && request
                .priority
                .is_some_and(|value| value.eq_ignore_ascii_case(b"emergency"));
        let is_named = request.resource_priority.is_some_and(|value| {
            self.resource_priorities
                .iter()
                .any(|known| known.eq_ignore_ascii_case(value))
        });
        is_emergency || asks || is_named
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_rank_ending_above_continuing_above_beginning() {
        let classifier = Classifier::new(&["esnet.0"], true);
        let class = |change: fn(&mut Traits<'_>)| {
            let mut request = Traits {
                method: b"INVITE",
                uri: b"sip:bob@example.org",
                ..Traits::default()
            };
            change(&mut request);
            classifier.classify(&request)
        };
        assert_eq!(class(|_| ()), Class::New);
        assert_eq!(class(|r| r.dialog = Dialog::Ours), Class::Continuing);
        assert_eq!(class(|r| r.dialog = Dialog::Proven), Class::Continuing);
        assert_eq!(class(|r| r.has_fresh_nonce = true), Class::Continuing);
        assert_eq!(class(|r| r.uri = b"URN:service:sos.fire"), Class::Priority);
        assert_eq!(class(|r| r.uri = b"urn:service:soso"), Class::New);
        assert_eq!(class(|r| r.priority = Some(b"Emergency")), Class::Priority);
        assert_eq!(
            class(|r| r.resource_priority = Some(b"ESNET.0")),
            Class::Priority
        );
        assert_eq!(class(|r| r.method = b"ACK"), Class::Finishing);
        assert!(Class::New < Class::Continuing && Class::Priority < Class::Finishing);
    }

    #[test]
    fn a_bye_or_cancel_finishes_only_what_this_server_has_begun() {
        for method in ["BYE", "CANCEL", "PRACK"] {
            let class = |dialog| {
                Classifier::default().classify(&Traits {
                    method: method.as_bytes(),
                    dialog,
                    ..Traits::default()
                })
            };
            assert_eq!(class(Dialog::Ours), Class::Finishing, "{method}");
            assert_eq!(class(Dialog::Proven), Class::Continuing, "{method}");
            assert_eq!(class(Dialog::None), Class::New, "{method}");
        }
    }

    #[test]
    fn a_priority_anybody_can_write_counts_only_where_it_is_trusted() {
        let request = Traits {
            method: b"INVITE",
            priority: Some(b"emergency"),
            ..Traits::default()
        };
        assert_eq!(Classifier::default().classify(&request), Class::New);
    }
}
