//! RFC 4475: every message of it, from the RFC's own archive, and what is made of it.

use hairpin_sip as sip;
use sip::build::{Answerable, Stamp};
use sip::verdict::{Refusal, Rules, Verdict, judge};
use sip::{Framing, Limits, Message, Method, Spans, Uri};

const TABLE: &str = include_str!("torture/expected.tsv");

/// The messages, by name.
macro_rules! messages {
    ($($name:literal)*) => {
        const MESSAGES: &[(&str, &[u8])] = &[$(($name, include_bytes!(concat!("torture/", $name, ".dat"))),)*];
    };
}

messages! {
    "wsinv" "intmeth" "esc01" "escnull" "esc02" "lwsdisp" "longreq" "dblreq" "semiuri" "transports" "mpart01"
    "unreason" "noreason" "badinv01" "clerr" "ncl" "scalar02" "scalarlg" "quotbal" "ltgtruri" "lwsruri"
    "lwsstart" "trws" "escruri" "baddate" "regbadct" "badaspec" "baddn" "badvers" "mismatch01" "mismatch02"
    "bigcode" "badbranch" "insuf" "unkscm" "novelsc" "unksm2" "bext01" "invut" "regaut01" "multi01" "mcl01"
    "bcast" "zeromf" "cparam01" "cparam02" "regescrt" "sdp01" "inv2543" "test"
}

/// One line of the table.
struct Line {
    name: &'static str,
    user_agent: &'static str,
    proxy: &'static str,
}

fn lines() -> Vec<Line> {
    let lines = TABLE.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let columns: Vec<_> = line.split('\t').collect();
            let [_, name, _, _, user_agent, proxy] = columns[..] else {
                panic!("six columns: {line}")
            };
            Line {
                name,
                user_agent,
                proxy,
            }
        })
        .collect()
}

fn message(name: &str) -> &'static [u8] {
    let found = MESSAGES.iter().find(|(found, _)| *found == name);
    found.unwrap_or_else(|| panic!("no message {name}")).1
}

/// What is done with a message, in the words of the table.
fn outcome(bytes: &[u8], rules: &Rules<'_>) -> String {
    let mut spans = Spans::new();
    match judge(
        bytes,
        &mut spans,
        Framing::Datagram,
        &Limits::DEFAULT,
        rules,
    ) {
        Verdict::Accept(_) => "accept".to_owned(),
        Verdict::Answer(answerable, refusal) => {
            check_answer(&answerable, &refusal, rules);
            format!("{} {}", refusal.code, refusal.phrase())
        }
        Verdict::Drop(reason) => format!("drop: {}", reason.label()),
    }
}

/// The answer can be written, and is a response.
fn check_answer(answerable: &Answerable<'_>, refusal: &Refusal<'_>, rules: &Rules<'_>) {
    let mut buffer = [0; 4096];
    let bytes = refusal
        .write(&mut buffer, answerable, rules, b"tag", Stamp::default())
        .expect("room");
    let mut spans = Spans::new();
    let response = Message::parse(bytes, &mut spans).expect("a response");
    assert_eq!(response.status_code(), Some(refusal.code));
    let has = |kind| response.has(kind);
    assert_eq!(has(sip::HeaderKind::Unsupported), refusal.code == 420);
}

#[test]
fn every_message_is_taken_as_the_table_says() {
    let lines = lines();
    assert_eq!(lines.len(), MESSAGES.len());
    for Line {
        name,
        user_agent,
        proxy,
    } in lines
    {
        let bytes = message(name);
        let outcomes = [&Rules::USER_AGENT, &Rules::PROXY].map(|rules| outcome(bytes, rules));
        assert_eq!(outcomes, [user_agent, proxy], "{name}");
    }
}

/// Reads a message that must be well-formed.
fn with<T>(name: &str, look: impl FnOnce(&Message<'_>) -> T) -> T {
    let mut spans = Spans::new();
    let message = Message::parse(message(name), &mut spans).expect("well-formed");
    look(&message)
}

#[test]
fn the_archives_baddn_is_refused_with_its_blank_line_too() {
    let whole = [message("baddn"), b"\r\n"].concat();
    assert_eq!(outcome(&whole, &Rules::PROXY), "400 Malformed From");
}

#[test]
fn the_short_tortuous_invite_is_understood() {
    with("wsinv", |message| {
        assert_eq!(message.method(), Some(Method::Invite));
        assert_eq!(message.to().expect("To").tag, Some(&b"1918181833n"[..]));
        let from = message.from().expect("From");
        assert_eq!(
            (from.display, from.tag),
            (&br#""J Rosenberg \\\"""#[..], Some(&b"98asjd8"[..]))
        );
        assert_eq!(message.max_forwards(), Ok(Some(68)));
        assert_eq!(message.cseq().expect("CSeq").number, 9);
        let vias: Vec<_> = message.vias().collect::<Result<_, _>>().expect("Via");
        assert_eq!(vias.len(), 3);
        assert!(!vias[0].has_magic_cookie() && vias[1].has_magic_cookie());
        assert_eq!(vias[2].branch, Some(&b"z9hG4bK30239"[..]));
        assert_eq!(
            message
                .header(sip::HeaderKind::Subject)
                .expect("Subject")
                .value,
            b""
        );
        let contact = message.contact().expect("Contact").expect("an address");
        assert_eq!((contact.q(), contact.params.iter().count()), (Some(330), 3));
        assert_eq!(message.body().len(), 150);
        assert_eq!(message.routes().count(), 1);
        assert_eq!(
            message
                .headers_named(b"UnknownHeaderWithUnusualValue")
                .count(),
            1
        );
    });
}

#[test]
fn the_widest_range_of_characters_is_understood() {
    with("intmeth", |message| {
        assert_eq!(
            message.method(),
            Some(Method::Other(
                b"!interesting-Method0123456789_*+`.%indeed'~"
            ))
        );
        let Ok(Uri::Sip(uri)) = Uri::parse(message.request_uri().expect("a request")) else {
            panic!("a SIP URI")
        };
        assert_eq!(
            uri.user,
            Some(&b"1_unusual.URI~(to-be!sure)&isn't+it$/crazy?,/;;*"[..])
        );
        assert_eq!(
            uri.password,
            Some(&b"&it+has=1,weird!*pas$wo~d_too.(doesn't-it)"[..])
        );
        assert!(message.to().expect("To").display.contains(&0));
        assert_eq!(message.from().expect("From").params.iter().count(), 2);
        assert!(message.call_id().is_ok());
    });
}

#[test]
fn escapes_count_where_they_are_escapes_only() {
    with("escnull", |message| {
        let uris: Vec<_> = message.contacts().flatten().collect();
        let [
            sip::header::Contact::Addr(one),
            sip::header::Contact::Addr(two),
        ] = uris[..]
        else {
            panic!("two contacts")
        };
        assert_ne!(one.parse_uri().ok(), two.parse_uri().ok());
        let mut buffer = [0; 64];
        let user = b"null-%00-null";
        assert_eq!(
            sip::uri::unescape(user, &mut buffer),
            Some(&b"null-\0-null"[..])
        );
    });
    with("esc02", |message| {
        assert_eq!(message.contacts().count(), 2);
        assert_eq!(message.method(), Some(Method::Other(b"RE%47IST%45R")));
    });
    with("esc01", |message| {
        let contact = message.contact().expect("Contact").expect("an address");
        let uri = contact.parse_uri().expect("a URI");
        let sip = uri.as_sip().expect("a SIP URI");
        assert!(sip.is_loose(), "%6C%72 is lr");
        assert_eq!(sip.params.value(b"name"), Some(&b"v%61lue%25%34%31"[..]));
    });
    with("semiuri", |message| {
        let uri = Uri::parse(message.request_uri().expect("a request")).expect("a URI");
        assert_eq!(
            uri.as_sip().expect("a SIP URI").user,
            Some(&b"user;par=u%40example.net"[..])
        );
    });
}

#[test]
fn parameters_belong_to_the_header_or_to_the_uri() {
    let contact = |name: &str| {
        with(name, |message| {
            let contact = message.contact().expect("Contact").expect("an address");
            let uri = contact.parse_uri().expect("a URI");
            let sip = uri.as_sip().expect("a SIP URI");
            (
                contact.params.iter().count(),
                sip.params.iter().count(),
                sip.headers.iter().count(),
            )
        })
    };
    assert_eq!(contact("cparam01"), (1, 0, 0));
    assert_eq!(contact("cparam02"), (0, 1, 0));
    assert_eq!(contact("regescrt"), (0, 0, 1));
}

#[test]
fn a_datagram_ends_where_content_length_says() {
    with("dblreq", |message| {
        assert_eq!(message.method(), Some(Method::Register));
        assert!(message.as_bytes().ends_with(b"Content-Length: 0\r\n\r\n"));
    });
    with("mpart01", |message| assert_eq!(message.body().len(), 553));
    with("longreq", |message| assert_eq!(message.vias().count(), 34));
    with("inv2543", |message| {
        assert!(message.body().starts_with(b"v=0"))
    });
    with("unreason", |message| {
        assert_eq!(message.status_code(), Some(200))
    });
}
