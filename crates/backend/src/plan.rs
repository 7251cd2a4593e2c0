//! Where the memory goes, decided before anything is allocated.

/// One line of the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlanItem {
    /// What it is for: `weights`, `kv cache`, `recurrent state`, …
    pub label: String,
    /// Its size.
    pub bytes: u64,
}

/// All memory an engine will hold after load; a step allocates nothing beyond it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Lines, largest concern first as added.
    pub items: Vec<PlanItem>,
    /// The largest buffer, which some devices limit.
    pub largest: Option<PlanItem>,
}

impl MemoryPlan {
    /// Adds bytes to the line `label`, making it when it is new.
    pub fn add(&mut self, label: &str, bytes: u64) {
        match self.items.iter_mut().find(|item| item.label == label) {
            Some(item) => item.bytes += bytes,
            None => self.items.push(PlanItem { label: label.to_owned(), bytes }),
        }
    }

    /// Adds a buffer to a line.
    pub fn add_buffer(&mut self, line: &str, label: &str, bytes: u64) {
        self.add(line, bytes);
        if self.largest.as_ref().is_none_or(|largest| largest.bytes < bytes) {
            self.largest = Some(PlanItem { label: label.to_owned(), bytes });
        }
    }

    /// Bytes on the line `label`.
    pub fn get(&self, label: &str) -> u64 {
        self.items.iter().find(|item| item.label == label).map_or(0, |item| item.bytes)
    }

    /// Bytes in all.
    pub fn total(&self) -> u64 {
        self.items.iter().map(|item| item.bytes).sum()
    }
}
