//! The embedded objects and typed access to what is in them.

use std::os::fd::{AsFd, OwnedFd};

use aya::maps::{HashMap, Map, MapData};
use aya::programs::Program;
use aya::{Ebpf, EbpfLoader, Pod};

use crate::BpfError;

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

    /// The same, with constants of the programs: whatever they rule out, the kernel leaves out of the program.
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
        &'a mut P: TryFrom<&'a mut Program, Error = aya::programs::ProgramError>,
    {
        let program = self.ebpf.program_mut(name).ok_or(BpfError::Missing(name))?;
        Ok(program.try_into()?)
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

    /// Another handle to the map of this name, of whatever type.
    ///
    /// # Errors
    /// [`BpfError::Missing`], or when no file descriptor is left.
    pub(crate) fn own_map(&self, name: &'static str) -> Result<OwnedFd, BpfError> {
        let data = match self.ebpf.map(name) {
            Some(Map::Array(data) | Map::HashMap(data) | Map::PerCpuArray(data)) => data,
            _ => return Err(BpfError::Missing(name)),
        };
        let descriptor = data.fd().as_fd().try_clone_to_owned();
        descriptor.map_err(BpfError::Descriptor)
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
