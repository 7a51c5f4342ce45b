use super::super::{Format, Imported, Verdict, read};
use crate::config::{self, Inputs};

fn accepted(text: &str) -> (Imported, toml::Table) {
    let imported = read(Format::Repro, text, None);
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

#[test]
fn there_is_one_row_for_each_key() {
    let mut names: Vec<_> = super::rows::names().collect();
    names.sort_unstable();
    let known: Vec<_> = include_str!("options.txt").lines().collect();
    assert_eq!(names, known);
}

#[test]
fn every_key_gets_a_verdict_and_the_result_is_accepted() {
    for name in super::rows::names() {
        for value in ["true", "0", "5070", "192.0.2.1", "x"] {
            let (imported, _) = accepted(&format!("{} = {value}\n", name.replace('#', "1")));
            assert_eq!(imported.lines.len(), 1);
        }
    }
}

#[test]
fn a_usual_file_is_carried_over() {
    let text = "\
LogLevel = INFO
IPAddress = 192.0.2.10
UDPPort = 5060
TCPPort = 5070
WSPort = 8080
Domains = example.org, 192.0.2.10
DNSServers = 192.0.2.53
CongestionManagementTolerance = 300
Databse1Type = MySQL
";
    let (imported, made) = accepted(text);
    let text = |key: &str| made["sip"][key].to_string();
    assert_eq!(text("listen"), r#"["192.0.2.10:5060", "192.0.2.10:5070"]"#);
    assert_eq!(text("listen_ws"), r#"["192.0.2.10:8080"]"#);
    assert_eq!(text("tolerance"), "\"300ms\"");
    assert_eq!(
        made["sip"]["domain"][0]["name"].as_str(),
        Some("example.org")
    );
    let last = imported.lines.last().unwrap();
    assert_eq!(
        (last.line, matches!(last.verdict, Verdict::NotUnderstood(_))),
        (9, true)
    );
}

#[test]
fn transports_with_a_number_are_listeners() {
    let text = "\
Transport1Interface = 192.0.2.10:5060
Transport1Type = UDP
Transport2Interface = 2001:db8::1:5062
Transport2Type = WS
Transport3Interface = 192.0.2.10:5061
Transport3Type = TLS
";
    let (imported, made) = accepted(text);
    assert_eq!(made["sip"]["listen"].to_string(), r#"["192.0.2.10:5060"]"#);
    assert_eq!(
        made["sip"]["listen_ws"].to_string(),
        r#"["[2001:db8::1]:5062"]"#
    );
    assert!(matches!(imported.lines[4].verdict, Verdict::Replaced(_)));
}
