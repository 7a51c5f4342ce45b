//! Who may register, as a client sees it (RFC 7616, RFC 8760), with the client side of the same crate.

use crate::sip_client::{Client, options, serve, status, test_uas};
use hairpin_server::sip::{DigestAlgorithm, SipSettings};
use hairpin_server::{Running, Settings};
use sip::build::Builder;
use sip::digest::{Challenge, Confirmation, DigestResponse, Ha1, Proof, choose};
use sip::{HeaderKind, Message, Method, Spans};

const URI: &str = "sip:test@127.0.0.1";

fn challenging() -> SipSettings {
    let mut settings = test_uas();
    settings.challenge = true;
    settings
}

fn register(id: &str) -> String {
    options(id, "UDP", "").replace("OPTIONS", "REGISTER")
}

/// Clients of a server that challenges.
struct World {
    server: Running,
    client: Client,
    /// Makes each request another one.
    number: u32,
}

impl World {
    fn new(settings: SipSettings) -> World {
        let server = serve(settings, 1);
        let client = Client::new(server.sip_listeners()[0]);
        World {
            server,
            client,
            number: 0,
        }
    }

    /// Asks with a header line.
    fn ask(&mut self, line: &str) -> String {
        self.number += 1;
        let asked = register(&format!("d{}", self.number));
        self.client
            .ask(&asked.replace("Max-Forwards", &format!("{line}Max-Forwards")))
    }

    /// Answers the challenge in `unauthorized`, after `change`.
    fn answer(
        &mut self,
        unauthorized: &str,
        (user, password): (&str, &str),
        count: u32,
        change: impl Fn(String) -> String,
    ) -> String {
        let line = credentials(unauthorized, (user, password), count);
        let answer = self.ask(&change(line));
        if status(&answer) == 200 {
            assert_eq!(
                confirmed(unauthorized, (user, password), count, &answer),
                Some(true)
            );
        }
        answer
    }
}

fn with_challenge<R>(unauthorized: &str, run: impl FnOnce(&Challenge<'_>) -> R) -> R {
    let mut spans = Spans::new();
    let message = Message::parse(unauthorized.as_bytes(), &mut spans).expect("well-formed");
    run(&choose(&message, HeaderKind::WwwAuthenticate).expect("a challenge"))
}

fn with_answer<R>(
    unauthorized: &str,
    (user, password): (&str, &str),
    count: u32,
    run: impl FnOnce(&DigestResponse<'_>) -> R,
) -> R {
    with_challenge(unauthorized, |challenge| {
        run(&DigestResponse {
            challenge,
            username: user.as_bytes(),
            ha1: &challenge.ha1(user.as_bytes(), password.as_bytes()),
            method: Method::Register,
            uri: URI.as_bytes(),
            body: b"",
            count,
            cnonce: b"c1",
        })
    })
}

/// The line with the credentials.
fn credentials(unauthorized: &str, user: (&str, &str), count: u32) -> String {
    with_answer(unauthorized, user, count, |answer| {
        let mut buffer = [0; 2048];
        let mut line = Builder::fields(&mut buffer);
        answer.write(&mut line, HeaderKind::Authorization);
        String::from_utf8(line.finish_fields().expect("room").to_vec()).expect("text")
    })
}

/// Authentication-Info.
fn info(answer: &str) -> &str {
    let mut lines = answer.lines();
    lines
        .find_map(|line| line.strip_prefix("Authentication-Info: "))
        .expect(answer)
}

fn confirmed(unauthorized: &str, user: (&str, &str), count: u32, answer: &str) -> Option<bool> {
    let confirmation = Confirmation::parse(info(answer).as_bytes()).expect("well-formed");
    with_answer(unauthorized, user, count, |sent| {
        sent.is_confirmed_by(&confirmation, b"")
    })
}

const ANN: (&str, &str) = ("ann", "secret");

fn same(line: String) -> String {
    line
}

#[test]
fn a_registration_can_be_asked_for_a_digest_rfc8760_2_3() {
    let mut world = World::new(challenging());
    let challenge = world.ask("");
    assert_eq!(status(&challenge), 401);
    let (sha, md5) = (
        challenge.find("algorithm=SHA-256"),
        challenge.find("algorithm=MD5"),
    );
    assert!(sha.is_some() && md5 > sha, "the best first: {challenge}");
    assert_eq!(challenge.matches("qop=\"auth\"").count(), 2, "{challenge}");
    assert_eq!(status(&world.answer(&challenge, ANN, 1, same)), 200);
    let guess = world.answer(&challenge, ("ann", "guess"), 2, same);
    assert_eq!(status(&guess), 401);
    assert!(!guess.contains("stale"), "{guess}");
    assert_eq!(
        status(&world.answer(&challenge, ("bob", "secret"), 2, same)),
        401
    );
    let replayed = world.answer(&challenge, ANN, 1, same);
    assert_eq!(status(&replayed), 401);
    assert!(replayed.contains("stale=true"), "{replayed}");
    assert_eq!(status(&world.answer(&challenge, ANN, 2, same)), 200);
    let kept = world.server.stats().sip().transactions;
    assert_eq!(kept, 2, "a challenge keeps nothing");
    // Accepted, missing, stale, denied, malformed.
    assert_eq!(world.server.stats().sip().digest, [2, 1, 1, 2, 0, 0, 0]);
}

#[test]
fn the_operator_chooses_the_algorithms_and_their_order_rfc8760_2_3() {
    use DigestAlgorithm::{Md5, Sha256, Sha512_256};
    let mut world = World::new(challenging());
    for algorithms in [&[Md5][..], &[Sha512_256, Sha256, Md5], &[Md5, Sha256]] {
        let mut settings = Settings::default();
        settings.users.push(("ann".to_owned(), "secret".to_owned()));
        settings.sip = challenging();
        settings.sip.digest_algorithms = algorithms.to_vec();
        world.server.reload(settings).expect("new settings");
        let challenge = world.ask("");
        let offered: Vec<&str> = challenge
            .split("algorithm=")
            .skip(1)
            .map(|rest| rest.split([',', '\r']).next().expect("a name"))
            .collect();
        let wanted: Vec<&str> = algorithms.iter().map(|one| one.name()).collect();
        assert_eq!(offered, wanted);
        assert_eq!(
            status(&world.answer(&challenge, ANN, 1, same)),
            200,
            "{wanted:?}"
        );
    }
}

#[test]
fn malformed_credentials_get_400_and_foreign_ones_a_challenge_rfc7616_3_4() {
    let mut world = World::new(challenging());
    let challenge = world.ask("");
    let mut with = |from: &str, to: &str| {
        let answer = world.answer(&challenge, ANN, 1, |line| {
            assert!(line.contains(from), "{from} is not in {line}");
            line.replacen(from, to, 1)
        });
        answer.lines().next().expect("a line").to_owned()
    };
    let malformed = "SIP/2.0 400 Malformed Authorization";
    assert_eq!(with("username=\"ann\", ", ""), malformed);
    assert_eq!(with("realm=", "realm"), malformed);
    assert_eq!(
        with("username=", "username*=UTF-8''ann, username="),
        malformed
    );
    assert_eq!(
        with("uri=\"sip:test@", "uri=\"sip:other@"),
        "SIP/2.0 400 Digest URI Is Not the Request-URI"
    );
    assert_eq!(
        with("nc=00000001", "nc=1"),
        "SIP/2.0 400 Missing or Malformed Nonce Count"
    );
    assert_eq!(with(", cnonce=\"c1\"", ""), "SIP/2.0 400 Missing cnonce");
    let unauthorized = "SIP/2.0 401 Unauthorized";
    assert_eq!(with("algorithm=SHA-256", "algorithm=SHA-3"), unauthorized);
    assert_eq!(
        with("algorithm=SHA-256", "algorithm=SHA-256-sess"),
        unauthorized
    );
    assert_eq!(with("realm=\"hairpin\"", "realm=\"other\""), unauthorized);
    assert_eq!(with("qop=auth", "qop=auth-int"), unauthorized);
    assert_eq!(
        with("Digest ", "Basic "),
        unauthorized,
        "RFC 8760 §2.6: never"
    );
    // The same URI, written in another way, is the same; and no failure took the count.
    assert_eq!(
        with("uri=\"sip:test@", "uri=\"SIP:test@"),
        unauthorized,
        "it is hashed as sent"
    );
    assert_eq!(with("Digest ", "Digest "), "SIP/2.0 200 OK");
}

#[test]
fn credentials_without_qop_are_accepted_once_if_the_operator_allows_them_rfc8760_2_6() {
    // As a client of RFC 2069 answers: it does not read `qop`.
    let old = |unauthorized: &str| unauthorized.replace(", qop=\"auth\"", "");
    for allows in [false, true] {
        let mut settings = challenging();
        settings.digest_algorithms = vec![DigestAlgorithm::Md5];
        settings.digest_without_qop = allows;
        let mut world = World::new(settings);
        let challenge = world.ask("");
        assert_ne!(old(&challenge), challenge, "qop is asked for in any case");
        let line = credentials(&old(&challenge), ("ann", "secret"), 1);
        assert!(!line.contains("qop") && !line.contains("nc="), "{line}");
        let first = world.ask(&line);
        if !allows {
            assert!(first.starts_with("SIP/2.0 400 Missing qop"), "{first}");
            continue;
        }
        assert_eq!(status(&first), 200, "{first}");
        // Without a count nobody could tell a repetition from a new request.
        let second = world.ask(&line);
        assert_eq!(status(&second), 401, "{second}");
        assert!(second.contains("stale=true"), "{second}");
        let line = credentials(&old(&second), ("ann", "guessed"), 1);
        assert_eq!(status(&world.ask(&line)), 401);
        let line = credentials(&old(&world.ask("")), ("ann", "secret"), 1);
        assert_eq!(status(&world.ask(&line)), 200);
    }
}

#[test]
fn nonces_that_are_not_ours_or_of_another_address_are_stale_rfc7616_3_3() {
    let mut world = World::new(challenging());
    let other = World::new(challenging());
    let foreign = other.client.ask(&register("o"));
    let answer = world.answer(&foreign, ANN, 1, same);
    assert!(
        status(&answer) == 401 && answer.contains("stale=true"),
        "{answer}"
    );
    assert_eq!(
        status(&world.answer(&answer, ANN, 1, same)),
        200,
        "the new one is good"
    );
    // A client that has none yet says so (RFC 8760 §2.7).
    let empty = "Authorization: Digest username=\"ann\", realm=\"hairpin\", nonce=\"\", \
                 uri=\"sip:test@127.0.0.1\", response=\"\", algorithm=SHA-256, qop=auth, nc=00000001, cnonce=\"c\"\r\n";
    let answer = world.ask(empty);
    assert!(
        status(&answer) == 401 && !answer.contains("stale"),
        "{answer}"
    );
}

#[test]
fn a_nonce_has_memory_for_its_counts_and_takes_no_more_rfc7616_3_4() {
    let mut world = World::new(challenging());
    let challenge = world.ask("");
    for count in 1..=100 {
        assert_eq!(status(&world.answer(&challenge, ANN, count, same)), 200);
    }
    // Out of order within the last 64, once; what is older counts as used.
    for (count, code) in [(200, 200), (150, 200), (150, 401), (101, 401), (201, 200)] {
        let answer = world.answer(&challenge, ANN, count, same);
        assert_eq!(status(&answer), code, "{count}");
    }
}

#[test]
fn an_answer_counts_once_whichever_worker_it_comes_to_rfc7616_3_4() {
    let server = serve(challenging(), 2);
    let address = server.sip_listeners()[0];
    let first = Client::new(address);
    let challenge = first.ask(&register("w"));
    let line = credentials(&challenge, ANN, 1);
    let with = |id: &str| register(id).replace("Max-Forwards", &format!("{line}Max-Forwards"));
    assert_eq!(status(&first.ask(&with("w0"))), 200);
    // Each socket is some worker's.
    let both_have_seen_it = || {
        let stats = server.stats();
        let mut workers = stats.workers.iter();
        workers.all(|worker| worker.sip.digest[2] > 0)
    };
    let mut number = 0;
    while !both_have_seen_it() {
        number += 1;
        assert!(number < 500, "one worker gets everything");
        let replayed = Client::new(address).ask(&with(&format!("w{number}")));
        assert!(
            status(&replayed) == 401 && replayed.contains("stale=true"),
            "{replayed}"
        );
    }
}

#[test]
fn integrity_and_hashed_names_are_offered_where_they_are_wanted_rfc7616_3_4_4() {
    let mut settings = challenging();
    settings.auth_int = true;
    settings.userhash = true;
    let mut world = World::new(settings);
    let challenge = world.ask("");
    assert!(
        challenge.contains("qop=\"auth,auth-int\", userhash=true"),
        "{challenge}"
    );
    let line = credentials(&challenge, ANN, 1);
    assert!(
        line.contains("userhash=true") && !line.contains("ann"),
        "{line}"
    );
    assert_eq!(status(&world.answer(&challenge, ANN, 1, same)), 200);
    assert_eq!(
        status(&world.answer(&challenge, ("bob", "secret"), 2, same)),
        401
    );
    let only = challenge.replace("auth,auth-int", "auth-int");
    assert_eq!(status(&world.answer(&only, ANN, 2, same)), 200);
    let clear = challenge.replace(", userhash=true", "");
    assert_eq!(status(&world.answer(&clear, ANN, 3, same)), 200);
}

#[test]
fn users_and_passwords_are_those_of_turn_rfc8489_9_2_2() {
    use stun::PasswordAlgorithm;
    for (turn, sip_s) in [
        (PasswordAlgorithm::Md5, DigestAlgorithm::Md5),
        (PasswordAlgorithm::Sha256, DigestAlgorithm::Sha256),
    ] {
        let key = stun::long_term_key(turn, "ann", "hairpin", "secret").expect("ASCII");
        let here = Ha1::of(sip_s, b"ann", b"hairpin", b"secret");
        let there = Ha1::from_hash(sip_s, key.as_bytes()).expect("of that length");
        let proof = Proof::default();
        assert_eq!(
            here.response(&proof).as_bytes(),
            there.response(&proof).as_bytes()
        );
    }
}
