//! Digest for the server: it writes challenges and checks credentials.

use std::borrow::Cow;

use super::{
    Algorithm, Ha1, NonceCheck, NonceKeys, NonceUse, Proof, Qop, inside_quotes, meaning, means,
    write_quoted,
};
use crate::Method;
use crate::build::{Builder, Part};
use crate::header::{Authorization, HeaderKind};
use crate::uri::Uri;

/// Credentials of the Digest scheme. Texts are as between their quotes, backslashes included. Which realm they are for
/// is looked at first: those for another are somebody else's (RFC 3261 §22.3).
#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    /// `username`: see [`Credentials::name`].
    pub username: &'a [u8],
    /// `userhash`: the name is hashed with the realm (RFC 7616 §3.4.4), as [`Algorithm::hash_username`] does it.
    pub is_hashed: bool,
    /// `realm`.
    pub realm: &'a [u8],
    /// `nonce`.
    pub nonce: &'a [u8],
    /// `uri`.
    pub uri: &'a [u8],
    /// `response`.
    pub response: &'a [u8],
    /// `algorithm`; MD5 if there is none, `None` if it is another one, or a session variant: servers here do not offer
    /// these.
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
    /// Reads Authorization or Proxy-Authorization. `None` if it has another scheme, is malformed, or lacks a required
    /// parameter (RFC 7616 §3.4): respond 400.
    #[must_use]
    pub fn of(authorization: &Authorization<'a>) -> Option<Credentials<'a>> {
        if !authorization.is_digest() {
            return None;
        }
        let (mut username, mut realm, mut nonce, mut uri) = (None, None, None, None);
        let (mut response, mut qop, mut nc, mut cnonce) = (None, None, None, None);
        let (mut algorithm, mut opaque) = (None, None);
        let (mut userhash, mut extended) = (None, None);
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
                    (8, Some(b'u'))
                        if name.get(4).is_some_and(|c| c.eq_ignore_ascii_case(&b'n')) =>
                    {
                        (b"username", &mut username)
                    }
                    (8, Some(b'u')) => (b"userhash", &mut userhash),
                    (8, _) => (b"response", &mut response),
                    (9, Some(b'u')) => (b"username*", &mut extended),
                    (9, _) => (b"algorithm", &mut algorithm),
                    _ => return,
                };
            if place.is_none() && known.eq_ignore_ascii_case(name) {
                *place = Some(inside_quotes(value));
            }
        })?;
        // RFC 7616 §3.4: both names are an error. The extended one alone is not needed: names in SIP are UTF-8.
        if extended.is_some() {
            return None;
        }
        Some(Credentials {
            username: username?,
            is_hashed: userhash.is_some_and(|it: &[u8]| it.eq_ignore_ascii_case(b"true")),
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

    /// The user's name, or its hash if [`Credentials::is_hashed`]; it is copied only if it has backslashes in it.
    #[must_use]
    pub fn name(&self) -> Cow<'a, [u8]> {
        meaning(self.username)
    }

    /// Whether they are for this realm.
    #[must_use]
    pub fn are_for(&self, realm: &[u8]) -> bool {
        means(self.realm, realm)
    }

    /// What the response is computed from.
    fn proof<'p>(&'p self, method: &'p [u8], body: &'p [u8]) -> Proof<'p> {
        let qop = self.qop.and_then(Qop::of);
        Proof {
            nonce: self.nonce,
            nc_cnonce: self.qop.and(self.nc.zip(self.cnonce)),
            body: (qop == Some(Qop::AuthInt)).then_some(body),
            is_session: false,
            method,
            uri: self.uri,
        }
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
    /// [`Replay`](super::Replay).
    pub takes_no_qop: bool,
    /// Whether `uri` may be another one than the Request-URI: for servers behind an edge that rewrites the Request-URI.
    /// The response is computed from `uri`, so that credentials for one target then serve for another until their nonce
    /// count is used.
    pub takes_any_uri: bool,
    /// Whether `auth-int` is offered beside `auth`: the body is protected, too, as long as no proxy changes it.
    pub offers_integrity: bool,
    /// Whether clients are asked to hash their names (RFC 7616 §3.4.4). Hashed names are credentials in any case.
    pub hashes_usernames: bool,
}

/// The request that the credentials came with.
#[derive(Clone, Copy, Debug)]
pub struct DigestRequest<'a> {
    /// Its method.
    pub method: Method<'a>,
    /// Its Request-URI.
    pub uri: &'a [u8],
    /// Its body.
    pub body: &'a [u8],
    /// Who sent it, in the form that the nonce was bound to; empty if it was to nobody.
    pub source: &'a [u8],
}

/// What is made of credentials.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The credentials are right, and fresh.
    Accepted,
    /// The credentials were right once: 401 or 407 with `stale=true`, and the client need not ask its user.
    Stale,
    /// The credentials are wrong: 401 or 407.
    Denied,
    /// The request contradicts itself: 400.
    Bad(DigestMismatch),
}

/// How a request contradicts itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DigestMismatch {
    /// `uri` is not equivalent to the Request-URI (RFC 7616 §3.4.6; [`Uri::is_equivalent`]).
    Uri,
    /// There is no `qop`, but it was asked for (RFC 8760 §2.6): the client uses RFC 2069.
    Qop,
    /// With `qop` there must be a nonce count of eight hexadecimal digits (RFC 7616 §3.4).
    Count,
    /// With `qop` there must be a `cnonce`.
    Cnonce,
}

impl DigestMismatch {
    /// A reason phrase for the 400.
    #[must_use]
    pub const fn phrase(self) -> &'static str {
        match self {
            DigestMismatch::Uri => "Digest URI Is Not the Request-URI",
            DigestMismatch::Qop => "Missing qop",
            DigestMismatch::Count => "Missing or Malformed Nonce Count",
            DigestMismatch::Cnonce => "Missing cnonce",
        }
    }
}

/// The data of a server for Digest.
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
        asked: &DigestRequest<'_>,
        now_unix_s: u64,
    ) -> Result<(), Outcome> {
        let is_offered = |algorithm| self.policy.algorithms.contains(&algorithm);
        if !credentials.are_for(self.policy.realm) || !credentials.algorithm.is_some_and(is_offered)
        {
            return Err(Outcome::Denied);
        }
        match credentials.qop.map(Qop::of) {
            Some(Some(Qop::AuthInt)) if !self.policy.offers_integrity => {
                return Err(Outcome::Denied);
            }
            Some(Some(_)) if credentials.cnonce.is_none() => {
                return Err(Outcome::Bad(DigestMismatch::Cnonce));
            }
            Some(Some(_)) if credentials.count().is_none() => {
                return Err(Outcome::Bad(DigestMismatch::Count));
            }
            Some(Some(_)) => {}
            None if self.policy.takes_no_qop => {}
            None => return Err(Outcome::Bad(DigestMismatch::Qop)),
            Some(None) => return Err(Outcome::Denied),
        }
        // RFC 7616 §3.4.6: the URI is the request's, or equivalent.
        let is_same = self.policy.takes_any_uri
            || credentials.uri == asked.uri
            || matches!((Uri::parse(credentials.uri), Uri::parse(asked.uri)), (Ok(ours), Ok(theirs)) if ours.is_equivalent(&theirs));
        if !is_same {
            return Err(Outcome::Bad(DigestMismatch::Uri));
        }
        if credentials.nonce.is_empty() {
            // RFC 8760 §2.7: of a client that has not been challenged yet. Nothing that it sent was ever right.
            return Err(Outcome::Denied);
        }
        match self.check_nonce(credentials, asked.source, now_unix_s) {
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

    /// Compares the response with the one that the password makes. `ha1` is `None` for an unknown user; the comparison
    /// takes the same time. `note` is [`Replay::note`](super::Replay::note) of the embedder's table, and is called for
    /// correct responses only. If the nonce count has been used, the result is [`Outcome::Stale`].
    pub fn verify(
        &self,
        credentials: &Credentials<'_>,
        asked: &DigestRequest<'_>,
        ha1: Option<&Ha1>,
        now_unix_s: u64,
        note: impl FnOnce(u64, u64, u32) -> NonceUse,
    ) -> Outcome {
        let Some(algorithm) = credentials.algorithm else {
            return Outcome::Denied;
        };
        let nobody = Ha1::of_unknown_user(algorithm);
        let known = ha1.filter(|ha1| ha1.algorithm() == algorithm);
        let proof = credentials.proof(asked.method.as_bytes(), asked.body);
        let expected = known.unwrap_or(&nobody).response(&proof);
        let is_right = expected.matches(credentials.response);
        if !is_right || known.is_none() {
            return Outcome::Denied;
        }
        let nonce = self.check_nonce(credentials, asked.source, now_unix_s);
        let (NonceCheck::Valid { id, issued_unix_s }, Some(count)) = (nonce, credentials.count())
        else {
            return Outcome::Stale;
        };
        match note(id, issued_unix_s, count) {
            NonceUse::Fresh => Outcome::Accepted,
            NonceUse::Used => Outcome::Stale,
        }
    }

    /// The same for a user who has any of these keys. The response is compared with at least `rounds` keys unless one
    /// of them is correct. So the time does not reveal that a user has fewer keys, or none. Returns the key that is
    /// right.
    pub fn verify_any<'k>(
        &self,
        credentials: &Credentials<'_>,
        asked: &DigestRequest<'_>,
        (keys, rounds): (&'k [Ha1], usize),
        now_unix_s: u64,
        note: impl Fn(u64, u64, u32) -> NonceUse,
    ) -> (Outcome, Option<&'k Ha1>) {
        let mut keys = keys.iter();
        let mut round = 0;
        loop {
            let key = keys.next();
            let outcome = self.verify(credentials, asked, key, now_unix_s, &note);
            round += 1;
            let is_last = keys.len() == 0 && round >= rounds;
            if outcome != Outcome::Denied || is_last {
                return (outcome, key.filter(|_| outcome != Outcome::Denied));
            }
        }
    }

    /// Whether the client needs another nonce, because more than half of the lifetime of this one is over. If
    /// [`Server::confirm`] announces it (`nextnonce`), the client never gets a 401 because its nonce is stale.
    #[must_use]
    pub fn needs_new_nonce(
        &self,
        credentials: &Credentials<'_>,
        source: &[u8],
        now_unix_s: u64,
    ) -> bool {
        match self.check_nonce(credentials, source, now_unix_s) {
            NonceCheck::Valid { issued_unix_s, .. } => {
                now_unix_s.saturating_sub(issued_unix_s) > self.policy.nonce_lifetime_s / 2
            }
            NonceCheck::Stale | NonceCheck::Forged => true,
        }
    }

    /// Adds Authentication-Info (a proxy: Proxy-Authentication-Info) to the response to a request with valid
    /// credentials. It proves that the server has the password, and may have the next nonce (RFC 7616 §3.5). `body` is
    /// that of the response. Nothing is added for credentials without `qop`, because their clients do not support the
    /// header field. Nothing is added for a `cnonce` that is folded over several lines.
    pub fn confirm(
        response: &mut Builder<'_>,
        kind: HeaderKind,
        credentials: &Credentials<'_>,
        ha1: &Ha1,
        body: &[u8],
        next_nonce: Option<&[u8]>,
    ) {
        let (Some(qop), Some(nc), Some(cnonce)) = (
            credentials.qop.and_then(Qop::of),
            credentials.nc,
            credentials
                .cnonce
                .filter(|it| memchr::memchr2(b'\r', b'\n', it).is_none()),
        ) else {
            return;
        };
        let rspauth = ha1.response(&credentials.proof(b"", body));
        let next = match next_nonce {
            Some(nonce) => [&b", nextnonce=\""[..], nonce, b"\""],
            None => [&b""[..]; 3],
        };
        response.header_of(
            kind,
            &[
                Part::Bytes(b"qop="),
                Part::Bytes(qop.name()),
                Part::Bytes(b", rspauth=\""),
                Part::Bytes(rspauth.as_bytes()),
                Part::Bytes(b"\", cnonce=\""),
                Part::Bytes(cnonce),
                Part::Bytes(b"\", nc="),
                Part::Bytes(nc),
                Part::Bytes(next[0]),
                Part::Bytes(next[1]),
                Part::Bytes(next[2]),
            ],
        );
    }
}

/// Adds the challenge to a 401 (`WwwAuthenticate`) or a 407 (`ProxyAuthenticate`). It has one field per algorithm, in
/// their order (RFC 8760 §2.3), each with `qop` (§2.6 item 8).
pub fn challenge(
    response: &mut Builder<'_>,
    kind: HeaderKind,
    policy: &Policy<'_>,
    nonce: &[u8],
    is_stale: bool,
) {
    let when = |is: bool, text: &'static [u8]| if is { text } else { b"" };
    for algorithm in policy.algorithms {
        response.raw(kind.name().as_bytes()).raw(b": Digest realm=");
        write_quoted(response, policy.realm);
        for text in [
            &b", nonce=\""[..],
            nonce,
            b"\", algorithm=",
            algorithm.name().as_bytes(),
            b", qop=\"auth",
            when(policy.offers_integrity, b",auth-int"),
            b"\"",
            when(policy.hashes_usernames, b", userhash=true"),
            when(is_stale, b", stale=true"),
            b"\r\n",
        ] {
            response.raw(text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::hash::work;
    use super::*;

    const SOURCE: &[u8] = &[192, 0, 2, 1];
    const REALM: &[u8] = b"example.com";

    /// What it costs to check a wrong password, in calls of the hash function and bytes: with these keys.
    fn cost(algorithm: Algorithm, keys: &[Ha1], rounds: usize) -> (u64, u64) {
        let policy = Policy {
            realm: REALM,
            algorithms: &Algorithm::ALL,
            nonce_lifetime_s: 60,
            takes_no_qop: false,
            takes_any_uri: false,
            offers_integrity: true,
            hashes_usernames: false,
        };
        let nonces = NonceKeys::new(crate::HashKey::new([1; 16]));
        let mut nonce = [0; super::super::NONCE_LEN];
        nonces.issue(REALM, SOURCE, [0; 6], 1_000, &mut nonce);
        let wrong = [b'0'; 64];
        let credentials = Credentials {
            username: b"alice",
            is_hashed: false,
            realm: REALM,
            nonce: &nonce,
            uri: b"sip:example.com",
            response: &wrong[..2 * algorithm.hash_len()],
            algorithm: Some(algorithm),
            qop: Some(b"auth"),
            nc: Some(b"00000001"),
            cnonce: Some(b"c"),
            opaque: None,
        };
        let asked = DigestRequest {
            method: Method::Register,
            uri: b"sip:example.com",
            body: b"",
            source: SOURCE,
        };
        let server = Server {
            policy: &policy,
            keys: &nonces,
        };
        assert_eq!(server.check(&credentials, &asked, 1_000), Ok(()));
        work::take();
        let note = |_, _, _| unreachable!("the password is wrong");
        let (outcome, key) = server.verify_any(&credentials, &asked, (keys, rounds), 1_000, note);
        assert_eq!(outcome, Outcome::Denied);
        assert!(key.is_none());
        work::take()
    }

    #[test]
    fn an_unknown_user_costs_the_same_computation_for_every_algorithm() {
        for algorithm in Algorithm::ALL {
            let key = |password: &[u8]| Ha1::of(algorithm, b"alice", REALM, password);
            let (one, two) = ([key(b"1")], [key(b"1"), key(b"2")]);
            let known = cost(algorithm, &one, 1);
            assert!(known.0 >= 2 && known.1 > 0, "{known:?}");
            assert_eq!(cost(algorithm, &[], 1), known);
            // Only a key of another algorithm is known.
            for other in Algorithm::ALL {
                let key = Ha1::of(other, b"alice", REALM, b"1");
                assert_eq!(cost(algorithm, &[key], 1), known, "{other:?}");
            }
            // If some users have two keys.
            let rotated = cost(algorithm, &two, 2);
            assert_eq!(rotated, (2 * known.0, 2 * known.1));
            assert_eq!(cost(algorithm, &one, 2), rotated);
            assert_eq!(cost(algorithm, &[], 2), rotated);
        }
    }
}
