//! baresip, by its module `ctrl_tcp`.

use std::path::Path;

use anyhow::Result;

use super::{AudioCheck, BYE_TIMEOUT, DeskPhone};
use crate::interop::baresip::{self, PhoneSetup};
use crate::interop::domain::PASSWORD;
use crate::interop::sip_media::wave;

/// Starts a phone of carol, which registers.
pub(super) fn start(logs: &Path, port: u16) -> Result<Box<dyn DeskPhone>> {
    // Its module `aubridge` is silent after some calls.
    let voice = logs.join("desk-baresip.wav");
    std::fs::write(&voice, wave())?;
    let account = format!(
        "<sip:carol@example.org;transport=udp>;auth_pass={PASSWORD};regint=3600;answermode=manual;\
         outbound=\"sip:127.0.0.1:{port};transport=udp\"\n"
    );
    let setup = PhoneSetup {
        account: &account,
        listen: "127.0.0.1:0",
        source: &format!("aufile,{}", voice.display()),
        modules: &["aufile"],
        more: "",
    };
    let mut phone = baresip::Phone::start_like(logs, "desk", &setup)?;
    phone.wait_registered()?;
    Ok(Box::new(phone))
}

impl DeskPhone for baresip::Phone {
    fn name(&self) -> &'static str {
        "baresip"
    }

    fn user(&self) -> &'static str {
        "carol"
    }

    fn forget_events(&mut self) -> Result<()> {
        baresip::Phone::forget(self)
    }

    fn dial(&mut self, uri: &str) -> Result<()> {
        self.command("dial", uri)
    }

    fn wait_for_call(&mut self) -> Result<()> {
        self.take("CALL_INCOMING").map(drop)
    }

    fn answer(&mut self) -> Result<()> {
        self.command("accept", "")
    }

    fn refuse(&mut self) -> Result<()> {
        // Before the answer, this refuses the call with 486.
        self.command("hangup", "")
    }

    fn wait_established(&mut self) -> Result<()> {
        self.take("CALL_ESTABLISHED").map(drop)
    }

    fn check_audio(&mut self) -> Result<AudioCheck> {
        self.wait_printed(&["incoming rtp for 'audio' established"])?;
        Ok(AudioCheck::Heard)
    }

    fn hold(&mut self) -> Result<()> {
        self.command("hold", "")
    }

    fn resume(&mut self) -> Result<()> {
        self.command("resume", "")
    }

    /// It has no event for this, but it prints the messages that it receives.
    fn wait_held(&mut self) -> Result<()> {
        self.wait_printed(&["\na=sendonly", "\na=inactive"])
    }

    fn wait_resumed(&mut self) -> Result<()> {
        self.wait_printed(&["\na=sendrecv"])
    }

    fn transfer(&mut self, uri: &str) -> Result<()> {
        self.command("transfer", uri)
    }

    fn leave_after_transfer(&mut self, _is_told: bool) -> Result<()> {
        // It hangs up by itself.
        self.take("CALL_CLOSED").map(drop)
    }

    fn hang_up(&mut self) -> Result<()> {
        self.command("hangup", "")
    }

    fn end_all(&mut self) -> Result<()> {
        self.command("hangupall", "")
    }

    /// It hangs up by itself if no BYE arrives. Then it has no event.
    fn wait_left(&mut self) -> Result<()> {
        self.take_within("CALL_CLOSED", BYE_TIMEOUT).map(drop)
    }

    fn wait_ended(&mut self) -> Result<Option<u16>> {
        let closed = self.take("CALL_CLOSED")?;
        let reason = closed["param"].as_str().unwrap_or_default();
        Ok(reason.split(' ').next().and_then(|code| code.parse().ok()))
    }
}
