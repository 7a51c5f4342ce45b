//! Reads configurations of other servers and makes a configuration of hairpin.
//!
//! ```text
//! text ── format ──► lines ── one row of a table per option ──► a verdict for each line
//!                                        │
//!                                        └─► Draft ──► hairpin.toml, which `config::load` must accept
//! ```
//! Every line gets a verdict. A line that matches no row of a table gets [`Verdict::NotUnderstood`].

mod coturn;
mod draft;
mod eturnal;
mod kamailio;
mod repro;
mod url;
mod verdict;

use draft::Draft;
pub(crate) use verdict::Verdict;

/// The server that a configuration belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Format {
    /// turnserver.conf of coturn
    Coturn,
    /// eturnal.yml
    Eturnal,
    /// kamailio.cfg, the default configuration with its defines
    Kamailio,
    /// repro.config of reSIProcate
    Repro,
}

impl Format {
    /// The name that messages show.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Coturn => "coturn",
            Self::Eturnal => "eturnal",
            Self::Kamailio => "Kamailio",
            Self::Repro => "repro",
        }
    }

    /// Detects the format of a text; `None` if it looks like no known format.
    pub(crate) fn detect(text: &str) -> Option<Self> {
        // kamailio.cfg and eturnal.yml have markers that no other format has.
        if kamailio::is_recognized(text) {
            Some(Self::Kamailio)
        } else if eturnal::is_recognized(text) {
            Some(Self::Eturnal)
        } else if repro::is_recognized(text) {
            Some(Self::Repro)
        } else {
            coturn::is_recognized(text).then_some(Self::Coturn)
        }
    }
}

/// A line of the other server's configuration, and its verdict.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JudgedLine {
    /// The line number, from 1.
    pub(crate) line: usize,
    /// The option, or the whole line if it is not an option.
    pub(crate) name: String,
    /// The result for the line.
    pub(crate) verdict: Verdict,
}

/// A user for a database.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Account {
    /// The name.
    pub(crate) name: String,
    /// The password or key.
    pub(crate) proof: Proof,
}

/// The password or key of a user.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Proof {
    /// A password.
    Password(String),
    /// The hexadecimal digits of a key that was computed from name, realm and password.
    Key(String),
}

/// The result of an import.
#[derive(Debug, Default)]
pub(crate) struct Imported {
    /// Every line that is neither empty nor a comment, in order.
    pub(crate) lines: Vec<JudgedLine>,
    /// Differences between the servers that belong to no line.
    pub(crate) notes: Vec<String>,
    /// Users for the store of `--database`, if it is given.
    pub(crate) users: Vec<Account>,
    /// Secrets for the store of `--database`, if it is given.
    pub(crate) secrets: Vec<String>,
    /// The configuration.
    pub(crate) draft: Draft,
}

/// A placeholder user with a random password for a SIP domain whose users are in a database. A domain without users is
/// an error.
fn placeholder_users() -> toml::Value {
    let mut random = [0; 16];
    if getrandom::fill(&mut random).is_err() {
        return toml::Value::Array(Vec::new());
    }
    let password: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let fields = [("name", "placeholder".to_owned()), ("password", password)];
    let user: toml::Table = fields
        .map(|(name, value)| (name.to_owned(), value.into()))
        .into_iter()
        .collect();
    vec![user].into()
}

/// The known name that is most similar: at most a third of its letters differ.
fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    // The longest option has 33 letters; the algorithm is quadratic.
    if word.len() > 64 {
        return None;
    }
    let word = word.trim_start_matches('-');
    known
        .map(|name| (strsim::osa_distance(word, name), name))
        .filter(|(distance, name)| *distance <= (name.len() / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}

/// Reads a configuration. If `database` is given, users and secrets are for this store.
pub(crate) fn read(format: Format, text: &str, database: Option<&str>) -> Imported {
    let mut imported = Imported::default();
    if let Some(url) = database {
        let url = toml::Value::from(url);
        imported.draft.push_table("auth.stores", [("url", url)]);
    }
    let read = match format {
        Format::Coturn => coturn::read,
        Format::Eturnal => eturnal::read,
        Format::Kamailio => kamailio::read,
        Format::Repro => repro::read,
    };
    read(text, database.is_some(), &mut imported);
    imported
}
