//! The servers of an engine: one, the master that Sentinels name, or the masters of a Redis Cluster. Calls go to the
//! server that has their keys, all calls for one server at once.
//!
//! A Redis Cluster has 16,384 slots. The keys of a call are in one slot, that of the text between `{` and `}`, or of
//! the whole key. A server answers MOVED if another one has the slot, and ASK while keys move to another one.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::{join_all, select_ok};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, ErrorKind, FromRedisValue, RedisError, ServerErrorKind, Value,
    cmd, from_redis_value, pipe,
};
use tokio::sync::Mutex;

use super::redis::SCRIPTS;
use super::redis_call::Call;
use super::redis_url::{Kind, Template, parse};
use crate::error::StoreError;
use crate::kinds::{Options, redis_client};

/// The time limit of connecting, and of a command. Only the control thread waits for them.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(1);
/// A server of a Redis Cluster that has not responded gets no calls for this time, so the others need not wait for it.
const RETRY_TIME: Duration = Duration::from_secs(1);
/// The shortest time between two queries for the slots of the servers.
const ASK_AGAIN: Duration = Duration::from_millis(250);
/// The shortest time between two losses that count. After each, the nodes publish everything again.
const COUNT_AGAIN: Duration = Duration::from_secs(5);

/// A connection to a server that has the scripts.
#[derive(Clone, Debug)]
struct ConnectedServer {
    connection: MultiplexedConnection,
    /// The names of the scripts there: their hashes.
    hashes: Arc<[String]>,
}

impl ConnectedServer {
    async fn new(client: &Client) -> Result<ConnectedServer, RedisError> {
        let mut connection = connect(client).await?;
        let mut load = pipe();
        for script in SCRIPTS {
            load.cmd("SCRIPT").arg("LOAD").arg(script.source());
        }
        let hashes: Vec<String> = load.query_async(&mut connection).await?;
        Ok(ConnectedServer {
            connection,
            hashes: hashes.into(),
        })
    }
}

async fn connect(client: &Client) -> Result<MultiplexedConnection, RedisError> {
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(COMMAND_TIMEOUT))
        .set_response_timeout(Some(COMMAND_TIMEOUT));
    client
        .get_multiplexed_async_connection_with_config(&config)
        .await
}

#[derive(Debug)]
struct Server {
    address: String,
    link: Mutex<ServerLink>,
}

impl Server {
    fn new(address: String) -> Arc<Server> {
        let link = Mutex::default();
        Arc::new(Server { address, link })
    }
}

#[derive(Debug, Default)]
struct ServerLink {
    /// The connection, if there is one.
    open: Option<ConnectedServer>,
    /// The server gets no calls before this time.
    retry_at: Option<Instant>,
}

/// Which server has which slots.
#[derive(Debug)]
struct Map {
    servers: Vec<Arc<Server>>,
    /// First slot, last slot, and the number of the server, in order; nothing if one server has all.
    ranges: Vec<(u16, u16, usize)>,
    /// When the map was made.
    asked: Instant,
}

impl Map {
    /// A map of one server that has all slots.
    fn one(address: String) -> Map {
        Map {
            servers: vec![Server::new(address)],
            ranges: Vec::new(),
            asked: Instant::now(),
        }
    }

    fn server(&self, slot: u16) -> Option<&Arc<Server>> {
        if self.ranges.is_empty() {
            return self.servers.first();
        }
        let after = self.ranges.partition_point(|(_, last, _)| *last < slot);
        let range = self.ranges.get(after);
        let (.., number) = range.filter(|(first, ..)| *first <= slot)?;
        self.servers.get(*number)
    }

    /// The server with this address.
    fn named(&self, address: &str) -> Option<&Arc<Server>> {
        let mut servers = self.servers.iter();
        servers.find(|server| server.address == address)
    }
}

#[derive(Debug, Default)]
struct State {
    map: Option<Arc<Map>>,
    /// The map may be out of date: another server may have some of the slots now.
    is_stale: bool,
    /// A server of a Redis Cluster has closed its connection: it may have lost its data.
    has_lost: bool,
    /// The number that [`Servers::losses`] returns.
    losses: u64,
    /// When `losses` was increased the last time.
    counted: Option<Instant>,
}

/// Calls for one server.
struct ServerCalls {
    server: Arc<Server>,
    /// The keys of these calls are moving to this server, so each call requires ASKING.
    is_asking: bool,
    /// The indexes of the calls in the list that [`Servers::run`] gets.
    calls: Vec<usize>,
}

/// Why a call has no result.
enum Failure {
    /// The server has responded with an error.
    Refused(RedisError),
    /// The server could not be reached. The text is the reason.
    Away(String),
}

type Outcome<T> = Result<T, Failure>;

/// The servers of an engine.
#[derive(Debug)]
pub(super) struct Servers {
    options: Options,
    kind: Kind,
    /// How URLs of servers begin and end, if there are several.
    template: Template,
    state: Mutex<State>,
    asking: Mutex<()>,
}

impl Servers {
    pub(super) fn new(options: &Options) -> Result<Servers, StoreError> {
        let (kind, template) = parse(&options.url)?;
        let servers = Servers {
            options: options.clone(),
            kind,
            template,
            state: Mutex::default(),
            asking: Mutex::default(),
        };
        drop(servers.client("192.0.2.1:6379")?);
        Ok(servers)
    }

    fn client(&self, address: &str) -> Result<Client, StoreError> {
        let mut options = self.options.clone();
        if !matches!(self.kind, Kind::Single) {
            options.url = self.template.url(address);
        }
        redis_client(&options)
    }

    fn is_cluster(&self) -> bool {
        matches!(self.kind, Kind::Cluster { .. })
    }

    /// Runs all calls, and returns their results in the same order. If a server redirects a call, runs the call once
    /// more on the other server.
    ///
    /// # Errors
    /// No server can be reached.
    pub(super) async fn run<T: FromRedisValue>(
        &self,
        calls: &[Call],
    ) -> Result<Vec<Result<T, StoreError>>, StoreError> {
        let map = self.map().await?;
        let mut outcomes: Vec<Option<Outcome<T>>> = Vec::new();
        outcomes.resize_with(calls.len(), || None);
        let mut parts = Vec::new();
        for (number, call) in calls.iter().enumerate() {
            match map.server(call.slot()) {
                Some(server) => add_call(&mut parts, server, false, number),
                None => self.set_stale().await,
            }
        }
        self.round(parts, calls, &mut outcomes).await;
        let parts = self.redirected(&map, &outcomes).await;
        self.round(parts, calls, &mut outcomes).await;
        finish(outcomes)
    }

    /// Runs one call.
    pub(super) async fn run_one<T: FromRedisValue>(&self, call: Call) -> Result<T, StoreError> {
        let all = self.run(&[call]).await?;
        let one = all.into_iter().next();
        one.unwrap_or_else(|| Err(StoreError::Query("no response".to_owned())))
    }

    /// Sends the calls of all servers at the same time, one pipeline to each server. Writes the results into
    /// `outcomes`.
    async fn round<T: FromRedisValue>(
        &self,
        parts: Vec<ServerCalls>,
        calls: &[Call],
        outcomes: &mut [Option<Outcome<T>>],
    ) {
        let sent = parts.into_iter().map(|part| async move {
            let results = self.send(&part, calls).await;
            (part.calls, results)
        });
        for (numbers, results) in join_all(sent).await {
            match results {
                Ok(all) => {
                    for (number, one) in numbers.into_iter().zip(all) {
                        outcomes[number] = Some(one.map_err(Failure::Refused));
                    }
                }
                Err(error) => {
                    for number in numbers {
                        outcomes[number] = Some(Err(Failure::Away(error.clone())));
                    }
                }
            }
        }
    }

    /// Sends the calls of one server, and returns the result of each. An error means that the server cannot be reached.
    async fn send<T: FromRedisValue>(
        &self,
        part: &ServerCalls,
        calls: &[Call],
    ) -> Result<Vec<Result<T, RedisError>>, String> {
        let server = &part.server;
        let connected = self.connected(server).await;
        let mut connected = connected.map_err(|error| error.to_string())?;
        let mut commands = pipe();
        commands.ignore_errors();
        for call in part.calls.iter().map(|number| &calls[*number]) {
            if part.is_asking {
                commands.cmd("ASKING");
            }
            let hash = &connected.hashes[call.script as usize];
            let command = commands.cmd("EVALSHA").arg(hash).arg(call.keys.len());
            command.arg(&call.keys).arg(&call.arguments);
        }
        let outcome = commands.query_async(&mut connected.connection).await;
        let all: Vec<Result<Value, RedisError>> = match outcome {
            Ok(all) => all,
            Err(error) => {
                self.forget(server, Some(RETRY_TIME)).await;
                return Err(StoreError::connect(&error).to_string());
            }
        };
        // The responses to ASKING are not needed.
        let (skipped, step) = if part.is_asking { (1, 2) } else { (0, 1) };
        let all = all.into_iter().skip(skipped).step_by(step);
        let read = |one: Result<Value, RedisError>| Ok(from_redis_value(one?)?);
        let all: Vec<Result<T, RedisError>> = all.map(read).collect();
        self.check(server, &all).await;
        Ok(all)
    }

    /// Closes the connection to a server that rejects all calls, if it may have become a replica or lost the scripts.
    async fn check<T>(&self, server: &Arc<Server>, all: &[Result<T, RedisError>]) {
        let kinds = all
            .iter()
            .map(|one| one.as_ref().err().map(RedisError::kind));
        let kinds: Option<Vec<ErrorKind>> = kinds.collect();
        let Some(kinds) = kinds.filter(|kinds| !kinds.is_empty()) else {
            return;
        };
        let has = |some: &[ServerErrorKind]| {
            let mut kinds = kinds.iter();
            kinds.any(|kind| matches!(kind, ErrorKind::Server(kind) if some.contains(kind)))
        };
        use ServerErrorKind::{BusyLoading, ClusterDown, MasterDown, NoScript, ReadOnly};
        if !self.is_cluster() || has(&[NoScript]) {
            self.forget(server, None).await;
        } else if has(&[BusyLoading, ClusterDown, MasterDown, ReadOnly]) {
            // Another server knows better where the slots are.
            self.forget(server, Some(RETRY_TIME)).await;
        }
    }

    /// The calls that responses of a Redis Cluster redirect (MOVED, ASK), with the servers that must get them.
    async fn redirected<T>(&self, map: &Map, outcomes: &[Option<Outcome<T>>]) -> Vec<ServerCalls> {
        let mut parts = Vec::new();
        let mut servers: Vec<Arc<Server>> = Vec::new();
        for (number, outcome) in outcomes.iter().enumerate() {
            let Some(Err(Failure::Refused(error))) = outcome else {
                continue;
            };
            let Some((address, _)) = error.redirect_node().filter(|_| self.is_cluster()) else {
                continue;
            };
            let known = servers.iter().find(|server| server.address == address);
            let server = known.or_else(|| map.named(address)).map(Arc::clone);
            let server = server.unwrap_or_else(|| {
                let server = Server::new(address.to_owned());
                servers.push(Arc::clone(&server));
                server
            });
            let is_asking = error.kind() == ErrorKind::Server(ServerErrorKind::Ask);
            if !is_asking {
                self.set_stale().await;
            }
            add_call(&mut parts, &server, is_asking, number);
        }
        parts
    }

    async fn set_stale(&self) {
        self.state.lock().await.is_stale = true;
    }

    /// The connection to a server. Opens it if there is none.
    async fn connected(&self, server: &Arc<Server>) -> Result<ConnectedServer, StoreError> {
        let mut link = server.link.lock().await;
        if let Some(open) = &link.open {
            return Ok(open.clone());
        }
        if link.retry_at.is_some_and(|at| Instant::now() < at) {
            let text = format!("{} has not responded a moment ago", server.address);
            return Err(StoreError::Connect(text));
        }
        match ConnectedServer::new(&self.client(&server.address)?).await {
            Ok(connected) => {
                link.open = Some(connected.clone());
                link.retry_at = None;
                Ok(connected)
            }
            Err(error) => {
                drop(link);
                self.forget(server, Some(RETRY_TIME)).await;
                Err(StoreError::connect(&error))
            }
        }
    }

    /// Closes the connection to a server. The next call connects again. In a Redis Cluster, it does so only after
    /// `pause`.
    async fn forget(&self, server: &Arc<Server>, pause: Option<Duration>) {
        let mut link = server.link.lock().await;
        link.open = None;
        if self.is_cluster() {
            link.retry_at = pause.map(|pause| Instant::now() + pause);
        }
        drop(link);
        let mut state = self.state.lock().await;
        let map = state.map.as_ref();
        if !map.is_some_and(|map| map.servers.iter().any(|one| Arc::ptr_eq(one, server))) {
            return;
        }
        if self.is_cluster() {
            state.is_stale = true;
            state.has_lost |= pause.is_some();
        } else {
            state.map = None;
        }
    }

    /// The map of the slots. Asks the servers if it is missing or out of date. If no server responds, returns the
    /// previous map.
    async fn map(&self) -> Result<Arc<Map>, StoreError> {
        if let Some(map) = self.fresh_map().await {
            return Ok(map);
        }
        // Only one task at a time asks the servers for their slots.
        let _asking = self.asking.lock().await;
        if let Some(map) = self.fresh_map().await {
            return Ok(map);
        }
        let before = self.state.lock().await.map.clone();
        let found = self.find_map(before.as_deref()).await;
        let mut state = self.state.lock().await;
        match (found, before) {
            (Ok(map), _) => {
                state.is_stale = false;
                let map = Arc::new(map);
                state.map = Some(Arc::clone(&map));
                Ok(map)
            }
            // Some of the servers may respond.
            (Err(_), Some(before)) => Ok(before),
            (Err(error), None) => Err(error),
        }
    }

    /// The map; `None` if there is none, or if it is out of date and the servers may be asked again.
    async fn fresh_map(&self) -> Option<Arc<Map>> {
        let state = self.state.lock().await;
        let map = state.map.as_ref()?;
        let must_ask = state.is_stale && map.asked.elapsed() >= ASK_AGAIN;
        (!must_ask).then(|| Arc::clone(map))
    }

    /// Makes a new map. Asks the Sentinels, or the configured servers of the Redis Cluster and those of the map
    /// `before`.
    async fn find_map(&self, before: Option<&Map>) -> Result<Map, StoreError> {
        match &self.kind {
            Kind::Single => Ok(Map::one(String::new())),
            Kind::Sentinel { hosts, name } => {
                let asked = hosts.iter().map(|host| Box::pin(self.master(host, name)));
                // The first one that responds: others may be away.
                let (address, _) = select_ok(asked).await?;
                Ok(Map::one(address))
            }
            Kind::Cluster { hosts } => {
                let mut servers = before.map_or_else(Vec::new, |map| map.servers.clone());
                for host in hosts {
                    if !servers.iter().any(|server| server.address == *host) {
                        servers.push(Server::new(host.clone()));
                    }
                }
                let asked = servers.iter().map(|server| Box::pin(self.slots(server)));
                let (ranges, _) = select_ok(asked).await?;
                Ok(map_of(ranges, &servers))
            }
        }
    }

    /// Asks the Sentinel at `host` for the address of the master `name`.
    async fn master(&self, host: &str, name: &str) -> Result<String, StoreError> {
        let options = Options {
            url: self.template.without_user(host),
            password: self.options.sentinel_password.clone(),
            ca: self.options.ca.clone(),
            ..Options::default()
        };
        let connecting = connect(&redis_client(&options)?).await;
        let mut connection = connecting.map_err(|error| StoreError::connect(&error))?;
        let outcome = cmd("SENTINEL")
            .arg("get-master-addr-by-name")
            .arg(name)
            .query_async(&mut connection)
            .await;
        let found: Option<(String, u16)> = outcome.map_err(|error| StoreError::connect(&error))?;
        let (host_of_master, port) = found.ok_or_else(|| {
            StoreError::Connect(format!(
                "the Sentinel at {host} does not know the master {name}"
            ))
        })?;
        Ok(joined(&host_of_master, port))
    }

    /// Asks one server for the slots of all masters: first slot, last slot and address.
    async fn slots(&self, server: &Arc<Server>) -> Result<Vec<(u16, u16, String)>, StoreError> {
        let mut connected = self.connected(server).await?;
        let outcome = cmd("CLUSTER")
            .arg("SLOTS")
            .query_async(&mut connected.connection)
            .await;
        let outcome: Result<Value, RedisError> = outcome;
        let rows: Vec<(u16, u16, Vec<Value>)> = match outcome {
            Ok(Value::Array(rows)) => rows.into_iter().filter_map(range).collect(),
            Ok(_) => Vec::new(),
            Err(error) => {
                if !matches!(error.kind(), ErrorKind::Server(_)) {
                    self.forget(server, Some(RETRY_TIME)).await;
                }
                return Err(StoreError::connect(&error));
            }
        };
        let own_host = server.address.rsplit_once(':').map_or("", |(host, _)| host);
        let rows = rows
            .into_iter()
            .filter_map(|(first, last, place)| Some((first, last, address(own_host, &place)?)));
        let rows: Vec<_> = rows.collect();
        match rows.is_empty() {
            true => Err(StoreError::Connect(format!(
                "{} has no slots of a Redis Cluster",
                server.address
            ))),
            false => Ok(rows),
        }
    }

    /// A number that increases after servers of a Redis Cluster were away. They may have come back without their data.
    /// The identity of the data does not show this, because only one server stores it.
    pub(super) async fn losses(&self) -> u64 {
        if !self.is_cluster() {
            return 0;
        }
        let Ok(map) = self.map().await else {
            return self.state.lock().await.losses;
        };
        let asked = map.servers.iter().map(|server| self.responds(server));
        let do_all_respond = join_all(asked).await.into_iter().all(|responds| responds);
        let mut state = self.state.lock().await;
        let may_count = state
            .counted
            .is_none_or(|counted| counted.elapsed() >= COUNT_AGAIN);
        if state.has_lost && do_all_respond && !state.is_stale && may_count {
            state.has_lost = false;
            state.losses += 1;
            state.counted = Some(Instant::now());
        }
        state.losses
    }

    /// Whether a server responds, even with an error.
    async fn responds(&self, server: &Arc<Server>) -> bool {
        let Ok(mut connected) = self.connected(server).await else {
            return false;
        };
        let outcome = cmd("TIME").query_async(&mut connected.connection).await;
        let outcome: Result<Value, RedisError> = outcome;
        match outcome {
            Ok(_) => true,
            Err(error) => {
                let is_refusal = matches!(error.kind(), ErrorKind::Server(_));
                if !is_refusal {
                    self.forget(server, Some(RETRY_TIME)).await;
                }
                is_refusal
            }
        }
    }

    #[cfg(test)]
    pub(super) async fn has_map(&self) -> bool {
        self.state.lock().await.map.is_some()
    }
}

/// Adds the call with this number to the calls for its server.
fn add_call(parts: &mut Vec<ServerCalls>, server: &Arc<Server>, is_asking: bool, number: usize) {
    let same =
        |part: &&mut ServerCalls| Arc::ptr_eq(&part.server, server) && part.is_asking == is_asking;
    match parts.iter_mut().find(same) {
        Some(part) => part.calls.push(number),
        None => parts.push(ServerCalls {
            server: Arc::clone(server),
            is_asking,
            calls: vec![number],
        }),
    }
}

/// The results of all calls in their order. If no server could be reached, a single error.
fn finish<T>(outcomes: Vec<Option<Outcome<T>>>) -> Result<Vec<Result<T, StoreError>>, StoreError> {
    let is_away = |outcome: &Option<Outcome<T>>| matches!(outcome, Some(Err(Failure::Away(_))));
    let are_all_away = !outcomes.is_empty() && outcomes.iter().all(is_away);
    let each = outcomes.into_iter().map(|outcome| match outcome {
        Some(Ok(value)) => Ok(value),
        Some(Err(Failure::Away(error))) => Err(StoreError::Connect(error)),
        Some(Err(Failure::Refused(error))) => Err(refusal(&error)),
        None => Err(StoreError::Connect("no server has this slot".to_owned())),
    });
    let mut each: Vec<Result<T, StoreError>> = each.collect();
    match are_all_away {
        true => match each.swap_remove(0) {
            Err(error) => Err(error),
            Ok(_) => Ok(each),
        },
        false => Ok(each),
    }
}

/// The error for a call that a server has rejected. It is [`StoreError::Connect`] if the server may accept the call
/// later.
fn refusal(error: &RedisError) -> StoreError {
    use ServerErrorKind::{
        Ask, BusyLoading, ClusterDown, MasterDown, Moved, NoScript, ReadOnly, TryAgain,
    };
    match error.kind() {
        ErrorKind::Server(
            Ask | BusyLoading | ClusterDown | MasterDown | Moved | NoScript | ReadOnly | TryAgain,
        ) => StoreError::connect(error),
        _ => StoreError::query(error),
    }
}

/// A row of CLUSTER SLOTS: the first and the last slot, and the place of the master.
fn range(row: Value) -> Option<(u16, u16, Vec<Value>)> {
    let Value::Array(row) = row else {
        return None;
    };
    let mut row = row.into_iter();
    match (row.next()?, row.next()?, row.next()?) {
        (Value::Int(first), Value::Int(last), Value::Array(place)) => {
            Some((u16::try_from(first).ok()?, u16::try_from(last).ok()?, place))
        }
        _ => None,
    }
}

/// The address of a master. A server that does not know its own host sends none, or `?`. Then the host is `own_host`.
fn address(own_host: &str, place: &[Value]) -> Option<String> {
    let [host, Value::Int(port), ..] = place else {
        return None;
    };
    let host = match host {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok()?,
        Value::SimpleString(text) => text.clone(),
        _ => String::new(),
    };
    let port = u16::try_from(*port).ok()?;
    Some(match &*host {
        "" | "?" => format!("{own_host}:{port}"),
        host => joined(host, port),
    })
}

/// `HOST:PORT`, with brackets around an IPv6 address.
fn joined(host: &str, port: u16) -> String {
    match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    }
}

/// Makes a map of these ranges. Servers in `known` keep their connections.
fn map_of(mut ranges: Vec<(u16, u16, String)>, known: &[Arc<Server>]) -> Map {
    ranges.sort_unstable();
    let mut servers: Vec<Arc<Server>> = Vec::new();
    let ranges = ranges.into_iter().map(|(first, last, address)| {
        let before = servers.iter().position(|server| server.address == address);
        let number = before.unwrap_or_else(|| {
            let known = known.iter().find(|server| server.address == address);
            let server = known.map_or_else(|| Server::new(address), Arc::clone);
            servers.push(server);
            servers.len() - 1
        });
        (first, last, number)
    });
    let ranges = ranges.collect();
    Map {
        servers,
        ranges,
        asked: Instant::now(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_without_a_server_has_none() {
        let address = |text: &str| text.to_owned();
        let map = map_of(vec![(10, 20, address("b:2")), (0, 5, address("a:1"))], &[]);
        let of = |slot| map.server(slot).map(|server| server.address.clone());
        assert_eq!(of(0).as_deref(), Some("a:1"));
        assert_eq!(of(5).as_deref(), Some("a:1"));
        assert_eq!(of(6), None);
        assert_eq!(of(20).as_deref(), Some("b:2"));
        assert_eq!(of(21), None);
    }

    #[test]
    fn the_place_of_a_master_is_read_and_nonsense_is_not() {
        let place = |host: Value, port: i64| [host, Value::Int(port)];
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        assert_eq!(
            address("h", &place(text("::1"), 7)).as_deref(),
            Some("[::1]:7")
        );
        assert_eq!(
            address("h", &place(text("a.example"), 7)).as_deref(),
            Some("a.example:7")
        );
        for unknown in [text(""), text("?"), Value::Nil] {
            assert_eq!(address("h", &place(unknown, 7)).as_deref(), Some("h:7"));
        }
        assert_eq!(address("h", &place(text("a"), 65_536)), None);
        assert_eq!(address("h", &[text("a")]), None);
        assert!(range(Value::Array(vec![Value::Int(1), Value::Int(2)])).is_none());
        let row = vec![Value::Int(1), Value::Int(99_999), Value::Array(Vec::new())];
        assert!(range(Value::Array(row)).is_none());
    }
}
