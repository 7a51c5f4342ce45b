//! SIP aliases and routes of a store. The log names each row that cannot be used. The other rows apply.

use std::collections::HashSet;

use server::sip::routes::{Action, Alias, Aliases, Route};
use server::sip::{Domains, Host, SipSettings};
use stores::Shared;

use crate::config::route_of_store;

/// Maximum number of unusable rows of one table that the log names. A table can have many more.
const MAX_LOGGED_ROWS: usize = 20;

/// Adds the SIP aliases and routes of one store to the settings. A row is ignored if the settings already have its
/// alias or its route name, from the configuration or an earlier store.
pub(super) fn add_to(sip: &mut SipSettings, shared: &Shared) {
    if shared.sip.aliases.is_empty() && shared.sip.routes.is_empty() {
        return;
    }
    if sip.domains.is_empty() {
        tracing::warn!("SIP aliases and routes of a store have no effect: there is no sip.domain");
        return;
    }
    // The domains are invalid. The server rejects these settings later.
    let Ok(domains) = Domains::new(sip.domains.clone()) else {
        return;
    };
    add_aliases(sip, shared, &domains);
    add_routes(sip, shared, &domains);
}

/// Appends the aliases of a store to those of the settings. Logs and leaves out those that cannot be used.
fn add_aliases(sip: &mut SipSettings, shared: &Shared, domains: &Domains) {
    let alias = |(alias, aor): &(String, String)| Alias {
        alias: alias.clone(),
        aor: aor.clone(),
    };
    let own = sip.aliases.iter().cloned();
    let all: Vec<Alias> = own.chain(shared.sip.aliases.iter().map(alias)).collect();
    let (_, wrong) = Aliases::new(&all, domains);
    for (place, why) in wrong.iter().take(MAX_LOGGED_ROWS) {
        let alias = all.get(*place).map_or("", |alias| &alias.alias);
        tracing::warn!(alias, "a SIP alias of a store is ignored: {why}");
    }
    if wrong.len() > MAX_LOGGED_ROWS {
        let more = wrong.len() - MAX_LOGGED_ROWS;
        tracing::warn!(more, "more SIP aliases of a store are ignored");
    }
    let mut wrong = wrong.into_iter().map(|(place, _)| place).peekable();
    // `wrong` and `all` have the same order, so one pass is enough.
    let usable = |(place, alias)| wrong.next_if_eq(&place).is_none().then_some(alias);
    sip.aliases = all.into_iter().enumerate().filter_map(usable).collect();
}

/// Appends the routes of a store to those of the settings. Logs and leaves out those that cannot be used.
fn add_routes(sip: &mut SipSettings, shared: &Shared, domains: &Domains) {
    let mut ignored = 0;
    let mut names: HashSet<String> = sip.routes.iter().map(|route| route.name.clone()).collect();
    for row in &shared.sip.routes {
        let route = route_of_store(row).and_then(|route| {
            check(sip, &route, domains)?;
            match names.insert(route.name.clone()) {
                true => Ok(route),
                false => Err(format!(
                    "the configuration or an earlier store has a route `{}`",
                    route.name
                )),
            }
        });
        match route {
            Ok(route) => sip.routes.push(route),
            Err(why) => {
                ignored += 1;
                if ignored <= MAX_LOGGED_ROWS {
                    tracing::warn!(route = row.name, "a SIP route of a store is ignored: {why}");
                }
            }
        }
    }
    if ignored > MAX_LOGGED_ROWS {
        let more = ignored - MAX_LOGGED_ROWS;
        tracing::warn!(more, "more SIP routes of a store are ignored");
    }
}

/// Checks that the settings have the trunks and the domain of a route. A trunk to which it sends must have an address.
/// The error is the reason why the route cannot be used.
fn check(sip: &SipSettings, route: &Route, domains: &Domains) -> Result<(), String> {
    let trunk = |name: &String| {
        let found = sip.trunks.iter().find(|trunk| trunk.name == *name);
        found.ok_or_else(|| format!("there is no trunk `{name}` in the configuration"))
    };
    for name in &route.from_trunks {
        trunk(name)?;
    }
    match &route.action {
        Action::Trunks(names) => {
            for name in names {
                if trunk(name)?.to.is_empty() {
                    return Err(format!("the trunk `{name}` has no address in `to`"));
                }
            }
        }
        Action::Domain(name) => {
            let host = Host::new(name.as_bytes());
            if host.and_then(|host| domains.of(host)).is_none() {
                return Err(format!("`{name}` is not the name of a sip.domain"));
            }
        }
        Action::Reject { .. } => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use server::sip::routes::NextHop;
    use server::sip::{Domain, Trunk};
    use stores::{SipRouteRow, SipTables};

    fn settings() -> SipSettings {
        let mut sip = SipSettings::default();
        let domain = |name: &str| Domain {
            name: name.to_owned(),
            ..Domain::default()
        };
        sip.domains = vec![domain("a.org"), domain("b.org")];
        let trunk = |name: &str, to: &[&str]| Trunk {
            name: name.to_owned(),
            to: to
                .iter()
                .map(|to| NextHop::new(to).expect("a hop"))
                .collect(),
            ..Trunk::default()
        };
        sip.trunks = vec![trunk("carrier", &["sip:192.0.2.7"]), trunk("deaf", &[])];
        sip.routes = vec![Route {
            name: "own".to_owned(),
            action: Action::Domain("a.org".to_owned()),
            ..Route::default()
        }];
        sip
    }

    fn shared(aliases: &[(&str, &str)], routes: &[(&str, &[(&str, &str)])]) -> Shared {
        let pair = |(one, other): &(&str, &str)| ((*one).to_owned(), (*other).to_owned());
        let route = |(name, keys): &(&str, &[(&str, &str)])| SipRouteRow {
            name: (*name).to_owned(),
            keys: keys.iter().map(pair).collect(),
        };
        let sip = SipTables {
            aliases: aliases.iter().map(pair).collect(),
            routes: routes.iter().map(route).collect(),
            omitted: 0,
        };
        Shared {
            sip: sip.into(),
            ..Shared::default()
        }
    }

    #[test]
    fn usable_rows_are_added_unless_the_configuration_or_an_earlier_store_has_them() {
        let mut sip = settings();
        let first = shared(
            &[
                ("info@a.org", "ann@a.org"),
                ("loop@a.org", "loop@a.org"),
                ("nobody", "ann@a.org"),
                ("x@a.org", "ann@c.org"),
            ],
            &[
                ("own", &[("trunks", "carrier")]),
                ("out", &[("prefixes", "+49"), ("trunks", "carrier")]),
                ("deaf", &[("trunks", "deaf")]),
                ("none", &[("trunks", "nowhere")]),
                ("from", &[("from_trunks", "nowhere"), ("reject", "403")]),
                ("domain", &[("to_domain", "c.org")]),
                ("wrong", &[("priority", "high"), ("reject", "403")]),
                ("last", &[("reject", "603 No")]),
            ],
        );
        add_to(&mut sip, &first);
        let second = shared(
            &[("info@a.org", "bob@a.org"), ("desk@b.org", "bob@a.org")],
            &[
                ("out", &[("reject", "403")]),
                ("more", &[("to_domain", "b.org")]),
            ],
        );
        add_to(&mut sip, &second);
        let aliases: Vec<_> = sip
            .aliases
            .iter()
            .map(|it| (&*it.alias, &*it.aor))
            .collect();
        assert_eq!(
            aliases,
            [("info@a.org", "ann@a.org"), ("desk@b.org", "bob@a.org")]
        );
        let names: Vec<_> = sip.routes.iter().map(|route| &*route.name).collect();
        assert_eq!(names, ["own", "out", "last", "more"]);
        assert_eq!(sip.routes[0].action, Action::Domain("a.org".to_owned()));
        assert!(sip.table(None).is_ok(), "the workers can use it");
    }

    #[test]
    fn an_alias_of_a_later_store_does_not_change_one_of_an_earlier_store() {
        let mut sip = settings();
        add_to(&mut sip, &shared(&[("desk@a.org", "bob@a.org")], &[]));
        let second = [("bob@a.org", "desk@a.org"), ("info@a.org", "desk@a.org")];
        add_to(&mut sip, &shared(&second, &[]));
        let aliases = sip.aliases.iter().map(|it| (&*it.alias, &*it.aor));
        let aliases: Vec<_> = aliases.collect();
        assert_eq!(
            aliases,
            [("desk@a.org", "bob@a.org"), ("info@a.org", "desk@a.org")]
        );
    }

    #[test]
    fn without_a_domain_nothing_is_added() {
        let mut sip = SipSettings::default();
        add_to(
            &mut sip,
            &shared(
                &[("info@a.org", "ann@a.org")],
                &[("last", &[("reject", "603")])],
            ),
        );
        assert_eq!(sip, SipSettings::default());
    }
}
