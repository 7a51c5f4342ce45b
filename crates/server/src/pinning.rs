//! Which processor each worker stays on.

use std::net::SocketAddr;

/// Whether, and where, workers stay on one processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Pinning {
    /// The scheduler moves them.
    #[default]
    Off,
    /// Each on a processor of its own, in ascending order.
    Cores,
    /// The first workers run on the processors that handle the interrupts of the receive queues of a listener's
    /// interface. So a datagram stays in the caches of one processor. The others, and all where no interface has
    /// several such queues: as [`Pinning::Cores`].
    Queues,
}

impl Pinning {
    /// The processors for the workers, in their order; with more workers than processors it begins again. Empty: not
    /// pinned.
    pub(crate) fn processors(self, listeners: &[SocketAddr]) -> Vec<usize> {
        let available = match self {
            Pinning::Off => return Vec::new(),
            Pinning::Cores | Pinning::Queues => io::affinity::available().unwrap_or_default(),
        };
        if self != Pinning::Queues {
            return available;
        }
        let queues = interfaces(listeners)
            .into_iter()
            .map(|name| {
                let processors = io::queue_processors(&name).unwrap_or_default();
                (name, processors)
            })
            .find(|(_, processors)| processors.len() > 1);
        let Some((interface, processors)) = queues else {
            tracing::warn!(
                "no interface of a listener has several receive queues with interrupts: workers are pinned in ascending order"
            );
            return available;
        };
        tracing::info!(
            interface,
            ?processors,
            "workers are pinned beside receive queues"
        );
        in_order(&processors, &available)
    }
}

/// The names of the interfaces that listeners are reached by.
fn interfaces(listeners: &[SocketAddr]) -> Vec<String> {
    let mut names = Vec::new();
    for address in io::interfaces::addresses().unwrap_or_default() {
        let listens = |one: &SocketAddr| {
            one.ip() == address.ip || one.ip().is_unspecified() && !address.loopback
        };
        // An address may have a label of its own behind the name.
        let name = address.name.split(':').next().unwrap_or_default();
        if listeners.iter().any(listens) && !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    names
}

/// Those of `first` that are available, each once, then the others.
fn in_order(first: &[usize], available: &[usize]) -> Vec<usize> {
    let mut order = Vec::with_capacity(available.len());
    for processor in first.iter().chain(available) {
        if available.contains(processor) && !order.contains(processor) {
            order.push(*processor);
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn workers_beyond_the_queues_get_the_other_processors() {
        assert_eq!(in_order(&[3, 1, 3, 9], &[0, 1, 2, 3]), [3, 1, 0, 2]);
        assert_eq!(in_order(&[], &[0, 1]), [0, 1]);
    }

    #[test]
    fn without_queues_each_worker_has_a_processor_in_ascending_order() {
        let listeners = [SocketAddr::from(([127, 0, 0, 1], 3478))];
        let available = io::affinity::available().expect("the mask of this thread");
        assert_eq!(Pinning::Queues.processors(&listeners), available);
        assert_eq!(Pinning::Cores.processors(&listeners), available);
        assert!(Pinning::Off.processors(&listeners).is_empty());
    }
}
