//! JsSIP in Chromium calls Linphone (Debian's `linphone-daemon`), with ICE and DTLS-SRTP.
//!
//! There is no call of Linphone. Its TLS library accepts no ClientHello in fragments, and that of Chromium is larger than
//! a datagram. In a call of Linphone, Chromium is the DTLS client.
//!
//! The browser judges what it hears; Linphone writes how many packets it has received into its log.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde_json::json;

use super::browser_phone::{Bench, LINPHONE};
use super::console::Console;
use super::desk_phones::linphone;
use super::sip_media::wave;
use crate::tally::Tally;

/// How long to wait for the statistics of a call in the log of Linphone.
const LIMIT: Duration = Duration::from_secs(20);
/// The minimum number of packets that Linphone receives in a call: half a second of sound.
const PACKETS: u64 = 25;

/// Linphone as the user [`LINPHONE`].
struct Linphone {
    console: Console,
    /// The sound that it sends.
    voice: PathBuf,
    log: PathBuf,
}

/// Runs all cases.
pub(super) fn run(bench: &Bench<'_>, logs: &Path, tally: &mut Tally) {
    let mut linphone = match start(bench, logs) {
        Ok(linphone) => linphone,
        Err(error) => {
            return tally.record("Linphone registers beside phones in pages", &Err(error));
        }
    };
    let outcome = called(bench, &mut linphone);
    tally.record(
        "JsSIP in Chromium: a call to Linphone with ICE and DTLS-SRTP",
        &outcome,
    );
}

fn start(bench: &Bench<'_>, logs: &Path) -> Result<Linphone> {
    let name = "linphone-beside-pages";
    let home = logs.join(name);
    let certificates = home.join("certificates");
    std::fs::create_dir_all(&certificates)?;
    let more = format!(
        "[sip]\nmedia_encryption=dtls\n[misc]\nuser_certificates_path={}\n\
         [rtp]\navpf=1\nbundle=1\n[proxy_0]\navpf=1\n\
         [net]\nnat_policy_ref=relays\n\
         [nat_policy_0]\nref=relays\nstun_server=127.0.0.1:{}\nprotocols=stun,ice\n",
        certificates.display(),
        bench.turn
    );
    let (console, home) = linphone::start_daemon(logs, (name, LINPHONE), bench.domain.port, &more)?;
    let voice = home.join("voice.wav");
    std::fs::write(&voice, wave())?;
    Ok(Linphone {
        console,
        voice,
        log: logs.join(format!("{name}-log.log")),
    })
}

impl Linphone {
    /// Waits for this state of a call, and returns the call.
    fn wait(&mut self, state: &str) -> Result<String> {
        self.console.take(&format!("Event: LinphoneCall{state}"))?;
        self.console.take("Id: ")
    }

    /// Plays the sound file into the call. Without a sound card, Linphone sends no other sound. The file lasts longer
    /// than a case.
    fn speak(&mut self) -> Result<()> {
        let voice = self.voice.display();
        self.console
            .command(&format!("incall-player-start {voice}"))
    }

    /// How many calls there were, and the packets that the last one has received.
    fn received(&self) -> (usize, u64) {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let counts = log.lines().filter_map(received_packets);
        counts.fold((0, 0), |(calls, _), count| (calls + 1, count))
    }

    /// Waits until the log has statistics of more than `calls` calls. Returns the packets of the latest call.
    /// Fails if these are fewer than [`PACKETS`].
    fn heard_after(&self, calls: usize) -> Result<u64> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let (now, packets) = self.received();
            if now > calls {
                ensure!(
                    packets >= PACKETS,
                    "Linphone has received {packets} packets"
                );
                return Ok(packets);
            }
            ensure!(Instant::now() < deadline, "no statistics of Linphone");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// The count in a line such as `... ortp-message-received       53 packets`.
fn received_packets(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("ortp-message-received ")?;
    rest.trim().strip_suffix(" packets")?.trim().parse().ok()
}

/// A page calls Linphone, and hangs up.
fn called(bench: &Bench<'_>, linphone: &mut Linphone) -> Result<String> {
    let page = &bench.phones[0];
    page.ask("forget", json!([]))?;
    linphone.console.forget();
    let (before, _) = linphone.received();
    page.ask("call", json!([format!("sip:{LINPHONE}@example.org")]))?;
    let call = linphone.wait("IncomingReceived")?;
    linphone.console.command(&format!("answer {call}"))?;
    linphone.wait("StreamsRunning")?;
    linphone.speak()?;
    page.wait("confirmed")?;
    let outcome = bench.hears(page)?;
    page.ask("terminate", json!([]))?;
    linphone.wait("Released")?;
    let packets = linphone.heard_after(before)?;
    Ok(format!("{outcome}, {packets} packets at Linphone"))
}

#[cfg(test)]
mod tests {
    use super::received_packets;

    #[test]
    fn the_packets_of_a_call_are_read_and_no_other_counts() {
        let line = "2026-11-27 01:52:34:066 ortp-message-received                 53 packets";
        assert_eq!(received_packets(line), Some(53));
        for other in [
            "2026-11-27 01:52:34:066 ortp-message-received rtcp               3 packets",
            "2026-11-27 01:52:34:066 ortp-message-sent                       51 packets",
            "",
        ] {
            assert_eq!(received_packets(other), None, "{other}");
        }
    }
}
