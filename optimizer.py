"""AdamW written out, the one the course defines: Adam with decoupled weight decay, applied after the step.

Adam: Kingma & Ba 2015 (arXiv 1412.6980), in the efficient order given at the end of its section 2.
Decoupled decay: Loshchilov & Hutter 2019 (arXiv 1711.05101), times lr, which there it is not.
"""

import math

import torch
from torch.optim import Optimizer

import as_written

# How many elements go through the whole formula before the next ones are touched. The formula is seven passes over four
# tensors and a scratch; in blocks of this size all five (10 MB in float32) stay in the last-level cache, so main memory
# is read and written once. A step on bert-base's 109 M parameters, two cores with 32 MB of cache: 249 ms in blocks of
# 2^15 (the calls cost more than what they do), 180 of 2^16, 157 of 2^17, 134 to 141 of 2^18 to 2^20, 188 uncut.
BLOCK = 1 << 19

# Tensors up to this size (123 biases and LayerNorms and the token type embeddings, of bert-base's 199 tensors) go
# through the formula together, one call an operation for all of them instead of one each: 6 % of a step on two cores.
SMALL = 1 << 14


def adamw_step(p, grad, m, v, *, t, lr, betas, eps, weight_decay, correct_bias, out=None):
    """One step of AdamW on one tensor: p, m and v, all of one shape, are changed in place.

    m and v are the running means of the gradient and of its square, t (1 at the first step) counts the steps of this
    tensor, this one included. With alpha = lr * sqrt(1 - beta2^t) / (1 - beta1^t), or lr where `correct_bias` is False:

        m = beta1 m + (1 - beta1) grad
        v = beta2 v + (1 - beta2) grad^2
        p = p - alpha m / (sqrt(v) + eps)
        p = p - lr weight_decay p

    eps is added before the bias correction, so that beside the corrected root it counts as eps / sqrt(1 - beta2^t);
    torch.optim.AdamW adds eps itself there. The decay acts on the p that has already moved; in the paper and in torch
    on the p before. `out`, of the same shape, takes the denominator, otherwise allocated.

    To change the formula, change this: `adamw_step_lists` repeats it for many tensors at once, and no longer serves
    where its numbers are others (as_written.py says so).
    """
    beta1, beta2 = betas
    m.lerp_(grad, 1 - beta1)
    v.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
    denominator = torch.clamp(v, min=vanishing(eps, v.dtype), out=out).sqrt_().add_(eps)
    p.addcdiv_(m, denominator, value=-step_size(t, lr, betas, correct_bias))
    if weight_decay:
        # Not p.mul_(1 - lr * weight_decay): with lr 1e-5 and decay 0.01, float32 makes 1 - 1.19e-7 of 1 - 1.00e-7.
        p.add_(p, alpha=-lr * weight_decay)


def vanishing(eps, dtype):
    """A number so small that sqrt(v) + eps rounds to eps for every v up to it: v may be raised to it for nothing.

    The CPU library's square root takes five times as long for zeros and 35 times for subnormal numbers, and a word
    that no batch has held yet has v = 0: without this, sqrt alone is half of a step on the embedded model's weights.
    """
    return (eps * torch.finfo(dtype).eps / 8) ** 2  # its root is eps * 2^-26 in float32: under half of eps's last bit


def step_size(t, lr, betas, correct_bias):
    """The alpha of step t: lr, times what makes up for m and v having started from zero."""
    if not correct_bias:
        return lr
    return lr * math.sqrt(1 - betas[1] ** t) / (1 - betas[0] ** t)


def adamw_step_lists(ps, grads, ms, vs, *, t, lr, betas, eps, weight_decay, correct_bias):
    """`adamw_step` on lists of tensors of one dtype and device that are all at step t: the same lines, a list each.

    On a GPU each line is a few kernels for the whole model, on the CPU one call for all tensors of the list.
    """
    beta1, beta2 = betas
    torch._foreach_lerp_(ms, grads, 1 - beta1)
    torch._foreach_mul_(vs, beta2)
    torch._foreach_addcmul_(vs, grads, grads, 1 - beta2)
    denominators = torch._foreach_sqrt(vs)
    torch._foreach_add_(denominators, eps)
    torch._foreach_addcdiv_(ps, ms, denominators, -step_size(t, lr, betas, correct_bias))
    if weight_decay:
        torch._foreach_add_(ps, ps, alpha=-lr * weight_decay)


def adamw_step_blocks(ps, grads, ms, vs, **formula):
    """`adamw_step_lists` for the CPU: small tensors together, large ones in blocks that fit in the cache.

    Every element sees the operations of `adamw_step` in the same order, so the result is the same to the last bit.
    A large tensor that isn't contiguous, or whose gradient isn't, can't be cut into flat blocks and goes whole.
    """
    small, large = [], []
    for tensors in zip(ps, grads, ms, vs, strict=True):
        (small if tensors[0].numel() <= SMALL else large).append(tensors)
    if small:
        adamw_step_lists(*zip(*small, strict=True), **formula)
    if not large:
        return
    longest = max(tensors[0].numel() for tensors in large)
    scratch = torch.empty(min(longest, BLOCK), dtype=ps[0].dtype)
    for tensors in large:
        if all(tensor.is_contiguous() for tensor in tensors):
            for block in zip(*(tensor.view(-1).split(BLOCK) for tensor in tensors), strict=True):
                adamw_step(*block, **formula, out=scratch[: block[0].numel()])
        else:
            adamw_step(*tensors, **formula)


class AdamW(Optimizer):
    """The course's AdamW, `adamw_step` on every parameter that has a gradient; the others keep their own step count.

    params: parameters, or dicts {"params": ..., option: value} that override the options for a group of them.
    lr >= 0; betas, two numbers in [0, 1), the decay of the running means; eps >= 0, added to sqrt(v);
    weight_decay >= 0: each step takes lr * weight_decay * p off every parameter p (0: the course's default);
    correct_bias, whether the rate makes up for running means that start from zero.
    fast=False calls `adamw_step` on one whole tensor after the other, to compare with: slower, same numbers.

    The state of a parameter is {"step": int, "exp_avg": m, "exp_avg_sq": v}, which `state_dict` and `load_state_dict`
    keep exactly. Raises ValueError for an option out of range, and from `step` RuntimeError for a sparse gradient and
    TypeError for parameters of less than 32 bits.
    """

    fast = True  # for a copied or unpickled optimizer, whose __init__ isn't called

    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-6, weight_decay=0.0, correct_bias=True, *, fast=True
    ):
        self.fast = fast
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "correct_bias": correct_bias}
        )

    def add_param_group(self, param_group):
        """Adds a dict of "params" and options as `__init__` takes them, ValueError where one is out of range."""
        options = {**self.defaults, **param_group}
        for name in ("lr", "eps", "weight_decay"):
            if not 0 <= options[name] < math.inf:
                raise ValueError(f"AdamW: {name} is {options[name]}, wanted a finite number, 0 or more")
        if len(options["betas"]) != 2 or not all(0 <= beta < 1 for beta in options["betas"]):
            raise ValueError(f"AdamW: betas is {options['betas']}, wanted two numbers from 0 up to but not including 1")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure=None):
        """Moves every parameter that has a gradient; returns what `closure`, which recomputes the loss, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        fast = self.fast and as_written.adamw_lists()
        for group in self.param_groups:
            formula = {name: group[name] for name in ("lr", "betas", "eps", "weight_decay", "correct_bias")}
            for (device, _, t), members in self._same_step(group["params"]).items():
                if not fast:
                    for tensors in members:
                        adamw_step(*tensors, t=t, **formula)
                elif device.type == "cpu":
                    adamw_step_blocks(*zip(*members, strict=True), t=t, **formula)
                else:
                    adamw_step_lists(*zip(*members, strict=True), t=t, **formula)
        return loss

    def _same_step(self, params):
        """Counts the step of the parameters with gradients: {(device, dtype, step): [(p, grad, m, v), ...]}."""
        same = {}
        for p in params:
            if p.grad is None:
                continue
            if p.grad.layout != torch.strided:
                raise RuntimeError(
                    f"AdamW: a parameter of shape {tuple(p.shape)} has a sparse gradient, wanted a dense one: "
                    "make its Embedding with sparse=False, or give it to torch.optim.SparseAdam"
                )
            state = self.state[p]
            if not state:
                if p.dtype not in (torch.float32, torch.float64):
                    # 0.999 * v rounds back to v in bfloat16: the running mean of the squares could only grow.
                    raise TypeError(
                        f"AdamW: a parameter of shape {tuple(p.shape)} is {p.dtype}, wanted float32 or float64: keep "
                        "the parameters in float32 and compute in lower precision with torch.autocast"
                    )
                state["step"] = 0
                state["exp_avg"] = torch.zeros_like(p)
                state["exp_avg_sq"] = torch.zeros_like(p)
            state["step"] += 1
            same.setdefault((p.device, p.dtype, state["step"]), []).append(
                (p, p.grad, state["exp_avg"], state["exp_avg_sq"])
            )
        return same


def clip_grad_norm(parameters, max_norm, norm=None):
    """Scales the gradients of `parameters` in place so that their norm, over all of them, is at most max_norm > 0.

    norm: what it is before, where that is known. Returns it, a 0-d tensor (0 where nothing has a gradient). A norm that
    isn't finite makes gradients NaN: look at the returned norm, and don't step.
    """
    if not max_norm > 0:
        raise ValueError(f"clip_grad_norm: max_norm is {max_norm}, wanted a number above 0; to not clip, don't call it")
    parameters = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
    if norm is None:
        norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    # The library multiplies even by 1, which for bert-base on two cores takes 0.04 s, a quarter of an optimizer's step.
    # Asking first costs nothing on the CPU; a GPU would have to finish everything before it could answer.
    if norm.device.type != "cpu" or not norm + 1e-6 <= max_norm:
        torch.nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
