//! The gate: the program that clsact attaches in place of the tc program if the kernel has no TCX.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya::maps::ProgramArray;
use aya::programs::SchedClassifier;

use super::Relay;
use crate::BpfError;
use crate::object::Object;
use crate::reason::Kernel;
use crate::sys::{self, AttachType};

/// The oldest kernel for the gate. The tc program behind it requires a newer kernel.
const NEEDS: Kernel = Kernel(5, 1);

/// A small program that calls the tc program, for one clsact filter.
///
/// A clsact filter outlives the process that attached it. The kernel empties the gate's array of programs when the last
/// descriptor of the array is closed. Only this value has that descriptor. So after this value is dropped, or the
/// process is killed, the filter passes every packet.
pub struct Gate {
    /// Holds the array's only descriptor.
    _object: Object,
    program: OwnedFd,
}

impl Gate {
    fn load(relay: &SchedClassifier) -> Result<Gate, BpfError> {
        let bytes = aya::include_bytes_aligned!("../../objects/relay_gate.o");
        let mut object = Object::load("relay_gate", bytes, &[])?;
        object.load_program("relay_gate", NEEDS, SchedClassifier::load)?;
        let mut array: ProgramArray<_> = object.map("RELAY")?;
        array.set(0, relay.fd()?, 0)?;
        let program = object.program::<SchedClassifier>("relay_gate")?;
        let program = program.fd()?.as_fd().try_clone_to_owned();
        Ok(Gate {
            program: program.map_err(BpfError::Descriptor)?,
            _object: object,
        })
    }
}

impl AsFd for Gate {
    /// The program to attach as a filter.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }
}

impl std::fmt::Debug for Gate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate")
    }
}

impl Relay {
    /// Whether the kernel can attach the tc program by TCX: Linux 6.6 and later.
    ///
    /// # Errors
    /// When the kernel refuses the program.
    pub fn has_tcx(&mut self) -> Result<bool, BpfError> {
        /// No interface has this index. A kernel with TCX reports that. A kernel without TCX fails earlier, with
        /// EINVAL.
        const NO_INTERFACE: u32 = 0;
        self.load_tc()?;
        let program = self.object.program::<SchedClassifier>("relay_tc")?;
        let program = program.fd()?.as_fd();
        let attached = sys::link(program, NO_INTERFACE, AttachType::TcxIngress, 0);
        Ok(attached.is_err_and(|error| error.raw_os_error() != Some(libc::EINVAL)))
    }

    /// Loads the tc program behind a gate, to be attached by clsact. Requires CAP_BPF and CAP_NET_ADMIN; attaching it
    /// does not require CAP_BPF.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn load_gate(&mut self) -> Result<Gate, BpfError> {
        self.load_tc()?;
        Gate::load(self.object.program::<SchedClassifier>("relay_tc")?)
    }
}
