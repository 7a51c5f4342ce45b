//! SIP registration bindings in an SQL database: a row for each address of record of each server.
//!
//! ```text
//! node      name of the server
//! id        hash of the address: some databases compare texts without their case
//! aor       the address, for other programs; control characters and bytes that are not UTF-8 are written as %XX
//! contacts  the URIs of its contacts, for other programs, with spaces between
//! ends      when its last binding ends, in seconds since 1970
//! state     the record that the server reads at its start, in hexadecimal digits
//! ```

use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout};

use crate::error::StoreError;
use crate::keys::{hex, unhex};
use crate::kinds::{Kind, Options, open_sql};
use crate::sql::{Row, Sql, Statement};
use crate::store::StoreFuture;

/// The table with bindings. In MySQL and MariaDB, `state` is `mediumtext`, and [`MYSQL_SUFFIX`] follows.
pub const BINDINGS_TABLE: &str = "CREATE TABLE hairpin_sip_binding (node varchar(64), id char(32), aor varchar(762), contacts text, ends bigint, state text, PRIMARY KEY (node, id))";

/// The rest of the statement in MySQL and MariaDB. Queries compare with this collation, so others could not use the key.
pub const MYSQL_SUFFIX: &str = " CHARACTER SET utf8mb4 COLLATE utf8mb4_bin";

/// How long a statement or a transaction may take.
const QUERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Rows of one statement, and of one transaction.
const ROWS_PER_STATEMENT: usize = 100;
const ROWS_PER_TRANSACTION: usize = 2_000;
/// Rows of one query at the start.
const ROWS_PER_PAGE: usize = 2_000;
/// The maximum of bytes of a state, which has twice as many hexadecimal digits. Longer states are not saved, because
/// databases limit the length of a statement. An address with ten bindings has about 5,000 bytes.
const MAX_STATE: usize = 64 << 10;
/// The maximum of bytes in the column `contacts`. Contacts that do not fit are left out.
const MAX_CONTACTS: usize = 2_000;
/// The minimum time between two removals of rows whose bindings have ended. Only a write of changes removes them.
const CLEANUP_INTERVAL: Duration = Duration::from_secs(60);

/// The bindings of one address of record.
#[derive(Clone, Copy, Debug)]
pub struct BindingRow<'a> {
    /// The address in canonical form.
    pub aor: &'a [u8],
    /// The URIs of its contacts. If there is none, the row is removed.
    pub contacts: &'a [&'a [u8]],
    /// When the last binding ends, in seconds since 1970.
    pub ends_unix_s: u64,
    /// The record of this address that [`SavedBindings::load`] returns later.
    pub state: &'a [u8],
}

/// The bindings of one server in a database.
#[derive(Debug)]
pub struct SavedBindings {
    kind: Kind,
    sql: Box<dyn Sql>,
    node: String,
    next_cleanup: std::sync::Mutex<Instant>,
}

impl SavedBindings {
    /// Opens the database: a file of SQLite at once; to a database server, it connects later. Call it within a tokio
    /// runtime.
    ///
    /// # Errors
    /// If the URL is wrong or not of an SQL database, or if a file cannot be opened.
    pub fn open(options: &Options, node: &str) -> Result<SavedBindings, StoreError> {
        let (kind, sql) = open_sql(options)?;
        Ok(SavedBindings {
            kind,
            sql,
            node: node.to_owned(),
            next_cleanup: std::sync::Mutex::new(Instant::now()),
        })
    }

    /// Identifies the rows of this server in this database. User and password in the URL make no difference.
    #[must_use]
    pub fn id(options: &Options, node: &str) -> u64 {
        let mut hasher = DefaultHasher::new();
        let place = crate::kinds::place(options);
        place
            .map(|(kind, place)| (kind.name(), place))
            .hash(&mut hasher);
        node.hash(&mut hasher);
        hasher.finish()
    }

    /// Whether both are the same file of SQLite.
    #[must_use]
    pub fn is_same_file(one: &Options, other: &Options) -> bool {
        let place = crate::kinds::place(one);
        place
            .as_ref()
            .is_some_and(|(kind, _)| *kind == Kind::Sqlite)
            && place == crate::kinds::place(other)
    }

    /// Checks a URL without opening the database.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(options: &Options) -> Result<(), StoreError> {
        match crate::kinds::check(options)? {
            Kind::Sqlite | Kind::Postgres | Kind::Mysql => Ok(()),
            kind @ (Kind::File | Kind::Redis | Kind::Http) => Err(StoreError::Unsupported {
                kind: kind.name(),
                what: "have SIP bindings: use sqlite:, postgres: or mysql:",
            }),
        }
    }

    /// The states of all addresses of this server whose bindings have not ended, one after the other. Makes the table
    /// if it is missing.
    ///
    /// # Errors
    /// If the database does not respond in time, or refuses.
    pub async fn load(&self) -> Result<Vec<u8>, StoreError> {
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let page = match self.page(&after).await {
                Err(StoreError::NoTable(_)) => {
                    self.make_table().await?;
                    self.page(&after).await?
                }
                page => page?,
            };
            let Some(last) = page.last() else {
                return Ok(all);
            };
            after = text(last, 1).to_owned();
            // A database may compare names without their case.
            for row in page.iter().filter(|row| text(row, 0) == self.node) {
                // A text that is not hexadecimal is left out. The checksum of the record shows other damage.
                all.extend(unhex(text(row, 2)).unwrap_or_default());
            }
            if page.len() < ROWS_PER_PAGE {
                return Ok(all);
            }
        }
    }

    async fn page(&self, after: &str) -> Result<Vec<Row>, StoreError> {
        let query = format!(
            "SELECT node, id, state FROM hairpin_sip_binding WHERE node = ? AND id > ? AND ends > {} ORDER BY id LIMIT {ROWS_PER_PAGE}",
            unix_s()
        );
        within(self.sql.rows(&query, &[&self.node, after])).await
    }

    async fn make_table(&self) -> Result<(), StoreError> {
        let mut table = BINDINGS_TABLE.replacen("CREATE TABLE", "CREATE TABLE IF NOT EXISTS", 1);
        if self.kind == Kind::Mysql {
            table = table.replace("state text", "state mediumtext") + MYSQL_SUFFIX;
        }
        let statement = Statement {
            text: &table,
            values: Vec::new(),
        };
        let made = within(self.sql.execute_silently(&[statement])).await;
        made.map(drop).map_err(|error| match error {
            StoreError::Query(reason) => StoreError::Query(format!(
                "there is no table hairpin_sip_binding, and it cannot be made ({reason}): make it as docs/stores.md says"
            )),
            error => error,
        })
    }

    /// Replaces the rows of these addresses. At most once per minute, it also removes the rows of this server whose
    /// bindings have ended.
    ///
    /// # Errors
    /// If the database does not respond in time, or refuses. Some rows may be replaced then: save all of them again.
    pub async fn save(&self, rows: &[BindingRow<'_>]) -> Result<(), StoreError> {
        for rows in rows.chunks(ROWS_PER_TRANSACTION) {
            let rows: Vec<EncodedRow> = rows.iter().map(EncodedRow::new).collect();
            let mut statements = Vec::new();
            for rows in rows.chunks(ROWS_PER_STATEMENT) {
                statements.push(self.deletion(rows));
                statements.extend(self.insertion(rows));
            }
            self.execute(&statements).await?;
        }
        if self.is_cleanup_due() {
            let text = format!(
                "DELETE FROM hairpin_sip_binding WHERE node = ? AND ends <= {}",
                unix_s()
            );
            self.execute(&[(text, vec![&*self.node])]).await?;
        }
        Ok(())
    }

    fn is_cleanup_due(&self) -> bool {
        let next = self.next_cleanup.lock();
        let mut next = next.unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        let is_due = *next <= now;
        if is_due {
            *next = now + CLEANUP_INTERVAL;
        }
        is_due
    }

    fn deletion<'a>(&'a self, rows: &'a [EncodedRow]) -> (String, Vec<&'a str>) {
        let marks = vec!["?"; rows.len()].join(", ");
        let text = format!("DELETE FROM hairpin_sip_binding WHERE node = ? AND id IN ({marks})");
        let ids = rows.iter().map(|row| &*row.id);
        (text, [&*self.node].into_iter().chain(ids).collect())
    }

    /// `None` if no row has a state.
    fn insertion<'a>(&'a self, rows: &'a [EncodedRow]) -> Option<(String, Vec<&'a str>)> {
        let kept = || rows.iter().filter(|row| !row.state.is_empty());
        let marks: Vec<String> = kept()
            .map(|row| format!("(?, ?, ?, ?, {}, ?)", row.ends_unix_s))
            .collect();
        let values =
            kept().flat_map(|row| [&*self.node, &row.id, &row.aor, &row.contacts, &row.state]);
        let text = format!(
            "INSERT INTO hairpin_sip_binding (node, id, aor, contacts, ends, state) VALUES {}",
            marks.join(", ")
        );
        (!marks.is_empty()).then(|| (text, values.collect()))
    }

    async fn execute(&self, statements: &[(String, Vec<&str>)]) -> Result<(), StoreError> {
        let statements: Vec<Statement<'_>> = statements
            .iter()
            .map(|(text, values)| Statement {
                text,
                values: values.clone(),
            })
            .collect();
        within(self.sql.execute_silently(&statements))
            .await
            .map(drop)
    }
}

/// A row in the texts of its columns. With an empty state, the row is removed and not written again.
struct EncodedRow {
    id: String,
    aor: String,
    contacts: String,
    ends_unix_s: u64,
    state: String,
}

impl EncodedRow {
    fn new(row: &BindingRow<'_>) -> EncodedRow {
        let digest = Sha256::digest(row.aor);
        let fits = row.state.len() <= MAX_STATE;
        if !fits {
            tracing::warn!(
                aor = readable(row.aor),
                bytes = row.state.len(),
                "the bindings of an address are too long for the database: a restart loses them"
            );
        }
        let mut contacts = String::new();
        for contact in row.contacts {
            let contact = readable(contact);
            if contacts.len() + contact.len() >= MAX_CONTACTS {
                break;
            }
            let space = if contacts.is_empty() { "" } else { " " };
            let _ = write!(contacts, "{space}{contact}");
        }
        EncodedRow {
            id: hex(&digest[..16]),
            aor: readable(row.aor),
            contacts,
            ends_unix_s: row.ends_unix_s.min(i64::MAX as u64),
            state: match fits && !row.contacts.is_empty() {
                true => hex(row.state),
                false => String::new(),
            },
        }
    }
}

/// Bytes as UTF-8 text without control characters: PostgreSQL accepts no zero byte in a text.
fn readable(bytes: &[u8]) -> String {
    let mut out = String::new();
    for &byte in bytes {
        match byte {
            b' '..=b'~' => out.push(char::from(byte)),
            _ => push_escaped(&mut out, byte),
        }
    }
    out
}

fn push_escaped(out: &mut String, byte: u8) {
    let _ = write!(out, "%{byte:02X}");
}

async fn within<T>(query: StoreFuture<'_, T>) -> Result<T, StoreError> {
    let outcome = timeout(QUERY_TIMEOUT, query).await;
    outcome.unwrap_or(Err(StoreError::Timeout(QUERY_TIMEOUT)))
}

fn text(row: &Row, column: usize) -> &str {
    row.get(column)
        .and_then(Option::as_deref)
        .unwrap_or_default()
}

fn unix_s() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(future)
    }

    fn open(path: &std::path::Path, node: &str) -> SavedBindings {
        let options = Options {
            url: format!("sqlite:{}", path.display()),
            ..Options::default()
        };
        SavedBindings::open(&options, node).expect("it is made")
    }

    fn row<'a>(aor: &'a [u8], contacts: &'a [&'a [u8]], state: &'a [u8]) -> BindingRow<'a> {
        BindingRow {
            aor,
            contacts,
            ends_unix_s: unix_s() + 60,
            state,
        }
    }

    #[test]
    fn each_server_has_its_own_rows_and_replaces_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bindings.db");
        let (a, b) = (open(&path, "a"), open(&path, "b"));
        let contacts: &[&[u8]] = &[b"sip:ann@192.0.2.1", b"sip:ann@192.0.2.2"];
        block_on(async {
            assert!(a.load().await.expect("the table is made").is_empty());
            let rows = [
                row(b"ann@a.org", contacts, b"one"),
                row(b"Ann@a.org", contacts, b"two"),
            ];
            a.save(&rows).await.expect("saved");
            b.save(&[row(b"ann@a.org", contacts, b"six")])
                .await
                .expect("saved");
            // Both names are different addresses.
            assert_eq!(a.load().await.expect("loaded").len(), 6);
            a.save(&[row(b"ann@a.org", &[], b"gone")])
                .await
                .expect("saved");
            assert_eq!(a.load().await.expect("loaded"), b"two");
            assert_eq!(b.load().await.expect("loaded"), b"six");
        });
        let file = rusqlite::Connection::open(path).expect("opened");
        let contacts = file.query_row(
            "SELECT contacts FROM hairpin_sip_binding WHERE node = 'b' AND aor = 'ann@a.org'",
            [],
            |row| row.get::<_, String>(0),
        );
        assert_eq!(
            contacts.expect("a row"),
            "sip:ann@192.0.2.1 sip:ann@192.0.2.2"
        );
    }

    #[test]
    fn rows_that_have_ended_are_not_read_and_are_removed() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("bindings.db");
        let a = open(&path, "a");
        let contacts: &[&[u8]] = &[b"sip:ann@192.0.2.1"];
        let ended = BindingRow {
            ends_unix_s: unix_s(),
            ..row(b"bob@a.org", contacts, b"old")
        };
        block_on(async {
            a.load().await.expect("loaded");
            a.save(&[ended, row(b"ann@a.org", contacts, b"new")])
                .await
                .expect("saved");
            assert_eq!(a.load().await.expect("loaded"), b"new");
        });
        let file = rusqlite::Connection::open(path).expect("opened");
        let rows = file.query_row("SELECT count(*) FROM hairpin_sip_binding", [], |row| {
            row.get::<_, i64>(0)
        });
        assert_eq!(rows.expect("a number"), 1);
    }

    #[test]
    fn thousands_of_rows_are_written_and_read() {
        let folder = tempfile::tempdir().expect("a folder");
        let a = open(&folder.path().join("bindings.db"), "a");
        let contacts: &[&[u8]] = &[b"sip:x@192.0.2.1"];
        let names: Vec<String> = (0..5_000).map(|number| format!("{number}@a.org")).collect();
        let rows: Vec<_> = names
            .iter()
            .map(|name| row(name.as_bytes(), contacts, b"12345678"))
            .collect();
        block_on(async {
            a.load().await.expect("loaded");
            a.save(&rows).await.expect("saved");
            a.save(&rows).await.expect("saved again");
            assert_eq!(a.load().await.expect("loaded").len(), 40_000);
        });
    }

    #[test]
    fn text_for_readers_is_valid_and_ghsa_v8hj_2xx7_xmp5_is_no_sql() {
        assert_eq!(readable(b"a\0b\xffc\n"), "a%00b%FFc%0A");
        let folder = tempfile::tempdir().expect("a folder");
        let a = open(
            &folder.path().join("bindings.db"),
            "a'; DROP TABLE hairpin_sip_binding; --",
        );
        let contacts: &[&[u8]] = &[b"sip:'); DROP TABLE hairpin_sip_binding; --@x"];
        block_on(async {
            a.load().await.expect("loaded");
            let rows = [row(b"x' OR '1'='1\xff@a.org", contacts, b"it")];
            a.save(&rows).await.expect("saved");
            assert_eq!(a.load().await.expect("loaded"), b"it");
        });
    }

    #[test]
    fn only_sql_databases_have_bindings() {
        let check = |url: &str| {
            let options = Options {
                url: url.to_owned(),
                ..Options::default()
            };
            SavedBindings::check(&options).map_err(|error| error.to_string())
        };
        assert_eq!(check("sqlite:/var/lib/hairpin/bindings.db"), Ok(()));
        assert_eq!(check("postgres://hairpin@db/sip"), Ok(()));
        let said = check("redis://db/2").expect_err("not possible");
        assert!(said.contains("use sqlite:, postgres: or mysql:"), "{said}");
    }

    #[test]
    fn the_page_has_the_table() {
        let page = include_str!("../../../docs/stores.md");
        let page: Vec<&str> = page.split_whitespace().collect();
        let page = page.join(" ");
        assert!(page.contains(&format!("{BINDINGS_TABLE};")));
        assert!(page.contains(&format!("){MYSQL_SUFFIX};")));
    }
}
