//! The texts that Metal gets, compiled as C++ and run on the host: what is written for Metal computes what it should,
//! to the bit.

use super::{metal, valid};
use forerun_backend_wgpu::{KERNELS, Kernel};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;

/// A kernel with what it is bound to.
struct Run {
    kernel: &'static Kernel,
    constants: &'static [(&'static str, f64)],
    /// Words of the immediates.
    sizes: Vec<u32>,
    buffers: Vec<(u32, Vec<u32>)>,
    threads: [usize; 2],
    grid: [usize; 3],
}

/// What a parameter of the entry point is given, and the objects that a threadgroup shares.
fn argument(parameter: &str, shared: &mut String) -> String {
    let words: Vec<&str> = parameter.split_whitespace().collect();
    if parameter.contains("[[threadgroup_position_in_grid]]") {
        return "metal::uint3(x, y, z)".into();
    }
    if parameter.contains("[[threadgroups_per_grid]]") {
        return "metal::uint3(GRID_X, GRID_Y, GRID_Z)".into();
    }
    if parameter.contains("[[thread_position_in_threadgroup]]") {
        return "metal::uint3(t % THREADS_X, t / THREADS_X, 0)".into();
    }
    if parameter.contains("[[thread_index_in_threadgroup]]") {
        return "uint(t)".into();
    }
    let kind = words[1].trim_end_matches('&');
    if words[0] == "threadgroup" {
        let name = format!("shared_{}", words[2]);
        writeln!(shared, "static {kind} {name};").expect("a text");
        return name;
    }
    let (_, rest) = parameter.split_once("[[buffer(").expect("a buffer");
    let (number, _) = rest.split_once(')').expect("its number");
    format!("*({kind}*)buffers[{number}].data()")
}

fn program(run: &Run) -> String {
    let text = metal(run.kernel, run.constants);
    // The host has one address space: a helper that is written for each of two is one there.
    let text = match text
        .split_once("template <typename A>")
        .map(|(_, rest)| rest.split_once("template <typename A>"))
    {
        Some(Some((_, second))) => {
            let (second, _) = second.split_once("\n}\n").expect("an end");
            text.replace(&format!("template <typename A>{second}\n}}\n"), "")
        }
        _ => text,
    };
    let text: String = text
        .lines()
        .filter(|line| !line.starts_with("#include"))
        .fold(String::new(), |text, line| text + line + "\n");
    let (_, entry) = text.split_once(&format!("void {}(", run.kernel.entry)).expect("an entry");
    let (parameters, _) = entry.split_once("\n) {").expect("parameters");
    let mut shared = String::new();
    let parameters = parameters.split('\n').map(|line| line.trim_start_matches([',', ' ']));
    let arguments: Vec<String> = parameters
        .filter(|line| !line.is_empty())
        .map(|line| argument(line, &mut shared))
        .collect();
    let ([x, y, z], [columns, lines]) = (run.grid, run.threads);
    let sizes = format!(
        "#define GRID_X {x}\n#define GRID_Y {y}\n#define GRID_Z {z}\n#define THREADS_X {columns}\n"
    );
    let threads = columns * lines;
    let (entry, arguments) = (run.kernel.entry, arguments.join(", "));
    format!(
        "#include \"shim.h\"\n{text}\n{sizes}{shared}\
         int main(int, char** paths) {{\n  read_buffers(paths[1]);\n\
         for (uint z = 0; z < GRID_Z; z++) for (uint y = 0; y < GRID_Y; y++) for (uint x = 0; x < GRID_X; x++)\n\
         host::run({threads}, [=](size_t t) {{ {entry}({arguments}); }});\n\
         write_buffer(paths[2], atoi(paths[3]));\n}}\n"
    )
}

/// Runs a kernel and hands over what it left in a binding.
fn result(run: &Run, binding: u32) -> Vec<f32> {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("shim.h"), include_str!("shim.h")).expect("written");
    std::fs::write(at("run.cpp"), program(run)).expect("written");
    let mut file = Vec::new();
    let (module, _) = valid(run.kernel);
    // Lengths of buffers in bytes, in the order in which the text has their variables.
    let lengths = module.global_variables.iter().filter_map(|(_, variable)| {
        let binding = variable.binding?.binding;
        let open = matches!(
            module.types[variable.ty].inner,
            naga::TypeInner::Array { size: naga::ArraySize::Dynamic, .. }
        );
        let buffer = run.buffers.iter().find(|(number, _)| *number == binding);
        open.then_some(buffer.map_or(4, |(_, words)| 4 * words.len() as u32))
    });
    let last = [(29, run.sizes.clone()), (30, lengths.collect()), (0, vec![0; 4])];
    for (binding, words) in run.buffers.iter().chain(&last) {
        let head = [*binding, words.len() as u32];
        file.extend(head.iter().chain(words).flat_map(|word| word.to_le_bytes()));
    }
    std::fs::write(at("in"), file).expect("written");
    let compile = [
        "-std=c++17",
        "-O1",
        "-w",
        "-ffp-contract=off",
        "-fsingle-precision-constant",
        "run.cpp",
        "-o",
        "run",
    ];
    done(folder.path(), Command::new("g++").args(compile), run.kernel);
    let number = binding.to_string();
    done(folder.path(), Command::new("./run").args(["in", "out", &number]), run.kernel);
    let bytes = std::fs::read(at("out")).expect("an output");
    let (words, _) = bytes.as_chunks::<4>();
    words.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

fn done(folder: &Path, command: &mut Command, kernel: &Kernel) {
    let output =
        command.current_dir(folder).output().expect("g++ is needed to run texts for Metal");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", kernel.name);
}

fn kernel(name: &str) -> &'static Kernel {
    KERNELS.iter().find(|kernel| kernel.name == name).expect("a kernel")
}

fn numbers(len: usize, salt: u32) -> Vec<f32> {
    let mut state = salt;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

fn words(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

const K: usize = 320;
const N: usize = 37;

/// Codes of four bits with f32 scales for 32 columns, in panels; and the numbers that they stand for.
fn weight(salt: u32) -> (Vec<u32>, Vec<Vec<f32>>) {
    let panels = N.div_ceil(16);
    let (code_words, groups) = (K / 8, K / 32);
    let mut packed = vec![0; panels * 16 * (code_words + groups)];
    let (codes, scales) = (numbers(N * K, salt), numbers(N * groups, salt + 1));
    let mut plain = vec![vec![0.0; K]; N];
    for (n, row) in plain.iter_mut().enumerate() {
        let (panel, lane) = (n / 16, n % 16);
        for (k, number) in row.iter_mut().enumerate() {
            let code = ((codes[n * K + k] + 1.0) * 7.99) as u32;
            packed[(panel * code_words + k / 8) * 16 + lane] |= code << (4 * (k % 8));
            let scale = scales[n * groups + k / 32];
            packed[panels * 16 * code_words + (panel * groups + k / 32) * 16 + lane] =
                scale.to_bits();
            // The offset of this format is zero, added by the same operation.
            *number = scale.mul_add(code as f32, 0.0);
        }
    }
    (packed, plain)
}

/// The order of sums that all products keep: eight segments of whole units, each from zero, added ascending.
fn product(row: &[f32], weight: &[f32]) -> f32 {
    let each = K.div_ceil(32).div_ceil(8) * 32;
    let segment = |first: usize| {
        let columns = first.min(K)..(first + each).min(K);
        columns.fold(0.0_f32, |sum, k| weight[k].mul_add(row[k], sum))
    };
    (0..8).map(|i| segment(i * each)).reduce(|sum, next| sum + next).expect("segments")
}

/// What products begin their immediates with: no norm, nothing added, f32 scales for 32 columns, no cap.
fn head(rows: usize) -> Vec<u32> {
    vec![0, rows as u32, K as u32, (K / 8) as u32, (K / 32) as u32, 5 << 12, 0, 0]
}

fn scales_at() -> u32 {
    (N.div_ceil(16) * 16 * K / 8) as u32
}

#[test]
fn a_product_written_for_metal_has_the_bits_of_its_definition() {
    const ROWS: usize = 5;
    let (packed, plain) = weight(3);
    let x = numbers(ROWS * K, 9);
    let part = [0, N as u32, scales_at(), 0];
    let place = [0, 1, 0, 0, 0, 0, 0, 0, 0, N as u32, 0, 0];
    let sizes = [&head(ROWS)[..], &part, &place].concat();
    for (name, [rows, channels]) in
        [("product_one", [1, 16]), ("product_four", [4, 16]), ("product_tile", [32, 64])]
    {
        let out = vec![f32::NAN.to_bits(); ROWS * N];
        let found = result(
            &Run {
                kernel: kernel(name),
                constants: &[("BITS", 4.0)],
                sizes: sizes.clone(),
                buffers: vec![
                    (1, words(&x)),
                    (2, vec![0]),
                    (3, vec![0]),
                    (4, packed.clone()),
                    (5, vec![0]),
                    (6, out),
                ],
                threads: [16, 8],
                grid: [N.div_ceil(channels), ROWS.div_ceil(rows), 1],
            },
            6,
        );
        for (i, found) in found.iter().enumerate() {
            let (row, n) = (i / N, i % N);
            let expected = product(&x[row * K..][..K], &plain[n]);
            assert_eq!(found.to_bits(), expected.to_bits(), "{name}: row {row}, channel {n}");
        }
    }
}

#[test]
fn products_side_by_side_written_for_metal_have_the_bits_of_each() {
    let weights = [weight(5), weight(21)];
    let x = numbers(K, 12);
    let out = vec![f32::NAN.to_bits(); N];
    let part = [0, N as u32, scales_at(), 0];
    let sizes = [&head(1)[..], &part, &part, &[0; 8], &[1, 0, 0]].concat();
    let mut buffers = vec![(1, words(&x)), (2, vec![0])];
    for (i, (packed, _)) in weights.iter().enumerate() {
        let first = 4 + 3 * i as u32;
        buffers.extend([(first, packed.clone()), (first + 1, vec![0]), (first + 2, out.clone())]);
    }
    buffers.extend((10..16).map(|binding| (binding, vec![0])));
    let run = Run {
        kernel: kernel("products_one"),
        constants: &[("BITS", 4.0)],
        sizes,
        buffers,
        threads: [16, 8],
        grid: [2 * N.div_ceil(16), 1, 1],
    };
    for (binding, (_, plain)) in [(6, &weights[0]), (9, &weights[1])] {
        for (n, found) in result(&run, binding).iter().enumerate() {
            let expected = product(&x, &plain[n]);
            assert_eq!(found.to_bits(), expected.to_bits(), "binding {binding}, channel {n}");
        }
    }
}

#[test]
fn the_delta_rule_written_for_metal_has_the_bits_of_its_definition() {
    const ROWS: usize = 3;
    const DIM: usize = 32;
    let (qkv, state) = (numbers(ROWS * 3 * DIM, 4), numbers(DIM * DIM, 6));
    let (decay, beta) = ([0.9_f32, 0.97, 0.8], [0.3_f32, 0.1, 0.7]);
    let span = vec![0, ROWS as u32, ROWS as u32, 0, 0, 7];
    let shape = [ROWS as u32, 1, 1, 1, 1, 1, DIM as u32, DIM as u32, 0, 0, 0, u32::MAX];
    let run = Run {
        kernel: kernel("delta_rule"),
        constants: &[],
        sizes: [&[0; 7][..], &shape].concat(),
        buffers: vec![
            (1, words(&qkv)),
            (2, words(&decay)),
            (3, words(&beta)),
            (4, span),
            (5, words(&state)),
            (6, vec![0; 2 * DIM + 2]),
            (7, vec![f32::NAN.to_bits(); ROWS * DIM]),
        ],
        threads: [32, 1],
        grid: [1, 1, 1],
    };
    let mut expected_state = state;
    let mut expected = Vec::new();
    for row in 0..ROWS {
        let part = |which: usize| &qkv[(row * 3 + which) * DIM..][..DIM];
        let (q, k, v) = (part(0), part(1), part(2));
        for (column, &v) in v.iter().enumerate() {
            let mut recall = 0.0_f32;
            for (i, &k) in k.iter().enumerate() {
                let s = &mut expected_state[i * DIM + column];
                *s *= decay[row];
                recall = s.mul_add(k, recall);
            }
            let write = beta[row] * (v - recall);
            let mut mixed = 0.0_f32;
            for (i, &k) in k.iter().enumerate() {
                let s = &mut expected_state[i * DIM + column];
                *s = k.mul_add(write, *s);
                mixed = s.mul_add(q[i], mixed);
            }
            expected.push(mixed);
        }
    }
    let same = |found: Vec<f32>, expected: &[f32]| {
        assert_eq!(found.len(), expected.len());
        found.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits())
    };
    assert!(same(result(&run, 7), &expected), "outputs");
    assert!(same(result(&run, 5), &expected_state), "state");
}
