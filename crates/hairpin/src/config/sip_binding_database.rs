//! `sip.binding_database`: the SQL database that saves registration bindings.

use std::fmt;

use stores::{Options, SavedBindings};

use super::diagnostics::{Diagnostic, Report};
use super::schema::Settings;
use super::setting::{FromText, Mistake};
use super::state_dir::StateDir;
use super::stores::default_store;

/// The URL of the database; empty if there is no database. It may contain a password.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct BindingDatabaseUrl(String);

impl fmt::Debug for BindingDatabaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BindingDatabaseUrl(***)")
    }
}

impl FromText for BindingDatabaseUrl {
    const EXPECTED: &'static str = "a URL like \"postgres://hairpin:PASSWORD@db.example.org/sip\"";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        if !text.is_empty() {
            let options = Options {
                url: text.to_owned(),
                ..Options::default()
            };
            SavedBindings::check(&options).map_err(|error| {
                Mistake::new(format!("the URL cannot be used: {error}"))
                    .help(format!("expected {}; see docs/stores.md", Self::EXPECTED))
            })?;
        }
        Ok(Self(text.to_owned()))
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The database. The outer `None`: the settings have errors. The inner `None`: no database is configured.
pub(super) fn resolve(settings: &Settings) -> Option<Option<Options>> {
    let url = &settings.sip_binding_database.as_ref()?.value.0;
    let files = &settings.sip_binding_database_ca.as_ref()?.value;
    let options = (!url.is_empty()).then(|| Options {
        url: url.clone(),
        ca: files.first().map(|file| file.value.0.clone()),
        ..Options::default()
    });
    Some(options)
}

/// Reports a database without a state directory, a file that is also a store of `auth.stores`, and certificates that
/// cannot be used.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let (Some(database), Some(files)) = (
        &settings.sip_binding_database,
        &settings.sip_binding_database_ca,
    ) else {
        return;
    };
    let url = &database.value.0;
    let state_dir = settings.state_dir.as_ref();
    if !url.is_empty() && state_dir.is_some_and(|entry| entry.value == StateDir::Off) {
        let message = "sip.binding_database requires server.state_dir";
        let help = "set server.state_dir: it has the key of flow tokens and a lock, also if bindings are in a database";
        report.push(Diagnostic::error(&database.at, message).help(help));
    }
    let of_url = |url: &str| Options {
        url: url.to_owned(),
        ..Options::default()
    };
    let stores = settings.stores.as_ref();
    let stores = stores.map_or(&[][..], |list| &list.value);
    let urls = stores.iter().filter_map(|store| store.value.url());
    let mut users: Vec<Options> = urls.map(of_url).collect();
    let state_dir = state_dir.and_then(|entry| entry.value.path());
    if let (true, Some(path)) = (users.is_empty(), &state_dir) {
        users.push(default_store(path).options);
    }
    let own = of_url(url);
    if users
        .iter()
        .any(|users| SavedBindings::is_same_file(users, &own))
    {
        let message = "the same file has the users of auth.stores";
        let help = "name another file: each change of this one empties the cache of users";
        report.push(Diagnostic::error(&database.at, message).help(help));
    }
    if let Some(second) = files.value.get(1) {
        let message = "sip.binding_database_ca accepts one file";
        report
            .push(Diagnostic::error(&second.at, message).help("put all issuers into one PEM file"));
    }
    for file in &files.value {
        if let Err(error) = server::certificates::Certificates::roots(&[&file.value.0]) {
            let help = "give a PEM file with the certificates of the issuers";
            report.push(Diagnostic::error(&file.at, error.to_string()).help(help));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Inputs, Loaded, load};

    fn of(text: &str) -> Loaded {
        load(&Inputs {
            file: Some(("test".to_owned(), text.to_owned())),
            ..Inputs::default()
        })
    }

    #[test]
    fn a_database_needs_a_state_directory_and_a_file_of_its_own() {
        let whole = of(
            "[server]\nstate_dir = \"/var/lib/hairpin\"\n[sip]\nbinding_database = \"postgres://hairpin:p4ss@db/sip\"\n",
        );
        assert!(!whole.effective(false).contains("p4ss"));
        let database = whole.config.expect("it is valid").sip.binding_database;
        assert_eq!(
            database.expect("it is set").url,
            "postgres://hairpin:p4ss@db/sip"
        );
        let none = of("").config.expect("it is valid").sip.binding_database;
        assert!(none.is_none());
        for (text, part) in [
            (
                "[server]\nstate_dir = \"off\"\n[sip]\nbinding_database = \"sqlite:/a.db\"\n",
                "test:4:20: sip.binding_database requires server.state_dir",
            ),
            (
                "[[auth.stores]]\nurl = \"sqlite:/a.db\"\n[sip]\nbinding_database = \"sqlite:/a.db\"\n",
                "test:4:20: the same file has the users of auth.stores",
            ),
            (
                "[server]\nstate_dir = \"/var/lib/hairpin\"\n[sip]\nbinding_database = \"sqlite:///var/lib/hairpin/hairpin.db\"\n",
                "test:4:20: the same file has the users of auth.stores",
            ),
            (
                "[sip]\nbinding_database = \"redis://db/2\"\n",
                "test:2:20: the URL cannot be used: a store of kind `redis` cannot have SIP bindings",
            ),
            (
                "[sip]\nbinding_database = \"mysql://ann@db/sip\"\nbinding_database_ca = [\"/nonexistent\"]\n",
                "/nonexistent",
            ),
        ] {
            let lines = of(text).one_line_each();
            assert!(lines.iter().any(|line| line.contains(part)), "{lines:?}");
        }
    }
}
