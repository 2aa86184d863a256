"""Make .venv and install Rheoscope into it, once. Called by the Makefile; needs nothing but Python 3.11+.

    python .ci/install.py [EXTRA ...] [--torch auto|cpu|cuda]

- Nothing happens when .venv already holds these extras for this pyproject.toml and this constraints.txt.
- An install that was interrupted leaves a mark, and the next one starts from an empty .venv.
- torch: on Linux the default build brings gigabytes of CUDA. `auto` takes the CPU build where there is no nvidia-smi,
  from a wheel folder that pip is configured with if it holds one, else from the public PyTorch index; where that index
  cannot be reached it says so and takes the default build.
- uv installs; it does not read pip's configuration, so find-links, index and certificate are passed on to it.
"""

import argparse
import ast
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"


class InstallError(Exception):
    """A failure that one line explains."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make .venv and install Rheoscope into it.")
    parser.add_argument("extras", nargs="*", help="optional dependencies of pyproject.toml: test docs dev")
    parser.add_argument("--torch", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--target", default=str(ROOT), help="what to install: the checkout (editable) or a wheel")
    options = parser.parse_args(arguments)
    try:
        install(options.venv, options.target, set(options.extras), options.torch)
    except (InstallError, OSError) as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("install: interrupted; run it again and it starts afresh", file=sys.stderr)
        return 130
    return 0


def install(folder: Path, target: str, extras: set[str], torch: str) -> None:
    done = Stamp(folder)
    build = torch if torch != "auto" else done.torch or ("cuda" if shutil.which("nvidia-smi") else "cpu")
    if done.covers(build, extras):
        return
    if not done.usable or done.torch not in (None, build):
        print(f"install: making {folder.name} with Python {sys.version.split()[0]}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        done.begin()
        make_venv(folder)
    done.begin()
    settings = pip_settings(folder)
    installer = choose_installer(folder)
    if not done.covers(build, set()):
        build = install_torch(installer, build, settings, required=torch == "cpu")
    extras = extras | done.extras
    print(f"install: rheoscope{sorted(extras) or ''} and what it needs", flush=True)
    folders = [] if build == "cuda" and local_torch(settings) else links(settings)  # a CPU wheel there would win
    call([*installer, *requirement(target, extras), "-c", str(CONSTRAINTS), *folders], settings)
    done.finish(build, extras)


class Stamp:
    """What a .venv holds: written when an install ends, doubted when one only began."""

    def __init__(self, folder: Path):
        self.folder, self.file, self.mark = folder, folder / "rheoscope.json", folder / "installing"
        whole = python(folder).exists() and not self.mark.exists()
        held = json.loads(self.file.read_text()) if whole and self.file.exists() else {}
        self.usable = whole and held.get("python") in (None, sys.version)
        known = held if self.usable else {}
        self.key, self.torch, self.extras = known.get("key"), known.get("torch"), set(known.get("extras", ()))

    def covers(self, torch: str, extras: set[str]) -> bool:
        return self.key == wanted_key() and self.torch == torch and extras <= self.extras

    def begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.mark.touch()

    def finish(self, torch: str, extras: set[str]) -> None:
        held = {"key": wanted_key(), "torch": torch, "extras": sorted(extras), "python": sys.version}
        self.file.write_text(json.dumps(held))
        self.mark.unlink()


def wanted_key() -> str:
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + CONSTRAINTS.read_bytes()).hexdigest()


def make_venv(folder: Path) -> None:
    try:
        venv.create(folder, with_pip=True)
    except (subprocess.CalledProcessError, ImportError) as error:
        raise InstallError("Python cannot make a venv here; on Debian and Ubuntu: apt install python3-venv") from error


def python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def pip_settings(folder: Path) -> dict[str, str]:
    """pip's own configuration, files and environment together, the environment last: {"find-links": …}."""
    command = [str(python(folder)), "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    found = re.findall(r"^(:env:|global|install)\.([\w-]+)=(.*)$", listed, re.M)
    ordered = sorted(found, key=lambda entry: ["global", "install", ":env:"].index(entry[0]))
    return {name: str(ast.literal_eval(value)) for _, name, value in ordered}


def choose_installer(folder: Path) -> list[str]:
    """uv, pinned and inside the venv; pip, in so many words, where uv cannot be had."""
    inside = str(python(folder))
    pip = [inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, "-c", str(CONSTRAINTS), "uv"], check=False).returncode:
        print("install: uv is not to be had here, so pip installs (minutes instead of seconds)", flush=True)
        return pip
    # Where Python may not keep its bytecode, every start would compile torch and transformers anew: do it once, here.
    compiled = ["--compile-bytecode"] if os.environ.get("PYTHONDONTWRITEBYTECODE") else []
    return [inside, "-m", "uv", "pip", "install", "--quiet", "--python", inside, *compiled]


def install_torch(installer: list[str], build: str, settings: dict[str, str], required: bool) -> str:
    """Put the CPU build in place before the rest is resolved; the default build comes with it. Says which it is."""
    if build == "cuda" or sys.platform != "linux":
        return build
    version = torch_version()
    source = ["--no-index", *links(settings)] if local_torch(settings) else ["--index-url", CPU_INDEX]
    print(f"install: torch {version}, the CPU build (a GPU user types TORCH=cuda)", flush=True)
    try:
        call([*installer, "--no-deps", *source, f"torch=={version}"], settings)
    except InstallError:
        if required:
            raise
        print(f"install: {CPU_INDEX} does not answer; taking torch's default build (gigabytes)", flush=True)
        return "cuda"
    return "cpu"


def torch_version() -> str:
    return str(re.findall(r"^torch==(\S+)", CONSTRAINTS.read_text(), re.M)[0])


def local_torch(settings: dict[str, str]) -> bool:
    """Whether a wheel folder of pip's holds this torch for this Python."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    folders = [Path(link.removeprefix("file://")) for link in settings.get("find-links", "").split()]
    return any(any(folder.glob(f"torch-{torch_version()}[+-]*{tag}-*.whl")) for folder in folders)


def links(settings: dict[str, str]) -> list[str]:
    return [part for link in settings.get("find-links", "").split() for part in ("--find-links", link)]


def requirement(target: str, extras: set[str]) -> list[str]:
    wanted = f"[{','.join(sorted(extras))}]" if extras else ""
    return [target + wanted] if target.endswith(".whl") else ["-e", target + wanted]


def call(command: list[str], settings: dict[str, str]) -> None:
    environment = os.environ | {"UV_BUILD_CONSTRAINT": str(CONSTRAINTS), "PIP_BUILD_CONSTRAINT": str(CONSTRAINTS)}
    for variable, name in (("SSL_CERT_FILE", "cert"), ("UV_DEFAULT_INDEX", "index-url")):
        if name in settings:
            environment.setdefault(variable, settings[name])
    if subprocess.run(command, env=environment, check=False).returncode:
        raise InstallError("it failed, see above; behind a proxy or a mirror, pip's own settings are honoured")


if __name__ == "__main__":
    sys.exit(main())
