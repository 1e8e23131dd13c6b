"""Encodings of a frozen encoder, computed once and kept in a memory-mapped file.

The feature-based approach of Devlin et al. 2018 (arXiv 1810.04805), section 5.3. Under `--option pretrain` the encoder
does not change, so neither do its outputs: every distinct sentence is encoded once, in evaluation mode, and every epoch
trains the heads from the file.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import torch

from bert import BertModel
from files import cannot
from packed import Layout

TOKENS_AT_ONCE = 4096


class Store:
    """The last hidden state of every distinct sentence, (all tokens, H) float32 on disk."""

    def __init__(self, rows: np.ndarray, offsets: dict[bytes, int]):
        self.rows, self.offsets = rows, offsets

    def states(self, sentences: list[np.ndarray], layout: Layout) -> tuple[torch.Tensor, ...]:
        """The hidden states of a batch, packed as `layout` (on the CPU) says: one tensor (R, H)."""
        starts = torch.tensor([self.offsets[ids.tobytes()] for ids in sentences])  # (S,)
        places = starts[layout.rows // layout.width] + layout.positions  # (R,)
        return (torch.from_numpy(self.rows[places.numpy()]),)

    @classmethod
    def build(
        cls,
        encoder: BertModel,
        weights_sha256: str,
        sentences: Iterable[np.ndarray],
        folder: Path,
        progress: Callable[[int], None] = lambda tokens: None,
    ) -> Store:
        """Encode what is not on disk yet. sentences: arrays of token ids, repeated ones welcome.

        The file's name is a hash of the encoder's weights and of every token id, so a change of weights, tokenizer,
        truncation or text makes another file. It takes its name only when it is complete. progress is told the tokens
        encoded so far. Raises InputError if it cannot be written.
        """
        distinct = sorted({ids.tobytes() for ids in sentences}, key=lambda key: (-len(key), key))
        key = hashlib.sha256(f"last hidden state, float32, {weights_sha256}".encode())
        offsets, total = {}, 0
        for ids in distinct:
            offsets[ids] = total
            total += len(ids) // 4  # int32
            key.update(len(ids).to_bytes(8, "little") + ids)
        path, shape = folder / f"{key.hexdigest()[:32]}.f32", (total, encoder.config.hidden_size)
        if not path.is_file() or path.stat().st_size != 4 * shape[0] * shape[1]:
            _encode(encoder, distinct, path, shape, progress)
        progress(total)
        return cls(np.memmap(path, dtype=np.float32, mode="r", shape=shape), offsets)


def _encode(encoder: BertModel, distinct: list[bytes], path: Path, shape: tuple[int, int], progress) -> None:
    """Write the hidden states of `distinct` (longest first) one after the other to `path`."""
    device = encoder.embeddings.word_embeddings.weight.device
    # Not the process's number: two containers on one disk may both have number 1.
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(6)}.tmp")
    done = start = 0
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file, torch.no_grad():
            while start < len(distinct):
                width = len(distinct[start]) // 4
                stop = start + max(1, TOKENS_AT_ONCE // width)
                rows = [np.frombuffer(ids, dtype=np.int32) for ids in distinct[start:stop]]
                padded = torch.zeros(len(rows), width, dtype=torch.long)
                for i, ids in enumerate(rows):
                    padded[i, : len(ids)] = torch.from_numpy(ids.astype(np.int64))
                real = torch.arange(width) < torch.tensor([len(ids) for ids in rows])[:, None]
                layout = Layout.of(real).to(device)
                (hidden,) = encoder.encode(padded.to(device), layout)
                # Longest first is the packed order too, so the packed rows follow each other as in the file.
                file.write(hidden.float().cpu().numpy().tobytes())
                done, start = done + len(hidden), stop
                progress(done)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise cannot("write", path, error) from error
    finally:
        temporary.unlink(missing_ok=True)
