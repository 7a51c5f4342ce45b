//! Several realms on one server: which one a client is asked for, and what is its own.
//!
//! The engine uses the first of these that names a configured realm, and otherwise [`Config::realm`]:
//!
//! 1. the REALM of a ConnectionBind request (RFC 6062 §4.3), or of a Refresh request with a ticket (RFC 8016 §3.2.2);
//! 2. the realm of the allocation that the 5-tuple has;
//! 3. the ORIGIN of the request (draft-ietf-tram-stun-origin);
//! 4. the server name of the client's TLS or DTLS handshake (SNI, RFC 6066 §3; [`Server::set_server_name`]);
//! 5. the address of the listener.
//!
//! A request with credentials of any other realm gets 401, with the realm that was chosen. There is one exception: if
//! the default realm was chosen, the key of an access token may have another realm. Then the user belongs to the key's
//! realm.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use hashbrown::HashTable;
use stun::{AttributeType, Message, Method};

use super::Server;
use super::challenge::Offer;
use super::config::{Config, ConfigError, MAX_REALM_BYTES};
use super::credentials::{AccessTokens, Credentials};
use super::hash::KeyedHash;
use super::limiter::rate_error;
use super::mobility::has_ticket;
use crate::{ClientPath, FiveTuple};

/// Further values of ORIGIN in a request are ignored, so that an unauthenticated request costs little.
const MAX_ORIGINS: usize = 8;

/// A realm beside the default one. Policy and quota distinguish realms by
/// [`ClientIdentity::realm`](super::ClientIdentity::realm).
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct RealmConfig {
    /// Its name, 1 to [`MAX_REALM_BYTES`] bytes.
    pub name: String,
    /// The values of ORIGIN that choose it, like `https://example.com`. Letter case does not matter.
    pub origins: Vec<String>,
    /// The server names of TLS and DTLS handshakes that choose it. Letter case does not matter.
    pub server_names: Vec<String>,
    /// The addresses of the listeners that choose it. An unspecified address means the port on every address of its
    /// family.
    pub listeners: Vec<SocketAddr>,
    /// From the names of its users to keys.
    pub credentials: Arc<dyn Credentials>,
    /// Bytes of application data per second that one allocation may have relayed, 1,000 to 10,000,000,000; 0: no limit.
    pub allocation_rate: u64,
}

impl RealmConfig {
    /// A realm that nothing chooses yet, with no limit of the rate.
    #[must_use]
    pub fn new(name: &str, credentials: Arc<dyn Credentials>) -> RealmConfig {
        RealmConfig {
            name: name.to_owned(),
            origins: Vec::new(),
            server_names: Vec::new(),
            listeners: Vec::new(),
            credentials,
            allocation_rate: 0,
        }
    }
}

/// The index of a realm in [`Config::realms`], plus one. The default realm is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RealmNumber(u16);

impl RealmNumber {
    const DEFAULT: RealmNumber = RealmNumber(0);

    fn at(place: usize) -> RealmNumber {
        RealmNumber(u16::try_from(place + 1).unwrap_or(0))
    }
}

/// What is derived from the configuration of one realm.
#[derive(Debug)]
pub(super) struct Realm {
    /// Shared with its users.
    pub(super) name: Arc<str>,
    /// What its challenges announce.
    pub(super) offer: Offer,
}

/// All realms of one configuration.
#[derive(Debug)]
pub(super) struct Realms {
    all: Vec<Realm>,
    by_name: BTreeMap<Arc<str>, RealmNumber>,
    by_origin: BTreeMap<Box<str>, RealmNumber>,
    by_server_name: BTreeMap<Box<str>, RealmNumber>,
    by_listener: BTreeMap<SocketAddr, RealmNumber>,
}

impl Realms {
    pub(super) fn new(config: &Config) -> Realms {
        let offer = |credentials: &dyn Credentials| Offer::of(config, credentials);
        let mut realms = Realms {
            all: vec![Realm {
                name: config.realm.as_str().into(),
                offer: offer(&*config.credentials),
            }],
            by_name: BTreeMap::new(),
            by_origin: BTreeMap::new(),
            by_server_name: BTreeMap::new(),
            by_listener: BTreeMap::new(),
        };
        for (place, realm) in config.realms.iter().enumerate() {
            let number = RealmNumber::at(place);
            let lower = |text: &String| text.to_ascii_lowercase().into_boxed_str();
            let name: Arc<str> = realm.name.as_str().into();
            realms.by_name.insert(Arc::clone(&name), number);
            let origins = realm.origins.iter().map(|origin| normal_origin(origin));
            realms.by_origin.extend(origins.map(|name| (name, number)));
            let names = realm.server_names.iter().map(lower);
            realms
                .by_server_name
                .extend(names.map(|name| (name, number)));
            let listeners = realm.listeners.iter();
            realms.by_listener.extend(listeners.map(|at| (*at, number)));
            realms.all.push(Realm {
                name,
                offer: offer(&*realm.credentials),
            });
        }
        realms
    }

    /// The realm of this number, or the default one.
    pub(super) fn get(&self, number: RealmNumber) -> &Realm {
        self.all.get(usize::from(number.0)).unwrap_or(&self.all[0])
    }

    pub(super) fn has_name(&self, name: &str) -> bool {
        *self.all[0].name == *name || self.by_name.contains_key(name)
    }

    fn named(&self, name: &str) -> Option<RealmNumber> {
        if *self.all[0].name == *name {
            return Some(RealmNumber::DEFAULT);
        }
        self.by_name.get(name).copied()
    }

    /// The realm of users with tokens of this kid: the realm of its key, or else the default realm. Requires that the
    /// request is in this realm or in the default one.
    pub(super) fn of_tokens(
        &self,
        tokens: &dyn AccessTokens,
        kid: &str,
        asked: RealmNumber,
    ) -> Option<&Arc<str>> {
        let number = match tokens.realm_of(kid) {
            Some(name) => self.named(name)?,
            None => RealmNumber::DEFAULT,
        };
        let is_possible = asked == number || asked == RealmNumber::DEFAULT;
        is_possible.then(|| &self.get(number).name)
    }

    /// The realm that the first known ORIGIN of a request chooses. A request may have several, one for each web page
    /// around another.
    fn of_origins(&self, message: &Message<'_>) -> Option<RealmNumber> {
        if self.by_origin.is_empty() {
            return None;
        }
        let all = message.attributes();
        let origins = all.filter(|attribute| attribute.attribute_type == AttributeType::ORIGIN);
        let mut known = origins.take(MAX_ORIGINS).filter_map(|origin| {
            let text = std::str::from_utf8(origin.value).ok()?;
            self.by_origin.get(&*normal_origin(text)).copied()
        });
        known.next()
    }

    fn of_listener(&self, local: SocketAddr) -> Option<RealmNumber> {
        let any: IpAddr = match local {
            SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
            SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
        };
        let wildcard = SocketAddr::new(any, local.port());
        let found = self.by_listener.get(&local);
        found.or_else(|| self.by_listener.get(&wildcard)).copied()
    }
}

/// An origin in lower case and without the port of its scheme, as RFC 6454 §6.2 writes it.
fn normal_origin(origin: &str) -> Box<str> {
    let origin = origin.to_ascii_lowercase();
    let bare = match origin.split_once(':') {
        Some(("https", _)) => origin.strip_suffix(":443"),
        Some(("http", _)) => origin.strip_suffix(":80"),
        _ => None,
    };
    bare.unwrap_or(&origin).into()
}

/// The realms of connections whose server name chooses one.
#[derive(Debug)]
pub(super) struct ServerNames {
    table: HashTable<(FiveTuple, RealmNumber)>,
    hash: KeyedHash,
}

impl ServerNames {
    pub(super) fn new(hash: KeyedHash) -> ServerNames {
        ServerNames {
            table: HashTable::new(),
            hash,
        }
    }

    fn find(&self, five_tuple: &FiveTuple) -> Option<RealmNumber> {
        if self.table.is_empty() {
            return None;
        }
        let hash = self.hash.five_tuple(five_tuple);
        let found = self.table.find(hash, |(of, _)| of == five_tuple);
        found.map(|(_, number)| *number)
    }

    fn set(&mut self, five_tuple: &FiveTuple, number: Option<RealmNumber>) {
        if self.table.is_empty() && number.is_none() {
            return;
        }
        let hash = self.hash.five_tuple(five_tuple);
        if let Ok(entry) = self.table.find_entry(hash, |(of, _)| of == five_tuple) {
            entry.remove();
        }
        if let Some(number) = number {
            let hasher = &self.hash;
            self.table
                .insert_unique(hash, (*five_tuple, number), |(of, _)| hasher.five_tuple(of));
        }
    }

    /// The numbers mean other realms now. Connections that exist are asked for the realm that their listener chooses.
    pub(super) fn clear(&mut self) {
        self.table = HashTable::new();
    }
}

impl Server {
    /// The client of this 5-tuple has asked for a server by this name when its TLS or DTLS session began (SNI,
    /// RFC 6066 §3). It is forgotten when the connection ends ([`client_closed`](Self::client_closed)).
    pub fn set_server_name(&mut self, five_tuple: &FiveTuple, name: Option<&str>) {
        let number = name.and_then(|name| {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            self.realms.by_server_name.get(name.as_str()).copied()
        });
        self.server_names.set(five_tuple, number);
    }

    /// The realm that a request belongs to.
    pub(super) fn realm_for(&self, path: &ClientPath, message: &Message<'_>) -> RealmNumber {
        if self.realms.all.len() == 1 {
            return RealmNumber::DEFAULT;
        }
        // Both come from a new 5-tuple of a user that made an allocation elsewhere.
        let is_elsewhere = message.method() == Method::CONNECTION_BIND || has_ticket(message);
        if is_elsewhere
            && let Ok(Some(stun::Realm(name))) = message.get()
            && let Some(number) = self.realms.named(name)
        {
            return number;
        }
        let place = self.holder_of(&path.five_tuple);
        let holder = place.and_then(|place| self.clients.get(place));
        if let Some(client) = holder
            && let Some(number) = self.realms.named(client.user.realm())
        {
            // The key of its token has chosen its realm. It may still use the challenge of the default realm.
            let names_default = || {
                let realm = message.get::<stun::Realm<'_>>().ok().flatten();
                realm.is_some_and(|realm| *realm.0 == *self.realms.all[0].name)
            };
            return match client.user.is_by_token() && names_default() {
                true => RealmNumber::DEFAULT,
                false => number,
            };
        }
        self.realms
            .of_origins(message)
            .or_else(|| self.server_names.find(&path.five_tuple))
            .or_else(|| self.realms.of_listener(path.five_tuple.local))
            .unwrap_or_default()
    }
}

impl Config {
    /// The credentials of a realm.
    pub(super) fn credentials_of(&self, number: RealmNumber) -> &Arc<dyn Credentials> {
        match self.further_realm(number) {
            Some(realm) => &realm.credentials,
            None => &self.credentials,
        }
    }

    /// What opens access tokens, if clients of this realm may have some. The default one has those of all realms.
    pub(super) fn access_tokens_of(&self, number: RealmNumber) -> Option<&Arc<dyn AccessTokens>> {
        let tokens = self.access_tokens.as_ref()?;
        let realm = self.further_realm(number);
        realm
            .is_none_or(|realm| tokens.has_realm(&realm.name))
            .then_some(tokens)
    }

    /// The rate of an allocation of a user of this realm.
    pub(super) fn allocation_rate_of(&self, realm: &str) -> u64 {
        let found = self.realms.iter().find(|further| further.name == realm);
        found.map_or(self.allocation_rate, |realm| realm.allocation_rate)
    }

    /// Whether the rate of any allocation, or of a group of them, is limited.
    #[must_use]
    pub fn limits_rate(&self) -> bool {
        self.group_rates
            || self.allocation_rate != 0
            || self.realms.iter().any(|realm| realm.allocation_rate != 0)
    }

    fn further_realm(&self, number: RealmNumber) -> Option<&RealmConfig> {
        let place = usize::from(number.0).checked_sub(1)?;
        self.realms.get(place)
    }

    /// Whether both have the same realms with the same sources of credentials.
    pub(super) fn has_same_users(&self, other: &Config) -> bool {
        let same = |one: &RealmConfig, other: &RealmConfig| {
            one.name == other.name && Arc::ptr_eq(&one.credentials, &other.credentials)
        };
        self.realm == other.realm
            && Arc::ptr_eq(&self.credentials, &other.credentials)
            && self.realms.len() == other.realms.len()
            && self
                .realms
                .iter()
                .zip(&other.realms)
                .all(|(one, other)| same(one, other))
    }
}

impl Config {
    /// Whether the numbers of the realms mean the same in both.
    pub(super) fn has_same_names(&self, other: &Config) -> bool {
        let names = |config: &Config| -> Vec<String> {
            let further = config.realms.iter().map(|realm| realm.name.clone());
            further.chain([config.realm.clone()]).collect()
        };
        names(self) == names(other)
    }

    /// Whether allocations have the same rates in both.
    pub(super) fn has_same_rates(&self, other: &Config) -> bool {
        let rates = |config: &Config| -> Vec<u64> {
            let further = config.realms.iter().map(|realm| realm.allocation_rate);
            further.chain([config.allocation_rate]).collect()
        };
        rates(self) == rates(other)
            && self.group_rates == other.group_rates
            && self.has_same_names(other)
    }
}

/// What is wrong with the realms beside the default one.
pub(super) fn realms_error(config: &Config) -> Option<ConfigError> {
    if config.realms.len() >= usize::from(u16::MAX) {
        return Some(ConfigError::TooManyRealms);
    }
    let mut names: Vec<&str> = config.realms.iter().map(|realm| &*realm.name).collect();
    names.push(&config.realm);
    names.sort_unstable();
    if names.windows(2).any(|pair| pair[0] == pair[1]) {
        return Some(ConfigError::SameRealm);
    }
    let mut errors = config.realms.iter().map(|realm| {
        let rate = rate_error(realm.allocation_rate);
        name_error(&realm.name).or(rate)
    });
    errors.find_map(|error| error)
}

/// What is wrong with the name of a realm.
pub(super) fn name_error(name: &str) -> Option<ConfigError> {
    if stun::opaque_string(name).is_none() {
        Some(ConfigError::Realm)
    } else if name.len() > MAX_REALM_BYTES {
        Some(ConfigError::LongRealm(name.len()))
    } else {
        None
    }
}
