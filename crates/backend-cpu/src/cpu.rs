//! The device: memory plus kernels. Operations run when they are called, so every ticket is already complete.

use crate::{Kernels, Memory, Plain};
use forerun_backend::{
    Backend, BackendError, BufferId, BufferInfo, BufferSpec, Catalog, HostData, HostDataMut, Op,
    Ticket, View, WeightId, WeightInfo, for_each_operation, op,
};
use forerun_base::Matrix;

/// A CPU device with the given kernels.
#[derive(Debug, Default)]
pub struct Cpu<K> {
    memory: Memory,
    kernels: K,
}

/// The reference device: slow, simple, what tuned kernels are tested against.
pub fn plain() -> Cpu<Plain> {
    Cpu::with_kernels(Plain)
}

impl<K: Kernels> Cpu<K> {
    /// A device that runs `kernels`.
    pub fn with_kernels(kernels: K) -> Self {
        Self { memory: Memory::default(), kernels }
    }
}

impl<K> Catalog for Cpu<K> {
    fn buffer(&self, id: BufferId) -> Option<BufferInfo> {
        self.memory.buffer(id)
    }

    fn weight(&self, id: WeightId) -> Option<WeightInfo> {
        self.memory.weight(id)
    }
}

macro_rules! checked {
    ($($name:ident: $op:ident),* $(,)?) => {$(
        fn $name(&mut self, op: op::$op) -> Result<(), BackendError> {
            Op::from(op).desc(&self.memory).check()?;
            self.kernels.$name(&mut self.memory, op)
        }
    )*};
}

impl<K: Kernels> Backend for Cpu<K> {
    fn name(&self) -> String {
        self.kernels.name()
    }

    fn arithmetic(&self) -> String {
        self.kernels.arithmetic()
    }

    fn alloc(&mut self, spec: BufferSpec<'_>) -> Result<BufferId, BackendError> {
        self.memory.alloc(spec)
    }

    fn upload(&mut self, _label: &str, matrix: Matrix) -> Result<WeightId, BackendError> {
        Ok(self.memory.upload(self.kernels.keep(matrix)))
    }

    fn write(&mut self, dst: View, src: HostData<'_>) -> Result<(), BackendError> {
        self.memory.write(dst, src)
    }

    fn submit(&mut self) -> Result<Ticket, BackendError> {
        Ok(Ticket(0))
    }

    fn wait(&mut self, _ticket: Ticket) -> Result<(), BackendError> {
        Ok(())
    }

    fn read(&mut self, src: View, dst: HostDataMut<'_>) -> Result<(), BackendError> {
        self.memory.read(src, dst)
    }

    for_each_operation! { checked }
}
