//! Who may register at the user agent server for tests: users of TURN with their passwords, by Digest (RFC 8760).
//!
//! Nonces take no memory: they carry their time and a MAC, and are bound to the client's address. Every worker can check them. Which counts of
//! a nonce were used is kept by each worker for itself, in memory that does not grow.

use super::settings::Orders;
use sip::build::{BuildError, Builder};
use sip::digest::{
    Algorithm, Credentials, Ha1, NONCE_LEN, NonceKeys, Outcome, Policy, Replay, Server, challenge,
};
use sip::{HashKey, HeaderKind, Message};
use std::collections::HashMap;
use std::net::IpAddr;

/// The best first; MD5 for clients that know no better.
const ALGORITHMS: [Algorithm; 2] = [Algorithm::Sha256, Algorithm::Md5];

/// RFC 7616 §3.3 leaves it open; long enough for a client to ask its user, short enough to be of little use to others.
const NONCE_LIFETIME_S: u64 = 600;

/// Nonces whose counts are remembered: one for each client that registers within a nonce's life. 34 bytes each.
const NONCES: usize = 65_536;

/// Why a request is not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// 401; `true`: the credentials were right once.
    Challenge(bool),
    /// 400.
    Bad,
}

/// Checks credentials.
#[derive(Debug)]
pub(super) struct Gate {
    realm: String,
    users: HashMap<Vec<u8>, [Ha1; ALGORITHMS.len()]>,
    keys: NonceKeys,
    replay: Replay,
    /// Makes each nonce another one.
    salt: u64,
    is_on: bool,
}

impl Gate {
    /// For the users of these orders.
    pub(super) fn new(orders: &Orders, key: HashKey, seed: u64) -> Gate {
        let realm = orders.realm.clone();
        let users = orders.users.iter().map(|(name, password)| {
            let (name, password) = (name.as_bytes(), password.as_bytes());
            let keys =
                ALGORITHMS.map(|algorithm| Ha1::of(algorithm, name, realm.as_bytes(), password));
            (name.to_vec(), keys)
        });
        Gate {
            users: users.collect(),
            realm,
            keys: NonceKeys::new(key),
            replay: remembering(orders),
            salt: seed,
            is_on: orders.settings.challenge,
        }
    }

    /// Takes other users; what was remembered of nonces stays.
    pub(super) fn obey(&mut self, orders: &Orders) {
        let began = orders.settings.challenge && !self.is_on;
        let gate = Gate::new(orders, HashKey::new([0; 16]), 0);
        (self.users, self.realm, self.is_on) = (gate.users, gate.realm, gate.is_on);
        if began {
            self.replay = gate.replay;
        }
    }

    fn policy(realm: &str) -> Policy<'_> {
        Policy {
            realm: realm.as_bytes(),
            algorithms: &ALGORITHMS,
            nonce_lifetime_s: NONCE_LIFETIME_S,
            takes_no_qop: false,
        }
    }

    /// Whether one of our users sent the request.
    ///
    /// # Errors
    /// How it is stopped otherwise.
    pub(super) fn check(
        &mut self,
        message: &Message<'_>,
        source: IpAddr,
        unix_s: u64,
    ) -> Result<(), Stop> {
        let policy = Self::policy(&self.realm);
        // Those for other realms, and of other schemes, are somebody else's (RFC 3261 §22.3).
        let credentials = message
            .authorizations(HeaderKind::Authorization)
            .filter_map(|header| Credentials::of(&header.ok()?))
            .find(|credentials| credentials.realm == policy.realm);
        let Some(credentials) = credentials else {
            return Err(Stop::Challenge(false));
        };
        let server = Server {
            policy: &policy,
            keys: &self.keys,
        };
        let (mut place, source) = ([0; 16], source.to_canonical());
        let source = octets(source, &mut place);
        let uri = message.request_uri().unwrap_or_default();
        let outcome = match server.check(&credentials, uri, source, unix_s) {
            Err(outcome) => outcome,
            Ok(()) => {
                let number = ALGORITHMS
                    .iter()
                    .position(|known| credentials.algorithm == Some(*known));
                let keys = self.users.get(credentials.username);
                let ha1 = keys.zip(number).map(|(keys, number)| &keys[number]);
                let Some(method) = message.method() else {
                    return Err(Stop::Bad);
                };
                server.verify(&credentials, method, ha1, source, unix_s, &mut self.replay)
            }
        };
        match outcome {
            Outcome::Accepted => Ok(()),
            Outcome::Stale => Err(Stop::Challenge(true)),
            Outcome::Denied => Err(Stop::Challenge(false)),
            Outcome::Bad => Err(Stop::Bad),
        }
    }

    /// Writes the header lines of a 401.
    pub(super) fn challenge<'b>(
        &mut self,
        buffer: &'b mut [u8],
        source: IpAddr,
        is_stale: bool,
        unix_s: u64,
    ) -> Result<&'b [u8], BuildError> {
        self.salt = self.salt.wrapping_add(1);
        let [_, _, salt @ ..] = self.salt.to_be_bytes();
        let (mut nonce, mut place) = ([0; NONCE_LEN], [0; 16]);
        let source = octets(source.to_canonical(), &mut place);
        self.keys
            .issue(self.realm.as_bytes(), source, salt, unix_s, &mut nonce);
        let mut builder = Builder::fields(buffer);
        let policy = Self::policy(&self.realm);
        let kind = HeaderKind::WwwAuthenticate;
        challenge(&mut builder, kind, &policy, &nonce, is_stale);
        builder.finish_fields()
    }
}

/// Memory for nonces, where any are issued.
fn remembering(orders: &Orders) -> Replay {
    Replay::new(if orders.settings.challenge { NONCES } else { 1 })
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
