//! `--models`: which models there are, and how each is loaded when somebody asks for it.

use super::sizes;
use crate::args::ServeArgs;
use crate::device;
use crate::exit::usage;
use crate::load::{ModelSource, with_option};
use anyhow::{Context, anyhow, bail};
use forerun::ModelFiles;
use forerun_engine::DiskSettings;
use forerun_server::{LoadError, LoadModel, LoadedModel, ModelDetails, ModelEntry, RoomLeft};
use serde::Deserialize;
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Folders inside folders that are looked into.
const DEPTH: usize = 3;

/// A model of a file of models.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedModel {
    path: PathBuf,
    #[serde(default)]
    aliases: Vec<String>,
    ctx: Option<usize>,
}

/// A model that is there, under its name.
#[derive(Debug)]
struct NamedModel {
    name: String,
    model: ListedModel,
}

/// The models of a folder, or of a file that names them.
pub(super) fn entries(path: &Path, args: &Arc<ServeArgs>) -> anyhow::Result<Vec<ModelEntry>> {
    let named = if path.is_dir() { in_folder(path)? } else { in_file(path)? };
    if named.is_empty() {
        bail!(
            "{} holds no model: no folder with config.json and weights, and no .gguf file",
            path.display()
        );
    }
    check_names(&named).map_err(usage)?;
    let entry = |NamedModel { name, model }: NamedModel| {
        let ListedModel { path, aliases, ctx } = model;
        let (args, of) = (Arc::clone(args), name.clone());
        let loader = Arc::new(Loader { name: of, path, ctx, args });
        ModelEntry { name, aliases, loader }
    };
    Ok(named.into_iter().map(entry).collect())
}

fn check_names(named: &[NamedModel]) -> anyhow::Result<()> {
    let mut seen = HashSet::new();
    for NamedModel { name, model } in named {
        for name in std::iter::once(name).chain(&model.aliases) {
            if name.is_empty() || !seen.insert(name) {
                bail!("two models are called {name:?}; a file of models gives them names");
            }
        }
    }
    Ok(())
}

/// Model folders and .gguf files, by their names; where two have the same, by their paths.
fn in_folder(folder: &Path) -> anyhow::Result<Vec<NamedModel>> {
    let mut found = Vec::new();
    look(folder, DEPTH, &mut found)?;
    found.sort();
    let short = |path: &Path| {
        let name = if path.is_file() { path.file_stem() } else { path.file_name() };
        let name = name.unwrap_or_default().to_string_lossy();
        // Of a model in parts, the first one stands for all.
        name.split_once("-00001-of-").map_or(name.as_ref(), |(name, _)| name).to_owned()
    };
    let named = |path: &PathBuf| {
        let name = short(path);
        let alone = found.iter().filter(|other| short(other) == name).count() == 1;
        let whole = || path.strip_prefix(folder).unwrap_or(path).display().to_string();
        let model = ListedModel { path: path.clone(), aliases: Vec::new(), ctx: None };
        NamedModel { name: if alone { name } else { whole() }, model }
    };
    Ok(found.iter().map(named).collect())
}

fn look(folder: &Path, depth: usize, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = std::fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    for entry in entries {
        let path = entry.with_context(|| folder.display().to_string())?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            if path.join("config.json").is_file() {
                found.push(path);
            } else if depth > 1 && !name.starts_with('.') {
                look(&path, depth - 1, found)?;
            }
        } else if is_gguf_model(&name) {
            found.push(path);
        }
    }
    Ok(())
}

/// A whole model or the first part of one; a projector of images is none.
fn is_gguf_model(name: &str) -> bool {
    let Some(stem) = name.strip_suffix(".gguf") else { return false };
    let later = stem.rsplit_once("-of-").and_then(|(stem, _)| stem.rsplit_once('-'));
    let later = later.is_some_and(|(_, part)| part.parse().is_ok_and(|part: u32| part > 1));
    !later && !stem.to_ascii_lowercase().contains("mmproj")
}

/// A TOML or JSON file: names with a path, or with `path`, `aliases` and `ctx`.
fn in_file(path: &Path) -> anyhow::Result<Vec<NamedModel>> {
    let name = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(name)?;
    let json = path.extension().is_some_and(|ending| ending == "json");
    let table: Result<Map<String, Value>, anyhow::Error> = if json {
        serde_json::from_str(&text).map_err(Into::into)
    } else {
        toml::from_str(&text).map_err(Into::into)
    };
    let folder = path.parent().unwrap_or(Path::new(""));
    let table = table.with_context(name).map_err(usage)?;
    let named = table.into_iter().map(|(model, line)| listed(folder, model, line));
    named.collect::<anyhow::Result<_>>().with_context(name).map_err(usage)
}

fn listed(folder: &Path, name: String, line: Value) -> anyhow::Result<NamedModel> {
    let mut model: ListedModel = match line {
        Value::String(path) => ListedModel { path: path.into(), aliases: Vec::new(), ctx: None },
        line => serde_json::from_value(line).map_err(|error| anyhow!("`{name}`: {error}"))?,
    };
    if model.ctx == Some(0) {
        bail!("`{name}`: `ctx` is 0; give at least 1");
    }
    // What is not beside the file may be a name of the hub.
    let beside = folder.join(&model.path);
    if beside.exists() {
        model.path = beside;
    }
    Ok(NamedModel { name, model })
}

/// Loads one of them, with the options that hold for all.
struct Loader {
    name: String,
    path: PathBuf,
    ctx: Option<usize>,
    args: Arc<ServeArgs>,
}

impl LoadModel for Loader {
    fn details(&self) -> ModelDetails {
        // A model that cannot be opened is known by its name alone.
        let opened = ModelSource::open(&self.path, &self.args.model_options);
        opened.map(|source| ModelDetails::of(&source)).unwrap_or_default()
    }

    fn load(&self, room: RoomLeft) -> Result<LoadedModel, LoadError> {
        let failed = |error: anyhow::Error| LoadError::Failed(format!("{error:#}"));
        let source = ModelSource::open(&self.path, &self.args.model_options).map_err(failed)?;
        let text = super::text_of(&source).map_err(failed)?;
        let mut engine_args = self.args.engine;
        engine_args.ctx = self.ctx.or(engine_args.ctx);
        let mut sized = sizes(&self.args, &engine_args, &source);
        if let Some(free) = engine_args.room_beside(self.args.device.device, room.others) {
            let asked = engine_args.ctx.is_some() || !room.shorten;
            sized = source.fit(sized, asked, free).map_err(no_room)?;
        }
        let bytes = source.memory_need(&sized).map_err(no_room)?.total();
        let backend = device::open(self.args.device).map_err(failed)?;
        let loaded = ModelFiles::load(&source, &sized, backend, &mut |_| {});
        let mut engine = loaded.map_err(no_room)?;
        if let Some(folder) = &self.args.cache_dir {
            let disk = DiskSettings {
                folder: folder.join(self.name.replace(['/', '\\'], "--")),
                bytes: super::mebibytes(self.args.cache_disk),
                identity: source.blueprint.fingerprint(),
            };
            engine.open_disk_cache(&disk).map_err(|error| failed(error.into()))?;
        }
        let (tokenizer, template, defaults) = text;
        let pooling = source.text.pooling;
        Ok(LoadedModel { engine, tokenizer, template, defaults, pooling, bytes })
    }
}

/// Too little memory may be enough when other models are gone; anything else stays as it is.
fn no_room(error: forerun::Error) -> LoadError {
    match error {
        forerun::Error::Memory { .. } => LoadError::NoRoom(format!("{:#}", with_option(error))),
        error => LoadError::Failed(format!("{:#}", with_option(error))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let found = if path.is_dir() { in_folder(path) } else { in_file(path) };
        found.unwrap().into_iter().map(|model| model.name).collect()
    }

    #[test]
    fn a_folder_has_model_folders_and_gguf_files_but_no_later_parts_and_no_projectors() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str| {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        };
        for name in [
            "tales/config.json",
            "tales/model.safetensors",
            "small.gguf",
            "big-00001-of-00002.gguf",
            "big-00002-of-00002.gguf",
            "owner/seen/q4.gguf",
            "owner/seen/mmproj-f16.gguf",
            "a/same.gguf",
            "b/same.gguf",
            "notes.txt",
        ] {
            put(name);
        }
        let expected = ["a/same.gguf", "b/same.gguf", "big", "q4", "small", "tales"];
        assert_eq!(names(folder.path()), expected);
    }

    #[test]
    fn a_file_names_models_with_their_paths_and_what_is_wrong_in_it_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path
        };
        std::fs::create_dir(folder.path().join("m")).unwrap();
        let toml = file("a.toml", "one = 'm'\n[two]\npath = 'o/n'\naliases = ['x']\nctx = 64\n");
        let json = file("a.json", r#"{"one": "m", "two": {"path": "o/n"}}"#);
        assert_eq!((names(&toml), names(&json)), (names(&json), vec!["one".into(), "two".into()]));
        let read = in_file(&toml).unwrap();
        assert_eq!(read[0].model.path, folder.path().join("m"));
        assert_eq!((read[1].model.path.as_path(), read[1].model.ctx), (Path::new("o/n"), Some(64)));
        for (text, word) in [
            ("[two]\npath = 'm'\ncontext = 5\n", "context"),
            ("[two]\nctx = 5\n", "path"),
            ("two = 5\n", "two"),
            ("[two]\npath = 'm'\nctx = 0\n", "ctx"),
            ("two", "b.toml"),
        ] {
            let error = format!("{:#}", in_file(&file("b.toml", text)).unwrap_err());
            assert!(error.contains(word), "{text}: {error}");
        }
        let twice =
            in_file(&file("c.toml", "two = 'm'\n[one]\npath='m'\naliases=['two']")).unwrap();
        assert!(check_names(&twice).is_err());
    }
}
