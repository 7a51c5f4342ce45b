//! Where a call goes if a user here does not take it.

use std::collections::BTreeMap;
use std::time::Duration;

use sip::uri::Uri;

use crate::Aor;

/// Why a user has not taken a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DivertReason {
    /// A phone has sent 486.
    Busy,
    /// The phones rang for [`Forward::ring_time`], or one has sent 408 or 480.
    NoAnswer,
    /// No phone could be reached: no response, no connection, or 500, 502, 503 or 504.
    Unreachable,
    /// No phone is registered.
    NotRegistered,
}

impl DivertReason {
    /// All reasons.
    pub const ALL: [DivertReason; 4] = [
        DivertReason::Busy,
        DivertReason::NoAnswer,
        DivertReason::Unreachable,
        DivertReason::NotRegistered,
    ];

    /// Its name in explanations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            DivertReason::Busy => "busy",
            DivertReason::NoAnswer => "no answer",
            DivertReason::Unreachable => "unreachable",
            DivertReason::NotRegistered => "not registered",
        }
    }

    /// The reason in Diversion (RFC 5806 §4).
    pub(crate) const fn reason(self) -> &'static str {
        match self {
            DivertReason::Busy => "user-busy",
            DivertReason::NoAnswer => "no-answer",
            DivertReason::Unreachable | DivertReason::NotRegistered => "unavailable",
        }
    }
}

/// Where the calls of some users go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forward {
    /// The users: `alice`, or `alice@example.org`. Empty: all.
    pub users: Vec<String>,
    /// Their domains. Empty: all.
    pub domains: Vec<String>,
    /// The URI that follows [`DivertReason::Busy`].
    pub busy: Option<String>,
    /// The URI that follows [`DivertReason::NoAnswer`].
    pub no_answer: Option<String>,
    /// The URI that follows [`DivertReason::Unreachable`].
    pub unreachable: Option<String>,
    /// The URI that follows [`DivertReason::NotRegistered`].
    pub not_registered: Option<String>,
    /// How long the phones ring, if `no_answer` has a URI.
    pub ring_time: Duration,
}

impl Default for Forward {
    fn default() -> Forward {
        Forward {
            users: Vec::new(),
            domains: Vec::new(),
            busy: None,
            no_answer: None,
            unreachable: None,
            not_registered: None,
            ring_time: Duration::from_secs(30),
        }
    }
}

impl Forward {
    /// The URI that follows.
    #[must_use]
    pub fn to(&self, missed: DivertReason) -> Option<&str> {
        match missed {
            DivertReason::Busy => self.busy.as_deref(),
            DivertReason::NoAnswer => self.no_answer.as_deref(),
            DivertReason::Unreachable => self.unreachable.as_deref(),
            DivertReason::NotRegistered => self.not_registered.as_deref(),
        }
    }

    /// Whether a URI can follow: a SIP or SIPS URI with a user, or a telephone number.
    #[must_use]
    pub fn is_valid(uri: &str) -> bool {
        match Uri::parse(uri.as_bytes()) {
            Ok(Uri::Sip(uri)) => uri.user.is_some(),
            Ok(Uri::Tel(_)) => true,
            _ => false,
        }
    }
}

/// All forwards, ready to be searched.
#[derive(Debug, Default)]
pub struct Forwards {
    all: Vec<Forward>,
    /// Forwards with users, by `alice@example.org` or `alice`.
    by_user: BTreeMap<String, Vec<usize>>,
    /// Forwards without users.
    for_everybody: Vec<usize>,
}

impl Forwards {
    /// Of two that fit equally well, the first one applies.
    #[must_use]
    pub fn new(all: Vec<Forward>) -> Forwards {
        let mut forwards = Forwards::default();
        for (number, forward) in all.iter().enumerate() {
            for user in &forward.users {
                let user = match user.split_once('@') {
                    Some((user, domain)) => format!("{user}@{}", domain.to_ascii_lowercase()),
                    None => user.clone(),
                };
                forwards.by_user.entry(user).or_default().push(number);
            }
            if forward.users.is_empty() {
                forwards.for_everybody.push(number);
            }
        }
        forwards.all = all;
        forwards
    }

    /// Whether nobody has a forward.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The forward for an address of record, the most specific first: the whole address, its user, its domain, any
    /// address.
    #[must_use]
    pub fn of(&self, aor: &Aor) -> Option<&Forward> {
        if self.all.is_empty() {
            return None;
        }
        let domain = std::str::from_utf8(aor.domain()).ok()?;
        let find = |numbers: &[usize], needs_domain: bool| {
            let forwards = numbers.iter().filter_map(|number| self.all.get(*number));
            let mut fit = forwards.filter(|forward| match forward.domains.is_empty() {
                true => !needs_domain,
                false => forward
                    .domains
                    .iter()
                    .any(|it| it.eq_ignore_ascii_case(domain)),
            });
            fit.next()
        };
        let text = |bytes| std::str::from_utf8(bytes).ok();
        let by_name = |name: Option<&str>| {
            let numbers = self.by_user.get(name?)?;
            find(numbers, true).or_else(|| find(numbers, false))
        };
        let user = aor.user().and_then(text);
        by_name(text(aor.as_bytes()))
            .or_else(|| by_name(user))
            .or_else(|| find(&self.for_everybody, true))
            .or_else(|| find(&self.for_everybody, false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(uri: &str, users: &[&str], domains: &[&str]) -> Forward {
        let list = |list: &[&str]| list.iter().map(|it| (*it).to_owned()).collect();
        Forward {
            users: list(users),
            domains: list(domains),
            busy: Some(uri.to_owned()),
            ..Forward::default()
        }
    }

    #[test]
    fn the_forward_that_names_most_of_the_address_applies() {
        let forwards = Forwards::new(vec![
            to("sip:all@h", &[], &[]),
            to("sip:domain@h", &[], &["Example.org"]),
            to("sip:user@h", &["alice"], &[]),
            to("sip:both@h", &["alice"], &["example.net"]),
            to("sip:whole@h", &["alice@Example.org"], &[]),
        ]);
        for (aor, uri) in [
            ("sip:alice@example.org", "sip:whole@h"),
            ("sip:alice@example.net", "sip:both@h"),
            ("sip:alice@example.com", "sip:user@h"),
            ("sip:bob@example.org", "sip:domain@h"),
            ("sip:bob@example.com", "sip:all@h"),
        ] {
            let Ok(Uri::Sip(parsed)) = Uri::parse(aor.as_bytes()) else {
                panic!("{aor}");
            };
            let aor = Aor::of(&parsed, parsed.host.as_bytes()).unwrap();
            let found = forwards.of(&aor).and_then(|it| it.to(DivertReason::Busy));
            assert_eq!(found, Some(uri), "{aor:?}");
        }
        assert!(Forward::is_valid("sip:vm@192.0.2.5") && Forward::is_valid("tel:+4930"));
        assert!(!Forward::is_valid("sip:192.0.2.5") && !Forward::is_valid("mailto:a@b"));
    }
}
