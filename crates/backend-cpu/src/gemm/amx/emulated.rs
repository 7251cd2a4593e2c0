//! AMX where the processor has none, for tests: every tile instruction that the processor refuses is emulated by the
//! handler of the signal (SIGILL) that says so. Thousands of times slower, with the same sums.
//!
//! # Numerics
//! Sums of bytes are exact. Sums of bf16 follow Intel's description: even and odd columns are summed separately in
//! ascending order by fused multiply-adds, then together, then into the tile; subnormal numbers count as zero.
//!
//! # Limits
//! Only the instructions that [`tile`](super::tile) and the kernels use, on Linux. Any other refused instruction ends
//! the process as it would have without the handler.

use std::arch::x86_64::{
    __m512i, _mm512_dpbusd_epi32, _mm512_loadu_si512, _mm512_set1_epi8, _mm512_set1_epi32,
    _mm512_setzero_si512, _mm512_storeu_si512, _mm512_sub_epi32, _mm512_xor_si512,
};
use std::array::from_fn;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;
use std::sync::LazyLock;

const TILES: usize = 8;
const ROWS: usize = 16;
const ROW_BYTES: usize = 64;
const CHANNELS: usize = ROW_BYTES / 4;

/// The tiles of one thread.
struct Tiles {
    rows: [usize; TILES],
    row_bytes: [usize; TILES],
    data: [[[u8; ROW_BYTES]; ROWS]; TILES],
}

const UNUSED: Tiles =
    Tiles { rows: [0; TILES], row_bytes: [0; TILES], data: [[[0; ROW_BYTES]; ROWS]; TILES] };

thread_local! {
    static HERE: RefCell<Tiles> = const { RefCell::new(UNUSED) };
}

/// Installs the handler, once per process; whether it is there.
pub(crate) fn install() -> bool {
    static INSTALLED: LazyLock<bool> = LazyLock::new(|| {
        // SAFETY: an all-zero `sigaction` is valid, and the handler has the signature that SA_SIGINFO demands.
        unsafe {
            let mut action: libc::sigaction = zeroed();
            action.sa_sigaction = refused as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGILL, &raw const action, null_mut()) == 0
        }
    });
    *INSTALLED
}

/// Emulates the refused instruction and the tile instructions that follow it, and continues behind them. Restores the
/// default action where the first one is none of ours.
extern "C" fn refused(_signal: c_int, _info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes the context of the thread it stopped; its instruction pointer is at an instruction,
    // whose bytes are readable.
    unsafe {
        let registers = &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs;
        let start = registers[libc::REG_RIP as usize];
        let mut at = start;
        while let Some((instruction, len)) = Instruction::read(at as *const u8, registers) {
            HERE.with_borrow_mut(|tiles| instruction.run(tiles));
            at += len as i64;
        }
        registers[libc::REG_RIP as usize] = at;
        if at == start {
            libc::signal(libc::SIGILL, libc::SIG_DFL);
        }
    }
}

/// The rows of a tile in memory: a first address and a stride.
#[derive(Clone, Copy)]
struct TileOperand {
    first: *mut u8,
    apart: i64,
}

/// The tiles of a product.
#[derive(Clone, Copy)]
struct Operands {
    sums: usize,
    left: usize,
    right: usize,
}

/// Whether the bytes on the right are signed. Those on the left always are.
#[derive(Clone, Copy)]
enum Sign {
    With,
    Without,
}

enum Instruction {
    Configure(*const u8),
    Release,
    Zero(usize),
    Load(usize, TileOperand),
    Store(usize, TileOperand),
    Bytes(Operands, Sign),
    Bf16(Operands),
}

/// The saved registers of a stopped thread.
type Registers = [i64; 23];

/// The general registers by their numbers in instruction encodings.
const GENERAL: [c_int; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

impl Instruction {
    /// Decodes the instruction at `at`, and its length, where it is one of ours: `C4`, two bytes of prefix, the opcode,
    /// its operands.
    ///
    /// # Safety
    /// `at` points to an instruction of the running program.
    unsafe fn read(at: *const u8, registers: &Registers) -> Option<(Self, usize)> {
        // SAFETY: our instructions have at least five bytes, and of another one no more bytes are read than it takes to
        // see that it differs.
        let byte = |i: usize| unsafe { *at.add(i) };
        if byte(0) != 0xc4 || byte(1) & 0x1f != 2 || byte(2) & 0x84 != 0 {
            return None;
        }
        let (prefix, opcode, operands) = (byte(2) & 3, byte(3), usize::from(byte(4)));
        let tiles = Operands {
            sums: operands >> 3 & 7,
            left: operands & 7,
            right: usize::from(!byte(2) >> 3 & 7),
        };
        if operands >= 0xc0 {
            let instruction = match (opcode, prefix) {
                (0x49, 0) => Self::Release,
                (0x49, 3) => Self::Zero(tiles.sums),
                (0x5c, 2) => Self::Bf16(tiles),
                (0x5e, 2) => Self::Bytes(tiles, Sign::Without),
                (0x5e, 3) => Self::Bytes(tiles, Sign::With),
                _ => return None,
            };
            return Some((instruction, 5));
        }
        // SAFETY: an instruction with a memory operand; if the opcode turns out not to be ours, what was read is
        // dropped.
        let (lines, len) = unsafe { TileOperand::read(at.add(4), byte(1), registers) };
        let instruction = match (opcode, prefix) {
            (0x49, 0) => Self::Configure(lines.first),
            (0x4b, 3) => Self::Load(tiles.sums, lines),
            (0x4b, 2) => Self::Store(tiles.sums, lines),
            _ => return None,
        };
        Some((instruction, 4 + len))
    }

    /// Executes it.
    ///
    /// # Safety
    /// As for the instruction itself: the memory that its operands name is readable or writable.
    unsafe fn run(self, tiles: &mut Tiles) {
        match self {
            Self::Configure(shapes) => {
                *tiles = UNUSED;
                for tile in 0..TILES {
                    // SAFETY: the operand of `ldtilecfg` is 64 readable bytes, with row widths from byte 16 and rows
                    // from byte 48 on.
                    unsafe {
                        tiles.row_bytes[tile] =
                            usize::from(shapes.add(16).cast::<u16>().add(tile).read_unaligned());
                        tiles.rows[tile] = usize::from(*shapes.add(48 + tile));
                    }
                }
            }
            Self::Release => *tiles = UNUSED,
            Self::Zero(tile) => tiles.data[tile] = UNUSED.data[tile],
            Self::Load(tile, lines) => {
                tiles.data[tile] = UNUSED.data[tile];
                let len = tiles.row_bytes[tile];
                for (i, line) in tiles.data[tile][..tiles.rows[tile]].iter_mut().enumerate() {
                    // SAFETY: a load reads `len` bytes at each row (contract above); `line` has 64.
                    unsafe { lines.at(i).copy_to_nonoverlapping(line.as_mut_ptr(), len) };
                }
            }
            Self::Store(tile, lines) => {
                let len = tiles.row_bytes[tile];
                for (i, line) in tiles.data[tile][..tiles.rows[tile]].iter().enumerate() {
                    // SAFETY: a store writes `len` bytes at each row (contract above); `line` has 64.
                    unsafe { lines.at(i).copy_from_nonoverlapping(line.as_ptr(), len) };
                }
            }
            // SAFETY: `Amx::detect` emulates only where AVX-512 F, BW, DQ, VL and VNNI and FMA were found.
            Self::Bytes(operands, sign) => unsafe { tiles.multiply_bytes(operands, sign) },
            // SAFETY: `Amx::detect` found AVX-512 F, BW, DQ, VL and VNNI and FMA, as for `Bytes`.
            Self::Bf16(operands) => unsafe { tiles.multiply_bf16(operands) },
        }
    }
}

impl TileOperand {
    /// Decodes the memory operand at `at`, and its length; `prefix` holds the upper bits of register numbers, inverted.
    ///
    /// # Safety
    /// `at` points to the memory operand of an instruction of the running program.
    unsafe fn read(at: *const u8, prefix: u8, registers: &Registers) -> (Self, usize) {
        let register = |low: u8, high: u8| registers[GENERAL[usize::from(low & 7 | high)] as usize];
        let [index_high, base_high] = [!prefix >> 3 & 8, !prefix >> 2 & 8];
        // SAFETY: only bytes of the operand are read; the first ones say how many there are.
        unsafe {
            let (form, has_index) = (*at >> 6, *at & 7 == 4);
            let named = *at.add(usize::from(has_index));
            let before = 1 + usize::from(has_index);
            let (offset, len) = match form {
                1 => (i64::from(*at.add(before).cast::<i8>()), 1),
                2 => (i64::from(at.add(before).cast::<i32>().read_unaligned()), 4),
                _ => (0, 0),
            };
            let apart =
                if has_index { register(named >> 3, index_high) << (named >> 6) } else { 0 };
            let first = register(named, base_high) + offset;
            (Self { first: first as *mut u8, apart }, before + len)
        }
    }

    fn at(self, line: usize) -> *mut u8 {
        self.first.wrapping_offset((self.apart * line as i64) as isize)
    }
}

impl Tiles {
    /// `sums[m][n] += Σ_k left[m][k] · right[k / 4][4·n + k % 4]`.
    #[target_feature(enable = "avx512f,avx512vnni")]
    fn multiply_bytes(&mut self, Operands { sums, left, right }: Operands, sign: Sign) {
        let words = self.row_bytes[left] / 4;
        let (flip, zero_point) = match sign {
            Sign::Without => (_mm512_setzero_si512(), _mm512_setzero_si512()),
            // `vpdpbusd` takes unsigned bytes: signed ones are raised by 128, which zero-point compensation undoes.
            Sign::With => (_mm512_set1_epi8(-128), _mm512_set1_epi8(-128)),
        };
        for row in 0..self.rows[sums] {
            let mut sum = vector(&self.data[sums][row]);
            let mut compensation = _mm512_setzero_si512();
            for (word, line) in self.data[right][..words].iter().enumerate() {
                let bytes = from_fn(|i| self.data[left][row][4 * word + i]);
                let bytes = _mm512_set1_epi32(i32::from_le_bytes(bytes));
                let line = _mm512_xor_si512(vector(line), flip);
                sum = _mm512_dpbusd_epi32(sum, line, bytes);
                compensation = _mm512_dpbusd_epi32(compensation, zero_point, bytes);
            }
            let line = &mut self.data[sums][row];
            // SAFETY: 64 bytes.
            unsafe {
                _mm512_storeu_si512(line.as_mut_ptr().cast(), _mm512_sub_epi32(sum, compensation))
            };
        }
    }

    /// The same with pairs of bf16 in place of four bytes.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,fma")]
    fn multiply_bf16(&mut self, Operands { sums, left, right }: Operands) {
        for row in 0..self.rows[sums] {
            let xs = bf16_row(&self.data[left][row]);
            let mut apart = [[0.0_f32; CHANNELS]; 2];
            for (xs, line) in xs.chunks_exact(2).zip(&self.data[right][..self.row_bytes[left] / 4])
            {
                let line = bf16_row(line);
                for (parity, sums) in apart.iter_mut().enumerate() {
                    for (channel, sum) in sums.iter_mut().enumerate() {
                        *sum = normal(xs[parity].mul_add(line[2 * channel + parity], *sum));
                    }
                }
            }
            for (channel, at) in self.data[sums][row].chunks_exact_mut(4).enumerate() {
                let before = normal(f32::from_le_bytes([at[0], at[1], at[2], at[3]]));
                let sum = normal(before + normal(apart[0][channel] + apart[1][channel]));
                at.copy_from_slice(&sum.to_le_bytes());
            }
        }
    }
}

/// The numbers of a row of bf16.
#[inline(always)]
fn bf16_row(line: &[u8; ROW_BYTES]) -> [f32; 2 * CHANNELS] {
    from_fn(|i| {
        let bits = u16::from_le_bytes([line[2 * i], line[2 * i + 1]]);
        normal(f32::from_bits(u32::from(bits) << 16))
    })
}

#[target_feature(enable = "avx512f")]
fn vector(line: &[u8; ROW_BYTES]) -> __m512i {
    // SAFETY: 64 bytes.
    unsafe { _mm512_loadu_si512(line.as_ptr().cast()) }
}

/// Subnormal numbers count as zero.
#[inline(always)]
fn normal(x: f32) -> f32 {
    if x.is_subnormal() { 0.0_f32.copysign(x) } else { x }
}
