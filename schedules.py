"""Learning-rate schedules: plain functions of the step number, so that a resumed run needs nothing but that number.

Warmup and linear decay as in BERT (Devlin et al. 2019, arXiv 1810.04805, appendix A.2); constant as in the course.

A schedule returns the factor on each group's own rate for step 0 <= step < total_steps (0 is the first); `warmup`, 0 to
1, is the share of total_steps over which the rate climbs. No step is spent on a rate of zero: with 10 steps and warmup
0.2, `linear` gives 1/2, 1, 1, 7/8, 6/8, ... 1/8.
"""


def constant(step, total_steps, warmup=0.0):
    """1 after the warmup, which is none by default: the course's."""
    return _climb(step, _warmup_steps(step, total_steps, warmup))


def linear(step, total_steps, warmup=0.1):
    """A climb to 1 over the warmup, then a straight line that would reach 0 just after the last step."""
    warmup_steps = _warmup_steps(step, total_steps, warmup)
    if step < warmup_steps:
        return _climb(step, warmup_steps)
    return (total_steps - step) / (total_steps - warmup_steps)


SCHEDULES = {"constant": constant, "linear": linear}


def set_learning_rate(optimizer, factor):
    """Sets every group's lr to factor times its `initial_lr`, which is the lr the group had at the first call.

    Call it before each step. `initial_lr` is kept in the group, so `state_dict` has it.
    """
    for group in optimizer.param_groups:
        group["lr"] = factor * group.setdefault("initial_lr", group["lr"])


def _warmup_steps(step, total_steps, warmup):
    if not 0 <= step < total_steps:
        raise ValueError(f"schedule: step {step} of {total_steps}, wanted 0 to {total_steps - 1}: count from 0")
    if not 0 <= warmup <= 1:
        raise ValueError(f"schedule: warmup is {warmup}, wanted a share of the steps, from 0 to 1")
    return round(warmup * total_steps)


def _climb(step, warmup_steps):
    return (step + 1) / warmup_steps if step < warmup_steps else 1.0
