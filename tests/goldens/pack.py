#!/usr/bin/env python3
"""Bring one golden folder into the form the repository tracks.

  pack.py DONE TRACKED [--source NAME=FOLDER ...] [--all-rows]

DONE is a folder as golden.py or verify_quant.py leave it, TRACKED the folder to write (crates/testkit/goldens/NAME).
Two things get smaller, and neither is taken on trust:

- Weights that a seed makes are not stored. weights.json says how each is drawn (from draws.json beside the
  checkpoint), or, for packed models, from which rows of which tensor of which other golden it is encoded; whatever is
  left over, headers too, lies in FILE.rest in file order. SHA-256 of the whole file is recorded, and `forerun-testkit`
  refuses to hand out a file that is not the one recorded.
- golden.safetensors keeps the rows that tests read; see README.md.
"""
import argparse
import hashlib
import json
import os
import re
import shutil

import numpy as np

from encode import affine, bf16, f16, q8_0, rows_of

ROWS = [0, 1, 7, 15, 31, 47, 48, 63, 68, 69]


def read_header(raw):
    n = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    return 8 + n, head


def pattern(name):
    return re.sub(r"\d+", "#", name)


# ---------------------------------------------------------------- weights that are drawn

def shorten(draws, stored):
    """Names that differ in numbers alone share an entry where all that are stored share the draw."""
    left = {pattern(name) for name in stored if name not in draws}
    groups = {}
    for name, draw in draws.items():
        groups.setdefault(pattern(name), []).append((name, draw))
    out = {}
    for p, members in groups.items():
        if p not in left and all(d == members[0][1] for _, d in members):
            out[p] = members[0][1]
        else:
            out.update(members)
    return out


def drawn_file(raw, draws):
    """What is left of a safetensors file without the tensors in `draws`."""
    start, head = read_header(raw)
    rest = raw[:start]
    for name, t in sorted(head.items(), key=lambda x: x[1]["data_offsets"]):
        if name not in draws:
            a, b = t["data_offsets"]
            rest += raw[start + a:start + b]
    return rest


# ---------------------------------------------------------------- weights encoded from other goldens

def column_orders(config):
    """None, and the order in which GGUF stores the inputs of a delta net's output projection."""
    c = config.get("text_config", config)
    nk, nv, d = (c.get(f"linear_{n}") for n in ("num_key_heads", "num_value_heads", "value_head_dim"))
    yield None
    if nk and nv and nv > nk:
        yield [[(k * (nv // nk) + r) * d, d] for r in range(nv // nk) for k in range(nk)]


class Sources:
    """Rows of a source checkpoint in every encoding."""

    def __init__(self, folder):
        from tinylib import read_safetensors

        self.tensors = {k: rows_of(v) for k, v in read_safetensors(folder).items()
                        if v.ndim >= 2 and v.dtype == np.float32 and v.size >= 1024 and "conv" not in k}
        self.orders = list(column_orders(json.load(open(os.path.join(folder, "config.json")))))
        self.tables = {}

    def table(self, encoding, width):
        """Encoded row -> (tensor, column order, row)."""
        if (encoding, width) in self.tables:
            return self.tables[encoding, width]
        table, encode = {}, encoder(encoding)
        for order in self.orders:
            for name, x in self.tensors.items():
                if x.shape[1] != width or order and not name.endswith("linear_attn.out_proj.weight"):
                    continue
                y = x if order is None else np.concatenate([x[:, a:a + n] for a, n in order], 1)
                for i, row in enumerate(encode(y)):
                    table.setdefault(row.tobytes(), (name, json.dumps(order), i))
        self.tables[encoding, width] = table
        return table

    def find(self, at, raw, rows, encoding, width):
        """Copies that make these bytes, or None: [offset, tensor, encoding, row ranges, column ranges]."""
        table, size = self.table(encoding, width), len(raw) // rows
        copies = []
        for i in range(rows):
            found = table.get(raw[i * size:(i + 1) * size])
            if found is None:
                return None
            name, order, row = found
            last = copies[-1] if copies else None
            if last and last[1] == name and last[4] == order:
                ranges = last[3]
                if ranges[-1][0] + ranges[-1][1] == row:
                    ranges[-1][1] += 1
                else:
                    ranges.append([row, 1])
            else:
                copies.append([at + i * size, name, encoding, [[row, 1]], order])
        for copy in copies:
            copy[4] = json.loads(copy[4])
            if copy[3] == [[0, len(self.tensors[copy[1]])]] and copy[4] is None:
                del copy[3:]
            elif copy[4] is None:
                del copy[4]
        return copies

    def like(self, copies, at, raw, encoding):
        """The same rows as `copies` in another encoding."""
        out, start = [], at
        for copy in copies:
            out.append([at, copy[1], encoding, *copy[3:]])
            x = self.tensors[copy[1]]
            x = x if len(copy) < 4 else np.concatenate([x[a:a + n] for a, n in copy[3]])
            data = encoder(encoding)(x).tobytes()
            if data != raw[at - start:at - start + len(data)]:
                return None
            at += len(data)
        return out


def encoder(encoding):
    kind, *numbers = encoding.split(":")
    if kind == "affine":
        bits, group, part = int(numbers[0]), int(numbers[1]), "codes scales biases".split().index(numbers[2])
        return lambda x: affine(x, bits, group)[part] if x.shape[1] % group == 0 else []
    if kind == "q8_0":
        return lambda x: q8_0(x) if x.shape[1] % 32 == 0 else []
    return {"bf16": bf16, "f16": f16, "f32": lambda x: x}[kind]


def copies_of_safetensors(raw, sources, config):
    start, head = read_header(raw)
    quantized = config.get("quantization", {})
    span = {name: [start + at for at in t["data_offsets"]] for name, t in head.items()}
    data = {name: raw[a:b] for name, (a, b) in span.items()}
    for name, t in head.items():
        base, _, leaf = name.rpartition(".")
        width, rows = t["shape"][-1], int(np.prod(t["shape"][:-1]))
        if f"{base}.scales" not in head:
            if len(t["shape"]) > 1 and t["dtype"] == "BF16":
                yield sources.find(span[name][0], data[name], rows, "bf16", width)
            continue
        of = quantized.get(base)
        q = {"mode": "affine", **(of if isinstance(of, dict) else quantized)}
        if q["mode"] != "affine" or leaf != "weight":
            continue
        # Rows of scales are too short to be found by themselves.
        width = head[f"{base}.scales"]["shape"][-1] * q["group_size"]
        encoding = f"affine:{q['bits']}:{q['group_size']}"
        copies = sources.find(span[name][0], data[name], rows, f"{encoding}:codes", width)
        yield copies
        for part in ("scales", "biases"):
            other = f"{base}.{part}"
            yield copies and sources.like(copies, span[other][0], data[other], f"{encoding}:{part}")


def copies_of_gguf(path, sources):
    import gguf

    for t in gguf.GGUFReader(path).tensors:
        encoding = {"BF16": "bf16", "F16": "f16", "Q8_0": "q8_0", "F32": "f32"}.get(t.tensor_type.name)
        width = int(t.shape[0])
        if encoding and len(t.shape) > 1 and int(t.n_elements) >= 1024:
            rows = int(t.n_elements) // width
            yield sources.find(int(t.data_offset), t.data.tobytes(), rows, encoding, width)


def size_of(copy, sources):
    x = sources.tensors[copy[1]]
    rows = sum(n for _, n in copy[3]) if len(copy) > 3 else len(x)
    return rows * len(encoder(copy[2])(x[:1])[0].tobytes())


def packed_file(raw, copies, sources):
    rest, at = b"", 0
    for copy in copies:
        rest += raw[at:copy[0]]
        at = copy[0] + size_of(copy, sources)
    return rest + raw[at:]


# ---------------------------------------------------------------- results

def results(path, all_rows):
    """golden.safetensors with the rows that are kept."""
    from safetensors.numpy import load_file

    t = load_file(path)
    out = {}
    for name, x in t.items():
        if name in ("logits", "peer.logits") and not all_rows:
            out[name] = x[ROWS] if name == "logits" else x[-1:]
        elif name.startswith(("hidden.", "router.")) or name in ("peer.logits", "mtp.prefill.hidden"):
            # A hidden state of several streams is that of the first one, and has an axis more.
            out[name] = x.reshape(-1, x.shape[-1])[-1:]
        else:
            out[name] = x
    if "logits" in t and not all_rows:
        out["logits.rows"] = np.array(ROWS, np.int32)
    return {k: np.ascontiguousarray(v) for k, v in out.items()}


# ---------------------------------------------------------------- the folder

def shared(path, tracked):
    """The name of the file in `shared/` that holds these bytes; stored there if it is new."""
    data = open(path, "rb").read()
    folder = os.path.join(os.path.dirname(os.path.abspath(tracked)), "shared")
    os.makedirs(folder, exist_ok=True)
    name, suffix = os.path.splitext(os.path.basename(path))
    name = f"{name}-{hashlib.sha256(data).hexdigest()[:8]}{suffix}"
    with open(os.path.join(folder, name), "wb") as f:
        f.write(data)
    return name


def pack(done, tracked, named, all_rows):
    from safetensors.numpy import save_file

    os.makedirs(tracked, exist_ok=True)
    config = os.path.join(done, "config.json")
    config = json.load(open(config)) if os.path.exists(config) else {}
    info = json.load(open(os.path.join(done, "golden.json")))
    draws = os.path.join(done, "draws.json")
    recipe = {}
    if os.path.exists(draws):
        recipe = json.load(open(draws))
    source = info.get("peer", {}).get("from")
    sources = Sources(named[source]) if source in named else None
    files, links, stored = [], {}, set()
    for fn in sorted(os.listdir(done)):
        path, target = os.path.join(done, fn), os.path.join(tracked, fn)
        if fn in ("draws.json", "source_config.json") or fn.startswith("model") and fn.endswith(".rest"):
            continue
        if fn in ("tokenizer.json", "tokenizer_config.json"):
            links[fn] = shared(path, tracked)
        elif fn == "golden.safetensors":
            save_file(results(path, all_rows), target)
        elif fn.endswith((".safetensors", ".gguf")):
            raw = open(path, "rb").read()
            file = {"name": fn, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
            if sources:
                found = copies_of_gguf(path, sources) if fn.endswith(".gguf") else \
                    copies_of_safetensors(raw, sources, config)
                file["copies"] = sorted(c for some in found if some for c in some)
                rest = packed_file(raw, file["copies"], sources)
            elif recipe:
                stored.update(read_header(raw)[1])
                rest = drawn_file(raw, recipe["draws"])
            else:
                rest = raw
            if rest == raw:
                shutil.copyfile(path, target)
                continue
            with open(target + ".rest", "wb") as f:
                f.write(rest)
            files.append(file)
        else:
            shutil.copyfile(path, target)
    out = {}
    if recipe:
        out = {"model": recipe["model"], "seed": recipe["seed"], "draws": shorten(recipe["draws"], stored)}
    if sources:
        out["source"] = source
    out.update(files=files, shared=links)
    with open(os.path.join(tracked, "weights.json"), "w") as f:
        f.write(pretty(out))


def pretty(out):
    """JSON with one line for each draw, each copy and each file."""
    def lines(items, brackets, indent):
        inner = ",\n".join(" " * (indent + 1) + x for x in items)
        return brackets[0] + "\n" + inner + "\n" + " " * indent + brackets[1]

    def value(key, x, indent):
        if key == "copies":
            return lines([json.dumps(c, separators=(",", ":")) for c in x], "[]", indent)
        if key == "files":
            return lines([value("file", f, indent + 1) for f in x], "[]", indent)
        if isinstance(x, dict) and indent < 3 and key in ("all", "draws", "file", "shared"):
            return lines([f"{json.dumps(k)}: {value(k, v, indent + 1)}" for k, v in x.items()], "{}", indent)
        return json.dumps(x)

    return value("all", out, 0) + "\n"


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("done")
    ap.add_argument("tracked")
    ap.add_argument("--source", action="append", default=[], help="NAME=FOLDER of a checkpoint to encode from")
    ap.add_argument("--all-rows", action="store_true", help="keep the logits of every row of the prompt")
    a = ap.parse_args()
    pack(a.done, a.tracked, dict(s.split("=", 1) for s in a.source), a.all_rows)


if __name__ == "__main__":
    main()
