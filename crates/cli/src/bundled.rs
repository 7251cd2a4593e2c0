//! Where the bundled model is.

use anyhow::bail;
use std::path::{Path, PathBuf};

const MODEL: &str = "models/tales-28m";

/// The bundled model's folder: beside the program or above it (a build inside the repository), in
/// the installation's `share`, or in the source tree the program was built from.
pub(crate) fn find() -> anyhow::Result<PathBuf> {
    let places = places(std::env::current_exe().ok().as_deref());
    if let Some(found) = places.iter().find(|place| place.join("config.json").is_file()) {
        return Ok(found.clone());
    }
    let looked: Vec<String> = places.iter().map(|p| format!("  {}", p.display())).collect();
    bail!("no bundled model; give MODEL, a model folder. Looked in:\n{}", looked.join("\n"))
}

fn places(program: Option<&Path>) -> Vec<PathBuf> {
    let folders: Vec<&Path> = program.map(|p| p.ancestors().skip(1).collect()).unwrap_or_default();
    let share = folders.get(1).map(|prefix| prefix.join("share/forerun").join(MODEL));
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).map(|r| r.join(MODEL));
    folders.iter().map(|f| f.join(MODEL)).chain(share).chain(source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_folder_of_the_program_comes_first_and_the_source_tree_last() {
        let places = places(Some(Path::new("/opt/bin/forerun")));
        assert_eq!(places[0], Path::new("/opt/bin/models/tales-28m"));
        assert_eq!(places[1], Path::new("/opt/models/tales-28m"));
        assert!(places.contains(&PathBuf::from("/opt/share/forerun/models/tales-28m")));
        assert!(places.last().unwrap().join("config.json").is_file());
    }
}
