"""kill −9 at any moment: after resume every byte is that of a run that nothing disturbed.

One process opens the model; each run is a fork of it, killed after a share of the time that a whole run takes, or at one of the
moments at which a file becomes permanent.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.corpus.cases import lines, text_file, tiny_model

pytest.importorskip("pyarrow")
MOMENTS = 16
SCRIPT = """
import os, random, signal, sys, time
from pathlib import Path
import pandas, pyarrow.compute, pyarrow.parquet
import torch
torch.set_num_threads(1)
from rheoscope.corpus import driving
from rheoscope.corpus.shards import code_version, done
from tests.corpus.cases import content, job

model, texts, root, moments = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
asked = job(model, texts, shard=250, analyses={"head_types": {}})
opened = driving.open_model(asked)
asked.checked()
opened.trace("abc")
code_version()
driving.open_model = lambda job: opened
draw = random.Random(0)

def forked(folder, dies_at=None):
    pid = os.fork()
    if pid:
        return pid
    if dies_at is not None:
        calls, sync = iter(range(10**6)), os.fsync
        def dying(file):
            if next(calls) == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            sync(file)
        os.fsync = dying
    code = 1
    try:
        driving.drive(asked, folder)
        code = 0
    except BaseException as error:
        print(repr(error), file=sys.stderr, flush=True)
    finally:
        os._exit(code)

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

begun = time.monotonic()
assert ended(forked(root / "whole")) == 0
takes, whole, killed = time.monotonic() - begun, content(root / "whole"), 0
assert len(done(root / "whole")) >= 4, done(root / "whole")
for moment in range(moments):
    folder = root / f"run{moment}"
    if moment % 2:
        dies_at = moment // 2 if moment < 8 else draw.randrange(4, 2 * len(whole) - 2)
        status = ended(forked(folder, dies_at))
    else:
        pid = forked(folder)
        time.sleep(draw.uniform(0, takes))
        os.kill(pid, signal.SIGKILL)
        status = ended(pid)
    killed += status == -signal.SIGKILL
    assert ended(forked(folder)) == 0, moment
    found = content(folder)
    assert found == whole, (moment, [name for name in {**found, **whole} if found.get(name) != whole.get(name)])
print(killed)
"""


def test_killed_at_random_moments_it_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    model, texts = tiny_model(tmp_path / "model"), text_file(tmp_path / "texts.txt", lines(28))
    words = [sys.executable, "-c", SCRIPT, model, texts, str(tmp_path), str(MOMENTS)]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= MOMENTS - 4, "most runs were killed before their end"
