//! `hairpin user`, `hairpin secret` and `hairpin realm`: changes in a store, each with an audit line.

mod import;
mod over_api;
mod transfer;

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::json;
use stores::realm_changes::{RealmChange, change_realm, removal_of_realm, settings_of_realm};
use stores::{Directory, Keys, Kind, RealmOption, Store, StoreError, StoreFuture, StoreSettings};

use super::serve::{databases, random_secret};
use super::{input, output};
use crate::api_client::Client;
use crate::audit::Audit;
use crate::cli::directory::{
    Import, List, Named, Password, Realm, RealmDel, RealmSet, Secret, StoreArgs, Target, User,
};
use crate::cli::remote::Remote;
use crate::config::{self, Config};
use import::Users;
pub(crate) use import::read as read_users;
pub(super) use transfer::put_accounts;

/// A longer password or secret is a mistake.
const MAX_FILE: u64 = 4_096;
/// Users that are listed by one query.
const PAGE_USERS: usize = 1_000;

/// A store that is open.
struct Open {
    store: Arc<dyn Store>,
    kind: Kind,
    realm: String,
    runtime: tokio::runtime::Runtime,
    timeout: std::time::Duration,
}

impl Open {
    /// Opens the store that the arguments name. Prints the mistakes of the configuration and returns `None` if there
    /// are any.
    fn of(target: &Target) -> Result<Option<Self>> {
        let loaded = config::load(&input::gather(target.config.as_ref(), Vec::new())?);
        let Some(config) = &loaded.config else {
            eprint!("{}", loaded.diagnostics(input::colour()));
            return Ok(None);
        };
        let settings = choose(config, target.store.as_deref())?;
        let options = &settings.options;
        let kind = Kind::of(&options.url).ok_or_else(|| {
            anyhow!("--store: not the URL of a store: docs/stores.md has examples")
        })?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .context("cannot start a runtime")?;
        let store = {
            let _inside = runtime.enter();
            stores::open(options)
                .with_context(|| format!("cannot open the {kind} store", kind = kind.name()))?
        };
        Ok(Some(Self {
            store,
            kind,
            realm: target.realm.clone().unwrap_or_else(|| config.realm.clone()),
            runtime,
            timeout: settings.timeout,
        }))
    }

    /// Waits for an answer.
    fn wait<T>(&self, answer: StoreFuture<'_, T>) -> Result<T> {
        let timeout = self.timeout;
        let outcome = self
            .runtime
            .block_on(async { tokio::time::timeout(timeout, answer).await });
        let outcome = outcome.unwrap_or(Err(StoreError::Timeout(timeout)));
        outcome.with_context(|| format!("the {} store failed", self.kind.name()))
    }

    /// The write access to the store.
    fn directory(&self) -> Result<&dyn Directory> {
        let kind = self.kind.name();
        self.store.directory().ok_or_else(|| {
            anyhow!(
                "a {kind} store cannot be changed by hairpin: change the file or the service itself"
            )
        })
    }

    fn audit(&self, action: &'static str) -> Audit<'_> {
        Audit::new(action)
            .with("store", self.kind.name())
            .with("realm", &self.realm)
    }
}

/// The store of the command line, or the first one of the configuration that hairpin can change.
fn choose(config: &Config, url: Option<&str>) -> Result<StoreSettings> {
    if let Some(url) = url {
        let known = config.stores.iter().find(|store| store.options.url == url);
        return Ok(known.cloned().unwrap_or_else(|| config::of_url(url)));
    }
    writable(config)?.ok_or_else(|| {
        anyhow!(
            "no store is configured that hairpin can change: name one with --store sqlite:/var/lib/hairpin/hairpin.db, or use --config with a configuration that has server.state_dir or auth.stores"
        )
    })
}

/// The first store of a configuration that hairpin can change.
pub(super) fn writable(config: &Config) -> Result<Option<StoreSettings>> {
    let list = databases::list(config)?;
    let is_writable = |store: &&StoreSettings| {
        !matches!(
            Kind::of(&store.options.url),
            None | Some(Kind::File | Kind::Http)
        )
    };
    Ok(list.iter().find(is_writable).cloned())
}

/// The client of the API, if the command is for a server on another machine.
fn client<'a>(remote: &'a Remote, store: Option<&str>) -> Result<Option<&'a Client>> {
    if remote.api.is_some() && store.is_some() {
        bail!("--store names a database, and --api (or HAIRPIN_API) a server: use one of them");
    }
    remote.client()
}

/// Runs `hairpin user`.
pub(crate) fn user(command: &User) -> Result<ExitCode> {
    let target = command.target();
    if let Some(client) = client(&target.remote, target.store.as_deref())? {
        return over_api::user(client, command);
    }
    match command {
        User::Add(args) => put_user(args, true),
        User::Passwd(args) => put_user(args, false),
        User::Del(args) => delete_user(args),
        User::List(args) => list_users(args),
        User::Import(args) => import_users(args),
    }
}

fn put_user(args: &Password, is_new: bool) -> Result<ExitCode> {
    let Some(open) = Open::of(&args.target)? else {
        return Ok(ExitCode::FAILURE);
    };
    let (name, realm) = (&args.name, &open.realm);
    let directory = open.directory()?;
    let exists = open.wait(open.store.find_user(realm, name))?.keys.is_some();
    match (is_new, exists) {
        (true, true) => {
            bail!(
                "the realm {realm} has a user {name}: change its password with hairpin user passwd"
            )
        }
        (false, false) => {
            bail!("the realm {realm} has no user {name}: add it with hairpin user add")
        }
        _ => {}
    }
    let given = args.password_file.as_deref().map(first_line).transpose()?;
    let password = given.clone().map_or_else(random_secret, Ok)?;
    let keys = Keys::of(name, realm, &password).ok_or_else(|| {
        anyhow!("RFC 8265 does not allow this name, realm or password: it must not be empty or have control characters")
    })?;
    open.wait(directory.put_user(realm, name, keys))?;
    let action = if is_new { "user.add" } else { "user.passwd" };
    open.audit(action).with("user", name).write();
    if given.is_none() {
        output::print(&format!("{password}\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn delete_user(args: &Named) -> Result<ExitCode> {
    let Some(open) = Open::of(&args.target)? else {
        return Ok(ExitCode::FAILURE);
    };
    let directory = open.directory()?;
    if !open.wait(directory.delete_user(&open.realm, &args.name))? {
        bail!("the realm {} has no user {}", open.realm, args.name);
    }
    open.audit("user.del").with("user", &args.name).write();
    Ok(ExitCode::SUCCESS)
}

fn list_users(args: &List) -> Result<ExitCode> {
    let Some(open) = Open::of(&args.target)? else {
        return Ok(ExitCode::FAILURE);
    };
    let directory = open.directory()?;
    let realm = args.target.realm.as_deref();
    let first = args.after.clone().map(|name| (open.realm.clone(), name));
    let (mut after, mut left) = (first, args.limit.unwrap_or(usize::MAX));
    let mut all = Vec::new();
    while left > 0 {
        let from = after.as_ref().map(|(realm, name)| (&**realm, &**name));
        let page = open.wait(directory.list_users(realm, from, left.min(PAGE_USERS)))?;
        let Some(last) = page.last() else {
            break;
        };
        after = Some(last.clone());
        left -= page.len();
        match args.json {
            true => all.extend(page),
            false => {
                let line = |(realm, name): &(String, String)| {
                    let (realm, name) = (output::printable(realm), output::printable(name));
                    format!("{realm}\t{name}\n")
                };
                output::print(&page.iter().map(line).collect::<String>())?;
            }
        }
    }
    if args.json {
        let user = |(realm, name): &(String, String)| json!({ "realm": realm, "name": name });
        let users: Vec<_> = all.iter().map(user).collect();
        output::print(&format!("{:#}\n", json!(users)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The text of a file or of standard input.
fn whole_text(path: &Path) -> Result<String> {
    let text = match is_stdin(path) {
        true => std::io::read_to_string(std::io::stdin()),
        false => std::fs::read_to_string(path),
    };
    text.with_context(|| format!("cannot read {}", path.display()))
}

/// The users of a text. Prints its mistakes.
fn checked_users(path: &Path, text: &str, realm: &str) -> Result<Users> {
    let name = path.display();
    let users = import::read(text, realm);
    if !users.mistakes.is_empty() {
        let mistakes = users.mistakes.iter().take(10);
        mistakes.for_each(|(line, why)| eprintln!("{name}:{line}: {why}"));
        bail!(
            "{} of {name} cannot be read; no user was imported",
            config::plural(users.mistakes.len(), "line")
        );
    }
    Ok(users)
}

fn import_users(args: &Import) -> Result<ExitCode> {
    let Some(open) = Open::of(&args.target)? else {
        return Ok(ExitCode::FAILURE);
    };
    let directory = open.directory()?;
    let text = whole_text(&args.file)?;
    let users = checked_users(&args.file, &text, &open.realm)?;
    for (realm, user, keys) in &users.found {
        open.wait(directory.put_user(realm, user, *keys))
            .with_context(|| format!("stopped at the user {user} of the realm {realm}"))?;
        let audit = Audit::new("user.import").with("store", open.kind.name());
        audit.with("realm", realm).with("user", user).write();
    }
    let count = config::plural(users.found.len(), "user");
    output::print(&format!("{count} imported\n"))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `hairpin secret`.
pub(crate) fn secret(command: &Secret) -> Result<ExitCode> {
    let target = command.target();
    if let Some(client) = client(&target.remote, target.store.as_deref())? {
        return over_api::secret(client, command);
    }
    let Some(open) = Open::of(target)? else {
        return Ok(ExitCode::FAILURE);
    };
    let (realm, directory) = (&open.realm, open.directory()?);
    match command {
        Secret::Add(args) => {
            let given = args.file.as_deref().map(first_line).transpose()?;
            let secret = given.clone().map_or_else(random_secret, Ok)?;
            open.wait(directory.put_secret(realm, &secret))?;
            open.audit("secret.add").write();
            if given.is_none() {
                output::print(&format!("{secret}\n"))?;
            }
        }
        Secret::Del(args) => {
            let Some(file) = &args.file else {
                bail!("name the file with the secret: --file FILE, or --file - for standard input");
            };
            if !open.wait(directory.delete_secret(realm, &first_line(file)?))? {
                bail!("the realm {realm} has no such secret");
            }
            open.audit("secret.del").write();
        }
        Secret::List(_) => {
            let shared = open.wait(open.store.shared())?;
            let own = shared.secrets.iter().filter(|(of, _)| of == realm);
            let lines: String = own.map(|(_, secret)| format!("{secret}\n")).collect();
            output::print(&lines)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `hairpin realm`.
pub(crate) fn realm(command: &Realm) -> Result<ExitCode> {
    let (remote, store) = match command {
        Realm::Set(args) => (&args.target.remote, &args.target.store),
        Realm::Del(args) => (&args.target.remote, &args.target.store),
        Realm::List(target) => (&target.remote, &target.store),
    };
    if let Some(client) = client(remote, store.as_deref())? {
        return over_api::realm(client, command);
    }
    match command {
        Realm::Set(args) => set_realm(args),
        Realm::Del(args) => delete_realm(args),
        Realm::List(target) => list_realms(target),
    }
}

fn target_of(place: &StoreArgs, realm: &str) -> Target {
    Target {
        config: place.config.clone(),
        store: place.store.clone(),
        realm: Some(realm.to_owned()),
        remote: Remote::default(),
    }
}

fn set_realm(args: &RealmSet) -> Result<ExitCode> {
    let options = [
        (RealmOption::MaxBps, args.max_bps),
        (RealmOption::TotalQuota, args.total_quota),
        (RealmOption::UserQuota, args.user_quota),
    ];
    let changes = settings_of_realm(&args.origin, &options);
    if changes.is_empty() {
        bail!("nothing to set: give --origin, --max-bps, --total-quota or --user-quota");
    }
    let Some(open) = Open::of(&target_of(&args.target, &args.name))? else {
        return Ok(ExitCode::FAILURE);
    };
    let directory = open.directory()?;
    // At once: a signal can end this process before the last change.
    let write = |change: &RealmChange, is_made| {
        let (name, value) = change.field();
        let audit = open.audit("realm.set").with(name, &value);
        match is_made {
            true => audit.write(),
            false => audit.with("outcome", "failed").write(),
        }
    };
    let making = change_realm(directory, &args.name, changes, open.timeout, None, write);
    let outcome = open.runtime.block_on(making);
    outcome.map_err(|partial| anyhow!("the {} store failed: {partial}", open.kind.name()))?;
    Ok(ExitCode::SUCCESS)
}

fn delete_realm(args: &RealmDel) -> Result<ExitCode> {
    let Some(open) = Open::of(&target_of(&args.target, &args.name))? else {
        return Ok(ExitCode::FAILURE);
    };
    let directory = open.directory()?;
    let shared = open.wait(open.store.shared())?;
    let changes = removal_of_realm(&shared, &args.name);
    if changes.is_empty() {
        bail!(
            "the store has no origins and no limits of the realm {}",
            args.name
        );
    }
    let note = |_: &RealmChange, _| {};
    let removal = change_realm(directory, &args.name, changes, open.timeout, None, note);
    let outcome = open.runtime.block_on(removal);
    let audit = open.audit("realm.del");
    match &outcome {
        Ok(()) => audit.write(),
        Err(partial) => {
            let audit = audit.with("removed", &partial.count());
            audit.with("outcome", "failed").write();
        }
    }
    outcome.map_err(|partial| anyhow!("the {} store failed: {partial}", open.kind.name()))?;
    Ok(ExitCode::SUCCESS)
}

fn list_realms(target: &Target) -> Result<ExitCode> {
    let Some(open) = Open::of(target)? else {
        return Ok(ExitCode::FAILURE);
    };
    let shared = open.wait(open.store.shared())?;
    let origins = shared
        .origins
        .iter()
        .map(|(origin, realm)| (realm, format!("origin={origin}")));
    let options = shared.options.iter();
    let options =
        options.map(|(realm, option, value)| (realm, format!("{}={value}", option.name())));
    let mut lines: Vec<_> = origins.chain(options).collect();
    lines.sort();
    let line = |(realm, what): &(&String, String)| {
        format!(
            "{}\t{}\n",
            output::printable(realm),
            output::printable(what)
        )
    };
    output::print(&lines.iter().map(line).collect::<String>())?;
    Ok(ExitCode::SUCCESS)
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// The first line of a file or of standard input.
fn first_line(path: impl AsRef<Path>) -> Result<String> {
    let path = path.as_ref();
    let name = path.display();
    let mut text = String::new();
    let read = match is_stdin(path) {
        true => std::io::stdin().take(MAX_FILE).read_to_string(&mut text),
        false => {
            std::fs::File::open(path).and_then(|file| file.take(MAX_FILE).read_to_string(&mut text))
        }
    };
    read.with_context(|| format!("cannot read {name}"))?;
    match text.lines().next().filter(|line| !line.is_empty()) {
        Some(line) => Ok(line.to_owned()),
        None => bail!("{name} is empty"),
    }
}
