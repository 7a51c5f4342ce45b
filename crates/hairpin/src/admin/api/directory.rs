//! Users, secrets and realms of the store that hairpin can change.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use stores::realm_changes::{
    RealmChange, change_realm, is_over, removal_of_realm, settings_of_realm, within,
};
use stores::{Directory, Keys, Kind, RealmOption, Store, StoreError, StoreFuture, StoreSettings};
use tokio::time::Instant;

use super::access::Caller;
use super::problem::Problem;
use super::values::Query;
use crate::audit::Audit;
use crate::commands::{random_secret, read_users};
use crate::config::plural;

#[cfg(test)]
#[path = "deadline_tests.rs"]
mod deadline_tests;

/// Mistakes of a text that a response names.
const MAX_MISTAKES: usize = 100;

/// The store, opened for one request.
#[derive(Debug)]
pub(super) struct Open {
    store: Arc<dyn Store>,
    kind: Kind,
    timeout: Duration,
    /// All queries and changes end before this time, so that the client gets a response.
    deadline: Instant,
    caller: Caller,
}

/// The body of `PUT /users/{name}`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Password {
    password: Option<String>,
    mode: Option<Mode>,
}

/// Whether the user may, or must, exist already.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Mode {
    /// It must not.
    Add,
    /// It must.
    Change,
}

/// The body of `POST /users`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UsersText {
    text: String,
}

/// The body of `POST /secrets` and `DELETE /secrets`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Secret {
    secret: Option<String>,
}

/// The body of `PATCH /realms/{name}`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Realm {
    #[serde(default)]
    origins: Vec<String>,
    max_bps: Option<u64>,
    total_quota: Option<u64>,
    user_quota: Option<u64>,
}

impl Open {
    /// Opens the store. The store connects at its first query.
    pub(super) fn of(
        settings: Option<&StoreSettings>,
        caller: Caller,
        deadline: Instant,
    ) -> Result<Self, Problem> {
        let none = || {
            Problem::conflict(
                "no store is configured that hairpin can change: set server.state_dir or auth.stores",
            )
        };
        let settings = settings.ok_or_else(none)?;
        let kind = Kind::of(&settings.options.url).ok_or_else(none)?;
        let store = stores::open(&settings.options).map_err(|error| failed(kind, &error))?;
        Ok(Self {
            store,
            kind,
            timeout: settings.timeout,
            deadline,
            caller,
        })
    }

    async fn wait<T>(&self, answer: StoreFuture<'_, T>) -> Result<T, Problem> {
        let outcome = within(self.timeout, Some(self.deadline), answer).await;
        outcome.map_err(|error| failed(self.kind, &error))
    }

    fn directory(&self) -> Result<&dyn Directory, Problem> {
        let kind = self.kind.name();
        self.store.directory().ok_or_else(|| {
            Problem::conflict(format!(
                "hairpin cannot change a {kind} store: use the program that owns it"
            ))
        })
    }

    /// The start of the audit line of a change.
    fn audit<'a>(&self, action: &'static str, realm: &'a str) -> Audit<'a> {
        let audit = Audit::new(action).with("store", self.kind.name());
        audit.with("realm", realm)
    }

    /// An error if the time for the request is over, so that no change begins. Such a change has no audit line.
    fn check_time(&self) -> Result<(), Problem> {
        match is_over(Some(self.deadline)) {
            true => Err(failed(self.kind, &StoreError::Deadline)),
            false => Ok(()),
        }
    }

    /// Makes a change, and writes its audit line.
    async fn change<T>(&self, audit: Audit<'_>, change: StoreFuture<'_, T>) -> Result<T, Problem> {
        self.check_time()?;
        let outcome = self.wait(change).await;
        self.log(audit, outcome.is_ok());
        outcome
    }

    /// Writes an audit line. A store that fails, or that does not respond in time, may have made the change.
    fn log(&self, audit: Audit<'_>, is_made: bool) {
        let audit = match is_made {
            true => audit,
            false => audit.with("outcome", "failed"),
        };
        audit.log(&self.caller.0);
    }

    pub(super) async fn users(&self, query: &Query) -> Result<Value, Problem> {
        let limit = super::limit(query)?;
        let (realm, after) = (query.get("realm"), query.get("after"));
        let after_realm = query.get("after_realm").or(realm);
        if after.is_some() && after_realm.is_none() {
            return Err(Problem::bad_request("after requires realm or after_realm"));
        }
        let from = after_realm.zip(after);
        let found = self.directory()?.list_users(realm, from, limit + 1);
        let mut found = self.wait(found).await?;
        let has_more = found.len() > limit;
        found.truncate(limit);
        let next = found.last().filter(|_| has_more);
        let (next_realm, next) = next.cloned().unzip();
        let user = |(realm, name): &(String, String)| json!({ "realm": realm, "name": name });
        let users: Vec<_> = found.iter().map(user).collect();
        Ok(json!({ "users": users, "next": next, "next_realm": next_realm }))
    }

    pub(super) async fn put_user(
        &self,
        realm: &str,
        name: &str,
        body: Password,
    ) -> Result<Value, Problem> {
        let directory = self.directory()?;
        let found = self.wait(self.store.find_user(realm, name)).await?;
        let is_new = found.keys.is_none();
        match body.mode {
            Some(Mode::Add) if !is_new => {
                let message = format!(
                    "the realm {realm} has a user {name}: change its password with hairpin user passwd"
                );
                return Err(Problem::conflict(message));
            }
            Some(Mode::Change) if is_new => {
                let message =
                    format!("the realm {realm} has no user {name}: add it with hairpin user add");
                return Err(Problem::not_found(message));
            }
            _ => {}
        }
        let made = given_or_made(body.password.as_ref())?;
        let password = body.password.as_ref().or(made.as_ref());
        let keys = password.and_then(|password| Keys::of(name, realm, password));
        let keys = keys.ok_or_else(|| {
            Problem::bad_request("RFC 8265 forbids this name, realm or password: each must be non-empty and without control characters")
        })?;
        let action = if is_new { "user.add" } else { "user.passwd" };
        let audit = self.audit(action, realm).with("user", name);
        self.change(audit, directory.put_user(realm, name, keys))
            .await?;
        Ok(json!({ "is_new": is_new, "password": made }))
    }

    /// Adds the users of a text. A text with a mistake changes nothing. If the store fails, or the time is over, the
    /// response says how many users were imported.
    pub(super) async fn import_users(
        &self,
        realm: &str,
        body: UsersText,
    ) -> Result<Value, Problem> {
        let users = read_users(&body.text, realm);
        if !users.mistakes.is_empty() {
            let count = plural(users.mistakes.len(), "line");
            let lines = users.mistakes.iter().take(MAX_MISTAKES);
            let lines = lines.map(|(line, why)| format!("line {line}: {why}"));
            let message = format!("{count} of the text cannot be read; no user was imported");
            return Err(Problem::bad_request(message).with_mistakes(lines.collect()));
        }
        let directory = self.directory()?;
        for (number, (realm, name, keys)) in users.found.iter().enumerate() {
            let stopped = |why: &str| {
                let message = format!(
                    "stopped at the user {name} of the realm {realm}, after {number} of {}: {why}",
                    plural(users.found.len(), "user")
                );
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
            };
            if Instant::now() >= self.deadline {
                return Err(stopped(
                    "the time for this request is over: send fewer users in one request",
                ));
            }
            let audit = self.audit("user.import", realm).with("user", name);
            let outcome = self.change(audit, directory.put_user(realm, name, *keys));
            let outcome = outcome.await;
            outcome.map_err(|problem| stopped(problem.detail()))?;
        }
        Ok(json!({ "imported": users.found.len() }))
    }

    pub(super) async fn delete_user(&self, realm: &str, name: &str) -> Result<Value, Problem> {
        let deleted = self.directory()?.delete_user(realm, name);
        let audit = self.audit("user.del", realm).with("user", name);
        let message = format!("the realm {realm} has no user {name}");
        self.delete(audit, deleted, message).await
    }

    /// Makes a deletion, and writes its audit line unless there was nothing to delete.
    async fn delete(
        &self,
        audit: Audit<'_>,
        deleted: StoreFuture<'_, bool>,
        missing: String,
    ) -> Result<Value, Problem> {
        self.check_time()?;
        let outcome = self.wait(deleted).await;
        if let Ok(false) = outcome {
            return Err(Problem::not_found(missing));
        }
        self.log(audit, outcome.is_ok());
        outcome.map(|_| json!({}))
    }

    pub(super) async fn secrets(&self, realm: &str) -> Result<Value, Problem> {
        let shared = self.wait(self.store.shared()).await?;
        let own = shared.secrets.iter().filter(|(of, _)| of == realm);
        let secrets: Vec<_> = own.map(|(_, secret)| secret).collect();
        Ok(json!({ "realm": realm, "secrets": secrets }))
    }

    pub(super) async fn add_secret(&self, realm: &str, body: Secret) -> Result<Value, Problem> {
        let made = given_or_made(body.secret.as_ref())?;
        let secret = body.secret.as_ref().or(made.as_ref());
        let secret = secret.filter(|secret| !secret.trim().is_empty());
        let secret = secret.ok_or_else(|| {
            Problem::bad_request(
                "the secret is empty: send another one, or none to get a random one",
            )
        })?;
        let audit = self.audit("secret.add", realm);
        let put = self.directory()?.put_secret(realm, secret);
        self.change(audit, put).await?;
        Ok(json!({ "secret": made }))
    }

    pub(super) async fn delete_secret(&self, realm: &str, body: Secret) -> Result<Value, Problem> {
        let secret = body.secret.ok_or_else(|| {
            Problem::bad_request("the body has no secret: send {\"secret\": \"..\"}")
        })?;
        let deleted = self.directory()?.delete_secret(realm, &secret);
        let message = format!("the realm {realm} has no such secret");
        self.delete(self.audit("secret.del", realm), deleted, message)
            .await
    }

    pub(super) async fn realms(&self) -> Result<Value, Problem> {
        let shared = self.wait(self.store.shared()).await?;
        let mut realms: BTreeMap<&str, Value> = BTreeMap::new();
        let empty =
            || json!({ "origins": [], "max_bps": null, "total_quota": null, "user_quota": null });
        for (origin, realm) in &shared.origins {
            let entry = realms.entry(realm).or_insert_with(empty);
            if let Some(origins) = entry["origins"].as_array_mut() {
                origins.push(json!(origin));
            }
        }
        for (realm, option, value) in &shared.options {
            let entry = realms.entry(realm).or_insert_with(empty);
            entry[option.name().replace('-', "_")] = json!(value);
        }
        let realms = realms.into_iter().map(|(name, mut realm)| {
            realm["name"] = json!(name);
            realm
        });
        Ok(json!({ "realms": realms.collect::<Vec<_>>() }))
    }

    pub(super) async fn set_realm(&self, name: &str, body: Realm) -> Result<Value, Problem> {
        let options = [
            (RealmOption::MaxBps, body.max_bps),
            (RealmOption::TotalQuota, body.total_quota),
            (RealmOption::UserQuota, body.user_quota),
        ];
        let changes = settings_of_realm(&body.origins, &options);
        if changes.is_empty() {
            let message = "the body sets nothing: send origins, max_bps, total_quota or user_quota";
            return Err(Problem::bad_request(message));
        }
        let directory = self.directory()?;
        let deadline = Some(self.deadline);
        let log = |change: &RealmChange, is_made| {
            let (field, value) = change.field();
            self.log(self.audit("realm.set", name).with(field, &value), is_made);
        };
        let making = change_realm(directory, name, changes, self.timeout, deadline, log);
        let outcome = making.await;
        outcome.map_err(|partial| failed(self.kind, &partial))?;
        Ok(json!({}))
    }

    pub(super) async fn delete_realm(&self, name: &str) -> Result<Value, Problem> {
        let directory = self.directory()?;
        let shared = self.wait(self.store.shared()).await?;
        let changes = removal_of_realm(&shared, name);
        if changes.is_empty() {
            let message = format!("the store has no origins and no limits of the realm {name}");
            return Err(Problem::not_found(message));
        }
        let deadline = Some(self.deadline);
        let mut has_begun = false;
        let note = |_: &RealmChange, _| has_begun = true;
        let making = change_realm(directory, name, changes, self.timeout, deadline, note);
        let outcome = making.await;
        if has_begun {
            // One line for all rows, also if only some were deleted.
            let audit = self.audit("realm.del", name);
            let audit = match &outcome {
                Ok(()) => audit,
                Err(partial) => audit.with("removed", &partial.count()),
            };
            self.log(audit, outcome.is_ok());
        }
        outcome.map_err(|partial| failed(self.kind, &partial))?;
        Ok(json!({}))
    }
}

/// A random text if the client sent none; `None` if it sent one.
fn given_or_made(given: Option<&String>) -> Result<Option<String>, Problem> {
    if given.is_some() {
        return Ok(None);
    }
    let made = random_secret()
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, format!("{error:#}")))?;
    Ok(Some(made))
}

fn failed(kind: Kind, error: &dyn std::error::Error) -> Problem {
    let message = format!("the {} store failed: {error}", kind.name());
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
}
