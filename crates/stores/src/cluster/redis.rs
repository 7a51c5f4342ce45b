//! Redis and Valkey as the engine: one server, or one that Sentinels name. Each step is one script, so it is atomic, and it reads the clock
//! of Redis: the clocks of nodes do not matter.
//!
//! ```text
//! {PREFIX}:nodes      hash    name      time when it ends, and what the node says
//! {PREFIX}:messages   sorted set        messages by their number, each with the time when it ends
//! {PREFIX}:state      hash    sequence, identity
//! PREFIX:lease:KEY    hash    holder    units:time when it ends
//! ```

use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, cmd, pipe};
use tokio::sync::Mutex;

use super::engine::{Engine, Exchanged, Publication};
use super::leases::Request;
use super::model::MESSAGE_TTL_MS;
use crate::error::StoreError;
use crate::kinds::{Options, redis_client};
use crate::store::Answer;

/// A connection, and a command. Nobody waits for these but the control thread.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Messages that are kept.
const MESSAGES: usize = 1_000;
/// A Sentinel is another server, with its own URL.
const SENTINELS: [&str; 2] = ["redis-sentinel://", "valkey-sentinel://"];

const NOW: &str = "local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000)";

/// KEYS: nodes, messages, state. ARGV: name, text, time to live, last message or -1, identity.
const EXCHANGE: &str = r"
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now + ARGV[3]) .. ' ' .. ARGV[2])
redis.call('HSETNX', KEYS[3], 'identity', ARGV[5])
local nodes, messages = {}, {}
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local ends, text = string.match(all[i + 1], '^(%d+) (.*)$')
  if ends and tonumber(ends) > now then nodes[#nodes + 1] = text
  else redis.call('HDEL', KEYS[1], all[i]) end
end
local last = tonumber(redis.call('HGET', KEYS[3], 'sequence') or '0')
local after = tonumber(ARGV[4])
if after > last then after = 0 end
if after >= 0 and after < last then
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], after + 1, '+inf')) do
    local ends, text = string.match(entry, '^(%d+) (.*)$')
    if ends and tonumber(ends) > now then messages[#messages + 1] = text end
  end
end
return { nodes, messages, last, redis.call('HGET', KEYS[3], 'identity') }
";

/// KEYS: messages, state. ARGV: text, time to live, most messages.
const SEND: &str = r"
local number = redis.call('HINCRBY', KEYS[2], 'sequence', 1)
redis.call('ZADD', KEYS[1], number, string.format('%.0f', now + ARGV[2]) .. ' ' .. ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -ARGV[3] - 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
";

/// KEYS: the lease. ARGV: holder, used, block, limit, time to live. The same as [`super::model::grant`].
const LEASE: &str = r"
local used, block, limit, ttl = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local others, holders, last = 0, 1, now + ttl
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local units, ends = string.match(all[i + 1], '^(%d+):(%d+)$')
  units, ends = tonumber(units), tonumber(ends)
  if not ends or ends <= now then redis.call('HDEL', KEYS[1], all[i])
  elseif all[i] ~= ARGV[1] then
    others, holders, last = others + units, holders + 1, math.max(last, ends)
  end
end
local free = math.max(0, math.max(0, limit - others) - used)
local share = math.max(1, math.floor(free / (2 * holders)))
local granted = used + math.min(block, share, free)
if granted == 0 then redis.call('HDEL', KEYS[1], ARGV[1])
else
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f:%.0f', granted, now + ttl))
  redis.call('PEXPIRE', KEYS[1], string.format('%.0f', last - now))
end
return granted
";

/// A Redis server.
#[derive(Debug)]
pub struct RedisEngine {
    options: Options,
    /// The name of the master, if the URL is that of Sentinels.
    sentinel: Option<Sentinel>,
    prefix: String,
    connection: Mutex<Option<Connected>>,
}

/// A connection to a server that has the scripts.
#[derive(Clone, Debug)]
struct Connected {
    connection: MultiplexedConnection,
    /// The names of the scripts there: their hashes.
    exchange: String,
    send: String,
    lease: String,
}

impl Connected {
    async fn new(client: &Client) -> Result<Connected, RedisError> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(TIMEOUT))
            .set_response_timeout(Some(TIMEOUT));
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let mut connection = connecting.await?;
        let mut load = pipe();
        for script in [EXCHANGE, SEND, LEASE] {
            load.cmd("SCRIPT")
                .arg("LOAD")
                .arg(format!("{NOW}\n{script}"));
        }
        let (exchange, send, lease) = load.query_async(&mut connection).await?;
        Ok(Connected {
            connection,
            exchange,
            send,
            lease,
        })
    }
}

/// Where the address of the master is asked.
#[derive(Debug)]
struct Sentinel {
    hosts: Vec<String>,
    name: String,
}

/// The Sentinels and the name of the master in `redis-sentinel://[user:password@]HOST:PORT,HOST:PORT/NAME[/DB]`, and the URL of a master without its address.
fn sentinel(url: &str) -> Result<Option<(Sentinel, String, String)>, StoreError> {
    let Some(rest) = SENTINELS.iter().find_map(|scheme| url.strip_prefix(scheme)) else {
        return Ok(None);
    };
    let wrong = || {
        let form = "redis-sentinel://HOST:PORT,HOST:PORT/NAME: NAME is that of the master";
        StoreError::Url(format!("expected {form}"))
    };
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (format!("{user}@"), rest),
        None => (String::new(), rest),
    };
    let (hosts, path) = rest.split_once('/').ok_or_else(wrong)?;
    let (name, db) = path.split_once('/').unwrap_or((path, "0"));
    let hosts: Vec<_> = hosts.split(',').map(str::to_owned).collect();
    if name.is_empty() || hosts.iter().any(String::is_empty) {
        return Err(wrong());
    }
    let name = name.to_owned();
    Ok(Some((Sentinel { hosts, name }, user, db.to_owned())))
}

impl RedisEngine {
    /// For this URL, without a connection yet.
    ///
    /// # Errors
    /// The URL or the file of certificates cannot be used.
    pub fn new(options: &Options, prefix: &str) -> Result<RedisEngine, StoreError> {
        let mut options = options.clone();
        let sentinel = sentinel(&options.url)?.map(|(sentinel, user, db)| {
            options.url = format!("redis://{user}ADDRESS/{db}");
            sentinel
        });
        drop(redis_client(&options)?);
        Ok(RedisEngine {
            options,
            sentinel,
            prefix: prefix.to_owned(),
            connection: Mutex::new(None),
        })
    }

    /// The key of what all nodes read. The braces have a Redis Cluster keep these keys together.
    fn shared(&self, name: &str) -> String {
        format!("{{{}}}:{name}", self.prefix)
    }

    /// The address of the server.
    async fn client(&self) -> Result<Client, StoreError> {
        let Some(sentinel) = &self.sentinel else {
            return redis_client(&self.options);
        };
        let mut options = self.options.clone();
        let address = self.ask_sentinels(sentinel).await?;
        options.url = options.url.replace("ADDRESS", &address);
        redis_client(&options)
    }

    async fn ask_sentinels(&self, sentinel: &Sentinel) -> Result<String, StoreError> {
        let mut last = StoreError::Connect("no Sentinel".to_owned());
        for host in &sentinel.hosts {
            match ask_sentinel(host, &sentinel.name).await {
                Ok(address) => return Ok(address),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn connected(&self) -> Result<Connected, StoreError> {
        let mut kept = self.connection.lock().await;
        if let Some(connected) = &*kept {
            return Ok(connected.clone());
        }
        let client = self.client().await?;
        let connected = Connected::new(&client).await;
        let connected = connected.map_err(|error| StoreError::connect(&error))?;
        *kept = Some(connected.clone());
        Ok(connected)
    }

    /// The next command connects again: also after an error of the server, because it may have become a replica, or lost the scripts.
    async fn failed(&self, error: RedisError) -> StoreError {
        *self.connection.lock().await = None;
        StoreError::connect(&error)
    }

    async fn ask_exchange(&self, own: &Publication) -> Result<Exchanged, StoreError> {
        let mut server = self.connected().await?;
        let after = own
            .after
            .map_or(-1, |after| i64::try_from(after).unwrap_or(0));
        let mut identity = [0; 16];
        fill(&mut identity);
        let outcome: Result<(Vec<String>, Vec<String>, u64, String), _> = cmd("EVALSHA")
            .arg(&server.exchange)
            .arg(3)
            .arg(self.shared("nodes"))
            .arg(self.shared("messages"))
            .arg(self.shared("state"))
            .arg(&own.name)
            .arg(&own.text)
            .arg(own.ttl_ms)
            .arg(after)
            .arg(crate::keys::hex(&identity))
            .query_async(&mut server.connection)
            .await;
        match outcome {
            Ok((nodes, messages, sequence, identity)) => Ok(Exchanged {
                nodes,
                messages,
                sequence,
                identity,
            }),
            Err(error) => Err(self.failed(error).await),
        }
    }

    async fn ask_lease(&self, holder: &str, all: &[Request]) -> Result<Vec<u32>, StoreError> {
        let mut server = self.connected().await?;
        let mut commands = pipe();
        for request in all {
            commands
                .cmd("EVALSHA")
                .arg(&server.lease)
                .arg(1)
                .arg(format!("{}:lease:{}", self.prefix, request.key))
                .arg(holder)
                .arg(request.used)
                .arg(request.block)
                .arg(request.limit)
                .arg(request.ttl_ms);
        }
        match commands.query_async(&mut server.connection).await {
            Ok(granted) => Ok(granted),
            Err(error) => Err(self.failed(error).await),
        }
    }

    async fn ask_send(&self, text: &str) -> Result<(), StoreError> {
        let mut server = self.connected().await?;
        let outcome = cmd("EVALSHA")
            .arg(&server.send)
            .arg(2)
            .arg(self.shared("messages"))
            .arg(self.shared("state"))
            .arg(text)
            .arg(MESSAGE_TTL_MS)
            .arg(MESSAGES)
            .query_async(&mut server.connection)
            .await;
        match outcome {
            Ok(()) => Ok(()),
            Err(error) => Err(self.failed(error).await),
        }
    }

    async fn ask_leave(&self, name: &str) -> Result<(), StoreError> {
        let mut server = self.connected().await?;
        let outcome = cmd("HDEL")
            .arg(self.shared("nodes"))
            .arg(name)
            .query_async(&mut server.connection)
            .await;
        match outcome {
            Ok(()) => Ok(()),
            Err(error) => Err(self.failed(error).await),
        }
    }
}

/// Random bytes. Without them an identity is all zeros: then a restart of the engine is noticed later.
fn fill(bytes: &mut [u8]) {
    let state = std::hash::RandomState::new();
    for (number, part) in bytes.chunks_mut(8).enumerate() {
        let random = std::hash::BuildHasher::hash_one(&state, number).to_le_bytes();
        part.copy_from_slice(&random[..part.len()]);
    }
}

async fn ask_sentinel(host: &str, name: &str) -> Result<String, StoreError> {
    let options = Options {
        url: format!("redis://{host}/"),
        ..Options::default()
    };
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(TIMEOUT))
        .set_response_timeout(Some(TIMEOUT));
    let client = redis_client(&options)?;
    let connecting = client.get_multiplexed_async_connection_with_config(&config);
    let mut connection = connecting
        .await
        .map_err(|error| StoreError::connect(&error))?;
    let outcome = cmd("SENTINEL")
        .arg("get-master-addr-by-name")
        .arg(name)
        .query_async(&mut connection)
        .await;
    let found: Option<(String, u16)> = outcome.map_err(|error| StoreError::connect(&error))?;
    let (ip, port) = found.ok_or_else(|| {
        StoreError::Connect(format!(
            "the Sentinel at {host} does not know the master {name}"
        ))
    })?;
    Ok(match ip.contains(':') {
        true => format!("[{ip}]:{port}"),
        false => format!("{ip}:{port}"),
    })
}

impl Engine for RedisEngine {
    fn exchange<'a>(&'a self, own: &'a Publication) -> Answer<'a, Exchanged> {
        Box::pin(self.ask_exchange(own))
    }

    fn leave<'a>(&'a self, name: &'a str) -> Answer<'a, ()> {
        Box::pin(self.ask_leave(name))
    }

    fn lease<'a>(&'a self, holder: &'a str, requests: &'a [Request]) -> Answer<'a, Vec<u32>> {
        Box::pin(self.ask_lease(holder, requests))
    }

    fn send<'a>(&'a self, text: &'a str) -> Answer<'a, ()> {
        Box::pin(self.ask_send(text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_sentinels_has_hosts_and_the_name_of_the_master() {
        let (of, user, db) = sentinel("redis-sentinel://u:p@a:1,[::1]:2/main/3")
            .unwrap()
            .unwrap();
        assert_eq!(
            (&of.hosts[..], &*of.name),
            (&["a:1".to_owned(), "[::1]:2".to_owned()][..], "main")
        );
        assert_eq!((&*user, &*db), ("u:p@", "3"));
        assert!(sentinel("redis://a:1/2").unwrap().is_none());
        for bad in [
            "redis-sentinel://a:1",
            "redis-sentinel://a:1/",
            "redis-sentinel:///main",
        ] {
            assert!(sentinel(bad).is_err(), "{bad}");
        }
    }
}
