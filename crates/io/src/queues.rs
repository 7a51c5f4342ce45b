//! Which processors take the interrupts of an interface's receive queues.
//!
//! ```text
//! /sys/class/net/eth0/device/msi_irqs/25     the interrupts of the device; of virtio, those of the PCI device above it
//! /proc/interrupts    " 25: .. virtio0-input.0"     which of them are of receive queues
//! /proc/irq/25/effective_affinity_list  "1"         where they are taken
//! ```

use std::collections::BTreeSet;
use std::path::Path;
use std::{fs, io};

/// The processors that take the interrupts of the interface's receive queues, in the order of the queues. Empty for an
/// interface without such interrupts: a virtual one, or one whose driver names them in an unknown way.
///
/// # Errors
/// What reading /proc/interrupts returns.
pub fn queue_processors(interface: &str) -> io::Result<Vec<usize>> {
    queue_processors_below(Path::new("/"), interface)
}

/// The interrupt of a receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueInterrupt {
    /// Its number in /proc/irq.
    pub irq: u32,
    /// The number of the queue.
    pub queue: u32,
    /// The processor that takes it, or the first one that may.
    pub processor: Option<usize>,
}

fn queue_processors_below(root: &Path, interface: &str) -> io::Result<Vec<usize>> {
    let all = queue_interrupts(root, interface)?;
    Ok(all.iter().filter_map(|one| one.processor).collect())
}

/// The interrupts of the interface's receive queues, in the order of the queues. `root` is `/`, or the root of a test.
///
/// # Errors
/// What reading /proc/interrupts returns.
pub fn queue_interrupts(root: &Path, interface: &str) -> io::Result<Vec<QueueInterrupt>> {
    let irqs = device_irqs(&root.join("sys/class/net").join(interface).join("device"));
    if irqs.is_empty() {
        return Ok(Vec::new());
    }
    let table = fs::read_to_string(root.join("proc/interrupts"))?;
    let mut queues: Vec<(u32, u32)> = receive_queues(&table)
        .filter(|(irq, _)| irqs.contains(irq))
        .map(|(irq, queue)| (queue, irq))
        .collect();
    queues.sort_unstable();
    let processor = |irq: u32| {
        let of_irq = root.join("proc/irq").join(irq.to_string());
        let names = ["effective_affinity_list", "smp_affinity_list"];
        let mut lists = names
            .iter()
            .map(|name| fs::read_to_string(of_irq.join(name)));
        // Without support of the interrupt controller, the first list is empty.
        lists.find_map(|list| first_processor(&list.ok()?))
    };
    let interrupt = |(queue, irq): (u32, u32)| QueueInterrupt {
        irq,
        queue,
        processor: processor(irq),
    };
    Ok(queues.into_iter().map(interrupt).collect())
}

fn device_irqs(device: &Path) -> BTreeSet<u32> {
    let listed = ["msi_irqs", "../msi_irqs"]
        .iter()
        .find_map(|folder| fs::read_dir(device.join(folder)).ok());
    let names = listed.into_iter().flatten().flatten();
    names
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect()
}

/// The interrupts of receive queues in /proc/interrupts, each with the number of its queue.
fn receive_queues(table: &str) -> impl Iterator<Item = (u32, u32)> {
    table.lines().filter_map(|line| {
        let (irq, rest) = line.split_once(':')?;
        let queue = queue_number(rest.split_whitespace().next_back()?)?;
        Some((irq.trim().parse().ok()?, queue))
    })
}

/// The number in the name of a receive queue's interrupt: `virtio0-input.3`, `eth0-TxRx-3`, `i40e-eth0-TxRx-3`,
/// `ens5-Tx-Rx-3`, `eth0-rx-3`, `mlx5_comp3@pci:0000:03:00.0`. None for what only sends, and for other events.
fn queue_number(name: &str) -> Option<u32> {
    let name = name.split('@').next()?.to_ascii_lowercase();
    let head = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let receives = ["input.", "rx-", "rx", "_comp", "-fp-"];
    let number = name[head.len()..].parse().ok()?;
    receives
        .iter()
        .any(|end| head.ends_with(end))
        .then_some(number)
}

/// The first number of a list such as `1,4-7`.
fn first_processor(list: &str) -> Option<usize> {
    list.trim().split([',', '-']).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_receive_queues_are_recognized() {
        for (name, number) in [
            ("virtio0-input.1", Some(1)),
            ("virtio0-output.1", None),
            ("virtio0-config", None),
            ("eth0-TxRx-12", Some(12)),
            ("i40e-enp1s0f0-TxRx-3", Some(3)),
            ("ens5-Tx-Rx-0", Some(0)),
            ("eth0-rx-7", Some(7)),
            ("eth0-tx-7", None),
            ("mlx5_comp5@pci:0000:03:00.0", Some(5)),
            ("mlx5_async0@pci:0000:03:00.0", None),
            ("ena-mgmnt@pci:0000:00:05.0", None),
            ("timer", None),
        ] {
            assert_eq!(queue_number(name), number, "{name}");
        }
    }

    #[test]
    fn queues_are_found_from_the_interface_to_the_processor() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/queues");
        let processors = |interface| queue_processors_below(&root, interface).unwrap();
        // Two queues, listed in the other order; the first controller has no effective affinity.
        assert_eq!(processors("eth0"), [3, 1]);
        assert!(processors("veth0").is_empty());
    }

    #[test]
    fn loopback_has_no_queues_with_interrupts() {
        assert!(queue_processors("lo").unwrap().is_empty());
    }
}
