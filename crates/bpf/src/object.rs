//! The embedded objects and typed access to what is in them.

use std::os::fd::{AsFd, OwnedFd};

use aya::maps::{HashMap, Map, MapData};
use aya::programs::{Program, ProgramError};
use aya::{Ebpf, EbpfLoader, Pod};

use crate::BpfError;
use crate::reason::{self, Kernel};

/// One loaded object.
pub(crate) struct Object {
    ebpf: Ebpf,
}

impl Object {
    /// Loads `bytes`, with the named maps sized as given.
    ///
    /// # Errors
    /// [`BpfError::Load`] when the kernel refuses a map.
    pub(crate) fn load(
        name: &'static str,
        bytes: &[u8],
        sizes: &[(&'static str, u32)],
    ) -> Result<Object, BpfError> {
        Object::load_with(name, bytes, sizes, &[])
    }

    /// Also sets constants of the programs. The kernel removes the code that these constants rule out.
    ///
    /// # Errors
    /// [`BpfError::Load`] when the kernel refuses a map, or a constant is of another size.
    pub(crate) fn load_with(
        name: &'static str,
        bytes: &[u8],
        sizes: &[(&'static str, u32)],
        constants: &[(&'static str, &[u8])],
    ) -> Result<Object, BpfError> {
        let mut loader = EbpfLoader::new();
        // The programs read stable ABI only: the kernel's own types (megabytes to parse) are not
        // needed.
        loader.btf(None);
        for (map, entries) in sizes {
            loader.map_max_entries(map, *entries);
        }
        for (constant, value) in constants {
            loader.override_global(constant, *value, true);
        }
        match loader.load(bytes) {
            Ok(ebpf) => Ok(Object { ebpf }),
            Err(source) => Err(BpfError::Load {
                object: name,
                why: reason::of_loader(&source),
                source: Box::new(source),
            }),
        }
    }

    /// The program of this name, as the type the caller asks for.
    ///
    /// # Errors
    /// [`BpfError::Missing`] or a program of another type.
    pub(crate) fn program<'a, P>(&'a mut self, name: &'static str) -> Result<&'a mut P, BpfError>
    where
        &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
    {
        let program = self.ebpf.program_mut(name).ok_or(BpfError::Missing(name))?;
        Ok(program.try_into()?)
    }

    /// Has the kernel check the program of this name; it needs at least kernel `needs`.
    ///
    /// # Errors
    /// [`BpfError::Rejected`] when the kernel refuses, [`BpfError::Missing`] or a program of another type.
    pub(crate) fn load_program<'a, P>(
        &'a mut self,
        name: &'static str,
        needs: Kernel,
        load: impl FnOnce(&'a mut P) -> Result<(), ProgramError>,
    ) -> Result<(), BpfError>
    where
        P: 'a,
        &'a mut P: TryFrom<&'a mut Program, Error = ProgramError>,
    {
        load(self.program(name)?).map_err(|error| BpfError::rejected(name, needs, error))
    }

    /// The map of this name, as the type the caller asks for.
    ///
    /// # Errors
    /// [`BpfError::Missing`] or a map of another type.
    pub(crate) fn map<'a, M>(&'a mut self, name: &'static str) -> Result<M, BpfError>
    where
        M: TryFrom<&'a mut Map, Error = aya::maps::MapError>,
    {
        let map = self.ebpf.map_mut(name).ok_or(BpfError::Missing(name))?;
        Ok(map.try_into()?)
    }

    /// Another handle to the map of this name, of any type.
    ///
    /// # Errors
    /// [`BpfError::Missing`], or when no file descriptor is left.
    pub(crate) fn own_map(&self, name: &'static str) -> Result<OwnedFd, BpfError> {
        let data = match self.ebpf.map(name) {
            Some(
                Map::Array(data)
                | Map::HashMap(data)
                | Map::PerCpuArray(data)
                | Map::LpmTrie(data)
                | Map::ProgramArray(data)
                | Map::ReusePortSockArray(data),
            ) => data,
            _ => return Err(BpfError::Missing(name)),
        };
        let descriptor = data.fd().as_fd().try_clone_to_owned();
        descriptor.map_err(BpfError::Descriptor)
    }

    /// Another handle to the loaded program of this name.
    ///
    /// # Errors
    /// [`BpfError::Missing`], or when no file descriptor is left.
    pub(crate) fn own_program(&self, name: &'static str) -> Result<OwnedFd, BpfError> {
        let program = self.ebpf.program(name).ok_or(BpfError::Missing(name))?;
        let fd = program.fd()?;
        fd.as_fd()
            .try_clone_to_owned()
            .map_err(BpfError::Descriptor)
    }

    /// Another handle to the hash map of this name, which does not borrow the object.
    ///
    /// # Errors
    /// [`BpfError::Missing`], or when no file descriptor is left.
    pub(crate) fn own_hash<K: Pod, V: Pod>(
        &self,
        name: &'static str,
    ) -> Result<HashMap<MapData, K, V>, BpfError> {
        let Some(Map::HashMap(data)) = self.ebpf.map(name) else {
            return Err(BpfError::Missing(name));
        };
        let descriptor = data.fd().as_fd().try_clone_to_owned();
        let data = MapData::from_fd(descriptor.map_err(BpfError::Descriptor)?)?;
        Ok(Map::HashMap(data).try_into()?)
    }
}

/// A one-element array map, which is how the programs keep their configuration and state.
pub(crate) type Cell<'a, T> = aya::maps::Array<&'a mut MapData, T>;

/// Bytes that a program and this crate both see as a C structure of `T`'s layout.
///
/// A wrapper only because `Pod` cannot be implemented for arrays of this crate's choosing.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Bytes<const N: usize>(pub(crate) [u8; N]);

// SAFETY: a byte array has no padding and every bit pattern is a value.
unsafe impl<const N: usize> aya::Pod for Bytes<N> {}

#[cfg(test)]
mod tests {
    use super::*;
    use aya::programs::SchedClassifier;

    /// The relay with each call of `redirect` turned into one of a function that no kernel has.
    fn broken() -> Vec<u8> {
        const CALL: [u8; 8] = [0x85, 0, 0, 0, 23, 0, 0, 0];
        let mut bytes = aya::include_bytes_aligned!("../objects/relay.o").to_vec();
        let mut calls = 0;
        for at in (0..bytes.len() - CALL.len()).step_by(CALL.len()) {
            if bytes[at..].starts_with(&CALL) {
                bytes[at + 5] = 0x7f;
                calls += 1;
            }
        }
        assert!(calls > 0, "relay.o does not redirect any more");
        bytes
    }

    #[test]
    fn verifier_errors_have_one_line_and_the_log_is_kept() {
        let sizes = ["FLOWS_V4", "FLOWS_V6", "COUNTS", "SETTLING", "BUCKETS"].map(|map| (map, 2));
        let mut object = match Object::load("broken", &broken(), &sizes) {
            Ok(object) => object,
            Err(error) => {
                eprintln!("skipped: {error}");
                return;
            }
        };
        let error = object
            .load_program("relay_tc", Kernel(5, 12), SchedClassifier::load)
            .unwrap_err();
        let text = error.to_string();
        assert!(text.contains("rejects the program relay_tc: "), "{text}");
        assert!(!text.contains('\n') && text.len() < 400, "{text}");
        let log = error.verifier_log().unwrap();
        assert!(log.lines().count() > 100, "{} lines", log.lines().count());
    }
}
