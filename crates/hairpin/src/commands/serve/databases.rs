//! The stores of a running server: they add their small tables to its settings, and apply changes of users and tables.

use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, anyhow};
use server::Settings;
use server::access_tokens::{TokenKey, TokenKeys};
use server::signals::SignalWaker;
use server::turn::server::credentials::AccessTokens;
use server::turn::server::max_server_name_bytes;
use stores::{Notice, OpenError, Shared, Source, StoreList, StoreSettings, Stores, TokenKeyRow};

use super::Service;
use super::cluster::Peers;
use super::sip_tables;
use super::tables::{self, IgnoredRows, NoEffectReason, is_default};
use crate::config::{self, Config, token_key};

/// How long the start waits for databases, and a reload for new ones. If a database has not responded at the
/// start, the server uses it as soon as it responds.
const MAX_START_TIME: Duration = Duration::from_secs(3);
/// Changed users that are reported one by one. If there are more, all users are looked up again.
const MAX_REPORTED_USERS: usize = 256;

/// Changes that the main thread has not applied yet.
#[derive(Debug, Default)]
struct Notices {
    users: Vec<String>,
    everything: bool,
    shared: bool,
}

/// The small tables of each store, as they were at one moment.
type Tables = Vec<Option<Arc<Shared>>>;

/// The stores that the workers use.
#[derive(Debug, Default)]
pub(super) struct InUse {
    list: StoreList,
    /// The only store is the default one, which every server with a state directory has.
    is_default: bool,
}

/// The stores of a server, and what it shares with other nodes.
#[derive(Debug)]
pub(super) struct Databases {
    stores: Stores,
    in_use: InUse,
    notices: Arc<Mutex<Notices>>,
    /// The tables that the settings of the workers have; or older ones, if they changed while the settings were made.
    applied: Tables,
    /// The other nodes of the cluster.
    peers: Option<Peers>,
}

impl InUse {
    /// The tables of the stores now.
    fn tables(&self) -> Tables {
        self.list.sources().map(|source| source.shared()).collect()
    }
}

impl Databases {
    /// Opens the stores of a configuration. `waker` wakes the main thread.
    pub(super) fn open(config: &Config, waker: SignalWaker) -> Result<Self> {
        let notices = Arc::new(Mutex::new(Notices::default()));
        let told = Arc::clone(&notices);
        let notify = move |notice| {
            note(&told, notice);
            waker.wake();
        };
        // The threads of the stores open no port and load nothing.
        let prepare = || drop(server::privileges::drop_all());
        let stores = Stores::start(prepare, notify).context("cannot start the stores")?;
        let in_use = open(&stores, config)?;
        in_use.list.wait(Instant::now() + MAX_START_TIME);
        Ok(Self {
            stores,
            // The caller makes the settings after this, and a server that cannot use them ends.
            applied: in_use.tables(),
            in_use,
            notices,
            peers: Peers::of(config)?,
        })
    }

    /// No stores.
    #[cfg(test)]
    pub(super) fn none() -> Self {
        Self {
            stores: Stores::start(|| {}, |_| {}).expect("a thread"),
            in_use: InUse {
                is_default: true,
                ..InUse::default()
            },
            notices: Arc::default(),
            applied: Tables::new(),
            peers: None,
        }
    }

    /// Opens the stores of another configuration, and waits for those that are new. Stores that have not changed are
    /// shared.
    ///
    /// # Errors
    /// If a store cannot be opened, or a new one does not respond.
    pub(super) fn open_next(&self, config: &Config) -> Result<InUse> {
        let next = open(&self.stores, config)?;
        let responded = next
            .list
            .respond(&self.in_use.list, Instant::now() + MAX_START_TIME);
        responded.map_err(|error| about(&error))?;
        Ok(next)
    }

    /// Uses other stores from now on. Returns the previous ones, which stay open until they are dropped.
    pub(super) fn replace(&mut self, next: InUse) -> InUse {
        std::mem::replace(&mut self.in_use, next)
    }

    /// The tables of the stores now. The caller makes settings after this, and calls [`set_applied`](Self::set_applied)
    /// if the workers use them.
    pub(super) fn tables(&self) -> Tables {
        self.in_use.tables()
    }

    /// Notes that the settings of the workers have these tables, or newer ones.
    pub(super) fn set_applied(&mut self, tables: Tables) {
        self.applied = tables;
    }

    /// Whether a store has read other tables since the settings were made.
    fn have_changed_tables(&self) -> bool {
        let same = |(now, then): (&Option<Arc<Shared>>, &Option<Arc<Shared>>)| match (now, then) {
            (Some(now), Some(then)) => Arc::ptr_eq(now, then),
            (now, then) => now.is_none() && then.is_none(),
        };
        let now = self.tables();
        now.len() != self.applied.len() || !now.iter().zip(&self.applied).all(same)
    }

    /// Logs how many stores were opened and closed since `before`.
    pub(super) fn log_change(&self, before: &InUse) {
        let opened = self.in_use.list.count_without(&before.list);
        let closed = before.list.count_without(&self.in_use.list);
        if opened + closed > 0 {
            tracing::info!(opened, closed, "stores replaced");
        }
    }

    /// The stores in their order.
    pub(super) fn sources(&self) -> impl Iterator<Item = &Arc<Source>> {
        self.in_use.list.sources()
    }

    /// The other nodes of the cluster.
    pub(super) fn peers(&self) -> Option<&Peers> {
        self.peers.as_ref()
    }

    /// Whether a user of a store can authenticate now, or may be able to later.
    pub(super) fn has_possible_user(&self) -> bool {
        let has_some = |source: &Arc<Source>| {
            let shared = source.shared();
            shared.is_none_or(|it| {
                it.has_users || !it.secrets.is_empty() || !it.token_keys.is_empty()
            })
        };
        !self.in_use.is_default || self.sources().any(has_some)
    }

    /// Adds the small tables, the users and the token keys of the stores to the settings.
    pub(super) fn add_to(&self, settings: &mut Settings, config: &Config) {
        let shared = self.sources().map(|it| it.shared().unwrap_or_default());
        let shared: Vec<_> = shared.collect();
        let mut ignored = tables::add_to(settings, &shared);
        for shared in &shared {
            sip_tables::add_to(&mut settings.sip, shared);
        }
        // All realms are known only now. A user of one store may belong to a realm of another.
        for source in self.sources() {
            if source.may_have_users() {
                settings.credentials.push(Arc::clone(source) as _);
                for realm in &mut settings.realms {
                    realm.credentials.push(Arc::clone(source) as _);
                }
            }
        }
        self.add_token_keys(settings, config, &mut ignored);
        for (source, ignored) in self.sources().zip(ignored) {
            tables::report(source, ignored);
        }
        if let Some(peers) = &self.peers {
            peers.add_to(settings);
        }
    }

    /// Adds the token keys that are valid now. The first key of a key ID applies: the configuration comes before the
    /// stores.
    fn add_token_keys(
        &self,
        settings: &mut Settings,
        config: &Config,
        ignored: &mut [IgnoredRows],
    ) {
        let mut keys = config.token_keys.clone();
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs());
        for (source, ignored) in self.sources().zip(ignored) {
            let shared = source.shared().unwrap_or_default();
            for row in &shared.token_keys {
                if let Some(why) = why_unused(settings, &row.realm, &config.token_server_name) {
                    ignored.add(&row.realm, why);
                    continue;
                }
                let is_duplicate = keys.iter().any(|key| key.kid == row.kid);
                if !is_duplicate && is_valid(row, now) {
                    keys.extend(key_of(row));
                }
            }
        }
        if keys.len() > config.token_keys.len()
            && let Ok(keys) = TokenKeys::new(&config.token_server_name, keys)
        {
            settings.access_tokens = Some(Arc::new(keys) as Arc<dyn AccessTokens>);
        }
    }

    /// Returns the changes since the last call.
    fn take_notices(&self) -> Notices {
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *notices)
    }
}

/// Opens the stores of a configuration. Stores that are open already are shared.
fn open(stores: &Stores, config: &Config) -> Result<InUse> {
    let opened = stores.open(list(config)?);
    Ok(InUse {
        list: opened.map_err(|error| about(&error))?,
        is_default: config.stores.is_empty(),
    })
}

/// The error with the setting that must be checked.
fn about(error: &OpenError) -> anyhow::Error {
    anyhow!("{error}; see auth.stores")
}

/// The stores that are configured, or the one of the state directory.
pub(in crate::commands) fn list(config: &Config) -> Result<Vec<StoreSettings>> {
    if !config.stores.is_empty() {
        return Ok(config.stores.clone());
    }
    let Some(folder) = config.state_dir.path() else {
        return Ok(Vec::new());
    };
    make_private(&folder)?;
    Ok(vec![config::default_store(&folder)])
}

/// Makes the state directory if it does not exist, with access only for its owner.
fn make_private(folder: &Path) -> Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    let made = builder.recursive(true).mode(0o700).create(folder);
    made.map_err(|error| {
        anyhow!(
            "cannot use the state directory {}: {error}: create it, and give it to the server's user",
            folder.display()
        )
    })
}

/// Records a change until the main thread applies it.
fn note(notices: &Mutex<Notices>, notice: Notice) {
    let mut notices = notices.lock().unwrap_or_else(PoisonError::into_inner);
    match notice {
        Notice::User(_) if notices.users.len() >= MAX_REPORTED_USERS => notices.everything = true,
        Notice::User(name) => notices.users.push(name),
        Notice::Everything => notices.everything = true,
        Notice::Shared => notices.shared = true,
        // Health checks and metrics read the state of the stores themselves.
        Notice::Health => {}
    }
}

/// Why a token key of this realm has no effect; `None` if it has one.
fn why_unused(settings: &Settings, realm: &str, server_name: &str) -> Option<NoEffectReason> {
    if !is_default(settings, realm) && settings.realms.iter().all(|it| it.name != realm) {
        return Some(NoEffectReason::of_unknown(realm));
    }
    // A challenge of the realm has to carry both names.
    let fits = server_name.len() <= max_server_name_bytes(realm.len());
    (!fits).then_some(NoEffectReason::ServerName)
}

/// Whether a key is valid now. A lifetime of 0 has no end.
fn is_valid(row: &TokenKeyRow, now_unix_s: u64) -> bool {
    let end = row.since_unix_s.saturating_add(row.lifetime_s);
    now_unix_s >= row.since_unix_s && (row.lifetime_s == 0 || now_unix_s < end)
}

/// The token key of a row. If the row has a mistake, logs it and returns `None`.
fn key_of(row: &TokenKeyRow) -> Option<TokenKey> {
    let key = row.key.trim();
    let key = token_key(&row.kid, key, row.algorithm.trim(), &row.realm);
    key.map_err(|mistake| {
        tracing::warn!(
            kid = row.kid,
            "a token key of a store is ignored: {mistake}"
        );
    })
    .ok()
}

impl Service<'_> {
    /// Applies changes of the stores.
    pub(super) fn follow_databases(&mut self) {
        let notices = self.running.databases().take_notices();
        // The start and a reload read the tables of new stores themselves, and these stores send a notice, too. Then no
        // table has changed.
        if notices.shared && self.running.databases().have_changed_tables() {
            let tables = self.running.databases().tables();
            // A reload also forgets all users.
            let outcome = self.denied.with_rules().and_then(|config| {
                let config = super::with_credentials(
                    config,
                    &mut self.made_up_secret,
                    self.running.databases(),
                )?;
                self.running.reload_settings(&config)
            });
            match outcome {
                Ok(()) => {
                    self.running.databases_mut().set_applied(tables);
                    tracing::info!("store tables applied");
                }
                Err(error) => {
                    tracing::error!("store tables not applied, the previous ones stay: {error:#}");
                }
            }
            return;
        }
        let users: Vec<Option<&str>> = match notices.everything {
            true => vec![None],
            false => notices.users.iter().map(|user| Some(&**user)).collect(),
        };
        for user in users {
            if let Err(error) = self.running.forget_users(user) {
                tracing::warn!(
                    "workers use the old key of a changed user until its ttl ends: {error:#}"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_key_is_valid_from_its_time_for_its_lifetime() {
        let row = |since_unix_s, lifetime_s| TokenKeyRow {
            kid: "union".to_owned(),
            key: String::new(),
            algorithm: String::new(),
            since_unix_s,
            lifetime_s,
            realm: String::new(),
        };
        let valid = [
            row(0, 0),
            row(100, 0),
            row(0, 101),
            row(101, 0),
            row(0, 100),
        ];
        let valid = valid.map(|row| is_valid(&row, 100));
        assert_eq!(valid, [true, true, true, false, false]);
        let mut union = row(0, 0);
        union.key = "MTIzNDU2Nzg5MDEyMzQ1Ngo=".to_owned();
        union.algorithm = "A128GCM".to_owned();
        // coturn's example has the end of a line in the key.
        assert!(key_of(&union).is_some());
    }
}
