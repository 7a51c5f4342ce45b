//! Every key of the configuration, once.
//!
//! [`KEYS`] is the table for the file walker, the environment, `--set` and `check --effective`. A test compares it with
//! docs/configuration.md. [`Settings`] holds the values, each with its place in the configuration. Defaults are in
//! `defaults.toml`, the types with a range of values in [`ranges`](super::ranges).

mod keys;
mod settings;

pub(crate) use keys::KEYS;
pub(crate) use settings::Settings;

use super::key::Key;

/// The key called `section.name`.
pub(crate) fn key(section: &str, name: &str) -> Option<&'static Key> {
    KEYS.iter()
        .find(|key| key.section == section && key.name == name)
}

/// The names of the sections, each once.
pub(crate) fn sections() -> Vec<&'static str> {
    let mut sections: Vec<_> = KEYS.iter().map(|key| key.section).collect();
    sections.dedup();
    sections
}

/// The names of the keys of one section.
pub(crate) fn names(section: &str) -> Vec<&'static str> {
    KEYS.iter()
        .filter(|key| key.section == section)
        .map(|key| key.name)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_section_stand_together_and_are_unique() {
        let mut sections = sections();
        let count = sections.len();
        sections.sort_unstable();
        sections.dedup();
        assert_eq!(sections.len(), count, "a section is split in two");
        let mut paths: Vec<_> = KEYS.iter().map(Key::path).collect();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), KEYS.len());
    }
}
