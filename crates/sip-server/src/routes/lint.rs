//! Finds routes that no request reaches.

use std::collections::HashMap;

use super::config::{Action, Next, Route};

/// What is wrong with a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// A route has a prefix twice.
    PrefixTwice {
        /// The number of the route.
        route: usize,
        /// The number of the second one among its prefixes.
        prefix: usize,
    },
    /// No request reaches a route: another one takes all of them.
    Unreachable {
        /// The number of the route.
        route: usize,
        /// The route that takes its requests.
        taken_by: usize,
    },
    /// No request reaches a route by this prefix.
    PrefixUnreachable {
        /// The number of the route.
        route: usize,
        /// The number of the prefix.
        prefix: usize,
        /// The route that takes its requests.
        taken_by: usize,
    },
}

/// Finds prefixes and routes that no request reaches. It reports a route only if another route certainly takes all of
/// its requests. The other route is tried earlier. Apart from prefixes, it has no conditions, or only conditions that
/// the reported route has, too. And no route is tried after it fails.
#[must_use]
pub fn lint(routes: &[Route]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let takers = CatchAllRoutes::of(routes);
    for (number, route) in routes.iter().enumerate() {
        let mut seen = HashMap::new();
        for (place, prefix) in route.prefixes.iter().enumerate() {
            if seen.insert(&prefix[..], place).is_some() {
                let (route, prefix) = (number, place);
                findings.push(Finding::PrefixTwice { route, prefix });
            }
        }
        let taken: Vec<(usize, usize)> = match route.prefixes.is_empty() {
            true => takers
                .taker(routes, number, "")
                .map(|by| (0, by))
                .into_iter()
                .collect(),
            false => (0..)
                .zip(&route.prefixes)
                .filter_map(|(place, prefix)| Some((place, takers.taker(routes, number, prefix)?)))
                .collect(),
        };
        if taken.len() == route.prefixes.len().max(1) {
            let taken_by = taken.first().map_or(0, |it| it.1);
            findings.push(Finding::Unreachable {
                route: number,
                taken_by,
            });
        } else {
            findings.extend(taken.into_iter().map(|(prefix, taken_by)| {
                Finding::PrefixUnreachable {
                    route: number,
                    prefix,
                    taken_by,
                }
            }));
        }
    }
    findings
}

/// Routes after which no other route is tried, by prefix. A route without a prefix has the empty prefix here.
struct CatchAllRoutes<'r> {
    by_prefix: HashMap<&'r str, Vec<usize>>,
}

impl<'r> CatchAllRoutes<'r> {
    fn of(routes: &'r [Route]) -> CatchAllRoutes<'r> {
        let mut by_prefix: HashMap<&str, Vec<usize>> = HashMap::new();
        for (number, route) in routes.iter().enumerate().filter(|it| is_last(it.1)) {
            let any = route.prefixes.is_empty().then_some("");
            for prefix in any
                .into_iter()
                .chain(route.prefixes.iter().map(|it| &it[..]))
            {
                by_prefix.entry(prefix).or_default().push(number);
            }
        }
        CatchAllRoutes { by_prefix }
    }

    /// The number of a route that takes all requests that route `number` would get by `prefix`; `None` if there is
    /// none.
    fn taker(&self, routes: &[Route], number: usize, prefix: &str) -> Option<usize> {
        let own = routes.get(number)?;
        let ends = (0..=prefix.len()).filter(|end| prefix.is_char_boundary(*end));
        for end in ends {
            let shorter = prefix.get(..end)?;
            for other in self.by_prefix.get(shorter).into_iter().flatten() {
                let taker = routes.get(*other)?;
                let is_before = if taker.priority == own.priority {
                    // A longer prefix is tried first. Routes with the same prefix are tried in the order of the list.
                    shorter.len() == prefix.len() && *other < number
                } else {
                    taker.priority > own.priority
                };
                if *other != number && is_before && covers(taker, own) {
                    return Some(*other);
                }
            }
        }
        None
    }
}

/// Whether no other route is tried after this route, even if its trunks fail.
fn is_last(route: &Route) -> bool {
    let failures = route.failures;
    let nexts = [failures.busy, failures.no_answer, failures.unreachable];
    !matches!(route.action, Action::Trunks(_)) || nexts.iter().all(|next| *next == Next::Stop)
}

/// Whether every request that meets the conditions of `own` meets those of `taker`.
fn covers(taker: &Route, own: &Route) -> bool {
    fn is_in<T: PartialEq>(own: &[T], taker: &[T]) -> bool {
        taker.is_empty() || !own.is_empty() && own.iter().all(|one| taker.contains(one))
    }
    // A call from a trunk follows a route to trunks only if the route names that trunk in `from_trunks`.
    let leads_to_trunks = matches!(taker.action, Action::Trunks(_));
    let taker_skips_trunks = leads_to_trunks && taker.from_trunks.is_empty();
    let own_skips_trunks = matches!(own.action, Action::Trunks(_)) && own.from_trunks.is_empty();
    (!taker_skips_trunks || own_skips_trunks)
        && is_in(&own.domains, &taker.domains)
        && is_in(&own.from_trunks, &taker.from_trunks)
        && is_in(&own.from_users, &taker.from_users)
        && is_in(&own.from_networks, &taker.from_networks)
        && taker.headers.iter().all(|rule| own.headers.contains(rule))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::Failures;

    const STOP: Failures = Failures {
        busy: Next::Stop,
        no_answer: Next::Stop,
        unreachable: Next::Stop,
    };

    fn route(prefixes: &[&str]) -> Route {
        Route {
            prefixes: prefixes.iter().map(|&it| it.to_owned()).collect(),
            action: Action::Trunks(vec!["a".to_owned()]),
            failures: STOP,
            ..Route::default()
        }
    }

    #[test]
    fn a_prefix_that_is_there_twice_is_found() {
        let found = lint(&[route(&["1", "2", "1"])]);
        assert_eq!(
            found,
            [Finding::PrefixTwice {
                route: 0,
                prefix: 2
            }]
        );
    }

    #[test]
    fn a_route_behind_an_equal_one_is_unreachable() {
        let routes = [
            route(&["1"]),
            route(&["1", "2"]),
            route(&["2"]),
            route(&["12"]),
        ];
        let unreachable = Finding::Unreachable {
            route: 2,
            taken_by: 1,
        };
        let partly = Finding::PrefixUnreachable {
            route: 1,
            prefix: 0,
            taken_by: 0,
        };
        assert_eq!(lint(&routes), [partly, unreachable]);
        let everything = [route(&[]), route(&[])];
        assert_eq!(
            lint(&everything),
            [Finding::Unreachable {
                route: 1,
                taken_by: 0
            }]
        );
    }

    #[test]
    fn routes_after_a_failure_are_reachable() {
        let mut first = route(&["1"]);
        first.failures.unreachable = Next::NextTrunk;
        assert_eq!(lint(&[first, route(&["1"])]), []);
    }

    #[test]
    fn a_greater_priority_takes_longer_prefixes_too() {
        let mut first = route(&["1"]);
        first.priority = 5;
        let routes = [route(&["12"]), first];
        assert_eq!(
            lint(&routes),
            [Finding::Unreachable {
                route: 0,
                taken_by: 1
            }]
        );
    }

    #[test]
    fn conditions_let_others_through() {
        let mut first = route(&["1"]);
        first.from_users = vec!["alice".to_owned()];
        assert_eq!(lint(&[first.clone(), route(&["1"])]), []);
        let mut second = first.clone();
        second.domains = vec!["example.org".to_owned()];
        assert_eq!(
            lint(&[first, second]),
            [Finding::Unreachable {
                route: 1,
                taken_by: 0
            }]
        );
        // Calls of a trunk pass by a route to trunks that does not name it.
        let mut local = route(&["1"]);
        local.action = Action::Domain("example.org".to_owned());
        assert_eq!(lint(&[route(&["1"]), local]), []);
    }
}
