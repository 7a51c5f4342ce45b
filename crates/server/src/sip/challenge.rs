//! Who may register: users of TURN with their passwords, by Digest (RFC 7616, RFC 8760).
//!
//! If a user is not in the settings, the server queries the sources of credentials, such as stores. If a source responds later, the request
//! waits ([`Lookups`]).
//!
//! Nonces take no memory: they carry their time and a MAC, and are bound to the client's address. Every worker can check them. Which counts of
//! a nonce were used is kept by all of them together, so that an answer counts once wherever it comes in, in memory that does not grow.

use super::Secrets;
use super::bans::{Bans, Failed};
use super::counters::DIGEST_OUTCOMES;
use super::lookups::{Lookups, QueuedQuery as Query, UserQuery};
use super::report::FailureReports;
use super::screen::log_ban;
use super::settings::{DomainCredentials, SharedSipSettings, UserSecret};
use sip::build::{BuildError, Builder};
use sip::digest::{
    Algorithm, Credentials, DigestRequest, Ha1, NONCE_LEN, NonceKeys, Outcome, Policy, Replay,
    Server, Use, challenge,
};
use sip::flow::Flow;
use sip::header::Authorization;
use sip::{HeaderKind, Host, Message};
use sip_server::Aor;
use sip_server::registrar::{Access, Authority as _, Domains, SameUser};
use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use stun::PasswordAlgorithm;
use turn::server::credentials::{Credentials as KeySource, KeyLookup};

/// RFC 7616 §3.3 leaves it open; long enough for a client to ask its user, short enough to be of little use to others.
const NONCE_LIFETIME_S: u64 = 600;

/// Nonces whose counts are remembered: one for each client that registers within a nonce's life. 34 bytes each.
const NONCES: usize = 1 << 18;

/// Parts of that memory that are locked for themselves: two workers hardly ever meet in one.
const PARTS: usize = 64;

/// Room for Authentication-Info, in which a client's nonce is said again; with a longer one than anybody has there is none.
const CONFIRMATION: usize = 1024;

/// So many keys are compared with a wrong response even if the user has fewer, at most: a source may have the old key and the new one.
const MOST_KEYS: usize = 4;

/// Why a request is not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// 401.
    Challenge(Why),
    /// 400, with this reason.
    Bad(&'static str),
    /// 503: this source has tried too many passwords for this user.
    Slowed,
    /// A source of credentials answers later: the request waits.
    Pending,
    /// 503: a source of credentials cannot answer, or too many requests wait.
    Unavailable,
}

/// Whether an address of record is that of a user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum IsAddress {
    Yes,
    No,
    /// A source of credentials answers later: the request waits.
    Pending,
    /// The source cannot answer, or too many requests wait.
    Unavailable,
}

/// The result of a query to sources for a user.
#[derive(Debug)]
enum UserLookupResult {
    /// The user exists, with these keys.
    Keys(Vec<Ha1>),
    Nobody,
    Pending,
    Unavailable,
}

/// Why credentials are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Why {
    /// There are none for this realm.
    Missing,
    /// They were right once.
    Stale,
    /// They are wrong.
    Denied,
}

/// One realm: its users, and the algorithms of its challenges.
#[derive(Debug)]
struct RealmUsers {
    realm: String,
    algorithms: Vec<Algorithm>,
    offers_integrity: bool,
    hashes_usernames: bool,
    /// The hash of a user's password for each of the algorithms; `None` if only hashes of other algorithms are known.
    users: HashMap<Vec<u8>, Box<[Option<Ha1>]>>,
    /// Their names by the hashes of them (RFC 7616 §3.4.4), by each of the algorithms.
    hashed: HashMap<Vec<u8>, Vec<u8>>,
    takes_any_uri: bool,
    /// The domain whose own users these are, as addresses of record have it.
    domain: Option<String>,
    /// Sources of credentials for users that are not in `users`.
    sources: Option<Arc<dyn KeySource>>,
    /// Domains with users of their own. `sources` are not queried for names in these domains.
    others: Box<[String]>,
}

impl RealmUsers {
    /// Of all domains without users of their own. `others` are those with.
    fn new(orders: &SharedSipSettings, others: &[String]) -> RealmUsers {
        let algorithms = orders.settings.digest_algorithms.clone();
        let mut guests = RealmUsers::empty(orders, orders.realm.clone(), algorithms);
        guests.let_in_all(orders, others);
        guests
    }

    /// Of one domain, whose name in addresses of record is `domain`.
    fn of_domain(
        orders: &SharedSipSettings,
        own: &DomainCredentials,
        domain: &str,
        others: &[String],
    ) -> RealmUsers {
        let realm = match (&own.realm, &own.users) {
            (Some(realm), _) => realm.clone(),
            (None, Some(_)) => domain.to_owned(),
            (None, None) => orders.realm.clone(),
        };
        let algorithms = own.algorithms.clone();
        let algorithms = algorithms.unwrap_or_else(|| orders.settings.digest_algorithms.clone());
        let mut guests = RealmUsers::empty(orders, realm, algorithms);
        match &own.users {
            None => guests.let_in_all(orders, others),
            Some(users) => {
                guests.domain = Some(domain.to_owned());
                for user in users {
                    guests.let_in(&user.name, &user.secret);
                }
            }
        }
        guests
    }

    fn empty(orders: &SharedSipSettings, realm: String, algorithms: Vec<Algorithm>) -> RealmUsers {
        let settings = &orders.settings;
        RealmUsers {
            realm,
            algorithms,
            users: HashMap::new(),
            hashed: HashMap::new(),
            offers_integrity: settings.auth_int,
            takes_any_uri: settings.digest_any_uri,
            hashes_usernames: settings.userhash,
            domain: None,
            sources: None,
            others: Box::default(),
        }
    }

    /// Accepts the users of all domains without their own users.
    fn let_in_all(&mut self, orders: &SharedSipSettings, others: &[String]) {
        self.others = others.into();
        // Without a challenge nobody asks for them.
        let users = orders.users.iter().filter(|_| orders.asks_users());
        for (name, password) in users {
            if !self.is_of_another(name) {
                self.let_in(name, &UserSecret::Password(password.clone()));
            }
        }
        if let Some(sources) = orders.sources.clone().filter(|_| orders.asks_users()) {
            // RFC 8760 §2.4: a client uses the first algorithm that it supports. So the server offers only algorithms for which the sources have
            // keys, if there are any.
            let has_all = |algorithm: &Algorithm| {
                password_algorithm(*algorithm).is_some_and(|it| sources.supports(it))
            };
            if self.algorithms.iter().any(has_all) {
                self.algorithms.retain(has_all);
            }
            // Stores cannot find a user by the hash of the name (RFC 7616 §3.4.4).
            self.hashes_usernames = false;
            self.sources = Some(sources);
        }
    }

    /// Whether a name is an address in a domain with users of its own, for example alice@example.org.
    fn is_of_another(&self, name: &str) -> bool {
        let domain = name.rsplit_once('@').map(|(_, domain)| domain);
        let mut others = self.others.iter();
        domain.is_some_and(|domain| others.any(|it| it.eq_ignore_ascii_case(domain)))
    }

    /// The query to the sources for this name and algorithm; `None` if no source can have such a user.
    fn wanted(&self, name: &[u8], algorithm: Algorithm) -> Option<UserQuery> {
        let name = std::str::from_utf8(name).ok();
        let name = name.filter(|name| !name.is_empty() && !self.is_of_another(name))?;
        Some(UserQuery {
            realm: self.realm.as_str().into(),
            name: name.into(),
            algorithm: password_algorithm(algorithm)?,
        })
    }

    fn let_in(&mut self, name: &str, secret: &UserSecret) {
        let realm = self.realm.as_bytes();
        let ha1 = |algorithm: &Algorithm| match secret {
            UserSecret::Password(password) => {
                let (name, password) = (name.as_bytes(), password.as_bytes());
                Some(Ha1::of(*algorithm, name, realm, password))
            }
            UserSecret::Ha1s(ha1s) => {
                let (_, hex) = ha1s.iter().find(|(of, _)| of == algorithm)?;
                Ha1::from_hex(*algorithm, hex.as_bytes())
            }
        };
        let keys = self.algorithms.iter().map(ha1).collect();
        let name = name.as_bytes();
        self.users.insert(name.to_vec(), keys);
        self.hashed.extend(self.algorithms.iter().map(|algorithm| {
            let hash = algorithm.hash_username(name, realm);
            (hash.as_bytes().to_vec(), name.to_vec())
        }));
    }

    fn policy(&self) -> Policy<'_> {
        Policy {
            realm: self.realm.as_bytes(),
            algorithms: &self.algorithms,
            nonce_lifetime_s: NONCE_LIFETIME_S,
            takes_no_qop: false,
            takes_any_uri: self.takes_any_uri,
            offers_integrity: self.offers_integrity,
            hashes_usernames: self.hashes_usernames,
        }
    }

    /// The key of the user whom these credentials name.
    fn key_of(&self, credentials: &Credentials<'_>) -> Option<&Ha1> {
        let mut known = self.algorithms.iter();
        let place = known.position(|known| credentials.algorithm == Some(*known))?;
        let name = credentials.name();
        let keys = match credentials.is_hashed {
            true => self.users.get(self.hashed.get(&*name)?),
            false => self.users.get(&*name),
        };
        keys?.get(place)?.as_ref()
    }

    /// The name of the user whom these credentials name; empty if it is a hash of none.
    fn name_in<'c>(&'c self, credentials: &Credentials<'c>) -> Cow<'c, [u8]> {
        let name = credentials.name();
        match credentials.is_hashed {
            true => Cow::Borrowed(self.hashed.get(&*name).map_or(&[], |name| &name[..])),
            false => name,
        }
    }

    /// The credentials for our realm. Those for other realms, and of other schemes, are somebody else's (RFC 3261 §22.3).
    fn credentials_in<'m>(
        &self,
        message: &Message<'m>,
        kind: HeaderKind,
    ) -> Result<Credentials<'m>, Stop> {
        for header in message.authorizations(kind) {
            // RFC 7616 §3.4: what is improper, or lacks a parameter, gets a 4xx of its own.
            let malformed = Stop::Bad(match kind {
                HeaderKind::ProxyAuthorization => "Malformed Proxy-Authorization",
                _ => "Malformed Authorization",
            });
            let header = header.map_err(|_| malformed)?;
            if header.is_digest() {
                let credentials = Credentials::of(&header).ok_or(malformed)?;
                if credentials.are_for(self.realm.as_bytes()) {
                    return Ok(credentials);
                }
            }
        }
        Err(Stop::Challenge(Why::Missing))
    }
}

/// The same algorithm in the terms of sources; `None` if sources have no keys for it.
const fn password_algorithm(algorithm: Algorithm) -> Option<PasswordAlgorithm> {
    match algorithm {
        Algorithm::Md5 => Some(PasswordAlgorithm::Md5),
        Algorithm::Sha256 => Some(PasswordAlgorithm::Sha256),
        Algorithm::Sha512_256 => None,
    }
}

/// The counts of nonces that were used, for all workers. Whoever comes here has shown to know a password, which costs more than a lock
/// that is free.
#[derive(Debug, Clone, Default)]
pub(crate) struct UsedCounts(Arc<OnceLock<Box<[Mutex<Replay>]>>>);

impl UsedCounts {
    fn note(&self, id: u64, issued_unix_s: u64, count: u32) -> Use {
        // There is none before somebody needs it.
        let parts = self.0.get_or_init(|| {
            let part = || Mutex::new(Replay::new(NONCES / PARTS));
            (0..PARTS).map(|_| part()).collect()
        });
        // Within a part a nonce's place is by the whole of its identity, which is as good as random.
        let part = &parts[(id >> 58) as usize % PARTS];
        let mut replay = part.lock().unwrap_or_else(PoisonError::into_inner);
        replay.note(id, issued_unix_s, count)
    }
}

/// The place of a realm among those of a [`Gate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RealmKey(usize);

/// That of all domains that say nothing else.
pub(super) const COMMON: RealmKey = RealmKey(0);

/// All realms of these orders; where the domains have theirs.
fn realms_of(orders: &SharedSipSettings) -> (Vec<RealmUsers>, HashMap<Vec<u8>, usize>) {
    let settings = &orders.settings;
    // They were checked with all settings.
    let domains = Domains::new(settings.domains.clone()).unwrap_or_default();
    let name_of = |own: &DomainCredentials| {
        let host = Host::new(own.domain.as_bytes())?;
        domains.of(host).map(|domain| domain.name.clone())
    };
    let own = settings.credentials.iter();
    let own = own.filter_map(|own| name_of(own).map(|name| (name, own)));
    let with_users = own.clone().filter(|(_, own)| own.users.is_some());
    let others: Vec<String> = with_users.map(|(name, _)| name).collect();
    let mut realms = vec![RealmUsers::new(orders, &others)];
    let mut places = HashMap::new();
    for (name, own) in own {
        places.insert(name.clone().into_bytes(), realms.len());
        realms.push(RealmUsers::of_domain(orders, own, &name, &others));
    }
    (realms, places)
}

/// Checks credentials.
#[derive(Debug)]
pub(super) struct Gate {
    /// The realm of all domains, then those that domains have of their own.
    realms: Vec<RealmUsers>,
    /// Which domains have one.
    places: HashMap<Vec<u8>, usize>,
    pub(super) outcomes: [u64; DIGEST_OUTCOMES.len()],
    keys: NonceKeys,
    used: UsedCounts,
    /// Makes each nonce another one.
    salt: u64,
    bans: Bans,
    /// How long a source is banned.
    ban: Duration,
    /// Requests that wait for a source of credentials.
    pub(super) lookups: Lookups,
    failures: FailureReports,
    /// The result of a query, while the worker handles the request that waited for it.
    told: Option<(UserQuery, KeyLookup)>,
    /// The most keys that a user has had: a source may have the old key and the new one.
    most_keys: usize,
    /// The user whose request was let through last.
    user: Vec<u8>,
    /// Where Authentication-Info is written.
    confirmation: Box<[u8; CONFIRMATION]>,
    confirmed: usize,
}

impl Gate {
    /// For the users of these orders.
    pub(super) fn new(orders: &SharedSipSettings, secrets: &Secrets, seed: u64) -> Gate {
        let (realms, places) = realms_of(orders);
        Gate {
            realms,
            places,
            outcomes: [0; DIGEST_OUTCOMES.len()],
            keys: NonceKeys::new(secrets.key),
            used: secrets.used_counts.clone(),
            salt: seed,
            bans: secrets.bans.clone(),
            ban: orders.settings.ban,
            lookups: Lookups::default(),
            failures: FailureReports::new(orders.reporter.clone()),
            told: None,
            most_keys: 1,
            user: Vec::new(),
            confirmation: Box::new([0; CONFIRMATION]),
            confirmed: 0,
        }
    }

    /// Takes other users and settings; what was remembered of nonces stays.
    pub(super) fn apply_settings(&mut self, orders: &SharedSipSettings) {
        (self.realms, self.places) = realms_of(orders);
        self.ban = orders.settings.ban;
        self.failures.reporter = orders.reporter.clone();
    }

    /// The realm of a domain, which is named as addresses of record have it.
    pub(super) fn realm_of(&self, domain: &[u8]) -> RealmKey {
        RealmKey(self.places.get(domain).copied().unwrap_or(0))
    }

    /// The first realm that these headers have credentials for.
    pub(super) fn realm_in(&self, message: &Message<'_>, kind: HeaderKind) -> Option<RealmKey> {
        let all = message.authorizations(kind).filter_map(Result::ok);
        let mut all = all.filter_map(|header| {
            let credentials = Credentials::of(&header)?;
            let mut realms = self.realms.iter();
            realms.position(|realm| credentials.are_for(realm.realm.as_bytes()))
        });
        all.next().map(RealmKey)
    }

    /// The realm to ask for if a request names no domain: the first that anybody can answer for.
    pub(super) fn common_realm(&self) -> RealmKey {
        let mut realms = self.realms.iter();
        realms
            .position(|realm| !realm.users.is_empty() || realm.sources.is_some())
            .map_or(COMMON, RealmKey)
    }

    /// Sets the result that the next request has waited for; `None` removes it.
    pub(super) fn tell(&mut self, told: Option<(UserQuery, KeyLookup)>) {
        self.told = told;
    }

    /// Whether an address of record may have bindings: it is that of a user of the settings, or sources may know the user.
    pub(super) fn may_have_address(&self, aor: &Aor) -> bool {
        let realm = self.guests(self.realm_of(aor.domain()));
        realm.sources.is_some() || self.has_address(aor)
    }

    /// Whether an address of record is that of a user. In sources, the name of the user is the user part of the address.
    pub(super) fn find_address(&mut self, aor: &Aor, flow: &Flow, unix_s: u64) -> IsAddress {
        if self.has_address(aor) {
            return IsAddress::Yes;
        }
        let key = self.realm_of(aor.domain());
        let guests = self.realms.get(key.0).unwrap_or(&self.realms[0]);
        let wanted = guests
            .algorithms
            .first()
            .zip(aor.user())
            .and_then(|(algorithm, user)| guests.wanted(user, *algorithm));
        let (Some(source), Some(wanted)) = (guests.sources.clone(), wanted) else {
            return IsAddress::No;
        };
        match self.seek(&source, wanted, flow, unix_s) {
            UserLookupResult::Keys(_) => IsAddress::Yes,
            UserLookupResult::Nobody => IsAddress::No,
            UserLookupResult::Pending => IsAddress::Pending,
            UserLookupResult::Unavailable => IsAddress::Unavailable,
        }
    }

    /// Queries the sources for a user. After [`UserLookupResult::Pending`], [`Gate::lookups`] has the query.
    fn seek(
        &mut self,
        source: &Arc<dyn KeySource>,
        wanted: UserQuery,
        flow: &Flow,
        unix_s: u64,
    ) -> UserLookupResult {
        let told = self.told.as_ref().filter(|(of, _)| *of == wanted);
        let found = match told {
            Some((_, found)) => found.clone(),
            None => source.find(&wanted.query(flow, unix_s)),
        };
        match found {
            KeyLookup::Known(user) => {
                let algorithm = match wanted.algorithm {
                    PasswordAlgorithm::Md5 => Algorithm::Md5,
                    PasswordAlgorithm::Sha256 => Algorithm::Sha256,
                };
                let keys = user.keys.iter();
                let keys = keys.filter(|key| key.expires_unix_s.is_none_or(|end| end > unix_s));
                let keys = keys.filter_map(|key| Ha1::from_hash(algorithm, key.key.as_bytes()));
                UserLookupResult::Keys(keys.collect())
            }
            KeyLookup::Unavailable => UserLookupResult::Unavailable,
            KeyLookup::Pending => {
                let asked = Query {
                    wanted,
                    source: Arc::clone(source),
                    flow: *flow,
                    unix_s,
                };
                match self.lookups.want(asked) {
                    true => UserLookupResult::Pending,
                    false => UserLookupResult::Unavailable,
                }
            }
            _ => UserLookupResult::Nobody,
        }
    }

    /// Whether an address of record is that of a user of the settings.
    fn has_address(&self, aor: &Aor) -> bool {
        let Some(user) = aor.user() else {
            return false;
        };
        let realm = self.guests(self.realm_of(aor.domain()));
        let has = |name: &[u8]| realm.users.contains_key(name);
        // A user of several domains may have the name of one address.
        has(user) || realm.domain.is_none() && has(aor.as_bytes())
    }

    /// Whether an address of record is that of this user, as [`Gate::user`] names it.
    pub(super) fn owns(&self, user: &[u8], aor: &Aor) -> bool {
        match self.guests(self.realm_of(aor.domain())).domain {
            Some(_) => aor.as_bytes() == user,
            None => SameUser.access(Some(user), aor) == Access::Granted,
        }
    }

    fn guests(&self, RealmKey(place): RealmKey) -> &RealmUsers {
        // Keys live no longer than the settings that they are of.
        self.realms.get(place).unwrap_or(&self.realms[0])
    }

    /// Whether credentials are for one of our realms.
    pub(super) fn is_for_us(&self, credentials: &Authorization<'_>) -> bool {
        let credentials = Credentials::of(credentials);
        let mut realms = self.realms.iter();
        credentials.is_some_and(|it| realms.any(|realm| it.are_for(realm.realm.as_bytes())))
    }

    /// Checks the credentials in headers of this kind of a request that came by this flow. If a user of this realm sent it,
    /// [`Gate::confirmation`] has the Authentication-Info line for the response.
    ///
    /// # Errors
    /// Why the request is not accepted. After [`Stop::Pending`], [`Gate::lookups`] has the query, and the caller lets the request wait there.
    pub(super) fn check(
        &mut self,
        realm: RealmKey,
        asked: (&Message<'_>, HeaderKind),
        flow: &Flow,
        unix_s: u64,
    ) -> Result<(), Stop> {
        let outcome = self.check_uncounted(realm, asked, flow, unix_s);
        let place = match outcome {
            Ok(()) => 0,
            Err(Stop::Challenge(Why::Missing)) => 1,
            Err(Stop::Challenge(Why::Stale)) => 2,
            Err(Stop::Challenge(Why::Denied)) => 3,
            Err(Stop::Bad(_)) => 4,
            Err(Stop::Slowed) => 5,
            Err(Stop::Unavailable) => 6,
            // The request is counted when it resumes.
            Err(Stop::Pending) => return outcome,
        };
        const { assert!(DIGEST_OUTCOMES.len() == 7) };
        self.outcomes[place] += 1;
        outcome
    }

    /// Counts a request that may not wait for a source.
    pub(super) fn count_unavailable(&mut self) {
        self.outcomes[6] += 1;
    }

    fn check_uncounted(
        &mut self,
        realm: RealmKey,
        (message, kind): (&Message<'_>, HeaderKind),
        flow: &Flow,
        unix_s: u64,
    ) -> Result<(), Stop> {
        let guests = self.realms.get(realm.0).unwrap_or(&self.realms[0]);
        let credentials = guests.credentials_in(message, kind)?;
        let mut place = [0; 16];
        let (Some(method), Some(uri)) = (message.method(), message.request_uri()) else {
            return Err(Stop::Bad("Bad Request"));
        };
        let asked = DigestRequest {
            method,
            uri,
            body: message.body(),
            source: octets(flow.remote.ip().to_canonical(), &mut place),
        };
        let policy = guests.policy();
        let server = Server {
            policy: &policy,
            keys: &self.keys,
        };
        server
            .check(&credentials, &asked, unix_s)
            .map_err(stop_of)?;
        let ip = flow.remote.ip();
        if self.bans.is_slowed(unix_s * 1000, ip, credentials.username) {
            return Err(Stop::Slowed);
        }
        if let Some(ha1) = guests.key_of(&credentials) {
            let ha1 = ha1.clone();
            return self.verify(realm, (&credentials, &asked, flow), &[ha1], unix_s);
        }
        let algorithm = credentials.algorithm.filter(|_| !credentials.is_hashed);
        let wanted = algorithm.and_then(|it| guests.wanted(&credentials.name(), it));
        let keys = match (guests.sources.clone(), wanted) {
            // A name in the settings is never that of a user of a store, even if the settings have no key for this algorithm.
            _ if guests.users.contains_key(&*credentials.name()) => Vec::new(),
            (Some(source), Some(wanted)) => match self.seek(&source, wanted, flow, unix_s) {
                UserLookupResult::Keys(keys) => keys,
                UserLookupResult::Nobody => Vec::new(),
                UserLookupResult::Pending => return Err(Stop::Pending),
                UserLookupResult::Unavailable => return Err(Stop::Unavailable),
            },
            _ => Vec::new(),
        };
        self.verify(realm, (&credentials, &asked, flow), &keys, unix_s)
    }

    /// Verifies the digest response with each of the user's keys.
    fn verify(
        &mut self,
        realm: RealmKey,
        (credentials, asked, flow): (&Credentials<'_>, &DigestRequest<'_>, &Flow),
        keys: &[Ha1],
        unix_s: u64,
    ) -> Result<(), Stop> {
        let guests = self.realms.get(realm.0).unwrap_or(&self.realms[0]);
        let policy = guests.policy();
        let server = Server {
            policy: &policy,
            keys: &self.keys,
        };
        // Without a key the check lasts as long, so its duration does not tell whether the user exists.
        self.most_keys = self.most_keys.max(keys.len().min(MOST_KEYS));
        let keys = (keys, self.most_keys);
        let note = |id, issued, count| self.used.note(id, issued, count);
        let (outcome, accepted) = server.verify_any(credentials, asked, keys, unix_s, note);
        // The nonce was issued to this source address, so the address is not forged. A failure for an unknown user counts as well.
        if outcome == Outcome::Denied {
            let (ip, user) = (flow.remote.ip(), credentials.username);
            if self.bans.failed(unix_s * 1000, ip, user, self.ban) == Failed::Banned {
                log_ban(ip, self.ban);
            }
            self.failures.failed(unix_s, flow, &guests.realm, user);
        }
        let (Outcome::Accepted, Some(ha1)) = (outcome, accepted) else {
            return Err(stop_of(outcome));
        };
        let nonce = server
            .is_ageing(credentials, asked.source, unix_s)
            .then(|| issue(&self.keys, &policy, &mut self.salt, asked.source, unix_s));
        let mut lines = Builder::fields(&mut self.confirmation[..]);
        let (kind, nonce) = (HeaderKind::AuthenticationInfo, nonce.as_ref());
        let nonce = nonce.map(|n| &n[..]);
        Server::confirm(&mut lines, kind, credentials, ha1, b"", nonce);
        self.confirmed = lines.finish_fields().map_or(0, <[u8]>::len);
        self.user.clear();
        self.user.extend_from_slice(&guests.name_in(credentials));
        if let Some(domain) = &guests.domain {
            self.user.push(b'@');
            self.user.extend_from_slice(domain.as_bytes());
        }
        Ok(())
    }

    /// The header line for the answer to the request that was let through last: that the server knows the password as well.
    pub(super) fn confirmation(&self) -> &[u8] {
        &self.confirmation[..self.confirmed]
    }

    /// The name of the user whose request was let through last; a user of one domain has the name of the address of record.
    pub(super) fn user(&self) -> &[u8] {
        &self.user
    }

    /// Writes the header lines of a 401 or a 407.
    pub(super) fn challenge<'b>(
        &mut self,
        realm: RealmKey,
        buffer: &'b mut [u8],
        kind: HeaderKind,
        source: IpAddr,
        why: Why,
        unix_s: u64,
    ) -> Result<&'b [u8], BuildError> {
        let mut place = [0; 16];
        let source = octets(source.to_canonical(), &mut place);
        let guests = self.realms.get(realm.0).unwrap_or(&self.realms[0]);
        let policy = guests.policy();
        let nonce = issue(&self.keys, &policy, &mut self.salt, source, unix_s);
        let mut builder = Builder::fields(buffer);
        challenge(&mut builder, kind, &policy, &nonce, why == Why::Stale);
        builder.finish_fields()
    }
}

/// A nonce that was never issued before.
fn issue(
    keys: &NonceKeys,
    policy: &Policy<'_>,
    salt: &mut u64,
    source: &[u8],
    unix_s: u64,
) -> [u8; NONCE_LEN] {
    *salt = salt.wrapping_add(1);
    let [_, _, bytes @ ..] = salt.to_be_bytes();
    let mut nonce = [0; NONCE_LEN];
    keys.issue(policy.realm, source, bytes, unix_s, &mut nonce);
    nonce
}

/// The [`Stop`] for credentials that are not accepted.
fn stop_of(outcome: Outcome) -> Stop {
    match outcome {
        Outcome::Stale => Stop::Challenge(Why::Stale),
        Outcome::Denied | Outcome::Accepted => Stop::Challenge(Why::Denied),
        Outcome::Bad(flaw) => Stop::Bad(flaw.phrase()),
    }
}

/// The bytes of an address.
fn octets(ip: IpAddr, place: &mut [u8; 16]) -> &[u8] {
    match ip {
        IpAddr::V4(v4) => {
            place[..4].copy_from_slice(&v4.octets());
            &place[..4]
        }
        IpAddr::V6(v6) => {
            *place = v6.octets();
            place
        }
    }
}
