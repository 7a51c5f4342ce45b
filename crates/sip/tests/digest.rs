//! Digest authentication, with the RFCs' vectors and with both sides against each other.

use hairpin_sip as sip;
use sip::build::Builder;
use sip::digest::{
    Algorithm, Credentials, Ha1, NONCE_LEN, NonceKeys, Outcome, Policy, Proof, Replay, Server,
    answer, challenge, choose,
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
        let algorithm = Algorithm::of(algorithm).expect("known");
        let ha1 = Ha1::of(algorithm, username, realm, password);
        let nc_cnonce = (!qop.is_empty()).then_some((nc, cnonce));
        let proof = Proof {
            nonce,
            nc_cnonce,
            method,
            uri,
        };
        let text = String::from_utf8_lossy(source);
        assert_eq!(ha1.response(&proof).as_bytes(), response, "{text}");
        lines += 1;
    }
    assert_eq!(lines, 7);
}

fn policy(algorithms: &[Algorithm], takes_no_qop: bool) -> Policy<'_> {
    Policy {
        realm: b"example.com",
        algorithms,
        nonce_lifetime_s: 300,
        takes_no_qop,
    }
}

/// A server with one user, and what it was asked with last.
struct World {
    keys: NonceKeys,
    replay: Replay,
    algorithms: Vec<Algorithm>,
    takes_no_qop: bool,
    now: u64,
}

impl World {
    fn new() -> World {
        World {
            keys: NonceKeys::new(HashKey::new([7; 16])),
            replay: Replay::new(64),
            algorithms: Algorithm::ALL.to_vec(),
            takes_no_qop: false,
            now: NOW,
        }
    }

    /// A 401.
    fn challenge(&self, salt: u8) -> Vec<u8> {
        let (mut buffer, mut nonce) = ([0; 2048], [0; NONCE_LEN]);
        self.keys.issue(
            b"example.com",
            b"192.0.2.1",
            [salt; 6],
            self.now,
            &mut nonce,
        );
        let mut response = Builder::status(&mut buffer, 401, b"Unauthorized");
        challenge(
            &mut response,
            HeaderKind::WwwAuthenticate,
            &policy(&self.algorithms, false),
            &nonce,
            false,
        );
        response.finish().expect("room").to_vec()
    }

    /// What the server makes of a request.
    fn ask(&mut self, request: &[u8], method: Method<'_>, is_known: bool) -> Outcome {
        let mut spans = Spans::new();
        let message = Message::parse(request, &mut spans).expect("well-formed");
        let authorization = message.authorizations(HeaderKind::Authorization).next();
        let authorization = authorization.expect("there").expect("well-formed");
        let credentials = Credentials::of(&authorization).expect("whole");
        let (algorithms, keys) = (self.algorithms.clone(), self.keys.clone());
        let policy = policy(&algorithms, self.takes_no_qop);
        let server = Server {
            policy: &policy,
            keys: &keys,
        };
        let uri = message.request_uri().expect("a request");
        if let Err(outcome) = server.check(&credentials, uri, b"192.0.2.1", self.now) {
            return outcome;
        }
        let algorithm = credentials.algorithm.expect("checked");
        let ha1 = Ha1::of(algorithm, b"alice", b"example.com", b"secret");
        let ha1 = is_known.then_some(&ha1);
        server.verify(
            &credentials,
            method,
            ha1,
            b"192.0.2.1",
            self.now,
            &mut self.replay,
        )
    }
}

/// A REGISTER that answers a challenge.
fn reply(unauthorized: &[u8], password: &[u8], count: u32) -> Vec<u8> {
    let mut spans = Spans::new();
    let response = Message::parse(unauthorized, &mut spans).expect("well-formed");
    let challenge = choose(&response, HeaderKind::WwwAuthenticate).expect("supported");
    let ha1 = Ha1::of(challenge.algorithm, b"alice", challenge.realm, password);
    let mut buffer = [0; 2048];
    let mut request = Builder::request(&mut buffer, Method::Register, URI);
    answer(
        &mut request,
        HeaderKind::Authorization,
        &challenge,
        b"alice",
        &ha1,
        (Method::Register, URI),
        (count, b"0a4f113b"),
    );
    request.finish().expect("room").to_vec()
}

#[test]
fn both_sides_agree_and_the_best_algorithm_is_chosen() {
    for algorithms in [
        &Algorithm::ALL[..],
        &[Algorithm::Sha512_256],
        &[Algorithm::Md5],
    ] {
        let mut world = World {
            algorithms: algorithms.to_vec(),
            ..World::new()
        };
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
        Outcome::Bad
    );
    assert_eq!(ask(", nc=00000001", ""), Outcome::Bad);
    assert_eq!(ask("nc=00000001", "nc=1"), Outcome::Bad);
    assert_eq!(ask(", cnonce=\"0a4f113b\"", ""), Outcome::Bad);
    assert_eq!(ask("qop=auth", "qop=auth-int"), Outcome::Denied);
    assert_eq!(ask(", qop=auth, nc", ", nc"), Outcome::Denied);
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
    let mut world = World {
        takes_no_qop: true,
        algorithms: vec![Algorithm::Md5],
        ..World::new()
    };
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
    world.takes_no_qop = false;
    assert_eq!(world.ask(&request, Method::Register, true), Outcome::Denied);
}

#[test]
fn what_is_not_supported_is_not_chosen() {
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
    assert_eq!(pick(&digest(", qop=\"auth-int\"")), None);
    assert_eq!(pick("WWW-Authenticate: Basic realm=\"a\"\r\n"), None);
    let two = digest(", algorithm=SHA-256-sess") + &digest(", algorithm=SHA-512-256");
    assert_eq!(pick(&two), Some((Algorithm::Sha512_256, false)));
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
        nc_cnonce: None,
        method: b"M",
        uri: b"u",
    };
    assert_eq!(
        md5.response(&proof).as_bytes(),
        same.response(&proof).as_bytes()
    );
}
