//! PJSIP for Python, with `interop/pjsua2/phone.py`.

use std::path::Path;

use anyhow::{Result, ensure};

use super::{AudioCheck, DeskPhone};
use crate::interop::console::Console;
use crate::interop::domain::PASSWORD;
use crate::process;

/// PJSIP for Python.
pub(super) struct Pjsip(pub(super) Console);

/// Starts a phone of this user, which registers over TCP.
pub(in crate::interop) fn start(
    (root, logs): (&Path, &Path),
    pjsua2: &Path,
    user: &str,
    port: u16,
) -> Result<Console> {
    let mut command = process::command("python3");
    command
        .env("PYTHONPATH", pjsua2)
        .arg(root.join("interop/pjsua2/phone.py"))
        .args(["--user", user, "--password", PASSWORD])
        .args(["--server", &format!("127.0.0.1:{port}")])
        .args(["--transport", "tcp", "--log"])
        .arg(logs.join(format!("desk-pjsip-{user}-log.log")));
    let log = logs.join(format!("desk-pjsip-{user}.log"));
    let mut console = Console::start("PJSIP", command, log)?;
    let code = console.wait("registered ")?;
    ensure!(code == "200", "its REGISTER is answered {code}");
    Ok(console)
}

impl DeskPhone for Pjsip {
    fn name(&self) -> &'static str {
        "PJSIP"
    }

    fn user(&self) -> &'static str {
        "alice"
    }

    fn forget_events(&mut self) -> Result<()> {
        self.0.forget();
        Ok(())
    }

    fn dial(&mut self, uri: &str) -> Result<()> {
        self.0.command(&format!("dial {uri}"))
    }

    fn wait_for_call(&mut self) -> Result<()> {
        self.0.take("incoming").map(drop)
    }

    fn answer(&mut self) -> Result<()> {
        self.0.command("answer")
    }

    fn refuse(&mut self) -> Result<()> {
        self.0.command("refuse 486")
    }

    fn wait_established(&mut self) -> Result<()> {
        self.0.take("established").map(drop)
    }

    fn check_audio(&mut self) -> Result<AudioCheck> {
        self.0.command("listen")?;
        self.0.take("heard").map(|_| AudioCheck::Heard)
    }

    fn check_audio_again(&mut self) -> Result<AudioCheck> {
        self.check_audio()
    }

    fn hold(&mut self) -> Result<()> {
        self.0.command("hold")
    }

    fn resume(&mut self) -> Result<()> {
        self.0.command("resume")
    }

    fn wait_held(&mut self) -> Result<()> {
        self.0.take("held").map(drop)
    }

    fn wait_resumed(&mut self) -> Result<()> {
        self.0.take("active").map(drop)
    }

    fn transfer(&mut self, uri: &str) -> Result<()> {
        self.0.command(&format!("transfer {uri}"))
    }

    fn leave_after_transfer(&mut self, is_told: bool) -> Result<()> {
        if is_told {
            let code = self.0.take("transferred ")?;
            ensure!(code == "200", "the transfer ends with {code}");
        }
        self.0.command("hangup")?;
        self.0.take("ended").map(drop)
    }

    fn hang_up(&mut self) -> Result<()> {
        self.0.command("hangup")
    }

    fn end_all(&mut self) -> Result<()> {
        self.0.command("end")?;
        self.0.take("idle").map(drop)
    }

    fn wait_ended(&mut self) -> Result<Option<u16>> {
        Ok(self.0.take("ended ")?.parse().ok())
    }
}
