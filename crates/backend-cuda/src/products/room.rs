//! Device memory for what lives between two kernels of a call.

use crate::driver::{Address, Driver, DriverError};

/// Memory that grows to the largest call so far.
#[derive(Debug, Default)]
pub(super) struct Room {
    at: Option<Address>,
    bytes: u64,
}

impl Room {
    /// At least `bytes`. What was there before is given up, but not given back: launches that were recorded may still name it.
    pub(super) fn of(
        &mut self,
        driver: &mut dyn Driver,
        bytes: usize,
    ) -> Result<Address, DriverError> {
        let bytes = (bytes as u64).max(256);
        match self.at {
            Some(at) if bytes <= self.bytes => Ok(at),
            _ => {
                // Doubling bounds what is given up by what is used.
                let size = bytes.max(2 * self.bytes);
                let at = driver.alloc(size)?;
                (self.at, self.bytes) = (Some(at), size);
                Ok(at)
            }
        }
    }
}
