"""Encodings of a frozen encoder, computed once and kept in a memory-mapped file.

The feature-based approach of Devlin et al. 2018 (arXiv 1810.04805), section 5.3. Under `--option pretrain` the encoder
does not change, so neither do its outputs: of every distinct sentence, what the heads read is computed once, in
evaluation mode, and every epoch trains the heads from the file.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from batches import pin, prepared, split_segments
from bert import BertModel
from disk_cache import MARGIN, DiskCache
from files import cannot
from heads import TOKENS, TaskHead
from packed import Layout

TOKENS_AT_ONCE = 4096
# What is copied back from a GPU while it computes: so many batches may be on their way.
UNDER_WAY = 2
# A run on the course's files with bert-base keeps 15 GB in float32 where the heads read all tokens.
CACHE_GB = 20.0
# Sentences of a store found on disk that are encoded again to compare, and how far off they may be, relatively: other
# batch-mates change the last bits of an encoding, another formula more than that.
PROBES = 3
CLOSE = {"full": 1e-3, "half": 5e-2}
CHECKSUM = 4  # bytes
FORMATS = {"f32": np.dtype(np.float32), "f16": np.dtype(np.float16)}


@dataclass(frozen=True)
class Source:
    """Whose outputs are kept, and what of them.

    weights_sha256: of the encoder's weights. head: one of those that read the same; None keeps all tokens. autocast:
    the 16-bit type of matrix products, None for float32.
    """

    encoder: BertModel
    weights_sha256: str
    head: TaskHead | None = None
    autocast: torch.dtype | None = None

    @property
    def reads(self) -> str:
        return TOKENS if self.head is None else self.head.reads

    @property
    def keeps_tokens(self) -> bool:
        return self.reads.startswith(TOKENS)

    @property
    def layers(self) -> int:
        """Hidden states that are read."""
        wanted = 1 if self.head is None else self.head.layers_wanted
        return self.encoder.config.num_hidden_layers + 1 if wanted is None else wanted

    @property
    def width(self) -> int:
        """Numbers in a row of what is kept."""
        states = (torch.zeros(1, self.encoder.config.hidden_size),) * self.layers
        if self.keeps_tokens:
            return sum(state.shape[1] for state in states)
        return self.head.features(states, Layout.of(torch.ones(1, 1))).shape[1]

    @property
    def description(self) -> bytes:
        """Whatever the numbers depend on, besides the token ids."""
        config = json.dumps(self.encoder.config.to_dict(), sort_keys=True)
        return f"{self.reads}, computed in {self.autocast or torch.float32}, {self.weights_sha256}, {config}".encode()

    @torch.no_grad()
    def rows(self, input_ids: torch.Tensor, types: torch.Tensor | None, layout: Layout) -> torch.Tensor:
        """(S, T) ids and segments, longest first -> what is kept: packed tokens (R, layers * H), or features (S, F)."""
        device = input_ids.device.type
        with torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None):
            if self.keeps_tokens:
                return torch.cat(self.encoder.encode(input_ids, layout, types, self.layers), dim=1)
            if self.head.first_token_only:
                states, layout = self.encoder.encode(input_ids, layout, types, first_only=True), layout.firsts()
            else:
                states = self.encoder.encode(input_ids, layout, types, self.layers)
            return self.head.features(states, layout)

    def chunks(self, distinct: list[bytes]) -> Iterator[tuple[np.ndarray, int]]:
        """(rows in float32, tokens that they took) of these sentences (longest first), in order.

        A GPU is never waited for while it has nothing else to do: the next batch is prepared and on its way before the
        last one's rows are looked at.
        """
        device = self.encoder.embeddings.word_embeddings.weight.device
        waiting: deque = deque()
        for input_ids, types, layout in prepared(lambda part: _padded(part, device), list(_parts(distinct))):
            tokens = layout.rows.numel()
            if types is not None:
                types = types.to(device, non_blocking=True)
            rows = self.rows(input_ids.to(device, non_blocking=True), types, layout.to(device)).float()
            if device.type != "cuda":
                yield rows.cpu().numpy(), tokens
                continue
            copy = torch.empty(rows.shape, pin_memory=True).copy_(rows, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
            waiting.append((done, copy, tokens))
            if len(waiting) > UNDER_WAY:
                yield _arrived(*waiting.popleft())
        while waiting:
            yield _arrived(*waiting.popleft())


def _parts(distinct: list[bytes]) -> Iterator[list[bytes]]:
    """Neighbours that fit into one batch of the encoder."""
    start = 0
    while start < len(distinct):
        stop = start + max(1, TOKENS_AT_ONCE // (len(distinct[start]) // 4))
        yield distinct[start:stop]
        start = stop


def _padded(part: list[bytes], device: torch.device) -> tuple[torch.Tensor, torch.Tensor | None, Layout]:
    """(S, T) ids and segments of these sentences, longest first, and their layout; on the CPU, ready for the device."""
    rows = [np.frombuffer(ids, dtype=np.int32) for ids in part]
    lengths = np.array([len(ids) for ids in rows])
    real = np.arange(lengths[0]) < lengths[:, None]  # (S, T)
    padded = np.zeros(real.shape, dtype=np.int64)
    padded[real] = np.concatenate(rows)
    found = *split_segments(torch.from_numpy(padded)), Layout.of(torch.from_numpy(real))
    return pin(found) if device.type == "cuda" else found


def _arrived(done: torch.cuda.Event, copy: torch.Tensor, tokens: int) -> tuple[np.ndarray, int]:
    done.synchronize()
    return copy.numpy(), tokens


class Store:
    """What heads read of every distinct sentence, on disk: tokens of the last layers, or a pooler's features."""

    def __init__(
        self, rows: np.ndarray, places: dict[bytes, int], keeps_tokens: bool, layers: int = 1, checksum: bytes = b""
    ):
        """rows: (all tokens, layers * H) or (sentences, F). places: ids of a sentence -> its (first) row.

        checksum: what the file says of its rows.
        """
        self.rows, self.places, self.keeps_tokens, self.layers = rows, places, keeps_tokens, layers
        self.checksum = checksum

    def find(self, sentences: Iterable[np.ndarray]) -> np.ndarray:
        """The places of these sentences' (first) rows, (S,)."""
        return np.array([self.places[ids.tobytes()] for ids in sentences])

    def features(self, places: np.ndarray) -> torch.Tensor:
        """The features of the sentences at these places, (S, F) float32."""
        return torch.from_numpy(self.rows[places]).float()

    def states(self, places: np.ndarray, lengths: np.ndarray, layout: Layout) -> tuple[torch.Tensor, ...]:
        """Hidden states of the sentences at these places, packed as `layout` (on the CPU) says: (R, H) float32 each.

        lengths: (S,) of the sentences in tokens.
        """
        # A sentence's tokens are neighbours in both: 16 sentences of MiniLM's take 39 us as runs, 66 us row by row.
        order = layout.order.numpy()
        starts, stops = places[order].tolist(), (places + lengths)[order].tolist()
        runs = [self.rows[start:stop] for start, stop in zip(starts, stops, strict=True)]
        return torch.from_numpy(np.concatenate(runs)).float().chunk(self.layers, dim=1)

    @classmethod
    def build(
        cls,
        source: Source,
        sentences: Iterable[np.ndarray],
        folder: Path,
        budget_gb: float = CACHE_GB,
        say: Callable[[str], None] = lambda text: None,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> Store | None:
        """Encode what is not on disk yet. sentences: arrays of token ids, repeated ones welcome.

        The file's name is a hash of all that its content depends on, so a change of weights, configuration, precision,
        tokenizer, truncation or text makes another file. It takes its name only when it is complete. Rows are float32;
        float16 where that doesn't fit into the budget, which all files in the folder share; where neither does, or the
        disk refuses, the answer is None, and whoever asks encodes anew each time. Which of these happens is said.
        progress is told the tokens encoded so far. The encoder drops nothing meanwhile, whatever mode it is in.
        """
        plan, was_training = _Plan(source, sentences), source.encoder.training
        source.encoder.eval()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            return _build(plan, DiskCache(folder, int(budget_gb * 1e9)), budget_gb, say, progress)
        except OSError as error:
            say(f"not kept, encoded anew in every epoch: {cannot('write', error.filename or folder, error)}")
            return None
        finally:
            source.encoder.train(was_training)


class _Plan:
    """What a store is to hold, and where in it."""

    def __init__(self, source: Source, sentences: Iterable[np.ndarray]):
        self.source, self.keeps_tokens = source, source.keeps_tokens
        # Longest first is the packed order of every batch, too.
        self.distinct = sorted({ids.tobytes() for ids in sentences}, key=lambda ids: (-len(ids), ids))
        self.places, total = {}, 0
        digest = hashlib.sha256(source.description)
        for ids in self.distinct:
            self.places[ids] = total
            total += len(ids) // 4 if self.keeps_tokens else 1  # int32
            digest.update(len(ids).to_bytes(8, "little") + ids)
        self.shape, self.digest = (total, source.width), digest.hexdigest()[:32]
        self.tokens = sum(len(ids) for ids in self.distinct) // 4

    def size(self, kind: str) -> int:
        """Bytes of the file: its rows, and behind them their CRC-32."""
        return self.shape[0] * self.shape[1] * FORMATS[kind].itemsize + CHECKSUM

    def path(self, folder: Path, kind: str) -> Path:
        return folder / f"{self.digest}.{kind}"

    def found(self, cache: DiskCache, kind: str) -> Store | None:
        """The store that is on disk."""
        descriptor = cache.open(self.path(cache.folder, kind), self.size(kind))
        if descriptor is None:
            return None
        try:
            mapped = mmap.mmap(descriptor, self.size(kind), access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        # A plain array: slices of numpy's memmap cost half as much again.
        rows = np.frombuffer(mapped, dtype=FORMATS[kind], count=self.shape[0] * self.shape[1]).reshape(self.shape)
        return Store(rows, self.places, self.keeps_tokens, self.source.layers, mapped[-CHECKSUM:])

    def agrees(self, store: Store) -> bool:
        """Whether the store holds what was written, and what the encoder computes now, judged by a few sentences.

        It doesn't if the file was damaged, or if the code was changed that computes it.
        """
        if zlib.crc32(store.rows.data).to_bytes(CHECKSUM, "little") != store.checksum:
            return False
        picks = np.linspace(0, len(self.distinct) - 1, min(PROBES, len(self.distinct))).astype(int)
        probes = [self.distinct[i] for i in picks]
        fresh = np.concatenate([rows for rows, _ in self.source.chunks(probes)])
        counts = [len(ids) // 4 if self.keeps_tokens else 1 for ids in probes]
        starts = [self.places[ids] for ids in probes]
        kept = np.concatenate([store.rows[s : s + n] for s, n in zip(starts, counts, strict=True)]).astype(np.float32)
        half = self.source.autocast is not None or store.rows.dtype == np.float16
        distances = np.linalg.norm(kept - fresh, axis=1)
        return bool((distances <= CLOSE["half" if half else "full"] * np.linalg.norm(fresh, axis=1)).all())


def _build(plan: _Plan, cache: DiskCache, budget_gb: float, say, progress) -> Store | None:
    """`Store.build`, where the folder is there. Raises OSError where the disk refuses."""

    def wait(holder: str) -> None:
        say(f"waiting for process {holder}, which encodes the same sentences")

    what = f"{len(plan.distinct):,} distinct sentences"
    sizes = {kind: plan.size(kind) for kind in FORMATS}
    limits = f"--cache_gb {budget_gb:g}, {_bytes(MARGIN)} of the disk stay free"
    with cache.making(cache.folder / plan.digest, wait):
        cache.sweep()
        for kind, size in sizes.items():
            store = plan.found(cache, kind) if size <= cache.budget else None
            if store and not plan.agrees(store):
                store = None  # and with it goes the lock, so that it may be deleted
                say("what is on disk is not what the encoder computes now: encoded again")
            room = cache.room()
            if store is None and size <= room:
                files, freed = cache.make_room(size)
                if files:
                    say(f"older ones deleted to make room: {files}, {_bytes(freed)} ({limits})")
                _write(plan, cache, kind, progress)
                store, how = plan.found(cache, kind), "encoded once"
            elif store:
                how = "found"
            if store:
                why = (
                    f" as float16, since float32 would take {_bytes(sizes['f32'])} ({limits})" if kind == "f16" else ""
                )
                say(f"{what}, {_bytes(size)}{why}, {how}")
                progress(plan.tokens)
                return store
    least = min(sizes.values())
    say(f"{what} not kept, encoded anew in every epoch: {_bytes(least)} needed, room for {_bytes(room)} ({limits})")
    return None


def _write(plan: _Plan, cache: DiskCache, kind: str, progress: Callable[[int], None]) -> None:
    done = checksum = 0
    with cache.writing(plan.path(cache.folder, kind), plan.size(kind)) as file:
        for rows, tokens in plan.source.chunks(plan.distinct):
            content = np.ascontiguousarray(rows, dtype=FORMATS[kind]).data
            checksum = zlib.crc32(content, checksum)
            file.write(content)
            done += tokens
            progress(done)
        file.write(checksum.to_bytes(CHECKSUM, "little"))


def _bytes(number: int) -> str:
    """12,345,678 -> `12.3 MB`."""
    unit, name = (10**9, "GB") if number >= 10**9 else (10**6, "MB")
    return f"{number / unit:,.1f} {name}"
