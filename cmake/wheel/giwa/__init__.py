# SPDX-License-Identifier: MIT
"""Where the headers and the CMake package of giwa are: python3 -m giwa --include, --cmake-dir, --version."""
from importlib.metadata import version
from pathlib import Path

__version__ = version("giwa")


def include():
    """The folder for a compiler's -I, or for include_dirs and extra_include_paths of PyTorch's extensions."""
    return str(Path(__file__).parent / "include")


def cmake_dir():
    """The folder for CMake's -Dgiwa_DIR, with which find_package(giwa) finds this package."""
    return str(Path(__file__).parent / "share" / "cmake" / "giwa")
