//! Writes users and secrets of another server's configuration into a store.

use anyhow::{Context, Result, anyhow};
use stores::Keys;

use super::{Open, Target};
use crate::cli::remote::Remote;
use crate::import::{Account, Imported, Proof};

/// Writes all users and secrets into the store with this URL.
pub(in crate::commands) fn put_accounts(url: &str, realm: &str, from: &Imported) -> Result<()> {
    let target = Target {
        config: None,
        store: Some(url.to_owned()),
        realm: Some(realm.to_owned()),
        remote: Remote::default(),
    };
    let open = Open::of(&target)?.ok_or_else(|| anyhow!("the environment has mistakes"))?;
    let directory = open.directory()?;
    for account in &from.users {
        let name = &account.name;
        let keys = keys(account, realm).ok_or_else(|| {
            anyhow!("RFC 8265 forbids the name or the password of the user {name}: change them in the file, and import it again")
        })?;
        open.wait(directory.put_user(realm, name, keys))
            .with_context(|| format!("stopped at the user {name}"))?;
        open.audit("user.import").with("user", name).write();
    }
    for secret in &from.secrets {
        open.wait(directory.put_secret(realm, secret))?;
        open.audit("secret.add").write();
    }
    Ok(())
}

fn keys(account: &Account, realm: &str) -> Option<Keys> {
    match &account.proof {
        Proof::Password(password) => Keys::of(&account.name, realm, password),
        Proof::Key(digits) => Keys::from_hex(digits),
    }
}
