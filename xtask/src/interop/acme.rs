//! Pebble, the ACME server that Let's Encrypt tests with: orders, renewals, refusals, both challenges.

use std::fs;
use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::certificate::Certificate;
use super::server::free_ports;
use crate::process::{self, Process};
use crate::tally::Tally;
use crate::workspace::output_of;

/// The domain, which Pebble's DNS server resolves to 127.0.0.1.
const DOMAIN: &str = "turn.example.org";
/// A domain that Pebble refuses.
const BLOCKED_DOMAIN: &str = "blocked.example.org";
/// The lifetime of a certificate of Pebble, in seconds. The server renews it within this time.
const CERTIFICATE_LIFETIME_S: u32 = 30;
const START_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an order takes on a busy machine.
const ORDER_TIMEOUT: Duration = Duration::from_secs(60);

/// The programs, and the ports of all listeners.
struct AcmeSetup {
    logs: PathBuf,
    binary: PathBuf,
    authority: PathBuf,
    /// The first of eight consecutive ports. In this order: API and management of Pebble, validations by HTTP and TLS,
    /// DNS and its management, and the server.
    port: u16,
    _pebble: [Process; 2],
}

pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let logs = logs.join("acme");
    fs::create_dir_all(&logs)?;
    let programs = build(&root.join("interop/pebble"), &logs)?;
    let test = AcmeSetup::start(binary, &programs, &logs)?;
    let mut tally = Tally::default();
    tally.record("acme http-01, renewal, restart", &test.orders_and_renews());
    tally.record("acme tls-alpn-01", &test.proves_by_tls());
    tally.record("acme refusal", &test.survives_a_refusal());
    Ok(tally)
}

/// Builds Pebble and its DNS server; `go.sum` pins every module.
fn build(source: &Path, logs: &Path) -> Result<PathBuf> {
    let programs = logs.join("bin");
    fs::create_dir_all(&programs)?;
    let status = Command::new("timeout")
        .args(["--signal=KILL", "300", "go", "build", "-mod=readonly", "-o"])
        .arg(&programs)
        .args(
            ["pebble", "pebble-challtestsrv"]
                .map(|name| format!("github.com/letsencrypt/pebble/v2/cmd/{name}")),
        )
        .current_dir(source)
        .status()
        .context("cannot run go")?;
    ensure!(
        status.success(),
        "`go build` failed in {}",
        source.display()
    );
    Ok(programs)
}

impl AcmeSetup {
    fn start(binary: &Path, programs: &Path, logs: &Path) -> Result<AcmeSetup> {
        let port = free_ports(8)?;
        let at = |offset: u16| format!("127.0.0.1:{}", port + offset);
        let certificate = Certificate::make(&logs.join("pebble-certificate"))?;
        let config = serde_json::json!({ "pebble": {
            "listenAddress": at(0),
            "managementListenAddress": at(1),
            "certificate": certificate.chain,
            "privateKey": certificate.key,
            "httpPort": port + 2,
            "tlsPort": port + 3,
            "ocspResponderURL": "",
            "externalAccountBindingRequired": false,
            "domainBlocklist": [BLOCKED_DOMAIN],
            "retryAfter": { "authz": 1, "order": 1 },
            "profiles": { "default": { "description": "short", "validityPeriod": CERTIFICATE_LIFETIME_S } },
        }});
        let file = logs.join("pebble.json");
        fs::write(&file, config.to_string())?;
        let mut dns = process::command(programs.join("pebble-challtestsrv"));
        dns.args(["-defaultIPv4", "127.0.0.1", "-defaultIPv6", ""]);
        dns.args(["-dnsserver", &at(4), "-management", &at(5)]);
        dns.args(["-http01", "", "-https01", "", "-tlsalpn01", "", "-doh", ""]);
        let dns = Process::start("Pebble's DNS server", dns, logs.join("dns.log"))?;
        let mut pebble = process::command(programs.join("pebble"));
        pebble.env("PEBBLE_VA_NOSLEEP", "1");
        pebble
            .arg("-config")
            .arg(&file)
            .args(["-dnsserver", &at(4)]);
        let mut pebble = Process::start("Pebble", pebble, logs.join("pebble.log"))?;
        let deadline = Instant::now() + START_TIMEOUT;
        for offset in [0, 1] {
            while TcpStream::connect((Ipv4Addr::LOCALHOST, port + offset)).is_err() {
                pebble.assert_running()?;
                ensure!(
                    Instant::now() < deadline,
                    "Pebble is deaf: {}",
                    pebble.tail()
                );
                sleep(Duration::from_millis(50));
            }
        }
        Ok(AcmeSetup {
            logs: logs.to_owned(),
            binary: binary.to_owned(),
            authority: certificate.authority,
            port,
            _pebble: [dns, pebble],
        })
    }

    /// Starts the server with its state in this folder.
    fn serve(&self, state: &str, domain: &str, challenge: &str) -> Result<Process> {
        let [api, http, tls, udp] = [0, 2, 3, 6].map(|offset| self.port + offset);
        let state = self.logs.join(state);
        let authority = self.authority.display();
        let text = format!(
            "[listen]\nudp = [\"127.0.0.1:{udp}\"]\ntls = [\"127.0.0.1:{tls}\"]\n\
             [acme]\ndomains = [\"{domain}\"]\nterms_agreed = true\ndirectory = \"https://localhost:{api}/dir\"\n\
             challenge = \"{challenge}\"\nlisten = [\"127.0.0.1:{http}\"]\nstate = \"{}\"\nca = [\"{authority}\"]\n\
             [admin]\nlisten = \"off\"\n",
            state.display()
        );
        let file = self.logs.join(format!("{challenge}-{domain}.toml"));
        fs::write(&file, text)?;
        let mut command = process::command(&self.binary);
        command.args(["serve", "--config"]).arg(&file);
        Process::start("the server", command, file.with_extension("log"))
    }

    /// Checks that a client that trusts only Pebble gets service.
    fn probe(&self) -> Result<()> {
        let root = self.logs.join("root.pem");
        fs::write(&root, self.root()?)?;
        let mut probe = process::command(&self.binary);
        probe.args([
            "probe",
            "stun",
            &format!("stuns:127.0.0.1:{}", self.port + 3),
        ]);
        probe.args(["--server-name", DOMAIN, "--ca"]).arg(&root);
        output_of(&mut probe)?;
        Ok(())
    }

    /// The root certificate of Pebble. Each start of Pebble makes a new one.
    fn root(&self) -> Result<String> {
        let mut client = Command::new("openssl")
            .args(["s_client", "-quiet", "-connect"])
            .arg(format!("127.0.0.1:{}", self.port + 1))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run openssl")?;
        let mut input = client.stdin.take().context("openssl reads")?;
        input.write_all(b"GET /roots/0 HTTP/1.0\r\n\r\n")?;
        let output = client.wait_with_output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        match text.split_once("\r\n\r\n") {
            Some((_, pem)) if pem.contains("BEGIN CERTIFICATE") => Ok(pem.to_owned()),
            _ => bail!("Pebble gives no root certificate: {text}"),
        }
    }

    fn orders_and_renews(&self) -> Result<String> {
        let _ = fs::remove_dir_all(self.logs.join("state"));
        let mut server = self.serve("state", DOMAIN, "http-01")?;
        server.wait_for(ORDER_TIMEOUT, |log| replaced(log, 1))?;
        self.probe()?;
        let lifetime = Duration::from_secs(CERTIFICATE_LIFETIME_S.into());
        server.wait_for(lifetime + ORDER_TIMEOUT, |log| replaced(log, 2))?;
        let account = fs::read(self.logs.join("state/account.json"))?;
        server.stop(START_TIMEOUT)?;
        drop(server);
        let mut server = self.serve("state", DOMAIN, "http-01")?;
        server.wait_for(START_TIMEOUT, |log| log.contains("listening").then_some(()))?;
        self.probe().context("after a restart")?;
        ensure!(
            account == fs::read(self.logs.join("state/account.json"))?,
            "the restart made another account"
        );
        Ok("one account, two certificates".to_owned())
    }

    fn proves_by_tls(&self) -> Result<String> {
        let _ = fs::remove_dir_all(self.logs.join("state-tls"));
        let mut server = self.serve("state-tls", DOMAIN, "tls-alpn-01")?;
        server.wait_for(ORDER_TIMEOUT, |log| replaced(log, 1))?;
        self.probe()?;
        Ok("on the TLS listener itself".to_owned())
    }

    fn survives_a_refusal(&self) -> Result<String> {
        let _ = fs::remove_dir_all(self.logs.join("state-refused"));
        let mut server = self.serve("state-refused", BLOCKED_DOMAIN, "http-01")?;
        let refused = |log: &str| {
            let mut lines = log.lines();
            let line = lines.find(|line| line.contains("no certificate from the ACME server"))?;
            line.contains("rejectedIdentifier").then_some(())
        };
        server.wait_for(ORDER_TIMEOUT, refused)?;
        let mut probe = process::command(&self.binary);
        output_of(probe.args(["probe", "stun", &format!("127.0.0.1:{}", self.port + 6)]))?;
        Ok("the reason is logged, clients over UDP are served".to_owned())
    }
}

/// Whether the log has `count` new certificates.
fn replaced(log: &str, count: usize) -> Option<()> {
    (log.matches("certificate replaced").count() >= count).then_some(())
}
