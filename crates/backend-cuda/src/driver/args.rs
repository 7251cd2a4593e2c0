//! A kernel's struct, field by field, laid out as C lays it out.

use super::Address;

/// Bytes of the largest struct.
const ROOM: usize = 512;

/// The fields of a kernel's struct in order; each stands where C would put it.
#[derive(Clone, Debug)]
pub struct Args {
    bytes: [u8; ROOM],
    len: usize,
    align: usize,
}

/// What can be a field.
pub trait Argument: Copy {
    /// Hands the field's bytes over; their number is its alignment.
    fn lay(self, lay: impl FnOnce(&[u8]));
}

macro_rules! argument {
    ($($name:ty),*) => {$(
        impl Argument for $name {
            fn lay(self, lay: impl FnOnce(&[u8])) {
                lay(&self.to_ne_bytes());
            }
        }
    )*};
}

argument!(u32, i32, f32, u64);

impl Argument for Address {
    fn lay(self, lay: impl FnOnce(&[u8])) {
        self.0.lay(lay);
    }
}

impl Default for Args {
    fn default() -> Self {
        Self { bytes: [0; ROOM], len: 0, align: 1 }
    }
}

impl Args {
    /// A struct without fields.
    pub fn new() -> Self {
        Self::default()
    }

    /// One more field.
    ///
    /// # Panics
    /// When the struct is larger than any kernel's.
    #[must_use]
    pub fn with(mut self, field: impl Argument) -> Self {
        field.lay(|bytes| {
            let at = self.len.next_multiple_of(bytes.len());
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
            self.len = at + bytes.len();
            self.align = self.align.max(bytes.len());
        });
        self
    }

    /// One more field, a size that kernels count in 32 bits.
    ///
    /// # Panics
    /// As [`Args::with`], and when the size has more bits.
    #[must_use]
    pub fn size(self, size: usize) -> Self {
        self.with(u32::try_from(size).expect("sizes in kernels have 32 bits"))
    }

    /// The whole struct.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len.next_multiple_of(self.align)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_stand_where_c_puts_them() {
        let args = Args::new().with(1_u32).with(Address(2)).with(3.0_f32);
        let expected: Vec<u8> =
            [1_u32, 0, 2, 0, 3.0_f32.to_bits(), 0].into_iter().flat_map(u32::to_ne_bytes).collect();
        assert_eq!(args.bytes(), expected);
        assert_eq!(Args::new().with(7_u32).bytes().len(), 4);
        assert!(Args::new().bytes().is_empty());
    }
}
