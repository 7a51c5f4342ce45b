//! 401 and 438: what the unauthenticated get (RFC 8489 §9.2.4). Nothing is kept for them, and what they get
//! is small.

use stun::nonce::{self, Issued, Issuer, SecurityFeatures};
use stun::{
    BuildError, Builder, Class, ErrorCode, Nonce, PasswordAlgorithm, PasswordAlgorithms, Software,
    ThirdPartyAuthorization, padding,
};

use super::answer::{RESPONSE_MAX, amplification_limit};
use super::config::Config;
use super::credentials::Credentials;
use super::realms::Realm;
use super::request_context::RequestContext;
use super::{DropReason, Server};
use crate::Now;

/// A challenge with its request and headers is at most this many times as large as the request with its own.
const AMPLIFICATION: usize = 3;

/// Bytes of an attribute's type and length.
const TLV: usize = 4;

/// Bytes of a challenge with an empty realm and nothing that may be left out.
const MIN_CHALLENGE_BYTES: usize = stun::HEADER_LEN + TLV + 4 + TLV + TLV + nonce::LEN;

/// Bytes of the longest realm with which a challenge to any request keeps to the amplification limit: also to a header
/// alone, over IPv4.
pub const MAX_REALM_BYTES: usize =
    AMPLIFICATION * (stun::HEADER_LEN + IPV4_UDP) - IPV4_UDP - MIN_CHALLENGE_BYTES;

/// Bytes of the shortest Allocate request: its REQUESTED-TRANSPORT is required (RFC 8656 §7.1).
const ALLOCATE: usize = stun::HEADER_LEN + TLV + 4;

/// Bytes of the longest list of PASSWORD-ALGORITHMS, with its head.
const ALGORITHMS: usize = TLV + 8;

/// The maximum length in bytes of a server name for access tokens (RFC 7635 §6.1), for a realm of this length. With it,
/// a challenge to any Allocate request stays within the amplification limit.
#[must_use]
pub const fn max_server_name_bytes(realm_bytes: usize) -> usize {
    let limit = AMPLIFICATION * (ALLOCATE + IPV4_UDP) - IPV4_UDP;
    let used = MIN_CHALLENGE_BYTES + ALGORITHMS + realm_bytes + padding(realm_bytes) + TLV;
    (limit - used) / 4 * 4
}

/// Bytes of the headers of IPv4 and UDP.
const IPV4_UDP: usize = 20 + 8;

const _: () = assert!(MAX_REALM_BYTES == 44);

/// What challenges announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) algorithms: Option<PasswordAlgorithms<'static>>,
    pub(super) username_anonymity: bool,
}

impl Offer {
    /// Of a realm with these credentials.
    pub(super) fn of(config: &Config, credentials: &dyn Credentials) -> Offer {
        let has =
            |algorithm| config.announce_password_algorithms && credentials.supports(algorithm);
        // RFC 8489 §9.2.4: in the server's order of preference.
        let algorithms = match (has(PasswordAlgorithm::Sha256), has(PasswordAlgorithm::Md5)) {
            (true, true) => Some(PasswordAlgorithms::SHA256_MD5),
            (true, false) => Some(PasswordAlgorithms::SHA256),
            (false, true) => Some(PasswordAlgorithms::MD5),
            (false, false) => None,
        };
        Offer {
            algorithms,
            username_anonymity: credentials.knows_userhash(),
        }
    }

    /// The offer in 3 bits. A nonce carries them, so that one issued with another offer is known.
    fn number(self) -> u8 {
        let has = |algorithm| {
            let list = self.algorithms;
            u8::from(list.is_some_and(|list| list.contains(algorithm)))
        };
        has(PasswordAlgorithm::Md5)
            | has(PasswordAlgorithm::Sha256) << 1
            | u8::from(self.username_anonymity) << 2
    }

    /// Whether the nonce was issued with this offer, as far as there was room for it.
    pub(super) fn is_of(self, issued: &Issued) -> bool {
        issued.note == self.number()
    }
}

/// What goes into a challenge, decided by the room there is.
struct Content<'a> {
    error: ErrorCode<'a>,
    algorithms: Option<PasswordAlgorithms<'static>>,
    server_name: Option<&'a str>,
    software: Option<&'a str>,
}

impl Server {
    /// Responds 401 or 438. `issuer` is that of the client's nonces, if it is known.
    ///
    /// # Errors
    /// The reason to be silent instead.
    pub(super) fn challenge(
        &mut self,
        now: Now,
        context: &RequestContext,
        request_len: usize,
        error: ErrorCode<'static>,
        issuer: Option<Issuer>,
    ) -> Result<(), DropReason> {
        let config = &self.config;
        let client = context.path.five_tuple.remote;
        let limit = amplification_limit(
            context.path.five_tuple.transport,
            &client,
            request_len,
            if config.strict_amplification {
                1
            } else {
                AMPLIFICATION
            },
        );
        let realm = self.realms.get(context.realm);
        let content = fit(config, realm, context, error, limit).ok_or(DropReason::Amplification)?;
        let features = SecurityFeatures {
            // RFC 8489 §9.2.4: the bit is set if and only if the attribute is there.
            password_algorithms: content.algorithms.is_some(),
            username_anonymity: realm.offer.username_anonymity,
        };
        let mut nonce = [0; nonce::LEN];
        let issuer = issuer.unwrap_or_else(|| config.nonce_keys.of_client(client));
        issuer.issue(features, realm.offer.number(), now.unix_s, &mut nonce);
        let mut buffer = [0; RESPONSE_MAX];
        let Ok(message) = write(&mut buffer, context, &realm.name, &nonce, &content) else {
            return Err(DropReason::Amplification);
        };
        self.outputs.send(context.path, message);
        self.stats.count_error(context.method, error.code);
        Ok(())
    }
}

/// Leaves out attributes without room, in this order: SOFTWARE, the end of the reason phrase,
/// THIRD-PARTY-AUTHORIZATION, PASSWORD-ALGORITHMS. All but the shortest Binding requests leave room for
/// THIRD-PARTY-AUTHORIZATION. Only the response to a request without integrity may lack PASSWORD-ALGORITHMS, because
/// that request is short. `None` if even then it does not fit.
fn fit<'a>(
    config: &'a Config,
    realm: &Realm,
    context: &RequestContext,
    error: ErrorCode<'static>,
    limit: usize,
) -> Option<Content<'a>> {
    let length = realm.name.len() + padding(realm.name.len());
    let least = MIN_CHALLENGE_BYTES + length + if context.fingerprint { TLV + 4 } else { 0 };
    let mut room = limit.checked_sub(least)?;
    let mut take = |length: usize| {
        let fits = length <= room;
        room -= if fits { length } else { 0 };
        fits
    };
    let algorithms = realm
        .offer
        .algorithms
        .filter(|list| take(TLV + list.as_bytes().len()));
    let tokens = config.access_tokens_of(context.realm);
    let server_name = tokens
        .map(|tokens| tokens.server_name())
        .filter(|name| take(TLV + name.len() + padding(name.len())));
    let mut reason = error.reason;
    while !reason.is_empty() && !take(reason.len() + padding(reason.len())) {
        // The phrases are ASCII. Four bytes less is one word less.
        reason = &reason[..(reason.len() - 1) / 4 * 4];
    }
    let software = config
        .software
        .as_deref()
        .filter(|text| take(TLV + text.len() + padding(text.len())));
    Some(Content {
        error: ErrorCode {
            code: error.code,
            reason,
        },
        algorithms,
        server_name,
        software,
    })
}

fn write<'b>(
    buffer: &'b mut [u8],
    context: &RequestContext,
    realm: &str,
    nonce: &[u8],
    content: &Content<'_>,
) -> Result<&'b [u8], BuildError> {
    let mut message = Builder::new(
        buffer,
        Class::Error,
        context.method,
        &context.transaction_id,
    )?;
    message
        .push(&content.error)?
        .push(&stun::Realm(realm))?
        .push(&Nonce(nonce))?;
    if let Some(algorithms) = &content.algorithms {
        message.push(algorithms)?;
    }
    if let Some(name) = content.server_name {
        message.push(&ThirdPartyAuthorization(name))?;
    }
    if let Some(software) = content.software {
        message.push(&Software(software))?;
    }
    if context.fingerprint {
        message.fingerprint()?;
    }
    Ok(message.finish())
}
