//! What checks read: files of the kernel, and the output of programs.

use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use server::addresses;
use server::offload::{OffloadMethod, probe_interfaces};
use server::{AddressFamily, QueueInterrupt, queue_interrupts};

/// The outcome of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProgramOutcome {
    Text(String),
    /// The program is not installed.
    Missing,
    /// It has failed, and says why.
    Failed(String),
}

/// This machine, or a simulated one in a test.
pub(super) struct System {
    root: PathBuf,
    is_real: bool,
}

/// Where a made up machine has the output of a command.
pub(super) fn place_of(command: &str) -> String {
    format!("/commands/{}", command.replace('/', "_"))
}

impl System {
    pub(super) fn real() -> Self {
        System {
            root: PathBuf::from("/"),
            is_real: true,
        }
    }

    pub(super) fn below(root: &Path) -> Self {
        System {
            root: root.to_owned(),
            is_real: false,
        }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The text of a file.
    pub(super) fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.path(path)).ok()
    }

    /// The number in a file.
    pub(super) fn number(&self, path: &str) -> Option<u64> {
        self.read(path)?.trim().parse().ok()
    }

    pub(super) fn exists(&self, path: &str) -> bool {
        self.path(path).exists()
    }

    /// The names in a directory, in order.
    pub(super) fn list(&self, path: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(path))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort();
        names
    }

    /// Runs a program of the system.
    pub(super) fn run(&self, command: &str) -> ProgramOutcome {
        if !self.is_real {
            return self
                .read(&place_of(command))
                .map_or(ProgramOutcome::Missing, ProgramOutcome::Text);
        }
        let mut words = command.split_whitespace();
        let mut program = Command::new(words.next().unwrap_or_default());
        // Under a user's PATH, programs of the administrator may be missing.
        let path = std::env::var("PATH").unwrap_or_default();
        program.env("PATH", format!("{path}:/usr/local/sbin:/usr/sbin:/sbin"));
        program.env("LC_ALL", "C").args(words).stdin(Stdio::null());
        match program.output() {
            Ok(output) if output.status.success() => {
                ProgramOutcome::Text(String::from_utf8_lossy(&output.stdout).into_owned())
            }
            Ok(output) => {
                let text = String::from_utf8_lossy(&output.stderr);
                ProgramOutcome::Failed(text.lines().next().unwrap_or("it failed").to_owned())
            }
            Err(error) if error.kind() == ErrorKind::NotFound => ProgramOutcome::Missing,
            Err(error) => ProgramOutcome::Failed(error.to_string()),
        }
    }

    /// Processors that are on line.
    pub(super) fn processors(&self) -> Vec<usize> {
        self.read("/sys/devices/system/cpu/online")
            .map(|list| numbers(&list))
            .unwrap_or_default()
    }

    /// The interfaces of the default routes, IPv4 first.
    pub(super) fn default_interfaces(&self) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        let mut add = |name: &str| {
            if name != "lo" && !found.iter().any(|known| known == name) {
                found.push(name.to_owned());
            }
        };
        // Interface, destination, gateway, flags, .., mask.
        for line in self
            .read("/proc/net/route")
            .unwrap_or_default()
            .lines()
            .skip(1)
        {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if let [name, "00000000", _, _, _, _, _, "00000000", ..] = fields[..] {
                add(name);
            }
        }
        // Destination, its prefix, .., interface.
        let nowhere = "0".repeat(32);
        for line in self
            .read("/proc/net/ipv6_route")
            .unwrap_or_default()
            .lines()
        {
            let fields: Vec<&str> = line.split_whitespace().collect();
            if fields.len() == 10 && fields[0] == nowhere && fields[1] == "00" {
                add(fields[9]);
            }
        }
        found
    }

    /// The interrupts of an interface's receive queues.
    pub(super) fn interrupts(&self, interface: &str) -> Vec<QueueInterrupt> {
        queue_interrupts(&self.root, interface).unwrap_or_default()
    }

    /// The addresses that packets to the Internet leave from.
    pub(super) fn routed_addresses(&self) -> Vec<IpAddr> {
        if !self.is_real {
            let text = self.read(&place_of("addresses")).unwrap_or_default();
            return text.lines().filter_map(|line| line.parse().ok()).collect();
        }
        let families = [AddressFamily::V4, AddressFamily::V6];
        families
            .into_iter()
            .filter_map(addresses::default_route)
            .collect()
    }

    /// The addresses of a name.
    pub(super) fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, String> {
        if !self.is_real {
            let text = self.read(&place_of(&format!("resolve {name}")));
            let text = text.ok_or_else(|| "no such name".to_owned())?;
            return Ok(text.lines().filter_map(|line| line.parse().ok()).collect());
        }
        let found = (name, 0).to_socket_addrs();
        let found = found.map_err(|error| error.to_string())?;
        Ok(found.map(|address| address.ip()).collect())
    }

    /// Interfaces, by what the kernel can relay on each, and why by nothing better.
    pub(super) fn probe_interfaces(&self) -> Vec<(String, &'static str, Option<String>)> {
        if !self.is_real {
            // Interface, means, reason.
            let text = self.read(&place_of("prospects")).unwrap_or_default();
            let of = |line: &str| {
                let (name, rest) = line.split_once(' ')?;
                let (method, why) = rest.split_once(' ').unwrap_or((rest, ""));
                let method = ["xdp", "tc"]
                    .into_iter()
                    .find(|it| *it == method)
                    .unwrap_or("user");
                Some((
                    name.to_owned(),
                    method,
                    Some(why.to_owned()).filter(|why| !why.is_empty()),
                ))
            };
            return text.lines().filter_map(of).collect();
        }
        let all = probe_interfaces().unwrap_or_default();
        let one = |it: server::offload::OffloadProbe| {
            let obstacle = it.not_xdp.as_ref().or(it.not_tc.as_ref());
            let why = match it.auto {
                OffloadMethod::User => it.not_tc.as_ref().or(obstacle),
                _ => obstacle,
            };
            (it.interface, it.auto.name(), why.map(ToString::to_string))
        };
        all.into_iter().map(one).collect()
    }
}

/// The numbers of a list such as `0-2,5`.
pub(super) fn numbers(list: &str) -> Vec<usize> {
    let mut all = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse()) {
            // More processors than any kernel has are a broken file.
            all.extend((first..=last).take(65_536));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_the_kernel_are_read() {
        assert_eq!(numbers("0-2,5\n"), [0, 1, 2, 5]);
        assert!(numbers("\n").is_empty() && numbers("none").is_empty());
    }

    #[test]
    fn default_routes_name_their_interfaces() {
        let folder = tempfile::tempdir().unwrap();
        let net = folder.path().join("proc/net");
        fs::create_dir_all(&net).unwrap();
        let zero = "00000000000000000000000000000000";
        fs::write(net.join("route"), "Iface Destination Gateway Flags RefCnt Use Metric Mask MTU Window IRTT\neth0 00000000 0100000A 0003 0 0 0 00000000 0 0 0\neth1 0000000A 00000000 0001 0 0 0 00FFFFFF 0 0 0\n").unwrap();
        let six = format!(
            "{zero} 00 {zero} 00 fe800000000000000000000000000001 00000400 1 0 3 wan0\n{zero} 00 {zero} 00 {zero} ffffffff 1 0 200200 lo\n"
        );
        fs::write(net.join("ipv6_route"), six).unwrap();
        let system = System::below(folder.path());
        assert_eq!(system.default_interfaces(), ["eth0", "wan0"]);
    }

    #[test]
    fn a_missing_program_differs_from_one_that_fails() {
        let system = System::real();
        assert_eq!(
            system.run("hairpin-no-such-program"),
            ProgramOutcome::Missing
        );
        assert!(matches!(
            system.run("ls /nonexistent"),
            ProgramOutcome::Failed(_)
        ));
        assert_eq!(
            system.run("echo a b"),
            ProgramOutcome::Text("a b\n".to_owned())
        );
    }
}
