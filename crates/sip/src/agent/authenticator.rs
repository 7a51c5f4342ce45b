//! The answers to challenges (RFC 3261 §22), one for each realm.

use super::Random;
use super::draft::Draft;
use crate::Method;
use crate::build::{BuildError, Builder};
use crate::digest::{Algorithm, Answer, Challenge, Ha1, Qop};
use crate::header::HeaderKind;
use crate::message::Message;

/// Realms that are remembered: more than any call passes.
const MOST_REALMS: usize = 16;

/// Why a 401 or 407 was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AuthProblem {
    /// The server asks for credentials, and there are none.
    #[error("the server asks for a user name and a password, and none are configured")]
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
    /// Authorization or Proxy-Authorization.
    kind: HeaderKind,
    realm: Vec<u8>,
    nonce: Vec<u8>,
    opaque: Option<Vec<u8>>,
    algorithm: Algorithm,
    is_session: bool,
    qop: Option<Qop>,
    hashes_username: bool,
    ha1: Ha1,
    /// Requests with this nonce.
    count: u32,
    /// The same as long as the nonce, as session variants require.
    cnonce: Vec<u8>,
}

#[derive(Debug)]
pub(super) struct Authenticator {
    credentials: Option<(String, String)>,
    realms: Vec<Realm>,
}

impl Authenticator {
    pub(super) const fn new(credentials: Option<(String, String)>) -> Authenticator {
        Authenticator {
            credentials,
            realms: Vec::new(),
        }
    }

    /// Reads the challenges of a 401 or 407 to this request. A proxy that forks may send those of several realms (RFC 3261 §22.3).
    pub(super) fn learn(&mut self, draft: &mut Draft, response: &Message<'_>) -> Learned {
        let Some((username, password)) = self.credentials.clone() else {
            return Learned::Problem(AuthProblem::NoCredentials);
        };
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
                let entry = (kind, challenge.realm.to_vec());
                if draft.challenged.contains(&entry) && !challenge.is_stale {
                    return Learned::Problem(AuthProblem::Rejected);
                }
                if !draft.realms.contains(&entry) {
                    draft.realms.push(entry.clone());
                }
                draft.challenged.push(entry);
                self.remember(kind, &challenge, &username, &password);
                learned = Learned::Retry;
            }
        }
        learned
    }

    fn remember(
        &mut self,
        kind: HeaderKind,
        challenge: &Challenge<'_>,
        username: &str,
        password: &str,
    ) {
        self.realms
            .retain(|it| it.kind != kind || it.realm != challenge.realm);
        if self.realms.len() >= MOST_REALMS {
            self.realms.remove(0);
        }
        self.realms.push(Realm {
            kind,
            realm: challenge.realm.to_vec(),
            nonce: challenge.nonce.to_vec(),
            opaque: challenge.opaque.map(<[u8]>::to_vec),
            algorithm: challenge.algorithm,
            is_session: challenge.is_session,
            qop: challenge.qop,
            hashes_username: challenge.hashes_username,
            ha1: challenge.ha1(username.as_bytes(), password.as_bytes()),
            count: 0,
            cnonce: Vec::new(),
        });
    }

    /// Gives a request the credentials of the realms that have challenged it, or its call (RFC 3261 §22.3). Other servers do not get them, since
    /// who has them can try out passwords.
    pub(super) fn sign(
        &mut self,
        draft: &mut Draft,
        random: &mut Random,
    ) -> Result<(), BuildError> {
        draft.credentials.clear();
        let Some((username, _)) = &self.credentials else {
            return Ok(());
        };
        let all = self.realms.iter_mut();
        let wanted = all.filter(|it| {
            let mut realms = draft.realms.iter();
            realms.any(|(kind, realm)| *kind == it.kind && *realm == it.realm)
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
            let answer = Answer {
                challenge: &challenge,
                username: username.as_bytes(),
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
            let mut buffer = vec![0; texts + 2 * username.len() + 512];
            let mut builder = Builder::fields(&mut buffer);
            answer.write(&mut builder, realm.kind);
            draft
                .credentials
                .extend_from_slice(builder.finish_fields()?);
        }
        Ok(())
    }
}
