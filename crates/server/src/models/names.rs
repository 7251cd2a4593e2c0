//! Under which names a model is asked for.

/// The names that a model answers to.
#[derive(Debug)]
pub(crate) struct ModelNames {
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
}

impl ModelNames {
    /// Whether a client's name for a model is this one, by an alias for many names, too.
    pub(crate) fn is_called(&self, name: &str) -> bool {
        let is = |alias: &String| alias.strip_suffix('*').is_some_and(|it| name.starts_with(it));
        self.has(name) || self.aliases.iter().any(is)
    }

    /// Whether a name is one of its own.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.names().any(|own| own == name)
    }

    /// The names that can be listed: its own, and aliases that stand for one name.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let aliases = self.aliases.iter().filter(|alias| !alias.ends_with('*'));
        std::iter::once(&self.name).chain(aliases).map(String::as_str)
    }

    /// Whether it answers to names that cannot be listed.
    pub(crate) fn has_open_names(&self) -> bool {
        self.aliases.iter().any(|alias| alias.ends_with('*'))
    }
}
