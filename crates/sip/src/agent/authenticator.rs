//! The answers to challenges (RFC 3261 §22), one for each realm.

use super::Random;
use super::draft::Draft;
use crate::Method;
use crate::build::{BuildError, Builder};
use crate::digest::{Algorithm, Challenge, DigestResponse, Ha1, Qop};
use crate::header::HeaderKind;
use crate::message::Message;

/// Challenges that are remembered, the newest ones. A request whose challenge is forgotten is challenged again.
const MAX_CHALLENGES: usize = 256;

/// A user name and a password for Digest.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// The realm that they are for (RFC 3261 §22.1). `None` is any realm. Then each server and each peer that
    /// challenges gets a response, and can try passwords with it. So name the realm if a request can reach somebody who
    /// is not to be trusted.
    pub realm: Option<String>,
    /// The user name.
    pub username: String,
    /// The password.
    pub password: String,
}

impl core::fmt::Debug for Credentials {
    /// Without the password.
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut debug = f.debug_struct("Credentials");
        debug.field("realm", &self.realm);
        debug.field("username", &self.username);
        debug.finish_non_exhaustive()
    }
}

/// Why a 401 or 407 was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthProblem {
    /// The server asks for credentials, and there are none for its realm.
    #[error(
        "the server asks for a user name and a password, and none are configured for its realm"
    )]
    NoCredentials,
    /// The server has rejected the user name or the password.
    #[error("the server does not accept the user name or the password")]
    Rejected,
    /// No challenge is well-formed, or none is of Digest with a known algorithm and qop.
    #[error("the server asks for an authentication that is not supported")]
    Unsupported,
}

pub(super) enum Learned {
    /// The request can be sent again.
    Retry,
    Problem(AuthProblem),
}

#[derive(Debug)]
struct Realm {
    /// The Call-ID of the challenged request. Challenges to other calls cannot replace this nonce.
    call_id: Vec<u8>,
    /// Authorization or Proxy-Authorization.
    kind: HeaderKind,
    realm: Vec<u8>,
    nonce: Vec<u8>,
    opaque: Option<Vec<u8>>,
    algorithm: Algorithm,
    is_session: bool,
    qop: Option<Qop>,
    hashes_username: bool,
    username: String,
    ha1: Ha1,
    /// Requests with this nonce.
    count: u32,
    /// The same as long as the nonce, as session variants require.
    cnonce: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Authenticator {
    credentials: Vec<Credentials>,
    realms: Vec<Realm>,
}

impl Authenticator {
    pub(super) const fn new(credentials: Vec<Credentials>) -> Authenticator {
        Authenticator {
            credentials,
            realms: Vec::new(),
        }
    }

    /// Reads the challenges of a 401 or 407 to this request. A proxy that forks may send those of several realms
    /// (RFC 3261 §22.3).
    pub(super) fn learn(&mut self, draft: &mut Draft, response: &Message<'_>) -> Learned {
        if self.credentials.is_empty() {
            return Learned::Problem(AuthProblem::NoCredentials);
        }
        let mut learned = Learned::Problem(AuthProblem::Unsupported);
        for (asked, kind) in [
            (HeaderKind::WwwAuthenticate, HeaderKind::Authorization),
            (
                HeaderKind::ProxyAuthenticate,
                HeaderKind::ProxyAuthorization,
            ),
        ] {
            // RFC 8760 §2.4: of each realm the topmost that is supported.
            let mut seen: Vec<Vec<u8>> = Vec::new();
            for challenge in response.authorizations(asked).filter_map(Result::ok) {
                let Some(challenge) = Challenge::of(&challenge) else {
                    continue;
                };
                if seen.iter().any(|realm| realm == challenge.realm) {
                    continue;
                }
                seen.push(challenge.realm.to_vec());
                let Some(credentials) = self.credentials_for(challenge.realm) else {
                    if !matches!(learned, Learned::Retry) {
                        learned = Learned::Problem(AuthProblem::NoCredentials);
                    }
                    continue;
                };
                let entry = (kind, challenge.realm.to_vec());
                if draft.challenged.contains(&entry) && !challenge.is_stale {
                    return Learned::Problem(AuthProblem::Rejected);
                }
                if !draft.realms.contains(&entry) {
                    draft.realms.push(entry.clone());
                }
                draft.challenged.push(entry);
                self.remember(&draft.call_id, kind, &challenge, &credentials);
                learned = Learned::Retry;
            }
        }
        learned
    }

    /// The first credentials for this realm, or for any.
    fn credentials_for(&self, realm: &[u8]) -> Option<Credentials> {
        let is_for = |it: &&Credentials| {
            let listed = it.realm.as_ref();
            listed.is_none_or(|listed| listed.as_bytes() == realm)
        };
        self.credentials.iter().find(is_for).cloned()
    }

    /// Stores a challenge, so that further requests of this call and realm have credentials at once.
    fn remember(
        &mut self,
        call_id: &[u8],
        kind: HeaderKind,
        challenge: &Challenge<'_>,
        credentials: &Credentials,
    ) {
        let (username, password) = (&credentials.username, &credentials.password);
        self.realms
            .retain(|it| it.kind != kind || it.realm != challenge.realm || it.call_id != call_id);
        if self.realms.len() >= MAX_CHALLENGES {
            self.realms.remove(0);
        }
        self.realms.push(Realm {
            call_id: call_id.to_vec(),
            kind,
            realm: challenge.realm.to_vec(),
            nonce: challenge.nonce.to_vec(),
            opaque: challenge.opaque.map(<[u8]>::to_vec),
            algorithm: challenge.algorithm,
            is_session: challenge.is_session,
            qop: challenge.qop,
            hashes_username: challenge.hashes_username,
            username: username.clone(),
            ha1: challenge.ha1(username.as_bytes(), password.as_bytes()),
            count: 0,
            cnonce: Vec::new(),
        });
    }

    /// Gives a request the credentials of the realms that have challenged it, or its call (RFC 3261 §22.3). Other
    /// servers do not get them, because a server can test passwords against a digest response.
    pub(super) fn sign(
        &mut self,
        draft: &mut Draft,
        random: &mut Random,
    ) -> Result<(), BuildError> {
        draft.credentials.clear();
        let all = self.realms.iter_mut();
        let wanted = all.filter(|it| {
            let mut realms = draft.realms.iter();
            it.call_id == draft.call_id
                && realms.any(|(kind, realm)| *kind == it.kind && *realm == it.realm)
        });
        for realm in wanted {
            realm.count += 1;
            if realm.cnonce.is_empty() {
                realm.cnonce = random.token();
            }
            let challenge = Challenge {
                realm: &realm.realm,
                nonce: &realm.nonce,
                opaque: realm.opaque.as_deref(),
                algorithm: realm.algorithm,
                is_session: realm.is_session,
                qop: realm.qop,
                hashes_username: realm.hashes_username,
                is_stale: false,
            };
            let answer = DigestResponse {
                challenge: &challenge,
                username: realm.username.as_bytes(),
                ha1: &realm.ha1,
                method: Method::of(&draft.method),
                uri: &draft.uri,
                body: &draft.content.bytes,
                count: realm.count,
                cnonce: &realm.cnonce,
            };
            let opaque = realm.opaque.as_ref().map_or(0, Vec::len);
            let texts = realm.realm.len() + realm.nonce.len() + opaque + draft.uri.len();
            // Names of parameters, hashes; each character of the user name may need a backslash.
            let mut buffer = vec![0; texts + 2 * realm.username.len() + 512];
            let mut builder = Builder::fields(&mut buffer);
            answer.write(&mut builder, realm.kind);
            draft
                .credentials
                .extend_from_slice(builder.finish_fields()?);
        }
        Ok(())
    }
}
