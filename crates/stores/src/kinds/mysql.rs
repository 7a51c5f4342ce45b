//! MySQL and MariaDB, by a few connections. They do not report changes, so the lifetimes of the cache apply.

use mysql_async::prelude::Queryable;
use mysql_async::{
    Conn, Opts, OptsBuilder, Pool, PoolConstraints, PoolOpts, SslOpts, TxOpts, Value,
};

use super::Options;
use crate::error::StoreError;
use crate::sql::{Row, Sql, Statement};
use crate::store::StoreFuture;

/// Connections: each carries one query at a time.
const MAX_CONNECTIONS: usize = 4;
/// ER_NO_SUCH_TABLE.
const NO_SUCH_TABLE: u16 = 1146;
/// ER_DUP_ENTRY.
const DUPLICATE: u16 = 1062;

pub(super) fn config(options: &Options) -> Result<Opts, StoreError> {
    let url = match options.url.strip_prefix("mariadb:") {
        Some(rest) => format!("mysql:{rest}"),
        None => options.url.clone(),
    };
    let wrong = |error| StoreError::Url(format!("mysql: {error}"));
    let opts = Opts::from_url(&url).map_err(wrong)?;
    let constraints = PoolConstraints::new(1, MAX_CONNECTIONS).unwrap_or_default();
    let mut builder = OptsBuilder::from_opts(opts.clone())
        .pool_opts(PoolOpts::default().with_constraints(constraints))
        // The URL says how to connect, and nothing else does.
        .prefer_socket(false);
    if let Some(password) = &options.password {
        builder = builder.pass(Some(password));
    }
    if let Some(ca) = &options.ca {
        let ssl = opts.ssl_opts().cloned().unwrap_or_default();
        let ssl: SslOpts = ssl
            .with_root_certs(vec![ca.clone().into()])
            .with_disable_built_in_roots(true);
        builder = builder.ssl_opts(ssl);
    }
    Ok(builder.into())
}

/// Where the tables are.
pub(super) fn place(opts: &Opts) -> String {
    let (host, port) = (opts.ip_or_hostname(), opts.tcp_port());
    format!("{host} {port} {:?} {:?}", opts.socket(), opts.db_name())
}

#[derive(Debug)]
pub(super) struct Mysql {
    pool: Pool,
}

impl Mysql {
    pub(super) fn new(options: &Options) -> Result<Mysql, StoreError> {
        let pool = Pool::new(config(options)?);
        Ok(Mysql { pool })
    }

    async fn connection(&self) -> Result<Conn, StoreError> {
        let connection = self.pool.get_conn().await;
        connection.map_err(|error| StoreError::connect(&error))
    }

    async fn query(&self, text: &str, values: &[&str]) -> Result<Vec<Row>, StoreError> {
        let mut connection = self.connection().await?;
        let values = parameters(values);
        let text = quoted(text);
        let rows: Result<Vec<mysql_async::Row>, _> = connection.exec(text, values).await;
        let rows = rows.map_err(|error| failed(&error))?;
        Ok(rows.into_iter().map(columns).collect())
    }

    async fn transact(&self, statements: &[Statement<'_>]) -> Result<Vec<u64>, StoreError> {
        let mut connection = self.connection().await?;
        let begun = connection.start_transaction(TxOpts::default()).await;
        let mut transaction = begun.map_err(|error| failed(&error))?;
        let mut counts = Vec::new();
        for statement in statements {
            let values = parameters(&statement.values);
            let done = transaction.exec_drop(exact(statement.text), values).await;
            done.map_err(|error| failed(&error))?;
            counts.push(transaction.affected_rows());
        }
        let committed = transaction.commit().await;
        committed.map_err(|error| failed(&error))?;
        Ok(counts)
    }
}

/// The default collations compare texts without their case: the deletion of `alice` would delete `Alice`. The
/// connection uses utf8mb4.
fn exact(text: &str) -> String {
    text.replace(" = ?", " = ? COLLATE utf8mb4_bin")
}

/// Names between quotation marks (such as `replace`, which is a word of SQL) as MySQL has them.
fn quoted(text: &str) -> String {
    text.replace('"', "`")
}

fn failed(error: &mysql_async::Error) -> StoreError {
    match error {
        mysql_async::Error::Server(server) if server.code == NO_SUCH_TABLE => {
            StoreError::NoTable(error.to_string())
        }
        // The row of the exact name was deleted before.
        mysql_async::Error::Server(server) if server.code == DUPLICATE => {
            StoreError::Query(format!(
                "the table has a name that differs in letter case only, and its collation makes no difference: {error}"
            ))
        }
        mysql_async::Error::Server(_) => StoreError::query(error),
        _ => StoreError::connect(error),
    }
}

fn parameters(values: &[&str]) -> mysql_async::Params {
    match values.is_empty() {
        true => mysql_async::Params::Empty,
        false => mysql_async::Params::Positional(values.iter().map(Value::from).collect()),
    }
}

fn columns(row: mysql_async::Row) -> Row {
    let text = |value| match value {
        Value::NULL => None,
        Value::Bytes(bytes) => Some(String::from_utf8_lossy(&bytes).into_owned()),
        Value::Int(number) => Some(number.to_string()),
        Value::UInt(number) => Some(number.to_string()),
        other => Some(other.as_sql(true)),
    };
    // `Row::unwrap` panics only if a column was taken out before, which nothing here does.
    row.unwrap().into_iter().map(text).collect()
}

impl Sql for Mysql {
    fn rows<'a>(&'a self, text: &'a str, values: &'a [&'a str]) -> StoreFuture<'a, Vec<Row>> {
        Box::pin(self.query(text, values))
    }

    fn execute<'a>(&'a self, statements: &'a [Statement<'a>]) -> StoreFuture<'a, Vec<u64>> {
        Box::pin(self.transact(statements))
    }
}

#[cfg(test)]
mod tests {
    use super::{exact, quoted};

    #[test]
    fn names_have_the_quotation_marks_of_mysql() {
        assert_eq!(quoted("SELECT \"add\" FROM a"), "SELECT `add` FROM a");
    }

    #[test]
    fn changes_compare_texts_with_their_case() {
        assert_eq!(
            exact("DELETE FROM turnusers_lt WHERE realm = ? AND name = ?"),
            "DELETE FROM turnusers_lt WHERE realm = ? COLLATE utf8mb4_bin AND name = ? COLLATE utf8mb4_bin"
        );
        assert_eq!(
            exact("INSERT INTO turn_secret (realm, value) VALUES (?, ?)"),
            "INSERT INTO turn_secret (realm, value) VALUES (?, ?)"
        );
    }
}
