//! Users of one SIP domain, as the user writes them: with a password, or with the hashes of name, realm and password.

use std::fmt;

use server::sip::{DigestAlgorithm, DomainUser, UserSecret};

use super::credentials::User as Plain;
use super::diagnostics::{Diagnostic, Report};
use super::node::{Node, Raw};
use super::setting::{FromText, Setting, quote, wrong_type};
use super::walk::unknown_key;

/// A user.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct User(pub(crate) DomainUser);

impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "User({})", self.0.name)
    }
}

const FIELDS: [&str; 3] = ["name", "password", "ha1s"];
const EXAMPLE: &str =
    "write it like { name = \"alice\", password = \"s3cret\" }, or with ha1s = { MD5 = \"..\" }";

impl Setting for User {
    fn read(node: &Node<'_>, report: &mut Report) -> Option<Self> {
        let Raw::Toml(toml::de::DeValue::Table(table)) = &node.raw else {
            report.push(wrong_type(node, "a user").help(EXAMPLE));
            return None;
        };
        let source = node.at.source;
        let errors = report.errors();
        let (mut name, mut password, mut ha1s) = (None, None, None);
        for (key, value) in table.iter() {
            let value = Node::toml(source, value);
            let text = value.text().map(str::to_owned);
            match &key.get_ref()[..] {
                "name" if text.is_some() => name = text,
                "password" if text.is_some() => password = text,
                "ha1s" => ha1s = read_ha1s(&value, report),
                "name" | "password" => report.push(wrong_type(&value, "a text")),
                _ => report.push(unknown_key(source, key, "a user", &FIELDS, &[])),
            }
        }
        if report.errors() > errors {
            return None;
        }
        let wrong = |message: &str| Diagnostic::error(&node.at, message).help(EXAMPLE);
        let Some(name) = name else {
            report.push(wrong("the user has no name"));
            return None;
        };
        let secret = match (password, ha1s) {
            (Some(password), None) => UserSecret::Password(password),
            (None, Some(ha1s)) => UserSecret::Ha1s(ha1s),
            (None, None) => {
                report.push(wrong("the user has no password"));
                return None;
            }
            (Some(_), Some(_)) => {
                report.push(wrong("the user has both a password and hashes of it"));
                return None;
            }
        };
        // The rules are those of auth.users.
        let plain = Plain {
            name: name.clone(),
            password: match &secret {
                UserSecret::Password(password) => password.clone(),
                _ => "-".to_owned(),
            },
        };
        plain
            .validate()
            .map_err(|mistake| report.push(mistake.at(&node.at)))
            .ok()?;
        Some(Self(DomainUser { name, secret }))
    }

    fn write(&self, reveal: bool) -> String {
        let shown = |secret: &str| match reveal {
            true => quote(secret),
            false => "\"***\"".to_owned(),
        };
        let secret = match &self.0.secret {
            UserSecret::Password(password) => format!("password = {}", shown(password)),
            UserSecret::Ha1s(ha1s) => {
                let one = |(algorithm, hex): &(DigestAlgorithm, String)| {
                    format!("{} = {}", algorithm.name(), shown(hex))
                };
                let all: Vec<_> = ha1s.iter().map(one).collect();
                format!("ha1s = {{ {} }}", all.join(", "))
            }
        };
        format!("{{ name = {}, {secret} }}", quote(&self.0.name))
    }
}

/// H(name:realm:password) in hexadecimal digits, by algorithm (RFC 7616 §3.4.2).
fn read_ha1s(node: &Node<'_>, report: &mut Report) -> Option<Vec<(DigestAlgorithm, String)>> {
    let example = "write them like { MD5 = \"939e7578ed9e3c518a452acee763bce9\" }";
    let Raw::Toml(toml::de::DeValue::Table(table)) = &node.raw else {
        report.push(wrong_type(node, "hashes").help(example));
        return None;
    };
    let mut ha1s = Vec::new();
    for (key, value) in table.iter() {
        let value = Node::toml(node.at.source, value);
        let algorithm = match DigestAlgorithm::from_text(key.get_ref()) {
            Ok(algorithm) => algorithm,
            Err(mistake) => {
                report.push(mistake.at(&value.at));
                return None;
            }
        };
        let digits = 2 * algorithm.hash_len();
        let hex = value.text().filter(|text| {
            text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())
        });
        let Some(hex) = hex else {
            let message = format!(
                "a hash of {} has {digits} hexadecimal digits",
                algorithm.name()
            );
            report.push(Diagnostic::error(&value.at, message).help(example));
            return None;
        };
        ha1s.push((algorithm, hex.to_ascii_lowercase()));
    }
    if ha1s.is_empty() {
        report.push(Diagnostic::error(&node.at, "there is no hash").help(example));
        return None;
    }
    Some(ha1s)
}
