//! The description that an operation gives of itself: operands, expected sizes, cost.
//!
//! One description serves four readers: a backend calls [`OpDesc::check`] before it touches memory, a runner bounds
//! submissions by [`OpDesc::cost`], a device that watches another one in tests reads [`OpDesc::operands`], and
//! [`Timed`](crate::Timed) sets times against costs. The rule on sharing follows what every GPU API can promise: a
//! buffer that is written appears once among an operation's operands. Operands of numbers begin where vectors do
//! ([`View::alignment`]).

use crate::op::{CacheLayout, CacheOrder};
use crate::{BackendError, BufferId, BufferInfo, View, WeightId, WeightInfo};
use forerun_base::DType;

/// What a device knows of the things operands name.
pub trait Catalog {
    /// The buffer, if it exists.
    fn buffer(&self, id: BufferId) -> Option<BufferInfo>;
    /// The weight, if it exists.
    fn weight(&self, id: WeightId) -> Option<WeightInfo>;
    /// The contents of a u32 view, where they are at hand. Costs that depend on indices are exact
    /// then, and upper bounds otherwise.
    fn words(&self, _view: View) -> Option<&[u32]> {
        None
    }
    /// How keys and values lie in the device's caches; an operation on caches of another order is an error.
    fn cache_order(&self) -> CacheOrder {
        CacheOrder::Transposed
    }
}

/// What an operation does to an operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads all of it.
    Read,
    /// Writes all of it without reading it.
    Write,
    /// Reads and writes all of it.
    Update,
    /// Reads elements chosen by indices (cache blocks, slots).
    Gather,
    /// Reads and writes elements chosen by indices.
    Scatter,
}

impl Access {
    /// Whether memory changes.
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::Update | Self::Scatter)
    }
}

/// One operand of one call.
#[derive(Clone, Copy, Debug)]
pub struct Operand {
    /// Its name in the operation's struct.
    pub name: &'static str,
    /// Where it is.
    pub view: View,
    /// What happens to it.
    pub access: Access,
}

/// Work in a call, for submission budgets and rooflines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes that have to move: what is read once and what is written once, however often an implementation
    /// goes back to it. Scratch, whose contents are left unspecified, counts nothing.
    pub bytes: u64,
    /// Those of them that belong to weights.
    pub weights: u64,
    /// Those of them that belong to caches and recurrent state, which outlive a step.
    pub state: u64,
    /// Floating-point operations: a multiply-add is two, an exponential or its like about ten.
    pub flops: u64,
}

/// The most work that one submission may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Bytes read and written.
    pub bytes: u64,
    /// Floating-point operations.
    pub flops: u64,
}

impl Budget {
    /// No limit.
    pub const UNLIMITED: Self = Self { bytes: u64::MAX, flops: u64::MAX };

    /// Whether so much work is within the limit.
    pub const fn holds(&self, cost: Cost) -> bool {
        cost.bytes <= self.bytes && cost.flops <= self.flops
    }
}

impl Budget {
    /// What part of so much work is within the limit; 1 where all of it is.
    pub fn share(&self, cost: Cost) -> f64 {
        let part = |most: u64, work: u64| most as f64 / work.max(1) as f64;
        part(self.bytes, cost.bytes).min(part(self.flops, cost.flops)).min(1.0)
    }
}

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            bytes: self.bytes.saturating_add(other.bytes),
            weights: self.weights.saturating_add(other.weights),
            state: self.state.saturating_add(other.state),
            flops: self.flops.saturating_add(other.flops),
        }
    }
}

const MAX_OPERANDS: usize = 16;

/// See the module's text.
pub struct OpDesc<'a> {
    catalog: &'a dyn Catalog,
    op: &'static str,
    operands: [Operand; MAX_OPERANDS],
    count: usize,
    cost: Cost,
    error: Option<BackendError>,
}

impl<'a> OpDesc<'a> {
    /// An empty description for a call of `op`.
    pub fn new(op: &'static str, catalog: &'a dyn Catalog) -> Self {
        let none = Operand { name: "", view: View::head(BufferId(0), 0), access: Access::Read };
        Self {
            catalog,
            op,
            operands: [none; MAX_OPERANDS],
            count: 0,
            cost: Cost::default(),
            error: None,
        }
    }

    /// An f32 operand of `expected` elements.
    pub fn f32(&mut self, name: &'static str, view: View, access: Access, expected: usize) {
        self.f32_part(name, view, access, expected, expected);
    }

    /// An f32 operand of `expected` elements, of which only `touched` are read or written.
    pub fn f32_part(
        &mut self,
        name: &'static str,
        view: View,
        access: Access,
        expected: usize,
        touched: usize,
    ) {
        self.typed(Operand { name, view, access }, "F32", |d| d == DType::F32, expected, touched);
    }

    /// A u32 operand of `expected` elements.
    pub fn u32(&mut self, name: &'static str, view: View, access: Access, expected: usize) {
        let operand = Operand { name, view, access };
        self.typed(operand, "U32", |d| d == DType::U32, expected, expected);
    }

    /// A cache operand, touched by index: I8 where the layout has codes, else F32, F16 or BF16.
    pub fn cache(&mut self, name: &'static str, view: View, access: Access, layout: &CacheLayout) {
        let (len, operand) = (layout.len(), Operand { name, view, access });
        if layout.coded {
            self.typed(operand, "I8", |d| d == DType::I8, len, len);
        } else {
            let float = |d| matches!(d, DType::F32 | DType::F16 | DType::BF16);
            self.typed(operand, "F32, F16 or BF16", float, len, len);
        }
    }

    /// An f32 operand of `expected` elements that begins anywhere.
    pub fn f32_anywhere(
        &mut self,
        name: &'static str,
        view: View,
        access: Access,
        expected: usize,
    ) {
        let operand = Operand { name, view, access };
        self.placed(operand, "F32", |d| d == DType::F32, expected, expected);
    }

    /// An operand that begins where vectors do, unless it is indices, which are read one by one.
    fn typed(
        &mut self,
        operand: Operand,
        types: &'static str,
        fits: impl Fn(DType) -> bool,
        expected: usize,
        touched: usize,
    ) {
        self.placed(operand, types, fits, expected, touched);
        let Operand { name, view, .. } = operand;
        let numbers = |info: BufferInfo| info.dtype != DType::U32;
        if self.catalog.buffer(view.buffer).is_some_and(numbers)
            && !view.start.is_multiple_of(view.alignment())
        {
            let (op, start, multiple) = (self.op, view.start, view.alignment());
            self.fail(BackendError::Alignment { op, operand: name, start, multiple });
        }
    }

    fn placed(
        &mut self,
        operand: Operand,
        types: &'static str,
        fits: impl Fn(DType) -> bool,
        expected: usize,
        touched: usize,
    ) {
        let Operand { name, view, access } = operand;
        let op = self.op;
        let Some(info) = self.catalog.buffer(view.buffer) else {
            return self.fail(BackendError::OutOfRange { op, operand: name });
        };
        if !fits(info.dtype) {
            let found = info.dtype;
            return self.fail(BackendError::Type { op, operand: name, expected: types, found });
        }
        if view.len != expected {
            let found = view.len;
            return self.fail(BackendError::Length { op, operand: name, expected, found });
        }
        if view.start.checked_add(view.len).is_none_or(|end| end > info.len) {
            return self.fail(BackendError::OutOfRange { op, operand: name });
        }
        let shared = self.operands().iter().any(|other| {
            let together = other.view.len > 0 && view.len > 0;
            let written = other.access.writes() || access.writes();
            together && written && other.view.buffer == view.buffer
        });
        if shared {
            return self.fail(BackendError::Alias { op, operand: name });
        }
        // Indexed operands are charged by the operation itself, which knows how much it touches.
        let bytes = (touched * info.dtype.size()) as u64;
        self.cost.bytes += match access {
            Access::Read | Access::Write => bytes,
            Access::Update => 2 * bytes,
            Access::Gather | Access::Scatter => 0,
        };
        self.operands[self.count] = operand;
        self.count += 1;
    }

    /// A weight of shape `[rows, cols]`, read once.
    pub fn weight(&mut self, name: &'static str, id: WeightId, [rows, cols]: [usize; 2]) {
        self.shape(name, id, [rows, cols]);
        self.weight_bytes(self.catalog.weight(id).map_or(0, |info| info.bytes as u64));
    }

    /// A weight of shape `[rows, cols]`, of which the operation charges what it reads itself.
    pub fn shape(&mut self, name: &'static str, id: WeightId, [rows, cols]: [usize; 2]) {
        if let Some(info) = self.weight_info(name, id)
            && [info.rows, info.cols] != [rows, cols]
        {
            let (expected, found) = ([rows, cols], [info.rows, info.cols]);
            let op = self.op;
            self.fail(BackendError::WeightShape { op, operand: name, expected, found });
        }
    }

    /// What the device knows of a weight; a missing one is noted as an error.
    pub fn weight_info(&mut self, name: &'static str, id: WeightId) -> Option<WeightInfo> {
        let info = self.catalog.weight(id);
        if info.is_none() {
            self.fail(BackendError::OutOfRange { op: self.op, operand: name });
        }
        info
    }

    /// Element bytes of a buffer, for costs of indexed operands.
    pub fn element_bytes(&self, view: View) -> u64 {
        self.catalog.buffer(view.buffer).map_or(0, |info| info.dtype.size() as u64)
    }

    /// The order of the device's caches.
    pub fn cache_order(&self) -> CacheOrder {
        self.catalog.cache_order()
    }

    /// The contents of a u32 view, where the device has them at hand.
    pub fn words(&self, view: View) -> Option<&'a [u32]> {
        self.catalog.words(view)
    }

    /// How many different numbers a u32 view holds, `most` where it cannot be looked into.
    pub fn distinct(&self, view: View, most: usize) -> usize {
        let Some(words) = self.words(view) else { return most };
        let mut words = words.to_vec();
        words.sort_unstable();
        words.dedup();
        words.len().min(most)
    }

    /// Notes an error unless `ok`.
    pub fn require(&mut self, ok: bool, what: &'static str) {
        if !ok {
            self.fail(BackendError::Parameter { op: self.op, what });
        }
    }

    /// Adds bytes of weights of which only a part is read.
    pub fn weight_bytes(&mut self, bytes: u64) {
        self.cost.bytes += bytes;
        self.cost.weights += bytes;
    }

    /// Adds bytes of caches or recurrent state.
    pub fn state_bytes(&mut self, bytes: u64) {
        self.cost.bytes += bytes;
        self.cost.state += bytes;
    }

    /// Adds work that operands do not show.
    pub fn work(&mut self, bytes: u64, flops: u64) {
        self.cost.bytes += bytes;
        self.cost.flops += flops;
    }

    fn fail(&mut self, error: BackendError) {
        self.error.get_or_insert(error);
    }

    /// The first thing wrong with the call, if any.
    pub fn check(self) -> Result<Cost, BackendError> {
        match self.error {
            Some(error) => Err(error),
            None => Ok(self.cost),
        }
    }

    /// The operands described so far.
    pub fn operands(&self) -> &[Operand] {
        &self.operands[..self.count]
    }

    /// The work described so far.
    pub fn cost(&self) -> Cost {
        self.cost
    }
}
