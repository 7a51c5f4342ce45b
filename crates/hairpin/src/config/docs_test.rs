//! The documentation describes exactly the keys that exist, with their defaults, and the example is without fault.

use super::key::Key;
use super::schema::KEYS;
use super::*;

const REFERENCE: &str = include_str!("../../../../docs/configuration.md");
const EXAMPLE: &str = include_str!("../../../../deploy/hairpin.example.toml");

/// The text below the heading of one key.
fn section_of(key: &Key) -> &'static str {
    let heading = format!("### `{}`\n", key.path());
    let (_, rest) = REFERENCE
        .split_once(&heading)
        .unwrap_or_else(|| panic!("{} is not documented", key.path()));
    rest.split("\n#").next().unwrap_or_default()
}

#[test]
fn the_reference_lists_exactly_the_keys_of_the_schema_in_order() {
    let headings = REFERENCE
        .lines()
        .filter_map(|line| line.strip_prefix("### `")?.strip_suffix('`'));
    let documented: Vec<_> = headings.map(str::to_owned).collect();
    let keys: Vec<_> = KEYS.iter().map(Key::path).collect();
    assert_eq!(documented, keys);
}

#[test]
fn the_reference_states_defaults_and_reloads_as_they_are() {
    let mut defaults = load(&Inputs::default()).settings;
    for key in KEYS {
        let text = section_of(key);
        let default = match (key.slot)(&mut defaults).written(true) {
            Some((value, _)) => format!("Default: `{value}`"),
            None => "Default: decided at start: ".to_owned(),
        };
        assert!(
            text.contains(&default),
            "{}: {default} is not in {text}",
            key.path()
        );
        let reload = if key.live {
            "Reload: yes"
        } else {
            "Reload: no"
        };
        assert!(
            text.contains(reload),
            "{}: {reload} is not in {text}",
            key.path()
        );
    }
}

#[test]
fn the_example_is_without_fault_and_names_every_key() {
    // Its placeholders are refused.
    let text = EXAMPLE.replace("replace-me", "a long secret of this test");
    let loaded = load(&Inputs {
        file: Some(("example".to_owned(), text)),
        ..Inputs::default()
    });
    assert_eq!(loaded.one_line_each(), [""; 0]);
    let names: Vec<_> = EXAMPLE
        .lines()
        .filter_map(|line| Some(line.trim_start_matches('#').split_once(" =")?.0))
        .collect();
    for key in KEYS {
        assert!(
            names.contains(&key.name),
            "{} is not in the example",
            key.path()
        );
    }
}

#[test]
fn values_commented_out_in_the_example_are_the_defaults() {
    let uncommented: String = EXAMPLE
        .lines()
        .filter(|line| {
            line.starts_with('[')
                || (line.starts_with('#') && !line.starts_with("# ") && line.contains(" = "))
        })
        .filter(|line| !line.contains("10.1.0.0/16"))
        .map(|line| line.trim_start_matches('#').to_owned() + "\n")
        .collect();
    let from_example = load(&Inputs {
        file: Some(("example".to_owned(), uncommented)),
        ..Inputs::default()
    });
    assert_eq!(from_example.one_line_each(), [""; 0]);
    assert_eq!(from_example.config, load(&Inputs::default()).config);
}
