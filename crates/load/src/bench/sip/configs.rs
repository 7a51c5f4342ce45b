//! The configurations of SIP servers: the same task for each.

use std::io::{self, Write as _};
use std::path::Path;

use tempfile::NamedTempFile;

use super::{CALLING_USERS, DOMAIN, REGISTERING_USERS};
use crate::bench::layout::{client_ip, server_ip, sip_address, sip_address_over};
use crate::bench::scenario::{Scenario, SipWork};
use crate::bench::side::{PASSWORD, REALM, Side, USERNAME};
use crate::sip::Transport;

/// The configuration files of the servers. Dropping them deletes the files.
#[derive(Debug)]
pub(in crate::bench) struct Configs {
    hairpin: NamedTempFile,
    hairpin_uas: NamedTempFile,
    kamailio: NamedTempFile,
}

impl Configs {
    /// With the certificate and the key that servers show over TLS.
    pub(in crate::bench) fn make(certificate: &Path, key: &Path) -> io::Result<Configs> {
        let tls = [certificate, key].map(|file| file.to_string_lossy().into_owned());
        Ok(Configs {
            hairpin: file(&hairpin(&tls))?,
            hairpin_uas: file(&hairpin_uas(&tls))?,
            kamailio: file(&kamailio(&tls))?,
        })
    }

    /// Replaces `{hairpin-sip}`, `{hairpin-uas}` and `{kamailio-sip}` by the paths of the files.
    pub(in crate::bench) fn fill(&self, word: &str) -> String {
        word.replace("{hairpin-sip}", &self.hairpin.path().to_string_lossy())
            .replace("{hairpin-uas}", &self.hairpin_uas.path().to_string_lossy())
            .replace("{kamailio-sip}", &self.kamailio.path().to_string_lossy())
    }
}

fn file(text: &str) -> io::Result<NamedTempFile> {
    let mut file = NamedTempFile::with_prefix("hairpin-bench-")?;
    file.write_all(text.as_bytes())?;
    Ok(file)
}

/// The server of a side with the configuration for a scenario. hairpin is either a user agent server or a registrar and
/// proxy. It listens for connections, or uses processor time per request, only if the scenario measures that.
pub(in crate::bench) fn side_for(side: &Side, scenario: &Scenario) -> Side {
    let mut side = side.clone();
    let (work, over, service_us) = match *scenario {
        Scenario::Sip { work, over } => (work, over, 0),
        Scenario::SipOverload { work, service_us } => (work, Transport::Udp, service_us),
        Scenario::SipMemory { work, .. } => (work, Transport::Udp, 0),
        _ => return side,
    };
    let has = |place: &str| side.command.iter().any(|word| word.contains(place));
    let (is_hairpin, is_kamailio) = (has("{hairpin-sip}"), has("{kamailio-sip}"));
    if is_hairpin && matches!(work, SipWork::Options | SipWork::Call) {
        for word in &mut side.command {
            *word = word.replace("{hairpin-sip}", "{hairpin-uas}");
        }
    }
    if over.is_stream() {
        if is_hairpin {
            let listen = |over| sip_address_over(over).to_string();
            let (tls, wss) = (listen(Transport::Tls), listen(Transport::Wss));
            side.command.push(format!("--set=sip.listen_tls={tls}"));
            side.command.push(format!("--set=sip.listen_wss={wss}"));
        }
        if is_kamailio {
            let more = "-A WITH_CONNECTIONS -l tcp:{sip-listen} -l tls:{sip-tls-listen}";
            side.command.extend(more.split(' ').map(str::to_owned));
        }
    }
    if service_us > 0 && is_hairpin {
        side.command
            .push(format!("--set=sip.service_time={service_us}us"));
    }
    if service_us > 0 && is_kamailio {
        let loops = u32::from(service_us) * LOOPS_PER_US;
        side.command
            .extend(["-A".to_owned(), format!("LOOPS={loops}")]);
    }
    side
}

/// Rounds of an empty loop in Kamailio's script that take a microsecond.
const LOOPS_PER_US: u32 = 6;

/// A user agent server.
fn hairpin_uas(tls: &[String; 2]) -> String {
    format!(
        "{}{}{}",
        hairpin_head(""),
        "test_uas = true\n",
        hairpin_tls(tls)
    )
}

/// The part that both configurations share, up to the section `sip`.
fn hairpin_head(users: &str) -> String {
    let (server, sip) = (server_ip(), sip_address());
    format!(
        "[server]\nworkers = 1\n[listen]\nudp = [\"{server}:3478\"]\ntls = []\ndtls = []\n[admin]\nlisten = \"off\"\n[log]\nlevel = \"warn\"\n\
         [auth]\nrealm = \"{REALM}\"\nusers = [{{ name = \"{USERNAME}\", password = \"{PASSWORD}\" }}{users}]\n\
         [sip]\nlisten = [\"{sip}\"]\ntransactions = 2000000\nrequests_per_source = 0\nbindings_per_user = 30\n"
    )
}

fn hairpin_tls([certificate, key]: &[String; 2]) -> String {
    format!("[tls]\ncertificates = [{{ certificate = \"{certificate}\", key = \"{key}\" }}]\n")
}

/// A registrar and proxy for the domain. The callers are a trunk: their calls need no digest, as in Kamailio's script.
fn hairpin(tls: &[String; 2]) -> String {
    let names = (0..CALLING_USERS).map(|n| format!("u{n:02}"));
    let names = names.chain((0..REGISTERING_USERS).map(|n| format!("u{n:04}")));
    let users: Vec<String> = names
        .map(|name| format!(", {{ name = \"{name}\", password = \"{PASSWORD}\" }}"))
        .collect();
    format!(
        "{}[[sip.domain]]\nname = \"{DOMAIN}\"\n[[sip.trunk]]\naddresses = [\"{}\"]\n{}",
        hairpin_head(&users.concat()),
        client_ip(),
        hairpin_tls(tls)
    )
}

/// The same as a script: stateless responses for the server itself, a registrar in memory with a digest, and a stateful
/// proxy. The proxy looks up callees and adds Record-Route.
fn kamailio([certificate, key]: &[String; 2]) -> String {
    KAMAILIO
        .replace("DOMAIN", DOMAIN)
        .replace("REALM", REALM)
        .replace("PASSWORD", PASSWORD)
        .replace("SERVER", &sip_address().to_string())
        .replace("CERTIFICATE", certificate)
        .replace("PRIVATE_KEY", key)
}

const KAMAILIO: &str = r#"#!KAMAILIO
debug=0
log_stderror=yes
children=1
#!ifdef WITH_CONNECTIONS
tcp_children=1
enable_tls=yes
loadmodule "tls.so"
modparam("tls", "tls_method", "TLSv1.2+")
modparam("tls", "certificate", "CERTIFICATE")
modparam("tls", "private_key", "PRIVATE_KEY")
#!else
disable_tcp=yes
#!endif
auto_aliases=no
maxbuffer=8388608
max_while_loops=1000000
loadmodule "tm.so"
loadmodule "sl.so"
loadmodule "rr.so"
loadmodule "pv.so"
loadmodule "kex.so"
loadmodule "textops.so"
loadmodule "siputils.so"
loadmodule "maxfwd.so"
loadmodule "usrloc.so"
loadmodule "registrar.so"
loadmodule "auth.so"
modparam("usrloc", "db_mode", 0)
modparam("usrloc", "hash_size", 16)
modparam("auth", "nonce_count", 1)
modparam("auth", "qop", "auth")
request_route {
#!ifdef LOOPS
    if (is_method("INVITE|BYE")) {
        $var(left) = LOOPS;
        while ($var(left) > 0) { $var(left) = $var(left) - 1; }
    }
#!endif
    if (!mf_process_maxfwd_header("70")) { sl_send_reply("483", "Too Many Hops"); exit; }
    if (is_method("REGISTER")) {
        if (!pv_www_authenticate("REALM", "PASSWORD", "0")) { www_challenge("REALM", "1"); exit; }
        save("location");
        exit;
    }
    if (has_totag() && loose_route()) { t_relay(); exit; }
    if (is_method("CANCEL")) { if (t_check_trans()) t_relay(); exit; }
    if ($rd == "DOMAIN") {
        if (is_method("ACK")) { if (t_check_trans()) t_relay(); exit; }
        record_route();
        if (!lookup("location")) { sl_send_reply("404", "Not Found"); exit; }
        if (!t_relay()) sl_reply_error();
        exit;
    }
    if (is_method("INVITE")) {
        sl_send_reply("180", "Ringing");
        append_to_reply("Contact: <sip:uas@SERVER>\r\n");
        sl_send_reply("200", "OK");
        exit;
    }
    if (is_method("ACK")) exit;
    sl_send_reply("200", "OK");
}
"#;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::side::Programs;

    fn tls() -> [String; 2] {
        ["/tmp/chain.pem", "/tmp/key.pem"].map(str::to_owned)
    }

    #[test]
    fn both_servers_have_the_same_task() {
        let (hairpin, kamailio) = (hairpin(&tls()), kamailio(&tls()));
        for text in [&hairpin, &kamailio] {
            assert!(text.contains(DOMAIN) && text.contains(PASSWORD), "{text}");
            assert!(text.contains(&sip_address().to_string()), "{text}");
            assert!(text.contains("/tmp/chain.pem") && text.contains("/tmp/key.pem"));
        }
        assert!(hairpin.contains("\"u19\"") && hairpin.contains("\"u9999\""));
        for place in ["REALM", "CERTIFICATE", "PRIVATE_KEY", "SERVER"] {
            assert!(!kamailio.contains(place), "{place}");
        }
        let uas = hairpin_uas(&tls());
        assert!(uas.contains("test_uas = true") && !hairpin.contains("test_uas"));
    }

    #[test]
    fn a_server_gets_the_configuration_of_the_scenario() {
        let programs = Programs {
            hairpin: "hairpin".into(),
            coturn: "turnserver".into(),
            kamailio: "kamailio".into(),
            floor: vec!["hairpin".into(), "bench-floor".into()],
        };
        let command = |name: &str, scenario: &Scenario| {
            let side = Side::parse(name, &programs).unwrap();
            side_for(&side, scenario).command_line(0).join(" ")
        };
        let over = |over| Scenario::Sip {
            work: SipWork::Register,
            over,
        };
        let udp = over(Transport::Udp);
        assert_eq!(
            command("hairpin-sip", &udp),
            "hairpin serve --config={hairpin-sip}"
        );
        assert!(!command("kamailio", &udp).contains("-A"));
        let tls = over(Transport::Tls);
        assert!(command("hairpin-sip", &tls).contains("--set=sip.listen_tls=10.99.1.1:5061"));
        assert!(command("kamailio", &tls).ends_with("-l tls:10.99.1.1:5061"));
        let busy = Scenario::SipOverload {
            work: SipWork::Call,
            service_us: 50,
        };
        for name in ["hairpin-sip", "hairpin-sip-uncontrolled"] {
            let words = command(name, &busy);
            assert!(
                words.contains("{hairpin-uas}") && words.ends_with("service_time=50us"),
                "{words}"
            );
        }
        assert!(command("kamailio", &busy).ends_with("-A LOOPS=300"));
        assert_eq!(command("floor-sip", &udp), "hairpin bench-floor sip 0 ipv4");
    }
}
