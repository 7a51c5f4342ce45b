//! No diagnostic shows a secret of the configuration file, even if the file is malformed.

use super::super::mask::masked;
use super::*;

/// The report about a file, whose secrets all have `TOPSECRET` in them.
#[track_caller]
fn report(text: &str) -> String {
    let loaded = load_file(text);
    let said = loaded.diagnostics(false) + &loaded.one_line_each().join("\n");
    assert!(!said.is_empty(), "no complaint about {text}");
    assert!(!said.contains("TOPSECRET"), "{said}");
    said
}

#[test]
fn an_excerpt_masks_secrets_and_keeps_the_columns() {
    let text = "[auth]\nusers = [{name=\"bob\",password=\"TOPSECRET\",foo=1}]\n";
    let expected = "\
error: unknown key `foo` in a user
 --> hairpin.toml:2:43
  |
2 | users = [{name=\"bob\",password=\"*********\",foo=*}]
  |                                           ^^^
  |
  = help: known here: name, password

";
    assert_eq!(load_file(text).diagnostics(false), expected);
    let text = "[auth]\nsecrets = [\"Tä€🙂\"]  # TOPSECRET";
    let said = report(text);
    assert!(said.contains("hairpin.toml:2:12"), "{said}");
    assert!(said.contains("= [\"*·•🞄\"]  #*"), "{said}");
}

#[test]
fn an_excerpt_of_a_known_key_stays_readable() {
    for text in [
        "[listen]\nudp = [\"0.0.0.0:70000\", '[::]:3478']\n",
        "[relay]\nports = 49152-65535\n",
        "sip.listen = [\n  \"10.0.0.5:5060\"\n  \"10.0.0.6:5060\"\n]\n",
        "include = [\"conf.d/*.toml\", 5]\n",
        "[[sip.trunk]]\nname = \"carrier\"\naddresses = [\"192.0.2.7\"]\nweight = 5\n",
        "[sip]\ndomain = [{ name = \"example.org\", users = [{ name = \"bob\" }] }]\n",
        "[server]\nbusy_poll_us = 50\n",
    ] {
        assert_eq!(masked(text), text);
    }
}

#[test]
fn every_kind_of_secret_is_masked() {
    for text in [
        "[auth]\nsecrets = [\"TOPSECRET\"]",
        "[auth]\nsecrets = \"TOPSECRET\"",
        "[auth]\nsecrets = [\n  \"TOPSECRET-0123456789\",\n  \"TOPSECRET\",\n  5,\n]",
        "auth.secrets = ['TOPSECRET']",
        "auth = { secrets = [\"TOPSECRET\"] }",
        "[auth]\nsecrets = [\"\"\"\nTOPSECRET\"\"\"]",
        "[auth]\nsecret = [\"TOPSECRET\"]",
        "[atuh]\nsecrets = [\"TOPSECRET\"]\n[auth]\nsecrets=[5]",
        "[auth]\nusers = [{ name = \"bob\", pasword = \"TOPSECRET\" }]",
        "[auth]\nusers = \"bob:TOPSECRET\"",
        "[[auth.users]]\nname = 5\npassword = \"TOPSECRET\"",
        "[auth]\ntoken_keys = [{ kid = \"1\", key = \"TOPSECRET\" }]",
        "[auth]\nrealms = [{ name = \"a\", secrets = [\"TOPSECRET\"], x = 1 }]",
        "[auth]\nstores = [{ url = \"postgres://turn:TOPSECRET@[a/turn\" }]",
        "[auth]\nstores = [{ url = \"redis://:TOPSECRET@a:99999/0\", x = 1 }]",
        "[cluster]\nsecret = \"TOPSECRET\"",
        "[cluster]\nengine = \"redis://:TOPSECRET@a:99999\"",
        "[cluster]\nsentinel_password = \"TOPSECRET\"",
        "[sip]\nlisten = 5\ntrace_hep_password = [\"TOPSECRET\"]",
        "[sip]\ntrace_hep_pasword = \"TOPSECRET\"",
        "[sip]\ndomain = [{ name = \"a.b\", users = [{ name = \"a\", ha1s = { MD5 = \"TOPSECRET\" } }] }]",
        "[sip]\ntrunk = [{ name = \"a\", password = \"TOPSECRET\", x = 1 }]",
        "[admin]\ntokens = [\"TOPSECRET\"]",
        "[events]\nsinks = [{ url = \"nats://a:TOPSECRET@[b\" }]",
        "password = \"TOPSECRET\"",
    ] {
        report(text);
    }
    let said = report("[sip]\ntrace_hep_password = 12345");
    assert!(!said.contains("12345"), "{said}");
}

#[test]
fn a_syntax_error_shows_no_secret() {
    for line in [
        "secrets = TOPSECRET",
        "secrets = [TOPSECRET]",
        "secrets = [\"TOPSECRET]",
        "secrets = \"TOPSECRET",
        "secrets: [\"TOPSECRET\"]",
        "secrets [\"TOPSECRET\"]",
        "secrets =\n  \"TOPSECRET\"",
        "secrets =\n  TOPSECRET==",
        "secrets =\n  [\"TOPSECRET\", \"b\"]",
        "secrets = [\n  \"a,\n  \"TOPSECRET\",\n  TOPSECRET=\n  TOPSECRET\n]",
        "secrets = [\"a\"]]\n\"TOPSECRET\"",
        "secrets = [\"a\"}, \"TOPSECRET\"]",
        "secrets = [\"a\" \"TOPSECRET\" TOPSECRET]",
        "secrets = [\"\"\"a\", \"TOPSECRET\"]\n\"TOPSECRET\"",
        "users = [{name=\"bob\",password=\"TOPSECRET}]",
        "users = [{name=\"bob,password=\"TOPSECRET\",foo=1}]",
        "users = [{name=\"bob,password=\"a,name=\"TOPSECRET\"}]",
        "users = [{name=bob\",password=\"TOPSECRET\"}]",
        "users = [{name='bob\",password=\"TOPSECRET\"}]",
        "users = [{name='bob\",password=\"TOPSECRET's\"}]",
        "users = [{name=\"bob\",password=TOPSECRET\"}]",
        "users = [{name=\"bob\",password=\"a\"TOPSECRET\"}]",
        "users = [{name=\"bob\",password \"TOPSECRET\"}]",
        "users = [{name=\"bob\" password=\"TOPSECRET\"}]",
        "users = [{name=\"bob\",\n  password=\"TOPSECRET\" x}]",
        "\"secrets\" = [\"TOPSECRET\\\"TOPSECRET\\\\\"TOPSECRET\"]",
        "realm = \"a\" secrets = [\"TOPSECRET\"]",
        "realm \"a\" # secrets = [\"TOPSECRET\"]",
    ] {
        report(&format!("[auth]\n{line}\n"));
        report(&format!("[auth]\n{line}\n[[sip.trunk]]\nx = 1"));
    }
    report("\u{feff}[auth\nsecrets = [\"TOPSECRET\"]");
    report("[auth] secrets = [\"TOPSECRET\"]");
}

#[test]
fn a_list_without_an_end_hides_no_later_section() {
    let text = "[auth]\nsecrets = [\"TOPSECRET\"\nrealm = \"a.b\"\n[relay]\nports = \"1-2\"\n";
    let expected = "[auth]\nsecrets = [\"*********\"\nrealm = \"a.b\"\n[relay]\nports = \"1-2\"\n";
    assert_eq!(masked(text), expected);
}

#[test]
fn a_misspelt_variable_or_flag_shows_no_value() {
    let said = load_env("HAIRPIN_AUTH__SECRET", "TOPSECRET").diagnostics(false);
    assert!(said.contains("HAIRPIN_AUTH__SECRET=***"), "{said}");
    let said = load(&Inputs {
        flags: vec![flag(
            "--set",
            "sip.trace_hep_pasword",
            &["TOPSECRET"],
            false,
        )],
        ..Inputs::default()
    });
    let said = said.diagnostics(false);
    assert!(said.contains("trace_hep_pasword=***"), "{said}");
}

/// `check --effective` masks by type, an excerpt by name. Both hide the same.
#[test]
fn excerpts_and_the_effective_configuration_hide_the_same() {
    let hash = "939e7578ed9e3c518a452acee763bce9";
    let text = format!(
        "[auth]\nsecrets = [\"0123456789abcdefg\"]\nusers = [{{ name = \"bob\", password = \"pw\" }}]\n\
         token_keys = [{{ kid = \"1\", key = \"{}\" }}]\n\
         realms = [{{ name = \"r\", origins = [\"https://a.b\"], secrets = [\"0123456789abcdefg\"], \
         users = [{{ name = \"bob\", password = \"pw\" }}], rate = \"1MiB/s\" }}]\n\
         stores = [{{ url = \"redis://a/0\", algorithms = [\"MD5\"], ttl = \"5m\", timeout = \"1s\" }}]\n\
         [cluster]\nsecret = \"0123456789abcdef0123456789abcdef\"\nengine = \"redis://:pw@localhost/0\"\n\
         [sip]\nlisten = [\"10.0.0.5:5060\"]\ntrace_hep_password = \"pw\"\n\
         domain = [{{ name = \"a.b\", aliases = [\"c.d\"], realm = \"r\", digest_algorithms = [\"MD5\"], users = [\
         {{ name = \"bob\", password = \"pw\" }}, {{ name = \"eve\", ha1s = {{ MD5 = \"{hash}\" }} }}] }}]\n\
         trunk = [{{ name = \"a\", addresses = [\"192.0.2.7\"], to = [\"sip:192.0.2.7\"], user = \"u\", \
         password = \"pw\", realm = \"r\", answer_timeout = \"5s\" }}]\n\
         [admin]\ntokens = [\"0123456789abcdef0123456789abcdef\"]\n\
         [events]\nsinks = [{{ url = \"redis://a/0\", kinds = [\"allocation_opened\"], topic = \"t\" }}]\n",
        "A".repeat(43) + "=",
    );
    let loaded = load_file(&text);
    assert_eq!(loaded.one_line_each(), [""; 0]);
    let lines = |text: &str| -> Vec<String> {
        let bare = text
            .lines()
            .map(|line| line.split("  #").next().unwrap_or(""));
        bare.filter(|line| !line.starts_with('#'))
            .map(str::to_owned)
            .collect()
    };
    for (excerpt, effective) in lines(&masked(&loaded.effective(true)))
        .iter()
        .zip(lines(&loaded.effective(false)))
    {
        // By type, an empty text is hidden, too.
        let mut same = excerpt.replace("= \"\"", "= \"***\"");
        if !effective.contains("***") {
            same.clone_from(excerpt);
        }
        while same.contains("****") {
            same = same.replace("****", "***");
        }
        let same = same.replace("\"**\"", "\"***\"");
        assert_eq!(same, effective);
    }
    // These are texts without fields.
    let others = [
        "cluster.sentinel_password",
        "sip.push_token",
        "sip.binding_database",
        "admin.credential_tokens",
    ];
    for key in KEYS.iter().filter(|key| key.secret) {
        let is_set = text.contains(&format!("\n{} = ", key.name));
        let path = key.path();
        assert!(is_set || others.contains(&&*path), "{path}");
    }
}

#[test]
fn masking_is_fast_for_long_lines() {
    let start = std::time::Instant::now();
    for part in ["[a]", "{a=", "\"a\" ", "[", "a=", "a.", "'"] {
        masked(&part.repeat(100_000));
        masked(&format!("[auth]\nsecrets = [{}", part.repeat(100_000)));
    }
    assert!(
        start.elapsed() < Duration::from_secs(15),
        "{:?}",
        start.elapsed()
    );
}

proptest! {
    #[test]
    fn a_mask_keeps_every_place(text in "(?s)([\\[\\]{}=,.\"'#\\\\\n a🙂ä€]|auth|users|name|\"\"\"){0,40}") {
        let shown = masked(&text);
        prop_assert_eq!(shown.len(), text.len());
        for ((at, shown), (place, char)) in shown.char_indices().zip(text.char_indices()) {
            prop_assert_eq!((at, shown == '\n'), (place, char == '\n'));
        }
    }
}
