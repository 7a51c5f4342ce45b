//! The configuration that an import makes: keys with values, written in the order of the documentation.

use std::collections::BTreeMap;

use toml::Value;

use crate::config::KEYS;

/// A longer line is split: one element of the list per line.
const MAX_LINE_CHARS: usize = 100;

/// Keys and values. A key is `section.name`, as in docs/configuration.md.
#[derive(Debug, Default)]
pub(crate) struct Draft(BTreeMap<&'static str, Value>);

impl Draft {
    /// Sets a key and replaces its value.
    pub(crate) fn set(&mut self, key: &'static str, value: impl Into<Value>) {
        debug_assert!(KEYS.iter().any(|known| known.path() == key), "{key}");
        self.0.insert(key, value.into());
    }

    /// Adds an element to a list, unless the list has it.
    pub(crate) fn push(&mut self, key: &'static str, element: impl Into<Value>) {
        debug_assert!(KEYS.iter().any(|known| known.path() == key), "{key}");
        let list = self
            .0
            .entry(key)
            .or_insert_with(|| Value::Array(Vec::new()));
        let element = element.into();
        if let Value::Array(list) = list
            && !list.contains(&element)
        {
            list.push(element);
        }
    }

    /// Adds a table to a list of tables.
    pub(crate) fn push_table<const N: usize>(
        &mut self,
        key: &'static str,
        fields: [(&str, Value); N],
    ) {
        let fields = fields
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value));
        self.push(key, Value::Table(fields.collect()));
    }

    /// Whether a key was set.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.0.contains_key(key)
    }

    /// The text of the file. `from` names the imported file.
    pub(crate) fn to_toml(&self, from: &str) -> String {
        let mut text = format!("# Made by `hairpin import` from {from}.\n");
        let mut section = "";
        for key in KEYS {
            let Some(value) = self.0.get(&*key.path()) else {
                continue;
            };
            if section != key.section {
                section = key.section;
                text.push_str(&format!("\n[{section}]\n"));
            }
            text.push_str(&entry(key.name, value));
        }
        text
    }
}

fn entry(name: &str, value: &Value) -> String {
    let line = format!("{name} = {value}\n");
    match value {
        Value::Array(list) if line.len() > MAX_LINE_CHARS => {
            let elements: String = list.iter().map(|one| format!("    {one},\n")).collect();
            format!("{name} = [\n{elements}]\n")
        }
        _ => line,
    }
}
