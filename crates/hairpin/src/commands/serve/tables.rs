//! The small tables of a store: realms, secrets, limits and peer rules.

use std::collections::BTreeMap;
use std::sync::Arc;

use server::policy::{PeerRule, PeerRules};
use server::quota::QuotaLimits;
use server::realms::RealmSettings;
use server::{MAX_REALM_BYTES, Settings};
use stores::{RealmOption, Shared, Source};

/// The rates that a realm may have, in bytes per second.
const RATES: std::ops::RangeInclusive<u64> = 1_000..=10_000_000_000;
/// Realms whose rows the log names.
const MAX_LOGGED_REALMS: usize = 20;

/// Why the rows of a realm have no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoEffectReason {
    /// No client can belong to the realm.
    Unknown,
    /// A challenge cannot carry its name (RFC 8489 §14.9).
    Name,
    /// A challenge cannot carry its name and that of the token server.
    ServerName,
}

impl NoEffectReason {
    /// Why a realm is not among the settings.
    pub(super) fn of_unknown(realm: &str) -> Self {
        match may_be_realm(realm) {
            true => NoEffectReason::Unknown,
            false => NoEffectReason::Name,
        }
    }

    fn text(self) -> String {
        match self {
            NoEffectReason::Unknown => {
                "the configuration has no such realm, and no origin selects it".into()
            }
            NoEffectReason::Name => {
                format!("its name has more than {MAX_REALM_BYTES} bytes or a control character")
            }
            NoEffectReason::ServerName => {
                "auth.token_server_name is too long for this realm".into()
            }
        }
    }
}

/// Rows of a store that have no effect because of their realm.
#[derive(Debug, Default)]
pub(super) struct IgnoredRows(BTreeMap<String, (NoEffectReason, usize)>);

impl IgnoredRows {
    pub(super) fn add(&mut self, realm: &str, why: NoEffectReason) {
        let count = self.0.entry(realm.to_owned()).or_insert((why, 0));
        count.1 += 1;
    }
}

/// Stores the numbers of rows without effect. Logs only realms that had no such rows before, because each reload makes
/// the settings again.
pub(super) fn report(source: &Source, ignored: IgnoredRows) {
    let counts = ignored.0.iter();
    let counts = counts.map(|(realm, (_, rows))| (realm.clone(), *rows));
    let new = source.set_ignored_rows(counts.collect());
    let store = source.kind().name();
    for realm in new.iter().take(MAX_LOGGED_REALMS) {
        if let Some((why, rows)) = ignored.0.get(realm) {
            let reason = why.text();
            tracing::warn!(
                store,
                realm,
                rows,
                reason,
                "rows of a store have no effect because of their realm"
            );
        }
    }
    if new.len() > MAX_LOGGED_REALMS {
        let more = new.len() - MAX_LOGGED_REALMS;
        tracing::warn!(store, more, "rows of more realms have no effect");
    }
}

/// Adds the tables of all stores. Returns, for each store, the rows that have no effect because of their realm.
pub(super) fn add_to(settings: &mut Settings, stores: &[Arc<Shared>]) -> Vec<IgnoredRows> {
    let mut ignored: Vec<IgnoredRows> = stores.iter().map(|_| IgnoredRows::default()).collect();
    // First: a secret of one store may be of a realm whose origin another store has.
    for (shared, ignored) in stores.iter().zip(&mut ignored) {
        add_realms(settings, shared, ignored);
    }
    for (shared, ignored) in stores.iter().zip(&mut ignored) {
        add_secrets(settings, shared, ignored);
        add_options(settings, shared, ignored);
        add_peers(settings, shared, ignored);
    }
    ignored
}

fn may_be_realm(name: &str) -> bool {
    name.len() <= MAX_REALM_BYTES && !name.chars().any(char::is_control)
}

/// The realm of this name beside the default one.
fn find<'a>(settings: &'a mut Settings, name: &str) -> Option<&'a mut RealmSettings> {
    let mut realms = settings.realms.iter_mut();
    realms.find(|realm| realm.name == name)
}

pub(super) fn is_default(settings: &Settings, realm: &str) -> bool {
    realm.is_empty() || realm == settings.realm
}

/// An origin creates its realm: without an origin, no client can choose a realm that is not configured.
fn add_realms(settings: &mut Settings, shared: &Shared, ignored: &mut IgnoredRows) {
    for (origin, name) in &shared.origins {
        let same = |known: &String| known.eq_ignore_ascii_case(origin);
        let is_taken = settings
            .realms
            .iter()
            .any(|realm| realm.origins.iter().any(same));
        if is_taken || is_default(settings, name) {
            continue;
        }
        if !may_be_realm(name) {
            ignored.add(name, NoEffectReason::of_unknown(name));
            continue;
        }
        if find(settings, name).is_none() {
            settings.realms.push(RealmSettings::new(name));
        }
        if let Some(realm) = find(settings, name) {
            realm.origins.push(origin.clone());
        }
    }
}

fn add_secrets(settings: &mut Settings, shared: &Shared, ignored: &mut IgnoredRows) {
    for (realm, secret) in &shared.secrets {
        if secret.is_empty() {
            continue;
        }
        let secret = secret.clone().into_bytes();
        let secrets = match is_default(settings, realm) {
            true => Some(&mut settings.secrets),
            false => find(settings, realm).map(|realm| &mut realm.secrets),
        };
        match secrets {
            Some(secrets) if !secrets.contains(&secret) => secrets.push(secret),
            Some(_) => {}
            None => ignored.add(realm, NoEffectReason::of_unknown(realm)),
        }
    }
}

/// Limits of realms. `limits.allocations` limits the whole server, so the total quota of the default realm is not used.
/// 0 keeps the configured limit.
fn add_options(settings: &mut Settings, shared: &Shared, ignored: &mut IgnoredRows) {
    for (realm, option, value) in &shared.options {
        let value = *value;
        let is_rate = *option == RealmOption::MaxBps;
        if value == 0 || is_rate && !RATES.contains(&value) {
            continue;
        }
        let count = u32::try_from(value).unwrap_or(QuotaLimits::UNLIMITED);
        if is_default(settings, realm) {
            match option {
                RealmOption::MaxBps => settings.allocation_rate = value,
                RealmOption::UserQuota => settings.quota = settings.quota.per_user(count),
                RealmOption::TotalQuota => {}
            }
        } else if let Some(realm) = find(settings, realm) {
            match option {
                RealmOption::MaxBps => realm.allocation_rate = value,
                RealmOption::UserQuota => realm.allocations_per_user = count,
                RealmOption::TotalQuota => realm.allocations = count,
            }
        } else {
            ignored.add(realm, NoEffectReason::of_unknown(realm));
        }
    }
}

fn add_peers(settings: &mut Settings, shared: &Shared, ignored: &mut IgnoredRows) {
    type List = fn(&mut PeerRules) -> &mut Vec<PeerRule>;
    let lists: [(_, List); 2] = [
        (&shared.allowed, |peers| &mut peers.allow),
        (&shared.denied, |peers| &mut peers.deny),
    ];
    for (rows, list) in lists {
        for (realm, range) in rows {
            let peers = match is_default(settings, realm) {
                true => Some(&mut settings.peers),
                false => find(settings, realm).map(|realm| &mut realm.peers),
            };
            match peers {
                Some(peers) => list(peers).extend(rules(range)),
                None => ignored.add(realm, NoEffectReason::of_unknown(realm)),
            }
        }
    }
}

fn rules(range: &str) -> Vec<PeerRule> {
    let Some(networks) = stores::ranges::networks(range) else {
        tracing::warn!(
            range,
            "a peer rule of a store is ignored: it is not a range of addresses"
        );
        return Vec::new();
    };
    networks.into_iter().map(PeerRule::all_ports).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Adds the tables of one store.
    fn add_one(settings: &mut Settings, shared: Shared) -> IgnoredRows {
        add_to(settings, &[Arc::new(shared)]).remove(0)
    }

    fn shared() -> Shared {
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        Shared {
            has_users: true,
            secrets: vec![
                pair("", "logen"),
                pair("crinna.org", "north"),
                pair("nowhere", "lost"),
            ],
            origins: vec![
                pair("https://crinna.org", "crinna.org"),
                pair("https://home.org", "north.gov"),
                pair("https://taken.org", "crinna.org"),
            ],
            options: vec![
                ("crinna.org".to_owned(), RealmOption::MaxBps, 400_000),
                ("crinna.org".to_owned(), RealmOption::UserQuota, 8),
                ("north.gov".to_owned(), RealmOption::UserQuota, 10),
                ("crinna.org".to_owned(), RealmOption::TotalQuota, 100),
            ],
            allowed: vec![pair("north.gov", "172.17.13.200")],
            denied: vec![
                pair("crinna.org", "123::77"),
                pair("", "203.0.113.0-203.0.113.255"),
                pair("", "nonsense"),
            ],
            ..Shared::default()
        }
    }

    #[test]
    fn tables_add_realms_secrets_limits_and_peer_rules() {
        let mut settings = Settings::default();
        settings.realm = "north.gov".to_owned();
        let mut configured = RealmSettings::new("own.org");
        configured.origins.push("https://TAKEN.org".to_owned());
        settings.realms.push(configured);
        let ignored = add_one(&mut settings, shared());
        assert_eq!(settings.secrets, [b"logen"]);
        assert_eq!(settings.realms.len(), 2);
        let crinna = find(&mut settings, "crinna.org").unwrap();
        assert_eq!(crinna.origins, ["https://crinna.org"]);
        assert_eq!(crinna.secrets, [b"north"]);
        assert_eq!(crinna.allocation_rate, 400_000);
        assert_eq!((crinna.allocations, crinna.allocations_per_user), (100, 8));
        assert_eq!(crinna.peers.deny.len(), 1);
        assert_eq!(settings.quota, QuotaLimits::default().per_user(10));
        let rule = |text: &str| PeerRule::all_ports(text.parse().unwrap());
        assert_eq!(settings.peers.allow, [rule("172.17.13.200/32")]);
        assert_eq!(settings.peers.deny, [rule("203.0.113.0/24")]);
        let ignored: Vec<_> = ignored.0.into_iter().collect();
        assert_eq!(
            ignored,
            [("nowhere".to_owned(), (NoEffectReason::Unknown, 1))]
        );
    }

    #[test]
    fn rows_of_one_store_have_effect_for_a_realm_whose_origin_a_later_store_has() {
        let mut settings = Settings::default();
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        let first = Shared {
            secrets: vec![pair("late.org", "logen"), pair("nowhere", "lost")],
            options: vec![("late.org".to_owned(), RealmOption::UserQuota, 8)],
            denied: vec![pair("late.org", "192.0.2.1")],
            ..Shared::default()
        };
        let second = Shared {
            origins: vec![pair("https://late.org", "late.org")],
            ..Shared::default()
        };
        let ignored = add_to(&mut settings, &[Arc::new(first), Arc::new(second)]);
        let realm = find(&mut settings, "late.org").unwrap();
        assert_eq!(realm.secrets, [b"logen"]);
        assert_eq!(realm.allocations_per_user, 8);
        assert_eq!(realm.peers.deny.len(), 1);
        let realms: Vec<Vec<_>> = ignored.iter().map(|it| it.0.keys().collect()).collect();
        assert_eq!(realms, [vec!["nowhere"], vec![]]);
    }

    #[test]
    fn rows_of_each_table_with_a_realm_that_nobody_can_have_are_counted_with_the_reason() {
        let mut settings = Settings::default();
        settings.realm = "north.gov".to_owned();
        let long = "r".repeat(MAX_REALM_BYTES + 1);
        let pair = |one: &str, other: &str| (one.to_owned(), other.to_owned());
        let shared = Shared {
            secrets: vec![pair("lost", "a"), pair("lost", "b"), pair(&long, "c")],
            origins: vec![pair("https://long.org", &long)],
            options: vec![("lost".to_owned(), RealmOption::UserQuota, 8)],
            allowed: vec![pair("lost", "192.0.2.1")],
            denied: vec![pair("lost", "192.0.2.2"), pair(&long, "192.0.2.3")],
            ..Shared::default()
        };
        let ignored: Vec<_> = add_one(&mut settings, shared).0.into_iter().collect();
        let (lost, long) = (
            ("lost".to_owned(), (NoEffectReason::Unknown, 5)),
            (long, (NoEffectReason::Name, 3)),
        );
        assert_eq!(ignored, [lost, long]);
        assert_eq!((settings.realms.len(), settings.secrets.len()), (0, 0));
    }
}
