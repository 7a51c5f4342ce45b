//! Answering the server's challenge: the client side of the long-term credential mechanism (RFC 8489 §9.2.5).

use stun::nonce::SecurityFeatures;
use stun::{
    AttributeType, BuildError, Builder, HmacKey, IntegrityAlgorithm, IntegrityError, Message,
    Nonce, PasswordAlgorithm, PasswordAlgorithms, Realm, Userhash, Username,
};

use super::config::{ClientConfig, Credentials, Security};
use super::error::{DiscardReason, RequestError};

/// RFC 8489 §14.8.
pub(super) const UNAUTHENTICATED: u16 = 401;
/// RFC 8489 §14.8.
pub(super) const STALE_NONCE: u16 = 438;

/// The last challenge that was accepted, and the key that answers it. Everything here but the key goes back to the
/// server.
#[derive(Clone)]
pub(super) struct Challenge {
    realm: Box<str>,
    nonce: Box<[u8]>,
    /// The value of PASSWORD-ALGORITHMS, to be sent back byte by byte, and our choice from it.
    algorithms: Option<(Box<[u8]>, PasswordAlgorithm)>,
    /// Instead of the user name, where the server can look it up.
    userhash: Option<[u8; 32]>,
    username: Box<str>,
    key: HmacKey,
}

/// What a challenge says, before anything is concluded from it.
struct ParsedChallenge<'a> {
    realm: Option<&'a str>,
    nonce: &'a [u8],
    algorithms: Option<PasswordAlgorithms<'a>>,
    anonymous: bool,
}

impl Challenge {
    pub(super) fn realm(&self) -> &str {
        &self.realm
    }

    /// The server's list and the algorithm in use, if it has a list.
    pub(super) fn algorithms(&self) -> Option<(PasswordAlgorithms<'_>, PasswordAlgorithm)> {
        let (list, chosen) = self.algorithms.as_ref()?;
        Some((PasswordAlgorithms::from_bytes(list).ok()?, *chosen))
    }

    pub(super) fn is_anonymous(&self) -> bool {
        self.userhash.is_some()
    }

    /// RFC 8489 §9.2.5: with PASSWORD-ALGORITHMS in play, MESSAGE-INTEGRITY-SHA256 only; without, MESSAGE-INTEGRITY.
    pub(super) fn integrity(&self) -> IntegrityAlgorithm {
        self.key.algorithm()
    }

    /// Adds the credentials and the integrity of the whole message so far.
    pub(super) fn sign(&self, request: &mut Builder<'_>) -> Result<(), BuildError> {
        match self.userhash {
            Some(hash) => request.push(&Userhash(hash))?,
            None => request.push(&Username(&self.username))?,
        };
        request
            .push(&Realm(&self.realm))?
            .push(&Nonce(&self.nonce))?;
        if let Some((list, chosen)) = self.algorithms() {
            // RFC 8489 §9.2.5: the list with the same content, so that the server sees if somebody shortened it.
            request.push(&list)?.push(&chosen)?;
        }
        request.integrity(&self.key)?;
        Ok(())
    }

    /// Whether a response to a signed request proves knowledge of the password.
    pub(super) fn verify(&self, response: &Message<'_>) -> Result<(), DiscardReason> {
        // Only the attribute of the agreed algorithm counts, in full length. MESSAGE-INTEGRITY is not sufficient if
        // SHA-256 was agreed, and TURN does not allow truncation (RFC 8489 §14.6).
        response
            .verify_at_least(&self.key, self.integrity().tag_len())
            .map_err(|error| match error {
                IntegrityError::Missing => DiscardReason::NotAuthenticated,
                _ => DiscardReason::BadIntegrity,
            })
    }
}

/// RFC 8489 §9.2.5: "if the nonce cookie has the bit Password algorithms set but PASSWORD-ALGORITHMS is not present",
/// the response has been tampered with.
pub(super) fn lacks_promised_algorithms(response: &Message<'_>) -> bool {
    let Ok(Some(Nonce(nonce))) = response.get() else {
        return false;
    };
    features(nonce).password_algorithms
        && response.find(AttributeType::PASSWORD_ALGORITHMS).is_none()
}

fn features(nonce: &[u8]) -> SecurityFeatures {
    SecurityFeatures::of_nonce(nonce).unwrap_or_default()
}

/// Concludes from a 401 or 438 how to sign from now on.
///
/// `signed` says whether the refused request carried the credentials of `previous`.
pub(super) fn answer(
    config: &ClientConfig,
    previous: Option<&Challenge>,
    code: u16,
    signed: bool,
    response: &Message<'_>,
) -> Result<Challenge, RequestError> {
    let demand = ParsedChallenge::read(response)?;
    let realm = match (demand.realm, previous) {
        (Some(realm), _) => realm,
        // RFC 8489 §9.2.4 demands a REALM in a 438; RFC 5389 servers that leave it out mean the one they gave.
        (None, Some(previous)) => &*previous.realm,
        (None, None) => return Err(RequestError::Malformed),
    };
    if config.security == Security::Negotiate && demand.is_bid_down(previous) {
        return Err(RequestError::BidDown);
    }
    let Some(credentials) = &config.credentials else {
        return Err(RequestError::NoCredentials {
            realm: realm.into(),
        });
    };
    // RFC 8489 §9.2.5: no retry after a 401 that changes neither user name, realm nor password.
    let same_realm = previous.is_some_and(|previous| *previous.realm == *realm);
    if code == UNAUTHENTICATED && signed && same_realm {
        return Err(RequestError::WrongCredentials {
            realm: realm.into(),
        });
    }
    match config.security {
        Security::Negotiate => demand.meet(credentials, realm),
        Security::Classic => ParsedChallenge {
            algorithms: None,
            anonymous: false,
            ..demand
        }
        .meet(credentials, realm),
    }
}

impl<'a> ParsedChallenge<'a> {
    fn read(response: &Message<'a>) -> Result<ParsedChallenge<'a>, RequestError> {
        let malformed = |_| RequestError::Malformed;
        let Nonce(nonce) = response
            .get()
            .map_err(malformed)?
            .ok_or(RequestError::Malformed)?;
        let realm = response.get().map_err(malformed)?.map(|Realm(realm)| realm);
        let algorithms = response.get().map_err(malformed)?;
        let anonymous = features(nonce).username_anonymity;
        Ok(ParsedChallenge {
            realm,
            nonce,
            algorithms,
            anonymous,
        })
    }

    /// Whether this challenge is weaker than it claims to be or than one that came before (RFC 8489 §9.2.1).
    fn is_bid_down(&self, previous: Option<&Challenge>) -> bool {
        let promised = features(self.nonce).password_algorithms;
        let had_algorithms = previous.is_some_and(|previous| previous.algorithms.is_some());
        // Anonymity may end: a server whose users come from elsewhere by now says so, and USERNAME goes on working.
        (promised || had_algorithms) && self.algorithms.is_none()
    }

    /// Makes the key and the attributes that a challenge of this realm requires (RFC 8489 §9.2.5).
    fn meet(&self, credentials: &Credentials, realm: &str) -> Result<Challenge, RequestError> {
        let chosen = match &self.algorithms {
            Some(list) => Some((
                list.as_bytes().into(),
                choose(list).ok_or(RequestError::NoCommonAlgorithm)?,
            )),
            None => None,
        };
        let algorithm = chosen
            .as_ref()
            .map_or(PasswordAlgorithm::Md5, |(_, algorithm)| *algorithm);
        let unusable = |_| RequestError::UnusableCredentials;
        // RFC 8489 §9.2.2, §14.3, §14.4: key, USERNAME and USERHASH all use the prepared user name.
        let username =
            stun::opaque_string(&credentials.username).ok_or(RequestError::UnusableCredentials)?;
        let key = stun::long_term_key(algorithm, &username, realm, &credentials.password)
            .map_err(unusable)?;
        let userhash = match self.anonymous {
            true => Some(stun::userhash(&username, realm).map_err(unusable)?),
            false => None,
        };
        Ok(Challenge {
            realm: realm.into(),
            nonce: self.nonce.into(),
            key: if chosen.is_some() {
                key.hmac_sha256()
            } else {
                key.hmac_sha1()
            },
            algorithms: chosen,
            userhash,
            username: username.into(),
        })
    }
}

/// RFC 8656 §6: SHA-256 wherever the server lists it, though RFC 8489 §9.2.5 would take the first that is supported.
fn choose(list: &PasswordAlgorithms<'_>) -> Option<PasswordAlgorithm> {
    if list.contains(PasswordAlgorithm::Sha256) {
        return Some(PasswordAlgorithm::Sha256);
    }
    list.first_supported()
}
