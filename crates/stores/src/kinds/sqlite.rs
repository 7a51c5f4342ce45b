//! A file of SQLite, on a separate thread: SQLite waits for the disk and for other processes.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::time::Duration;

use rusqlite::types::ValueRef;
use rusqlite::{Connection, OpenFlags, params_from_iter};
use tokio::sync::oneshot;

use crate::error::StoreError;
use crate::sql::{ALIASES_TABLE, ROUTES_TABLE, Row, SCHEMA, Sql, Statement};
use crate::store::{Change, OnChange, StoreFuture};

/// Jobs that wait for the thread. The look-ups that run at once are fewer.
const MAX_JOBS: usize = 256;
/// How long another process may hold the file.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
/// How often the file is looked at for changes of other processes.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The version of the tables in files that hairpin has made. Version 1 has no SIP tables.
const VERSION: i64 = 2;

type Job = Box<dyn FnOnce(&mut Connection) + Send>;

#[derive(Debug)]
pub(super) struct Sqlite {
    jobs: SyncSender<Job>,
    path: PathBuf,
}

impl Sqlite {
    /// Opens the file, and makes it with its tables if it is missing or empty.
    pub(super) fn open(path: PathBuf) -> Result<Sqlite, StoreError> {
        Sqlite::open_with(path, make_tables)
    }

    /// Opens the file, and makes it without tables if it is missing. In WAL mode, readers do not wait for a writer.
    pub(super) fn open_without_tables(path: PathBuf) -> Result<Sqlite, StoreError> {
        Sqlite::open_with(path, |connection| {
            connection.pragma_update(None, "journal_mode", "WAL")
        })
    }

    fn open_with(
        path: PathBuf,
        prepare: impl FnOnce(&mut Connection) -> rusqlite::Result<()>,
    ) -> Result<Sqlite, StoreError> {
        let connected = connect(&path).and_then(|mut connection| {
            prepare(&mut connection)?;
            Ok(connection)
        });
        let mut connection = connected.map_err(|error| failed(&path, &error))?;
        let (jobs, queue) = sync_channel::<Job>(MAX_JOBS);
        std::thread::Builder::new()
            .name("sqlite".to_owned())
            .spawn(move || queue.iter().for_each(|job| job(&mut connection)))
            .map_err(|error| StoreError::Connect(error.to_string()))?;
        Ok(Sqlite { jobs, path })
    }

    async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (sender, receiver) = oneshot::channel();
        let job = move |connection: &mut Connection| drop(sender.send(work(connection)));
        match self.jobs.try_send(Box::new(job)) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                return Err(StoreError::Query("too many jobs wait for the file".into()));
            }
            Err(TrySendError::Disconnected(_)) => return Err(StoreError::Connect(ENDED.into())),
        }
        match receiver.await {
            Ok(outcome) => outcome.map_err(|error| failed(&self.path, &error)),
            Err(_) => Err(StoreError::Connect(ENDED.into())),
        }
    }
}

const ENDED: &str = "the thread of the file has ended";

/// An error of SQL is about the query; all others are about the file.
fn failed(path: &Path, error: &rusqlite::Error) -> StoreError {
    let text = format!("{}: {error}", path.display());
    let of_file = error.sqlite_error_code().is_some_and(|code| {
        use rusqlite::ErrorCode::{
            CannotOpen, DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, NotADatabase,
            PermissionDenied, SystemIoFailure,
        };
        matches!(
            code,
            CannotOpen
                | DatabaseBusy
                | DatabaseCorrupt
                | DatabaseLocked
                | DiskFull
                | NotADatabase
                | PermissionDenied
                | SystemIoFailure
        )
    });
    // SQLite has no code of its own for that.
    if text.contains("no such table") {
        return StoreError::NoTable(text);
    }
    match of_file {
        true => StoreError::Connect(text),
        false => StoreError::Query(text),
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    // Keys of users are no business of others. Whether this works shows below.
    let _ = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let common = OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let open = |flags| Connection::open_with_flags(path, common | flags);
    let connection = open(OpenFlags::SQLITE_OPEN_READ_WRITE)
        // Another program's file may be read.
        .or_else(|_| open(OpenFlags::SQLITE_OPEN_READ_ONLY))?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    Ok(connection)
}

/// Makes the tables in a file without any. A file that another program has made stays as it is.
fn make_tables(connection: &mut Connection) -> rusqlite::Result<()> {
    let tables = "SELECT count(*) FROM sqlite_master";
    if connection.query_row(tables, [], |row| row.get::<_, i64>(0))? > 0 {
        return migrate(connection);
    }
    // Readers do not wait for a writer.
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    // Another process may have been faster.
    if transaction.query_row(tables, [], |row| row.get::<_, i64>(0))? == 0 {
        for table in SCHEMA {
            transaction.execute(table, [])?;
        }
        transaction.pragma_update(None, "user_version", VERSION)?;
    }
    transaction.commit()
}

/// Adds the tables that an earlier version did not have. Files of other programs have version 0.
fn migrate(connection: &mut Connection) -> rusqlite::Result<()> {
    let version = |connection: &Connection| {
        connection.query_row("PRAGMA user_version", [], |row| row.get::<_, i64>(0))
    };
    if version(connection)? != 1 || connection.is_readonly(rusqlite::MAIN_DB)? {
        return Ok(());
    }
    let transaction =
        connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
    // Another process may have been faster.
    if version(&transaction)? == 1 {
        for table in [ALIASES_TABLE, ROUTES_TABLE] {
            let table = table.replacen("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1);
            transaction.execute(&table, [])?;
        }
        transaction.pragma_update(None, "user_version", VERSION)?;
    }
    transaction.commit()
}

fn query(connection: &Connection, text: &str, values: &[String]) -> rusqlite::Result<Vec<Row>> {
    let mut statement = connection.prepare_cached(text)?;
    let columns = statement.column_count();
    let mut rows = statement.query(params_from_iter(values))?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        let value = |column| Ok(text_of(row.get_ref(column)?));
        all.push((0..columns).map(value).collect::<rusqlite::Result<Row>>()?);
    }
    Ok(all)
}

fn text_of(value: ValueRef<'_>) -> Option<String> {
    match value {
        ValueRef::Null => None,
        ValueRef::Integer(number) => Some(number.to_string()),
        ValueRef::Real(number) => Some(number.to_string()),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => {
            Some(String::from_utf8_lossy(bytes).into_owned())
        }
    }
}

fn owned(values: &[&str]) -> Vec<String> {
    values.iter().map(|value| (*value).to_owned()).collect()
}

impl Sql for Sqlite {
    fn rows<'a>(&'a self, text: &'a str, values: &'a [&'a str]) -> StoreFuture<'a, Vec<Row>> {
        let (text, values) = (text.to_owned(), owned(values));
        Box::pin(self.run(move |connection| query(connection, &text, &values)))
    }

    fn execute<'a>(&'a self, statements: &'a [Statement<'a>]) -> StoreFuture<'a, Vec<u64>> {
        let statements: Vec<_> = statements
            .iter()
            .map(|statement| (statement.text.to_owned(), owned(&statement.values)))
            .collect();
        Box::pin(self.run(move |connection| {
            let transaction =
                connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            let mut counts = Vec::new();
            for (text, values) in &statements {
                let count = transaction.execute(text, params_from_iter(values))?;
                counts.push(count as u64);
            }
            transaction.commit()?;
            Ok(counts)
        }))
    }

    fn watch<'a>(&'a self, on_change: OnChange<'a>) -> StoreFuture<'a, ()> {
        let version = || {
            self.run(|connection| {
                connection.query_row("PRAGMA data_version", [], |row| row.get::<_, i64>(0))
            })
        };
        Box::pin(async move {
            let mut seen = version().await?;
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                let now = version().await?;
                if now != seen {
                    seen = now;
                    on_change(Change::Everything);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::Keys;
    use crate::sql::Tables;
    use crate::store::{Directory as _, RealmOption, SipTables, Store as _};

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(future)
    }

    #[test]
    fn written_users_are_read_also_by_another_process() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("hairpin.db");
        let tables = Tables::new(Sqlite::open(path.clone()).expect("it is made"));
        let other = Tables::new(Sqlite::open(path.clone()).expect("it is opened"));
        let file = Connection::open(path).expect("it is opened");
        let mode = file.query_row("PRAGMA journal_mode", [], |row| row.get::<_, String>(0));
        assert_eq!(mode.expect("a mode"), "wal", "readers wait for no writer");
        let keys = Keys::of("ann", "a.org", "s3cret").expect("keys");
        block_on(async {
            tables.put_user("a.org", "ann", keys).await.expect("put");
            tables.put_user("a.org", "ann", keys).await.expect("again");
            tables.put_secret("a.org", "secret").await.expect("put");
            let option = RealmOption::UserQuota;
            tables
                .set_option("a.org", option, Some(7))
                .await
                .expect("set");
            let origin = tables.set_origin("https://a.org", Some("a.org"));
            assert!(origin.await.expect("set"));
            let found = other.find_user("a.org", "ann").await.expect("found");
            assert_eq!(found.keys, Some(keys));
            assert_eq!(
                other.find_user("a.org", "ANN").await.expect("asked").keys,
                None
            );
            assert_eq!(
                other.find_user("b.org", "ann").await.expect("asked").keys,
                None
            );
            let shared = other.shared().await.expect("read");
            assert!(shared.has_users);
            assert_eq!(shared.options, [("a.org".to_owned(), option, 7)]);
            assert_eq!(shared.secrets.len() + shared.origins.len(), 2);
            assert!(other.delete_user("a.org", "ann").await.expect("deleted"));
            assert!(!other.delete_user("a.org", "ann").await.expect("asked"));
            assert_eq!(
                tables.find_user("a.org", "ann").await.expect("asked").keys,
                None
            );
        });
    }

    #[test]
    fn ghsa_v8hj_2xx7_xmp5_names_are_values_and_no_sql() {
        let folder = tempfile::tempdir().expect("a folder");
        let tables =
            Tables::new(Sqlite::open(folder.path().join("hairpin.db")).expect("it is made"));
        let keys = |name| Keys::of(name, "a.org", "s3cret").expect("keys");
        block_on(async {
            let ann = tables.put_user("a.org", "ann", keys("ann"));
            ann.await.expect("put");
            for name in [
                "x' OR '1'='1",
                "x'; DROP TABLE turnusers_lt; --",
                "x\" OR \"1\"=\"1",
                "%",
                "_nn",
            ] {
                let found = tables.find_user("a.org", name).await.expect("asked");
                assert_eq!(found.keys, None, "{name}");
                let found = tables.find_user(name, "ann").await.expect("asked");
                assert_eq!(found.keys, None, "{name}");
                assert!(!tables.delete_user("a.org", name).await.expect("asked"));
                let own = tables.put_user("a.org", name, keys(name));
                own.await.expect("put");
                let found = tables.find_user("a.org", name).await.expect("asked");
                assert_eq!(found.keys, Some(keys(name)), "{name}");
            }
            let ann = tables.find_user("a.org", "ann").await.expect("asked");
            assert_eq!(ann.keys, Some(keys("ann")));
        });
    }

    #[test]
    fn an_sha256_key_counts_only_with_the_md5_key_that_it_was_made_with() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("hairpin.db");
        let tables = Tables::new(Sqlite::open(path.clone()).expect("it is made"));
        let keys = Keys::of("ann", "a.org", "first").expect("keys");
        block_on(tables.put_user("a.org", "ann", keys)).expect("put");
        let coturn = Connection::open(path).expect("opened");
        let new = "7da2270ccfa49786e0115366d3a3d14d";
        let update = "UPDATE turnusers_lt SET hmackey = ?1 WHERE name = 'ann'";
        assert_eq!(coturn.execute(update, [new]).expect("updated"), 1);
        let found = block_on(tables.find_user("a.org", "ann")).expect("found");
        assert_eq!(found.keys, Keys::from_hex(new));
    }

    /// What another program writes into the SIP tables.
    const ROWS: [&str; 3] = [
        "INSERT INTO hairpin_sip_alias VALUES ('info@a.org', 'ann@a.org')",
        "INSERT INTO hairpin_sip_route (name, prefixes, trunks, strip) VALUES ('out', '+49, +43', 'carrier', 1)",
        "INSERT INTO hairpin_sip_route (name, \"replace\", to_domain) VALUES ('desk', 'ann', 'a.org')",
    ];

    #[test]
    fn aliases_and_routes_are_read_and_a_broken_table_does_not_affect_users() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("hairpin.db");
        let tables = Tables::new(Sqlite::open(path.clone()).expect("it is made"));
        let other = Connection::open(path).expect("opened");
        assert_eq!(block_on(tables.sip_tables()).expect("read").routes, []);
        for row in ROWS {
            assert_eq!(other.execute(row, []).expect(row), 1);
        }
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        let sip = block_on(tables.sip_tables()).expect("read");
        assert_eq!(sip.aliases, [pair("info@a.org", "ann@a.org")]);
        let [desk, out] = &sip.routes[..] else {
            panic!("{:?}", sip.routes);
        };
        assert_eq!((&*desk.name, &*out.name), ("desk", "out"));
        let keys = [
            pair("priority", "0"),
            pair("strip", "0"),
            pair("replace", "ann"),
            pair("to_domain", "a.org"),
        ];
        assert_eq!(desk.keys, keys);
        let keys = [
            pair("priority", "0"),
            pair("prefixes", "+49, +43"),
            pair("strip", "1"),
            pair("trunks", "carrier"),
        ];
        assert_eq!(out.keys, keys);
        // For example, the table of another version. This query fails, and the small tables can still be read.
        let rename = "ALTER TABLE hairpin_sip_route RENAME COLUMN trunks TO gateways";
        other.execute(rename, []).expect("renamed");
        let broken = block_on(tables.sip_tables());
        assert!(matches!(broken, Err(StoreError::Query(_))), "{broken:?}");
        block_on(tables.shared()).expect("read");
        other
            .execute("DROP TABLE hairpin_sip_route", [])
            .expect("dropped");
        let missing = block_on(tables.sip_tables()).expect("read");
        assert_eq!((missing.routes.len(), missing.aliases.len()), (0, 1));
    }

    #[test]
    fn rows_beyond_the_bound_are_counted() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("hairpin.db");
        let tables = Tables::new(Sqlite::open(path.clone()).expect("it is made"));
        let other = Connection::open(path).expect("opened");
        let fill = |count: usize| {
            let numbers = format!(
                "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})"
            );
            let rows = "SELECT printf('%06d@a.org', i), 'ann@a.org' FROM n";
            let insert = format!("{numbers} INSERT OR IGNORE INTO hairpin_sip_alias {rows}");
            other.execute(&insert, []).expect("inserted");
        };
        for (rows, omitted) in [(SipTables::MAX_ROWS, 0), (SipTables::MAX_ROWS + 7, 7)] {
            fill(rows);
            let sip = block_on(tables.sip_tables()).expect("read");
            assert_eq!(
                (sip.aliases.len(), sip.omitted),
                (SipTables::MAX_ROWS, omitted)
            );
            assert_eq!(sip.aliases[0].0, "000001@a.org");
        }
    }

    #[test]
    fn a_file_of_an_earlier_version_gets_the_tables_of_sip() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("hairpin.db");
        let old = Connection::open(&path).expect("made");
        old.execute(SCHEMA[0], []).expect("a table");
        old.pragma_update(None, "user_version", 1).expect("set");
        let tables = Tables::new(Sqlite::open(path.clone()).expect("it is opened"));
        old.execute(ROWS[0], []).expect("the table is there");
        assert_eq!(
            block_on(tables.sip_tables()).expect("read").aliases.len(),
            1
        );
        let again = Tables::new(Sqlite::open(path).expect("it is opened again"));
        assert_eq!(block_on(again.sip_tables()).expect("read").aliases.len(), 1);
    }

    #[test]
    fn a_file_of_an_old_coturn_is_read_and_keeps_its_tables() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("turndb");
        let coturn = Connection::open(&path).expect("made");
        coturn.execute(SCHEMA[0], []).expect("a table");
        let tables = Tables::new(Sqlite::open(path).expect("it is opened"));
        let keys = Keys::of("ann", "a.org", "first").expect("keys");
        block_on(async {
            assert!(!tables.shared().await.expect("read").has_users);
            tables.put_user("a.org", "ann", keys).await.expect("put");
            let found = tables.find_user("a.org", "ann").await.expect("found");
            let md5 = Keys {
                sha256: None,
                ..keys
            };
            assert_eq!(found.keys, Some(md5));
        });
        let count = "SELECT count(*) FROM sqlite_master WHERE type = 'table'";
        let count: i64 = coturn
            .query_row(count, [], |row| row.get(0))
            .expect("counted");
        assert_eq!(count, 1);
    }
}
