//! The tables of coturn, in any SQL database.
//!
//! hairpin reads and writes them as coturn does. `turnusers_lt` is required. If another table is missing, hairpin reads
//! it as empty. `hairpin_key` has the SHA-256 key of a user beside the MD5 key that it was made with. When another
//! program changes the MD5 key, the SHA-256 key is no longer valid. `hairpin_sip_alias` and `hairpin_sip_route` are for
//! SIP; hairpin only reads them.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::error::StoreError;
use crate::keys::{Keys, hex};
use crate::store::{
    Directory, Found, OnChange, RealmOption, Shared, SipRouteRow, SipTables, Store, StoreFuture,
    TokenKeyRow,
};

/// Rows of each small table that are read: a bound for the memory.
const MAX_ROWS: usize = SipTables::MAX_ROWS;

/// The tables, as coturn's own `schema.sql` has them, and `hairpin_key`. For databases that hairpin makes itself, and
/// for the documentation.
pub const SCHEMA: &[&str] = &[
    "CREATE TABLE turnusers_lt (realm varchar(127) default '', name varchar(512), hmackey char(128), PRIMARY KEY (realm, name))",
    "CREATE TABLE turn_secret (realm varchar(127) default '', value varchar(256), PRIMARY KEY (realm, value))",
    "CREATE TABLE allowed_peer_ip (realm varchar(127) default '', ip_range varchar(256), PRIMARY KEY (realm, ip_range))",
    "CREATE TABLE denied_peer_ip (realm varchar(127) default '', ip_range varchar(256), PRIMARY KEY (realm, ip_range))",
    "CREATE TABLE turn_origin_to_realm (origin varchar(127), realm varchar(127), PRIMARY KEY (origin))",
    "CREATE TABLE turn_realm_option (realm varchar(127) default '', opt varchar(32), value varchar(128), PRIMARY KEY (realm, opt))",
    "CREATE TABLE oauth_key (kid varchar(128), ikm_key varchar(256), timestamp bigint default 0, lifetime integer default 0, as_rs_alg varchar(64) default '', realm varchar(127) default '', PRIMARY KEY (kid))",
    "CREATE TABLE admin_user (name varchar(32), realm varchar(127), password varchar(127), PRIMARY KEY (name))",
    KEYS_TABLE,
    ALIASES_TABLE,
    ROUTES_TABLE,
];

/// The table with SHA-256 keys.
pub const KEYS_TABLE: &str = "CREATE TABLE hairpin_key (realm varchar(127), name varchar(512), hmackey char(128), sha256 char(64), PRIMARY KEY (realm, name))";

/// The table with SIP aliases.
pub const ALIASES_TABLE: &str =
    "CREATE TABLE hairpin_sip_alias (alias varchar(254), aor varchar(254), PRIMARY KEY (alias))";

/// The table with routes of SIP requests: a column for each key of a route.
pub const ROUTES_TABLE: &str = "CREATE TABLE hairpin_sip_route (name varchar(64), priority integer default 0, prefixes varchar(512), domains varchar(512), from_trunks varchar(512), from_users varchar(512), from_networks varchar(512), headers varchar(512), strip integer default 0, \"replace\" varchar(64), \"add\" varchar(64), trunks varchar(512), to_domain varchar(254), reject varchar(80), hunt varchar(8), on_busy varchar(16), on_no_answer varchar(16), on_unreachable varchar(16), ring_time varchar(16), PRIMARY KEY (name))";

/// The values of a row as text.
pub type Row = Vec<Option<String>>;

/// A statement with `?` for its values.
#[derive(Clone, Debug)]
pub struct Statement<'a> {
    /// SQL.
    pub text: &'a str,
    /// The values.
    pub values: Vec<&'a str>,
}

/// A connection to an SQL database.
pub trait Sql: fmt::Debug + Send + Sync {
    /// The rows that a query gives.
    fn rows<'a>(&'a self, text: &'a str, values: &'a [&'a str]) -> StoreFuture<'a, Vec<Row>>;

    /// Executes all statements, or none. Returns how many rows each has changed.
    fn execute<'a>(&'a self, statements: &'a [Statement<'a>]) -> StoreFuture<'a, Vec<u64>>;

    /// The same as [`Sql::execute`], without a notification to the servers that watch the database ([`Sql::watch`]).
    fn execute_silently<'a>(
        &'a self,
        statements: &'a [Statement<'a>],
    ) -> StoreFuture<'a, Vec<u64>> {
        self.execute(statements)
    }

    /// See [`Store::watch`].
    fn watch<'a>(&'a self, _on_change: OnChange<'a>) -> StoreFuture<'a, ()> {
        Box::pin(std::future::pending())
    }
}

/// Values of [`Tables::keys_table`]: whether the database has `hairpin_key`.
const UNKNOWN: u8 = 0;
const MISSING: u8 = 1;
const PRESENT: u8 = 2;

/// A store with the tables of coturn.
#[derive(Debug)]
pub struct Tables<S> {
    sql: S,
    keys_table: AtomicU8,
}

impl<S: Sql> Tables<S> {
    /// In this database.
    pub fn new(sql: S) -> Tables<S> {
        Tables {
            sql,
            keys_table: AtomicU8::new(UNKNOWN),
        }
    }

    /// Whether the database has `hairpin_key`. The result is kept until the next [`Tables::read_shared`].
    async fn has_keys_table(&self) -> Result<bool, StoreError> {
        match self.keys_table.load(Ordering::Relaxed) {
            UNKNOWN => {}
            known => return Ok(known == PRESENT),
        }
        let probe = self.sql.rows("SELECT realm FROM hairpin_key LIMIT 1", &[]);
        let state = match probe.await {
            Ok(_) => PRESENT,
            // The database responds, and does not have the table.
            Err(StoreError::NoTable(_) | StoreError::Query(_)) => MISSING,
            Err(error) => return Err(error),
        };
        self.keys_table.store(state, Ordering::Relaxed);
        Ok(state == PRESENT)
    }

    /// The keys of a user. No keys if there is no such user.
    async fn find(&self, realm: &str, name: &str) -> Result<Found, StoreError> {
        const ALONE: &str =
            "SELECT realm, name, hmackey, NULL FROM turnusers_lt WHERE realm = ? AND name = ?";
        const JOINED: &str = "SELECT u.realm, u.name, u.hmackey, k.sha256 FROM turnusers_lt u \
            LEFT JOIN hairpin_key k ON k.realm = u.realm AND k.name = u.name AND k.hmackey = u.hmackey \
            WHERE u.realm = ? AND u.name = ?";
        let text = match self.has_keys_table().await? {
            true => JOINED,
            false => ALONE,
        };
        let rows = self.sql.rows(text, &[realm, name]).await?;
        // A database may ignore the case of names. Then one client could use many spellings of its name.
        let is_it = |row: &&Row| text_at(row, 0) == realm && text_at(row, 1) == name;
        let Some(row) = rows.iter().find(is_it) else {
            return Ok(Found::default());
        };
        let keys = [2, 3].map(|column| Keys::from_hex(text_at(row, column)));
        let [first, second] = keys.map(Option::unwrap_or_default);
        let keys = first.or(second);
        if keys == Keys::default() {
            return Err(StoreError::Query(format!(
                "hmackey of `{name}` in the realm `{realm}` is not 32 or 64 hexadecimal digits"
            )));
        }
        Ok(Found {
            keys: Some(keys),
            ttl: None,
        })
    }

    /// The rows of a table, and whether it has more than [`MAX_ROWS`]. No rows if the table is missing.
    async fn first_rows(&self, text: &str) -> Result<(Vec<Row>, bool), StoreError> {
        let text = format!("{text} LIMIT {}", MAX_ROWS + 1);
        let mut rows = match self.sql.rows(&text, &[]).await {
            Err(StoreError::NoTable(reason)) => {
                tracing::debug!(reason, "a table of a store is missing");
                Vec::new()
            }
            result => result?,
        };
        let has_more = rows.len() > MAX_ROWS;
        rows.truncate(MAX_ROWS);
        Ok((rows, has_more))
    }

    /// The rows of a small table; none if the table is missing.
    async fn small_table(&self, text: &str) -> Result<Vec<Row>, StoreError> {
        let (rows, has_more) = self.first_rows(text).await?;
        if has_more {
            tracing::warn!(
                query = text,
                "a table of a store has more than {MAX_ROWS} rows: the others have no effect"
            );
        }
        Ok(rows)
    }

    /// The first two columns of a small table, sorted. Empty if the table is missing.
    async fn pairs(&self, text: &str) -> Result<Vec<(String, String)>, StoreError> {
        let rows = self.small_table(text).await?;
        Ok(pairs_of(&rows))
    }

    /// The limits of realms. Rows with an unknown option are left out.
    async fn options(&self) -> Result<Vec<(String, RealmOption, u64)>, StoreError> {
        let text = "SELECT realm, opt, value FROM turn_realm_option";
        let rows = self.small_table(text).await?;
        let option = |row: &Row| {
            let option = RealmOption::named(text_at(row, 1))?;
            Some((text_at(row, 0).to_owned(), option, number_at(row, 2)))
        };
        let mut options: Vec<_> = rows.iter().filter_map(option).collect();
        options.sort();
        Ok(options)
    }

    /// The keys of access tokens (RFC 7635), sorted by key identifier.
    async fn token_keys(&self) -> Result<Vec<TokenKeyRow>, StoreError> {
        let text = "SELECT kid, ikm_key, as_rs_alg, timestamp, lifetime, realm FROM oauth_key";
        let rows = self.small_table(text).await?;
        let key = |row: &Row| TokenKeyRow {
            kid: text_at(row, 0).to_owned(),
            key: text_at(row, 1).to_owned(),
            algorithm: text_at(row, 2).to_owned(),
            since_unix_s: number_at(row, 3),
            lifetime_s: number_at(row, 4),
            realm: text_at(row, 5).to_owned(),
        };
        let mut keys: Vec<_> = rows.iter().map(key).collect();
        keys.sort_by(|one, other| one.kid.cmp(&other.kid));
        Ok(keys)
    }

    /// The first rows of a table of SIP, and how many more it has.
    async fn sip_table(&self, text: &str, table: &str) -> Result<(Vec<Row>, usize), StoreError> {
        let (rows, has_more) = self.first_rows(text).await?;
        if !has_more {
            return Ok((rows, 0));
        }
        let count = format!("SELECT COUNT(*) FROM {table}");
        let counted = self.sql.rows(&count, &[]).await?;
        let all = counted.first().map_or(0, |row| number_at(row, 0));
        let all = usize::try_from(all).unwrap_or(usize::MAX);
        // At least one row was left out, even if rows have been deleted since.
        let omitted = all.saturating_sub(rows.len()).max(1);
        Ok((rows, omitted))
    }

    /// The routes, sorted by name, and how many rows were left out.
    async fn sip_routes(&self) -> Result<(Vec<SipRouteRow>, usize), StoreError> {
        // SQLite takes a name between quotation marks for a text if there is no such column, but not behind a table.
        let columns = SipRouteRow::KEYS
            .map(|(key, _)| format!("r.\"{key}\""))
            .join(", ");
        let text = format!("SELECT r.name, {columns} FROM hairpin_sip_route r ORDER BY r.name");
        let (rows, omitted) = self.sip_table(&text, "hairpin_sip_route").await?;
        let route = |row: &Row| {
            let value = |(place, (key, _)): (usize, &(&str, _))| {
                let value = text_at(row, place + 1);
                (!value.is_empty()).then(|| ((*key).to_owned(), value.to_owned()))
            };
            let keys = SipRouteRow::KEYS.iter().enumerate();
            SipRouteRow {
                name: text_at(row, 0).to_owned(),
                keys: keys.filter_map(value).collect(),
            }
        };
        let mut routes: Vec<_> = rows.iter().map(route).collect();
        routes.sort();
        Ok((routes, omitted))
    }

    async fn read_sip_tables(&self) -> Result<SipTables, StoreError> {
        let text = "SELECT alias, aor FROM hairpin_sip_alias ORDER BY alias";
        let (aliases, omitted) = self.sip_table(text, "hairpin_sip_alias").await?;
        let (routes, more) = self.sip_routes().await?;
        Ok(SipTables {
            aliases: pairs_of(&aliases),
            routes,
            omitted: omitted.saturating_add(more),
        })
    }

    /// Reads all tables that apply to all users. The SIP tables are read by [`Tables::read_sip_tables`].
    async fn read_shared(&self) -> Result<Shared, StoreError> {
        // Somebody may have created `hairpin_key` since the last look-up.
        self.keys_table.store(UNKNOWN, Ordering::Relaxed);
        let user = self
            .sql
            .rows("SELECT realm FROM turnusers_lt LIMIT 1", &[])
            .await?;
        Ok(Shared {
            has_users: !user.is_empty(),
            secrets: self.pairs("SELECT realm, value FROM turn_secret").await?,
            origins: self
                .pairs("SELECT origin, realm FROM turn_origin_to_realm")
                .await?,
            options: self.options().await?,
            allowed: self
                .pairs("SELECT realm, ip_range FROM allowed_peer_ip")
                .await?,
            denied: self
                .pairs("SELECT realm, ip_range FROM denied_peer_ip")
                .await?,
            token_keys: self.token_keys().await?,
            ..Shared::default()
        })
    }

    /// Adds a user, or replaces its keys.
    async fn put(&self, realm: &str, name: &str, keys: Keys) -> Result<(), StoreError> {
        let md5 = keys.md5.map(|key| hex(&key));
        let sha256 = keys.sha256.map(|key| hex(&key));
        let Some(main) = md5.as_deref().or(sha256.as_deref()) else {
            return Err(StoreError::Query("a user needs a key".to_owned()));
        };
        let mut statements = self.deletion(realm, name).await?;
        statements.push(Statement {
            text: "INSERT INTO turnusers_lt (realm, name, hmackey) VALUES (?, ?, ?)",
            values: vec![realm, name, main],
        });
        if let Some(sha256) = &sha256
            && self.has_keys_table().await?
        {
            statements.push(Statement {
                text: "INSERT INTO hairpin_key (realm, name, hmackey, sha256) VALUES (?, ?, ?, ?)",
                values: vec![realm, name, main, sha256],
            });
        }
        self.sql.execute(&statements).await.map(drop)
    }

    /// The statements that delete a user. The first one changes a row if the user exists.
    async fn deletion<'a>(
        &self,
        realm: &'a str,
        name: &'a str,
    ) -> Result<Vec<Statement<'a>>, StoreError> {
        let delete = |text| Statement {
            text,
            values: vec![realm, name],
        };
        let mut statements = vec![delete(
            "DELETE FROM turnusers_lt WHERE realm = ? AND name = ?",
        )];
        if self.has_keys_table().await? {
            statements.push(delete(
                "DELETE FROM hairpin_key WHERE realm = ? AND name = ?",
            ));
        }
        Ok(statements)
    }

    /// At most `limit` users in the order of realm and name, of one realm or all, from the user after `after` on.
    async fn list(
        &self,
        realm: Option<&str>,
        after: Option<(&str, &str)>,
        limit: usize,
    ) -> Result<Vec<(String, String)>, StoreError> {
        let mut conditions = Vec::new();
        let mut values = Vec::new();
        if let Some(realm) = realm {
            conditions.push("realm = ?");
            values.push(realm);
        }
        if let Some((realm, name)) = after {
            conditions.push("(realm > ? OR (realm = ? AND name > ?))");
            values.extend([realm, realm, name]);
        }
        let condition = match conditions.is_empty() {
            true => String::new(),
            false => format!("WHERE {}", conditions.join(" AND ")),
        };
        let text = format!(
            "SELECT realm, name FROM turnusers_lt {condition} ORDER BY realm, name LIMIT {limit}"
        );
        let rows = self.sql.rows(&text, &values).await?;
        let pair = |row: &Row| (text_at(row, 0).to_owned(), text_at(row, 1).to_owned());
        Ok(rows.iter().map(pair).collect())
    }

    /// Executes `delete`, and `insert` if there is one; both or none. Returns how many rows were deleted.
    async fn replace(
        &self,
        delete: Statement<'_>,
        insert: Option<Statement<'_>>,
    ) -> Result<u64, StoreError> {
        let statements: Vec<_> = [Some(delete), insert].into_iter().flatten().collect();
        let counts = self.sql.execute(&statements).await?;
        Ok(counts.first().copied().unwrap_or(0))
    }
}

/// The first two columns of rows, sorted.
fn pairs_of(rows: &[Row]) -> Vec<(String, String)> {
    let pair = |row: &Row| (text_at(row, 0).to_owned(), text_at(row, 1).to_owned());
    let mut pairs: Vec<_> = rows.iter().map(pair).collect();
    pairs.sort();
    pairs
}

/// The text in a column; empty if there is none.
fn text_at(row: &Row, column: usize) -> &str {
    row.get(column)
        .and_then(Option::as_deref)
        .unwrap_or_default()
}

/// The number in a column; 0 if there is none.
fn number_at(row: &Row, column: usize) -> u64 {
    text_at(row, column).trim().parse().unwrap_or(0)
}

impl<S: Sql> Store for Tables<S> {
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
        self.sql.watch(on_change)
    }

    fn directory(&self) -> Option<&dyn Directory> {
        Some(self)
    }
}

impl<S: Sql> Directory for Tables<S> {
    fn put_user<'a>(&'a self, realm: &'a str, name: &'a str, keys: Keys) -> StoreFuture<'a, ()> {
        Box::pin(self.put(realm, name, keys))
    }

    fn delete_user<'a>(&'a self, realm: &'a str, name: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let statements = self.deletion(realm, name).await?;
            let counts = self.sql.execute(&statements).await?;
            Ok(counts.first().is_some_and(|count| *count > 0))
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
            let values = vec![realm, secret];
            let delete = Statement {
                text: "DELETE FROM turn_secret WHERE realm = ? AND value = ?",
                values: values.clone(),
            };
            let insert = Statement {
                text: "INSERT INTO turn_secret (realm, value) VALUES (?, ?)",
                values,
            };
            self.replace(delete, Some(insert)).await.map(drop)
        })
    }

    fn delete_secret<'a>(&'a self, realm: &'a str, secret: &'a str) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let delete = Statement {
                text: "DELETE FROM turn_secret WHERE realm = ? AND value = ?",
                values: vec![realm, secret],
            };
            Ok(self.replace(delete, None).await? > 0)
        })
    }

    fn set_option<'a>(
        &'a self,
        realm: &'a str,
        option: RealmOption,
        value: Option<u64>,
    ) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let delete = Statement {
                text: "DELETE FROM turn_realm_option WHERE realm = ? AND opt = ?",
                values: vec![realm, option.name()],
            };
            let value = value.map(|value| value.to_string());
            let insert = value.as_deref().map(|value| Statement {
                text: "INSERT INTO turn_realm_option (realm, opt, value) VALUES (?, ?, ?)",
                values: vec![realm, option.name(), value],
            });
            self.replace(delete, insert).await.map(drop)
        })
    }

    fn set_origin<'a>(&'a self, origin: &'a str, realm: Option<&'a str>) -> StoreFuture<'a, bool> {
        Box::pin(async move {
            let delete = Statement {
                text: "DELETE FROM turn_origin_to_realm WHERE origin = ?",
                values: vec![origin],
            };
            let insert = realm.map(|realm| Statement {
                text: "INSERT INTO turn_origin_to_realm (origin, realm) VALUES (?, ?)",
                values: vec![origin, realm],
            });
            let deleted = self.replace(delete, insert).await?;
            Ok(deleted > 0 || realm.is_some())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{ALIASES_TABLE, KEYS_TABLE, ROUTES_TABLE};

    #[test]
    fn the_page_has_the_tables_that_coturn_does_not_have() {
        let page = include_str!("../../../docs/stores.md");
        let page: Vec<&str> = page.split_whitespace().collect();
        let page = page.join(" ");
        for table in [KEYS_TABLE, ALIASES_TABLE, ROUTES_TABLE] {
            assert!(page.contains(&format!("{table};")), "{table}");
        }
    }
}
