//! Realm, users and shared secrets as the user writes them.

use std::fmt;

use server::MAX_REALM_BYTES;

use super::diagnostics::{Diagnostic, Report};
use super::node::{Node, Raw};
use super::setting::{FromText, Mistake, Setting, quote, wrong_type};
use super::walk::unknown_key;

/// RFC 8489 §14.3: USERNAME is shorter than 509 bytes.
const MAX_USERNAME: usize = 508;
/// A limit only so that there is one; a password this long is a mistake.
const MAX_PASSWORD: usize = 1024;

/// The realm of the long-term credentials.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Realm(pub(crate) String);

impl FromText for Realm {
    const EXPECTED: &'static str = "a text, like \"example.org\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        if text.is_empty() {
            return Err(
                Mistake::new("the realm is empty").help("use your domain, like \"example.org\"")
            );
        }
        if text.len() > MAX_REALM_BYTES {
            let length = text.len();
            let help = format!(
                "use at most {MAX_REALM_BYTES}: the response to the shortest request must not be larger than three times the request"
            );
            return Err(Mistake::new(format!("the realm has {length} bytes")).help(&help));
        }
        // RFC 8489 §14.9: the realm-value of RFC 3261, without the quotes and with nothing that would end them.
        match text
            .chars()
            .find(|c| c.is_control() || matches!(c, '"' | '\\'))
        {
            Some(bad) => Err(Mistake::new(format!("{bad:?} cannot stand in a realm"))
                .help("use your domain, like \"example.org\"")),
            None => Ok(Self(text.to_owned())),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// A secret that is shared with a service that makes time-limited credentials.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl FromText for Secret {
    const EXPECTED: &'static str = "a secret as a text";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        if text.trim().is_empty() {
            return Err(
                Mistake::new("the secret is empty").help("make one with: openssl rand -base64 24")
            );
        }
        reject_placeholder(text)?;
        Ok(Self(text.to_owned()))
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// What secrets and passwords in the example file begin with. They are public.
const PLACEHOLDER: &str = "replace-me";

/// Refuses the placeholder of the example file.
pub(super) fn reject_placeholder(text: &str) -> Result<(), Mistake> {
    match text.starts_with(PLACEHOLDER) {
        true => Err(Mistake::new(
            "this is the placeholder of the example file, which everybody knows",
        )
        .help("make a secret with: openssl rand -base64 24")),
        false => Ok(()),
    }
}

/// A user with a password that does not expire.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct User {
    /// What the client sends as USERNAME.
    pub(crate) name: String,
    /// The password, in the clear.
    pub(crate) password: String,
}

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User({})", self.name)
    }
}

const FIELDS: [&str; 2] = ["name", "password"];
const EXAMPLE: &str = "write it like { name = \"alice\", password = \"s3cret\" }";

impl Setting for User {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let user = match &node.raw {
            Raw::Toml(toml::de::DeValue::Table(_)) => {
                let [name, password] = read_pair(node, report, "user", (FIELDS, None), EXAMPLE)?;
                Self { name, password }
            }
            Raw::Plain(text) => match text.split_once(':') {
                Some((name, password)) => Self {
                    name: name.to_owned(),
                    password: password.to_owned(),
                },
                None => {
                    report.push(
                        Diagnostic::error(&node.at, "expected NAME:PASSWORD")
                            .help("for example alice:s3cret"),
                    );
                    return None;
                }
            },
            _ => {
                report.push(wrong_type(node, "a user").help(EXAMPLE));
                return None;
            }
        };
        user.validate()
            .map_err(|mistake| report.push(mistake.at(&node.at)))
            .ok()?;
        Some(user)
    }

    fn write(&self, reveal: bool) -> String {
        let password = if reveal {
            quote(&self.password)
        } else {
            "\"***\"".to_owned()
        };
        format!("{{ name = {}, password = {password} }}", quote(&self.name))
    }
}

impl User {
    pub(super) fn validate(&self) -> Result<(), Mistake> {
        let name = &self.name;
        if name.is_empty() {
            return Err(Mistake::new("the user's name is empty"));
        }
        if name.len() > MAX_USERNAME {
            return Err(Mistake::new(format!(
                "the user's name is longer than {MAX_USERNAME} bytes"
            )));
        }
        if name.chars().any(char::is_control) {
            return Err(Mistake::new(
                "the user's name has a control character in it",
            ));
        }
        if self.password.is_empty() {
            return Err(Mistake::new(format!("user `{name}` has an empty password"))
                .help("anybody could relay through this server: set one"));
        }
        reject_placeholder(&self.password)?;
        if self.password.chars().any(char::is_control) {
            return Err(Mistake::new(format!(
                "the password of `{name}` has a control character in it"
            )));
        }
        if self.password.len() > MAX_PASSWORD {
            return Err(Mistake::new(format!(
                "the password of `{name}` is longer than {MAX_PASSWORD} bytes"
            )));
        }
        Ok(())
    }
}

/// Reads a table of two texts. `what` is what the table describes. The caller reads the key `more`.
pub(super) fn read_pair(
    node: &Node<'_>,
    report: &mut Report,
    what: &str,
    (names, more): ([&'static str; 2], Option<&'static str>),
    example: &str,
) -> Option<[String; 2]> {
    let Raw::Toml(toml::de::DeValue::Table(table)) = &node.raw else {
        return None;
    };
    let source = node.at.source;
    let mut fields: [Option<String>; 2] = [None, None];
    let mut complete = true;
    for (key, value) in table.iter() {
        let value = Node::toml(source, value);
        match names
            .iter()
            .position(|field| *field == key.get_ref().as_ref())
        {
            Some(at) if value.text().is_some() => fields[at] = value.text().map(str::to_owned),
            Some(_) => {
                report.push(wrong_type(&value, "a text"));
                complete = false;
            }
            None if more == Some(key.get_ref().as_ref()) => {}
            None => {
                let known: Vec<_> = names.into_iter().chain(more).collect();
                report.push(unknown_key(source, key, &format!("a {what}"), &known, &[]));
            }
        }
    }
    for (field, value) in names.iter().zip(&fields) {
        if value.is_none() && complete {
            let message = format!("the {what} has no {field}");
            report.push(Diagnostic::error(&node.at, message).help(example));
        }
    }
    let [first, second] = fields;
    Some([first?, second?])
}
