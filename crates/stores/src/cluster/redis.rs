//! Redis and Valkey as the engine. Each step is one script, so it is atomic, and it reads the clock of Redis: the
//! clocks of nodes do not matter. `redis_servers.rs` has the connections.
//!
//! ```text
//! {PREFIX}:nodes      hash    name      time when it ends, and what the node says
//! {PREFIX}:messages   sorted set        messages by their number, each with the time when it ends
//! {PREFIX}:state      hash    sequence, identity
//! {PREFIX}:to:NODE    hash    name      what other nodes tell this one, each with the time when it ends
//! PREFIX:lease:KEY    hash    holder    units:time when it ends
//! PREFIX:sip:AOR      hash    binding   see redis_bindings.rs
//! ```

use futures_util::future::join;

use super::engine::{BindRequest, BindResult, Engine, Exchanged, Leased, Publication, Texts};
use super::leases::Request;
use super::model::MESSAGE_TTL_MS;
use super::redis_bindings::{BIND, FIND};
use super::redis_call::Call;
use super::redis_servers::Servers;
use crate::error::StoreError;
use crate::kinds::Options;
use crate::store::StoreFuture;

/// The limits of what is read: anybody who can write to the engine can write more. Redis itself has no such limits.
const PRELUDE: &str = r"
local t = redis.call('TIME') local now = t[1] * 1000 + math.floor(t[2] / 1000)
local MAX, LONGEST, LATEST, TOLD = 1000, 16384, now + 120000, 20000
-- The text of an entry, and whether it has ended; nothing if no node has written it.
local function open(entry)
  if #entry > LONGEST + 16 then return nil end
  local ends, text = string.match(entry, '^(%d+) (.*)$')
  ends = tonumber(ends)
  if not ends or ends > LATEST or #text > LONGEST then return nil end
  return text, ends <= now
end
local function sequence(key)
  local text = redis.call('HGET', key, 'sequence')
  if not text then return 0 end
  if #text < 16 and string.match(text, '^%d+$') then return tonumber(text) end
  redis.call('HDEL', key, 'sequence')
  return 0
end
";

/// KEYS: nodes, messages, state, what others tell this node. ARGV: name, text or nothing, time to live, last message or
/// -1, identity.
const EXCHANGE: &str = r"
local own, has_ended = open(redis.call('HGET', KEYS[1], ARGV[1]) or '')
if has_ended then own = nil end
if ARGV[2] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', now + ARGV[3]) .. ' ' .. ARGV[2])
end
local identity = redis.call('HGET', KEYS[3], 'identity')
if not identity or #identity > 64 then
  identity = ARGV[5]
  redis.call('HSET', KEYS[3], 'identity', identity)
end
local nodes, messages, removed = {}, {}, 0
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local text, has_ended = open(all[i + 1])
  if text and not has_ended and #nodes < MAX then nodes[#nodes + 1] = text
  elseif all[i] ~= ARGV[1] or ARGV[2] == '' then
    redis.call('HDEL', KEYS[1], all[i])
    if not has_ended then removed = removed + 1 end
  end
end
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -MAX - 1)
local last, after = sequence(KEYS[3]), tonumber(ARGV[4])
if after > last then after = 0 end
if after >= 0 and after < last then
  for _, entry in ipairs(redis.call('ZRANGEBYSCORE', KEYS[2], after + 1, '+inf')) do
    local text, has_ended = open(entry)
    if not text then removed = removed + redis.call('ZREM', KEYS[2], entry)
    elseif not has_ended then messages[#messages + 1] = text end
  end
end
local told = {}
if ARGV[2] ~= '' then
  local all = redis.call('HGETALL', KEYS[4])
  for i = 2, #all, 2 do
    local text, has_ended = open(all[i])
    if not text then removed = removed + 1
    elseif not has_ended and #told < TOLD then told[#told + 1] = text end
  end
  if #all > 0 then redis.call('PEXPIRE', KEYS[4], 0) end
end
return { nodes, own or '', messages, last, identity, removed, told }
";

/// KEYS: what others tell a node. ARGV: time to live, then name and text of each.
const TELL: &str = r"
for i = 2, #ARGV, 2 do
  redis.call('HSET', KEYS[1], ARGV[i], string.format('%.0f', now + ARGV[1]) .. ' ' .. ARGV[i + 1])
end
redis.call('PEXPIRE', KEYS[1], ARGV[1])
";

/// KEYS: messages, state. ARGV: text, time to live.
const SEND: &str = r"
sequence(KEYS[2])
local number = redis.call('HINCRBY', KEYS[2], 'sequence', 1)
redis.call('ZADD', KEYS[1], number, string.format('%.0f', now + ARGV[2]) .. ' ' .. ARGV[1])
redis.call('ZREMRANGEBYRANK', KEYS[1], 0, -MAX - 1)
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
  if not ends or ends <= now or ends > LATEST or units > 4294967295 then redis.call('HDEL', KEYS[1], all[i])
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

/// KEYS: nodes. ARGV: name.
const LEAVE: &str = "redis.call('HDEL', KEYS[1], ARGV[1])";

/// What is called.
#[derive(Clone, Copy, Debug)]
pub(super) enum Script {
    Exchange,
    Send,
    Lease,
    Leave,
    Bind,
    Find,
    Tell,
}

/// All scripts, in the order of their numbers.
pub(super) const SCRIPTS: [Script; 7] = [
    Script::Exchange,
    Script::Send,
    Script::Lease,
    Script::Leave,
    Script::Bind,
    Script::Find,
    Script::Tell,
];

impl Script {
    pub(super) fn source(self) -> String {
        let script = match self {
            Script::Exchange => EXCHANGE,
            Script::Send => SEND,
            Script::Lease => LEASE,
            Script::Leave => LEAVE,
            Script::Bind => BIND,
            Script::Find => FIND,
            Script::Tell => TELL,
        };
        format!("{PRELUDE}{script}")
    }
}

/// A Redis server, or several.
#[derive(Debug)]
pub struct RedisEngine {
    pub(super) prefix: String,
    pub(super) servers: Servers,
}

impl RedisEngine {
    /// For this URL, without a connection yet.
    ///
    /// # Errors
    /// The URL or the file of certificates cannot be used.
    pub fn new(options: &Options, prefix: &str) -> Result<RedisEngine, StoreError> {
        Ok(RedisEngine {
            prefix: prefix.to_owned(),
            servers: Servers::new(options)?,
        })
    }

    /// The key of what all nodes read. The braces have a Redis Cluster keep these keys together.
    fn shared(&self, name: &str) -> String {
        format!("{{{}}}:{name}", self.prefix)
    }

    async fn ask_exchange(&self, own: &Publication) -> Result<Exchanged, StoreError> {
        let after = own
            .after
            .map_or(-1, |after| i64::try_from(after).unwrap_or(0));
        let mut identity = [0; 16];
        fill(&mut identity);
        let call = Call::new(Script::Exchange)
            .key(self.shared("nodes"))
            .key(self.shared("messages"))
            .key(self.shared("state"))
            .key(self.told_to(&own.name))
            .arg(&own.name)
            .arg(own.text.as_deref().unwrap_or_default())
            .arg(own.ttl_ms)
            .arg(after)
            .arg(crate::keys::hex(&identity));
        let (outcome, losses) = join(self.servers.run_one(call), self.servers.losses()).await;
        let reply: ExchangeReply = outcome?;
        let (nodes, before, messages, sequence, identity, removed, notices) = reply;
        let identity = text(identity);
        Ok(Exchanged {
            nodes: nodes.into_iter().map(text).collect(),
            before: (!before.is_empty()).then(|| text(before)),
            messages: messages.into_iter().map(text).collect(),
            sequence,
            // Leases and registrations are on other servers, too.
            identity: match losses {
                0 => identity,
                losses => format!("{identity} {losses}"),
            },
            removed,
            notices: notices.into_iter().map(text).collect(),
        })
    }

    /// The key of what others tell a node.
    fn told_to(&self, node: &str) -> String {
        self.shared(&format!("to:{}", crate::keys::hex(node.as_bytes())))
    }

    async fn ask_tell(&self, node: &str, texts: &[(String, String)]) -> Result<(), StoreError> {
        let call = Call::new(Script::Tell)
            .key(self.told_to(node))
            .arg(MESSAGE_TTL_MS);
        let call = texts
            .iter()
            .fold(call, |call, (name, text)| call.arg(name).arg(text));
        self.servers.run_one(call).await
    }

    async fn ask_lease(&self, holder: &str, all: &[Request]) -> Result<Vec<Leased>, StoreError> {
        let call = |request: &Request| {
            Call::new(Script::Lease)
                .key(format!("{}:lease:{}", self.prefix, request.key))
                .arg(holder)
                .arg(request.used)
                .arg(request.block)
                .arg(request.limit)
                .arg(request.ttl_ms)
        };
        let calls: Vec<Call> = all.iter().map(call).collect();
        self.servers.run(&calls).await
    }

    async fn ask_send(&self, text: &str) -> Result<(), StoreError> {
        let call = Call::new(Script::Send)
            .key(self.shared("messages"))
            .key(self.shared("state"))
            .arg(text)
            .arg(MESSAGE_TTL_MS);
        self.servers.run_one(call).await
    }

    async fn ask_leave(&self, name: &str) -> Result<(), StoreError> {
        let call = Call::new(Script::Leave);
        let call = call.key(self.shared("nodes")).arg(name);
        self.servers.run_one(call).await
    }
}

pub(super) type Bytes = Vec<u8>;
/// What [`EXCHANGE`] returns.
type ExchangeReply = (Vec<Bytes>, Bytes, Vec<Bytes>, u64, Bytes, u64, Vec<Bytes>);

/// A text of a node. Bytes that are no text have no MAC, so they are counted as forged.
pub(super) fn text(bytes: Bytes) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Random bytes. Without them an identity is all zeros: then a restart of the engine is noticed later.
fn fill(bytes: &mut [u8]) {
    let state = std::hash::RandomState::new();
    for (number, part) in bytes.chunks_mut(8).enumerate() {
        let random = std::hash::BuildHasher::hash_one(&state, number).to_le_bytes();
        part.copy_from_slice(&random[..part.len()]);
    }
}

impl Engine for RedisEngine {
    fn exchange<'a>(&'a self, own: &'a Publication) -> StoreFuture<'a, Exchanged> {
        Box::pin(self.ask_exchange(own))
    }

    fn leave<'a>(&'a self, name: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(self.ask_leave(name))
    }

    fn lease<'a>(
        &'a self,
        holder: &'a str,
        requests: &'a [Request],
    ) -> StoreFuture<'a, Vec<Leased>> {
        Box::pin(self.ask_lease(holder, requests))
    }

    fn bind<'a>(
        &'a self,
        node: &'a str,
        requests: &'a [BindRequest],
    ) -> StoreFuture<'a, Vec<BindResult>> {
        Box::pin(self.ask_bind(node, requests))
    }

    fn find_bindings<'a>(&'a self, aors: &'a [Box<[u8]>]) -> StoreFuture<'a, Vec<Texts>> {
        Box::pin(self.ask_find(aors))
    }

    fn tell<'a>(&'a self, node: &'a str, texts: &'a [(String, String)]) -> StoreFuture<'a, ()> {
        Box::pin(self.ask_tell(node, texts))
    }

    fn send<'a>(&'a self, text: &'a str) -> StoreFuture<'a, ()> {
        Box::pin(self.ask_send(text))
    }
}

#[cfg(test)]
mod needs_packages {
    use super::*;
    use crate::test_redis::TestRedis;

    fn exchange(redis: &TestRedis, engine: &RedisEngine, after: Option<u64>) -> Exchanged {
        let own = Publication {
            name: "a".to_owned(),
            text: Some("says a".to_owned()),
            ttl_ms: 4_000,
            after,
        };
        redis.wait(engine.exchange(&own)).unwrap()
    }

    #[test]
    fn a_node_is_told_once_what_others_tell_it() {
        let redis = TestRedis::start();
        let engine = RedisEngine::new(&redis.options(), "test").unwrap();
        let text = |name: &str, text: &str| (name.to_owned(), text.to_owned());
        let all = [text("1", "one"), text("2", "two"), text("1", "three")];
        redis.wait(engine.tell("a", &all)).unwrap();
        redis.wait(engine.tell("b", &all)).unwrap();
        // "a" in hexadecimal digits.
        redis.ask(&["hset", "{test}:to:61", "3", "nonsense"]);
        // A process that publishes nothing takes nothing from the one that has its place.
        let retired = Publication {
            name: "a".to_owned(),
            text: None,
            ttl_ms: 4_000,
            after: None,
        };
        assert!(
            redis
                .wait(engine.exchange(&retired))
                .unwrap()
                .notices
                .is_empty()
        );
        let mut first = exchange(&redis, &engine, None);
        first.notices.sort();
        assert_eq!(
            (first.notices, first.removed),
            (vec!["three".to_owned(), "two".to_owned()], 1)
        );
        assert!(exchange(&redis, &engine, None).notices.is_empty());
        assert_ne!(redis.ask(&["pttl", "{test}:to:62"]), "-1");
    }

    fn request(key: &str) -> Request {
        Request {
            key: key.into(),
            used: 1,
            block: 2,
            limit: 8,
            ttl_ms: 8_000,
        }
    }

    #[test]
    fn a_node_reads_what_it_had_before_and_publishes_nothing_when_it_is_retired() {
        let redis = TestRedis::start();
        let engine = RedisEngine::new(&redis.options(), "test").unwrap();
        let first = exchange(&redis, &engine, None);
        assert_eq!(
            (first.before, &*first.nodes),
            (None, &["says a".to_owned()][..])
        );
        let second = exchange(&redis, &engine, None);
        assert_eq!(second.before.as_deref(), Some("says a"));
        assert_eq!(first.identity, second.identity);
        redis.wait(engine.leave("a")).unwrap();
        redis.wait(engine.send("order")).unwrap();
        let retired = Publication {
            name: "a".to_owned(),
            text: None,
            ttl_ms: 4_000,
            after: Some(0),
        };
        let exchanged = redis.wait(engine.exchange(&retired)).unwrap();
        assert_eq!((exchanged.nodes.len(), exchanged.sequence), (0, 1));
        assert_eq!(exchanged.messages, ["order"]);
        assert_eq!(redis.ask(&["hlen", "{test}:nodes"]), "0");
    }

    #[test]
    fn entries_that_no_node_has_written_stop_nothing_and_go() {
        let redis = TestRedis::start();
        let engine = RedisEngine::new(&redis.options(), "test").unwrap();
        let before = exchange(&redis, &engine, None);
        redis.wait(engine.send("order 1")).unwrap();
        let endless = "9".repeat(400);
        let soon = || {
            let seconds = redis.ask(&["eval", "return redis.call('TIME')[1]", "0"]);
            seconds.parse::<u64>().unwrap() * 1_000 + 30_000
        };
        let ends = soon();
        for (name, entry) in [
            ("endless", format!("{endless} x")),
            ("late", "99999999999999 x".to_owned()),
            ("long", format!("{ends} {}", "x".repeat(16_385))),
            ("none", "nonsense".to_owned()),
        ] {
            redis.ask(&["hset", "{test}:nodes", name, &entry]);
            redis.ask(&["zadd", "{test}:messages", "1", &entry]);
        }
        // No UTF-8.
        let script = "for _, key in ipairs({'nodes', 'messages'}) do local entry = ARGV[1] .. ' \\255\\254' \
             if key == 'nodes' then redis.call('HSET', '{test}:nodes', 'bytes', entry) \
             else redis.call('ZADD', '{test}:messages', 1, entry) end end";
        redis.ask(&["eval", script, "0", &ends.to_string()]);
        redis.ask(&["hset", "{test}:state", "identity", &"i".repeat(65)]);
        let exchanged = exchange(&redis, &engine, Some(0));
        assert_eq!((exchanged.nodes.len(), exchanged.messages.len()), (2, 2));
        assert!(exchanged.messages.contains(&"order 1".to_owned()));
        assert_ne!(exchanged.identity, before.identity);
        assert_eq!(exchanged.removed, 8);
        assert_eq!(redis.ask(&["hlen", "{test}:nodes"]), "2");
        assert_eq!(redis.ask(&["zcard", "{test}:messages"]), "2");
        redis.ask(&["hset", "{test}:state", "sequence", "many"]);
        assert_eq!(exchange(&redis, &engine, Some(1)).sequence, 0);
        redis.ask(&["hset", "{test}:state", "sequence", &endless]);
        redis.wait(engine.send("order 2")).unwrap();
        assert_eq!(exchange(&redis, &engine, Some(0)).sequence, 1);
        let script = "for i = 1, 2000 do redis.call('HSET', '{test}:nodes', 'n' .. i, ARGV[1] .. ' x') \
             redis.call('ZADD', '{test}:messages', i, ARGV[1] .. ' ' .. i) end";
        redis.ask(&["eval", script, "0", &ends.to_string()]);
        let exchanged = exchange(&redis, &engine, Some(0));
        assert_eq!(exchanged.nodes.len(), 1_000);
        assert!(exchanged.messages.len() <= 1_000);
        let left = redis.ask(&["hlen", "{test}:nodes"]);
        assert!(["1000", "1001"].contains(&&*left), "{left}");
        assert_eq!(redis.ask(&["hexists", "{test}:nodes", "a"]), "1");
    }

    #[test]
    fn the_permissions_of_the_page_are_enough() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cluster.md");
        let page = std::fs::read_to_string(page).unwrap();
        let line = page.lines().find(|line| line.starts_with("ACL SETUSER"));
        let words: Vec<_> = line.unwrap().split(' ').collect();
        let redis = TestRedis::start();
        assert_eq!(redis.ask(&words), "OK");
        let mut options = redis.options();
        options.url += "?user=hairpin&pass=PASSWORD";
        let engine = RedisEngine::new(&options, "hairpin").unwrap();
        redis.ask(&["zadd", "{hairpin}:messages", "1", "nonsense"]);
        redis.ask(&["hset", "{hairpin}:nodes", "b", "nonsense"]);
        redis.ask(&["hset", "{hairpin}:state", "sequence", "many"]);
        redis.wait(engine.send("order")).unwrap();
        assert_eq!(exchange(&redis, &engine, Some(0)).removed, 2);
        let mut released = request("key");
        let leased = redis.wait(engine.lease("a", std::slice::from_ref(&released)));
        assert_eq!(leased.unwrap().remove(0).unwrap(), 3);
        (released.used, released.block) = (0, 0);
        let leased = redis.wait(engine.lease("a", &[released]));
        assert_eq!(leased.unwrap().remove(0).unwrap(), 0);
        redis.wait(engine.leave("a")).unwrap();
    }

    #[test]
    fn a_key_that_cannot_be_leased_fails_alone() {
        let redis = TestRedis::start();
        let engine = RedisEngine::new(&redis.options(), "test").unwrap();
        redis.ask(&["set", "test:lease:bad", "x"]);
        redis.ask(&[
            "hset",
            "test:lease:odd",
            "b",
            &format!("5:{}", "9".repeat(400)),
        ]);
        redis.ask(&["hset", "test:lease:odd", "c", "no lease"]);
        let all = [request("good"), request("bad"), request("odd")];
        let leased = redis.wait(engine.lease("a", &all)).unwrap();
        let granted: Vec<_> = leased.iter().map(|leased| leased.as_ref().ok()).collect();
        assert_eq!(granted, [Some(&3), None, Some(&3)]);
        assert!(redis.wait(engine.servers.has_map()));
        let leased = redis.wait(engine.lease("a", &all[1..2])).unwrap();
        assert!(leased[0].is_err());
        assert!(
            !redis.wait(engine.servers.has_map()),
            "it may be another server now"
        );
        assert_eq!(redis.ask(&["hlen", "test:lease:odd"]), "1");
    }
}
