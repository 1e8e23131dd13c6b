"""A short turn of torture.py: real processes, killed at random moments."""

import os

import pytest
import torture


@pytest.mark.skipif(os.name == "nt", reason="POSIX signals")
def test_killed_runs_end_as_undisturbed_ones(capsys):
    code = torture.main(["--kills", "3", "--command", "finetune", "contrastive"])
    found = capsys.readouterr()
    assert code == 0 and "NOT" not in found.out, found.err
    assert found.out.count("; the same as undisturbed") == 2 and "SIG" in found.out
