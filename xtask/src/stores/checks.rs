//! The checks that run with each database.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use nix::sys::signal::Signal;

use super::databases::{Database, DatabaseKind, finish, sql_of_the_page};
use crate::interop::free_ports;
use crate::process::{self, Process};
use crate::tally::Tally;

const REALM: &str = "hairpin.example";
const OTHER_REALM: &str = "origin.example";
const ORIGIN: &str = "https://origin.example";
const SECRET: &str = "a-secret-of-the-store-tests";
/// How long a change may take to reach clients. The configuration sets the time of the cache to a second.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(15);

/// How long a change of the small tables may take in a database without notifications. The server reads them every 30
/// s.
const TABLES_TIMEOUT: Duration = Duration::from_secs(60);

/// The server, and its database.
struct StoreTest<'a> {
    place: usize,
    binary: &'a Path,
    logs: &'a Path,
    database: Database,
    config: String,
    server: Process,
    port: u16,
    admin: u16,
}

/// Runs all checks. If the server does not start, there is one failure.
pub(super) fn run(place: usize, paths: (&Path, &Path), database: Database, tally: &mut Tally) {
    let name = database.kind.name();
    let mut test = match prepare(place, paths, database) {
        Ok(test) => test,
        Err(error) => return tally.record(&format!("{name}: hairpin starts"), &Err(error)),
    };
    type Check = fn(&mut StoreTest<'_>) -> Result<String>;
    let checks: [(&str, Check); 11] = [
        ("users of turnadmin", users_of_turnadmin),
        ("secrets of turnadmin", secrets_of_turnadmin),
        ("realms by origin of turnadmin", realms_of_turnadmin),
        ("peers that the table denies", denied_peers),
        ("aliases and routes of SIP", sip_tables),
        ("a user is added and deleted while the server runs", changes),
        ("hairpin user, and coturn serves them", verbs),
        ("metrics and /readyz", health),
        ("a reload removes the database and adds it", reload),
        ("SIP bindings survive the end of the server", bindings),
        ("the database stops and comes back", outage),
    ];
    for (what, check) in checks {
        tally.record(&format!("{name}: {what}"), &check(&mut test));
    }
}

/// Fills the database with turnadmin, then starts the server.
fn prepare<'a>(
    place: usize,
    (binary, logs): (&'a Path, &'a Path),
    database: Database,
) -> Result<StoreTest<'a>> {
    for arguments in [
        vec!["-a", "-u", "alice", "-r", REALM, "-p", "wonderland"],
        vec!["-a", "-u", "carol", "-r", OTHER_REALM, "-p", "christmas"],
        vec!["-s", SECRET, "-r", REALM],
        vec!["-O", "-o", ORIGIN, "-r", OTHER_REALM],
        vec!["-g", "-r", OTHER_REALM, "--user-quota", "3"],
    ] {
        turnadmin(&database, &arguments)?;
    }
    let (port, admin) = (free_ports(2)?, free_ports(1)?);
    let config = logs.join(format!("{}.toml", database.kind.name()));
    let text = format!(
        "[auth]\nrealm = \"{REALM}\"\n\n[[auth.stores]]\nurl = \"{}\"\nttl = \"1s\"\nttl_unknown = \"1s\"\ntimeout = \"3s\"\n\n[sip]\nlisten = [\"127.0.0.1:0\"]\n\n[[sip.domain]]\nname = \"example.org\"\n",
        database.url
    );
    std::fs::write(&config, text).with_context(|| config.display().to_string())?;
    let config = config.display().to_string();
    let mut command = process::command(binary);
    command.args([
        "serve",
        "--dev",
        "--config",
        &config,
        &format!("--listen=127.0.0.1:{port}"),
        "--relay-address=127.0.0.1",
        // Above the ports that the kernel gives to listeners and clients.
        &format!("--port-range={}", ports(place, 0)),
        &format!("--set=admin.listen=127.0.0.1:{admin}"),
        "--set=server.control_socket=off",
        "--offload=off",
        "--workers=2",
    ]);
    let log = logs.join(format!("{}-server.log", database.kind.name()));
    let mut server = Process::start("hairpin", command, log)?;
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    while !server.output().contains("Stop with Ctrl-C") {
        server.assert_running()?;
        ensure!(
            Instant::now() < deadline,
            "it prints no banner: {}",
            server.tail()
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(StoreTest {
        place,
        binary,
        logs,
        database,
        config,
        server,
        port,
        admin,
    })
}

/// The relay ports of a server of the `place`th database: above the ports that the kernel gives to listeners and
/// clients.
fn range(place: usize, server: usize) -> std::ops::RangeInclusive<usize> {
    let first = 61_000 + (place * 2 + server) * 500;
    first..=first + 499
}

fn ports(place: usize, server: usize) -> String {
    let range = range(place, server);
    format!("{}-{}", range.start(), range.end())
}

fn turnadmin(database: &Database, arguments: &[&str]) -> Result<String> {
    let said = finish(
        Command::new("turnadmin")
            .args(&database.coturn)
            .args(arguments)
            .args(["--log-file", "stdout"]),
    );
    // Other versions do not know where to log.
    said.or_else(|_| {
        finish(
            Command::new("turnadmin")
                .args(&database.coturn)
                .args(arguments),
        )
    })
}

impl StoreTest<'_> {
    /// A client: binds, allocates, sends data through the relay, releases.
    fn probe(&self, how: [&str; 2]) -> Result<String> {
        let target = format!("127.0.0.1:{}", self.port);
        let mut command = Command::new(self.binary);
        finish(
            command
                .args(["probe", "turn", &target, "--timeout", "8s"])
                .args(how),
        )
    }

    fn probe_tcp(&self, how: [&str; 2]) -> Result<String> {
        let target = format!("turn:127.0.0.1:{}?transport=tcp", self.port);
        let mut command = Command::new(self.binary);
        finish(
            command
                .args(["probe", "turn", &target, "--timeout", "8s"])
                .args(how),
        )
    }

    fn alice(&self) -> Result<String> {
        self.probe(["--user", "alice:wonderland"])
    }

    /// Tries until it works, or does not work, as wanted.
    fn wait_for_login(&self, user: &str, works: bool) -> Result<()> {
        let deadline = Instant::now() + CHANGE_TIMEOUT;
        loop {
            let outcome = self.probe(["--user", user]);
            if outcome.is_ok() == works {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!(
                    "{user} still {}: {outcome:?}",
                    if works { "fails" } else { "works" }
                );
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// coturn's client, with data through the relay and back.
    fn uclient(&self, port: u16, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new("timeout");
        command
            .args([
                "30",
                "turnutils_uclient",
                "-X",
                "-y",
                "-c",
                "-n",
                "5",
                "-l",
                "100",
            ])
            .args(["-p", &port.to_string()])
            .args(arguments)
            .arg("127.0.0.1");
        let said = finish(&mut command)?;
        ensure!(
            said.contains("Total lost packets 0 (0.000000%)"),
            "packets are lost: {said}"
        );
        Ok(said)
    }

    fn verb(&self, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(self.binary);
        finish(command.args(arguments).args(["--config", &self.config]))
    }

    fn get(&self, path: &str) -> Result<String> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.admin))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        Ok(text)
    }
}

fn users_of_turnadmin(test: &mut StoreTest<'_>) -> Result<String> {
    test.alice()?;
    test.uclient(test.port, &["-u", "alice", "-w", "wonderland"])?;
    for wrong in ["alice:wrong", "nobody:wonderland", "carol:christmas"] {
        let outcome = test.probe(["--user", wrong]);
        ensure!(outcome.is_err(), "{wrong} can allocate");
    }
    Ok("hairpin's client and uclient relay; wrong ones get nothing".to_owned())
}

fn secrets_of_turnadmin(test: &mut StoreTest<'_>) -> Result<String> {
    test.probe(["--secret", SECRET])?;
    ensure!(
        test.probe(["--secret", "another"]).is_err(),
        "any secret works"
    );
    Ok("time-limited credentials are accepted".to_owned())
}

fn realms_of_turnadmin(test: &mut StoreTest<'_>) -> Result<String> {
    test.uclient(test.port, &["-u", "carol", "-w", "christmas", "-o", ORIGIN])?;
    let outcome = test.uclient(
        test.port,
        &["-u", "alice", "-w", "wonderland", "-o", ORIGIN],
    );
    ensure!(
        outcome.is_err(),
        "a user of the default realm is one of the other"
    );
    Ok("the origin chooses the realm".to_owned())
}

/// The table is written by SQL, or by a command of Redis: turnadmin has no option for it.
fn denied_peers(test: &mut StoreTest<'_>) -> Result<String> {
    let insert =
        format!("INSERT INTO denied_peer_ip (realm, ip_range) VALUES ('{REALM}', '127.0.0.1')");
    let delete = "DELETE FROM denied_peer_ip";
    let key = format!("turn/realm/{REALM}/denied-peer-ip");
    let write = |sql: &str, redis: &[&str]| write(&test.database, sql, redis);
    if test.database.kind == DatabaseKind::Mariadb {
        // It tells nothing, and the tables are read every 30 s: a reload reads the configuration only.
        return Ok("MariaDB tells no change of the small tables: not waited for".to_owned());
    }
    write(&insert, &["sadd", &key, "127.0.0.1"])?;
    let denied = test.wait_for_login("alice:wonderland", false);
    write(delete, &["del", &key])?;
    denied.context("after the insertion")?;
    test.wait_for_login("alice:wonderland", true)
        .context("after the deletion")?;
    Ok("rows of denied_peer_ip apply while the server runs".to_owned())
}

/// Executes SQL, or a command of Redis.
fn write(database: &Database, sql: &str, redis: &[&str]) -> Result<String> {
    match database.kind {
        DatabaseKind::Redis => {
            let port = port_of(&database.url);
            let mut client = Command::new("redis-cli");
            client.args(["-e", "-n", "2", "-p", port]).args(redis);
            finish(client.env("REDISCLI_AUTH", "turn"))
        }
        DatabaseKind::Postgres => query(
            database.kind,
            &database.url,
            &format!("{sql}; NOTIFY hairpin"),
        ),
        kind => query(kind, &database.url, sql),
    }
}

/// The port in the URL of a database.
fn port_of(url: &str) -> &str {
    let port = url
        .rsplit(':')
        .next()
        .and_then(|rest| rest.split('/').next());
    port.unwrap_or_default()
}

/// Executes SQL in a database of this kind. Returns what the client prints.
pub(super) fn query(kind: DatabaseKind, url: &str, sql: &str) -> Result<String> {
    match kind {
        DatabaseKind::Sqlite => {
            finish(Command::new("sqlite3").args([&url["sqlite:".len()..], sql]))
        }
        DatabaseKind::Postgres => {
            finish(Command::new("psql").args([url, "-q", "-v", "ON_ERROR_STOP=1", "-c", sql]))
        }
        DatabaseKind::Mariadb => finish(Command::new("mariadb").args([
            "--no-defaults",
            "-h127.0.0.1",
            "-P",
            port_of(url),
            "-uturn",
            "-pturn",
            "turn",
            "-e",
            // Names between quotation marks.
            &sql.replace('"', "`"),
        ])),
        DatabaseKind::Redis => bail!("Redis has no SQL"),
    }
}

/// The tables of the page, filled by another program while the server runs. The server explains its decisions.
fn sip_tables(test: &mut StoreTest<'_>) -> Result<String> {
    let database = &test.database;
    write(
        database,
        sql_of_the_page("hairpin_sip_alias")?
            .trim()
            .trim_end_matches(';'),
        &[
            "hset",
            "sip/aliases",
            "info@example.org",
            "alice@example.org",
        ],
    )?;
    let own = "INSERT INTO hairpin_sip_route (name, prefixes, \"replace\", to_domain) VALUES ('desk', '+43', 'alice', 'example.org')";
    let desk = [
        "hset",
        "sip/route/desk",
        "prefixes",
        "+43",
        "replace",
        "alice",
        "to_domain",
        "example.org",
    ];
    write(database, own, &desk)?;
    let broken = "INSERT INTO hairpin_sip_route (name, trunks) VALUES ('broken', 'nowhere')";
    write(
        database,
        broken,
        &["hset", "sip/route/broken", "trunks", "nowhere"],
    )?;
    let explain = |to: &str| {
        let mut command = Command::new(test.binary);
        command.args([
            "sip",
            "route",
            "--api",
            &format!("http://127.0.0.1:{}", test.admin),
        ]);
        command.args(["--from", "sip:alice@example.org", "--to", to]);
        // The status says whether the call would be refused.
        let output = command.output().context("hairpin runs")?;
        Ok::<_, anyhow::Error>(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let begun = Instant::now();
    loop {
        let alias = explain("sip:info@example.org")?;
        let route = explain("sip:+4316@example.org")?;
        let is_there = alias.contains("info@example.org is an alias of alice@example.org")
            && route.contains("route `desk` (prefix `+43`) matches");
        if is_there {
            break;
        }
        ensure!(
            begun.elapsed() < TABLES_TIMEOUT,
            "not applied: {alias}{route}"
        );
        std::thread::sleep(Duration::from_millis(200));
    }
    let log = test.server.output();
    ensure!(
        log.contains("there is no trunk `nowhere`"),
        "no line about the broken row: {log}"
    );
    Ok(format!(
        "applied within {:.1} s",
        begun.elapsed().as_secs_f32()
    ))
}

fn bindings(test: &mut StoreTest<'_>) -> Result<String> {
    if test.database.kind == DatabaseKind::Redis {
        return Ok("skipped: sip.binding_database does not support Redis".to_owned());
    }
    let ports = ports(test.place, 1);
    super::bindings::survive_kill(test.binary, test.logs, &test.database, &ports)
}

fn changes(test: &mut StoreTest<'_>) -> Result<String> {
    ensure!(
        test.probe(["--user", "dave:first"]).is_err(),
        "he is there already"
    );
    let begun = Instant::now();
    turnadmin(
        &test.database,
        &["-a", "-u", "dave", "-r", REALM, "-p", "first"],
    )?;
    test.wait_for_login("dave:first", true)
        .context("after he was added")?;
    let added = begun.elapsed();
    turnadmin(
        &test.database,
        &["-a", "-u", "dave", "-r", REALM, "-p", "second"],
    )?;
    test.wait_for_login("dave:second", true)
        .context("after his password was changed")?;
    test.wait_for_login("dave:first", false)?;
    turnadmin(&test.database, &["-d", "-u", "dave", "-r", REALM])?;
    test.wait_for_login("dave:second", false)
        .context("after he was deleted")?;
    Ok(format!("added within {:.1} s", added.as_secs_f32()))
}

/// The opposite direction: `hairpin user` and `hairpin realm` write to the database, and coturn reads it.
fn verbs(test: &mut StoreTest<'_>) -> Result<String> {
    let password = test.verb(&["user", "add", "bob"])?;
    let audit = password
        .lines()
        .find(|line| line.starts_with("audit: user.add"));
    ensure!(
        audit.is_some_and(|line| line.contains("user=\"bob\"")),
        "no audit line: {password}"
    );
    let password = password.lines().next().unwrap_or_default().to_owned();
    test.wait_for_login(&format!("bob:{password}"), true)?;
    ensure!(
        test.verb(&["user", "add", "bob"]).is_err(),
        "he is added twice"
    );
    let listed = test.verb(&["user", "list"])?;
    ensure!(
        listed.contains(&format!("{REALM}\tbob")),
        "he is not listed: {listed}"
    );
    let listed = turnadmin(&test.database, &["-l", "-r", REALM])?;
    ensure!(
        listed.contains("bob"),
        "turnadmin does not list him: {listed}"
    );
    serve_by_coturn(test, &password)?;
    other_letter_case(test, &password)?;
    test.verb(&["user", "del", "bob"])?;
    test.wait_for_login(&format!("bob:{password}"), false)?;
    for name in ["x' OR '1'='1", "x'; DROP TABLE turnusers_lt; --"] {
        ensure!(
            test.verb(&["user", "del", name]).is_err(),
            "`{name}` names a user that exists"
        );
        test.verb(&["user", "add", name])?;
        let listed = test.verb(&["user", "list"])?;
        ensure!(listed.contains(name), "`{name}` is not listed: {listed}");
        test.verb(&["user", "del", name])?;
    }
    test.verb(&[
        "realm",
        "set",
        "shop.example",
        "--origin",
        "https://shop.example",
        "--user-quota",
        "5",
    ])?;
    let listed = test.verb(&["realm", "list"])?;
    ensure!(
        listed.contains("shop.example\torigin=https://shop.example"),
        "{listed}"
    );
    test.verb(&["realm", "del", "shop.example"])?;
    Ok("coturn's server relays for a user that hairpin has added".to_owned())
}

/// A name that differs in letter case only is another user. The table of MariaDB refuses it by its default collation.
/// The first one stays.
fn other_letter_case(test: &StoreTest<'_>, password: &str) -> Result<()> {
    let added = test.verb(&["user", "add", "Bob"]);
    match (test.database.kind, &added) {
        (DatabaseKind::Mariadb, Err(error)) => {
            let text = format!("{error:#}");
            ensure!(text.contains("differs in letter case only"), "{text}");
        }
        (DatabaseKind::Mariadb, Ok(_)) => bail!("the default collation has made a difference"),
        (_, added) => {
            ensure!(added.is_ok(), "{added:?}");
            test.wait_for_login(&format!("Bob:{password}"), false)?;
            test.verb(&["user", "del", "Bob"])?;
        }
    }
    test.wait_for_login(&format!("bob:{password}"), true)
        .context("the user whose name has small letters")
}

/// coturn's server relays for the same user.
fn serve_by_coturn(test: &StoreTest<'_>, password: &str) -> Result<()> {
    let (port, coturn) = (free_ports(1)?, range(test.place, 1));
    let mut command = process::command("turnserver");
    command
        .args([
            "-c",
            "/dev/null",
            "--no-cli",
            "--log-file=stdout",
            "--lt-cred-mech",
        ])
        .args(["--allow-loopback-peers", "-L127.0.0.1", "-E127.0.0.1"])
        .args(["--no-tls", "--no-dtls", &format!("--realm={REALM}")])
        .arg(format!("--listening-port={port}"))
        .arg(format!("--min-port={}", coturn.start()))
        .arg(format!("--max-port={}", coturn.end()))
        .arg(format!(
            "--pidfile={}/coturn-{port}.pid",
            test.logs.display()
        ))
        .args(&test.database.coturn);
    let log = test
        .logs
        .join(format!("{}-coturn.log", test.database.kind.name()));
    let mut coturn = Process::start("turnserver", command, log)?;
    let deadline = Instant::now() + CHANGE_TIMEOUT;
    let relayed = loop {
        coturn.assert_running()?;
        let outcome = test.uclient(port, &["-u", "bob", "-w", password]);
        if outcome.is_ok() || Instant::now() >= deadline {
            break outcome;
        }
        std::thread::sleep(Duration::from_millis(300));
    };
    relayed.map(drop).context("coturn does not serve him")
}

fn health(test: &mut StoreTest<'_>) -> Result<String> {
    let ready = test.get("/readyz")?;
    ensure!(ready.starts_with("HTTP/1.1 200"), "not ready: {ready}");
    let metrics = test.get("/metrics")?;
    let up = metrics
        .lines()
        .find(|line| line.starts_with("hairpin_store_up{"));
    ensure!(
        up.is_some_and(|line| line.ends_with(" 1")),
        "not up: {up:?}"
    );
    let known = metrics
        .lines()
        .find(|line| line.starts_with("hairpin_store_lookups_total") && line.contains("\"known\""));
    Ok(known.unwrap_or_default().to_owned())
}

/// A reload closes the database, the next one opens it again.
fn reload(test: &mut StoreTest<'_>) -> Result<String> {
    let with = std::fs::read_to_string(&test.config)?;
    test.alice()?;
    let without = format!("[auth]\nrealm = \"{REALM}\"\n");
    std::fs::write(&test.config, without)?;
    test.server.signal(Signal::SIGHUP)?;
    test.wait_for_login("alice:wonderland", false)
        .context("after the reload without the store")?;
    let metrics = test.get("/metrics")?;
    ensure!(
        !metrics.contains("hairpin_store_up{"),
        "the store still has metrics"
    );
    std::fs::write(&test.config, with)?;
    test.server.signal(Signal::SIGHUP)?;
    test.wait_for_login("alice:wonderland", true)
        .context("after the reload with the store")?;
    test.server.assert_running()?;
    health(test)
}

/// The database stops: who is in the cache goes on, others are told to retry, and all is well when it comes back.
fn outage(test: &mut StoreTest<'_>) -> Result<String> {
    let Some(process) = &test.database.process else {
        return Ok("a file does not stop".to_owned());
    };
    test.alice()?;
    let ids = with_children(process.id())?;
    let outcome =
        finish(Command::new("kill").arg("-STOP").args(&ids)).and_then(|_| while_stopped(test));
    // Also if only some of them were stopped.
    finish(Command::new("kill").arg("-CONT").args(&ids))?;
    let said = outcome?;
    let deadline = Instant::now() + Duration::from_secs(40);
    while !test.get("/readyz")?.starts_with("HTTP/1.1 200") {
        ensure!(Instant::now() < deadline, "it is not ready again");
        std::thread::sleep(Duration::from_millis(200));
    }
    test.wait_for_login("alice:wonderland", true)?;
    test.server.assert_running()?;
    Ok(said)
}

/// PostgreSQL has a process for each connection.
fn with_children(id: u32) -> Result<Vec<String>> {
    let children = std::fs::read_to_string(format!("/proc/{id}/task/{id}/children"))?;
    let children = children.split_whitespace().map(str::to_owned);
    Ok([id.to_string()].into_iter().chain(children).collect())
}

fn while_stopped(test: &StoreTest<'_>) -> Result<String> {
    // Until the server has noticed; each look-up waits for its timeout.
    let deadline = Instant::now() + Duration::from_secs(60);
    while test.get("/readyz")?.starts_with("HTTP/1.1 200") {
        ensure!(Instant::now() < deadline, "nobody has noticed");
        let _ = test.probe_tcp(["--user", "somebody:else"]);
    }
    let ready = test.get("/readyz")?;
    ensure!(ready.contains("does not answer"), "{ready}");
    let metrics = test.get("/metrics")?;
    let up = metrics
        .lines()
        .find(|line| line.starts_with("hairpin_store_up{"));
    ensure!(
        up.is_some_and(|line| line.ends_with(" 0")),
        "still up: {up:?}"
    );
    test.alice().context("a user in the cache")?;
    // Over UDP, a client by the RFC ignores an error without integrity (RFC 8489 §9.2.5), and tries again.
    let Err(error) = test.probe_tcp(["--user", "somebody:else"]) else {
        bail!("an unknown user can allocate");
    };
    let text = format!("{error:#}");
    ensure!(text.contains("500"), "not 500: {text}");
    Ok("users in the cache go on, others get 500, /readyz says so".to_owned())
}
