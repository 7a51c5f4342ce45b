//! Calls between a phone that uses ICE and a trunk that does not: rtpengine is between them, and RTP flows in both
//! directions. baresip is at both ends.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use super::baresip::{Phone, PhoneSetup};
use super::domain::{Domain, PASSWORD};
use super::server::free_ports;
use super::sip::{START_TIMEOUT, free_port};
use super::sip_trunk::TRUNK_IP;
use crate::process::{self, Process};
use crate::tally::Tally;

/// How long RTP may take to arrive.
const MEDIA_TIMEOUT: Duration = Duration::from_secs(20);

/// RTP packets that each side must receive: those of one second.
const MIN_PACKETS: u32 = 50;

/// The relay ports of rtpengine, above those of the server.
const RELAY_PORTS: std::ops::RangeInclusive<u16> = 65_100..=65_199;

const CALLED_NUMBER: &str = "+4930123";

/// Runs all cases.
pub(crate) fn run(binary: &Path, logs: &Path) -> Result<Tally> {
    let mut tally = Tally::default();
    let mut test = match MediaTest::start(binary, logs) {
        Ok(test) => test,
        Err(error) => {
            tally.record("rtpengine, a server and phones start", &Err(error));
            return Ok(tally);
        }
    };
    for (name, outcome) in [
        (
            "a phone with ICE calls the trunk",
            test.call_to_trunk("alice", false),
        ),
        ("the trunk calls a phone with ICE", test.trunk_calls_phone()),
        (
            "the trunk calls two phones, and one of them answers",
            test.trunk_calls_two_phones(),
        ),
        ("a call that is cancelled", test.cancelled()),
        (
            "a phone with ICE and DTLS-SRTP calls the trunk",
            test.call_to_trunk("bob", true),
        ),
        ("without rtpengine a call gets 503", test.without_relay()),
    ] {
        tally.record(&format!("rtpengine: {name}"), &outcome);
    }
    let outcome = test.domain.finish();
    tally.record("rtpengine: the server stops when asked", &outcome);
    Ok(tally)
}

struct MediaTest {
    logs: PathBuf,
    domain: Domain,
    relay: Option<Process>,
    /// The address for requests to rtpengine.
    control: SocketAddr,
    trunk: Phone,
    /// One second of a tone, many times.
    sound: String,
}

impl MediaTest {
    fn start(binary: &Path, logs: &Path) -> Result<MediaTest> {
        let control = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let port = free_port()?;
        let sound = logs.join("tone.wav");
        std::fs::write(&sound, wave())?;
        let sound = format!("aufile,{}", sound.canonicalize()?.display());
        let relay = start_relay(logs, control)?;
        let last = format!(
            "digest_algorithms = [\"MD5\"]\nrtpengine = \"{control}\"\n\
             [[sip.trunk]]\nname = \"carrier\"\nto = [\"sip:{TRUNK_IP}:{port}\"]\nprobe_interval = \"0s\"\nmedia = \"relay\"\n\
             [[sip.route]]\nprefixes = [\"+\"]\ntrunks = [\"carrier\"]\n"
        );
        let users = ["alice", "bob"].map(str::to_owned);
        let domain = Domain::start(binary, logs, "sip-media", &users, ["", &last])?;
        let account = format!("<sip:{CALLED_NUMBER}@{TRUNK_IP}:{port}>;regint=0;answermode=auto\n");
        let setup = PhoneSetup {
            account: &account,
            listen: &format!("{TRUNK_IP}:{port}"),
            source: &sound,
            modules: &["aufile"],
            more: "",
        };
        let trunk = Phone::start_like(logs, "media-trunk", &setup)?;
        Ok(MediaTest {
            logs: logs.to_owned(),
            domain,
            relay: Some(relay),
            control,
            trunk,
            sound,
        })
    }

    /// A phone that uses ICE, and DTLS-SRTP if it is to.
    fn phone(&self, user: &str, is_secure: bool) -> Result<Phone> {
        self.phone_with(user, is_secure, "auto")
    }

    fn phone_with(&self, user: &str, is_secure: bool, answers: &str) -> Result<Phone> {
        self.phone_named(&format!("media-{user}-{answers}"), user, is_secure, answers)
    }

    fn phone_named(&self, name: &str, user: &str, is_secure: bool, answers: &str) -> Result<Phone> {
        let port = self.domain.port;
        let security = if is_secure { ";mediaenc=dtls_srtp" } else { "" };
        let account = format!(
            "<sip:{user}@example.org;transport=udp>;auth_pass={PASSWORD};regint=3600;answermode={answers};medianat=ice{security};\
             outbound=\"sip:127.0.0.1:{port};transport=udp\"\n"
        );
        let setup = PhoneSetup {
            account: &account,
            listen: "127.0.0.1:0",
            source: &self.sound,
            modules: &["aufile", "ice", "srtp", "dtls_srtp"],
            more: "",
        };
        let mut phone = Phone::start_like(&self.logs, name, &setup)?;
        phone.wait_registered()?;
        Ok(phone)
    }

    fn call_to_trunk(&mut self, user: &str, is_secure: bool) -> Result<String> {
        let mut phone = self.phone(user, is_secure)?;
        self.trunk.forget()?;
        phone.command("dial", &format!("sip:{CALLED_NUMBER}@example.org"))?;
        phone.wait("CALL_ESTABLISHED")?;
        self.trunk.wait("CALL_ESTABLISHED")?;
        self.media_flow(&mut phone, is_secure)
    }

    fn trunk_calls_phone(&mut self) -> Result<String> {
        let mut phone = self.phone("alice", false)?;
        self.trunk.forget()?;
        let port = self.domain.port;
        self.trunk
            .command("dial", &format!("sip:alice@127.0.0.1:{port}"))?;
        phone.wait("CALL_ESTABLISHED")?;
        self.trunk.wait("CALL_ESTABLISHED")?;
        self.media_flow(&mut phone, false)
    }

    /// One of the phones does not answer. Each phone has a session of its own at the relay. The call is accepted when
    /// both ring: a phone that answers at once can be faster than the INVITE to the other one.
    fn trunk_calls_two_phones(&mut self) -> Result<String> {
        let mut phone = self.phone_named("media-alice-first", "alice", false, "manual")?;
        let mut other = self.phone_with("alice", false, "manual")?;
        self.trunk.forget()?;
        let port = self.domain.port;
        self.trunk
            .command("dial", &format!("sip:alice@127.0.0.1:{port}"))?;
        other.wait("CALL_INCOMING")?;
        phone.wait("CALL_INCOMING")?;
        phone.command("accept", "")?;
        phone.wait("CALL_ESTABLISHED")?;
        self.trunk.wait("CALL_ESTABLISHED")?;
        other.wait("CALL_CLOSED")?;
        self.wait_sessions(1)?;
        self.media_flow(&mut phone, false)
    }

    fn cancelled(&mut self) -> Result<String> {
        let mut phone = self.phone_with("alice", false, "manual")?;
        self.trunk.forget()?;
        let port = self.domain.port;
        self.trunk
            .command("dial", &format!("sip:alice@127.0.0.1:{port}"))?;
        phone.wait("CALL_INCOMING")?;
        self.wait_sessions(1)?;
        self.trunk.command("hangup", "")?;
        phone.wait("CALL_CLOSED")?;
        self.wait_sessions(0)?;
        Ok("no session is left".to_owned())
    }

    /// Waits until rtpengine has `count` sessions.
    fn wait_sessions(&self, count: usize) -> Result<()> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, free_ports(1)?))?;
        socket.set_read_timeout(Some(Duration::from_secs(1)))?;
        let deadline = Instant::now() + MEDIA_TIMEOUT;
        let mut buffer = [0; 4096];
        let from = socket.local_addr()?.port();
        let mut number = 0;
        loop {
            // rtpengine gives an earlier response again if a cookie repeats.
            number += 1;
            let request = format!("{from}-{number} d7:command4:liste");
            socket.send_to(request.as_bytes(), self.control)?;
            let text = match socket.recv(&mut buffer) {
                Ok(len) => String::from_utf8_lossy(&buffer[..len]).into_owned(),
                Err(_) => String::new(),
            };
            // The name of each session is the Call-ID and eight digits.
            if sessions(&text) == Some(count) {
                return Ok(());
            }
            ensure!(Instant::now() < deadline, "not {count} sessions: {text}");
            sleep(Duration::from_millis(200));
        }
    }

    /// Waits until both sides have got RTP from the relay, checks how, and ends the call.
    fn media_flow(&mut self, phone: &mut Phone, is_secure: bool) -> Result<String> {
        let deadline = Instant::now() + MEDIA_TIMEOUT;
        let (of_phone, of_trunk) = loop {
            let both = (phone.ask("audio_debug")?, self.trunk.ask("audio_debug")?);
            if received(&both.0) >= MIN_PACKETS && received(&both.1) >= MIN_PACKETS {
                break both;
            }
            ensure!(
                Instant::now() < deadline,
                "the phone got {} RTP packets and the trunk {} of {MIN_PACKETS}: {both:?}",
                received(&both.0),
                received(&both.1),
            );
            sleep(Duration::from_millis(200));
        };
        ensure!(of_phone.contains("mnat: ice (connected=yes)"), "{of_phone}");
        ensure!(of_trunk.contains("mnat: (none)"), "{of_trunk}");
        let menc = match is_secure {
            true => "menc: dtls_srtp (secure=yes)",
            false => "menc: (none)",
        };
        ensure!(of_phone.contains(menc), "{of_phone}");
        ensure!(of_trunk.contains("menc: (none)"), "{of_trunk}");
        for side in [&of_phone, &of_trunk] {
            let port = remote_port(side);
            ensure!(
                port.is_some_and(|port| RELAY_PORTS.contains(&port)),
                "{side}"
            );
        }
        phone.command("hangup", "")?;
        self.trunk.wait("CALL_CLOSED")?;
        self.wait_sessions(0)?;
        Ok(format!(
            "{} RTP packets to the phone and {} to the trunk",
            received(&of_phone),
            received(&of_trunk)
        ))
    }

    fn without_relay(&mut self) -> Result<String> {
        drop(self.relay.take());
        let mut phone = self.phone("alice", false)?;
        phone.command("dial", &format!("sip:{CALLED_NUMBER}@example.org"))?;
        let closed = phone.wait("CALL_CLOSED")?;
        let reason = closed["param"].as_str().unwrap_or_default();
        ensure!(reason.starts_with("503"), "{closed}");
        Ok(reason.to_owned())
    }
}

/// Starts rtpengine without its kernel module, and waits until it answers.
fn start_relay(logs: &Path, control: SocketAddr) -> Result<Process> {
    // baresip uses the address of the default route, never a loopback address. Nothing is sent here.
    let probe = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    probe
        .connect("198.51.100.1:9")
        .context("rtpengine requires a route to other hosts")?;
    let own = probe.local_addr()?.ip();
    let mut command = process::command("rtpengine");
    command.args([
        "--foreground",
        "--log-stderr",
        "--config-file=none",
        "--table=-1",
        "--delete-delay=0",
    ]);
    command.arg(format!("--interface={own}"));
    command.arg(format!("--listen-ng={control}"));
    command.arg(format!("--port-min={}", RELAY_PORTS.start()));
    command.arg(format!("--port-max={}", RELAY_PORTS.end()));
    let mut relay = Process::start("rtpengine", command, logs.join("rtpengine.log"))?;
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, free_ports(1)?))?;
    socket.set_read_timeout(Some(Duration::from_millis(100)))?;
    let deadline = Instant::now() + START_TIMEOUT;
    let mut buffer = [0; 512];
    loop {
        socket.send_to(b"first d7:command4:pinge", control)?;
        match socket.recv(&mut buffer) {
            Ok(len) if buffer[..len].ends_with(b"4:ponge") => return Ok(relay),
            _ => {
                relay.assert_running()?;
                ensure!(Instant::now() < deadline, "it is deaf: {}", relay.tail());
            }
        }
    }
}

/// How many sessions a response to `list` has; `None` if it is none.
fn sessions(text: &str) -> Option<usize> {
    let (_, list) = text.split_once("5:callsl")?;
    let (mut list, mut count) = (list, 0);
    while !list.starts_with('e') {
        let (len, rest) = list.split_once(':')?;
        list = rest.get(len.parse().ok()?..)?;
        count += 1;
    }
    Some(count)
}

/// RTP packets that a phone has got, from the text of `audio_debug`.
fn received(text: &str) -> u32 {
    number_behind(text, "rcvd=").unwrap_or(0)
}

/// The port that a phone sends RTP to.
fn remote_port(text: &str) -> Option<u16> {
    let remote = text.split_once("remote: ")?.1;
    let (_, port) = remote.split_once(':')?;
    digits(port).parse().ok()
}

fn number_behind(text: &str, key: &str) -> Option<u32> {
    digits(text.split_once(key)?.1).parse().ok()
}

fn digits(text: &str) -> &str {
    let end = text.find(|it: char| !it.is_ascii_digit());
    &text[..end.unwrap_or(text.len())]
}

/// A minute of a tone as a WAV file: 8,000 samples a second of 16 bits, one channel.
pub(super) fn wave() -> Vec<u8> {
    const SAMPLES_PER_S: u32 = 8_000;
    const SAMPLE_COUNT: u32 = 60 * SAMPLES_PER_S;
    let bytes = 2 * SAMPLE_COUNT;
    let mut file = Vec::new();
    file.extend_from_slice(b"RIFF");
    file.extend_from_slice(&(36 + bytes).to_le_bytes());
    file.extend_from_slice(b"WAVEfmt ");
    for number in [
        16,
        0x0001_0001,
        SAMPLES_PER_S,
        2 * SAMPLES_PER_S,
        0x0010_0002,
    ] {
        file.extend_from_slice(&number.to_le_bytes());
    }
    file.extend_from_slice(b"data");
    file.extend_from_slice(&bytes.to_le_bytes());
    for sample in 0..SAMPLE_COUNT {
        // A square of 400 Hz.
        let value: i16 = if sample / 10 % 2 == 0 { 4_000 } else { -4_000 };
        file.extend_from_slice(&value.to_le_bytes());
    }
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_a_phone_says_of_its_audio() {
        let text = " local: 192.0.2.2:43000, remote: 192.0.2.2:65120/192.0.2.2:65121\n mnat: ice (connected=yes)\n\
                    IP=192.0.2.2:65120 psent=250 rcvd=387\n";
        assert_eq!((received(text), remote_port(text)), (387, Some(65_120)));
        let silent = " local: 0.0.0.0:43104, remote: ?/?\n TX: packets=0, octets=0\n";
        assert_eq!((received(silent), remote_port(silent)), (0, None));
    }

    #[test]
    fn counts_the_sessions_of_a_list() {
        assert_eq!(sessions("c d5:callsle6:result2:oke"), Some(0));
        assert_eq!(sessions("c d5:callsl3:a;13:b;2e6:result2:oke"), Some(2));
        for bad in ["", "c d6:result2:oke", "c d5:callsl9:a", "c d5:callslx"] {
            assert_eq!(sessions(bad), None, "{bad}");
        }
    }

    #[test]
    fn the_tone_is_a_minute_long() {
        let file = wave();
        assert_eq!(file.len(), 44 + 60 * 16_000);
        assert_eq!((&file[..4], &file[36..40]), (&b"RIFF"[..], &b"data"[..]));
    }
}
