use super::super::{Format, Imported, Verdict, read};
use super::statements::{self, Kind};
use crate::config::{self, Inputs};

fn accepted(text: &str) -> (Imported, toml::Table) {
    let imported = read(Format::Kamailio, text, None);
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

const USUAL: &str = r##"#!KAMAILIO
#!define WITH_MYSQL
#!define WITH_AUTH
#!define WITH_PSTN
#!ifdef WITH_DEBUG
#!define DBGLEVEL 3
#!else
#!define DBGLEVEL 2
#!endif
debug=DBGLEVEL
/* a comment
   over two lines */
listen=udp:192.0.2.10:5060 advertise 203.0.113.5:5060 # outside
listen=tcp:192.0.2.10:5060
alias="sip.example.org"
alias="example.org"
tcp_connection_lifetime=3605
#!ifdef WITH_TLS
enable_tls=yes
#!endif
pstn.gw_ip = "198.51.100.7" desc "PSTN GW Address"
loadmodule "tm.so"
modparam("registrar", "max_expires", 7200)
modparam("acc", "log_extra",
    "a=b;"
    "c=d")
request_route {
    route(REQINIT);
    if (is_method("INVITE")) { xlog("} # no end"); }
}
route[MINE]
{
    exit;
}
route[RELAY] { exit; }
"##;

#[test]
fn defines_choose_the_statements() {
    let script = statements::read(USUAL).statements;
    assert!(
        !script
            .iter()
            .any(|statement| statement.shown() == "enable_tls")
    );
    let debug = script
        .iter()
        .find(|statement| statement.shown() == "debug")
        .unwrap();
    assert_eq!(
        (debug.line, &debug.kind),
        (10, &Kind::Set("debug".to_owned(), "2".to_owned()))
    );
    let blocks: Vec<_> = script
        .iter()
        .filter(|statement| matches!(statement.kind, Kind::Block(_)))
        .collect();
    let names: Vec<_> = blocks
        .iter()
        .map(|block| (block.line, block.shown()))
        .collect();
    let expected = [
        (27, "request_route"),
        (31, "route[MINE]"),
        (35, "route[RELAY]"),
    ];
    assert_eq!(names, expected.map(|(line, name)| (line, name.to_owned())));
}

#[test]
fn a_usual_script_is_carried_over() {
    let (imported, made) = accepted(USUAL);
    let text = |key: &str| made["sip"][key].to_string();
    assert_eq!(text("listen"), r#"["192.0.2.10:5060"]"#);
    assert_eq!(text("advertise"), r#"["203.0.113.5:5060/192.0.2.10:5060"]"#);
    assert_eq!(
        made["sip"]["domain"][0]["name"].as_str(),
        Some("sip.example.org")
    );
    assert_eq!(
        made["sip"]["trunk"][0]["to"].to_string(),
        r#"["sip:198.51.100.7"]"#
    );
    assert_eq!(text("register_max"), r#""7200s""#);
    assert!(
        imported
            .lines
            .iter()
            .all(|line| !matches!(line.verdict, Verdict::NotUnderstood(_))),
        "{:?}",
        imported.lines
    );
    let own = imported
        .lines
        .iter()
        .find(|line| line.name == "route[MINE]")
        .unwrap();
    assert!(matches!(own.verdict, Verdict::Unsupported(_)));
}

#[test]
fn unknown_statements_are_shown() {
    let (imported, _) = accepted("#!KAMAILIO\n#!define WITH_TEA\nfoo=1\nsome words\n");
    let wrong = |line: &&super::JudgedLine| matches!(line.verdict, Verdict::NotUnderstood(_));
    assert_eq!(imported.lines.iter().filter(wrong).count(), 3);
}

/// The lines that are not understood.
fn not_understood(imported: &Imported) -> Vec<(usize, String)> {
    let lines = imported.lines.iter();
    lines
        .filter(|line| matches!(line.verdict, Verdict::NotUnderstood(_)))
        .map(|line| (line.line, format!("{}: {}", line.name, line.verdict)))
        .collect()
}

#[test]
fn substitutions_replace_words_and_regular_expressions_are_shown() {
    let text = r##"#!KAMAILIO
#!substdef "!MY_ADDRESS!192.0.2.10!g"
#!subst "/MY_DOMAIN/example.org/"
#!define MY_PORT 5070
listen=udp:MY_ADDRESS:MY_PORT
alias="sip.MY_DOMAIN"
#!subst "/a.*b/c/"
#!substdef "!OTHER!\1!g"
loadmodule "tm.so"
request_route { exit; }
"##;
    let (imported, made) = accepted(text);
    assert_eq!(made["sip"]["listen"].to_string(), r#"["192.0.2.10:5070"]"#);
    assert_eq!(
        made["sip"]["domain"][0]["name"].as_str(),
        Some("sip.example.org")
    );
    let lines: Vec<_> = not_understood(&imported)
        .into_iter()
        .map(|(line, _)| line)
        .collect();
    assert_eq!(lines, [7, 8]);
}

#[test]
fn conditions_that_cannot_be_evaluated_are_shown_and_end_where_they_end() {
    let text = r##"#!KAMAILIO
#!ifdef WITH_TLS
#!ifexp KAMAILIO_VERSION >= 5006000
enable_tls=yes
#!else
enable_sctp=yes
#!endif
tls_max_connections=7
#!endif
#!ifexp defined(A) && B
children=8
#!else
fork=no
#!endif
#!defenv HOST=HOSTNAME
#!defexp SIZE 2 + 3
#!ifdeff WITH_TLS
/*
#!endif
*/
#!define IDLE \
    exit
#!endif
#!ifndef WITH_TLS
debug=2
"##;
    let (imported, _) = accepted(text);
    let names: Vec<_> = imported
        .lines
        .iter()
        .map(|line| (line.line, &*line.name))
        .collect();
    let expected = [
        (10, "#!ifexp defined(A) && B"),
        (11, "children"),
        (15, "#!defenv HOST=HOSTNAME"),
        (16, "#!defexp SIZE 2 + 3"),
        (17, "#!ifdeff WITH_TLS"),
        (21, "#!define IDLE"),
        (23, "#!endif"),
        (24, "#!ifndef WITH_TLS"),
        (25, "debug"),
    ];
    assert_eq!(names, expected);
    let shown = not_understood(&imported);
    let lines: Vec<_> = shown.iter().map(|(line, _)| *line).collect();
    assert_eq!(lines, [10, 15, 16, 17, 21, 23, 24], "{shown:?}");
    assert!(shown[3].1.contains("did you mean `#!ifdef`?"), "{shown:?}");
}
