//! Stores that a reload adds, removes and changes.

use std::net::TcpListener;
use std::path::Path;

use crate::common::controlled::{Controlled, eventually};
use crate::common::nodes::Redis;
use crate::common::service::{NEVER, PASSWORD as HERO, REALM, Service};
use crate::common::turn::{Client, PASSWORD, USER};
use crate::common::{fails, run, stderr, stdout};

/// A server whose stores change.
struct Server {
    process: Controlled,
    base: String,
}

/// A store with this URL, and with other keys.
fn store(url: &str, more: &str) -> String {
    format!("[[auth.stores]]\nurl = \"{url}\"\n{more}")
}

impl Server {
    fn start(folder: tempfile::TempDir, state_dir: &str, stores: &str) -> Self {
        let socket = Controlled::socket_in(folder.path());
        let base = format!(
            "[server]\nworkers = 1\ncontrol_socket = {socket:?}\nstate_dir = {state_dir:?}\n[listen]\nudp = [\"127.0.0.1:0\"]\n\
             [relay]\naddresses = [\"127.0.0.1\"]\n[peers]\nallow_local = true\n[offload]\nmode = \"off\"\n[admin]\nlisten = \"127.0.0.1:0\"\n\
             [auth]\nrealm = \"{REALM}\"\n"
        );
        let process = Controlled::start(folder, &format!("{base}{stores}"));
        Self { process, base }
    }

    /// The output of a reload with other stores.
    fn reload(&self, stores: &str) -> std::process::Output {
        let config = self.process.folder.path().join("hairpin.toml");
        std::fs::write(config, format!("{}{stores}", self.base)).unwrap();
        self.process.run(&["reload"])
    }

    fn reloads(&self, stores: &str) {
        let output = self.reload(stores);
        assert!(output.status.success(), "{}", stderr(&output));
        assert!(!stderr(&output).contains("restart"), "{}", stderr(&output));
    }

    /// A client of this user, with an allocation if the server knows the user.
    fn allocate(&self, user: &str, password: &str) -> Option<Client> {
        let server = self.process.first.address();
        let mut client = Client::of(server, [127, 0, 0, 1].into(), user, password);
        client.try_allocate().then_some(client)
    }

    fn knows(&self, user: &str, password: &str) -> bool {
        self.allocate(user, password).is_some()
    }

    fn metric(&self, name: &str, labels: &str) -> Option<f64> {
        self.process.first.metric(name, labels)
    }
}

/// A user in a store that the program can write. Returns its password.
fn add(url: &str, user: &str) -> String {
    let output = run(&["user", "add", user, "--realm", REALM, "--store", url]);
    assert!(output.status.success(), "{}", stderr(&output));
    stdout(&output).trim().to_owned()
}

fn sqlite(folder: &Path, name: &str) -> String {
    format!("sqlite:{}", folder.join(name).display())
}

#[test]
fn a_reload_replaces_a_file_of_sqlite_and_ends_no_allocation() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (sqlite(folder.path(), "one"), sqlite(folder.path(), "two"));
    let (ann, bob) = (add(&one, "ann"), add(&two, "bob"));
    let server = Server::start(folder, "off", &store(&one, ""));
    let mut of_ann = server.allocate("ann", &ann).unwrap();
    assert!(!server.knows("bob", &bob));
    assert_eq!(server.metric("hairpin_store_cached_users", ""), Some(1.0));

    server.reloads(&store(&two, ""));
    assert_eq!(of_ann.refresh(600).code, 0, "the allocation is untouched");
    assert!(
        !server.knows("ann", &ann),
        "the cache of the old store is used"
    );
    let mut of_bob = server.allocate("bob", &bob).unwrap();
    assert_eq!(server.metric("hairpin_store_cached_users", ""), Some(1.0));

    // Both. What the second one has in its cache stays there, although its place is another one.
    let queries = server.metric("hairpin_store_queries_total", "store=\"1\"");
    server.reloads(&(store(&one, "") + &store(&two, "")));
    assert!(server.knows("ann", &ann) && server.knows("bob", &bob));
    let second = "store=\"2\"";
    assert_eq!(
        server.metric("hairpin_store_cached_users", second),
        Some(1.0)
    );
    assert!(server.metric("hairpin_store_queries_total", second) >= queries);

    // Other settings of a store: it begins with an empty cache.
    server.reloads(&store(&two, "ttl = \"5s\"\ncache = 10\n"));
    assert_eq!(server.metric("hairpin_store_cached_users", ""), Some(0.0));
    assert!(server.knows("bob", &bob) && !server.knows("ann", &ann));
    assert_eq!(of_bob.refresh(600).code, 0);
    assert_eq!(of_ann.refresh(600).code, 0);
    assert!(
        server
            .process
            .first
            .get("/readyz")
            .starts_with("HTTP/1.1 200")
    );
}

#[test]
fn a_reload_with_a_store_that_cannot_be_opened_is_refused_and_the_old_ones_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let one = sqlite(folder.path(), "one");
    let ann = add(&one, "ann");
    let kept = store(&one, "ttl = \"1h\"\n");
    let server = Server::start(folder, "off", &kept);
    let mut of_ann = server.allocate("ann", &ann).unwrap();
    let queries = server.metric("hairpin_store_queries_total", "");
    let unused = TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let silent = Service::start();
    silent.set(NEVER);
    for (url, reason) in [
        ("sqlite:/nonexistent/users", "store 2 (sqlite): "),
        ("file:/nonexistent/users", "store 2 (file): "),
        (
            &*format!("http://{unused}/"),
            "store 2 (http): the store cannot be reached: ",
        ),
        (
            &*format!("http://{}/", silent.address),
            "store 2 (http): no response within ",
        ),
        (&*format!("redis://{unused}/"), "store 2 (redis): "),
        (
            &*format!("postgres://u@{unused}/turn"),
            "store 2 (postgres): ",
        ),
        (&*format!("mysql://u@{unused}/turn"), "store 2 (mysql): "),
    ] {
        let output = server.reload(&(kept.clone() + &store(url, "")));
        fails(&output, 1, "reload refused, the old configuration stays: ");
        fails(&output, 1, reason);
        assert!(server.knows("ann", &ann), "after {url}");
    }
    let twice = server.reload(&(kept.clone() + &kept));
    fails(&twice, 1, "the same store is listed twice");
    assert_eq!(of_ann.refresh(600).code, 0);
    assert_eq!(
        server.metric("hairpin_config_last_reload_successful", ""),
        Some(0.0)
    );
    // No store was opened again: the user is still in its cache.
    assert_eq!(server.metric("hairpin_store_queries_total", ""), queries);
    server.reloads(&kept);
    assert!(server.knows("ann", &ann));
}

#[test]
fn a_service_and_a_redis_come_and_go() {
    let service = Service::start();
    let redis = Redis::start();
    let url = format!("redis://127.0.0.1:{}/1", redis.port);
    let ann = add(&url, "ann");
    let (http, redis) = (
        store(&format!("http://{}/", service.address), ""),
        store(&url, ""),
    );
    let server = Server::start(tempfile::tempdir().unwrap(), "off", &http);
    assert!(server.knows("gorst", HERO) && !server.knows("ann", &ann));
    server.reloads(&(redis.clone() + &http));
    assert!(server.knows("gorst", HERO) && server.knows("ann", &ann));
    server.reloads(&redis);
    assert!(!server.knows("gorst", HERO) && server.knows("ann", &ann));
    // The connection to a store that was removed ends.
    let asked = service.requests();
    server.reloads("users = [{ name = \"ann\", password = \"a password of this test\" }]\n");
    assert!(server.knows(USER, PASSWORD) && !server.knows("ann", &ann));
    assert!(server.metric("hairpin_store_up", "").is_none());
    assert_eq!(service.requests(), asked);
}

#[test]
fn without_stores_the_one_of_the_state_directory_is_used_and_closed_again() {
    let folder = tempfile::tempdir().unwrap();
    let one = sqlite(folder.path(), "one");
    let state = folder.path().join("state");
    let ann = add(&one, "ann");
    let server = Server::start(folder, &state.display().to_string(), &store(&one, ""));
    assert!(server.knows("ann", &ann));
    server.reloads("");
    assert!(!server.knows("ann", &ann));
    let default = sqlite(&state, "hairpin.db");
    let bob = add(&default, "bob");
    eventually("the default store is used", || server.knows("bob", &bob));
    server.reloads(&store(&one, ""));
    assert!(server.knows("ann", &ann) && !server.knows("bob", &bob));
    let files = format!("/proc/{}/fd", server.process.first.id());
    eventually("the file of the removed store is closed", || {
        let open = std::fs::read_dir(&files).unwrap();
        let mut open = open.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok());
        !open.any(|path| path.ends_with("hairpin.db"))
    });
}

#[test]
fn tables_of_stores_are_applied_again_only_if_they_have_changed() {
    let folder = tempfile::tempdir().unwrap();
    let (one, two) = (sqlite(folder.path(), "one"), sqlite(folder.path(), "two"));
    let (ann, bob) = (add(&one, "ann"), add(&two, "bob"));
    let mut server = Server::start(folder, "off", &store(&one, ""));
    assert!(server.knows("ann", &ann));
    server.reloads(&(store(&one, "") + &store(&two, "")));
    assert!(server.knows("bob", &bob));
    // The start and the reload have read the tables. A secret is a change of them.
    let added = run(&["secret", "add", "--realm", REALM, "--store", &two]);
    assert!(added.status.success(), "{}", stderr(&added));
    let (secret, target) = (stdout(&added), server.process.first.address().to_string());
    eventually("the secret is used", || {
        let probe = run(&["probe", "turn", &target, "--secret", secret.trim()]);
        probe.status.success()
    });
    server.process.first.signal("TERM");
    let (_, log) = server.process.first.ended();
    let applied = log.matches("store tables applied").count();
    assert_eq!(applied, 1, "{log}");
}
