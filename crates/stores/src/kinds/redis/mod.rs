//! Redis and Valkey, with the keys of coturn. One connection carries all commands. Keyspace events come by a second
//! one.
//!
//! ```text
//! turn/realm/REALM/user/NAME/key              MD5 key                turn/origin/ORIGIN     realm
//! turn/realm/REALM/user/NAME/hairpin-sha256   MD5 key ":" SHA-256 key
//! turn/realm/REALM/secret                     set of secrets         turn/oauth/kid/KID     hash
//! turn/realm/REALM/allowed-peer-ip, denied-peer-ip   sets of ranges  turn/realm/REALM/max-bps, total-quota, user-quota
//! sip/aliases                                 hash: alias -> address sip/route/NAME         hash of the keys of a route
//! ```

mod tables;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, FromRedisValue, IntoConnectionInfo as _,
    Pipeline, RedisError, RedisResult, TlsCertificates, Value, cmd,
};
use tokio::sync::Mutex;

use super::Options;
use crate::error::StoreError;
use crate::keys::{Keys, hex};
use crate::store::{
    Change, Directory, Found, OnChange, RealmOption, Shared, SipTables, Store, StoreFuture,
};

/// Limit for connecting, and for each command.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);
/// Keys that are asked for at once when all are listed.
const PAGE_KEYS: usize = 1_000;
/// Commands per pipeline. A look-up of a user waits for at most one pipeline.
const PIPELINE_COMMANDS: usize = 128;
/// The hash with all SIP aliases.
const ALIASES: &str = "sip/aliases";
/// Keys of which the database reports changes.
const WATCHED: [&str; 2] = ["turn/*", "sip/*"];

pub(crate) fn info(options: &Options) -> Result<ConnectionInfo, StoreError> {
    let wrong = |error| StoreError::Url(format!("redis: {error}"));
    let info = options.url.as_str().into_connection_info().map_err(wrong)?;
    Ok(match &options.password {
        Some(password) => {
            let settings = info.redis_settings().clone().set_password(password);
            info.set_redis_settings(settings)
        }
        None => info,
    })
}

#[derive(Debug)]
pub(crate) struct Redis {
    client: Client,
    connection: Mutex<Option<MultiplexedConnection>>,
    db: i64,
    /// The user has no permission to subscribe to some changes, and the log says so.
    is_denied: AtomicBool,
    /// SIP keys that had the wrong type at the last reading. The log names each once.
    no_hashes: std::sync::Mutex<HashSet<String>>,
}

/// What connects, without a connection yet.
pub(crate) fn client(options: &Options) -> Result<Client, StoreError> {
    let info = info(options)?;
    let client = match &options.ca {
        Some(path) => {
            let unreadable = |error| StoreError::Url(format!("{}: {error}", path.display()));
            let certificates = TlsCertificates {
                client_tls: None,
                root_cert: Some(std::fs::read(path).map_err(unreadable)?),
            };
            Client::build_with_tls(info, certificates)
        }
        None => Client::open(info),
    };
    client.map_err(|error| StoreError::Url(error.to_string()))
}

impl Redis {
    pub(crate) fn new(options: &Options) -> Result<Redis, StoreError> {
        let db = info(options)?.redis_settings().db();
        Ok(Redis {
            client: client(options)?,
            connection: Mutex::new(None),
            db,
            is_denied: AtomicBool::new(false),
            no_hashes: std::sync::Mutex::default(),
        })
    }

    async fn connection(&self) -> Result<MultiplexedConnection, StoreError> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = &*kept {
            return Ok(connection.clone());
        }
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(COMMAND_TIMEOUT))
            .set_response_timeout(Some(COMMAND_TIMEOUT));
        let connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(|error| StoreError::connect(&error))?;
        *kept = Some(connection.clone());
        Ok(connection)
    }

    async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, StoreError> {
        let mut connection = self.connection().await?;
        self.checked(command.query_async(&mut connection).await)
            .await
    }

    /// The result of each command. Sends them in pipelines: thousands of commands, one after the other, take seconds if
    /// the database is far away.
    async fn ask_all(&self, commands: &[Cmd]) -> Result<Vec<RedisResult<Value>>, StoreError> {
        let mut all = Vec::with_capacity(commands.len());
        for part in commands.chunks(PIPELINE_COMMANDS) {
            let mut pipeline = Pipeline::with_capacity(part.len());
            for command in part {
                pipeline.add_command(command.clone());
            }
            let mut connection = self.connection().await?;
            let outcome = pipeline.ignore_errors().query_async(&mut connection).await;
            let results: Vec<RedisResult<Value>> = self.checked(outcome).await?;
            all.extend(results);
        }
        Ok(all)
    }

    /// Sends commands at once, whose results nobody reads. The next ones connect again after any error: a master that
    /// has become a replica answers READONLY as long as it is asked.
    pub(crate) async fn send(&self, commands: &Pipeline) -> Result<(), StoreError> {
        let mut connection = self.connection().await?;
        let outcome = commands.query_async(&mut connection).await;
        if outcome.is_err() {
            *self.connection.lock().await = None;
        }
        self.checked(outcome).await
    }

    async fn checked<T>(&self, outcome: Result<T, RedisError>) -> Result<T, StoreError> {
        match outcome {
            Ok(value) => Ok(value),
            Err(error) if error.is_unrecoverable_error() || error.is_io_error() => {
                // The next command connects again.
                *self.connection.lock().await = None;
                Err(StoreError::connect(&error))
            }
            Err(error) => Err(StoreError::query(&error)),
        }
    }

    async fn find(&self, realm: &str, name: &str) -> Result<Found, StoreError> {
        let [main, further] = keys_of(realm, name);
        let command = cmd("MGET").arg(main).arg(further).take();
        let (main, further): (Option<String>, Option<String>) = self.ask(&command).await?;
        let Some(main) = main else {
            return Ok(Found::default());
        };
        let keys = Keys::from_hex(&main).ok_or_else(|| {
            let message = format!(
                "the key of `{name}` in the realm `{realm}` is not 32 or 64 hexadecimal digits"
            );
            StoreError::Query(message)
        })?;
        // It counts only with the MD5 key that it was made with.
        let pair = further.as_deref().and_then(|text| text.split_once(':'));
        let sha256 = pair
            .filter(|(of, _)| *of == main.trim())
            .and_then(|(_, key)| Keys::from_hex(key));
        Ok(Found {
            keys: Some(keys.or(sha256.unwrap_or_default())),
            ttl: None,
        })
    }

    /// The keys that match and that are wanted, in order.
    async fn scan(
        &self,
        pattern: &str,
        mut is_wanted: impl FnMut(&str) -> bool,
    ) -> Result<Vec<String>, StoreError> {
        let (mut cursor, mut all) = (0u64, Vec::new());
        loop {
            let command = cmd("SCAN")
                .arg(cursor)
                .arg("MATCH")
                .arg(pattern)
                .arg("COUNT")
                .arg(PAGE_KEYS)
                .take();
            let (next, keys): (u64, Vec<String>) = self.ask(&command).await?;
            all.extend(keys.into_iter().filter(|key| is_wanted(key)));
            cursor = next;
            if cursor == 0 {
                break;
            }
        }
        // A key may come more than once.
        all.sort_unstable();
        all.dedup();
        Ok(all)
    }

    async fn listen(&self, on_change: OnChange<'_>) -> Result<(), StoreError> {
        let connecting =
            tokio::time::timeout(COMMAND_TIMEOUT, self.client.get_async_pubsub()).await;
        let connected = connecting.map_err(|_| StoreError::Timeout(COMMAND_TIMEOUT))?;
        let mut events = connected.map_err(|error| StoreError::connect(&error))?;
        let prefix = format!("__keyspace@{}__:", self.db);
        let (mut denied, mut reason) = (Vec::new(), String::new());
        for keys in WATCHED {
            let pattern = format!("{prefix}{keys}");
            match events.psubscribe(&pattern).await {
                Ok(()) => {}
                Err(error) if error.code() == Some("NOPERM") => {
                    reason = error.to_string();
                    denied.push(pattern);
                }
                Err(error) => return Err(StoreError::connect(&error)),
            }
        }
        self.note_denied(&denied, &reason);
        if denied.len() == WATCHED.len() {
            return Err(StoreError::Denied(reason));
        }
        // Earlier changes are not reported.
        on_change(Change::Everything);
        let mut messages = events.into_on_message();
        while let Some(message) = messages.next().await {
            let channel = message.get_channel_name();
            let key = channel.strip_prefix(&prefix).unwrap_or_default();
            match Key::of(key) {
                Some(Key::User { realm, name }) => on_change(Change::User {
                    realm: realm.to_owned(),
                    name: name.to_owned(),
                }),
                Some(_) => on_change(Change::Shared),
                None => {}
            }
        }
        let closed = "the database has closed the connection".to_owned();
        Err(StoreError::Connect(closed))
    }

    /// Logs once that the user has no permission to subscribe to these channels. When all are permitted again, a later
    /// refusal is logged again.
    fn note_denied(&self, denied: &[String], reason: &str) {
        let is_denied = !denied.is_empty();
        if !self.is_denied.swap(is_denied, Ordering::Relaxed) && is_denied {
            tracing::warn!(
                channels = denied.join(", "),
                reason,
                "a store may not report changes of keys: users apply after their ttl, tables after 30 s"
            );
        }
    }

    async fn put(&self, realm: &str, name: &str, keys: Keys) -> Result<(), StoreError> {
        let md5 = keys.md5.map(|key| hex(&key));
        let sha256 = keys.sha256.map(|key| hex(&key));
        let Some(value) = md5.as_deref().or(sha256.as_deref()) else {
            return Err(StoreError::Query("a user needs a key".to_owned()));
        };
        let [main, further] = keys_of(realm, name);
        match &sha256 {
            Some(sha256) => {
                let both = format!("{value}:{sha256}");
                let command = cmd("MSET")
                    .arg(main)
                    .arg(value)
                    .arg(further)
                    .arg(both)
                    .take();
                self.ask(&command).await
            }
            None => {
                let () = self.ask(cmd("DEL").arg(further)).await?;
                self.ask(cmd("SET").arg(main).arg(value)).await
            }
        }
    }

    async fn list(
        &self,
        realm: Option<&str>,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let is_user = |key: &str| matches!(Key::of(key), Some(Key::User { .. }));
        let keys = self.scan("turn/realm/*/user/*/key", is_user).await?;
        let user = |key: &String| match Key::of(key) {
            Some(Key::User { realm, name }) => Some((realm.to_owned(), name.to_owned())),
            _ => None,
        };
        let mut users: Vec<_> = keys.iter().filter_map(user).collect();
        users.sort_unstable();
        users.retain(|(of, name)| {
            realm.is_none_or(|realm| realm == of)
                && after.is_none_or(|after| (of.as_str(), name.as_str()) > after)
        });
        users.truncate(limit);
        Ok(users)
    }
}

/// Where the keys of a user are.
fn keys_of(realm: &str, name: &str) -> [String; 2] {
    ["key", "hairpin-sha256"].map(|last| format!("turn/realm/{realm}/user/{name}/{last}"))
}

/// What a key is for.
#[derive(Debug, PartialEq, Eq)]
enum Key<'a> {
    User { realm: &'a str, name: &'a str },
    Secret(&'a str),
    Allowed(&'a str),
    Denied(&'a str),
    Option(&'a str, RealmOption),
    Origin(&'a str),
    Token(&'a str),
    Aliases,
    Route(&'a str),
}

impl<'a> Key<'a> {
    fn of(key: &'a str) -> Option<Key<'a>> {
        if key == ALIASES {
            return Some(Key::Aliases);
        }
        if let Some(name) = key.strip_prefix("sip/route/") {
            return Some(Key::Route(name));
        }
        let rest = key.strip_prefix("turn/")?;
        if let Some(origin) = rest.strip_prefix("origin/") {
            return Some(Key::Origin(origin));
        }
        if let Some(kid) = rest.strip_prefix("oauth/kid/") {
            return Some(Key::Token(kid));
        }
        let rest = rest.strip_prefix("realm/")?;
        let user = rest.strip_suffix("/key");
        if let Some((realm, name)) = user.and_then(|user| user.split_once("/user/")) {
            return Some(Key::User { realm, name });
        }
        let (realm, last) = rest.rsplit_once('/')?;
        match last {
            "secret" => Some(Key::Secret(realm)),
            "allowed-peer-ip" => Some(Key::Allowed(realm)),
            "denied-peer-ip" => Some(Key::Denied(realm)),
            option => RealmOption::named(option).map(|option| Key::Option(realm, option)),
        }
    }
}

impl Store for Redis {
    fn find_user<'a>(&'a self, realm: &'a str, name: &'a str) -> StoreFuture<'a, Found> {
        Box::pin(self.find(realm, name))
    }

    fn shared(&self) -> StoreFuture<'_, Shared> {
        Box::pin(self.read_shared())
    }

    fn sip_tables(&self) -> StoreFuture<'_, SipTables> {
        Box::pin(self.read_sip_tables())
    }

    fn watch<'a>(&'a self, on_change: OnChange<'a>) -> StoreFuture<'a, ()> {
        Box::pin(self.listen(on_change))
    }

    fn directory(&self) -> Option<&dyn Directory> {
        Some(self)
    }
}

impl Directory for Redis {
    fn put_user<'a>(&'a self, realm: &'a str, name: &'a str, keys: Keys) -> StoreFuture<'a, ()> {
        Box::pin(self.put(realm, name, keys))
    }

    fn delete_user<'a>(&'a self, realm: &'a str, name: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let [main, further] = keys_of(realm, name);
            let () = self.ask(cmd("DEL").arg(further)).await?;
            let deleted: u64 = self.ask(cmd("DEL").arg(main)).await?;
            Ok(deleted > 0)
        })
    }

    fn list_users<'a>(
        &'a self,
        realm: Option<&'a str>,
        after: Option<(&'a str, &'a str)>,
        limit: usize,
    ) -> StoreFuture<'a, Vec<(String, String)>> {
        Box::pin(self.list(realm, after, limit))
    }

    fn put_secret<'a>(&'a self, realm: &'a str, secret: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let key = format!("turn/realm/{realm}/secret");
            self.ask(cmd("SADD").arg(key).arg(secret)).await
        })
    }

    fn delete_secret<'a>(&'a self, realm: &'a str, secret: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let key = format!("turn/realm/{realm}/secret");
            let deleted: u64 = self.ask(cmd("SREM").arg(key).arg(secret)).await?;
            Ok(deleted > 0)
        })
    }

    fn set_option<'a>(
        &'a self,
        realm: &'a str,
        option: RealmOption,
        value: Option<u64>,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let key = format!("turn/realm/{realm}/{}", option.name());
            match value {
                Some(value) => self.ask(cmd("SET").arg(key).arg(value)).await,
                None => self.ask(cmd("DEL").arg(key)).await,
            }
        })
    }

    fn set_origin<'a>(&'a self, origin: &'a str, realm: Option<&'a str>) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let key = format!("turn/origin/{origin}");
            match realm {
                Some(realm) => {
                    let () = self.ask(cmd("SET").arg(key).arg(realm)).await?;
                    Ok(true)
                }
                None => {
                    let deleted: u64 = self.ask(cmd("DEL").arg(key)).await?;
                    Ok(deleted > 0)
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_coturn_are_recognized() {
        let (realm, name) = ("north.gov", "a/b");
        for (key, of) in [
            (
                "turn/realm/north.gov/user/a/b/key",
                Some(Key::User { realm, name }),
            ),
            ("turn/realm/north.gov/secret", Some(Key::Secret(realm))),
            (
                "turn/realm/north.gov/denied-peer-ip",
                Some(Key::Denied(realm)),
            ),
            (
                "turn/realm/north.gov/user-quota",
                Some(Key::Option(realm, RealmOption::UserQuota)),
            ),
            (
                "turn/origin/https://bligh.edu:443",
                Some(Key::Origin("https://bligh.edu:443")),
            ),
            ("turn/oauth/kid/union", Some(Key::Token("union"))),
            ("sip/aliases", Some(Key::Aliases)),
            ("sip/route/out/1", Some(Key::Route("out/1"))),
            ("sip/other", None),
            ("turn/admin_user/bayaz", None),
            ("turn/realm/north.gov/user/gorst/hairpin-sha256", None),
            (
                "turn/realm/north.gov/user/gorst/allocation/001/status",
                None,
            ),
        ] {
            assert_eq!(Key::of(key), of, "{key}");
        }
    }

    #[test]
    fn a_user_that_may_not_listen_is_told_so_and_the_rest_works() {
        let redis = crate::test_redis::TestRedis::start();
        redis.ask(&["acl", "setuser", "default", "resetchannels"]);
        let store = Redis::new(&redis.options()).unwrap();
        let refused = redis.wait(store.watch(&|_| panic!("nothing is reported")));
        assert!(matches!(refused, Err(StoreError::Denied(_))), "{refused:?}");
        assert!(store.is_denied.load(Ordering::Relaxed), "the log says it");
        assert!(!redis.wait(store.shared()).unwrap().has_users);
        // One of the two patterns: its changes are reported.
        let users = "&__keyspace@0__:turn/*";
        redis.ask(&["acl", "setuser", "default", users]);
        let (sender, receiver) = std::sync::mpsc::channel();
        let changed = |change| sender.send(change).unwrap();
        let has_changed = redis.wait(async {
            let first = async {
                while receiver.try_recv().is_err() {
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            };
            let watching = store.watch(&changed);
            let both = futures_util::future::select(watching, Box::pin(first));
            let ended = tokio::time::timeout(Duration::from_secs(20), both).await;
            matches!(ended, Ok(futures_util::future::Either::Right(_)))
        });
        assert!(has_changed, "it listens to what it may listen to");
    }
}
