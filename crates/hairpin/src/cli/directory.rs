//! `hairpin user`, `hairpin secret` and `hairpin realm`.

use std::path::PathBuf;

use clap::Subcommand;

use super::remote::Remote;

const USER: &str = "\
Examples:
  hairpin user add alice --config /etc/hairpin.toml
        adds a user and prints its random password
  hairpin user list --store sqlite:/var/lib/hairpin/hairpin.db
        the users of the store with this URL
  hairpin user add alice --api https://turn.example.org:9641 --token-file token.txt
        the store of a server on another machine: docs/api.md

Changes apply within a second if the store reports them (SQLite, PostgreSQL, Redis), else
after the `ttl` of the store. Stores have keys that are computed from name, realm and
password, and no passwords: docs/stores.md.";

const ADD: &str = "\
Examples:
  hairpin user add alice --config /etc/hairpin.toml
        makes a random password and prints it
  hairpin user add alice --realm example.org --password-file - < password.txt
        reads the password from standard input";

const PASSWD: &str = "\
Examples:
  hairpin user passwd alice --config /etc/hairpin.toml
        makes a random password and prints it
  hairpin user passwd alice --password-file password.txt
        reads the password from a file";

const DEL: &str = "\
Examples:
  hairpin user del alice --config /etc/hairpin.toml
        existing allocations of the user stay until they expire
  hairpin user del bob --realm shop.example
        a user of another realm";

const LIST: &str = "\
Examples:
  hairpin user list --config /etc/hairpin.toml
        realm and name of each user, one per line
  hairpin user list --realm example.org --after alice --limit 100
        one page of the users of one realm";

const IMPORT: &str = "\
Examples:
  hairpin user import users.htdigest --config /etc/hairpin.toml
        lines like alice:example.org:7da2270ccfa49786e0115366d3a3d14d
  hairpin user import - --realm example.org < users.conf
        lines of coturn's configuration: user=alice:s3cret or user=alice:0x7da2..";

const SECRET: &str = "\
Examples:
  hairpin secret add --config /etc/hairpin.toml
        makes a random secret for time-limited credentials, and prints it
  hairpin secret list --realm example.org
        the secrets of a realm";

const SECRET_ADD: &str = "\
Examples:
  hairpin secret add --config /etc/hairpin.toml
        makes a random secret and prints it
  hairpin secret add --file secret.txt --realm shop.example
        the secret in a file";

const SECRET_DEL: &str = "\
Examples:
  hairpin secret del --file secret.txt --config /etc/hairpin.toml
        the server no longer accepts credentials made with this secret
  hairpin secret del --file - --realm shop.example < secret.txt
        reads the secret from standard input";

const SECRET_LIST: &str = "\
Examples:
  hairpin secret list --config /etc/hairpin.toml
        the secrets of the realm, one per line
  hairpin secret list --realm shop.example
        those of another realm";

const REALM: &str = "\
Examples:
  hairpin realm set shop.example --origin https://www.shop.example --user-quota 10
        clients of this web page belong to the realm
  hairpin realm list --config /etc/hairpin.toml
        realms with their origins and limits";

const REALM_SET: &str = "\
Examples:
  hairpin realm set shop.example --origin https://www.shop.example
        adds an origin
  hairpin realm set shop.example --total-quota 500 --max-bps 0
        at most 500 allocations; removes the limit of the rate from the store";

const REALM_DEL: &str = "\
Examples:
  hairpin realm del shop.example --config /etc/hairpin.toml
        removes its origins and limits; users and secrets stay
  hairpin realm del shop.example --store sqlite:/var/lib/hairpin/hairpin.db
        the same in the store with this URL";

const REALM_LIST: &str = "\
Examples:
  hairpin realm list --config /etc/hairpin.toml
        realms with their origins and limits
  hairpin realm list --store redis://localhost/2
        those of the store with this URL";

/// Names a store and a realm.
#[derive(Debug, clap::Args)]
pub(crate) struct Target {
    /// Configuration file: its first store that hairpin can change, else hairpin.db in server.state_dir
    #[arg(long, short, value_name = "FILE", env = "HAIRPIN_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// The URL of the store [default: the store of the configuration]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
    /// The realm [default: auth.realm]
    #[arg(long, short)]
    pub(crate) realm: Option<String>,
    #[command(flatten)]
    pub(crate) remote: Remote,
}

/// What to do with users.
#[derive(Debug, Subcommand)]
#[command(after_help = USER)]
pub(crate) enum User {
    /// Add a user
    Add(Password),
    /// Delete a user
    Del(Named),
    /// List users
    List(List),
    /// Change the password of a user
    #[command(after_help = PASSWD)]
    Passwd(Password),
    /// Add all users of a file
    Import(Import),
}

impl User {
    /// The store.
    pub(crate) fn target(&self) -> &Target {
        match self {
            User::Add(args) | User::Passwd(args) => &args.target,
            User::Del(args) => &args.target,
            User::List(args) => &args.target,
            User::Import(args) => &args.target,
        }
    }
}

/// Arguments of `hairpin user add` and `hairpin user passwd`.
#[derive(Debug, clap::Args)]
#[command(after_help = ADD)]
pub(crate) struct Password {
    /// The user's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) target: Target,
    /// A file with the password, or - for standard input [default: make a random one and print it]
    #[arg(long, value_name = "FILE")]
    pub(crate) password_file: Option<PathBuf>,
}

/// Arguments of `hairpin user del`.
#[derive(Debug, clap::Args)]
#[command(after_help = DEL)]
pub(crate) struct Named {
    /// The user's name
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) target: Target,
}

/// Arguments of `hairpin user list`.
#[derive(Debug, clap::Args)]
#[command(after_help = LIST)]
pub(crate) struct List {
    #[command(flatten)]
    pub(crate) target: Target,
    /// Begin after this user; requires --realm
    #[arg(long, value_name = "NAME", requires = "realm")]
    pub(crate) after: Option<String>,
    /// List at most this many users
    #[arg(long, value_name = "N")]
    pub(crate) limit: Option<usize>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `hairpin user import`.
#[derive(Debug, clap::Args)]
#[command(after_help = IMPORT)]
pub(crate) struct Import {
    /// The file, or - for standard input
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) target: Target,
}

/// What to do with secrets.
#[derive(Debug, Subcommand)]
#[command(after_help = SECRET)]
pub(crate) enum Secret {
    /// Add a secret of time-limited credentials
    #[command(after_help = SECRET_ADD)]
    Add(SecretFile),
    /// Delete a secret
    #[command(after_help = SECRET_DEL)]
    Del(SecretFile),
    /// List the secrets of a realm
    #[command(after_help = SECRET_LIST)]
    List(Target),
}

impl Secret {
    /// The store.
    pub(crate) fn target(&self) -> &Target {
        match self {
            Secret::Add(args) | Secret::Del(args) => &args.target,
            Secret::List(target) => target,
        }
    }
}

/// Arguments of `hairpin secret add` and `hairpin secret del`.
#[derive(Debug, clap::Args)]
pub(crate) struct SecretFile {
    #[command(flatten)]
    pub(crate) target: Target,
    /// A file with the secret, or - for standard input
    #[arg(long, value_name = "FILE")]
    pub(crate) file: Option<PathBuf>,
}

/// What to do with realms.
#[derive(Debug, Subcommand)]
#[command(after_help = REALM)]
pub(crate) enum Realm {
    /// Set origins and limits of a realm
    Set(RealmSet),
    /// Remove a realm's origins and limits
    Del(RealmDel),
    /// List realms
    #[command(after_help = REALM_LIST)]
    List(Target),
}

/// Arguments of `hairpin realm set`.
#[derive(Debug, clap::Args)]
#[command(after_help = REALM_SET)]
pub(crate) struct RealmSet {
    /// The realm
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) target: StoreArgs,
    /// A web origin whose clients belong to the realm (repeatable)
    #[arg(long)]
    pub(crate) origin: Vec<String>,
    /// Bytes per second of each allocation; 0 removes this limit from the store
    #[arg(long, value_name = "N")]
    pub(crate) max_bps: Option<u64>,
    /// Allocations of the realm; 0 removes this limit from the store
    #[arg(long, value_name = "N")]
    pub(crate) total_quota: Option<u64>,
    /// Allocations of each user; 0 removes this limit from the store
    #[arg(long, value_name = "N")]
    pub(crate) user_quota: Option<u64>,
}

/// Arguments of `hairpin realm del`.
#[derive(Debug, clap::Args)]
#[command(after_help = REALM_DEL)]
pub(crate) struct RealmDel {
    /// The realm
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) target: StoreArgs,
}

/// Names a store; the realm is another argument.
#[derive(Debug, clap::Args)]
pub(crate) struct StoreArgs {
    #[command(flatten)]
    pub(crate) remote: Remote,
    /// Configuration file: its first store that hairpin can change, else hairpin.db in server.state_dir
    #[arg(long, short, value_name = "FILE", env = "HAIRPIN_CONFIG")]
    pub(crate) config: Option<PathBuf>,
    /// The URL of the store [default: the store of the configuration]
    #[arg(long, value_name = "URL")]
    pub(crate) store: Option<String>,
}
