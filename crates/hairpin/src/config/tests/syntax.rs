//! Text that is not TOML.

use super::complaints;

#[test]
fn syntax_errors_do_not_hide_each_other() {
    let found = complaints("[log]\nlevel = info\nformat = json\n[auth]\nrealm = \"x\n");
    assert!(found.len() >= 3, "{found:#?}");
    assert!(
        found[0].starts_with("hairpin.toml:2:9: not valid TOML"),
        "{found:#?}"
    );
    assert!(
        found[0].ends_with("(texts stand in quotes: key = \"value\")"),
        "{found:#?}"
    );
}

#[test]
fn a_list_without_an_end_is_one_error() {
    let below = "[auth]\nrealm = \"x\"\nusers = [{ name = \"a\" }]\n[[sip.domain]]\nname = \"x\"\n";
    for (list, place, end) in [
        (
            "udp = [\"127.0.0.1:3478\"",
            "4:7",
            "list has no end (end it with `]`",
        ),
        (
            "udp = [\"127.0.0.1:3478\",",
            "4:7",
            "list has no end (end it with `]`",
        ),
        ("udp = [", "4:7", "list has no end (end it with `]`"),
        (
            "udp = { a = [\"1\"]",
            "4:7",
            "table has no end (end it with `}`",
        ),
    ] {
        for below in ["", below] {
            let text = format!("# ====\n[listen]\nudq = 1\n{list}\n{below}");
            let found = complaints(&text);
            assert_eq!(found.len(), 2, "{text:?}: {found:#?}");
            assert!(
                found[0].starts_with("hairpin.toml:3:1: unknown key"),
                "{found:#?}"
            );
            let expected = format!("hairpin.toml:{place}: not valid TOML: this {end}");
            assert!(found[1].starts_with(&expected), "{text:?}: {found:#?}");
        }
    }
}
