//! Whole checkpoints from what is tracked.
//!
//! A tracked golden folder holds no weights that can be made: `weights.json` says how each tensor is drawn from a seed,
//! or from which rows of another golden's tensor it is encoded. Headers and whatever is left over lie in `FILE.rest`,
//! in file order. The digest of the whole file is recorded, so a file that came out differently is never used.

use super::draw::Draw;
use super::encode::{Encoding, fp8_blocks};
use forerun_base::{DType, bf16_to_f32, f32_to_bf16};
use forerun_weights::safetensors::{SafetensorsHeader, TensorInfo, parse_header};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

/// Folders this process has found to be up to date.
static READY: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());

/// The tracked folder of a golden.
pub(super) fn tracked(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("goldens").join(name)
}

/// The folder with the whole checkpoint: below `target/goldens`, or the tracked one if it is whole itself.
///
/// # Panics
/// When it cannot be made or is not what was recorded.
pub(super) fn checkpoint(name: &str) -> PathBuf {
    let mut ready = READY.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    made(name, &mut ready)
}

fn made(name: &str, ready: &mut BTreeMap<String, PathBuf>) -> PathBuf {
    if let Some(folder) = ready.get(name) {
        return folder.clone();
    }
    let tracked = tracked(name);
    let folder = match fs::read(tracked.join("weights.json")) {
        Err(_) => tracked,
        Ok(text) => {
            let manifest = serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
            let manifest = WeightsManifest { name: name.to_owned(), manifest, tracked };
            let source = manifest.manifest["source"].as_str().map(|source| made(source, ready));
            manifest.folder(source.as_deref())
        }
    };
    ready.insert(name.to_owned(), folder.clone());
    folder
}

struct WeightsManifest {
    name: String,
    manifest: Value,
    tracked: PathBuf,
}

impl WeightsManifest {
    fn folder(&self, source: Option<&Path>) -> PathBuf {
        let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/goldens");
        fs::create_dir_all(&all).unwrap_or_else(|e| panic!("{}: {e}", all.display()));
        let (folder, key) = (all.join(&self.name), all.join(format!("{}.key", self.name)));
        // Test programs run side by side: one makes the folder, the others wait.
        let lock = fs::File::create(all.join(format!("{}.lock", self.name))).expect("a lock file");
        lock.lock().expect("a lock");
        let digest = self.digest();
        if fs::read_to_string(&key).is_ok_and(|found| found == digest) {
            return folder;
        }
        let _ = fs::remove_file(&key);
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a folder");
        self.write(&folder, source);
        fs::write(&key, digest).expect("written");
        folder
    }

    /// Of everything that is tracked of this golden.
    fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for file in self.files().into_iter().chain(self.shared().map(|(_, path)| path)) {
            hash.update(file.file_name().expect("a file").as_encoded_bytes());
            hash.update(read(&file));
        }
        hex(&hash.finalize())
    }

    /// Tracked files of the checkpoint, sorted.
    fn files(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.tracked).expect("a folder");
        let mut files: Vec<_> = entries.map(|entry| entry.expect("an entry").path()).collect();
        files.retain(|file| !file.ends_with("golden.safetensors"));
        files.sort();
        files
    }

    /// Files that several goldens have in common: name and where it is tracked.
    fn shared(&self) -> impl Iterator<Item = (&str, PathBuf)> {
        let entries = self.manifest["shared"].as_object().expect("`shared` in weights.json");
        let path = |file: &Value| tracked("shared").join(file.as_str().expect("a file's name"));
        entries.iter().map(move |(name, file)| (name.as_str(), path(file)))
    }

    fn write(&self, folder: &Path, source: Option<&Path>) {
        for file in self.files() {
            let name = file.file_name().and_then(|n| n.to_str()).expect("a name in UTF-8");
            if name != "weights.json" && !name.ends_with(".rest") {
                fs::copy(&file, folder.join(name)).expect("copied");
            }
        }
        for (name, file) in self.shared() {
            fs::copy(&file, folder.join(name))
                .unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        }
        for file in self.manifest["files"].as_array().expect("`files` in weights.json") {
            let name = file["name"].as_str().expect("a file's name");
            let rest = read(&self.tracked.join(format!("{name}.rest")));
            let bytes = match source {
                Some(source) => encoded(file, &rest, &SourceMatrices::open(source)),
                None => self.drawn(&rest),
            };
            let recorded = (file["bytes"].as_u64(), file["sha256"].as_str());
            let found = (bytes.len() as u64, hex(&Sha256::digest(&bytes)));
            let what = format!("{}/{name}: bytes and SHA-256 recorded and found", self.name);
            assert_eq!(recorded, (Some(found.0), Some(found.1.as_str())), "{what}");
            fs::write(folder.join(name), bytes).expect("written");
        }
    }

    /// A safetensors file whose header and other tensors are `rest`.
    fn drawn(&self, rest: &[u8]) -> Vec<u8> {
        let start =
            8 + usize::try_from(u64::from_le_bytes(rest[..8].try_into().expect("a length")))
                .expect("a header in memory");
        let (mut out, mut rest) = (rest[..start].to_vec(), &rest[start..]);
        let header = header_alone(&out);
        let mut tensors: Vec<(&String, &TensorInfo)> = header.tensors.iter().collect();
        tensors.sort_by_key(|(_, info)| info.range.start);
        for (name, info) in tensors {
            match self.draw(name) {
                Some(draw) => self.tensor(name, info, draw, &header, &mut out),
                None => {
                    let (stored, left) = rest.split_at(info.range.len());
                    out.extend_from_slice(stored);
                    rest = left;
                }
            }
        }
        assert!(rest.is_empty(), "{}: bytes without a tensor", self.name);
        out
    }

    /// The entry of `draws` for a tensor: under its name, or with a `#` for each number.
    fn draw(&self, name: &str) -> Option<&Value> {
        let draws = &self.manifest["draws"];
        draws.get(name).or_else(|| draws.get(pattern(name)))
    }

    fn tensor(
        &self,
        name: &str,
        info: &TensorInfo,
        draw: &Value,
        header: &SafetensorsHeader,
        out: &mut Vec<u8>,
    ) {
        if let Some(block) = draw["fp8_scales"].as_u64() {
            let of = name.strip_suffix("_scale_inv").expect("scales have their matrix's name");
            let shape = &header.tensors[of].shape;
            let draw = self.draw(of).expect("the matrix is drawn");
            let (_, scales) = fp8_blocks(&self.values(of, shape, draw), shape[1], block as usize);
            out.extend(scales.iter().flat_map(|x| x.to_le_bytes()));
            return;
        }
        let values = self.values(name, &info.shape, draw);
        match (info.dtype, draw["fp8_block"].as_u64()) {
            (_, Some(block)) => {
                out.extend(fp8_blocks(&values, info.shape[1], block as usize).0);
            }
            (DType::F32, None) => Encoding::F32.row(&values, out),
            (DType::BF16, None) => Encoding::Bf16.row(&values, out),
            (other, None) => panic!("{name}: nothing is drawn as {other}"),
        }
    }

    /// What is drawn for a tensor. What FP8 is made from was rounded to bf16 first.
    ///
    /// `of` is what the library calls it, with a `#` for each number of the name in turn. `rows` says how many rows of
    /// that belong to an expert, and at which of them the tensor begins: experts are drawn together and stored apart.
    /// So are convolutions of queries, keys and values, where no rows belong to an expert.
    fn values(&self, name: &str, shape: &[usize], draw: &Value) -> Vec<f32> {
        let (seed, model) = (&self.manifest["seed"], self.manifest["model"].as_str());
        let drawn = draw["of"].as_str().map_or_else(|| name.to_owned(), |of| numbered(of, name));
        let label = format!("{seed}/{}/{drawn}", model.expect("`model` in weights.json"));
        let row = |i: usize| draw["rows"][i].as_u64().map(|row| row as usize);
        let skipped = row(0).map_or(0, |each| {
            let expert = numbers(name).last().and_then(|e| e.parse::<usize>().ok());
            each * expert.expect("an expert's number") + row(1).expect("its first row")
        });
        let distribution = Draw::parse(draw).unwrap_or_else(|| panic!("{label}: {draw}"));
        let width = shape.last().copied().unwrap_or(1);
        let count = skipped * width + shape.iter().product::<usize>();
        let mut values = distribution.values(&label, count, width).split_off(skipped * width);
        if draw.get("fp8_block").is_some() {
            values.iter_mut().for_each(|x| *x = bf16_to_f32(f32_to_bf16(*x)));
        }
        values
    }
}

/// The header of a file of which only the header is there.
fn header_alone(bytes: &[u8]) -> SafetensorsHeader {
    let text: Value = serde_json::from_slice(&bytes[8..]).expect("a header");
    let ends = text.as_object().expect("a header").values();
    let end = ends.filter_map(|tensor| tensor["data_offsets"][1].as_u64()).max().unwrap_or(0);
    parse_header(bytes, bytes.len() as u64 + end).expect("a header")
}

/// `layers.12.conv1d` as `layers.#.conv#d`.
fn pattern(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        match (c.is_ascii_digit(), out.ends_with('#')) {
            (true, true) => {}
            (true, false) => out.push('#'),
            (false, _) => out.push(c),
        }
    }
    out
}

/// The numbers between dots of a name.
fn numbers(name: &str) -> impl Iterator<Item = &str> {
    name.split('.').filter(|part| part.bytes().all(|b| b.is_ascii_digit()))
}

/// A name whose `#`s are filled with another one's numbers in turn.
fn numbered(of: &str, name: &str) -> String {
    let mut numbers = numbers(name);
    let part = |part| if part == "#" { numbers.next().unwrap_or("#") } else { part };
    of.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// Matrices of the checkpoint that others were packed from.
struct SourceMatrices {
    files: Vec<(SafetensorsHeader, Vec<u8>)>,
}

impl SourceMatrices {
    fn open(folder: &Path) -> Self {
        let entries =
            fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        let weights = entries.filter(|path| path.extension().is_some_and(|e| e == "safetensors"));
        let open = |path: PathBuf| {
            let bytes = read(&path);
            (parse_header(&bytes, bytes.len() as u64).expect("a header"), bytes)
        };
        Self { files: weights.map(open).collect() }
    }

    /// Values and width of a tensor.
    fn matrix(&self, name: &str) -> (Vec<f32>, usize) {
        let found =
            self.files.iter().find_map(|(header, bytes)| Some((header.tensors.get(name)?, bytes)));
        let (info, bytes) = found.unwrap_or_else(|| panic!("no `{name}` in the source"));
        assert_eq!(info.dtype, DType::BF16, "{name}");
        let (words, _) = bytes[info.range.clone()].as_chunks::<2>();
        let values = words.iter().map(|word| bf16_to_f32(u16::from_le_bytes(*word))).collect();
        (values, *info.shape.last().expect("a matrix has axes"))
    }
}

/// A file that is `rest` with encoded rows of another golden in between.
fn encoded(file: &Value, rest: &[u8], source: &SourceMatrices) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), rest);
    for copy in file["copies"].as_array().expect("`copies` in weights.json") {
        let at = copy[0].as_u64().expect("an offset") as usize;
        let (stored, left) = rest.split_at(at - out.len());
        out.extend_from_slice(stored);
        rest = left;
        let encoding = copy[2].as_str().and_then(Encoding::parse);
        let encoding = encoding.unwrap_or_else(|| panic!("{copy}: no such encoding"));
        let (values, width) = source.matrix(copy[1].as_str().expect("a tensor's name"));
        let whole = [(0, values.len() / width)];
        for (first, count) in ranges(&copy[3]).unwrap_or_else(|| whole.to_vec()) {
            for row in values[first * width..(first + count) * width].chunks_exact(width) {
                match ranges(&copy[4]) {
                    None => encoding.row(row, &mut out),
                    Some(columns) => {
                        let selected = columns.iter().flat_map(|&(at, count)| &row[at..at + count]);
                        encoding.row(&selected.copied().collect::<Vec<f32>>(), &mut out);
                    }
                }
            }
        }
    }
    out.extend_from_slice(rest);
    out
}

/// Pairs of start and length.
fn ranges(list: &Value) -> Option<Vec<(usize, usize)>> {
    let number = |x: &Value| x.as_u64().expect("a range of rows or columns") as usize;
    Some(list.as_array()?.iter().map(|pair| (number(&pair[0]), number(&pair[1]))).collect())
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}
