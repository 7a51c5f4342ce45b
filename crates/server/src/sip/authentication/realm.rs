//! A realm: its users, and the algorithms of its challenges.

use super::super::lookups::QueriedUser;
use super::super::settings::{DomainCredentials, SipConfig, UserSecret};
use super::{ChallengeReason, Rejection};
use sip::digest::{Algorithm, Credentials, Ha1, Policy};
use sip::{HeaderKind, Host, Message};
use sip_server::registrar::Domains;
use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::Arc;
use stun::PasswordAlgorithm;
use turn::server::credentials::Credentials as KeySource;

/// RFC 7616 §3.3 leaves it open; long enough for a client to ask its user, short enough to be of little use to others.
pub(in crate::sip) const NONCE_LIFETIME_S: u64 = 600;

/// The place of a realm among those of a [`DigestAuthenticator`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::sip) struct RealmKey(pub(super) usize);

/// The realm of all domains without their own realm.
pub(in crate::sip) const COMMON_REALM: RealmKey = RealmKey(0);

/// One realm: its users, and the algorithms of its challenges.
#[derive(Debug)]
pub(super) struct RealmUsers {
    pub(super) realm: String,
    pub(super) algorithms: Vec<Algorithm>,
    offers_integrity: bool,
    hashes_usernames: bool,
    /// The hash of a user's password for each of the algorithms; `None` if only hashes of other algorithms are known.
    pub(super) users: HashMap<Vec<u8>, Box<[Option<Ha1>]>>,
    /// Their names by the hashes of them (RFC 7616 §3.4.4), by each of the algorithms.
    hashed: HashMap<Vec<u8>, Vec<u8>>,
    takes_any_uri: bool,
    takes_no_qop: bool,
    /// The domain whose own users these are, as addresses of record have it.
    pub(super) domain: Option<String>,
    /// Sources of credentials for users that are not in `users`.
    pub(super) sources: Option<Arc<dyn KeySource>>,
    /// Domains with users of their own. `sources` are not queried for names in these domains.
    others: Box<[String]>,
}

impl RealmUsers {
    /// Of all domains without users of their own. `others` are those with.
    fn new(shared: &SipConfig, others: &[String]) -> RealmUsers {
        let algorithms = shared.settings.digest_algorithms.clone();
        let mut new = RealmUsers::empty(shared, shared.realm.clone(), algorithms);
        new.add_common_users(shared, others);
        new
    }

    /// Of one domain, whose name in addresses of record is `domain`.
    fn of_domain(
        shared: &SipConfig,
        own: &DomainCredentials,
        domain: &str,
        others: &[String],
    ) -> RealmUsers {
        let realm = match (&own.realm, &own.users) {
            (Some(realm), _) => realm.clone(),
            (None, Some(_)) => domain.to_owned(),
            (None, None) => shared.realm.clone(),
        };
        let algorithms = own.algorithms.clone();
        let algorithms = algorithms.unwrap_or_else(|| shared.settings.digest_algorithms.clone());
        let mut new = RealmUsers::empty(shared, realm, algorithms);
        match &own.users {
            None => new.add_common_users(shared, others),
            Some(users) => {
                new.domain = Some(domain.to_owned());
                for user in users {
                    new.add_user(&user.name, &user.secret);
                }
            }
        }
        new
    }

    fn empty(shared: &SipConfig, realm: String, algorithms: Vec<Algorithm>) -> RealmUsers {
        let settings = &shared.settings;
        RealmUsers {
            realm,
            algorithms,
            users: HashMap::new(),
            hashed: HashMap::new(),
            offers_integrity: settings.auth_int,
            takes_any_uri: settings.digest_any_uri,
            takes_no_qop: settings.digest_without_qop,
            hashes_usernames: settings.userhash,
            domain: None,
            sources: None,
            others: Box::default(),
        }
    }

    /// Accepts the users of all domains without their own users.
    fn add_common_users(&mut self, shared: &SipConfig, others: &[String]) {
        self.others = others.into();
        if let Some(sources) = shared.sources.clone().filter(|_| shared.asks_users()) {
            // RFC 8760 §2.4: a client uses the first algorithm that it supports. So the server offers only algorithms
            // for which the sources have keys, if there are any.
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
        // Without a challenge no request uses them. Their keys are in the order of the algorithms, which do not change
        // from here on.
        let users = shared.users.iter().filter(|_| shared.asks_users());
        for (name, password) in users {
            if !self.is_in_other_domain(name) {
                self.add_user(name, &UserSecret::Password(password.clone()));
            }
        }
    }

    /// Whether a name is an address in a domain with users of its own, for example alice@example.org.
    fn is_in_other_domain(&self, name: &str) -> bool {
        let domain = name.rsplit_once('@').map(|(_, domain)| domain);
        let mut others = self.others.iter();
        domain.is_some_and(|domain| others.any(|it| it.eq_ignore_ascii_case(domain)))
    }

    /// The query to the sources for this name and algorithm; `None` if no source can have such a user.
    pub(super) fn wanted(&self, name: &[u8], algorithm: Algorithm) -> Option<QueriedUser> {
        let name = std::str::from_utf8(name).ok();
        let name = name.filter(|name| !name.is_empty() && !self.is_in_other_domain(name))?;
        Some(QueriedUser {
            realm: self.realm.as_str().into(),
            name: name.into(),
            algorithm: password_algorithm(algorithm)?,
        })
    }

    fn add_user(&mut self, name: &str, secret: &UserSecret) {
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

    /// Whether a source of this realm can't look up users now.
    pub(super) fn is_source_down(&self) -> bool {
        self.sources.as_ref().is_some_and(|it| !it.is_available())
    }

    pub(super) fn policy(&self) -> Policy<'_> {
        Policy {
            realm: self.realm.as_bytes(),
            algorithms: &self.algorithms,
            nonce_lifetime_s: NONCE_LIFETIME_S,
            takes_no_qop: self.takes_no_qop,
            takes_any_uri: self.takes_any_uri,
            offers_integrity: self.offers_integrity,
            hashes_usernames: self.hashes_usernames,
        }
    }

    /// The key of the user whom these credentials name.
    pub(super) fn key_of(&self, credentials: &Credentials<'_>) -> Option<&Ha1> {
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
    pub(super) fn name_in<'c>(&'c self, credentials: &Credentials<'c>) -> Cow<'c, [u8]> {
        let name = credentials.name();
        match credentials.is_hashed {
            true => Cow::Borrowed(self.hashed.get(&*name).map_or(&[], |name| &name[..])),
            false => name,
        }
    }

    /// The user name under which wrong passwords count, without escapes. For a `userhash` of no known user (RFC 7616
    /// §3.4.4), it is the hash.
    pub(super) fn name_for_limits<'c>(&'c self, credentials: &Credentials<'c>) -> Cow<'c, [u8]> {
        match self.name_in(credentials) {
            name if name.is_empty() => credentials.name(),
            name => name,
        }
    }

    /// The credentials for our realm. Credentials for other realms, and of other schemes, are for other elements (RFC
    /// 3261 §22.3).
    pub(super) fn credentials_in<'m>(
        &self,
        message: &Message<'m>,
        kind: HeaderKind,
    ) -> Result<Credentials<'m>, Rejection> {
        for header in message.authorizations(kind) {
            // RFC 7616 §3.4: what is improper, or lacks a parameter, gets a 4xx of its own.
            let malformed = Rejection::Bad(match kind {
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
        Err(Rejection::Challenge(ChallengeReason::Missing))
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

/// All realms of these settings, and the index of the realm of each domain that has its own.
pub(super) fn realms_of(shared: &SipConfig) -> (Vec<RealmUsers>, HashMap<Vec<u8>, usize>) {
    let settings = &shared.settings;
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
    let mut realms = vec![RealmUsers::new(shared, &others)];
    let mut places = HashMap::new();
    for (name, own) in own {
        places.insert(name.clone().into_bytes(), realms.len());
        realms.push(RealmUsers::of_domain(shared, own, &name, &others));
    }
    (realms, places)
}
