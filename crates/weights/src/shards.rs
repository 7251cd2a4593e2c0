//! Which files make up a checkpoint.
//!
//! An index names the shards; without one, `model.safetensors` or a complete run of
//! `model-0000x-of-0000y.safetensors`. MTP sidecars are added when they are there. Other
//! files of the folder are left alone. A folder without any of these may hold one GGUF model.

use crate::WeightsError;
use crate::gguf::set::GgufShards;
use crate::json::{self, UniqueMap};
use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::path::{Component, Path, PathBuf};

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";
/// Where MTP weights may lie beside the model, relative to the folder.
pub(crate) const SIDECARS: [&str; 2] = ["model-mtp.safetensors", "mtp/weights.safetensors"];

/// The weight files of a checkpoint, relative to its folder, and the index if there is one.
pub(crate) struct Shards {
    pub(crate) folder: PathBuf,
    pub(crate) files: Vec<String>,
    /// Tensor name -> file.
    pub(crate) index: BTreeMap<String, String>,
}

/// What of a checkpoint has to be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Need {
    All,
    /// Where there is an MTP head, the files that hold it; others may be missing.
    Head,
}

/// What a path holds.
pub(crate) enum FoundCheckpoint {
    Safetensors(Shards),
    Gguf(GgufShards),
}

/// Resolves a folder, or one weight file and the folder around it.
pub(crate) fn find(path: &Path, need: Need) -> Result<FoundCheckpoint, WeightsError> {
    if path.as_os_str().is_empty() {
        return Err(WeightsError::checkpoint(path, "the model path is empty; give a folder"));
    }
    let about = std::fs::metadata(path).map_err(|e| match e.kind() {
        ErrorKind::NotFound => WeightsError::checkpoint(
            path,
            "does not exist; give a model folder, a .safetensors or a .gguf file",
        ),
        _ => WeightsError::io(path, e),
    })?;
    let mut shards = match if about.is_dir() { in_folder(path, need)? } else { single(path)? } {
        FoundCheckpoint::Safetensors(shards) => shards,
        gguf => return Ok(gguf),
    };
    for sidecar in sidecars(&shards.folder) {
        if !shards.files.iter().any(|f| f == sidecar) {
            shards.files.push(sidecar.into());
        }
    }
    Ok(FoundCheckpoint::Safetensors(shards))
}

fn single(path: &Path) -> Result<FoundCheckpoint, WeightsError> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.into(),
        _ => PathBuf::from("."),
    };
    if is_gguf(path) {
        return GgufShards::around(path, folder).map(FoundCheckpoint::Gguf);
    }
    let name = path.file_name().and_then(|name| name.to_str());
    let Some(name) = name.filter(|name| name.ends_with(".safetensors")) else {
        return Err(WeightsError::checkpoint(
            path,
            "not a model; expected a folder, a .safetensors file or a .gguf file",
        ));
    };
    Ok(FoundCheckpoint::Safetensors(Shards {
        folder,
        files: vec![name.into()],
        index: BTreeMap::new(),
    }))
}

fn in_folder(folder: &Path, need: Need) -> Result<FoundCheckpoint, WeightsError> {
    let found = |files, index| {
        Ok(FoundCheckpoint::Safetensors(Shards { folder: folder.into(), files, index }))
    };
    let index_path = folder.join(INDEX);
    if index_path.is_file() {
        let mut index = parse_index(&json::read(&index_path)?)
            .map_err(|why| WeightsError::json(&index_path, why))?;
        let head =
            || index.keys().any(|name| is_mtp_tensor(name)) || sidecars(folder).next().is_some();
        if need == Need::Head && head() {
            leave_out_absent(folder, &mut index);
        }
        let files: BTreeSet<String> = index.values().cloned().collect();
        if let Some(absent) = files.iter().find(|file| !folder.join(file).is_file()) {
            return Err(WeightsError::checkpoint(
                folder,
                format!("{INDEX} names the shard `{absent}`, which is missing; download it"),
            ));
        }
        return found(files.into_iter().collect(), index);
    }
    if folder.join(SINGLE).is_file() {
        return found(vec![SINGLE.into()], BTreeMap::new());
    }
    let names = list(folder)?;
    let shards = numbered(&names).map_err(|why| WeightsError::checkpoint(folder, why))?;
    if !shards.is_empty() {
        return found(shards, BTreeMap::new());
    }
    if let Some(set) = GgufShards::in_folder(folder, &names)? {
        return Ok(FoundCheckpoint::Gguf(set));
    }
    Err(WeightsError::checkpoint(
        folder,
        format!(
            "no weights; looked for {INDEX}, {SINGLE}, model-0000x-of-0000y.safetensors and GGUF files"
        ),
    ))
}

/// The MTP sidecars of a folder.
fn sidecars(folder: &Path) -> impl Iterator<Item = &'static str> {
    SIDECARS.into_iter().filter(|sidecar| folder.join(sidecar).is_file())
}

/// Leaves out what missing files hold, but nothing of an MTP head.
fn leave_out_absent(folder: &Path, index: &mut BTreeMap<String, String>) {
    let files: BTreeSet<String> = index.values().cloned().collect();
    let there: BTreeSet<String> =
        files.into_iter().filter(|file| folder.join(file).is_file()).collect();
    index.retain(|name, file| is_mtp_tensor(name) || there.contains(file));
}

/// Whether a stored name belongs to an MTP head: `mtp.*` in safetensors, `nextn` in GGUF.
pub fn is_mtp_tensor(name: &str) -> bool {
    name.split('.').any(|part| matches!(part, "mtp" | "nextn"))
}

/// Parses a `model.safetensors.index.json`: tensor name -> file inside the folder. A file
/// that points outside the folder is refused.
pub fn parse_index(bytes: &[u8]) -> Result<BTreeMap<String, String>, String> {
    #[derive(serde::Deserialize)]
    struct ShardIndex {
        weight_map: UniqueMap<String>,
    }
    let index: ShardIndex = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    let map = index.weight_map.0;
    if map.is_empty() {
        return Err("weight_map names no tensor".into());
    }
    for (tensor, file) in &map {
        // A backslash or colon is a separator on some systems, so it is refused on all.
        let plain = Path::new(file).components().all(|c| matches!(c, Component::Normal(_)));
        if file.is_empty() || !plain || file.contains(['\\', ':']) {
            return Err(format!(
                "tensor `{tensor}` is mapped to `{file}`; expected a file inside the folder"
            ));
        }
    }
    Ok(map)
}

/// The files of a complete `model-0000x-of-0000y` run; empty when there is no such file.
fn numbered(names: &BTreeSet<String>) -> Result<Vec<String>, String> {
    let Some((first, total)) = names.iter().find_map(|n| Some((n, shard_number(n)?.1))) else {
        return Ok(Vec::new());
    };
    let mut run: Vec<(usize, &String)> = names
        .iter()
        .filter_map(|name| Some((shard_number(name)?, name)))
        .map(|((number, of), name)| {
            let one_set = of == total && number >= 1 && number <= total;
            if one_set { Ok((number, name)) } else { Err(mixed(first, name)) }
        })
        .collect::<Result<_, _>>()?;
    run.sort();
    for (expected, (number, name)) in (1..).zip(&run) {
        if *number != expected {
            return Err(format!("shard {expected} of {total} is missing before `{name}`"));
        }
    }
    if run.len() != total {
        return Err(format!("found {} of {total} shards beside `{first}`", run.len()));
    }
    Ok(run.into_iter().map(|(_, name)| name.clone()).collect())
}

fn mixed(first: &str, name: &str) -> String {
    format!("`{first}` and `{name}` do not belong to one set of shards")
}

/// `model-00002-of-00005.safetensors` -> (2, 5).
fn shard_number(name: &str) -> Option<(usize, usize)> {
    let middle = name.strip_prefix("model-")?.strip_suffix(".safetensors")?;
    let (number, total) = middle.split_once("-of-")?;
    Some((number.parse().ok()?, total.parse().ok()?))
}

fn list(folder: &Path) -> Result<BTreeSet<String>, WeightsError> {
    let io = |e| WeightsError::io(folder, e);
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        names.extend(entry.map_err(io)?.file_name().into_string());
    }
    Ok(names)
}

fn is_gguf(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = forerun_base::open_regular(path)
        .and_then(|mut file| std::io::Read::read_exact(&mut file, &mut magic));
    path.extension().is_some_and(|e| e == "gguf") || (read.is_ok() && magic == *b"GGUF")
}
