//! PostgreSQL. One connection carries all queries, one after the other without a wait between them. Notifications come
//! by a second one.

use std::io;
use std::pin::{Pin, pin};
use std::str::FromStr;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::select;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Mutex;
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config};
use tokio_rustls::TlsConnector;

use super::Options;
use super::tls::client_config;
use crate::error::StoreError;
use crate::sql::{Row, Sql, Statement};
use crate::store::{Change, OnChange, StoreFuture};

/// What is listened to. The payload is empty, or has a realm, a tabulator and a name.
const CHANNEL: &str = "hairpin";

pub(super) fn config(options: &Options) -> Result<Config, StoreError> {
    let wrong = |error: tokio_postgres::Error| StoreError::Url(format!("postgres: {error}"));
    let mut config = Config::from_str(&options.url).map_err(wrong)?;
    if let Some(password) = &options.password {
        config.password(password);
    }
    config.application_name("hairpin");
    if config.get_user().is_none() {
        return Err(StoreError::Url(
            "the URL names no user: postgres://USER@HOST/DATABASE".to_owned(),
        ));
    }
    Ok(config)
}

/// Where the tables are. Without a name, the database has the name of the user.
pub(super) fn place(config: &Config) -> String {
    let ports = match config.get_ports() {
        [] => &[5432],
        ports => ports,
    };
    let (hosts, addresses) = (config.get_hosts(), config.get_hostaddrs());
    let database = config.get_dbname().or(config.get_user());
    format!("{hosts:?} {addresses:?} {ports:?} {database:?}")
}

#[derive(Debug)]
pub(super) struct Postgres {
    config: Config,
    tls: MakeTls,
    client: Mutex<Option<Arc<Client>>>,
}

impl Postgres {
    pub(super) fn new(options: &Options) -> Result<Postgres, StoreError> {
        Ok(Postgres {
            config: config(options)?,
            tls: MakeTls(Arc::new(client_config(options.ca.as_deref())?)),
            client: Mutex::new(None),
        })
    }

    /// The connection, a new one if there is none.
    async fn client(&self) -> Result<Arc<Client>, StoreError> {
        // Held while it connects, so that many queries make one connection.
        let mut kept = self.client.lock().await;
        if let Some(client) = kept.as_ref().filter(|client| !client.is_closed()) {
            return Ok(Arc::clone(client));
        }
        let (client, connection) = self
            .config
            .connect(self.tls.clone())
            .await
            .map_err(|error| StoreError::connect(&error))?;
        // It ends with the connection, or with the client.
        tokio::spawn(async move { drop(connection.await) });
        let client = Arc::new(client);
        *kept = Some(Arc::clone(&client));
        Ok(client)
    }

    async fn query(&self, text: &str, values: &[&str]) -> Result<Vec<Row>, StoreError> {
        let client = self.client().await?;
        let typed: Vec<_> = values.iter().map(as_text).collect();
        let rows = client.query_typed(&numbered(text), &typed).await;
        let rows = rows.map_err(|error| failed(&error))?;
        rows.iter().map(columns).collect()
    }

    async fn transact(
        &self,
        statements: &[Statement<'_>],
        notifies: bool,
    ) -> Result<Vec<u64>, StoreError> {
        // A connection of its own: other queries must not get into the transaction.
        let (mut client, connection) = self
            .config
            .connect(self.tls.clone())
            .await
            .map_err(|error| StoreError::connect(&error))?;
        tokio::spawn(async move { drop(connection.await) });
        let transaction = client.transaction().await.map_err(|error| failed(&error))?;
        let mut counts = Vec::new();
        for statement in statements {
            let values: Vec<&(dyn ToSql + Sync)> = statement
                .values
                .iter()
                .map(|value| value as &(dyn ToSql + Sync))
                .collect();
            let text = numbered(statement.text);
            let count = transaction.execute(&text, &values);
            counts.push(count.await.map_err(|error| failed(&error))?);
        }
        if notifies {
            let notified = transaction.execute("SELECT pg_notify($1, '')", &[&CHANNEL]);
            notified.await.map_err(|error| failed(&error))?;
        }
        transaction.commit().await.map_err(|error| failed(&error))?;
        Ok(counts)
    }

    async fn listen(&self, on_change: OnChange<'_>) -> Result<(), StoreError> {
        let (client, mut connection) = self
            .config
            .connect(self.tls.clone())
            .await
            .map_err(|error| StoreError::connect(&error))?;
        let messages = std::future::poll_fn(|context| {
            loop {
                match connection.poll_message(context) {
                    Poll::Ready(Some(Ok(AsyncMessage::Notification(notification)))) => {
                        on_change(change(notification.payload()));
                    }
                    Poll::Ready(Some(Ok(_))) => {}
                    Poll::Ready(Some(Err(error))) => return Poll::Ready(failed(&error)),
                    Poll::Ready(None) => {
                        let closed = "the database has closed the connection".to_owned();
                        return Poll::Ready(StoreError::Connect(closed));
                    }
                    Poll::Pending => return Poll::Pending,
                }
            }
        });
        let subscribe = async {
            let subscribed = client.batch_execute(&format!("LISTEN {CHANNEL}")).await;
            if let Err(error) = subscribed {
                return failed(&error);
            }
            // Earlier changes are not reported.
            on_change(Change::Everything);
            std::future::pending().await
        };
        // Neither ends but with an error.
        let (messages, subscribe) = (pin!(messages), pin!(subscribe));
        let (error, _) = select(messages, subscribe).await.factor_first();
        Err(error)
    }
}

/// What a notification says.
fn change(payload: &str) -> Change {
    match payload.split_once('\t') {
        Some((realm, name)) => Change::User {
            realm: realm.to_owned(),
            name: name.to_owned(),
        },
        None => Change::Everything,
    }
}

fn failed(error: &tokio_postgres::Error) -> StoreError {
    if error.code() == Some(&SqlState::UNDEFINED_TABLE) {
        return StoreError::NoTable(error.to_string());
    }
    match error.as_db_error().is_some() {
        true => StoreError::query(error),
        false => StoreError::connect(error),
    }
}

fn as_text<'a>(value: &'a &'a str) -> (&'a (dyn ToSql + Sync), Type) {
    (value, Type::TEXT)
}

/// `?` as `$1`, `$2` and so on.
fn numbered(text: &str) -> String {
    let mut parts = text.split('?');
    let first = parts.next().unwrap_or_default().to_owned();
    let number = |text: String, (number, part)| format!("{text}${number}{part}");
    (1..).zip(parts).fold(first, number)
}

fn columns(row: &tokio_postgres::Row) -> Result<Row, StoreError> {
    let value = |(place, column): (usize, &tokio_postgres::Column)| {
        let text = match *column.type_() {
            Type::INT8 => row
                .try_get::<_, Option<i64>>(place)
                .map(|number| number.map(|number| number.to_string())),
            Type::INT2 => row
                .try_get::<_, Option<i16>>(place)
                .map(|number| number.map(|number| number.to_string())),
            Type::INT4 => row
                .try_get::<_, Option<i32>>(place)
                .map(|number| number.map(|number| number.to_string())),
            _ => row.try_get::<_, Option<String>>(place),
        };
        text.map_err(|error| StoreError::query(&error))
    };
    row.columns().iter().enumerate().map(value).collect()
}

impl Sql for Postgres {
    fn rows<'a>(&'a self, text: &'a str, values: &'a [&'a str]) -> StoreFuture<'a, Vec<Row>> {
        Box::pin(self.query(text, values))
    }

    fn execute<'a>(&'a self, statements: &'a [Statement<'a>]) -> StoreFuture<'a, Vec<u64>> {
        Box::pin(self.transact(statements, true))
    }

    fn execute_silently<'a>(
        &'a self,
        statements: &'a [Statement<'a>],
    ) -> StoreFuture<'a, Vec<u64>> {
        Box::pin(self.transact(statements, false))
    }

    fn watch<'a>(&'a self, on_change: OnChange<'a>) -> StoreFuture<'a, ()> {
        Box::pin(self.listen(on_change))
    }
}

/// TLS by rustls, for this library.
#[derive(Clone, Debug)]
struct MakeTls(Arc<ClientConfig>);

struct Connect {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

struct Stream<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for MakeTls {
    type Stream = Stream<S>;
    type TlsConnect = Connect;
    type Error = rustls_pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Connect, Self::Error> {
        // A Unix socket has no name, and PostgreSQL has no TLS over it.
        let domain = if domain.is_empty() {
            "localhost"
        } else {
            domain
        };
        Ok(Connect {
            config: Arc::clone(&self.0),
            name: ServerName::try_from(domain)?.to_owned(),
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Connect {
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        let connecting = TlsConnector::from(self.config).connect(self.name, stream);
        Box::pin(async move { connecting.await.map(Stream) })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_have_numbers() {
        assert_eq!(numbered("a = ? AND b = ?"), "a = $1 AND b = $2");
        assert_eq!(numbered("SELECT 1"), "SELECT 1");
    }

    #[test]
    fn a_notification_names_a_user_or_nothing() {
        let user = Change::User {
            realm: "north.gov".to_owned(),
            name: "gorst".to_owned(),
        };
        assert_eq!(change("north.gov\tgorst"), user);
        assert_eq!(change(""), Change::Everything);
    }
}
