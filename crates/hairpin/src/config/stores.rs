//! Stores of users and realms, as the user writes them.

use std::path::Path;
use std::time::Duration;

use server::stun::PasswordAlgorithm;
use stores::{Options, StoreError, StoreSettings};

use super::diagnostics::{Diagnostic, Report};
use super::node::Node;
use super::remote::{Destination, Remote, Url};
use super::schema::Settings;
use super::setting::{Bounded, FromText, List, Mistake, Seconds, Setting, one_of};
use super::source::{Located, Location};
use super::table::{self, Table, Writer};

/// The file of the default store, in `server.state_dir`.
const DEFAULT_FILE: &str = "hairpin.db";

/// How long a user stays in the cache: a day without a look at the store is long enough.
type Ttl = Seconds<1, 86_400>;
/// How long an unknown name does: who adds a user tries it within minutes.
type TtlUnknown = Seconds<1, 600>;
/// A request waits for 5 seconds at most.
type Timeout = Seconds<1, 5>;
/// Users in the cache: 150 bytes each.
type Cache = Bounded<1, 10_000_000>;

const DEFAULT_TTL: Duration = Duration::from_secs(60);
const TTL_UNKNOWN: Duration = Duration::from_secs(5);
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(2);
const DEFAULT_CACHE_ENTRIES: usize = 100_000;

/// One store.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawStore {
    remote: Remote<Database>,
    algorithms: Option<List<Algorithm>>,
    ttl: Option<Ttl>,
    ttl_unknown: Option<TtlUnknown>,
    timeout: Option<Timeout>,
    cache: Option<Cache>,
}

const FIELDS: [&str; 8] = [
    "url",
    "password_file",
    "ca",
    "algorithms",
    "ttl",
    "ttl_unknown",
    "timeout",
    "cache",
];

/// What the URL of a store leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Database;

impl Destination for Database {
    const NAME: &'static str = "store";
    const EXAMPLE: &'static str =
        "write it like { url = \"postgres://hairpin@db.example.org/turn\" }";
    const EXPECTED: &'static str = "a URL like \"postgres://hairpin@db.example.org/turn\"";
    const HELP: &'static str = "docs/stores.md has an example for each kind: sqlite:, postgres:, mysql:, redis:, http:, https:, file:";

    fn check(options: &Options) -> Result<(), StoreError> {
        stores::stores::check(options).map(|_| ())
    }
}

impl Table for RawStore {
    const WHAT: &'static str = "a store";
    const FIELDS: &'static [&'static str] = &FIELDS;
    const EXAMPLE: &'static str = Database::EXAMPLE;

    fn set(&mut self, name: &str, value: &Node<'_>, report: &mut Report) -> bool {
        match name {
            "algorithms" => self.algorithms = List::read(value, report),
            "ttl" => self.ttl = Ttl::read(value, report),
            "ttl_unknown" => self.ttl_unknown = TtlUnknown::read(value, report),
            "timeout" => self.timeout = Timeout::read(value, report),
            "cache" => self.cache = Cache::read(value, report),
            other => return self.remote.set(other, value, report),
        }
        true
    }

    fn check(&self, at: &Location, report: &mut Report) {
        self.remote.needs_url(at, report);
    }
}

impl Setting for RawStore {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        table::read(node, report)
    }

    fn write(&self, reveal: bool) -> String {
        let writer = self.remote.write(Writer::new(reveal));
        writer
            .one("algorithms", self.algorithms.as_ref())
            .one("ttl", self.ttl.as_ref())
            .one("ttl_unknown", self.ttl_unknown.as_ref())
            .one("timeout", self.timeout.as_ref())
            .one("cache", self.cache.as_ref())
            .finish()
    }
}

/// How keys are made of passwords.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Algorithm(PasswordAlgorithm);

const ALGORITHMS: [(&str, PasswordAlgorithm); 2] = [
    ("MD5", PasswordAlgorithm::Md5),
    ("SHA-256", PasswordAlgorithm::Sha256),
];

impl FromText for Algorithm {
    const EXPECTED: &'static str = "\"MD5\" or \"SHA-256\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &ALGORITHMS).map(Self)
    }

    fn to_text(&self) -> String {
        let named = ALGORITHMS.iter().find(|(_, of)| *of == self.0);
        named.map_or("", |(name, _)| name).to_owned()
    }
}

/// The plain values.
pub(super) fn resolve(settings: &Settings) -> Option<Vec<StoreSettings>> {
    let stores = super::values(settings.stores.clone()?.value).into_iter();
    stores.map(RawStore::resolve).collect()
}

impl RawStore {
    /// The URL of the store; `None` if the configuration has none.
    pub(super) fn url(&self) -> Option<&str> {
        self.remote.url.as_ref().map(|url| url.value.as_str())
    }

    fn resolve(self) -> Option<StoreSettings> {
        let mut store = of(self.remote.options()?);
        if let Some(algorithms) = self.algorithms.filter(|list| !list.is_empty()) {
            let algorithms = super::values(algorithms).into_iter();
            store.algorithms = algorithms.map(|algorithm| algorithm.0).collect();
        }
        store.ttl = self.ttl.map_or(DEFAULT_TTL, |ttl| ttl.0);
        store.ttl_unknown = self.ttl_unknown.map_or(TTL_UNKNOWN, |ttl| ttl.0);
        store.timeout = self.timeout.map_or(DEFAULT_TIMEOUT, |timeout| timeout.0);
        store.cache = self
            .cache
            .map_or(DEFAULT_CACHE_ENTRIES, |cache| cache.0 as usize);
        Some(store)
    }
}

/// A store of which nothing else is said.
pub(crate) fn of_url(url: &str) -> StoreSettings {
    of(Options {
        url: url.to_owned(),
        ..Options::default()
    })
}

/// Databases of coturn have MD5 keys.
fn of(options: Options) -> StoreSettings {
    StoreSettings {
        options,
        algorithms: vec![PasswordAlgorithm::Md5],
        timeout: DEFAULT_TIMEOUT,
        ttl: DEFAULT_TTL,
        ttl_unknown: TTL_UNKNOWN,
        cache: DEFAULT_CACHE_ENTRIES,
    }
}

/// The store of a server that has a state directory and no other store.
pub(crate) fn default_store(state_dir: &Path) -> StoreSettings {
    of_url(&format!(
        "sqlite:{}",
        state_dir.join(DEFAULT_FILE).display()
    ))
}

/// Whether users can be in a store: one of `auth.stores`, or the store in the state directory.
pub(super) fn may_have_users(settings: &Settings) -> bool {
    let list = settings.stores.as_ref();
    let state_dir = settings.state_dir.as_ref();
    list.is_some_and(|list| !list.value.is_empty())
        || state_dir.is_some_and(|entry| entry.value.path().is_some())
}

/// Reports files that cannot be used, and stores that stand twice.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let Some(list) = &settings.stores else {
        return;
    };
    let mut seen: Vec<&Located<Url<Database>>> = Vec::new();
    for store in list.value.iter().map(|store| &store.value) {
        store.remote.check_files(report);
        let Some(url) = &store.remote.url else {
            continue;
        };
        match seen.iter().find(|other| other.value == url.value) {
            Some(first) => report.push(
                Diagnostic::error(&url.at, "the same store is listed twice")
                    .see(&first.at, "listed here first")
                    .help("keep one of them"),
            ),
            None => seen.push(url),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Inputs, load};

    fn of(text: &str) -> Result<Vec<StoreSettings>, Vec<String>> {
        let loaded = load(&Inputs {
            file: Some(("test".to_owned(), text.to_owned())),
            ..Inputs::default()
        });
        let lines = loaded.one_line_each();
        loaded.config.map(|config| config.stores).ok_or(lines)
    }

    #[test]
    fn a_store_is_a_url_and_what_differs_from_the_defaults() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("password");
        std::fs::write(&file, "s3cret\n").unwrap();
        let text = format!(
            "[[auth.stores]]\nurl = \"postgres://hairpin@db.example.org/turn\"\npassword_file = \"{}\"\nalgorithms = [\"SHA-256\", \"MD5\"]\nttl = \"5m\"\ncache = 10\n\n[[auth.stores]]\nurl = \"sqlite:/var/lib/turn/turndb\"\n",
            file.display()
        );
        let stores = of(&text).unwrap();
        assert_eq!(stores[0].options.password.as_deref(), Some("s3cret"));
        assert_eq!(stores[0].ttl, Duration::from_secs(300));
        assert_eq!((stores[0].cache, stores[0].algorithms.len()), (10, 2));
        assert_eq!(stores[1], of_url("sqlite:/var/lib/turn/turndb"));
    }

    #[test]
    fn mistakes_have_a_place_a_reason_and_advice() {
        let mistake = |text: &str| of(text).unwrap_err().remove(0);
        for (text, part) in [
            (
                "url = \"oracle://db\"",
                "test:2:7: the URL cannot be used: expected a URL that begins with sqlite:",
            ),
            ("url = \"sqlite:turndb\"", "expected the whole path"),
            (
                "url = \"postgres://db.example.org/turn\"",
                "the URL names no user",
            ),
            ("ttl = \"5m\"", "the store has no url"),
            (
                "url = \"file:/etc/users\"\nca = \"/nonexistent\"",
                "test:3:6: ",
            ),
            (
                "url = \"file:/etc/users\"\npassword_file = \"/nonexistent\"",
                "cannot read /nonexistent: ",
            ),
            (
                "url = \"file:/etc/users\"\ntimeout = \"1m\"",
                "out of range: must be from 1s to 5s",
            ),
            (
                "url = \"file:/a\"\n[[auth.stores]]\nurl = \"file:/a\"",
                "the same store is listed twice",
            ),
        ] {
            let said = mistake(&format!("[[auth.stores]]\n{text}\n"));
            assert!(said.contains(part), "{said}");
        }
    }
}
