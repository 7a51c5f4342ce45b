//! Users and their passwords in memory, checked by Digest (RFC 3261 §22, RFC 7616, RFC 8760): for programs that have a
//! list of users. A program that asks a database implements [`Authentication`](crate::proxy::Authentication) itself,
//! with [`sip::digest`].

use std::collections::BTreeMap;
use std::net::IpAddr;

use sip::build::Builder;
use sip::digest::{
    Algorithm, Credentials, DigestRequest, Ha1, NONCE_LEN, NonceKeys, Outcome, Policy, Replay,
    Server, challenge,
};
use sip::flow::Flow;
use sip::header::Authorization;
use sip::{HashKey, HeaderKind, Message, Method, Now};

use crate::proxy::Authenticated;

/// The algorithms of challenges. A client uses the first one that it supports (RFC 8760 §2.4); some phones support only
/// MD5.
const ALGORITHMS: [Algorithm; 2] = [Algorithm::Sha256, Algorithm::Md5];
/// The lifetime of a nonce, in seconds.
const NONCE_LIFETIME_S: u64 = 600;
/// The number of nonces whose used counts are stored, so that credentials are accepted once. A full table uses
/// 34 bytes for each.
const MAX_NONCES: usize = 16_384;

/// Who asks for credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AskedBy {
    /// A registrar or user agent: Authorization, 401 with WWW-Authenticate.
    Registrar,
    /// A proxy: Proxy-Authorization, 407 with Proxy-Authenticate.
    Proxy,
}

impl AskedBy {
    const fn credentials(self) -> HeaderKind {
        match self {
            AskedBy::Registrar => HeaderKind::Authorization,
            AskedBy::Proxy => HeaderKind::ProxyAuthorization,
        }
    }

    const fn challenge(self) -> HeaderKind {
        match self {
            AskedBy::Registrar => HeaderKind::WwwAuthenticate,
            AskedBy::Proxy => HeaderKind::ProxyAuthenticate,
        }
    }
}

/// The digest policy of a realm.
const fn policy(realm: &[u8]) -> Policy<'_> {
    Policy {
        realm,
        algorithms: &ALGORITHMS,
        nonce_lifetime_s: NONCE_LIFETIME_S,
        takes_no_qop: false,
        takes_any_uri: false,
        offers_integrity: false,
        hashes_usernames: false,
    }
}

/// The users of one realm.
#[derive(Debug)]
pub struct Users {
    realm: Vec<u8>,
    users: BTreeMap<Vec<u8>, [Ha1; ALGORITHMS.len()]>,
    nonces: NonceKeys,
    replay: Replay,
    issued: u64,
    lines: Vec<u8>,
}

impl Users {
    /// Without users. `key` is random and secret: nonces are made of it.
    #[must_use]
    pub fn new(realm: &str, key: HashKey) -> Users {
        Users {
            realm: realm.as_bytes().to_vec(),
            users: BTreeMap::new(),
            nonces: NonceKeys::new(key.derive(u64::from_le_bytes(*b"users   "))),
            replay: Replay::new(MAX_NONCES, NONCE_LIFETIME_S),
            issued: 0,
            lines: Vec::new(),
        }
    }

    /// Adds a user, or gives one another password. Only hashes of the password are kept.
    pub fn add(&mut self, name: &str, password: &str) {
        let ha1 = |algorithm| Ha1::of(algorithm, name.as_bytes(), &self.realm, password.as_bytes());
        let keys = ALGORITHMS.map(ha1);
        self.users.insert(name.as_bytes().to_vec(), keys);
    }

    /// Whether there is a user with this name.
    #[must_use]
    pub fn contains(&self, name: &[u8]) -> bool {
        self.users.contains_key(name)
    }

    /// Whether credentials are for this realm.
    #[must_use]
    pub fn is_for_us(&self, credentials: &Authorization<'_>) -> bool {
        Credentials::of(credentials).is_some_and(|it| it.are_for(&self.realm))
    }

    /// Finds out who has sent a request: [`Authenticated::User`], [`Authenticated::Challenge`] or
    /// [`Authenticated::Bad`].
    pub fn check(
        &mut self,
        now: Now,
        request: &Message<'_>,
        flow: &Flow,
        by: AskedBy,
    ) -> Authenticated<'_> {
        let source = match flow.remote.ip().to_canonical() {
            IpAddr::V4(v4) => v4.octets().to_vec(),
            IpAddr::V6(v6) => v6.octets().to_vec(),
        };
        let mut sent = request
            .authorizations(by.credentials())
            .filter_map(Result::ok)
            .filter_map(|it| Credentials::of(&it));
        let is_stale = match sent.find(|it| it.are_for(&self.realm)) {
            None => false,
            Some(credentials) => match self.outcome(now, request, &credentials, &source) {
                Outcome::Accepted => {
                    let user = self.users.get_key_value(&*credentials.name());
                    return user.map_or(Authenticated::Bad("No Such User"), |(name, _)| {
                        Authenticated::User(name)
                    });
                }
                Outcome::Bad(mismatch) => return Authenticated::Bad(mismatch.phrase()),
                Outcome::Stale => true,
                Outcome::Denied => false,
            },
        };
        self.challenge(now, by, &source, is_stale)
    }

    /// Checks Digest credentials with the passwords of the users. `source` is the address of the client in network
    /// order.
    fn outcome(
        &mut self,
        now: Now,
        request: &Message<'_>,
        credentials: &Credentials<'_>,
        source: &[u8],
    ) -> Outcome {
        let asked = DigestRequest {
            method: request.method().unwrap_or(Method::Ack),
            uri: request.request_uri().unwrap_or_default(),
            body: request.body(),
            source,
        };
        let policy = policy(&self.realm);
        let server = Server {
            policy: &policy,
            keys: &self.nonces,
        };
        match server.check(credentials, &asked, now.unix_s) {
            Err(outcome) => outcome,
            Ok(()) => {
                let mut known = ALGORITHMS.iter();
                let place = known.position(|known| credentials.algorithm == Some(*known));
                let user = self.users.get(&*credentials.name());
                let key = user.zip(place).and_then(|(keys, place)| keys.get(place));
                let key = key.filter(|_| !credentials.is_hashed);
                let replay = &mut self.replay;
                let note = |id, issued, count| replay.note(id, issued, count);
                server.verify(credentials, &asked, key, now.unix_s, note)
            }
        }
    }

    fn challenge(
        &mut self,
        now: Now,
        by: AskedBy,
        source: &[u8],
        is_stale: bool,
    ) -> Authenticated<'_> {
        self.issued += 1;
        let [_, _, salt @ ..] = self.issued.to_be_bytes();
        let mut nonce = [0; NONCE_LEN];
        self.nonces
            .issue(&self.realm, source, salt, now.unix_s, &mut nonce);
        // For each algorithm the realm, whose characters may need backslashes, the nonce and the names.
        let mut lines = vec![0; ALGORITHMS.len() * (2 * self.realm.len() + NONCE_LEN + 128)];
        let mut builder = Builder::fields(&mut lines);
        let policy = policy(&self.realm);
        challenge(&mut builder, by.challenge(), &policy, &nonce, is_stale);
        self.lines = builder.finish_fields().unwrap_or_default().to_vec();
        Authenticated::Challenge(&self.lines)
    }
}
