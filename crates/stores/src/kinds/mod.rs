//! The kinds of stores, and what a URL means.

mod file;
pub(crate) mod http;
mod mysql;
mod postgres;
pub(crate) mod redis;
mod sqlite;
pub(crate) mod tls;

pub(crate) use redis::client as redis_client;

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::StoreError;
use crate::sql::{Sql, Tables};
use crate::store::Store;

/// A kind of store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file of lines `name:realm:key`.
    File,
    /// A file of SQLite.
    Sqlite,
    /// PostgreSQL.
    Postgres,
    /// MySQL and MariaDB.
    Mysql,
    /// Redis and Valkey.
    Redis,
    /// A service that answers over HTTP.
    Http,
}

/// The schemes of URLs.
const SCHEMES: [(&str, Kind); 15] = [
    ("file:", Kind::File),
    ("sqlite:", Kind::Sqlite),
    ("postgres:", Kind::Postgres),
    ("postgresql:", Kind::Postgres),
    ("mysql:", Kind::Mysql),
    ("mariadb:", Kind::Mysql),
    ("redis:", Kind::Redis),
    ("rediss:", Kind::Redis),
    ("valkey:", Kind::Redis),
    ("valkeys:", Kind::Redis),
    ("redis+unix:", Kind::Redis),
    ("valkey+unix:", Kind::Redis),
    ("unix:", Kind::Redis),
    ("http:", Kind::Http),
    ("https:", Kind::Http),
];

impl Kind {
    /// The kind that a URL names.
    #[must_use]
    pub fn of(url: &str) -> Option<Kind> {
        let known = SCHEMES.iter().find(|(scheme, _)| url.starts_with(scheme));
        known.map(|(_, kind)| *kind)
    }

    /// Its name in metrics and messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::File => "file",
            Kind::Sqlite => "sqlite",
            Kind::Postgres => "postgres",
            Kind::Mysql => "mysql",
            Kind::Redis => "redis",
            Kind::Http => "http",
        }
    }
}

/// Where a store is.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// `sqlite:/var/lib/hairpin/hairpin.db`, `postgres://user@host/database` and so on.
    pub url: String,
    /// The password, if it is not in the URL. An HTTP service gets it as a bearer token.
    pub password: Option<String>,
    /// A file with the certificates of the authorities that sign the store's certificate; by default those of the
    /// system.
    pub ca: Option<PathBuf>,
    /// The password of the Sentinels, if the URL has some and they require one.
    pub sentinel_password: Option<String>,
}

/// URLs have passwords.
impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options")
            .field("kind", &Kind::of(&self.url))
            .finish_non_exhaustive()
    }
}

/// Opens a store, without a connection to a database. A file of SQLite is opened, and created if there is none. Call it
/// within a tokio runtime.
///
/// # Errors
/// If the URL is wrong, or if a file cannot be opened.
pub fn open(options: &Options) -> Result<Arc<dyn Store>, StoreError> {
    let Some(kind) = Kind::of(&options.url) else {
        return Err(StoreError::Url(
            "expected a URL that begins with sqlite:, postgres:, mysql:, redis:, http:, https: or file:".to_owned(),
        ));
    };
    Ok(match kind {
        Kind::File => Arc::new(file::HashFile::new(path_of(&options.url)?)),
        Kind::Sqlite => Arc::new(Tables::new(sqlite::Sqlite::open(path_of(&options.url)?)?)),
        Kind::Postgres => Arc::new(Tables::new(postgres::Postgres::new(options)?)),
        Kind::Mysql => Arc::new(Tables::new(mysql::Mysql::new(options)?)),
        Kind::Redis => Arc::new(redis::Redis::new(options)?),
        Kind::Http => Arc::new(http::Http::new(options)?),
    })
}

/// Opens an SQL database without making the tables of a store of users. Call it within a tokio runtime.
///
/// # Errors
/// If the URL is wrong or not of an SQL database, or if a file cannot be opened.
pub(crate) fn open_sql(options: &Options) -> Result<(Kind, Box<dyn Sql>), StoreError> {
    let kind = check(options)?;
    let sql: Box<dyn Sql> = match kind {
        Kind::Sqlite => Box::new(sqlite::Sqlite::open_without_tables(path_of(&options.url)?)?),
        Kind::Postgres => Box::new(postgres::Postgres::new(options)?),
        Kind::Mysql => Box::new(mysql::Mysql::new(options)?),
        Kind::File | Kind::Redis | Kind::Http => {
            return Err(StoreError::Unsupported {
                kind: kind.name(),
                what: "have SIP bindings: use sqlite:, postgres: or mysql:",
            });
        }
    };
    Ok((kind, sql))
}

/// The path in `sqlite:/a/b`, `sqlite:///a/b`, `file:/a/b`.
fn path_of(url: &str) -> Result<PathBuf, StoreError> {
    let (_, rest) = url.split_once(':').unwrap_or_default();
    let path = rest.strip_prefix("//").unwrap_or(rest);
    match path.starts_with('/') {
        true => Ok(path.into()),
        false => Err(StoreError::Url(
            "expected the whole path of a file after the scheme, like sqlite:/var/lib/hairpin/hairpin.db".to_owned(),
        )),
    }
}

/// The kind of a store and the place of its contents, without user, password and settings of the connection. `None` if
/// the URL is wrong.
pub(crate) fn place(options: &Options) -> Option<(Kind, String)> {
    let kind = Kind::of(&options.url)?;
    let place = match kind {
        Kind::File | Kind::Sqlite => path_of(&options.url).ok()?.display().to_string(),
        Kind::Postgres => postgres::place(&postgres::config(options).ok()?),
        Kind::Mysql => mysql::place(&mysql::config(options).ok()?),
        Kind::Redis => {
            let info = redis::info(options).ok()?;
            format!("{} {}", info.addr(), info.redis_settings().db())
        }
        Kind::Http => http::place(&http::uri(options).ok()?),
    };
    Some((kind, place))
}

/// Checks a URL without opening anything.
///
/// # Errors
/// What is wrong with it.
pub fn check(options: &Options) -> Result<Kind, StoreError> {
    match Kind::of(&options.url) {
        Some(kind @ (Kind::File | Kind::Sqlite)) => path_of(&options.url).map(|_| kind),
        Some(kind @ Kind::Postgres) => postgres::config(options).map(|_| kind),
        Some(kind @ Kind::Mysql) => mysql::config(options).map(|_| kind),
        Some(kind @ Kind::Redis) => redis::info(options).map(|_| kind),
        Some(kind @ Kind::Http) => http::uri(options).map(|_| kind),
        None => Err(StoreError::Url(
            "expected a URL that begins with sqlite:, postgres:, mysql:, redis:, http:, https: or file:".to_owned(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place_of(url: &str, password: Option<&str>) -> Option<(Kind, String)> {
        let options = Options {
            url: url.to_owned(),
            password: password.map(str::to_owned),
            ..Options::default()
        };
        let place = place(&options);
        assert!(place.is_some(), "{url}");
        place
    }

    #[test]
    fn the_place_of_a_store_is_its_kind_host_port_and_database() {
        for (one, same) in [
            ("sqlite:/a/b.db", "sqlite:///a/b.db"),
            (
                "postgres://ann:old@db/turn",
                "postgresql://bob:new@db:5432/turn?connect_timeout=3",
            ),
            ("postgres://turn:old@db", "postgres://bob@db/turn"),
            (
                "mysql://ann:old@db/turn",
                "mariadb://bob:new@db:3306/turn?require_ssl=true",
            ),
            ("redis://:old@db/2", "redis://ann:new@db:6379/2"),
            (
                "unix:///run/r?db=2&pass=old",
                "redis+unix:///run/r?pass=new&db=2",
            ),
            ("https://ann@db/users", "https://db:443/users"),
        ] {
            assert_eq!(place_of(one, None), place_of(same, Some("new")));
        }
        let all = [
            "file:/a/b.db",
            "sqlite:/a/b.db",
            "sqlite:/a/c.db",
            "postgres://ann@db/turn",
            "postgres://ann@db/other",
            "postgres://ann@db:5433/turn",
            "postgres://ann@db2/turn",
            "mysql://ann@db/turn",
            "mysql://ann@db/other",
            "mysql://ann@db:3307/turn",
            "redis://db/1",
            "redis://db/2",
            "redis://db:6380/1",
            "unix:///run/r?db=1",
            "unix:///run/r?db=2",
            "https://db/users",
            "https://db/others",
            "http://db/users",
            "https://db/users?tenant=a",
        ];
        let places = all.map(|url| place_of(url, None));
        for (number, place) in places.iter().enumerate() {
            assert!(!places[..number].contains(place), "{}", all[number]);
        }
    }
}
