//! Digest authentication, with the RFCs' vectors and with both sides against each other.

use hairpin_sip as sip;
use sip::build::Builder;
use sip::digest::{
    Algorithm, Challenge, Confirmation, Credentials, DigestMismatch, DigestRequest, DigestResponse,
    Ha1, NONCE_LEN, NonceKeys, Outcome, Policy, Proof, Qop, Replay, Server, challenge, choose,
};
use sip::{HashKey, HeaderKind, Message, Method, Spans};

const VECTORS: &str = include_str!("digest-vectors.tsv");
const NOW: u64 = 1_790_000_000;
const URI: &[u8] = b"sip:example.com";

#[test]
fn the_vectors_of_the_rfcs() {
    let mut lines = 0;
    for line in VECTORS.lines().skip(1) {
        let columns: Vec<&[u8]> = line.split('\t').map(str::as_bytes).collect();
        let [
            source,
            algorithm,
            username,
            realm,
            password,
            method,
            uri,
            nonce,
            nc,
            cnonce,
            qop,
            response,
        ] = columns[..]
        else {
            panic!("twelve columns: {line}")
        };
        let (algorithm, is_session) = Algorithm::of_variant(algorithm).expect("known");
        let ha1 = Ha1::of(algorithm, username, realm, password);
        let nc_cnonce = (!qop.is_empty()).then_some((nc, cnonce));
        let proof = Proof {
            nonce,
            nc_cnonce,
            body: (qop == b"auth-int").then_some(b"v=0"),
            is_session,
            method,
            uri,
        };
        let text = String::from_utf8_lossy(source);
        assert_eq!(ha1.response(&proof).as_bytes(), response, "{text}");
        lines += 1;
    }
    assert_eq!(lines, 15);
}

const POLICY: Policy<'static> = Policy {
    realm: b"example.com",
    algorithms: &Algorithm::ALL,
    nonce_lifetime_s: 300,
    takes_no_qop: false,
    takes_any_uri: false,
    offers_integrity: false,
    hashes_usernames: false,
};

/// A server with one user, and what it was asked with last.
struct World {
    keys: NonceKeys,
    replay: Replay,
    policy: Policy<'static>,
    /// The last Authentication-Info.
    confirmation: Vec<u8>,
    now: u64,
}

impl World {
    fn new() -> World {
        World {
            keys: NonceKeys::new(HashKey::new([7; 16])),
            replay: Replay::new(64, POLICY.nonce_lifetime_s),
            policy: POLICY,
            confirmation: Vec::new(),
            now: NOW,
        }
    }

    /// A 401.
    fn challenge(&self, salt: u8) -> Vec<u8> {
        let (mut buffer, nonce) = ([0; 2048], self.nonce(salt));
        let mut response = Builder::status(&mut buffer, 401, b"Unauthorized");
        let kind = HeaderKind::WwwAuthenticate;
        challenge(&mut response, kind, &self.policy, &nonce, false);
        response.finish().expect("room").to_vec()
    }

    fn nonce(&self, salt: u8) -> [u8; NONCE_LEN] {
        let mut nonce = [0; NONCE_LEN];
        let (realm, source) = (self.policy.realm, b"192.0.2.1");
        self.keys
            .issue(realm, source, [salt; 6], self.now, &mut nonce);
        nonce
    }

    /// What the server makes of a request.
    fn ask(&mut self, request: &[u8], method: Method<'_>, is_known: bool) -> Outcome {
        let mut spans = Spans::new();
        let message = Message::parse(request, &mut spans).expect("well-formed");
        let authorization = message.authorizations(HeaderKind::Authorization).next();
        let authorization = authorization.expect("there").expect("well-formed");
        let credentials = Credentials::of(&authorization).expect("whole");
        let (policy, keys) = (self.policy, self.keys);
        let server = Server {
            policy: &policy,
            keys: &keys,
        };
        let asked = DigestRequest {
            method,
            uri: message.request_uri().expect("a request"),
            body: message.body(),
            source: b"192.0.2.1",
        };
        if let Err(outcome) = server.check(&credentials, &asked, self.now) {
            return outcome;
        }
        let algorithm = credentials.algorithm.expect("checked");
        let is_ours = match credentials.is_hashed {
            true => algorithm
                .hash_username(b"alice", policy.realm)
                .matches(&credentials.name()),
            false => *credentials.name() == *b"alice",
        };
        let ha1 = Ha1::of(algorithm, b"alice", policy.realm, b"secret");
        let ha1 = (is_known && is_ours).then_some(&ha1);
        let note = |id, issued, count| self.replay.note(id, issued, count);
        let outcome = server.verify(&credentials, &asked, ha1, self.now, note);
        if let (Outcome::Accepted, Some(ha1)) = (outcome, ha1) {
            let next = server.needs_new_nonce(&credentials, asked.source, self.now);
            let next = next.then(|| self.nonce(99));
            let mut buffer = [0; 512];
            let mut lines = Builder::fields(&mut buffer);
            let (kind, next) = (
                HeaderKind::AuthenticationInfo,
                next.as_ref().map(|n| &n[..]),
            );
            Server::confirm(&mut lines, kind, &credentials, ha1, b"", next);
            self.confirmation = lines.finish_fields().expect("room").to_vec();
        }
        outcome
    }
}

/// Answers the challenge of a 401 as alice.
fn with_answer<R>(
    unauthorized: &[u8],
    password: &[u8],
    count: u32,
    body: &[u8],
    run: impl FnOnce(&DigestResponse<'_>) -> R,
) -> R {
    let mut spans = Spans::new();
    let response = Message::parse(unauthorized, &mut spans).expect("well-formed");
    let challenge = choose(&response, HeaderKind::WwwAuthenticate).expect("supported");
    let ha1 = challenge.ha1(b"alice", password);
    run(&DigestResponse {
        challenge: &challenge,
        username: b"alice",
        ha1: &ha1,
        method: Method::Register,
        uri: URI,
        body,
        count,
        cnonce: b"0a4f113b",
    })
}

/// A REGISTER that answers a challenge.
fn reply(unauthorized: &[u8], password: &[u8], count: u32) -> Vec<u8> {
    with_answer(unauthorized, password, count, b"", |answer| {
        let mut buffer = [0; 2048];
        let mut request = Builder::request(&mut buffer, Method::Register, URI);
        answer.write(&mut request, HeaderKind::Authorization);
        request.finish().expect("room").to_vec()
    })
}

#[test]
fn both_sides_agree_and_the_best_algorithm_is_chosen() {
    for algorithms in [
        &Algorithm::ALL[..],
        &[Algorithm::Sha512_256],
        &[Algorithm::Md5],
    ] {
        let mut world = World::new();
        world.policy.algorithms = algorithms;
        let request = reply(&world.challenge(1), b"secret", 1);
        let text = String::from_utf8_lossy(&request).into_owned();
        assert!(
            text.contains(&format!("algorithm={}", algorithms[0].name())),
            "{text}"
        );
        assert_eq!(
            world.ask(&request, Method::Register, true),
            Outcome::Accepted
        );
    }
}

#[test]
fn an_answer_counts_once_and_the_next_count_again() {
    let mut world = World::new();
    let unauthorized = world.challenge(1);
    for (count, expected) in [
        (1, Outcome::Accepted),
        (1, Outcome::Stale),
        (2, Outcome::Accepted),
        (1, Outcome::Stale),
        (9, Outcome::Accepted),
        (8, Outcome::Accepted),
        (8, Outcome::Stale),
    ] {
        let request = reply(&unauthorized, b"secret", count);
        assert_eq!(
            world.ask(&request, Method::Register, true),
            expected,
            "{count}"
        );
    }
}

#[test]
fn a_wrong_password_another_method_and_an_unknown_user_are_the_same() {
    let mut world = World::new();
    let unauthorized = world.challenge(1);
    let wrong = reply(&unauthorized, b"Secret", 1);
    assert_eq!(world.ask(&wrong, Method::Register, true), Outcome::Denied);
    let right = reply(&unauthorized, b"secret", 1);
    assert_eq!(world.ask(&right, Method::Invite, true), Outcome::Denied);
    assert_eq!(world.ask(&right, Method::Register, false), Outcome::Denied);
    assert_eq!(
        world.ask(&right, Method::Register, true),
        Outcome::Accepted,
        "no failure takes the count"
    );
}

#[test]
fn old_and_foreign_nonces_are_stale() {
    let mut world = World::new();
    let request = reply(&world.challenge(1), b"secret", 1);
    world.now += 301;
    assert_eq!(world.ask(&request, Method::Register, true), Outcome::Stale);
    world.now -= 301;
    world.keys.rotate(HashKey::new([8; 16]));
    assert_eq!(
        world.ask(&request, Method::Register, true),
        Outcome::Accepted
    );
    world.keys.rotate(HashKey::new([9; 16]));
    let request = reply(&world.challenge(1), b"secret", 1);
    world.keys = NonceKeys::new(HashKey::new([1; 16]));
    assert_eq!(world.ask(&request, Method::Register, true), Outcome::Stale);
}

#[test]
fn an_equivalent_uri_is_the_request_uri_and_any_other_by_option_rfc7616_3_4_6() {
    let mut world = World::new();
    let request = String::from_utf8(reply(&world.challenge(1), b"secret", 1)).expect("text");
    let other = |uri: &str| {
        request
            .replacen("REGISTER sip:example.com", uri, 1)
            .into_bytes()
    };
    let same = other("REGISTER sip:EXAMPLE.com:5060;transport=UDP");
    assert_ne!(same, request.as_bytes());
    assert_eq!(world.ask(&same, Method::Register, true), Outcome::Accepted);

    let request = String::from_utf8(reply(&world.challenge(2), b"secret", 1)).expect("text");
    let other = request.replacen("REGISTER sip:example.com", "REGISTER sip:inside.example", 1);
    let flaw = Outcome::Bad(DigestMismatch::Uri);
    assert_eq!(world.ask(other.as_bytes(), Method::Register, true), flaw);
    world.policy.takes_any_uri = true;
    let accepted = Outcome::Accepted;
    assert_eq!(
        world.ask(other.as_bytes(), Method::Register, true),
        accepted
    );
}

#[test]
fn credentials_that_contradict_the_request_are_bad() {
    let mut world = World::new();
    let request = String::from_utf8(reply(&world.challenge(1), b"secret", 1)).expect("text");
    let mut ask = |from: &str, to: &str| {
        world.ask(
            request.replacen(from, to, 1).as_bytes(),
            Method::Register,
            true,
        )
    };
    assert_eq!(
        ask("uri=\"sip:example.com", "uri=\"sip:example.org"),
        Outcome::Bad(DigestMismatch::Uri)
    );
    assert_eq!(
        ask(", nc=00000001", ""),
        Outcome::Bad(DigestMismatch::Count)
    );
    assert_eq!(
        ask("nc=00000001", "nc=1"),
        Outcome::Bad(DigestMismatch::Count)
    );
    assert_eq!(
        ask(", cnonce=\"0a4f113b\"", ""),
        Outcome::Bad(DigestMismatch::Cnonce)
    );
    assert_eq!(ask("qop=auth", "qop=auth-int"), Outcome::Denied);
    assert_eq!(
        ask(", qop=auth, nc", ", nc"),
        Outcome::Bad(DigestMismatch::Qop)
    );
    assert_eq!(
        ask("realm=\"example.com", "realm=\"example.org"),
        Outcome::Denied
    );
    assert_eq!(ask("algorithm=SHA-256", "algorithm=SHA-1"), Outcome::Denied);
    assert_eq!(
        ask("REGISTER sip:example.com", "REGISTER sip:EXAMPLE.com"),
        Outcome::Accepted,
        "the same URI"
    );
}

#[test]
fn without_qop_a_nonce_is_good_once() {
    let mut world = World::new();
    world.policy.takes_no_qop = true;
    world.policy.algorithms = &[Algorithm::Md5];
    let unauthorized = String::from_utf8(world.challenge(1))
        .expect("text")
        .replace(", qop=\"auth\"", "");
    let request = reply(unauthorized.as_bytes(), b"secret", 1);
    assert!(!String::from_utf8_lossy(&request).contains("qop"));
    assert_eq!(
        world.ask(&request, Method::Register, true),
        Outcome::Accepted
    );
    assert_eq!(world.ask(&request, Method::Register, true), Outcome::Stale);
    world.policy.takes_no_qop = false;
    assert_eq!(
        world.ask(&request, Method::Register, true),
        Outcome::Bad(DigestMismatch::Qop)
    );
}

#[test]
fn unsupported_algorithms_are_not_chosen() {
    let pick = |fields: &str| {
        let text = format!("SIP/2.0 401 Unauthorized\r\n{fields}\r\n");
        let mut spans = Spans::new();
        let response = Message::parse(text.as_bytes(), &mut spans).expect("well-formed");
        choose(&response, HeaderKind::WwwAuthenticate)
            .map(|challenge| (challenge.algorithm, challenge.is_stale))
    };
    let digest =
        |rest: &str| format!("WWW-Authenticate: Digest realm=\"a\", nonce=\"b\"{rest}\r\n");
    assert_eq!(pick(&digest("")), Some((Algorithm::Md5, false)));
    assert_eq!(
        pick(&digest(", stale=TRUE, qop=\"auth-int, auth\"")),
        Some((Algorithm::Md5, true))
    );
    assert_eq!(pick(&digest(", qop=\"auth-conf\"")), None);
    assert_eq!(pick("WWW-Authenticate: Basic realm=\"a\"\r\n"), None);
    // RFC 8760 §2.4: what is not understood is ignored. Without qop there is no cnonce that a session could be made of.
    let two = digest(", algorithm=SHA-1, qop=\"auth\"") + &digest(", algorithm=SHA-512-256");
    assert_eq!(pick(&two), Some((Algorithm::Sha512_256, false)));
    let two = digest(", algorithm=SHA-256-sess") + &digest(", algorithm=SHA-512-256");
    assert_eq!(pick(&two), Some((Algorithm::Sha512_256, false)));
    assert_eq!(pick(&digest(", algorithm=SHA-1")), None);
}

#[test]
fn a_key_of_turn_is_a_key_here() {
    // The hashes of the same three texts.
    let md5 = Ha1::of(Algorithm::Md5, b"user", b"realm", b"pass");
    let hash = [
        0x84, 0x93, 0xFB, 0xC5, 0x3B, 0xA5, 0x82, 0xFB, 0x4C, 0x04, 0x4C, 0x45, 0x6B, 0xDC, 0x40,
        0xEB,
    ];
    let same = Ha1::from_hash(Algorithm::Md5, &hash).expect("16 bytes");
    let proof = Proof {
        nonce: b"n",
        method: b"M",
        uri: b"u",
        ..Proof::default()
    };
    assert_eq!(
        md5.response(&proof).as_bytes(),
        same.response(&proof).as_bytes()
    );
}

/// The text of a 401 that was changed.
fn changed(unauthorized: &[u8], from: &str, to: &str) -> Vec<u8> {
    let text = String::from_utf8(unauthorized.to_vec()).expect("text");
    assert!(text.contains(from), "{from} is not in {text}");
    text.replace(from, to).into_bytes()
}

#[test]
fn auth_int_protects_the_body_where_a_server_offers_nothing_else_rfc8760_2_6() {
    let mut world = World::new();
    world.policy.offers_integrity = true;
    let both = world.challenge(1);
    assert!(String::from_utf8_lossy(&both).contains("qop=\"auth,auth-int\""));
    let request = String::from_utf8(reply(&both, b"secret", 1)).expect("text");
    assert!(
        request.contains("qop=auth,"),
        "proxies may change bodies: {request}"
    );
    let only = changed(&both, "auth,auth-int", "auth-int");
    let request = String::from_utf8(reply(&only, b"secret", 2)).expect("text");
    assert!(request.contains("qop=auth-int,"), "{request}");
    let with_body = request.replace("Length: 0\r\n\r\n", "Length: 1\r\n\r\nx");
    let asked = world.ask(with_body.as_bytes(), Method::Register, true);
    assert_eq!(asked, Outcome::Denied, "another body");
    let asked = world.ask(request.as_bytes(), Method::Register, true);
    assert_eq!(asked, Outcome::Accepted);
    world.policy.offers_integrity = false;
    let request = reply(&only, b"secret", 3);
    assert_eq!(world.ask(&request, Method::Register, true), Outcome::Denied);
}

#[test]
fn names_are_hashed_for_servers_that_ask_for_it_rfc7616_3_4_4() {
    let mut world = World::new();
    world.policy.hashes_usernames = true;
    let unauthorized = world.challenge(1);
    let request = String::from_utf8(reply(&unauthorized, b"secret", 1)).expect("text");
    assert!(request.contains("userhash=true") && !request.contains("alice"));
    let asked = world.ask(request.as_bytes(), Method::Register, true);
    assert_eq!(asked, Outcome::Accepted);
    // A name in clear is good as well, and a hash is no name.
    let clear = reply(&changed(&unauthorized, ", userhash=true", ""), b"secret", 2);
    assert_eq!(world.ask(&clear, Method::Register, true), Outcome::Accepted);
    let hash = request.replace(", userhash=true", ", userhash=false");
    let asked = world.ask(hash.as_bytes(), Method::Register, true);
    assert_eq!(asked, Outcome::Denied);
}

#[test]
fn a_session_variant_is_answered_and_not_taken_rfc7616_3_4_2() {
    let unauthorized = World::new().challenge(1);
    let session = changed(
        &unauthorized,
        "algorithm=SHA-256,",
        "algorithm=SHA-256-sess,",
    );
    let request = String::from_utf8(reply(&session, b"secret", 1)).expect("text");
    assert!(request.contains("algorithm=SHA-256-sess,"), "{request}");
    // The response itself is one of the vectors above. Servers here do not offer it: a new challenge.
    let asked = World::new().ask(request.as_bytes(), Method::Register, true);
    assert_eq!(asked, Outcome::Denied);
}

#[test]
fn a_server_proves_that_it_knows_the_password_rfc7616_3_5() {
    let mut world = World::new();
    let unauthorized = world.challenge(1);
    let request = reply(&unauthorized, b"secret", 7);
    assert_eq!(
        world.ask(&request, Method::Register, true),
        Outcome::Accepted
    );
    let line = String::from_utf8(world.confirmation.clone()).expect("text");
    let value = line
        .strip_prefix("Authentication-Info: ")
        .expect(&line)
        .trim_end();
    for part in ["qop=auth,", "nc=00000007", "cnonce=\"0a4f113b\""] {
        assert!(value.contains(part), "{part} is not in {value}");
    }
    assert!(!value.contains("nextnonce"), "it is young: {value}");
    let confirmed = |password: &[u8], count: u32, value: &str| {
        let confirmation = Confirmation::parse(value.as_bytes()).expect("well-formed");
        with_answer(&unauthorized, password, count, b"", |answer| {
            answer.is_confirmed_by(&confirmation, b"")
        })
    };
    assert_eq!(confirmed(b"secret", 7, value), Some(true));
    assert_eq!(confirmed(b"guess", 7, value), Some(false));
    assert_eq!(
        confirmed(b"secret", 8, value),
        Some(false),
        "of another request"
    );
    let other = value.replace("0a4f113b", "0a4f113c");
    assert_eq!(confirmed(b"secret", 7, &other), Some(false));
    assert_eq!(confirmed(b"secret", 7, "nextnonce=\"n\""), None);
}

#[test]
fn an_ageing_nonce_is_followed_by_another_before_it_is_stale_rfc7616_3_5() {
    let mut world = World::new();
    let unauthorized = world.challenge(1);
    world.now += 151;
    let request = reply(&unauthorized, b"secret", 1);
    assert_eq!(
        world.ask(&request, Method::Register, true),
        Outcome::Accepted
    );
    let line = String::from_utf8(world.confirmation.clone()).expect("text");
    let value = line
        .strip_prefix("Authentication-Info: ")
        .expect(&line)
        .trim_end();
    let next = Confirmation::parse(value.as_bytes())
        .expect("well-formed")
        .next_nonce;
    let next = String::from_utf8(next.expect("a nonce").to_vec()).expect("text");
    world.now += 200;
    assert_eq!(
        world.ask(&reply(&unauthorized, b"secret", 2), Method::Register, true),
        Outcome::Stale
    );
    let mut spans = Spans::new();
    let response = Message::parse(&unauthorized, &mut spans).expect("well-formed");
    let old = choose(&response, HeaderKind::WwwAuthenticate).expect("supported");
    let again = changed(&unauthorized, &String::from_utf8_lossy(old.nonce), &next);
    assert_eq!(
        world.ask(&reply(&again, b"secret", 1), Method::Register, true),
        Outcome::Accepted
    );
}

#[test]
fn a_client_that_was_not_challenged_yet_is_not_told_that_it_was_right_once_rfc8760_2_7() {
    let mut world = World::new();
    let request = String::from_utf8(reply(&world.challenge(1), b"secret", 1)).expect("text");
    let cut = |text: &str, name: &str| {
        let (before, rest) = text.split_once(&format!(" {name}=\"")).expect(name);
        let (_, after) = rest.split_once('"').expect("a quote");
        format!("{before} {name}=\"\"{after}")
    };
    let empty = cut(&cut(&request, "nonce"), "response");
    let asked = world.ask(empty.as_bytes(), Method::Register, true);
    assert_eq!(asked, Outcome::Denied);
}

#[test]
fn names_and_realms_may_need_quoting() {
    let realm = br#"the "old" \ realm"#;
    let policy = Policy { realm, ..POLICY };
    let mut buffer = [0; 2048];
    let mut response = Builder::status(&mut buffer, 401, b"Unauthorized");
    challenge(
        &mut response,
        HeaderKind::WwwAuthenticate,
        &policy,
        b"n",
        false,
    );
    let unauthorized = response.finish().expect("room").to_vec();
    let mut spans = Spans::new();
    let message = Message::parse(&unauthorized, &mut spans).expect("well-formed");
    let asked: Challenge<'_> = choose(&message, HeaderKind::WwwAuthenticate).expect("supported");
    let name = br#"DOMAIN\"ann""#;
    let ha1 = asked.ha1(name, b"pw");
    let answer = DigestResponse {
        challenge: &asked,
        username: name,
        ha1: &ha1,
        method: Method::Register,
        uri: URI,
        body: b"",
        count: 1,
        cnonce: b"c",
    };
    let mut buffer = [0; 2048];
    let mut request = Builder::request(&mut buffer, Method::Register, URI);
    answer.write(&mut request, HeaderKind::Authorization);
    let request = request.finish().expect("room").to_vec();
    let mut spans = Spans::new();
    let message = Message::parse(&request, &mut spans).expect("well-formed");
    let authorization = message.authorizations(HeaderKind::Authorization).next();
    let credentials = Credentials::of(&authorization.expect("there").expect("well-formed"));
    let credentials = credentials.expect("whole");
    assert!(credentials.are_for(realm));
    assert_eq!(*credentials.name(), name[..]);
    let same = Ha1::of(Algorithm::Sha256, name, realm, b"pw");
    let proof = Proof {
        nonce: b"n",
        nc_cnonce: Some((b"00000001", b"c")),
        method: b"REGISTER",
        uri: URI,
        ..Proof::default()
    };
    assert_eq!(same.response(&proof).as_bytes(), credentials.response);
    assert_eq!(credentials.qop.and_then(Qop::of), Some(Qop::Auth));
}

#[test]
fn credentials_with_two_names_are_malformed_rfc7616_3_4() {
    for (names, is_taken) in [
        ("username=\"a\"", true),
        ("username=\"a\", username*=UTF-8''a", false),
        ("username*=UTF-8''a", false),
    ] {
        let text =
            format!("Digest {names}, realm=\"r\", nonce=\"n\", uri=\"sip:a\", response=\"x\"");
        let authorization = sip::header::Authorization::parse(text.as_bytes()).expect("a scheme");
        assert_eq!(
            Credentials::of(&authorization).is_some(),
            is_taken,
            "{names}"
        );
    }
}
