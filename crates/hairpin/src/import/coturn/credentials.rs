//! Users, secrets, realm and access tokens.

use super::super::{Account, Imported, Proof};
use super::{
    Draft, File, Line, Row, Rule, Verdict, databases, flag, list, number, replaced, unnecessary,
    unsupported, value,
};

pub(super) const ROWS: &[Row] = &[
    flag(
        "lt-cred-mech",
        unnecessary("hairpin always requires long-term credentials"),
    ),
    flag(
        "no-auth",
        unsupported("an allocation always requires credentials in hairpin"),
    ),
    list("user", Rule::Decide(user)),
    flag("use-auth-secret", Rule::Decide(use_secrets)),
    list("static-auth-secret", Rule::Decide(secret)),
    value("rest-api-separator", Rule::Decide(separator)),
    value("realm", Rule::Decide(realm)),
    flag(
        "check-origin-consistency",
        unnecessary("hairpin does not change the realm of an allocation after its first request"),
    ),
    flag("oauth", Rule::Decide(oauth)),
    value("server-name", Rule::Decide(server_name)),
    flag(
        "no-auth-pings",
        unnecessary("hairpin sends health checks to a store only while the store is down"),
    ),
    flag(
        "no-dynamic-realms",
        unsupported(
            "hairpin always reads the realm tables of a store: delete the rows of turn_origin_to_realm and turn_realm_option",
        ),
    ),
    flag(
        "no-dynamic-ip-list",
        unsupported(
            "hairpin always reads the peer rules of a store: delete the rows of allowed_peer_ip and denied_peer_ip",
        ),
    ),
    value(
        "secret-key-file",
        replaced("password_file in auth.stores: the file has the unencrypted password"),
    ),
    number("stale-nonce", Rule::Decide(stale_nonce)),
    flag("stateless-nonce", unnecessary("hairpin stores no nonces")),
    value(
        "stateless-nonce-secret",
        replaced("cluster.secret: nodes that have the same one accept the nonces of each other"),
    ),
];

/// Whether coturn allocates without credentials, though `no-auth` does not say so.
pub(super) fn is_open(file: &File) -> bool {
    let names = ["user", "static-auth-secret"];
    let flags = ["lt-cred-mech", "use-auth-secret", "no-auth", "stun-only"];
    let has_any = names.iter().any(|name| file.last(name).is_some());
    !has_any && !flags.iter().any(|name| file.flag(name))
}

/// Name and password or key of a `user` line.
fn account(line: &Line) -> Option<Account> {
    let (name, rest) = line.value.split_once(':')?;
    let proof = match rest.strip_prefix("0x") {
        Some(digits) => Proof::Key(digits.to_owned()),
        None => Proof::Password(rest.to_owned()),
    };
    (!name.is_empty() && !rest.is_empty()).then(|| Account {
        name: name.to_owned(),
        proof,
    })
}

fn is_key(digits: &str) -> bool {
    matches!(digits.len(), 32 | 64) && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn user(line: &Line, file: &File, _: &mut Draft) -> Verdict {
    let Some(account) = account(line) else {
        return Verdict::wrong("write NAME:PASSWORD or NAME:0xKEY");
    };
    let later = file.all("user").filter(|other| other.number > line.number);
    let mut later = later.filter_map(|other| Some((other.number, self::account(other)?)));
    if let Some((number, _)) = later.find(|(_, other)| other.name == account.name) {
        return Verdict::unnecessary(format!("line {number} replaces the user"));
    }
    match &account.proof {
        _ if file.flag("no-auth") => Verdict::unnecessary("coturn ignores users if no-auth is set"),
        Proof::Key(digits) if !is_key(digits) => {
            Verdict::wrong("a key has 32 or 64 hexadecimal digits")
        }
        Proof::Key(_) | Proof::Password(_) if file.has_database => Verdict::carried("the database"),
        Proof::Key(_) => Verdict::unsupported(
            "a user with a key must be in a database: run the import with --database URL",
        ),
        Proof::Password(_) => Verdict::carried("auth.users"),
    }
}

fn use_secrets(_: &Line, file: &File, _: &mut Draft) -> Verdict {
    match (file.last("static-auth-secret"), databases::is_default(file)) {
        (None, true) => Verdict::wrong(
            "the file has no static-auth-secret and no database with secrets: set auth.secrets",
        ),
        (None, false) => Verdict::unnecessary("hairpin always uses the secrets of the database"),
        (Some(_), _) => Verdict::unnecessary("hairpin always uses auth.secrets"),
    }
}

fn secret(line: &Line, file: &File, _: &mut Draft) -> Verdict {
    let mut earlier = file
        .all("static-auth-secret")
        .filter(|other| other.number < line.number);
    if let Some(first) = earlier.find(|other| other.value == line.value) {
        return Verdict::unnecessary(format!("line {} has the same secret", first.number));
    }
    match file.has_database {
        true => Verdict::carried("the database"),
        false => Verdict::carried("auth.secrets"),
    }
}

fn separator(line: &Line, _: &File, _: &mut Draft) -> Verdict {
    match line.value.chars().next() {
        Some(':') => Verdict::unnecessary("hairpin uses the same separator"),
        _ => Verdict::unsupported(
            "names of time-limited credentials are EXPIRY:NAME: change the program that makes them",
        ),
    }
}

fn realm(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    if line.value.len() > server::MAX_REALM_BYTES {
        let most = server::MAX_REALM_BYTES;
        return Verdict::unsupported(format!(
            "a realm has at most {most} bytes: a longer one makes responses much larger than requests"
        ));
    }
    draft.set("auth.realm", &*line.value);
    Verdict::carried("auth.realm")
}

fn oauth(_: &Line, file: &File, _: &mut Draft) -> Verdict {
    match databases::is_default(file) {
        true => Verdict::replaced("auth.token_keys: add the keys of the table oauth_key there"),
        false => Verdict::unnecessary("hairpin always reads the keys of the table oauth_key"),
    }
}

fn server_name(line: &Line, file: &File, draft: &mut Draft) -> Verdict {
    if !file.flag("oauth") {
        return Verdict::unnecessary("only oauth uses it");
    }
    draft.set("auth.token_server_name", &*line.value);
    Verdict::carried("auth.token_server_name")
}

fn stale_nonce(line: &Line, _: &File, draft: &mut Draft) -> Verdict {
    const MIN_S: u64 = 60;
    const MAX_S: u64 = 3600;
    let Some(seconds) = line.number_or(600) else {
        return Verdict::wrong("write a number of seconds");
    };
    let lifetime = match seconds {
        // In coturn, 0 means that a nonce never expires.
        0 => MAX_S,
        seconds => seconds.clamp(MIN_S, MAX_S),
    };
    draft.set("auth.nonce_lifetime", format!("{lifetime}s"));
    match lifetime == seconds {
        true => Verdict::carried("auth.nonce_lifetime"),
        false => Verdict::carried(format!(
            "auth.nonce_lifetime as {lifetime} s: it must be from a minute to an hour (RFC 8656 §5)"
        )),
    }
}

/// Writes users and secrets.
pub(super) fn finish(file: &File, imported: &mut Imported) {
    if file.flag("no-auth") || file.flag("stun-only") {
        return;
    }
    let mut users: Vec<Account> = Vec::new();
    for account in file.all("user").filter_map(account) {
        users.retain(|known| known.name != account.name);
        users.push(account);
    }
    users.retain(|user| !matches!(&user.proof, Proof::Key(digits) if !is_key(digits)));
    let mut secrets: Vec<String> = Vec::new();
    for secret in file
        .all("static-auth-secret")
        .filter(|line| !line.value.is_empty())
    {
        if !secrets.contains(&secret.value) {
            secrets.push(secret.value.clone());
        }
    }
    if file.has_database {
        (imported.users, imported.secrets) = (users, secrets);
        return;
    }
    for user in users {
        if let Proof::Password(password) = user.proof {
            let fields = [("name", user.name.into()), ("password", password.into())];
            imported.draft.push_table("auth.users", fields);
        }
    }
    for secret in secrets {
        imported.draft.push("auth.secrets", secret);
    }
}
