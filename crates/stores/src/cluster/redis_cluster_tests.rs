//! The engine on several real servers.

use super::bindings::Change;
use super::engine::{BindEntry, BindRequest, Engine, Exchanged, Leased, Publication};
use super::leases::Request;
use super::redis::RedisEngine;
use crate::error::StoreError;
use crate::kinds::Options;
use crate::test_engines::{Engines, ask, wait_until};

struct World {
    engines: Engines,
    engine: RedisEngine,
    runtime: tokio::runtime::Runtime,
}

impl World {
    fn new(engines: Engines) -> World {
        let options = Options {
            url: engines.url(),
            ..Options::default()
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        World {
            engine: RedisEngine::new(&options, "test").expect("the URL is good"),
            engines,
            runtime: runtime.expect("a runtime"),
        }
    }

    fn exchange(&self) -> Result<Exchanged, StoreError> {
        let own = Publication {
            name: "a".to_owned(),
            text: Some("says a".to_owned()),
            ttl_ms: 4_000,
            after: Some(0),
        };
        self.runtime.block_on(self.engine.exchange(&own))
    }

    fn lease(&self, keys: &[String]) -> Result<Vec<Leased>, StoreError> {
        let request = |key: &String| Request {
            key: key.as_str().into(),
            used: 1,
            block: 2,
            limit: 8,
            ttl_ms: 60_000,
        };
        let requests: Vec<Request> = keys.iter().map(request).collect();
        self.runtime.block_on(self.engine.lease("a", &requests))
    }

    fn keys_at(&self, server: usize) -> usize {
        let port = self.engines.servers[server].port;
        ask(port, &["dbsize"]).parse().expect("a number")
    }

    fn send(&self, text: &str) -> Result<(), StoreError> {
        self.runtime.block_on(self.engine.send(text))
    }
}

fn users() -> Vec<String> {
    (0..60)
        .map(|number| format!("u:example.org\n{number}"))
        .collect()
}

/// The master of this key is killed, and comes back with nothing.
#[test]
fn each_call_goes_to_its_master_and_one_that_is_away_stops_no_others() {
    let mut world = World::new(Engines::cluster(0));
    world.send("order").expect("it is kept");
    let before = world.exchange().expect("it responds");
    assert_eq!(before.messages, ["order"]);
    let all = users();
    let leased = world.lease(&all).expect("it responds");
    assert_eq!(leased.len(), all.len());
    for (key, leased) in all.iter().zip(leased) {
        assert_eq!(leased.expect(key), 3);
    }
    for server in 0..3 {
        assert!(world.keys_at(server) > 0, "server {server} has no key");
    }
    let shared = world.engines.master_of("{test}:nodes");
    let other = (shared + 1) % 3;
    world.engines.servers[other].kill();
    let leased = world.lease(&all).expect("two masters respond");
    let is_away = |leased: &Leased| matches!(leased, Err(StoreError::Connect(_)));
    let away = leased.iter().filter(|leased| is_away(leased)).count();
    let good = leased.iter().filter(|leased| leased.is_ok()).count();
    assert_eq!(away + good, all.len());
    assert!(away > 0 && good > 0, "{away} {good}");
    assert_eq!(
        world.exchange().expect("its master is there").identity,
        before.identity
    );
    world.engines.servers[other].restart();
    wait_until("the loss is noticed", || {
        world
            .exchange()
            .is_ok_and(|now| now.identity != before.identity)
    });
    wait_until("all are leased again", || {
        let leased = world.lease(&all);
        leased.is_ok_and(|leased| leased.iter().all(Result::is_ok))
    });
    let now = world.exchange().expect("it responds");
    assert_eq!(
        world.exchange().expect("it responds").identity,
        now.identity,
        "once"
    );
    for server in 0..3 {
        world.engines.servers[server].kill();
    }
    wait_until("nothing responds", || {
        world.lease(&all).is_err() && world.exchange().is_err()
    });
}

#[test]
fn keys_that_move_to_another_master_are_found_there() {
    let world = World::new(Engines::cluster(0));
    let ports: Vec<u16> = world
        .engines
        .servers
        .iter()
        .map(|server| server.port)
        .collect();
    let key = "test:lease:u:example.org\n1";
    let from = world.engines.master_of(key);
    let to = (from + 1) % 3;
    let slot = ask(ports[from], &["cluster", "keyslot", key]);
    let id = |server: usize| ask(ports[server], &["cluster", "myid"]);
    let (id_from, id_to) = (id(from), id(to));
    assert!(world.exchange().is_ok(), "it knows where all slots are");
    let set = |server: usize, words: &[&str]| {
        let words = [&["cluster", "setslot", &slot], words].concat();
        assert_eq!(ask(ports[server], &words), "OK");
    };
    // The key is not there yet, so the old master answers ASK.
    set(to, &["importing", &id_from]);
    set(from, &["migrating", &id_to]);
    assert!(ask(ports[from], &["hgetall", key]).contains("ASK "));
    let keys = vec!["u:example.org\n1".to_owned(), "u:example.org\n2".to_owned()];
    let granted = || -> Vec<u32> {
        let leased = world.lease(&keys).expect("it responds");
        leased
            .into_iter()
            .map(|one| one.expect("it is leased"))
            .collect()
    };
    assert_eq!(granted(), [3, 3]);
    // MOVED, and then the new map.
    for server in [to, from, 3 - from - to] {
        set(server, &["node", &id_to]);
    }
    assert!(ask(ports[from], &["hgetall", key]).contains("MOVED "));
    assert_eq!(granted(), [3, 3]);
    assert!(ask(ports[to], &["hget", key, "a"]).starts_with("3:"));
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(granted(), [3, 3]);
    let errors = ask(ports[from], &["info", "errorstats"]);
    let count = |name: &str| {
        let line = errors
            .lines()
            .find(|line| line.starts_with(&format!("errorstat_{name}:")));
        let count = line.and_then(|line| line.trim().rsplit('=').next());
        count.map_or(0, |count| count.parse::<u32>().expect("a number"))
    };
    // One of each is that of redis-cli.
    assert_eq!((count("ASK"), count("MOVED")), (2, 2));
}

#[test]
fn registrations_of_all_masters_are_found() {
    let world = World::new(Engines::cluster(0));
    let aors: Vec<Box<[u8]>> = (0..30)
        .map(|number| format!("user{number}@example.com").into_bytes().into())
        .collect();
    let request = |aor: &[u8]| BindRequest {
        aor: aor.into(),
        age_ms: 0,
        entries: vec![BindEntry {
            field: "1".to_owned(),
            call: "c".to_owned(),
            cseq: 1,
            age_ms: 0,
            ttl_ms: 60_000,
            text: format!("of {}", String::from_utf8_lossy(aor)),
        }],
        taken_unix_ms: 0,
        bindings: Vec::new(),
        change: Change::default(),
    };
    let requests: Vec<BindRequest> = aors.iter().map(|aor| request(aor)).collect();
    let bound = world.runtime.block_on(world.engine.bind("a", &requests));
    let bound = bound.expect("it responds");
    assert!(
        bound
            .into_iter()
            .all(|bound| bound.is_ok_and(|written| written.older == 0))
    );
    let found = world.runtime.block_on(world.engine.find_bindings(&aors));
    for (aor, texts) in aors.iter().zip(found.expect("it responds")) {
        let text = format!("of {}", String::from_utf8_lossy(aor));
        assert_eq!(texts.expect("it is read"), [text]);
    }
    assert!((0..3).all(|server| world.keys_at(server) > 0));
}

#[test]
fn the_sentinels_name_another_master_when_one_dies() {
    let mut world = World::new(Engines::sentinel());
    world.send("order 1").expect("it is kept");
    let before = world.exchange().expect("it responds");
    let replica = world.engines.servers[1].port;
    wait_until("the replica has it", || {
        ask(replica, &["exists", "{test}:messages"]) == "1"
    });
    world.engines.servers[0].kill();
    assert!(world.exchange().is_err());
    wait_until("the new master responds", || world.exchange().is_ok());
    let after = world.exchange().expect("it responds");
    assert_eq!(after.identity, before.identity, "the replica has the data");
    world.send("order 2").expect("it is kept");
    let messages = world.exchange().expect("it responds").messages;
    assert_eq!(messages, ["order 1", "order 2"]);
    assert!(ask(replica, &["role"]).starts_with("master"));
}
