//! Stores of users and realms, as the user writes them.

use std::path::{Path, PathBuf};
use std::time::Duration;

use server::stun::PasswordAlgorithm;
use stores::{Options, StoreSettings};

use super::diagnostics::{Diagnostic, Report};
use super::node::{Node, Raw};
use super::schema::Settings;
use super::setting::{Bounded, FromText, List, Mistake, Seconds, Setting, not_a_table, one_of};
use super::sip_tls::RootFile;
use super::source::Located;
use super::walk::unknown_key;

/// The file of the default store, in `server.state_dir`.
const DEFAULT_FILE: &str = "hairpin.db";
/// A longer password file is hardly one.
const MAX_PASSWORD_FILE: u64 = 4_096;

/// How long a user stays in the cache: a day without a look at the store is long enough.
type Ttl = Seconds<1, 86_400>;
/// How long an unknown name does: who adds a user tries it within minutes.
type TtlUnknown = Seconds<1, 600>;
/// A request waits for 5 seconds at most.
type Timeout = Seconds<1, 5>;
/// Users in the cache: 150 bytes each.
type Cache = Bounded<1, 10_000_000>;

const TTL: Duration = Duration::from_secs(60);
const TTL_UNKNOWN: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(2);
const CACHE: usize = 100_000;

/// One store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Written {
    url: Option<Located<Url>>,
    password_file: Option<Located<RootFile>>,
    ca: Option<Located<RootFile>>,
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

const EXAMPLE: &str = "write it like { url = \"postgres://hairpin@db.example.org/turn\" }";

/// Reads a value with its place.
pub(super) fn located<T: Setting>(node: &Node<'_>, report: &mut Report) -> Option<Located<T>> {
    let value = T::read(node, report)?;
    let at = node.at.clone();
    Some(Located { value, at })
}

impl Setting for Written {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Raw::Toml(toml::de::DeValue::Table(table)) = &node.raw else {
            let help = format!("{EXAMPLE}, in a configuration file");
            report.push(not_a_table(node, "a store").help(&help));
            return None;
        };
        let source = node.at.source;
        let errors = report.errors();
        let mut store = Written::default();
        for (name, value) in table.iter() {
            let value = Node::toml(source, value);
            match &name.get_ref()[..] {
                "url" => store.url = located(&value, report),
                "password_file" => store.password_file = located(&value, report),
                "ca" => store.ca = located(&value, report),
                "algorithms" => store.algorithms = List::read(&value, report),
                "ttl" => store.ttl = Ttl::read(&value, report),
                "ttl_unknown" => store.ttl_unknown = TtlUnknown::read(&value, report),
                "timeout" => store.timeout = Timeout::read(&value, report),
                "cache" => store.cache = Cache::read(&value, report),
                _ => report.push(unknown_key(source, name, "a store", &FIELDS, &[])),
            }
        }
        if store.url.is_none() && report.errors() == errors {
            report.push(Diagnostic::error(&node.at, "the store has no url").help(EXAMPLE));
        }
        (report.errors() == errors).then_some(store)
    }

    fn write(&self, reveal: bool) -> String {
        fn one<T: Setting>(name: &str, value: Option<&T>, reveal: bool) -> Option<String> {
            value.map(|value| format!("{name} = {}", value.write(reveal)))
        }
        fn bare<T>(value: &Option<Located<T>>) -> Option<&T> {
            value.as_ref().map(|value| &value.value)
        }
        let fields = [
            one("url", bare(&self.url), reveal),
            one("password_file", bare(&self.password_file), reveal),
            one("ca", bare(&self.ca), reveal),
            one("algorithms", self.algorithms.as_ref(), reveal),
            one("ttl", self.ttl.as_ref(), reveal),
            one("ttl_unknown", self.ttl_unknown.as_ref(), reveal),
            one("timeout", self.timeout.as_ref(), reveal),
            one("cache", self.cache.as_ref(), reveal),
        ];
        let fields: Vec<_> = fields.into_iter().flatten().collect();
        format!("{{ {} }}", fields.join(", "))
    }
}

/// Where a store is. It may have a password in it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Url(String);

impl std::fmt::Debug for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Url(***)")
    }
}

impl FromText for Url {
    const EXPECTED: &'static str = "a URL like \"postgres://hairpin@db.example.org/turn\"";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let options = Options {
            url: text.to_owned(),
            ..Options::default()
        };
        match stores::stores::check(&options) {
            Ok(_) => Ok(Self(text.to_owned())),
            Err(error) => Err(Mistake::new(format!("the URL cannot be used: {error}")).help(
                "docs/stores.md has an example for each kind: sqlite:, postgres:, mysql:, redis:, http:, https:, file:",
            )),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
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
    stores.map(Written::resolve).collect()
}

impl Written {
    fn resolve(self) -> Option<StoreSettings> {
        let file = self.password_file.as_ref();
        // Files have been checked.
        let password = file.and_then(|file| password(&file.value.0).ok());
        let url = self.url?.value.0;
        let mut store = of_url(&url);
        store.options.password = password;
        store.options.ca = self.ca.map(|file| file.value.0);
        if let Some(algorithms) = self.algorithms.filter(|list| !list.is_empty()) {
            let algorithms = super::values(algorithms).into_iter();
            store.algorithms = algorithms.map(|algorithm| algorithm.0).collect();
        }
        store.ttl = self.ttl.map_or(TTL, |ttl| ttl.0);
        store.ttl_unknown = self.ttl_unknown.map_or(TTL_UNKNOWN, |ttl| ttl.0);
        store.timeout = self.timeout.map_or(TIMEOUT, |timeout| timeout.0);
        store.cache = self.cache.map_or(CACHE, |cache| cache.0 as usize);
        Some(store)
    }
}

/// A store of which nothing else is said. Databases of coturn have MD5 keys.
pub(crate) fn of_url(url: &str) -> StoreSettings {
    StoreSettings {
        options: Options {
            url: url.to_owned(),
            ..Options::default()
        },
        algorithms: vec![PasswordAlgorithm::Md5],
        timeout: TIMEOUT,
        ttl: TTL,
        ttl_unknown: TTL_UNKNOWN,
        cache: CACHE,
    }
}

/// The store of a server that has a state directory and no other store.
pub(crate) fn default_store(state_dir: &Path) -> StoreSettings {
    of_url(&format!(
        "sqlite:{}",
        state_dir.join(DEFAULT_FILE).display()
    ))
}

/// The password in a file, without the end of the line.
pub(super) fn password(path: &PathBuf) -> std::io::Result<String> {
    use std::io::Read;
    let file = std::fs::File::open(path)?;
    let mut text = String::new();
    file.take(MAX_PASSWORD_FILE).read_to_string(&mut text)?;
    let text = text.trim_end_matches(['\r', '\n']);
    match text.is_empty() {
        true => Err(std::io::Error::other("the file is empty")),
        false => Ok(text.to_owned()),
    }
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
    let mut seen: Vec<&Located<Url>> = Vec::new();
    for store in list.value.iter().map(|store| &store.value) {
        if let Some(file) = &store.password_file
            && let Err(error) = password(&file.value.0)
        {
            let message = format!("cannot read {}: {error}", file.value.0.display());
            let help = "the file must have the password of the store, and the server's user must be able to read it";
            report.push(Diagnostic::error(&file.at, message).help(help));
        }
        if let Some(file) = &store.ca
            && let Err(error) = server::certificates::Certificates::roots(&[&file.value.0])
        {
            let help = "give a PEM file with the certificates of the issuers";
            report.push(Diagnostic::error(&file.at, error.to_string()).help(help));
        }
        let Some(url) = &store.url else {
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
