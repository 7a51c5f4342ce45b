use super::super::{Format, Imported, Verdict, read};
use crate::config::{self, Inputs};

fn accepted(text: &str) -> (Imported, toml::Table) {
    let imported = read(Format::Eturnal, text, None);
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
    (imported, made.parse().unwrap())
}

const USUAL: &str = "\
# a server for video calls
eturnal:
  secret: \"0123456789abcdef0123\"
  credentials:
    alice: s3cret
  listen:
    - ip: \"::\"
      port: 3478
      transport: udp
    - ip: 192.0.2.1
      transport: tcp
  relay_min_port: 50000
  relay_max_port: 50999
  relay_ipv4_addr: 203.0.113.4
  blacklist_peers:
    - recommended
    - 198.51.100.0/24
  whitelist_peers: 10.1.0.0/16
  max_allocations: unlimited
  strict_expiry: true
  modules:
    mod_stats_prometheus:
      port: 9000
";

#[test]
fn a_usual_file_is_carried_over() {
    let (imported, made) = accepted(USUAL);
    let text = |section: &str, key: &str| made[section][key].to_string();
    assert_eq!(text("listen", "udp"), r#"["0.0.0.0:3478", "[::]:3478"]"#);
    assert_eq!(text("listen", "tcp"), r#"["192.0.2.1:3478"]"#);
    assert_eq!(text("listen", "tls"), "[]");
    assert_eq!(text("auth", "secrets"), r#"["0123456789abcdef0123"]"#);
    assert_eq!(
        text("auth", "users"),
        r#"[{ name = "alice", password = "s3cret" }]"#
    );
    assert_eq!(text("auth", "realm"), r#""eturnal.net""#);
    assert_eq!(text("relay", "ports"), r#""50000-50999""#);
    assert_eq!(text("peers", "deny"), r#"["198.51.100.0/24"]"#);
    assert_eq!(text("peers", "allow"), r#"["10.1.0.0/16"]"#);
    assert_eq!(text("limits", "allocations_per_user"), "10000000");
    assert_eq!(text("limits", "permissions_per_allocation"), "10");
    assert_eq!(text("admin", "listen"), r#""127.0.0.1:9000""#);
    let lines: Vec<_> = imported.lines.iter().map(|line| line.line).collect();
    assert_eq!(lines, [3, 4, 7, 10, 12, 13, 14, 15, 18, 19, 20, 22, 23]);
    assert!(
        imported
            .lines
            .iter()
            .all(|line| matches!(line.verdict, Verdict::Carried(_)))
    );
}

#[test]
fn mistakes_are_shown_with_their_lines() {
    let (imported, _) = accepted("eturnal:\n  secrt: x\n  listen:\n    - transport: quic\n");
    let shown: Vec<_> = imported
        .lines
        .iter()
        .map(|line| (line.line, line.verdict.to_string()))
        .collect();
    assert_eq!(
        shown[0],
        (
            2,
            "not understood: no option of eturnal; did you mean `secret`?".to_owned()
        )
    );
    assert_eq!(
        shown[1],
        (
            4,
            "not understood: transport is udp, tcp, tls or auto".to_owned()
        )
    );
    let broken = read(Format::Eturnal, "eturnal:\n  secret: \"x\n", None);
    assert!(matches!(broken.lines[0].verdict, Verdict::NotUnderstood(_)));
}

#[test]
fn there_is_one_row_for_each_option() {
    let mut names: Vec<_> = super::rows::ROWS.iter().map(|row| row.name).collect();
    names.extend(["listen", "modules"]);
    names.sort_unstable();
    let known: Vec<_> = include_str!("options.txt").lines().collect();
    assert_eq!(names, known);
}

#[test]
fn nothing_outside_of_the_options_and_no_option_of_a_module_is_dropped() {
    let (imported, made) = accepted(
        "\
kernel:
  logger_level: info
eturnal:
  secret: 0123456789abcdef0123
  max_permissions: 30
  modules:
    mod_log_stun:
      level: debug
      colour: red
    mod_stats_prometheus:
      ip: 127.0.0.1
      prt: 9000
      vm_metrics: false
    mod_other:
      some: text
    mod_stats_influx: yes
more: 1
---
eturnal:
  secret: other
",
    );
    let shown: Vec<_> = imported
        .lines
        .iter()
        .map(|line| (line.line, &*line.name, line.verdict.kind()))
        .collect();
    let expected = [
        (1, "kernel", "not understood"),
        (4, "secret", "carried over"),
        (5, "max_permissions", "carried over"),
        (7, "mod_log_stun", "replaced"),
        (8, "mod_log_stun.level", "replaced"),
        (9, "mod_log_stun.colour", "not understood"),
        (10, "mod_stats_prometheus", "carried over"),
        (11, "mod_stats_prometheus.ip", "carried over"),
        (12, "mod_stats_prometheus.prt", "not understood"),
        (13, "mod_stats_prometheus.vm_metrics", "unnecessary"),
        (14, "mod_other", "unsupported"),
        (15, "mod_other.some", "unsupported"),
        (16, "mod_stats_influx", "replaced"),
        (16, "mod_stats_influx", "not understood"),
        (17, "more", "not understood"),
        (19, "another YAML document", "not understood"),
    ];
    assert_eq!(shown, expected);
    let permissions = &made["limits"]["permissions_per_allocation"];
    assert_eq!(permissions.as_integer(), Some(30));
    for text in ["eturnal: text\n", "eturnal:\n  modules: text\n"] {
        let imported = read(Format::Eturnal, text, None);
        let verdict = &imported.lines[0].verdict;
        assert!(matches!(verdict, Verdict::NotUnderstood(_)), "{text}");
    }
}
