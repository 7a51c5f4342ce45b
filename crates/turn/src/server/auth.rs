//! The long-term credential mechanism (RFC 8489 §9.2.4), as a pipeline: what costs nothing comes first, what costs most
//! last.
//!
//! ```text
//!  attributes ──▶ nonce's MAC ──▶ its offer ──▶ bid-down ──▶ realm ──▶ user's keys ──▶ integrity ──▶ nonce's age
//!   401, 400         438            438           400         401      401, or wait       401            438
//! ```
//!
//! The RFC looks at the nonce last. Here a nonce that this server has not made is refused before any key is looked up
//! or derived. So a flood of such nonces reaches no source of credentials. A correct client does not notice this. Its
//! nonce comes from this server, and after a key rotation or a restart it gets 438 with another nonce, as
//! RFC 8489 §9.2.4 requires. A nonce that is ours and too old is refused where the RFC says.
//!
//! RFC 8489 has 401 for an invalid user name, and also if the integrity does not match "the password associated with
//! the username". If the database of a source of credentials does not respond, the source can prove neither. Its cache
//! may be out of date, and it cannot look up other names. So while it is not available, both cases get 500. With two
//! codes, a client could find out which names are users.

use std::borrow::Cow;
use std::sync::Arc;

use stun::nonce::{Issued, Issuer};
use stun::{
    AccessToken, AttributeError, AttributeType, HmacKey, IntegrityAlgorithm, Message, Method,
    Nonce, PasswordAlgorithm, Realm, Userhash, Username, opaque_string,
};

use super::auth_failure::AuthFailure;
use super::challenge::Offer;
use super::credentials::{Claim, KeyLookup, KeyQuery, KnownUser};
use super::request::RequestOrigin;
use super::request_context::RequestContext;
use super::user::{Protection, User, hmac_key};
use super::{DropReason, Server};
use crate::Now;

/// Why a request is not believed.
#[derive(Debug)]
pub(super) enum Unauthenticated {
    /// 401: there is no integrity.
    NoIntegrity,
    /// 438: the nonce is not ours, and another one is issued with what checking it has computed.
    Forged(Issuer),
    /// 401, or 438 for a nonce of ours.
    Failed(AuthFailure),
    /// 420: an access token, and this server does not take any.
    UnexpectedToken,
    /// 400: an attribute is missing or does not match what was offered.
    BadRequest,
    /// 500: the source of credentials cannot say.
    Unavailable,
    /// 500: the credentials are wrong as far as is known, but a source of credentials is not available.
    Undecided(AuthFailure),
    /// No response yet: the request waits for its user's keys.
    Pending,
    /// No look-up can be begun for it.
    NoRoom(DropReason),
}

impl From<AuthFailure> for Unauthenticated {
    fn from(failure: AuthFailure) -> Unauthenticated {
        Unauthenticated::Failed(failure)
    }
}

/// What a request says about itself, none of it proven.
struct Claims<'a> {
    /// Prepared with OpaqueString; `None` in it is a name that nobody can have.
    username: Option<Option<Cow<'a, str>>>,
    userhash: Option<[u8; 32]>,
    realm: &'a str,
    nonce: &'a [u8],
    /// `Err` for one that is malformed.
    token: Option<Result<AccessToken<'a>, AttributeError>>,
    integrity: IntegrityAlgorithm,
}

impl Claims<'_> {
    fn user_claim(&self) -> Option<Claim<'_>> {
        match (&self.username, &self.userhash) {
            (Some(name), _) => name.as_deref().map(Claim::Username),
            (None, hash) => hash.as_ref().map(Claim::Userhash),
        }
    }
}

impl Server {
    /// Finds out who sent a request.
    pub(super) fn authenticate(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
        origin: RequestOrigin,
    ) -> Result<Arc<User>, Unauthenticated> {
        let claims = read(message)?;
        let nonce_keys = &self.config.nonce_keys;
        let issued = nonce_keys.check_or_issue(claims.nonce, context.path.five_tuple.remote);
        let issued = issued.or_else(|issuer| {
            self.nonce_of_control(message, claims.nonce)
                .ok_or(Unauthenticated::Forged(issuer))
        })?;
        let realm = self.realms.get(context.realm);
        if !realm.offer.is_of(&issued) {
            return Err(AuthFailure::OutdatedOffer.into());
        }
        let protection = protection(message, &issued, claims.integrity, realm.offer)?;
        // The realm is part of the key: no user is valid in another one.
        if *claims.realm != *realm.name {
            return Err(AuthFailure::WrongRealm.into());
        }
        let claim = claims.user_claim().ok_or(AuthFailure::UnknownUser)?;
        let user = match claims.token {
            Some(token) => self.find_token_user(now, context, message, claim, token, origin)?,
            None => self.find_user(now, context, message, (claim, protection), origin)?,
        };
        if issued.age_s(now.unix_s) > u64::from(self.config.nonce_lifetime_s) {
            return Err(AuthFailure::StaleNonce.into());
        }
        Ok(user)
    }

    /// The user whose key the request was made with. This is the user of the allocation, a recently known user (also at
    /// the server that sent the request here), or one from the credentials.
    fn find_user(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
        (claim, protection): (Claim<'_>, Protection),
        origin: RequestOrigin,
    ) -> Result<Arc<User>, Unauthenticated> {
        let realm = Arc::clone(&self.realms.get(context.realm).name);
        let fits =
            |user: &User| user.is(&realm, claim, protection) && is_signed_with(message, user.key());
        let holder = self
            .clients
            .find(&context.path.five_tuple)
            .and_then(|place| self.clients.get(place));
        // Only Allocate and Refresh requests have the token (RFC 7635 §9), and a kid is no name of a user.
        // A search in the attributes of each Allocate request would cost 5 % of its instructions.
        let names_one = matches!(context.method, Method::REFRESH | Method::CONNECTION_BIND);
        let named = || {
            let client = names_one.then(|| self.client_named_by(context, message));
            client?.filter(|client| client.user.is_by_token())
        };
        if let Some(client) = holder.or_else(named) {
            // An access token is self-contained, so a new `credentials_epoch` does not invalidate its user.
            let is_current = client.user.is_by_token() || client.user.is_of(self.credentials_epoch);
            let may_stay = !self.config.strict_expiry || client.user.is_fresh(now) && is_current;
            if may_stay && fits(&client.user) {
                return Ok(Arc::clone(&client.user));
            }
        }
        let known = self.known_users.find(&realm, claim, protection);
        if let Some(user) = known.filter(|user| user.is_fresh(now) && fits(user)) {
            return Ok(Arc::clone(user));
        }
        if let Some(user) = origin.user.filter(|user| fits(user)) {
            return Ok(user);
        }
        let query = KeyQuery {
            claim,
            realm: &realm,
            algorithm: protection.password,
            client: context.path,
            unix_s: now.unix_s,
        };
        let found = match origin.found {
            Some(found) => *found,
            None => self.config.credentials_of(context.realm).find(&query),
        };
        let user = match found {
            KeyLookup::Known(known) => {
                self.choose_key(now, message, &query, (&realm, protection), &known)
            }
            KeyLookup::Unknown => Err(AuthFailure::UnknownUser.into()),
            KeyLookup::Expired => Err(AuthFailure::ExpiredCredential.into()),
            KeyLookup::Unavailable => Err(Unauthenticated::Unavailable),
            KeyLookup::Pending => Err(self.suspend(now, context, &query, message)),
        };
        match user {
            Err(Unauthenticated::Failed(
                failure @ (AuthFailure::UnknownUser | AuthFailure::WrongPassword),
            )) if !self.config.credentials_of(context.realm).is_available() => {
                Err(Unauthenticated::Undecided(failure))
            }
            user => user,
        }
    }

    /// Finds the key that the request was made with, and remembers whose it is.
    fn choose_key(
        &mut self,
        now: Now,
        message: &Message<'_>,
        query: &KeyQuery<'_>,
        (realm, protection): (&Arc<str>, Protection),
        known: &KnownUser,
    ) -> Result<Arc<User>, Unauthenticated> {
        let mut failure = AuthFailure::UnknownUser;
        for candidate in &known.keys {
            if candidate.key.algorithm() != query.algorithm {
                continue;
            }
            let key = hmac_key(&candidate.key, protection.integrity);
            if !is_signed_with(message, &key) {
                failure = AuthFailure::WrongPassword;
                continue;
            }
            let name = &known.username;
            let user = User::new(realm, query.claim, name, candidate, key, protection);
            let user = Arc::new(user.found_at(now, candidate.ttl_s, self.credentials_epoch));
            self.stats.keys_derived += 1;
            if user.is_expired(now.unix_s) {
                return Err(AuthFailure::ExpiredCredential.into());
            }
            self.known_users.insert(&user, self.config.max_cached_keys);
            return Ok(user);
        }
        Err(failure.into())
    }
}

/// Whether this key made the request's integrity. RFC 8489 §14.6: its value is not truncated unless the usage says
/// so, and TURN does not.
pub(super) fn is_signed_with(message: &Message<'_>, key: &HmacKey) -> bool {
    message
        .verify_at_least(key, key.algorithm().tag_len())
        .is_ok()
}

/// The checks that need neither a key nor a MAC.
fn read<'a>(message: &Message<'a>) -> Result<Claims<'a>, Unauthenticated> {
    let malformed = |_| Unauthenticated::BadRequest;
    // "If the message does not contain a MESSAGE-INTEGRITY or MESSAGE-INTEGRITY-SHA256 attribute": 401.
    let integrity = message
        .has_integrity()
        .ok_or(Unauthenticated::NoIntegrity)?;
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
        token: message.get::<AccessToken<'_>>().transpose(),
        username: username.map(|username| opaque_string(username.0)),
        userhash: userhash.map(|userhash| userhash.0),
        realm: realm.0,
        nonce: nonce.0,
        integrity,
    })
}

/// The check against bidding down (RFC 8489 §9.2.1), and what it says about the key. The nonce was issued with this
/// offer.
fn protection(
    message: &Message<'_>,
    issued: &Issued,
    integrity: IntegrityAlgorithm,
    offer: Offer,
) -> Result<Protection, Unauthenticated> {
    // "the request is processed as though PASSWORD-ALGORITHM were MD5".
    let legacy = Protection {
        password: PasswordAlgorithm::Md5,
        integrity,
        is_legacy: true,
    };
    // Without the bit the checks do not apply. The MAC says that nobody on the path took it away.
    if !issued.features.password_algorithms {
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
            is_legacy: false,
        }),
        _ => Err(Unauthenticated::BadRequest),
    }
}
