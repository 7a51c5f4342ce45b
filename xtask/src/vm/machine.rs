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

/// The output of the two serial ports of a machine.
#[derive(Debug)]
pub(crate) struct SerialOutput {
    /// What the checks printed, by the protocol of `guest/init`.
    pub(crate) results: String,
    /// Where it is, for a person.
    pub(crate) results_file: PathBuf,
    /// What the kernel printed.
    pub(crate) console_file: PathBuf,
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
    })
}

impl SerialOutput {
    /// Whether QEMU has executed a breakpoint that the kernel had taken back already: so Linux patches its own code
    /// while another processor runs it. Emulated processors see such a change late at times, and the kernel takes the
    /// breakpoint for a fault.
    pub(crate) fn is_of_stale_breakpoint(&self) -> bool {
        let console = fs::read(&self.console_file).unwrap_or_default();
        String::from_utf8_lossy(&console).contains("Oops: int3:")
    }
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
        // Mitigations cost an emulated processor a third of its time, and guard nothing here.
        .arg(format!(
            "console=ttyS0 quiet panic=1 mitigations=off {words}"
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
