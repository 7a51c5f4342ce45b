//! Which routes match a request, and in which order.

use std::cmp::Reverse;

use super::call::{Call, CallSender};
use super::config::{Action, HeaderRule};
use super::table::{Compiled, Table};

/// A route that has a prefix of the called user part, or no prefix. Sorting by the fields gives the order in which the
/// routes are tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MatchingRoute {
    priority: Reverse<u16>,
    /// The length of its longest matching prefix; 0 for a route without a prefix.
    pub(super) len: Reverse<u16>,
    pub(super) route: u32,
}

/// Why a route does not match.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mismatch {
    Domain,
    FromTrunk,
    FromUser,
    FromNetwork,
    Header,
    /// It leads to trunks, and the sender is a trunk that it does not name.
    UnnamedTrunk,
    /// It leads to trunks, and the sender is not known.
    UnknownSender,
}

impl Mismatch {
    pub(super) fn text(self) -> &'static str {
        match self {
            Mismatch::Domain => "the host of the Request-URI is not in `domains`",
            Mismatch::FromTrunk => "the sender is not in `from_trunks`",
            Mismatch::FromUser => "the sender is not in `from_users`",
            Mismatch::FromNetwork => "the source address is not in `from_networks`",
            Mismatch::Header => "a header field of `headers` is not there",
            Mismatch::UnnamedTrunk => {
                "it leads to trunks, and calls of a trunk follow such a route only if `from_trunks` names the trunk"
            }
            Mismatch::UnknownSender => {
                "it leads to trunks, and the sender is neither a user nor a trunk"
            }
        }
    }
}

impl Table {
    /// The routes that have a prefix of `called` or no prefix, in the order in which they are tried. Their other
    /// conditions are not checked: see [`Compiled::mismatch`].
    pub(super) fn candidates(&self, called: &[u8]) -> Vec<MatchingRoute> {
        let mut all = Vec::with_capacity(16);
        let candidate = |route: u32, len: usize| {
            let compiled = self.routes.get(route as usize);
            MatchingRoute {
                priority: Reverse(compiled.map_or(0, |it| it.route.priority)),
                len: Reverse(len as u16),
                route,
            }
        };
        for (prefix, routes) in self.prefixes.matches(called) {
            for route in routes {
                // The longest matching prefix of a route counts. `matches` returns it first.
                if !all
                    .iter()
                    .any(|earlier: &MatchingRoute| earlier.route == *route)
                {
                    all.push(candidate(*route, prefix.len()));
                }
            }
        }
        all.extend(self.others.iter().map(|route| candidate(*route, 0)));
        all.sort_unstable();
        all
    }
}

impl Compiled {
    /// The first condition of the route that a call does not meet; `None` if it meets all of them. The prefix is not
    /// checked. `host` is the host of the Request-URI.
    pub(super) fn mismatch(&self, call: &Call<'_>, host: &[u8]) -> Option<Mismatch> {
        let route = &self.route;
        let is_host = |domain: &String| domain.as_bytes().eq_ignore_ascii_case(host);
        if !route.domains.is_empty() && !route.domains.iter().any(is_host) {
            return Some(Mismatch::Domain);
        }
        if !self.from_trunks.is_empty()
            && !matches!(call.sender, CallSender::Trunk(trunk) if self.from_trunks.contains(&trunk))
        {
            return Some(Mismatch::FromTrunk);
        }
        if !route.from_users.is_empty() && !self.is_from_user(call.sender) {
            return Some(Mismatch::FromUser);
        }
        let mut networks = route.from_networks.iter();
        let is_in_network = networks.any(|network| network.contains(call.source.ip()));
        if !route.from_networks.is_empty() && !is_in_network {
            return Some(Mismatch::FromNetwork);
        }
        let has = |rule: &HeaderRule| {
            call.has_header(&rule.name, |value| match rule.is_prefix {
                true => value.starts_with(rule.value.as_bytes()),
                false => value == rule.value.as_bytes(),
            })
        };
        if !route.headers.iter().all(has) {
            return Some(Mismatch::Header);
        }
        self.forbidden(call.sender)
    }

    /// Why the sender may not use the trunks of this route; `None` if it may. Only authenticated users, and trunks that
    /// the route names in `from_trunks`, may use them. Otherwise this server would be an open relay.
    fn forbidden(&self, sender: CallSender<'_>) -> Option<Mismatch> {
        if !matches!(self.route.action, Action::Trunks(_)) {
            return None;
        }
        match sender {
            CallSender::User(..) => None,
            CallSender::Trunk(_) if !self.from_trunks.is_empty() => None,
            CallSender::Trunk(_) => Some(Mismatch::UnnamedTrunk),
            CallSender::Anyone => Some(Mismatch::UnknownSender),
        }
    }

    /// Whether `from_users` names the sender: as `user`, or as `user@domain`.
    fn is_from_user(&self, sender: CallSender<'_>) -> bool {
        let CallSender::User(user, domain) = sender else {
            return false;
        };
        let mut named = self.route.from_users.iter();
        named.any(|named| {
            let named = named.as_bytes();
            let whole = named
                .strip_prefix(user)
                .and_then(|rest| rest.strip_prefix(b"@"));
            named == user || whole.is_some_and(|it| it.eq_ignore_ascii_case(domain))
        })
    }
}
