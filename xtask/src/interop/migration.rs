//! The steps of docs/from-coturn.md, with coturn from Debian. Clients send during all steps, and must not lose a
//! message.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use nix::sys::signal::Signal;

use super::{coturn, free_ports};
use crate::process::{self, Ended, Process};
use crate::tally::Tally;

const HOST: Ipv4Addr = Ipv4Addr::LOCALHOST;
const REALM: &str = "hairpin.example";
/// The schema of coturn's SQLite database, as Debian installs it.
const COTURN_SCHEMA: &str = "/usr/share/coturn/schema.sql";
/// The number of messages of each client, and the time between two. A client sends for 16 seconds, longer than the
/// steps that run at the same time.
const MESSAGE_COUNT: &str = "320";
const INTERVAL_MS: &str = "50";
const RUN_TIMEOUT: Duration = Duration::from_secs(60);

/// The paths and ports of the two servers and of the peer.
struct MigrationTest<'a> {
    /// The program hairpin.
    hairpin: &'a Path,
    /// The directory of the logs, the configurations and the database.
    logs: PathBuf,
    /// The path of the database that both servers read.
    store: String,
    /// The listening ports of coturn and of hairpin. The argument `server` of the methods is an index of this array.
    ports: [u16; 2],
    peer_port: u16,
}

/// Runs the steps of docs/from-coturn.md.
pub(crate) fn run(hairpin: &Path, logs: &Path) -> Result<Tally> {
    let mut tally = Tally::default();
    tally.record("migration from coturn, and back", &migrate(hairpin, logs));
    Ok(tally)
}

fn migrate(hairpin: &Path, logs: &Path) -> Result<String> {
    let test = MigrationTest::new(hairpin, logs)?;
    let _peer = test.peer()?;
    let mut coturn = test.coturn("coturn")?;
    let mut old = test.client("old", 0, "alice:wonderland")?;

    // Both servers run with one database.
    let config = test.import()?;
    let server = test.serve(&config)?;
    test.works(1, "alice:wonderland")?;
    test.adds("bob", "builder")?;
    test.works(0, "bob:builder")?;

    // New clients use hairpin. Coturn stops after its last client has ended.
    let mut new = test.client("new", 1, "bob:builder")?;
    check_no_loss("a client of coturn during the move", &mut old)?;
    coturn.stop(RUN_TIMEOUT)?;

    // The way back: coturn starts, and hairpin redirects new clients to it.
    let _coturn = test.coturn("coturn-again")?;
    let text = fs::read_to_string(&config)?;
    let back = format!(
        "{text}\n[alternate]\nservers = [{{ ipv4 = \"{HOST}:{}\" }}]\nwhen = [\"always\"]\n",
        test.ports[0]
    );
    fs::write(&config, back)?;
    server.signal(Signal::SIGHUP)?;
    test.sends_away()?;
    let mut again = test.client("again", 0, "alice:wonderland")?;
    check_no_loss("a client of hairpin during the way back", &mut new)?;
    check_no_loss("a client that went back", &mut again)?;
    Ok("3 clients, no message lost".to_owned())
}

/// Waits for the end of a client. Checks that it has received every message that it has sent.
fn check_no_loss(name: &str, client: &mut Process) -> Result<()> {
    ensure!(
        client.wait(RUN_TIMEOUT)? != Ended::Killed,
        "{name} did not end within 60 s: {}",
        client.tail()
    );
    let counts = coturn::counts(&client.output());
    let (sent, received) = counts.with_context(|| format!("{name}: {}", client.tail()))?;
    ensure!(
        sent > 0 && sent == received,
        "{name} sent {sent} messages, and received {received}"
    );
    Ok(())
}

impl<'a> MigrationTest<'a> {
    /// Makes coturn's database with the user alice, and coturn's configuration file. Chooses free ports.
    fn new(hairpin: &'a Path, logs: &Path) -> Result<Self> {
        let logs = logs.join("migration");
        let _ = fs::remove_dir_all(&logs);
        fs::create_dir_all(&logs)?;
        let test = MigrationTest {
            hairpin,
            store: logs.join("turndb").display().to_string(),
            logs,
            ports: [free_ports(2)?, free_ports(2)?],
            peer_port: free_ports(2)?,
        };
        succeeds(
            Command::new("sqlite3")
                .arg(&test.store)
                .arg(format!(".read {COTURN_SCHEMA}")),
        )?;
        succeeds(Command::new("turnadmin").args([
            "-a",
            "-b",
            &test.store,
            "-u",
            "alice",
            "-r",
            REALM,
            "-p",
            "wonderland",
        ]))?;
        fs::write(test.conf(), test.text())?;
        Ok(test)
    }

    /// The path of coturn's configuration file.
    fn conf(&self) -> PathBuf {
        self.logs.join("turnserver.conf")
    }

    /// The content of coturn's configuration file.
    fn text(&self) -> String {
        format!(
            "listening-ip={HOST}\nlistening-port={}\nlt-cred-mech\nrealm={REALM}\nuserdb={}\nallow-loopback-peers\nmin-port=40000\nmax-port=40999\nno-cli\nno-tls\nno-dtls\nfingerprint\nlog-file=stdout\npidfile={}\n",
            self.ports[0],
            self.store,
            self.logs.join("turnserver.pid").display(),
        )
    }

    /// Starts the peer, which sends back what it receives.
    fn peer(&self) -> Result<Process> {
        let mut command = process::command("turnutils_peer");
        command.args(["-L", &HOST.to_string(), "-p", &self.peer_port.to_string()]);
        Process::start("turnutils_peer", command, self.logs.join("peer.log"))
    }

    /// Starts coturn, and waits until it responds. `name` is the name of its log.
    fn coturn(&self, name: &str) -> Result<Process> {
        let mut command = process::command("turnserver");
        command.arg("-c").arg(self.conf());
        let started = Process::start("turnserver", command, self.logs.join(format!("{name}.log")))?;
        self.answers(0)?;
        Ok(started)
    }

    /// Starts a client of a server. It ends when it has sent all messages. `account` is NAME:PASSWORD.
    fn client(&self, name: &str, server: usize, account: &str) -> Result<Process> {
        let (user, password) = account.split_once(':').context("NAME:PASSWORD")?;
        let mut command = process::command("turnutils_uclient");
        command.args(["-e", &HOST.to_string(), "-r", &self.peer_port.to_string()]);
        command.args([
            "-p",
            &self.ports[server].to_string(),
            "-u",
            user,
            "-w",
            password,
        ]);
        command.args([
            "-X",
            "-c",
            "-n",
            MESSAGE_COUNT,
            "-z",
            INTERVAL_MS,
            &HOST.to_string(),
        ]);
        Process::start(
            "turnutils_uclient",
            command,
            self.logs.join(format!("{name}.log")),
        )
    }

    /// Makes hairpin's configuration from coturn's with `hairpin import`, as the page says. Then changes the ports,
    /// because both servers run on one host. Returns the path of the configuration.
    fn import(&self) -> Result<PathBuf> {
        let config = self.logs.join("hairpin.toml");
        succeeds(
            Command::new(self.hairpin)
                .arg("import")
                .arg(self.conf())
                .arg("--output")
                .arg(&config),
        )?;
        let text = fs::read_to_string(&config)?;
        let text = text
            .replace(
                &format!(":{}", self.ports[0]),
                &format!(":{}", self.ports[1]),
            )
            .replace("40000-40999", "41000-41999");
        fs::write(&config, text)?;
        succeeds(Command::new(self.hairpin).arg("check").arg(&config))?;
        Ok(config)
    }

    /// Starts hairpin, and waits until it responds.
    fn serve(&self, config: &Path) -> Result<Process> {
        let mut command = process::command(self.hairpin);
        command
            .args(["serve", "--offload", "off", "--workers", "2", "--config"])
            .arg(config);
        command.args([
            "--set",
            "server.control_socket=off",
            "--set",
            "admin.listen=off",
        ]);
        let started = Process::start("hairpin", command, self.logs.join("hairpin.log"))?;
        self.answers(1)?;
        Ok(started)
    }

    /// Runs `hairpin probe` against a server. The first of `arguments` is the kind of probe.
    fn probe(&self, server: usize, arguments: &[&str]) -> Result<Output> {
        let target = format!("{HOST}:{}", self.ports[server]);
        let mut command = Command::new(self.hairpin);
        command
            .args(["probe", arguments[0], &target])
            .args(&arguments[1..]);
        command
            .output()
            .with_context(|| format!("cannot start {}", self.hairpin.display()))
    }

    /// Waits for a response to a Binding request.
    fn answers(&self, server: usize) -> Result<()> {
        let started = Instant::now();
        while !self.probe(server, &["stun"])?.status.success() {
            ensure!(
                started.elapsed() < RUN_TIMEOUT,
                "port {} did not respond to Binding requests within 60 s",
                self.ports[server]
            );
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(())
    }

    /// Checks that a user can make an allocation and relay data.
    fn works(&self, server: usize, account: &str) -> Result<()> {
        let output = self.probe(server, &["turn", "--user", account])?;
        ensure!(output.status.success(), "{account}: {}", said(&output));
        Ok(())
    }

    /// Adds a user with hairpin to the database that both servers read.
    fn adds(&self, name: &str, password: &str) -> Result<()> {
        let file = self.logs.join("password");
        fs::write(&file, password)?;
        let url = format!("sqlite:{}", self.store);
        succeeds(
            Command::new(self.hairpin)
                .args([
                    "user",
                    "add",
                    name,
                    "--store",
                    &url,
                    "--realm",
                    REALM,
                    "--password-file",
                ])
                .arg(file),
        )
    }

    /// Waits until hairpin responds to a new client with 300 and coturn's address (RFC 8489 §10).
    fn sends_away(&self) -> Result<()> {
        let started = Instant::now();
        let wanted = format!("{HOST}:{}", self.ports[0]);
        loop {
            let output = self.probe(1, &["turn", "--user", "alice:wonderland"])?;
            if !output.status.success() && said(&output).contains(&wanted) {
                return Ok(());
            }
            ensure!(
                started.elapsed() < RUN_TIMEOUT,
                "hairpin sent no ALTERNATE-SERVER with coturn's address within 60 s: {}",
                said(&output)
            );
            std::thread::sleep(Duration::from_millis(200));
        }
    }
}

/// The standard output of a process, and then its standard error.
fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr]
        .map(|text| String::from_utf8_lossy(text).into_owned())
        .concat()
}

/// Runs a command. Fails if its exit status is not 0.
fn succeeds(command: &mut Command) -> Result<()> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command
        .output()
        .with_context(|| format!("cannot start {name}"))?;
    ensure!(output.status.success(), "{name}: {}", said(&output));
    Ok(())
}
