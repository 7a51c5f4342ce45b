//! Registrations in Redis and Valkey. Each address of record is a hash, and each of its bindings an entry:
//!
//! ```text
//! END TIME CSEQ CALL NODE TEXT
//! ```
//!
//! END: when the binding ends. TIME: when the REGISTER came. Both are in milliseconds by the clock of Redis. CALL is a
//! hash of the Call-ID, and NODE is the name of the node, in hexadecimal digits. A removed binding stays for a minute
//! without a text, and with `-` before NODE. So an earlier REGISTER that another node writes late does not restore it.

use super::engine::{BindOutcome, BindRequest, BindResult, Conflict, Texts};
use super::redis::{Bytes, RedisEngine, Script, text};
use super::redis_call::Call;
use crate::error::StoreError;

/// What both scripts begin with.
macro_rules! script {
    ($rest:literal) => {
        concat!(
            r"
-- GONE: milliseconds for which a removed binding stays.
local FIELDS, FARTHEST, GONE, CLOCKS = 100, now + 31 * 86400000, 60000, 2000
-- The longest entry of a node has half as many bytes: 254 of the address and 64 of the name, in hexadecimal digits.
local ENTRY, RETURNED = 2048, 131072
local returned = 0
-- Whether there is room for a text in what is returned of an address.
local function fits(text)
  if returned + #text > RETURNED then return false end
  returned = returned + #text
  return true
end
local function read(entry)
  if #entry > ENTRY then return nil end
  local ends, at, cseq, call, node, text = string.match(entry, '^(%d+) (%d+) (%d+) (%x+) (%S+) (.*)$')
  ends, at, cseq = tonumber(ends), tonumber(at), tonumber(cseq)
  if not ends or ends <= now or ends > FARTHEST or at > LATEST or cseq > 4294967295 then return nil end
  local of = string.match(node, '^%-(.+)$')
  return { ends = ends, at = at, cseq = cseq, call = call, node = of or node, is_gone = of ~= nil, text = text }
end
",
            $rest
        )
    };
}

/// KEYS: the address. ARGV: node, age of the state, then for each binding: field, call, CSeq, age, time to live, text.
/// Returns how many bindings are older than those of other nodes, or too many. Then come the bindings that another node
/// had, too: 1 if this node has the later REGISTER or 0 if the other one has it, and the text of the other node. A node
/// knows the order of its own REGISTERs. So its new binding replaces its earlier one, whatever the CSeq: a phone that
/// has restarted may begin with a lower one. A request with a binding that is too long changes nothing.
pub(super) const BIND: &str = script!(
    r"
local node, stored, kept, count, older, last, conflicts = ARGV[1], {}, {}, 0, 0, now, {}
for i = 3, #ARGV, 6 do
  -- Behind them come three numbers.
  if #node + #ARGV[i] + #ARGV[i + 1] + #ARGV[i + 5] > ENTRY - 64 then
    return redis.error_reply('ERR a binding is too long')
  end
end
local function report(is_accepted, text)
  if fits(text) then conflicts[#conflicts + 1] = { is_accepted, text } end
end
local function write(field, ends, at, cseq, call, of, text)
  redis.call('HSET', KEYS[1], field, string.format('%.0f %.0f %.0f %s %s %s', ends, at, cseq, call, of, text))
  last = math.max(last, ends)
end
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  local old = read(all[i + 1])
  if old then
    stored[all[i]] = old
    count = count + 1
    last = math.max(last, old.ends)
  else redis.call('HDEL', KEYS[1], all[i]) end
end
-- Bindings that were removed make room for others.
local function has_room()
  if count < FIELDS then return true end
  for field, old in pairs(stored) do
    if old.is_gone then
      redis.call('HDEL', KEYS[1], field)
      stored[field] = nil
      count = count - 1
      return true
    end
  end
  return false
end
for i = 3, #ARGV, 6 do
  local field, call, cseq, at = ARGV[i], ARGV[i + 1], tonumber(ARGV[i + 2]), now - ARGV[i + 3]
  local old, is_older = stored[field], false
  kept[field] = true
  if old and old.node ~= node then
    if old.call == call then is_older = cseq <= old.cseq else is_older = at < old.at end
  end
  if is_older or not (old or has_room()) then
    older = older + 1
    -- With the same Call-ID and CSeq, both nodes have the same REGISTER.
    local is_other = is_older and not old.is_gone and (old.call ~= call or old.cseq ~= cseq)
    if is_other and at + CLOCKS < old.at then report(0, old.text) end
  else
    if old and old.node ~= node and not old.is_gone then report(1, old.text) end
    if not old then
      count = count + 1
      stored[field] = { node = node }
    end
    write(field, now + ARGV[i + 4], at, cseq, call, node, ARGV[i + 5])
  end
end
for field, old in pairs(stored) do
  if old.node == node and not (old.is_gone or kept[field]) then
    write(field, now + GONE, now - ARGV[2], old.cseq, old.call, '-' .. node, '')
  end
end
if last > now then redis.call('PEXPIRE', KEYS[1], string.format('%.0f', last - now)) end
return { older, conflicts }
"
);

/// KEYS: the address. Returns the texts of its bindings.
pub(super) const FIND: &str = script!(
    r"
local texts = {}
local all = redis.call('HGETALL', KEYS[1])
for i = 2, #all, 2 do
  local entry = read(all[i])
  if entry and entry.text ~= '' and #texts < FIELDS and fits(entry.text) then texts[#texts + 1] = entry.text end
end
return texts
"
);

/// What [`BIND`] returns.
type BindReply = (u64, Vec<ConflictReply>);
/// 1 if the binding was accepted, and the text of the other node.
type ConflictReply = (u8, Bytes);

impl RedisEngine {
    fn address(&self, aor: &[u8]) -> Vec<u8> {
        [self.prefix.as_bytes(), b":sip:", aor].concat()
    }

    pub(super) async fn ask_bind(
        &self,
        node: &str,
        requests: &[BindRequest],
    ) -> Result<Vec<BindResult>, StoreError> {
        let node = crate::keys::hex(node.as_bytes());
        let call = |request: &BindRequest| {
            let call = Call::new(Script::Bind)
                .key(self.address(&request.aor))
                .arg(&node)
                .arg(request.age_ms);
            request.entries.iter().fold(call, |call, entry| {
                call.arg(&entry.field)
                    .arg(&entry.call)
                    .arg(entry.cseq)
                    .arg(entry.age_ms)
                    .arg(entry.ttl_ms)
                    .arg(&entry.text)
            })
        };
        let calls: Vec<Call> = requests.iter().map(call).collect();
        let all: Vec<Result<BindReply, StoreError>> = self.servers.run(&calls).await?;
        let conflict = |(accepted, of_other): ConflictReply| Conflict {
            is_accepted: accepted == 1,
            text: text(of_other),
        };
        let written = |(older, conflicts): BindReply| BindOutcome {
            older,
            conflicts: conflicts.into_iter().map(conflict).collect(),
        };
        Ok(all.into_iter().map(|one| one.map(written)).collect())
    }

    pub(super) async fn ask_find(&self, aors: &[Box<[u8]>]) -> Result<Vec<Texts>, StoreError> {
        let call = |aor: &[u8]| Call::new(Script::Find).key(self.address(aor));
        let calls: Vec<Call> = aors.iter().map(|aor| call(aor)).collect();
        let all: Vec<Result<Vec<Bytes>, StoreError>> = self.servers.run(&calls).await?;
        let texts = |all: Vec<Bytes>| all.into_iter().map(text).collect();
        Ok(all.into_iter().map(|one| one.map(texts)).collect())
    }
}

#[cfg(test)]
mod needs_packages {
    use super::*;
    use crate::cluster::bindings::Change;
    use crate::cluster::engine::BindEntry;
    use crate::test_redis::TestRedis;

    const AOR: &[u8] = b"alice@example.com";

    /// One binding: field, call, CSeq, age, text.
    type GivenBinding<'g> = (&'g str, &'g str, u32, u64, &'g str);

    fn bind(
        redis: &TestRedis,
        engine: &RedisEngine,
        node: &str,
        given: &[GivenBinding<'_>],
    ) -> u64 {
        written(redis, engine, node, given).older
    }

    fn written(
        redis: &TestRedis,
        engine: &RedisEngine,
        node: &str,
        given: &[GivenBinding<'_>],
    ) -> BindOutcome {
        let entry = |(field, call, cseq, age_ms, text): &GivenBinding<'_>| BindEntry {
            field: (*field).to_owned(),
            call: (*call).to_owned(),
            cseq: *cseq,
            age_ms: *age_ms,
            ttl_ms: 60_000,
            text: (*text).to_owned(),
        };
        let request = BindRequest {
            aor: AOR.into(),
            age_ms: 0,
            entries: given.iter().map(entry).collect(),
            taken_unix_ms: 0,
            bindings: Vec::new(),
            change: Change::default(),
        };
        let bound = redis.wait(engine.ask_bind(node, &[request])).unwrap();
        bound.into_iter().next().unwrap().unwrap()
    }

    fn found(redis: &TestRedis, engine: &RedisEngine) -> Vec<String> {
        let found = redis.wait(engine.ask_find(&[AOR.into()])).unwrap();
        let mut texts = found.into_iter().next().unwrap().unwrap();
        texts.sort();
        texts
    }

    #[test]
    fn an_older_register_does_not_replace_a_newer_one_rfc3261_10_3() {
        let redis = TestRedis::start();
        let engine = RedisEngine::new(&redis.options(), "test").unwrap();
        let bind = |node, given: &[GivenBinding<'_>]| bind(&redis, &engine, node, given);
        assert_eq!(bind("a", &[("1", "c", 5, 0, "a 5")]), 0);
        // The same Call-ID: CSeq decides, whenever the REGISTER came.
        assert_eq!(bind("b", &[("1", "c", 4, 0, "b 4")]), 1);
        assert_eq!(bind("b", &[("1", "c", 5, 0, "b 5")]), 1);
        assert_eq!(found(&redis, &engine), ["a 5"]);
        assert_eq!(bind("b", &[("1", "c", 6, 9_000, "b 6")]), 0);
        assert_eq!(bind("a", &[("1", "c", 5, 0, "a 5")]), 1);
        assert_eq!(found(&redis, &engine), ["b 6"]);
        // Another Call-ID: the time decides.
        assert_eq!(bind("a", &[("1", "d", 1, 30_000, "a 1")]), 1);
        assert_eq!(bind("a", &[("1", "d", 2, 0, "a 2")]), 0);
        assert_eq!(found(&redis, &engine), ["a 2"]);
        // One node may write its own again.
        assert_eq!(bind("a", &[("1", "d", 2, 0, "a 2 again")]), 0);
        assert_eq!(found(&redis, &engine), ["a 2 again"]);
        assert_ne!(redis.ask(&["pttl", "test:sip:alice@example.com"]), "-1");
    }

    #[test]
    fn a_binding_of_two_nodes_is_named_with_the_text_of_the_other_node() {
        let redis = TestRedis::start();
        let engine = RedisEngine::new(&redis.options(), "test").unwrap();
        let bind = |node, given: &[GivenBinding<'_>]| {
            let all = written(&redis, &engine, node, given).conflicts;
            let all = all.into_iter();
            all.map(|it| (it.is_accepted, it.text)).collect::<Vec<_>>()
        };
        assert!(bind("a", &[("1", "c", 5, 0, "a"), ("2", "c", 5, 0, "a")]).is_empty());
        assert!(bind("a", &[("1", "c", 6, 0, "a 6"), ("2", "c", 6, 0, "a")]).is_empty());
        assert!(bind("b", &[("3", "e", 1, 0, "b")]).is_empty());
        // It moves from A to B; then A writes an earlier REGISTER late.
        let conflicts = bind("b", &[("1", "d", 1, 0, "b 1"), ("3", "e", 1, 0, "b")]);
        assert_eq!(conflicts, [(true, "a 6".to_owned())]);
        let conflicts = bind("a", &[("1", "c", 7, 9_000, "a"), ("2", "c", 7, 0, "a")]);
        assert_eq!(conflicts, [(false, "b 1".to_owned())]);
        // One that was removed has not moved.
        assert!(bind("b", &[("3", "e", 1, 0, "b")]).is_empty());
        assert!(bind("c", &[("1", "f", 1, 0, "c")]).is_empty());
    }

    #[test]
    fn one_register_at_two_nodes_stays_at_the_first_and_has_not_moved() {
        let redis = TestRedis::start();
        let engine = RedisEngine::new(&redis.options(), "test").unwrap();
        let bind = |node, given: GivenBinding<'_>| written(&redis, &engine, node, &[given]);
        let older = BindOutcome {
            older: 1,
            conflicts: Vec::new(),
        };
        assert_eq!(bind("a", ("1", "c", 5, 0, "a")), BindOutcome::default());
        // Its retransmission has come to another node, before or after.
        assert_eq!(bind("b", ("1", "c", 5, 0, "b")), older);
        assert_eq!(bind("b", ("1", "c", 5, 9_000, "b")), older);
        assert_eq!(found(&redis, &engine), ["a"]);
        // Each node writes it again, for example after the engine was away.
        assert_eq!(
            bind("a", ("1", "c", 5, 0, "a again")),
            BindOutcome::default()
        );
        assert_eq!(found(&redis, &engine), ["a again"]);
    }

    #[test]
    fn a_node_removes_its_own_bindings_and_a_late_register_does_not_bring_them_back() {
        let redis = TestRedis::start();
        let engine = RedisEngine::new(&redis.options(), "test").unwrap();
        let bind = |node, given: &[GivenBinding<'_>]| bind(&redis, &engine, node, given);
        assert_eq!(
            bind("a", &[("1", "c", 7, 0, "a 1"), ("2", "d", 1, 0, "a 2")]),
            0
        );
        assert_eq!(bind("b", &[("3", "e", 1, 0, "b 3")]), 0);
        assert_eq!(found(&redis, &engine), ["a 1", "a 2", "b 3"]);
        assert_eq!(bind("a", &[("2", "d", 1, 0, "a 2")]), 0);
        assert_eq!(found(&redis, &engine), ["a 2", "b 3"]);
        // The phone had registered there before.
        assert_eq!(bind("b", &[("1", "c", 6, 0, "b 1")]), 1);
        assert_eq!(found(&redis, &engine), ["a 2"], "b has none any more");
        assert_eq!(bind("b", &[("1", "f", 1, 20_000, "b 1")]), 1);
        assert_eq!(bind("b", &[("1", "c", 8, 0, "b 1")]), 0);
        assert_eq!(found(&redis, &engine), ["a 2", "b 1"]);
    }

    #[test]
    fn a_phone_that_starts_again_at_its_node_may_begin_with_a_lower_cseq() {
        let redis = TestRedis::start();
        let engine = RedisEngine::new(&redis.options(), "test").unwrap();
        let bind = |node, given: &[GivenBinding<'_>]| bind(&redis, &engine, node, given);
        assert_eq!(bind("a", &[("1", "c", 7, 0, "a 7")]), 0);
        assert_eq!(bind("a", &[]), 0);
        assert!(found(&redis, &engine).is_empty());
        // Another node has it from before.
        assert_eq!(bind("b", &[("1", "c", 1, 0, "b 1")]), 1);
        assert_eq!(bind("a", &[("1", "c", 1, 0, "a 1")]), 0);
        assert_eq!(found(&redis, &engine), ["a 1"]);
    }

    #[test]
    fn what_other_nodes_have_is_not_removed_for_want_of_room() {
        let redis = TestRedis::start();
        let engine = RedisEngine::new(&redis.options(), "test").unwrap();
        let bind = |node, given: &[GivenBinding<'_>]| bind(&redis, &engine, node, given);
        let fields: Vec<String> = (0..100).map(|number| number.to_string()).collect();
        let of = |number: usize| -> GivenBinding<'_> { (&fields[number], "c", 1, 0, "a") };
        let all: Vec<GivenBinding<'_>> = (0..100).map(of).collect();
        let extra = ("x", "d", 1, 0, "b");
        assert_eq!(bind("a", &all), 0);
        assert_eq!(bind("b", &[extra]), 1);
        assert_eq!(found(&redis, &engine), vec!["a"; 100]);
        // One that was removed makes room.
        assert_eq!(bind("a", &all[1..]), 0);
        assert_eq!(bind("b", &[extra]), 0);
        let mut expected = vec!["a"; 99];
        expected.push("b");
        assert_eq!(found(&redis, &engine), expected);
        assert_eq!(redis.ask(&["hlen", "test:sip:alice@example.com"]), "100");
        assert_eq!(bind("a", &all), 1);
        assert_eq!(found(&redis, &engine), expected);
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
        redis.ask(&["hset", "hairpin:sip:alice@example.com", "9", "nonsense"]);
        let bind = |given: &[GivenBinding<'_>]| bind(&redis, &engine, "a", given);
        assert_eq!(bind(&[("1", "c", 1, 0, "a 1"), ("2", "c", 1, 0, "a 2")]), 0);
        assert_eq!(bind(&[("1", "c", 2, 0, "a 1")]), 0);
        assert_eq!(found(&redis, &engine), ["a 1"]);
    }

    /// An entry of the node `b` that lasts for a day.
    fn entry_of(call: &str, text: String) -> String {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        let now_ms = since.unwrap().as_millis();
        format!("{} {now_ms} 1 {call} 62 {text}", now_ms + 86_400_000)
    }

    #[test]
    fn what_is_stored_and_returned_of_an_address_is_bounded() {
        let redis = TestRedis::start();
        let engine = RedisEngine::new(&redis.options(), "test").unwrap();
        let key = "test:sip:alice@example.com";
        let fields: Vec<String> = (0..100).map(|number| format!("{number:02}")).collect();
        let fill = || {
            let entry = entry_of("c", "x".repeat(1_900));
            let pairs = fields.iter().flat_map(|field| [field.as_str(), &entry]);
            let words: Vec<&str> = ["hset", key].into_iter().chain(pairs).collect();
            redis.ask(&words);
        };
        fill();
        let texts = found(&redis, &engine);
        let sum = |all: &[String]| all.iter().map(String::len).sum::<usize>();
        assert_eq!((texts.len(), sum(&texts)), (68, 68 * 1_900));
        // A later REGISTER of each binding, and an earlier one.
        let given = |cseq, age_ms| {
            let all = fields.iter();
            let all = all.map(|field| -> GivenBinding<'_> { (field, "c", cseq, age_ms, "a") });
            all.collect::<Vec<_>>()
        };
        for (cseq, age_ms, is_accepted) in [(2, 0, true), (0, 9_000, false)] {
            fill();
            let conflicts = written(&redis, &engine, "a", &given(cseq, age_ms)).conflicts;
            assert!(conflicts.iter().all(|it| it.is_accepted == is_accepted));
            let texts: Vec<String> = conflicts.into_iter().map(|it| it.text).collect();
            assert_eq!((texts.len(), sum(&texts)), (68, 68 * 1_900));
        }
        // The longest entry of a node is half as long as the limit. A longer one is not stored, nor the rest of its
        // request.
        let most = "x".repeat(1_000);
        let given = [("1", "c", 1, 0, most.as_str())];
        redis.ask(&["del", key]);
        assert_eq!(bind(&redis, &engine, "a", &given), 0);
        assert_eq!(found(&redis, &engine), std::slice::from_ref(&most));
        let long = "x".repeat(2_048);
        let entry = |field: &str, text: &str| BindEntry {
            field: field.to_owned(),
            call: "c".to_owned(),
            cseq: 2,
            age_ms: 0,
            ttl_ms: 60_000,
            text: text.to_owned(),
        };
        let request = BindRequest {
            aor: AOR.into(),
            age_ms: 0,
            entries: vec![entry("1", "short"), entry("2", &long)],
            taken_unix_ms: 0,
            bindings: Vec::new(),
            change: Change::default(),
        };
        let bound = redis.wait(engine.ask_bind("a", &[request])).unwrap();
        assert!(matches!(&bound[0], Err(StoreError::Query(_))), "{bound:?}");
        assert_eq!(found(&redis, &engine), [most]);
    }

    #[test]
    fn entries_that_no_node_has_written_stop_nothing_and_go() {
        let redis = TestRedis::start();
        let engine = RedisEngine::new(&redis.options(), "test").unwrap();
        let key = "test:sip:alice@example.com";
        let endless = "9".repeat(400);
        for (field, entry) in [
            ("1", "nonsense".to_owned()),
            ("2", format!("{endless} 1 1 c 61 x")),
            ("3", "1 1 1 c 61 ended".to_owned()),
            ("4", format!("1 1 1 c 61 {}", "x".repeat(20_000))),
            // It has not ended.
            ("5", entry_of("c", "x".repeat(2_048))),
            ("6", entry_of(&"c".repeat(2_048), "x".to_owned())),
        ] {
            redis.ask(&["hset", key, field, &entry]);
        }
        assert!(found(&redis, &engine).is_empty());
        assert_eq!(bind(&redis, &engine, "a", &[("1", "c", 1, 0, "a 1")]), 0);
        assert_eq!(found(&redis, &engine), ["a 1"]);
        assert_eq!(redis.ask(&["hlen", key]), "1");
        redis.ask(&["del", key]);
        redis.ask(&["set", key, "x"]);
        let request = BindRequest {
            aor: AOR.into(),
            age_ms: 0,
            entries: Vec::new(),
            taken_unix_ms: 0,
            bindings: Vec::new(),
            change: Change::default(),
        };
        let bound = redis.wait(engine.ask_bind("a", &[request])).unwrap();
        assert!(bound[0].is_err());
        let found = redis.wait(engine.ask_find(&[AOR.into()])).unwrap();
        assert!(found[0].is_err());
    }
}
