"""Numpy decoders for the packed weight formats, written from docs/formats.md.
check_formats.py compares them with mlx and with ggml."""
import numpy as np

E2M1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def e4m3(b):
    """float8 e4m3fn: bias 7, no infinities, S.1111.111 is NaN."""
    b = b.astype(np.int32)
    s, e, m = b >> 7, (b >> 3) & 15, b & 7
    v = np.where(e == 0, m / 8.0 * 2.0 ** -6, (1 + m / 8.0) * 2.0 ** (e - 7.0))
    v = np.where((e == 15) & (m == 7), np.nan, v)
    return np.where(s == 1, -v, v).astype(np.float32)


def e8m0(b):
    return np.ldexp(np.float32(1), b.astype(np.int32) - 127).astype(np.float32)


def bits_le(words, bits, n):
    """Read n unsigned `bits`-wide fields from a little-endian bit stream of u32 words (last axis)."""
    raw = np.ascontiguousarray(words.astype("<u4")).view(np.uint8)
    stream = np.unpackbits(raw, axis=-1, bitorder="little")
    f = stream[..., : n * bits].reshape(*stream.shape[:-1], n, bits).astype(np.uint32)
    return (f << np.arange(bits, dtype=np.uint32)).sum(-1).astype(np.uint32)


def mlx_dequant(packed, scales, biases, group, bits, mode="affine", global_scale=None):
    n = packed.shape[-1] * 32 // bits
    q = bits_le(packed, bits, n).reshape(*packed.shape[:-1], n // group, group)
    if mode == "affine":
        w = scales[..., None].astype(np.float32) * q + biases[..., None].astype(np.float32)
    elif mode == "mxfp4":
        w = E2M1[q] * e8m0(scales)[..., None]
    elif mode == "nvfp4":
        w = E2M1[q] * e4m3(scales)[..., None]
    elif mode == "mxfp8":
        w = e4m3(q) * e8m0(scales)[..., None]
    else:
        raise ValueError(mode)
    if global_scale is not None:
        w = w * global_scale
    return w.reshape(*packed.shape[:-1], n).astype(np.float32)


# --------------------------------------------------------------------- ggml

def f16(b):
    return np.ascontiguousarray(b).view("<f2").astype(np.float32)


def _scale_min_k4(s):
    """12 bytes -> eight 6-bit scales and eight 6-bit minimums."""
    s = s.astype(np.uint8)
    d, m = s[:, 0:4], s[:, 4:8]
    hi = s[:, 8:12]
    sc = np.concatenate([d & 63, (hi & 15) | ((d >> 6) << 4)], 1)
    mn = np.concatenate([m & 63, (hi >> 4) | ((m >> 6) << 4)], 1)
    return sc.astype(np.float32), mn.astype(np.float32)


def _nib(q):
    return q & 15, q >> 4


def deq_q8_0(b):                      # 34 bytes: f16 d, 32 x i8
    return f16(b[:, :2]) * b[:, 2:].view(np.int8)


def deq_q4_0(b):                      # 18 bytes: f16 d, 16 x (lo: value i, hi: value i+16)
    lo, hi = _nib(b[:, 2:])
    return f16(b[:, :2]) * (np.concatenate([lo, hi], 1).astype(np.float32) - 8)


def deq_q4_1(b):                      # 20 bytes: f16 d, f16 m, 16 bytes
    lo, hi = _nib(b[:, 4:])
    return f16(b[:, :2]) * np.concatenate([lo, hi], 1) + f16(b[:, 2:4])


def _q5(b, off):
    qh = np.ascontiguousarray(b[:, off:off + 4]).view("<u4")
    h = (qh >> np.arange(32, dtype=np.uint32)) & 1
    lo, hi = _nib(b[:, off + 4:])
    return (np.concatenate([lo, hi], 1) | (h << 4).astype(np.uint8)).astype(np.float32)


def deq_q5_0(b):                      # 22 bytes: f16 d, u32 high bits, 16 bytes
    return f16(b[:, :2]) * (_q5(b, 2) - 16)


def deq_q5_1(b):                      # 24 bytes
    return f16(b[:, :2]) * _q5(b, 4) + f16(b[:, 2:4])


def deq_q2_k(b):                      # 84: 16 scales, 64 qs, f16 d, f16 dmin
    sc, qs = b[:, :16], b[:, 16:80].reshape(-1, 2, 32)
    d, dm = f16(b[:, 80:82]), f16(b[:, 82:84])
    q = np.stack([(qs >> s) & 3 for s in (0, 2, 4, 6)], 2).reshape(-1, 16, 16)
    return (d[:, :, None] * (sc & 15)[:, :, None] * q - dm[:, :, None] * (sc >> 4)[:, :, None]).reshape(len(b), 256)


def deq_q3_k(b):                      # 110: 32 hmask, 64 qs, 12 scales, f16 d
    hm, qs, s, d = b[:, :32], b[:, 32:96].reshape(-1, 2, 32), b[:, 96:108], f16(b[:, 108:110])
    lo = np.concatenate([s[:, :8] & 15, s[:, :8] >> 4], 1)
    hi = np.concatenate([(s[:, 8:12] >> k) & 3 for k in (0, 2, 4, 6)], 1)
    sc = (lo | (hi << 4)).astype(np.int32) - 32
    q = np.stack([(qs >> k) & 3 for k in (0, 2, 4, 6)], 2).reshape(len(b), 8, 32).astype(np.int32)
    h = np.stack([(hm >> k) & 1 for k in range(8)], 1).astype(np.int32)
    q = (q - 4 * (1 - h)).reshape(len(b), 16, 16)
    return (d[:, :, None] * sc[:, :, None] * q).reshape(len(b), 256)


def deq_q4_k(b):                      # 144: f16 d, f16 dmin, 12 scales, 128 qs
    d, dm = f16(b[:, :2]), f16(b[:, 2:4])
    sc, mn = _scale_min_k4(b[:, 4:16])
    qs = b[:, 16:].reshape(-1, 4, 32)
    q = np.stack(_nib(qs), 2).reshape(len(b), 8, 32)
    return ((d * sc)[:, :, None] * q - (dm * mn)[:, :, None]).reshape(len(b), 256)


def deq_q5_k(b):                      # 176: f16 d, f16 dmin, 12 scales, 32 qh, 128 qs
    d, dm = f16(b[:, :2]), f16(b[:, 2:4])
    sc, mn = _scale_min_k4(b[:, 4:16])
    qh, qs = b[:, 16:48], b[:, 48:].reshape(-1, 4, 32)
    q = np.stack(_nib(qs), 2).reshape(len(b), 8, 32)
    h = np.stack([(qh >> k) & 1 for k in range(8)], 1)
    q = q + 16 * h
    return ((d * sc)[:, :, None] * q - (dm * mn)[:, :, None]).reshape(len(b), 256)


def deq_q6_k(b):                      # 210: 128 ql, 64 qh, 16 i8 scales, f16 d
    ql, qh = b[:, :128].reshape(-1, 2, 2, 32), b[:, 128:192].reshape(-1, 2, 1, 32)
    sc, d = np.ascontiguousarray(b[:, 192:208]).view(np.int8), f16(b[:, 208:210])
    lo = np.stack([ql & 15, ql >> 4], 2).reshape(-1, 2, 4, 32)
    hi = np.concatenate([(qh >> k) & 3 for k in (0, 2, 4, 6)], 2)
    q = (lo | (hi << 4)).astype(np.int32) - 32
    return (d[:, :, None] * sc[:, :, None] * q.reshape(len(b), 16, 16)).reshape(len(b), 256)


IQ4NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)


def deq_iq4_nl(b):                    # 18: f16 d, 16 bytes of table indices, low nibbles first
    lo, hi = _nib(b[:, 2:])
    return f16(b[:, :2]) * IQ4NL[np.concatenate([lo, hi], 1)]


def deq_iq4_xs(b):                    # 136: f16 d, u16 scales_h, 4 scales_l, 128 qs
    d = f16(b[:, :2])
    sh = np.ascontiguousarray(b[:, 2:4]).view("<u2").astype(np.int32)
    sl = b[:, 4:8].astype(np.int32)
    lo = np.stack(_nib(sl), 2).reshape(len(b), 8)
    hi = (sh >> (2 * np.arange(8))) & 3
    sc = (lo | (hi << 4)) - 32
    q = np.concatenate(_nib(b[:, 8:].reshape(-1, 8, 16)), 2)
    return (d[:, :, None] * sc[:, :, None] * IQ4NL[q]).reshape(len(b), 256)


def deq_mxfp4(b):                     # 17: e8m0 scale, 16 bytes, low nibbles first
    lo, hi = _nib(b[:, 1:])
    return e8m0(b[:, :1]) * E2M1[np.concatenate([lo, hi], 1)]


def deq_bf16(b):
    return (np.ascontiguousarray(b).view("<u2").astype(np.uint32) << 16).view(np.float32)


# ggml type id -> (name, values per block, bytes per block, decoder)
GGML = {
    0: ("F32", 1, 4, lambda b: np.ascontiguousarray(b).view("<f4")),
    1: ("F16", 1, 2, f16),
    2: ("Q4_0", 32, 18, deq_q4_0), 3: ("Q4_1", 32, 20, deq_q4_1),
    6: ("Q5_0", 32, 22, deq_q5_0), 7: ("Q5_1", 32, 24, deq_q5_1),
    8: ("Q8_0", 32, 34, deq_q8_0),
    10: ("Q2_K", 256, 84, deq_q2_k), 11: ("Q3_K", 256, 110, deq_q3_k), 12: ("Q4_K", 256, 144, deq_q4_k),
    13: ("Q5_K", 256, 176, deq_q5_k), 14: ("Q6_K", 256, 210, deq_q6_k),
    20: ("IQ4_NL", 32, 18, deq_iq4_nl), 23: ("IQ4_XS", 256, 136, deq_iq4_xs),
    30: ("BF16", 1, 2, deq_bf16), 39: ("MXFP4", 32, 17, deq_mxfp4),
}


def ggml_dequant(type_id, raw, shape):
    """raw: bytes of one tensor; shape in row-major order (slowest first)."""
    _, n, size, fn = GGML[type_id]
    b = np.frombuffer(raw, np.uint8).reshape(-1, size)
    return np.asarray(fn(b), np.float32).reshape(shape)


def read_gguf(path):
    """Metadata dict and {name: (type id, row-major shape, bytes)} of a GGUF v3 file."""
    import struct

    raw = open(path, "rb").read()
    pos = 0

    def take(fmt):
        nonlocal pos
        v = struct.unpack_from("<" + fmt, raw, pos)
        pos += struct.calcsize("<" + fmt)
        return v[0]

    def text():
        nonlocal pos
        n = take("Q")
        pos += n
        return raw[pos - n:pos].decode("utf-8")

    simple = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}

    def value(kind):
        if kind == 8:
            return text()
        if kind == 9:
            inner, n = take("I"), take("Q")
            return [value(inner) for _ in range(n)]
        return take(simple[kind])

    assert raw[:4] == b"GGUF"
    pos = 4
    assert take("I") == 3
    nt, nkv = take("Q"), take("Q")
    meta = {}
    for _ in range(nkv):
        k = text()
        meta[k] = value(take("I"))
    infos = []
    for _ in range(nt):
        name, nd = text(), take("I")
        dims = [take("Q") for _ in range(nd)]
        infos.append((name, dims, take("I"), take("Q")))
    align = meta.get("general.alignment", 32)
    base = (pos + align - 1) // align * align
    out = {}
    for name, dims, kind, off in infos:
        _, n, size, _ = GGML[kind]
        count = int(np.prod(dims))
        out[name] = (kind, dims[::-1], raw[base + off:base + off + count // n * size])
    return meta, out
