//! Device memory for intermediate results between two kernels of a call.

use crate::driver::{Address, Driver, DriverError};

/// Memory that grows to the largest request so far.
#[derive(Debug, Default)]
pub(crate) struct GrowingBuffer {
    at: Option<Address>,
    bytes: u64,
    zeroed: bool,
}

impl GrowingBuffer {
    /// Memory that is filled with zeros when it is made.
    pub(crate) fn zeroed() -> Self {
        Self { zeroed: true, ..Self::default() }
    }

    /// At least `bytes`; the contents are not kept. A smaller buffer is leaked, not freed: recorded launches may still
    /// have its address.
    pub(crate) fn of(
        &mut self,
        driver: &mut dyn Driver,
        bytes: usize,
    ) -> Result<Address, DriverError> {
        let bytes = (bytes as u64).max(256);
        match self.at {
            Some(at) if bytes <= self.bytes => Ok(at),
            _ => {
                // Doubling bounds the leaked bytes by those in use.
                let size = bytes.max(2 * self.bytes);
                let at = driver.alloc(size)?;
                if self.zeroed {
                    // SAFETY: `at` was just allocated with this size.
                    unsafe { driver.fill(at, 0, size) }?;
                }
                (self.at, self.bytes) = (Some(at), size);
                Ok(at)
            }
        }
    }
}
