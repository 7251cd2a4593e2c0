//! Queries, keys and values on their way from their projections to attention.

use crate::op::CacheLayout;
use crate::{Access, OpDesc, View, WeightId};

/// Rotates queries in place, and writes keys and values to their places in the cache.
///
/// # Math
/// Per head, an optional norm: `x / sqrt(mean(x²) + eps) · weight`. Then, of queries and keys, the first `rotary` dims
/// are rotated in pairs `(i, i + rotary/2)`: `y_i = x_i cos − x_j sin`, `y_j = x_j cos + x_i sin`.
#[derive(Clone, Copy, Debug)]
pub struct AttentionInputs {
    /// `[rows, rotary]` from [`RopeTable`](crate::op::RopeTable).
    pub table: View,
    /// Dims that are rotated; even, at most `head_dim`.
    pub rotary: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Absent where only keys are remembered.
    pub queries: Option<Queries>,
    /// Absent where another layer's keys are read.
    pub keys: Option<NewKeys>,
}

/// A norm of each head.
#[derive(Clone, Copy, Debug)]
pub struct HeadNorm {
    /// `[1, head_dim]`.
    pub weight: WeightId,
    /// Added to the mean square.
    pub eps: f32,
}

/// Queries of some rows.
#[derive(Clone, Copy, Debug)]
pub struct Queries {
    /// `[rows, heads, head_dim]`, in place.
    pub q: View,
    /// Heads per row.
    pub heads: usize,
    /// Norm before the rotation.
    pub norm: Option<HeadNorm>,
}

/// Keys and values of some rows, and where they go.
#[derive(Clone, Copy, Debug)]
pub struct NewKeys {
    /// `[rows, kv_heads, head_dim]`.
    pub k: View,
    /// `[rows, kv_heads, head_dim]`; may be those of `k`, as they are before norm and rotation.
    pub v: View,
    /// Norm of keys before the rotation.
    pub k_norm: Option<HeadNorm>,
    /// Norm of values.
    pub v_norm: Option<HeadNorm>,
    /// u32 `[rows]`: `block·layout.block + position in block`.
    pub places: View,
    /// All keys of the layer.
    pub k_cache: View,
    /// All values of the layer.
    pub v_cache: View,
    /// Shape of both caches.
    pub layout: CacheLayout,
}

impl AttentionInputs {
    /// Keys and values as they are to their places, and nothing else.
    pub const fn plain(keys: NewKeys) -> Self {
        let (table, head_dim) = (keys.k.part(0, 0), keys.layout.head_dim);
        Self { table, rotary: 0, head_dim, queries: None, keys: Some(keys) }
    }

    pub(super) fn describe(&self, desc: &mut OpDesc<'_>) {
        let Self { rotary, head_dim, .. } = *self;
        desc.require(head_dim > 0, "heads of no width");
        desc.require(
            rotary <= head_dim && rotary.is_multiple_of(2),
            "rotary width must be even and at most the head width",
        );
        desc.require(self.queries.is_some() || self.keys.is_some(), "neither queries nor keys");
        let rows = match (self.queries, self.keys) {
            (_, Some(keys)) => keys.places.len,
            (Some(Queries { q, heads, .. }), None) => q.len / (heads * head_dim).max(1),
            (None, None) => 0,
        };
        desc.f32("table", self.table, Access::Read, rows * rotary);
        if let Some(queries) = self.queries {
            queries.describe(desc, rows, rotary, head_dim);
        }
        if let Some(keys) = self.keys {
            desc.require(keys.layout.head_dim == head_dim, "a cache of heads of another width");
            keys.describe(desc, rows, rotary);
        }
    }
}

impl HeadNorm {
    /// The norm of `numbers` of some heads.
    fn describe(self, name: &'static str, desc: &mut OpDesc<'_>, head_dim: usize, numbers: usize) {
        desc.weight(name, self.weight, [1, head_dim]);
        desc.work(0, 4 * numbers as u64);
    }
}

impl Queries {
    fn describe(self, desc: &mut OpDesc<'_>, rows: usize, rotary: usize, head_dim: usize) {
        desc.require(self.heads > 0, "queries of no heads");
        let numbers = rows * self.heads * head_dim;
        let rotated = rows * self.heads * rotary.min(head_dim);
        let touched = if self.norm.is_some() { numbers } else { rotated };
        desc.f32_part("q", self.q, Access::Update, numbers, touched);
        if let Some(norm) = self.norm {
            norm.describe("q_norm", desc, head_dim, numbers);
        }
        desc.work(0, 3 * rotated as u64);
    }
}

impl NewKeys {
    fn describe(self, desc: &mut OpDesc<'_>, rows: usize, rotary: usize) {
        let layout = &self.layout;
        layout.describe(desc);
        let CacheLayout { kv_heads, head_dim, .. } = *layout;
        let numbers = rows * kv_heads * head_dim;
        desc.f32("k", self.k, Access::Read, numbers);
        desc.f32("v", self.v, Access::Read, numbers);
        for (name, norm) in [("k_norm", self.k_norm), ("v_norm", self.v_norm)] {
            if let Some(norm) = norm {
                norm.describe(name, desc, head_dim, numbers);
            }
        }
        desc.u32("places", self.places, Access::Read, rows);
        desc.cache("k_cache", self.k_cache, Access::Scatter, layout);
        desc.cache("v_cache", self.v_cache, Access::Scatter, layout);
        let element = desc.element_bytes(self.k_cache) + desc.element_bytes(self.v_cache);
        desc.state_bytes((rows * kv_heads * layout.stored()) as u64 * element);
        desc.work(0, 3 * (rows * kv_heads * rotary) as u64);
    }
}
