//! The keys of `[cluster]`: nodes that work together.

use std::fmt;

use server::cluster_keys::ClusterKeys;

use super::schema::Settings;
use super::setting::{FromText, Mistake};

/// The secret that all nodes have; empty without a cluster.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl FromText for Secret {
    const EXPECTED: &'static str = "a secret of at least 32 characters";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        if !text.is_empty() && text.len() < ClusterKeys::MIN_SECRET {
            let message = format!(
                "the secret of the cluster has {} characters; at least {} are required",
                text.len(),
                ClusterKeys::MIN_SECRET
            );
            let help = "all keys of the cluster are made of it; make one with: openssl rand -base64 32";
            return Err(Mistake::new(message).help(help));
        }
        super::credentials::not_a_placeholder(text)?;
        Ok(Self(text.to_owned()))
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The cluster of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    secret: Secret,
}

impl Cluster {
    /// What all nodes derive their keys from; `None` without a cluster.
    pub(crate) fn keys(&self) -> Option<ClusterKeys> {
        // Its length has been checked.
        ClusterKeys::new(self.secret.0.as_bytes()).ok()
    }
}

/// The plain values.
pub(super) fn resolve(settings: &Settings) -> Option<Cluster> {
    let s = settings.clone();
    Some(Cluster {
        secret: s.cluster_secret?.value,
    })
}

#[cfg(test)]
mod tests {
    use crate::config::{Inputs, Loaded, load};

    fn of(text: &str) -> Loaded {
        load(&Inputs {
            file: Some(("test".to_owned(), format!("[cluster]\n{text}\n"))),
            ..Inputs::default()
        })
    }

    #[test]
    fn a_secret_makes_keys_and_stays_out_of_sight() {
        let none = of("secret = \"\"");
        assert!(none.config.expect("it is valid").cluster.keys().is_none());
        let some = of("secret = \"0123456789abcdef0123456789abcdef\"");
        assert!(!some.effective(false).contains("0123456789"));
        let config = some.config.expect("it is valid");
        assert!(config.cluster.keys().is_some());
        assert!(!format!("{config:?}").contains("0123456789"));
        for (text, part) in [
            ("secret = \"0123456789abcdef0123456789abcde\"", "test:2:10: the secret of the cluster has 31 characters"),
            ("secret = \"replace-me with a long secret of yours\"", "placeholder"),
        ] {
            let said = of(text).one_line_each().remove(0);
            assert!(said.contains(part), "{said}");
        }
    }
}
