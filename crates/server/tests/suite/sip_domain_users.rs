//! Domains with users, a realm and algorithms of their own: users of the same name in two domains have nothing in
//! common.

use crate::sip_client::phone::{credentials_of, value, values};
use crate::sip_client::{Client, status};
use hairpin_server::sip::{
    DigestAlgorithm, Domain, DomainCredentials, DomainUser, SipSettings, Trunk, UserSecret,
};
use hairpin_server::{Running, Server};
use sip::{HeaderKind, Method};
use std::net::UdpSocket;
use std::time::Duration;

fn user(name: &str, password: &str) -> DomainUser {
    DomainUser {
        name: name.to_owned(),
        secret: UserSecret::Password(password.to_owned()),
    }
}

fn settings() -> SipSettings {
    let domain = |name: &str, aliases: &[&str]| Domain {
        name: name.to_owned(),
        aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
        ..Domain::default()
    };
    let mut settings = SipSettings::default();
    settings.domains = vec![
        domain("a.example", &["alias.example"]),
        domain("B.example", &[]),
        domain("c.example", &[]),
    ];
    // H(carol:b:right).
    let carol = DomainUser {
        name: "carol".to_owned(),
        secret: UserSecret::Ha1s(vec![(
            DigestAlgorithm::Md5,
            "33A8E5413A76B006FEEEC9A0CE78F640".to_owned(),
        )]),
    };
    settings.credentials = vec![
        DomainCredentials {
            domain: "alias.example".to_owned(),
            users: Some(vec![user("alice", "password of a")]),
            ..DomainCredentials::default()
        },
        DomainCredentials {
            domain: "b.example".to_owned(),
            realm: Some("b".to_owned()),
            users: Some(vec![user("alice", "password of b"), carol]),
            algorithms: Some(vec![DigestAlgorithm::Md5]),
        },
    ];
    settings.t1 = Duration::from_millis(100);
    settings
}

fn serve(settings: SipSettings) -> Running {
    Server::builder()
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .sip_listen("127.0.0.1:0".parse().expect("an address"))
        .sip(settings)
        .workers(2)
        .user("alice", "password of all")
        .user("bob@a.example", "password of all")
        .start()
        .expect("the server starts")
}

/// A phone of a user in a domain.
struct Phone {
    client: Client,
    user: &'static str,
    domain: &'static str,
    password: &'static str,
    count: u32,
}

impl Phone {
    fn new(
        server: &Running,
        user: &'static str,
        domain: &'static str,
        password: &'static str,
    ) -> Phone {
        Phone {
            client: Client::new(server.sip_listeners()[0]),
            user,
            domain,
            password,
            count: 0,
        }
    }

    fn request(&mut self, method: &str, uri: &str, lines: &str) -> String {
        self.count += 1;
        let (user, domain, count, local) =
            (self.user, self.domain, self.count, self.client.local());
        let port = local.port();
        let to = match method {
            "REGISTER" => format!("sip:{user}@{domain}"),
            _ => uri.to_owned(),
        };
        format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/UDP {local};rport;branch=z9hG4bK{port}x{count}\r\n\
             From: <sip:{user}@{domain}>;tag=1\r\nTo: <{to}>\r\nCall-ID: {port}@test\r\nCSeq: {count} {method}\r\n\
             Max-Forwards: 70\r\nContact: <sip:{user}@{local}>\r\n{lines}Content-Length: 0\r\n\r\n"
        )
    }

    fn receive(&self, start: &str) -> String {
        for _ in 0..20 {
            let text = self.client.answer();
            if text.starts_with(start) {
                return text;
            }
        }
        panic!("no {start}");
    }

    /// Sends a request, and again with credentials. Returns the challenge and the last answer.
    fn ask(&mut self, method: Method<'static>, uri: &str) -> (String, String) {
        let name = String::from_utf8_lossy(method.as_bytes()).into_owned();
        let text = self.request(&name, uri, "");
        self.client.send(text.as_bytes());
        let challenge = self.receive("SIP/2.0 40");
        let kind = match method {
            Method::Register => HeaderKind::Authorization,
            _ => HeaderKind::ProxyAuthorization,
        };
        let who = (self.user, self.password);
        let line = credentials_of(&challenge, kind, who, method, uri);
        let text = self.request(&name, uri, &line);
        self.client.send(text.as_bytes());
        let answer = self.receive("SIP/2.0 ");
        (challenge, answer)
    }

    fn register(&mut self) -> (String, u16) {
        let uri = format!("sip:{}", self.domain);
        let (challenge, answer) = self.ask(Method::Register, &uri);
        (challenge, status(&answer))
    }
}

#[test]
fn users_of_one_name_in_two_domains_have_passwords_and_bindings_of_their_own() {
    let server = serve(settings());
    let mut of_a = Phone::new(&server, "alice", "a.example", "password of a");
    let mut of_b = Phone::new(&server, "alice", "b.example", "password of b");
    let mut of_c = Phone::new(&server, "alice", "c.example", "password of all");
    let (challenge, code) = of_a.register();
    assert_eq!(code, 200);
    assert!(challenge.contains("realm=\"a.example\""), "{challenge}");
    assert_eq!(
        values(&challenge, "WWW-Authenticate").len(),
        2,
        "{challenge}"
    );
    let (challenge, code) = of_b.register();
    assert_eq!(code, 200);
    assert!(challenge.contains("realm=\"b\""), "{challenge}");
    let offered = values(&challenge, "WWW-Authenticate");
    assert!(
        offered.len() == 1 && offered[0].contains("MD5"),
        "{challenge}"
    );
    let (challenge, code) = of_c.register();
    assert_eq!(code, 200);
    assert!(challenge.contains("realm=\"hairpin\""), "{challenge}");
    // Whose password is another domain's, is not let in.
    for (domain, password) in [
        ("a.example", "password of b"),
        ("a.example", "password of all"),
        ("b.example", "password of a"),
        ("c.example", "password of a"),
    ] {
        let (_, code) = Phone::new(&server, "alice", domain, password).register();
        assert_eq!(code, 401, "{domain} {password}");
    }
    // By an alias, too, it is the same user.
    let (_, code) = Phone::new(&server, "alice", "alias.example", "password of a").register();
    assert_eq!(code, 200);
    // A user of all domains has no address in a domain with users of its own.
    let (_, code) = Phone::new(&server, "bob", "a.example", "password of all").register();
    assert_eq!(code, 401);
    // Each is called by the address of the own domain.
    for (phone, uri) in [
        (&of_a, "sip:alice@a.example"),
        (&of_b, "sip:alice@b.example"),
        (&of_c, "sip:alice@c.example"),
    ] {
        let mut caller = Phone::new(&server, "alice", "c.example", "password of all");
        let text = caller.request("MESSAGE", uri, "");
        caller.client.send(text.as_bytes());
        let challenge = caller.receive("SIP/2.0 407");
        assert!(challenge.contains("realm=\"hairpin\""), "{challenge}");
        let kind = HeaderKind::ProxyAuthorization;
        let who = ("alice", "password of all");
        let line = credentials_of(&challenge, kind, who, Method::Message, uri);
        let text = caller.request("MESSAGE", uri, &line);
        caller.client.send(text.as_bytes());
        let message = phone.receive("MESSAGE ");
        let identity = value(&message, "P-Asserted-Identity");
        assert_eq!(identity, "<sip:alice@c.example>", "{message}");
    }
}

#[test]
fn the_domain_of_from_says_who_must_authenticate_and_whose_addresses_exist() {
    let server = serve(settings());
    let mut of_a = Phone::new(&server, "alice", "a.example", "password of a");
    let mut of_b = Phone::new(&server, "alice", "b.example", "password of b");
    assert_eq!(of_b.register().1, 200);
    let (challenge, answer) = of_a.ask(Method::Message, "sip:nobody@b.example");
    assert!(challenge.contains("realm=\"a.example\""), "{challenge}");
    assert_eq!(status(&answer), 404, "{answer}");
    let (_, answer) = of_a.ask(Method::Message, "sip:carol@b.example");
    assert_eq!(
        status(&answer),
        480,
        "carol has an address, and no phone: {answer}"
    );
    // There is an alice of all domains, and her address is not in a domain with users of its own.
    let (_, answer) = of_a.ask(Method::Message, "sip:bob@a.example");
    assert_eq!(status(&answer), 404, "{answer}");
    // Credentials of one domain are none for another.
    let uri = "sip:alice@b.example";
    let text = of_a.request("MESSAGE", uri, "");
    of_a.client.send(text.as_bytes());
    let challenge = of_a.receive("SIP/2.0 407");
    let kind = HeaderKind::ProxyAuthorization;
    let who = ("alice", "password of a");
    let line = credentials_of(&challenge, kind, who, Method::Message, uri);
    of_a.domain = "b.example";
    let text = of_a.request("MESSAGE", uri, &line);
    of_a.client.send(text.as_bytes());
    let again = of_a.receive("SIP/2.0 407");
    assert!(again.contains("realm=\"b\""), "{again}");
    // Whoever is anonymous authenticates in whatever realm there are credentials for.
    of_a.domain = "a.example";
    let text = of_a.request("MESSAGE", uri, &line);
    let anonymous = text.replace(
        "From: <sip:alice@a.example>",
        "From: \"Anonymous\" <sip:anonymous@anonymous.invalid>",
    );
    of_a.client.send(anonymous.as_bytes());
    let message = of_b.receive("MESSAGE ");
    assert!(!message.contains("Proxy-Authorization"), "{message}");
}

#[test]
fn a_hash_of_the_password_is_as_good_as_the_password() {
    let server = serve(settings());
    let (_, code) = Phone::new(&server, "carol", "b.example", "right").register();
    assert_eq!(code, 200);
    let (_, code) = Phone::new(&server, "carol", "b.example", "wrong").register();
    assert_eq!(code, 401);
}

#[test]
fn credentials_that_cannot_be_used_are_refused_at_the_start() {
    let mut wrong = settings();
    wrong.credentials[0].domain = "elsewhere.example".to_owned();
    let mut short = settings();
    short.credentials[1].users.as_mut().expect("users")[1].secret =
        UserSecret::Ha1s(vec![(DigestAlgorithm::Sha256, "00".to_owned())]);
    for settings in [wrong, short] {
        let refused = Server::builder()
            .listen("127.0.0.1:0".parse().expect("an address"))
            .sip_listen("127.0.0.1:0".parse().expect("an address"))
            .sip(settings)
            .start();
        assert!(refused.is_err());
    }
}

/// RFC 3325 §5. The carrier must know who calls, and the called phone must not.
#[test]
fn an_anonymous_user_is_named_to_trunks_only() {
    let [trunk, phone] = ["127.0.0.46:0", "127.0.0.1:0"].map(|at| {
        let socket = UdpSocket::bind(at).expect("a socket");
        let limit = Some(Duration::from_secs(10));
        socket.set_read_timeout(limit).expect("an option");
        socket
    });
    let [trunk_at, phone_at] = [&trunk, &phone].map(|it| it.local_addr().expect("an address"));
    let mut settings = settings();
    settings.trunks = vec![Trunk {
        name: "carrier".to_owned(),
        addresses: vec![trunk_at.ip().into()],
        ..Trunk::default()
    }];
    let server = serve(settings);
    for (socket, to, identity) in [
        (&trunk, trunk_at, Some("<sip:alice@a.example>")),
        (&phone, phone_at, None),
    ] {
        let mut alice = Phone::new(&server, "alice", "a.example", "password of a");
        let uri = format!("sip:x@{to}");
        let anonymous = |text: String| {
            let from = "From: <sip:anonymous@anonymous.invalid>;";
            text.replace("From: <sip:alice@a.example>;", from)
        };
        // Credentials for the realm of a domain name the domain.
        let mut own = Phone::new(&server, "alice", "a.example", "password of a");
        let text = own.request("MESSAGE", &uri, "");
        own.client.send(text.as_bytes());
        let challenge = own.receive("SIP/2.0 407");
        let (kind, who) = (HeaderKind::ProxyAuthorization, ("alice", "password of a"));
        let line = credentials_of(&challenge, kind, who, Method::Message, &uri);
        let text = alice.request("MESSAGE", &uri, &line);
        alice.client.send(anonymous(text).as_bytes());
        let mut buffer = [0; 4096];
        let length = socket.recv(&mut buffer).expect("the MESSAGE");
        let got = String::from_utf8_lossy(&buffer[..length]).into_owned();
        assert!(got.contains("anonymous.invalid"), "{got}");
        let names = values(&got, "P-Asserted-Identity");
        assert_eq!(names.first().copied(), identity, "{got}");
    }
}
