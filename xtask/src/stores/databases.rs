//! The databases: each in a folder of its own, as an unprivileged user, with the tables of coturn.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;

use crate::interop::free_ports;
use crate::process::Process;
use crate::tools;

const STORES_PAGE: &str = include_str!("../../../docs/stores.md");
/// The schema in the package of coturn.
const COTURN_SCHEMA: &str = "/usr/share/coturn/schema.sql";
/// The name of the database, its user and the user's password.
const DATABASE_NAME: &str = "turn";
/// How long a database may take to start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(40);

/// A kind of database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum DatabaseKind {
    Sqlite,
    Postgres,
    Mariadb,
    Redis,
}

impl DatabaseKind {
    pub(super) const ALL: [DatabaseKind; 4] = [
        DatabaseKind::Sqlite,
        DatabaseKind::Postgres,
        DatabaseKind::Mariadb,
        DatabaseKind::Redis,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            DatabaseKind::Sqlite => "sqlite",
            DatabaseKind::Postgres => "postgres",
            DatabaseKind::Mariadb => "mariadb",
            DatabaseKind::Redis => "redis",
        }
    }
}

/// A running database.
pub(super) struct Database {
    pub(super) kind: DatabaseKind,
    /// Its process; SQLite has none.
    pub(super) process: Option<Process>,
    /// Its URL for hairpin.
    pub(super) url: String,
    /// The option of coturn's programs for it, and the value.
    pub(super) coturn: [String; 2],
    folder: PathBuf,
}

impl Drop for Database {
    fn drop(&mut self) {
        // The process first: it writes there.
        self.process = None;
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Starts a database, and makes its tables.
pub(super) fn start(kind: DatabaseKind, logs: &Path) -> Result<Database> {
    start_named(kind.name(), kind, logs)
}

/// The same, if there is another database of this kind.
pub(super) fn start_named(own: &str, kind: DatabaseKind, logs: &Path) -> Result<Database> {
    let name = format!("hairpin-stores-{own}-{}", std::process::id());
    let folder = std::env::temp_dir().join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder)?;
    let log = logs.join(format!("{own}.log"));
    let mut database = Database {
        kind,
        process: None,
        url: String::new(),
        coturn: [String::new(), String::new()],
        folder,
    };
    match kind {
        DatabaseKind::Sqlite => start_sqlite(&mut database),
        DatabaseKind::Postgres => start_postgres(&mut database, log)?,
        DatabaseKind::Mariadb => start_mariadb(&mut database, log)?,
        DatabaseKind::Redis => start_redis(&mut database, log)?,
    }
    Ok(database)
}

/// turnadmin makes the file and its tables.
fn start_sqlite(database: &mut Database) {
    let file = database.folder.join("turndb").display().to_string();
    database.url = format!("sqlite:{file}");
    database.coturn = ["--userdb".to_owned(), file];
}

fn start_postgres(database: &mut Database, log: PathBuf) -> Result<()> {
    let data = give_to(&database.folder, "postgres")?;
    let port = free_ports(1)?;
    let mut init = as_user("postgres", program("postgresql", "initdb")?);
    init.args(["--no-sync", "--auth=trust", "--username=turn", "-D"])
        .arg(&data);
    finish(&mut init)?;
    let mut server = as_user("postgres", program("postgresql", "postgres")?);
    server
        .arg("-D")
        .arg(&data)
        .args(["-c", "listen_addresses=127.0.0.1", "-c", "fsync=off"])
        .args(["-c", &format!("port={port}"), "-c"])
        .arg(format!("unix_socket_directories={}", data.display()));
    database.process = Some(Process::start("postgres", server, log)?);
    database.url = format!("postgres://{DATABASE_NAME}@127.0.0.1:{port}/{DATABASE_NAME}");
    let admin = format!("postgres://{DATABASE_NAME}@127.0.0.1:{port}/postgres");
    until_it_answers(database, || {
        let mut create = Command::new("psql");
        create.args([
            &admin,
            "-q",
            "-c",
            &format!("CREATE DATABASE {DATABASE_NAME}"),
        ]);
        create
    })?;
    finish(Command::new("psql").args([&database.url, "-q", "-f", COTURN_SCHEMA]))?;
    // The trigger that the page has for changes of other programs.
    let trigger = sql_of_the_page("CREATE FUNCTION")?;
    finish(Command::new("psql").args([
        &*database.url,
        "-q",
        "-v",
        "ON_ERROR_STOP=1",
        "-c",
        trigger,
    ]))?;
    database.coturn = ["--psql-userdb".to_owned(), database.url.clone()];
    Ok(())
}

/// The SQL in the page with these words.
pub(super) fn sql_of_the_page(words: &str) -> Result<&'static str> {
    let blocks = STORES_PAGE.split("```sql\n").skip(1);
    let mut blocks = blocks.filter_map(|block| Some(block.split_once("```")?.0));
    let found = blocks.find(|block| block.contains(words));
    found.with_context(|| format!("docs/stores.md has no SQL with {words}"))
}

fn start_mariadb(database: &mut Database, log: PathBuf) -> Result<()> {
    let data = give_to(&database.folder, "mysql")?;
    let port = free_ports(1)?;
    let mut init = as_user("mysql", "mariadb-install-db".into());
    init.args(["--no-defaults", "--skip-test-db"])
        .arg(format!("--datadir={}", data.display()))
        .arg("--auth-root-authentication-method=normal");
    finish(&mut init)?;
    let mut server = as_user("mysql", "mariadbd".into());
    let socket = data.join("socket");
    server
        .arg("--no-defaults")
        .arg(format!("--datadir={}", data.display()))
        .arg(format!("--socket={}", socket.display()))
        .args(["--bind-address=127.0.0.1", &format!("--port={port}")])
        .args(["--innodb-flush-log-at-trx-commit=0", "--skip-name-resolve"]);
    database.process = Some(Process::start("mariadbd", server, log)?);
    let client = |arguments: &[&str]| {
        let mut client = Command::new("mariadb");
        client
            .args(["--no-defaults", "-uroot", "-S"])
            .arg(&socket)
            .args(arguments);
        client
    };
    let create = format!(
        "CREATE DATABASE {DATABASE_NAME}; CREATE USER '{DATABASE_NAME}'@'127.0.0.1' IDENTIFIED BY '{DATABASE_NAME}'; GRANT ALL ON {DATABASE_NAME}.* TO '{DATABASE_NAME}'@'127.0.0.1';"
    );
    until_it_answers(database, || client(&["-e", &create]))?;
    finish(&mut client(&[
        DATABASE_NAME,
        "-e",
        &format!("source {COTURN_SCHEMA}"),
    ]))?;
    database.url =
        format!("mysql://{DATABASE_NAME}:{DATABASE_NAME}@127.0.0.1:{port}/{DATABASE_NAME}");
    database.coturn = [
        "--mysql-userdb".to_owned(),
        format!(
            "host=127.0.0.1 dbname={DATABASE_NAME} user={DATABASE_NAME} password={DATABASE_NAME} port={port}"
        ),
    ];
    Ok(())
}

fn start_redis(database: &mut Database, log: PathBuf) -> Result<()> {
    let data = give_to(&database.folder, "nobody")?;
    let port = free_ports(1)?;
    let mut server = as_user("nobody", "redis-server".into());
    server
        .args(["--bind", "127.0.0.1", "--port", &port.to_string()])
        .args(["--requirepass", DATABASE_NAME, "--save", ""])
        // Keyspace events of all commands.
        .args(["--notify-keyspace-events", "KA", "--dir"])
        .arg(&data);
    database.process = Some(Process::start("redis-server", server, log)?);
    database.url = format!("redis://:{DATABASE_NAME}@127.0.0.1:{port}/2");
    until_it_answers(database, || {
        let mut ping = Command::new("redis-cli");
        ping.args(["-e", "-p", &port.to_string(), "ping"])
            .env("REDISCLI_AUTH", DATABASE_NAME);
        ping
    })?;
    database.coturn = [
        "--redis-userdb".to_owned(),
        format!("ip=127.0.0.1 dbname=2 password={DATABASE_NAME} port={port} connect_timeout=5"),
    ];
    Ok(())
}

/// A folder in this one that belongs to a user, if this process may give it away.
fn give_to(folder: &Path, user: &str) -> Result<PathBuf> {
    let data = folder.join("data");
    std::fs::create_dir_all(&data)?;
    if tools::is_root() {
        finish(Command::new("chown").arg(user).arg(&data))?;
    }
    Ok(data)
}

/// A command that runs as this user and dies with the thread that starts it. Without root, it runs as the user of this
/// process.
fn as_user(user: &str, program: PathBuf) -> Command {
    let mut command = Command::new("setpriv");
    if tools::is_root() {
        command.args(["--reuid", user, "--clear-groups"]);
    }
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

/// PostgreSQL's programs are in a folder of each version.
fn program(package: &str, name: &str) -> Result<PathBuf> {
    let versions = std::fs::read_dir(Path::new("/usr/lib").join(package))
        .with_context(|| format!("the package {package} is missing"))?;
    let programs = versions.filter_map(|version| Some(version.ok()?.path().join("bin").join(name)));
    let found = programs.filter(|program| program.is_file()).max();
    found.with_context(|| format!("{name} of {package} is missing"))
}

/// Runs a command to its end.
pub(super) fn finish(command: &mut Command) -> Result<String> {
    let output = command
        .output()
        .with_context(|| format!("cannot run {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let said = text(&output.stdout) + &text(&output.stderr);
    ensure!(
        output.status.success(),
        "{command:?} failed: {}: {said}",
        output.status
    );
    Ok(said)
}

/// Runs a command again and again until it succeeds.
fn until_it_answers(database: &mut Database, command: impl Fn() -> Command) -> Result<()> {
    let deadline = Instant::now() + START_TIMEOUT;
    loop {
        let Err(error) = finish(&mut command()) else {
            return Ok(());
        };
        if let Some(process) = &mut database.process {
            process.assert_running()?;
        }
        if Instant::now() >= deadline {
            bail!("it does not answer: {error:#}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
