"""Create .venv and install Rheoscope into it. The Makefile calls this; it needs only Python 3.11+.

    python .ci/install.py [EXTRA ...] [--torch auto|cpu|cuda]

- It does nothing if .venv already has these extras for the current pyproject.toml and constraints.txt.
- An interrupted installation leaves a marker file, and the next one starts with an empty .venv.
- On Linux, the default build of torch includes gigabytes of CUDA. `auto` chooses the CPU build if there is no nvidia-smi. It comes
  from a wheel folder in pip's configuration, else from the public PyTorch index. If the index cannot be reached, the default build
  is installed, with a notice.
- uv does the installation. It does not read pip's configuration, so find-links, index and certificate are passed to it.
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
    """An error that is printed as one line."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Create .venv and install Rheoscope into it.")
    parser.add_argument("extras", nargs="*", help="optional dependencies of pyproject.toml: test docs dev")
    parser.add_argument("--torch", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--target", default=str(ROOT), help="the checkout (installed in editable mode) or a wheel")
    options = parser.parse_args(arguments)
    try:
        install(options.venv, options.target, set(options.extras), options.torch)
    except (InstallError, OSError) as error:
        print(f"install: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("install: interrupted; run it again to start over", file=sys.stderr)
        return 130
    return 0


def install(folder: Path, target: str, extras: set[str], torch: str) -> None:
    stamp = Stamp(folder)
    build = torch if torch != "auto" else stamp.torch or ("cuda" if shutil.which("nvidia-smi") else "cpu")
    if stamp.covers(build, extras):
        return
    if not stamp.usable or stamp.torch not in (None, build):
        print(f"install: creating {folder.name} with Python {sys.version.split()[0]}", flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        stamp.begin()
        make_venv(folder)
    stamp.begin()
    settings = pip_settings(folder)
    installer = choose_installer(folder)
    if not stamp.covers(build, set()):
        build = install_torch(installer, build, settings, required=torch == "cpu")
    extras = extras | stamp.extras
    print(f"install: rheoscope{sorted(extras) or ''} and its dependencies", flush=True)
    # For CUDA, a CPU wheel in a local folder must not take precedence.
    folders = [] if build == "cuda" and local_torch(settings) else links(settings)
    call([*installer, *requirement(target, extras), "-c", str(CONSTRAINTS), *folders], settings)
    stamp.finish(build, extras)


class Stamp:
    """The record of what a .venv contains. It is written at the end of an installation and ignored after an interrupted one."""

    def __init__(self, folder: Path):
        self.folder, self.file, self.mark = folder, folder / "rheoscope.json", folder / "installing"
        is_complete = python(folder).exists() and not self.mark.exists()
        record = json.loads(self.file.read_text()) if is_complete and self.file.exists() else {}
        self.usable = is_complete and record.get("python") in (None, sys.version)
        valid_record = record if self.usable else {}
        self.key, self.torch, self.extras = (
            valid_record.get("key"),
            valid_record.get("torch"),
            set(valid_record.get("extras", ())),
        )

    def covers(self, torch: str, extras: set[str]) -> bool:
        return self.key == current_key() and self.torch == torch and extras <= self.extras

    def begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.mark.touch()

    def finish(self, torch: str, extras: set[str]) -> None:
        record = {"key": current_key(), "torch": torch, "extras": sorted(extras), "python": sys.version}
        self.file.write_text(json.dumps(record))
        self.mark.unlink()


def current_key() -> str:
    return hashlib.sha256((ROOT / "pyproject.toml").read_bytes() + CONSTRAINTS.read_bytes()).hexdigest()


def make_venv(folder: Path) -> None:
    try:
        venv.create(folder, with_pip=True)
    except (subprocess.CalledProcessError, ImportError) as error:
        raise InstallError(
            "Python cannot create a venv; on Debian and Ubuntu, type apt install python3-venv"
        ) from error


def python(folder: Path) -> Path:
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def pip_settings(folder: Path) -> dict[str, str]:
    """pip's configuration from files and the environment, such as {"find-links": …}. The environment takes precedence."""
    command = [str(python(folder)), "-m", "pip", "config", "list"]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    settings = re.findall(r"^(:env:|global|install)\.([\w-]+)=(.*)$", output, re.M)
    ordered = sorted(settings, key=lambda entry: ["global", "install", ":env:"].index(entry[0]))
    return {name: str(ast.literal_eval(value)) for _, name, value in ordered}


def choose_installer(folder: Path) -> list[str]:
    """The command of uv, installed in the venv at its pinned version, or of pip if uv cannot be installed."""
    interpreter = str(python(folder))
    pip = [interpreter, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if subprocess.run([*pip, "-c", str(CONSTRAINTS), "uv"], check=False).returncode:
        print("install: uv cannot be installed, so pip is used (minutes instead of seconds)", flush=True)
        return pip
    # If Python writes no bytecode, every start would compile torch and transformers again. Compile them once, here.
    compile_option = ["--compile-bytecode"] if os.environ.get("PYTHONDONTWRITEBYTECODE") else []
    return [interpreter, "-m", "uv", "pip", "install", "--quiet", "--python", interpreter, *compile_option]


def install_torch(installer: list[str], build: str, settings: dict[str, str], required: bool) -> str:
    """Install the CPU build of torch before everything else. Returns the build, "cpu" or "cuda"."""
    if build == "cuda" or sys.platform != "linux":
        return build
    version = torch_version()
    source = ["--no-index", *links(settings)] if local_torch(settings) else ["--index-url", CPU_INDEX]
    print(f"install: torch {version}, CPU build (for a GPU, type TORCH=cuda)", flush=True)
    try:
        call([*installer, "--no-deps", *source, f"torch=={version}"], settings)
    except InstallError:
        if required:
            raise
        print(f"install: {CPU_INDEX} cannot be reached; installing torch's default build (gigabytes)", flush=True)
        return "cuda"
    return "cpu"


def torch_version() -> str:
    return str(re.findall(r"^torch==(\S+)", CONSTRAINTS.read_text(), re.M)[0])


def local_torch(settings: dict[str, str]) -> bool:
    """Whether a wheel folder in pip's configuration has this torch for this Python."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    folders = [Path(link.removeprefix("file://")) for link in settings.get("find-links", "").split()]
    return any(any(folder.glob(f"torch-{torch_version()}[+-]*{tag}-*.whl")) for folder in folders)


def links(settings: dict[str, str]) -> list[str]:
    return [part for link in settings.get("find-links", "").split() for part in ("--find-links", link)]


def requirement(target: str, extras: set[str]) -> list[str]:
    extras_suffix = f"[{','.join(sorted(extras))}]" if extras else ""
    return [target + extras_suffix] if target.endswith(".whl") else ["-e", target + extras_suffix]


def call(command: list[str], settings: dict[str, str]) -> None:
    environment = os.environ | {"UV_BUILD_CONSTRAINT": str(CONSTRAINTS), "PIP_BUILD_CONSTRAINT": str(CONSTRAINTS)}
    for variable, name in (("SSL_CERT_FILE", "cert"), ("UV_DEFAULT_INDEX", "index-url")):
        if name in settings:
            environment.setdefault(variable, settings[name])
    if subprocess.run(command, env=environment, check=False).returncode:
        raise InstallError("the installation failed, see above; set proxies and mirrors in pip's configuration")


if __name__ == "__main__":
    sys.exit(main())
