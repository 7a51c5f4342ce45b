//! Answers to challenges (RFC 3261 §22), by the `sip` crate.

use std::fmt::Write;

use ::sip::build::Builder;
use ::sip::digest::{self, Algorithm, Answer, Ha1};
use ::sip::{HeaderKind, Message, Method, Spans};

use super::options::SipCredentials;
use super::template::{ID_LIMIT, id};
use super::texts::Words;

/// What stands for the number of the AOR in a user name.
const NUMBER: &str = "{n}";
/// Room for the lines that answer a challenge, bytes: a longer one is not answered.
const ROOM: usize = 2048;

/// Who answers challenges.
#[derive(Debug)]
pub(super) struct Authorizer {
    credentials: SipCredentials,
    uri: Vec<u8>,
    width: usize,
    spans: Spans,
    room: Box<[u8; ROOM]>,
    /// The user of the moment.
    user: String,
    /// Of the last challenge: it need not be hashed again if there is but one user.
    known: Option<Known>,
    /// Counts answers: each has a cnonce of its own.
    answers: u64,
}

/// A password, hashed.
#[derive(Debug)]
struct Known {
    algorithm: Algorithm,
    realm: Vec<u8>,
    user: String,
    ha1: Ha1,
}

impl Authorizer {
    /// Answers as `credentials` for requests made of `words`.
    pub(super) fn new(credentials: &SipCredentials, words: &Words) -> Authorizer {
        Authorizer {
            credentials: credentials.clone(),
            uri: words.request_uri.clone().into_bytes(),
            width: words.width,
            spans: Spans::new(),
            room: Box::new([0; ROOM]),
            user: String::new(),
            known: None,
            answers: 0,
        }
    }

    /// Writes the Authorization (401) or Proxy-Authorization (407) line that answers `response` for AOR number `aor`; false if
    /// there is no challenge that can be answered.
    pub(super) fn answer(
        &mut self,
        line: &mut Vec<u8>,
        status: u16,
        response: &[u8],
        aor: u32,
    ) -> bool {
        let (asked, given) = match status {
            407 => (
                HeaderKind::ProxyAuthenticate,
                HeaderKind::ProxyAuthorization,
            ),
            _ => (HeaderKind::WwwAuthenticate, HeaderKind::Authorization),
        };
        self.name(aor);
        let Ok(message) = Message::parse(response, &mut self.spans) else {
            return false;
        };
        let Some(challenge) = digest::choose(&message, asked) else {
            return false;
        };
        let same = |known: &Known| {
            known.algorithm == challenge.algorithm
                && known.realm == challenge.realm
                && known.user == self.user
        };
        if !self.known.as_ref().is_some_and(same) {
            let password = self.credentials.password.as_bytes();
            let user = self.user.as_bytes();
            self.known = Some(Known {
                algorithm: challenge.algorithm,
                realm: challenge.realm.to_vec(),
                user: self.user.clone(),
                ha1: challenge.ha1(user, password),
            });
        }
        let Some(known) = &self.known else {
            return false;
        };
        self.answers += 1;
        let (high, low) = ((self.answers >> 24) as u32, self.answers as u32);
        let cnonce = id(high % ID_LIMIT, low % ID_LIMIT);
        let mut builder = Builder::fields(&mut self.room[..]);
        let answer = Answer {
            challenge: &challenge,
            username: self.user.as_bytes(),
            ha1: &known.ha1,
            method: Method::Register,
            uri: &self.uri,
            body: b"",
            count: 1,
            cnonce: &cnonce,
        };
        answer.write(&mut builder, given);
        let Ok(written) = builder.finish_fields() else {
            return false;
        };
        line.extend_from_slice(written);
        true
    }

    /// Puts the name of the user of AOR number `aor` in its place.
    fn name(&mut self, aor: u32) {
        self.user.clear();
        match self.credentials.user.split_once(NUMBER) {
            None => self.user.push_str(&self.credentials.user),
            Some((before, after)) => {
                // Writing to a string cannot fail.
                let _ = write!(
                    self.user,
                    "{before}{aor:0width$}{after}",
                    width = self.width
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::sip::options::{SipOptions, SipWorkload};

    const CHALLENGE: &[u8] = b"SIP/2.0 401 Unauthorized\r\nVia: SIP/2.0/UDP h;branch=z9hG4bK1\r\nFrom: <sip:u7@h>;tag=1\r\n\
        To: <sip:u7@h>;tag=2\r\nCall-ID: 1\r\nCSeq: 1 REGISTER\r\n\
        WWW-Authenticate: Digest realm=\"r\", nonce=\"n\", qop=\"auth\", algorithm=MD5\r\nContent-Length: 0\r\n\r\n";

    fn authorizer(user: &str) -> Authorizer {
        let target = "127.0.0.1:5060".parse().unwrap();
        let mut options = SipOptions::new(crate::generator::Target::admit(target, false).unwrap());
        options.workload = SipWorkload::Register;
        let words = Words::new(&options, target, "01234567".to_owned());
        let credentials = SipCredentials {
            user: user.to_owned(),
            password: "pw".to_owned(),
        };
        Authorizer::new(&credentials, &words)
    }

    #[test]
    fn a_challenge_is_answered_as_the_user_of_the_aor() {
        let mut line = Vec::new();
        assert!(authorizer("u{n}").answer(&mut line, 401, CHALLENGE, 7));
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
        let ha1 = Ha1::of(Algorithm::Md5, b"u0007", b"r", b"pw");
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
    fn what_is_no_challenge_is_not_answered() {
        let mut line = Vec::new();
        let mut one = authorizer("bob");
        assert!(!one.answer(&mut line, 407, CHALLENGE, 0));
        assert!(!one.answer(&mut line, 401, b"SIP/2.0 401 No\r\n\r\n", 0));
        assert!(line.is_empty());
        // The same user again: nothing is hashed anew, and the answer is another all the same.
        let mut again = Vec::new();
        assert!(
            one.answer(&mut line, 401, CHALLENGE, 1) && one.answer(&mut again, 401, CHALLENGE, 2)
        );
        assert_ne!(line, again);
    }
}
