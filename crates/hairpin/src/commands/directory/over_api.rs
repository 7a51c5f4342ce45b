//! `hairpin user`, `hairpin secret` and `hairpin realm` with `--api`: the store of a server on another machine. The
//! output is that of a local store. The server writes the audit lines, with the number of the token.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use serde_json::{Value, json};

use super::{checked_users, first_line, whole_text};
use crate::api_client::{Client, Parameters};
use crate::cli::directory::{Import, List, Password, Realm, RealmSet, Secret, User};
use crate::commands::control::refused;
use crate::commands::output::{self, printable};
use crate::config::plural;
use crate::control::protocol::Reply;

/// Lines of a file in one request. The server must store them within its time limit for a request.
const MAX_LINES: usize = 100;
/// The realm for the check of a file if the command line has none. The server uses its own realm.
const ANY_REALM: &str = "realm";

/// Prints the text that `show` makes of the result, or the refusal of the server.
fn conclude(reply: Reply, show: impl FnOnce(&Value) -> String) -> Result<ExitCode> {
    match reply {
        Ok(result) => {
            output::print(&show(&result))?;
            Ok(ExitCode::SUCCESS)
        }
        Err(refusal) => Ok(refused(&refusal)),
    }
}

/// For [`conclude`]: prints nothing.
fn quiet(_: &Value) -> String {
    String::new()
}

/// The line with the random password or secret that the server has made. Empty if the command had one of its own.
fn made(result: &Value, name: &str) -> String {
    let made = result[name].as_str();
    made.map(|made| format!("{made}\n")).unwrap_or_default()
}

/// Runs `hairpin user`.
pub(super) fn user(client: &Client, command: &User) -> Result<ExitCode> {
    match command {
        User::Add(args) => put_user(client, args, "add"),
        User::Passwd(args) => put_user(client, args, "change"),
        User::Del(args) => {
            let path = format!("/users/{}", Client::segment(&args.name));
            let realm = [("realm", args.target.realm.as_deref())];
            conclude(client.call("DELETE", &path, &realm, None)?, quiet)
        }
        User::List(args) => list_users(client, args),
        User::Import(args) => import_users(client, args),
    }
}

/// Adds a user, or changes its password. `mode` is `add` or `change`.
fn put_user(client: &Client, args: &Password, mode: &str) -> Result<ExitCode> {
    let given = args.password_file.as_deref().map(first_line).transpose()?;
    let body = json!({ "password": given, "mode": mode });
    let path = format!("/users/{}", Client::segment(&args.name));
    let realm = [("realm", args.target.realm.as_deref())];
    let reply = client.call("PUT", &path, &realm, Some(&body))?;
    conclude(reply, |result| made(result, "password"))
}

/// Prints the users page by page. JSON is printed at the end, as one list.
fn list_users(client: &Client, args: &List) -> Result<ExitCode> {
    let realm = args.target.realm.as_deref();
    let (mut after, mut after_realm) = (args.after.clone(), None::<String>);
    let (mut left, mut all) = (args.limit.unwrap_or(usize::MAX), Vec::new());
    while left > 0 {
        let limit = left.min(super::PAGE_USERS).to_string();
        let parameters = [
            ("realm", realm),
            ("after", after.as_deref()),
            ("after_realm", after_realm.as_deref()),
            ("limit", Some(limit.as_str())),
        ];
        let page = match client.call("GET", "/users", &parameters, None)? {
            Ok(page) => page,
            Err(refusal) => return Ok(refused(&refusal)),
        };
        let users = page["users"]
            .as_array()
            .map(Vec::as_slice)
            .unwrap_or_default();
        left = left.saturating_sub(users.len());
        match args.json {
            true => all.extend_from_slice(users),
            false => {
                let text = |value: &Value| printable(value.as_str().unwrap_or_default());
                let line =
                    |user: &Value| format!("{}\t{}\n", text(&user["realm"]), text(&user["name"]));
                output::print(&users.iter().map(line).collect::<String>())?;
            }
        }
        if page["next"].is_null() {
            break;
        }
        let text = |name: &str| page[name].as_str().map(str::to_owned);
        (after, after_realm) = (text("next"), text("next_realm"));
    }
    if args.json {
        output::print(&format!("{:#}\n", Value::from(all)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn import_users(client: &Client, args: &Import) -> Result<ExitCode> {
    let text = whole_text(&args.file)?;
    let realm = args.target.realm.as_deref();
    // The check is before the first request, so that a file with a mistake changes nothing.
    checked_users(&args.file, &text, realm.unwrap_or(ANY_REALM))?;
    let lines: Vec<&str> = text.lines().collect();
    let mut imported = 0;
    for (number, part) in lines.chunks(MAX_LINES).enumerate() {
        let body = json!({ "text": part.join("\n") });
        match client.call("POST", "/users", &[("realm", realm)], Some(&body))? {
            Ok(result) => imported += usize::try_from(result["imported"].as_u64().unwrap_or(0))?,
            Err(refusal) => {
                let first = number * MAX_LINES + 1;
                eprintln!(
                    "{}: stopped in the lines from {first} on",
                    args.file.display()
                );
                return Ok(refused(&refusal));
            }
        }
    }
    output::print(&format!("{} imported\n", plural(imported, "user")))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `hairpin secret`.
pub(super) fn secret(client: &Client, command: &Secret) -> Result<ExitCode> {
    let realm: Parameters<'_> = &[("realm", command.target().realm.as_deref())];
    let of_file = |file: Option<&Path>| file.map(first_line).transpose();
    match command {
        Secret::Add(args) => {
            let body = json!({ "secret": of_file(args.file.as_deref())? });
            let reply = client.call("POST", "/secrets", realm, Some(&body))?;
            conclude(reply, |result| made(result, "secret"))
        }
        Secret::Del(args) => {
            let Some(secret) = of_file(args.file.as_deref())? else {
                bail!("name the file with the secret: --file FILE, or --file - for standard input");
            };
            let body = json!({ "secret": secret });
            conclude(
                client.call("DELETE", "/secrets", realm, Some(&body))?,
                quiet,
            )
        }
        Secret::List(_) => conclude(client.call("GET", "/secrets", realm, None)?, |result| {
            let secrets = result["secrets"].as_array().into_iter().flatten();
            let secrets = secrets.filter_map(Value::as_str);
            secrets.map(|secret| format!("{secret}\n")).collect()
        }),
    }
}

/// Runs `hairpin realm`.
pub(super) fn realm(client: &Client, command: &Realm) -> Result<ExitCode> {
    match command {
        Realm::Set(args) => set_realm(client, args),
        Realm::Del(args) => {
            let path = format!("/realms/{}", Client::segment(&args.name));
            conclude(client.call("DELETE", &path, &[], None)?, quiet)
        }
        Realm::List(_) => conclude(client.call("GET", "/realms", &[], None)?, realm_lines),
    }
}

/// Adds origins to a realm, and sets limits. The server leaves limits that are `null` as they are.
fn set_realm(client: &Client, args: &RealmSet) -> Result<ExitCode> {
    let limits = [args.max_bps, args.total_quota, args.user_quota];
    if args.origin.is_empty() && limits.iter().all(Option::is_none) {
        bail!("nothing to set: give --origin, --max-bps, --total-quota or --user-quota");
    }
    let body = json!({
        "origins": args.origin,
        "max_bps": args.max_bps,
        "total_quota": args.total_quota,
        "user_quota": args.user_quota,
    });
    let path = format!("/realms/{}", Client::segment(&args.name));
    conclude(client.call("PATCH", &path, &[], Some(&body))?, quiet)
}

/// The lines of `hairpin realm list`.
fn realm_lines(result: &Value) -> String {
    let text = |value: &Value| printable(value.as_str().unwrap_or_default());
    let mut lines = Vec::new();
    for realm in result["realms"].as_array().into_iter().flatten() {
        let name = text(&realm["name"]);
        for origin in realm["origins"].as_array().into_iter().flatten() {
            lines.push((name.clone(), format!("origin={}", text(origin))));
        }
        for option in ["max_bps", "total_quota", "user_quota"] {
            if let Some(value) = realm[option].as_u64() {
                lines.push((
                    name.clone(),
                    format!("{}={value}", option.replace('_', "-")),
                ));
            }
        }
    }
    lines.sort();
    let line = |(realm, what): &(String, String)| format!("{realm}\t{what}\n");
    lines.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn realms_are_listed_as_those_of_a_local_store() {
        let result = json!({ "realms": [
            { "name": "b.example", "origins": ["https://b.example"], "max_bps": null, "total_quota": 5, "user_quota": 7 },
            { "name": "a.example", "origins": [], "max_bps": 1000, "total_quota": null, "user_quota": null },
        ] });
        assert_eq!(
            realm_lines(&result),
            "a.example\tmax-bps=1000\nb.example\torigin=https://b.example\nb.example\ttotal-quota=5\nb.example\tuser-quota=7\n"
        );
    }
}
