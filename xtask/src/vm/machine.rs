//! QEMU without KVM, so that the tests also run on machines without hardware virtualization.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::kernels::Kernel;
use crate::process::{self, Ended, Process};

/// From power on to power off. On an idle host, a machine takes a quarter of it.
const MACHINE_TIMEOUT: Duration = Duration::from_secs(480);
/// How many lines of the kernel's output are shown if its machine has not run all checks: those of an oops.
const CONSOLE_LINES: usize = 40;

/// The output of the two serial ports of a machine.
#[derive(Debug)]
pub(crate) struct SerialOutput {
    /// What the checks printed, by the protocol of `guest/init`.
    pub(crate) results: String,
    /// Where it is, for a person.
    pub(crate) results_file: PathBuf,
    /// What the kernel printed.
    pub(crate) console_file: PathBuf,
    /// Whether the machine was still on after [`MACHINE_TIMEOUT`].
    is_timed_out: bool,
}

/// Boots a kernel, and waits until it has run all checks and switched itself off.
pub(crate) fn run(kernel: &Kernel, initrd: &Path) -> Result<SerialOutput> {
    let results_file = kernel.folder.join("results.txt");
    let console_file = kernel.folder.join("console.txt");
    // What an earlier run left must not pass for this one's.
    let _ = fs::remove_file(&results_file);
    // The far end of the card with two queues is an interface of the host: in a namespace that ends with QEMU.
    let mut command = process::command("unshare");
    command.args(["--net", "qemu-system-x86_64"]);
    add_hardware(&mut command, kernel, initrd, "");
    for file in [&console_file, &results_file] {
        command
            .arg("-serial")
            .arg(format!("file:{}", file.display()));
    }
    command.args(["-display", "none", "-monitor", "none"]);
    let log = kernel.folder.join("qemu.txt");
    let mut machine = Process::start("qemu-system-x86_64", command, log)?;
    let ended = machine.wait(MACHINE_TIMEOUT)?;
    let results = fs::read(&results_file).unwrap_or_default();
    let results = String::from_utf8_lossy(&results).replace('\r', "");
    if let Ended::Exited(status) = ended
        && !status.success()
    {
        bail!("QEMU ended with {status}: {}", machine.tail());
    }
    Ok(SerialOutput {
        results,
        results_file,
        console_file,
        is_timed_out: ended == Ended::Killed,
    })
}

impl SerialOutput {
    /// Why the machine is to be booted once more; `None` if its results stand.
    pub(crate) fn reason_to_repeat(&self) -> Option<&'static str> {
        if has_stale_breakpoint(&self.console()) {
            return Some("QEMU ran a stale breakpoint");
        }
        // A hang happened once: a machine stopped in the middle of a check, and timeout(1) did not end that check
        // either. The kernel was 5.10, which refuses the programs of the relay.
        self.is_timed_out.then_some("the machine hung")
    }

    /// The last lines that the kernel printed.
    pub(crate) fn last_console_lines(&self) -> String {
        let console = self.console();
        let lines: Vec<&str> = console.lines().collect();
        lines[lines.len().saturating_sub(CONSOLE_LINES)..].join("\n")
    }

    fn console(&self) -> String {
        let console = fs::read(&self.console_file).unwrap_or_default();
        String::from_utf8_lossy(&console).replace('\r', "")
    }
}

/// Whether QEMU has executed a breakpoint that the kernel had taken back already: so Linux patches its own code while
/// another processor runs it. Emulated processors see such a change late at times, and the kernel takes the breakpoint
/// for a fault. Newer kernels print `Oops: ` before it.
fn has_stale_breakpoint(console: &str) -> bool {
    console.contains("int3: 0000 [#")
}

/// Boots a kernel into a shell on this terminal.
pub(crate) fn shell(kernel: &Kernel, initrd: &Path) -> Result<()> {
    let mut command = Command::new("unshare");
    command.args(["--net", "qemu-system-x86_64"]);
    add_hardware(&mut command, kernel, initrd, "shell");
    command.args([
        "-serial",
        "mon:stdio",
        "-serial",
        "null",
        "-display",
        "none",
    ]);
    command.stdin(Stdio::inherit());
    let status = command.status().context("cannot run qemu-system-x86_64")?;
    println!("QEMU: {status}");
    Ok(())
}

/// Whether the host has the driver of the card with two queues.
pub(crate) fn has_tun() -> bool {
    fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/net/tun")
        .is_ok()
}

/// Processors, memory and the kernel.
pub(super) fn add_processors(command: &mut Command, kernel: &Kernel, initrd: &Path, words: &str) {
    command
        .args(["-accel", "tcg,thread=multi"])
        // Processors that may be added count for what the kernel allocates for each. In the package of one that is
        // there, Linux 6.12 does not believe in them.
        .args(["-smp", "2,maxcpus=64,sockets=32,cores=2"])
        // QEMU 7.2 emulates CMPXCHG16B so that Linux 6.12 at times ends in a double fault where it allocates memory.
        .args(["-cpu", "max,-cx16"])
        .args(["-m", "2048", "-no-reboot", "-nodefaults"])
        .arg("-kernel")
        .arg(&kernel.image)
        .arg("-initrd")
        .arg(initrd)
        .arg("-append")
        // Mitigations cost an emulated processor a third of its time, and guard nothing here. An oops ends the machine:
        // the task that it kills may hold a lock, and others would wait for it.
        .arg(format!(
            "console=ttyS0 quiet oops=panic panic=1 mitigations=off {words}"
        ));
}

fn add_hardware(command: &mut Command, kernel: &Kernel, initrd: &Path, words: &str) {
    add_processors(command, kernel, initrd, words);
    // Two network cards on one wire, so that the guest can be both ends of it.
    for card in ["a", "b"] {
        command
            .arg("-netdev")
            .arg(format!("hubport,id={card},hubid=0"))
            .arg("-device")
            .arg(format!("virtio-net-pci,netdev={card}"));
    }
    if !has_tun() {
        return;
    }
    // A card with two queues. QEMU offers several queues only where the host's TUN driver is behind them. Six
    // interrupts: two for each queue, one for its configuration, one for its control queue.
    command
        .args(["-netdev", "tap,id=c,queues=2,script=no,downscript=no"])
        .args(["-device", "virtio-net-pci,netdev=c,mq=on,vectors=6"]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_breakpoint_is_known_on_old_and_new_kernels() {
        let old = "[   31.4] int3: 0000 [#1] SMP NOPTI\n[   31.4] CPU: 1 PID: 0 Comm: swapper/1";
        let new = "[   31.4] Oops: int3: 0000 [#1] PREEMPT SMP NOPTI";
        assert!(has_stale_breakpoint(old));
        assert!(has_stale_breakpoint(new));
        assert!(!has_stale_breakpoint(
            "[   31.4] double fault: 0000 [#1] SMP NOPTI"
        ));
    }
}
