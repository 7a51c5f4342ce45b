//! Stores of users. The label is their place in `auth.stores`, not their URL, because URLs have passwords.

use std::sync::Arc;

use stores::{Source, Status};

use super::text::{Kind, Page};

pub(super) fn write(page: &mut Page, stores: &[Arc<Source>]) {
    if stores.is_empty() {
        return;
    }
    let all: Vec<(usize, &str, Status)> = (1..)
        .zip(stores)
        .map(|(number, store)| (number, store.kind().name(), store.status()))
        .collect();
    let mut gauge = |name, help, value: fn(&Status) -> usize| {
        let mut family = page.family(name, Kind::Gauge, help);
        for (number, kind, status) in &all {
            family.put(&[("store", number), ("kind", kind)], value(status));
        }
    };
    gauge(
        "hairpin_store_up",
        "1 while a store is up, else 0; by its place in auth.stores.",
        |status| usize::from(status.is_up),
    );
    gauge(
        "hairpin_store_cached_users",
        "Users of a store in the cache.",
        |status| status.cached_users,
    );
    gauge(
        "hairpin_store_ignored_rows",
        "Rows of the small tables of a store that have no effect because of their realm.",
        |status| status.ignored_rows,
    );
    gauge(
        "hairpin_store_sip_tables_current",
        "1 if the last reading of the SIP tables of a store has succeeded, else 0.",
        |status| usize::from(status.is_sip_current),
    );
    gauge(
        "hairpin_store_sip_omitted_rows",
        "Rows of SIP tables of a store that have no effect, because a table has too many.",
        |status| status.sip_omitted,
    );
    write_lookups(page, &all);
    let mut counter = |name, help, value: fn(&Status) -> u64| {
        let mut family = page.family(name, Kind::Counter, help);
        for (number, _, status) in &all {
            family.put(&[("store", number)], value(status));
        }
    };
    counter(
        "hairpin_store_queries_total",
        "Queries for users to a store.",
        |status| status.queries,
    );
    counter(
        "hairpin_store_query_failures_total",
        "Queries for users to a store that failed or had no response in time.",
        |status| status.failures,
    );
    counter(
        "hairpin_store_sip_failures_total",
        "Readings of the SIP tables of a store that have failed.",
        |status| status.sip_failures,
    );
    let mut seconds = page.family(
        "hairpin_store_query_seconds_total",
        Kind::Counter,
        "Time that all queries for users to a store took, in seconds.",
    );
    for (number, _, status) in &all {
        seconds.put(&[("store", number)], status.time.as_secs_f64());
    }
}

fn write_lookups(page: &mut Page, all: &[(usize, &str, Status)]) {
    let mut lookups = page.family(
        "hairpin_store_lookups_total",
        Kind::Counter,
        "Look-ups of users in a store, by outcome.",
    );
    for (number, _, status) in all {
        for (outcome, count) in [
            ("cached", status.cached),
            ("known", status.known),
            ("unknown", status.unknown),
            ("stale", status.stale),
            ("failed", status.failed),
            ("refused", status.refused),
        ] {
            lookups.put(&[("store", number), ("outcome", &outcome)], count);
        }
    }
}
