//! A file of lines `name:realm:key`, as the program htdigest writes them. It is read again when it changes.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::error::StoreError;
use crate::keys::Keys;
use crate::store::{Change, Found, OnChange, Shared, Store, StoreFuture};

/// A million users fit.
const MAX_BYTES: u64 = 128 << 20;
/// How often the file is looked at.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// What changes when a file is replaced or written: device, inode, length, and the time of the last change of its
/// inode.
type Stamp = (u64, u64, u64, i64, i64);

type Users = HashMap<(String, String), Keys>;

#[derive(Debug)]
pub(super) struct HashFile {
    path: PathBuf,
    /// The users of the file as it was at this time.
    read: Mutex<Option<(Stamp, Users)>>,
}

impl HashFile {
    pub(super) fn new(path: PathBuf) -> HashFile {
        HashFile {
            path,
            read: Mutex::new(None),
        }
    }

    fn with<T>(&self, ask: impl FnOnce(&Users) -> T) -> Result<T, StoreError> {
        let stamp = stamp(&self.path)?;
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        match &*read {
            Some((of, users)) if *of == stamp => Ok(ask(users)),
            _ => {
                let users = parse(&self.path, &contents(&self.path)?)?;
                let (_, users) = &*read.insert((stamp, users));
                Ok(ask(users))
            }
        }
    }
}

fn stamp(path: &Path) -> Result<Stamp, StoreError> {
    let data = path.metadata().map_err(|error| unreadable(path, &error))?;
    if !data.is_file() {
        return Err(StoreError::Query(format!(
            "{} is not a regular file",
            path.display()
        )));
    }
    Ok((
        data.dev(),
        data.ino(),
        data.len(),
        data.ctime(),
        data.ctime_nsec(),
    ))
}

fn unreadable(path: &Path, error: &std::io::Error) -> StoreError {
    StoreError::Connect(format!("{}: {error}", path.display()))
}

fn contents(path: &Path) -> Result<String, StoreError> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| unreadable(path, &error))?;
    let read = file.take(MAX_BYTES + 1).read_to_string(&mut text);
    let length = read.map_err(|error| unreadable(path, &error))?;
    match length as u64 > MAX_BYTES {
        true => Err(StoreError::Query(format!(
            "{} has more than {MAX_BYTES} bytes",
            path.display()
        ))),
        false => Ok(text),
    }
}

fn parse(path: &Path, text: &str) -> Result<Users, StoreError> {
    let mut users = Users::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let Some((realm, name, keys)) = entry(line) else {
            return Err(StoreError::Query(format!(
                "{}:{number}: expected name:realm:key with a key of 32 or 64 hexadecimal digits",
                path.display()
            )));
        };
        let place = users.entry((realm, name)).or_default();
        *place = keys.or(*place);
    }
    Ok(users)
}

/// Realm, name and key. A realm has no colon in htdigest's files, and a name may have some.
fn entry(line: &str) -> Option<(String, String, Keys)> {
    let (rest, key) = line.rsplit_once(':')?;
    let (name, realm) = rest.rsplit_once(':')?;
    let keys = Keys::from_hex(key).filter(|_| !name.is_empty())?;
    Some((realm.to_owned(), name.to_owned(), keys))
}

impl Store for HashFile {
    fn find_user<'a>(&'a self, realm: &'a str, name: &'a str) -> StoreFuture<'a, Found> {
        Box::pin(async move {
            let key = (realm.to_owned(), name.to_owned());
            let keys = self.with(|users| users.get(&key).copied())?;
            Ok(Found { keys, ttl: None })
        })
    }

    fn shared(&self) -> StoreFuture<'_, Shared> {
        Box::pin(async move {
            let has_users = self.with(|users| !users.is_empty())?;
            Ok(Shared {
                has_users,
                ..Shared::default()
            })
        })
    }

    fn watch<'a>(&'a self, on_change: OnChange<'a>) -> StoreFuture<'a, ()> {
        Box::pin(async move {
            let mut seen = stamp(&self.path)?;
            loop {
                tokio::time::sleep(CHECK_INTERVAL).await;
                let now = stamp(&self.path)?;
                if now != seen {
                    seen = now;
                    on_change(Change::Everything);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "7da2270ccfa49786e0115366d3a3d14d";

    #[test]
    fn a_line_has_name_realm_and_key() {
        let sha256 = KEY.repeat(2);
        let text = format!(
            "# users\n\ngorst:north.gov:{KEY}\na:b:north.gov:{KEY}\ngorst:north.gov:{sha256}\n"
        );
        let users = parse(Path::new("users"), &text).unwrap();
        let gorst = users[&("north.gov".to_owned(), "gorst".to_owned())];
        assert!(gorst.md5.is_some() && gorst.sha256.is_some());
        assert!(users.contains_key(&("north.gov".to_owned(), "a:b".to_owned())));
        assert_eq!(users.len(), 2);
    }

    #[test]
    fn a_wrong_line_is_named() {
        for line in [
            "gorst:north.gov",
            "gorst:north.gov:hero",
            &format!(":north.gov:{KEY}"),
        ] {
            let error = parse(Path::new("users"), &format!("\n{line}\n")).unwrap_err();
            assert!(
                error
                    .to_string()
                    .starts_with("users:2: expected name:realm:key")
            );
        }
    }
}
