//! Who may register: users of TURN with their passwords, by Digest (RFC 7616, RFC 8760).
//!
//! Nonces take no memory: they carry their time and a MAC, and are bound to the client's address. Every worker can check them. Which counts of
//! a nonce were used is kept by all of them together, so that an answer counts once wherever it comes in, in memory that does not grow.

use super::Secrets;
use super::counters::DIGEST_OUTCOMES;
use super::settings::Orders;
use sip::build::{BuildError, Builder};
use sip::digest::{
    Algorithm, Asked, Credentials, Ha1, NONCE_LEN, NonceKeys, Outcome, Policy, Replay, Server, Use,
    challenge,
};
use sip::header::Authorization;
use sip::{HeaderKind, Message};
use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// RFC 7616 §3.3 leaves it open; long enough for a client to ask its user, short enough to be of little use to others.
const NONCE_LIFETIME_S: u64 = 600;

/// Nonces whose counts are remembered: one for each client that registers within a nonce's life. 34 bytes each.
const NONCES: usize = 1 << 18;

/// Parts of that memory that are locked for themselves: two workers hardly ever meet in one.
const PARTS: usize = 64;

/// Room for Authentication-Info, in which a client's nonce is said again; with a longer one than anybody has there is none.
const CONFIRMATION: usize = 1024;

/// Why a request is not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// 401.
    Challenge(Why),
    /// 400, with this reason.
    Bad(&'static str),
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

/// Whom to let in, and how they are to show who they are.
#[derive(Debug)]
struct Guests {
    realm: String,
    algorithms: Vec<Algorithm>,
    offers_integrity: bool,
    hashes_usernames: bool,
    /// What a user's password comes to, by each of the algorithms.
    users: HashMap<Vec<u8>, Box<[Ha1]>>,
    /// Their names by the hashes of them (RFC 7616 §3.4.4), by each of the algorithms.
    hashed: HashMap<Vec<u8>, Vec<u8>>,
    takes_any_uri: bool,
}

impl Guests {
    fn new(orders: &Orders) -> Guests {
        let settings = &orders.settings;
        let algorithms = settings.digest_algorithms.clone();
        let realm = orders.realm.as_bytes();
        let (mut users, mut hashed) = (HashMap::new(), HashMap::new());
        // Without a challenge nobody asks for them.
        for (name, password) in orders.users.iter().filter(|_| orders.asks_users()) {
            let (name, password) = (name.as_bytes(), password.as_bytes());
            let keys = algorithms.iter();
            let keys = keys.map(|algorithm| Ha1::of(*algorithm, name, realm, password));
            users.insert(name.to_vec(), keys.collect());
            hashed.extend(algorithms.iter().map(|algorithm| {
                let hash = algorithm.hash_username(name, realm);
                (hash.as_bytes().to_vec(), name.to_vec())
            }));
        }
        Guests {
            users,
            hashed,
            realm: orders.realm.clone(),
            algorithms,
            offers_integrity: settings.auth_int,
            takes_any_uri: settings.digest_any_uri,
            hashes_usernames: settings.userhash,
        }
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
        keys?.get(place)
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

/// Checks credentials.
#[derive(Debug)]
pub(super) struct Gate {
    guests: Guests,
    pub(super) outcomes: [u64; DIGEST_OUTCOMES.len()],
    keys: NonceKeys,
    used: UsedCounts,
    /// Makes each nonce another one.
    salt: u64,
    /// The user whose request was let through last.
    user: Vec<u8>,
    /// Where Authentication-Info is written.
    confirmation: Box<[u8; CONFIRMATION]>,
    confirmed: usize,
}

impl Gate {
    /// For the users of these orders.
    pub(super) fn new(orders: &Orders, secrets: &Secrets, seed: u64) -> Gate {
        Gate {
            guests: Guests::new(orders),
            outcomes: [0; DIGEST_OUTCOMES.len()],
            keys: NonceKeys::new(secrets.key),
            used: secrets.used_counts.clone(),
            salt: seed,
            user: Vec::new(),
            confirmation: Box::new([0; CONFIRMATION]),
            confirmed: 0,
        }
    }

    /// Takes other users and settings; what was remembered of nonces stays.
    pub(super) fn obey(&mut self, orders: &Orders) {
        self.guests = Guests::new(orders);
    }

    /// Whether there is a user of this name.
    pub(super) fn has_user(&self, name: &[u8]) -> bool {
        self.guests.users.contains_key(name)
    }

    /// Whether credentials are for our realm.
    pub(super) fn is_for_us(&self, credentials: &Authorization<'_>) -> bool {
        let credentials = Credentials::of(credentials);
        credentials.is_some_and(|it| it.are_for(self.guests.realm.as_bytes()))
    }

    /// Whether one of our users sent the request, by the credentials in headers of this kind. If so, [`Gate::confirmation`] has what is to be said to that.
    ///
    /// # Errors
    /// How it is stopped otherwise.
    pub(super) fn check(
        &mut self,
        message: &Message<'_>,
        kind: HeaderKind,
        source: IpAddr,
        unix_s: u64,
    ) -> Result<(), Stop> {
        let outcome = self.check_uncounted(message, kind, source, unix_s);
        let place = match outcome {
            Ok(()) => 0,
            Err(Stop::Challenge(Why::Missing)) => 1,
            Err(Stop::Challenge(Why::Stale)) => 2,
            Err(Stop::Challenge(Why::Denied)) => 3,
            Err(Stop::Bad(_)) => 4,
        };
        const { assert!(DIGEST_OUTCOMES.len() == 5) };
        self.outcomes[place] += 1;
        outcome
    }

    fn check_uncounted(
        &mut self,
        message: &Message<'_>,
        kind: HeaderKind,
        source: IpAddr,
        unix_s: u64,
    ) -> Result<(), Stop> {
        let credentials = self.guests.credentials_in(message, kind)?;
        let mut place = [0; 16];
        let (Some(method), Some(uri)) = (message.method(), message.request_uri()) else {
            return Err(Stop::Bad("Bad Request"));
        };
        let asked = Asked {
            method,
            uri,
            body: message.body(),
            source: octets(source.to_canonical(), &mut place),
        };
        let (policy, ha1) = (self.guests.policy(), self.guests.key_of(&credentials));
        let server = Server {
            policy: &policy,
            keys: &self.keys,
        };
        let note = |id, issued, count| self.used.note(id, issued, count);
        let outcome = match server.check(&credentials, &asked, unix_s) {
            Ok(()) => server.verify(&credentials, &asked, ha1, unix_s, note),
            Err(outcome) => outcome,
        };
        match (outcome, ha1) {
            (Outcome::Accepted, Some(ha1)) => {
                let nonce = server
                    .is_ageing(&credentials, asked.source, unix_s)
                    .then(|| issue(&self.keys, &policy, &mut self.salt, asked.source, unix_s));
                let mut lines = Builder::fields(&mut self.confirmation[..]);
                let (kind, nonce) = (HeaderKind::AuthenticationInfo, nonce.as_ref());
                Server::confirm(
                    &mut lines,
                    kind,
                    &credentials,
                    ha1,
                    b"",
                    nonce.map(|n| &n[..]),
                );
                self.confirmed = lines.finish_fields().map_or(0, <[u8]>::len);
                self.user.clear();
                self.user
                    .extend_from_slice(&self.guests.name_in(&credentials));
                Ok(())
            }
            (Outcome::Stale, _) => Err(Stop::Challenge(Why::Stale)),
            (Outcome::Denied | Outcome::Accepted, _) => Err(Stop::Challenge(Why::Denied)),
            (Outcome::Bad(flaw), _) => Err(Stop::Bad(flaw.phrase())),
        }
    }

    /// The header line for the answer to the request that was let through last: that the server knows the password as well.
    pub(super) fn confirmation(&self) -> &[u8] {
        &self.confirmation[..self.confirmed]
    }

    /// The name of the user whose request was let through last.
    pub(super) fn user(&self) -> &[u8] {
        &self.user
    }

    /// Writes the header lines of a 401 or a 407.
    pub(super) fn challenge<'b>(
        &mut self,
        buffer: &'b mut [u8],
        kind: HeaderKind,
        source: IpAddr,
        why: Why,
        unix_s: u64,
    ) -> Result<&'b [u8], BuildError> {
        let mut place = [0; 16];
        let source = octets(source.to_canonical(), &mut place);
        let policy = self.guests.policy();
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
