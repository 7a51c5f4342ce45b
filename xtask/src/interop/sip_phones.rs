//! Phones (baresip) that register at a server and call each other through its proxy, over UDP and over TCP.

use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};

use super::baresip::Phone;
use super::domain::Domain;
use crate::tally::Tally;

/// The caller, and the called user.
const USERS: [&str; 2] = ["alice", "bob"];
const CALLED_URI: &str = "sip:bob@example.org";

/// Runs all cases.
pub(crate) fn run(binary: &Path, logs: &Path) -> Result<Tally> {
    let mut tally = Tally::default();
    for transport in ["udp", "tcp"] {
        let folder = logs.join(format!("phones-{transport}-state"));
        // Bindings of a run before this one would ring, too.
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder)?;
        let first = format!("[server]\nstate_dir = \"{}\"\n", folder.display());
        let users = USERS.map(str::to_owned);
        let name = format!("phones-{transport}");
        // baresip 1.0 knows MD5 alone, and refuses to read further than the first challenge.
        let more = "digest_algorithms = [\"MD5\"]\n";
        let mut domain = Domain::start(binary, logs, &name, &users, [&first, more])?;
        let mut phones = match TwoPhones::start(logs, domain.port, transport) {
            Ok(phones) => phones,
            Err(error) => {
                tally.record(&format!("baresip registers over {transport}"), &Err(error));
                continue;
            }
        };
        type Step = fn(&mut TwoPhones) -> Result<String>;
        let steps: [(&str, Step); 3] = [
            ("a call is answered and ended", TwoPhones::answered),
            ("a call is cancelled", TwoPhones::cancelled),
            ("a call to who is busy", TwoPhones::busy),
        ];
        for (step, run) in steps {
            let outcome = run(&mut phones);
            tally.record(&format!("baresip over {transport}: {step}"), &outcome);
        }
        let outcome = domain.restart().and_then(|()| phones.answered());
        let step = "a call after a restart of the server";
        tally.record(&format!("baresip over {transport}: {step}"), &outcome);
        let outcome = phones.forked();
        let step = "a call rings at two phones, and one is cancelled";
        tally.record(&format!("baresip over {transport}: {step}"), &outcome);
        let outcome = phones.one_is_dead();
        let step = "a call to two phones, one behind a dead connection";
        tally.record(&format!("baresip over {transport}: {step}"), &outcome);
        let outcome = phones.one_is_gone();
        let step = "a call to two phones, one of which has crashed";
        tally.record(&format!("baresip over {transport}: {step}"), &outcome);
        let name = format!("the server of the phones over {transport} stops when asked");
        tally.record(&name, &domain.finish());
    }
    Ok(tally)
}

struct TwoPhones {
    logs: PathBuf,
    port: u16,
    transport: &'static str,
    alice: Phone,
    bob: Phone,
    /// Another phone of bob.
    second: Option<Phone>,
}

impl TwoPhones {
    fn start(logs: &Path, port: u16, transport: &'static str) -> Result<TwoPhones> {
        let [alice, bob] = USERS.map(|user| {
            let mut phone =
                Phone::start(logs, &format!("{user}-{transport}"), user, port, transport)?;
            phone.wait_registered()?;
            Ok::<_, anyhow::Error>(phone)
        });
        Ok(TwoPhones {
            logs: logs.to_owned(),
            port,
            transport,
            alice: alice?,
            bob: bob?,
            second: None,
        })
    }

    fn dial(&mut self) -> Result<()> {
        self.alice.forget()?;
        self.bob.forget()?;
        self.alice.command("dial", CALLED_URI)?;
        self.bob.wait("CALL_INCOMING")?;
        Ok(())
    }

    fn bob_answers_and_alice_hangs_up(&mut self) -> Result<String> {
        self.bob.command("accept", "")?;
        self.alice.wait("CALL_ESTABLISHED")?;
        self.bob.wait("CALL_ESTABLISHED")?;
        self.alice.command("hangup", "")?;
        self.bob.wait("CALL_CLOSED")?;
        self.alice.wait("CALL_CLOSED")?;
        Ok("established and ended".to_owned())
    }

    fn answered(&mut self) -> Result<String> {
        self.dial()?;
        self.bob_answers_and_alice_hangs_up()
    }

    fn cancelled(&mut self) -> Result<String> {
        self.dial()?;
        self.alice.wait("CALL_RINGING")?;
        self.alice.command("hangup", "")?;
        self.bob.wait("CALL_CLOSED")?;
        Ok("both have ended".to_owned())
    }

    fn busy(&mut self) -> Result<String> {
        self.dial()?;
        // A call that is not answered yet is refused with 486.
        self.bob.command("hangup", "")?;
        let closed = self.alice.wait("CALL_CLOSED")?;
        let reason = closed["param"].as_str().unwrap_or_default();
        ensure!(reason.starts_with("486"), "{closed}");
        Ok(reason.to_owned())
    }

    /// Registers a second phone of bob.
    fn second(&mut self, name: &str) -> Result<Phone> {
        let mut phone = Phone::start(
            &self.logs,
            &format!("bob-{name}-{}", self.transport),
            "bob",
            self.port,
            self.transport,
        )?;
        phone.wait_registered()?;
        Ok(phone)
    }

    fn forked(&mut self) -> Result<String> {
        let mut second = self.second("second")?;
        self.dial()?;
        second.wait("CALL_INCOMING")?;
        let outcome = self.bob_answers_and_alice_hangs_up()?;
        second.wait("CALL_CLOSED")?;
        self.second = Some(second);
        Ok(outcome)
    }

    fn one_is_dead(&mut self) -> Result<String> {
        let second = self.second.take();
        let second = second.map_or_else(|| self.second("dead"), Ok)?;
        second.freeze()?;
        let outcome = self.answered();
        self.second = Some(second);
        outcome
    }

    fn one_is_gone(&mut self) -> Result<String> {
        // It is killed.
        drop(self.second.take());
        self.answered()
    }
}
