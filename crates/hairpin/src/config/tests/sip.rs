//! The configuration of SIP.

use server::sip::Inbound;

use super::*;

#[test]
fn sip_listeners_stay_clear_of_others() {
    one_complaint(
        "[listen]\nudp = [\"127.0.0.1:5060\"]\n[sip]\nlisten = [\"127.0.0.1:5060\"]",
        "hairpin.toml:4:11: 127.0.0.1:5060 is taken by STUN and TURN (SIP has a port of its own, 5060; STUN is answered there, too)",
    );
    one_complaint(
        "[sip]\nlisten = [\"127.0.0.1:50600\"]",
        "hairpin.toml:2:11: the SIP listener 127.0.0.1:50600 lies in the relay range (choose a port below the range, like 5060)",
    );
    one_complaint(
        "[sip]\nlisten = [\"[::1]:5060\", \"[::1]:5060\"]",
        "hairpin.toml:2:25: [::1]:5060 is listed twice (keep one of them)",
    );
}

#[test]
fn a_challenge_that_nobody_could_answer_is_refused() {
    one_complaint(
        "[sip]\nlisten = [\"127.0.0.1:5060\"]\ntest_uas = true\nchallenge = true",
        "hairpin.toml:4:13: nobody could answer the challenge (add a user to auth.users, with its password)",
    );
    let text = "[sip]\nlisten = [\"127.0.0.1:5060\"]\ntest_uas = true\nchallenge = true\n[auth]\nusers = [{ name = \"a\", password = \"b\" }]\n";
    assert_eq!(complaints(text), [""; 0]);
}

#[test]
fn digest_algorithms_are_known_and_stand_once_rfc8760_2_3() {
    one_complaint(
        "[sip]\ndigest_algorithms = [\"MD5\", \"MD5\"]",
        "hairpin.toml:2:29: MD5 is listed twice (keep one of them)",
    );
    one_complaint(
        "[sip]\ndigest_algorithms = []",
        "hairpin.toml:2:21: the list is empty (leave the key out for SHA-256 and MD5)",
    );
    assert_eq!(
        complaints("[sip]\ndigest_algorithms = [\"SHA-1\"]").len(),
        1
    );
    assert_eq!(
        complaints("[sip]\ndigest_algorithms = [\"SHA-512-256\"]"),
        [""; 0]
    );
}

#[test]
fn a_test_uas_without_a_listener_is_hardly_meant() {
    let loaded = load_file("[sip]\ntest_uas = true\n");
    assert_eq!(loaded.count(), "1 warning");
}

#[test]
fn certificates_of_sip_clients_need_an_issuer() {
    one_complaint(
        "[sip]\nclient_certificates = \"require\"",
        "hairpin.toml:2:23: certificates of clients have no issuer that they could be verified by \
         (set sip.client_ca to the PEM file of their issuer)",
    );
    one_complaint(
        "[sip]\nclient_certificates = \"maybe\"",
        "hairpin.toml:2:23: unknown value `maybe` (one of \"none\", \"request\", \"require\")",
    );
    one_complaint(
        "[sip]\nnext_hop_ca = [\"/nowhere/ca.crt\"]",
        "hairpin.toml:2:16: cannot read /nowhere/ca.crt: No such file or directory (os error 2) \
         (give a PEM file with the certificates of the issuers)",
    );
}

#[test]
fn sip_over_tls_and_websocket_needs_a_certificate_and_addresses_of_its_own() {
    one_complaint(
        "[sip]\nlisten_tls = [\"127.0.0.1:5061\"]",
        "hairpin.toml:2:14: there is a TLS listener, but no certificate (set tls.certificates or acme.domains, or remove the listener)",
    );
    one_complaint(
        "[sip]\nlisten = [\"127.0.0.1:5060\"]\nlisten_ws = [\"127.0.0.1:5060\"]",
        "hairpin.toml:3:14: 127.0.0.1:5060 is taken (give each protocol a port of its own)",
    );
    one_complaint(
        "[sip]\nlisten_ws = [\"127.0.0.1:8080\"]\nws_paths = [\"ws\"]",
        "hairpin.toml:3:13: `ws` is not a path (begin with a slash, like \"/ws\")",
    );
    one_complaint(
        "[sip]\nlisten_ws = [\"127.0.0.1:8080\"]\nws_origins = [\"https://a.example/\"]",
        "hairpin.toml:3:15: `https://a.example/` is not an origin (give scheme and host alone, like \"https://phone.example.org\")",
    );
    let text = "[sip]\nlisten_ws = [\"127.0.0.1:8080\"]\nws_paths = [\"/ws\"]\nws_origins = [\"https://a.example:8443\"]";
    assert_eq!(complaints(text), [""; 0]);
}

#[test]
fn domains_of_sip_are_read_and_written_back() {
    let text = "\
[auth]
users = [{ name = \"alice\", password = \"s3cret\" }]
[sip]
register_expires = \"10m\"
[[sip.domain]]
name = \"example.org\"
aliases = [\"192.0.2.1\"]
service_route = [\"<sip:p.example.org;lr>\"]
inbound = \"anyone\"
[[sip.domain]]
name = \"example.net\"
[[sip.trunk]]
addresses = [\"192.0.2.7\", \"2001:db8::/32\"]
weight = 3
[[sip.trunk]]
addresses = [\"192.0.2.8\"]
";
    let loaded = load_file(text);
    let sip = loaded.config.as_ref().expect("no fault").sip.clone();
    let names: Vec<&str> = sip.domains.iter().map(|domain| &domain.name[..]).collect();
    assert_eq!(names, ["example.org", "example.net"]);
    assert_eq!(sip.domains[0].aliases, ["192.0.2.1"]);
    assert_eq!(sip.domains[0].service_route, ["<sip:p.example.org;lr>"]);
    assert_eq!(sip.domains[0].inbound, Inbound::Anyone);
    assert_eq!(sip.domains[1].inbound, Inbound::Known);
    let networks: Vec<String> = sip.trunks[0]
        .addresses
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(networks, ["192.0.2.7/32", "2001:db8::/32"]);
    assert_eq!((sip.trunks[0].weight, sip.trunks[1].weight), (3, 1));
    assert!(sip.record_route);
    assert_eq!(sip.registrar.default_expires, 600);
    assert_eq!(sip.registrar.min_expires, 60);
    let again = load_file(&loaded.effective(true));
    assert_eq!(again.config.expect("no fault").sip, sip);
}

#[test]
fn limits_of_sip_calls_are_read_and_checked() {
    let text = "[sip]\nuser_calls = 4\ndomain_call_rate = 20\nmax_call_duration = \"2h\"\n\
                forbidden_prefixes = [\"+1900\", \"0900\"]\nallowed_prefixes = [\"+1900555\"]\n";
    let calls = load_file(text).config.expect("no fault").sip.calls;
    assert_eq!(
        (calls.per_user.concurrent, calls.per_user.per_second),
        (4, 0)
    );
    assert_eq!(
        (calls.per_domain.concurrent, calls.per_domain.per_second),
        (0, 20)
    );
    assert_eq!(calls.most.as_secs(), 7200);
    assert_eq!(calls.forbidden_prefixes, ["+1900", "0900"]);
    assert_eq!(calls.allowed_prefixes, ["+1900555"]);
    one_complaint(
        "[sip]\nforbidden_prefixes = [\"+49 900\"]\n",
        "hairpin.toml:2:23: `+49 900` is not the beginning of a number (write digits only, with + in front or without, like \"+49900\")",
    );
    one_complaint(
        "[sip]\nsession_expires = \"2m\"\nsession_min = \"3m\"\n",
        "hairpin.toml:2:19: the session interval is smaller than sip.session_min (sip.session_expires must be at least sip.session_min, or 0 for no session timer)",
    );
    one_complaint(
        "[sip]\nuser_calls = 1\nrecord_route = false\n",
        "hairpin.toml:3:16: calls are limited or logged, but without Record-Route the proxy gets no BYE (remove sip.record_route = false, or the limits of calls and sip.call_log)",
    );
    let trunk = "[[sip.trunk]]\naddresses = [\"192.0.2.7\"]\nmax_calls = 30\n";
    let trunks = load_file(trunk).config.expect("no fault").sip.trunks;
    assert_eq!(trunks[0].max_calls, 30);
    let report = load_file(&format!("[sip]\nrecord_route = false\n{trunk}"));
    assert!(report.one_line_each()[0].contains("the proxy gets no BYE"));
}

#[test]
fn the_credentials_of_a_trunk_are_for_its_realm_or_else_for_every_realm() {
    let load = |lines: &str| {
        load_file(&format!(
            "[[sip.trunk]]\nname = \"carrier\"\nto = [\"sip:192.0.2.7:5060\", \"sip:SBC.example.net;transport=tls\"]\n{lines}"
        ))
    };
    let password = "user = \"office\"\npassword = \"secret\"\n";
    let realms = |lines: &str| {
        let trunks = load(lines).config.expect("no fault").sip.trunks;
        let credentials = trunks[0].credentials.clone().expect("credentials");
        credentials.realms
    };
    let named = format!("{password}realm = \"asterisk\"\n");
    assert_eq!(realms(&named), ["asterisk"]);
    let has_warning = |lines: &str| {
        let lines = load(lines).one_line_each();
        let mut lines = lines.iter();
        lines.any(|line| line.contains("a password and no realm"))
    };
    assert!(!has_warning(&named));
    assert!(realms(password).is_empty());
    assert!(has_warning(password));
    for (lines, why) in [
        (format!("{password}realm = \"\"\n"), "the realm is empty"),
        (format!("{password}realm = 'a\"b'\n"), "a quotation mark"),
        ("realm = \"a\"\n".to_owned(), "a realm and no password"),
    ] {
        let lines = load(&lines).one_line_each();
        assert!(lines.iter().any(|line| line.contains(why)), "{lines:?}");
    }
}

#[test]
fn a_domain_of_sip_can_have_users_of_its_own() {
    let text = "\
[sip]
listen = [\"127.0.0.1:5060\"]

[[sip.domain]]
name = \"a.example\"
users = [{ name = \"alice\", password = \"s3cret\" }, { name = \"bob\", ha1s = { MD5 = \"33A8E5413A76B006FEEEC9A0CE78F640\" } }]
digest_algorithms = [\"MD5\"]
";
    let loaded = load_file(text);
    assert_eq!(loaded.one_line_each(), [""; 0]);
    let sip = loaded.config.as_ref().expect("no fault").sip.clone();
    let [own] = &sip.credentials[..] else {
        panic!("one domain");
    };
    assert_eq!((&own.domain[..], own.realm.as_deref()), ("a.example", None));
    assert_eq!(own.users.as_ref().map(Vec::len), Some(2));
    let again = load_file(&loaded.effective(true));
    assert_eq!(again.config.expect("no fault").sip, sip);
    let shown = loaded.effective(false);
    assert!(
        !shown.contains("s3cret") && !shown.to_lowercase().contains("33a8"),
        "{shown}"
    );
}

#[test]
fn users_of_a_domain_of_sip_that_cannot_work_are_named() {
    let domain = |fields: &str| {
        format!(
            "[sip]\ndomain = [{{ name = \"a.example\", {fields} }}]\nlisten = [\"127.0.0.1:5060\"]\n"
        )
    };
    one_complaint(
        &domain(
            "users = [{ name = \"bob\", ha1s = { MD5 = \"33a8e5413a76b006feeec9a0ce78f640\" } }]",
        ),
        "hairpin.toml:2:42: user `bob` has no hash of SHA-256, which is offered (add the hash, or set digest_algorithms of the domain without SHA-256)",
    );
    one_complaint(
        &domain("users = [{ name = \"bob\", ha1s = { MD5 = \"33a8\" } }]"),
        "hairpin.toml:2:73: a hash of MD5 has 32 hexadecimal digits (write them like { MD5 = \"939e7578ed9e3c518a452acee763bce9\" })",
    );
    one_complaint(
        &domain("users = []"),
        "hairpin.toml:2:11: nobody can register in the domain (give it users, add a user to auth.users, with its password, or a store to auth.stores)",
    );
    one_complaint(
        &domain("users = [{ name = \"a\", password = \"b\" }, { name = \"a\", password = \"c\" }]"),
        "hairpin.toml:2:74: the domain has two users `a` (remove one)",
    );
}

#[test]
fn a_domain_of_sip_without_a_listener_gets_a_warning() {
    one_complaint(
        "[auth]\nusers = [{ name = \"a\", password = \"b\" }]\n[sip]\ndomain = [{ name = \"a.example\" }]\n",
        "hairpin.toml:4:11: this has no effect, because nothing listens for SIP (add a listener, for example sip.listen = [\"127.0.0.1:5060\"])",
    );
}

#[test]
fn domains_of_sip_that_cannot_work_are_named() {
    let users = "[auth]\nusers = [{ name = \"alice\", password = \"s3cret\" }]\n";
    let domain = |fields: &str| {
        format!("{users}[sip]\ndomain = [{{ {fields} }}]\nlisten = [\"127.0.0.1:5060\"]\n")
    };
    one_complaint(
        &domain("name = \"a b\""),
        "hairpin.toml:4:20: `a b` is not a domain name or an IP address (write a name like \"example.org\", or an IP address without a port)",
    );
    one_complaint(
        &domain("aliases = [\"a.example\"]"),
        "hairpin.toml:4:11: the domain has no name (write it like { name = \"example.org\" })",
    );
    one_complaint(
        &domain("name = \"a.example\", service_route = [\"<sip:p>\"]"),
        "hairpin.toml:4:50: `<sip:p>` is not a route such as `<sip:proxy.example.com;lr>` (write a SIP URI with `lr` in angle brackets)",
    );
    one_complaint(
        &domain("name = \"a.example\", aliases = [\"A.example\"]"),
        "hairpin.toml:4:10: `A.example` is the name of two domains (name each host once)",
    );
    one_complaint(
        &domain("name = \"a.example\", inbound = \"anybody\""),
        "hairpin.toml:4:43: unknown value `anybody` (one of \"known\", \"anyone\")",
    );
    one_complaint(
        "[sip]\ntrunk = [{ addresses = [] }]\n",
        "hairpin.toml:2:10: the trunk has no address that it sends from (write it like { name = \"carrier\", addresses = [\"192.0.2.7\"] })",
    );
    one_complaint(
        "[sip]\ntrunk = [{ addresses = [\"192.0.2.7:5060\"] }]\n",
        "hairpin.toml:2:25: `192.0.2.7:5060` has a transport or ports (give the network alone)",
    );
    one_complaint(
        "[sip]\ndomain = [{ name = \"a.example\" }]\nlisten = [\"127.0.0.1:5060\"]\n",
        "hairpin.toml:2:11: nobody can register in the domain (give it users, add a user to auth.users, with its password, or a store to auth.stores)",
    );
    one_complaint(
        &format!(
            "{users}[sip]\nlisten = [\"127.0.0.1:5060\"]\ntest_uas = true\ndomain = [{{ name = \"a.example\" }}]\n"
        ),
        "hairpin.toml:5:12: sip.test_uas would accept REGISTER from anybody (remove sip.test_uas, or the domains)",
    );
    one_complaint(
        "[sip]\nregister_min = \"10m\"\nregister_expires = \"5m\"\n",
        "hairpin.toml:3:20: the default registration time is not between the shortest and the longest (sip.register_min <= sip.register_expires <= sip.register_max)",
    );
    one_complaint(
        "[sip]\nice_servers = [\"turn:turn.example.org\"]\n",
        "hairpin.toml:2:16: there is no shared secret to make passwords for TURN from (add one to auth.secrets: openssl rand -base64 24)",
    );
    one_complaint(
        "[sip]\nice_servers = [\"stun:turn.example.org\"]\n",
        "hairpin.toml:2:16: `stun:turn.example.org` is no TURN server (write a `turn:` or `turns:` URI; phones need no STUN server beside it)",
    );
}

#[test]
fn registrations_that_end_before_a_phone_is_woken_are_hardly_meant() {
    let push = "push_gateway = \"https://push.example.org/\"\npush_providers = [\"fcm\"]\n";
    for (keys, warning) in [
        (
            "register_expires = \"2m10s\"\n",
            "hairpin.toml:4:20: a phone whose REGISTER has no time is not woken to refresh its registration: it is too short (make sip.register_expires longer than sip.push_refresh)",
        ),
        ("register_expires = \"2m11s\"\n", ""),
        (
            "register_expires = \"2m\"\nregister_max = \"130s\"\n",
            "hairpin.toml:5:16: no phone is woken to refresh its registration: all registrations are too short (make sip.register_max longer than sip.push_refresh)",
        ),
    ] {
        let loaded = load_file(&format!("[sip]\n{push}{keys}"));
        let count = usize::from(!warning.is_empty());
        let lines = loaded.one_line_each();
        assert_eq!(lines.concat(), warning);
        assert_eq!(lines.len(), count);
        assert!(loaded.config.is_some(), "{keys}");
    }
    // Without a gateway, no phone is woken at all.
    assert_eq!(complaints("[sip]\nregister_expires = \"2m\"\n"), [""; 0]);
}

#[test]
fn a_trunk_can_be_known_by_its_certificate_and_have_limits_for_its_calls() {
    let trunk = "[[sip.trunk]]\ncertificates = [\"Carrier.example\"]\nmax_calls_from = 30\n\
                 calls_per_second_from = 5\n";
    let complaints = |text: &str| load_file(text).one_line_each().join("\n");
    let listens = "[sip]\nlisten_tls = [\"127.0.0.1:0\"]\n";
    for (keys, wanted) in [
        ("", "nothing listens for SIP over TLS"),
        (listens, "clients are not asked for one"),
    ] {
        let line = complaints(&format!("{keys}{trunk}"));
        assert!(line.contains(wanted), "{line}");
    }
    for name in ["*.example", "192.0.2.7", ""] {
        let text = format!("[[sip.trunk]]\ncertificates = [\"{name}\"]\n");
        let line = complaints(&text);
        assert!(
            line.contains("is not a domain that a certificate of SIP can have"),
            "{line}"
        );
    }
    let text = "[[sip.trunk]]\naddresses = [\"192.0.2.7\"]\nmax_calls_from = 30\ncalls_per_second_from = 5\n";
    let trunks = load_file(text).config.expect("no fault").sip.trunks;
    assert_eq!(
        (trunks[0].max_calls_from, trunks[0].calls_per_second_from),
        (30, 5)
    );
    let report = load_file(&format!("[sip]\nrecord_route = false\n{text}"));
    let lines = report.one_line_each().join("\n");
    assert!(lines.contains("the proxy gets no BYE"), "{lines}");
}

#[test]
fn a_forward_can_name_another_user_here() {
    let domain = "[[sip.domain]]\nname = \"example.org\"\n";
    let listens = "[sip]\nlisten = [\"127.0.0.1:0\"]\n";
    let first_line = |listens: &str, to: &str| {
        let forward = format!("[[sip.forward]]\nusers = [\"alice\"]\non_busy = \"{to}\"\n");
        let lines = load_file(&format!("{listens}{domain}{forward}")).one_line_each();
        lines
            .into_iter()
            .find(|line| line.contains("no call is forwarded to"))
    };
    assert_eq!(first_line(listens, "sip:bob@example.org"), None);
    for (listens, to, why) in [
        ("", "sip:bob@example.org", "over UDP or TCP"),
        (listens, "sips:bob@example.org", "by sip URIs"),
        (listens, "tel:+4930", "there is no route for it"),
    ] {
        let line = first_line(listens, to).unwrap_or_default();
        assert!(line.contains(why), "{to}: {line}");
    }
    let own =
        "[[sip.forward]]\nusers = [\"alice@example.org\"]\non_busy = \"sip:alice@example.org\"\n";
    let lines = load_file(&format!("{listens}{domain}{own}")).one_line_each();
    assert!(
        lines
            .iter()
            .any(|line| line.contains("the forward is of the same user")),
        "{lines:?}"
    );
}
