//! Who may register and call: users of TURN with their passwords, by Digest (RFC 7616, RFC 8760).
//!
//! [`DigestAuthenticator`] checks the credentials of a request against the users of a realm (`realm`). If a user is not
//! in the settings, it queries the sources of credentials, such as stores (`users`). If a source responds later, the
//! request waits ([`WaitingRequests`]).
//!
//! Nonces take no memory: they carry their time and a MAC, and are bound to the client's address. Every worker can
//! check them. All workers share the counts of nonces that were used (`nonce_counts`), in memory that does not grow.
//!
//! **While a source can't look up users**, wrong credentials get 503 instead of another challenge, for every name. The
//! server has the keys of some users in memory and can't look up other names: two codes would reveal which names are
//! users. A request without credentials gets a challenge as always.

mod nonce_counts;
mod realm;
mod users;

pub(crate) use nonce_counts::UsedCounts;
pub(super) use realm::{COMMON_REALM, NONCE_LIFETIME_S, RealmKey};

use super::Secrets;
use super::bans::{Bans, FailureResult, NameInRealm};
use super::counters::DIGEST_OUTCOMES;
use super::lookups::{LookupResult, WaitingRequests};
use super::report::FailureReports;
use super::screen::log_ban;
use super::settings::SipConfig;
use realm::{RealmUsers, realms_of};
use sip::build::{BuildError, Builder};
use sip::digest::{
    Credentials, DigestRequest, Ha1, NONCE_LEN, NonceKeys, Outcome, Policy, Server, challenge,
};
use sip::flow::Flow;
use sip::header::Authorization;
use sip::{HashKey, HeaderKind, Message};
use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;
use users::UserLookupResult;

/// The size of the buffer for Authentication-Info, which repeats the cnonce. If the cnonce is too long, the response
/// has no Authentication-Info.
const AUTHENTICATION_INFO_BYTES: usize = 1024;

/// The maximum of `most_keys`. Without it, a source that returns many keys would slow each later check.
const MAX_KEYS: usize = 4;

/// Why a request is not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rejection {
    /// 401.
    Challenge(ChallengeReason),
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

/// Why credentials are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChallengeReason {
    /// The request has no credentials for this realm.
    Missing,
    /// The digest is right, but the nonce has expired or its count was used.
    Stale,
    /// The user name or the digest is wrong.
    Denied,
}

/// Checks credentials.
#[derive(Debug)]
pub(super) struct DigestAuthenticator {
    /// The realm of all domains, then those that domains have of their own.
    realms: Vec<RealmUsers>,
    /// The index in `realms` of each domain that has its own realm.
    realm_by_domain: HashMap<Vec<u8>, usize>,
    pub(super) outcomes: [u64; DIGEST_OUTCOMES.len()],
    keys: NonceKeys,
    used: UsedCounts,
    /// Makes each nonce another one.
    salt: u64,
    bans: Bans,
    /// How long a source is banned.
    ban: Duration,
    /// Requests that wait for a source of credentials.
    pub(super) lookups: WaitingRequests,
    failures: FailureReports,
    /// The result of a query, while the worker handles the request that waited for it.
    lookup_result: Option<LookupResult>,
    /// The number of keys that each check compares, so that its duration does not depend on the user. A source may have
    /// an old and a new key.
    most_keys: usize,
    /// The user whose request was let through last.
    user: Vec<u8>,
    /// Where Authentication-Info is written.
    confirmation: Box<[u8; AUTHENTICATION_INFO_BYTES]>,
    confirmed: usize,
}

impl DigestAuthenticator {
    /// Checks the users of these settings.
    pub(super) fn new(shared: &SipConfig, secrets: &Secrets, seed: u64) -> DigestAuthenticator {
        let (realms, realm_by_domain) = realms_of(shared);
        DigestAuthenticator {
            realms,
            realm_by_domain,
            outcomes: [0; DIGEST_OUTCOMES.len()],
            keys: nonce_keys(secrets.key, secrets.runs.own),
            used: secrets.used_counts.clone(),
            salt: seed,
            bans: secrets.bans.clone(),
            ban: shared.settings.ban,
            lookups: WaitingRequests::default(),
            failures: FailureReports::new(shared.reporter.clone()),
            lookup_result: None,
            most_keys: 1,
            user: Vec::new(),
            confirmation: Box::new([0; AUTHENTICATION_INFO_BYTES]),
            confirmed: 0,
        }
    }

    /// Applies new users and settings. The counts of used nonces stay.
    pub(super) fn apply_settings(&mut self, shared: &SipConfig) {
        (self.realms, self.realm_by_domain) = realms_of(shared);
        self.ban = shared.settings.ban;
        self.failures.reporter = shared.reporter.clone();
    }

    /// The realm of a domain, which is named as addresses of record have it.
    pub(super) fn realm_of(&self, domain: &[u8]) -> RealmKey {
        RealmKey(self.realm_by_domain.get(domain).copied().unwrap_or(0))
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

    /// The realm of a challenge if a request names no domain: the first one that has users.
    pub(super) fn common_realm(&self) -> RealmKey {
        let mut realms = self.realms.iter();
        realms
            .position(|realm| !realm.users.is_empty() || realm.sources.is_some())
            .map_or(COMMON_REALM, RealmKey)
    }

    /// Sets the result that the next request has waited for; `None` removes it.
    pub(super) fn set_lookup_result(&mut self, result: Option<LookupResult>) {
        self.lookup_result = result;
    }

    fn realm(&self, RealmKey(place): RealmKey) -> &RealmUsers {
        // Keys live no longer than the settings that they are of.
        self.realms.get(place).unwrap_or(&self.realms[0])
    }

    /// Whether credentials are for one of our realms.
    pub(super) fn is_for_us(&self, credentials: &Authorization<'_>) -> bool {
        let credentials = Credentials::of(credentials);
        let mut realms = self.realms.iter();
        credentials.is_some_and(|it| realms.any(|realm| it.are_for(realm.realm.as_bytes())))
    }

    /// Checks the credentials in headers of this kind of a request that came by this flow. If a user of this realm sent
    /// it, [`DigestAuthenticator::confirmation`] has the Authentication-Info line for the response.
    ///
    /// # Errors
    /// Why the request is not accepted. After [`Rejection::Pending`], [`DigestAuthenticator::lookups`] has the query,
    /// and the caller lets the request wait there.
    pub(super) fn check(
        &mut self,
        realm: RealmKey,
        asked: (&Message<'_>, HeaderKind),
        flow: &Flow,
        unix_s: u64,
    ) -> Result<(), Rejection> {
        let outcome = self.check_uncounted(realm, asked, flow, unix_s);
        let place = match outcome {
            Ok(()) => 0,
            Err(Rejection::Challenge(ChallengeReason::Missing)) => 1,
            Err(Rejection::Challenge(ChallengeReason::Stale)) => 2,
            Err(Rejection::Challenge(ChallengeReason::Denied)) => 3,
            Err(Rejection::Bad(_)) => 4,
            Err(Rejection::Slowed) => 5,
            Err(Rejection::Unavailable) => 6,
            // The request is counted when it resumes.
            Err(Rejection::Pending) => return outcome,
        };
        const { assert!(DIGEST_OUTCOMES.len() == 7) };
        self.outcomes[place] += 1;
        outcome
    }

    /// Counts a request that may not wait for a source.
    pub(super) fn count_unavailable(&mut self) {
        self.outcomes[6] += 1;
    }

    /// Checks the credentials of a request for a realm. `kind` is Authorization or Proxy-Authorization.
    fn check_uncounted(
        &mut self,
        realm: RealmKey,
        (message, kind): (&Message<'_>, HeaderKind),
        flow: &Flow,
        unix_s: u64,
    ) -> Result<(), Rejection> {
        let realm_users = self.realms.get(realm.0).unwrap_or(&self.realms[0]);
        let credentials = realm_users.credentials_in(message, kind)?;
        let mut place = [0; 16];
        let (Some(method), Some(uri)) = (message.method(), message.request_uri()) else {
            return Err(Rejection::Bad("Bad Request"));
        };
        let asked = DigestRequest {
            method,
            uri,
            body: message.body(),
            source: octets(flow.remote.ip().to_canonical(), &mut place),
        };
        let policy = realm_users.policy();
        let server = Server {
            policy: &policy,
            keys: &self.keys,
        };
        server
            .check(&credentials, &asked, unix_s)
            .map_err(rejection_of)?;
        let ip = flow.remote.ip();
        let name = realm_users.name_for_limits(&credentials);
        let user = NameInRealm(realm_users.realm.as_bytes(), &name);
        if self.bans.is_slowed(unix_s * 1000, ip, user) {
            return Err(match realm_users.is_source_down() {
                true => Rejection::Unavailable,
                false => Rejection::Slowed,
            });
        }
        if let Some(ha1) = realm_users.key_of(&credentials) {
            let ha1 = ha1.clone();
            return self.verify(realm, (&credentials, &asked, flow), &[ha1], unix_s);
        }
        let algorithm = credentials.algorithm.filter(|_| !credentials.is_hashed);
        let wanted = algorithm.and_then(|it| realm_users.wanted(&credentials.name(), it));
        let keys = match (realm_users.sources.clone(), wanted) {
            // A name in the settings is never that of a user of a store, even if the settings have no key for this
            // algorithm.
            _ if realm_users.users.contains_key(&*credentials.name()) => Vec::new(),
            (Some(source), Some(wanted)) => {
                match self.query_source(&source, wanted, flow, unix_s) {
                    UserLookupResult::Keys(keys) => keys,
                    UserLookupResult::Nobody => Vec::new(),
                    UserLookupResult::Pending => return Err(Rejection::Pending),
                    UserLookupResult::Unavailable => return Err(Rejection::Unavailable),
                }
            }
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
    ) -> Result<(), Rejection> {
        let realm_users = self.realms.get(realm.0).unwrap_or(&self.realms[0]);
        let policy = realm_users.policy();
        let server = Server {
            policy: &policy,
            keys: &self.keys,
        };
        // Without a key the check lasts as long, so its duration does not reveal whether the user exists.
        self.most_keys = self.most_keys.max(keys.len().min(MAX_KEYS));
        let keys = (keys, self.most_keys);
        let note = |id, issued, count| self.used.note(id, issued, count);
        let (outcome, accepted) = server.verify_any(credentials, asked, keys, unix_s, note);
        // The nonce was issued to this source address, so the address is not forged. A failure for an unknown user
        // counts as well.
        if outcome == Outcome::Denied {
            let (ip, user) = (flow.remote.ip(), credentials.username);
            let name = realm_users.name_for_limits(credentials);
            let named = NameInRealm(realm_users.realm.as_bytes(), &name);
            let noted = self
                .bans
                .note_wrong_digest(unix_s * 1000, ip, named, self.ban);
            if noted == FailureResult::Banned {
                log_ban(ip, self.ban);
            }
            self.failures.failed(unix_s, flow, &realm_users.realm, user);
            if realm_users.is_source_down() {
                return Err(Rejection::Unavailable);
            }
        }
        let (Outcome::Accepted, Some(ha1)) = (outcome, accepted) else {
            return Err(rejection_of(outcome));
        };
        let nonce = server
            .needs_new_nonce(credentials, asked.source, unix_s)
            .then(|| issue(&self.keys, &policy, &mut self.salt, asked.source, unix_s));
        let mut lines = Builder::fields(&mut self.confirmation[..]);
        let (kind, nonce) = (HeaderKind::AuthenticationInfo, nonce.as_ref());
        let nonce = nonce.map(|n| &n[..]);
        Server::confirm(&mut lines, kind, credentials, ha1, b"", nonce);
        self.confirmed = lines.finish_fields().map_or(0, <[u8]>::len);
        self.user.clear();
        self.user
            .extend_from_slice(&realm_users.name_in(credentials));
        if let Some(domain) = &realm_users.domain {
            self.user.push(b'@');
            self.user.extend_from_slice(domain.as_bytes());
        }
        Ok(())
    }

    /// The Authentication-Info line for the response to the last accepted request. Its `rspauth` proves that the server
    /// has the password.
    pub(super) fn confirmation(&self) -> &[u8] {
        &self.confirmation[..self.confirmed]
    }

    /// The name of the user whose request was let through last; a user of one domain has the name of the address of
    /// record.
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
        why: ChallengeReason,
        unix_s: u64,
    ) -> Result<&'b [u8], BuildError> {
        let mut place = [0; 16];
        let source = octets(source.to_canonical(), &mut place);
        let realm_users = self.realms.get(realm.0).unwrap_or(&self.realms[0]);
        let policy = realm_users.policy();
        let nonce = issue(&self.keys, &policy, &mut self.salt, source, unix_s);
        let mut builder = Builder::fields(buffer);
        challenge(
            &mut builder,
            kind,
            &policy,
            &nonce,
            why == ChallengeReason::Stale,
        );
        builder.finish_fields()
    }
}

/// The keys of nonces, which differ in each run.
///
/// After an upgrade the new process has the secret key of the old one, but not the counts of nonces that were used.
/// With one key for both, credentials that somebody has seen would work once more. With two keys, nonces of the other
/// process are stale (RFC 7616 §3.3), and a client needs one more round trip.
pub(super) fn nonce_keys(key: HashKey, run: u32) -> NonceKeys {
    let key = key.derive(u64::from_le_bytes(*b"nonces.."));
    NonceKeys::new(key.derive(run.into()))
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

/// The [`Rejection`] for credentials that are not accepted.
fn rejection_of(outcome: Outcome) -> Rejection {
    match outcome {
        Outcome::Stale => Rejection::Challenge(ChallengeReason::Stale),
        Outcome::Denied | Outcome::Accepted => Rejection::Challenge(ChallengeReason::Denied),
        Outcome::Bad(flaw) => Rejection::Bad(flaw.phrase()),
    }
}

/// The bytes of an address.
pub(super) fn octets(ip: IpAddr, place: &mut [u8; 16]) -> &[u8] {
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

#[cfg(test)]
mod tests {
    use super::*;
    use sip::digest::NonceCheck;

    #[test]
    fn a_nonce_is_valid_in_its_run_alone() {
        let key = HashKey::new([7; 16]);
        let mut nonce = [0; NONCE_LEN];
        nonce_keys(key, 1).issue(b"example.com", b"source", [1; 6], 1_000, &mut nonce);
        let check = |run| nonce_keys(key, run).check(&nonce, b"example.com", b"source", 1_001, 60);
        assert!(matches!(check(1), NonceCheck::Valid { .. }));
        assert_eq!(check(2), NonceCheck::Forged);
    }
}
