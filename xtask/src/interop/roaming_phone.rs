//! A phone (PJSIP) that changes its network in mid-call: its address goes away, and it has another one. It registers
//! again, and sends a re-INVITE by its new address. The other side is a baresip, which then holds the call and hangs
//! up.
//!
//! ```text
//!  namespace:  first 198.18.201.2 ──┐
//!              later 198.18.202.2 ──┤  the host: server and baresip at 198.18.202.1
//! ```

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;

use super::baresip::{self, PhoneSetup};
use super::console::Console;
use super::domain::{Domain, PASSWORD};
use super::packages;
use super::sip_media::wave;
use crate::process;
use crate::tally::Tally;
use crate::workspace;

/// The interface names of each link: at the host, and in the namespace.
const LINK_NAMES: [[&str; 2]; 2] = [["hp-roam0", "first"], ["hp-roam1", "later"]];
/// The networks of the links without the last number: 1 is the host, 2 the phone.
const NETWORKS: [&str; 2] = ["198.18.201", "198.18.202"];
const NAMESPACE: &str = "hairpin-roaming";
/// The address of the server. Both links lead to it.
const SERVER: [u8; 4] = [198, 18, 202, 1];
const OTHER_URI: &str = "sip:other@example.org";
/// How long a change of the bindings may take.
const BINDINGS_TIMEOUT: Duration = Duration::from_secs(10);

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let tools = workspace::target_dir(root).join("tools");
    let pjsua2 = &packages::python("pjsua2", &root.join("interop"), &tools)?;
    let mut tally = Tally::default();
    let network = match RoamingNetwork::new() {
        Ok(network) => network,
        Err(error) => {
            tally.record("the network of the roaming phone", &Err(error));
            return Ok(tally);
        }
    };
    // Each case has its own user, because its phone does not unregister at the end.
    let users = ["other", "roamer0", "roamer1", "roamer2", "roamer3"].map(str::to_owned);
    let socket = logs.join("roaming.sock");
    let first = format!("[server]\ncontrol_socket = {socket:?}\n");
    // baresip 1.0 knows MD5 alone, and refuses to read further than the first challenge.
    let more = "digest_algorithms = [\"MD5\"]\n";
    let mut domain = Domain::start_at(SERVER, binary, logs, "roaming", &users, [&first, more])?;
    let kinds = [("udp", true), ("udp", false), ("tcp", true), ("tcp", false)];
    for (user, (transport, is_caller)) in users[1..].iter().zip(kinds) {
        let case = RoamingCall {
            network: &network,
            binary,
            root,
            logs,
            pjsua2,
            socket: &socket,
            port: domain.port,
            user,
            transport,
            is_caller,
        };
        let role = if is_caller { "calls" } else { "is called" };
        let name = format!("a phone {role} over {transport} and changes its network");
        let outcome = network.use_link(0).and_then(|()| case.run());
        tally.record(&name, &outcome);
    }
    let name = "the server of the roaming phone stops when asked";
    tally.record(name, &domain.finish());
    Ok(tally)
}

/// A namespace with two links to the host. It is removed at the end.
struct RoamingNetwork;

impl RoamingNetwork {
    fn new() -> Result<RoamingNetwork> {
        // An earlier run may have left a namespace.
        drop(RoamingNetwork);
        ip(&["netns", "add", NAMESPACE]).context("network namespaces require root")?;
        let network = RoamingNetwork;
        inside(&["link", "set", "lo", "up"])?;
        for ([outer, inner], prefix) in LINK_NAMES.into_iter().zip(NETWORKS) {
            ip(&[
                "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", NAMESPACE,
            ])?;
            ip(&["address", "add", &format!("{prefix}.1/24"), "dev", outer])?;
            ip(&["link", "set", outer, "up"])?;
            inside(&["link", "set", inner, "up"])?;
        }
        Ok(network)
    }

    /// Gives the phone an address at this link, and at no other one.
    fn use_link(&self, link: usize) -> Result<()> {
        for [_, inner] in LINK_NAMES {
            inside(&["address", "flush", "dev", inner])?;
        }
        let (prefix, [_, inner]) = (NETWORKS[link], LINK_NAMES[link]);
        inside(&["address", "add", &format!("{prefix}.2/24"), "dev", inner])?;
        inside(&["route", "add", "default", "via", &format!("{prefix}.1")])
    }
}

impl Drop for RoamingNetwork {
    fn drop(&mut self) {
        // Connections of a phone that was killed keep the namespace and its links for minutes.
        for [outer, _] in LINK_NAMES {
            let _ = ip(&["link", "delete", outer]);
        }
        let _ = ip(&["netns", "delete", NAMESPACE]);
    }
}

fn ip(arguments: &[&str]) -> Result<()> {
    let output = Command::new("ip").args(arguments).output()?;
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments:?}: {text}");
    Ok(())
}

fn inside(arguments: &[&str]) -> Result<()> {
    ip(&[&["-n", NAMESPACE], arguments].concat())
}

/// One call of a phone that changes its network.
struct RoamingCall<'a> {
    network: &'a RoamingNetwork,
    binary: &'a Path,
    root: &'a Path,
    logs: &'a Path,
    pjsua2: &'a Path,
    socket: &'a Path,
    port: u16,
    /// The user of the phone that changes its network.
    user: &'a str,
    transport: &'a str,
    /// The phone that changes its network makes the call.
    is_caller: bool,
}

impl RoamingCall<'_> {
    fn run(&self) -> Result<String> {
        let mut other = self.other()?;
        let mut roamer = self.roamer()?;
        let before = self.bindings(NETWORKS[0])?;
        match self.is_caller {
            true => {
                roamer.command(&format!("dial {OTHER_URI}"))?;
                other.wait("CALL_INCOMING")?;
                other.command("accept", "")?;
            }
            false => {
                other.command("dial", &self.uri())?;
                roamer.wait("incoming")?;
                roamer.command("answer")?;
            }
        }
        roamer.wait("established")?;
        other.wait("CALL_ESTABLISHED")?;
        hears(&mut roamer)?;
        self.network.use_link(1)?;
        roamer.forget();
        roamer.command("network")?;
        let code = roamer.wait("registered ")?;
        ensure!(code == "200", "its second REGISTER is answered {code}");
        // The answer to its re-INVITE.
        roamer.wait("active").context("its re-INVITE")?;
        hears(&mut roamer).context("after the change")?;
        let after = self.bindings(NETWORKS[1])?;
        // The route set of the other side still has the old address. Its requests in this dialog arrive all the same.
        other.command("hold", "")?;
        roamer
            .wait("held")
            .context("a re-INVITE of the other side")?;
        other.command("hangup", "")?;
        roamer.wait("ended").context("the BYE of the other side")?;
        other.wait("CALL_CLOSED")?;
        // A new call reaches it as well, and it ends that one itself.
        other.command("dial", &self.uri())?;
        roamer.wait("incoming").context("a new call")?;
        roamer.command("answer")?;
        roamer.wait("established")?;
        other.wait("CALL_ESTABLISHED")?;
        roamer.command("hangup")?;
        roamer.wait("ended")?;
        other.wait("CALL_CLOSED").context("its BYE")?;
        Ok(format!("{before}, then {after}"))
    }

    fn uri(&self) -> String {
        format!("sip:{}@example.org", self.user)
    }

    fn roamer(&self) -> Result<Console> {
        let mut command = process::command("ip");
        command
            .env("PYTHONPATH", self.pjsua2)
            .args(["netns", "exec", NAMESPACE, "python3"])
            .arg(self.root.join("interop/pjsua2/phone.py"))
            .args(["--user", self.user, "--password", PASSWORD])
            .args(["--transport", self.transport])
            .arg("--server")
            .arg(format!("{}.1:{}", NETWORKS[1], self.port))
            .arg("--log")
            .arg(self.logs.join(format!("{}-log.log", self.user)));
        let log = self.logs.join(format!("{}.log", self.user));
        let mut console = Console::start("PJSIP", command, log)?;
        let code = console.wait("registered ")?;
        ensure!(code == "200", "its REGISTER is answered {code}");
        Ok(console)
    }

    fn other(&self) -> Result<baresip::Phone> {
        let (transport, port) = (self.transport, self.port);
        let host = format!("{}.1", NETWORKS[1]);
        let account = format!(
            "<sip:other@example.org;transport={transport}>;auth_pass={PASSWORD};regint=3600;answermode=manual;\
             outbound=\"sip:{host}:{port};transport={transport}\"\n"
        );
        // Its module `aubridge` sends nothing in some calls.
        let voice = self.logs.join("roaming.wav");
        std::fs::write(&voice, wave())?;
        let setup = PhoneSetup {
            account: &account,
            listen: &format!("{host}:0"),
            source: &format!("aufile,{}", voice.display()),
            modules: &["aufile"],
            more: "",
        };
        let name = format!("other-{}", self.user);
        let mut phone = baresip::Phone::start_like(self.logs, &name, &setup)?;
        phone.wait_registered()?;
        Ok(phone)
    }

    /// Waits until the phone has one binding, in this network.
    fn bindings(&self, network: &str) -> Result<String> {
        let end = Instant::now() + BINDINGS_TIMEOUT;
        loop {
            let mut command = process::command(self.binary);
            command.args(["sip", "bindings", "--json", "--aor"]);
            command.arg(format!("{}@example.org", self.user));
            let output = command.arg("--socket").arg(self.socket).output()?;
            let text = String::from_utf8(output.stdout)?;
            let lines = text.lines().filter(|line| !line.trim().is_empty());
            let bindings: Vec<Value> = lines.map(serde_json::from_str).collect::<Result<_, _>>()?;
            let text = serde_json::to_string(&bindings)?;
            let is_there = |binding: &Value| binding.to_string().contains(network);
            if bindings.len() == 1 && bindings.iter().all(is_there) {
                return Ok(format!("one binding in {network}.0"));
            }
            ensure!(Instant::now() < end, "bindings: {text}");
            sleep(Duration::from_millis(100));
        }
    }
}

fn hears(phone: &mut Console) -> Result<()> {
    phone.command("listen")?;
    phone.wait("heard").context("no audio")?;
    Ok(())
}
