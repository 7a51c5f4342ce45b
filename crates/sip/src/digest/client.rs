//! Digest for the client: it reads challenges and writes credentials.

use super::hash::SESSION;
use super::{Algorithm, Confirmation, Ha1, Proof, Qop, inside_quotes, write_quoted};
use crate::build::Builder;
use crate::header::{Authorization, HeaderKind};
use crate::message::Message;
use crate::{Method, hex};

/// A challenge of the Digest scheme. Texts are as between their quotes, backslashes included.
#[derive(Clone, Copy, Debug)]
pub struct Challenge<'a> {
    /// `realm`.
    pub realm: &'a [u8],
    /// `nonce`.
    pub nonce: &'a [u8],
    /// `opaque`, to be sent back as it is.
    pub opaque: Option<&'a [u8]>,
    /// `algorithm`; MD5 if there is none.
    pub algorithm: Algorithm,
    /// The algorithm's session variant is asked for: [`DigestResponse::cnonce`] stays the same for as long as the nonce
    /// does.
    pub is_session: bool,
    /// What is answered with: `auth` where that is offered, else `auth-int`. Without `qop` the answer is that of
    /// RFC 2617.
    pub qop: Option<Qop>,
    /// `userhash`: the name is to be sent hashed (RFC 7616 §3.4.4).
    pub hashes_username: bool,
    /// `stale`: the password was right, the nonce too old.
    pub is_stale: bool,
}

impl<'a> Challenge<'a> {
    /// Reads WWW-Authenticate or Proxy-Authenticate. `None` if it is malformed or not supported: another scheme,
    /// another algorithm, no known `qop`.
    #[must_use]
    pub fn of(authorization: &Authorization<'a>) -> Option<Challenge<'a>> {
        if !authorization.is_digest() {
            return None;
        }
        let params = authorization.params;
        params.read(|_, _| {})?;
        let get = |name: &[u8]| params.get(name).map(inside_quotes);
        let is_true = |name: &[u8]| get(name).is_some_and(|it| it.eq_ignore_ascii_case(b"true"));
        let qop = match get(b"qop") {
            None => None,
            Some(offered) => Some(best(offered)?),
        };
        let (algorithm, is_session) =
            get(b"algorithm").map_or(Some((Algorithm::Md5, false)), Algorithm::of_variant)?;
        if is_session && qop.is_none() {
            // A session variant needs a cnonce, and without `qop` there is none.
            return None;
        }
        Some(Challenge {
            realm: get(b"realm")?,
            nonce: get(b"nonce")?,
            opaque: get(b"opaque"),
            algorithm,
            is_session,
            qop,
            hashes_username: is_true(b"userhash"),
            is_stale: is_true(b"stale"),
        })
    }

    /// The user's name, hashed with the realm.
    fn hash_username(&self, username: &[u8]) -> super::Hex {
        let (name, realm) = (
            super::hash::Text::Plain(username),
            super::hash::Text::Quoted(self.realm),
        );
        self.algorithm.hash(&[name, realm])
    }

    /// What this user's answer is computed with.
    #[must_use]
    pub fn ha1(&self, username: &[u8], password: &[u8]) -> Ha1 {
        Ha1::of_quoted(self.algorithm, username, self.realm, password)
    }
}

/// Of the values of `qop` that are offered, the one to choose; those that are not known are ignored (RFC 7616 §3.3).
/// `auth` before `auth-int`: proxies may change bodies (RFC 3261 §22.4 leaves the choice to the client).
fn best(offered: &[u8]) -> Option<Qop> {
    let known = |qop: &[u8]| Qop::of(crate::chars::trim(qop));
    let mut best = None;
    for qop in offered.split(|&byte| byte == b',').filter_map(known) {
        if best != Some(Qop::Auth) {
            best = Some(qop);
        }
    }
    best
}

/// The challenge to answer: the topmost for a realm that is supported (RFC 8760 §2.4).
#[must_use]
pub fn choose<'a>(response: &Message<'a>, kind: HeaderKind) -> Option<Challenge<'a>> {
    choose_in(response, kind, |_| true)
}

/// The same, among the challenges of these realms.
#[must_use]
pub fn choose_in<'a>(
    response: &Message<'a>,
    kind: HeaderKind,
    has_realm: impl Fn(&[u8]) -> bool,
) -> Option<Challenge<'a>> {
    response
        .authorizations(kind)
        .filter_map(Result::ok)
        .filter_map(|challenge| Challenge::of(&challenge))
        .find(|challenge| has_realm(challenge.realm))
}

/// The credentials that answer a challenge.
#[derive(Clone, Copy, Debug)]
pub struct DigestResponse<'a> {
    /// The challenge.
    pub challenge: &'a Challenge<'a>,
    /// The user's name, as it is.
    pub username: &'a [u8],
    /// From [`Challenge::ha1`]; good for as long as user, realm and algorithm are the same.
    pub ha1: &'a Ha1,
    /// The request's method.
    pub method: Method<'a>,
    /// Its Request-URI.
    pub uri: &'a [u8],
    /// Its body.
    pub body: &'a [u8],
    /// 1 for the first request with this nonce, and one more for each that follows (`nc`).
    pub count: u32,
    /// Random, of characters that need no quoting. Nobody must be able to foretell it (RFC 7616 §3.4).
    pub cnonce: &'a [u8],
}

impl DigestResponse<'_> {
    /// Adds the credentials to a request: `Authorization` after a 401, `ProxyAuthorization` after a 407.
    pub fn write(&self, request: &mut Builder<'_>, kind: HeaderKind) {
        let challenge = self.challenge;
        let response =
            self.ha1
                .response(&self.proof(self.method.as_bytes(), self.body, &digits(self.count)));
        request
            .raw(kind.name().as_bytes())
            .raw(b": Digest username=");
        if challenge.hashes_username {
            let name = challenge.hash_username(self.username);
            request.raw(b"\"").raw(name.as_bytes()).raw(b"\"");
        } else {
            write_quoted(request, self.username);
        }
        // As they came, backslashes and all: between the quotes they can hurt nobody.
        for (name, value) in [
            (&b", realm=\""[..], challenge.realm),
            (b"\", nonce=\"", challenge.nonce),
            (b"\", uri=\"", self.uri),
            (b"\", response=\"", response.as_bytes()),
            (b"\", algorithm=", challenge.algorithm.name().as_bytes()),
        ] {
            request.raw(name).part(crate::build::Part::Bytes(value));
        }
        if challenge.is_session {
            request.raw(SESSION);
        }
        if let Some(qop) = challenge.qop {
            request.raw(b", qop=").raw(qop.name());
            request.raw(b", nc=").raw(&digits(self.count));
            request.raw(b", cnonce=\"").raw(self.cnonce).raw(b"\"");
        }
        if let Some(opaque) = challenge.opaque {
            request.raw(b", opaque=\"");
            request.part(crate::build::Part::Bytes(opaque)).raw(b"\"");
        }
        if challenge.hashes_username {
            request.raw(b", userhash=true");
        }
        request.raw(b"\r\n");
    }

    /// Whether the server has proven that it has the password, too (RFC 7616 §3.5). It must confirm this response, and
    /// its `rspauth` must be correct for the `body` of the response. `None` if it has not tried, as most do not.
    #[must_use]
    pub fn is_confirmed_by(&self, confirmation: &Confirmation<'_>, body: &[u8]) -> Option<bool> {
        let rspauth = confirmation.rspauth?;
        let nc = digits(self.count);
        let is_ours = match self.challenge.qop {
            None => true,
            Some(qop) => {
                confirmation
                    .nc
                    .is_some_and(|sent| sent.eq_ignore_ascii_case(&nc))
                    && confirmation.cnonce == Some(self.cnonce)
                    && confirmation.qop.is_none_or(|sent| sent == qop)
            }
        };
        let expected = self.ha1.response(&self.proof(b"", body, &nc));
        Some(is_ours && expected.matches(rspauth))
    }

    fn proof<'p>(&'p self, method: &'p [u8], body: &'p [u8], nc: &'p [u8; 8]) -> Proof<'p> {
        let challenge = self.challenge;
        Proof {
            nonce: challenge.nonce,
            nc_cnonce: challenge.qop.map(|_| (&nc[..], self.cnonce)),
            body: (challenge.qop == Some(Qop::AuthInt)).then_some(body),
            is_session: challenge.is_session,
            method,
            uri: self.uri,
        }
    }
}

/// `nc`.
pub(super) fn digits(count: u32) -> [u8; 8] {
    let mut digits = [0; 8];
    hex::write(&count.to_be_bytes(), &mut digits);
    digits
}
