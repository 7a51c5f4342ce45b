//! Kamailio with users of its own, of which hairpin is the neighbour: each is a trunk of the other. A phone of Kamailio
//! (baresip) and a phone of hairpin (PJSIP) call each other. Both proxies authenticate their callers and record their
//! routes; either side sends re-INVITEs and BYE.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};

use super::baresip::{self, PhoneSetup};
use super::console::Console;
use super::domain::{Domain, PASSWORD};
use super::packages;
use super::sip::free_port;
use super::sip_trunk::{TRUNK_IP, run_kamailio};
use crate::process::{self, Process};
use crate::tally::Tally;
use crate::workspace;

/// The user of hairpin, and the user of Kamailio.
const PAT: &str = "pat";
const PAT_URI: &str = "sip:pat@example.org";
const KIM_URI: &str = "sip:kim@example.net";

/// The transports between the proxies. The phone of hairpin has the same transport, the phone of Kamailio has UDP.
const TRANSPORTS: [&str; 2] = ["udp", "tcp"];

type Step = fn(&mut TwoProxies) -> Result<String>;

const STEPS: [(&str, Step); 8] = [
    ("Kamailio's phone calls, and hangs up", |proxies| {
        proxies.kim_calls().and_then(|()| proxies.kim_hangs_up())
    }),
    (
        "Kamailio's phone calls, hairpin's phone hangs up",
        |proxies| proxies.kim_calls().and_then(|()| proxies.pat_hangs_up()),
    ),
    (
        "Kamailio's phone calls and cancels",
        TwoProxies::kim_cancels,
    ),
    (
        "Kamailio's phone calls who is busy",
        TwoProxies::pat_is_busy,
    ),
    ("hairpin's phone calls, and hangs up", |proxies| {
        proxies.pat_calls().and_then(|()| proxies.pat_hangs_up())
    }),
    (
        "hairpin's phone calls, Kamailio's phone hangs up",
        |proxies| proxies.pat_calls().and_then(|()| proxies.kim_hangs_up()),
    ),
    ("hairpin's phone calls and cancels", TwoProxies::pat_cancels),
    ("hairpin's phone calls who is busy", TwoProxies::kim_is_busy),
];

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let tools = workspace::target_dir(root).join("tools");
    let pjsua2 = &packages::python("pjsua2", &root.join("interop"), &tools)?;
    let mut tally = Tally::default();
    for transport in TRANSPORTS {
        let mut proxies = match TwoProxies::start(binary, root, logs, pjsua2, transport) {
            Ok(proxies) => proxies,
            Err(error) => {
                let name = format!("Kamailio beside hairpin over {transport}");
                tally.record(&name, &Err::<String, _>(error));
                continue;
            }
        };
        for (step, run) in STEPS {
            let outcome = run(&mut proxies);
            let failed = outcome.is_err();
            tally.record(&format!("over {transport}: {step}"), &outcome);
            // What is left of the call would disturb the next one.
            if failed {
                break;
            }
        }
        let name = format!("the neighbour of Kamailio over {transport} stops when asked");
        tally.record(&name, &proxies.domain.finish());
    }
    Ok(tally)
}

struct TwoProxies {
    domain: Domain,
    _kamailio: Process,
    pat: Console,
    kim: baresip::Phone,
}

impl TwoProxies {
    fn start(
        binary: &Path,
        root: &Path,
        logs: &Path,
        pjsua2: &Path,
        transport: &str,
    ) -> Result<TwoProxies> {
        let here = SocketAddr::from((TRUNK_IP, free_port()?));
        // PJSIP reads no further than the first challenge. Kamailio starts after the first probe.
        let more = format!(
            "digest_algorithms = [\"MD5\"]\n[[sip.trunk]]\nname = \"kamailio\"\ndomain = \"example.net\"\n\
             to = [\"sip:{here};transport={transport}\"]\nprobe_interval = \"0s\"\n\
             [[sip.route]]\ndomains = [\"example.net\"]\ntrunks = [\"kamailio\"]\n"
        );
        let name = format!("sip-peers-{transport}");
        let domain = Domain::start(binary, logs, &name, &[PAT.to_owned()], ["", &more])?;
        let template = root.join("interop/sip-proxy/kamailio-users.cfg");
        let mut config = std::fs::read_to_string(&template)
            .with_context(|| format!("cannot read {}", template.display()))?;
        for (place, value) in [
            ("HAIRPIN", domain.address().to_string()),
            // Before PORT, which is a part of it.
            ("TRANSPORT", transport.to_owned()),
            ("ADDRESS", TRUNK_IP.to_string()),
            ("PORT", here.port().to_string()),
        ] {
            config = config.replace(place, &value);
        }
        let kamailio = run_kamailio(logs, &name, &config, here.port())?;
        let kim = kim(logs, &format!("kim-{transport}"), here)?;
        let pat = pat(root, logs, pjsua2, transport, domain.port)?;
        Ok(TwoProxies {
            domain,
            _kamailio: kamailio,
            pat,
            kim,
        })
    }

    fn kim_dials(&mut self) -> Result<()> {
        self.pat.forget();
        self.kim.forget()?;
        self.kim.command("dial", PAT_URI)?;
        self.pat.wait("incoming")?;
        Ok(())
    }

    fn pat_dials(&mut self) -> Result<()> {
        self.pat.forget();
        self.kim.forget()?;
        self.pat.command(&format!("dial {KIM_URI}"))?;
        self.kim.wait("CALL_INCOMING")?;
        Ok(())
    }

    fn kim_calls(&mut self) -> Result<()> {
        self.kim_dials()?;
        self.pat.command("answer")?;
        self.established()
    }

    fn pat_calls(&mut self) -> Result<()> {
        self.pat_dials()?;
        self.kim.command("accept", "")?;
        self.established()
    }

    /// The call is up, and each side holds and resumes it by re-INVITEs.
    fn established(&mut self) -> Result<()> {
        self.pat.wait("established")?;
        self.kim.wait("CALL_ESTABLISHED")?;
        self.kim.command("hold", "")?;
        self.pat.wait("held").context("a re-INVITE of baresip")?;
        self.kim.command("resume", "")?;
        self.pat.wait("active").context("a re-INVITE of baresip")?;
        self.pat.command("hold")?;
        self.pat.wait("holding").context("a re-INVITE of PJSIP")?;
        self.pat.command("resume")?;
        self.pat.wait("active").context("a re-INVITE of PJSIP")?;
        Ok(())
    }

    fn kim_hangs_up(&mut self) -> Result<String> {
        self.kim.command("hangup", "")?;
        self.pat.wait("ended").context("the BYE of baresip")?;
        self.kim.wait("CALL_CLOSED")?;
        Ok("four re-INVITEs, then BYE of baresip".to_owned())
    }

    fn pat_hangs_up(&mut self) -> Result<String> {
        self.pat.command("hangup")?;
        let code = self.pat.wait("ended ")?;
        ensure!(code == "200", "the BYE of PJSIP is answered {code}");
        self.kim.wait("CALL_CLOSED").context("the BYE of PJSIP")?;
        Ok("four re-INVITEs, then BYE of PJSIP".to_owned())
    }

    fn kim_cancels(&mut self) -> Result<String> {
        self.kim_dials()?;
        self.kim.wait("CALL_RINGING")?;
        self.kim.command("hangup", "")?;
        let code = self.pat.wait("ended ")?;
        ensure!(code == "487", "it ended with {code}");
        self.kim.wait("CALL_CLOSED")?;
        Ok(code)
    }

    fn pat_cancels(&mut self) -> Result<String> {
        self.pat_dials()?;
        self.pat.wait("ringing")?;
        self.pat.command("hangup")?;
        let code = self.pat.wait("ended ")?;
        ensure!(code == "487", "it ended with {code}");
        self.kim.wait("CALL_CLOSED")?;
        Ok(code)
    }

    fn pat_is_busy(&mut self) -> Result<String> {
        self.kim_dials()?;
        self.pat.command("refuse 486")?;
        let closed = self.kim.wait("CALL_CLOSED")?;
        let reason = closed["param"].as_str().unwrap_or_default();
        ensure!(reason.starts_with("486"), "{closed}");
        self.pat.wait("ended")?;
        Ok(reason.to_owned())
    }

    fn kim_is_busy(&mut self) -> Result<String> {
        self.pat_dials()?;
        // A call that is not answered yet is refused with 486.
        self.kim.command("hangup", "")?;
        let code = self.pat.wait("ended ")?;
        ensure!(code == "486", "it ended with {code}");
        Ok(code)
    }
}

/// Starts the phone of Kamailio.
fn kim(logs: &Path, name: &str, kamailio: SocketAddr) -> Result<baresip::Phone> {
    let account = format!(
        "<{KIM_URI};transport=udp>;auth_pass={PASSWORD};regint=3600;answermode=manual;\
         outbound=\"sip:{kamailio};transport=udp\"\n"
    );
    let setup = PhoneSetup {
        account: &account,
        listen: "127.0.0.1:0",
        source: "aubridge,loop",
        modules: &[],
        more: "",
    };
    let mut phone = baresip::Phone::start_like(logs, name, &setup)?;
    phone.wait_registered()?;
    Ok(phone)
}

/// Starts the phone of hairpin.
fn pat(root: &Path, logs: &Path, pjsua2: &Path, transport: &str, port: u16) -> Result<Console> {
    let name = format!("{PAT}-{transport}");
    let mut command = process::command("python3");
    command
        .env("PYTHONPATH", pjsua2)
        .arg(root.join("interop/pjsua2/phone.py"))
        .args(["--user", PAT, "--password", PASSWORD])
        .args(["--transport", transport])
        .args(["--server", &format!("127.0.0.1:{port}")])
        .arg("--log")
        .arg(logs.join(format!("{name}-log.log")));
    let log = logs.join(format!("{name}.log"));
    let mut phone = Console::start("PJSIP", command, log)?;
    let code = phone.wait("registered ")?;
    ensure!(code == "200", "its REGISTER is answered {code}");
    Ok(phone)
}
