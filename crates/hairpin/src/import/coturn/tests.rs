use super::super::{Account, Format, Proof};
use super::*;
use crate::config::{self, Inputs};

fn import(text: &str) -> Imported {
    super::super::read(Format::Coturn, text, None)
}

/// The configuration as values, which hairpin must accept.
fn accepted(text: &str) -> toml::Table {
    let imported = import(text);
    let made = imported.draft.to_toml("a test");
    let loaded = config::load(&Inputs {
        file: Some(("hairpin.toml".to_owned(), made.clone())),
        environment: Vec::new(),
        flags: Vec::new(),
    });
    assert!(
        loaded.config.is_some(),
        "{made}\n{}",
        loaded.diagnostics(false)
    );
    made.parse().unwrap()
}

fn verdicts(text: &str) -> Vec<Verdict> {
    import(text)
        .lines
        .into_iter()
        .map(|line| line.verdict)
        .collect()
}

#[test]
fn there_is_one_row_for_each_option_of_coturn_4_17() {
    let mut rows: Vec<_> = TABLES.into_iter().flatten().map(|row| row.name).collect();
    rows.sort_unstable();
    let options: Vec<_> = include_str!("options.txt").lines().collect();
    assert_eq!(rows, options);
    let mut all: Vec<_> = super::rows().map(|row| row.name).collect();
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count, "an option has two rows");
}

#[test]
fn every_option_gets_a_verdict_with_a_reason_and_the_result_is_accepted() {
    for row in super::rows() {
        for value in [
            "",
            "=1",
            "=192.0.2.1",
            "=/etc/x",
            "=a:b",
            "=\"host=db dbname=turn\"",
            "=20000",
        ] {
            let text = format!("{}{value}\n", row.name);
            let imported = import(&text);
            assert_eq!(imported.lines.len(), 1, "{text}");
            let shown = imported.lines[0].verdict.to_string();
            assert!(shown.split_whitespace().count() >= 3, "{text}: {shown}");
            // A certificate needs its file, which a test of the command has.
            accepted(&text);
        }
    }
}

#[test]
fn an_unknown_line_is_shown_with_what_was_meant() {
    let imported = import("listening-prt=3478\n\n# comment\nwhat is this\n");
    let lines: Vec<_> = imported
        .lines
        .iter()
        .map(|line| (line.line, &*line.name))
        .collect();
    assert_eq!(lines, [(1, "listening-prt 3478"), (4, "what is this")]);
    let shown = imported.lines[0].verdict.to_string();
    assert_eq!(
        shown,
        "not understood: no option of coturn; did you mean `listening-port`?"
    );
    assert!(matches!(
        imported.lines[1].verdict,
        Verdict::NotUnderstood(_)
    ));
}

#[test]
fn listeners_are_addresses_times_ports() {
    let made =
        accepted("listening-ip=192.0.2.1\nlistening-ip=2001:db8::1\nlistening-port=3500\nno-tcp\n");
    let udp = made["listen"]["udp"].to_string();
    assert_eq!(udp, r#"["192.0.2.1:3500", "[2001:db8::1]:3500"]"#);
    assert_eq!(made["listen"]["tcp"].to_string(), "[]");
    assert_eq!(
        made["relay"]["addresses"].to_string(),
        r#"["192.0.2.1", "2001:db8::1"]"#
    );
    let made = accepted("");
    assert_eq!(
        made["listen"]["udp"].to_string(),
        r#"["0.0.0.0:3478", "[::]:3478"]"#
    );
    let made = accepted("listening-ip=192.0.2.1\nno-udp\n");
    assert_eq!(made["listen"]["udp"].to_string(), r#"["127.0.0.1:3478"]"#);
}

#[test]
fn users_with_a_key_require_a_database() {
    const KEY: &str = "7da2270ccfa49786e0115366d3a3d14d";
    let text = format!("user=bob:s3:cret\nuser=eve:0x{KEY}\nrealm=example.org\n");
    let made = accepted(&text);
    assert_eq!(
        made["auth"]["users"].to_string(),
        r#"[{ name = "bob", password = "s3:cret" }]"#
    );
    assert!(matches!(verdicts(&text)[1], Verdict::Unsupported(_)));
    let imported = super::super::read(Format::Coturn, &text, Some("sqlite:/x"));
    let eve = Account {
        name: "eve".to_owned(),
        proof: Proof::Key(KEY.to_owned()),
    };
    assert_eq!(imported.users[1], eve);
    assert!(!imported.draft.has("auth.users"));
    assert!(
        imported
            .lines
            .iter()
            .all(|line| matches!(line.verdict, Verdict::Carried(_)))
    );
}

#[test]
fn the_last_line_of_an_option_counts() {
    let text = "total-quota=5\nuser=a:b\nuser=a:c\ntotal-quota=7 # more\n";
    let made = accepted(text);
    assert_eq!(made["limits"]["allocations"].as_integer(), Some(7));
    assert_eq!(
        made["auth"]["users"].to_string(),
        r#"[{ name = "a", password = "c" }]"#
    );
    let because = |line| Verdict::unnecessary(format!("line {line} replaces it"));
    assert_eq!(verdicts(text)[0], because(4));
    assert_eq!(
        verdicts(text)[1],
        Verdict::unnecessary("line 3 replaces the user")
    );
}

#[test]
fn an_allowed_peer_takes_precedence_over_a_denied_one() {
    let made = accepted(
        "denied-peer-ip=10.0.0.0-10.255.255.255\nallowed-peer-ip=10.1.0.0-10.1.255.255\ndenied-peer-ip=10.1.2.3\n",
    );
    assert_eq!(made["peers"]["deny"].to_string(), r#"["10.0.0.0/8"]"#);
    assert_eq!(made["peers"]["allow"].to_string(), r#"["10.1.0.0/16"]"#);
    let range = accepted("denied-peer-ip=192.0.2.1-192.0.2.6\n");
    assert_eq!(
        range["peers"]["deny"].to_string(),
        r#"["192.0.2.1/32", "192.0.2.2/31", "192.0.2.4/31", "192.0.2.6/32"]"#
    );
}

#[test]
fn a_relay_never_gets_the_port_of_a_listener() {
    let made = accepted("min-port=100\nmax-port=65535\nlistening-port=3478\n");
    assert_eq!(made["relay"]["ports"].as_str(), Some("3479-65535"));
    let made = accepted("listening-port=50000\n");
    assert_eq!(made["relay"]["ports"].as_str(), Some("50001-65535"));
    assert!(matches!(
        verdicts("min-port=9000\nmax-port=8000\n")[0],
        Verdict::NotUnderstood(_)
    ));
}

#[test]
fn external_addresses_match_relay_addresses() {
    let made = accepted(
        "relay-ip=10.0.0.5\nexternal-ip=203.0.113.5/10.0.0.5\nexternal-ip=203.0.113.6/10.0.0.6\n",
    );
    assert_eq!(
        made["relay"]["external_ip"].to_string(),
        r#"["203.0.113.5/10.0.0.5"]"#
    );
    let made = accepted("external-ip=203.0.113.5\nexternal-ip=203.0.113.7\n");
    assert_eq!(
        made["relay"]["external_ip"].to_string(),
        r#"["203.0.113.7"]"#
    );
    let made = accepted("external-ip=turn.example.org\n");
    assert_eq!(
        made["relay"]["external_ip"].to_string(),
        r#"["turn.example.org"]"#
    );
}

#[test]
fn connection_strings_become_urls() {
    let url = |text: &str| {
        accepted(text)["auth"]["stores"][0]["url"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        url("userdb=/var/lib/turn/turndb\n"),
        "sqlite:/var/lib/turn/turndb"
    );
    assert_eq!(
        url(
            "psql-userdb=\"host=db.example.org dbname=turn user=turn password=p/w:d connect_timeout=30\"\n"
        ),
        "postgres://turn:p%2Fw%3Ad@db.example.org/turn"
    );
    assert_eq!(
        url("mysql-userdb=\"host=10.0.0.1 dbname=turn user=t password=x port=3307\"\n"),
        "mysql://t:x@10.0.0.1:3307/turn"
    );
    assert_eq!(
        url("redis-userdb=\"ip=10.0.0.1 dbname=2 password=x connect_timeout=30\"\n"),
        "redis://:x@10.0.0.1/2"
    );
    assert_eq!(
        url("psql-userdb=\"postgresql://u:p@h:5432/turn\"\n"),
        "postgres://u:p@h:5432/turn"
    );
}

#[test]
fn nat_discovery_has_the_second_address() {
    let made = accepted("listening-ip=192.0.2.1\nlistening-ip=192.0.2.2\nrfc5780\n");
    assert_eq!(
        made["nat_discovery"]["udp"].to_string(),
        r#"["192.0.2.2:3479"]"#
    );
    assert_eq!(made["listen"]["udp"].to_string(), r#"["192.0.2.1:3478"]"#);
    assert!(matches!(verdicts("rfc5780\n")[0], Verdict::Unsupported(_)));
}

#[test]
fn shared_ports_are_two_per_thread() {
    let made = accepted("multiplex-peer\nrelay-threads=4\nmin-port=40000\n");
    assert_eq!(made["relay"]["shared_ports"].as_bool(), Some(true));
    assert_eq!(made["relay"]["ports"].as_str(), Some("3480-3487"));
    assert_eq!(made["server"]["workers"].as_integer(), Some(4));
}

#[test]
fn a_file_of_another_program_is_not_taken_for_coturns() {
    assert!(is_recognized("# turn\nlistening-port=3478\nfoo\nrealm=x\n"));
    assert!(!is_recognized("[listen]\nudp = []\n"));
    assert!(!is_recognized(""));
}

#[test]
fn a_number_may_be_left_out() {
    let made = accepted("stale-nonce\nmax-allocate-lifetime\n");
    assert_eq!(made["auth"]["nonce_lifetime"].as_str(), Some("600s"));
    assert_eq!(made["limits"]["lifetime_max"].as_str(), Some("3600s"));
    assert!(matches!(
        verdicts("channel-lifetime\n")[0],
        Verdict::Unnecessary(_)
    ));
}

#[test]
fn secure_stun_is_carried_over() {
    let text = "lt-cred-mech\nuser=ann:secret\nrealm=example.org\nsecure-stun\n";
    let made = accepted(text);
    assert_eq!(made["auth"]["binding_requests"].as_bool(), Some(true));
    let expected = Verdict::carried("auth.binding_requests");
    assert_eq!(verdicts(text).last(), Some(&expected));
    let without = accepted("lt-cred-mech\nuser=ann:secret\nrealm=example.org\n");
    assert!(without["auth"].get("binding_requests").is_none());
}

#[test]
fn notes_name_values_that_look_like_comments_or_variables_and_open_relays() {
    let noted = |text: &str, part: &str| {
        let notes = import(text).notes;
        notes.iter().filter(|note| note.contains(part)).count()
    };
    let secret = "use-auth-secret\nstatic-auth-secret=abcdefghijklmnop #change\n";
    assert_eq!(noted(secret, "line 2: coturn has no comments"), 1);
    // The value is as coturn reads it. A number and an address end before the comment.
    let made = accepted(secret);
    let [secret] = made["auth"]["secrets"].as_array().unwrap().as_slice() else {
        panic!("{made:?}");
    };
    assert_eq!(secret.as_str(), Some("abcdefghijklmnop #change"));
    let others = "listening-port=3478 #udp\nexternal-ip=192.0.2.1 #mine\nuser=a:b#c\n";
    assert_eq!(noted(others, "comments"), 0);
    assert_eq!(
        accepted(others)["relay"]["external_ip"][0].as_str(),
        Some("192.0.2.1")
    );
    assert_eq!(
        noted("realm=${REALM}\nrealms=${NO_OPTION}\n", "${...} of realm "),
        1
    );
    let open = "relays for everybody";
    assert_eq!(noted("realm=example.org\n", open), 1);
    for closed in [
        "lt-cred-mech",
        "no-auth",
        "stun-only",
        "use-auth-secret",
        "user=a:b",
    ] {
        assert_eq!(
            noted(&format!("realm=example.org\n{closed}\n"), open),
            0,
            "{closed}"
        );
    }
}
