//! The small tables and the SIP tables in Redis: many keys, whose values are read in parts.

use std::collections::BTreeMap;
use std::sync::PoisonError;

use redis::{Cmd, FromRedisValue, RedisResult, Value, cmd};

use super::{ALIASES, Key, PAGE_KEYS, Redis};
use crate::error::StoreError;
use crate::store::{Shared, SipRouteRow, SipTables, TokenKeyRow};

/// Keys of the wrong type that the log names after one reading.
const MAX_LOGGED_KEYS: usize = 20;

impl Redis {
    pub(super) async fn read_shared(&self) -> Result<Shared, StoreError> {
        let mut shared = Shared::default();
        // A database can have far more users than other keys.
        let has_users = &mut shared.has_users;
        let keys = self.scan("turn/*", |key| match Key::of(key) {
            Some(Key::User { .. }) => {
                *has_users = true;
                false
            }
            key => key.is_some(),
        });
        let keys = keys.await?;
        let commands: Vec<Cmd> = keys.iter().map(|key| reading(key)).collect();
        for (key, value) in keys.iter().zip(self.ask_all(&commands).await?) {
            let value = value.map_err(|error| StoreError::query(&error))?;
            add_value(&mut shared, key, value)?;
        }
        Ok(shared)
    }

    pub(super) async fn read_sip_tables(&self) -> Result<SipTables, StoreError> {
        let mut no_hashes = Vec::new();
        let (aliases, mut omitted) = self.aliases(&mut no_hashes).await?;
        let is_route = |key: &str| matches!(Key::of(key), Some(Key::Route(_)));
        let mut keys = self.scan("sip/route/*", is_route).await?;
        omitted += keys.len().saturating_sub(SipTables::MAX_ROWS);
        keys.truncate(SipTables::MAX_ROWS);
        // The first page of a hash has all keys that a route can have.
        let commands: Vec<Cmd> = keys.iter().map(|key| hscan(key, 0)).collect();
        let mut routes = Vec::with_capacity(keys.len());
        for (key, page) in keys.iter().zip(self.ask_all(&commands).await?) {
            let Some(Key::Route(name)) = Key::of(key) else {
                continue;
            };
            routes.push(SipRouteRow {
                name: name.to_owned(),
                keys: match fields_of(page)? {
                    Some((_, fields)) => sorted(fields),
                    None => {
                        no_hashes.push(key.clone());
                        Vec::new()
                    }
                },
            });
        }
        self.note_no_hashes(no_hashes);
        Ok(SipTables {
            aliases,
            routes,
            omitted,
        })
    }

    /// The fields of the hash of aliases in order, and how many more it has.
    async fn aliases(
        &self,
        no_hashes: &mut Vec<String>,
    ) -> Result<(Vec<(String, String)>, usize), StoreError> {
        let (mut cursor, mut all) = (0u64, Vec::new());
        loop {
            let page = self.ask_all(&[hscan(ALIASES, cursor)]).await?;
            let page = page.into_iter().next();
            let Some((next, fields)) = page.map(fields_of).transpose()?.flatten() else {
                no_hashes.push(ALIASES.to_owned());
                return Ok((Vec::new(), 0));
            };
            all.extend(fields);
            cursor = next;
            if cursor == 0 || all.len() >= SipTables::MAX_ROWS {
                break;
            }
        }
        let mut all = sorted(all);
        all.truncate(SipTables::MAX_ROWS);
        // HSCAN returns a small hash in one page, however many fields it has.
        let count: usize = self.ask(cmd("HLEN").arg(ALIASES)).await?;
        let omitted = count.saturating_sub(SipTables::MAX_ROWS);
        Ok((all, omitted))
    }

    /// Names keys of the wrong type in the log, each once.
    fn note_no_hashes(&self, found: Vec<String>) {
        let known = self.no_hashes.lock();
        let mut known = known.unwrap_or_else(PoisonError::into_inner);
        let new = found.iter().filter(|key| !known.contains(*key));
        for key in new.take(MAX_LOGGED_KEYS) {
            tracing::warn!(key, "a key of SIP in a store is ignored: it is no hash");
        }
        *known = found.into_iter().collect();
    }
}

/// The command that reads a key of the small tables.
fn reading(key: &str) -> Cmd {
    let name = match Key::of(key) {
        Some(Key::Secret(_) | Key::Allowed(_) | Key::Denied(_)) => "SMEMBERS",
        Some(Key::Token(_)) => "HGETALL",
        _ => "GET",
    };
    cmd(name).arg(key).take()
}

/// Adds the value of a key to the small tables.
fn add_value(shared: &mut Shared, key: &str, value: Value) -> Result<(), StoreError> {
    match Key::of(key) {
        Some(Key::Secret(realm)) => shared.secrets.extend(members(value, realm)?),
        Some(Key::Allowed(realm)) => shared.allowed.extend(members(value, realm)?),
        Some(Key::Denied(realm)) => shared.denied.extend(members(value, realm)?),
        Some(Key::Option(realm, option)) => {
            let value: Option<u64> = read(value)?;
            let option = value.map(|value| (realm.to_owned(), option, value));
            shared.options.extend(option);
        }
        Some(Key::Origin(origin)) => {
            let realm: Option<String> = read(value)?;
            shared
                .origins
                .extend(realm.map(|realm| (origin.to_owned(), realm)));
        }
        Some(Key::Token(kid)) => shared.token_keys.push(token_key(kid, &read(value)?)),
        Some(Key::User { .. } | Key::Aliases | Key::Route(_)) | None => {}
    }
    Ok(())
}

fn read<T: FromRedisValue>(value: Value) -> Result<T, StoreError> {
    T::from_redis_value(value).map_err(|error| StoreError::Query(error.to_string()))
}

/// The members of a set, each with its realm.
fn members(value: Value, realm: &str) -> Result<Vec<(String, String)>, StoreError> {
    let mut members: Vec<String> = read(value)?;
    members.sort_unstable();
    let pair = |member| (realm.to_owned(), member);
    Ok(members.into_iter().map(pair).collect())
}

/// The command for a page of the fields of a hash.
fn hscan(key: &str, cursor: u64) -> Cmd {
    let mut command = cmd("HSCAN");
    command
        .arg(key)
        .arg(cursor)
        .arg("COUNT")
        .arg(PAGE_KEYS)
        .take()
}

/// Where the next page begins, and fields with their values.
type Page = (u64, Vec<(String, String)>);

/// A page of the fields of a hash; `None` if the key is of another type. Any other error, such as a missing permission,
/// says nothing of what the hash has.
fn fields_of(page: RedisResult<Value>) -> Result<Option<Page>, StoreError> {
    match page {
        Ok(page) => read(page).map(Some),
        Err(error) if error.code() == Some("WRONGTYPE") => Ok(None),
        Err(error) => Err(StoreError::query(&error)),
    }
}

/// Fields in order, each once: HSCAN may return a field several times.
fn sorted(mut fields: Vec<(String, String)>) -> Vec<(String, String)> {
    fields.sort_unstable();
    fields.dedup_by(|one, other| one.0 == other.0);
    fields
}

fn token_key(kid: &str, fields: &BTreeMap<String, String>) -> TokenKeyRow {
    let text = |name: &str| fields.get(name).cloned().unwrap_or_default();
    let number = |name: &str| text(name).parse().unwrap_or(0);
    TokenKeyRow {
        kid: kid.to_owned(),
        key: text("ikm_key"),
        algorithm: text("as_rs_alg"),
        since_unix_s: number("timestamp"),
        lifetime_s: number("lifetime"),
        realm: text("realm"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Store as _;
    use crate::test_redis::TestRedis;

    fn pair(key: &str, value: &str) -> (String, String) {
        (key.to_owned(), value.to_owned())
    }

    #[test]
    fn aliases_and_routes_are_hashes() {
        let redis = TestRedis::start();
        let store = Redis::new(&redis.options()).unwrap();
        redis.ask(&[
            "hset",
            "sip/aliases",
            "info@a.org",
            "ann@a.org",
            "+4930@a.org",
            "bob@a.org",
        ]);
        redis.ask(&[
            "hset",
            "sip/route/out",
            "prefixes",
            "+49, +43",
            "trunks",
            "carrier",
        ]);
        // Not a hash: it is named in the log, and the rest is read.
        redis.ask(&["set", "sip/route/wrong", "carrier"]);
        let sip = redis.wait(store.sip_tables()).unwrap();
        let aliases = [
            pair("+4930@a.org", "bob@a.org"),
            pair("info@a.org", "ann@a.org"),
        ];
        assert_eq!(sip.aliases, aliases);
        let names: Vec<_> = sip.routes.iter().map(|route| &*route.name).collect();
        assert_eq!(names, ["out", "wrong"]);
        let keys = [pair("prefixes", "+49, +43"), pair("trunks", "carrier")];
        assert_eq!(
            (&sip.routes[0].keys[..], sip.routes[1].keys.len()),
            (&keys[..], 0)
        );
        let many: Vec<String> = (0..3_000)
            .flat_map(|n| [format!("{n}@a.org"), "ann@a.org".to_owned()])
            .collect();
        for part in many.chunks(1_000) {
            let words: Vec<&str> = part.iter().map(String::as_str).collect();
            redis.ask(&[&["hset", "sip/aliases"], &words[..]].concat());
        }
        assert_eq!(redis.wait(store.sip_tables()).unwrap().aliases.len(), 3_002);
    }

    /// Sets keys by a loop over `i` in the database itself.
    fn fill(redis: &TestRedis, count: usize, command: &str) {
        let script = format!("for i=1,{count} do redis.call({command}) end return 'done'");
        assert_eq!(redis.ask(&["eval", &script, "0"]), "done");
    }

    #[test]
    fn many_routes_and_small_tables_are_read_in_parts() {
        let redis = TestRedis::start();
        let store = Redis::new(&redis.options()).unwrap();
        let route = "'hset', 'sip/route/' .. i, 'reject', 400 + i % 100";
        fill(&redis, 1_000, route);
        let sip = redis.wait(store.sip_tables()).unwrap();
        assert_eq!((sip.routes.len(), sip.omitted), (1_000, 0));
        for route in &sip.routes {
            let number: usize = route.name.parse().unwrap();
            let code = (400 + number % 100).to_string();
            assert_eq!(route.keys, [pair("reject", &code)], "{number}");
        }
        fill(
            &redis,
            300,
            "'sadd', 'turn/realm/r' .. i .. '/secret', 's' .. i",
        );
        fill(
            &redis,
            300,
            "'set', 'turn/realm/r' .. i .. '/user-quota', i",
        );
        fill(
            &redis,
            300,
            "'set', 'turn/realm/r1/user/u' .. i .. '/key', i",
        );
        let shared = redis.wait(store.shared()).unwrap();
        assert!(shared.has_users);
        assert_eq!((shared.secrets.len(), shared.options.len()), (300, 300));
        let mut secrets = shared.secrets.iter();
        assert!(secrets.all(|(realm, secret)| realm[1..] == secret[1..]));
        let mut options = shared.options.iter();
        assert!(options.all(|(realm, _, value)| realm[1..] == value.to_string()));
    }

    #[test]
    fn fields_beyond_the_bound_are_counted() {
        let redis = TestRedis::start();
        let store = Redis::new(&redis.options()).unwrap();
        let count = SipTables::MAX_ROWS + 5;
        fill(
            &redis,
            count,
            "'hset', 'sip/aliases', i .. '@a.org', 'ann@a.org'",
        );
        let sip = redis.wait(store.sip_tables()).unwrap();
        assert_eq!((sip.aliases.len(), sip.omitted), (SipTables::MAX_ROWS, 5));
    }

    #[test]
    fn a_key_that_may_not_be_read_is_an_error_and_no_empty_table() {
        let redis = TestRedis::start();
        let store = Redis::new(&redis.options()).unwrap();
        redis.ask(&["hset", "sip/aliases", "info@a.org", "ann@a.org"]);
        redis.ask(&["hset", "sip/route/out", "reject", "403"]);
        assert_eq!(redis.wait(store.sip_tables()).unwrap().routes.len(), 1);
        for permitted in [&["~turn/*"][..], &["~turn/*", "~sip/aliases"]] {
            let rule = [&["acl", "setuser", "default", "resetkeys"], permitted];
            assert_eq!(redis.ask(&rule.concat()), "OK");
            let tables = redis.wait(store.sip_tables());
            assert!(matches!(tables, Err(StoreError::Query(_))), "{tables:?}");
            // The store itself is well.
            redis.wait(store.shared()).unwrap();
        }
    }
}
