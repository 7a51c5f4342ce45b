//! The long-term credential mechanism (RFC 8489 §9.2.4): the checks in the order of the RFC.

use std::sync::Arc;

use stun::nonce::{NonceCheck, SecurityFeatures};
use stun::{
    AttributeType, HmacKey, IntegrityAlgorithm, Message, Nonce, PasswordAlgorithm, Realm, Userhash,
    Username,
};

use super::Server;
use super::challenge::Offer;
use super::credentials::{Claim, KeyQuery};
use super::user::{Protection, User, hmac_key};
use crate::{ClientPath, Now};

/// Why a request is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unauthenticated {
    /// 401: no integrity, no such user, or the wrong password.
    Challenge,
    /// 400: an attribute is missing or does not match what was offered.
    BadRequest,
    /// 438: all is right but the nonce.
    StaleNonce,
}

/// What a request says about itself, none of it proven.
struct Claims<'a> {
    username: Option<&'a str>,
    userhash: Option<[u8; 32]>,
    realm: &'a str,
    nonce: &'a [u8],
    protection: Protection,
}

impl Claims<'_> {
    fn who(&self) -> Claim<'_> {
        match (&self.username, &self.userhash) {
            (Some(name), _) => Claim::Username(name),
            (None, Some(hash)) => Claim::Userhash(hash),
            // `read` lets nothing through that has neither; this name has no user.
            (None, None) => Claim::Username(""),
        }
    }
}

impl Server {
    /// Finds out who sent a request.
    pub(super) fn authenticate(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
    ) -> Result<Arc<User>, Unauthenticated> {
        let claims = read(message, self.offer)?;
        // The realm is part of the key: no user is valid in another one.
        if claims.realm != self.config.realm {
            return Err(Unauthenticated::Challenge);
        }
        let user = self
            .find_user(now, path, message, &claims)
            .ok_or(Unauthenticated::Challenge)?;
        let max_age_s = u64::from(self.config.nonce_lifetime_s);
        match self.config.nonce_keys.check(
            claims.nonce,
            path.five_tuple.remote,
            now.unix_s,
            max_age_s,
        ) {
            NonceCheck::Valid => Ok(user),
            NonceCheck::Stale | NonceCheck::Forged => Err(Unauthenticated::StaleNonce),
        }
    }

    /// The user whose key the request was made with: the one of the allocation, one known of late, or one
    /// from the credentials.
    fn find_user(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
        claims: &Claims<'_>,
    ) -> Option<Arc<User>> {
        let fits = |user: &User| {
            user.is(claims.who(), claims.protection) && is_signed_with(message, user.key())
        };
        let holder = self
            .clients
            .find(&path.five_tuple)
            .and_then(|place| self.clients.get(place));
        if let Some(client) = holder {
            let may_stay = !self.config.strict_expiry
                || !client.user.is_expired(now.unix_s) && client.user.is_of(self.credentials_epoch);
            if may_stay && fits(&client.user) {
                return Some(Arc::clone(&client.user));
            }
        }
        let known = self.known_users.find(claims.who(), claims.protection);
        if let Some(user) = known.filter(|user| !user.is_expired(now.unix_s) && fits(user)) {
            return Some(Arc::clone(user));
        }
        self.look_up_user(now, message, claims)
    }

    /// Searches the credentials, and remembers who was found.
    fn look_up_user(
        &mut self,
        now: Now,
        message: &Message<'_>,
        claims: &Claims<'_>,
    ) -> Option<Arc<User>> {
        let query = KeyQuery {
            claim: claims.who(),
            realm: &self.config.realm,
            algorithm: claims.protection.password,
            unix_s: now.unix_s,
        };
        let epoch = self.credentials_epoch;
        let mut found = None;
        self.config.credentials.find(&query, &mut |candidate| {
            let key = hmac_key(&candidate.key, claims.protection.integrity);
            let is_key = is_signed_with(message, &key);
            if is_key {
                found = Some(User::new(
                    query.claim,
                    candidate,
                    key,
                    claims.protection,
                    epoch,
                ));
            }
            is_key
        });
        let user = Arc::new(found?);
        self.stats.keys_derived += 1;
        self.known_users.insert(&user, self.config.max_cached_keys);
        Some(user)
    }
}

/// Whether this key made the request's integrity. RFC 8489 §14.6: its value is not truncated unless the usage says
/// so, and TURN does not.
fn is_signed_with(message: &Message<'_>, key: &HmacKey) -> bool {
    message
        .verify_at_least(key, key.algorithm().tag_len())
        .is_ok()
}

/// The checks that need no key.
fn read<'a>(message: &Message<'a>, offer: Offer) -> Result<Claims<'a>, Unauthenticated> {
    let malformed = |_| Unauthenticated::BadRequest;
    // "If the message does not contain a MESSAGE-INTEGRITY or MESSAGE-INTEGRITY-SHA256 attribute": 401.
    let integrity = message.has_integrity().ok_or(Unauthenticated::Challenge)?;
    // ".. but is missing either the USERNAME or USERHASH, REALM, or NONCE attribute": 400.
    let username = message.get::<Username<'_>>().map_err(malformed)?;
    let userhash = message.get::<Userhash>().map_err(malformed)?;
    let realm = message.get::<Realm<'_>>().map_err(malformed)?;
    let nonce = message.get::<Nonce<'_>>().map_err(malformed)?;
    let (Some(realm), Some(nonce)) = (realm, nonce) else {
        return Err(Unauthenticated::BadRequest);
    };
    if username.is_none() && userhash.is_none() {
        return Err(Unauthenticated::BadRequest);
    }
    Ok(Claims {
        username: username.map(|username| username.0),
        userhash: userhash.map(|userhash| userhash.0),
        realm: realm.0,
        nonce: nonce.0,
        protection: protection(message, nonce.0, integrity, offer)?,
    })
}

/// The check against bidding down (RFC 8489 §9.2.1), and what it says about the key.
fn protection(
    message: &Message<'_>,
    nonce: &[u8],
    integrity: IntegrityAlgorithm,
    offer: Offer,
) -> Result<Protection, Unauthenticated> {
    // "the request is processed as though PASSWORD-ALGORITHM were MD5": such a client gets back the attribute
    // it sent.
    let legacy = Protection {
        password: PasswordAlgorithm::Md5,
        integrity,
        add_sha256: false,
    };
    let features = SecurityFeatures::of_nonce(nonce).unwrap_or_default();
    // Without the bit the checks do not apply. If somebody on the path took it away, the nonce will turn out
    // to be forged.
    if !features.password_algorithms {
        return Ok(legacy);
    }
    let list = message.find(AttributeType::PASSWORD_ALGORITHMS);
    let choice = message.find(AttributeType::PASSWORD_ALGORITHM);
    let (Some(list), true) = (list, choice.is_some()) else {
        let neither = list.is_none() && choice.is_none();
        return if neither {
            Ok(legacy)
        } else {
            Err(Unauthenticated::BadRequest)
        };
    };
    // "PASSWORD-ALGORITHMS matches the value sent in the response that sent this NONCE".
    let offered = offer
        .algorithms
        .filter(|offered| offered.as_bytes() == list.value);
    let chosen = message.get::<PasswordAlgorithm>().ok().flatten();
    match (offered, chosen) {
        (Some(offered), Some(password)) if offered.contains(password) => Ok(Protection {
            password,
            integrity,
            // RFC 8489 §9.2.4: the response "MUST include the MESSAGE-INTEGRITY-SHA256 attribute" then,
            // whatever the request had.
            add_sha256: integrity == IntegrityAlgorithm::Sha1,
        }),
        _ => Err(Unauthenticated::BadRequest),
    }
}
