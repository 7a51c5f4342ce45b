//! Databases: coturn's connection strings as URLs.

use super::super::url::percent;
use super::{Draft, File, Line, Row, Rule, Verdict, replaced, unsupported, value};

pub(super) const ROWS: &[Row] = &[
    value("userdb", Rule::Decide(sqlite)),
    value("db", Rule::Decide(sqlite)),
    value(
        "psql-userdb",
        Rule::Decide(|line, _, draft| sql(line, draft, "postgres")),
    ),
    value(
        "sql-userdb",
        Rule::Decide(|line, _, draft| sql(line, draft, "postgres")),
    ),
    value(
        "mysql-userdb",
        Rule::Decide(|line, _, draft| sql(line, draft, "mysql")),
    ),
    value("redis-userdb", Rule::Decide(redis)),
    value(
        "mongo-userdb",
        unsupported(
            "hairpin has no driver for MongoDB: export the users, and run hairpin user import",
        ),
    ),
    value(
        "redis-statsdb",
        replaced(
            "events.sinks with a stream of Redis, metrics (admin.listen), and the log, which has a line for each allocation with its traffic",
        ),
    ),
];

const NAMES: [&str; 6] = [
    "userdb",
    "db",
    "psql-userdb",
    "sql-userdb",
    "mysql-userdb",
    "redis-userdb",
];

/// Whether the file names no database.
pub(super) fn is_default(file: &File) -> bool {
    NAMES.iter().all(|name| file.last(name).is_none())
}

const KEY: &str = "auth.stores";

fn sqlite(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    let path = &line.value;
    if !path.starts_with('/') {
        return Verdict::wrong("the path of the database is relative: write an absolute path");
    }
    store(draft, format!("sqlite:{}", percent(path, "/")))
}

fn store(draft: &mut Draft, url: String) -> Verdict {
    let options = stores::Options {
        url: url.clone(),
        ..stores::Options::default()
    };
    if let Err(error) = stores::stores::check(&options) {
        return Verdict::wrong(error.to_string());
    }
    draft.push_table(KEY, [("url", url.into())]);
    Verdict::carried(KEY)
}

/// The value of a field of `host=... dbname=...`.
fn field<'a>(fields: &[(&'a str, &'a str)], names: &[&str]) -> Option<&'a str> {
    let named = fields.iter().find(|(name, _)| names.contains(name));
    named
        .map(|(_, value)| *value)
        .filter(|value| !value.is_empty())
}

fn fields(text: &str) -> Vec<(&str, &str)> {
    let fields = text
        .split_whitespace()
        .filter_map(|field| field.split_once('='));
    fields
        .map(|(name, value)| (name, value.trim_matches('\'')))
        .collect()
}

/// `host=HOST dbname=NAME user=USER password=PASSWORD port=PORT`, or a URL.
fn sql(line: &Line, draft: &mut Draft, scheme: &str) -> Verdict {
    if let Some((_, rest)) = line.value.split_once("://") {
        return store(draft, format!("{scheme}://{rest}"));
    }
    let fields = fields(&line.value);
    let Some(database) = field(&fields, &["dbname", "database"]) else {
        return Verdict::wrong("the connection string has no dbname");
    };
    let host = field(&fields, &["host", "hostaddr", "ip"]).unwrap_or("localhost");
    // In PostgreSQL, a host that begins with `/` is the directory of a Unix socket.
    let host = match host.starts_with('/') {
        true => percent(host, ""),
        false => bracketed(host),
    };
    let user = field(&fields, &["user"]).map(|user| percent(user, ""));
    let password =
        field(&fields, &["password"]).map(|password| format!(":{}", percent(password, "")));
    let account = user.map(|user| format!("{user}{}@", password.unwrap_or_default()));
    let port = field(&fields, &["port"]).map(|port| format!(":{port}"));
    let (account, port) = (account.unwrap_or_default(), port.unwrap_or_default());
    let url = format!("{scheme}://{account}{host}{port}/{}", percent(database, ""));
    match field(&fields, &["sslmode", "ca", "cafile", "cert", "sslrootcert"]) {
        None => store(draft, url),
        Some(_) => match store(draft, url) {
            Verdict::Carried(_) => Verdict::carried(format!(
                "{KEY}, without its fields for TLS: see docs/stores.md"
            )),
            wrong => wrong,
        },
    }
}

fn bracketed(host: &str) -> String {
    match host.contains(':') {
        true => format!("[{host}]"),
        false => host.to_owned(),
    }
}

/// `ip=HOST dbname=NUMBER password=PASSWORD port=PORT`.
fn redis(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    if line.value.contains("://") {
        return store(draft, line.value.clone());
    }
    let fields = fields(&line.value);
    let host = field(&fields, &["ip", "host"]).unwrap_or("127.0.0.1");
    let password =
        field(&fields, &["password"]).map(|password| format!(":{}@", percent(password, "")));
    let port = field(&fields, &["port"]).map(|port| format!(":{port}"));
    let number = field(&fields, &["dbname", "db"]).unwrap_or("0");
    let (password, port) = (password.unwrap_or_default(), port.unwrap_or_default());
    store(
        draft,
        format!("redis://{password}{}{port}/{number}", bracketed(host)),
    )
}
