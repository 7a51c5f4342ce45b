//! The merged configuration as a file that would give the same, each value with where it comes from.

use super::schema::{KEYS, Settings, sections};
use super::source::Sources;

/// Writes every key; those that are decided at start stand in a comment. Secrets are masked unless `reveal`.
pub(crate) fn render(settings: &Settings, sources: &Sources, reveal: bool) -> String {
    // Slots are reached through `&mut`, because readers need it; the copy is thrown away.
    let mut settings = settings.clone();
    let mut text = String::new();
    for section in sections() {
        text.push_str(&format!("[{section}]\n"));
        for key in KEYS.iter().filter(|key| key.section == section) {
            text.push_str(&match (key.slot)(&mut settings).written(reveal) {
                Some((value, at)) => {
                    format!("{} = {value}  # {}\n", key.name, sources.describe(&at))
                }
                None => format!("# {}: decided at start\n", key.name),
            });
        }
        text.push('\n');
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}
