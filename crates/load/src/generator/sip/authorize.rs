//! Answers to challenges (RFC 3261 §22), by the `sip` crate.

use ::sip::build::Builder;
use ::sip::digest::{self, Algorithm, Challenge, DigestResponse, Ha1};
use ::sip::{HeaderKind, Message, Method, Spans};

use super::options::SipCredentials;
use super::pattern::Pattern;
use super::template::{ID_LENGTH, ID_LIMIT, id};

/// Room for the lines that answer a challenge, bytes: a longer one is not answered.
const MAX_LINES_BYTES: usize = 2048;
/// Begins the parameter of Authentication-Info that names the next nonce.
const NEXT_NONCE: &[u8] = b"nextnonce=\"";

/// Who answers challenges.
#[derive(Debug)]
pub(super) struct Authorizer {
    user_pattern: Pattern,
    password_pattern: Pattern,
    /// Taken out while a message refers to it.
    spans: Option<Box<Spans>>,
    room: Box<[u8; MAX_LINES_BYTES]>,
    /// The user of the moment, and the password.
    user: String,
    password: String,
    /// Of the last challenge: it need not be hashed again if there is but one user.
    hashed: Option<HashedPassword>,
    /// Counts answers: each has a cnonce of its own.
    answers: u64,
    /// The challenges to answer again, by AOR number; `None` if none is.
    kept: Option<Vec<SavedChallenge>>,
}

/// A challenge that can be answered again.
#[derive(Clone, Debug, Default)]
struct SavedChallenge {
    /// Realm, opaque and nonce.
    bytes: Vec<u8>,
    realm_end: usize,
    opaque_end: usize,
    /// What it is besides.
    flags: Option<Challenge<'static>>,
    /// It came with a 407.
    by_proxy: bool,
    /// The same for all answers, as a session variant wants it.
    cnonce: [u8; ID_LENGTH],
    /// How often it was answered; 0 is never, and nothing is here.
    count: u32,
}

impl SavedChallenge {
    fn put(&mut self, challenge: &Challenge<'_>, by_proxy: bool, cnonce: [u8; ID_LENGTH]) {
        let opaque = challenge.opaque;
        self.bytes.clear();
        self.bytes.extend_from_slice(challenge.realm);
        self.realm_end = self.bytes.len();
        self.bytes.extend_from_slice(opaque.unwrap_or_default());
        self.opaque_end = self.bytes.len();
        self.bytes.extend_from_slice(challenge.nonce);
        self.flags = Some(Challenge {
            realm: b"",
            nonce: b"",
            opaque: opaque.map(|_| &b""[..]),
            is_stale: false,
            ..*challenge
        });
        (self.by_proxy, self.cnonce, self.count) = (by_proxy, cnonce, 1);
    }

    /// Another nonce, of which nothing was answered yet.
    fn renew(&mut self, nonce: &[u8]) {
        self.bytes.truncate(self.opaque_end);
        self.bytes.extend_from_slice(nonce);
        self.count = 0;
    }

    fn get(&self) -> Option<Challenge<'_>> {
        let flags = self.flags?;
        Some(Challenge {
            realm: &self.bytes[..self.realm_end],
            nonce: &self.bytes[self.opaque_end..],
            opaque: flags
                .opaque
                .map(|_| &self.bytes[self.realm_end..self.opaque_end]),
            ..flags
        })
    }
}

/// The request that an answer stands in.
#[derive(Clone, Copy, Debug)]
pub(super) struct CurrentRequest<'a> {
    pub(super) method: Method<'a>,
    pub(super) uri: &'a [u8],
    /// Number of the AOR that asks.
    pub(super) aor: u32,
    /// The generator has already answered a challenge to this request from this server. Credentials with a nonce from
    /// an earlier request do not count. Then it answers another challenge only if that has `stale=true`; otherwise the
    /// request fails.
    pub(super) only_if_stale: bool,
}

/// What an answer was to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AnsweredRequest {
    /// The password was right already, and the nonce too old.
    pub(super) stale: bool,
}

/// A password, hashed.
#[derive(Debug)]
struct HashedPassword {
    algorithm: Algorithm,
    realm: Vec<u8>,
    user: String,
    ha1: Ha1,
}

impl Authorizer {
    /// Answers as `credentials`, in which numbers have `width` digits; challenges are kept to be answered `again`, or
    /// not.
    pub(super) fn new(credentials: &SipCredentials, width: usize, again: bool) -> Authorizer {
        Authorizer {
            user_pattern: Pattern::new(&credentials.user, width),
            password_pattern: Pattern::new(&credentials.password, width),
            spans: Some(Box::default()),
            room: Box::new([0; MAX_LINES_BYTES]),
            user: String::new(),
            password: String::new(),
            hashed: None,
            answers: 0,
            kept: again.then(Vec::new),
        }
    }

    /// Writes the Authorization (401) or Proxy-Authorization (407) line that answers `response` to the request `asked`;
    /// `None` if there is no challenge that can be answered.
    pub(super) fn answer(
        &mut self,
        line: &mut Vec<u8>,
        status: u16,
        response: &[u8],
        asked: CurrentRequest<'_>,
    ) -> Option<AnsweredRequest> {
        let aor = asked.aor;
        let header = match status {
            407 => HeaderKind::ProxyAuthenticate,
            _ => HeaderKind::WwwAuthenticate,
        };
        let mut spans = self.spans.take()?;
        let message = Message::parse(response, &mut spans).ok();
        let challenge = message
            .and_then(|message| digest::choose(&message, header))
            .filter(|challenge| challenge.is_stale || !asked.only_if_stale);
        let answered = challenge.and_then(|challenge| {
            let proof = (1, self.cnonce());
            if let Some(kept) = &mut self.kept {
                let least = aor as usize + 1;
                if kept.len() < least {
                    kept.resize_with(least, SavedChallenge::default);
                }
                kept[aor as usize].put(&challenge, status == 407, proof.1);
            }
            let stale = challenge.is_stale;
            self.write(line, &challenge, status == 407, proof, asked)
                .then_some(AnsweredRequest { stale })
        });
        self.spans = Some(spans);
        answered
    }

    /// Writes the line that answers the last challenge of an AOR once more; false if there was none.
    pub(super) fn answer_again(&mut self, line: &mut Vec<u8>, asked: CurrentRequest<'_>) -> bool {
        let aor = asked.aor;
        let kept = self.kept.as_mut();
        let Some(place) = kept.and_then(|kept| kept.get_mut(aor as usize)) else {
            return false;
        };
        place.count = place.count.saturating_add(1);
        let place = std::mem::take(place);
        let proof = (place.count, place.cnonce);
        let written = place
            .get()
            .is_some_and(|challenge| self.write(line, &challenge, place.by_proxy, proof, asked));
        if let Some(kept) = &mut self.kept {
            kept[aor as usize] = place;
        }
        written
    }

    /// Takes the next nonce of AOR number `aor` from the value of Authentication-Info (RFC 7616 §3.5), if there is one.
    pub(super) fn renew(&mut self, info: &[u8], aor: u32) {
        let Some(at) = memchr::memmem::find(info, NEXT_NONCE) else {
            return;
        };
        let rest = &info[at + NEXT_NONCE.len()..];
        let kept = self.kept.as_mut().and_then(|all| all.get_mut(aor as usize));
        if let (Some(end), Some(kept)) = (memchr::memchr(b'"', rest), kept) {
            kept.renew(&rest[..end]);
        }
    }

    fn cnonce(&mut self) -> [u8; ID_LENGTH] {
        self.answers += 1;
        let (high, low) = ((self.answers >> 24) as u32, self.answers as u32);
        id(high % ID_LIMIT, low % ID_LIMIT)
    }

    /// Writes the answer to a challenge that has this count and cnonce.
    fn write(
        &mut self,
        line: &mut Vec<u8>,
        challenge: &Challenge<'_>,
        by_proxy: bool,
        (count, cnonce): (u32, [u8; ID_LENGTH]),
        asked: CurrentRequest<'_>,
    ) -> bool {
        self.user.clear();
        self.user_pattern.write(&mut self.user, asked.aor);
        self.hash(challenge, asked.aor);
        let Some(hashed) = &self.hashed else {
            return false;
        };
        let given = match by_proxy {
            true => HeaderKind::ProxyAuthorization,
            false => HeaderKind::Authorization,
        };
        let mut builder = Builder::fields(&mut self.room[..]);
        let answer = DigestResponse {
            challenge,
            username: self.user.as_bytes(),
            ha1: &hashed.ha1,
            method: asked.method,
            uri: asked.uri,
            body: b"",
            count,
            cnonce: &cnonce,
        };
        answer.write(&mut builder, given);
        let Ok(written) = builder.finish_fields() else {
            return false;
        };
        line.extend_from_slice(written);
        true
    }

    /// Hashes the password for a challenge, unless that was done for the last one.
    fn hash(&mut self, challenge: &Challenge<'_>, aor: u32) {
        let same = |hashed: &HashedPassword| {
            hashed.algorithm == challenge.algorithm
                && hashed.realm == challenge.realm
                && hashed.user == self.user
        };
        if self.hashed.as_ref().is_some_and(same) {
            return;
        }
        self.password.clear();
        self.password_pattern.write(&mut self.password, aor);
        let password = self.password.as_bytes();
        let user = self.user.as_bytes();
        self.hashed = Some(HashedPassword {
            algorithm: challenge.algorithm,
            realm: challenge.realm.to_vec(),
            user: self.user.clone(),
            ha1: challenge.ha1(user, password),
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHALLENGE: &[u8] = b"SIP/2.0 401 Unauthorized\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:u7@h>;tag=1\r\n\
        To: <sip:u7@h>;tag=2\r\nCall-ID: 1\r\nCSeq: 1 REGISTER\r\n\
        WWW-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth\", algorithm=MD5\r\nContent-Length: 0\r\n\r\n";

    fn authorizer(user: &str) -> Authorizer {
        let credentials = SipCredentials {
            user: user.to_owned(),
            password: "pw{n}".to_owned(),
        };
        Authorizer::new(&credentials, 4, true)
    }

    fn asked(aor: u32) -> CurrentRequest<'static> {
        CurrentRequest {
            method: Method::Register,
            uri: b"sip:127.0.0.1:5060",
            aor,
            only_if_stale: false,
        }
    }

    #[test]
    fn a_challenge_is_answered_as_the_user_of_the_aor() {
        let mut line = Vec::new();
        let answered = authorizer("u{n}").answer(&mut line, 401, CHALLENGE, asked(7));
        assert_eq!(answered, Some(AnsweredRequest { stale: false }));
        let text = String::from_utf8(line).unwrap();
        for part in [
            "Authorization: Digest username=\"u0007\"",
            "realm=\"r\"",
            "uri=\"sip:127.0.0.1:5060\"",
            "qop=auth, nc=00000001",
        ] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
        let value = |name: &str| {
            let rest = text.split(&format!("{name}=\"")).nth(1).unwrap();
            rest.split('"').next().unwrap().to_owned()
        };
        let ha1 = Ha1::of(Algorithm::Md5, b"u0007", b"r", b"pw0007");
        let expected = ha1.response(&::sip::digest::Proof {
            nonce: b"n",
            nc_cnonce: Some((b"00000001", value("cnonce").as_bytes())),
            method: b"REGISTER",
            uri: b"sip:127.0.0.1:5060",
            ..::sip::digest::Proof::default()
        });
        assert_eq!(value("response").as_bytes(), expected.as_bytes());
        assert!(text.ends_with("\r\n") && text.matches("\r\n").count() == 1);
    }

    #[test]
    fn responses_without_a_challenge_get_no_credentials() {
        let mut line = Vec::new();
        let mut one = authorizer("bob");
        assert_eq!(one.answer(&mut line, 407, CHALLENGE, asked(0)), None);
        let bare = b"SIP/2.0 401 No\r\n\r\n";
        assert_eq!(one.answer(&mut line, 401, bare, asked(0)), None);
        assert!(!one.answer_again(&mut line, asked(0)));
        assert!(line.is_empty());
        // The same user again: nothing is hashed anew, and the answer is another all the same.
        let mut again = Vec::new();
        assert!(one.answer(&mut line, 401, CHALLENGE, asked(1)).is_some());
        assert!(one.answer(&mut again, 401, CHALLENGE, asked(2)).is_some());
        assert_ne!(line, again);
    }

    #[test]
    fn a_challenge_is_answered_again_with_a_count_that_rises_rfc7616_3_4() {
        let mut one = authorizer("u{n}");
        let mut line = Vec::new();
        let nc = |line: &[u8]| {
            let text = String::from_utf8(line.to_vec()).unwrap();
            let rest = text.split("nc=").nth(1).unwrap();
            rest[..8].to_owned()
        };
        assert!(one.answer(&mut line, 401, CHALLENGE, asked(3)).is_some());
        assert_eq!(nc(&line), "00000001");
        for count in ["00000002", "00000003"] {
            line.clear();
            assert!(one.answer_again(&mut line, asked(3)));
            assert_eq!(nc(&line), count);
            assert!(line.starts_with(
                b"Authorization: Digest username=\"u0003\", realm=\"r\", nonce=\"n\""
            ));
        }
        assert!(
            !one.answer_again(&mut line, asked(2)),
            "another AOR has a nonce of its own"
        );
        let text = String::from_utf8(CHALLENGE.to_vec()).unwrap();
        let stale = text.replace("nonce=\"n\"", "nonce=\"new\", stale=true");
        line.clear();
        let again = CurrentRequest {
            only_if_stale: true,
            ..asked(3)
        };
        assert_eq!(one.answer(&mut line, 401, CHALLENGE, again), None);
        assert!(line.is_empty());
        let answered = one.answer(&mut line, 401, stale.as_bytes(), again);
        assert_eq!(answered, Some(AnsweredRequest { stale: true }));
        assert_eq!(nc(&line), "00000001");
        one.renew(b"qop=auth, nextnonce=\"third\"", 3);
        line.clear();
        assert!(one.answer_again(&mut line, asked(3)));
        assert_eq!(nc(&line), "00000001");
        assert!(memchr::memmem::find(&line, b"nonce=\"third\"").is_some());
    }
}
