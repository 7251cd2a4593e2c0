"""Encoders of the packed formats whose rows pack.py can make again, as bytes by row."""
import numpy as np


def rows_of(x):
    return np.ascontiguousarray(x, np.float32).reshape(-1, x.shape[-1])


def bf16(x):
    u = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((u + 0x7FFF + ((u >> 16) & 1)) >> 16).astype("<u2")


def f16(x):
    return x.astype("<f2")


def q8_0(x):
    """GGUF's Q8_0: 32 codes of 8 bits and an f16 scale."""
    b = x.reshape(len(x), -1, 32)
    d = np.abs(b).max(-1, keepdims=True) / np.float32(127)
    y = b * np.where(d == 0, np.float32(0), np.float32(1) / np.where(d == 0, 1, d)).astype(np.float32)
    codes = (np.sign(y) * np.floor(np.abs(y) + np.float32(0.5))).astype(np.int8)
    return np.concatenate([d.astype("<f2").view(np.uint8), codes.view(np.uint8)], -1).reshape(len(x), -1)


def affine(x, bits, group):
    """MLX's affine format of bf16 weights: packed codes, scales and biases of every row."""
    b = x.reshape(len(x), -1, group)
    low, high, top = b.min(-1), b.max(-1), np.float32((1 << bits) - 1)
    downwards = np.abs(low) > np.abs(high)
    scale = np.maximum((high - low) / top, np.float32(1e-7))
    scale = np.where(downwards, scale, -scale)
    edge = np.where(downwards, low, high)
    steps = np.rint(edge / scale)
    scale = np.where(steps != 0, edge / np.where(steps == 0, 1, steps), scale).astype(np.float32)
    bias = np.where(steps != 0, edge, np.float32(0))
    codes = np.clip(np.rint((b - bias[..., None]) / scale[..., None]), 0, top).astype(np.uint8)
    stream = (codes.reshape(len(x), -1, 1) >> np.arange(bits)) & 1
    packed = np.packbits(stream.astype(np.uint8).reshape(len(x), -1), axis=1, bitorder="little")
    return packed, bf16(scale), bf16(bias)
