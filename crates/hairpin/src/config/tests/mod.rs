//! What the user sees for every kind of mistake, and that no text at all can make the reader panic.

mod files;
mod secrets;
mod sip;
mod syntax;

use std::ffi::OsString;

use proptest::prelude::*;

use super::*;

fn load_file(text: &str) -> Loaded {
    load(&Inputs {
        file: Some(("hairpin.toml".to_owned(), text.to_owned())),
        ..Inputs::default()
    })
}

fn load_env(name: &str, value: &str) -> Loaded {
    load(&Inputs {
        environment: vec![(OsString::from(name), OsString::from(value))],
        ..Inputs::default()
    })
}

fn flag(flag: &'static str, key: &str, values: &[&str], list: bool) -> Flag {
    Flag {
        flag,
        key: key.to_owned(),
        values: values.iter().map(ToString::to_string).collect(),
        list,
    }
}

/// One line per complaint.
fn complaints(text: &str) -> Vec<String> {
    load_file(text).one_line_each()
}

#[track_caller]
fn one_complaint(text: &str, expected: &str) {
    assert_eq!(complaints(text), [expected], "for {text:?}");
}

#[test]
fn the_defaults_are_complete_and_without_fault() {
    let loaded = load(&Inputs::default());
    assert_eq!(loaded.one_line_each(), [""; 0]);
    let config = loaded
        .config
        .expect("defaults.toml has every key that is not decided at start");
    assert_eq!(config.relay_ports, 49_152..=65_535);
    assert_eq!(config.limits.lifetime_default, Duration::from_secs(600));
    assert_eq!(config.workers, None);
}

#[test]
fn a_diagnostic_shows_place_source_line_caret_and_advice() {
    let text = "[auth]\nrealm = \"example.org\"\nuser = []\n";
    let expected = "\
error: unknown key `user` in [auth]
 --> hairpin.toml:3:1
  |
3 | user = []
  | ^^^^
  |
  = help: did you mean `users`?

";
    assert_eq!(load_file(text).diagnostics(false), expected);
}

#[test]
fn old_names_with_a_unit_still_work_and_lead_to_the_new_ones() {
    let file = "[sip]\nt1_ms = 250\n[server]\nbusy_poll_us = 50\n";
    let loaded = load_file(file);
    assert_eq!(
        loaded.one_line_each(),
        [
            "hairpin.toml:2:9: `t1_ms` is an old name (write t1 = \"250ms\")",
            "hairpin.toml:4:16: `busy_poll_us` is an old name (write busy_poll = \"50us\")",
        ]
    );
    let config = loaded.config.expect("warnings only");
    assert_eq!(config.busy_poll_us, 50);
    let environment = load_env("HAIRPIN_SIP__TOLERANCE_MS", "20000").one_line_each();
    assert!(
        environment[0].contains("must be from 0s to 10s"),
        "{environment:?}"
    );
    let flags = vec![flag("--set", "limits.stream_queue_age_ms", &["70"], false)];
    let loaded = load(&Inputs {
        flags,
        ..Inputs::default()
    });
    let age = loaded
        .config
        .expect("warnings only")
        .limits
        .stream_queue_age;
    assert_eq!(age, Duration::from_millis(70));
}

#[test]
fn a_key_and_its_old_name_cannot_both_be_set_in_one_layer() {
    one_complaint(
        "[sip]\nt1_ms = 250\nt1 = \"1s\"\n",
        "hairpin.toml:2:9: `t1` and its old name `t1_ms` are both set (keep `t1`)",
    );
    let both = |first: &str, second: &str| {
        let variable = |name: &str| {
            let value = if name.ends_with("MS") { "250" } else { "1s" };
            (OsString::from(name), OsString::from(value))
        };
        load(&Inputs {
            environment: vec![variable(first), variable(second)],
            ..Inputs::default()
        })
    };
    for (first, second) in [
        ("HAIRPIN_SIP__T1", "HAIRPIN_SIP__T1_MS"),
        ("HAIRPIN_SIP__T1_MS", "HAIRPIN_SIP__T1"),
    ] {
        let loaded = both(first, second);
        let lines = loaded.one_line_each();
        let message = format!("environment {second}: `t1` and its old name `t1_ms` are both set");
        let is_named = lines.iter().any(|line| line.contains(&message));
        assert!(is_named && loaded.config.is_none(), "{lines:?}");
    }
    // Another layer wins as always.
    let loaded = load(&Inputs {
        file: Some(("a".to_owned(), "[sip]\nt1_ms = 250\n".to_owned())),
        environment: vec![("HAIRPIN_SIP__T1".into(), "1s".into())],
        ..Inputs::default()
    });
    assert_eq!(loaded.one_line_each().len(), 1);
    assert!(loaded.config.is_some());
}

#[test]
fn a_value_that_cannot_be_read_gets_no_warning_about_its_old_name() {
    let complaints = complaints("[sip]\nt1_ms = 999999\n");
    assert_eq!(complaints.len(), 1, "{complaints:?}");
    assert!(complaints[0].contains("out of range"), "{complaints:?}");
}

#[test]
fn lengths_of_time_need_a_unit_and_have_a_range() {
    one_complaint(
        "[sip]\nt1 = 500\n",
        "hairpin.toml:2:6: expected a length of time like \"500ms\", \"1.5s\" or \"50us\", found an integer (say the unit: \"500ms\")",
    );
    one_complaint(
        "[sip]\nt1 = \"1ms\"\n",
        "hairpin.toml:2:6: out of range: must be from 10ms to 5s (the nearest is \"10ms\")",
    );
    one_complaint(
        "[sip]\nt1 = \"soon\"\n",
        "hairpin.toml:2:6: `soon` is not a length of time (the units are s, ms and us, as in \"1.5s\", \"500ms\" or \"50us\")",
    );
}

#[test]
fn a_clash_points_at_both_places() {
    let text = "[listen]\nudp = [\"192.0.2.1:50000\"]\n[relay]\naddresses = [\"192.0.2.1\"]\nports = \"50000-50100\"\n";
    let expected = "\
error: the listener 192.0.2.1:50000 lies in the relay range
 --> hairpin.toml:2:8
  |
2 | udp = [\"192.0.2.1:50000\"]
  |        ^^^^^^^^^^^^^^^^^
...
5 | ports = \"50000-50100\"
  |         ------------- ports 50000 to 50100 are relayed from
  |
  = help: a relayed port could take the listener's place: choose a range like \"49152-65535\"

";
    assert_eq!(load_file(text).diagnostics(false), expected);
}

#[test]
fn a_clash_between_layers_points_into_both() {
    let file = Some((
        "hairpin.toml".to_owned(),
        "[listen]\nudp = [\"0.0.0.0:5000\"]\n".to_owned(),
    ));
    let flags = vec![flag("--port-range", "relay.ports", &["4000-6000"], false)];
    let loaded = load(&Inputs {
        file,
        flags,
        ..Inputs::default()
    });
    let text = loaded.diagnostics(false);
    assert!(text.contains("--> hairpin.toml:2:8"), "{text}");
    assert!(
        text.contains("::: command line") || text.contains("--> command line"),
        "{text}"
    );
    assert!(text.contains("--port-range 4000-6000"), "{text}");
}

#[test]
fn colours_only_on_request() {
    let loaded = load_file("x = 1");
    assert!(!loaded.diagnostics(false).contains('\u{1b}'));
    assert!(loaded.diagnostics(true).contains('\u{1b}'));
}

#[test]
fn every_mistake_is_reported_at_once_and_in_order() {
    let text = "\
[listen]
upd = []
udp = \"0.0.0.0:3478\"
[relay]
ports = \"9-1\"
[auth]
realm = 5
secrets = [\"\"]
[auth]
[limit]
";
    let found = complaints(text);
    let lines: Vec<_> = found
        .iter()
        .map(|line| line.split(' ').next().unwrap_or_default())
        .collect();
    let expected = ["2:1", "3:7", "5:9", "7:9", "8:12", "9:2", "10:2"]
        .map(|place| format!("hairpin.toml:{place}:"));
    assert_eq!(lines, expected, "{found:#?}");
}

#[test]
fn unknown_names_get_a_suggestion() {
    one_complaint(
        "[relya]\n",
        "hairpin.toml:1:2: unknown section `relya` (did you mean [relay]?)",
    );
    one_complaint(
        "relm = 1",
        "hairpin.toml:1:1: unknown key `relm` (did you mean `realm`? It belongs to [auth])",
    );
    one_complaint(
        "realm = \"x\"",
        "hairpin.toml:1:1: `realm` stands outside of any section (it belongs to [auth])",
    );
    one_complaint(
        "[peers]\nports = 1",
        "hairpin.toml:2:1: unknown key `ports` in [peers] (it belongs to [relay])",
    );
    one_complaint(
        "[peers]\nalow = 1",
        "hairpin.toml:2:1: unknown key `alow` in [peers] (did you mean `allow`?)",
    );
    one_complaint(
        "[log]\ncolour = 1",
        "hairpin.toml:2:1: unknown key `colour` in [log] (known here: level, format)",
    );
    one_complaint(
        "auth = 3",
        "hairpin.toml:1:8: expected a section, found an integer (write [auth] and its keys below)",
    );
}

#[test]
fn wrong_types_say_what_is_expected() {
    one_complaint(
        "[listen]\nudp = \"0.0.0.0:1\"",
        "hairpin.toml:2:7: expected a list, found a string (write it as a list: [\"0.0.0.0:1\"])",
    );
    one_complaint(
        "[limits]\nallocations = \"7\"",
        "hairpin.toml:2:15: expected a whole number, found a string (leave out the quotes: 7)",
    );
    one_complaint(
        "[peers]\nallow_local = \"true\"",
        "hairpin.toml:2:15: expected true or false, found a string (leave out the quotes: true)",
    );
    one_complaint(
        "[limits]\nlifetime_max = 3600",
        "hairpin.toml:2:16: expected a length of time like \"90s\", \"10m\" or \"1d\", found an integer (say the unit: \"3600s\")",
    );
    one_complaint(
        "[server]\nworkers = \"4\"",
        "hairpin.toml:2:11: expected \"auto\" or a number of workers, found a string (leave out the quotes: 4)",
    );
}

#[test]
fn shared_ports_suffice_for_the_workers() {
    one_complaint(
        "[server]\nworkers = 8\n[relay]\nshared_ports = true\nports = \"60000-60003\"",
        "hairpin.toml:2:11: 8 workers cannot share 4 relay ports (each worker requires a relay port: choose more ports, or fewer workers)",
    );
    one_complaint(
        "[relay]\nshared_ports = true\nports = \"60000-61023\"",
        "hairpin.toml:3:9: 1024 relay ports cannot be shared: 256 are the most (choose at most 256 ports, such as \"60000-60003\", or remove relay.shared_ports)",
    );
    let fits = "[server]\nworkers = 4\n[relay]\nshared_ports = true\nports = \"60000-60003\"";
    assert_eq!(complaints(fits), [""; 0]);
}

#[test]
fn values_out_of_range_are_refused() {
    one_complaint(
        "[server]\nworkers = 0",
        "hairpin.toml:2:11: out of range: must be from 1 to 255 (the nearest is 1)",
    );
    one_complaint(
        "[limits]\nlifetime_max = \"100d\"",
        "hairpin.toml:2:16: out of range: must be from 2m to 1d (the nearest is \"1d\")",
    );
    one_complaint(
        "[auth]\nnonce_lifetime = \"1s\"",
        "hairpin.toml:2:18: out of range: must be from 1m to 1h (the nearest is \"1m\")",
    );
    one_complaint(
        "[limits]\nallocations = 99999999999999999999",
        "hairpin.toml:2:15: out of range: must be from 1 to 10000000 (the nearest is 10000000)",
    );
}

#[test]
fn clashes_are_refused() {
    one_complaint(
        "[limits]\nlifetime_default = \"2h\"",
        "hairpin.toml:2:20: the default lifetime 2h is above the longest, 1h (RFC 8656 suggests a default of \"10m\" and a maximum of \"1h\")",
    );
    one_complaint(
        "[relay]\nports = \"1024-65535\"",
        "hairpin.toml:2:9: the listening port 3478 lies in the relay range (a relayed port could take the listener's place: choose a range like \"49152-65535\")",
    );
    one_complaint(
        "[relay]\nexternal_ip = [\"203.0.113.5/fd00::1\"]",
        "hairpin.toml:2:16: 203.0.113.5 and fd00::1 are not of the same address family (map IPv4 to IPv4 and IPv6 to IPv6, each with its own entry)",
    );
    one_complaint(
        "[relay]\naddresses = [\"192.0.2.1\"]\nexternal_ip = [\"203.0.113.5/10.0.0.1\"]",
        "hairpin.toml:3:16: 10.0.0.1 is none of the relay addresses (add it to relay.addresses, or map one of those)",
    );
    one_complaint(
        "[relay]\naddresses = [\"192.0.2.1\"]\nexternal_ip = [\"2001:db8::5\"]",
        "hairpin.toml:3:16: 2001:db8::5 stands for no relay address: none is IPv6 (add an IPv6 address to relay.addresses)",
    );
    one_complaint(
        "[relay]\nexternal_ip = [\"auto\"]",
        "hairpin.toml:2:16: no STUN server is known that could be asked (set relay.external_ip_servers = [\"stun.example.org\"], or write the address)",
    );
    one_complaint(
        "[relay]\nexternal_ip = [\"auto\", \"turn.example.org\"]\nexternal_ip_servers = [\"192.0.2.1\"]",
        "hairpin.toml:2:24: only one of `auto` and a DNS name is possible (keep one of them)",
    );
    one_complaint(
        "[relay]\nexternal_ip = [\"203.0.113.5\", \"203.0.113.6\"]",
        "hairpin.toml:2:31: IPv4 has two external addresses (keep one of them)",
    );
    one_complaint(
        "[auth]\nusers = [{ name = \"a\", password = \"b\" }, { name = \"a\", password = \"c\" }]",
        "hairpin.toml:2:42: two users are called `a` (keep one of them)",
    );
    one_complaint(
        "[peers]\nallow = [\"10.0.0.0/8\"]\ndeny = [\"10.0.0.0/8\"]",
        "hairpin.toml:2:10: the same peers are both allowed and denied (deny wins; take it out of one of the two lists)",
    );
    one_complaint(
        "[listen]\nudp = []",
        "hairpin.toml:2:7: the list is empty (leave the key out to have it decided at start)",
    );
}

#[test]
fn a_listener_on_an_address_without_relays_may_use_any_port() {
    let text = "[listen]\nudp = [\"192.0.2.9:50000\"]\n[relay]\naddresses = [\"192.0.2.1\"]\n";
    assert_eq!(complaints(text), [""; 0]);
}

#[test]
fn unlikely_settings_are_warnings() {
    let loaded = load_file("[auth]\nsecrets = [\"short\"]\n[relay]\naddresses = [\"10.0.0.5\"]\n");
    assert_eq!(loaded.count(), "2 warnings");
    assert!(loaded.config.is_some());
    let mapped = load_file(
        "[relay]\naddresses = [\"10.0.0.5\"]\nexternal_ip = [\"203.0.113.5/10.0.0.5\"]\n",
    );
    assert_eq!(mapped.count(), "");
}

#[test]
fn layers_win_in_order() {
    let file = Some((
        "f".to_owned(),
        "[auth]\nrealm = \"file\"\n[log]\nlevel = \"debug\"\n".to_owned(),
    ));
    let environment = vec![
        ("HAIRPIN_AUTH__REALM".into(), "environment".into()),
        ("HAIRPIN_LISTEN__UDP".into(), "127.0.0.1:1, [::1]:2".into()),
        ("HAIRPIN_SERVER__WORKERS".into(), "3".into()),
        ("HAIRPIN_PORT".into(), "tcp://10.0.0.1:3478".into()),
    ];
    let flags = vec![
        flag("--listen", "listen.udp", &["127.0.0.1:9"], true),
        flag("--set", "limits.allocations", &["5"], false),
    ];
    let loaded = load(&Inputs {
        file,
        environment,
        flags,
    });
    assert_eq!(loaded.one_line_each(), [""; 0]);
    let effective = loaded.effective(false);
    for line in [
        "workers = 3  # environment HAIRPIN_SERVER__WORKERS",
        "udp = [\"127.0.0.1:9\"]  # command line --listen",
        "realm = \"environment\"  # environment HAIRPIN_AUTH__REALM",
        "allocations = 5  # command line --set",
        "level = \"debug\"  # f:4:9",
        "format = \"auto\"  # default",
        "# addresses: decided at start",
    ] {
        assert!(effective.contains(line), "{line} is not in\n{effective}");
    }
}

#[test]
fn the_effective_configuration_reads_back_as_itself() {
    let text = "[auth]\nrealm = \"x\"\nsecrets = [\"0123456789abcdef\"]\nusers = [{ name = \"a\", password = \"\\\"'\" }]\n\
                [listen]\nudp = [\"[::1]:5\"]\n[limits]\nlifetime_max = \"90m\"\n[relay]\nports = \"5000-6000\"\n\
                external_ip = [\"203.0.113.1\"]\n[peers]\nallow = [\"10.0.0.0/8:5-6\"]\n";
    let first = load_file(text);
    let again = load_file(&first.effective(true));
    assert_eq!(again.one_line_each(), [""; 0]);
    assert!(first.config.is_some());
    assert_eq!(first.config, again.config);
}

#[test]
fn secrets_stay_out_of_sight() {
    let loaded = load_env("HAIRPIN_AUTH__SECRETS", "hunter2,");
    assert!(
        !loaded.diagnostics(false).contains("hunter2"),
        "{}",
        loaded.diagnostics(false)
    );
    assert!(
        loaded
            .diagnostics(false)
            .contains("HAIRPIN_AUTH__SECRETS=***")
    );
    let loaded = load_file(
        "[auth]\nsecrets = [\"0123456789abcdef\"]\nusers = [{ name = \"a\", password = \"hunter2\" }]\n",
    );
    let effective = loaded.effective(false);
    assert!(
        !effective.contains("hunter2") && !effective.contains("012345"),
        "{effective}"
    );
    assert!(!format!("{:?}", loaded.config).contains("hunter2"));
}

#[test]
fn mistakes_in_the_environment_name_the_variable() {
    let found = load_env("HAIRPIN_RELAY__PORT", "1-2").one_line_each();
    assert_eq!(
        found,
        [
            "environment HAIRPIN_RELAY__PORT: unknown environment variable `HAIRPIN_RELAY__PORT` (did you mean HAIRPIN_RELAY__PORTS?)"
        ]
    );
    let found = load_env("HAIRPIN_RELAY__PORTS", "2-1").one_line_each();
    assert_eq!(
        found,
        [
            "environment HAIRPIN_RELAY__PORTS: the range ends before it begins: 2 is above 1 (did you mean \"1-2\"?)"
        ]
    );
}

#[test]
fn keys_that_require_a_restart_are_named() {
    let old = load_file("[auth]\nrealm = \"a\"\n");
    let new =
        load_file("[auth]\nrealm = \"b\"\n[relay]\nports = \"5000-6000\"\n[server]\nworkers = 2\n");
    assert_eq!(
        needs_restart(&old, &new),
        ["server.workers", "relay.ports", "auth.realm"]
    );
    assert_eq!(needs_restart(&old, &old), [""; 0]);
}

#[test]
fn a_large_file_of_garbage_is_refused_at_once() {
    let start = std::time::Instant::now();
    let loaded = load_file(&"one two\n".repeat(50_000));
    assert!(loaded.report.errors() >= 50_000);
    assert!(loaded.diagnostics(false).ends_with("more\n\n"));
    // A tenth of a second; looking up each line from the beginning of the text took half a minute.
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "{:?}",
        start.elapsed()
    );
}

/// Lines that look like a configuration, with mistakes in them.
fn line() -> impl Strategy<Value = String> {
    let key = prop::sample::select(
        KEYS.iter()
            .map(|key| key.name)
            .chain(["x", "", "\"\"", "a.b"])
            .collect::<Vec<_>>(),
    );
    let value = prop_oneof![
        prop::sample::select(vec![
            "1",
            "-1",
            "0x7f",
            "1e9",
            "true",
            "\"\"",
            "\"1h\"",
            "[",
            "]",
            "[[]]",
            "{ name = 1 }",
            "{ name = \"a\", password = \"b\" }",
            "[\"127.0.0.1:1\", 2]",
            "\"10.0.0.0/8:1\"",
            "1979-05-27",
            "'''",
            "\"\\u00e4\"",
            "[\"203.0.113.5/10.0.0.5\"]",
            "\"1-2\"",
        ])
        .prop_map(str::to_owned),
        "\\PC{0,12}",
        "\"[0-9a-f:./\\[\\]-]{0,24}\"",
    ];
    let section = prop::sample::select(
        schema::sections()
            .into_iter()
            .chain(["x", "auth.users", ""])
            .collect::<Vec<_>>(),
    );
    prop_oneof![
        section.prop_map(|section| format!("[{section}]")),
        (key, value).prop_map(|(key, value)| format!("{key} = {value}")),
        "\\PC{0,40}",
    ]
}

proptest! {
    #[test]
    fn no_text_makes_the_reader_panic(text in "(?s).{0,300}") {
        let loaded = load_file(&text);
        prop_assert_eq!(loaded.config.is_none(), loaded.report.errors() > 0);
        let _ = (loaded.diagnostics(true), loaded.one_line_each(), loaded.effective(true));
    }

    #[test]
    fn nothing_like_a_configuration_makes_the_reader_panic(lines in prop::collection::vec(line(), 0..20)) {
        let loaded = load_file(&lines.join("\n"));
        prop_assert_eq!(loaded.config.is_none(), loaded.report.errors() > 0);
        let _ = (loaded.diagnostics(false), loaded.one_line_each(), loaded.effective(false));
    }

    #[test]
    fn no_environment_or_flag_makes_the_reader_panic(at in 0..KEYS.len(), value in "(?s).{0,60}") {
        let key = &KEYS[at];
        let flags = vec![flag("--set", &key.path(), &[&value], false), flag("--set", &value, &[&value], false)];
        let loaded = load(&Inputs { environment: vec![(key.variable().into(), value.clone().into())], flags, ..Inputs::default() });
        let _ = (loaded.diagnostics(false), loaded.one_line_each(), loaded.effective(false));
    }
}

#[test]
fn realms_are_read_with_their_defaults_and_written_back() {
    let text = "\
[[auth.realms]]
name = \"shop.example\"
origins = [\"https://www.shop.example\"]
server_names = [\"turn.shop.example\"]
listeners = [\"0.0.0.0:3479\"]
secrets = [\"a secret of the shop alone\"]
users = [{ name = \"alice\", password = \"s3cret\" }]
peers_deny = [\"192.0.2.0/24\"]
allocations = 5000
rate_per_allocation = \"2MiB/s\"

[[auth.realms]]
name = \"bank.example\"
listeners = [\"0.0.0.0:3480\"]
users = [{ name = \"alice\", password = \"other\" }]
";
    let loaded = load_file(text);
    assert_eq!(loaded.one_line_each(), [""; 0]);
    let realms = loaded.config.as_ref().expect("no fault").realms.clone();
    let numbers = |realm: &Realm| {
        let rate = realm.allocation_rate;
        (realm.allocations, realm.allocations_per_user, rate)
    };
    assert_eq!(numbers(&realms[0]), (5000, 1000, 2 << 20));
    assert_eq!(numbers(&realms[1]), (u32::MAX, 1000, 0));
    assert_eq!(realms[0].listeners[0].port(), 3479);
    let effective = loaded.effective(false);
    assert!(!effective.contains("s3cret") && !effective.contains("shop alone"));
    let again = load_file(&loaded.effective(true));
    assert_eq!(again.config.expect("no fault").realms, realms);
}

#[test]
fn a_key_of_access_tokens_can_be_of_a_realm() {
    let key = "MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
    let text = |realm: &str| {
        format!(
            "[auth]\nrealm = \"a\"\nrealms = [{{ name = \"shop\" }}]\ntoken_keys = [\n{{ kid = \"k\", key = \"{key}\", realm = \"{realm}\" }},\n]\n"
        )
    };
    // A key alone makes the realm useful.
    let loaded = load_file(&text("shop"));
    assert_eq!(loaded.one_line_each(), [""; 0]);
    let keys = loaded.config.as_ref().expect("no fault").token_keys.clone();
    assert_eq!(keys[0].realm.as_deref(), Some("shop"));
    let again = load_file(&loaded.effective(true));
    assert_eq!(again.config.expect("no fault").token_keys, keys);
    let complaints = complaints(&text("bank"));
    let missing = "hairpin.toml:5:1: there is no realm `bank` for this key (name auth.realm or one of auth.realms)";
    assert!(
        complaints.iter().any(|one| one == missing),
        "{complaints:?}"
    );
}

#[test]
fn realms_that_cannot_work_are_named() {
    let realm = |fields: &str| format!("[auth]\nrealm = \"a\"\nrealms = [{{ {fields} }}]\n");
    let users = "users = [{ name = \"x\", password = \"y\" }]";
    one_complaint(
        &realm(users),
        "hairpin.toml:3:11: the realm has no name (write it like { name = \"a.example\", origins = [\"https://a.example\"], secrets = [\"SECRET\"] })",
    );
    one_complaint(
        &realm(&format!("name = \"a\", origins = [\"http://h\"], {users}")),
        "hairpin.toml:3:20: the realm `a` is used twice",
    );
    one_complaint(
        &realm(&format!("name = \"b\", {users}")),
        "hairpin.toml:3:11: no client can choose the realm `b` (give it origins, server_names or listeners)",
    );
    one_complaint(
        &realm("name = \"b\", origins = [\"http://h\"]"),
        "hairpin.toml:3:11: nobody can authenticate in the realm `b` (give it secrets or users)",
    );
    one_complaint(
        &realm(&format!("name = \"b\", server_names = [\"*.h\"], {users}")),
        "hairpin.toml:3:41: `*.h` is not a DNS name (give one whole name in ASCII, like \"turn.example.org\")",
    );
    let complaint = &complaints(&realm("name = \"b\", orgins = []"))[0];
    assert!(
        complaint.contains("unknown key `orgins` in a realm"),
        "{complaint}"
    );
}
