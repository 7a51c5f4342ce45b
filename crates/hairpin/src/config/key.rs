//! A key of the configuration, and the slot for its value.

use toml::de::DeValue;

use super::diagnostics::{Diagnostic, Report};
use super::node::{Node, Raw};
use super::schema::Settings;
use super::setting::Setting;
use super::source::{Located, Location};

/// A key that may have been set.
pub(crate) type Entry<T> = Option<Located<T>>;

/// An [`Entry`] of any type, so that one table has all of them.
pub(crate) trait Slot {
    /// Reads a value into it. If the value is wrong, the old one stays, and `report` has the error.
    fn read(&mut self, node: &Node<'_>, report: &mut Report);
    /// Its value as TOML and its place, if it is set. `reveal` shows secrets.
    fn written(&self, reveal: bool) -> Option<(String, Location)>;
    /// Where the value is set.
    fn place(&self) -> Option<Location>;
    /// Reads a value that the file at `before` has set, too. Tables are added to its list; other values are an error.
    fn read_more(&mut self, node: &Node<'_>, before: &Location, report: &mut Report);
}

impl<T: Setting> Slot for Entry<T> {
    fn read(&mut self, node: &Node<'_>, report: &mut Report) {
        if let Some(value) = T::read(node, report) {
            *self = Some(Located {
                value,
                at: node.at.clone(),
            });
        }
    }

    fn written(&self, reveal: bool) -> Option<(String, Location)> {
        self.as_ref()
            .map(|entry| (entry.value.write(reveal), entry.at.clone()))
    }

    fn place(&self) -> Option<Location> {
        self.as_ref().map(|entry| entry.at.clone())
    }

    fn read_more(&mut self, node: &Node<'_>, before: &Location, report: &mut Report) {
        let is_table = |item: &Node<'_>| matches!(item.raw, Raw::Toml(DeValue::Table(_)));
        let has_tables = node
            .items()
            .is_some_and(|items| !items.is_empty() && items.iter().all(is_table));
        if has_tables && let Some(entry) = self.as_mut() {
            let Some(more) = T::read(node, report) else {
                return;
            };
            if entry.value.append(more) {
                return;
            }
        }
        report.push(
            Diagnostic::error(&node.at, "another file sets this key, too")
                .see(before, "first here")
                .help("keep one of them; only lists of tables, such as [[sip.trunk]], are joined"),
        );
    }
}

/// A key of the configuration.
pub(crate) struct Key {
    /// `relay` of `relay.ports`.
    pub(crate) section: &'static str,
    /// `ports` of `relay.ports`.
    pub(crate) name: &'static str,
    /// Whether its value is hidden in outputs.
    pub(crate) secret: bool,
    /// Fields of its tables that outputs may show, such as `name` or `users.name`, although the key is secret.
    public_fields: &'static [&'static str],
    /// Whether a reload applies a new value; otherwise a restart is necessary.
    pub(crate) live: bool,
    /// Its field of [`Settings`].
    pub(crate) slot: fn(&mut Settings) -> &mut dyn Slot,
}

impl Key {
    pub(super) const fn new(
        section: &'static str,
        name: &'static str,
        slot: fn(&mut Settings) -> &mut dyn Slot,
    ) -> Self {
        Self {
            section,
            name,
            secret: false,
            public_fields: &[],
            live: true,
            slot,
        }
    }

    pub(super) const fn secret(mut self) -> Self {
        self.secret = true;
        self
    }

    /// Like [`Key::secret`], but these fields of its tables may be shown.
    pub(super) const fn secret_except(mut self, fields: &'static [&'static str]) -> Self {
        self.public_fields = fields;
        self.secret()
    }

    pub(super) const fn at_start(mut self) -> Self {
        self.live = false;
        self
    }

    /// Whether outputs may show the value of this field. `field` is empty if the key itself has the value.
    pub(super) fn may_show(&self, field: &str) -> bool {
        !self.secret || self.public_fields.contains(&field)
    }

    /// `section.name`.
    pub(crate) fn path(&self) -> String {
        format!("{}.{}", self.section, self.name)
    }

    /// The environment variable that sets it.
    pub(crate) fn variable(&self) -> String {
        format!("{ENV_PREFIX}{}__{}", self.section, self.name).to_ascii_uppercase()
    }
}

/// The prefix of environment variables.
pub(crate) const ENV_PREFIX: &str = "HAIRPIN_";
