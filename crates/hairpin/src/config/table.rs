//! Elements of lists of tables, such as `[[sip.route]]`: how they are read and written.

use super::diagnostics::Report;
use super::node::{Node, Raw};
use super::setting::{List, Setting, not_a_table};
use super::source::Location;
use super::walk::unknown_key;

/// A table whose keys are all optional, as far as reading it is concerned.
pub(super) trait Table: Default {
    /// What it is, with an article, such as `a route`.
    const WHAT: &'static str;
    /// Its keys.
    const FIELDS: &'static [&'static str];
    /// A sentence with a valid table.
    const EXAMPLE: &'static str;

    /// Reads one key. Returns `false` if there is none of this name.
    fn set(&mut self, name: &str, value: &Node<'_>, report: &mut Report) -> bool;

    /// Reports keys that are missing, or contradict each other. Each of them is valid.
    fn check(&self, at: &Location, report: &mut Report);
}

/// Reads a table. `None` if it has an error.
pub(super) fn read<T: Table>(node: &Node<'_>, report: &mut Report) -> Option<T> {
    let Raw::Toml(toml::de::DeValue::Table(table)) = &node.raw else {
        let help = format!("{}, in a configuration file", T::EXAMPLE);
        report.push(not_a_table(node, T::WHAT).help(&help));
        return None;
    };
    let source = node.at.source;
    let errors = report.errors();
    let mut written = T::default();
    for (name, value) in table.iter() {
        if !written.set(name.get_ref(), &Node::toml(source, value), report) {
            report.push(unknown_key(source, name, T::WHAT, T::FIELDS, &[]));
        }
    }
    if report.errors() == errors {
        written.check(&node.at, report);
    }
    (report.errors() == errors).then_some(written)
}

/// Writes a table, key by key.
pub(super) struct Writer {
    fields: Vec<String>,
    reveal: bool,
}

impl Writer {
    /// With secrets, or without.
    pub(super) const fn new(reveal: bool) -> Writer {
        Writer {
            fields: Vec::new(),
            reveal,
        }
    }

    /// Adds a key, if it is set.
    pub(super) fn one<T: Setting>(mut self, name: &str, value: Option<&T>) -> Self {
        let reveal = self.reveal;
        let field = value.map(|value| format!("{name} = {}", value.write(reveal)));
        self.fields.extend(field);
        self
    }

    /// Adds a list, if it is not empty.
    pub(super) fn some<T: Setting>(self, name: &str, list: &List<T>) -> Self {
        self.one(name, Some(list).filter(|list| !list.is_empty()))
    }

    /// The table.
    pub(super) fn finish(self) -> String {
        format!("{{ {} }}", self.fields.join(", "))
    }
}
