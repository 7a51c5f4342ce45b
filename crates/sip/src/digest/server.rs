//! The side that asks for credentials.

use super::{Algorithm, Ha1, NonceCheck, NonceKeys, Proof, Replay, Use, inside_quotes};
use crate::Method;
use crate::build::{Builder, Part};
use crate::header::{Authorization, HeaderKind};
use crate::uri::Uri;

/// Credentials of the Digest scheme, without their quotes. Which realm they are for is looked at first: those for another are
/// somebody else's (RFC 3261 §22.3).
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// `username`.
    pub username: &'a [u8],
    /// `realm`.
    pub realm: &'a [u8],
    /// `nonce`.
    pub nonce: &'a [u8],
    /// `uri`.
    pub uri: &'a [u8],
    /// `response`.
    pub response: &'a [u8],
    /// `algorithm`; MD5 if there is none, `None` if it is another one.
    pub algorithm: Option<Algorithm>,
    /// `qop`, if there is one.
    pub qop: Option<&'a [u8]>,
    /// `nc`, if there is one.
    pub nc: Option<&'a [u8]>,
    /// `cnonce`, if there is one.
    pub cnonce: Option<&'a [u8]>,
    /// `opaque`, if there is one.
    pub opaque: Option<&'a [u8]>,
}

impl<'a> Credentials<'a> {
    /// Reads Authorization or Proxy-Authorization; `None` if that is another scheme, malformed, or lacks one of the parameters
    /// that must be there (RFC 7616 §3.4): answer 400.
    #[must_use]
    pub fn of(authorization: &Authorization<'a>) -> Option<Credentials<'a>> {
        if !authorization.is_digest() {
            return None;
        }
        let (mut username, mut realm, mut nonce, mut uri) = (None, None, None, None);
        let (mut response, mut qop, mut nc, mut cnonce) = (None, None, None, None);
        let (mut algorithm, mut opaque) = (None, None);
        authorization.params.read(|name, value| {
            // By length first: each name is compared with two others at most.
            let (known, place): (&[u8], _) =
                match (name.len(), name.first().map(u8::to_ascii_lowercase)) {
                    (2, _) => (b"nc", &mut nc),
                    (3, Some(b'u')) => (b"uri", &mut uri),
                    (3, _) => (b"qop", &mut qop),
                    (5, Some(b'r')) => (b"realm", &mut realm),
                    (5, _) => (b"nonce", &mut nonce),
                    (6, Some(b'c')) => (b"cnonce", &mut cnonce),
                    (6, _) => (b"opaque", &mut opaque),
                    (8, Some(b'u')) => (b"username", &mut username),
                    (8, _) => (b"response", &mut response),
                    (9, _) => (b"algorithm", &mut algorithm),
                    _ => return,
                };
            if place.is_none() && known.eq_ignore_ascii_case(name) {
                *place = Some(inside_quotes(value));
            }
        })?;
        Some(Credentials {
            username: username?,
            realm: realm?,
            nonce: nonce?,
            uri: uri?,
            response: response?,
            algorithm: algorithm.map_or(Some(Algorithm::Md5), Algorithm::of),
            qop,
            nc,
            cnonce,
            opaque,
        })
    }

    /// The nonce count. Without `qop` there is none: a nonce then is good once, as if it were the first.
    fn count(&self) -> Option<u32> {
        match self.qop {
            None => Some(1),
            Some(_) => u32::from_str_radix(std::str::from_utf8(self.nc?).ok()?, 16)
                .ok()
                .filter(|_| self.nc.is_some_and(|nc| nc.len() == 8)),
        }
    }
}

/// What a server asks for.
#[derive(Clone, Copy, Debug)]
pub struct Policy<'r> {
    /// The realm.
    pub realm: &'r [u8],
    /// The algorithms offered, the best first.
    pub algorithms: &'r [Algorithm],
    /// How long a nonce is good, in seconds.
    pub nonce_lifetime_s: u64,
    /// Whether credentials without `qop` are taken (RFC 2617 had it optional). Each then costs a challenge: see
    /// [`Replay`].
    pub takes_no_qop: bool,
}

/// What is made of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// They are right, and fresh.
    Accepted,
    /// They were right once: 401 or 407 with `stale=true`, and the client need not ask its user.
    Stale,
    /// They are wrong: 401 or 407.
    Denied,
    /// The request contradicts itself: 400 (RFC 7616 §3.4.6: `uri` is not the Request-URI; or `nc` without `qop`).
    Bad,
}

/// What a server knows.
#[derive(Clone, Copy, Debug)]
pub struct Server<'s> {
    /// What it asks for.
    pub policy: &'s Policy<'s>,
    /// The keys of its nonces.
    pub keys: &'s NonceKeys,
}

impl Server<'_> {
    /// Checks everything that needs no password, cheapest first: nothing is looked up for a nonce that is not ours.
    ///
    /// # Errors
    /// The [`Outcome`], which is never [`Outcome::Accepted`].
    pub fn check(
        &self,
        credentials: &Credentials<'_>,
        request_uri: &[u8],
        source: &[u8],
        now_unix_s: u64,
    ) -> Result<(), Outcome> {
        let is_offered = |algorithm| self.policy.algorithms.contains(&algorithm);
        if credentials.realm != self.policy.realm || !credentials.algorithm.is_some_and(is_offered)
        {
            return Err(Outcome::Denied);
        }
        match credentials.qop {
            Some(qop) if qop.eq_ignore_ascii_case(b"auth") => {
                if credentials.cnonce.is_none() || credentials.count().is_none() {
                    return Err(Outcome::Bad);
                }
            }
            None if self.policy.takes_no_qop => {}
            _ => return Err(Outcome::Denied),
        }
        // RFC 7616 §3.4.6: the URI is the request's, or means the same.
        let is_same = credentials.uri == request_uri
            || matches!((Uri::parse(credentials.uri), Uri::parse(request_uri)), (Ok(ours), Ok(theirs)) if ours == theirs);
        if !is_same {
            return Err(Outcome::Bad);
        }
        match self.check_nonce(credentials, source, now_unix_s) {
            NonceCheck::Valid { .. } => Ok(()),
            NonceCheck::Stale => Err(Outcome::Stale),
            // Perhaps a nonce from before a restart: the client tries again without asking its user.
            NonceCheck::Forged => Err(Outcome::Stale),
        }
    }

    fn check_nonce(
        &self,
        credentials: &Credentials<'_>,
        source: &[u8],
        now_unix_s: u64,
    ) -> NonceCheck {
        let lifetime = self.policy.nonce_lifetime_s;
        self.keys.check(
            credentials.nonce,
            self.policy.realm,
            source,
            now_unix_s,
            lifetime,
        )
    }

    /// Compares the response with the one that the password makes. `ha1` is `None` for a user that is not there; the answer
    /// takes as long. A count that has been used is [`Outcome::Stale`].
    pub fn verify(
        &self,
        credentials: &Credentials<'_>,
        method: Method<'_>,
        ha1: Option<&Ha1>,
        source: &[u8],
        now_unix_s: u64,
        replay: &mut Replay,
    ) -> Outcome {
        let Some(algorithm) = credentials.algorithm else {
            return Outcome::Denied;
        };
        let nobody = Ha1::of_nobody(algorithm);
        let known = ha1.filter(|ha1| ha1.algorithm() == algorithm);
        let expected = known.unwrap_or(&nobody).response(&Proof {
            nonce: credentials.nonce,
            nc_cnonce: credentials.qop.and(credentials.nc.zip(credentials.cnonce)),
            method: method.as_bytes(),
            uri: credentials.uri,
        });
        let is_right = expected.matches(credentials.response);
        if !is_right || known.is_none() {
            return Outcome::Denied;
        }
        let nonce = self.check_nonce(credentials, source, now_unix_s);
        let (NonceCheck::Valid { id, issued_unix_s }, Some(count)) = (nonce, credentials.count())
        else {
            return Outcome::Stale;
        };
        match replay.note(id, issued_unix_s, count) {
            Use::Fresh => Outcome::Accepted,
            Use::Used => Outcome::Stale,
        }
    }
}

/// Adds the challenge to a 401 (`WwwAuthenticate`) or a 407 (`ProxyAuthenticate`): a field for each algorithm, in their order
/// (RFC 8760 §2.3).
pub fn challenge(
    response: &mut Builder<'_>,
    kind: HeaderKind,
    policy: &Policy<'_>,
    nonce: &[u8],
    is_stale: bool,
) {
    for algorithm in policy.algorithms {
        response.header_of(
            kind,
            &[
                Part::Bytes(b"Digest realm=\""),
                Part::Bytes(policy.realm),
                Part::Bytes(b"\", nonce=\""),
                Part::Bytes(nonce),
                Part::Bytes(b"\", algorithm="),
                Part::Bytes(algorithm.name().as_bytes()),
                Part::Bytes(b", qop=\"auth\""),
                Part::Bytes(if is_stale { b", stale=true" } else { b"" }),
            ],
        );
    }
}
