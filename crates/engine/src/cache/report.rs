//! What the cache did for a request, and in all.

use forerun_base::Token;

/// What a request found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheReport {
    /// Tokens of the prompt that need not be read.
    pub cached_tokens: usize,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of the cached tokens came from disk.
    pub from_disk: usize,
    /// Why no more was found, where more could have been.
    pub miss: Option<Miss>,
}

/// Why the reusable part ends where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// In a word.
    pub reason: MissReason,
    /// The first position that differs, or where what is known of the prompt ends.
    pub at: usize,
    /// The token the cache has there.
    pub expected: Option<Token>,
    /// The token the prompt has there.
    pub found: Option<Token>,
}

/// Kinds of misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MissReason {
    /// There is no cache, or the request does not want it.
    Disabled,
    /// Nothing was published yet, or everything was evicted.
    Empty,
    /// Another first token than anything known.
    NoCommonPrefix,
    /// The prompt is like a known text up to a token.
    Diverged,
    /// The tokens are known further than the last position with a state.
    NoState,
    /// What followed was known once and has been evicted.
    Evicted,
}

impl MissReason {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::Disabled,
        Self::Empty,
        Self::NoCommonPrefix,
        Self::Diverged,
        Self::NoState,
        Self::Evicted,
    ];

    /// The name in metrics and answers.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Disabled => "disabled",
            Self::Empty => "empty",
            Self::NoCommonPrefix => "no_common_prefix",
            Self::Diverged => "diverged",
            Self::NoState => "no_state",
            Self::Evicted => "evicted",
        }
    }
}

/// What a tier holds and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TierStats {
    /// Bytes held.
    pub bytes: u64,
    /// Bytes it may hold.
    pub limit: u64,
    /// Blocks of 64 tokens.
    pub blocks: usize,
    /// Restore points.
    pub states: usize,
    /// Entries dropped to make room.
    pub evictions: u64,
    /// Texts that were not kept because they alone exceed the limit.
    pub refused: u64,
}

/// What the tier on disk holds and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Like the tier in memory.
    pub tier: TierStats,
    /// Bytes written.
    pub written_bytes: u64,
    /// Bytes read and found to be what was written.
    pub read_bytes: u64,
    /// Bytes that wait to be written.
    pub queued_bytes: u64,
    /// Entries that were not written because too many waited.
    pub dropped: u64,
    /// Entries that could not be written.
    pub failed_writes: u64,
    /// Files that were damaged or no entries, and were removed.
    pub bad_files: u64,
}

/// What the cache holds and did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// In host memory.
    pub memory: TierStats,
    /// On disk, where there is a folder.
    pub disk: Option<DiskStats>,
    /// Requests that looked.
    pub queries: u64,
    /// Tokens of their prompts.
    pub query_tokens: u64,
    /// Tokens that were found.
    pub hit_tokens: u64,
    /// How many of those came from disk.
    pub disk_hit_tokens: u64,
    /// Entries published.
    pub published: u64,
    /// Copies that the device failed to make.
    pub failed_copies: u64,
    /// Misses by [`MissReason`], in the order of [`MissReason::ALL`].
    pub misses: [u64; MissReason::ALL.len()],
}

impl CacheStats {
    /// Counts a request's look.
    pub(crate) fn note(&mut self, report: &CacheReport) {
        self.queries += 1;
        self.query_tokens += report.prompt_tokens as u64;
        self.hit_tokens += report.cached_tokens as u64;
        self.disk_hit_tokens += report.from_disk as u64;
        if let Some(miss) = report.miss {
            self.misses[miss.reason as usize] += 1;
        }
    }

    /// Misses of one kind.
    pub const fn misses(&self, reason: MissReason) -> u64 {
        self.misses[reason as usize]
    }
}
